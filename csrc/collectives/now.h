/* SPDX-License-Identifier: Apache-2.0
 * The time, for deadlines and for what is measured. */
#ifndef RDTI_COLLECTIVES_NOW_H
#define RDTI_COLLECTIVES_NOW_H

#include <stdint.h>
#include <time.h>

static inline uint64_t
rdti_coll_now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail for this clock */
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

#endif
