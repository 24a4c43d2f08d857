/* SPDX-License-Identifier: Apache-2.0
 * Requests, answers and leases of a parameter server. */
#include "codecs.h"

static const char *const formats[] = {"ps_request", "ps_answer", "ps_lease"};
#define FORMATS (sizeof(formats) / sizeof(formats[0]))

TEST(formats_round_trip)
{
    for (size_t i = 0; i < FORMATS; i++)
        check_round_trips(formats[i]);
}

TEST(formats_reject_every_truncation)
{
    for (size_t i = 0; i < FORMATS; i++)
        check_truncations(formats[i]);
}

TEST(formats_survive_every_bit_flip)
{
    for (size_t i = 0; i < FORMATS; i++)
        check_bit_flips(formats[i]);
}

static const struct rdti_ps_request tick = {.op = RDTI_PS_OP_TICK,
                                            .flags = RDTI_PS_FLAG_DROP,
                                            .payload_bytes = 2 * 4 + 3,
                                            .count = 2,
                                            .queue = 7,
                                            .age = 6,
                                            .sequence = 0x0102030405060708,
                                            .clock = 9,
                                            .lr_scale = 0.5,
                                            .chunk = 10};

TEST(a_request_lies_at_the_documented_offsets)
{
    uint8_t wire[RDTI_PS_HEAD_BYTES];

    rdti_ps_request_encode(&tick, wire);
    CHECK_MEM_EQ(wire,
                 "RDTQ\3\0\2\0\0\0\0\0\0\0\0\0\x0b\0\0\0\2\0\0\0\7\0\0\0\6\0\0\0"
                 "\x08\7\6\5\4\3\2\1\x09\0\0\0\0\0\0\0\0\0\0\0\0\0\xe0\x3f\x0a\0\0\0\0\0\0\0",
                 64);
}

TEST(an_answer_lies_at_the_documented_offsets)
{
    const struct rdti_ps_answer answer = {.status = -2,
                                          .payload_bytes = 3,
                                          .sequence = 4,
                                          .clock = UINT64_MAX};
    uint8_t wire[RDTI_PS_HEAD_BYTES];

    rdti_ps_answer_encode(&answer, wire);
    CHECK_MEM_EQ(wire,
                 "RDTP\xfe\xff\xff\xff\3\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0"
                 "\xff\xff\xff\xff\xff\xff\xff\xff",
                 32);
}

/* What only one op has is refused of every other. */
TEST(a_request_has_what_its_op_has)
{
    static const struct {
        struct rdti_ps_request request;
        const char *fault; /* NULL: it is right */
    } cases[] = {
        {{.op = RDTI_PS_OP_PUSH, .table = 1, .count = 2, .payload_bytes = 24, .flags = 1}, NULL},
        {{.op = RDTI_PS_OP_PUSH, .count = 2, .payload_bytes = 15}, "does not fit its count"},
        {{.op = RDTI_PS_OP_PUSH, .count = UINT32_MAX, .payload_bytes = 8}, "does not fit"},
        {{.op = RDTI_PS_OP_PUSH, .flags = RDTI_PS_FLAG_DROP}, "a flag that its op has not"},
        {{.op = RDTI_PS_OP_PULL, .flags = RDTI_PS_FLAG_UNIQUE}, "a flag that its op has not"},
        {{.op = RDTI_PS_OP_PULL, .count = 2, .payload_bytes = 17}, "does not fit its count"},
        {{.op = RDTI_PS_OP_PULL, .clock = 1}, "a field"},
        {{.op = RDTI_PS_OP_PULL, .lr_scale = 1.0}, "a field"},
        {{.op = RDTI_PS_OP_PULL, .queue = 1}, "a field"},
        {{.op = RDTI_PS_OP_PULL, .age = 1}, "a field"},
        {{.op = RDTI_PS_OP_SWITCH}, NULL},
        {{.op = RDTI_PS_OP_SWITCH, .queue = 1}, "a field"},
        {{.op = RDTI_PS_OP_TAKE, .queue = 1, .chunk = UINT64_MAX}, NULL},
        {{.op = RDTI_PS_OP_TAKE}, "a lease of no queue"},
        {{.op = RDTI_PS_OP_TAKE, .queue = 1, .payload_bytes = 1}, "a field"},
        {{.op = RDTI_PS_OP_TICK, .clock = 1, .count = 1, .payload_bytes = 3}, "does not fit"},
        {{.op = RDTI_PS_OP_TICK, .clock = 1, .payload_bytes = 513}, "does not fit"},
        {{.op = RDTI_PS_OP_TICK, .clock = 1, .payload_bytes = 512}, NULL},
        {{.op = RDTI_PS_OP_TICK, .clock = 0}, "a clock of 0"},
        {{.op = RDTI_PS_OP_TICK, .clock = 1, .chunk = 1}, "a chunk of no queue"},
        {{.op = RDTI_PS_OP_TICK, .clock = 1, .lr_scale = -1.0}, "learning rate"},
        {{.op = RDTI_PS_OP_TICK, .clock = 1, .lr_scale = 1.0 / 0.0}, "learning rate"},
        {{.op = RDTI_PS_OP_TICK, .clock = 1, .lr_scale = 0.0 / 0.0}, "learning rate"},
        {{.op = RDTI_PS_OP_CALL, .payload_bytes = 4096}, NULL},
        {{.op = RDTI_PS_OP_CALL, .payload_bytes = 4097}, "exceeds its slot"},
        {{.op = RDTI_PS_OP_CALL, .table = 1}, "a field"},
        {{.op = RDTI_PS_OP_LEASE}, "a lease of no queue"},
        {{.op = RDTI_PS_OP_LEASE, .queue = 1, .chunk = 1}, "a field"},
        {{.op = RDTI_PS_OP_LEAVE, .payload_bytes = 1}, "a field"},
        {{.op = RDTI_PS_OP_VALUES, .count = 1}, "a field"},
        {{.op = RDTI_PS_OP_HOLDERS}, NULL},
        {{.op = 0}, "no such op"},
        {{.op = RDTI_PS_OP_TAKE + 1}, "no such op"},
        {{.op = UINT16_MAX}, "no such op"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rdti_ps_request request = cases[i].request;
        struct rdti_ps_request out;
        struct rdt_error err = {0};
        uint8_t wire[RDTI_PS_HEAD_BYTES];
        request.sequence = 1;
        rdti_ps_request_encode(&request, wire);
        const rdt_status status = rdti_ps_request_decode(wire, sizeof(wire), 4096, &out, &err);
        CHECK_MSG(status == (cases[i].fault == NULL ? RDT_OK : RDT_EPROTO), "case %zu: %s", i,
                  err.message);
        if (cases[i].fault != NULL)
            CHECK_STR_CONTAINS(err.message, cases[i].fault);
    }
}

TEST(an_answer_that_exceeds_its_slot_is_refused)
{
    const struct rdti_ps_answer answer = {.payload_bytes = 4097, .sequence = 1};
    struct rdti_ps_answer out;
    uint8_t wire[RDTI_PS_HEAD_BYTES];

    rdti_ps_answer_encode(&answer, wire);
    CHECK_STATUS(rdti_ps_answer_decode(wire, sizeof(wire), 4096, &out, NULL), RDT_EPROTO);
    CHECK_STATUS(rdti_ps_answer_decode(wire, sizeof(wire), 4097, &out, NULL), RDT_OK);
}

TEST(a_text_of_a_peer_is_plain)
{
    char out[RDTI_PS_TEXT_BYTES];
    uint8_t long_one[2 * RDTI_PS_TEXT_BYTES];

    rdti_ps_answer_text((const uint8_t *)"a\nb\033", 4, out);
    CHECK_STR_EQ(out, "a b ");
    rdti_ps_answer_text((const uint8_t *)"", 0, out);
    CHECK_STR_EQ(out, "");
    memset(long_one, 'x', sizeof(long_one));
    rdti_ps_answer_text(long_one, sizeof(long_one), out);
    CHECK_UINT_EQ(strlen(out), RDTI_PS_TEXT_BYTES - 1);
}

TEST(sizes_of_boxes_are_checked)
{
    CHECK_STATUS(rdti_ps_check_slots(2, 1024, NULL), RDT_OK);
    CHECK_STATUS(rdti_ps_check_slots(64, RDTI_PS_SLOT_BYTES_MAX, NULL), RDT_OK);
    CHECK_STATUS(rdti_ps_check_slots(1, 1024, NULL), RDT_EINVAL);
    CHECK_STATUS(rdti_ps_check_slots(65, 1024, NULL), RDT_EINVAL);
    CHECK_STATUS(rdti_ps_check_slots(2, 960, NULL), RDT_EINVAL);
    CHECK_STATUS(rdti_ps_check_slots(2, 1025, NULL), RDT_EINVAL);
    CHECK_STATUS(rdti_ps_check_slots(2, RDTI_PS_SLOT_BYTES_MAX + 64, NULL), RDT_EINVAL);
    CHECK_UINT_EQ(rdti_ps_outbox_bytes(3, 1024), 512 + 3 * 1088);
}

TEST_MAIN()
