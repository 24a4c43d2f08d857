/* SPDX-License-Identifier: Apache-2.0
 * Waits for all that a group has under way. */
#include "c10d/in_flight.hpp"

#include <algorithm>
#include <iterator>

#include "c10d/tensors.hpp"
#include "c10d/work.hpp"

namespace rdmatensor
{
namespace
{

using Clock = std::chrono::steady_clock;

/* How long Ctrl-C may go unheard. */
constexpr std::chrono::milliseconds slice{100};

} // namespace

void
InFlight::watch(rdt_group *group)
{
    const std::lock_guard lock(group_mutex_);

    group_ = group;
}

rdt_error
InFlight::cause()
{
    const std::lock_guard lock(group_mutex_);
    rdt_error error = {};

    if (group_ == nullptr || rdt_group_error(group_, &error) == RDT_OK)
        return {};
    return error;
}

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

InFlight::Dropped::iterator
InFlight::drop(Dropped &room) noexcept
{
    const std::lock_guard lock(mutex_);

    room.front() = ++dropped_count_;
    dropped_.splice(dropped_.end(), room);
    return std::prev(dropped_.end());
}

void
InFlight::end_dropped(Dropped::iterator place) noexcept
{
    const std::lock_guard lock(mutex_);

    dropped_.erase(place);
    dropped_ended_.notify_all();
}

void
InFlight::wait(std::chrono::milliseconds timeout, const char *title)
{
    const auto deadline = Clock::now() + std::min<std::chrono::milliseconds>(timeout, forever);
    const auto fail = [title] {
        std::rethrow_exception(
            make_error(RDT_ETIMEDOUT, c10::str(title, ": the timeout passed: earlier collectives "
                                                      "of this rank are not done "
                                                      "[RDT_ETIMEDOUT]")));
    };
    std::vector<c10::weak_intrusive_ptr<Work>> works;
    {
        const std::lock_guard lock(mutex_);
        works = works_; /* they stay: others wait for them too, and we may be interrupted */
    }
    for (const auto &weak : works) {
        const c10::intrusive_ptr<Work> work = weak.lock();
        if (!work)
            continue;
        const auto left = duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
        try {
            (void)work->wait(std::max(left, std::chrono::milliseconds(1)));
        } catch (const c10::Error &) {
            /* Its own to tell, if it is over; an error of the group ends the barrier too. */
            if (!work->is_settled())
                fail();
        }
    }
    std::unique_lock lock(mutex_);
    const uint64_t last = dropped_count_;
    while (!dropped_.empty() && dropped_.front() <= last) {
        (void)dropped_ended_.wait_for(lock, slice);
        if (Clock::now() >= deadline)
            fail();
        lock.unlock();
        check_signals();
        lock.lock();
    }
}

} // namespace rdmatensor
