/* SPDX-License-Identifier: Apache-2.0
 * The engine's body, shared only by engine.c (passes), watch.c (descriptors), wait.c (driving and
 * sleeping), spin.c (how long to spin) and thread.c (the progress thread). */
#ifndef RDTI_PROGRESS_ENGINE_IMPL_H
#define RDTI_PROGRESS_ENGINE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/system/doorbell.h"
#include "progress/contention.h"
#include "progress/engine.h"

#define RDTI_POLLERS_MAX 4

struct rdti_poller {
    uint32_t (*poll)(void *state);
    bool (*needs_epoll)(void *state);
    void (*arm)(void *state); /* or NULL */
    void *state;
};

/* Minimum time that a waiter spins before it sleeps. A futex wake-up costs about 3 us each way, one
 * through epoll up to 30 us: spinning for twice the sum loses little when the wait is long. */
#define RDTI_SPIN_LEAST_NS UINT32_C(60000)
/* Maximum, for slow machines and paths. Half of it is the longest wait that is learnt from. A wait
 * that sleeps takes longer than the answer, because it includes the wake-ups of both sides, so a
 * bound near the answer's own time would never be learnt. A wait of 100 ms costs at most 2 ms of a
 * core with it. */
#define RDTI_SPIN_MOST_NS UINT32_C(1200000)

/* Minimum time that a waiter spins if other processes use the cores: the time in which a peer that
 * has a core answers. The maximum is RDTI_SPIN_LEAST_NS. */
#define RDTI_SPIN_BRIEF_NS UINT32_C(4000)

/* Maximum time of one sleep: between sleeps the waiter handles signals, ticks, and deaths that the
 * progress thread found. */
#define RDTI_SLICE_NS UINT64_C(100000000)
/* Minimum time for which the progress thread leaves the sockets to waiters. */
#define RDTI_PARK_LEAST_NS UINT64_C(1000000)
/* Maximum, unless a waiter sleeps in epoll: that waiter ends the park when it leaves. */
#define RDTI_PARK_MOST_NS UINT64_C(8000000)

struct rdti_engine {
    pthread_mutex_t lock;
    _Atomic uintptr_t owner; /* thread mark of the driver, 0 if none */
    _Atomic uint32_t
        is_pass_wanted;      /* a thread asked the driver for one more pass: see pass_or_ask() */
    _Atomic uint32_t passes; /* made so far; stored by drivers, relaxed */
    _Atomic uint32_t socket_passes; /* those that polled sockets and ticks */
    _Atomic uint32_t look_at;       /* `passes` at which the next is due; drivers, relaxed */
    _Atomic uint64_t looked_ns;     /* time of the last one; stored by drivers, relaxed */
    uint32_t looked_at;             /* `passes` at that time; driver only, as late_passes */
    uint32_t late_passes;           /* passes between polls of sockets that carry no payload */
    uint32_t depth;                 /* of enter(); driver only */
    bool wake_at_leave;             /* driver only */
    struct rdti_list deferred;
    _Atomic uint32_t deferred_count; /* includes those that are running */

    struct rdti_poller pollers[RDTI_POLLERS_MAX];
    uint32_t poller_count;
    struct rdti_list tasks;
    struct rdti_list ticks;
    _Atomic uint64_t
        next_tick_ns; /* stored by drivers, read by threads that are about to sleep; relaxed */
    struct rdti_list watches;
    struct rdti_list graveyard;

    int epoll_fd;
    int event_fd;
    int bell_fd;
    int user_fd;                  /* of a program with a poll loop of its own */
    _Atomic uint32_t is_fd_armed; /* the next wake writes to user_fd */
    struct rdti_doorbell *bell;   /* one page of bell_fd */

    _Atomic uint32_t goes_on; /* a task of the last pass wants the next one at once */
    _Atomic uint32_t is_busy; /* the last pass may have left something that can go on at once */

    _Atomic int32_t active_waiters;
    _Atomic uint32_t waits;       /* for transfers and notifications, so far; a hint */
    _Atomic uint32_t has_leader;  /* one waiter sleeps in epoll on behalf of all */
    _Atomic uint32_t is_idle;     /* that waiter is asleep */
    _Atomic uint32_t was_in_vain; /* the last wait slept until its deadline without an event */
    _Atomic int32_t async_count;  /* tasks and callbacks outstanding */
    _Atomic uint32_t has_proxy;   /* bell->epoll_sleepers is raised for the progress thread */
    _Atomic uint32_t can_spin;
    _Atomic uint32_t can_yield; /* more processes than cores */
    _Atomic uint32_t spin_ns;   /* how long a waiter spins: rdti_engine_learn_spin() */
    struct rdti_crowd crowd;
    _Atomic uint32_t brief_ns; /* spin time during contention: rdti_engine_learn_brief() */
    uint32_t usable_cpus;
    uint32_t affinity_cpus;     /* more than usable_cpus if a quota is the limit */
    _Atomic uint64_t waited_ns; /* in rdti_engine_wait_counted(), by all threads; relaxed */

    pthread_t thread;
    bool has_thread;
    _Atomic uint32_t is_stopping;
    _Atomic uint32_t park_word; /* private futex of the progress thread */
    _Atomic uint32_t park_ns;   /* how long it is parked; 0: it is not parked */
};

/* Adapts the spin time. A wait that slept and ended soon after should have spun a little longer; a
 * wait that spun nearly to the end counts, too. A long wait gained nothing from spinning, and
 * halves the time: one late answer does not undo what many have taught. So threads that repeatedly
 * wait for answers of a slow path stop sleeping, and repeated long waits reduce the time to the
 * minimum. */
void rdti_engine_learn_spin(struct rdti_engine *engine, uint64_t waited_ns);

/* A wait ended during contention. If it slept, it spun in vain: its peer was on the same core, or
 * on one that other processes had, so the next wait spins for half the time. If not, the time
 * doubles. */
void rdti_engine_learn_brief(struct rdti_engine *engine, bool has_slept);
/* A wait ended: applies either of the two, both or none. */
void rdti_engine_learn(struct rdti_engine *engine, uint64_t waited_ns, bool has_slept);
/* Yields once; *now_ns is the time after it. False: a process outside the job took the core and
 * kept it. */
bool rdti_engine_offer_core(struct rdti_engine *engine, uint64_t *now_ns);

static inline uint64_t
rdti_engine_next_tick_ns(const struct rdti_engine *engine)
{
    return atomic_load_explicit(&engine->next_tick_ns, memory_order_relaxed);
}

/* engine.c: take the lock unless another thread holds it. */
bool rdti_engine_try_enter(struct rdti_engine *engine);
/* watch.c [driver]: calls fn of each watched descriptor that is ready. Returns their number. */
uint32_t rdti_engine_dispatch(struct rdti_engine *engine);
/* watch.c [driver]: sets the number of passes after which the next poll of sockets is due. */
void rdti_engine_plan_look(struct rdti_engine *engine);
/* watch.c: sockets carry the messages of a transport. */
bool rdti_engine_do_sockets_carry(const struct rdti_engine *engine);
/* watch.c: the last poll is so old that the number of passes no longer decides when one is due. */
bool rdti_engine_is_look_late(const struct rdti_engine *engine, uint64_t now_ns);
void rdti_engine_free_watches(struct rdti_engine *engine);
/* engine.c [driver]: sockets and ticks if asked for, transports, tasks. Returns the work done. */
uint32_t rdti_engine_pass(struct rdti_engine *engine, bool with_sockets);
/* wait.c: a pass, unless another thread drives; false then. */
bool rdti_engine_try_pass(struct rdti_engine *engine, bool with_sockets);
/* wait.c: events of some transport arrive through descriptors. */
bool rdti_engine_needs_epoll(const struct rdti_engine *engine);
/* wait.c: something is outstanding and no thread waits. */
bool rdti_engine_is_proxy_wanted(const struct rdti_engine *engine);
/* wait.c: some work can continue without an arrival that would ring, so a thread must not sleep
 * now. */
bool rdti_engine_is_busy(const struct rdti_engine *engine);
/* wait.c: drains the event descriptor, unless other threads sleep in epoll: for them it must stay
 * readable until the last one is awake. `own` of the sleepers stand for the caller. */
void rdti_engine_drain_event_fd(struct rdti_engine *engine, uint32_t own);
/* wait.c, for epoll_wait(): a thread that sleeps in epoll also wakes for the ticks. */
int rdti_engine_until_tick_ms(const struct rdti_engine *engine, uint64_t at_most_ns);
/* thread.c: wakes the progress thread if it is parked for longer than that. */
void rdti_engine_end_park(struct rdti_engine *engine, uint64_t longer_than_ns);
/* thread.c: the progress thread. */
void *rdti_engine_progress_main(void *arg);

#endif
