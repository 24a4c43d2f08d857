/* SPDX-License-Identifier: Apache-2.0
 *
 * flight.hpp - the last operations of a group, for whoever has to find out what a rank was at.
 *
 *   state      leaves by
 *   in flight  end() -> done or failed; others take its place
 *
 * Always on: an operation takes two looks at the clock and a lock that is rarely contended. Any
 * thread.
 */
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "c10d/works/target.hpp"

namespace rdmatensor
{

class Flight
{
  public:
    enum class State { InFlight, Done, Failed };
    struct Entry {
        uint64_t number = 0;      /* among all that this rank did in the group, from 1 on */
        uint64_t sequence = 0;    /* of its last collective: the "#3" of errors; 0: it has none */
        uint64_t collectives = 0; /* how many it is, one after the other: 0 for a message */
        const char *title = "";   /* "rdmatensor:all_reduce", static */
        Target target;
        uint64_t bytes = 0; /* of the inputs */
        c10::ScalarType dtype = c10::ScalarType::Byte;
        State state = State::InFlight;
        std::chrono::steady_clock::time_point begun;
        std::chrono::steady_clock::time_point ended; /* now, while in flight */

        double seconds() const noexcept;
    };

    /* `group` is for words. */
    explicit Flight(std::string group) : group_(std::move(group)) {}

    /* Of `begun` title, target, bytes, dtype, sequence and collectives count. Returns the number
     * for end(). */
    uint64_t begin(const Entry &begun);
    /* The first end counts. The group's first failure writes the last operations to torch's log.
     * `refused`: so many of its collectives, the last ones, never began. */
    void end(uint64_t number, const std::exception_ptr &error, uint64_t refused = 0) noexcept;
    /* What the first failure said that was not overcome since; "" if there is none. A later
     * operation of all members, or the same as the one that failed, overcomes it by ending well. */
    std::string failure() const;
    /* Oldest first. */
    std::vector<Entry> last() const;

  private:
    static constexpr size_t kept = 128;
    static constexpr size_t told = 16;

    Entry &place_of(uint64_t number)
    {
        return entries_[number % kept];
    }
    void note(uint64_t number, std::string said);
    void tell() const;

    const std::string group_;
    mutable std::mutex mutex_; /* of all below */
    std::array<Entry, kept> entries_;
    uint64_t count_ = 0;
    bool has_told_ = false;
    std::string failure_;
    Entry failed_; /* that one's */
};

} // namespace rdmatensor
