/* SPDX-License-Identifier: Apache-2.0
 * Size of the last-level cache, which this core shares with its neighbours. */
#ifndef RDTI_BASE_MEMORY_CACHE_H
#define RDTI_BASE_MEMORY_CACHE_H

#include <stdint.h>

/* Bytes; 32 MiB if the processor does not report a size. Read once. Does not use sysconf(): glibc
 * 2.36 returns the sum over a whole package, on a first-generation EPYC eight times what a core can
 * use. */
uint64_t rdti_cache_last_bytes(void);

#endif
