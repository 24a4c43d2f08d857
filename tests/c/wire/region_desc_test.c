/* SPDX-License-Identifier: Apache-2.0
 * The descriptor of a remote region, which users store and pass on as they like. */
#include "codecs.h"

TEST(region_round_trips)
{
    check_round_trips("region");
}

TEST(region_rejects_every_truncation)
{
    check_truncations("region");
}

/* The sum finds every flipped bit, so none becomes another address. */
TEST(region_refuses_every_bit_flip)
{
    const struct codec *codec = codec_named("region");
    struct rng rng = {.state = 5};
    union any_value value;
    union any_value out;
    uint8_t wire[WIRE_MAX_BYTES];

    for (int round = 0; round < 20; round++) {
        const size_t len_bytes = encode_random(codec, &rng, &value, wire);
        for (size_t bit = 0; bit < 8 * len_bytes; bit++) {
            wire[bit / 8] ^= (uint8_t)(1u << bit % 8);
            CHECK_INT_EQ(decode_strictly(codec, wire, len_bytes, &out), RDT_EPROTO);
            wire[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
    }
}

static const struct rdt_remote_region sample = {
    .owner = {0x11, 0x12},
    .addr = UINT64_C(0x3837363534333231),
    .len_bytes = UINT64_C(0x4847464544434241),
    .segment_off = UINT64_C(0x5857565554535251),
    .segment = 0x64636261,
    .index = 0x74737271,
    .generation = 0x2c2b2a29,
    .rkey = 0x1c1b1a19,
};

TEST(region_lies_at_the_documented_offsets)
{
    uint8_t wire[RDT_REMOTE_REGION_BYTES];

    rdt_remote_region_encode(&sample, wire);
    CHECK_MEM_EQ(wire, "\x11\x12\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16);
    CHECK_MEM_EQ(wire + 16, "12345678ABCDEFGHQRSTUVWXabcdqrst)*+,\x19\x1a\x1b\x1cRR\1\0", 44);
    /* FNV-1a as in the specification of that hash, apart from the library's. */
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < 60; i++)
        hash = (hash ^ wire[i]) * UINT64_C(0x100000001b3);
    CHECK_HEX_EQ(rdti_get_u32(wire + 60), (uint32_t)(hash ^ hash >> 32));
}

/* The sum is for accidents; these bytes were made to fit it. */
static void
seal(uint8_t wire[RDT_REMOTE_REGION_BYTES])
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < 60; i++)
        hash = (hash ^ wire[i]) * UINT64_C(0x100000001b3);
    rdti_put_u32(wire + 60, (uint32_t)((hash ^ hash >> 32) & UINT32_MAX));
}

TEST(region_refuses_ranges_that_wrap_and_other_versions)
{
    uint8_t wire[RDT_REMOTE_REGION_BYTES];
    union any_value out;
    struct rdt_error err;
    const struct codec *codec = codec_named("region");

    rdt_remote_region_encode(&sample, wire);
    rdti_put_u64(wire + 16, UINT64_MAX - sample.len_bytes);
    seal(wire);
    CHECK_INT_EQ(decode_strictly(codec, wire, sizeof(wire), &out), RDT_OK);
    rdti_put_u64(wire + 16, UINT64_MAX - sample.len_bytes + 1);
    seal(wire);
    CHECK_INT_EQ(decode_strictly(codec, wire, sizeof(wire), &out), RDT_EPROTO);
    rdt_remote_region_encode(&sample, wire);
    rdti_put_u64(wire + 32, UINT64_MAX);
    seal(wire);
    CHECK_INT_EQ(decode_strictly(codec, wire, sizeof(wire), &out), RDT_EPROTO);
    rdt_remote_region_encode(&sample, wire);
    rdti_put_u16(wire + 58, 9);
    seal(wire);
    CHECK_STATUS(rdt_remote_region_decode(wire, sizeof(wire), &out.region, &err), RDT_EVERSION);
    CHECK_STR_CONTAINS(err.message, "version 9");
    rdti_put_u16(wire + 56, 1);
    seal(wire);
    CHECK_INT_EQ(decode_strictly(codec, wire, sizeof(wire), &out), RDT_EPROTO);
}

TEST(region_decode_refuses_null)
{
    struct rdt_remote_region out;
    const uint8_t wire[RDT_REMOTE_REGION_BYTES] = {0};

    CHECK_STATUS(rdt_remote_region_decode(NULL, 64, &out, NULL), RDT_EINVAL);
    CHECK_STATUS(rdt_remote_region_decode(wire, 64, NULL, NULL), RDT_EINVAL);
    CHECK_STATUS(rdt_remote_region_decode(wire, 64, &out, NULL), RDT_EPROTO);
}

TEST_MAIN()
