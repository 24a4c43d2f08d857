/* SPDX-License-Identifier: Apache-2.0
 * What members exchange about a persistent collective. */
#include "codecs.h"

static const char *const formats[] = {"persistent_record", "persistent_vote", "persistent_start"};
enum { FORMATS = sizeof(formats) / sizeof(formats[0]) };

static const struct rdti_persistent_record sample = {
    .op = RDT_COLL_REDUCE,
    .dtype = RDT_F32,
    .reduce_op = RDT_MAX,
    .landing = RDT_LANDING_OFFERED,
    .root = 0x0403,
    .count = 0x0102030405060708,
    .place = {.off_bytes = 0x44, .region = {.len_bytes = 100, .index = 6}}};

TEST(persistent_formats_round_trip)
{
    for (unsigned i = 0; i < FORMATS; i++)
        check_round_trips(formats[i]);
}

TEST(persistent_formats_reject_every_truncation)
{
    for (unsigned i = 0; i < FORMATS; i++)
        check_truncations(formats[i]);
}

TEST(persistent_formats_survive_every_bit_flip)
{
    for (unsigned i = 0; i < FORMATS; i++)
        check_bit_flips(formats[i]);
}

TEST(a_record_lies_at_the_documented_offsets)
{
    static const uint8_t head[] = {
        RDT_COLL_REDUCE, RDT_F32, RDT_MAX, 0, 3, 4, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1};
    const uint8_t zeros[RDTI_PLACE_BYTES] = {0};
    struct rdti_persistent_record none = sample;
    uint8_t place[RDTI_PLACE_BYTES];
    uint8_t wire[RDTI_PERSISTENT_RECORD_BYTES];

    rdti_persistent_record_encode(&sample, wire);
    rdti_place_encode(&sample.place, place);
    CHECK_MEM_EQ(wire, head, sizeof(head));
    CHECK_MEM_EQ(wire + 16, place, sizeof(place));
    none.landing = RDT_LANDING_NOT_IN_ARENA;
    rdti_persistent_record_encode(&none, wire);
    CHECK_UINT_EQ(wire[3], RDT_LANDING_NOT_IN_ARENA);
    CHECK_MEM_EQ(wire + 16, zeros, sizeof(zeros));
}

/* One byte of the record is another. */
static void
expect_record(size_t off, uint8_t value, const char *said)
{
    uint8_t wire[RDTI_PERSISTENT_RECORD_BYTES];
    struct rdti_persistent_record out;
    union any_value any;
    struct rdt_error err = {0};

    rdti_persistent_record_encode(&sample, wire);
    wire[off] = value;
    if (said == NULL) {
        CHECK_INT_EQ(decode_strictly(codec_named("persistent_record"), wire, sizeof(wire), &any),
                     RDT_OK);
        return;
    }
    CHECK_INT_EQ(decode_strictly(codec_named("persistent_record"), wire, sizeof(wire), &any),
                 RDT_EPROTO);
    CHECK_STATUS(rdti_persistent_record_decode(wire, sizeof(wire), &out, &err), RDT_EPROTO);
    CHECK_STR_CONTAINS(err.message, said);
}

TEST(a_record_refuses_each_bad_field)
{
    expect_record(0, 0, "no such operation");
    expect_record(0, RDT_COLL_BARRIER + 1, "no such operation");
    expect_record(0, RDT_COLL_BARRIER, "no such dtype");
    expect_record(0, RDT_COLL_GATHER, "no such reduction");
    expect_record(0, RDT_COLL_ALLREDUCE, "a root without a use");
    expect_record(0, RDT_COLL_REDUCE_SCATTER, "a root without a use");
    expect_record(1, 0, "no such dtype");
    expect_record(1, RDT_C128 + 1, "no such dtype");
    expect_record(2, 0, "no such reduction");
    expect_record(2, RDT_BXOR + 1, "no such reduction");
    expect_record(3, RDT_LANDING_NOT_IN_ARENA, "bad region descriptor"); /* and yet a region */
    expect_record(3, RDT_LANDING_NOT_IN_ARENA + 1, "no such landing");
    expect_record(16, 100, NULL);
    expect_record(16, 101, "the offset leaves the region");
    expect_record(23, 1, "the offset leaves the region");
    expect_record(24, 1, "bad region descriptor");
}

/* Where both a dtype and a reduction are out of place, the count is still looked at. */
TEST(a_count_without_a_use_is_refused)
{
    struct rdti_persistent_record record = {.op = RDT_COLL_BARRIER,
                                            .landing = RDT_LANDING_OPERATION};
    uint8_t wire[RDTI_PERSISTENT_RECORD_BYTES];
    union any_value any;

    for (unsigned i = 0; i < 2; i++) {
        rdti_persistent_record_encode(&record, wire);
        CHECK_INT_EQ(decode_strictly(codec_named("persistent_record"), wire, sizeof(wire), &any),
                     RDT_OK);
        wire[8] = 1;
        CHECK_INT_EQ(decode_strictly(codec_named("persistent_record"), wire, sizeof(wire), &any),
                     RDT_EPROTO);
        record.op = RDT_COLL_ALLTOALL;
        record.dtype = RDT_I8;
    }
}

TEST(a_vote_is_one_of_four)
{
    union any_value any;

    for (unsigned value = 0; value <= UINT8_MAX; value++) {
        const uint8_t wire = (uint8_t)value;
        CHECK_INT_EQ(decode_strictly(codec_named("persistent_vote"), &wire, 1, &any),
                     value >= RDTI_VOTE_BOUND && value <= RDTI_VOTE_FAILED ? RDT_OK : RDT_EPROTO);
    }
}

TEST(a_start_lies_at_the_documented_offsets)
{
    static const struct rdti_persistent_start start = {.number = 0x0807060504030201, .is_aside = 1};
    static const uint8_t want[] = {1, 2, 3, 4, 5, 6, 7, 8, 1, 0, 0, 0, 0, 0, 0, 0};
    uint8_t wire[RDTI_PERSISTENT_START_BYTES];
    union any_value any;

    rdti_persistent_start_encode(&start, wire);
    CHECK_MEM_EQ(wire, want, sizeof(want));
    wire[8] = 2;
    CHECK_INT_EQ(decode_strictly(codec_named("persistent_start"), wire, sizeof(wire), &any),
                 RDT_EPROTO);
    wire[8] = 0;
    wire[15] = 1;
    CHECK_INT_EQ(decode_strictly(codec_named("persistent_start"), wire, sizeof(wire), &any),
                 RDT_EPROTO);
}

TEST_MAIN()
