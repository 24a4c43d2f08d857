/* SPDX-License-Identifier: Apache-2.0
 *
 * in_flight.hpp - the asynchronous collectives of a group that may still be under way, for barriers
 *
 * Works are held weakly; those that were dropped before their end are a mere count. Any thread.
 */
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include <c10/util/intrusive_ptr.h>

namespace rdmatensor
{

class Work;

/* So that adding a time-out to the clock cannot overflow. */
inline constexpr std::chrono::hours forever{24 * 365};

class InFlight
{
  public:
    void add(const c10::intrusive_ptr<Work> &work);
    void orphan_begins();
    void orphan_ends();
    /* Until all that were there when it was called are over, whatever their result. `title`, of who
     * waits, begins the message of a TimeoutError. */
    void wait(std::chrono::milliseconds timeout, const char *title);

  private:
    std::mutex mutex_;
    std::condition_variable orphan_ended_;
    std::vector<c10::weak_intrusive_ptr<Work>> works_;
    size_t prune_at_ = 16;
    uint64_t orphans_begun_ = 0;
    uint64_t orphans_ended_ = 0;
};

} // namespace rdmatensor
