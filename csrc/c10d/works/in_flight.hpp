/* SPDX-License-Identifier: Apache-2.0
 *
 * in_flight.hpp - the asynchronous collectives of a group that may still be in flight, for barriers
 *
 * Works are referenced weakly. Works that were dropped before their end are known by numbers only,
 * in the order in which they were dropped. Any thread.
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

/* Adding at most this timeout to the clock cannot overflow. */
inline constexpr std::chrono::hours forever{24 * 365};

/* A timeout from torch. torch passes -1 and 0 for none; a value that overflowed on its way from
 * Python, such as timedelta.max, is below -1. */
inline std::chrono::milliseconds
bounded(std::chrono::milliseconds timeout)
{
    return timeout.count() < -1 ? forever : std::min<std::chrono::milliseconds>(timeout, forever);
}

class InFlight
{
  public:
    /* The group of the collectives; NULL before it is destroyed. */
    void watch(rdt_group *group);
    /* The error that broke the group. Its status is RDT_OK if there is none, or the group is
     * gone. */
    rdt_error cause();
    /* What the first of these transfers that is in flight waits for, and which peer is silent; or
     * the error that broke the group. The message is empty if neither is known. */
    rdt_error awaited_by(const std::vector<rdt_transfer *> &transfers);
    /* Ends the group with the error `why`. */
    void give_up(rdt_error &why);
    void add(const c10::intrusive_ptr<Work> &work);
    /* An entry for a dropped operation. Its owner allocates the entry in advance. */
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
    /* Called before the transfers are freed. */
    void hide_dropped(Dropped::iterator place) noexcept;
    void end_dropped(Dropped::iterator place) noexcept;
    /* Waits until all collectives in flight at the call are over, whatever their result. `title`
     * names the waiting operation in the message of a TimeoutError. */
    void wait(std::chrono::milliseconds timeout, const char *title);

  private:
    rdt_error awaited_by_dropped();

    std::mutex mutex_;
    std::condition_variable dropped_ended_;
    std::vector<c10::weak_intrusive_ptr<Work>> works_;
    size_t prune_at_ = 16;
    Dropped dropped_; /* dropped, and not over */
    uint64_t dropped_count_ = 0;
    std::mutex group_mutex_; /* guards group_; held during calls on it, which do not wait */
    rdt_group *group_ = nullptr;
};

} // namespace rdmatensor
