/* SPDX-License-Identifier: Apache-2.0
 * Populates many pages by one call. */
#include "base/memory/pages.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* 64 KiB take sixteen faults, populating takes two system calls. */
#define POPULATE_FROM_BYTES (UINT64_C(64) << 10)

void
rdti_pages_populate(void *dst, uint64_t len_bytes)
{
    const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t head_bytes = (uintptr_t)dst % page_bytes;
    uint8_t *const first = (uint8_t *)dst - head_bytes;
    const uint64_t whole_bytes =
        (head_bytes + len_bytes + page_bytes - 1) / page_bytes * page_bytes;
    uint8_t *const middle = first + whole_bytes / page_bytes / 2 * page_bytes;
    unsigned char is_there = 0;

    /* New memory has none of its pages, old memory has all, so one page decides. The middle one:
     * adjacent data may have populated the first and the last. */
    if (len_bytes < POPULATE_FROM_BYTES || mincore(middle, page_bytes, &is_there) != 0 ||
        is_there & 1)
        return;
    /* A failure is ignored: the later stores then fault the pages in, or fail as they would have
     * failed. Pages populated before a signal stay. */
    while (madvise(first, whole_bytes, MADV_POPULATE_WRITE) != 0 && errno == EINTR)
        continue;
}
