/* SPDX-License-Identifier: Apache-2.0
 * Waits for everything that a group has in flight. */
#include "c10d/works/in_flight.hpp"

#include <algorithm>
#include <iterator>

#include "c10d/tensors.hpp"
#include "c10d/works/work.hpp"
#include "rdmatensor_ext.h"

namespace rdmatensor
{
namespace
{

using Clock = std::chrono::steady_clock;

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
    rdt_error found = cause(); /* the library gave up before, and knows the peer */

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
        looked_at; /* released after the lock, which their destructors may take */
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

/* The caller holds mutex_, and dropped_ is not empty. */
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
        works = works_; /* works_ keeps them: others wait too, and this wait may be interrupted */
    }
    for (const auto &weak : works) {
        const c10::intrusive_ptr<Work> work = weak.lock();
        if (!work)
            continue;
        const auto left = duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
        try {
            (void)work->wait(std::max(left, std::chrono::milliseconds(1)));
        } catch (const c10::Error &) {
            /* An operation that is over reports its own error; an error of the group ends the
             * barrier too. */
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
        (void)dropped_ended_.wait_until(lock,
                                        std::min<Clock::time_point>(deadline, now + work_slice));
        lock.unlock();
        check_signals();
        lock.lock();
    }
}

} // namespace rdmatensor
