/* SPDX-License-Identifier: Apache-2.0
 * The region table: which spans peers may reach, under which index and generation, and when freed
 * bytes may be used again.
 *
 * A region is private until rdt_region_export(). States:
 *
 *   state      may peers write?                          leaves by
 *   PRIVATE    no                                        export -> EXPORTED; free -> gone
 *   EXPORTED   yes                                       free -> QUARANTINE (the generation ends,
 *                                                        peers are told)
 *   QUARANTINE a write begun before the free may land,   last pin and last acknowledgement -> gone
 *              and who holds the bytes goes on           (the span is reused, drained())
 *
 * The generation table is a memfd that peers map read-only: shm initiators look at it before each
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

struct rdti_regions;

/*
 * Any thread. rdt_region_free()'s drained(arg) runs for arena spans too, in whatever thread ended
 * the quarantine: that of rdt_region_free(), rdti_regions_release(), rdti_regions_acknowledge() or
 * rdti_regions_destroy(); no lock of this table is held then, nor the engine's.
 */

#define RDTI_REGION_INDEX_MAX UINT32_C(0xfffff) /* 20 bits: one million exported regions */

/*
 * `uuid` is the owner's, copied into every export. `on_revoke` is called without a lock when an
 * exported region was freed: the core tells every endpoint and calls rdti_regions_expect() before
 * it sends, rdti_regions_acknowledge() for each answer.
 */
rdt_status rdti_regions_create(struct rdti_arena *arena, const uint8_t uuid[RDT_UUID_BYTES],
                               void (*on_revoke)(void *arg, uint32_t index, uint32_t generation),
                               void *arg, struct rdti_regions **out, struct rdt_error *err);
/* RDT_EBUSY while a region is live. Quarantine is emptied: all endpoints are closed by then. In a
 * forked child: nothing. */
rdt_status rdti_regions_destroy(struct rdti_regions *regions, struct rdt_error *err);

/* From now on drained() is deferred where the quarantine ends under this engine's lock. */
void rdti_regions_set_engine(struct rdti_regions *regions, struct rdti_engine *engine);

/* Called when an exported region has left quarantine, before its bytes may serve anything else.
 * They may once this has returned true, or has called then(then_arg), which it does from any thread
 * that holds no lock, and before the table is destroyed. */
typedef bool (*rdti_region_gone_fn)(void *arg, uint32_t index, uint32_t generation,
                                    void (*then)(void *arg), void *then_arg);
/* Set once, before the first export; no lock of the table is held when it is called. */
void rdti_regions_set_gone(struct rdti_regions *regions, rdti_region_gone_fn on_gone, void *arg);

/* Whether regions that left quarantine have yet to end: a device forgets them, or drained() runs.
 * Any thread. */
bool rdti_regions_are_ending(const struct rdti_regions *regions);
/* Whether this thread is inside a drained() callback, which its region's end waits for. */
bool rdti_regions_in_drained(void);

rdt_status rdti_regions_alloc(struct rdti_regions *regions, uint64_t len_bytes, uint32_t flags,
                              rdt_region **out, struct rdt_error *err);
rdt_status rdti_regions_register(struct rdti_regions *regions, void *addr, uint64_t len_bytes,
                                 rdt_region **out, struct rdt_error *err);
/* Registered regions may overlap others; then any that holds the whole range. In a forked child:
 * NULL. What another thread may free meanwhile is not to be looked at: use the next. */
rdt_region *rdti_regions_find(struct rdti_regions *regions, const void *addr, uint64_t len_bytes);
/* Find one and export it in one step, so that nobody frees it in between. RDT_EAGAIN: there is
 * none. */
rdt_status rdti_regions_export_at(struct rdti_regions *regions, const void *addr,
                                  uint64_t len_bytes, struct rdt_remote_region *out,
                                  struct rdt_error *err);
/* Register memory for one operation: it ends with that, so that no other may find it. */
rdt_status rdti_regions_lend(struct rdti_regions *regions, void *addr, uint64_t len_bytes,
                             rdt_region **out, struct rdt_error *err);
/* As rdt_region_free(), when the only peer that was told of what was lent says that it is done:
 * nobody is asked, and only pins are waited for. */
void rdti_regions_end_lent(rdt_region *region, void (*drained)(void *arg), void *arg);

/* transport.h: target_acquire / target_release. Any thread. */
rdt_status rdti_regions_acquire(struct rdti_regions *regions, uint32_t index, uint32_t generation,
                                uint64_t off_bytes, uint64_t len_bytes, struct rdti_target *out,
                                struct rdt_error *err);
void rdti_regions_release(struct rdti_regions *regions, struct rdti_target *target);

/* Quarantine of a region that was freed: `count` peers will acknowledge (called from on_revoke, at
 * most once per region; not calling it means none). */
void rdti_regions_expect(struct rdti_regions *regions, uint32_t index, uint32_t generation,
                         uint32_t count);
/* One of them did, or is dead. Unknown pairs are ignored and return false (a peer may lie). */
bool rdti_regions_acknowledge(struct rdti_regions *regions, uint32_t index, uint32_t generation);

/* Exports are counted: how many there were, and which of them was this region's. Of memory outside
 * the arena, which peers cannot map and so cannot use once they have left their lane, and of none:
 * RDTI_EXPORT_UNMAPPED, which is later than all. */
#define RDTI_EXPORT_UNMAPPED UINT64_MAX
uint64_t rdti_regions_export_count(struct rdti_regions *regions);
uint64_t rdti_regions_exported_as(struct rdti_regions *regions, uint32_t index);

/* The table of generations, for peers to map read-only (a writable mapping is refused by its
 * seals): uint32_t by index. A live exported region's entry is its generation; a freed one's
 * differs from the time of the free on. */
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
