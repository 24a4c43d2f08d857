/* SPDX-License-Identifier: Apache-2.0
 * CRC-32C against known vectors, and the instruction against the table. */
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "harness.h"

/* RFC 3720, B.4, and the check value of the catalogue of CRCs. */
TEST(known_vectors)
{
    uint8_t bytes[32];
    uint32_t (*const ways[])(const void *, size_t) = {rdti_crc32c, rdti_crc32c_by_table};

    for (size_t w = 0; w < 2; w++) {
        memset(bytes, 0, sizeof(bytes));
        CHECK_UINT_EQ(ways[w](bytes, 32), 0x8a9136aa);
        memset(bytes, 0xff, sizeof(bytes));
        CHECK_UINT_EQ(ways[w](bytes, 32), 0x62a8ab43);
        for (size_t i = 0; i < 32; i++)
            bytes[i] = (uint8_t)i;
        CHECK_UINT_EQ(ways[w](bytes, 32), 0x46dd794e);
        for (size_t i = 0; i < 32; i++)
            bytes[i] = (uint8_t)(31 - i);
        CHECK_UINT_EQ(ways[w](bytes, 32), 0x113fdb5c);
        CHECK_UINT_EQ(ways[w]("123456789", 9), 0xe3069283);
        CHECK_UINT_EQ(ways[w]("", 0), 0);
    }
}

static uint8_t *
noise(size_t len_bytes)
{
    uint8_t *bytes = malloc(len_bytes);
    uint32_t state = 1;

    for (size_t i = 0; i < len_bytes; i++) {
        state = state * 1664525 + 1013904223;
        bytes[i] = (uint8_t)(state >> 24);
    }
    return bytes;
}

TEST(the_instruction_and_the_table_agree_at_every_offset_and_length)
{
    uint8_t *bytes = noise(600);

    for (size_t off = 0; off < 16; off++)
        for (size_t len = 0; len < 500; len++)
            CHECK_UINT_EQ(rdti_crc32c(bytes + off, len), rdti_crc32c_by_table(bytes + off, len));
    free(bytes);
}

TEST(each_chunk_has_the_sum_of_its_bytes)
{
    static const size_t lens[] = {0,
                                  1,
                                  RDTI_SUM_CHUNK_BYTES - 1,
                                  RDTI_SUM_CHUNK_BYTES,
                                  RDTI_SUM_CHUNK_BYTES + 1,
                                  4 * RDTI_SUM_CHUNK_BYTES,
                                  9 * RDTI_SUM_CHUNK_BYTES + 77};
    uint8_t *bytes = noise(10 * RDTI_SUM_CHUNK_BYTES);
    uint32_t sums[12];

    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        const size_t count = rdti_sum_count(lens[i]);
        memset(sums, 0xa5, sizeof(sums));
        rdti_crc32c_chunks(bytes + 3, lens[i], sums);
        for (size_t k = 0; k < count; k++) {
            const size_t left = lens[i] - k * RDTI_SUM_CHUNK_BYTES;
            const size_t len = left < RDTI_SUM_CHUNK_BYTES ? left : RDTI_SUM_CHUNK_BYTES;
            CHECK_UINT_EQ(sums[k], rdti_crc32c_by_table(bytes + 3 + k * RDTI_SUM_CHUNK_BYTES, len));
        }
        CHECK_UINT_EQ(sums[count], 0xa5a5a5a5); /* nothing after them */
    }
    free(bytes);
}

TEST(one_bit_changes_the_sum_of_its_chunk_and_of_no_other)
{
    enum { CHUNKS = 5 };
    uint8_t *bytes = noise(CHUNKS * RDTI_SUM_CHUNK_BYTES);
    uint32_t before[CHUNKS];
    uint32_t after[CHUNKS];

    rdti_crc32c_chunks(bytes, CHUNKS * RDTI_SUM_CHUNK_BYTES, before);
    for (size_t bit = 0; bit < 8; bit++) {
        bytes[3 * RDTI_SUM_CHUNK_BYTES + 1234] ^= (uint8_t)(1u << bit);
        rdti_crc32c_chunks(bytes, CHUNKS * RDTI_SUM_CHUNK_BYTES, after);
        for (size_t k = 0; k < CHUNKS; k++)
            CHECK((before[k] == after[k]) == (k != 3));
        bytes[3 * RDTI_SUM_CHUNK_BYTES + 1234] ^= (uint8_t)(1u << bit);
    }
    free(bytes);
}

TEST_MAIN()
