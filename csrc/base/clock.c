/* SPDX-License-Identifier: Apache-2.0
 * CLOCK_MONOTONIC is not affected by changes of the wall clock, and is read without a system call
 * (vDSO). */
#include "base/clock.h"

#include <time.h>

static uint64_t
clock_read_ns(clockid_t clock)
{
    struct timespec now;

    /* Fails only for an unknown clock or a bad pointer, neither of which can be passed here. */
    (void)clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

uint64_t
rdti_now_ns(void)
{
    return clock_read_ns(CLOCK_MONOTONIC);
}

uint64_t
rdti_thread_cpu_ns(void)
{
    return clock_read_ns(CLOCK_THREAD_CPUTIME_ID);
}

uint64_t
rdti_deadline_after(uint64_t timeout_ns)
{
    const uint64_t now_ns = rdti_now_ns();

    return timeout_ns > UINT64_MAX - now_ns ? UINT64_MAX : now_ns + timeout_ns;
}

uint64_t
rdti_remaining_ns(uint64_t deadline_ns)
{
    if (deadline_ns == UINT64_MAX)
        return UINT64_MAX;
    const uint64_t now_ns = rdti_now_ns();

    return deadline_ns > now_ns ? deadline_ns - now_ns : 0;
}
