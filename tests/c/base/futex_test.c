/* SPDX-License-Identifier: Apache-2.0
 * Waiting on a word and waking, across processes too. */
#include "base/system/futex.h"

#include <pthread.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "harness.h"

static _Atomic uint32_t *
shared_word(void)
{
    _Atomic uint32_t *word =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    CHECK(word != MAP_FAILED);
    return word;
}

TEST(wait_returns_at_once_if_the_word_differs)
{
    _Atomic uint32_t word = 1;

    rdti_futex_wait(&word, 2, UINT64_C(60000000000)); /* else the test's alarm */
}

TEST(wait_of_zero_does_not_sleep)
{
    _Atomic uint32_t word = 1;
    const uint64_t start_ns = rdti_now_ns();

    for (int i = 0; i < 1000; i++)
        rdti_futex_wait(&word, 1, 0);
    CHECK_UINT_LE(rdti_now_ns() - start_ns, UINT64_C(1000000000));
}

TEST(wait_ends_with_its_time_out)
{
    _Atomic uint32_t word = 1;
    const uint64_t start_ns = rdti_now_ns();

    errno = 1234;
    rdti_futex_wait(&word, 1, UINT64_C(20000000));
    CHECK_UINT_GE(rdti_now_ns() - start_ns, UINT64_C(20000000));
    CHECK_INT_EQ(errno, 1234);
}

/* Two processes take turns; a lost or private wake shows as the test's alarm, since each sleep is
 * long. */
TEST(wake_reaches_another_process)
{
    enum { TURNS = 2000 };
    _Atomic uint32_t *word = shared_word();
    const pid_t child = fork();

    CHECK(child >= 0);
    const uint32_t mine = child == 0 ? 1 : 0;
    for (uint32_t turn = mine; turn < TURNS; turn += 2) {
        uint32_t seen;
        /* seq_cst, the partner is the other process's store: the simplest order that is right */
        while ((seen = atomic_load_explicit(word, memory_order_seq_cst)) != turn)
            rdti_futex_wait(word, seen, UINT64_C(60000000000));
        atomic_store_explicit(word, turn + 1, memory_order_seq_cst);
        rdti_futex_wake(word, 1);
    }
    if (child == 0)
        _exit(0);
    int status;
    CHECK_INT_EQ(waitpid(child, &status, 0), child);
    CHECK_INT_EQ(status, 0);
    CHECK_UINT_EQ(atomic_load(word), TURNS);
}

static _Atomic uint32_t gate;
static _Atomic uint32_t awake;

static void *
sleeper(void *arg)
{
    /* acquire: pairs with the release of the test's store */
    while (atomic_load_explicit(&gate, memory_order_acquire) == 0)
        rdti_futex_wait(&gate, 0, UINT64_C(60000000000));
    (void)atomic_fetch_add_explicit(&awake, 1, memory_order_relaxed); /* joined before it is read */
    return arg;
}

TEST(wake_takes_counts_beyond_int)
{
    pthread_t threads[3];

    for (size_t i = 0; i < 3; i++)
        CHECK_INT_EQ(pthread_create(&threads[i], NULL, sleeper, NULL), 0);
    test_sleep_ns(UINT64_C(20000000));
    atomic_store_explicit(&gate, 1, memory_order_release);
    rdti_futex_wake(&gate, UINT32_MAX);
    for (size_t i = 0; i < 3; i++)
        CHECK_INT_EQ(pthread_join(threads[i], NULL), 0);
    CHECK_UINT_EQ(atomic_load(&awake), 3);
}

TEST_MAIN()
