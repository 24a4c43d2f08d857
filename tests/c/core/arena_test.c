/* SPDX-License-Identifier: Apache-2.0
 * The arena: growth, pages that come and go, threads, forks. What the kernel knows (seals, resident
 * pages, blocks of the file, descriptors) is asked of the kernel, not of the arena. */
#include "memory/arena.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "arena_rig.h"

static int
count_arena_maps(void)
{
    char line[512];
    int count = 0;
    FILE *f = fopen("/proc/self/maps", "re");

    CHECK_NOT_NULL(f);
    while (fgets(line, sizeof(line), f) != NULL)
        count += strstr(line, "rdmatensor-arena") != NULL;
    (void)fclose(f);
    return count;
}

TEST(arena_opens_without_memory_and_leaves_nothing)
{
    const int fds = count_fds();
    struct rdti_arena *arena = open_arena(CHUNK, 0);

    CHECK_UINT_EQ(stats_of(arena).segment_count, 0);
    CHECK_INT_EQ(count_fds(), fds);
    for (int i = 0; i < 8; i++)
        (void)take(arena, 5 * MIB);
    CHECK_UINT_GE(stats_of(arena).segment_count, 2);
    CHECK_INT_EQ(count_fds(), fds + (int)stats_of(arena).segment_count);
    CHECK_INT_EQ(count_arena_maps(), (int)stats_of(arena).segment_count);
    rdti_arena_destroy(arena); /* spans that are still taken go with it */
    CHECK_INT_EQ(count_fds(), fds);
    CHECK_INT_EQ(count_arena_maps(), 0);
    rdti_arena_destroy(NULL);
}

TEST(arena_grows_and_finds_its_segments)
{
    enum { COUNT = 60 };
    struct rdti_arena *arena = open_arena(CHUNK, 0);
    uint8_t *addrs[COUNT];
    uint64_t lens[COUNT];
    uint64_t mapped = 0;

    for (uint32_t i = 0; i < COUNT; i++) {
        lens[i] = i == 30 ? 40 * MIB + 4096 : (i * 37777) % (2 * MIB);
        addrs[i] = take(arena, lens[i]);
        memset(addrs[i], (int)i + 1, lens[i]);
    }
    const struct rdti_arena_stats stats = stats_of(arena);

    CHECK_UINT_GE(stats.segment_count, 3);
    for (uint32_t s = 0; s < stats.segment_count; s++) {
        uint64_t len_bytes = 0;
        int fd = -1;

        CHECK_STATUS(rdti_arena_segment(arena, s, &fd, &len_bytes), RDT_OK);
        CHECK_UINT_EQ(len_bytes % (2 * MIB), 0);
        CHECK_UINT_EQ(len_bytes, s == 0 ? 4 * MIB : len_bytes);
        CHECK(len_bytes <= CHUNK || len_bytes == 42 * MIB);
        mapped += len_bytes;
    }
    CHECK_UINT_EQ(stats.mapped_bytes, mapped);
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t segment = 99;
        uint64_t off = 0;
        uint8_t first = 0;

        CHECK_STATUS(rdti_arena_locate(arena, addrs[i], lens[i], &segment, &off), RDT_OK);
        if (lens[i] == 0)
            continue;
        /* What a peer that maps the descriptor reads there is what we wrote. */
        CHECK_INT_EQ(pread(fd_of(arena, segment), &first, 1, (off_t)off), 1);
        CHECK_INT_EQ(first, (uint8_t)(i + 1));
        for (uint64_t b = 0; b < lens[i]; b += 997)
            CHECK_INT_EQ(addrs[i][b], (uint8_t)(i + 1));
    }
    for (uint32_t i = 0; i < COUNT; i++)
        rdti_arena_free(arena, addrs[i]);
    CHECK_UINT_EQ(stats_of(arena).allocated_bytes, 0);
    CHECK_UINT_EQ(stats_of(arena).segment_count, stats.segment_count);
    CHECK_UINT_GE(stats_of(arena).peak_allocated_bytes, 40 * MIB);
    rdti_arena_destroy(arena);
}

TEST(arena_locates_only_what_lies_in_one_segment)
{
    struct rdti_arena *arena = open_arena(CHUNK, 0);
    uint8_t *addr = take(arena, 4 * MIB); /* the whole first segment */
    uint32_t segment = 7;
    uint64_t off = 7;
    int on_stack = 0;
    int fd = -7;

    CHECK_STATUS(rdti_arena_locate(arena, addr, 4 * MIB + 1, &segment, &off), RDT_EINVAL);
    CHECK_STATUS(rdti_arena_locate(arena, addr, UINT64_MAX, &segment, &off), RDT_EINVAL);
    CHECK_STATUS(rdti_arena_locate(arena, addr + 4 * MIB, 0, &segment, &off), RDT_EINVAL);
    CHECK_STATUS(rdti_arena_locate(arena, addr - 1, 1, &segment, &off), RDT_EINVAL);
    CHECK_STATUS(rdti_arena_locate(arena, &on_stack, 4, &segment, &off), RDT_EINVAL);
    CHECK_STATUS(rdti_arena_locate(arena, NULL, 0, &segment, &off), RDT_EINVAL);
    CHECK_STATUS(rdti_arena_segment(arena, 1, &fd, &off), RDT_EINVAL);
    CHECK(segment == 7 && off == 7 && fd == -7); /* outputs untouched */
    CHECK_STATUS(rdti_arena_locate(arena, addr + 4 * MIB - 1, 1, &segment, &off), RDT_OK);
    CHECK_UINT_EQ(segment, 0);
    CHECK_UINT_EQ(off, 4 * MIB - 1);
    rdti_arena_destroy(arena);
}

TEST(arena_gives_empty_spans_addresses_of_their_own)
{
    struct rdti_arena *arena = open_arena(CHUNK, 0);
    void *a = take(arena, 0);
    void *b = take(arena, 0);

    CHECK(a != b);
    rdti_arena_free(arena, a);
    rdti_arena_free(arena, b);
    rdti_arena_free(arena, NULL);
    CHECK_UINT_EQ(stats_of(arena).allocated_bytes, 0);
    rdti_arena_destroy(arena);
}

TEST(arena_reports_a_double_free)
{
    struct rdti_arena *arena = open_arena(CHUNK, 0);
    uint8_t *a = take(arena, 4096);
    uint8_t *b = take(arena, 4096);
    const int saved = dup(STDERR_FILENO);
    char text[512] = "";
    int out[2];

    CHECK_INT_EQ(pipe(out), 0);
    rdti_arena_free(arena, a);
    CHECK_INT_GE(dup2(out[1], STDERR_FILENO), 0);
    rdti_arena_free(arena, a);
    rdti_arena_free(arena, b + 64);
    CHECK_INT_GE(dup2(saved, STDERR_FILENO), 0);
    CHECK_INT_GT(read(out[0], text, sizeof(text) - 1), 0);
    CHECK_STR_CONTAINS(text, "not allocated");
    CHECK_UINT_EQ(stats_of(arena).allocated_bytes, 4096);
    rdti_arena_destroy(arena);
}

TEST(arena_segments_are_sealed_and_not_dumped)
{
    struct rdti_arena *arena = open_arena(CHUNK, 0);
    uint8_t *addr = take(arena, MIB);
    const int fd = fd_of(arena, 0);
    bool is_in_mapping = false;
    bool has_dontdump = false;
    char line[512];
    FILE *f = fopen("/proc/self/smaps", "re");

    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    CHECK_INT_EQ(fcntl(fd, F_GET_SEALS) & seals, seals);
    CHECK_INT_EQ(ftruncate(fd, 0), -1);
    CHECK_INT_EQ(errno, EPERM);
    CHECK_INT_EQ(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    CHECK_NOT_NULL(f);
    while (fgets(line, sizeof(line), f) != NULL) {
        unsigned long from;
        unsigned long to;

        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            is_in_mapping = (uintptr_t)addr >= from && (uintptr_t)addr < to;
        if (is_in_mapping && strncmp(line, "VmFlags:", 8) == 0)
            has_dontdump = strstr(line, " dd") != NULL;
    }
    (void)fclose(f);
    CHECK(has_dontdump);
    rdti_arena_destroy(arena);
}

/* ---- Pages ---------------------------------------------------------------------------------- */

static uint64_t
pages_in_memory(void *addr, uint64_t len_bytes)
{
    const uint64_t from = (uintptr_t)addr & ~UINT64_C(4095);
    const uint64_t count = ((uintptr_t)addr + len_bytes - from + 4095) / 4096;
    unsigned char *map = calloc(count, 1);
    uint64_t sum = 0;

    CHECK_NOT_NULL(map);
    CHECK_INT_EQ(mincore((void *)from, count * 4096, map), 0);
    for (uint64_t i = 0; i < count; i++)
        sum += map[i] & 1;
    free(map);
    return sum;
}

TEST_TIMEOUT(arena_populates_before_it_gives_out, 60)
{
    const uint64_t lens[] = {1, 3 * MIB + 77, 70 * MIB, 130 * MIB}; /* one thread, and several */
    struct rdti_arena *arena = open_arena(CHUNK, 0);

    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        void *addr = take(arena, lens[i]);

        CHECK_UINT_GE(pages_in_memory(addr, lens[i]), (lens[i] + 4095) / 4096);
    }
    const struct rdti_arena_stats stats = stats_of(arena);

    CHECK_UINT_GE(stats.populated_bytes, stats.allocated_bytes);
    CHECK_UINT_LE(stats.populated_bytes, stats.mapped_bytes);
    CHECK_UINT_GE(stats.populate_ns, 1);
    printf("  %.2f s per GiB\n",
           (double)stats.populate_ns * 1e-9 / ((double)stats.populated_bytes / (1024.0 * MIB)));
    rdti_arena_destroy(arena);
}

TEST_TIMEOUT(arena_gives_back_the_pages_of_large_spans, 120)
{
    const uint64_t big = 400 * MIB;
    struct rdti_arena *arena = open_arena(CHUNK, 0);
    uint8_t *small = take(arena, 1000);
    uint8_t *addr = take(arena, big);
    uint64_t not_zero = 0;
    void *again = NULL;

    memset(small, 5, 1000);
    memset(addr, 0xee, big);
    CHECK_UINT_GE(resident_bytes(arena, 1), big);
    rdti_arena_free(arena, addr);
    CHECK_UINT_LE(resident_bytes(arena, 1), 130 * MIB); /* half of what may be retained */
    CHECK_UINT_GE(stats_of(arena).given_back_bytes, 270 * MIB);
    CHECK_UINT_LE(stats_of(arena).populated_bytes, 134 * MIB);
    CHECK_UINT_EQ(stats_of(arena).segment_count, 2);
    CHECK_INT_EQ(small[999], 5);

    /* Again, zeroed: part of it is fresh, part still has the old bytes. */
    CHECK_OK(rdti_arena_alloc_zero(arena, big, &again, &err), &err);
    CHECK_UINT_EQ(pages_in_memory(again, big), big / 4096);
    for (uint64_t i = 0; i < big / 8; i++)
        not_zero += ((uint64_t *)again)[i] != 0;
    CHECK_UINT_EQ(not_zero, 0);

    /* That was soon: now it is kept. */
    const uint64_t given = stats_of(arena).given_back_bytes;

    rdti_arena_free(arena, again);
    CHECK_UINT_EQ(stats_of(arena).given_back_bytes, given);
    CHECK_UINT_GE(resident_bytes(arena, 1), big);
    rdti_arena_destroy(arena);
}

TEST_TIMEOUT(arena_keeps_pages_that_a_device_holds, 60)
{
    const uint64_t big = 400 * MIB;
    struct rdti_arena *arena = open_arena(CHUNK, 0);
    uint8_t *addr = take(arena, big);

    CHECK_STATUS(rdti_arena_keep_pages(arena, 1, &err), RDT_EINVAL);
    CHECK_OK(rdti_arena_keep_pages(arena, 0, &err), &err);
    rdti_arena_free(arena, addr);
    CHECK_UINT_EQ(resident_bytes(arena, 0), big);
    CHECK_UINT_EQ(stats_of(arena).given_back_bytes, 0);
    rdti_arena_destroy(arena);
}

TEST(arena_zeroes_what_was_used)
{
    struct rdti_arena *arena = open_arena(CHUNK, 0);
    uint64_t rng = 99;

    for (int round = 0; round < 300; round++) {
        rng = rng * UINT64_C(6364136223846793005) + 1442695040888963407;
        const uint64_t len_bytes = (rng >> 33) % (round % 10 == 0 ? 3 * MIB : 60000);
        void *addr;

        CHECK_OK(rdti_arena_alloc_zero(arena, len_bytes, &addr, &err), &err);
        for (uint64_t i = 0; i < len_bytes; i++)
            if (((uint8_t *)addr)[i] != 0)
                FAIL("byte %" PRIu64 " of %" PRIu64 " is not zero", i, len_bytes);
        memset(addr, 0xab, len_bytes);
        if ((rng >> 20) % 4 != 0)
            rdti_arena_free(arena, addr);
    }
    rdti_arena_destroy(arena);
}

/* ---- Threads and forks ---------------------------------------------------------------------- */

enum { THREADS = 4, SLOTS = 24 };

struct churn {
    struct rdti_arena *arena;
    uint32_t number;
    uint32_t rounds;
    _Atomic bool *is_over; /* relaxed: only ends the loop */
};

/* Every span is filled with its owner's mark, and still has it when it is freed. */
static void *
churn(void *arg)
{
    const struct churn *c = arg;
    uint8_t *addrs[SLOTS] = {0};
    uint64_t lens[SLOTS] = {0};
    uint64_t rng = c->number + 1;

    for (uint32_t round = 0; c->rounds == 0 || round < c->rounds; round++) {
        rng = rng * UINT64_C(6364136223846793005) + 1442695040888963407;
        const uint32_t slot = (uint32_t)(rng >> 40) % SLOTS;
        const uint8_t mark = (uint8_t)(c->number * SLOTS + slot + 1);

        if (c->is_over != NULL && atomic_load_explicit(c->is_over, memory_order_relaxed))
            break;
        if (addrs[slot] != NULL) {
            for (uint64_t i = 0; i < lens[slot]; i++)
                if (addrs[slot][i] != mark)
                    FAIL("thread %u: byte %" PRIu64 " is foreign", c->number, i);
            rdti_arena_free(c->arena, addrs[slot]);
            addrs[slot] = NULL;
        } else {
            struct rdt_error e;
            void *addr;
            uint32_t segment;
            uint64_t off;

            lens[slot] = (rng >> 33) % (round % 50 == 0 ? 5 * MIB : 20000);
            CHECK_OK(rdti_arena_alloc(c->arena, lens[slot], &addr, &e), &e);
            CHECK_STATUS(rdti_arena_locate(c->arena, addr, lens[slot], &segment, &off), RDT_OK);
            memset(addr, mark, lens[slot]);
            addrs[slot] = addr;
        }
    }
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        rdti_arena_free(c->arena, addrs[slot]);
    return NULL;
}

TEST_TIMEOUT(arena_serves_threads, 60)
{
    struct rdti_arena *arena = open_arena(CHUNK, 0);
    struct churn args[THREADS];
    pthread_t threads[THREADS];

    for (uint32_t i = 0; i < THREADS; i++) {
        args[i] = (struct churn){.arena = arena, .number = i, .rounds = 4000 / TEST_TSAN_SHARE};
        CHECK_INT_EQ(pthread_create(&threads[i], NULL, churn, &args[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        CHECK_INT_EQ(pthread_join(threads[i], NULL), 0);
    CHECK_UINT_EQ(stats_of(arena).allocated_bytes, 0);
    rdti_arena_destroy(arena);
}

struct giver {
    struct rdti_arena *arena;
    uint32_t rounds;
};

/* Large spans come and go, so that pages are given back all the time (by others' frees too). */
static void *
give_large(void *arg)
{
    const struct giver *g = arg;

    for (uint32_t round = 0; round < g->rounds; round++) {
        struct rdt_error e;
        void *addr;

        CHECK_OK(rdti_arena_alloc_zero(g->arena, 280 * MIB, &addr, &e), &e);
        for (uint64_t i = 0; i < 280 * MIB; i += 65536) {
            CHECK_INT_EQ(((uint8_t *)addr)[i], 0);
            ((uint8_t *)addr)[i] = 1;
        }
        rdti_arena_free(g->arena, addr);
    }
    return NULL;
}

TEST_TIMEOUT(arena_gives_pages_back_under_threads, 120)
{
    struct rdti_arena *arena = open_arena(CHUNK, 0);
    struct churn args[2];
    struct giver giver = {arena, 6};
    pthread_t threads[4];

    for (uint32_t i = 0; i < 2; i++) {
        args[i] = (struct churn){.arena = arena, .number = i, .rounds = 3000};
        CHECK_INT_EQ(pthread_create(&threads[i], NULL, churn, &args[i]), 0);
        CHECK_INT_EQ(pthread_create(&threads[2 + i], NULL, give_large, &giver), 0);
    }
    for (uint32_t i = 0; i < 4; i++)
        CHECK_INT_EQ(pthread_join(threads[i], NULL), 0);
    CHECK_UINT_GE(stats_of(arena).given_back_bytes, 1); /* or the test did not test it */
    CHECK_UINT_EQ(stats_of(arena).allocated_bytes, 0);
    rdti_arena_destroy(arena);
}

/* In a child: nothing hangs (a thread that is not there may hold a lock), nothing is changed. */
static void
use_in_child(struct rdti_arena *arena, uint8_t *addr)
{
    struct rdti_arena_stats stats;
    uint32_t segment;
    uint64_t off;
    void *out = NULL;
    int fd;

    CHECK_INT_EQ(addr[0], 3);
    addr[1] = 4; /* shared memory: the parent sees it */
    CHECK_STATUS(rdti_arena_alloc(arena, 100, &out, NULL), RDT_EFORKED);
    CHECK_STATUS(rdti_arena_alloc_zero(arena, 100, &out, NULL), RDT_EFORKED);
    CHECK_STATUS(rdti_arena_locate(arena, addr, 1, &segment, &off), RDT_EFORKED);
    CHECK_STATUS(rdti_arena_segment(arena, 0, &fd, &off), RDT_EFORKED);
    CHECK_STATUS(rdti_arena_keep_pages(arena, 0, NULL), RDT_EFORKED);
    rdti_arena_get_stats(arena, &stats);
    rdti_arena_free(arena, addr);
    rdti_arena_destroy(arena);
    CHECK_INT_EQ(addr[0], 3); /* still mapped */
    _exit(0);
}

TEST_TIMEOUT(arena_is_switched_off_in_a_forked_child, 60)
{
    struct rdti_arena *arena = open_arena(CHUNK, 0);
    _Atomic bool is_over = false;
    struct churn args = {.arena = arena, .number = 2, .is_over = &is_over};
    uint8_t *addr = take(arena, 4096);
    pthread_t thread;

    addr[0] = 3;
    CHECK_INT_EQ(pthread_create(&thread, NULL, churn, &args), 0);
    for (int round = 0; round < 20; round++) {
        int status = -1;

        addr[1] = 0;
        const pid_t child = fork();

        CHECK_INT_GE(child, 0);
        if (child == 0) {
            (void)alarm(20);
            use_in_child(arena, addr);
        }
        CHECK_INT_EQ(waitpid(child, &status, 0), child);
        CHECK_INT_EQ(status, 0);
        CHECK_INT_EQ(addr[1], 4);
    }
    atomic_store_explicit(&is_over, true, memory_order_relaxed);
    CHECK_INT_EQ(pthread_join(thread, NULL), 0);
    CHECK_UINT_EQ(stats_of(arena).allocated_bytes, 4096); /* the children's frees changed nothing */
    rdti_arena_free(arena, addr);
    CHECK_UINT_EQ(stats_of(arena).allocated_bytes, 0);
    rdti_arena_destroy(arena);
}

TEST_MAIN()
