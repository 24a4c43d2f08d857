/* SPDX-License-Identifier: Apache-2.0
 * The region table: the spans that peers may access, their index and generation, and the time at
 * which freed bytes may be reused.
 *
 * A region is private until rdt_region_export(). States:
 *
 *   state      may peers write?                          leaves by
 *   PRIVATE    no                                        export -> EXPORTED; free -> gone
 *   EXPORTED   yes                                       free -> QUARANTINE (the generation ends,
 *                                                        peers are notified)
 *   QUARANTINE a write begun before the free may land,   last pin and last acknowledgement -> gone
 *              holders of pins may use the bytes         (the span is reused, drained())
 *
 * The generation table is a memfd that peers map read-only: shm initiators check it before each
 * write. Index 0 is never used.
 */
#ifndef RDTI_MEMORY_REGION_H
#define RDTI_MEMORY_REGION_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/arena.h"
#include "progress/engine.h"
#include "rdmatensor.h"
#include "transport/transport.h"
#include "wire/place.h"

struct rdti_regions;

/*
 * Any thread. rdt_region_free()'s drained(arg) also runs for arena spans. It runs in the thread
 * that ends the quarantine: that of rdt_region_free(), rdti_regions_release(),
 * rdti_regions_acknowledge() or rdti_regions_destroy(). That thread then holds neither a lock of
 * this table nor the engine's.
 */

#define RDTI_REGION_INDEX_MAX UINT32_C(0xfffff) /* 20 bits: one million exported regions */

/*
 * `uuid` is the owner's, copied into every export. `on_revoke` is called without a lock after an
 * exported region was freed: the core notifies every endpoint, and calls rdti_regions_expect()
 * before it sends and rdti_regions_acknowledge() for each answer.
 */
rdt_status rdti_regions_create(struct rdti_arena *arena, const uint8_t uuid[RDT_UUID_BYTES],
                               void (*on_revoke)(void *arg, uint32_t index, uint32_t generation),
                               void *arg, struct rdti_regions **out, struct rdt_error *err);
/* RDT_EBUSY while a region is live. Ends all quarantine: all endpoints are closed by then. In a
 * forked child: nothing. */
rdt_status rdti_regions_destroy(struct rdti_regions *regions, struct rdt_error *err);

/* From now on drained() is deferred if the quarantine ends under this engine's lock. */
void rdti_regions_set_engine(struct rdti_regions *regions, struct rdti_engine *engine);

/* Called when an exported region has left quarantine, before its bytes are reused. They may be
 * reused after this has returned true or has called then(then_arg). It calls that from any thread
 * that holds no lock, before the table is destroyed. */
typedef bool (*rdti_region_gone_fn)(void *arg, uint32_t index, uint32_t generation,
                                    void (*then)(void *arg), void *then_arg);
/* Set once, before the first export. It is called without a lock of the table. */
void rdti_regions_set_gone(struct rdti_regions *regions, rdti_region_gone_fn on_gone, void *arg);

/* Whether regions that left quarantine have not ended yet: a device deregisters them, or drained()
 * runs. Any thread. */
bool rdti_regions_are_ending(const struct rdti_regions *regions);
/* Whether this thread is inside a drained() callback, for which the end of its region waits. */
bool rdti_regions_in_drained(void);

rdt_status rdti_regions_alloc(struct rdti_regions *regions, uint64_t len_bytes, uint32_t flags,
                              rdt_region **out, struct rdt_error *err);
rdt_status rdti_regions_register(struct rdti_regions *regions, void *addr, uint64_t len_bytes,
                                 rdt_region **out, struct rdt_error *err);
/* Registered regions may overlap others; then any that holds the whole range. In a forked child:
 * NULL. Do not access the result if another thread may free it: use the next function. */
rdt_region *rdti_regions_find(struct rdti_regions *regions, const void *addr, uint64_t len_bytes);
/* The place of these bytes, for a peer: finds a region and exports it in one step, so that no
 * thread frees it in between. RDT_EAGAIN: there is none. */
rdt_status rdti_regions_place_at(struct rdti_regions *regions, const void *addr, uint64_t len_bytes,
                                 struct rdti_place *out, struct rdt_error *err);
/* Register memory for one operation. The region ends with the operation, so rdti_regions_find()
 * does not return it. */
rdt_status rdti_regions_lend(struct rdti_regions *regions, void *addr, uint64_t len_bytes,
                             rdt_region **out, struct rdt_error *err);
/* As rdt_region_free(), after the only peer that knows the lent region has reported that it is
 * done: no acknowledgement is requested, and only pins delay the end. */
void rdti_regions_end_lent(rdt_region *region, void (*drained)(void *arg), void *arg);

/* transport.h: target_acquire / target_release. Any thread. */
rdt_status rdti_regions_acquire(struct rdti_regions *regions, uint32_t index, uint32_t generation,
                                uint64_t off_bytes, uint64_t len_bytes, struct rdti_target *out,
                                struct rdt_error *err);
void rdti_regions_release(struct rdti_regions *regions, struct rdti_target *target);

/* For a freed region in quarantine: `count` peers will acknowledge. Called from on_revoke, at most
 * once per region; without a call, none will. */
void rdti_regions_expect(struct rdti_regions *regions, uint32_t index, uint32_t generation,
                         uint32_t count);
/* One of them acknowledged, or is dead. Unknown pairs are ignored and return false (a peer may
 * lie). */
bool rdti_regions_acknowledge(struct rdti_regions *regions, uint32_t index, uint32_t generation);

/* Exports are counted: the number of exports so far, and the number of this region's export. It is
 * RDTI_EXPORT_UNMAPPED, which is later than all, for NULL and for memory outside the arena: peers
 * cannot map that, and so cannot use it after they have left their lane. */
#define RDTI_EXPORT_UNMAPPED UINT64_MAX
uint64_t rdti_regions_export_count(struct rdti_regions *regions);
uint64_t rdti_regions_exported_as(struct rdti_regions *regions, uint32_t index);

/* The table of generations, for peers to map read-only (its seals refuse a writable mapping):
 * uint32_t by index. The entry of a live exported region is its generation; from the free on it
 * differs. */
int rdti_regions_generation_fd(const struct rdti_regions *regions);

struct rdti_region_stats {
    uint64_t live_count;
    uint64_t live_bytes;
    uint64_t exported_count;
    uint64_t quarantine_count;
    uint64_t quarantine_bytes;
    uint64_t registrations; /* alloc + register since the start */
};
void rdti_regions_get_stats(struct rdti_regions *regions, struct rdti_region_stats *out);

#endif
