/* SPDX-License-Identifier: Apache-2.0
 * Cache sizes, as cpuid reports them. */
#include "base/memory/cache.h"

#include <stdatomic.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum { USUAL_MIB = 32, MIB = 1024 * 1024 };

#if defined(__x86_64__)
/* Deterministic Cache Parameters (Intel's SDM) and Cache Properties (AMD's APM, volume 3) have the
 * same fields: one entry for each cache, ended by an entry of type 0. */
enum { INTEL_LEAF = 4, CACHES_MAX = 16 };
#define AMD_LEAF 0x8000001Du

static uint64_t
cache_last_bytes(unsigned leaf)
{
    unsigned eax, ebx, ecx, edx;
    uint64_t bytes = 0;

    for (unsigned i = 0; i < CACHES_MAX; i++) {
        if (__get_cpuid_count(leaf, i, &eax, &ebx, &ecx, &edx) == 0 || (eax & 0x1f) == 0)
            break;
        bytes = (uint64_t)((ebx >> 22) + 1) * ((ebx >> 12 & 0x3ff) + 1) * ((ebx & 0xfff) + 1) *
                ((uint64_t)ecx + 1); /* ways, partitions, bytes of a line, sets */
    }
    return bytes;
}

static uint64_t
cache_ask(void)
{
    const uint64_t amd_bytes = cache_last_bytes(AMD_LEAF); /* absent or empty on Intel */

    return amd_bytes > 0 ? amd_bytes : cache_last_bytes(INTEL_LEAF);
}
#else
static uint64_t
cache_ask(void)
{
    return 0;
}
#endif

uint64_t
rdti_cache_last_bytes(void)
{
    /* relaxed: every thread stores the same value. Kept: cpuid traps out of a virtual machine. */
    static _Atomic uint64_t known;
    uint64_t bytes = atomic_load_explicit(&known, memory_order_relaxed);

    if (bytes == 0) {
        bytes = cache_ask();
        if (bytes == 0)
            bytes = (uint64_t)USUAL_MIB * MIB;
        atomic_store_explicit(&known, bytes, memory_order_relaxed);
    }
    return bytes;
}
