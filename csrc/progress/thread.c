/* SPDX-License-Identifier: Apache-2.0
 * The progress thread: drives what nobody waits for, and leaves all to those who wait. */
#include <pthread.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "base/futex.h"
#include "progress/engine_impl.h"

/* It looks again after RDTI_PARK_LEAST_NS whether a waiter is still active; where waiters have
 * driven for long, less often: each look takes the core from one that spins. What it comes late to
 * when they leave is no more than a small share of the time that they were there. One that sleeps
 * for long wakes it when it leaves; until then looks would be all that this process does. */
#define PARK_SHARE 8
#define PARK_IDLE_NS RDTI_SLICE_NS
/* Waits no further apart are those of a thread that drives all by itself, mostly; what one starts
 * that waits less often would lie for longer. They are counted in no less than COUNT_NS. Where a
 * park was in vain, since what they waited for was always there, they do not count for a while. */
#define OFTEN_NS UINT64_C(100000)
#define COUNT_NS UINT64_C(20000)
#define IN_VAIN_NS UINT64_C(10000000)

/* Whether there were often waits before `since_ns`, and how many until then. */
struct rhythm {
    bool is_often;
    uint32_t waits;
    uint64_t since_ns;
    uint64_t in_vain_until_ns;
};

/* A thread that starts something and waits, again and again, is seldom seen to wait where it shares
 * a core with this one: what this one is woken for it no longer waits for. So each message would
 * pay for a switch of threads and a lock that both want. */
static bool
is_waited_often(const struct rdti_engine *engine, struct rhythm *rhythm)
{
    /* relaxed: a hint */
    const uint32_t waits = atomic_load_explicit(&engine->waits, memory_order_relaxed);
    const uint64_t now_ns = rdti_now_ns();
    const uint64_t passed_ns = now_ns - rhythm->since_ns;

    if (passed_ns >= COUNT_NS) { /* else there need not have been one yet */
        const uint64_t waited = waits - rhythm->waits;
        rhythm->is_often = waited * OFTEN_NS >= passed_ns;
        rhythm->waits = waits;
        rhythm->since_ns = now_ns;
    }
    return rhythm->is_often && now_ns >= rhythm->in_vain_until_ns &&
           rdti_engine_do_sockets_carry(engine);
}

/* Waiters that look at no socket: some sleep on the futex, none in epoll. */
static bool
do_all_sleep(const struct rdti_engine *engine)
{
    /* relaxed: looked at again when the park is over */
    return atomic_load_explicit(&engine->has_leader, memory_order_relaxed) == 0 &&
           atomic_load_explicit(&engine->bell->futex_sleepers, memory_order_relaxed) != 0;
}

/* There are waiters, who look at the sockets themselves. */
static bool
are_sockets_watched(const struct rdti_engine *engine)
{
    /* relaxed: as above */
    return atomic_load_explicit(&engine->active_waiters, memory_order_relaxed) != 0 &&
           !do_all_sleep(engine);
}

static bool
may_park(const struct rdti_engine *engine)
{
    return rdti_engine_needs_epoll(engine) && are_sockets_watched(engine);
}

/* This thread has nothing better to do than to wait for the lock: trying alone, it would spin on a
 * socket that stays readable. */
static void
whole_pass(struct rdti_engine *engine)
{
    rdti_engine_enter(engine);
    (void)rdti_engine_pass(engine, true);
    rdti_engine_leave(engine);
}

/* True: it was woken, while somebody waits, or does again and again, who would have seen what
 * came. */
static bool
drive_in_background(struct rdti_engine *engine, struct rhythm *rhythm)
{
    struct epoll_event event;

    /* seq_cst: raised before the last look, as the doorbell asks */
    atomic_store_explicit(&engine->bell->background, 1, memory_order_seq_cst);
    whole_pass(engine);
    const int count =
        epoll_wait(engine->epoll_fd, &event, 1,
                   rdti_engine_is_busy(engine) ? 0
                                               : rdti_engine_until_tick_ms(engine, RDTI_SLICE_NS));
    atomic_store_explicit(&engine->bell->background, 0, memory_order_seq_cst);
    /* The proxy count stands for this thread. acquire: see set_proxy() */
    rdti_engine_drain_event_fd(engine,
                               atomic_load_explicit(&engine->has_proxy, memory_order_acquire));
    whole_pass(engine);
    return count > 0 && (are_sockets_watched(engine) || is_waited_often(engine, rhythm));
}

/* parked_ns: see park(). */
static uint64_t
park_ns_after(const struct rdti_engine *engine, uint64_t parked_ns)
{
    const uint64_t share_ns = parked_ns / PARK_SHARE;

    if (do_all_sleep(engine) || share_ns <= RDTI_PARK_LEAST_NS)
        return RDTI_PARK_LEAST_NS;
    return share_ns < RDTI_PARK_MOST_NS ? share_ns : RDTI_PARK_MOST_NS;
}

void
rdti_engine_end_park(struct rdti_engine *engine, uint64_t longer_than_ns)
{
    /* seq_cst: see begin_park() and those who call this. release: who reads the new word, and
     * parks anew, is not to find its park_ns overwritten. */
    if (atomic_load_explicit(&engine->park_ns, memory_order_seq_cst) <= longer_than_ns)
        return;
    atomic_store_explicit(&engine->park_ns, 0, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&engine->park_word, 1, memory_order_release);
    rdti_futex_wake(&engine->park_word, 1);
}

/* Say for how long this thread is parked, before anybody relies on its being told. */
static uint64_t
begin_park(struct rdti_engine *engine, uint64_t parked_ns)
{
    uint64_t park_ns = park_ns_after(engine, parked_ns);

    /* seq_cst: see end_lead() and update_proxy() */
    if (atomic_load_explicit(&engine->is_idle, memory_order_seq_cst) != 0) {
        atomic_store_explicit(&engine->park_ns, (uint32_t)PARK_IDLE_NS, memory_order_seq_cst);
        if (atomic_load_explicit(&engine->is_idle, memory_order_seq_cst) != 0)
            return PARK_IDLE_NS;
    }
    atomic_store_explicit(&engine->park_ns, (uint32_t)park_ns, memory_order_seq_cst);
    return park_ns;
}

/*
 * Leaves the sockets to the waiters, unless none of them has looked at sockets nor sleeps in epoll
 * meanwhile: they may be without a core, stuck in a callback of the user's, or wait so shortly each
 * time that they never look, and heartbeats must go on. *parked_ns: for how long they have looked
 * after everything, between two waits included: who waits again and again does so for two moments
 * of three. True: others have driven meanwhile, and nothing is left to this thread.
 */
static bool
park(struct rdti_engine *engine, struct rhythm *rhythm, uint64_t *parked_ns)
{
    /* relaxed: whatever is missed is seen when the park is over */
    const uint32_t passes = atomic_load_explicit(&engine->passes, memory_order_relaxed);
    const uint32_t looks = atomic_load_explicit(&engine->socket_passes, memory_order_relaxed);
    /* acquire: see rdti_engine_end_park() */
    const uint32_t word = atomic_load_explicit(&engine->park_word, memory_order_acquire);
    uint64_t park_ns = begin_park(engine, *parked_ns);
    bool is_left = rdti_engine_is_proxy_wanted(engine);
    const bool is_trusting = is_left && is_waited_often(engine, rhythm);
    if (is_trusting) { /* that they drive: nobody ends it, as the proxy is wanted already. relaxed:
                        * update_proxy() at worst reads the longer one, and wakes us */
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
    /* The proxy is no sleeper of its own. */
    if (atomic_load_explicit(&engine->socket_passes, memory_order_relaxed) == looks &&
        atomic_load_explicit(&engine->bell->epoll_sleepers, memory_order_relaxed) <=
            atomic_load_explicit(&engine->has_proxy, memory_order_relaxed)) {
        (void)rdti_engine_try_pass(engine, true);
        *parked_ns = 0;
    } else {
        *parked_ns = is_ended ? 0 : *parked_ns + park_ns;
    }
    return is_driven && (!rdti_engine_is_proxy_wanted(engine) || is_waited_often(engine, rhythm));
}

void *
rdti_engine_progress_main(void *arg)
{
    struct rdti_engine *engine = arg;
    bool is_driven = false; /* by waiters, a moment ago */
    uint64_t parked_ns = 0;
    struct rhythm rhythm = {0};

    (void)pthread_setname_np(pthread_self(), "rdmatensor");
    /* acquire: pairs with the release in rdti_engine_stop() */
    while (atomic_load_explicit(&engine->is_stopping, memory_order_acquire) == 0) {
        /* A thread that waits, sends and waits again is between two waits for a third of the time:
         * this one would go to sleep in epoll then, and every message would pay for waking it; over
         * shared memory every one that asks for an answer. */
        if (is_driven || may_park(engine)) {
            is_driven = park(engine, &rhythm, &parked_ns);
            continue;
        }
        parked_ns = 0;
        is_driven = drive_in_background(engine, &rhythm);
    }
    return NULL;
}
