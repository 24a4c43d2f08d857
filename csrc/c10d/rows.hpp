/* SPDX-License-Identifier: Apache-2.0
 *
 * rows.hpp - row-major stand-ins for tensors whose elements lie in another order, or with gaps.
 *
 * The library moves bytes in the order of memory. The members of a group may have the same tensor
 * in different strides, and none of them knows the others'. So row-major is the order on the way:
 * an input is copied into a stand-in before the operation begins, and an output is copied out of
 * one at its end, unless the operation failed. A row-major tensor is sent as it lies.
 *
 * One thread at a time; deliver() on any.
 */
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <vector>

#include <ATen/core/Tensor.h>

namespace rdmatensor
{

/* What was copied for it, of a group. */
struct StandInCounts {
    std::atomic<uint64_t> tensors{0}; /* relaxed: only counted */
    std::atomic<uint64_t> bytes{0};
};

struct Arrival {
    at::Tensor stand_in;
    at::Tensor tensor;
};
using Arrivals = std::vector<Arrival>;

class StandIns
{
  public:
    /* `call` names the operation in errors, as in tensors.hpp. */
    StandIns(StandInCounts &counts, const char *call) : counts_(counts), call_(call) {}

    /* What the library reads, writes, or both; the tensor itself where it is row-major. A tensor
     * that is written and has elements in one place is a ValueError. */
    at::Tensor sent(const at::Tensor &tensor);
    at::Tensor received(const at::Tensor &tensor);
    at::Tensor exchanged(const at::Tensor &tensor);
    std::vector<at::Tensor> sent(const std::vector<at::Tensor> &tensors);
    std::vector<at::Tensor> received(const std::vector<at::Tensor> &tensors);
    /* What its Operation keeps and delivers. Once. */
    Arrivals arrivals()
    {
        return std::move(arrivals_);
    }

    /* As received() checks it; where other ranks receive what this one sends, all refuse alike. */
    void check_writable(const at::Tensor &tensor) const;

  private:
    void count(const at::Tensor &tensor) noexcept;

    StandInCounts &counts_;
    const char *const call_;
    Arrivals arrivals_;
};

/* Copies what arrived to where it is wanted; what failed, or NULL. */
std::exception_ptr deliver(const Arrivals &arrivals) noexcept;

} // namespace rdmatensor
