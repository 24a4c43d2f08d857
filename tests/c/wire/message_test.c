/* SPDX-License-Identifier: Apache-2.0
 * Mailbox messages and what follows a rendezvous' head. */
#include "codecs.h"

static const char *const names[] = {"message", "rts", "place", "nack", "sums", "sums_get"};
#define NAMES (sizeof(names) / sizeof(names[0]))

TEST(messages_round_trip)
{
    for (size_t i = 0; i < NAMES; i++)
        check_round_trips(names[i]);
}

TEST(messages_reject_every_truncation)
{
    for (size_t i = 0; i < NAMES; i++)
        check_truncations(names[i]);
}

TEST(messages_survive_every_bit_flip)
{
    for (size_t i = 0; i < NAMES; i++)
        check_bit_flips(names[i]);
}

TEST(message_lies_at_the_documented_offsets)
{
    const struct rdti_message message = {.kind = 2,
                                         .op = 0x11,
                                         .dtype = 0x12,
                                         .reduce_op = 0x13,
                                         .source = 0x2221,
                                         .root = 0x3231,
                                         .group_id = UINT64_C(0x4847464544434241),
                                         .tag = UINT64_C(0x5857565554535251),
                                         .len_bytes = UINT64_C(0x6867666564636261),
                                         .count = UINT64_C(0x7877767574737271),
                                         .id = UINT64_C(0x8887868584838281),
                                         .consumed = 0x94939291,
                                         .delivered = 0xa4a3a2a1,
                                         .inlined = {1, 2, 3, 4, 5, 6, 7, 8}};
    uint8_t wire[RDTI_MESSAGE_HEAD_BYTES];

    rdti_message_encode(&message, wire);
    CHECK_MEM_EQ(wire, "\x02\x11\x12\x13\x21\x22\x31\x32", 8);
    CHECK_MEM_EQ(wire + 8, "ABCDEFGHQRSTUVWXabcdefghqrstuvwx", 32);
    CHECK_MEM_EQ(wire + 40, "\x81\x82\x83\x84\x85\x86\x87\x88\x91\x92\x93\x94\xa1\xa2\xa3\xa4", 16);
    CHECK_MEM_EQ(wire + 56, "\1\2\3\4\5\6\7\10", 8);
}

TEST(message_refuses_unknown_kinds)
{
    uint8_t wire[RDTI_MESSAGE_HEAD_BYTES] = {0};
    union any_value out;

    for (unsigned kind = 0; kind < 256; kind++) {
        wire[0] = (uint8_t)kind;
        CHECK_INT_EQ(decode_strictly(codec_named("message"), wire, sizeof(wire), &out),
                     kind >= 1 && kind <= RDTI_MESSAGE_POSTED ? RDT_OK : RDT_EPROTO);
    }
}

TEST(footprint_counts_whole_units_and_inline_payload)
{
    CHECK_UINT_EQ(rdti_message_footprint(0), 64);
    CHECK_UINT_EQ(rdti_message_footprint(8), 64);
    CHECK_UINT_EQ(rdti_message_footprint(9), 128);
    CHECK_UINT_EQ(rdti_message_footprint(64), 128);
    CHECK_UINT_EQ(rdti_message_footprint(65), 192);
}

TEST(rts_refuses_flags_filler_and_offsets)
{
    const struct rdti_rts none = {.has_process = 1, .pid = 5};
    struct rdti_rts rts = {.has_region = 1,
                           .place = {.off_bytes = 100, .region = {.len_bytes = 100}}};
    uint8_t wire[RDTI_RTS_BYTES];
    union any_value out;
    const struct codec *codec = codec_named("rts");

    rdti_rts_encode(&rts, wire);
    CHECK_INT_EQ(decode_strictly(codec, wire, sizeof(wire), &out), RDT_OK);
    for (size_t off = 0; off < 4; off++) {
        rdti_rts_encode(&rts, wire);
        wire[off] = 2; /* flags are 0 or 1, the filler 0 */
        CHECK_INT_EQ(decode_strictly(codec, wire, sizeof(wire), &out), RDT_EPROTO);
    }
    rts.place.off_bytes = 101;
    rdti_rts_encode(&rts, wire);
    CHECK_INT_EQ(decode_strictly(codec, wire, sizeof(wire), &out), RDT_EPROTO);
    rdti_rts_encode(&none, wire);
    CHECK_INT_EQ(decode_strictly(codec, wire, sizeof(wire), &out), RDT_OK);
    wire[RDTI_RTS_BYTES - 1] = 1; /* a descriptor where the flags say there is none */
    CHECK_INT_EQ(decode_strictly(codec, wire, sizeof(wire), &out), RDT_EPROTO);
}

TEST(notifications_parse_to_what_they_were_made_of)
{
    uint32_t value;
    uint32_t epoch;

    CHECK_INT_EQ(rdti_notify_parse(rdti_notify_slot(RDTI_SLOT_ID_MAX, 0x1abc), &value, &epoch),
                 RDTI_NOTIFY_IS_SLOT);
    CHECK_UINT_EQ(value, RDTI_SLOT_ID_MAX);
    CHECK_UINT_EQ(epoch, 0xabc);
    CHECK_INT_EQ(rdti_notify_parse(rdti_notify_stream(RDTI_STREAM_ID_MAX, 0xabc), &value, &epoch),
                 RDTI_NOTIFY_IS_STREAM);
    CHECK_UINT_EQ(value, RDTI_STREAM_ID_MAX);
    CHECK_UINT_EQ(epoch, 0xabc);
    CHECK_INT_EQ(rdti_notify_parse(rdti_notify_credit(7), &value, &epoch), RDTI_NOTIFY_IS_CREDIT);
    CHECK_UINT_EQ(value, 7);
    CHECK_INT_EQ(rdti_notify_parse(rdti_notify_user(RDT_NOTIFY_MAX), &value, &epoch),
                 RDTI_NOTIFY_IS_USER);
    CHECK_UINT_EQ(value, RDT_NOTIFY_MAX);
    CHECK_INT_EQ(rdti_notify_parse(RDTI_NOTIFY_MESSAGE, &value, &epoch), RDTI_NOTIFY_IS_MESSAGE);
    CHECK_INT_EQ(rdti_notify_parse(RDTI_NOTIFY_PROBE, &value, &epoch), RDTI_NOTIFY_IS_PROBE);
    CHECK_INT_EQ(rdti_notify_parse(RDTI_NOTIFY_NONE, &value, &epoch), RDTI_NOTIFY_IS_INVALID);
    CHECK_INT_EQ(rdti_notify_parse(RDTI_NOTIFY_MESSAGE + 1, &value, &epoch),
                 RDTI_NOTIFY_IS_INVALID);
    CHECK_INT_EQ(rdti_notify_parse((RDTI_SLOT_ID_MAX + 1) << 12, &value, &epoch),
                 RDTI_NOTIFY_IS_INVALID);
}

/* No two meanings share a number: each value of 32 bits, sampled, is made again from its parse. */
TEST(notifications_have_one_meaning_each)
{
    struct rng rng = {.state = 4};

    for (int round = 0; round < 1000000; round++) {
        uint32_t n = (uint32_t)(rng_next(&rng) & UINT32_MAX);
        uint32_t value;
        uint32_t epoch;
        if (round % 2 == 0)
            n |= UINT32_C(0xfff00000);
        switch (rdti_notify_parse(n, &value, &epoch)) {
        case RDTI_NOTIFY_IS_SLOT:
            CHECK_HEX_EQ(rdti_notify_slot(value, epoch), n);
            break;
        case RDTI_NOTIFY_IS_STREAM:
            CHECK_UINT_LE(value, RDTI_STREAM_ID_MAX);
            CHECK_HEX_EQ(rdti_notify_stream(value, epoch), n);
            break;
        case RDTI_NOTIFY_IS_CREDIT:
            CHECK_HEX_EQ(rdti_notify_credit(value), n);
            break;
        case RDTI_NOTIFY_IS_USER:
            CHECK_HEX_EQ(rdti_notify_user(value), n);
            break;
        case RDTI_NOTIFY_IS_MESSAGE:
            CHECK_HEX_EQ(RDTI_NOTIFY_MESSAGE, n);
            break;
        case RDTI_NOTIFY_IS_PROBE:
            CHECK_HEX_EQ(RDTI_NOTIFY_PROBE, n);
            break;
        case RDTI_NOTIFY_IS_INVALID:
            break;
        }
    }
}

TEST_MAIN()
