/* SPDX-License-Identifier: Apache-2.0
 *
 * hook.hpp - what a group was given by registerOnCompletionHook(): called once for each operation
 * that ended, well or not, with its type, number and times.
 *
 * It may be a Python function, so it runs on a finisher's thread, one call at a time, in the order
 * in which operations ended: never on the thread that waited, never on the library's. Any thread.
 */
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace rdmatensor
{

class CompletionHook : public std::enable_shared_from_this<CompletionHook>
{
  public:
    using Function = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;

    explicit CompletionHook(Function function) : function_(std::move(function)) {}
    CompletionHook(const CompletionHook &) = delete;
    CompletionHook &operator=(const CompletionHook &) = delete;

    /* The call is made later. Where none can be made, torch's log says so. */
    void tell(const c10d::WorkInfo &info) noexcept;
    /* Until the calls for all that has ended are over. TimeoutError; a signal's exception. */
    void wait(std::chrono::steady_clock::time_point deadline);

  private:
    class Call;

    void run() noexcept;

    const Function function_;
    std::mutex turn_;  /* held during a call: a finisher that is slow gets helpers */
    std::mutex mutex_; /* of all below; after turn_ */
    std::condition_variable over_;
    /* Nodes, so that a record goes in and out without a request for memory. */
    std::list<std::shared_ptr<c10d::WorkInfo>> due_;
    uint64_t told_ = 0;
    uint64_t run_ = 0;
};

} // namespace rdmatensor
