/* SPDX-License-Identifier: Apache-2.0
 * Segments: see segment.h. */
#include "memory/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/system/cpu.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memory/memfd.h"

#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif

/* Memory that populating leaves free, so that the next allocation of the program or the kernel does
 * not trigger the OOM killer: some thousand page tables and stacks. */
#define RESERVE_BYTES (UINT64_C(64) << 20)

/* Work unit of a thread; before each unit it checks the free memory again. Populating costs 0.6 to
 * 2.7 s per GiB (first touch, on a virtual machine), so a unit takes 20 to 85 ms and the check
 * (0.14 ms) is negligible. */
#define PIECE_GRANULES 16

/* A thread is worth starting for at least two pieces; more threads than this only contend for the
 * kernel's locks of one file. */
#define THREADS_MAX 16

#define HUGE_DIR "/sys/kernel/mm/hugepages/hugepages-2048kB/"

/* ---- Creation ------------------------------------------------------------------------------- */

static uint64_t
segment_read_huge_count(const char *path)
{
    char line[32] = "";
    FILE *f = fopen(path, "re");

    if (f == NULL) /* no huge pages in this kernel, or no sysfs */
        return 0;
    const bool is_read = fgets(line, sizeof(line), f) != NULL;
    (void)fclose(f);
    /* ULLONG_MAX (out of range) or 0 (not a number) cannot occur: the kernel writes neither. */
    return is_read ? strtoull(line, NULL, 10) : 0;
}

/* Reserved huge pages that no process has claimed. */
static uint64_t
segment_huge_bytes_left(void)
{
    const uint64_t free_count = segment_read_huge_count(HUGE_DIR "free_hugepages");
    const uint64_t claimed = segment_read_huge_count(HUGE_DIR "resv_hugepages");

    return free_count > claimed ? (free_count - claimed) * RDTI_GRANULE_BYTES : 0;
}

static rdt_status
segment_create_mapped(uint64_t len_bytes, unsigned mfd_flags, bool is_read_only,
                      struct rdti_arena_segment **out, struct rdt_error *err)
{
    const uint64_t count = (len_bytes + RDTI_GRANULE_BYTES - 1) / RDTI_GRANULE_BYTES;
    struct rdti_arena_segment *segment = calloc(1, sizeof(*segment) + count);
    rdt_status status;
    void *addr = NULL;

    if (segment == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "arena: %llu bytes for a segment's flags",
                              (unsigned long long)count);
    segment->len_bytes = len_bytes;
    segment->granule_count = (uint32_t)count;
    segment->is_read_only = is_read_only;
    status = rdti_memfd_create("rdmatensor-arena", len_bytes, mfd_flags, &segment->fd, err);
    if (status != RDT_OK)
        goto err_free;
    status =
        rdti_memfd_map_aligned(segment->fd, "arena", len_bytes, RDTI_GRANULE_BYTES, &addr, err);
    if (status != RDT_OK)
        goto err_close;
    segment->addr = addr;
    status = rdti_memfd_seal(segment->fd, is_read_only, err); /* this mapping stays writable */
    if (status != RDT_OK)
        goto err_unmap;
    if (madvise(segment->addr, len_bytes, MADV_DONTDUMP) != 0) {
        status = rdti_error_set(err, RDT_EDEVICE, errno, "arena: madvise(MADV_DONTDUMP)");
        goto err_unmap;
    }
    *out = segment;
    return RDT_OK;

err_unmap:
    (void)munmap(segment->addr, len_bytes);
err_close:
    (void)close(segment->fd);
err_free:
    free(segment);
    return status;
}

/* On huge pages that an administrator reserved, populated from the start: they have no other
 * use. */
static rdt_status
segment_create_huge(uint64_t len_bytes, struct rdti_arena_segment **out, struct rdt_error *err)
{
    struct rdti_arena_segment *segment = NULL;
    const rdt_status status =
        segment_create_mapped(len_bytes, MFD_HUGETLB | MFD_HUGE_2MB, false, &segment, err);

    if (status != RDT_OK)
        return status;
    const int sys_errno = rdti_memfd_populate(segment->fd, 0, segment->addr, len_bytes);

    if (sys_errno != 0) {
        rdti_segment_destroy(segment);
        return rdti_error_set(err, RDT_ENOMEM, sys_errno, "arena: populating %llu bytes",
                              (unsigned long long)len_bytes);
    }
    segment->is_huge = true;
    segment->keeps_pages = true;
    for (uint32_t g = 0; g < segment->granule_count; g++)
        atomic_store_explicit(&segment->flags[g], RDTI_GRANULE_POPULATED, memory_order_relaxed);
    *out = segment;
    return RDT_OK;
}

rdt_status
rdti_segment_create(uint64_t len_bytes, bool is_read_only, struct rdti_arena_segment **out,
                    struct rdt_error *err)
{
    const uint64_t huge_bytes = segment_huge_bytes_left();
    struct rdt_error huge_err;

    if (!is_read_only && len_bytes % RDTI_GRANULE_BYTES == 0 && huge_bytes >= len_bytes) {
        if (segment_create_huge(len_bytes, out, &huge_err) == RDT_OK)
            return RDT_OK;
        rdti_log(RDT_LOG_WARN, "arena: %" PRIu64 " bytes on ordinary pages: %s", len_bytes,
                 huge_err.message);
    } else if (huge_bytes > 0) {
        rdti_log(RDT_LOG_INFO,
                 "arena: %" PRIu64 " bytes on ordinary pages: %" PRIu64
                 " bytes of huge pages are free",
                 len_bytes, huge_bytes);
    }
    struct rdti_arena_segment *segment = NULL;
    const rdt_status status = segment_create_mapped(len_bytes, 0, is_read_only, &segment, err);

    if (status != RDT_OK)
        return status;
    /* A hint: the administrator decides whether shared memory gets transparent huge pages. */
    if (madvise(segment->addr, len_bytes, MADV_HUGEPAGE) != 0)
        rdti_log(RDT_LOG_DEBUG, "arena: no transparent huge pages (errno %d)", errno);
    *out = segment;
    return RDT_OK;
}

void
rdti_segment_destroy(struct rdti_arena_segment *segment)
{
    if (segment == NULL)
        return;
    if (munmap(segment->addr, segment->len_bytes) != 0)
        rdti_log(RDT_LOG_ERROR, "arena: munmap of %" PRIu64 " bytes failed (errno %d)",
                 segment->len_bytes, errno);
    (void)close(segment->fd);
    free(segment);
}

/* ---- Granules ------------------------------------------------------------------------------- */

static uint8_t
segment_flags_of(const struct rdti_arena_segment *segment, uint64_t g)
{
    return atomic_load_explicit(&segment->flags[g], memory_order_relaxed); /* see segment.h */
}

/* Offset of granule g; the segment's end for g = granule_count. */
static uint64_t
segment_granule_off(const struct rdti_arena_segment *segment, uint64_t g)
{
    const uint64_t off = g * RDTI_GRANULE_BYTES;

    return off < segment->len_bytes ? off : segment->len_bytes;
}

struct granules {
    uint64_t from;
    uint64_t to; /* exclusive */
};

/* The granules that a span touches. */
static struct granules
segment_granules_of(uint64_t off_bytes, uint64_t len_bytes)
{
    return (struct granules){off_bytes / RDTI_GRANULE_BYTES,
                             (off_bytes + len_bytes + RDTI_GRANULE_BYTES - 1) / RDTI_GRANULE_BYTES};
}

/* The granules that lie wholly in a span; none if from >= to. */
static struct granules
segment_granules_inside(const struct rdti_arena_segment *segment, uint64_t off_bytes,
                        uint64_t len_bytes)
{
    const uint64_t end = off_bytes + len_bytes;

    return (struct granules){(off_bytes + RDTI_GRANULE_BYTES - 1) / RDTI_GRANULE_BYTES,
                             end == segment->len_bytes ? segment->granule_count
                                                       : end / RDTI_GRANULE_BYTES};
}

/* The next run of granules in [from, to) whose POPULATED flag is `is_populated`; empty at the
 * end. */
static struct granules
segment_next_run(const struct rdti_arena_segment *segment, struct granules in, bool is_populated)
{
    const uint8_t want = is_populated ? RDTI_GRANULE_POPULATED : 0;

    while (in.from < in.to && (segment_flags_of(segment, in.from) & RDTI_GRANULE_POPULATED) != want)
        in.from++;
    uint64_t end = in.from;

    while (end < in.to && (segment_flags_of(segment, end) & RDTI_GRANULE_POPULATED) == want)
        end++;
    return (struct granules){in.from, end};
}

static uint64_t
segment_bytes_missing(const struct rdti_arena_segment *segment, struct granules in)
{
    uint64_t bytes = 0;

    for (struct granules run = segment_next_run(segment, in, false); run.from < run.to;
         run = segment_next_run(segment, (struct granules){run.to, in.to}, false))
        bytes += segment_granule_off(segment, run.to) - segment_granule_off(segment, run.from);
    return bytes;
}

/* ---- Populating ----------------------------------------------------------------------------- */

static rdt_status
segment_no_memory(int sys_errno, uint64_t asked_bytes, uint64_t need_bytes, struct rdt_error *err)
{
    char limit[256];
    const uint64_t left = rdti_memory_available(limit, sizeof(limit));
    const char *fix = strncmp(limit, "cgroup", 6) == 0
                          ? "raise that limit, or free memory of the group"
                          : "free RAM on this host";

    return rdti_error_set(err, RDT_ENOMEM, sys_errno,
                          "arena: %llu bytes asked for, of which %llu are not in memory yet; "
                          "%llu are left and %llu of them are kept in reserve. The bound that is "
                          "the least: %s; %s, or ask for less",
                          (unsigned long long)asked_bytes, (unsigned long long)need_bytes,
                          (unsigned long long)left, (unsigned long long)RESERVE_BYTES, limit, fix);
}

rdt_status
rdti_segment_check_memory(uint64_t asked_bytes, uint64_t need_bytes, struct rdt_error *err)
{
    char limit[256];
    const uint64_t left = rdti_memory_available(limit, sizeof(limit));

    if (left >= RESERVE_BYTES && left - RESERVE_BYTES >= need_bytes)
        return RDT_OK;
    return segment_no_memory(0, asked_bytes, need_bytes, err);
}

/* One span that several threads populate: each takes the next piece until none is left. */
struct job {
    struct rdti_arena_segment *segment;
    struct granules in;
    uint64_t asked_bytes;
    _Atomic uint64_t next; /* granule; relaxed: it only distributes the work */
    _Atomic bool is_over;  /* a thread failed; relaxed: a hint to stop early */
};

struct worker {
    struct job *job;
    pthread_t thread;
    rdt_status status;
    struct rdt_error err;
};

static rdt_status
segment_populate_piece(struct job *job, struct granules piece, struct rdt_error *err)
{
    struct rdti_arena_segment *segment = job->segment;

    for (struct granules run = segment_next_run(segment, piece, false); run.from < run.to;
         run = segment_next_run(segment, (struct granules){run.to, piece.to}, false)) {
        const uint64_t off = segment_granule_off(segment, run.from);
        const uint64_t len_bytes = segment_granule_off(segment, run.to) - off;
        const rdt_status status = rdti_segment_check_memory(
            job->asked_bytes,
            segment_bytes_missing(segment, (struct granules){run.from, job->in.to}), err);

        if (status != RDT_OK)
            return status;
        const int sys_errno = rdti_memfd_populate(segment->fd, off, segment->addr + off, len_bytes);

        if (sys_errno != 0)
            return segment_no_memory(sys_errno, job->asked_bytes, len_bytes, err);
    }
    return RDT_OK;
}

static void *
segment_populate_pieces(void *arg)
{
    struct worker *worker = arg;
    struct job *job = worker->job;

    while (!atomic_load_explicit(&job->is_over, memory_order_relaxed)) {
        const uint64_t from =
            atomic_fetch_add_explicit(&job->next, PIECE_GRANULES, memory_order_relaxed);

        if (from >= job->in.to)
            break;
        const uint64_t to = job->in.to - from < PIECE_GRANULES ? job->in.to : from + PIECE_GRANULES;

        worker->status = segment_populate_piece(job, (struct granules){from, to}, &worker->err);
        if (worker->status != RDT_OK)
            atomic_store_explicit(&job->is_over, true, memory_order_relaxed);
    }
    return NULL;
}

/* Number of threads worth starting in addition to the caller's. */
static uint32_t
segment_helper_count(uint64_t missing_bytes)
{
    const uint64_t pairs = missing_bytes / (UINT64_C(2) * PIECE_GRANULES * RDTI_GRANULE_BYTES);

    if (pairs < 2) /* checked first: rdti_cpu_usable() reads files */
        return 0;
    uint64_t threads = rdti_cpu_usable();

    if (threads > THREADS_MAX)
        threads = THREADS_MAX;
    if (threads > pairs)
        threads = pairs;
    return threads > 1 ? (uint32_t)threads - 1 : 0;
}

/* Starts them with all signals blocked, so that the program's own threads handle signals. */
static uint32_t
segment_start_helpers(struct worker *workers, uint32_t count)
{
    sigset_t all;
    sigset_t old;
    uint32_t started = 0;

    (void)sigfillset(&all);
    if (count == 0 || pthread_sigmask(SIG_SETMASK, &all, &old) != 0)
        return 0;
    while (started < count && pthread_create(&workers[started].thread, NULL,
                                             segment_populate_pieces, &workers[started]) == 0)
        started++;
    if (started < count) /* the existing threads do the work */
        rdti_log(RDT_LOG_DEBUG, "arena: %u of %u threads to populate with", started, count);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    return started;
}

static rdt_status
segment_populate_missing(struct job *job, uint64_t missing_bytes, struct rdt_error *err)
{
    struct worker workers[THREADS_MAX];
    const uint32_t helpers = segment_helper_count(missing_bytes);
    rdt_status status = RDT_OK;

    for (uint32_t i = 0; i <= helpers; i++) {
        workers[i].job = job;
        workers[i].status = RDT_OK;
    }
    const uint32_t started = segment_start_helpers(workers, helpers);
    struct worker *own = &workers[helpers];

    (void)segment_populate_pieces(own);
    if (own->status != RDT_OK)
        status = rdti_error_copy(err, &own->err);
    for (uint32_t i = 0; i < started; i++) {
        (void)pthread_join(workers[i].thread, NULL);
        if (status == RDT_OK && workers[i].status != RDT_OK)
            status = rdti_error_copy(err, &workers[i].err);
    }
    return status;
}

/* Gives back the pages at [off, off + len_bytes); false, with a log line, if the kernel refuses. */
static bool
segment_punch_hole(const struct rdti_arena_segment *segment, uint64_t off_bytes, uint64_t len_bytes)
{
    while (fallocate(segment->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off_bytes,
                     (off_t)len_bytes) != 0) {
        if (errno == EINTR)
            continue;
        rdti_log(RDT_LOG_WARN, "arena: %" PRIu64 " bytes cannot be given back (errno %d)",
                 len_bytes, errno);
        return false;
    }
    return true;
}

/* Pages that a failed call populated have no flag yet. */
void
rdti_segment_unpopulate(struct rdti_arena_segment *segment, uint64_t off_bytes, uint64_t len_bytes)
{
    const struct granules in = segment_granules_inside(segment, off_bytes, len_bytes);

    for (struct granules run = segment_next_run(segment, in, false); run.from < run.to;
         run = segment_next_run(segment, (struct granules){run.to, in.to}, false))
        (void)segment_punch_hole(segment, segment_granule_off(segment, run.from),
                                 segment_granule_off(segment, run.to) -
                                     segment_granule_off(segment, run.from));
}

bool
rdti_segment_is_populated(const struct rdti_arena_segment *segment, uint64_t off_bytes,
                          uint64_t len_bytes)
{
    return segment_bytes_missing(segment, segment_granules_of(off_bytes, len_bytes)) == 0;
}

rdt_status
rdti_segment_populate(struct rdti_arena_segment *segment, uint64_t off_bytes, uint64_t len_bytes,
                      struct rdti_populated *out, struct rdt_error *err)
{
    struct job job = {.segment = segment,
                      .in = segment_granules_of(off_bytes, len_bytes),
                      .asked_bytes = len_bytes};
    const uint64_t missing_bytes = segment_bytes_missing(segment, job.in);
    struct rdti_populated done = {0};

    if (missing_bytes == 0) {
        *out = done;
        return RDT_OK;
    }
    rdt_status status = RDT_OK;

    /* Populates nothing if the whole does not fit. A single piece makes its own check: reading the
     * limits takes two dozen files. */
    if (job.in.to - job.in.from > PIECE_GRANULES)
        status = rdti_segment_check_memory(len_bytes, missing_bytes, err);
    if (status != RDT_OK)
        return status;
    atomic_init(&job.next, job.in.from);
    atomic_init(&job.is_over, false);
    status = segment_populate_missing(&job, missing_bytes, err);
    if (status != RDT_OK)
        return status;
    for (uint64_t g = job.in.from; g < job.in.to; g++) {
        const uint64_t bytes =
            segment_granule_off(segment, g + 1) - segment_granule_off(segment, g);
        const uint8_t old = atomic_fetch_or_explicit(&segment->flags[g], RDTI_GRANULE_POPULATED,
                                                     memory_order_relaxed);

        if ((old & RDTI_GRANULE_POPULATED) != 0) /* or a thread with an adjacent span counts it */
            continue;
        (void)atomic_fetch_and_explicit(&segment->flags[g], (uint8_t)~RDTI_GRANULE_PUNCHED,
                                        memory_order_relaxed);
        done.bytes += bytes;
        done.again_bytes += (old & RDTI_GRANULE_PUNCHED) != 0 ? bytes : 0;
    }
    *out = done;
    return RDT_OK;
}

/* ---- Use ------------------------------------------------------------------------------------ */

void
rdti_segment_use(struct rdti_arena_segment *segment, uint64_t off_bytes, uint64_t len_bytes,
                 bool is_zero)
{
    const struct granules in = segment_granules_of(off_bytes, len_bytes);
    const uint64_t end = off_bytes + len_bytes;

    for (uint64_t g = in.from; g < in.to; g++) {
        const uint8_t old =
            atomic_fetch_or_explicit(&segment->flags[g], RDTI_GRANULE_USED, memory_order_relaxed);
        const uint64_t from = segment_granule_off(segment, g) > off_bytes
                                  ? segment_granule_off(segment, g)
                                  : off_bytes;
        const uint64_t to =
            segment_granule_off(segment, g + 1) < end ? segment_granule_off(segment, g + 1) : end;

        if (is_zero && (old & RDTI_GRANULE_USED) != 0)
            memset(segment->addr + from, 0, to - from);
    }
}

uint64_t
rdti_segment_punch(struct rdti_arena_segment *segment, uint64_t off_bytes, uint64_t len_bytes,
                   uint64_t want_bytes)
{
    const struct granules in = segment_granules_inside(segment, off_bytes, len_bytes);
    uint64_t given_bytes = 0;
    uint64_t from = in.to;

    while (from > in.from && given_bytes < want_bytes) {
        from--;
        if ((segment_flags_of(segment, from) & RDTI_GRANULE_POPULATED) != 0)
            given_bytes +=
                segment_granule_off(segment, from + 1) - segment_granule_off(segment, from);
    }
    if (given_bytes == 0)
        return 0;
    const uint64_t off = segment_granule_off(segment, from);

    if (!segment_punch_hole(segment, off, segment_granule_off(segment, in.to) - off))
        return 0;
    for (uint64_t g = from; g < in.to; g++) {
        if ((segment_flags_of(segment, g) & RDTI_GRANULE_POPULATED) != 0)
            atomic_store_explicit(&segment->flags[g], RDTI_GRANULE_PUNCHED, memory_order_relaxed);
    }
    return given_bytes;
}
