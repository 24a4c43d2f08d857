/* SPDX-License-Identifier: Apache-2.0
 *
 * hook.hpp - the function given to registerOnCompletionHook(), called once for each operation that
 * ended, well or not, with its type, number and times.
 *
 * It may be a Python function. It therefore runs on a completion thread, one call at a time, in the
 * order in which operations ended; never on the thread that waited, and never on the library's. Any
 * thread.
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

/* Longest delay in noticing Ctrl-C, and in letting other threads inspect a Work. */
constexpr std::chrono::milliseconds work_slice{100};

class CompletionHook : public std::enable_shared_from_this<CompletionHook>
{
  public:
    using Function = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;

    explicit CompletionHook(Function function) : function_(std::move(function)) {}
    CompletionHook(const CompletionHook &) = delete;
    CompletionHook &operator=(const CompletionHook &) = delete;

    /* Schedules the call. If that fails, torch's log reports it. */
    void tell(const c10d::WorkInfo &info) noexcept;
    /* Waits until the calls for all ended operations are over. Throws TimeoutError, or a signal's
     * exception. */
    void wait(std::chrono::steady_clock::time_point deadline);

  private:
    class Call;

    void run() noexcept;

    const Function function_;
    std::mutex turn_;  /* held during a call: a slow completion thread gets helpers */
    std::mutex mutex_; /* guards all below; locked after turn_ */
    std::condition_variable over_;
    /* List nodes, so that adding and removing a record allocates nothing. */
    std::list<std::shared_ptr<c10d::WorkInfo>> due_;
    uint64_t told_ = 0;
    uint64_t run_ = 0;
};

/* While it lives, this thread runs callbacks of a Future of one of the group's collectives. Groups
 * have numbers from 1 on. */
class CallbacksOf
{
  public:
    explicit CallbacksOf(uint64_t group) noexcept;
    ~CallbacksOf();
    CallbacksOf(const CallbacksOf &) = delete;
    CallbacksOf &operator=(const CallbacksOf &) = delete;

    /* Whether this thread runs such a callback now. */
    static bool are_run(uint64_t group) noexcept;

  private:
    const uint64_t before_;
};

} // namespace rdmatensor
