/* SPDX-License-Identifier: Apache-2.0
 * Calls of a completion hook, on the threads of the finisher. */
#include "c10d/hook.hpp"

#include <exception>
#include <utility>

#include <c10/util/Exception.h>

#include "c10d/finisher.hpp"
#include "c10d/tensors.hpp"

namespace rdmatensor
{
namespace
{

/* Behind all that callbacks begin: a hook that takes its time holds up no Future. */
constexpr unsigned hook_lane = ~0U;
/* How long Ctrl-C may go unheard. */
constexpr std::chrono::milliseconds slice{100};

} // namespace

/* Deletes itself. */
class CompletionHook::Call final : public Ending
{
  public:
    Call(std::shared_ptr<CompletionHook> hook, c10d::WorkInfo info)
        : hook_(std::move(hook)), info_(std::move(info))
    {
    }

    void end() noexcept override
    {
        hook_->run(info_);
        delete this;
    }

  private:
    const std::shared_ptr<CompletionHook> hook_;
    const c10d::WorkInfo info_;
};

void
CompletionHook::tell(const c10d::WorkInfo &info) noexcept
{
    try {
        auto call = std::make_unique<Call>(shared_from_this(), info);
        Finisher::expect(call.get(), order_, hook_lane);
        {
            const std::lock_guard lock(mutex_);
            told_++;
        }
        Finisher::enqueue(call.release());
    } catch (const std::exception &error) {
        TORCH_WARN("rdmatensor: a completion hook does not hear of an operation: ", error.what());
    }
}

void
CompletionHook::run(const c10d::WorkInfo &info) noexcept
{
    try {
        function_(std::make_shared<c10d::WorkInfo>(info));
    } catch (const std::exception &error) {
        TORCH_WARN("rdmatensor: a completion hook failed: ", error.what());
    }
    const std::lock_guard lock(mutex_);
    run_++;
    over_.notify_all();
}

void
CompletionHook::wait(std::chrono::steady_clock::time_point deadline)
{
    std::unique_lock lock(mutex_);
    const uint64_t due = told_;

    while (run_ < due) {
        (void)over_.wait_for(lock, slice);
        if (run_ < due && std::chrono::steady_clock::now() >= deadline)
            std::rethrow_exception(
                make_error(RDT_ETIMEDOUT, "rdmatensor:wait_for_pending_works: the timeout passed: "
                                          "the completion hook is not done [RDT_ETIMEDOUT]"));
        lock.unlock();
        check_signals();
        lock.lock();
    }
}

} // namespace rdmatensor
