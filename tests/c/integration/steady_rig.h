/* SPDX-License-Identifier: Apache-2.0
 * What a process holds, counted before and after many operations, to see whether it grew. */
#ifndef RDTI_TESTS_STEADY_RIG_H
#define RDTI_TESTS_STEADY_RIG_H

#include <malloc.h>

#include "leftovers.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STEADY_IS_SANITIZED 1
size_t __sanitizer_get_current_allocated_bytes(void);
#else
#define STEADY_IS_SANITIZED 0
#endif

/* Of a span that has been warmed up. Bytes of the heap are exact but for what each thread keeps
 * back for itself, and for the few operations that a peer has yet to acknowledge: a byte lost in
 * each is 32 of the heap, and passes the limit after a thousand. The arena may need another piece
 * where more was on its way at once than in the warm-up: a descriptor, a mapping, and pages. */
#define STEADY_PIECES 2
#define STEADY_HEAP_BYTES 32768
#define STEADY_RSS_KIB (512 + STEADY_PIECES * 2048)
#define STEADY_MAPPINGS (4 + STEADY_PIECES)

struct steady_usage {
    int64_t heap_bytes; /* that were asked for and not given back */
    int64_t rss_kib;
    int64_t pss_kib; /* as RSS, but of pages that n processes share one n-th */
    int64_t mappings;
    int64_t fds;
    int64_t threads;
};

static inline int64_t
steady_heap_bytes(void)
{
#if STEADY_IS_SANITIZED
    return (int64_t)__sanitizer_get_current_allocated_bytes();
#else
    const struct mallinfo2 heap = mallinfo2();

    return (int64_t)(heap.uordblks + heap.hblkhd);
#endif
}

/* The KiB after the name; smaps_rollup has each once. */
static inline int64_t
steady_kib(const char *name)
{
    FILE *f = fopen("/proc/self/smaps_rollup", "re");
    const size_t len = strlen(name);
    char line[256];
    int64_t kib = -1;

    CHECK(f != NULL);
    while (fgets(line, sizeof(line), f) != NULL)
        if (strncmp(line, name, len) == 0 && line[len] == ':')
            kib = strtoll(line + len + 1, NULL, 10);
    (void)fclose(f);
    CHECK_MSG(kib >= 0, "smaps_rollup has no %s", name);
    return kib;
}

static inline int64_t
steady_lines(const char *path)
{
    FILE *f = fopen(path, "re");
    char line[4352];
    int64_t count = 0;

    CHECK(f != NULL);
    while (fgets(line, sizeof(line), f) != NULL)
        count++;
    (void)fclose(f);
    return count;
}

static inline struct steady_usage
steady_now(void)
{
    const struct leftovers open = leftovers_now();

    return (struct steady_usage){.heap_bytes = steady_heap_bytes(),
                                 .rss_kib = steady_kib("Rss"),
                                 .pss_kib = steady_kib("Pss"),
                                 .mappings = steady_lines("/proc/self/maps"),
                                 .fds = open.fds,
                                 .threads = open.threads};
}

static inline struct steady_usage
steady_growth(const struct steady_usage *before, const struct steady_usage *after)
{
    return (struct steady_usage){.heap_bytes = after->heap_bytes - before->heap_bytes,
                                 .rss_kib = after->rss_kib - before->rss_kib,
                                 .pss_kib = after->pss_kib - before->pss_kib,
                                 .mappings = after->mappings - before->mappings,
                                 .fds = after->fds - before->fds,
                                 .threads = after->threads - before->threads};
}

/* What grew beyond its limit, or NULL. Pages of a sanitizer's own are not judged. */
static inline const char *
steady_grown(const struct steady_usage *growth)
{
    if (growth->heap_bytes > STEADY_HEAP_BYTES)
        return "heap";
    if (growth->fds > STEADY_PIECES)
        return "descriptors";
    if (growth->threads > 0)
        return "threads";
    if (STEADY_IS_SANITIZED)
        return NULL;
    if (growth->rss_kib > STEADY_RSS_KIB)
        return "RSS";
    if (growth->pss_kib > STEADY_RSS_KIB)
        return "Pss";
    return growth->mappings > STEADY_MAPPINGS ? "mappings" : NULL;
}

static inline void
steady_describe(const struct steady_usage *growth, char *out, size_t cap)
{
    (void)snprintf(out, cap,
                   "heap %+" PRId64 " B, RSS %+" PRId64 " KiB, Pss %+" PRId64
                   " KiB, mappings %+" PRId64 ", descriptors %+" PRId64 ", threads %+" PRId64,
                   growth->heap_bytes, growth->rss_kib, growth->pss_kib, growth->mappings,
                   growth->fds, growth->threads);
}

/* For the most of several spans. */
static inline void
steady_keep_most(struct steady_usage *most, const struct steady_usage *growth)
{
    const struct steady_usage old = *most;

    *most = (struct steady_usage){
        .heap_bytes = growth->heap_bytes > old.heap_bytes ? growth->heap_bytes : old.heap_bytes,
        .rss_kib = growth->rss_kib > old.rss_kib ? growth->rss_kib : old.rss_kib,
        .pss_kib = growth->pss_kib > old.pss_kib ? growth->pss_kib : old.pss_kib,
        .mappings = growth->mappings > old.mappings ? growth->mappings : old.mappings,
        .fds = growth->fds > old.fds ? growth->fds : old.fds,
        .threads = growth->threads > old.threads ? growth->threads : old.threads};
}

#endif
