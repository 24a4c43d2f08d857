/* SPDX-License-Identifier: Apache-2.0
 * The engine's body, shared by engine.c (what is driven), engine_watch.c (descriptors),
 * engine_wait.c (who drives, who sleeps), engine_spin.c (how long before) and engine_thread.c (the
 * progress thread) only. */
#ifndef RDTI_PROGRESS_ENGINE_IMPL_H
#define RDTI_PROGRESS_ENGINE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/doorbell.h"
#include "progress/contention.h"
#include "progress/engine.h"

#define RDTI_POLLERS_MAX 4

struct rdti_poller {
    uint32_t (*poll)(void *state);
    bool (*needs_epoll)(void *state);
    void (*arm)(void *state); /* or NULL */
    void *state;
};

/* How long a waiter spins at least before it sleeps. A futex hop costs about 3 us each way, a
 * wake-up through epoll up to 30 us: spinning for twice the sum loses little when the wait is
 * long. */
#define RDTI_SPIN_LEAST_NS UINT32_C(60000)
/* And at most, on machines and paths that are slower throughout. Half of it is the longest wait
 * that is learnt from, and a wait that sleeps is longer than the answer took: both sides' wake-ups
 * are in it, so that a bound near the answer's own time would be one that is never found. A wait of
 * 100 ms costs no more than 2 ms of a core with it. */
#define RDTI_SPIN_MOST_NS UINT32_C(1200000)

/* What a waiter spins in a crowd, at least: what an answer takes of a peer that is on its core. At
 * most RDTI_SPIN_LEAST_NS. */
#define RDTI_SPIN_BRIEF_NS UINT32_C(4000)

/* One sleep never lasts longer: signals, deaths seen by the progress thread and clock ticks are
 * looked at in between. */
#define RDTI_SLICE_NS UINT64_C(100000000)
/* The progress thread leaves the sockets to waiters for so long, or longer. */
#define RDTI_PARK_LEAST_NS UINT64_C(1000000)
/* And at most, unless one of them sleeps: it ends the park when it leaves. */
#define RDTI_PARK_MOST_NS UINT64_C(8000000)

struct rdti_engine {
    pthread_mutex_t lock;
    _Atomic uintptr_t owner; /* thread mark of the driver, 0 if none */
    _Atomic uint32_t
        is_pass_wanted;      /* somebody asked the driver for one more pass: see pass_or_ask() */
    _Atomic uint32_t passes; /* made so far; stored by drivers, relaxed */
    _Atomic uint32_t socket_passes; /* of them with a look at sockets and ticks */
    _Atomic uint32_t look_at;       /* how many passes are made when one is due; drivers, relaxed */
    _Atomic uint64_t looked_ns;     /* the last look's time; stored by drivers, relaxed */
    uint32_t looked_at;             /* passes then; driver only, as late_passes */
    uint32_t late_passes;           /* between looks at sockets that have no payload */
    uint32_t depth;                 /* of enter(); driver only */
    bool wake_at_leave;             /* driver only */
    struct rdti_list deferred;
    _Atomic uint32_t deferred_count; /* those that run just now included */

    struct rdti_poller pollers[RDTI_POLLERS_MAX];
    uint32_t poller_count;
    struct rdti_list tasks;
    struct rdti_list ticks;
    _Atomic uint64_t
        next_tick_ns; /* stored by drivers, read by those who are about to sleep; relaxed */
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
    _Atomic uint32_t has_leader;  /* a waiter that sleeps in epoll for all of them */
    _Atomic uint32_t is_idle;     /* it sleeps */
    _Atomic uint32_t was_in_vain; /* the last wait slept until its deadline, and nobody came */
    _Atomic int32_t async_count;  /* tasks and callbacks outstanding */
    _Atomic uint32_t has_proxy; /* bell->epoll_sleepers was raised in the progress thread's name */
    _Atomic uint32_t can_spin;
    _Atomic uint32_t can_yield; /* those who share the cores are more than they */
    _Atomic uint32_t spin_ns;   /* how long a waiter spins: rdti_engine_learn_spin() */
    struct rdti_crowd crowd;
    _Atomic uint32_t brief_ns; /* how long it spins meanwhile: rdti_engine_learn_brief() */
    uint32_t usable_cpus;
    uint32_t affinity_cpus;     /* more than usable where a quota is what limits */
    _Atomic uint64_t waited_ns; /* in rdti_engine_wait_counted(), by all threads; relaxed */

    pthread_t thread;
    bool has_thread;
    _Atomic uint32_t is_stopping;
    _Atomic uint32_t park_word; /* private futex of the progress thread */
    _Atomic uint32_t park_ns;   /* how long it is parked for; 0: it is not, or no more */
};

/* A wait that slept and was over soon afterwards should have spun a little longer, and one that
 * spun nearly to the end is learnt from as well; one that was long had nothing from it, and halves
 * what is spun: one late answer does not undo what many have taught. So those who wait again and
 * again for the answer of a slow path stop to sleep, and who waits for long again and again soon
 * spins for no more than the least. */
void rdti_engine_learn_spin(struct rdti_engine *engine, uint64_t waited_ns);

/* A wait is over in a crowd. One that slept spun in vain: what it waited for was on the same core,
 * or on one that others had. So the next spins for half; one that did not sleep lets it double. */
void rdti_engine_learn_brief(struct rdti_engine *engine, bool has_slept);
/* A wait is over: either of the two, or none, as it was. */
void rdti_engine_learn(struct rdti_engine *engine, uint64_t waited_ns, bool has_slept);
/* Until *now_ns. False: a process outside the job took the core and kept it. */
bool rdti_engine_offer_core(struct rdti_engine *engine, uint64_t *now_ns);

static inline uint64_t
rdti_engine_next_tick_ns(const struct rdti_engine *engine)
{
    return atomic_load_explicit(&engine->next_tick_ns, memory_order_relaxed);
}

/* engine.c: take the lock unless somebody has it. */
bool rdti_engine_try_enter(struct rdti_engine *engine);
/* engine_watch.c [driver]: call for each watched descriptor that is ready. Returns how many are. */
uint32_t rdti_engine_dispatch(struct rdti_engine *engine);
/* engine_watch.c [driver]: say after how many passes the next look at sockets is due. */
void rdti_engine_plan_look(struct rdti_engine *engine);
/* engine_watch.c: a transport has messages come through them. */
bool rdti_engine_do_sockets_carry(const struct rdti_engine *engine);
/* engine_watch.c: the last look is so long ago that passes do not tell any more when one is due. */
bool rdti_engine_is_look_late(const struct rdti_engine *engine, uint64_t now_ns);
void rdti_engine_free_watches(struct rdti_engine *engine);
/* engine.c [driver]: sockets and ticks if asked for, transports, tasks. Returns the work done. */
uint32_t rdti_engine_pass(struct rdti_engine *engine, bool with_sockets);
/* engine_wait.c: a pass, unless another thread drives; false then. */
bool rdti_engine_try_pass(struct rdti_engine *engine, bool with_sockets);
/* engine_wait.c: some transport has news come through descriptors. */
bool rdti_engine_needs_epoll(const struct rdti_engine *engine);
/* engine_wait.c: something is outstanding and nobody waits. */
bool rdti_engine_is_proxy_wanted(const struct rdti_engine *engine);
/* engine_wait.c: something can go on without an arrival that would ring: not now, then, does one
 * sleep. */
bool rdti_engine_is_busy(const struct rdti_engine *engine);
/* engine_wait.c: others who sleep in epoll want the descriptor readable until the last of them is
 * up. `own` of the sleepers are no threads of their own. */
void rdti_engine_drain_event_fd(struct rdti_engine *engine, uint32_t own);
/* engine_wait.c, for epoll_wait(): whoever sleeps in epoll wakes for the ticks as well. */
int rdti_engine_until_tick_ms(const struct rdti_engine *engine, uint64_t at_most_ns);
/* engine_thread.c: let the progress thread go on, if it is parked for longer than that. */
void rdti_engine_end_park(struct rdti_engine *engine, uint64_t longer_than_ns);
/* engine_thread.c: the progress thread. */
void *rdti_engine_progress_main(void *arg);

#endif
