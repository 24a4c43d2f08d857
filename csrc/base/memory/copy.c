/* SPDX-License-Identifier: Apache-2.0
 * The three kinds of copy, and the choice between them. */
#include "base/memory/copy.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/limits.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#define LINE_BYTES ((size_t)RDTI_CACHE_LINE_BYTES)

/* A lane copies two lines at a time: the pair that the hardware prefetches together. */
#define STEP_BYTES (2 * LINE_BYTES)

static void
copy_movsb(void *dst, const void *src, size_t len_bytes)
{
    __asm__ volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(len_bytes) : : "memory");
}

struct copy_span {
    char *dst;
    const char *src;
    size_t len_bytes;
};

/*
 * Defines name(dst, src, len_bytes), with dst on a line boundary and len_bytes a multiple of a
 * line. It copies blocks of four lanes, one step of each lane in turn: four source streams keep
 * four hardware prefetchers busy, while one stream waits for memory at the end of each page
 * (limits.h has the gain).
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
        const bool has_lanes = len_bytes >= rdti_copy_table()->lanes_from_bytes;               \
                                                                                               \
        while (has_lanes && len_bytes >= 4 * lane) {                                           \
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
    }                                                                                          \
    attribute static void name##_four(const struct copy_span spans[4], size_t step_count)      \
    {                                                                                          \
        for (size_t i = 0; i < step_count * STEP_BYTES; i += STEP_BYTES) {                     \
            for (size_t k = 0; k < 4; k++)                                                     \
                name##_step(spans[k].dst + i, spans[k].src + i, STEP_BYTES);                   \
        }                                                                                      \
    }

DEFINE_STREAM(copy_stream_sse2, , __m128i, _mm_loadu_si128, _mm_stream_si128)
DEFINE_STREAM(copy_stream_avx2, __attribute__((target("avx2"))), __m256i, _mm256_loadu_si256,
              _mm256_stream_si256)

static void
copy_stream_lines(char *dst, const char *src, size_t len_bytes)
{
    /* 512-bit stores were no faster, and lower the clock of some cores. */
    if (__builtin_cpu_supports("avx2"))
        copy_stream_avx2(dst, src, len_bytes);
    else
        copy_stream_sse2(dst, src, len_bytes);
}

/*
 * Only whole lines are streamed. The two ends share their lines with other data, so this copies
 * them with ordinary stores. Returns the lines between them.
 */
static struct copy_span
copy_ends(char *dst, const char *src, size_t len_bytes)
{
    const size_t head = (size_t)(-(uintptr_t)dst) & (LINE_BYTES - 1);

    if (len_bytes < head + LINE_BYTES) {
        if (len_bytes > 0)
            memcpy(dst, src, len_bytes);
        return (struct copy_span){.dst = dst, .src = src, .len_bytes = 0};
    }
    const size_t body = (len_bytes - head) & ~(LINE_BYTES - 1);
    const size_t tail = len_bytes - head - body;

    memcpy(dst, src, head);
    memcpy(dst + head + body, src + head + body, tail);
    return (struct copy_span){.dst = dst + head, .src = src + head, .len_bytes = body};
}

static void
copy_stream(void *dst, const void *src, size_t len_bytes)
{
    const struct copy_span lines = copy_ends(dst, src, len_bytes);

    copy_stream_lines(lines.dst, lines.src, lines.len_bytes);
    _mm_sfence();
}

/* Streams blocks[0], [stride], [2 * stride] and [3 * stride] in turn up to the length of the
 * shortest, then the rest of each. */
static void
copy_stream_four(char *dst, const struct rdt_block *blocks, size_t stride)
{
    struct copy_span lines[4];
    size_t steps = SIZE_MAX;

    for (size_t k = 0; k < 4; k++) {
        const struct rdt_block *block = &blocks[k * stride];

        lines[k] = copy_ends(dst + block->dst_off, block->src, block->len_bytes);
        if (lines[k].len_bytes / STEP_BYTES < steps)
            steps = lines[k].len_bytes / STEP_BYTES;
    }
    if (__builtin_cpu_supports("avx2"))
        copy_stream_avx2_four(lines, steps);
    else
        copy_stream_sse2_four(lines, steps);
    for (size_t k = 0; k < 4; k++)
        copy_stream_lines(lines[k].dst + steps * STEP_BYTES, lines[k].src + steps * STEP_BYTES,
                          lines[k].len_bytes - steps * STEP_BYTES);
}

/* The four blocks that are streamed together lie a quarter of the list apart: adjacent blocks of
 * 16 KiB are 15 % slower. */
static void
copy_stream_blocks(char *dst, const struct rdt_block *blocks, size_t count)
{
    const size_t quarter = count / 4;

    for (size_t i = 0; i < quarter; i++)
        copy_stream_four(dst, blocks + i, quarter);
    for (size_t i = 4 * quarter; i < count; i++) {
        const struct copy_span lines =
            copy_ends(dst + blocks[i].dst_off, blocks[i].src, blocks[i].len_bytes);

        copy_stream_lines(lines.dst, lines.src, lines.len_bytes);
    }
    _mm_sfence();
}

#else /* Other processors use memcpy: nothing else has been measured there. */

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

static void
copy_stream_blocks(char *dst, const struct rdt_block *blocks, size_t count)
{
    for (size_t i = 0; i < count; i++)
        rdti_copy_as(dst + blocks[i].dst_off, blocks[i].src, blocks[i].len_bytes, RDTI_COPY_STREAM);
}

#endif

void
rdti_copy_as(void *dst, const void *src, size_t len_bytes, enum rdti_copy_kind kind)
{
    if (len_bytes == 0) /* memcpy must not receive null pointers, even for zero bytes */
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

void
rdti_copy_blocks(void *dst, const struct rdt_block *blocks, size_t count, enum rdti_copy_kind kind)
{
    char *d = dst;

    if (kind == RDTI_COPY_STREAM) {
        copy_stream_blocks(d, blocks, count);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        /* the startup of rep movsb takes longer than memcpy of a short block */
        const bool is_short = blocks[i].len_bytes < RDTI_COPY_MOVSB_BLOCK_MIN_BYTES;

        rdti_copy_as(d + blocks[i].dst_off, blocks[i].src, blocks[i].len_bytes,
                     is_short ? RDTI_COPY_MEMCPY : kind);
    }
}

static const struct rdti_copy_table zen = {
    .measured_on = "Zen 1",
    .movsb_from_bytes = SIZE_MAX,
    .lanes_from_bytes = RDTI_COPY_ZEN_LANES_FROM_BYTES,
    .stream_from_bytes = {[RDTI_COPY_TO_PEER_READ] = RDTI_COPY_ZEN_STREAM_TO_PEER_FROM_BYTES,
                          [RDTI_COPY_TO_OWN] = RDTI_COPY_ZEN_STREAM_TO_OWN_FROM_BYTES},
    .board_stream_from_bytes = RDTI_COPY_BOARD_STREAM_FROM_BYTES,
};
static const struct rdti_copy_table zen4 = {
    .measured_on = "Zen 4",
    .movsb_from_bytes = SIZE_MAX,
    .lanes_from_bytes = 4 * RDTI_COPY_LANE_BYTES,
    .stream_from_bytes = {[RDTI_COPY_TO_PEER_READ] = RDTI_COPY_ZEN4_STREAM_TO_PEER_FROM_BYTES,
                          [RDTI_COPY_TO_OWN] = RDTI_COPY_ZEN4_STREAM_TO_OWN_FROM_BYTES},
    .board_stream_from_bytes = RDTI_COPY_BOARD_STREAM_FROM_BYTES,
};
static const struct rdti_copy_table zen5 = {
    .measured_on = "Zen 5",
    .movsb_from_bytes = RDTI_COPY_ZEN5_MOVSB_FROM_BYTES,
    .lanes_from_bytes = 4 * RDTI_COPY_LANE_BYTES,
    .stream_from_bytes = {[RDTI_COPY_TO_PEER_READ] = RDTI_COPY_ZEN5_STREAM_TO_PEER_FROM_BYTES,
                          [RDTI_COPY_TO_OWN] = RDTI_COPY_ZEN5_STREAM_TO_OWN_FROM_BYTES},
    .board_stream_from_bytes = RDTI_COPY_BOARD_STREAM_FROM_BYTES,
};

static const struct rdti_copy_table cove = {
    .measured_on = "Raptor Cove",
    .movsb_from_bytes = RDTI_COPY_COVE_MOVSB_FROM_BYTES,
    .lanes_from_bytes = RDTI_COPY_COVE_LANES_FROM_BYTES,
    .stream_from_bytes = {[RDTI_COPY_TO_PEER_READ] = RDTI_COPY_COVE_STREAM_TO_PEER_FROM_BYTES,
                          [RDTI_COPY_TO_OWN] = RDTI_COPY_COVE_STREAM_TO_OWN_FROM_BYTES},
    .board_stream_from_bytes = RDTI_COPY_COVE_BOARD_STREAM_FROM_BYTES,
};

/* AMD: Processor Programming References for families 17h (models from 30h on are Zen 2) and 1Ah. */
#define ZEN_FAMILY 23
#define ZEN2_FIRST_MODEL 0x30
#define ZEN5_FAMILY 26
/* Most of Intel's Core and Xeon. Some hypervisors report a wrong model. */
#define INTEL_FAMILY 6

const struct rdti_copy_table *
rdti_copy_table_of(uint32_t family, uint32_t model)
{
    if (family == ZEN_FAMILY && model < ZEN2_FIRST_MODEL)
        return &zen;
    if (family == INTEL_FAMILY)
        return &cove;
    return family == ZEN5_FAMILY ? &zen5 : &zen4;
}

static const struct rdti_copy_table *
copy_table_of_this_processor(void)
{
#if defined(__x86_64__)
    uint32_t eax, ebx, ecx, edx;

    if ((__builtin_cpu_is("amd") || __builtin_cpu_is("intel")) &&
        __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0) {
        const uint32_t family = eax >> 8 & 0xf;
        const uint32_t model = (eax >> 4 & 0xf) | (eax >> 12 & 0xf0);

        return rdti_copy_table_of(family == 0xf ? family + (eax >> 20 & 0xff) : family, model);
    }
#endif
    return rdti_copy_table_of(0, 0);
}

const struct rdti_copy_table *
rdti_copy_table(void)
{
    /* relaxed: the tables are constant, and every thread finds the same one. Kept: cpuid traps out
     * of a virtual machine, which takes microseconds. */
    static _Atomic(const struct rdti_copy_table *) own;
    const struct rdti_copy_table *table = atomic_load_explicit(&own, memory_order_relaxed);

    if (table == NULL) {
        table = copy_table_of_this_processor();
        atomic_store_explicit(&own, table, memory_order_relaxed);
    }
    return table;
}

enum rdti_copy_kind
rdti_copy_choose_by(const struct rdti_copy_table *table, size_t len_bytes,
                    enum rdti_copy_pattern pattern)
{
    if (len_bytes >= table->stream_from_bytes[pattern])
        return RDTI_COPY_STREAM;
    return len_bytes >= table->movsb_from_bytes ? RDTI_COPY_MOVSB : RDTI_COPY_MEMCPY;
}

#if defined(__x86_64__)
/* Enhanced REP MOVSB: cpuid leaf 7, EBX bit 9. An emulator without it copies byte by byte. */
static bool
copy_is_movsb_fast(void)
{
    enum { UNKNOWN, SLOW, FAST };
    static atomic_int own; /* relaxed, and kept: as in rdti_copy_table() */
    int is_fast = atomic_load_explicit(&own, memory_order_relaxed);
    uint32_t eax, ebx, ecx, edx;

    if (is_fast == UNKNOWN) {
        is_fast =
            __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx >> 9 & 1) ? FAST : SLOW;
        atomic_store_explicit(&own, is_fast, memory_order_relaxed);
    }
    return is_fast == FAST;
}
#else
static bool
copy_is_movsb_fast(void)
{
    return false;
}
#endif

enum rdti_copy_kind
rdti_copy_choose(size_t len_bytes, enum rdti_copy_pattern pattern)
{
    const enum rdti_copy_kind kind = rdti_copy_choose_by(rdti_copy_table(), len_bytes, pattern);

    return kind == RDTI_COPY_MOVSB && !copy_is_movsb_fast() ? RDTI_COPY_MEMCPY : kind;
}

void
rdti_copy(void *dst, const void *src, size_t len_bytes, enum rdti_copy_pattern pattern)
{
    rdti_copy_as(dst, src, len_bytes, rdti_copy_choose(len_bytes, pattern));
}
