/* SPDX-License-Identifier: Apache-2.0
 * Detects whether processes outside the job use the cores, from the waits of one engine.
 *
 * A thread that spins or yields uses up its time slice, and does not run at once when the event
 * that it waits for occurs. If another process wants the core, that costs a slice of 3 to 4 ms for
 * each exchange with a peer. A thread that sleeps runs when it is woken. So a finding disables long
 * spins and yields for some time, after which one wait tries again.
 *
 * Threads: any. Both fields are hints: of two concurrent threads the last one wins.
 */
#ifndef RDTI_PROGRESS_CONTENTION_H
#define RDTI_PROGRESS_CONTENTION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The time that a thread must lose for a finding. The shortest default slice of a Linux scheduler
 * is 0.7 ms; peers that exchange small messages return the core within a few us. */
#define RDTI_CROWD_LOST_NS UINT64_C(700000)
/* How long a finding remains valid. A new try costs at most a slice of a few ms: a fifth of the
 * shortest period, a fiftieth of the longest. The longest is also the time that a machine loses
 * after it has become quiet. */
#define RDTI_CROWD_LEAST_NS UINT64_C(16000000)
#define RDTI_CROWD_MOST_NS UINT64_C(256000000)

struct rdti_crowd {
    _Atomic uint64_t found_ns;
    _Atomic uint64_t for_ns; /* how long that is valid; 0: no recent finding */
};

/* False without a finding: then the caller need not read the clock. */
static inline bool
rdti_crowd_is_known(const struct rdti_crowd *crowd)
{
    return atomic_load_explicit(&crowd->for_ns, memory_order_relaxed) != 0;
}

bool rdti_crowd_is_there(struct rdti_crowd *crowd, uint64_t now_ns);

/* A thread was runnable for wall_ns and had the core for cpu_ns of that time, or yielded the core
 * (cpu_ns 0) and got it back after wall_ns. True: that is a finding. */
bool rdti_crowd_judge(struct rdti_crowd *crowd, uint64_t wall_ns, uint64_t cpu_ns, uint64_t now_ns);

#endif
