/* SPDX-License-Identifier: Apache-2.0
 * The steady state: no allocation, nothing that grows, and a microsecond of CPU at most for a
 * small message. */
#include <stdatomic.h>
#include <sys/resource.h>

#include "core/group_rig.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED 1
#else
#define IS_SANITIZED 0

/* glibc's own, under the name that lets a program count. */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);
static _Atomic uint64_t allocations;

static void
count_allocation(void)
{
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed); /* a statistic */
}

void *
malloc(size_t bytes)
{
    count_allocation();
    return __libc_malloc(bytes);
}

void *
calloc(size_t count, size_t bytes)
{
    count_allocation();
    return __libc_calloc(count, bytes);
}

void *
realloc(void *old, size_t bytes)
{
    count_allocation();
    return __libc_realloc(old, bytes);
}
#endif

static void
ping(struct rig *rig, const uint8_t *src, uint8_t *dst, uint64_t len_bytes, bool is_receive_first)
{
    struct rdt_error err;
    rdt_transfer *recv = NULL;

    if (is_receive_first)
        recv = rig_recv(rig, 1, 0, 1, dst, len_bytes);
    rdt_transfer *send = rig_send(rig, 0, 1, 1, src, len_bytes);
    if (!is_receive_first) {
        CHECK_STATUS(rdt_context_progress(rig->ctx[1]), RDT_OK);
        recv = rig_recv(rig, 1, 0, 1, dst, len_bytes);
    }
    CHECK_OK(rig_end(recv, &err), &err);
    CHECK_OK(rig_end(send, &err), &err);
}

static double
cpu_ns(void)
{
    struct timespec now;

    CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* Returns the CPU time of one message, of both sides together. */
static double
allocates_nothing(uint32_t transport, uint64_t len_bytes, bool is_receive_first)
{
    enum { WARM = 3000 / TEST_ALIKE_SHARE, ROUNDS = 20000 / TEST_ALIKE_SHARE };
    struct rig rig;
    uint8_t *src = malloc(len_bytes);
    uint8_t *dst = malloc(len_bytes);

    rig_open(&rig, 2, transport);
    rig_fill(src, len_bytes, 5);
    for (int i = 0; i < WARM; i++)
        ping(&rig, src, dst, len_bytes, is_receive_first);
#if !IS_SANITIZED
    const uint64_t before = atomic_load(&allocations);
#endif
    const double begun = cpu_ns();
    for (int i = 0; i < ROUNDS; i++)
        ping(&rig, src, dst, len_bytes, is_receive_first);
    const double each_ns = (cpu_ns() - begun) / ROUNDS;
#if !IS_SANITIZED
    /* The progress threads beat now and then; messages take nothing. */
    CHECK_UINT_LE(atomic_load(&allocations) - before, ROUNDS / 1000);
#endif
    printf("  %s, %llu bytes, %s first: %.0f ns of CPU for both sides\n",
           transport == RDT_TRANSPORT_SHM ? "shm" : "tcp", (unsigned long long)len_bytes,
           is_receive_first ? "receive" : "send", each_ns);
    CHECK_MEM_EQ(dst, src, len_bytes);
    free(src);
    free(dst);
    rig_close(&rig);
    return each_ns;
}

TEST_TIMEOUT(small_messages_over_shm_allocate_nothing, 60)
{
    const double first = allocates_nothing(RDT_TRANSPORT_SHM, 8, true);
    const double second = allocates_nothing(RDT_TRANSPORT_SHM, 8, false);

    if (!IS_SANITIZED) { /* 2 us for both sides and both doorbells; twice that on a busy machine */
        CHECK_MSG(first < 4000, "%f ns", first);
        CHECK_MSG(second < 4000, "%f ns", second);
    }
    (void)allocates_nothing(RDT_TRANSPORT_SHM, 600, true);
    (void)allocates_nothing(RDT_TRANSPORT_SHM, 65536, true);
    (void)allocates_nothing(RDT_TRANSPORT_SHM, 65536, false);
}

TEST_TIMEOUT(large_messages_over_shm_allocate_nothing, 60)
{
    (void)allocates_nothing(RDT_TRANSPORT_SHM, 131072, true);
    (void)allocates_nothing(RDT_TRANSPORT_SHM, 131072, false);
}

TEST_TIMEOUT(nothing_grows_over_a_hundred_thousand_messages, 60)
{
    struct rig rig;
    uint8_t src[24] = {0};
    uint8_t dst[24];
    struct rusage before;
    struct rusage after;

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    for (int i = 0; i < 10000 / TEST_ALIKE_SHARE; i++)
        ping(&rig, src, dst, sizeof(src), i % 2 == 0);
    CHECK(getrusage(RUSAGE_SELF, &before) == 0);
    for (int i = 0; i < 100000 / TEST_ALIKE_SHARE; i++)
        ping(&rig, src, dst, sizeof(src), i % 2 == 0);
    CHECK(getrusage(RUSAGE_SELF, &after) == 0);
    if (!IS_SANITIZED)
        CHECK_INT_LE(after.ru_maxrss - before.ru_maxrss, 256); /* KiB */
    rig_close(&rig);
}

TEST_MAIN()
