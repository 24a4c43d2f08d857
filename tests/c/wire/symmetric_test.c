/* SPDX-License-Identifier: Apache-2.0
 * What members tell each other of an allocation of symmetric memory. */
#include "codecs.h"

static const struct rdti_card sample = {.number = 0x11,
                                        .buffer_bytes = 0x22,
                                        .pad_bytes = 0x33,
                                        .buffer = {.off_bytes = 0x44,
                                                   .region = {.len_bytes = 0x55}}};

TEST(cards_round_trip)
{
    check_round_trips("card");
}

TEST(cards_reject_every_truncation)
{
    check_truncations("card");
}

TEST(cards_survive_every_bit_flip)
{
    check_bit_flips("card");
}

TEST(a_card_lies_at_the_documented_offsets)
{
    const uint8_t zeros[RDTI_PLACE_BYTES] = {0};
    uint8_t region[RDT_REMOTE_REGION_BYTES];
    uint8_t wire[RDTI_CARD_BYTES];
    struct rdti_card nobodys = sample;

    rdti_card_encode(&sample, wire);
    rdt_remote_region_encode(&sample.buffer.region, region);
    for (size_t i = 0; i < 4; i++)
        CHECK_UINT_EQ(rdti_get_u64(wire + 8 * i), 0x11 * (i + 1));
    CHECK_MEM_EQ(wire + 32, region, sizeof(region));
    nobodys.number = RDTI_CARD_NOBODYS;
    rdti_card_encode(&nobodys, wire);
    CHECK_MEM_EQ(wire + 24, zeros, sizeof(zeros));
}

TEST(a_card_refuses_each_bad_field)
{
    const struct codec *codec = codec_named("card");
    uint8_t wire[RDTI_CARD_BYTES];
    union any_value out;

    rdti_card_encode(&sample, wire);
    wire[24] = 0x55; /* at the region's end, and after it */
    CHECK_INT_EQ(decode_strictly(codec, wire, sizeof(wire), &out), RDT_OK);
    wire[24] = 0x56;
    CHECK_INT_EQ(decode_strictly(codec, wire, sizeof(wire), &out), RDT_EPROTO);
    memset(wire + 24, 0xff, 8);
    CHECK_INT_EQ(decode_strictly(codec, wire, sizeof(wire), &out), RDT_EPROTO);
    memset(wire, 0xff, 8); /* nobody's, with a region all the same */
    memset(wire + 24, 0, 8);
    CHECK_INT_EQ(decode_strictly(codec, wire, sizeof(wire), &out), RDT_EPROTO);
    memset(wire + 32, 0, RDT_REMOTE_REGION_BYTES);
    CHECK_INT_EQ(decode_strictly(codec, wire, sizeof(wire), &out), RDT_OK);
    wire[0] = 0; /* somebody's, with none */
    CHECK_INT_EQ(decode_strictly(codec, wire, sizeof(wire), &out), RDT_EPROTO);
}

TEST_MAIN()
