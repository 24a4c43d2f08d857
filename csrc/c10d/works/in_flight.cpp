/* SPDX-License-Identifier: Apache-2.0
 * Waits for all that a group has under way. */
#include "c10d/works/in_flight.hpp"

#include <algorithm>
#include <iterator>

#include "c10d/tensors.hpp"
#include "c10d/works/work.hpp"

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

rdt_error
InFlight::awaited_by(const std::vector<rdt_transfer *> &transfers)
{
    rdt_error found = cause(); /* the library has given up before, and knows whom it waited for */

    if (found.status != RDT_OK)
        return found;
    found.peer_rank = RDT_RANK_UNKNOWN;
    for (rdt_transfer *const transfer : transfers)
        if (found.message[0] == '\0')
            rdt_transfer_awaits(transfer, &found);
    const std::lock_guard lock(group_mutex_);
    if (group_ != nullptr)
        rdt_group_blame(group_, &found);
    return found;
}

void
InFlight::give_up(rdt_error &why)
{
    const std::lock_guard lock(group_mutex_);

    if (group_ != nullptr)
        rdt_group_give_up(group_, &why);
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
InFlight::drop(Dropped &room, const std::vector<rdt_transfer *> &transfers) noexcept
{
    const std::lock_guard lock(mutex_);

    room.front() = {++dropped_count_, &transfers};
    dropped_.splice(dropped_.end(), room);
    return std::prev(dropped_.end());
}

void
InFlight::hide_dropped(Dropped::iterator place) noexcept
{
    const std::lock_guard lock(mutex_);

    place->transfers = nullptr;
}

void
InFlight::end_dropped(Dropped::iterator place) noexcept
{
    const std::lock_guard lock(mutex_);

    dropped_.erase(place);
    dropped_ended_.notify_all();
}

/* With mutex_, and one at least. */
rdt_error
InFlight::awaited_by_dropped()
{
    const auto *const transfers = dropped_.front().transfers;

    return transfers != nullptr ? awaited_by(*transfers) : rdt_error{};
}

void
InFlight::wait(std::chrono::milliseconds timeout, const char *title)
{
    const auto deadline = Clock::now() + std::min<std::chrono::milliseconds>(timeout, forever);
    const auto fail = [title](const char *why) {
        std::rethrow_exception(
            make_error(RDT_ETIMEDOUT, c10::str(title,
                                               ": the timeout passed: earlier collectives "
                                               "of this rank are not done",
                                               *why != '\0' ? ": " : "", why, " [RDT_ETIMEDOUT]")));
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
                fail(work->awaited().message);
        }
    }
    std::unique_lock lock(mutex_);
    const uint64_t last = dropped_count_;
    while (!dropped_.empty() && dropped_.front().number <= last) {
        const auto now = Clock::now();
        if (now >= deadline)
            fail(awaited_by_dropped().message);
        (void)dropped_ended_.wait_until(lock, std::min<Clock::time_point>(deadline, now + slice));
        lock.unlock();
        check_signals();
        lock.lock();
    }
}

} // namespace rdmatensor
