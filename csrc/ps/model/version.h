/* SPDX-License-Identifier: Apache-2.0
 * A row's version: a sequence lock of one writer, the server's thread, and of readers in other
 * processes, which cannot hold the writer up. Odd while the row changes. */
#ifndef RDTI_PS_MODEL_VERSION_H
#define RDTI_PS_MODEL_VERSION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The writer's stores to the row come after this. */
static inline void
rdti_ps_version_open(_Atomic uint32_t *version)
{
    const uint32_t before = atomic_load_explicit(version, memory_order_relaxed);

    atomic_store_explicit(version, before + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release); /* pairs with the fence in _is_same() */
}

/* They came before this. */
static inline void
rdti_ps_version_close(_Atomic uint32_t *version)
{
    const uint32_t before = atomic_load_explicit(version, memory_order_relaxed);

    /* release: pairs with the acquire in _read() */
    atomic_store_explicit(version, before + 1, memory_order_release);
}

/* Before a reader's loads of the row. */
static inline uint32_t
rdti_ps_version_read(const _Atomic uint32_t *version)
{
    return atomic_load_explicit(version, memory_order_acquire);
}

/* After them: whether all were of one version. */
static inline bool
rdti_ps_version_is_same(const _Atomic uint32_t *version, uint32_t before)
{
    atomic_thread_fence(memory_order_acquire);
    return before % 2 == 0 && atomic_load_explicit(version, memory_order_relaxed) == before;
}

#endif
