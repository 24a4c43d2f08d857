/* SPDX-License-Identifier: Apache-2.0
 * The notification ring: one per direction, one page, owned by the receiver, mapped by its single
 * sender.
 *
 * An entry is a single 64-bit word, with the sequence in its upper half and the notification in its
 * lower, stored at once. The sequence counts from 1 and wraps; an entry's old value is always 62
 * less (or 0 in the first lap), so that each word shows whether it is new. Neither side trusts the
 * other's stores: the receiver's position is its own private count, and an impossible word or head
 * is a protocol error.
 *
 * Wake-ups, in the terms of base/system/doorbell.h (all seq_cst):
 *   arrival  the sender publishes the entry, then rings the receiver's bell.
 *   room     the sender sets producer_waits, then checks head again; the receiver publishes head,
 *            then checks producer_waits and rings the sender's bell. One of the two sees the
 *            other's store. head lags by less than SHM_HEAD_EVERY, so a ring that appears full
 *            still has entries that will move it.
 */
#ifndef RDTI_SHM_RING_H
#define RDTI_SHM_RING_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "transport/shm/limits.h"

struct shm_entry {
    _Alignas(SHM_LINE_BYTES) _Atomic uint64_t word;
};

struct shm_ring {
    _Alignas(SHM_LINE_BYTES) _Atomic uint32_t head; /* receiver: entries taken, modulo 2^32 */
    _Alignas(SHM_LINE_BYTES) _Atomic uint32_t producer_waits; /* sender: 1, wake me for room */
    struct shm_entry entries[SHM_RING_ENTRIES];
};

static_assert(sizeof(struct shm_ring) == SHM_RING_BYTES,
              "the layout that the offer's version names");
static_assert(ATOMIC_LLONG_LOCK_FREE == 2,
              "a lock inside an atomic is not shared between processes");
static_assert(SHM_HEAD_EVERY < SHM_RING_ENTRIES, "see limits.h");

/* One side's private position. `sequence` is that of the last entry stored or taken. */
struct shm_cursor {
    uint32_t sequence;
    uint32_t slot;
    bool has_lapped;
};

static inline void
shm_cursor_advance(struct shm_cursor *cursor)
{
    cursor->sequence++;
    if (++cursor->slot == SHM_RING_ENTRIES) {
        cursor->slot = 0;
        cursor->has_lapped = true;
    }
}

/* Sender; there is room. All earlier stores of this thread are visible to the thread that takes the
 * entry. */
static inline void
shm_ring_publish(struct shm_ring *ring, struct shm_cursor *cursor, uint32_t notification)
{
    _Atomic uint64_t *word = &ring->entries[cursor->slot].word;

    shm_cursor_advance(cursor);
    /* seq_cst: step (1) of the doorbell's writer; pairs with the load in shm_ring_take(). */
    atomic_store_explicit(word, (uint64_t)cursor->sequence << 32 | notification,
                          memory_order_seq_cst);
}

enum shm_taken { SHM_TAKEN, SHM_NOTHING, SHM_BROKEN };

/* Receiver: the next entry, if it has arrived. */
static inline enum shm_taken
shm_ring_take(struct shm_ring *ring, struct shm_cursor *cursor, uint32_t *out)
{
    /* seq_cst: step (b) of the doorbell's sleeper; acquires the stores before
     * shm_ring_publish(). */
    const uint64_t word =
        atomic_load_explicit(&ring->entries[cursor->slot].word, memory_order_seq_cst);
    const uint32_t sequence = (uint32_t)(word >> 32);

    if (sequence == cursor->sequence + 1) {
        *out = (uint32_t)word;
        shm_cursor_advance(cursor);
        return SHM_TAKEN;
    }
    const uint32_t old = cursor->has_lapped ? cursor->sequence + 1 - (uint32_t)SHM_RING_ENTRIES : 0;
    return sequence == old ? SHM_NOTHING : SHM_BROKEN;
}

#endif
