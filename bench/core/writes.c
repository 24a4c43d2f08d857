/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_write - write + notify over shared memory, and copies with memcpy, rep movsb and non-temporal
 * stores into memory that the other process has read since it was written last: into the mapping
 * that the library uses, and into another one ("own"), so that neither a good nor a bad mapping
 * flatters the ratio. A sample ends when the other process knows, by the library's notification or
 * by a flag that is stored after a copy.
 *
 *   rdtperf shm_write [--size N] [--rounds N] [--count N]
 *
 * write_many - a list of blocks with one notification against one write of their sum. Block i goes
 * where a single write would put it; "shuffled": the list has them in any order; "one by one": a
 * write for each block, the last with the notification. A sample ends when the call returns.
 *
 *   rdtperf write_many [--transport shm|tcp] [--blocks N] [--size N] [--rounds N] [--count N]
 *
 * The other process reads all bytes before the next write. What arrives is compared in a pass of
 * its own, first.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "perf.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* From the reader's "ready" to the write: it has to be inside its wait by then. */
#define SETTLE_NS UINT64_C(3000)
#define WAYS_MAX 8

struct ends;

/* What a way writes with, and where it ends up. */
struct writer {
    void (*write)(const struct ends *e, char *dst);
    bool notifies; /* the reader waits for a notification; else for the board's flag */
    bool is_own;   /* into the other mapping */
};

struct ends {
    struct pair *pair;
    const struct perf_options *options;
    const struct writer *writers;
    size_t len_bytes; /* of all */
    char *region;     /* the reader's, as this side has it mapped */
    char *own;
    char *src;
    struct perf_regions regions;
    struct rdt_block *in_order;
    struct rdt_block *shuffled;
    uint64_t number; /* of the write */
    uint64_t seed;   /* 0, or what the reader compares the bytes with */
    bool is_seen;    /* samples end when the reader knows */
};

static char *own_mapping;      /* mapped before the fork */
static volatile uint64_t sunk; /* so that the reads are not optimised away */

/* ---- Ways to write ----------------------------------------------------------------------- */

static void
write_once(const struct ends *e, char *dst)
{
    (void)dst;
    pair_write(e->pair, e->src, e->len_bytes, &e->regions.other, 0, 7);
}

static void
copy_memcpy(const struct ends *e, char *dst)
{
    memcpy(dst, e->src, e->len_bytes);
}

#if defined(__x86_64__)
static void
copy_movsb(const struct ends *e, char *dst)
{
    const char *src = e->src;
    size_t len_bytes = e->len_bytes;

    __asm__ volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(len_bytes) : : "memory");
}

/* 32-byte stores around the caches, four lines a turn. */
__attribute__((target("avx2"))) static void
copy_stream(const struct ends *e, char *dst)
{
    size_t i = 0;

    for (; i + 256 <= e->len_bytes; i += 256) {
        for (size_t j = i; j < i + 256; j += 32)
            _mm256_stream_si256((__m256i *)(void *)(dst + j),
                                _mm256_loadu_si256((const __m256i *)(const void *)(e->src + j)));
    }
    memcpy(dst + i, e->src + i, e->len_bytes - i);
    _mm_sfence();
}
#endif

static void
write_list(const struct ends *e, const struct rdt_block *blocks)
{
    rdt_transfer *transfer;
    struct rdt_error err;

    pair_check(rdt_endpoint_write_many(e->pair->ep, blocks, (uint32_t)e->options->blocks,
                                       &e->regions.other, 7, &transfer, &err),
               &err, "rdt_endpoint_write_many");
    pair_finish(transfer);
}

static void
write_in_order(const struct ends *e, char *dst)
{
    (void)dst;
    write_list(e, e->in_order);
}

static void
write_shuffled(const struct ends *e, char *dst)
{
    (void)dst;
    write_list(e, e->shuffled);
}

static void
write_one_by_one(const struct ends *e, char *dst)
{
    rdt_transfer *last = NULL;
    struct rdt_error err;

    (void)dst;
    for (uint64_t i = 0; i < e->options->blocks; i++) {
        const struct rdt_block *block = &e->in_order[i];
        const bool is_last = i + 1 == e->options->blocks;

        pair_check(rdt_endpoint_write(e->pair->ep, block->src, block->len_bytes, &e->regions.other,
                                      block->dst_off, is_last ? 7 : RDT_NOTIFY_NONE,
                                      is_last ? &last : NULL, &err),
                   &err, "rdt_endpoint_write");
    }
    pair_finish(last);
}

/* ---- Both sides of one write ------------------------------------------------------------- */

static _Atomic uint64_t *
word(const struct ends *e, int side, size_t which)
{
    return &e->pair->board->ping[side][which];
}

static void
say(const struct ends *e, size_t which, uint64_t value)
{
    /* release: pairs with the acquire in bench_await() opposite */
    atomic_store_explicit(word(e, e->pair->side, which), value, memory_order_release);
}

/* Returns the nanoseconds of the write. */
static uint64_t
write_one(struct ends *e, const struct writer *writer)
{
    bench_await(word(e, 1, PERF_READY), e->number, "the reader");
    bench_spin_ns(SETTLE_NS);
    const uint64_t start_ns = bench_now_ns();
    writer->write(e, writer->is_own ? e->own : e->region);
    const uint64_t took_ns = bench_now_ns() - start_ns;
    say(e, PERF_PUBLISHED, e->number);
    bench_await(word(e, 1, PERF_ANSWER), e->number, "the reader");
    /* relaxed: the answer published it */
    const uint64_t seen_ns = atomic_load_explicit(word(e, 1, PERF_SEEN_NS), memory_order_relaxed);
    return e->is_seen ? seen_ns - start_ns : took_ns;
}

static void
read_one(struct ends *e, const struct writer *writer, const char *name)
{
    const char *found = writer->is_own ? e->own : e->region;

    say(e, PERF_READY, e->number);
    if (writer->notifies)
        (void)pair_wait_notify(e->pair);
    else
        bench_await(word(e, 0, PERF_PUBLISHED), e->number, "the writer");
    /* relaxed: the answer publishes it */
    atomic_store_explicit(word(e, 1, PERF_SEEN_NS), bench_now_ns(), memory_order_relaxed);
    if (e->seed != 0)
        bench_verify(found, e->len_bytes, e->seed, name);
    sunk = bench_sum(found, e->len_bytes);
    say(e, PERF_ANSWER, e->number);
}

static uint64_t
run_writes(void *ends, const struct perf_way *way, uint64_t n)
{
    struct ends *e = ends;
    uint64_t took_ns = 0;

    for (; n > 0; n--) {
        e->number++;
        if (e->pair->side == 0)
            took_ns = write_one(e, &e->writers[way->number]);
        else
            read_one(e, &e->writers[way->number], way->name);
    }
    return took_ns;
}

/* ---- Set-up ------------------------------------------------------------------------------ */

static void
build_lists(struct ends *e)
{
    const uint64_t count = e->options->blocks;
    const size_t block_bytes = e->options->len_bytes;
    uint64_t random = 88172645463325252u; /* xorshift64: any seed but zero */

    e->in_order = calloc(count, sizeof(*e->in_order));
    e->shuffled = calloc(count, sizeof(*e->shuffled));
    if (e->in_order == NULL || e->shuffled == NULL)
        bench_die("calloc");
    for (uint64_t i = 0; i < count; i++) {
        e->in_order[i] = (struct rdt_block){e->src + i * block_bytes, block_bytes, i * block_bytes};
        e->shuffled[i] = e->in_order[i];
    }
    for (uint64_t i = count - 1; i > 0; i--) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        const uint64_t j = random % (i + 1);
        const struct rdt_block swapped = e->shuffled[i];

        e->shuffled[i] = e->shuffled[j];
        e->shuffled[j] = swapped;
    }
}

static void
measure(struct ends *e, const struct perf_way *ways, size_t count, const char *fields)
{
    const struct perf_loop loop = {.ways = ways,
                                   .ways_count = count,
                                   .ends = e,
                                   .sample = PERF_EACH,
                                   .warm_up = 1,
                                   .item_bytes = (double)e->len_bytes,
                                   .fields = fields};

    for (size_t i = 0; i < count; i++) {
        e->seed = 1 + i;
        if (e->pair->side == 0)
            bench_fill(e->src, e->len_bytes, e->seed);
        perf_take_one(e->pair, &loop, i);
    }
    e->seed = 0;
    perf_measure(e->pair, e->options, &loop);
}

static struct ends
open_ends(struct pair *p, const struct writer *writers, size_t len_bytes)
{
    struct ends e = {.pair = p, .options = p->arg, .writers = writers, .len_bytes = len_bytes};

    e.regions = perf_swap_regions(p, len_bytes);
    e.region = rdt_region_addr(e.regions.own); /* the writer's is not written to */
    e.src = bench_map(len_bytes, MAP_PRIVATE);
    return e;
}

static void
close_ends(struct ends *e)
{
    pair_barrier(e->pair);
    rdt_region_free(e->regions.own, NULL, NULL);
    free(e->in_order);
    free(e->shuffled);
    (void)munmap(e->src, e->len_bytes);
}

static void
run_shm_write(struct pair *p)
{
    static const struct writer writers[] = {
        {.write = write_once, .notifies = true},
        {.write = copy_memcpy},
        {.write = copy_memcpy, .is_own = true},
#if defined(__x86_64__)
        {.write = copy_movsb},
        {.write = copy_movsb, .is_own = true},
        {.write = copy_stream},
        {.write = copy_stream, .is_own = true},
#endif
    };
    static const char *const names[] = {PERF_RDMATENSOR, "memcpy", "memcpy (own)", "movsb",
                                        "movsb (own)",   "stream", "stream (own)"};
    const struct perf_options *options = p->arg;
    struct ends e = open_ends(p, writers, options->len_bytes);
    struct perf_way ways[WAYS_MAX];
    size_t count = sizeof(writers) / sizeof(writers[0]);
    struct rdt_error err;
    void *mapped;

#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2"))
        count -= 2;
#endif
    for (size_t i = 0; i < count; i++)
        ways[i] = (struct perf_way){.name = names[i], .run = run_writes, .number = i};
    e.own = own_mapping;
    e.is_seen = true;
    if (p->side == 0) {
        pair_check(rdt_endpoint_map(p->ep, &e.regions.other, &mapped, &err), &err,
                   "rdt_endpoint_map");
        e.region = mapped;
    } else {
        sunk = bench_sum(own_mapping, e.len_bytes); /* an inherited mapping has no pages yet */
    }
    measure(&e, ways, count, "\"timed\": \"seen\", ");
    close_ends(&e);
}

static void
run_write_many(struct pair *p)
{
    static const struct writer writers[] = {
        {.write = write_once, .notifies = true},
        {.write = write_in_order, .notifies = true},
        {.write = write_shuffled, .notifies = true},
        {.write = write_one_by_one, .notifies = true},
    };
    static const struct perf_way ways[] = {
        {.name = "one write", .run = run_writes, .number = 0},
        {.name = "write_many in order", .run = run_writes, .number = 1},
        {.name = "write_many shuffled", .run = run_writes, .number = 2},
        {.name = "one by one", .run = run_writes, .number = 3},
    };
    const struct perf_options *options = p->arg;
    struct ends e = open_ends(p, writers, options->blocks * options->len_bytes);
    char fields[64];

    build_lists(&e);
    (void)snprintf(fields, sizeof(fields), "\"blocks\": %llu, \"timed\": \"call\", ",
                   (unsigned long long)options->blocks);
    measure(&e, ways, sizeof(ways) / sizeof(ways[0]), fields);
    close_ends(&e);
}

void
perf_shm_write(const struct perf_options *options)
{
    own_mapping = bench_map(options->len_bytes, MAP_SHARED);
    perf_run(options, run_shm_write, run_shm_write);
}

void
perf_write_many(const struct perf_options *options)
{
    perf_run(options, run_write_many, run_write_many);
}
