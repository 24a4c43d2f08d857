/* SPDX-License-Identifier: Apache-2.0
 * The lossy formats compiled for processors with AVX-512. */
#if defined(__x86_64__)

#include <stddef.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))), \
                             apply_to = function)
#else
#pragma GCC optimize("O3") /* gcc 12 vectorises loops of unknown length only there */
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#endif

#define TABLE rdti_lossy_avx512
#define ENCODE_VALUES encode_values

#include "collectives/lossy/loops.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
