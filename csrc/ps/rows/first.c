/* SPDX-License-Identifier: Apache-2.0
 * First values by a hash. */
#include "ps/rows/first.h"

#include <math.h>

static uint64_t
first_mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* From 0 to below 1, of 24 bits, which a float holds exactly. */
static double
first_unit(uint64_t bits)
{
    return (double)(bits >> 40) / 16777216.0;
}

static float
first_value(const struct rdt_ps_table_opts *opts, uint64_t row_seed, uint32_t column)
{
    const uint64_t bits = first_mix(row_seed + column);

    switch (opts->init) {
    case RDT_PS_INIT_CONSTANT:
        return (float)opts->init_from;
    case RDT_PS_INIT_UNIFORM:
        return (float)(opts->init_from + (opts->init_to - opts->init_from) * first_unit(bits));
    case RDT_PS_INIT_NORMAL: { /* Box and Muller; 1 - u is not 0 */
        const double radius = sqrt(-2.0 * log(1.0 - first_unit(bits)));
        const double angle = 6.283185307179586 * first_unit(first_mix(bits));
        return (float)(opts->init_from + opts->init_to * radius * cos(angle));
    }
    default:
        return 0.0f;
    }
}

void
rdti_ps_first_row(const struct rdt_ps_table_opts *opts, uint64_t id, float *out)
{
    const uint64_t row_seed = first_mix(opts->seed ^ first_mix(id));

    for (uint32_t column = 0; column < opts->dim; column++)
        out[column] = first_value(opts, row_seed, column);
}
