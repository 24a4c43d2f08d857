/* SPDX-License-Identifier: Apache-2.0
 *
 * batch.hpp - the operations between startCoalescing() and endCoalescing(), as one Work.
 *
 * Each operation was started at once, on its own. The batch is complete when all of them are. If
 * the batch is dropped before, each operation is left to its own Work.
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

    /* timeout: how long wait() waits for all of them if the caller gives no timeout. */
    Batch(int rank, Parts parts, std::chrono::milliseconds timeout);

    bool isCompleted() override;
    bool isSuccess() const override;
    /* The first one in the order in which the operations started. */
    std::exception_ptr exception() const override;
    /* Source rank of the only receive; an error if the batch has none or several. */
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
