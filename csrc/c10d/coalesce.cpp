/* SPDX-License-Identifier: Apache-2.0
 * Packing small tensors. */
#include "c10d/coalesce.hpp"

namespace rdmatensor
{
namespace
{

/* Bytes of one pack: what a board holds at once, so that the memory for copies stays small. */
constexpr uint64_t pack_max_bytes = uint64_t{1} << 20;

} // namespace

rdt_status
begin_call(rdt_group *group, const Call &call, uint32_t flags, rdt_transfer **out, rdt_error *error)
{
    rdt_coll_args args = call.args;

    args.flags |= flags;
    if (call.persistent != nullptr && call.aside != nullptr)
        return rdt_coll_start_aside(call.persistent, call.aside, args.flags, out, error);
    if (call.persistent != nullptr)
        return rdt_coll_start(call.persistent, args.flags, out, error);
    if (call.parts.empty())
        return rdt_coll_post(group, &args, out, error);
    return rdt_coll_post_packed(group, &args, call.parts.data(),
                                static_cast<uint32_t>(call.parts.size()), out, error);
}

/* The open pack of this kind, or nullptr. */
Calls::Open *
Calls::find(const rdt_coll_args &args)
{
    for (Open &open : open_) {
        const rdt_coll_args &of = calls_[open.call].args;
        if (of.dtype == args.dtype && of.op == args.op && of.reduce_op == args.reduce_op)
            return &open;
    }
    return nullptr;
}

void
Calls::add(const rdt_coll_args &args)
{
    const uint64_t elem_bytes = rdt_dtype_bytes(args.dtype);
    const uint64_t bytes = args.count * elem_bytes;

    if (args.blocks != nullptr || args.count > RDT_COLL_PART_MAX_BYTES / elem_bytes) {
        calls_.emplace_back(args);
        return;
    }
    const rdt_coll_part part = {.send = args.send, .recv = args.recv, .count = args.count};
    Open *const open = find(args);
    if (open != nullptr && open->bytes + bytes <= pack_max_bytes) {
        Call &call = calls_[open->call];
        if (call.parts.empty()) /* the first tensor of a kind starts as a plain call */
            call.parts.push_back({call.args.send, call.args.recv, call.args.count});
        call.parts.push_back(part);
        open->bytes += bytes;
        return;
    }
    if (open != nullptr)
        *open = {calls_.size(), bytes};
    else
        open_.push_back({calls_.size(), bytes});
    calls_.emplace_back(args);
}

} // namespace rdmatensor
