/* SPDX-License-Identifier: Apache-2.0
 * How long a finding remains valid; see the header. */
#include "progress/contention.h"

bool
rdti_crowd_is_there(struct rdti_crowd *crowd, uint64_t now_ns)
{
    const uint64_t found_ns = atomic_load_explicit(&crowd->found_ns, memory_order_relaxed);
    const uint64_t for_ns = atomic_load_explicit(&crowd->for_ns, memory_order_relaxed);
    /* Another thread may have stored a later time than this thread read. */
    const uint64_t since_ns = now_ns > found_ns ? now_ns - found_ns : 0;

    if (for_ns != 0 && since_ns / 2 >= for_ns) /* waits since then found no contention */
        atomic_store_explicit(&crowd->for_ns, 0, memory_order_relaxed);
    return since_ns < for_ns;
}

bool
rdti_crowd_judge(struct rdti_crowd *crowd, uint64_t wall_ns, uint64_t cpu_ns, uint64_t now_ns)
{
    if (wall_ns < cpu_ns || wall_ns - cpu_ns < RDTI_CROWD_LOST_NS)
        return false;
    const uint64_t before_ns = atomic_load_explicit(&crowd->for_ns, memory_order_relaxed);
    uint64_t for_ns = RDTI_CROWD_LEAST_NS;
    if (before_ns != 0)
        for_ns = before_ns < RDTI_CROWD_MOST_NS / 2 ? 2 * before_ns : RDTI_CROWD_MOST_NS;
    atomic_store_explicit(&crowd->found_ns, now_ns, memory_order_relaxed);
    atomic_store_explicit(&crowd->for_ns, for_ns, memory_order_relaxed);
    return true;
}
