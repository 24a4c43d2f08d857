/* SPDX-License-Identifier: Apache-2.0
 *
 * flight_recorder.hpp - the last operations of a group, to diagnose what a rank was doing.
 *
 *   state      leaves by
 *   in flight  end() -> done or failed; a later operation reuses its entry
 *
 * Always on: an operation costs two reads of the clock and a lock that is rarely contended. Any
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
        uint64_t number = 0;      /* among all operations of this rank in the group, from 1 */
        uint64_t sequence = 0;    /* number of its last collective: the "#3" of errors; 0: none */
        uint64_t collectives = 0; /* number of consecutive collectives; 0 for a message */
        const char *title = "";   /* "rdmatensor:all_reduce", static */
        Target target;
        uint64_t bytes = 0; /* of the inputs */
        c10::ScalarType dtype = c10::ScalarType::Byte;
        State state = State::InFlight;
        std::chrono::steady_clock::time_point begun;
        std::chrono::steady_clock::time_point ended; /* now, while in flight */

        double seconds() const noexcept;
    };

    /* `group` is used in messages. */
    explicit Flight(std::string group) : group_(std::move(group)) {}

    /* Uses title, target, bytes, dtype, sequence and collectives of `begun`. Returns the number for
     * end(). */
    uint64_t begin(const Entry &begun);
    /* Only the first end counts. On the group's first failure the last operations are written to
     * torch's log. `refused`: how many of its collectives, the last ones, never started. */
    void end(uint64_t number, const std::exception_ptr &error, uint64_t refused = 0) noexcept;
    /* The message of the first failure that was not overcome since; "" if there is none. A failure
     * is overcome when a later operation ends well that involves all members, or is the same as the
     * failed one. */
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
    mutable std::mutex mutex_; /* guards all below */
    std::array<Entry, kept> entries_;
    uint64_t count_ = 0;
    bool has_told_ = false;
    std::string failure_;
    Entry failed_; /* the entry of failure_ */
};

} // namespace rdmatensor
