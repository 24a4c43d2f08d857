/* SPDX-License-Identifier: Apache-2.0
 *
 * temps.h - memory in which collectives let messages land that are not for the user: kept from one
 * collective to the next, as a training step needs the same again.
 *
 * It lies in the arena, so that it is registered once, its pages are there, and a peer that was
 * told the place may write there again without a word (rdt_group_stands()): whoever wants as many
 * bytes as a slot had last gets that one first. What is small goes eagerly and needs none of this:
 * it is not kept.
 *
 * A team has two of these. One is for what has no place of the user's. From the other, the
 * *repeating* one, come places for messages whose own place their source cannot write: a copy more,
 * and worth it only for what comes again. So the first message of a length gets none, nor does one
 * that would take more than all such memory may, and what nobody has wanted for long makes room.
 *
 * Of several tensors of one length those that come again have memory of their own, as far as that
 * goes: how many of them are in flight at once hangs on time, and a step that is late with one more
 * than ever would find none.
 *
 * Threads: any, at once. A slot is EMPTY or FREE until a thread takes it, and then that one's. The
 * numbers beside are guesses, and relaxed.
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
    /* Slots that stay for other lengths. */
    RDTI_TEMPS_SPARE = 16,
    /* What is not larger goes eagerly, by way of a ring: a quarter of one, less the head. Of what
     * is a little larger the path decides. */
    RDTI_TEMPS_MIN_BYTES = 65536 - 64,
    /* What is larger is not worth a copy, which is made with the engine's lock. */
    RDTI_TEMPS_COPY_BYTES = 16 << 20,
    /* What is larger would lie idle in such lumps until the group ends. */
    RDTI_TEMPS_MOST_BYTES = 256 << 20,
    /* Of all that a team keeps for sums: a few of the largest. */
    RDTI_TEMPS_SUMS_BYTES = 1 << 30,
    /* The same for what repeats. */
    RDTI_TEMPS_REPEATS_BYTES = 64 << 20,
    /* Of either, what tensors of one length have for themselves. */
    RDTI_TEMPS_OWN_BYTES = 32 << 20,
    /* Tensors and lengths that are remembered, to see one come again: of more than a step has. */
    RDTI_TEMPS_SEEN = 128,
    /* Memory that was of no use for so many that were wanted is of a step that is over. */
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
    atomic_ullong seen[RDTI_TEMPS_SEEN]; /* circular: what was wanted, as a digest */
    atomic_uint seen_count;
};

void rdti_temps_init(struct rdti_temps *temps, uint64_t most_bytes, bool is_repeating);
/* At least len_bytes for a tensor that is known by its address, aligned as the arena is; NULL: none
 * is to be had, or is not worth it. Its content is anything. */
struct rdti_temp *rdti_temps_take(struct rdti_temps *temps, rdt_context *ctx, const void *tensor,
                                  uint64_t len_bytes);
void *rdti_temp_addr(const struct rdti_temp *temp);
/* Nothing reads or writes it any more. */
void rdti_temps_give(struct rdti_temp *temp);
/* All were given back. */
void rdti_temps_fini(struct rdti_temps *temps);

#endif
