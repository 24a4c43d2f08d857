/* SPDX-License-Identifier: Apache-2.0
 * rdti_copy_blocks(): every byte of every block and no byte next to them, for all ways to store. */
#include "harness.h"

#include "base/memory/copy.h"

#define DST_BYTES ((size_t)4 << 20)
#define GUARD 0xee

static uint64_t random_state = 88172645463325252u;

static size_t
below(size_t bound)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (size_t)(random_state % bound);
}

/* Blocks one behind the other with gaps of 0 to 99 bytes; fills in `want` what dst has to be. */
static size_t
make_blocks(struct rdt_block *blocks, size_t count, size_t max_bytes, const uint8_t *src,
            uint8_t *want)
{
    size_t at = below(100);
    size_t used = 0;

    memset(want, GUARD, DST_BYTES);
    while (used < count) {
        const size_t len = below(max_bytes + 1);

        if (at + len + 100 > DST_BYTES)
            break;
        const size_t from = below(DST_BYTES - len);
        blocks[used++] = (struct rdt_block){.src = src + from, .len_bytes = len, .dst_off = at};
        memcpy(want + at, src + from, len);
        at += len + below(100);
    }
    return used;
}

static void
check_all_kinds(size_t count, size_t max_bytes)
{
    uint8_t *src = malloc(DST_BYTES);
    uint8_t *dst = malloc(DST_BYTES);
    uint8_t *want = malloc(DST_BYTES);
    struct rdt_block *blocks = malloc((count + 1) * sizeof(*blocks));

    CHECK(src != NULL && dst != NULL && want != NULL && blocks != NULL);
    for (size_t i = 0; i < DST_BYTES; i++)
        src[i] = (uint8_t)(i * 2654435761u >> 13);
    for (int kind = RDTI_COPY_MEMCPY; kind <= RDTI_COPY_STREAM; kind++) {
        const size_t used = make_blocks(blocks, count, max_bytes, src, want);

        memset(dst, GUARD, DST_BYTES);
        rdti_copy_blocks(dst, blocks, used, (enum rdti_copy_kind)kind);
        CHECK_MEM_EQ(dst, want, DST_BYTES);
    }
    free(src);
    free(dst);
    free(want);
    free(blocks);
}

TEST(no_block_changes_nothing)
{
    uint8_t byte = GUARD;

    rdti_copy_blocks(&byte, NULL, 0, RDTI_COPY_STREAM);
    rdti_copy_blocks(&byte, &(struct rdt_block){0}, 1, RDTI_COPY_STREAM);
    CHECK_INT_EQ(byte, GUARD);
}

TEST(few_blocks_of_every_small_size)
{
    for (size_t count = 1; count <= 9; count++)
        for (size_t max_bytes = 1; max_bytes < 700; max_bytes += 83 * TEST_TSAN_STRIDE)
            check_all_kinds(count, max_bytes);
}

TEST(many_blocks_of_some_kib)
{
    for (int round = 0; round < 5; round++)
        check_all_kinds(1000, 8000);
}

TEST(large_blocks_beside_small_ones)
{
    for (int round = 0; round < 5; round++)
        check_all_kinds(7, (size_t)2 << 20);
}

TEST_MAIN()
