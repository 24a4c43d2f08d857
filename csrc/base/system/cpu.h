/* SPDX-License-Identifier: Apache-2.0
 * CPUs and memory that this process may use: bounded by affinity, cgroup quota and cgroup memory,
 * not by nproc and RAM. */
#ifndef RDTI_BASE_SYSTEM_CPU_H
#define RDTI_BASE_SYSTEM_CPU_H

#include <stddef.h>
#include <stdint.h>

/* CPUs of the affinity mask. */
uint32_t rdti_cpu_affinity(void);

/* Whole CPUs that this process may use at once: the affinity mask bounded by the cgroup v1 or v2
 * quota (rounded down, at least 1). Re-read at each call. */
uint32_t rdti_cpu_usable(void);

/*
 * Bytes that can still be populated: the minimum of MemAvailable and what the memory cgroups (v1 or
 * v2, every ancestor) leave. `limit_out` (cap >= 128) gets the name and value of the bound that
 * applies, for error messages.
 */
uint64_t rdti_memory_available(char *limit_out, size_t cap);

/* Hint to the core that this is a spin loop. */
static inline void
rdti_cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
