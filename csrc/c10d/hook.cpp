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
    explicit Call(std::shared_ptr<CompletionHook> hook) : hook_(std::move(hook)) {}

    void end() noexcept override
    {
        hook_->run();
        delete this;
    }

  private:
    const std::shared_ptr<CompletionHook> hook_;
};

void
CompletionHook::tell(const c10d::WorkInfo &info) noexcept
{
    try {
        auto call = std::make_unique<Call>(shared_from_this());
        std::list record = {std::make_shared<c10d::WorkInfo>(info)};
        Finisher::expect(call.get(), 0, hook_lane); /* behind it nothing fails */
        {
            const std::lock_guard lock(mutex_);
            due_.splice(due_.end(), record);
            told_++;
        }
        Finisher::enqueue(call.release());
    } catch (const std::exception &error) {
        TORCH_WARN("rdmatensor: a completion hook does not hear of an operation: ", error.what());
    }
}

void
CompletionHook::run() noexcept
{
    const std::lock_guard turn(turn_);

    try {
        std::shared_ptr<c10d::WorkInfo> info;
        {
            /* Whatever fails from here on, the next call gets the next record. */
            const std::lock_guard lock(mutex_);
            info = std::move(due_.front());
            due_.pop_front();
        }
        function_(std::move(info));
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
