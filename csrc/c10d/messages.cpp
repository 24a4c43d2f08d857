/* SPDX-License-Identifier: Apache-2.0
 * Send and receive, and the barrier that names missing ranks. */
#include <limits>

#include <torch/csrc/distributed/c10d/exception.h>

#include "c10d/backend.hpp"

namespace rdmatensor
{
namespace
{

/* torch's tags are non-negative ints and those of collectives have bit 63; these tags lie
 * between. */
constexpr uint64_t monitored_tag = UINT64_C(1) << 62;

std::string
join(const std::vector<int> &ranks)
{
    std::string text;

    for (const int rank : ranks)
        text += c10::str(text.empty() ? "" : ", ", rank);
    return text;
}

} // namespace

struct Backend::Message {
    c10d::OpType type;
    const char *title;
    Target target;
    uint32_t peer; /* group rank, or RDT_SOURCE_ANY */
    uint64_t tag;
    bool is_send;
    Milliseconds timeout;
};

void
Backend::record(const Message &message, const at::Tensor &tensor)
{
    Seen seen;

    if (recorder_.is_off() || message.tag >= monitored_tag)
        return;
    seen.kind = message.is_send ? kSend : kReceive;
    seen.dtype = tensor.scalar_type();
    seen.root = message.peer;
    seen.tag = message.tag;
    seen.bytes = message.is_send ? tensor.nbytes() : 0;
    seen.out_bytes = message.is_send ? 0 : tensor.nbytes();
    seen.address = tensor.data_ptr();
    recorder_.note(seen);
}

WorkPtr
Backend::start_message(const Message &message, at::Tensor given)
{
    refuse_forked_child(message.title);
    StandIns stand_ins(stand_ins_, message.is_send ? "send" : "recv");
    const at::Tensor tensor = message.is_send ? stand_ins.sent(given) : stand_ins.received(given);
    record(message, tensor);
    Operation operation = {.type = message.type,
                           .title = message.title,
                           .target = message.target,
                           .inputs = {tensor},
                           .outputs = {given},
                           .timeout = message.timeout,
                           .sequence = 0,
                           .order = 0,
                           .in_flight = nullptr,
                           .has_own_deadline = false,
                           .is_async = true,
                           .arrivals = stand_ins.arrivals()};
    rdt_transfer *transfer = nullptr;
    rdt_error error = {};
    rdt_status status = RDT_OK;
    const std::shared_lock lock(group_mutex_);

    if (group_ == nullptr)
        C10_THROW_ERROR(DistBackendError, c10::str(message.title, ": the group was shut down"));
    take_off(operation, 0);
    const uint64_t number = operation.number;
    c10::intrusive_ptr<Work> work;
    try {
        work = c10::make_intrusive<Work>(rank_, std::move(operation), 1);
    } catch (const std::exception &) {
        flight_->end(number, std::current_exception());
        throw;
    }
    const uint64_t len_bytes = tensor.nbytes();
    if (message.is_send)
        status = rdt_group_send(group_, message.peer, message.tag, tensor.data_ptr(), len_bytes,
                                nullptr, &transfer, &error);
    else
        status = rdt_group_recv(group_, message.peer, message.tag, tensor.data_ptr(), len_bytes,
                                nullptr, &transfer, &error);
    if (status != RDT_OK) {
        std::exception_ptr failure;
        try {
            failure = make_error(status, message.title + message.target.words(), error);
        } catch (const std::exception &) {
            failure = std::current_exception(); /* no memory for the message */
        }
        flight_->end(number, failure);
        rethrow_kept_exception();
        std::rethrow_exception(failure);
    }
    work->add(transfer);
    return noted(std::move(work));
}

Backend::Message
Backend::message_with(int peer, int tag, bool is_send, const char *call) const
{
    if (peer < 0 || peer >= size_)
        throw_value_error(call, c10::str("rank ", peer, " of a group of ", size_, " ranks"));
    if (tag < 0)
        throw_value_error(call, c10::str("the tag is ", tag, ", it must not be negative"));
    return {.type = is_send ? c10d::OpType::SEND : c10d::OpType::RECV,
            .title = is_send ? "rdmatensor:send" : "rdmatensor:recv",
            .target =
                is_send ? Target::to(global_rank(peer), tag) : Target::from(global_rank(peer), tag),
            .peer = static_cast<uint32_t>(peer),
            .tag = static_cast<uint64_t>(tag),
            .is_send = is_send,
            .timeout = timeout_or_own(c10d::kUnsetTimeout)};
}

WorkPtr
Backend::send(Tensors &tensors, int dst, int tag)
{
    constexpr const char *call = "send";
    const at::Tensor &tensor = only_tensor(tensors, call);

    return start_message(message_with(dst, tag, true, call), tensor);
}

WorkPtr
Backend::recv(Tensors &tensors, int src, int tag)
{
    constexpr const char *call = "recv";
    const at::Tensor &tensor = only_tensor(tensors, call);

    return start_message(message_with(src, tag, false, call), tensor);
}

WorkPtr
Backend::recvAnysource(Tensors &tensors, int tag)
{
    constexpr const char *call = "recv";
    const at::Tensor &tensor = only_tensor(tensors, call);
    Message message = message_with(rank_, tag, false, call);

    message.type = c10d::OpType::RECVANYSOURCE;
    message.title = "rdmatensor:recvAnySource";
    message.target = Target::from_any(tag);
    message.peer = RDT_SOURCE_ANY;
    return start_message(message, tensor);
}

/* ---- Signals of symmetric memory ---- */

WorkPtr
Backend::signal(int peer, uint64_t tag, bool is_send, const char *title, size_t timeout_ms)
{
    Message message = message_with(peer, 0, is_send, "signal");

    message.title = title;
    message.target = is_send ? Target::to(global_rank(peer)) : Target::from(global_rank(peer));
    message.tag = tag;
    if (timeout_ms > 0)
        message.timeout = Milliseconds(static_cast<int64_t>(
            std::min<size_t>(timeout_ms, std::numeric_limits<int32_t>::max())));
    return start_message(message, at::empty({0}, at::kByte));
}

/* ---- monitoredBarrier ---- */

/* torch documents the texts of these errors, and programs match them. */

c10::intrusive_ptr<Work>
Backend::exchange_token(int peer, uint64_t tag, bool is_send, Milliseconds timeout)
{
    Message message = message_with(peer, 0, is_send, "monitoredBarrier");

    message.tag = tag;
    message.timeout = timeout;
    auto work = start_message(message, at::zeros({1}, at::kByte));
    return c10::dynamic_intrusive_pointer_cast<Work>(std::move(work));
}

/* Rank 0: receives a token from every member, then answers all of them. */
void
Backend::collect_tokens(uint64_t tag, Milliseconds timeout, bool waits_for_all)
{
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    std::vector<c10::intrusive_ptr<Work>> tokens;
    std::vector<int> missing;
    std::string last_error;

    for (int rank = 1; rank < size_; rank++)
        tokens.push_back(exchange_token(rank, tag, false, timeout));
    if (timeout <= timeout.zero() && !waits_for_all)
        C10_THROW_ERROR(DistBackendError,
                        c10::str("[Rank 0]: Rank 0 timed out in monitoredBarrier after ",
                                 timeout.count(), " ms"));
    for (int rank = 1; rank < size_; rank++) {
        /* Also after the deadline: a token that has arrived counts, and the first missing rank is
         * named. */
        const auto left =
            std::chrono::duration_cast<Milliseconds>(deadline - std::chrono::steady_clock::now());
        try {
            tokens[static_cast<size_t>(rank - 1)]->wait(std::max(left, Milliseconds(1)));
        } catch (const c10::Error &error) {
            missing.push_back(rank);
            last_error = error.what_without_backtrace();
        }
        if (!missing.empty() && !waits_for_all)
            break;
    }
    if (!missing.empty())
        C10_THROW_ERROR(DistBackendError,
                        c10::str("[Rank 0]: Rank", missing.size() > 1 ? "s " : " ", join(missing),
                                 " failed to pass monitoredBarrier in ", timeout.count(),
                                 " ms; last error: ", last_error));
    for (int rank = 1; rank < size_; rank++)
        (void)exchange_token(rank, tag, true, timeout)->wait();
}

void
Backend::deliver_token(uint64_t tag, Milliseconds timeout)
{
    try {
        const auto answer = exchange_token(0, tag, false, timeout);
        (void)exchange_token(0, tag, true, timeout)->wait();
        (void)answer->wait();
    } catch (const c10::Error &error) {
        C10_THROW_ERROR(
            DistBackendError,
            c10::str("Rank ", rank_,
                     " successfully reached monitoredBarrier, but received errors while "
                     "waiting for send/recv from rank 0. Please check rank 0 logs for "
                     "faulty rank. Original exception: ",
                     error.what_without_backtrace()));
    }
}

void
Backend::monitoredBarrier(const c10d::BarrierOptions &opts, bool waits_for_all)
{
    refuse_forked_child("rdmatensor:monitored_barrier");
    /* relaxed: members call their barriers in the same order, one thread at a time */
    const uint64_t tag = monitored_tag | monitored_count_.fetch_add(1, std::memory_order_relaxed);
    const Milliseconds timeout = /* 0 is a valid timeout here, as torch documents */
        opts.timeout == kNoTimeout ? opts.timeout : timeout_or_own(opts.timeout);

    if (rank_ == 0)
        collect_tokens(tag, timeout, waits_for_all);
    else
        deliver_token(tag, timeout);
}

} // namespace rdmatensor
