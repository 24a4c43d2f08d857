/* SPDX-License-Identifier: Apache-2.0
 *
 * rows.hpp - row-major stand-ins for tensors that are not contiguous.
 *
 * The library moves bytes in memory order. Members of a group may hold the same tensor with
 * different strides, and no member knows the strides of the others. The order on the wire is
 * therefore row-major. An input is copied into a stand-in before the operation starts. An output is
 * copied from its stand-in when the operation ends, unless it failed. A row-major tensor is sent
 * without a copy.
 *
 * One thread at a time; deliver() on any thread.
 */
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <vector>

#include <ATen/core/Tensor.h>

namespace rdmatensor
{

/* Copies between tensors and stand-ins, of a group. */
struct StandInCounts {
    std::atomic<uint64_t> tensors{0}; /* relaxed: counters only */
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

    /* The tensor that the library reads, writes, or both; `tensor` itself if it is row-major.
     * Throws ValueError for a written tensor in which several elements share an address. */
    at::Tensor sent(const at::Tensor &tensor);
    at::Tensor received(const at::Tensor &tensor);
    at::Tensor exchanged(const at::Tensor &tensor);
    std::vector<at::Tensor> sent(const std::vector<at::Tensor> &tensors);
    std::vector<at::Tensor> received(const std::vector<at::Tensor> &tensors);
    /* The stand-ins that the Operation keeps and delivers. Call it once. */
    Arrivals arrivals()
    {
        return std::move(arrivals_);
    }

    /* The check of received(). Called where other ranks receive what this rank sends, so that all
     * of them refuse alike. */
    void check_writable(const at::Tensor &tensor) const;

  private:
    void count(const at::Tensor &tensor) noexcept;

    StandInCounts &counts_;
    const char *const call_;
    Arrivals arrivals_;
};

/* Copies what arrived from the stand-ins into the tensors. Returns the failure, or NULL. */
std::exception_ptr deliver(const Arrivals &arrivals) noexcept;

} // namespace rdmatensor
