/* SPDX-License-Identifier: Apache-2.0
 *
 * Preloaded before every other library: sees each memcpy() and memmove() of the process, whoever
 * calls it, and adds up the large ones, those of rdmatensor's libraries apart. Built by
 * test_counts.py.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Payload of the tests is far larger; names, headers and Python's own objects are smaller. */
enum { FROM_BYTES = 4096 };

typedef void *(*copy_fn)(void *, const void *, size_t);

static _Atomic uint64_t of_all;
static _Atomic uint64_t of_rdmatensor;
static _Atomic(copy_fn) real_memmove;

static void
note(size_t bytes, const void *caller)
{
    Dl_info info;

    if (bytes < FROM_BYTES)
        return;
    (void)atomic_fetch_add_explicit(&of_all, bytes, memory_order_relaxed); /* a statistic */
    if (dladdr(caller, &info) == 0 || info.dli_fname == NULL)
        return;
    if (strstr(info.dli_fname, "librdmatensor") != NULL || strstr(info.dli_fname, "_c10d") != NULL)
        (void)atomic_fetch_add_explicit(&of_rdmatensor, bytes, memory_order_relaxed);
}

/* memmove() does what either promises; before dlsym() has found it, byte by byte. */
static void *
move(void *dst, const void *src, size_t bytes, const void *caller)
{
    copy_fn real = atomic_load_explicit(&real_memmove, memory_order_relaxed); /* a constant */
    volatile unsigned char *out = dst;
    const volatile unsigned char *in = src;

    if (real != NULL) {
        note(bytes, caller);
        return real(dst, src, bytes);
    }
    for (size_t i = 0; i < bytes; i++) {
        const size_t at = dst <= src ? i : bytes - 1 - i;
        out[at] = in[at];
    }
    return dst;
}

__attribute__((constructor)) static void
find_real(void)
{
    atomic_store_explicit(&real_memmove, (copy_fn)dlsym(RTLD_NEXT, "memmove"),
                          memory_order_relaxed);
}

void *
memcpy(void *restrict dst, const void *restrict src, size_t bytes)
{
    return move(dst, src, bytes, __builtin_return_address(0));
}

void *
memmove(void *dst, const void *src, size_t bytes)
{
    return move(dst, src, bytes, __builtin_return_address(0));
}

void *
__memcpy_chk(void *restrict dst, const void *restrict src, size_t bytes, size_t room)
{
    if (bytes > room)
        __builtin_trap();
    return move(dst, src, bytes, __builtin_return_address(0));
}

void *
__memmove_chk(void *dst, const void *src, size_t bytes, size_t room)
{
    if (bytes > room)
        __builtin_trap();
    return move(dst, src, bytes, __builtin_return_address(0));
}

uint64_t
witnessed_bytes(int of_rdmatensor_alone)
{
    return atomic_load_explicit(of_rdmatensor_alone != 0 ? &of_rdmatensor : &of_all,
                                memory_order_relaxed);
}
