/* SPDX-License-Identifier: Apache-2.0
 * The choice between ordinary and non-temporal stores. */
#include "base/memory/stream_copy.h"

#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/memory/copy.h"

enum {
    LINE_BYTES = 64,
    STEP_BYTES = 2 * LINE_BYTES, /* the pair of lines that the hardware prefetches together */
    LANES = 4,
    /* 64 MiB in pieces of a stage take 3.6 ms in one lane, 3.1 in four. Shorter pieces end before
     * four prefetchers have started. */
    LANES_FROM_BYTES = 64 * 1024,
    STREAM_FROM_BYTES = 4 * 1024, /* of a piece: shorter pieces stay in a cache */
};

#if defined(__x86_64__)
/* dst on a line boundary. SSE2, which every x86-64 has: wider stores would wait for memory, too. */
static inline void
stream_copy_step(uint8_t *dst, const uint8_t *src, uint64_t step_bytes)
{
    for (uint64_t at = 0; at < step_bytes; at += sizeof(__m128i))
        _mm_stream_si128((__m128i *)(void *)(dst + at),
                         _mm_loadu_si128((const __m128i *)(const void *)(src + at)));
}

static uint64_t
stream_copy_lane_bytes(uint64_t len_bytes)
{
    return len_bytes < LANES_FROM_BYTES ? 0 : len_bytes / LANES / STEP_BYTES * STEP_BYTES;
}

/* Whole lines. Four lanes in turn keep four hardware prefetchers busy, while one lane waits for
 * memory at the end of each page. */
static void
stream_copy_lines(uint8_t *dst, const uint8_t *src, uint64_t len_bytes)
{
    const uint64_t lane = stream_copy_lane_bytes(len_bytes);

    for (uint64_t at = 0; at < lane; at += STEP_BYTES)
        for (uint64_t i = 0; i < LANES; i++)
            stream_copy_step(dst + i * lane + at, src + i * lane + at, STEP_BYTES);
    for (uint64_t at = LANES * lane; at < len_bytes; at += LINE_BYTES)
        stream_copy_step(dst + at, src + at, LINE_BYTES);
    _mm_sfence();
}

static inline void
stream_copy_step_twice(uint8_t *dst, uint8_t *other, const uint8_t *src, uint64_t step_bytes)
{
    for (uint64_t at = 0; at < step_bytes; at += sizeof(__m128i)) {
        const __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(src + at));
        _mm_stream_si128((__m128i *)(void *)(dst + at), v);
        _mm_stream_si128((__m128i *)(void *)(other + at), v);
    }
}

/* As stream_copy_lines(), with both destinations on a line boundary. */
static void
stream_copy_lines_twice(uint8_t *dst, uint8_t *other, const uint8_t *src, uint64_t len_bytes)
{
    const uint64_t lane = stream_copy_lane_bytes(len_bytes);

    for (uint64_t at = 0; at < lane; at += STEP_BYTES)
        for (uint64_t i = 0; i < LANES; i++)
            stream_copy_step_twice(dst + i * lane + at, other + i * lane + at, src + i * lane + at,
                                   STEP_BYTES);
    for (uint64_t at = LANES * lane; at < len_bytes; at += LINE_BYTES)
        stream_copy_step_twice(dst + at, other + at, src + at, LINE_BYTES);
    _mm_sfence();
}

/* False if the two destinations have different offsets within a line. */
static bool
stream_copy_twice(uint8_t *dst, uint8_t *other, const uint8_t *src, uint64_t len_bytes)
{
    const uint64_t gap = (uint64_t)(-(uintptr_t)dst) % LINE_BYTES;

    if (((uintptr_t)dst - (uintptr_t)other) % LINE_BYTES != 0)
        return false;
    const uint64_t body = (len_bytes - gap) / LINE_BYTES * LINE_BYTES;
    const uint64_t tail = len_bytes - gap - body;
    memcpy(dst, src, gap);
    memcpy(other, src, gap);
    stream_copy_lines_twice(dst + gap, other + gap, src + gap, body);
    memcpy(dst + gap + body, src + gap + body, tail);
    memcpy(other + gap + body, src + gap + body, tail);
    return true;
}

static void
stream_copy_once(void *dst, const void *src, uint64_t len_bytes)
{
    uint8_t *out = dst;
    const uint8_t *in = src;
    const uint64_t gap = (uint64_t)(-(uintptr_t)out) % LINE_BYTES;
    const uint64_t head = gap < len_bytes ? gap : len_bytes;
    const uint64_t body = (len_bytes - head) / LINE_BYTES * LINE_BYTES;
    const uint64_t tail = len_bytes - head - body;

    if (head > 0)
        memcpy(out, in, head);
    stream_copy_lines(out + head, in + head, body);
    if (tail > 0)
        memcpy(out + head + body, in + head + body, tail);
}

/* Ordinary stores; the barrier keeps the compiler from turning the loop into a memcpy(). */
static void
stream_copy_store(void *dst, const void *src, uint64_t len_bytes)
{
    const uint64_t body = len_bytes / LINE_BYTES * LINE_BYTES;
    uint8_t *out = dst;
    const uint8_t *in = src;

    for (uint64_t at = 0; at < body; at += LINE_BYTES) {
        for (uint64_t i = 0; i < LINE_BYTES; i += sizeof(__m128i))
            _mm_storeu_si128((__m128i *)(void *)(out + at + i),
                             _mm_loadu_si128((const __m128i *)(const void *)(in + at + i)));
        __asm__ volatile("" ::: "memory");
    }
    if (body < len_bytes)
        memcpy(out + body, in + body, len_bytes - body);
}
#else
static void
stream_copy_store(void *dst, const void *src, uint64_t len_bytes)
{
    if (len_bytes > 0)
        memcpy(dst, src, len_bytes);
}

static bool
stream_copy_twice(uint8_t *dst, uint8_t *other, const uint8_t *src, uint64_t len_bytes)
{
    (void)dst, (void)other, (void)src, (void)len_bytes;
    return false;
}

static void
stream_copy_once(void *dst, const void *src, uint64_t len_bytes)
{
    memcpy(dst, src, len_bytes);
}
#endif

static bool
stream_copy_does_pay(uint64_t len_bytes, uint64_t of_bytes)
{
    return len_bytes >= STREAM_FROM_BYTES && of_bytes >= rdti_copy_table()->board_stream_from_bytes;
}

void
rdti_stream_copy(void *dst, const void *src, uint64_t len_bytes, uint64_t of_bytes)
{
    if (stream_copy_does_pay(len_bytes, of_bytes))
        stream_copy_once(dst, src, len_bytes);
    else if (len_bytes > 0) /* memcpy must not receive null pointers, even for zero bytes */
        memcpy(dst, src, len_bytes);
}

void
rdti_stream_write(void *dst, const void *src, uint64_t len_bytes)
{
    if (stream_copy_does_pay(len_bytes, len_bytes))
        stream_copy_once(dst, src, len_bytes);
    else
        stream_copy_store(dst, src, len_bytes);
}

void
rdti_stream_copy_twice(void *dst, void *other, const void *src, uint64_t len_bytes,
                       uint64_t of_bytes)
{
    if (stream_copy_does_pay(len_bytes, of_bytes) && stream_copy_twice(dst, other, src, len_bytes))
        return;
    rdti_stream_copy(dst, src, len_bytes, of_bytes);
    rdti_stream_copy(other, src, len_bytes, UINT64_MAX);
}
