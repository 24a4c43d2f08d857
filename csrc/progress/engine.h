/* SPDX-License-Identifier: Apache-2.0
 * The progress engine: one per context, and the only place where anything sleeps.
 *
 * A thread *drives* while it holds the engine's lock: it polls the transports, runs tasks,
 * dispatches sockets. A thread that waits drives itself (no hand-over between threads on the way of
 * a message); one that finds the lock taken looks at its own condition meanwhile. Nobody holds the
 * lock while asleep. The progress thread, there from the first day, drives what nobody waits for:
 * accept, the target side of tcp, asynchronous collectives, heartbeats.
 *
 * Who is woken by a peer on this host (base/doorbell.h):
 *   a waiter asleep on the futex (only shm armed) or in epoll     by every notification
 *   the progress thread, asleep in epoll, nothing asynchronous    by urgent ones only
 *   the same with tasks or callbacks outstanding and no waiter    by every one (the "proxy" count)
 *
 * Of several waiters one sleeps in epoll and the others on the futex. While a waiter is active and
 * sockets carry data, the progress thread parks for some milliseconds at a time, or 100 where one
 * sleeps in epoll, so that the two do not race for the same events.
 *
 * Threads: any thread may call everything here, except start/stop/destroy. Calls marked [driver]
 * want the lock held.
 */
#ifndef RDTI_PROGRESS_ENGINE_H
#define RDTI_PROGRESS_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "rdmatensor.h"
#include "transport/transport.h"

struct rdti_engine;

/* local_ranks: processes of the job on these cores, 0 if unknown (see
 * rdti_engine_set_local_ranks). */
rdt_status rdti_engine_create(uint32_t local_ranks, struct rdti_engine **out,
                              struct rdt_error *err);
rdt_status rdti_engine_start(struct rdti_engine *engine, struct rdt_error *err);
void rdti_engine_stop(struct rdti_engine *engine); /* joins the progress thread */
void rdti_engine_destroy(struct rdti_engine *engine);

/* Processes known to share the cores; spinning is allowed only while they are no more than the
 * usable CPUs. Where they are more, waiters offer their core before they sleep, unless
 * RDT_LOCAL_RANKS_SLEEP says that they sleep at once. */
void rdti_engine_set_local_ranks(struct rdti_engine *engine, uint32_t count);

/* The lock. Counted per thread, so that tasks may use the public calls. The last leave() runs what
 * was deferred. */
void rdti_engine_enter(struct rdti_engine *engine);
void rdti_engine_leave(struct rdti_engine *engine);
bool rdti_engine_is_driver(const struct rdti_engine *engine); /* this thread holds the lock */

/* Called without the lock, soon, by the thread that drives. The node belongs to the engine until
 * then. Any thread. */
struct rdti_deferred {
    struct rdti_list link;
    void (*run)(struct rdti_deferred *node);
};
void rdti_engine_defer(struct rdti_engine *engine, struct rdti_deferred *node);
/* Whether some were not run to their end yet. Any thread. */
bool rdti_engine_has_deferred(const struct rdti_engine *engine);

/* [driver] `poll` runs in every pass. */
rdt_status rdti_engine_add_poller(struct rdti_engine *engine, uint32_t (*poll)(void *state),
                                  bool (*needs_epoll)(void *state), void *state,
                                  struct rdt_error *err);
/* [driver] Of the poller with that state: runs at the beginning of every pass that looks at sockets
 * (transport.h, arm); each sleep in epoll has such a pass before it. */
void rdti_engine_set_arm(struct rdti_engine *engine, const void *state, void (*arm)(void *state));
/* Any thread; outside of a pass the first step is made at once. */
rdt_status rdti_engine_add_task(struct rdti_engine *engine, rdt_task_fn step, void *arg,
                                struct rdt_error *err);
/* [driver] From a task: the next step need not wait for an arrival, so nobody sleeps before it. */
void rdti_engine_go_on(struct rdti_engine *engine);
/* [driver] Whether a task has yet to see its end. */
bool rdti_engine_has_tasks(const struct rdti_engine *engine);
/* [driver] `tick` runs about every period_ns, at the earliest; there is no way to remove it but
 * destroy. */
rdt_status rdti_engine_every(struct rdti_engine *engine, uint64_t period_ns,
                             void (*tick)(void *arg), void *arg, struct rdt_error *err);

/* [driver] Run that tick at due_ns, if it would come later. */
void rdti_engine_hurry(struct rdti_engine *engine, void (*tick)(void *arg), void *arg,
                       uint64_t due_ns);

/* [driver] transport.h: watch, rewatch (any thread), unwatch. */
rdt_status rdti_engine_watch(struct rdti_engine *engine, int fd, uint32_t epoll_events,
                             rdti_watch_fn fn, void *arg, struct rdti_watch **out,
                             struct rdt_error *err);
void rdti_engine_rewatch(struct rdti_engine *engine, struct rdti_watch *watch,
                         uint32_t epoll_events);
void rdti_engine_unwatch(struct rdti_engine *engine, struct rdti_watch *watch);

/* Something outstanding that nobody may be waiting for (a callback, a pollable descriptor): +1 /
 * -1. Any thread. */
void rdti_engine_async_add(struct rdti_engine *engine, int32_t delta);

/*
 * Between the two the caller drives, as if it waited: what it starts rings for nobody, though it is
 * outstanding. It must come back soon, by waiting or by unattend(), which makes the pass that it
 * owes. Any thread, several at once.
 */
void rdti_engine_attend(struct rdti_engine *engine);
void rdti_engine_unattend(struct rdti_engine *engine);
bool rdti_engine_is_attended(const struct rdti_engine *engine);

/* Somebody's condition may have become true: wakes the waiters that sleep. Any thread. */
void rdti_engine_wake(struct rdti_engine *engine);

/* Wake the progress thread: there is work that no arrival announces. Any thread. */
void rdti_engine_poke(struct rdti_engine *engine);

/* One pass; false if another thread drives. */
bool rdti_engine_progress(struct rdti_engine *engine);

/* The same for who looks again and again: at sockets only where they carry messages, or as often
 * as a wait does. */
void rdti_engine_poll(struct rdti_engine *engine);

/* One whole pass begins after this call began: here, or by the driver's leaving, which rings for
 * whoever sleeps. Any thread. */
void rdti_engine_pass_or_ask(struct rdti_engine *engine, bool with_sockets);

/* A descriptor that becomes readable with the next wake, for a program with a poll loop of its own;
 * it looks at its conditions after each call. Any thread. */
int rdti_engine_arm_fd(struct rdti_engine *engine);

/* How long a waiter spins now; 0: more processes than cores. Any thread. */
uint64_t rdti_engine_spin_ns(struct rdti_engine *engine);
/* How long it offers its core instead; 0: it spins, a CPU quota is what there is too little of, the
 * core would go to others than peers, or it is to sleep at once. Any thread. */
uint64_t rdti_engine_yield_ns(struct rdti_engine *engine);
/* For who waits without rdti_engine_wait(), between two looks, of which this is the look-th since
 * since_ns: spin, or offer the core. False: it should sleep. Any thread. */
bool rdti_engine_linger(struct rdti_engine *engine, uint64_t since_ns, uint32_t look);

/* Drive until done(arg), which is called over and over without the lock, must be cheap, and may
 * take the lock for a moment. RDT_OK or RDT_ETIMEDOUT; [driver]s get RDT_EINVAL: they must not
 * wait. */
typedef bool (*rdti_done_fn)(void *arg);
rdt_status rdti_engine_wait(struct rdti_engine *engine, rdti_done_fn done, void *arg,
                            uint64_t deadline_ns);
/* The same for what a peer is to do: the time is added to that of rdti_engine_waited_ns(), which
 * all threads share, while it passes. */
rdt_status rdti_engine_wait_counted(struct rdti_engine *engine, rdti_done_fn done, void *arg,
                                    uint64_t deadline_ns);
/* The same, where done() takes what the passes bring: it is called behind each pass of the caller's
 * own, before the lock is given up, so that entering costs it nothing; else without. It may
 * wait for the lock, for a pass, and once it was true it stays so. */
rdt_status rdti_engine_wait_taking(struct rdti_engine *engine, rdti_done_fn take, void *arg,
                                   uint64_t deadline_ns);
/* Somebody waits, or would have if its end were not there: see engine_thread.c. Any thread. */
void rdti_engine_note_wait(struct rdti_engine *engine);
/* Either (`takes`: the latter) for some passes, without sleep nor a look at the clock: what a wait
 * begins with where its end is often there already. False: not yet. */
bool rdti_engine_is_soon(struct rdti_engine *engine, rdti_done_fn done, void *arg, bool takes);
uint64_t rdti_engine_waited_ns(const struct rdti_engine *engine);

int rdti_engine_doorbell_fd(const struct rdti_engine *engine);
int rdti_engine_event_fd(const struct rdti_engine *engine);

#endif
