/* SPDX-License-Identifier: Apache-2.0
 * The pieces of the peer's arena that a lane has mapped, by the peer's number. A piece stays mapped
 * until the lane closes. Guarded by the lane's tx_lock. */
#ifndef RDTI_SHM_SEGMENTS_H
#define RDTI_SHM_SEGMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"
#include "transport/shm/limits.h"

enum shm_segment_state {
    SHM_SEGMENT_UNKNOWN = 0, /* not asked for */
    SHM_SEGMENT_ASKED,       /* host->request_segment() was called or is about to be */
    SHM_SEGMENT_MAPPED,
    SHM_SEGMENT_REFUSED /* the peer has none of that number */
};

struct shm_segment {
    uint8_t *addr;
    uint64_t len_bytes;
    enum shm_segment_state state;
    bool *is_present; /* owned; one for each SHM_PRESENT_BYTES: in our page table */
};

struct shm_segments {
    struct shm_segment *table; /* owned; grows, so pointers into it end with the lock */
    uint32_t count;
};

/* The segment, or NULL if its number was never seen. */
static inline struct shm_segment *
shm_segments_find(const struct shm_segments *segments, uint32_t number)
{
    return number < segments->count ? &segments->table[number] : NULL;
}

/* The segment, unknown ones included. RDT_ENOMEM, RDT_EPROTO (a number that no arena has). */
rdt_status rdti_shm_segments_get(struct shm_segments *segments, uint32_t number,
                                 struct shm_segment **out, struct rdt_error *err);

/* Check, map and fill in a segment that the peer handed over; fd stays the caller's. RDT_EPROTO,
 * RDT_ENOMEM. */
rdt_status rdti_shm_segment_map(int fd, int32_t peer_rank, uint64_t len_bytes,
                                struct shm_segment *out, struct rdt_error *err);

/*
 * Populate the parts of a range that were not touched before. The owner has their pages in memory
 * since it gave out the first span in their granule, so none is made here that was not there.
 * RDT_ENOMEM.
 */
rdt_status rdti_shm_segment_populate(struct shm_segment *segment, uint64_t off_bytes,
                                     uint64_t len_bytes, struct rdt_error *err);

static inline rdt_status
shm_segment_touch(struct shm_segment *segment, uint64_t off_bytes, uint64_t len_bytes,
                  struct rdt_error *err)
{
    const uint64_t first = off_bytes / SHM_PRESENT_BYTES;

    if (len_bytes > 0 && off_bytes % SHM_PRESENT_BYTES + len_bytes <= SHM_PRESENT_BYTES &&
        segment->is_present[first])
        return RDT_OK;
    return rdti_shm_segment_populate(segment, off_bytes, len_bytes, err);
}

/* Unmap everything and free the table. */
void rdti_shm_segments_fini(struct shm_segments *segments);

#endif
