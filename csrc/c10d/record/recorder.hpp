/* SPDX-License-Identifier: Apache-2.0
 *
 * recorder.hpp - records what a group sends in the first steps, and detects what repeats.
 *
 *   state     meaning                                       leaves by
 *   OFF       nothing is recorded                           -
 *   WATCHING  operations are recorded                       a cycle was found -> LOCKED; too many
 *                                                           operations, or changes -> OFF
 *   LOCKED    each operation is compared with the cycle's   one that differs -> WATCHING
 *
 * A cycle ends at a mark, which stands for an optimizer's step. It is the shortest run of whole
 * steps that occurred twice in a row. In a process in which no optimizer has stepped, it is the
 * shortest sequence of operations, on the same addresses, that occurred three times in a row.
 *
 * Threads: any. LOCKED takes no lock and allocates nothing.
 */
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "rdmatensor.h"

namespace rdmatensor
{

/* In addition to RDT_COLL_*. */
enum : uint32_t { kMark = 100, kSend, kReceive };

/* One operation, or a mark. */
struct Seen {
    uint32_t kind = kMark; /* RDT_COLL_*, kSend, kReceive, kMark */
    c10::ScalarType dtype = c10::ScalarType::Byte;
    uint32_t reduce_op = 0;
    uint32_t root = 0;             /* root of a collective, or peer of a message; group ranks */
    uint64_t tag = 0;              /* of a message */
    uint64_t bytes = 0;            /* input of this rank; of a root's list, one block */
    uint64_t out_bytes = 0;        /* output of this rank */
    const void *address = nullptr; /* of the input */
    bool is_fixed = true;          /* in a cycle: the address was the same each time */

    bool is_like(const Seen &other) const noexcept
    {
        return kind == other.kind && bytes == other.bytes && out_bytes == other.out_bytes &&
               root == other.root && tag == other.tag && dtype == other.dtype &&
               reduce_op == other.reduce_op;
    }
};

/* A step that repeats. */
struct Cycle {
    std::vector<Seen> seen;   /* ends with a mark, if there are marks */
    rdt_counters before = {}; /* counters of the context when it was locked */
    /* Index of the next operation. Part of the cycle, so that a thread that still follows an ended
     * cycle does not disturb another. */
    mutable std::atomic<uint32_t> cursor{0};
};

class Recorder
{
  public:
    struct Report {
        std::string state;         /* "off", "watching", "locked" */
        std::string reason;        /* why it is off, otherwise empty */
        std::vector<Seen> watched; /* recorded since the last change; empty when locked */
        uint64_t changes;          /* cycles that ended because something else came */
        uint64_t cycles;           /* complete ones since the lock */
        uint64_t moved;            /* operations since the lock with another address than before */
        const Cycle *cycle;        /* NULL unless locked; lives as long as the recorder */
    };

    /* The context stays open until stop(). */
    Recorder(rdt_context *context, bool is_on);

    void note(const Seen &seen)
    {
        /* acquire: pairs with the release in lock(), which publishes the cycle */
        const Cycle *const cycle = locked_.load(std::memory_order_acquire);
        if (cycle != nullptr ? !follow(*cycle, seen) : is_watching_.load(std::memory_order_relaxed))
            watch(seen);
    }
    bool is_off() const noexcept
    {
        /* relaxed: a rank that is off stays off, and one operation more or less does not matter */
        return !is_watching_.load(std::memory_order_relaxed) &&
               locked_.load(std::memory_order_relaxed) == nullptr;
    }
    /* An optimizer has stepped. */
    void mark();
    Report report() const;
    /* Permanent. Afterwards the context is not read any more. */
    void stop(std::string reason);

  private:
    static const Seen &before(const Cycle &cycle, uint32_t at) noexcept
    {
        return cycle.seen[(at > 0 ? at : cycle.seen.size()) - 1];
    }
    bool follow(const Cycle &cycle, const Seen &seen) noexcept
    {
        /* relaxed: concurrent senders have no order, which looks like a change here */
        uint32_t at = cycle.cursor.load(std::memory_order_relaxed);
        const Seen &wanted = cycle.seen[at];
        if (!wanted.is_like(seen)) /* a second mark in a row does not count */
            return seen.kind == kMark && before(cycle, at).kind == kMark;
        if (wanted.address != seen.address && wanted.is_fixed)
            moved_.fetch_add(1, std::memory_order_relaxed);
        if (++at == cycle.seen.size()) {
            at = 0;
            cycles_.fetch_add(1, std::memory_order_relaxed);
        }
        cycle.cursor.store(at, std::memory_order_relaxed);
        return true;
    }
    void watch(const Seen &seen);
    void append(const Seen &seen);
    size_t cycle_at_marks() const;
    size_t cycle_of_addresses() const;
    bool repeats(size_t length, size_t times, bool with_addresses) const;
    void lock(size_t length);
    void end_watch(std::string reason);

    rdt_context *const context_;
    std::atomic<const Cycle *> locked_{nullptr};
    std::atomic<bool> is_watching_;
    std::atomic<uint64_t> cycles_{0}; /* relaxed: counters only */
    std::atomic<uint64_t> moved_{0};

    mutable std::mutex mutex_; /* guards all below */
    std::vector<Seen> seen_;
    /* Including ended cycles: another thread may still read one. */
    std::vector<std::unique_ptr<const Cycle>> kept_;
    uint64_t changes_ = 0;
    size_t unmarked_ = 0; /* cycles of kept_ without marks */
    std::string reason_;
};

} // namespace rdmatensor
