/* SPDX-License-Identifier: Apache-2.0
 * Entries for the step recorder and the flight recorder, made from torch's collectives. */
#include "c10d/backend.hpp"

namespace rdmatensor
{
namespace
{

uint64_t
bytes_of(const Tensors &tensors)
{
    uint64_t bytes = 0;

    for (const at::Tensor &tensor : tensors)
        bytes += tensor.nbytes();
    return bytes;
}

/* A root's list counts as one of its blocks, so that all members record the same. */
Seen
seen_of(uint32_t kind, const Tensors &inputs, const Tensors &outputs)
{
    const bool is_scattered = kind == RDT_COLL_SCATTER;
    const Tensors &sent = is_scattered ? outputs : inputs;
    Seen seen;

    seen.kind = kind;
    if (sent.empty())
        return seen;
    seen.dtype = sent[0].scalar_type();
    seen.bytes = bytes_of(sent);
    seen.out_bytes = kind == RDT_COLL_GATHER ? seen.bytes : bytes_of(outputs);
    seen.address = (is_scattered && !inputs.empty() ? inputs[0] : sent[0]).data_ptr();
    return seen;
}

} // namespace

/* Records what torch requested, however the tensors are packed. */
void
Backend::record(const Operation &operation, const std::vector<Call> &calls)
{
    const c10d::OpType type = operation.type;
    const bool is_coalesced =
        type == c10d::OpType::ALLREDUCE_COALESCED || type == c10d::OpType::ALLGATHER_COALESCED ||
        type == c10d::OpType::_ALLGATHER_BASE || type == c10d::OpType::_REDUCE_SCATTER_BASE;
    const size_t count = is_coalesced ? operation.inputs.size() : 1;

    if (recorder_.is_off() || calls.empty())
        return;
    const rdt_coll_args &args = calls[0].args;
    for (size_t i = 0; i < count; i++) {
        Seen seen = count > 1 ? seen_of(args.op, {operation.inputs[i]}, {})
                              : seen_of(args.op, operation.inputs, operation.outputs);
        const auto members = static_cast<uint64_t>(size_);
        if (count > 1)
            seen.out_bytes = args.op == RDT_COLL_ALLGATHER        ? seen.bytes * members
                             : args.op == RDT_COLL_REDUCE_SCATTER ? seen.bytes / members
                                                                  : seen.bytes;
        seen.reduce_op = args.reduce_op;
        seen.root = args.root;
        recorder_.note(seen);
    }
}

/* Enters the operation into the flight recorder, under the numbers that the library is about to
 * give its collectives. */
void
Backend::take_off(Operation &operation, uint64_t collectives)
{
    const at::Tensor *const first = operation.inputs.empty() ? nullptr : &operation.inputs.front();
    Flight::Entry entry;

    if (collectives > 0) /* relaxed: concurrent calls of several threads have no order to keep */
        operation.sequence =
            sequence_.fetch_add(collectives, std::memory_order_relaxed) + collectives;
    operation.flight = flight_;
    if (is_hooked_.load(std::memory_order_acquire)) /* pairs with the release after hook_ is set */
        operation.hook = hook_;
    if (operation.hook || is_timed_.load(std::memory_order_relaxed))
        operation.begun = std::chrono::steady_clock::now();
    entry.sequence = operation.sequence;
    entry.collectives = collectives;
    entry.title = operation.title;
    entry.target = operation.target;
    entry.bytes = bytes_of(operation.inputs);
    entry.dtype = first ? first->scalar_type() : c10::ScalarType::Byte;
    operation.number = flight_->begin(entry);
}

/* The next operation reuses the numbers of the collectives that did not start, as in the
 * library. */
void
Backend::take_back(const Refused &refused, const std::exception_ptr &failure) noexcept
{
    sequence_.fetch_sub(refused.left, std::memory_order_relaxed); /* as in take_off() */
    flight_->end(refused.number, failure, refused.left);
}

/* Throws the library's error. */
void
Backend::take_back(const Refused &refused, rdt_status status, const rdt_error &error)
{
    std::exception_ptr failure;

    try {
        failure = make_error(status, refused.title, error);
    } catch (const std::exception &) {
        failure = std::current_exception(); /* no memory for the message */
    }
    take_back(refused, failure);
    rethrow_kept_exception();
    std::rethrow_exception(failure);
}

} // namespace rdmatensor
