/* SPDX-License-Identifier: Apache-2.0
 * Selects the table of lossy formats for this processor, once. */
#include "collectives/lossy/kernels.h"

/* __builtin_cpu_supports() also checks that the system saves the wide registers. */
int
rdti_lossy_has_avx2(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") != 0;
#else
    return 0;
#endif
}

int
rdti_lossy_has_avx512(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
    return 0;
#endif
}

const struct rdti_lossy_table *
rdti_lossy_best(void)
{
#if defined(__x86_64__)
    if (rdti_lossy_has_avx512())
        return &rdti_lossy_avx512;
    if (rdti_lossy_has_avx2())
        return &rdti_lossy_avx2;
#endif
    return &rdti_lossy_generic;
}
