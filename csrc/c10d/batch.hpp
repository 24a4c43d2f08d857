/* SPDX-License-Identifier: Apache-2.0
 *
 * batch.hpp - the operations between startCoalescing() and endCoalescing(), as one Work.
 *
 * They were begun one by one, at once; the batch is over when all of them are. Dropped before that,
 * it leaves each to its own Work.
 *
 * Threads: any.
 */
#pragma once

#include <chrono>
#include <mutex>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace rdmatensor
{

class Batch final : public c10d::Work
{
  public:
    using Parts = std::vector<c10::intrusive_ptr<c10d::Work>>;

    /* timeout: how long wait() waits for all of them where it is not told. */
    Batch(int rank, Parts parts, std::chrono::milliseconds timeout);

    bool isCompleted() override;
    bool isSuccess() const override;
    /* The first in the order of their beginning. */
    std::exception_ptr exception() const override;
    /* Of the only receive; an error where the batch has another number of them. */
    int sourceRank() const override;
    std::vector<at::Tensor> result() override;
    bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  private:
    const Parts parts_;
    const std::chrono::milliseconds timeout_;
    std::mutex future_mutex_;
    c10::intrusive_ptr<c10::ivalue::Future> future_;
};

} // namespace rdmatensor
