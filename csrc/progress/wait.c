/* SPDX-License-Identifier: Apache-2.0
 * Driving and sleeping: waiters, and the sleeper count that stands for the progress thread.
 *
 * A thread that is about to sleep raises its count in the doorbell and then needs one whole pass: a
 * publication before the raise woke no thread. If another thread holds the lock, that thread's pass
 * may have begun before the raise, so it is asked for another one (rdti_engine_pass_or_ask()) and
 * rings when it leaves.
 */
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/system/cpu.h"
#include "base/system/futex.h"
#include "progress/engine_impl.h"

/* A wait makes this many passes before it first reads the clock. */
#define BRIEF_PASSES 16

/* ---- Passes ------------------------------------------------------------------------------ */

bool
rdti_engine_progress(struct rdti_engine *engine)
{
    if (rdti_engine_is_driver(engine) || !rdti_engine_try_enter(engine))
        return false;
    (void)rdti_engine_pass(engine, true);
    rdti_engine_leave(engine);
    return true;
}

bool
rdti_engine_try_pass(struct rdti_engine *engine, bool with_sockets)
{
    if (!rdti_engine_try_enter(engine))
        return false;
    (void)rdti_engine_pass(engine, with_sockets);
    rdti_engine_leave(engine);
    return true;
}

void
rdti_engine_pass_or_ask(struct rdti_engine *engine, bool with_sockets)
{
    if (!rdti_engine_is_driver(engine)) {
        if (rdti_engine_try_pass(engine, with_sockets))
            return;
        /* acq_rel: pairs with the exchange in rdti_engine_leave(). Either that comes later, sees
         * the request and rings, or it came before, and then the lock was released before this
         * thread tries it. */
        (void)atomic_exchange_explicit(&engine->is_pass_wanted, 1, memory_order_acq_rel);
        if (!rdti_engine_try_enter(engine))
            return;
        /* relaxed: under the lock; the pass that begins now serves every request */
        atomic_store_explicit(&engine->is_pass_wanted, 0, memory_order_relaxed);
        (void)rdti_engine_pass(engine, with_sockets);
        rdti_engine_leave(engine);
        return;
    }
    atomic_store_explicit(&engine->is_pass_wanted, 1,
                          memory_order_relaxed); /* for this thread's leave() */
}

/* ---- The proxy --------------------------------------------------------------------------- */

/* Raise or lower the sleeper count that stands for the progress thread. True: this call raised
 * it. */
static bool
wait_set_proxy(struct rdti_engine *engine, bool wanted)
{
    /* seq_cst: the two counters move together with the flag; peers pair with
     * bell->epoll_sleepers. */
    const uint32_t had = atomic_exchange_explicit(&engine->has_proxy, wanted, memory_order_seq_cst);

    if (wanted && had == 0)
        (void)atomic_fetch_add_explicit(&engine->bell->epoll_sleepers, 1, memory_order_seq_cst);
    else if (!wanted && had != 0)
        (void)atomic_fetch_sub_explicit(&engine->bell->epoll_sleepers, 1, memory_order_seq_cst);
    return wanted && had == 0;
}

bool
rdti_engine_needs_epoll(const struct rdti_engine *engine)
{
    for (uint32_t i = 0; i < engine->poller_count; i++)
        if (engine->pollers[i].needs_epoll(engine->pollers[i].state))
            return true;
    return false;
}

bool
rdti_engine_is_proxy_wanted(const struct rdti_engine *engine)
{
    /* seq_cst: a thread that changes one of the two calls wait_update_proxy() afterwards. */
    return atomic_load_explicit(&engine->async_count, memory_order_seq_cst) > 0 &&
           atomic_load_explicit(&engine->active_waiters, memory_order_seq_cst) == 0;
}

/* Two threads may be here at once: each checks again after its store, so that the last store is
 * correct. */
static void
wait_update_proxy(struct rdti_engine *engine)
{
    bool is_raised = false;
    bool wanted;

    do {
        wanted = rdti_engine_is_proxy_wanted(engine);
        is_raised = wait_set_proxy(engine, wanted) || is_raised;
    } while (wanted != rdti_engine_is_proxy_wanted(engine));
    if (!wanted || !is_raised)
        return;
    /* seq_cst: either this sees the park, or thread_park() sees that the proxy is wanted. The
     * shortest park ends by itself. If all events arrive through memory, even that one is ended. */
    rdti_engine_end_park(engine, rdti_engine_needs_epoll(engine) ? RDTI_PARK_LEAST_NS : 0);
    rdti_engine_pass_or_ask(engine, false);
}

void
rdti_engine_async_add(struct rdti_engine *engine, int32_t delta)
{
    (void)atomic_fetch_add_explicit(&engine->async_count, delta, memory_order_seq_cst);
    wait_update_proxy(engine);
}

void
rdti_engine_attend(struct rdti_engine *engine)
{
    /* seq_cst: see rdti_engine_is_proxy_wanted(). The proxy matters only while something is
     * outstanding: otherwise this costs one load. */
    (void)atomic_fetch_add_explicit(&engine->active_waiters, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&engine->has_proxy, memory_order_seq_cst) != 0)
        wait_update_proxy(engine);
}

void
rdti_engine_unattend(struct rdti_engine *engine)
{
    if (atomic_fetch_sub_explicit(&engine->active_waiters, 1, memory_order_seq_cst) == 1 &&
        atomic_load_explicit(&engine->async_count, memory_order_seq_cst) > 0)
        wait_update_proxy(engine);
}

bool
rdti_engine_is_attended(const struct rdti_engine *engine)
{
    /* seq_cst: as in rdti_engine_is_proxy_wanted() */
    return atomic_load_explicit(&engine->active_waiters, memory_order_seq_cst) > 0;
}

/* ---- Waiting ----------------------------------------------------------------------------- */

/* The condition of a wait. `takes`: done() is also called with the lock. */
struct wait_wish {
    rdti_done_fn done;
    void *arg;
    bool takes;
};

bool
rdti_engine_is_busy(const struct rdti_engine *engine)
{
    /* relaxed: a thread that leaves a task that can continue pokes the progress thread */
    return atomic_load_explicit(&engine->is_busy, memory_order_relaxed) != 0;
}

void
rdti_engine_drain_event_fd(struct rdti_engine *engine, uint32_t own)
{
    uint64_t count;

    /* seq_cst: as the raise */
    if (atomic_load_explicit(&engine->bell->epoll_sleepers, memory_order_seq_cst) > own ||
        read(engine->event_fd, &count, sizeof(count)) < 0) /* EAGAIN: another thread drained it */
        return;
    /* The event just read may have been meant for a thread that raised its count after the first
     * check. */
    if (atomic_load_explicit(&engine->bell->epoll_sleepers, memory_order_seq_cst) > own)
        rdti_engine_poke(engine);
}

int
rdti_engine_until_tick_ms(const struct rdti_engine *engine, uint64_t at_most_ns)
{
    const uint64_t left_ns = rdti_remaining_ns(rdti_engine_next_tick_ns(engine));

    return (int)(((left_ns < at_most_ns ? left_ns : at_most_ns) + 999999) / 1000000);
}

/* True: an event ended the sleep, or, as in wait_sleep_on_futex(), no sleep was needed. */
static bool
wait_sleep_in_epoll(struct rdti_engine *engine, const struct wait_wish *wish, uint64_t sleep_ns)
{
    struct epoll_event event;
    int count = 1;

    (void)atomic_fetch_add_explicit(&engine->bell->epoll_sleepers, 1, memory_order_seq_cst);
    rdti_engine_pass_or_ask(engine, true);
    if (!wish->done(wish->arg) && !rdti_engine_is_busy(engine)) {
        const int sleep_ms = rdti_engine_until_tick_ms(engine, sleep_ns);
        atomic_store_explicit(&engine->is_idle, 1, memory_order_relaxed); /* a hint */
        count = epoll_wait(engine->epoll_fd, &event, 1, sleep_ms);
        /* seq_cst: see wait_end_lead(). Before code that may take long: a callback of the user. */
        atomic_store_explicit(&engine->is_idle, 0, memory_order_seq_cst);
    }
    (void)atomic_fetch_sub_explicit(&engine->bell->epoll_sleepers, 1, memory_order_seq_cst);
    rdti_engine_drain_event_fd(engine, 0);
    (void)rdti_engine_try_pass(engine, true); /* it was probably a socket that ended the sleep */
    return count > 0;
}

/* True: a thread rang. */
static bool
wait_sleep_on_futex(struct rdti_engine *engine, rdti_done_fn done, void *arg, uint64_t sleep_ns,
                    bool with_sockets)
{
    const uint32_t sequence = rdti_doorbell_begin_sleep(engine->bell);
    bool is_rung = true;

    rdti_engine_pass_or_ask(engine, with_sockets);
    if (!done(arg) && !rdti_engine_is_busy(engine)) {
        rdti_doorbell_sleep(engine->bell, sequence, sleep_ns);
        /* relaxed: how the sleep ended is a hint */
        is_rung = atomic_load_explicit(&engine->bell->sequence, memory_order_relaxed) != sequence;
    }
    rdti_doorbell_end_sleep(engine->bell);
    return is_rung;
}

/*
 * One waiter, the leader, sleeps in epoll, all others on the futex. If several slept in epoll, the
 * event descriptor would have to stay readable until the last of them is awake, and those already
 * awake would find it readable again and never sleep. True: an event ended the sleep; false: the
 * time passed.
 */
static bool
wait_sleep_once(struct rdti_engine *engine, const struct wait_wish *wish, uint64_t sleep_ns,
                bool *is_leader)
{
    const bool with_sockets = rdti_engine_needs_epoll(engine);
    uint32_t none = 0;

    /* acq_rel: after the old leader's wait_end_lead() */
    if (with_sockets && !*is_leader)
        *is_leader =
            atomic_compare_exchange_strong_explicit(&engine->has_leader, &none, 1,
                                                    memory_order_acq_rel, memory_order_relaxed);
    if (!with_sockets || !*is_leader)
        return wait_sleep_on_futex(engine, wish->done, wish->arg, sleep_ns, with_sockets);
    return wait_sleep_in_epoll(engine, wish, sleep_ns);
}

/* A leader whose wait has ended leaves the sockets to one of the sleeping waiters. */
static void
wait_end_lead(struct rdti_engine *engine)
{
    /* release: pairs with the claim. The progress thread serves a follower that raises its count
     * between the two, because it does not park then: see thread_may_park() */
    atomic_store_explicit(&engine->has_leader, 0, memory_order_release);
    /* Either this sees the long park, or thread_begin_park() sees that the leader no longer sleeps:
     * is_idle was lowered before. A leader that is preempted here is missed until that park
     * ends. */
    rdti_engine_end_park(engine, RDTI_PARK_MOST_NS);
    if (atomic_load_explicit(&engine->bell->futex_sleepers, memory_order_seq_cst) > 0)
        (void)rdti_doorbell_ring(engine->bell, engine->event_fd, false);
}

/* [driver] */
static bool
wait_is_look_due(const struct rdti_engine *engine)
{
    const uint32_t passes = atomic_load_explicit(&engine->passes, memory_order_relaxed);

    return (int32_t)(passes - atomic_load_explicit(&engine->look_at, memory_order_relaxed)) >= 0;
}

/* A pass, or a check of the condition while another thread drives; true: done. */
static bool
wait_pass_for(struct rdti_engine *engine, const struct wait_wish *wish, bool with_sockets)
{
    bool is_done = false;

    if (!rdti_engine_try_enter(engine)) {
        rdti_cpu_relax();
        return wish->done(wish->arg);
    }
    (void)rdti_engine_pass(engine, with_sockets || wait_is_look_due(engine));
    if (wish->takes)
        is_done = wish->done(wish->arg);
    rdti_engine_leave(engine);
    return is_done || (!wish->takes && wish->done(wish->arg));
}

/* After a sleep without any event, a waiter spins for at most the minimum time, which costs
 * little. */
static uint64_t
wait_spin_for_ns(struct rdti_engine *engine, bool is_expected)
{
    const uint64_t learnt_ns = rdti_engine_spin_ns(engine);

    return is_expected || learnt_ns < RDTI_SPIN_LEAST_NS ? learnt_ns : RDTI_SPIN_LEAST_NS;
}

/* From *now_ns on, which is updated when the clock is read. True: done. */
static bool
wait_look_until(struct rdti_engine *engine, const struct wait_wish *wish, uint64_t until_ns,
                uint64_t *now_ns)
{
    bool is_late = false;

    for (uint32_t i = 1;; i++) {
        if (wait_pass_for(engine, wish, is_late))
            return true;
        is_late = false;
        if (i % 16 != 0)
            continue;
        *now_ns = rdti_now_ns();
        if (*now_ns >= until_ns)
            return false;
        is_late = rdti_engine_is_look_late(engine, *now_ns);
    }
}

/* The same for longer; the time for which others had the core limits the next spin. */
static bool
wait_look_on_until(struct rdti_engine *engine, const struct wait_wish *wish, uint64_t until_ns,
                   uint64_t *now_ns)
{
    const uint64_t begin_ns = *now_ns;
    const uint64_t had_ns = rdti_thread_cpu_ns();
    const bool is_done = wait_look_until(engine, wish, until_ns, now_ns);
    const uint64_t end_ns = rdti_now_ns();

    (void)rdti_crowd_judge(&engine->crowd, end_ns - begin_ns, rdti_thread_cpu_ns() - had_ns,
                           end_ns);
    return is_done;
}

/* Yields the core to the peers before each poll. A peer that sees this process awake need not wake
 * it, and other processes may fill a socket meanwhile. */
static bool
wait_yield_until(struct rdti_engine *engine, const struct wait_wish *wish, uint64_t until_ns,
                 uint64_t *now_ns)
{
    const bool with_sockets = rdti_engine_needs_epoll(engine);

    do
        if (wait_pass_for(engine, wish, with_sockets || rdti_engine_is_look_late(engine, *now_ns)))
            return true;
    while (rdti_engine_offer_core(engine, now_ns) && *now_ns < until_ns);
    return wait_pass_for(engine, wish, with_sockets);
}

static uint64_t
wait_earlier(uint64_t a_ns, uint64_t b_ns)
{
    return a_ns < b_ns ? a_ns : b_ns;
}

/* If there are too few cores to spin, yields this one. If that helps no process, or no event is
 * expected, polls a few times. */
static bool
wait_spin(struct rdti_engine *engine, const struct wait_wish *wish, bool is_expected,
          uint64_t deadline_ns, uint64_t *now_ns)
{
    const uint64_t spin_ns = wait_spin_for_ns(engine, is_expected);
    const uint64_t yield_ns = spin_ns == 0 && is_expected ? rdti_engine_yield_ns(engine) : 0;
    const uint64_t begin_ns = *now_ns;

    if (yield_ns > 0)
        return wait_yield_until(engine, wish, wait_earlier(begin_ns + yield_ns, deadline_ns),
                                now_ns);
    if (wait_look_until(engine, wish,
                        wait_earlier(begin_ns + wait_earlier(spin_ns, RDTI_SPIN_LEAST_NS),
                                     deadline_ns),
                        now_ns))
        return true;
    return spin_ns > RDTI_SPIN_LEAST_NS && *now_ns < deadline_ns &&
           wait_look_on_until(engine, wish, wait_earlier(begin_ns + spin_ns, deadline_ns), now_ns);
}

void
rdti_engine_poll(struct rdti_engine *engine)
{
    if (rdti_engine_is_driver(engine) || !rdti_engine_try_enter(engine))
        return;
    const bool with_sockets = rdti_engine_do_sockets_carry(engine) || wait_is_look_due(engine) ||
                              rdti_engine_is_look_late(engine, rdti_now_ns());
    (void)rdti_engine_pass(engine, with_sockets);
    rdti_engine_leave(engine);
}

/* A pass left a task that wants the next pass at once, and this thread stops driving. relaxed: the
 * pass was this thread's own, or that of a driver that also calls this. */
static void
wait_leave_rest(struct rdti_engine *engine)
{
    if (atomic_load_explicit(&engine->goes_on, memory_order_relaxed) != 0)
        rdti_engine_poke(engine);
}

void
rdti_engine_note_wait(struct rdti_engine *engine)
{
    /* relaxed, and not one atomic step: of two concurrent counts one may be lost */
    const uint32_t waits = atomic_load_explicit(&engine->waits, memory_order_relaxed);

    atomic_store_explicit(&engine->waits, waits + 1, memory_order_relaxed);
}

/* Does not count as a waiter (rdti_engine_attend()), because it ends before that would matter. If
 * the proxy is raised or sockets carry messages, it matters at once, as each arrival wakes the
 * progress thread: then it makes no passes. */
bool
rdti_engine_is_soon(struct rdti_engine *engine, rdti_done_fn done, void *arg, bool takes)
{
    const struct wait_wish wish = {done, arg, takes};
    bool is_done = false;

    rdti_engine_note_wait(engine);
    if (done(arg))
        return true;
    /* relaxed: hints */
    if (atomic_load_explicit(&engine->can_spin, memory_order_relaxed) == 0 ||
        atomic_load_explicit(&engine->has_proxy, memory_order_relaxed) != 0 ||
        rdti_engine_do_sockets_carry(engine) || rdti_engine_is_driver(engine))
        return false;
    for (uint32_t i = 0; !is_done && i < BRIEF_PASSES; i++)
        is_done = wait_pass_for(engine, &wish, false);
    wait_leave_rest(engine);
    return is_done;
}

/* Called for every slice, so that the time of a wait that never ends grows visibly. It does not
 * read the clock: for a spinning wait, the time since the last read, up to 16 passes, is
 * missing. */
static void
wait_count(struct rdti_engine *engine, bool is_counted, uint64_t *from_ns, uint64_t now_ns)
{
    if (is_counted && now_ns > *from_ns)
        rdti_count(&engine->waited_ns, now_ns - *from_ns);
    *from_ns = now_ns;
}

uint64_t
rdti_engine_waited_ns(const struct rdti_engine *engine)
{
    return atomic_load_explicit(&engine->waited_ns, memory_order_relaxed); /* a statistic */
}

static rdt_status
wait_last_look(struct rdti_engine *engine, const struct wait_wish *wish)
{
    (void)rdti_engine_try_pass(engine, true);
    return wish->done(wish->arg) ? RDT_OK : RDT_ETIMEDOUT;
}

static rdt_status
wait_until(struct rdti_engine *engine, const struct wait_wish *wish, uint64_t deadline_ns,
           bool is_counted)
{
    const rdti_done_fn done = wish->done;
    void *arg = wish->arg;
    rdt_status status = RDT_OK;
    bool is_leader = false;
    bool has_slept = false;

    if (done(arg))
        return RDT_OK;
    if (rdti_engine_is_driver(engine))
        return RDT_EINVAL;
    rdti_engine_attend(engine);
    const uint64_t begin_ns = rdti_now_ns();
    uint64_t now_ns = begin_ns;
    uint64_t from_ns = begin_ns;
    /* Python waits in slices. relaxed: a hint; the last of several waiters wins */
    bool is_expected = atomic_load_explicit(&engine->was_in_vain, memory_order_relaxed) == 0;
    while (!wait_spin(engine, wish, is_expected, deadline_ns, &now_ns)) {
        wait_count(engine, is_counted, &from_ns, now_ns);
        uint64_t sleep_ns = rdti_remaining_ns(deadline_ns);
        if (sleep_ns == 0) {
            status = wait_last_look(engine, wish);
            break;
        }
        if (sleep_ns > RDTI_SLICE_NS)
            sleep_ns = RDTI_SLICE_NS;
        is_expected = wait_sleep_once(engine, wish, sleep_ns, &is_leader);
        has_slept = true;
        now_ns = rdti_now_ns();
    }
    if (has_slept)
        now_ns = rdti_now_ns();
    rdti_engine_learn(engine, now_ns - begin_ns, has_slept);
    wait_count(engine, is_counted, &from_ns, now_ns);
    atomic_store_explicit(&engine->was_in_vain, has_slept && !is_expected && status != RDT_OK,
                          memory_order_relaxed);
    rdti_engine_unattend(engine);
    if (is_leader)
        wait_end_lead(engine);
    wait_leave_rest(engine);
    return status;
}

rdt_status
rdti_engine_wait(struct rdti_engine *engine, rdti_done_fn done, void *arg, uint64_t deadline_ns)
{
    return wait_until(engine, &(struct wait_wish){done, arg, false}, deadline_ns, false);
}

rdt_status
rdti_engine_wait_counted(struct rdti_engine *engine, rdti_done_fn done, void *arg,
                         uint64_t deadline_ns)
{
    return wait_until(engine, &(struct wait_wish){done, arg, false}, deadline_ns, true);
}

rdt_status
rdti_engine_wait_taking(struct rdti_engine *engine, rdti_done_fn take, void *arg,
                        uint64_t deadline_ns)
{
    return wait_until(engine, &(struct wait_wish){take, arg, true}, deadline_ns, true);
}
