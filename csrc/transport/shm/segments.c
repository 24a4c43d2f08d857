/* SPDX-License-Identifier: Apache-2.0
 * The table of mapped segments. */
#include "transport/shm/segments.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "transport/shm/limits.h"
#include "transport/shm/memfd.h"

rdt_status
rdti_shm_segments_get(struct shm_segments *segments, uint32_t number, struct shm_segment **out,
                      struct rdt_error *err)
{
    if (number >= SHM_SEGMENTS_MAX)
        return rdti_error_set(err, RDT_EPROTO, 0,
                              "remote region names segment %u, but arenas have at most %u", number,
                              SHM_SEGMENTS_MAX);
    if (number >= segments->count) {
        uint32_t count = segments->count == 0 ? 16 : segments->count;

        while (count <= number)
            count *= 2;
        struct shm_segment *table = realloc(segments->table, count * sizeof(*table));
        if (table == NULL)
            return rdti_error_set(err, RDT_ENOMEM, 0, "table of %u segments", count);
        memset(table + segments->count, 0, (count - segments->count) * sizeof(*table));
        segments->table = table;
        segments->count = count;
    }
    *out = &segments->table[number];
    return RDT_OK;
}

rdt_status
rdti_shm_segment_map(int fd, int32_t peer_rank, uint64_t len_bytes, struct shm_segment *out,
                     struct rdt_error *err)
{
    void *addr;

    rdt_status status = rdti_shm_map_segment(fd, peer_rank, len_bytes, &addr, err);
    if (status != RDT_OK)
        return status;
    const uint64_t granules = (len_bytes - 1) / SHM_HUGE_PAGE_BYTES + 1;
    bool *is_present = calloc(granules, sizeof(*is_present));
    if (is_present == NULL) {
        (void)munmap(addr, len_bytes);
        return rdti_error_set(err, RDT_ENOMEM, 0, "segment: %llu bytes for its granules",
                              (unsigned long long)granules);
    }
    *out = (struct shm_segment){.addr = addr,
                                .len_bytes = len_bytes,
                                .state = SHM_SEGMENT_MAPPED,
                                .is_present = is_present};
    return RDT_OK;
}

rdt_status
rdti_shm_segment_populate(struct shm_segment *segment, uint64_t off_bytes, uint64_t len_bytes,
                          struct rdt_error *err)
{
    const uint64_t granule = SHM_HUGE_PAGE_BYTES;
    const uint64_t end = (off_bytes + len_bytes + granule - 1) / granule;
    uint64_t from = off_bytes / granule;

    while (len_bytes > 0 && from < end) {
        uint64_t to = from;

        while (to < end && !segment->is_present[to])
            to++;
        if (to > from) {
            const uint64_t at = from * granule;
            const uint64_t stop =
                to * granule < segment->len_bytes ? to * granule : segment->len_bytes;
            const rdt_status status = rdti_shm_populate(segment->addr + at, stop - at, err);
            if (status != RDT_OK)
                return status;
            memset(segment->is_present + from, true, to - from);
        }
        from = to + 1; /* `to` is present, or the end */
    }
    return RDT_OK;
}

void
rdti_shm_segments_fini(struct shm_segments *segments)
{
    for (uint32_t i = 0; i < segments->count; i++) {
        if (segments->table[i].state != SHM_SEGMENT_MAPPED)
            continue;
        (void)munmap(segments->table[i].addr, segments->table[i].len_bytes);
        free(segments->table[i].is_present);
    }
    free(segments->table);
    *segments = (struct shm_segments){0};
}
