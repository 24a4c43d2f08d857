/* SPDX-License-Identifier: Apache-2.0
 *
 * copy_floor - what one pass over shared memory costs on this machine, without any library of ours:
 * the floor under a write on the shm path, and the source of the table in csrc/base/limits.h.
 *
 * Two processes, each pinned to a core, map the same memfd, populated on both sides. The parent
 * copies into it by each kind of store. Pattern "peer": the child has read the whole buffer since
 * the last write (read_ns: how long that took); pattern "own": nobody has. The child reads outside
 * of the timed part. A round gives every kind in turn one untimed and three timed copies, so that a
 * noisy moment hits all kinds and each kind is timed in the cache state that it makes for itself.
 *
 *   copy_floor [--seconds S] [--sizes N,N,...] [--cold]     S per size and pattern, default 1
 *
 * --cold flushes the source from the caches before each copy. One JSON object a line. Exit status:
 * 0, 1 failed, 77 fewer than two cores.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "bench.h"
#include "copy_kinds.h"

#define MAX_BYTES ((size_t)64 << 20)
#define TIMED_PER_ROUND 3
#define MIN_ROUNDS 5
#define MAX_SAMPLES 30000 /* for each kind; at 8 B a second gives more, which adds nothing */
#define EXIT_REQUEST UINT64_MAX

/* In shared memory; each word on lines of its own. */
struct handshake {
    _Alignas(256) _Atomic uint64_t request; /* round number: read `len_bytes`, or EXIT_REQUEST */
    uint64_t len_bytes;
    _Alignas(256) _Atomic uint64_t answer;
    uint64_t read_ns;
    uint64_t checksum; /* so that the reads are not optimised away */
};

struct bench {
    char *dst;
    char *src;
    struct handshake *hs;
    uint64_t round;
    double seconds;
    bool is_cold;
};

#if defined(__x86_64__)
static void
flush_source(const char *src, size_t len_bytes)
{
    for (size_t i = 0; i < len_bytes; i += 64)
        _mm_clflush(src + i);
    _mm_mfence();
}
#else
static void
flush_source(const char *src, size_t len_bytes)
{
    (void)src;
    (void)len_bytes;
    (void)fprintf(stderr, "copy_floor: --cold is written for x86-64 only\n");
    exit(1);
}
#endif

/* The child: read the buffer whenever asked. */
static int
serve_reads(const char *dst, struct handshake *hs)
{
    for (uint64_t round = 1;; round++) {
        bench_await(&hs->request, round, "the writing process");
        if (hs->len_bytes == EXIT_REQUEST)
            return 0;
        const uint64_t start_ns = bench_now_ns();
        hs->checksum = bench_sum(dst, hs->len_bytes);
        hs->read_ns = bench_now_ns() - start_ns;
        /* release: pairs with ask_for_read()'s acquire */
        atomic_store_explicit(&hs->answer, round, memory_order_release);
    }
}

/* Have the child read the buffer; returns how long it took. */
static uint64_t
ask_for_read(struct bench *b, size_t len_bytes)
{
    const uint64_t round = ++b->round;

    b->hs->len_bytes = len_bytes;
    /* release: pairs with serve_reads()'s acquire */
    atomic_store_explicit(&b->hs->request, round, memory_order_release);
    bench_await(&b->hs->answer, round, "the reading process");
    return b->hs->read_ns;
}

static int
compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a;
    const uint64_t y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static void
report(const char *kind, const char *pattern, size_t len_bytes, bool is_cold, uint64_t *write_ns,
       uint64_t *read_ns, size_t samples)
{
    qsort(write_ns, samples, sizeof(*write_ns), compare);
    qsort(read_ns, samples, sizeof(*read_ns), compare);
    const uint64_t median = write_ns[samples / 2];

    (void)printf(
        "{\"bench\": \"copy_floor\", \"size\": %zu, \"kind\": \"%s\", \"pattern\": \"%s\", "
        "\"source\": \"%s\", \"median_ns\": %llu, \"p10\": %llu, \"p90\": %llu, \"gbps\": %.2f, "
        "\"read_ns\": %llu, \"samples\": %zu}\n",
        len_bytes, kind, pattern, is_cold ? "cold" : "warm", (unsigned long long)median,
        (unsigned long long)write_ns[samples / 10],
        (unsigned long long)write_ns[samples - 1 - samples / 10],
        (double)len_bytes / (double)(median > 0 ? median : 1),
        (unsigned long long)read_ns[samples / 2], samples);
    (void)fflush(stdout);
}

/* All kinds at one size and pattern. */
static void
measure(struct bench *b, size_t len_bytes, bool is_read_by_peer)
{
    static uint64_t write_ns[COPY_KINDS_MAX][MAX_SAMPLES];
    static uint64_t read_ns[COPY_KINDS_MAX][MAX_SAMPLES];
    struct copy_kind kinds[COPY_KINDS_MAX];
    const size_t kind_count = copy_kinds_find(kinds);
    const uint64_t end_ns = bench_now_ns() + (uint64_t)(b->seconds * 1e9);
    size_t samples = 0;

    for (size_t r = 0;
         (r < MIN_ROUNDS || bench_now_ns() < end_ns) && samples + TIMED_PER_ROUND <= MAX_SAMPLES;
         r++) {
        for (size_t k = 0; k < kind_count; k++) {
            for (size_t i = 0; i <= TIMED_PER_ROUND; i++) {
                if (b->is_cold)
                    flush_source(b->src, len_bytes);
                const uint64_t start_ns = bench_now_ns();
                kinds[k].copy(b->dst, b->src, len_bytes);
                const uint64_t took_ns = bench_now_ns() - start_ns;
                const uint64_t peer_ns = is_read_by_peer ? ask_for_read(b, len_bytes) : 0;

                if (i == 0)
                    continue; /* it found the state that the kind before it left */
                write_ns[k][samples + i - 1] = took_ns;
                read_ns[k][samples + i - 1] = peer_ns;
            }
        }
        samples += TIMED_PER_ROUND;
    }
    for (size_t k = 0; k < kind_count; k++)
        report(kinds[k].name, is_read_by_peer ? "peer" : "own", len_bytes, b->is_cold, write_ns[k],
               read_ns[k], samples);
}

static char *
map_or_die(size_t len_bytes, int flags, int fd)
{
    char *p = mmap(NULL, len_bytes, PROT_READ | PROT_WRITE, flags | MAP_POPULATE, fd, 0);

    if (p == MAP_FAILED)
        bench_die("mmap");
    return p;
}

/* The other process, from its first moment to its last. */
_Noreturn static void
be_reader(int fd, pid_t parent)
{
    /* A mapping of its own: the inherited one has no page table entries in a child. */
    char *dst = map_or_die(MAX_BYTES + sizeof(struct handshake), MAP_SHARED, fd);

    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent || !bench_pin(1))
        _exit(1);
    _exit(serve_reads(dst, (struct handshake *)(void *)(dst + MAX_BYTES)));
}

static void
run(struct bench *b, const size_t *sizes, size_t size_count)
{
    const int fd = memfd_create("copy_floor", MFD_CLOEXEC);
    int status;

    if (fd < 0 || ftruncate(fd, (off_t)(MAX_BYTES + sizeof(struct handshake))) != 0)
        bench_die("memfd");
    b->dst = map_or_die(MAX_BYTES + sizeof(struct handshake), MAP_SHARED, fd);
    b->hs = (struct handshake *)(void *)(b->dst + MAX_BYTES);
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child < 0)
        bench_die("fork");
    if (child == 0)
        be_reader(fd, parent);
    if (!bench_pin(0))
        bench_die("sched_setaffinity");
    b->src = bench_map(MAX_BYTES, MAP_PRIVATE);
    memset(b->src, 0x5a, MAX_BYTES);
    for (size_t i = 0; i < size_count; i++) {
        measure(b, sizes[i], true);
        measure(b, sizes[i], false);
    }
    b->hs->len_bytes = EXIT_REQUEST;
    /* release: pairs with serve_reads()'s acquire */
    atomic_store_explicit(&b->hs->request, ++b->round, memory_order_release);
    if (waitpid(child, &status, 0) != child || status != 0)
        bench_fail("the reading process failed");
}

int
main(int argc, char **argv)
{
    static const char *const known[] = {"--seconds=", "--sizes=", "--cold", NULL};
    size_t sizes[BENCH_MAX_SIZES];

    bench_name = "copy_floor";
    bench_check_args(argc, argv, known);
    const char *text = bench_arg(argc, argv, "--sizes");
    const size_t size_count =
        bench_parse_sizes(text != NULL ? text
                                       : "8,64,512,4096,8192,16384,32768,65536,262144,1048576,"
                                         "4194304,16777216,67108864",
                          MAX_BYTES, sizes);
    struct bench b = {.seconds = bench_arg_number(argc, argv, "--seconds", 1.0),
                      .is_cold = bench_has(argc, argv, "--cold")};
    if (bench_cores() < 2) {
        (void)fprintf(stderr, "copy_floor: needs two cores\n");
        return BENCH_EXIT_SKIP;
    }
    run(&b, sizes, size_count);
    return 0;
}
