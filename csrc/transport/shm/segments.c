/* SPDX-License-Identifier: Apache-2.0
 * The table of mapped segments. */
#include "transport/shm/segments.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory/memfd.h"
#include "transport/shm/limits.h"

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

/*
 * Check and map a segment of a peer's arena as the peer permits, excluded from core dumps, and
 * at a multiple of the huge page if it is that long. Undone by munmap(addr, len_bytes).
 *   RDT_EPROTO, as rdti_memfd_check()   RDT_ENOMEM
 */
static rdt_status
segments_map_segment(int fd, int32_t peer_rank, uint64_t len_bytes, void **out,
                     bool *is_read_only_out, struct rdt_error *err)
{
    const struct rdti_memfd_want want = {.what = "segment",
                                         .peer_rank = peer_rank,
                                         .min_bytes = len_bytes,
                                         .max_bytes = UINT64_MAX,
                                         .may_be_huge = true};
    struct rdti_memfd_found found;
    void *addr = NULL;

    rdt_status status = rdti_memfd_check(fd, &want, &found, err);
    if (status != RDT_OK)
        return status;
    /* A mapping of huge pages must consist of whole ones. */
    if (len_bytes == 0 || found.page_bytes > SHM_HUGE_PAGE_BYTES ||
        (found.page_bytes > (uint64_t)sysconf(_SC_PAGESIZE) && len_bytes % found.page_bytes != 0))
        return rdti_error_set_rank(err, RDT_EPROTO, peer_rank,
                                   "segment of %llu bytes in pages of %llu",
                                   (unsigned long long)len_bytes,
                                   (unsigned long long)found.page_bytes);
    if (found.is_read_only)
        status = rdti_memfd_map(fd, want.what, len_bytes, PROT_READ, &addr, err);
    else if (len_bytes < SHM_HUGE_PAGE_BYTES)
        status = rdti_memfd_map(fd, want.what, len_bytes, PROT_READ | PROT_WRITE, &addr, err);
    else
        status = rdti_memfd_map_aligned(fd, want.what, len_bytes, SHM_HUGE_PAGE_BYTES, &addr, err);
    if (status != RDT_OK)
        return status;
    (void)madvise(addr, len_bytes, MADV_DONTDUMP); /* it only makes core files smaller */
    *out = addr;
    *is_read_only_out = found.is_read_only;
    return RDT_OK;
}

rdt_status
rdti_shm_segment_map(int fd, int32_t peer_rank, uint64_t len_bytes, struct shm_segment *out,
                     struct rdt_error *err)
{
    bool is_read_only = false;
    void *addr = NULL;

    rdt_status status = segments_map_segment(fd, peer_rank, len_bytes, &addr, &is_read_only, err);
    if (status != RDT_OK)
        return status;
    const uint64_t parts = (len_bytes - 1) / SHM_PRESENT_BYTES + 1;
    bool *is_present = calloc(parts, sizeof(*is_present));
    if (is_present == NULL) {
        (void)munmap(addr, len_bytes);
        return rdti_error_set(err, RDT_ENOMEM, 0, "segment: %llu bytes for its parts",
                              (unsigned long long)parts);
    }
    *out = (struct shm_segment){.addr = addr,
                                .len_bytes = len_bytes,
                                .state = is_read_only ? SHM_SEGMENT_READ_ONLY : SHM_SEGMENT_MAPPED,
                                .is_present = is_present};
    return RDT_OK;
}

rdt_status
rdti_shm_segment_populate(struct shm_segment *segment, uint64_t off_bytes, uint64_t len_bytes,
                          struct rdt_error *err)
{
    const uint64_t part = SHM_PRESENT_BYTES;
    const uint64_t end = (off_bytes + len_bytes + part - 1) / part;
    uint64_t from = off_bytes / part;

    while (len_bytes > 0 && from < end) {
        uint64_t to = from;

        while (to < end && !segment->is_present[to])
            to++;
        if (to > from) {
            const uint64_t at = from * part;
            const uint64_t stop = to * part < segment->len_bytes ? to * part : segment->len_bytes;
            const int sys_errno = rdti_memfd_populate_mapped(segment->addr + at, stop - at);
            if (sys_errno != 0 && sys_errno != EINVAL) /* EINVAL: the pages fault in later */
                return rdti_error_set(err, RDT_ENOMEM, sys_errno,
                                      "madvise(MADV_POPULATE_WRITE) of %llu shared bytes",
                                      (unsigned long long)(stop - at));
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
        if (!shm_segment_is_mapped(&segments->table[i]))
            continue;
        (void)munmap(segments->table[i].addr, segments->table[i].len_bytes);
        free(segments->table[i].is_present);
    }
    free(segments->table);
    *segments = (struct shm_segments){0};
}
