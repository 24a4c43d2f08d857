/* SPDX-License-Identifier: Apache-2.0
 * The three ways to store, and the choice between them. */
#include "base/copy.h"

#include <stdint.h>
#include <string.h>

#include "base/limits.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define LINE_BYTES ((size_t)64)

/* A lane moves two lines at a time: the pair that the hardware prefetches together. */
#define STEP_BYTES (2 * LINE_BYTES)

static void
copy_movsb(void *dst, const void *src, size_t len_bytes)
{
    __asm__ volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(len_bytes) : : "memory");
}

/*
 * Defines name(dst, src, len_bytes), dst on a line boundary and len_bytes whole lines. Blocks of four lanes
 * are moved a step of each lane in turn: the four source streams keep four hardware prefetchers
 * busy, where one stream waits for memory at each page's end (limits.h has the gain).
 */
#define DEFINE_STREAM(name, attribute, vector, load, store)                                    \
    attribute static inline void name##_step(char *dst, const char *src, size_t step_bytes)    \
    {                                                                                          \
        _Pragma("GCC unroll 8") for (size_t i = 0; i < step_bytes; i += sizeof(vector))        \
            store((vector *)(void *)(dst + i), load((const vector *)(const void *)(src + i))); \
    }                                                                                          \
    attribute static void name(char *dst, const char *src, size_t len_bytes)                   \
    {                                                                                          \
        const size_t lane = RDTI_COPY_LANE_BYTES;                                              \
                                                                                               \
        while (len_bytes >= 4 * lane) {                                                        \
            for (size_t i = 0; i < lane; i += STEP_BYTES) {                                    \
                name##_step(dst + i, src + i, STEP_BYTES);                                     \
                name##_step(dst + i + lane, src + i + lane, STEP_BYTES);                       \
                name##_step(dst + i + 2 * lane, src + i + 2 * lane, STEP_BYTES);               \
                name##_step(dst + i + 3 * lane, src + i + 3 * lane, STEP_BYTES);               \
            }                                                                                  \
            dst += 4 * lane;                                                                   \
            src += 4 * lane;                                                                   \
            len_bytes -= 4 * lane;                                                             \
        }                                                                                      \
        for (; len_bytes >= STEP_BYTES; len_bytes -= STEP_BYTES) {                             \
            name##_step(dst, src, STEP_BYTES);                                                 \
            dst += STEP_BYTES;                                                                 \
            src += STEP_BYTES;                                                                 \
        }                                                                                      \
        if (len_bytes > 0)                                                                     \
            name##_step(dst, src, LINE_BYTES);                                                 \
    }

DEFINE_STREAM(stream_sse2, , __m128i, _mm_loadu_si128, _mm_stream_si128)
DEFINE_STREAM(stream_avx2, __attribute__((target("avx2"))), __m256i, _mm256_loadu_si256,
              _mm256_stream_si256)

/* Whole lines go past the cache; the two ends, which share their lines with foreign bytes, do not. */
static void
copy_stream(void *dst, const void *src, size_t len_bytes)
{
    char *d = dst;
    const char *s = src;
    const size_t head = (size_t)(-(uintptr_t)d) & (LINE_BYTES - 1);

    if (len_bytes < head + LINE_BYTES) {
        memcpy(d, s, len_bytes);
        return;
    }
    const size_t body = (len_bytes - head) & ~(LINE_BYTES - 1);
    const size_t tail = len_bytes - head - body;

    memcpy(d, s, head);
    memcpy(d + head + body, s + head + body, tail);
    /* 512-bit stores measured the same, and lower the clock of some cores that have them. */
    if (__builtin_cpu_supports("avx2"))
        stream_avx2(d + head, s + head, body);
    else
        stream_sse2(d + head, s + head, body);
    _mm_sfence();
}

#else /* Other processors: their memcpy, until somebody measures better there. */

static void
copy_movsb(void *dst, const void *src, size_t len_bytes)
{
    memcpy(dst, src, len_bytes);
}

static void
copy_stream(void *dst, const void *src, size_t len_bytes)
{
    memcpy(dst, src, len_bytes);
    __atomic_thread_fence(__ATOMIC_RELEASE); /* what copy.h promises of STREAM */
}

#endif

void
rdti_copy_as(void *dst, const void *src, size_t len_bytes, enum rdti_copy_kind kind)
{
    if (len_bytes == 0) /* memcpy may not be given null pointers, not even for nothing */
        return;
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
    const size_t stream_from = pattern == RDTI_COPY_TO_PEER_READ
                                   ? RDTI_COPY_STREAM_TO_PEER_FROM_BYTES
                                   : RDTI_COPY_STREAM_TO_OWN_FROM_BYTES;

    return len_bytes >= stream_from ? RDTI_COPY_STREAM : RDTI_COPY_MEMCPY;
}

void
rdti_copy(void *dst, const void *src, size_t len_bytes, enum rdti_copy_pattern pattern)
{
    rdti_copy_as(dst, src, len_bytes, rdti_copy_choose(len_bytes, pattern));
}
