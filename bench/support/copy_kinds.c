/* SPDX-License-Identifier: Apache-2.0
 * Kinds of store; see copy_kinds.h. */
#include "copy_kinds.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static void
copy_memcpy(char *dst, const char *src, size_t len_bytes)
{
    memcpy(dst, src, len_bytes);
}

#if defined(__x86_64__)
static void
copy_movsb(char *dst, const char *src, size_t len_bytes)
{
    __asm__ volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(len_bytes) : : "memory");
}

/* One stream of 32-byte stores, four lines a turn. */
__attribute__((target("avx2"))) static void
copy_stream(char *dst, const char *src, size_t len_bytes)
{
    size_t i = 0;

    for (; i + 256 <= len_bytes; i += 256) {
        for (size_t j = 0; j < 256; j += 32)
            _mm256_stream_si256((__m256i *)(void *)(dst + i + j),
                                _mm256_loadu_si256((const __m256i *)(const void *)(src + i + j)));
    }
    for (; i + 32 <= len_bytes; i += 32)
        _mm256_stream_si256((__m256i *)(void *)(dst + i),
                            _mm256_loadu_si256((const __m256i *)(const void *)(src + i)));
    memcpy(dst + i, src + i, len_bytes - i);
    _mm_sfence();
}

/* Four streams a quarter of a MiB apart, two lines of each in turn: better prefetching of a source
 * in memory. Below 1 MiB the same as one stream. */
__attribute__((target("avx2"))) static void
copy_stream_lanes(char *dst, const char *src, size_t len_bytes)
{
    const size_t lane = (size_t)256 << 10;
    size_t done = 0;

    for (; done + 4 * lane <= len_bytes; done += 4 * lane) {
        for (size_t i = done; i < done + lane; i += 128) {
            for (size_t j = i; j < i + 4 * lane; j += lane) {
                for (size_t k = j; k < j + 128; k += 32)
                    _mm256_stream_si256((__m256i *)(void *)(dst + k),
                                        _mm256_loadu_si256(
                                            (const __m256i *)(const void *)(src + k)));
            }
        }
    }
    copy_stream(dst + done, src + done, len_bytes - done);
}
#endif

size_t
copy_kinds_find(struct copy_kind out[COPY_KINDS_MAX])
{
    size_t n = 0;

    out[n++] = (struct copy_kind){"memcpy", copy_memcpy};
#if defined(__x86_64__)
    out[n++] = (struct copy_kind){"movsb", copy_movsb};
    if (__builtin_cpu_supports("avx2")) {
        out[n++] = (struct copy_kind){"stream", copy_stream};
        out[n++] = (struct copy_kind){"stream_lanes", copy_stream_lanes};
    }
#endif
    return n;
}
