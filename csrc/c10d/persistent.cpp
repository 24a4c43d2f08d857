/* SPDX-License-Identifier: Apache-2.0
 * Persistent averages. */
#include "c10d/persistent.hpp"

#include "c10d/backend.hpp"

namespace rdmatensor
{
namespace
{

constexpr const char *init_title = "rdmatensor:all_reduce_init";

} // namespace

Persistent::Persistent(c10::intrusive_ptr<Backend> backend, at::Tensor tensor,
                       rdt_persistent *handle)
    : backend_(std::move(backend)), tensor_(std::move(tensor)), handle_(handle)
{
}

Persistent::~Persistent()
{
    close();
}

void
Persistent::close() noexcept
{
    if (is_forked_child()) /* it belongs to the parent, a thread of which may have had the lock */
        return;
    at::Tensor tensor; /* dies after the lock is let go, as that may need the GIL */
    const std::lock_guard lock(mutex_);
    rdt_coll_free(handle_);
    handle_ = nullptr;
    tensor = std::move(tensor_);
}

void
Persistent::bind()
{
    rdt_persistent *handle;
    {
        const std::lock_guard lock(mutex_);
        handle = handle_;
    }
    /* Without the lock, which a shutdown needs. It frees the handle only when the group takes no
     * calls any more. */
    backend_->bind_persistent(handle);
}

std::optional<std::pair<rdt_coll_binding, size_t>>
Persistent::binding()
{
    rdt_coll_binding binding = {};

    if (is_forked_child()) /* as in close() */
        return std::nullopt;
    const std::lock_guard lock(mutex_);
    if (handle_ == nullptr)
        return std::nullopt;
    binding.struct_size = sizeof(binding);
    rdt_coll_get_binding(handle_, &binding);
    return std::pair(binding, tensor_.nbytes());
}

WorkPtr
Persistent::start(uint32_t label, const at::Tensor &aside)
{
    return start(label, aside, true);
}

void
Persistent::run()
{
    if (const WorkPtr work = start(0, {}, false))
        work->wait();
}

WorkPtr
Persistent::start(uint32_t label, const at::Tensor &aside, bool is_async)
{
    refuse_forked_child("rdmatensor:all_reduce");
    const std::lock_guard lock(mutex_);
    const at::Tensor &tensor = aside.defined() ? aside : tensor_;

    if (handle_ == nullptr)
        C10_THROW_ERROR(DistBackendError,
                        "rdmatensor:all_reduce: the persistent collective was closed");
    if (aside.defined() && (!aside.is_contiguous() || aside.numel() != tensor_.numel() ||
                            aside.scalar_type() != tensor_.scalar_type()))
        throw_value_error("all_reduce", "the other memory is not as the bound tensor");
    return backend_->start_persistent(tensor, {handle_, aside.defined(), is_async, label});
}

std::shared_ptr<Persistent>
Backend::average_init(const at::Tensor &tensor)
{
    constexpr const char *call = "all_reduce_init";
    rdt_coll_args args =
        args_for(RDT_COLL_ALLREDUCE, elements_of(tensor, true, call), c10d::kUnsetTimeout);
    Tensors tensors = {tensor};
    Operation operation =
        collective(c10d::OpType::ALLREDUCE, init_title, c10d::AllreduceOptions(), tensors, tensors);
    WorkPtr exchange;

    args.timeout_ns = RDT_TIMEOUT_DEFAULT; /* the group's, at each start */
    args.reduce_op = RDT_AVG;
    args.send = tensor.data_ptr();
    args.recv = tensor.data_ptr();
    auto persistent = post_exchange(operation, args, tensor, exchange);
    exchange->wait();
    persistent->bind();
    return persistent;
}

void
Backend::bind_persistent(rdt_persistent *handle)
{
    post_bind(handle)->wait();
}

/* The second exchange. */
WorkPtr
Backend::post_bind(rdt_persistent *handle)
{
    Operation operation = collective(c10d::OpType::ALLREDUCE, init_title, c10d::AllreduceOptions(),
                                     Tensors(), Tensors());
    const std::shared_lock lock(group_mutex_);
    rdt_transfer *transfer = nullptr;
    rdt_error error = {};

    if (group_ == nullptr)
        C10_THROW_ERROR(DistBackendError, c10::str(operation.title, ": the group was shut down"));
    take_off(operation, 1);
    const rdt_status status = rdt_coll_bind(handle, &transfer, &error);
    if (status != RDT_OK)
        take_back({operation.title, operation.number, 1}, status, error);
    return work_of(operation, transfer);
}

/* In the list before the group can be shut down. */
std::shared_ptr<Persistent>
Backend::post_exchange(Operation &operation, const rdt_coll_args &args, const at::Tensor &tensor,
                       WorkPtr &exchange)
{
    refuse_forked_child(operation.title);
    const std::shared_lock lock(group_mutex_);
    rdt_persistent *handle = nullptr;
    rdt_transfer *transfer = nullptr;
    rdt_error error = {};

    if (group_ == nullptr)
        C10_THROW_ERROR(DistBackendError, c10::str(operation.title, ": the group was shut down"));
    take_off(operation, 1);
    const rdt_status status = rdt_coll_init(group_, &args, &handle, &transfer, &error);
    if (status != RDT_OK)
        take_back({operation.title, operation.number, 1}, status, error);
    std::shared_ptr<Persistent> persistent;
    try {
        persistent = std::make_shared<Persistent>(
            c10::intrusive_ptr<Backend>::unsafe_reclaim_from_nonowning(this), tensor, handle);
    } catch (const std::exception &) {
        rdt_coll_free(handle);
        end_without_work(operation, transfer, std::current_exception());
        throw;
    }
    exchange = work_of(operation, transfer);
    const std::lock_guard list_lock(persistents_mutex_);
    std::erase_if(persistents_, [](const auto &one) { return one.expired(); });
    persistents_.emplace_back(persistent);
    return persistent;
}

WorkPtr
Backend::start_persistent(const at::Tensor &tensor, const PersistentStart &given)
{
    rdt_coll_args args =
        args_for(RDT_COLL_ALLREDUCE, elements_of(tensor, true, "all_reduce"), c10d::kUnsetTimeout);
    Tensors tensors = {tensor};

    args.reduce_op = RDT_AVG;
    args.flags = RDT_COLL_LABEL(given.label);
    args.send = tensor.data_ptr();
    args.recv = tensor.data_ptr();
    Call call(args);
    call.persistent = given.handle;
    call.aside = given.is_aside ? tensor.data_ptr() : nullptr;
    c10d::AllreduceOptions opts;
    opts.asyncOp = given.is_async;
    return start(collective(c10d::OpType::ALLREDUCE, "rdmatensor:all_reduce", opts, tensors,
                            tensors),
                 {call});
}

std::vector<std::pair<rdt_coll_binding, size_t>>
Backend::bindings()
{
    std::vector<std::weak_ptr<Persistent>> all;
    std::vector<std::pair<rdt_coll_binding, size_t>> open;

    if (is_forked_child())
        return {};
    {
        const std::lock_guard lock(persistents_mutex_);
        all = persistents_;
    }
    for (const auto &weak : all)
        if (const auto persistent = weak.lock())
            if (const auto binding = persistent->binding())
                open.push_back(*binding);
    return open;
}

/* Before the group goes, when it takes no calls any more. */
void
Backend::close_persistents() noexcept
{
    std::vector<std::weak_ptr<Persistent>> all;
    {
        const std::lock_guard lock(persistents_mutex_);
        all.swap(persistents_);
    }
    for (const auto &weak : all)
        if (const auto persistent = weak.lock())
            persistent->close();
}

} // namespace rdmatensor
