/* SPDX-License-Identifier: Apache-2.0
 * The update rules compiled for processors with AVX2. */
#include "ps/rules/rules.h"

#if defined(__x86_64__)

#include <math.h>
#include <stddef.h>

/* No FMA: a product and a sum that are rounded once would differ from other hosts. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC optimize("O3") /* gcc 12 vectorises loops of unknown length only there */
#pragma GCC target("avx2")
#endif

#define TABLE rdti_ps_kernels_avx2

#include "ps/rules/loops.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
