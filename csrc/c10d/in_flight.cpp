/* SPDX-License-Identifier: Apache-2.0
 * Waits for all that a group has under way. */
#include "c10d/in_flight.hpp"

#include "c10d/tensors.hpp"
#include "c10d/work.hpp"

namespace rdmatensor
{
namespace
{

/* How long Ctrl-C may go unheard. */
constexpr std::chrono::milliseconds slice{100};

} // namespace

void
InFlight::add(const c10::intrusive_ptr<Work> &work)
{
    std::vector<c10::intrusive_ptr<Work>>
        looked_at; /* let go after the lock, which that may take */
    const std::lock_guard lock(mutex_);

    if (works_.size() >= prune_at_) {
        std::erase_if(works_, [&looked_at](const auto &weak) {
            looked_at.push_back(weak.lock());
            return !looked_at.back() || looked_at.back()->is_settled();
        });
        prune_at_ = std::max<size_t>(16, 2 * works_.size());
    }
    works_.emplace_back(work);
}

void
InFlight::orphan_begins()
{
    const std::lock_guard lock(mutex_);

    orphans_begun_++;
}

void
InFlight::orphan_ends()
{
    const std::lock_guard lock(mutex_);

    orphans_ended_++;
    orphan_ended_.notify_all();
}

void
InFlight::wait(std::chrono::milliseconds timeout, const char *title)
{
    const auto deadline =
        std::chrono::steady_clock::now() + std::min<std::chrono::milliseconds>(timeout, forever);
    std::vector<c10::weak_intrusive_ptr<Work>> works;
    {
        const std::lock_guard lock(mutex_);
        works.swap(works_);
    }
    for (const auto &weak : works) {
        const c10::intrusive_ptr<Work> work = weak.lock();
        if (!work)
            continue;
        try {
            (void)work->wait(timeout);
        } catch (const c10::Error &) {
            /* Its own to tell; an error of the group ends the barrier too. */
        }
    }
    std::unique_lock lock(mutex_);
    const uint64_t begun = orphans_begun_;
    while (orphans_ended_ < begun) {
        (void)orphan_ended_.wait_for(lock, slice);
        if (std::chrono::steady_clock::now() >= deadline)
            std::rethrow_exception(
                make_error(RDT_ETIMEDOUT,
                           c10::str(title, ": the timeout passed: earlier collectives of this "
                                           "rank are not done [RDT_ETIMEDOUT]")));
        lock.unlock();
        check_signals();
        lock.lock();
    }
}

} // namespace rdmatensor
