/* SPDX-License-Identifier: Apache-2.0
 * The three ways to store, and the choice between them. */
#include "base/copy.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

static void
copy_movsb(void *dst, const void *src, size_t len_bytes)
{
    __asm__ volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(len_bytes) : : "memory");
}

static void
stream_sse2(char *dst, const char *src, size_t len_bytes)
{
    for (size_t i = 0; i < len_bytes; i += 64) {
        for (size_t j = 0; j < 64; j += 16)
            _mm_stream_si128((__m128i *)(void *)(dst + i + j),
                             _mm_loadu_si128((const __m128i *)(const void *)(src + i + j)));
    }
}

static void
copy_stream(void *dst, const void *src, size_t len_bytes)
{
    char *d = dst;
    const char *s = src;
    const size_t head = (64 - ((uintptr_t)d & 63)) & 63;

    if (len_bytes < head + 64) {
        memcpy(d, s, len_bytes);
        return;
    }
    memcpy(d, s, head);
    const size_t body = (len_bytes - head) & ~(size_t)63;
    stream_sse2(d + head, s + head, body);
    memcpy(d + head + body, s + head + body, len_bytes - head - body);
    _mm_sfence();
}
#else
static void
copy_movsb(void *dst, const void *src, size_t len_bytes)
{
    memcpy(dst, src, len_bytes);
}

static void
copy_stream(void *dst, const void *src, size_t len_bytes)
{
    memcpy(dst, src, len_bytes);
}
#endif

void
rdti_copy_as(void *dst, const void *src, size_t len_bytes, enum rdti_copy_kind kind)
{
    switch (kind) {
    case RDTI_COPY_MOVSB:
        copy_movsb(dst, src, len_bytes);
        return;
    case RDTI_COPY_STREAM:
        copy_stream(dst, src, len_bytes);
        return;
    case RDTI_COPY_MEMCPY:
        break;
    }
    memcpy(dst, src, len_bytes);
}

enum rdti_copy_kind
rdti_copy_choose(size_t len_bytes, enum rdti_copy_pattern pattern)
{
    if (pattern == RDTI_COPY_TO_PEER_READ && len_bytes >= 4096)
        return RDTI_COPY_STREAM;
    return RDTI_COPY_MEMCPY;
}

void
rdti_copy(void *dst, const void *src, size_t len_bytes, enum rdti_copy_pattern pattern)
{
    rdti_copy_as(dst, src, len_bytes, rdti_copy_choose(len_bytes, pattern));
}
