/* SPDX-License-Identifier: Apache-2.0
 * The reductions compiled for any processor. */
#include "collectives/reduce/half.h"
#include "collectives/reduce/kernels.h"

#include <stddef.h>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3") /* gcc 12 vectorises loops of unknown length only there */
#endif

#define TABLE rdti_reduce_generic

static void
f16_widen(float *out, const uint16_t *in, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = f16_to_f32(in[i]);
}

static void
f16_narrow(uint16_t *out, const float *in, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = f32_to_f16(in[i]);
}

#include "collectives/reduce/loops.h"
