/* SPDX-License-Identifier: Apache-2.0
 * Access to peers' memory for symmetric memory: mapped, or by one-sided writes and reads. */
#include <mutex>
#include <shared_mutex>
#include <thread>

#include <torch/csrc/distributed/c10d/exception.h>

#include "c10d/backend.hpp"
#include "rdmatensor_ext.h"

namespace rdmatensor
{
namespace
{

/* Longest delay in noticing Ctrl-C or the group's end while a peer hands over its memory. */
constexpr uint64_t slice_ns = UINT64_C(100000000);
constexpr std::chrono::microseconds between_looks{50};

} // namespace

uint64_t
Backend::next_symmetric_number()
{
    return symmetric_count_.fetch_add(1, std::memory_order_relaxed); /* identical on all members */
}

at::Tensor
Backend::gather_bytes(const at::Tensor &bytes)
{
    return gather_all(bytes, c10d::kUnsetTimeout);
}

/* The caller holds group_mutex_ shared. */
rdt_endpoint *
Backend::endpoint_of(int rank, const char *title)
{
    rdt_endpoint *endpoint = nullptr;
    rdt_error error = {};

    if (group_ == nullptr)
        C10_THROW_ERROR(DistBackendError, c10::str(title, ": the group was shut down"));
    const rdt_status status =
        rdt_group_endpoint(group_, static_cast<uint32_t>(rank), &endpoint, &error);
    if (status != RDT_OK) {
        rethrow_kept_exception();
        std::rethrow_exception(make_error(status, title, error));
    }
    return endpoint;
}

rdt_endpoint *
Backend::hold(int rank, const rdt_remote_region &remote, void **out)
{
    constexpr const char *title = "rdmatensor:rendezvous";
    const auto deadline = std::chrono::steady_clock::now() + timeout_or_own(kNoTimeout);

    refuse_forked_child(title);
    for (;;) {
        rdt_error error = {};
        rdt_status status = RDT_OK;
        {
            const std::shared_lock lock(group_mutex_);
            rdt_endpoint *const endpoint = endpoint_of(rank, title);
            status = rdt_endpoint_wait_ready(endpoint, slice_ns, &error);
            if (status == RDT_OK)
                status = rdt_endpoint_hold(endpoint, &remote, out, &error);
            if (status == RDT_OK)
                return endpoint;
            if (status == RDT_EAGAIN && rdt_context_progress(setup_.context) != RDT_OK)
                status = RDT_EFORKED; /* rdt_context_progress() fails for no other reason */
        }
        if (status == RDT_ENOTSUP)
            return nullptr;
        const bool is_late = std::chrono::steady_clock::now() >= deadline;
        if ((status != RDT_EAGAIN && status != RDT_ETIMEDOUT) || is_late)
            std::rethrow_exception(make_error(is_late ? RDT_ETIMEDOUT : status, title, error));
        check_signals();
        std::this_thread::sleep_for(between_looks);
    }
}

WorkPtr
Backend::move(int rank, const rdt_remote_region &remote, uint64_t off_bytes,
              const at::Tensor &tensor, bool is_put)
{
    const char *const title = is_put ? "rdmatensor:put" : "rdmatensor:get";
    refuse_forked_child(title);
    Operation operation = {.type = c10d::OpType::UNKNOWN,
                           .title = title,
                           .target = is_put ? Target::to(global_rank(rank))
                                            : Target::from(global_rank(rank)),
                           .inputs = {tensor},
                           .outputs = {tensor},
                           .timeout = timeout_or_own(c10d::kUnsetTimeout),
                           .sequence = 0,
                           .order = 0,
                           .in_flight = nullptr,
                           .has_own_deadline = false,
                           .is_async = true};
    auto work = c10::make_intrusive<Work>(rank_, std::move(operation), 1);
    const uint64_t len_bytes = tensor.nbytes();
    rdt_transfer *transfer = nullptr;
    rdt_error error = {};
    const std::shared_lock lock(group_mutex_);

    if (rank == rank_) {
        auto *const own = reinterpret_cast<uint8_t *>(remote.addr) + off_bytes;
        if (len_bytes > 0)
            std::memmove(is_put ? own : tensor.data_ptr(), is_put ? tensor.data_ptr() : own,
                         len_bytes);
        return work;
    }
    rdt_endpoint *const endpoint = endpoint_of(rank, title);
    const rdt_status status =
        is_put ? rdt_endpoint_write(endpoint, tensor.data_ptr(), len_bytes, &remote, off_bytes,
                                    RDT_NOTIFY_NONE, &transfer, &error)
               : rdt_endpoint_read(endpoint, tensor.data_ptr(), len_bytes, &remote, off_bytes,
                                   &transfer, &error);
    if (status != RDT_OK)
        std::rethrow_exception(make_error(status, title, error));
    work->add(transfer);
    return work;
}

} // namespace rdmatensor
