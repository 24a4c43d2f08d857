/* SPDX-License-Identifier: Apache-2.0
 * Where a member's tensor lies, as its board says it. */
#include "codecs.h"

static const struct rdti_placement new_one = {.saying = RDTI_PLACEMENT_NEW,
                                              .number = 7,
                                              .place = {.off_bytes = 0x44,
                                                        .region = {.len_bytes = 100, .index = 6}}};

TEST(placements_round_trip)
{
    check_round_trips("placement");
}

TEST(placements_reject_every_truncation)
{
    check_truncations("placement");
}

TEST(placements_survive_every_bit_flip)
{
    check_bit_flips("placement");
}

TEST(a_placement_lies_at_the_documented_offsets)
{
    uint8_t wire[RDTI_PLACEMENT_BYTES];
    uint8_t region[RDT_REMOTE_REGION_BYTES];

    CHECK_UINT_EQ(rdti_placement_encode(&new_one, wire), sizeof(wire));
    rdt_remote_region_encode(&new_one.place.region, region);
    CHECK_UINT_EQ(wire[0], 1);
    CHECK_UINT_EQ(wire[1], 7);
    CHECK_UINT_EQ(rdti_get_u64(wire + 2), 0x44);
    CHECK_MEM_EQ(wire + 10, region, sizeof(region));
}

/* A stage is as the tick before left it. */
TEST(what_lies_behind_a_brief_placement_is_not_of_it)
{
    static const struct rdti_placement known = {.saying = RDTI_PLACEMENT_KNOWN, .number = 9};
    uint8_t wire[RDTI_PLACEMENT_BYTES];
    struct rdti_placement out;

    memset(wire, 0xff, sizeof(wire));
    CHECK_UINT_EQ(rdti_placement_encode(&known, wire), RDTI_PLACEMENT_BRIEF_BYTES);
    CHECK_UINT_EQ(wire[2], 0xff);
    CHECK_STATUS(rdti_placement_decode(wire, sizeof(wire), &out, NULL), RDT_OK);
    CHECK_MEM_EQ(&out, &known, sizeof(out));
}

TEST(a_placement_refuses_each_bad_field)
{
    static const struct {
        size_t off;
        uint8_t value;
    } faults[] = {{0, 0}, {0, 3}, {0, 0xff}, {10 + 44, 5}, {10 + 63, 0xff}, {2, 101}, {9, 1}};
    const struct codec *codec = codec_named("placement");

    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        uint8_t wire[RDTI_PLACEMENT_BYTES];
        union any_value out;
        (void)rdti_placement_encode(&new_one, wire);
        wire[2] = 100; /* the end of the region, for a tensor of no bytes */
        CHECK_INT_EQ(decode_strictly(codec, wire, sizeof(wire), &out), RDT_OK);
        wire[faults[i].off] = faults[i].value;
        CHECK_MSG(decode_strictly(codec, wire, sizeof(wire), &out) == RDT_EPROTO, "fault %zu", i);
    }
}

TEST_MAIN()
