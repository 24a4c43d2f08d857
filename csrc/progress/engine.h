/* SPDX-License-Identifier: Apache-2.0
 * The progress engine: one per context, and the only place where threads sleep.
 *
 * A thread *drives* while it holds the engine's lock: it polls the transports, runs tasks,
 * dispatches sockets. A waiting thread drives by itself (no hand-over between threads on the path
 * of a message); a thread that finds the lock taken checks its own condition meanwhile. No thread
 * holds the lock while asleep. The progress thread, started with the engine, drives work that no
 * thread waits for: accept, the target side of tcp, asynchronous collectives, heartbeats.
 *
 * Threads that a peer on this host wakes (base/system/doorbell.h):
 *   a waiter asleep on the futex (only shm armed) or in epoll     by every notification
 *   the progress thread, asleep in epoll, nothing asynchronous    by urgent ones only
 *   the same with tasks or callbacks outstanding and no waiter    by every one (the "proxy" count)
 *
 * Of several waiters one sleeps in epoll and the others on the futex. While a waiter is active and
 * sockets carry data, the progress thread parks for a few milliseconds at a time, or for 100 if a
 * waiter sleeps in epoll, so that the two do not race for the same events.
 *
 * Threads: any thread may call everything here, except start/stop/destroy. Calls marked [driver]
 * require the lock.
 */
#ifndef RDTI_PROGRESS_ENGINE_H
#define RDTI_PROGRESS_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "rdmatensor_ext.h"
#include "transport/transport.h"

struct rdti_engine;

/* local_ranks: processes of the job on these cores, 0 if unknown (see
 * rdti_engine_set_local_ranks). */
rdt_status rdti_engine_create(uint32_t local_ranks, struct rdti_engine **out,
                              struct rdt_error *err);
rdt_status rdti_engine_start(struct rdti_engine *engine, struct rdt_error *err);
void rdti_engine_stop(struct rdti_engine *engine); /* joins the progress thread */
void rdti_engine_destroy(struct rdti_engine *engine);

/* Number of processes known to share the cores. Waiters spin only while it does not exceed the
 * usable CPUs. If it does, they yield their core before they sleep; with RDT_LOCAL_RANKS_SLEEP they
 * sleep at once. */
void rdti_engine_set_local_ranks(struct rdti_engine *engine, uint32_t count);

/* The lock. Recursive, so that tasks may use the public calls. The last leave() runs the deferred
 * calls. */
void rdti_engine_enter(struct rdti_engine *engine);
void rdti_engine_leave(struct rdti_engine *engine);
bool rdti_engine_is_driver(const struct rdti_engine *engine); /* this thread holds the lock */

/* The driving thread calls it soon, without the lock. The engine owns the node until then. Any
 * thread. */
struct rdti_deferred {
    struct rdti_list link;
    void (*run)(struct rdti_deferred *node);
};
void rdti_engine_defer(struct rdti_engine *engine, struct rdti_deferred *node);
/* Whether some have not finished yet. Any thread. */
bool rdti_engine_has_deferred(const struct rdti_engine *engine);

/* [driver] `poll` runs in every pass. */
rdt_status rdti_engine_add_poller(struct rdti_engine *engine, uint32_t (*poll)(void *state),
                                  bool (*needs_epoll)(void *state), void *state,
                                  struct rdt_error *err);
/* [driver] For the poller with that state: runs in every pass that polls sockets while a thread
 * sleeps in epoll or is about to (transport.h, arm). Such a pass precedes each sleep in epoll. */
void rdti_engine_set_arm(struct rdti_engine *engine, const void *state, void (*arm)(void *state));
/* Any thread; outside a pass the first step runs at once. */
rdt_status rdti_engine_add_task(struct rdti_engine *engine, rdt_task_fn step, void *arg,
                                struct rdt_error *err);
/* [driver] From a task: the next step need not wait for an arrival, so no thread sleeps before
 * it. */
void rdti_engine_go_on(struct rdti_engine *engine);
/* [driver] Whether a task has not finished yet. */
bool rdti_engine_has_tasks(const struct rdti_engine *engine);
/* [driver] `tick` runs about every period_ns, never earlier. Only destroy removes it. */
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

/* Counts outstanding work that no thread may be waiting for (a callback, a pollable descriptor): +1
 * / -1. Any thread. */
void rdti_engine_async_add(struct rdti_engine *engine, int32_t delta);

/*
 * Between the two the caller counts as a waiter that drives: outstanding work that it starts wakes
 * no thread. It must wait or call unattend() soon; unattend() makes the pass that is due. Any
 * thread, several at once.
 */
void rdti_engine_attend(struct rdti_engine *engine);
void rdti_engine_unattend(struct rdti_engine *engine);
bool rdti_engine_is_attended(const struct rdti_engine *engine);

/* A waiter's condition may have become true: wakes the sleeping waiters. Any thread. */
void rdti_engine_wake(struct rdti_engine *engine);

/* Wake the progress thread: there is work that no arrival announces. Any thread. */
void rdti_engine_poke(struct rdti_engine *engine);

/* One pass; false if another thread drives. */
bool rdti_engine_progress(struct rdti_engine *engine);

/* The same for a caller that polls repeatedly: it polls sockets only if they carry messages, or as
 * often as a wait does. */
void rdti_engine_poll(struct rdti_engine *engine);

/* Ensures that one whole pass begins after this call began: in this thread, or in a sleeper that
 * the driver wakes when it leaves. Any thread. */
void rdti_engine_pass_or_ask(struct rdti_engine *engine, bool with_sockets);

/* A descriptor that becomes readable with the next wake, for a program with a poll loop of its own.
 * The program checks its conditions after each call. Any thread. */
int rdti_engine_arm_fd(struct rdti_engine *engine);

/* How long a waiter spins now; 0: more processes than cores. Any thread. */
uint64_t rdti_engine_spin_ns(struct rdti_engine *engine);
/* How long a waiter yields its core instead; 0: it spins, a CPU quota is the limit, other processes
 * than peers would get the core, or it has to sleep at once. Any thread. */
uint64_t rdti_engine_yield_ns(struct rdti_engine *engine);
/* For a thread that waits without rdti_engine_wait(): spins or yields once between two polls.
 * `look` counts the polls since since_ns. False: the thread should sleep. Any thread. */
bool rdti_engine_linger(struct rdti_engine *engine, uint64_t since_ns, uint32_t look);

/* Drive until done(arg) is true. done() is called repeatedly without the lock, must be cheap, and
 * may take the lock briefly. RDT_OK or RDT_ETIMEDOUT; RDT_EINVAL for a thread that drives, which
 * must not wait. */
typedef bool (*rdti_done_fn)(void *arg);
rdt_status rdti_engine_wait(struct rdti_engine *engine, rdti_done_fn done, void *arg,
                            uint64_t deadline_ns);
/* The same for an action of a peer. During the wait its time is added to rdti_engine_waited_ns(),
 * which all threads share. */
rdt_status rdti_engine_wait_counted(struct rdti_engine *engine, rdti_done_fn done, void *arg,
                                    uint64_t deadline_ns);
/* The same, for a done() that takes what the passes deliver. After each pass of the caller it runs
 * before the lock is released, so that entering costs nothing; otherwise it runs without the lock.
 * It may wait for the lock for the time of a pass. After it was true, it stays true. */
rdt_status rdti_engine_wait_taking(struct rdti_engine *engine, rdti_done_fn take, void *arg,
                                   uint64_t deadline_ns);
/* Counts a wait, also one whose condition is already true: see thread.c. Any thread. */
void rdti_engine_note_wait(struct rdti_engine *engine);
/* The first passes of a wait (`takes`: of rdti_engine_wait_taking()), without sleeping or reading
 * the clock, for conditions that are often true already. False: not yet true. */
bool rdti_engine_is_soon(struct rdti_engine *engine, rdti_done_fn done, void *arg, bool takes);
uint64_t rdti_engine_waited_ns(const struct rdti_engine *engine);

int rdti_engine_doorbell_fd(const struct rdti_engine *engine);
int rdti_engine_event_fd(const struct rdti_engine *engine);

#endif
