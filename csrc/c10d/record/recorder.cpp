/* SPDX-License-Identifier: Apache-2.0
 * Recording operations, and finding a cycle among them. */
#include "c10d/record/recorder.hpp"

#include <algorithm>

namespace rdmatensor
{
namespace
{

/* Three times a step of some thousand operations: 1 MiB. */
constexpr size_t kSeenMax = size_t{1} << 14;
/* The search for a cycle without marks takes time quadratic in this number. */
constexpr size_t kUnmarkedMax = size_t{1} << 9;
/* A program that changes that often is not static. Cycles without marks are limited to this
 * number. */
constexpr size_t kCyclesMax = 64;

/* Whether an optimizer has stepped in this process. */
std::atomic<bool> has_stepped{false};

} // namespace

Recorder::Recorder(rdt_context *context, bool is_on)
    : context_(context), is_watching_(is_on),
      reason_(is_on ? "" : "RDMATENSOR_PLAN=off or RDMATENSOR_HOOKS=0")
{
}

void
Recorder::mark()
{
    /* relaxed: a thread that has not seen it yet searches for cycles without marks a while
     * longer */
    has_stepped.store(true, std::memory_order_relaxed);
    if (!is_off())
        note(Seen{});
}

Recorder::Report
Recorder::report() const
{
    const std::lock_guard lock(mutex_);
    const Cycle *const cycle = locked_.load(std::memory_order_acquire);
    const bool is_watching = is_watching_.load(std::memory_order_relaxed);

    return {.state = is_watching        ? "watching"
                     : cycle != nullptr ? "locked"
                                        : "off",
            .reason = reason_,
            .watched = seen_,
            .changes = changes_,
            .cycles = cycles_.load(std::memory_order_relaxed),
            .moved = moved_.load(std::memory_order_relaxed),
            .cycle = cycle};
}

void
Recorder::watch(const Seen &seen)
{
    const std::lock_guard lock(mutex_);

    if (locked_.load(std::memory_order_relaxed) != nullptr) { /* another operation came */
        /* release: pairs with the acquire in note() */
        is_watching_.store(true, std::memory_order_relaxed);
        locked_.store(nullptr, std::memory_order_release);
        seen_.clear();
        changes_++;
    }
    if (is_watching_.load(std::memory_order_relaxed))
        append(seen);
}

void
Recorder::append(const Seen &seen)
{
    if (seen.kind == kMark && (seen_.empty() || seen_.back().kind == kMark))
        return; /* a step that sent nothing, or the mark of another optimizer */
    seen_.push_back(seen);
    const bool has_marks = has_stepped.load(std::memory_order_relaxed);
    if (has_marks && seen.kind == kMark) {
        if (const size_t length = cycle_at_marks(); length > 0)
            return lock(length);
    } else if (!has_marks && seen_.size() <= kUnmarkedMax && unmarked_ < kCyclesMax) {
        if (const size_t length = cycle_of_addresses(); length > 0)
            return lock(length);
    }
    if (seen_.size() >= kSeenMax)
        end_watch("no step repeated within " + std::to_string(kSeenMax) + " operations");
}

/* Whether the last `length` entries occurred `times` times in a row. */
bool
Recorder::repeats(size_t length, size_t times, bool with_addresses) const
{
    const size_t count = seen_.size();

    if (length * times > count)
        return false;
    for (size_t i = 0; i < length * (times - 1); i++) {
        const Seen &late = seen_[count - 1 - i];
        const Seen &early = seen_[count - 1 - i - length];
        if (!late.is_like(early) || (with_addresses && late.address != early.address))
            return false;
    }
    return true;
}

size_t
Recorder::cycle_at_marks() const
{
    const size_t count = seen_.size();

    for (size_t length = 1; 2 * length <= count; length++)
        if (seen_[count - 1 - length].kind == kMark && repeats(length, 2, false))
            return length;
    return 0;
}

size_t
Recorder::cycle_of_addresses() const
{
    for (size_t length = 1; 3 * length <= seen_.size(); length++)
        if (repeats(length, 3, true))
            return length;
    return 0;
}

void
Recorder::lock(size_t length)
{
    const bool has_marks = seen_.back().kind == kMark;

    if (has_marks && kept_.size() - unmarked_ == kCyclesMax)
        return end_watch("the step changed " + std::to_string(changes_) + " times");
    auto cycle = std::make_unique<Cycle>();
    const size_t first = seen_.size() - length;

    cycle->seen.assign(seen_.begin() + static_cast<std::ptrdiff_t>(first), seen_.end());
    for (size_t i = 0; i < length; i++)
        cycle->seen[i].is_fixed = seen_[first - length + i].address == seen_[first + i].address;
    cycle->before.struct_size = sizeof(cycle->before);
    rdt_context_counters(context_, &cycle->before);
    cycles_.store(0, std::memory_order_relaxed);
    moved_.store(0, std::memory_order_relaxed);
    seen_.clear();
    is_watching_.store(false, std::memory_order_relaxed);
    /* release: pairs with the acquire in note() */
    locked_.store(cycle.get(), std::memory_order_release);
    kept_.push_back(std::move(cycle));
    unmarked_ += has_marks ? 0 : 1;
}

void
Recorder::stop(std::string reason)
{
    const std::lock_guard lock(mutex_);

    if (is_off())
        return;
    locked_.store(nullptr, std::memory_order_release); /* as in watch() */
    end_watch(std::move(reason));
}

void
Recorder::end_watch(std::string reason)
{
    seen_.clear();
    seen_.shrink_to_fit();
    reason_ = std::move(reason);
    is_watching_.store(false, std::memory_order_relaxed);
}

} // namespace rdmatensor
