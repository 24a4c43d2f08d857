/* SPDX-License-Identifier: Apache-2.0
 * Memory in which collectives let messages land that are not for the user: kept from one collective
 * to the next, as a training step needs the same again.
 *
 * It lies in the arena, so that it is registered once, its pages are there, and a peer that knows
 * the place may write there again without a message (rdt_group_stands()): a request for as many
 * bytes as a slot had last gets that slot first. Small messages are sent eagerly and need none of
 * this: no memory is kept for them.
 *
 * A team has two of these. One is for messages that have no place of the user's. The other, the
 * *repeating* one, has places for messages whose own place their source cannot write: a copy more,
 * and worth it only for messages that come again. So the first message of a length gets none, nor
 * does one that would take more than all such memory may, and memory that was not requested for
 * long makes room.
 *
 * Of several tensors of one length those that come again have memory of their own, as far as the
 * limit allows: how many of them are in flight at once depends on timing, and a step that is late
 * with one more than ever would find none.
 *
 * Threads: any, at once. A slot is EMPTY or FREE until a thread takes it, and then belongs to that
 * thread. The counters are estimates, and relaxed.
 */
#ifndef RDTI_COLLECTIVES_SCHEDULE_SCRATCH_H
#define RDTI_COLLECTIVES_SCHEDULE_SCRATCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "rdmatensor.h"

enum {
    /* Three at most for each collective in flight, or tensor of a step, as far as bytes allow. */
    RDTI_TEMPS_MAX = 64,
    /* Slots that are left for other lengths. */
    RDTI_TEMPS_SPARE = 16,
    /* Up to this size messages are sent eagerly, through a ring: a quarter of one, less the head.
     * For slightly larger ones the path decides. */
    RDTI_TEMPS_MIN_BYTES = 65536 - 64,
    /* A larger message is not worth a copy, which is made with the engine's lock held. */
    RDTI_TEMPS_COPY_BYTES = 16 << 20,
    /* Larger memory would lie idle in such lumps until the group ends. */
    RDTI_TEMPS_MOST_BYTES = 256 << 20,
    /* Limit of all that a team keeps for sums: a few of the largest. */
    RDTI_TEMPS_SUMS_BYTES = 1 << 30,
    /* The same for the repeating one. */
    RDTI_TEMPS_REPEATS_BYTES = 64 << 20,
    /* Limit in either for tensors of one length that have their own memory. */
    RDTI_TEMPS_OWN_BYTES = 32 << 20,
    /* Tensors and lengths that are remembered, to see one come again: more than a step has. */
    RDTI_TEMPS_SEEN = 128,
    /* Memory that was of no use for this many requests belongs to a step that is over. */
    RDTI_TEMPS_STALE = 1024,
};

struct rdti_temp {
    atomic_uint state;
    struct rdti_temps *temps;
    rdt_region *region; /* the holder's, as all below; NULL while EMPTY */
    uint64_t len_bytes;
    uint64_t wanted_bytes; /* of the last holder */
    const void *tensor;    /* the same */
    uint64_t taken_at;     /* temps->takes at that time */
};

struct rdti_temps {
    struct rdti_temp slots[RDTI_TEMPS_MAX];
    uint64_t most_bytes; /* of all slots */
    bool is_repeating;
    atomic_ullong kept_bytes;
    atomic_ullong takes;
    atomic_uint used;                    /* slots that are not EMPTY */
    atomic_ullong seen[RDTI_TEMPS_SEEN]; /* circular: digests of requests */
    atomic_uint seen_count;
};

void rdti_temps_init(struct rdti_temps *temps, uint64_t most_bytes, bool is_repeating);
/* At least len_bytes for a tensor that is known by its address, aligned as the arena is; NULL: none
 * is available, or it is not worth it. Its content is undefined. */
struct rdti_temp *rdti_temps_take(struct rdti_temps *temps, rdt_context *ctx, const void *tensor,
                                  uint64_t len_bytes);
void *rdti_temp_addr(const struct rdti_temp *temp);
/* Call when nothing reads or writes it any more. */
void rdti_temps_give(struct rdti_temp *temp);
/* All were given back before. */
void rdti_temps_fini(struct rdti_temps *temps);

#endif
