/* SPDX-License-Identifier: Apache-2.0
 * What rank 0 tells the others through a store. */
#include "codecs.h"

static const struct rdti_told sample = {.id = "ABCDEFGHIJKL",
                                        .group_id = "abcdefghijkl",
                                        .epoch = 0x0d0c0b0a,
                                        .has_secret = 1,
                                        .is_store_at_rank_0 = 1,
                                        .secret = "0123456789abcdef0123456789abcdef",
                                        .algo = "ring",
                                        .deterministic = "1"};

TEST(jobs_round_trip)
{
    check_round_trips("told");
}

TEST(jobs_reject_every_truncation)
{
    check_truncations("told");
}

TEST(jobs_survive_every_bit_flip)
{
    check_bit_flips("told");
}

TEST(a_job_lies_at_the_documented_offsets)
{
    const uint8_t zeros[RDTI_TOLD_SECRET_BYTES] = {0};
    struct rdti_told given = sample;
    uint8_t wire[RDTI_TOLD_BYTES];

    rdti_told_encode(&sample, wire);
    CHECK_MEM_EQ(wire, "RDTG\1\0\xc8\0ABCDEFGHIJKLabcdefghijkl\x0a\x0b\x0c\x0d\1\1\0\0", 40);
    CHECK_MEM_EQ(wire + 40, sample.secret, sizeof(sample.secret));
    CHECK_MEM_EQ(wire + 72, "ring\0", 5);
    CHECK_MEM_EQ(wire + 136, "1\0", 2);
    given.has_secret = 0;
    rdti_told_encode(&given, wire);
    CHECK_MEM_EQ(wire + 40, zeros, sizeof(zeros));
}

TEST(a_job_refuses_each_bad_field)
{
    static const struct {
        size_t off;
        uint8_t value;
        rdt_status want;
    } faults[] = {
        {0, 'S', RDT_EPROTO},    {4, 2, RDT_EVERSION},   {5, 1, RDT_EVERSION},
        {6, 199, RDT_EPROTO},    {7, 1, RDT_EPROTO},     {36, 2, RDT_EPROTO},
        {36, 0, RDT_EPROTO},     {37, 0xff, RDT_EPROTO}, {38, 1, RDT_EPROTO},
        {39, 0x80, RDT_EPROTO},  {72, '\n', RDT_EPROTO}, {72 + 60, 1, RDT_EPROTO},
        {136, 0x7f, RDT_EPROTO}, {199, 'x', RDT_EPROTO},
    };

    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        uint8_t wire[RDTI_TOLD_BYTES];
        union any_value out;
        rdti_told_encode(&sample, wire);
        wire[faults[i].off] = faults[i].value;
        CHECK_MSG(decode_strictly(codec_named("told"), wire, sizeof(wire), &out) == faults[i].want,
                  "fault %zu", i);
    }
}

/* Not even a part of the secret may get into a log. */
TEST(what_is_wrong_with_a_job_is_said_without_its_secret)
{
    uint8_t wire[RDTI_TOLD_BYTES];
    struct rdt_error err = {0};
    struct rdti_told out;

    rdti_told_encode(&sample, wire);
    wire[36] = 0;
    CHECK_STATUS(rdti_told_decode(wire, sizeof(wire), &out, &err), RDT_EPROTO);
    CHECK_STR_CONTAINS(err.message, "a secret that it says it has not");
    CHECK(strstr(err.message, "0123") == NULL);
}

TEST_MAIN()
