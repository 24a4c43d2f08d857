/* SPDX-License-Identifier: Apache-2.0
 *
 * coalesce.hpp - merges collectives that torch starts together into the library's collectives.
 *
 * Small tensors of one dtype and reduction are packed together (rdt_coll_post_packed()). Large
 * tensors are moved individually, directly from their source to their destination. The packing
 * depends on the tensors and their order alone, so that all members pack alike.
 *
 * One thread at a time.
 */
#pragma once

#include <vector>

#include "rdmatensor_ext.h"

namespace rdmatensor
{

/* One collective of the library. */
struct Call {
    rdt_coll_args args;
    std::vector<rdt_coll_part> parts; /* not empty: the tensors to pack, instead of those in args */
    rdt_persistent *persistent = nullptr; /* to start, instead; of args only the flags count */
    void *aside = nullptr;                /* its memory in this start; null: the bound tensor */

    Call(const rdt_coll_args &of) : args(of) {} // NOLINT: a plain call is what args say
};

/* Start `call` on the group. The arrays that it points to belong to the caller until this
 * returns. */
rdt_status begin_call(rdt_group *group, const Call &call, uint32_t flags, rdt_transfer **out,
                      rdt_error *error);

class Calls
{
  public:
    /* ALLREDUCE, ALLGATHER or REDUCE_SCATTER; all added calls complete together. */
    void add(const rdt_coll_args &args);
    const std::vector<Call> &all() const
    {
        return calls_;
    }

  private:
    /* The pack that is being filled, one for each kind of tensor. */
    struct Open {
        size_t call; /* in calls_ */
        uint64_t bytes;
    };
    Open *find(const rdt_coll_args &args);

    std::vector<Call> calls_;
    std::vector<Open> open_;
};

} // namespace rdmatensor
