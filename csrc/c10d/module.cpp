/* SPDX-License-Identifier: Apache-2.0
 *
 * module.cpp - rdmatensor._c10d: the C++ functions that distributed.py and torch.py need.
 *
 * torch must be imported before this module. The address of a context comes as an integer from the
 * cffi module that opened it.
 */
#include <algorithm>

#include <ATen/EmptyTensor.h>
#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/exception.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/tensor_dtypes.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>

#include "c10d/backend.hpp"
#include "c10d/ddp/gradients.hpp"
#include "c10d/ddp/reducer_buckets.hpp"
#include "c10d/memory/allocator.hpp"
#include "c10d/memory/allocator_switch.hpp"
#include "c10d/memory/plan_gradients.hpp"
#include "c10d/memory/planned_places.hpp"
#include "c10d/memory/symmetric.hpp"

namespace py = pybind11;

namespace rdmatensor
{
namespace
{

using Unlocked = py::call_guard<py::gil_scoped_release>;

rdt_context *
context_at(uintptr_t address)
{
    TORCH_CHECK(address != 0, "the address of a context is 0");
    return reinterpret_cast<rdt_context *>(address);
}

at::Tensor
empty(uintptr_t context, const std::vector<int64_t> &shape, const py::object &dtype)
{
    TORCH_CHECK_TYPE(THPDtype_Check(dtype.ptr()), "dtype must be a torch.dtype");
    const c10::ScalarType type = reinterpret_cast<THPDtype *>(dtype.ptr())->scalar_type;
    const py::gil_scoped_release unlocked;

    return at::Tensor(at::detail::empty_generic(shape, arena_allocator(context_at(context)),
                                                c10::DispatchKeySet(c10::DispatchKey::CPU), type,
                                                std::nullopt));
}

c10::intrusive_ptr<Backend>
create_backend(c10::intrusive_ptr<Rendezvous> rendezvous, uintptr_t context, std::string group_name,
               std::vector<int64_t> global_ranks, Milliseconds timeout, const py::bytes &secret,
               bool is_default_group, bool is_recorded)
{
    Backend::Setup setup = {.context = context_at(context),
                            .group_name = std::move(group_name),
                            .global_ranks = std::move(global_ranks),
                            .timeout = bounded(timeout),
                            .secret = secret,
                            .is_default_group = is_default_group,
                            .lingers = is_default_group,
                            .is_recorded = is_recorded};
    const py::gil_scoped_release unlocked;

    return make_backend(std::move(rendezvous), std::move(setup));
}

py::tuple
arena_allocations_as_tuple()
{
    const ArenaAllocations found = arena_allocations();

    return py::make_tuple(found.count, found.bytes, found.missed, found.missed_bytes);
}

at::Tensor
take_place(PlannedPlaces &places, uint32_t place, const std::vector<int64_t> &shape,
           const std::vector<int64_t> &strides, const py::object &dtype)
{
    TORCH_CHECK_TYPE(THPDtype_Check(dtype.ptr()), "dtype must be a torch.dtype");
    return places.take(place, shape, strides,
                       reinterpret_cast<THPDtype *>(dtype.ptr())->scalar_type);
}

py::dict
counters_as_dict(Backend &backend)
{
    const rdt_coll_counters counters = backend.counters();
    py::dict dict;

    dict["calls"] = counters.calls;
    dict["packs"] = counters.packs;
    dict["packed_tensors"] = counters.packed_parts;
    dict["writes"] = counters.writes;
    dict["rearranged_tensors"] = backend.stand_ins().tensors.load(std::memory_order_relaxed);
    dict["rearranged_bytes"] = backend.stand_ins().bytes.load(std::memory_order_relaxed);
    return dict;
}

py::list
last_operations(const Backend &backend)
{
    constexpr const char *states[] = {"in flight", "done", "failed"};
    py::list found;

    for (const Flight::Entry &entry : backend.last_operations()) {
        py::dict dict;
        dict["number"] = entry.number;
        dict["sequence"] = entry.sequence > 0 ? py::object(py::int_(entry.sequence)) : py::none();
        dict["collectives"] = entry.collectives;
        dict["operation"] = entry.title + entry.target.words();
        dict["bytes"] = entry.bytes;
        dict["dtype"] = py::reinterpret_borrow<py::object>(
            reinterpret_cast<PyObject *>(torch::getTHPDtype(entry.dtype)));
        dict["state"] = states[static_cast<int>(entry.state)];
        dict["seconds"] = entry.seconds();
        found.append(dict);
    }
    return found;
}

SymmetricMemory &
handle_of(const c10::intrusive_ptr<TorchSymmetricMemory> &handle)
{
    auto *const ours = dynamic_cast<SymmetricMemory *>(handle.get());

    if (ours == nullptr)
        throw_value_error("symmetric_memory", "the handle is not of rdmatensor's memory");
    return *ours;
}

/* As (kind, dtype, reduce_op, root, tag, bytes, out_bytes, address, is_fixed). */
py::tuple
seen_as_tuple(const Seen &seen)
{
    const auto dtype = reinterpret_cast<PyObject *>(torch::getTHPDtype(seen.dtype));

    return py::make_tuple(seen.kind, py::reinterpret_borrow<py::object>(dtype), seen.reduce_op,
                          seen.root, seen.tag, seen.bytes, seen.out_bytes,
                          reinterpret_cast<uintptr_t>(seen.address), seen.is_fixed);
}

py::list
seen_as_list(const std::vector<Seen> &seen)
{
    py::list found;

    for (const Seen &one : seen)
        found.append(seen_as_tuple(one));
    return found;
}

/* Counters of the context since the cycle was locked. */
py::dict
spent_as_dict(const rdt_counters &before, const rdt_counters &now)
{
    py::dict spent;

    spent["writes"] = now.writes - before.writes;
    spent["moved_bytes"] = now.moved_bytes - before.moved_bytes;
    spent["copied_bytes"] = now.copied_bytes - before.copied_bytes;
    spent["control_messages"] = now.control_messages - before.control_messages;
    spent["credits_alone"] = now.credits_alone - before.credits_alone;
    spent["registrations"] = now.registrations - before.registrations;
    spent["wire_bytes"] = now.wire_bytes - before.wire_bytes;
    spent["wakeups_sent"] = now.wakeups_sent - before.wakeups_sent;
    spent["wait_s"] = static_cast<double>(now.wait_ns - before.wait_ns) / 1e9;
    return spent;
}

py::dict
recorded_as_dict(Backend &group)
{
    const Recorder::Report report = group.recorded();
    py::dict found;

    found["state"] = report.state;
    found["reason"] = report.reason;
    found["watched_operations"] = seen_as_list(report.watched);
    found["changes"] = report.changes;
    if (report.cycle == nullptr)
        return found;
    found["cycle"] = seen_as_list(report.cycle->seen);
    found["cycles"] = report.cycles;
    found["moved"] = report.moved;
    found["spent"] = spent_as_dict(report.cycle->before, group.spent());
    return found;
}

bool
is_context_in_use(uintptr_t context)
{
    return live_transfers() > 0 || live_storages(context_at(context)) > 0;
}

void
bind_planned_places(py::module_ &m)
{
    py::class_<PlannedPlaces, c10::intrusive_ptr<PlannedPlaces>>(m, "PlannedPlaces")
        .def(py::init<const at::Tensor &, const PlannedPlaces::Spans &>(), py::arg("memory"),
             py::arg("spans"))
        .def("begin", &PlannedPlaces::begin, py::arg("served"), py::arg("in_passes") = false)
        .def("end", &PlannedPlaces::end)
        .def("stop", &PlannedPlaces::stop)
        .def("find", &PlannedPlaces::find, py::arg("address"))
        .def("take", &take_place, py::arg("place"), py::arg("shape"), py::arg("strides"),
             py::arg("dtype"))
        .def("is_taken", &PlannedPlaces::is_taken, py::arg("place"))
        .def_property_readonly("served_count", &PlannedPlaces::served_count);
}

void
bind_gradient_placer(py::module_ &m)
{
    py::class_<GradientPlacer::Told>(m, "GradientPlacerTold")
        .def_readonly("in_place", &GradientPlacer::Told::in_place)
        .def_readonly("copied", &GradientPlacer::Told::copied)
        .def_readonly("copied_bytes", &GradientPlacer::Told::copied_bytes)
        .def_readonly("last_copied", &GradientPlacer::Told::last_copied)
        .def_readonly("why_off", &GradientPlacer::Told::why_off);
    py::class_<GradientPlacer, c10::intrusive_ptr<GradientPlacer>>(m, "GradientPlacer")
        .def(py::init([](const std::vector<at::Tensor> &parameters, const py::object &reducer,
                         uint64_t least_bytes) {
                 return GradientPlacer::make(parameters, reducer_of(reducer), least_bytes);
             }),
             py::arg("parameters"), py::arg("reducer"), py::arg("least_bytes"))
        .def(
            "watch",
            [](GradientPlacer &self, const std::vector<at::Tensor> &outputs, uintptr_t context,
               bool is_syncing) {
                self.watch(outputs, reinterpret_cast<rdt_context *>(context), is_syncing);
            },
            py::arg("outputs"), py::arg("context"), py::arg("is_syncing"))
        .def("stop", &GradientPlacer::stop)
        .def("told", &GradientPlacer::told)
        .def_static("living", &GradientPlacer::living);
    m.def("is_traced", &is_traced);
    m.def("is_whole_backward", &is_whole_backward);
}

void
bind_plan_gradients(py::module_ &m)
{
    using Given = std::tuple<at::Tensor, uint32_t, uintptr_t, std::vector<int64_t>>;
    auto type = py::class_<PlanGradients, c10::intrusive_ptr<PlanGradients>>(m, "PlanGradients");

    type.def(py::init([](const std::vector<Given> &given, PlanGradients::Arrived arrived) {
                 std::vector<PlanGradients::Gradient> gradients;
                 for (const auto &[parameter, bucket, address, strides] : given)
                     gradients.push_back({parameter, bucket, address, strides});
                 return c10::make_intrusive<PlanGradients>(std::move(gradients),
                                                           std::move(arrived));
             }),
             py::arg("gradients"), py::arg("arrived"))
        .def("be_last", &PlanGradients::be_last, py::arg("number"))
        .def("close", &PlanGradients::close)
        .def("look", &PlanGradients::look, py::arg("number"))
        .def("can_leave", &PlanGradients::can_leave, py::arg("bucket"))
        .def("hold", &PlanGradients::hold, py::arg("bucket"))
        .def("let_go", &PlanGradients::let_go, py::arg("bucket"))
        .def("forget", &PlanGradients::forget)
        .def("unreached", &PlanGradients::unreached, py::arg("outputs"));
    type.attr("EXISTS") = static_cast<uint32_t>(PlanGradients::EXISTS);
    type.attr("IN_PLACE") = static_cast<uint32_t>(PlanGradients::IN_PLACE);
    type.attr("ALONE") = static_cast<uint32_t>(PlanGradients::ALONE);
    type.attr("STRIDED") = static_cast<uint32_t>(PlanGradients::STRIDED);
}

void
bind_symmetric_memory(py::module_ &m)
{
    using Handle = c10::intrusive_ptr<TorchSymmetricMemory>;
    m.def(
        "offer_symmetric_memory",
        [](uintptr_t context) { offer_symmetric_memory(context_at(context)); }, py::arg("context"));
    m.def(
        "put",
        [](const Handle &handle, const at::Tensor &src, int peer, uint64_t off_bytes) {
            return handle_of(handle).put(src, peer, off_bytes);
        },
        py::arg("handle"), py::arg("src"), py::arg("peer"), py::arg("off_bytes"), Unlocked());
    m.def(
        "get",
        [](const Handle &handle, const at::Tensor &dst, int peer, uint64_t off_bytes) {
            return handle_of(handle).get(dst, peer, off_bytes);
        },
        py::arg("handle"), py::arg("dst"), py::arg("peer"), py::arg("off_bytes"), Unlocked());
    m.def(
        "is_mapped",
        [](const Handle &handle, int peer) { return handle_of(handle).is_mapped(peer); },
        py::arg("handle"), py::arg("peer"));
}

/* As rdmatensor.state.BindingState. */
py::list
bindings_as_list(Backend &backend)
{
    py::list list;
    const auto all = [&backend] {
        const py::gil_scoped_release
            released; /* a start holds a binding's lock, and may need the GIL */
        return backend.bindings();
    }();

    for (const auto &[binding, bytes] : all) {
        py::dict dict;
        dict["operation"] = "all_reduce";
        dict["bytes"] = bytes;
        dict["way"] = binding.way_name;
        dict["algorithm"] = binding.algorithm;
        dict["reason"] = binding.reason;
        dict["rank"] = binding.rank == RDT_SOURCE_ANY ? py::object(py::none())
                                                      : py::object(py::int_(binding.rank));
        dict["starts"] = binding.starts;
        list.append(dict);
    }
    return list;
}

void
bind_lossy(py::class_<Backend, c10::intrusive_ptr<Backend>, c10d::Backend> &type)
{
    type.def(
            "_lossy_all_reduce",
            [](Backend &self, const at::Tensor &tensor, const c10d::ReduceOp &op, uint32_t wire,
               uint32_t block, const std::optional<at::Tensor> &residual, bool is_async,
               uint32_t label) {
                return self.lossy_allreduce(tensor, op, {wire, block, residual, is_async, label});
            },
            py::arg("tensor"), py::arg("op"), py::arg("wire"), py::arg("block"),
            py::arg("residual"), py::arg("is_async"), py::arg("label"), Unlocked())
        .def(
            "_lossy_reduce_scatter",
            [](Backend &self, const at::Tensor &output, const at::Tensor &input,
               const c10d::ReduceOp &op, uint32_t wire, uint32_t block,
               const std::optional<at::Tensor> &residual, bool is_async) {
                return self.lossy_reduce_scatter(output, input, op,
                                                 {wire, block, residual, is_async});
            },
            py::arg("output"), py::arg("tensor"), py::arg("op"), py::arg("wire"), py::arg("block"),
            py::arg("residual"), py::arg("is_async"), Unlocked())
        .def(
            "_lossy_all_gather",
            [](Backend &self, const at::Tensor &output, const at::Tensor &input, uint32_t wire,
               uint32_t block, const std::optional<at::Tensor> &residual, bool is_async) {
                return self.lossy_allgather(output, input, {wire, block, residual, is_async});
            },
            py::arg("output"), py::arg("tensor"), py::arg("wire"), py::arg("block"),
            py::arg("residual"), py::arg("is_async"), Unlocked());
}

void
bind_groups(py::module_ &m)
{
    py::class_<Rendezvous, c10::intrusive_ptr<Rendezvous>>(m, "Rendezvous")
        .def(py::init<c10::intrusive_ptr<c10d::Store>, int, int, Milliseconds>(), py::arg("store"),
             py::arg("rank"), py::arg("size"), py::arg("timeout"), Unlocked())
        .def(
            "all_say",
            [](Rendezvous &self, const std::string &what, const std::string &mine) {
                const std::vector<std::string> said = self.everyone(what, mine);
                return std::all_of(said.begin(), said.end(),
                                   [&mine](const std::string &word) { return word == mine; });
            },
            py::arg("what"), py::arg("mine"), Unlocked());
    py::class_<Backend::Options, c10::intrusive_ptr<Backend::Options>, c10d::Backend::Options>(
        m, "Options")
        .def(py::init<Milliseconds>(), py::arg("timeout") = kBackendDefaultTimeout);
    py::class_<Persistent, std::shared_ptr<Persistent>>(m, "Persistent")
        .def(
            "start",
            [](Persistent &self, uint32_t label, const std::optional<at::Tensor> &aside) {
                return self.start(label, aside.value_or(at::Tensor()));
            },
            py::arg("label") = 0, py::arg("aside") = std::nullopt, Unlocked())
        .def("run", &Persistent::run, Unlocked())
        .def("close", &Persistent::close, Unlocked());
    /* torch binds these for its own backends, but not for their base class. */
    py::class_<Backend, c10::intrusive_ptr<Backend>, c10d::Backend> type(m, "Backend");
    type.def_property_readonly("options", &Backend::getBackendOptions)
        .def("get_error", &Backend::getError, Unlocked())
        .def("_counters", &counters_as_dict)
        .def("last_operations", &last_operations)
        .def("_collectives", &Backend::collectives, Unlocked())
        .def_property_readonly("number", &Backend::number)
        .def("recorded", &recorded_as_dict)
        .def("_average_bucket", &Backend::average_bucket, py::arg("bucket"), py::arg("label"),
             Unlocked())
        .def("_bindings", &bindings_as_list)
        .def("_average_init", &Backend::average_init, py::arg("tensor"), Unlocked())
        .def("break_group", &Backend::break_group, py::arg("reason"), Unlocked())
        .def("everyone", &Backend::everyone, py::arg("what"), py::arg("mine"), Unlocked())
        .def("_set_default_timeout", &Backend::setTimeout, py::arg("timeout"), Unlocked());
    bind_lossy(type);
}

} // namespace
} // namespace rdmatensor

// NOLINTNEXTLINE: the macro's own names
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)
{
    using namespace rdmatensor;

    py::module_::import("torch._C._distributed_c10d"); /* the base classes */
    bind_groups(m);
    m.def("create_backend", &create_backend, py::kw_only(), py::arg("rendezvous"),
          py::arg("context"), py::arg("group_name"), py::arg("global_ranks"), py::arg("timeout"),
          py::arg("secret"), py::arg("is_default_group"), py::arg("is_recorded"));
    m.def("mark_step", &Backend::mark_step, Unlocked());
    m.def(
        "shutdown_groups",
        [](uintptr_t context) {
            const auto *const address = reinterpret_cast<const rdt_context *>(context);
            withdraw_symmetric_memory(address);
            Backend::shutdown_all(address);
            drop_slabs(address); /* no group allocates any more */
        },
        py::arg("context") = 0, Unlocked());
    m.def("stop_finisher", &Finisher::stop, Unlocked());
    m.def("is_context_in_use", &is_context_in_use, py::arg("context"));
    bind_planned_places(m);
    bind_gradient_placer(m);
    bind_plan_gradients(m);
    bind_symmetric_memory(m);
    m.def("take_allocator", &take_allocator);
    m.def(
        "enter_arena",
        [](uintptr_t context, size_t min_bytes) { enter_arena(context_at(context), min_bytes); },
        py::arg("context"), py::arg("min_bytes"));
    m.def("leave_arena", &leave_arena);
    m.def("arena_allocations", &arena_allocations_as_tuple);
    m.def("is_in_arena", &is_in_arena, py::arg("tensor"));
    m.def(
        "adopt",
        [](uintptr_t context, const at::Tensor &tensor) { adopt(context_at(context), tensor); },
        py::arg("context"), py::arg("tensor"), Unlocked());
    m.def("empty", &empty, py::arg("context"), py::arg("shape"), py::arg("dtype"));
}
