/* SPDX-License-Identifier: Apache-2.0
 * A group's Works after they have started: batches, hooks, and waiting for all of them. */
#include "c10d/backend.hpp"

#include "c10d/works/hook.hpp"

namespace rdmatensor
{
namespace
{

using Clock = std::chrono::steady_clock;

} // namespace

/* With a hook, the library must notice each end even if the program does not wait. Not for
 * messages: a receive that the program no longer waits for has to be withdrawn. */
void
Backend::attend_if_hooked(const c10::intrusive_ptr<Work> &work) noexcept
{
    if (!is_hooked_.load(std::memory_order_acquire))
        return;
    try {
        work->attend();
    } catch (const std::exception &error) { /* it has started, and works as without a hook */
        TORCH_WARN("rdmatensor: a completion hook hears late of an operation: ", error.what());
    }
}

/* ---- Coalescing ---- */

WorkPtr
Backend::noted(WorkPtr work)
{
    /* relaxed: a thread sees its own changes, and those of others do not matter */
    if (batch_count_.load(std::memory_order_relaxed) == 0)
        return work;
    const std::lock_guard lock(batches_mutex_);
    const auto batch = batches_.find(std::this_thread::get_id());
    if (batch != batches_.end())
        batch->second.push_back(work);
    return work;
}

void
Backend::startCoalescing()
{
    refuse_forked_child("rdmatensor:startCoalescing");
    const std::lock_guard lock(batches_mutex_);

    TORCH_CHECK(batches_.try_emplace(std::this_thread::get_id()).second,
                "rdmatensor:startCoalescing: this thread coalesces already");
    batch_count_.fetch_add(1, std::memory_order_relaxed);
}

WorkPtr
Backend::endCoalescing()
{
    std::map<std::thread::id, Batch::Parts>::node_type batch;
    {
        const std::lock_guard lock(batches_mutex_);
        batch = batches_.extract(std::this_thread::get_id());
    }
    TORCH_CHECK(!batch.empty(), "rdmatensor:endCoalescing: this thread began no coalescing");
    batch_count_.fetch_sub(1, std::memory_order_relaxed);
    return c10::make_intrusive<Batch>(rank_, std::move(batch.mapped()),
                                      timeout_or_own(c10d::kUnsetTimeout));
}

/* ---- Hooks and times ---- */

void
Backend::registerOnCompletionHook(CompletionHook::Function &&hook)
{
    refuse_forked_child("rdmatensor:registerOnCompletionHook");
    const std::lock_guard lock(batches_mutex_);

    TORCH_CHECK(hook_ == nullptr, "rdmatensor: the group has a completion hook already");
    Finisher::start();
    hook_ = std::make_shared<CompletionHook>(std::move(hook));
    is_hooked_.store(true, std::memory_order_release); /* pairs with the acquire loads */
}

/* Applies to operations that start from now on: Work::getDuration(). */
void
Backend::enableCollectivesTiming()
{
    is_timed_.store(true, std::memory_order_relaxed); /* relaxed: the flag orders nothing */
}

void
Backend::waitForPendingWorks()
{
    if (is_forked_child())
        return; /* the child has none of its own; destroy_process_group() also calls this */
    const Milliseconds timeout = timeout_or_own(c10d::kUnsetTimeout);
    const auto deadline = Clock::now() + std::min<Milliseconds>(timeout, forever);

    in_flight_->wait(timeout, "rdmatensor:wait_for_pending_works");
    if (is_hooked_.load(std::memory_order_acquire))
        hook_->wait(deadline);
}

} // namespace rdmatensor
