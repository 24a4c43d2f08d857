/* SPDX-License-Identifier: Apache-2.0
 * The doorbell: a process that publishes something in shared memory rings it to wake a process that
 * may sleep.
 *
 * No lost wake-up. Writer: (1) publish with a seq_cst store, (2) load the sleeper counts seq_cst,
 * wake if any. Sleeper: (a) raise its count seq_cst, (b) check again with seq_cst loads, (c) sleep
 * on `sequence` as read before (a). In the single total order of those operations either (2) sees
 * the count of (a), or (b) sees what (1) published. While no thread sleeps, a ring costs only loads
 * and no system call.
 */
#ifndef RDTI_BASE_SYSTEM_DOORBELL_H
#define RDTI_BASE_SYSTEM_DOORBELL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* One per process, in a page that its peers map. */
struct rdti_doorbell {
    _Atomic uint32_t futex_sleepers; /* threads asleep on `sequence`: wake by futex */
    _Atomic uint32_t epoll_sleepers; /* threads asleep in epoll: wake by the event descriptor */
    _Atomic uint32_t background; /* the progress thread sleeps in epoll; wants urgent rings only */
    _Atomic uint32_t sequence;   /* futex word; changes with every ring that found a sleeper */
};

/* Whether a ring would wake a thread. Inline: most rings would not. */
static inline bool
rdti_doorbell_is_wanted(const struct rdti_doorbell *bell, bool is_urgent)
{
    /* all seq_cst: they take the place of the loads of rdti_doorbell_ring(), (2) above */
    return atomic_load_explicit(&bell->futex_sleepers, memory_order_seq_cst) > 0 ||
           atomic_load_explicit(&bell->epoll_sleepers, memory_order_seq_cst) > 0 ||
           (is_urgent && atomic_load_explicit(&bell->background, memory_order_seq_cst) > 0);
}

/*
 * Wake the threads that sleep on the bell. `event_fd` is the owner's eventfd. `is_urgent`: also
 * wake the progress thread if no other thread sleeps, because it has to act (a request, a full
 * ring). Returns the number of system calls made (0 while the owner is awake). Any thread, any
 * process that maps the page.
 */
uint32_t rdti_doorbell_ring(struct rdti_doorbell *bell, int event_fd, bool is_urgent);

/* Raises the count. Returns the word for rdti_doorbell_sleep(), read before that. */
uint32_t rdti_doorbell_begin_sleep(struct rdti_doorbell *bell);
/* Sleep on the futex until a ring after begin_sleep() or the timeout. */
void rdti_doorbell_sleep(struct rdti_doorbell *bell, uint32_t sequence, uint64_t timeout_ns);
void rdti_doorbell_end_sleep(struct rdti_doorbell *bell);

#endif
