/* SPDX-License-Identifier: Apache-2.0
 *
 * temps.h - memory in which collectives let messages land that are not for the user: kept from one
 * collective to the next, as a training step needs the same again.
 *
 * It lies in the arena, so that it is registered once, and its pages are there. What is small goes
 * eagerly and needs no registration: it is not kept.
 *
 * Threads: any, at once. A slot is EMPTY or FREE until a thread takes it, and then that one's.
 */
#ifndef RDTI_COLLECTIVES_TEMPS_H
#define RDTI_COLLECTIVES_TEMPS_H

#include <stdatomic.h>
#include <stdint.h>

#include "rdmatensor.h"

enum {
    /* Two for each collective in flight; buckets of a step are few. More go without. */
    RDTI_TEMPS_MAX = 8,
    /* What is not larger goes eagerly, by way of a ring. */
    RDTI_TEMPS_MIN_BYTES = 65536,
    /* What is larger would lie idle in such lumps until the group ends. */
    RDTI_TEMPS_MOST_BYTES = 256 << 20,
};

struct rdti_temp {
    atomic_uint state;
    rdt_region *region; /* the holder's; NULL while EMPTY */
    uint64_t len_bytes;
};

struct rdti_temps {
    struct rdti_temp slots[RDTI_TEMPS_MAX];
};

/* At least len_bytes, aligned as the arena is; NULL: none is to be had, or it is too small to be
 * kept. Its content is anything. */
struct rdti_temp *rdti_temps_take(struct rdti_temps *temps, rdt_context *ctx, uint64_t len_bytes);
void *rdti_temp_addr(const struct rdti_temp *temp);
/* Nothing reads or writes it any more. */
void rdti_temps_give(struct rdti_temp *temp);
/* All were given back. */
void rdti_temps_fini(struct rdti_temps *temps);

#endif
