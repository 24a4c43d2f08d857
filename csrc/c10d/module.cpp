/* SPDX-License-Identifier: Apache-2.0
 *
 * module.cpp - rdmatensor._c10d: what distributed.py and torch.py of the package need of C++.
 *
 * torch must be imported before this module. Addresses of contexts come as integers, from the cffi
 * module that opened them.
 */
#include <ATen/EmptyTensor.h>
#include <pybind11/chrono.h>
#include <torch/csrc/distributed/c10d/exception.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/tensor_dtypes.h>
#include <torch/csrc/Dtype.h>

#include "c10d/allocator.hpp"
#include "c10d/backend.hpp"

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
               bool is_default_group)
{
    Backend::Setup setup = {.context = context_at(context),
                            .group_name = std::move(group_name),
                            .global_ranks = std::move(global_ranks),
                            .timeout = timeout,
                            .secret = secret,
                            .is_default_group = is_default_group};
    const py::gil_scoped_release unlocked;

    return make_backend(std::move(rendezvous), std::move(setup));
}

bool
is_context_in_use(uintptr_t context)
{
    return live_transfers() > 0 || live_storages(context_at(context)) > 0;
}

} // namespace
} // namespace rdmatensor

// NOLINTNEXTLINE: the macro's own names
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)
{
    using namespace rdmatensor;

    py::module_::import("torch._C._distributed_c10d"); /* the base classes */
    py::class_<Rendezvous, c10::intrusive_ptr<Rendezvous>>(m, "Rendezvous")
        .def(py::init<c10::intrusive_ptr<c10d::Store>, int, int, Milliseconds>(), py::arg("store"),
             py::arg("rank"), py::arg("size"), py::arg("timeout"), Unlocked())
        .def("everyone", &Rendezvous::everyone, py::arg("what"), py::arg("mine"), Unlocked());
    py::class_<Backend::Options, c10::intrusive_ptr<Backend::Options>, c10d::Backend::Options>(
        m, "Options")
        .def(py::init<Milliseconds>(), py::arg("timeout") = kBackendDefaultTimeout);
    /* What torch binds for its own backends, but not for their base class. */
    py::class_<Backend, c10::intrusive_ptr<Backend>, c10d::Backend>(m, "Backend")
        .def_property_readonly("options", &Backend::getBackendOptions)
        .def("get_error", &Backend::getError, Unlocked())
        .def("_set_default_timeout", &Backend::setTimeout, py::arg("timeout"), Unlocked());
    m.def("create_backend", &create_backend, py::kw_only(), py::arg("rendezvous"),
          py::arg("context"), py::arg("group_name"), py::arg("global_ranks"), py::arg("timeout"),
          py::arg("secret"), py::arg("is_default_group"));
    m.def(
        "shutdown_groups",
        [](uintptr_t context) {
            Backend::shutdown_all(reinterpret_cast<const rdt_context *>(context));
        },
        py::arg("context") = 0, Unlocked());
    m.def("stop_finisher", &Finisher::stop, Unlocked());
    m.def("is_context_in_use", &is_context_in_use, py::arg("context"));
    m.def("empty", &empty, py::arg("context"), py::arg("shape"), py::arg("dtype"));
}
