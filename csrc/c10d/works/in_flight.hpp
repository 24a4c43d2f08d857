/* SPDX-License-Identifier: Apache-2.0
 *
 * in_flight.hpp - the asynchronous collectives of a group that may still be under way, for barriers
 *
 * Works are held weakly; of those that were dropped before their end only numbers are known, in the
 * order in which they were dropped. Any thread.
 */
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "rdmatensor.h"

namespace rdmatensor
{

class Work;

/* So that adding a time-out to the clock cannot overflow. */
inline constexpr std::chrono::hours forever{24 * 365};

/* A time-out that torch gives. -1 and 0 are its words for none; what overflowed on its way from
 * Python, as timedelta.max does, is less than that. */
inline std::chrono::milliseconds
bounded(std::chrono::milliseconds timeout)
{
    return timeout.count() < -1 ? forever : std::min<std::chrono::milliseconds>(timeout, forever);
}

class InFlight
{
  public:
    /* The group that they are of; NULL before it is destroyed. */
    void watch(rdt_group *group);
    /* What broke the group; RDT_OK as its status: nothing, or nobody can tell any more. */
    rdt_error cause();
    /* What the first of these that is in flight waits for, and who is silent; or what broke the
     * group. The message is empty where nobody can tell. */
    rdt_error awaited_by(const std::vector<rdt_transfer *> &transfers);
    /* Ends the group, which is told why. */
    void give_up(rdt_error &why);
    void add(const c10::intrusive_ptr<Work> &work);
    /* One that was dropped. Whoever looks after it has had it made before. */
    struct Drop {
        uint64_t number = 0;
        const std::vector<rdt_transfer *> *transfers = nullptr; /* NULL: they are over */
    };
    using Dropped = std::list<Drop>;
    static Dropped room_for_one()
    {
        return Dropped(1);
    }
    Dropped::iterator drop(Dropped &room, const std::vector<rdt_transfer *> &transfers) noexcept;
    /* Before the transfers go. */
    void hide_dropped(Dropped::iterator place) noexcept;
    void end_dropped(Dropped::iterator place) noexcept;
    /* Until all that were there when it was called are over, whatever their result. `title`, of who
     * waits, begins the message of a TimeoutError. */
    void wait(std::chrono::milliseconds timeout, const char *title);

  private:
    rdt_error awaited_by_dropped();

    std::mutex mutex_;
    std::condition_variable dropped_ended_;
    std::vector<c10::weak_intrusive_ptr<Work>> works_;
    size_t prune_at_ = 16;
    Dropped dropped_; /* and not over */
    uint64_t dropped_count_ = 0;
    std::mutex group_mutex_; /* of group_; held while it is asked, which waits for nobody */
    rdt_group *group_ = nullptr;
};

} // namespace rdmatensor
