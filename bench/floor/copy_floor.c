/* SPDX-License-Identifier: Apache-2.0
 *
 * copy_floor - what one pass over shared memory costs on this machine, without any library of ours: the
 * floor under a write on the shm path, and the source of the table in csrc/base/limits.h.
 *
 * Two processes, each pinned to a core, map the same memfd, populated on both sides. The parent copies
 * into it by each kind of store. Pattern "peer": the child has read the whole buffer since the
 * last write (read_ns: how long that took); pattern "own": nobody has. The child reads outside of the timed
 * part. A round gives every kind in turn one untimed and three timed copies, so that a noisy moment
 * hits all kinds and each kind is timed in the cache state that it makes for itself.
 *
 *   copy_floor [--seconds S] [--sizes N,N,...] [--cold]     S per size and pattern, default 1
 *
 * --cold flushes the source from the caches before each copy. One JSON object a line. Exit status: 0, 1
 * failed, 77 fewer than two cores.
 */
#include <errno.h>
#include <sched.h>
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
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "copy_kinds.h"

#define MAX_BYTES ((size_t)64 << 20)
#define MAX_SIZES 64
#define TIMED_PER_ROUND 3
#define MIN_ROUNDS 5
#define MAX_SAMPLES 30000 /* for each kind; at 8 B a second gives more, which adds nothing */
#define EXIT_REQUEST UINT64_MAX
#define PATIENCE_NS UINT64_C(20000000000) /* silence of the other process that ends this one */

/* In shared memory; each word on lines of its own. */
struct handshake {
    _Alignas(256) _Atomic uint64_t request; /* round number; the child reads `len_bytes` bytes */
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

static uint64_t
now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static void
die(const char *what)
{
    (void)fprintf(stderr, "copy_floor: %s: %s\n", what, strerror(errno));
    exit(1);
}

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

/* Pin to the index-th core that this process may use. */
static bool
pin(int index)
{
    cpu_set_t allowed;
    cpu_set_t one;

    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
        die("sched_getaffinity");
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || index-- > 0)
            continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        return sched_setaffinity(0, sizeof(one), &one) == 0;
    }
    return false;
}

static void
spin_hint(void)
{
#if defined(__x86_64__)
    _mm_pause();
#endif
}

static uint64_t
sum_words(const char *buf, size_t len_bytes)
{
    uint64_t sum = 0;

    for (size_t i = 0; i + 8 <= len_bytes; i += 8) {
        uint64_t word;

        memcpy(&word, buf + i, sizeof(word));
        sum += word;
    }
    return sum;
}

/* The child: read the buffer whenever asked. */
static int
serve_reads(const char *dst, struct handshake *hs)
{
    uint64_t seen = 0;

    for (;;) {
        const uint64_t deadline_ns = now_ns() + PATIENCE_NS;
        uint64_t request;

        /* acquire: pairs with ask_for_read()'s release */
        while ((request = atomic_load_explicit(&hs->request, memory_order_acquire)) == seen) {
            spin_hint();
            if (now_ns() > deadline_ns)
                return 1;
        }
        if (request == EXIT_REQUEST)
            return 0;
        seen = request;
        const uint64_t start_ns = now_ns();
        hs->checksum = sum_words(dst, hs->len_bytes);
        hs->read_ns = now_ns() - start_ns;
        /* release: pairs with ask_for_read()'s acquire */
        atomic_store_explicit(&hs->answer, request, memory_order_release);
    }
}

/* Have the child read the buffer; returns how long it took. */
static uint64_t
ask_for_read(struct bench *b, size_t len_bytes)
{
    const uint64_t deadline_ns = now_ns() + PATIENCE_NS;
    const uint64_t round = ++b->round;

    b->hs->len_bytes = len_bytes;
    /* release: pairs with serve_reads()'s acquire */
    atomic_store_explicit(&b->hs->request, round, memory_order_release);
    /* acquire: pairs with serve_reads()'s release */
    while (atomic_load_explicit(&b->hs->answer, memory_order_acquire) != round) {
        spin_hint();
        if (now_ns() > deadline_ns) {
            errno = ETIMEDOUT;
            die("the reading process does not answer");
        }
    }
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
    const uint64_t end_ns = now_ns() + (uint64_t)(b->seconds * 1e9);
    size_t samples = 0;

    for (size_t r = 0;
         (r < MIN_ROUNDS || now_ns() < end_ns) && samples + TIMED_PER_ROUND <= MAX_SAMPLES; r++) {
        for (size_t k = 0; k < kind_count; k++) {
            for (size_t i = 0; i <= TIMED_PER_ROUND; i++) {
                if (b->is_cold)
                    flush_source(b->src, len_bytes);
                const uint64_t start_ns = now_ns();
                kinds[k].copy(b->dst, b->src, len_bytes);
                const uint64_t took_ns = now_ns() - start_ns;
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

static size_t
parse_sizes(const char *text, size_t sizes[MAX_SIZES])
{
    size_t n = 0;

    while (*text != '\0' && n < MAX_SIZES) {
        char *end;
        const unsigned long long size = strtoull(text, &end, 10);

        if (end == text || size == 0 || size > MAX_BYTES || (*end != ',' && *end != '\0')) {
            (void)fprintf(stderr, "copy_floor: --sizes wants bytes up to %zu, got \"%s\"\n",
                          MAX_BYTES, text);
            exit(1);
        }
        sizes[n++] = (size_t)size;
        text = *end == ',' ? end + 1 : end;
    }
    return n;
}

static char *
map_or_die(size_t len_bytes, int flags, int fd)
{
    char *p = mmap(NULL, len_bytes, PROT_READ | PROT_WRITE, flags | MAP_POPULATE, fd, 0);

    if (p == MAP_FAILED)
        die("mmap");
    return p;
}

int
main(int argc, char **argv)
{
    size_t sizes[MAX_SIZES];
    size_t size_count = parse_sizes("8,64,512,4096,8192,16384,32768,65536,262144,1048576,4194304,"
                                    "16777216,67108864",
                                    sizes);
    struct bench b = {.seconds = 1.0};

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--cold") == 0) {
            b.is_cold = true;
        } else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
            b.seconds = strtod(argv[++i], NULL);
        } else if (strcmp(argv[i], "--sizes") == 0 && i + 1 < argc) {
            size_count = parse_sizes(argv[++i], sizes);
        } else {
            (void)fprintf(stderr, "usage: copy_floor [--seconds S] [--sizes N,N,...] [--cold]\n");
            return 1;
        }
    }

    const int fd = memfd_create("copy_floor", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)(MAX_BYTES + sizeof(struct handshake))) != 0)
        die("memfd");
    b.dst = map_or_die(MAX_BYTES + sizeof(struct handshake), MAP_SHARED, fd);
    b.hs = (struct handshake *)(void *)(b.dst + MAX_BYTES);

    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child < 0)
        die("fork");
    if (child == 0) {
        /* A mapping of its own: the inherited one has no page table entries in a child. */
        char *dst = map_or_die(MAX_BYTES + sizeof(struct handshake), MAP_SHARED, fd);

        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent || !pin(1))
            _exit(77);
        _exit(serve_reads(dst, (struct handshake *)(void *)(dst + MAX_BYTES)));
    }
    if (!pin(0))
        die("sched_setaffinity");
    b.src = map_or_die(MAX_BYTES, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    memset(b.src, 0x5a, MAX_BYTES);

    int status;
    const struct timespec moment = {.tv_nsec = 50000000}; /* the child pins or gives up */
    (void)nanosleep(&moment, NULL);
    if (waitpid(child, &status, WNOHANG) == child) {
        (void)fprintf(stderr, "copy_floor: needs two cores\n");
        return 77;
    }
    for (size_t i = 0; i < size_count; i++) {
        measure(&b, sizes[i], true);
        measure(&b, sizes[i], false);
    }
    /* release: pairs with serve_reads()'s acquire */
    atomic_store_explicit(&b.hs->request, EXIT_REQUEST, memory_order_release);
    if (waitpid(child, &status, 0) != child || status != 0)
        die("the reading process failed");
    return 0;
}
