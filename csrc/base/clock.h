/* SPDX-License-Identifier: Apache-2.0
 * Monotonic time in nanoseconds. A deadline is an absolute time; UINT64_MAX is "never". */
#ifndef RDTI_BASE_CLOCK_H
#define RDTI_BASE_CLOCK_H

#include <stdint.h>

uint64_t rdti_now_ns(void);

/* CPU time that the calling thread has used. A system call. */
uint64_t rdti_thread_cpu_ns(void);

/* now + timeout_ns, saturating at UINT64_MAX. */
uint64_t rdti_deadline_after(uint64_t timeout_ns);

/* Nanoseconds until the deadline; 0 once it passed. */
uint64_t rdti_remaining_ns(uint64_t deadline_ns);

#endif
