/* SPDX-License-Identifier: Apache-2.0
 * Selects the table of reductions for this processor, once. */
#include "collectives/reduce/kernels.h"

#include <stdatomic.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

int
rdti_reduce_has_avx2(void)
{
#if defined(__x86_64__)
    unsigned eax;
    unsigned ebx;
    unsigned ecx;
    unsigned edx;

    /* A hypervisor may show AVX2 and hide F16C; __builtin_cpu_supports() of gcc 12 knows only the
     * former, and checks that the system saves the wide registers. */
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & bit_F16C) == 0)
        return 0;
    return __builtin_cpu_supports("avx2") != 0;
#else
    return 0;
#endif
}

const struct rdti_reduce_table *
rdti_reduce_best(void)
{
#if defined(__x86_64__)
    /* Computed once, because cpuid traps in a virtual machine. All threads store the same value and
     * publish nothing else with it. relaxed: pairs with this function in other threads. */
    static atomic_int answer; /* 0 unknown, 1 no, 2 yes */
    int known = atomic_load_explicit(&answer, memory_order_relaxed);

    if (known == 0) {
        known = rdti_reduce_has_avx2() ? 2 : 1;
        atomic_store_explicit(&answer, known, memory_order_relaxed);
    }
    if (known == 2)
        return &rdti_reduce_avx2;
#endif
    return &rdti_reduce_generic;
}
