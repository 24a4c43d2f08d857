/* SPDX-License-Identifier: Apache-2.0
 *
 * calls.hpp - which of the collectives that torch asks for at once become one of the library's.
 *
 * Small tensors of one dtype and reduction go together in packs (rdt_coll_start_packed()); large
 * ones go alone, from where they lie to where they are wanted. What is packed how follows from the
 * tensors alone, in their order, so that all members pack alike.
 *
 * One thread at a time.
 */
#pragma once

#include <vector>

#include "rdmatensor.h"

namespace rdmatensor
{

/* A collective of the library. */
struct Call {
    rdt_coll_args args;
    std::vector<rdt_coll_part> parts; /* not empty: what is packed, in place of the args' tensors */

    Call(const rdt_coll_args &of) : args(of) {} // NOLINT: a plain call is what args say
};

/* `call` on the group; what its arrays point to is the caller's until this returns. */
rdt_status begin_call(rdt_group *group, const Call &call, uint32_t flags, rdt_transfer **out,
                      rdt_error *error);

class Calls
{
  public:
    /* ALLREDUCE, ALLGATHER or REDUCE_SCATTER, which are to end together. */
    void add(const rdt_coll_args &args);
    const std::vector<Call> &all() const
    {
        return calls_;
    }

  private:
    /* The pack that is being filled, of each kind of tensor. */
    struct Open {
        size_t call; /* in calls_ */
        uint64_t bytes;
    };
    Open *find(const rdt_coll_args &args);

    std::vector<Call> calls_;
    std::vector<Open> open_;
};

} // namespace rdmatensor
