/* SPDX-License-Identifier: Apache-2.0
 * Heads, lists, stripes and offers of tcp streams. */
#include "wire/endpoint/stream.h"

#include "../harness.h"
#include "wire/bytes.h"
#include "wire/notify.h"

static const struct rdti_stream_head samples[] = {
    {.op = RDTI_STREAM_READY},
    {.op = RDTI_STREAM_WRITE,
     .flags = RDTI_STREAM_NOTIFY | RDTI_STREAM_ACK_NOW,
     .ack = 0x01020304,
     .value = 0x11121314,
     .index = 0x000abcde,
     .generation = 0x31323334,
     .len_bytes = 0x00212223,
     .off_bytes = UINT64_C(0x4142434445464748)},
    {.op = RDTI_STREAM_WRITE,
     .flags = RDTI_STREAM_STRIPED | RDTI_STREAM_MORE,
     .index = 1,
     .len_bytes = 4 * RDTI_STREAM_PART_MAX_BYTES},
    {.op = RDTI_STREAM_WRITE_LIST,
     .flags = RDTI_STREAM_MORE,
     .aux = RDTI_STREAM_LIST_MAX,
     .index = 3},
    {.op = RDTI_STREAM_ACK, .ack = UINT32_MAX},
    {.op = RDTI_STREAM_REFUSED, .aux = -RDT_ESTALE, .ack = 9},
    {.op = RDTI_STREAM_READ_REQUEST,
     .value = 5,
     .index = 6,
     .generation = 7,
     .len_bytes = 4 * RDTI_STREAM_PART_MAX_BYTES,
     .off_bytes = UINT64_MAX},
    {.op = RDTI_STREAM_READ_DATA, .value = 5, .len_bytes = RDTI_STREAM_PART_MAX_BYTES},
    {.op = RDTI_STREAM_READ_REFUSED, .value = 5, .aux = -RDT_ECORRUPT},
    {.op = RDTI_STREAM_WRITE_INLINE,
     .flags = RDTI_STREAM_NOTIFY,
     .aux = 3,
     .value = 1,
     .index = 2,
     .generation = 3,
     .len_bytes = 3,
     .off_bytes = UINT32_MAX,
     .inlined = {1, 2, 3}},
};
enum { SAMPLES = sizeof(samples) / sizeof(samples[0]), STREAMS = 4 };

/* Decode a copy of exactly n bytes, so that an over-read shows. */
static rdt_status
decode(const uint8_t *wire, size_t n, uint32_t stream, struct rdti_stream_head *out)
{
    uint8_t *exact = malloc(n > 0 ? n : 1);
    struct rdt_error err;

    CHECK_NOT_NULL(exact);
    memcpy(exact, wire, n);
    const rdt_status status = rdti_stream_head_decode(exact, n, stream, STREAMS, out, &err);
    if (status != RDT_OK)
        CHECK_INT_EQ(err.status, status);
    free(exact);
    return status;
}

TEST(heads_survive_the_wire)
{
    for (int i = 0; i < SAMPLES; i++) {
        uint8_t wire[RDTI_STREAM_HEAD_BYTES];
        struct rdti_stream_head out;

        rdti_stream_head_encode(&samples[i], wire);
        CHECK_STATUS(decode(wire, sizeof(wire), 0, &out), RDT_OK);
        CHECK_INT_EQ(out.op, samples[i].op);
        CHECK_INT_EQ(out.flags, samples[i].flags);
        CHECK_INT_EQ(out.aux, samples[i].aux);
        CHECK_INT_EQ(out.ack, samples[i].ack);
        CHECK_INT_EQ(out.value, samples[i].value);
        CHECK_INT_EQ(out.index, samples[i].index);
        CHECK_INT_EQ(out.generation, samples[i].generation);
        CHECK_INT_EQ(out.len_bytes, samples[i].len_bytes);
        CHECK_HEX_EQ(out.off_bytes, samples[i].off_bytes);
        CHECK_MEM_EQ(out.inlined, samples[i].inlined, sizeof(out.inlined));
    }
}

TEST(the_layout_is_the_documented_one)
{
    static const uint8_t want[RDTI_STREAM_HEAD_BYTES] = {2,    9,    0,    0,    0x04, 0x03, 0x02,
                                                         0x01, 0x14, 0x13, 0x12, 0x11, 0xde, 0xbc,
                                                         0x0a, 0,    0x34, 0x33, 0x32, 0x31, 0x23,
                                                         0x22, 0x21, 0,    0x48, 0x47, 0x46, 0x45,
                                                         0x44, 0x43, 0x42, 0x41};
    uint8_t wire[RDTI_STREAM_HEAD_BYTES];

    rdti_stream_head_encode(&samples[1], wire);
    CHECK_MEM_EQ(wire, want, sizeof(want));
    rdti_stream_head_encode(&samples[9], wire);
    CHECK_INT_EQ(wire[2], 3);
    CHECK_MEM_EQ(wire + 20, samples[9].inlined, 8);
    CHECK_HEX_EQ(rdti_get_u32(wire + 28), UINT32_MAX);
}

TEST(every_other_length_is_refused)
{
    uint8_t wire[RDTI_STREAM_HEAD_BYTES + 1] = {0};

    rdti_stream_head_encode(&samples[1], wire);
    for (size_t n = 0; n <= sizeof(wire); n++) {
        const struct rdti_stream_head untouched = {.op = 77};
        struct rdti_stream_head out = untouched;

        if (n == RDTI_STREAM_HEAD_BYTES)
            continue;
        CHECK_STATUS(decode(wire, n, 0, &out), RDT_EPROTO);
        CHECK_MEM_EQ(&out, &untouched, sizeof(out));
    }
}

/* Whatever a head says, it is decoded to what encodes to the same bytes, or refused. */
TEST(one_changed_byte_is_refused_or_means_something)
{
    uint32_t refused = 0;
    uint32_t accepted = 0;

    for (int i = 0; i < SAMPLES; i++) {
        for (uint32_t at = 0; at < RDTI_STREAM_HEAD_BYTES; at++) {
            for (uint32_t value = 0; value < 256; value++) {
                uint8_t wire[RDTI_STREAM_HEAD_BYTES];
                uint8_t again[RDTI_STREAM_HEAD_BYTES];
                struct rdti_stream_head out;

                rdti_stream_head_encode(&samples[i], wire);
                wire[at] = (uint8_t)value;
                if (decode(wire, sizeof(wire), 0, &out) != RDT_OK) {
                    refused++;
                    continue;
                }
                accepted++;
                rdti_stream_head_encode(&out, again);
                CHECK_MEM_EQ(again, wire, sizeof(wire));
            }
        }
    }
    CHECK_INT_GT(refused, 10000);
    CHECK_INT_GT(accepted, 10000);
}

static rdt_status
decode_head(struct rdti_stream_head head, uint32_t stream)
{
    uint8_t wire[RDTI_STREAM_HEAD_BYTES];
    struct rdti_stream_head out;

    rdti_stream_head_encode(&head, wire);
    return decode(wire, sizeof(wire), stream, &out);
}

TEST(values_out_of_bounds_are_refused)
{
    const struct rdti_stream_head bad[] = {
        {.op = 0},
        {.op = 10},
        {.op = 255},
        {.op = RDTI_STREAM_WRITE, .flags = 16},
        {.op = RDTI_STREAM_WRITE, .value = 1},
        {.op = RDTI_STREAM_WRITE, .flags = RDTI_STREAM_NOTIFY, .value = RDTI_NOTIFY_NONE},
        {.op = RDTI_STREAM_WRITE, .flags = RDTI_STREAM_NOTIFY | RDTI_STREAM_MORE, .value = 1},
        {.op = RDTI_STREAM_WRITE, .len_bytes = RDTI_STREAM_PART_MAX_BYTES + 1},
        {.op = RDTI_STREAM_WRITE,
         .flags = RDTI_STREAM_STRIPED,
         .len_bytes = 4 * RDTI_STREAM_PART_MAX_BYTES + 1},
        {.op = RDTI_STREAM_WRITE_LIST},
        {.op = RDTI_STREAM_WRITE_LIST, .aux = RDTI_STREAM_LIST_MAX + 1},
        {.op = RDTI_STREAM_WRITE_LIST, .aux = 1, .off_bytes = 1},
        {.op = RDTI_STREAM_WRITE_INLINE, .len_bytes = 0},
        {.op = RDTI_STREAM_REFUSED},
        {.op = RDTI_STREAM_REFUSED, .aux = 21},
        {.op = RDTI_STREAM_READ_REFUSED},
        {.op = RDTI_STREAM_ACK, .len_bytes = 1},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        CHECK_MSG(decode_head(bad[i], 0) == RDT_EPROTO, "case %zu", i);
}

TEST(only_stripes_stand_beside_stream_0)
{
    const struct rdti_stream_head stripe = {.op = RDTI_STREAM_WRITE,
                                            .flags = RDTI_STREAM_STRIPED,
                                            .len_bytes = 1};
    struct rdti_stream_head bad = stripe;

    CHECK_STATUS(decode_head(stripe, 3), RDT_OK);
    for (int i = 0; i < SAMPLES; i++)
        CHECK_STATUS(decode_head(samples[i], 1), RDT_EPROTO);
    bad.ack = 1;
    CHECK_STATUS(decode_head(bad, 1), RDT_EPROTO);
    bad.ack = 0;
    bad.flags |= RDTI_STREAM_ACK_NOW;
    CHECK_STATUS(decode_head(bad, 1), RDT_EPROTO);
}

TEST(stripes_cover_a_part_once)
{
    const uint32_t sizes[] = {0, 1, 4095, 4096, 4097, 524288, 1000001, UINT32_C(64) << 20};

    for (uint32_t streams = 1; streams <= RDTI_STREAM_STREAMS_MAX; streams++) {
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            uint32_t next = 0;

            for (uint32_t stream = 0; stream < streams; stream++) {
                uint32_t off;
                uint32_t len;

                rdti_stream_stripe(sizes[i], stream, streams, &off, &len);
                CHECK_UINT_EQ(off, next);
                next += len;
            }
            CHECK_UINT_EQ(next, sizes[i]);
        }
    }
}

TEST(lists_are_checked)
{
    const struct rdti_stream_entry entries[3] = {{500, 10}, {0, 20}, {UINT64_MAX - 5, 5}};
    struct rdti_stream_entry out[RDTI_STREAM_LIST_MAX];
    uint8_t wire[3 * RDTI_STREAM_ENTRY_BYTES];
    uint64_t lo;
    uint64_t hi;

    for (int i = 0; i < 3; i++)
        rdti_stream_entry_encode(&entries[i], wire + i * RDTI_STREAM_ENTRY_BYTES);
    CHECK_STATUS(rdti_stream_list_decode(wire, sizeof(wire), 3, 35, out, &lo, &hi, NULL), RDT_OK);
    CHECK_UINT_EQ(lo, 0);
    CHECK_UINT_EQ(hi, UINT64_MAX);
    for (int i = 0; i < 3; i++) {
        CHECK_UINT_EQ(out[i].off_bytes, entries[i].off_bytes);
        CHECK_UINT_EQ(out[i].len_bytes, entries[i].len_bytes);
    }
    const uint32_t counts[] = {0, 2, 4, RDTI_STREAM_LIST_MAX + 1};
    for (int i = 0; i < 4; i++)
        CHECK_STATUS(rdti_stream_list_decode(wire, sizeof(wire), counts[i], 35, out, &lo, &hi,
                                             NULL),
                     RDT_EPROTO);
    CHECK_STATUS(rdti_stream_list_decode(wire, sizeof(wire), 3, 34, out, &lo, &hi, NULL),
                 RDT_EPROTO);
    rdti_put_u32(wire + 2 * RDTI_STREAM_ENTRY_BYTES + 8, 6); /* wraps around */
    CHECK_STATUS(rdti_stream_list_decode(wire, sizeof(wire), 3, 36, out, &lo, &hi, NULL),
                 RDT_EPROTO);
    rdti_put_u32(wire + 2 * RDTI_STREAM_ENTRY_BYTES + 8, 0);
    CHECK_STATUS(rdti_stream_list_decode(wire, sizeof(wire), 3, 30, out, &lo, &hi, NULL),
                 RDT_EPROTO);
}

TEST(offers_survive_and_a_version_skew_names_both)
{
    uint8_t wire[RDTI_STREAM_OFFER_BYTES];
    uint16_t streams = 0;
    struct rdt_error err;

    rdti_stream_offer_encode(7, wire);
    CHECK_STATUS(rdti_stream_offer_decode(wire, sizeof(wire), &streams, &err), RDT_OK);
    CHECK_INT_EQ(streams, 7);
    rdti_put_u16(wire, 9);
    CHECK_STATUS(rdti_stream_offer_decode(wire, sizeof(wire), &streams, &err), RDT_EVERSION);
    CHECK_STR_CONTAINS(err.message, "version 9");
    CHECK_STR_CONTAINS(err.message, "we have 1");
}

TEST_MAIN()
