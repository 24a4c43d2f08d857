/* SPDX-License-Identifier: Apache-2.0
 * The segments of the peer's arena that a lane has mapped, by the peer's number. A segment stays
 * mapped until the lane closes. Guarded by the lane's tx_lock. */
#ifndef RDTI_SHM_SEGMENTS_H
#define RDTI_SHM_SEGMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"
#include "transport/shm/limits.h"

enum shm_segment_state {
    SHM_SEGMENT_UNKNOWN = 0, /* not requested */
    SHM_SEGMENT_ASKED,       /* host->request_segment() was called or is about to be */
    SHM_SEGMENT_MAPPED,
    SHM_SEGMENT_READ_ONLY, /* mapped for reading: the peer permits no more */
    SHM_SEGMENT_REFUSED    /* the peer has no segment of that number */
};

struct shm_segment {
    uint8_t *addr;
    uint64_t len_bytes;
    enum shm_segment_state state;
    bool *is_present; /* owned; one for each SHM_PRESENT_BYTES: in the page table */
};

struct shm_segments {
    struct shm_segment *table; /* owned; grows, so pointers into it are valid only under the lock */
    uint32_t count;
};

static inline bool
shm_segment_is_mapped(const struct shm_segment *segment)
{
    return segment->state == SHM_SEGMENT_MAPPED || segment->state == SHM_SEGMENT_READ_ONLY;
}

/* The segment, or NULL if its number is beyond the table. */
static inline struct shm_segment *
shm_segments_find(const struct shm_segments *segments, uint32_t number)
{
    return number < segments->count ? &segments->table[number] : NULL;
}

/* The segment, including unknown ones. RDT_ENOMEM, RDT_EPROTO (an impossible number). */
rdt_status rdti_shm_segments_get(struct shm_segments *segments, uint32_t number,
                                 struct shm_segment **out, struct rdt_error *err);

/* Check, map and fill in a segment that the peer sent; the caller keeps fd. RDT_EPROTO,
 * RDT_ENOMEM. */
rdt_status rdti_shm_segment_map(int fd, int32_t peer_rank, uint64_t len_bytes,
                                struct shm_segment *out, struct rdt_error *err);

/*
 * Populate the parts of a range that were not populated before. The owner has had their pages in
 * memory since it allocated the first span in their granule, so this allocates no new pages.
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
