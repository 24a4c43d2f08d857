/* SPDX-License-Identifier: Apache-2.0
 *
 * recorder.hpp - what a group sends, seen in the first steps, and what of it repeats.
 *
 *   state     is                                            leaves by
 *   OFF       nothing is looked at                          -
 *   WATCHING  operations are written down                   a cycle was found -> LOCKED; too many
 *                                                           operations, or changes -> OFF
 *   LOCKED    each operation is compared with the cycle's   one that is not like it -> WATCHING
 *
 * A cycle ends at a mark, which stands for an optimizer's step: the shortest run of whole steps
 * that came twice in a row. In a process in which no optimizer has stepped it is the shortest
 * sequence of operations, on the same addresses, that came three times in a row.
 *
 * Threads: any. In LOCKED nothing is locked or allocated.
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

/* Beside RDT_COLL_*. */
enum : uint32_t { kMark = 100, kSend, kReceive };

/* One operation, or a mark. */
struct Seen {
    uint32_t kind = kMark; /* RDT_COLL_*, kSend, kReceive, kMark */
    c10::ScalarType dtype = c10::ScalarType::Byte;
    uint32_t reduce_op = 0;
    uint32_t root = 0;      /* a collective's root, a message's other end; ranks of the group */
    uint64_t tag = 0;       /* of a message */
    uint64_t bytes = 0;     /* that this rank puts in; of a root's list one block of it */
    uint64_t out_bytes = 0; /* that it gets out */
    const void *address = nullptr; /* of what it puts in */
    bool is_fixed = true;          /* of a cycle: the address was the same each time */

    bool is_like(const Seen &other) const noexcept
    {
        return kind == other.kind && bytes == other.bytes && out_bytes == other.out_bytes &&
               root == other.root && tag == other.tag && dtype == other.dtype &&
               reduce_op == other.reduce_op;
    }
};

/* A step as it repeats. */
struct Cycle {
    std::vector<Seen> seen;   /* ends with a mark, if it has marks */
    rdt_counters before = {}; /* the context's, when it was locked */
    /* Where the next operation stands. Its own: who follows a cycle that is over harms no other. */
    mutable std::atomic<uint32_t> cursor{0};
};

class Recorder
{
  public:
    struct Report {
        std::string state;         /* "off", "watching", "locked" */
        std::string reason;        /* why it is off, else empty */
        std::vector<Seen> watched; /* written down since the last change; empty when locked */
        uint64_t changes;          /* cycles that ended because something else came */
        uint64_t cycles;           /* whole ones since the lock */
        uint64_t moved;            /* operations since the lock on another address than before */
        const Cycle *cycle;        /* NULL unless locked; lives as long as the recorder */
    };

    /* The context stays open until stop(). */
    Recorder(rdt_context *context, bool is_on);

    void note(const Seen &seen)
    {
        /* acquire: pairs with the release in lock(); the cycle is seen */
        const Cycle *const cycle = locked_.load(std::memory_order_acquire);
        if (cycle != nullptr ? !follow(*cycle, seen) : is_watching_.load(std::memory_order_relaxed))
            watch(seen);
    }
    bool is_off() const noexcept
    {
        /* relaxed: a rank that is off stays so; one operation more or less is no matter */
        return !is_watching_.load(std::memory_order_relaxed) &&
               locked_.load(std::memory_order_relaxed) == nullptr;
    }
    /* An optimizer has stepped. */
    void mark();
    Report report() const;
    /* For good. After it the context is not asked any more. */
    void stop(std::string reason);

  private:
    static const Seen &before(const Cycle &cycle, uint32_t at) noexcept
    {
        return cycle.seen[(at > 0 ? at : cycle.seen.size()) - 1];
    }
    bool follow(const Cycle &cycle, const Seen &seen) noexcept
    {
        /* relaxed: threads that send at once have no order, and look like a change to us */
        uint32_t at = cycle.cursor.load(std::memory_order_relaxed);
        const Seen &wanted = cycle.seen[at];
        if (!wanted.is_like(seen)) /* a step that sent nothing, or another optimizer's, is none */
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
    std::atomic<uint64_t> cycles_{0}; /* relaxed: only counted */
    std::atomic<uint64_t> moved_{0};

    mutable std::mutex mutex_; /* of all below */
    std::vector<Seen> seen_;
    /* Also those that are over: another thread may still look at one. */
    std::vector<std::unique_ptr<const Cycle>> kept_;
    uint64_t changes_ = 0;
    size_t unmarked_ = 0; /* of kept_ */
    std::string reason_;
};

} // namespace rdmatensor
