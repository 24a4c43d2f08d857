/* SPDX-License-Identifier: Apache-2.0
 * How large the last cache is that this core shares with its neighbours. */
#ifndef RDTI_BASE_CACHE_H
#define RDTI_BASE_CACHE_H

#include <stdint.h>

/* Bytes; 32 MiB where the processor does not say. Asked once. Not of sysconf(): glibc 2.36 gives
 * the sum of a whole package there, eight times what a core of a first EPYC can use. */
uint64_t rdti_cache_last_bytes(void);

#endif
