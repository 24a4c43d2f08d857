/* SPDX-License-Identifier: Apache-2.0
 * How long waiters spin, and how often the progress thread looks after them. */
#include <errno.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "harness.h"
#include "progress/engine_impl.h"

#define MS UINT64_C(1000000)
#define S UINT64_C(1000000000)
#define MANY_RANKS 1000000 /* more than there are cores */

static bool
never(void *arg)
{
    (void)arg;
    return false;
}

static uint32_t
poll_nothing(void *state)
{
    (void)state;
    return 0;
}

static bool
has_sockets(void *state)
{
    (void)state;
    return true;
}

static bool
has_none(void *state)
{
    (void)state;
    return false;
}

static struct rdti_engine *
engine_open_with(bool (*needs_epoll)(void *state))
{
    struct rdt_error err = {0};
    struct rdti_engine *engine;

    CHECK_OK(rdti_engine_create(1, &engine, &err), &err);
    rdti_engine_enter(engine);
    CHECK_OK(rdti_engine_add_poller(engine, poll_nothing, needs_epoll, NULL, &err), &err);
    rdti_engine_leave(engine);
    return engine;
}

static struct rdti_engine *
engine_open(void)
{
    return engine_open_with(has_sockets);
}

static uint32_t
spin_after(struct rdti_engine *engine, uint64_t waited_ns)
{
    rdti_engine_learn_spin(engine, waited_ns);
    return atomic_load(&engine->spin_ns);
}

TEST(spins_longer_where_waits_end_soon_after_it_slept)
{
    struct rdti_engine *engine = engine_open();

    CHECK_UINT_EQ(atomic_load(&engine->spin_ns), RDTI_SPIN_LEAST_NS);
    CHECK_UINT_EQ(spin_after(engine, RDTI_SPIN_LEAST_NS), 2 * RDTI_SPIN_LEAST_NS);
    CHECK_UINT_EQ(spin_after(engine, RDTI_SPIN_MOST_NS / 2 - 1), RDTI_SPIN_MOST_NS - 2);
    CHECK_UINT_EQ(spin_after(engine, RDTI_SPIN_MOST_NS / 2), RDTI_SPIN_MOST_NS / 2 - 1);
    CHECK_UINT_EQ(spin_after(engine, UINT64_MAX), RDTI_SPIN_MOST_NS / 4 - 1);
    for (uint32_t i = 0; i < 16; i++) /* many that were long undo it */
        (void)spin_after(engine, UINT64_MAX);
    CHECK_UINT_EQ(atomic_load(&engine->spin_ns), RDTI_SPIN_LEAST_NS);
    CHECK_UINT_EQ(spin_after(engine, 0), RDTI_SPIN_LEAST_NS);
    rdti_engine_set_local_ranks(engine, MANY_RANKS);
    (void)spin_after(engine, RDTI_SPIN_LEAST_NS);
    CHECK_UINT_EQ(rdti_engine_spin_ns(engine), 0);
    CHECK((rdti_engine_yield_ns(engine) > 0) == (engine->usable_cpus == engine->affinity_cpus));
    engine->affinity_cpus = engine->usable_cpus + 1; /* a quota: nobody would gain by a yield */
    rdti_engine_set_local_ranks(engine, MANY_RANKS);
    CHECK_UINT_EQ(rdti_engine_yield_ns(engine), 0);
    engine->affinity_cpus = engine->usable_cpus;
    rdti_engine_set_local_ranks(engine, MANY_RANKS);
    CHECK_UINT_GE(rdti_engine_yield_ns(engine), 1);
    rdti_engine_set_local_ranks(engine, RDT_LOCAL_RANKS_SLEEP);
    CHECK_UINT_EQ(rdti_engine_yield_ns(engine), 0);
    CHECK_UINT_EQ(rdti_engine_spin_ns(engine), 0);
    rdti_engine_set_local_ranks(engine, 1);
    CHECK_UINT_EQ(rdti_engine_yield_ns(engine), 0);
    /* A wait that has slept through: its end is the deadline. */
    (void)spin_after(engine, RDTI_SPIN_LEAST_NS);
    CHECK_STATUS(rdti_engine_wait(engine, never, NULL, rdti_now_ns() + 5000000), RDT_ETIMEDOUT);
    CHECK_UINT_EQ(atomic_load(&engine->spin_ns), RDTI_SPIN_LEAST_NS);
    rdti_engine_stop(engine);
    rdti_engine_destroy(engine);
}

static bool
is_after(void *arg)
{
    return rdti_now_ns() >= *(const uint64_t *)arg;
}

TEST(spins_longer_where_spinning_was_hardly_enough)
{
    struct rdti_engine *engine = engine_open();
    uint32_t grown_ns = 0;

    /* Again where another process had the core meanwhile. */
    for (uint32_t i = 0; i < 100 && grown_ns <= RDTI_SPIN_MOST_NS / 4; i++) {
        atomic_store(&engine->spin_ns, RDTI_SPIN_MOST_NS / 4);
        uint64_t end_ns = rdti_now_ns() + RDTI_SPIN_MOST_NS / 5;
        CHECK_STATUS(rdti_engine_wait(engine, is_after, &end_ns, UINT64_MAX), RDT_OK);
        grown_ns = atomic_load(&engine->spin_ns);
    }
    CHECK_UINT_GE(grown_ns, RDTI_SPIN_MOST_NS / 4 + 1);
    CHECK_UINT_LE(grown_ns, RDTI_SPIN_MOST_NS);
    rdti_engine_stop(engine);
    rdti_engine_destroy(engine);
}

/* A condition that never holds, and how often it was looked at before the waiter slept. */
struct sleeper {
    const struct rdti_engine *engine;
    uint64_t begin_ns;
    uint64_t awake_ns; /* 0: it has not slept yet */
    uint32_t looks;
    uint32_t looks_awake;
};

static bool
watch_sleep(void *arg)
{
    struct sleeper *sleeper = arg;
    const struct rdti_doorbell *bell = sleeper->engine->bell;

    sleeper->looks++;
    if (sleeper->awake_ns == 0 &&
        (atomic_load(&bell->epoll_sleepers) > 0 || atomic_load(&bell->futex_sleepers) > 0)) {
        sleeper->awake_ns = rdti_now_ns() - sleeper->begin_ns;
        sleeper->looks_awake = sleeper->looks;
    }
    return false;
}

/* The progress thread is not there: nobody wakes. */
static struct sleeper
watch_a_wait(struct rdti_engine *engine, uint32_t ranks, uint64_t for_ns)
{
    struct sleeper sleeper = {.engine = engine, .begin_ns = rdti_now_ns()};

    rdti_engine_set_local_ranks(engine, ranks);
    atomic_store(&engine->was_in_vain, 0); /* it is no slice of the one before */
    CHECK_STATUS(rdti_engine_wait(engine, watch_sleep, &sleeper, sleeper.begin_ns + for_ns),
                 RDT_ETIMEDOUT);
    CHECK_UINT_GE(sleeper.awake_ns, 1);
    return sleeper;
}

TEST(a_waiter_without_a_core_offers_it_before_it_sleeps)
{
    enum { FEW = 24, SLICES = 3 };
    struct rdti_engine *engine = engine_open();

    engine->affinity_cpus = engine->usable_cpus;
    rdti_engine_set_local_ranks(engine, MANY_RANKS);
    const uint64_t yield_ns = rdti_engine_yield_ns(engine);
    CHECK_UINT_GE(yield_ns, 1);
    struct sleeper sleeper = watch_a_wait(engine, MANY_RANKS, SLICES * 100 * MS);
    /* Less than all of it where another process took the core and kept it. */
    CHECK_UINT_GE(sleeper.awake_ns,
                  rdti_crowd_is_known(&engine->crowd) ? RDTI_CROWD_LOST_NS : yield_ns);
    /* Not again after a slice in which nobody came: it costs next to nothing from then on. */
    CHECK_UINT_LE(sleeper.looks - sleeper.looks_awake, (SLICES + 1) * FEW);
    sleeper = watch_a_wait(engine, RDT_LOCAL_RANKS_SLEEP, 10 * MS);
    CHECK_UINT_LE(sleeper.looks_awake, FEW);
    engine->affinity_cpus = engine->usable_cpus + 1; /* a quota */
    sleeper = watch_a_wait(engine, MANY_RANKS, 10 * MS);
    CHECK_UINT_LE(sleeper.looks_awake, FEW);
    rdti_engine_stop(engine);
    rdti_engine_destroy(engine);
}

struct watcher {
    const struct rdti_engine *engine;
    uint32_t longest_ns; /* that the progress thread was parked for */
};

static bool
watch_parks(void *arg)
{
    struct watcher *watcher = arg;
    const uint32_t park_ns = atomic_load(&watcher->engine->park_ns);

    if (park_ns > watcher->longest_ns)
        watcher->longest_ns = park_ns;
    return watcher->longest_ns > 4 * MS;
}

/* Each look at a waiter that spins takes a core from it. */
TEST(the_progress_thread_looks_seldom_at_waiters_that_stay)
{
    struct rdti_engine *engine = engine_open();
    struct watcher watcher = {.engine = engine};
    struct rdt_error err = {0};

    CHECK_OK(rdti_engine_start(engine, &err), &err);
    const uint64_t begin_ns = rdti_now_ns();
    const uint64_t until_ns = begin_ns + (uint64_t)(5.0 * (double)S * test_timeout_scale());
    CHECK_STATUS(rdti_engine_wait(engine, watch_parks, &watcher, until_ns), RDT_OK);
    CHECK_UINT_GE(rdti_now_ns() - begin_ns, 32 * MS); /* an eighth of what was waited */
    /* Nobody waits and something is outstanding: it does not sleep on for long. */
    rdti_engine_async_add(engine, 1);
    CHECK_EVENTUALLY(atomic_load(&engine->bell->background) != 0, 5);
    rdti_engine_async_add(engine, -1);
    rdti_engine_stop(engine);
    rdti_engine_destroy(engine);
}

static bool
has_left_alone(void *arg)
{
    const struct rdti_engine *engine = arg;

    return atomic_load(&engine->park_ns) > RDTI_PARK_MOST_NS;
}

/* A rank that waits for a slow one for minutes is no load. */
TEST(the_progress_thread_leaves_a_waiter_alone_that_sleeps_for_long)
{
    struct rdti_engine *engine = engine_open();
    struct rdt_error err = {0};

    CHECK_OK(rdti_engine_start(engine, &err), &err);
    const uint64_t until_ns = rdti_now_ns() + (uint64_t)(5.0 * (double)S * test_timeout_scale());
    CHECK_STATUS(rdti_engine_wait(engine, has_left_alone, engine, until_ns), RDT_OK);
    /* Nobody looks at the sockets from now on. */
    CHECK_EVENTUALLY(atomic_load(&engine->park_ns) <= RDTI_PARK_MOST_NS, 5);
    CHECK_EVENTUALLY(atomic_load(&engine->bell->background) != 0, 5);
    rdti_engine_stop(engine);
    rdti_engine_destroy(engine);
}

struct stuck {
    struct rdti_engine *engine;
    uint32_t looks;
};

/* Once it has been left alone it runs a callback of the user's, so to say, that takes its time. */
static bool
get_stuck(void *arg)
{
    const struct stuck *stuck = arg;
    const struct rdti_engine *engine = stuck->engine;

    if (!has_left_alone(stuck->engine))
        return false;
    const uint32_t before = atomic_load(&engine->socket_passes);
    CHECK_EVENTUALLY(atomic_load(&engine->socket_passes) - before >= stuck->looks, 2);
    return true;
}

TEST(the_progress_thread_goes_on_where_one_left_alone_is_stuck)
{
    struct rdti_engine *engine = engine_open();
    struct stuck stuck = {.engine = engine, .looks = 100};
    struct rdt_error err = {0};

    CHECK_OK(rdti_engine_start(engine, &err), &err);
    const uint64_t until_ns = rdti_now_ns() + (uint64_t)(5.0 * (double)S * test_timeout_scale());
    CHECK_STATUS(rdti_engine_wait(engine, get_stuck, &stuck, until_ns), RDT_OK);
    rdti_engine_stop(engine);
    rdti_engine_destroy(engine);
}

static uint32_t
looks_within(struct rdti_engine *engine, uint64_t for_ns)
{
    struct sleeper sleeper = {.engine = engine, .begin_ns = rdti_now_ns()};

    CHECK_STATUS(rdti_engine_wait(engine, watch_sleep, &sleeper, sleeper.begin_ns + for_ns),
                 RDT_ETIMEDOUT);
    return sleeper.looks;
}

TEST(a_waiter_that_nobody_came_to_spins_no_more)
{
    struct rdti_engine *engine = engine_open();

    rdti_engine_set_local_ranks(engine, 1);
    atomic_store(&engine->spin_ns, 100 * MS);
    const struct sleeper sleeper = watch_a_wait(engine, 1, 450 * MS);
    CHECK_UINT_LE(sleeper.looks - sleeper.looks_awake, sleeper.looks_awake / 4);
    atomic_store(&engine->spin_ns, 100 * MS);
    CHECK_UINT_LE(looks_within(engine, 50 * MS), sleeper.looks_awake / 4); /* the next slice */
    CHECK_UINT_EQ(atomic_load(&engine->was_in_vain), 1);
    /* A poll tells nothing of who comes. */
    atomic_store(&engine->was_in_vain, 0);
    CHECK_STATUS(rdti_engine_wait(engine, never, NULL, rdti_now_ns()), RDT_ETIMEDOUT);
    CHECK_UINT_EQ(atomic_load(&engine->was_in_vain), 0);
    /* Nor does a wait that was answered. */
    atomic_store(&engine->was_in_vain, 1);
    uint64_t end_ns = rdti_now_ns() + MS;
    CHECK_STATUS(rdti_engine_wait(engine, is_after, &end_ns, UINT64_MAX), RDT_OK);
    CHECK_UINT_EQ(atomic_load(&engine->was_in_vain), 0);
    rdti_engine_stop(engine);
    rdti_engine_destroy(engine);
}

/* As many passes as are due before the next look, and that. */
static uint32_t
passes_to_next_look(struct rdti_engine *engine)
{
    rdti_engine_enter(engine);
    while ((int32_t)(atomic_load(&engine->passes) - atomic_load(&engine->look_at)) < 0)
        (void)rdti_engine_pass(engine, false);
    (void)rdti_engine_pass(engine, true);
    const uint32_t passes = atomic_load(&engine->look_at) - atomic_load(&engine->passes);
    rdti_engine_leave(engine);
    return passes;
}

/* A look is a system call: where no transport has its payload in sockets it comes later where looks
 * have come soon after each other, and early again where they have not. */
TEST(looks_at_sockets_without_payload_come_by_the_clock)
{
    struct rdti_engine *engine = engine_open_with(has_none);
    uint32_t passes = 0;

    CHECK_UINT_EQ(passes_to_next_look(engine), 256);
    rdti_engine_enter(engine);
    for (uint32_t i = 0; i < 8; i++)
        (void)rdti_engine_pass(engine, true); /* what is forced tells nothing of passes */
    CHECK_UINT_EQ(atomic_load(&engine->look_at) - atomic_load(&engine->passes), 256);
    rdti_engine_leave(engine);
    /* Again where another process had the core meanwhile, or passes are slow. */
    for (uint32_t i = 0; i < 1000 && passes < 512; i++) {
        passes = passes_to_next_look(engine);
        CHECK(passes == 256 || passes == 512);
    }
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
    CHECK_UINT_EQ(passes, 512);
#endif
    test_sleep_ns(2 * MS);
    CHECK(rdti_engine_is_look_late(engine, rdti_now_ns()));
    CHECK_UINT_EQ(passes_to_next_look(engine), 256);
    CHECK(!rdti_engine_is_look_late(engine, atomic_load(&engine->looked_ns)));
    rdti_engine_stop(engine);
    rdti_engine_destroy(engine);
}

static bool
is_slow(void *arg)
{
    uint32_t *left = arg;

    test_sleep_ns(MS / 4);
    return --*left == 0;
}

/* Passes that copy are long, however short those before them were. */
TEST(a_look_comes_soon_where_passes_have_become_long)
{
    struct rdti_engine *engine = engine_open_with(has_none);
    uint32_t left = 200;

    atomic_store(&engine->look_at, UINT32_C(1) << 20);
    atomic_store(&engine->spin_ns, UINT32_C(1000000000));
    const uint32_t looks = atomic_load(&engine->socket_passes);
    CHECK_STATUS(rdti_engine_wait(engine, is_slow, &left, UINT64_MAX), RDT_OK);
    CHECK_UINT_GE(atomic_load(&engine->socket_passes), looks + 5);
    rdti_engine_stop(engine);
    rdti_engine_destroy(engine);
}

/* Who polls in a loop pays for no system call each time, and misses nothing for long. */
TEST(polls_look_at_sockets_as_often_as_waiters)
{
    struct rdti_engine *engine = engine_open_with(has_none);

    rdti_engine_enter(engine);
    (void)rdti_engine_pass(engine, true);
    rdti_engine_leave(engine);
    const uint32_t passes = atomic_load(&engine->passes);
    uint32_t looks = atomic_load(&engine->socket_passes);
    const uint64_t begin_ns = rdti_now_ns();
    for (uint32_t i = 0; i < 1000; i++)
        rdti_engine_poll(engine);
    const uint64_t ms = (rdti_now_ns() - begin_ns) / MS;
    CHECK_UINT_EQ(atomic_load(&engine->passes) - passes, 1000);
    CHECK_UINT_GE(atomic_load(&engine->socket_passes) - looks, 1);
    CHECK_UINT_LE(atomic_load(&engine->socket_passes) - looks, 1000 / 256 + ms + 1);
    looks = atomic_load(&engine->socket_passes);
    for (uint32_t i = 1; i <= 3; i++) { /* one that comes seldom looks each time */
        test_sleep_ns(2 * MS);
        rdti_engine_poll(engine);
        CHECK_UINT_EQ(atomic_load(&engine->socket_passes) - looks, i);
    }
    rdti_engine_stop(engine);
    rdti_engine_destroy(engine);
    engine = engine_open(); /* where sockets carry messages each does */
    looks = atomic_load(&engine->socket_passes);
    for (uint32_t i = 1; i <= 10; i++) {
        rdti_engine_poll(engine);
        CHECK_UINT_EQ(atomic_load(&engine->socket_passes) - looks, i);
    }
    rdti_engine_stop(engine);
    rdti_engine_destroy(engine);
}

struct inbox {
    int fd;
    _Atomic uint32_t looks;
};

static void
take_from(void *arg, uint32_t epoll_events)
{
    struct inbox *inbox = arg;
    uint64_t count;

    (void)epoll_events;
    CHECK(read(inbox->fd, &count, sizeof(count)) == (ssize_t)sizeof(count) || errno == EAGAIN);
    atomic_fetch_add(&inbox->looks, 1);
}

/* Something comes for 50 ms, and somebody waits again and again; returns how often in each the
 * progress thread takes it. */
static uint32_t
looks_per_ms(struct rdti_engine *engine, struct inbox *inbox)
{
    const uint64_t begin_ns = rdti_now_ns();
    const uint32_t before = atomic_load(&inbox->looks);
    const uint64_t one = 1;

    while (rdti_now_ns() - begin_ns < 50 * MS) {
        CHECK(write(inbox->fd, &one, sizeof(one)) == (ssize_t)sizeof(one));
        rdti_engine_note_wait(engine);
        rdti_engine_enter(engine);
        (void)rdti_engine_pass(engine, false);
        rdti_engine_leave(engine);
    }
    return (atomic_load(&inbox->looks) - before) / (uint32_t)((rdti_now_ns() - begin_ns) / MS);
}

/* It has started something, so that nobody seems to look at the sockets between two waits. */
TEST(the_progress_thread_leaves_sockets_to_who_waits_again_and_again)
{
    struct rdti_engine *engine = engine_open();
    struct inbox inbox = {.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    const uint64_t one = 1;
    struct rdt_error err = {0};
    struct rdti_watch *watch;

    CHECK(inbox.fd >= 0);
    rdti_engine_enter(engine);
    CHECK_OK(rdti_engine_watch(engine, inbox.fd, EPOLLIN, take_from, &inbox, &watch, &err), &err);
    rdti_engine_leave(engine);
    CHECK_OK(rdti_engine_start(engine, &err), &err);
    rdti_engine_async_add(engine, 1);
    /* Each park is a millisecond at least. One without a pass, where others had this core, is
     * followed by none for a while. */
    uint32_t often = 11;
    for (int i = 0; i < 20 && often > 10; i++)
        often = looks_per_ms(engine, &inbox);
    CHECK_UINT_LE(often, 10);
    /* Nobody waits: what comes is taken. */
    for (int i = 0; i < 10; i++) {
        const uint32_t looks = atomic_load(&inbox.looks);
        CHECK(write(inbox.fd, &one, sizeof(one)) == (ssize_t)sizeof(one));
        CHECK_EVENTUALLY(atomic_load(&inbox.looks) > looks, 5);
    }
    /* Waits for what is always there, and nobody drives: it sees that, and does. */
    const uint64_t begin_ns = rdti_now_ns();
    uint32_t before = atomic_load(&inbox.looks);
    while (atomic_load(&inbox.looks) - before < 1000 && rdti_now_ns() - begin_ns < 10 * S) {
        rdti_engine_note_wait(engine);
        CHECK(write(inbox.fd, &one, sizeof(one)) == (ssize_t)sizeof(one));
        (void)sched_yield();
    }
    CHECK_UINT_GE(atomic_load(&inbox.looks) - before, 1000);
    rdti_engine_async_add(engine, -1);
    rdti_engine_enter(engine);
    rdti_engine_unwatch(engine, watch);
    rdti_engine_leave(engine);
    rdti_engine_stop(engine);
    rdti_engine_destroy(engine);
    CHECK(close(inbox.fd) == 0);
}

struct urger {
    struct rdti_engine *engine;
    uint32_t looks;
    uint32_t wakes;
};

/* At the second look somebody waits: what a peer does that asks for an answer. */
static bool
urge_once(void *arg)
{
    struct urger *urger = arg;
    struct rdti_engine *engine = urger->engine;
    const uint64_t until_ns = rdti_now_ns() + (uint64_t)(5.0 * (double)S * test_timeout_scale());

    if (urger->looks++ == 0)
        return false;
    const uint32_t passes = atomic_load(&engine->socket_passes);
    if (rdti_doorbell_ring(engine->bell, engine->event_fd, true) == 0)
        return true;
    urger->wakes++;
    while (atomic_load(&engine->socket_passes) == passes && rdti_now_ns() < until_ns)
        (void)sched_yield();
    CHECK(atomic_load(&engine->socket_passes) != passes);
    return true;
}

/* Over shared memory too: else each message that asks for an answer pays for waking it. */
TEST(the_progress_thread_is_not_woken_for_what_waiters_see)
{
    struct rdti_engine *engine = engine_open_with(has_none);
    struct urger urger = {.engine = engine};
    struct rdt_error err = {0};
    uint32_t waits = 0;

    CHECK_OK(rdti_engine_start(engine, &err), &err);
    CHECK_EVENTUALLY(atomic_load(&engine->bell->background) != 0, 5);
    const uint64_t begin_ns = rdti_now_ns();
    while (rdti_now_ns() - begin_ns < 200 * MS || waits < 1000) {
        urger.looks = 0;
        CHECK_STATUS(rdti_engine_wait(engine, urge_once, &urger, UINT64_MAX), RDT_OK);
        waits++;
    }
    /* It was parked for a millisecond at least after each, and is rung for twice where the pass was
     * its last before it slept. */
    CHECK_UINT_GE(urger.wakes, 1);
    CHECK_UINT_LE(urger.wakes, 2 * ((rdti_now_ns() - begin_ns) / MS + 2));
    /* Nobody waits: it listens again. */
    CHECK_EVENTUALLY(atomic_load(&engine->bell->background) != 0, 5);
    rdti_engine_stop(engine);
    rdti_engine_destroy(engine);
}

TEST_MAIN()
