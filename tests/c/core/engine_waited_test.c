/* SPDX-License-Identifier: Apache-2.0
 * The time that threads spend waiting, as the engine counts it. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "harness.h"
#include "progress/engine.h"

#define MS UINT64_C(1000000)
#define S UINT64_C(1000000000)

static struct rdti_engine *
engine_begin(void)
{
    struct rdt_error err = {0};
    struct rdti_engine *engine;

    CHECK_OK(rdti_engine_create(1, &engine, &err), &err);
    CHECK_OK(rdti_engine_start(engine, &err), &err);
    return engine;
}

static void
engine_end(struct rdti_engine *engine)
{
    rdti_engine_stop(engine);
    rdti_engine_destroy(engine);
}

static bool
never(void *arg)
{
    (void)arg;
    return false;
}

TEST(only_waits_for_peers_are_counted)
{
    struct rdti_engine *engine = engine_begin();

    const uint64_t before_ns = rdti_now_ns();
    CHECK_STATUS(rdti_engine_wait(engine, never, NULL, before_ns + 100 * MS), RDT_ETIMEDOUT);
    CHECK_UINT_EQ(rdti_engine_waited_ns(engine), 0);
    for (uint64_t i = 1; i <= 3; i++) {
        const uint64_t begin_ns = rdti_now_ns();
        CHECK_STATUS(rdti_engine_wait_counted(engine, never, NULL, begin_ns + 100 * MS),
                     RDT_ETIMEDOUT);
        CHECK_UINT_GE(rdti_engine_waited_ns(engine), i * 50 * MS);
    }
    CHECK_UINT_LE(rdti_engine_waited_ns(engine), rdti_now_ns() - before_ns - 100 * MS);
    engine_end(engine);
}

static bool
at_once(void *arg)
{
    (void)arg;
    return true;
}

/* What is over costs nothing, not even a look at the clock. */
TEST(a_wait_for_what_is_there_is_no_wait)
{
    struct rdti_engine *engine = engine_begin();

    for (int i = 0; i < 1000; i++)
        CHECK_STATUS(rdti_engine_wait_counted(engine, at_once, NULL, UINT64_MAX), RDT_OK);
    CHECK_UINT_EQ(rdti_engine_waited_ns(engine), 0);
    engine_end(engine);
}

static rdt_status
until_told(void *arg)
{
    _Atomic bool *is_told = arg;

    return atomic_load_explicit(is_told, memory_order_seq_cst) ? RDT_OK : RDT_EAGAIN;
}

static bool
is_rung(const struct rdti_engine *engine)
{
    struct pollfd poll_fd = {.fd = rdti_engine_event_fd(engine), .events = POLLIN};

    return poll(&poll_fd, 1, 0) == 1;
}

/* Without a progress thread, which would take the ring away. */
TEST(who_attends_wakes_nobody_for_what_it_starts)
{
    struct rdt_error err = {0};
    struct rdti_engine *engine;
    _Atomic bool is_told = false;

    CHECK_OK(rdti_engine_create(1, &engine, &err), &err);
    rdti_engine_attend(engine);
    CHECK(rdti_engine_is_attended(engine));
    CHECK_OK(rdti_engine_add_task(engine, until_told, &is_told, &err), &err);
    rdti_engine_wake(engine);
    CHECK_MSG(!is_rung(engine), "rung while attended");

    rdti_engine_unattend(engine); /* the task is outstanding: from here on somebody has to come */
    CHECK(!rdti_engine_is_attended(engine));
    rdti_engine_wake(engine);
    CHECK_MSG(is_rung(engine), "nobody is woken for a task that is outstanding");

    atomic_store_explicit(&is_told, true, memory_order_seq_cst);
    rdti_engine_attend(engine); /* nested: the inner end makes no pass */
    rdti_engine_attend(engine);
    rdti_engine_unattend(engine);
    CHECK(rdti_engine_is_attended(engine));
    CHECK(rdti_engine_has_tasks(engine));
    rdti_engine_unattend(engine);
    CHECK_MSG(!rdti_engine_has_tasks(engine), "the pass that was owed was not made");
    rdti_engine_destroy(engine);
}

static void *
wait_in_vain(void *arg)
{
    CHECK_STATUS(rdti_engine_wait_counted(arg, never, NULL, rdti_deadline_after(2 * S)),
                 RDT_ETIMEDOUT);
    return NULL;
}

/* Of two threads, the time of both, and before it is over. */
TEST(waiting_is_counted_while_it_lasts)
{
    struct rdti_engine *engine = engine_begin();
    pthread_t threads[2];

    for (int i = 0; i < 2; i++)
        CHECK_INT_EQ(pthread_create(&threads[i], NULL, wait_in_vain, engine), 0);
    const uint64_t deadline_ns = rdti_deadline_after(2 * S);
    while (rdti_engine_waited_ns(engine) < 200 * MS) {
        CHECK(rdti_now_ns() < deadline_ns);
        test_sleep_ns(MS);
    }
    for (int i = 0; i < 2; i++)
        CHECK_INT_EQ(pthread_join(threads[i], NULL), 0);
    CHECK_UINT_GE(rdti_engine_waited_ns(engine), 3 * S);
    engine_end(engine);
}

TEST_MAIN()
