/* SPDX-License-Identifier: Apache-2.0
 * CRC-32C. The instruction has a latency of three cycles and a throughput of one per cycle: one
 * stream reaches a third of that, four hide the latency and are bound by memory. Each chunk is a
 * stream, so sums need not be combined. */
#include "base/crc32c.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#define POLYNOMIAL UINT32_C(0x82f63b78) /* reflected */
#define STREAMS 4

static uint32_t table[256];
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void
crc32c_make_table(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ ((crc & 1) != 0 ? POLYNOMIAL : 0);
        table[i] = crc;
    }
}

uint32_t
rdti_crc32c_by_table(const void *data, size_t len_bytes)
{
    const uint8_t *p = data;
    uint32_t crc = UINT32_MAX;

    (void)pthread_once(&table_once, crc32c_make_table);
    for (size_t i = 0; i < len_bytes; i++)
        crc = crc >> 8 ^ table[(crc ^ p[i]) & 0xff];
    return ~crc;
}

#if defined(__x86_64__)
#include <immintrin.h>
#define HARDWARE_NAME "sse4.2"
#define HARDWARE __attribute__((target("sse4.2")))

static bool
crc32c_has_hardware(void)
{
    return __builtin_cpu_supports("sse4.2") != 0;
}

HARDWARE static inline uint32_t
crc32c_step8(uint32_t crc, uint64_t word)
{
    return (uint32_t)_mm_crc32_u64(crc, word);
}

HARDWARE static inline uint32_t
crc32c_step1(uint32_t crc, uint8_t byte)
{
    return _mm_crc32_u8(crc, byte);
}
#elif defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#include <sys/auxv.h>
#define HARDWARE_NAME "armv8-crc"
#if defined(__clang__) /* before 16, its arm_acle.h has nothing for functions with a target */
#define HARDWARE __attribute__((target("crc")))
#define crc_of_word __builtin_arm_crc32cd
#define crc_of_byte __builtin_arm_crc32cb
#else
#include <arm_acle.h>
#define HARDWARE __attribute__((target("+crc")))
#define crc_of_word __crc32cd
#define crc_of_byte __crc32cb
#endif

static bool
crc32c_has_hardware(void)
{
    return (getauxval(AT_HWCAP) & 1UL << 7) != 0; /* HWCAP_CRC32 */
}

HARDWARE static inline uint32_t
crc32c_step8(uint32_t crc, uint64_t word)
{
    return crc_of_word(crc, word);
}

HARDWARE static inline uint32_t
crc32c_step1(uint32_t crc, uint8_t byte)
{
    return crc_of_byte(crc, byte);
}
#endif

#if defined(HARDWARE)
static inline uint64_t
crc32c_word_at(const uint8_t *p)
{
    uint64_t word;

    memcpy(&word, p, sizeof(word));
    return word;
}

HARDWARE static uint32_t
crc32c_sum_one(const uint8_t *p, size_t len_bytes)
{
    uint32_t crc = UINT32_MAX;

    for (; len_bytes >= sizeof(uint64_t); len_bytes -= sizeof(uint64_t)) {
        crc = crc32c_step8(crc, crc32c_word_at(p));
        p += sizeof(uint64_t);
    }
    for (; len_bytes > 0; len_bytes--)
        crc = crc32c_step1(crc, *p++);
    return ~crc;
}

/* STREAMS consecutive whole chunks. */
HARDWARE static void
crc32c_sum_streams(const uint8_t *p, uint32_t out[STREAMS])
{
    uint32_t a = UINT32_MAX;
    uint32_t b = UINT32_MAX;
    uint32_t c = UINT32_MAX;
    uint32_t d = UINT32_MAX;

    for (size_t i = 0; i < RDTI_SUM_CHUNK_BYTES; i += sizeof(uint64_t)) {
        a = crc32c_step8(a, crc32c_word_at(p + i));
        b = crc32c_step8(b, crc32c_word_at(p + i + RDTI_SUM_CHUNK_BYTES));
        c = crc32c_step8(c, crc32c_word_at(p + i + 2 * RDTI_SUM_CHUNK_BYTES));
        d = crc32c_step8(d, crc32c_word_at(p + i + 3 * RDTI_SUM_CHUNK_BYTES));
    }
    out[0] = ~a;
    out[1] = ~b;
    out[2] = ~c;
    out[3] = ~d;
}
#else
#define HARDWARE_NAME "table"

static bool
crc32c_has_hardware(void)
{
    return false;
}

static uint32_t
crc32c_sum_one(const uint8_t *p, size_t len_bytes)
{
    return rdti_crc32c_by_table(p, len_bytes);
}

static void
crc32c_sum_streams(const uint8_t *p, uint32_t out[STREAMS])
{
    for (size_t i = 0; i < STREAMS; i++)
        out[i] = crc32c_sum_one(p + i * RDTI_SUM_CHUNK_BYTES, RDTI_SUM_CHUNK_BYTES);
}
#endif

uint32_t
rdti_crc32c(const void *data, size_t len_bytes)
{
    return crc32c_has_hardware() ? crc32c_sum_one(data, len_bytes)
                                 : rdti_crc32c_by_table(data, len_bytes);
}

void
rdti_crc32c_chunks(const void *data, size_t len_bytes, uint32_t *out)
{
    const uint8_t *p = data;

    for (; crc32c_has_hardware() && len_bytes >= STREAMS * RDTI_SUM_CHUNK_BYTES; out += STREAMS) {
        crc32c_sum_streams(p, out);
        p += STREAMS * RDTI_SUM_CHUNK_BYTES;
        len_bytes -= STREAMS * RDTI_SUM_CHUNK_BYTES;
    }
    while (len_bytes > 0) {
        const size_t len = len_bytes < RDTI_SUM_CHUNK_BYTES ? len_bytes : RDTI_SUM_CHUNK_BYTES;
        *out++ = rdti_crc32c(p, len);
        p += len;
        len_bytes -= len;
    }
}

const char *
rdti_crc32c_name(void)
{
    return crc32c_has_hardware() ? HARDWARE_NAME : "table";
}
