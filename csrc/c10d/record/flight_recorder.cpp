/* SPDX-License-Identifier: Apache-2.0
 * The ring of a group's operations, and the report of a failure. */
#include "c10d/record/flight_recorder.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string_view>
#include <utility>

#include <c10/util/Exception.h>

namespace rdmatensor
{
namespace
{

using Clock = std::chrono::steady_clock;

/* " #5" or " #5 to #7", as in errors; "" for a message. */
std::string
numbers_of(const Flight::Entry &entry)
{
    if (entry.collectives == 0)
        return "";
    if (entry.collectives == 1)
        return c10::str(" #", entry.sequence);
    return c10::str(" #", entry.sequence - entry.collectives + 1, " to #", entry.sequence);
}

/* "all_reduce #5", as in errors and on all ranks, after the number that this rank counts. */
std::string
in_words(const Flight::Entry &entry)
{
    constexpr const char *states[] = {"in flight for", "done in", "failed after"};
    char took[32];

    (void)std::snprintf(took, sizeof(took), "%.6f s", entry.seconds());
    return c10::str("\n  ", entry.number, ". ", entry.title, numbers_of(entry),
                    entry.target.words(), ", ", entry.bytes, " B ", entry.dtype, ", ",
                    states[static_cast<int>(entry.state)], " ", took);
}

std::string
text_of(const std::exception_ptr &error)
{
    try {
        std::rethrow_exception(error);
    } catch (const c10::Error &raised) {
        return raised.what_without_backtrace();
    } catch (const std::exception &raised) {
        return raised.what();
    }
}

} // namespace

double
Flight::Entry::seconds() const noexcept
{
    return std::chrono::duration<double>(ended - begun).count();
}

uint64_t
Flight::begin(const Entry &begun)
{
    const Clock::time_point now = Clock::now();
    const std::lock_guard lock(mutex_);

    Entry &entry = place_of(++count_);
    entry = begun;
    entry.number = count_;
    entry.state = State::InFlight;
    entry.begun = now;
    return count_;
}

void
Flight::end(uint64_t number, const std::exception_ptr &error, uint64_t refused) noexcept
{
    bool is_first = false;
    bool is_of_note = false;
    {
        const std::lock_guard lock(mutex_);
        Entry &entry = place_of(number);
        if (entry.number == number && entry.state == State::InFlight) {
            entry.state = error ? State::Failed : State::Done;
            entry.collectives -= refused;
            entry.sequence = entry.collectives == 0 ? 0 : entry.sequence - refused;
            entry.ended = Clock::now();
            is_of_note = error || !failure_.empty();
        }
        is_first = error && !std::exchange(has_told_, true);
    }
    try {
        if (is_of_note)
            note(number, error ? text_of(error) : std::string());
        if (is_first)
            tell();
    } catch (const std::exception &) {
        /* No memory for the text: the operation's own error has what matters. */
    }
}

void
Flight::note(uint64_t number, std::string said)
{
    const std::lock_guard lock(mutex_);
    const Entry &entry = place_of(number);

    if (entry.number != number)
        return; /* later operations have reused its entry */
    if (entry.state == State::Failed && failure_.empty()) {
        failed_ = entry;
        failure_ = std::move(said);
    } else if (entry.state == State::Done && number > failed_.number &&
               (entry.target.is_all() || (std::string_view(entry.title) == failed_.title &&
                                          entry.target == failed_.target))) {
        failure_.clear();
    }
}

std::string
Flight::failure() const
{
    const std::lock_guard lock(mutex_);

    return failure_;
}

std::vector<Flight::Entry>
Flight::last() const
{
    const Clock::time_point now = Clock::now();
    std::vector<Entry> found;
    const std::lock_guard lock(mutex_);

    for (uint64_t number = count_ > kept ? count_ - kept + 1 : 1; number <= count_; number++) {
        found.push_back(entries_[number % kept]);
        if (found.back().state == State::InFlight)
            found.back().ended = now;
    }
    return found;
}

void
Flight::tell() const
{
    const std::vector<Entry> entries = last();
    std::string words;

    for (size_t i = entries.size() - std::min(entries.size(), told); i < entries.size(); i++)
        words += in_words(entries[i]);
    TORCH_WARN("rdmatensor: an operation of group ", group_,
               " failed; the last ones of this rank:", words);
}

} // namespace rdmatensor
