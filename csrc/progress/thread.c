/* SPDX-License-Identifier: Apache-2.0
 * The progress thread: drives work that no thread waits for, and leaves the rest to the waiters. */
#include <pthread.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "base/system/futex.h"
#include "progress/engine_impl.h"

/* The progress thread checks after RDTI_PARK_LEAST_NS whether a waiter is still active, and less
 * often if waiters have driven for long: each check takes the core from a spinning waiter. So after
 * the waiters leave, it is late by at most a small share of the time for which they were active. A
 * leader that sleeps in epoll wakes it when it leaves; checks until then would do nothing
 * useful. */
#define PARK_SHARE 8
#define PARK_IDLE_NS RDTI_SLICE_NS
/* Waits at most this far apart mostly come from a thread that drives everything by itself; the work
 * of a thread that waits less often would be delayed for longer. They are counted over at least
 * COUNT_NS. After a park in vain, because the waits always found their condition true already, they
 * do not count for IN_VAIN_NS. */
#define OFTEN_NS UINT64_C(100000)
#define COUNT_NS UINT64_C(20000)
#define IN_VAIN_NS UINT64_C(10000000)

/* Whether waits were frequent before `since_ns`, and their number until then. */
struct rhythm {
    bool is_often;
    uint32_t waits;
    uint64_t since_ns;
    uint64_t in_vain_until_ns;
};

/* This thread seldom sees the waits of a thread that repeatedly starts an operation and waits, if
 * the two share a core: when this one runs, that wait has ended. Each message would then pay for a
 * thread switch and for contention of the lock. */
static bool
thread_is_waited_often(const struct rdti_engine *engine, struct rhythm *rhythm)
{
    /* relaxed: a hint */
    const uint32_t waits = atomic_load_explicit(&engine->waits, memory_order_relaxed);
    const uint64_t now_ns = rdti_now_ns();
    const uint64_t passed_ns = now_ns - rhythm->since_ns;

    if (passed_ns >= COUNT_NS) { /* a shorter time may contain no wait */
        const uint64_t waited = waits - rhythm->waits;
        rhythm->is_often = waited * OFTEN_NS >= passed_ns;
        rhythm->waits = waits;
        rhythm->since_ns = now_ns;
    }
    return rhythm->is_often && now_ns >= rhythm->in_vain_until_ns &&
           rdti_engine_do_sockets_carry(engine);
}

/* No waiter polls sockets: some sleep on the futex, none in epoll. */
static bool
thread_do_all_sleep(const struct rdti_engine *engine)
{
    /* relaxed: checked again after the park */
    return atomic_load_explicit(&engine->has_leader, memory_order_relaxed) == 0 &&
           atomic_load_explicit(&engine->bell->futex_sleepers, memory_order_relaxed) != 0;
}

/* There are waiters, and they poll the sockets themselves. */
static bool
thread_are_sockets_watched(const struct rdti_engine *engine)
{
    /* relaxed: as above */
    return atomic_load_explicit(&engine->active_waiters, memory_order_relaxed) != 0 &&
           !thread_do_all_sleep(engine);
}

static bool
thread_may_park(const struct rdti_engine *engine)
{
    return rdti_engine_needs_epoll(engine) && thread_are_sockets_watched(engine);
}

/* This thread blocks for the lock: with trylock alone it would spin on a socket that stays
 * readable. */
static void
thread_whole_pass(struct rdti_engine *engine)
{
    rdti_engine_enter(engine);
    (void)rdti_engine_pass(engine, true);
    rdti_engine_leave(engine);
}

/* True: it was woken while another thread waits, or often waits, and would have handled the
 * event. */
static bool
thread_drive_in_background(struct rdti_engine *engine, struct rhythm *rhythm)
{
    struct epoll_event event;

    /* seq_cst: raised before the last check, as the doorbell requires */
    atomic_store_explicit(&engine->bell->background, 1, memory_order_seq_cst);
    thread_whole_pass(engine);
    const int count =
        epoll_wait(engine->epoll_fd, &event, 1,
                   rdti_engine_is_busy(engine) ? 0
                                               : rdti_engine_until_tick_ms(engine, RDTI_SLICE_NS));
    atomic_store_explicit(&engine->bell->background, 0, memory_order_seq_cst);
    /* The proxy count stands for this thread. acquire: see wait_set_proxy() */
    rdti_engine_drain_event_fd(engine,
                               atomic_load_explicit(&engine->has_proxy, memory_order_acquire));
    thread_whole_pass(engine);
    return count > 0 &&
           (thread_are_sockets_watched(engine) || thread_is_waited_often(engine, rhythm));
}

/* parked_ns: see thread_park(). */
static uint64_t
thread_park_ns_after(const struct rdti_engine *engine, uint64_t parked_ns)
{
    const uint64_t share_ns = parked_ns / PARK_SHARE;

    if (thread_do_all_sleep(engine) || share_ns <= RDTI_PARK_LEAST_NS)
        return RDTI_PARK_LEAST_NS;
    return share_ns < RDTI_PARK_MOST_NS ? share_ns : RDTI_PARK_MOST_NS;
}

void
rdti_engine_end_park(struct rdti_engine *engine, uint64_t longer_than_ns)
{
    /* seq_cst: see thread_begin_park() and the callers. release: a progress thread that reads the
     * new word and parks again must not have its park_ns overwritten. */
    if (atomic_load_explicit(&engine->park_ns, memory_order_seq_cst) <= longer_than_ns)
        return;
    atomic_store_explicit(&engine->park_ns, 0, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&engine->park_word, 1, memory_order_release);
    rdti_futex_wake(&engine->park_word, 1);
}

/* Publishes how long this thread parks, before it relies on another thread to end the park. */
static uint64_t
thread_begin_park(struct rdti_engine *engine, uint64_t parked_ns)
{
    uint64_t park_ns = thread_park_ns_after(engine, parked_ns);

    /* seq_cst: see wait_end_lead() and wait_update_proxy() */
    if (atomic_load_explicit(&engine->is_idle, memory_order_seq_cst) != 0) {
        atomic_store_explicit(&engine->park_ns, (uint32_t)PARK_IDLE_NS, memory_order_seq_cst);
        if (atomic_load_explicit(&engine->is_idle, memory_order_seq_cst) != 0)
            return PARK_IDLE_NS;
    }
    atomic_store_explicit(&engine->park_ns, (uint32_t)park_ns, memory_order_seq_cst);
    return park_ns;
}

/*
 * Leaves the sockets to the waiters for a while. If meanwhile none of them has polled sockets or
 * sleeps in epoll, it makes a pass: they may have no core, run a callback of the user, or wait so
 * briefly that they never poll sockets, and heartbeats must continue. *parked_ns: how long the
 * waiters have driven, including the gaps between waits (a thread that waits repeatedly waits for
 * two thirds of the time). True: other threads have driven, and no work is left to this thread.
 */
static bool
thread_park(struct rdti_engine *engine, struct rhythm *rhythm, uint64_t *parked_ns)
{
    /* relaxed: a change that is missed here is seen after the park */
    const uint32_t passes = atomic_load_explicit(&engine->passes, memory_order_relaxed);
    const uint32_t looks = atomic_load_explicit(&engine->socket_passes, memory_order_relaxed);
    /* acquire: see rdti_engine_end_park() */
    const uint32_t word = atomic_load_explicit(&engine->park_word, memory_order_acquire);
    uint64_t park_ns = thread_begin_park(engine, *parked_ns);
    bool is_left = rdti_engine_is_proxy_wanted(engine);
    const bool is_trusting = is_left && thread_is_waited_often(engine, rhythm);
    if (is_trusting) { /* relies on them to drive: no thread ends this park, as the proxy is already
                        * wanted. relaxed: wait_update_proxy() at worst reads the longer time and
                        * wakes this thread */
        park_ns = RDTI_PARK_LEAST_NS;
        atomic_store_explicit(&engine->park_ns, (uint32_t)park_ns, memory_order_relaxed);
        is_left = false;
    }
    if (!is_left)
        rdti_futex_wait(&engine->park_word, word, park_ns);
    const bool is_ended =
        atomic_exchange_explicit(&engine->park_ns, 0, memory_order_relaxed) == 0 || is_left;
    const bool is_driven = atomic_load_explicit(&engine->passes, memory_order_relaxed) != passes;
    if (is_trusting && !is_driven)
        rhythm->in_vain_until_ns = rdti_now_ns() + IN_VAIN_NS;
    /* The proxy count does not stand for a further sleeper. */
    if (atomic_load_explicit(&engine->socket_passes, memory_order_relaxed) == looks &&
        atomic_load_explicit(&engine->bell->epoll_sleepers, memory_order_relaxed) <=
            atomic_load_explicit(&engine->has_proxy, memory_order_relaxed)) {
        (void)rdti_engine_try_pass(engine, true);
        *parked_ns = 0;
    } else {
        *parked_ns = is_ended ? 0 : *parked_ns + park_ns;
    }
    return is_driven &&
           (!rdti_engine_is_proxy_wanted(engine) || thread_is_waited_often(engine, rhythm));
}

void *
rdti_engine_progress_main(void *arg)
{
    struct rdti_engine *engine = arg;
    bool is_driven = false; /* waiters drove just before */
    uint64_t parked_ns = 0;
    struct rhythm rhythm = {0};

    (void)pthread_setname_np(pthread_self(), "rdmatensor");
    /* acquire: pairs with the release in rdti_engine_stop() */
    while (atomic_load_explicit(&engine->is_stopping, memory_order_acquire) == 0) {
        /* A thread that waits, sends and waits again is between two waits for a third of the time.
         * If this thread slept in epoll then, every message would pay for waking it; over shared
         * memory every message that requests an answer. */
        if (is_driven || thread_may_park(engine)) {
            is_driven = thread_park(engine, &rhythm, &parked_ns);
            continue;
        }
        parked_ns = 0;
        is_driven = thread_drive_in_background(engine, &rhythm);
    }
    return NULL;
}
