/* SPDX-License-Identifier: Apache-2.0
 * What the members of a group tell each other before its first collective. */
#include "codecs.h"

static const char *const names[] = {"founding_address", "founding_vote", "costs"};
#define NAMES (sizeof(names) / sizeof(names[0]))

TEST(foundings_round_trip)
{
    for (size_t i = 0; i < NAMES; i++)
        check_round_trips(names[i]);
}

TEST(foundings_reject_every_truncation)
{
    for (size_t i = 0; i < NAMES; i++)
        check_truncations(names[i]);
}

TEST(foundings_survive_every_bit_flip)
{
    for (size_t i = 0; i < NAMES; i++)
        check_bit_flips(names[i]);
}

TEST(an_address_lies_at_the_documented_offsets)
{
    struct rdti_founding_address address = {.has_board = 1, .board = {.len_bytes = 0x1234}};
    const uint8_t zeros[RDTI_FOUNDING_ADDRESS_BYTES] = {0};
    uint8_t wire[RDTI_FOUNDING_ADDRESS_BYTES];
    uint8_t region[RDT_REMOTE_REGION_BYTES];

    rdti_founding_address_encode(&address, wire);
    rdt_remote_region_encode(&address.board, region);
    CHECK_UINT_EQ(wire[0], 1);
    CHECK_MEM_EQ(wire + 1, region, sizeof(region));
    address.has_board = 0;
    rdti_founding_address_encode(&address, wire);
    CHECK_MEM_EQ(wire, zeros, sizeof(zeros));
}

TEST(flags_that_are_neither_0_nor_1_are_refused)
{
    uint8_t address[RDTI_FOUNDING_ADDRESS_BYTES] = {0};
    uint8_t vote[RDTI_FOUNDING_VOTE_BYTES] = "ABCDEFGH";
    union any_value out;

    for (unsigned flag = 0; flag < 256; flag++) {
        vote[8] = (uint8_t)flag;
        address[0] = (uint8_t)flag;
        CHECK_INT_EQ(decode_strictly(codec_named("founding_vote"), vote, sizeof(vote), &out),
                     flag <= 1 ? RDT_OK : RDT_EPROTO);
        /* Zeros are no region, so that 1 is refused too. */
        CHECK_INT_EQ(decode_strictly(codec_named("founding_address"), address, sizeof(address),
                                     &out),
                     flag == 0 ? RDT_OK : RDT_EPROTO);
    }
    vote[8] = 1;
    CHECK_STATUS(rdti_founding_vote_decode(vote, sizeof(vote), &out.founding_vote, NULL), RDT_OK);
    CHECK_HEX_EQ(out.founding_vote.members, UINT64_C(0x4847464544434241));
    CHECK_UINT_EQ(out.founding_vote.must_measure, 1);
}

/* Least and most of each value in the order in which they travel. */
TEST(costs_are_taken_up_to_their_limits_and_no_further)
{
    enum { VALUES = RDTI_COSTS_BYTES / 8 };
    static const uint64_t of_path[][2] = {{1, RDTI_COSTS_ALPHA_MAX_NS},
                                          {1, RDTI_COSTS_BETA_MAX_PS},
                                          {RDTI_COSTS_DUPLEX_MIN_PERMILLE,
                                           RDTI_COSTS_DUPLEX_MAX_PERMILLE}};
    uint64_t limits[VALUES][2] = {{0, RDTI_COSTS_FILE}, {RDTI_PATH_SHM, RDTI_PATH_VERBS}};
    uint8_t wire[RDTI_COSTS_BYTES];
    union any_value out;

    for (size_t i = 2; i < VALUES; i++)
        memcpy(limits[i], of_path[i == VALUES - 1 ? 1 : (i - 2) % 3], sizeof(limits[i]));
    for (size_t i = 0; i < VALUES; i++)
        rdti_put_u64(wire + 8 * i, limits[i][0]);
    const struct codec *codec = codec_named("costs");
    for (size_t i = 0; i < VALUES; i++) {
        const uint64_t past[] = {limits[i][0] - 1, limits[i][1] + 1, UINT64_MAX};
        for (size_t j = 0; j < 3; j++) {
            rdti_put_u64(wire + 8 * i, past[j]);
            CHECK_INT_EQ(decode_strictly(codec, wire, sizeof(wire), &out), RDT_EPROTO);
        }
        for (size_t j = 2; j-- > 0;) {
            rdti_put_u64(wire + 8 * i, limits[i][j]);
            CHECK_INT_EQ(decode_strictly(codec, wire, sizeof(wire), &out), RDT_OK);
        }
    }
}

TEST_MAIN()
