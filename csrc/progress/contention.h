/* SPDX-License-Identifier: Apache-2.0
 * Whether processes outside the job use the cores: what the waits of one engine have found.
 *
 * A thread that spins or yields uses its time slice up, and is not run at once when what it waits
 * for arrives. Where another process wants the core that costs a slice of 3 to 4 ms for each
 * exchange with a peer. A thread that sleeps is run when it is woken. So a finding ends long spins
 * and yields for some time, after which one wait tries again.
 *
 * Threads: any. Both fields are hints: of two threads at once the last has the say.
 */
#ifndef RDTI_PROGRESS_CONTENTION_H
#define RDTI_PROGRESS_CONTENTION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The time that a thread must lose for a finding. The shortest slice that a Linux scheduler gives
 * by default is 0.7 ms; peers that exchange small messages give the core back within some us. */
#define RDTI_CROWD_LOST_NS UINT64_C(700000)
/* How long a finding holds. A try costs a slice of some ms at most: a fifth of the least time, and
 * a fiftieth of the longest, which a machine that has become quiet loses as well. */
#define RDTI_CROWD_LEAST_NS UINT64_C(16000000)
#define RDTI_CROWD_MOST_NS UINT64_C(256000000)

struct rdti_crowd {
    _Atomic uint64_t found_ns;
    _Atomic uint64_t for_ns; /* how long that holds; 0: nothing was found lately */
};

/* False while nothing was found: the clock need not be read. */
static inline bool
rdti_crowd_is_known(const struct rdti_crowd *crowd)
{
    return atomic_load_explicit(&crowd->for_ns, memory_order_relaxed) != 0;
}

bool rdti_crowd_is_there(struct rdti_crowd *crowd, uint64_t now_ns);

/* A thread was ready to run for wall_ns and had the core for cpu_ns of them, or offered the core
 * (cpu_ns 0) and had it back after wall_ns. True: that was a finding. */
bool rdti_crowd_judge(struct rdti_crowd *crowd, uint64_t wall_ns, uint64_t cpu_ns, uint64_t now_ns);

#endif
