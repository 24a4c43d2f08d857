/* SPDX-License-Identifier: Apache-2.0
 * Copies by each kind of store: the right bytes, none beyond, and the kind that the table says. */
#include "base/memory/copy.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "base/limits.h"
#include "harness.h"

static const enum rdti_copy_kind kinds[] = {RDTI_COPY_MEMCPY, RDTI_COPY_MOVSB, RDTI_COPY_STREAM};

#define GUARD_BYTES 192

static uint8_t
pattern(size_t i)
{
    return (uint8_t)(i * 131 + (i >> 8) * 7 + (i >> 16) * 29 + 1);
}

/* Copy and check the bytes and that nothing next to them changed. */
static void
check_copy(uint8_t *dst_base, uint8_t *src_base, size_t dst_shift, size_t src_shift,
           size_t len_bytes, enum rdti_copy_kind kind)
{
    uint8_t *dst = dst_base + GUARD_BYTES + dst_shift;
    const uint8_t *src = src_base + src_shift;

    memset(dst - GUARD_BYTES, 0xee, len_bytes + 2 * GUARD_BYTES);
    rdti_copy_as(dst, src, len_bytes, kind);
    if (memcmp(dst, src, len_bytes) != 0)
        CHECK_MEM_EQ(dst, src, len_bytes);
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        CHECK_MSG(dst[-1 - (ptrdiff_t)i] == 0xee && dst[len_bytes + i] == 0xee,
                  "kind %d wrote next to its %zu bytes at shift %zu", (int)kind, len_bytes,
                  dst_shift);
    }
}

static uint8_t *
buffer(size_t len_bytes)
{
    uint8_t *p = aligned_alloc(64, (len_bytes + 63) & ~(size_t)63);

    CHECK_NOT_NULL(p);
    for (size_t i = 0; i < len_bytes; i++)
        p[i] = pattern(i);
    return p;
}

TEST(every_kind_copies_every_short_length_at_every_alignment)
{
    uint8_t *dst = buffer(1024 + 2 * GUARD_BYTES);
    uint8_t *src = buffer(1024);

    for (size_t k = 0; k < 3; k++) {
        for (size_t len = 0; len <= 330; len++) {
            for (size_t shift = 0; shift < 64; shift += len < 140 ? 1 : 7)
                check_copy(dst, src, shift, (shift * 5 + len) % 64, len, kinds[k]);
        }
    }
    free(dst);
    free(src);
}

/* Around the place where one stream becomes four lanes, and where several blocks of them follow. */
TEST_TIMEOUT(every_kind_copies_around_the_lanes, 60)
{
    const size_t block = 4 * RDTI_COPY_LANE_BYTES;
    const size_t least = rdti_copy_table()->lanes_from_bytes;
    static const ptrdiff_t offsets[] = {-129, -64, -1, 0, 1, 63, 64, 65, 127, 128, 200};
    uint8_t *dst = buffer(least + block + 4096);
    uint8_t *src = buffer(least + block + 4096);

    for (size_t k = 0; k < 3; k++) {
        for (size_t blocks = 0; blocks <= 1; blocks++) {
            for (size_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
                const size_t len = (size_t)((ptrdiff_t)(least + blocks * block) + offsets[i]);

                check_copy(dst, src, 0, 0, len, kinds[k]);
                check_copy(dst, src, 13, 3, len, kinds[k]);
            }
        }
    }
    free(dst);
    free(src);
}

TEST(nothing_is_copied_from_and_to_null)
{
    for (size_t k = 0; k < 3; k++)
        rdti_copy_as(NULL, NULL, 0, kinds[k]);
    rdti_copy(NULL, NULL, 0, RDTI_COPY_TO_PEER_READ);
}

/* Not a byte beyond the source is read: it ends at an unmapped page. */
TEST(no_kind_reads_beyond_the_source)
{
    char *pages = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *dst = buffer(8192);

    CHECK(pages != MAP_FAILED);
    CHECK_INT_EQ(munmap(pages + 8192, 4096), 0);
    CHECK_INT_EQ(munmap(pages, 4096), 0);
    for (size_t k = 0; k < 3; k++) {
        for (size_t len = 1; len <= 4096; len += len < 200 ? 1 : 61) {
            rdti_copy_as(dst, pages + 8192 - len, len, kinds[k]);
            rdti_copy_as(dst + 3, pages + 4096, len, kinds[k]);
        }
    }
    free(dst);
}

static enum rdti_copy_kind
kind_on(uint32_t family, size_t len_bytes, enum rdti_copy_pattern pattern)
{
    const uint32_t model = family == 6 ? 0xcf : 1;

    return rdti_copy_choose_by(rdti_copy_table_of(family, model), len_bytes, pattern);
}

TEST(the_tables_change_where_limits_say)
{
    enum { INTEL = 6, ZEN_AND_2 = 23, ZEN3_AND_4 = 25, ZEN5 = 26 };
    const size_t peer1 = RDTI_COPY_ZEN_STREAM_TO_PEER_FROM_BYTES;
    const size_t own1 = RDTI_COPY_ZEN_STREAM_TO_OWN_FROM_BYTES;
    const size_t peer = RDTI_COPY_ZEN4_STREAM_TO_PEER_FROM_BYTES;
    const size_t own = RDTI_COPY_ZEN4_STREAM_TO_OWN_FROM_BYTES;
    const size_t movsb = RDTI_COPY_ZEN5_MOVSB_FROM_BYTES;
    const size_t peer5 = RDTI_COPY_ZEN5_STREAM_TO_PEER_FROM_BYTES;
    const size_t own5 = RDTI_COPY_ZEN5_STREAM_TO_OWN_FROM_BYTES;

    CHECK_INT_EQ(kind_on(ZEN_AND_2, peer1 - 1, RDTI_COPY_TO_PEER_READ), RDTI_COPY_MEMCPY);
    CHECK_INT_EQ(kind_on(ZEN_AND_2, peer1, RDTI_COPY_TO_PEER_READ), RDTI_COPY_STREAM);
    CHECK_INT_EQ(kind_on(ZEN_AND_2, own1 - 1, RDTI_COPY_TO_OWN), RDTI_COPY_MEMCPY);
    CHECK_INT_EQ(kind_on(ZEN_AND_2, own1, RDTI_COPY_TO_OWN), RDTI_COPY_STREAM);
    CHECK_INT_EQ(kind_on(ZEN3_AND_4, 0, RDTI_COPY_TO_PEER_READ), RDTI_COPY_MEMCPY);
    CHECK_INT_EQ(kind_on(ZEN3_AND_4, peer - 1, RDTI_COPY_TO_PEER_READ), RDTI_COPY_MEMCPY);
    CHECK_INT_EQ(kind_on(ZEN3_AND_4, peer, RDTI_COPY_TO_PEER_READ), RDTI_COPY_STREAM);
    CHECK_INT_EQ(kind_on(ZEN3_AND_4, SIZE_MAX, RDTI_COPY_TO_PEER_READ), RDTI_COPY_STREAM);
    CHECK_INT_EQ(kind_on(ZEN3_AND_4, own - 1, RDTI_COPY_TO_OWN), RDTI_COPY_MEMCPY);
    CHECK_INT_EQ(kind_on(ZEN3_AND_4, own, RDTI_COPY_TO_OWN), RDTI_COPY_STREAM);
    CHECK_INT_EQ(kind_on(ZEN5, movsb - 1, RDTI_COPY_TO_PEER_READ), RDTI_COPY_MEMCPY);
    CHECK_INT_EQ(kind_on(ZEN5, movsb, RDTI_COPY_TO_PEER_READ), RDTI_COPY_MOVSB);
    CHECK_INT_EQ(kind_on(ZEN5, peer5 - 1, RDTI_COPY_TO_PEER_READ), RDTI_COPY_MOVSB);
    CHECK_INT_EQ(kind_on(ZEN5, peer5, RDTI_COPY_TO_PEER_READ), RDTI_COPY_STREAM);
    CHECK_INT_EQ(kind_on(ZEN5, peer5, RDTI_COPY_TO_OWN), RDTI_COPY_MOVSB);
    CHECK_INT_EQ(kind_on(ZEN5, own5, RDTI_COPY_TO_OWN), RDTI_COPY_STREAM);
    CHECK_INT_EQ(kind_on(INTEL, RDTI_COPY_COVE_MOVSB_FROM_BYTES, RDTI_COPY_TO_PEER_READ),
                 RDTI_COPY_MOVSB);
    CHECK_INT_EQ(kind_on(INTEL, RDTI_COPY_COVE_STREAM_TO_PEER_FROM_BYTES, RDTI_COPY_TO_PEER_READ),
                 RDTI_COPY_STREAM);
    CHECK_INT_EQ(kind_on(INTEL, RDTI_COPY_COVE_STREAM_TO_OWN_FROM_BYTES - 1, RDTI_COPY_TO_OWN),
                 RDTI_COPY_MOVSB);
    CHECK_INT_EQ(kind_on(INTEL, RDTI_COPY_COVE_STREAM_TO_OWN_FROM_BYTES, RDTI_COPY_TO_OWN),
                 RDTI_COPY_STREAM);
    CHECK(rdti_copy_table_of(INTEL, 0x8f) == rdti_copy_table_of(INTEL, 0xcf));
    CHECK(rdti_copy_table_of(INTEL, 0xa7) == rdti_copy_table_of(INTEL, 0xcf));
    /* What nobody has measured: another maker's, Zen 2, and older ones of Intel's, which have more
     * in common with those that were. */
    CHECK(rdti_copy_table_of(0, 0) == rdti_copy_table_of(ZEN3_AND_4, 1));
    CHECK(rdti_copy_table_of(INTEL, 0x55) == rdti_copy_table_of(INTEL, 0xcf));
    CHECK(rdti_copy_table_of(ZEN_AND_2, 0x31) == rdti_copy_table_of(ZEN3_AND_4, 1));
    /* Of Zen 5 nothing says that boards are better off with ordinary stores. */
    CHECK_UINT_EQ(rdti_copy_table_of(ZEN_AND_2, 1)->board_stream_from_bytes, 4096);
    CHECK_UINT_EQ(rdti_copy_table_of(ZEN3_AND_4, 1)->board_stream_from_bytes, 4096);
    CHECK_UINT_EQ(rdti_copy_table_of(ZEN5, 1)->board_stream_from_bytes, 4096);
    CHECK_UINT_EQ(rdti_copy_table_of(INTEL, 0xcf)->board_stream_from_bytes,
                  RDTI_COPY_COVE_BOARD_STREAM_FROM_BYTES);
    CHECK(rdti_copy_table() == rdti_copy_table_of(INTEL, 0xcf) ||
          rdti_copy_table() == rdti_copy_table_of(ZEN_AND_2, 1) ||
          rdti_copy_table() == rdti_copy_table_of(ZEN3_AND_4, 1) ||
          rdti_copy_table() == rdti_copy_table_of(ZEN5, 1));
}

/* Every kind is ordered before later stores of its thread, as copy.h says of STREAM: without its
 * fence the reader would now and then see a flag before the bytes. rep movsb orders its own bytes
 * against nothing but what comes after all of them. */
enum { LITMUS_BYTES = 4096, LITMUS_ROUNDS = 20000 / TEST_ALIKE_SHARE };
static _Alignas(64) uint8_t litmus_buf[LITMUS_BYTES];
static _Atomic uint32_t litmus_flag;
static _Atomic uint32_t litmus_answer;

/* acquire: pairs with the other side's release. Yields at length: the machine may have one core. */
static void
await(_Atomic uint32_t *word, uint32_t want)
{
    for (unsigned spins = 1; atomic_load_explicit(word, memory_order_acquire) != want; spins++)
        if (spins % 4096 == 0)
            (void)sched_yield();
}

static void *
litmus_writer(void *arg)
{
    const enum rdti_copy_kind *kind = arg;
    static uint8_t src[LITMUS_BYTES];

    for (uint32_t round = 1; round <= LITMUS_ROUNDS; round++) {
        memset(src, (int)(round & 0xff), sizeof(src));
        rdti_copy_as(litmus_buf, src, sizeof(src), *kind);
        /* release: pairs with await(); x86 makes it a plain store, so that only the copy's own
         * fence orders the stores that went past the cache */
        atomic_store_explicit(&litmus_flag, round, memory_order_release);
        await(&litmus_answer, round);
    }
    return arg;
}

static void
litmus(enum rdti_copy_kind kind)
{
    pthread_t writer;

    atomic_store(&litmus_flag, 0);
    atomic_store(&litmus_answer, 0);
    CHECK_INT_EQ(pthread_create(&writer, NULL, litmus_writer, &kind), 0);
    for (uint32_t round = 1; round <= LITMUS_ROUNDS; round++) {
        await(&litmus_flag, round);
        /* Backwards: the end was written last. */
        for (size_t i = LITMUS_BYTES; i-- > 0;)
            CHECK_MSG(litmus_buf[i] == (round & 0xff), "round %u, byte %zu", round, i);
        atomic_store_explicit(&litmus_answer, round, memory_order_release); /* pairs with await() */
    }
    CHECK_INT_EQ(pthread_join(writer, NULL), 0);
}

TEST_TIMEOUT(a_copy_is_seen_before_a_later_flag, 60)
{
    for (size_t k = 0; k < 3; k++)
        litmus(kinds[k]);
}

TEST_MAIN()
