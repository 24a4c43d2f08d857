/* SPDX-License-Identifier: Apache-2.0
 * An arena, and what the kernel knows of it. */
#ifndef RDT_TESTS_CORE_ARENA_RIG_H
#define RDT_TESTS_CORE_ARENA_RIG_H

#include <dirent.h>
#include <sys/stat.h>

#include "harness.h"
#include "memory/arena.h"

#define MIB (UINT64_C(1) << 20)
#define CHUNK (16 * MIB)

static struct rdt_error err;

static inline struct rdti_arena *
open_arena(uint64_t chunk_bytes, uint64_t max_bytes)
{
    struct rdti_arena *arena = NULL;

    CHECK_OK(rdti_arena_create(chunk_bytes, max_bytes, &arena, &err), &err);
    return arena;
}

static inline void *
take(struct rdti_arena *arena, uint64_t len_bytes)
{
    void *addr = NULL;

    CHECK_OK(rdti_arena_alloc(arena, len_bytes, &addr, &err), &err);
    CHECK_UINT_EQ((uintptr_t)addr % RDTI_ARENA_ALIGN, 0);
    return addr;
}

static inline struct rdti_arena_stats
stats_of(struct rdti_arena *arena)
{
    struct rdti_arena_stats stats;

    rdti_arena_get_stats(arena, &stats);
    return stats;
}

static inline int
fd_of(struct rdti_arena *arena, uint32_t segment)
{
    uint64_t len_bytes;
    int fd = -1;

    CHECK_STATUS(rdti_arena_segment(arena, segment, &fd, &len_bytes), RDT_OK);
    return fd;
}

/* Memory that the kernel holds for a segment. */
static inline uint64_t
resident_bytes(struct rdti_arena *arena, uint32_t segment)
{
    struct stat st;

    CHECK_INT_EQ(fstat(fd_of(arena, segment), &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

static inline int
count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;

    CHECK_NOT_NULL(dir);
    while (readdir(dir) != NULL)
        count++;
    (void)closedir(dir);
    return count;
}

#endif
