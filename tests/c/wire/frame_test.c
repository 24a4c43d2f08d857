/* SPDX-License-Identifier: Apache-2.0
 * Frames of the side channel against hostile bytes. */
#include "codecs.h"

static const char *const names[] = {"path",          "text",      "death", "revoke", "segment",
                                    "slot_announce", "slot_gone", "abort", "move"};
#define NAMES (sizeof(names) / sizeof(names[0]))

TEST(frames_round_trip)
{
    for (size_t i = 0; i < NAMES; i++)
        check_round_trips(names[i]);
}

TEST(frames_reject_every_truncation)
{
    for (size_t i = 0; i < NAMES; i++)
        check_truncations(names[i]);
}

TEST(frames_survive_every_bit_flip)
{
    for (size_t i = 0; i < NAMES; i++)
        check_bit_flips(names[i]);
}

/* The payload lengths of wire.md, type by type. */
TEST(frame_head_bounds_each_payload)
{
    static const struct {
        uint32_t least;
        uint32_t most;
    } want[] = {{1, 0},     {488, 1512}, {384, 384}, {0, 0},    {0, 0},      {408, 408},
                {0, 0},     {8, 8},      {8, 8},     {12, 12},  {12, 12},    {288, 288},
                {392, 392}, {392, 392},  {396, 396}, {36, 128}, {400, 1424}, {1, 0}};

    for (uint16_t type = 0; type < sizeof(want) / sizeof(want[0]); type++) {
        for (uint32_t len = 0; len <= RDTI_FRAME_PAYLOAD_MAX + 1; len++) {
            uint8_t head[RDTI_FRAME_HEAD_BYTES];
            uint16_t type_out = 99;
            uint32_t len_out = 99;
            const bool is_fine = len >= want[type].least && len <= want[type].most;
            rdti_frame_head_encode(type, len, head);
            const rdt_status got = rdti_frame_head_decode(head, &type_out, &len_out, NULL);
            CHECK_MSG(got == (is_fine ? RDT_OK : RDT_EPROTO), "type %u, %u bytes", type, len);
            CHECK_UINT_EQ(type_out, is_fine ? type : 99);
            CHECK_UINT_EQ(len_out, is_fine ? len : 99);
        }
    }
}

TEST(frame_head_refuses_filler_and_huge_lengths)
{
    uint8_t head[RDTI_FRAME_HEAD_BYTES];
    uint16_t type;
    uint32_t len;
    struct rdt_error err;

    rdti_frame_head_encode(RDTI_FRAME_REVOKE, 8, head);
    CHECK_MEM_EQ(head, "\x07\0\0\0\x08\0\0\0", 8);
    head[2] = 1;
    CHECK_STATUS(rdti_frame_head_decode(head, &type, &len, &err), RDT_EPROTO);
    CHECK_STR_CONTAINS(err.message, "filler");
    rdti_frame_head_encode(RDTI_FRAME_PATH, UINT32_MAX, head);
    CHECK_STATUS(rdti_frame_head_decode(head, &type, &len, &err), RDT_EPROTO);
    CHECK_STR_CONTAINS(err.message, "4294967295 bytes, want 488 to 1512");
    rdti_frame_head_encode(UINT16_MAX, 0, head);
    CHECK_STATUS(rdti_frame_head_decode(head, &type, &len, &err), RDT_EPROTO);
    CHECK_STR_CONTAINS(err.message, "unknown type 65535");
}

static rdt_status
decode_changed(const char *name, const void *value, size_t off, uint8_t byte)
{
    const struct codec *codec = codec_named(name);
    uint8_t wire[WIRE_MAX_BYTES];
    union any_value out;
    const size_t len_bytes = codec->encode(value, wire);

    CHECK_INT_EQ(decode_strictly(codec, wire, len_bytes, &out), RDT_OK);
    wire[off] = byte;
    return decode_strictly(codec, wire, len_bytes, &out);
}

TEST(path_refuses_transports_and_offers_it_cannot_have)
{
    struct rdti_path path = {.transport = RDT_TRANSPORT_TCP, .offer_bytes = 5};

    CHECK_STATUS(decode_changed("path", &path, 0, 3), RDT_OK);
    CHECK_STATUS(decode_changed("path", &path, 0, RDT_TRANSPORT_AUTO), RDT_EPROTO);
    CHECK_STATUS(decode_changed("path", &path, 0, 4), RDT_EPROTO);
    CHECK_STATUS(decode_changed("path", &path, 3, 1), RDT_EPROTO);
    CHECK_STATUS(decode_changed("path", &path, 36, 1),
                 RDT_EPROTO); /* the ring's sum is wrong now */
    CHECK_STATUS(decode_changed("path", &path, 484, 4), RDT_EPROTO);
    CHECK_STATUS(decode_changed("path", &path, 484, 6), RDT_EPROTO);
    CHECK_STATUS(decode_changed("path", &path, 487, 0xff), RDT_EPROTO);
}

TEST(path_takes_the_longest_offer_and_no_longer)
{
    const struct codec *codec = codec_named("path");
    struct rdti_path path = {.transport = RDT_TRANSPORT_SHM, .offer_bytes = RDTI_OFFER_MAX_BYTES};
    uint8_t wire[WIRE_MAX_BYTES] = {0};
    union any_value out;

    const size_t len_bytes = rdti_path_encode(&path, wire);
    CHECK_UINT_EQ(len_bytes, 488 + 1024);
    CHECK_INT_EQ(decode_strictly(codec, wire, len_bytes, &out), RDT_OK);
    rdti_put_u32(wire + 484, RDTI_OFFER_MAX_BYTES + 1);
    CHECK_INT_EQ(decode_strictly(codec, wire, len_bytes + 1, &out), RDT_EPROTO);
}

TEST(death_abort_and_gone_refuse_values_out_of_range)
{
    const struct rdti_death death = {.rank = 1, .is_left = 1};
    const struct rdti_abort abort_frame = {.rank = -1};
    const struct rdti_slot_gone gone = {.slot_id = RDTI_SLOT_ID_MAX};
    const struct rdti_segment segment = {.segment = 0xfffffffe, .len_bytes = INT64_MAX};

    CHECK_STATUS(decode_changed("death", &death, 19, 0x80), RDT_EPROTO);
    CHECK_STATUS(decode_changed("death", &death, 20, 2), RDT_EPROTO);
    CHECK_STATUS(decode_changed("death", &death, 24, 1), RDT_EPROTO);
    CHECK_STATUS(decode_changed("abort", &abort_frame, 8, 0xfe), RDT_EPROTO);
    CHECK_STATUS(decode_changed("slot_gone", &gone, 0, 0xff), RDT_EPROTO);
    CHECK_STATUS(decode_changed("segment", &segment, 0, 0xff), RDT_EPROTO);
    CHECK_STATUS(decode_changed("segment", &segment, 11, 0x80), RDT_EPROTO);
}

static struct rdti_slot_announce
sample_slot(uint32_t kind)
{
    return (struct rdti_slot_announce){
        .slot_id = 3,
        .buffers = 2,
        .name = "grad.0",
        .desc = {.kind = kind, .dtype = RDT_F32, .ndim = 2, .dims = {4, 5}},
        .stride_bytes = 128};
}

TEST(slot_announce_refuses_descriptions_that_make_no_sense)
{
    const struct rdti_slot_announce slot = sample_slot(RDT_SLOT_STATIC);

    CHECK_STATUS(decode_changed("slot_announce", &slot, 2, 0x08), RDT_EPROTO); /* id 0x80003 */
    CHECK_STATUS(decode_changed("slot_announce", &slot, 4, 0), RDT_EPROTO);    /* no buffers */
    CHECK_STATUS(decode_changed("slot_announce", &slot, 8, 7), RDT_EPROTO);    /* name */
    CHECK_STATUS(decode_changed("slot_announce", &slot, 136, 0), RDT_EPROTO);  /* kind */
    CHECK_STATUS(decode_changed("slot_announce", &slot, 136, 2), RDT_OK);
    CHECK_STATUS(decode_changed("slot_announce", &slot, 136, 3), RDT_EPROTO); /* dynamic, dims */
    CHECK_STATUS(decode_changed("slot_announce", &slot, 136, 4), RDT_EPROTO);
    CHECK_STATUS(decode_changed("slot_announce", &slot, 140, 0), RDT_EPROTO);  /* dtype */
    CHECK_STATUS(decode_changed("slot_announce", &slot, 140, 16), RDT_EPROTO); /* past C128 */
    CHECK_STATUS(decode_changed("slot_announce", &slot, 144, 1), RDT_EPROTO);  /* dims past ndim */
    CHECK_STATUS(decode_changed("slot_announce", &slot, 144, 8), RDT_OK);
    CHECK_STATUS(decode_changed("slot_announce", &slot, 144, 9), RDT_EPROTO);
    CHECK_STATUS(decode_changed("slot_announce", &slot, 148, 1), RDT_EPROTO);    /* filler */
    CHECK_STATUS(decode_changed("slot_announce", &slot, 159, 0x80), RDT_EPROTO); /* overflow */
    CHECK_STATUS(decode_changed("slot_announce", &slot, 168, 1), RDT_EPROTO);
    CHECK_STATUS(decode_changed("slot_announce", &slot, 287, 1), RDT_EPROTO); /* region's sum */
}

TEST(dims_of_a_dynamic_slot_stay_at_home)
{
    const struct rdti_slot_announce slot = sample_slot(RDT_SLOT_DYNAMIC);
    struct rdti_slot_announce back;
    uint8_t wire[RDTI_FRAME_PAYLOAD_MAX];

    const size_t len_bytes = rdti_slot_announce_encode(&slot, wire);
    CHECK_STATUS(rdti_slot_announce_decode(wire, len_bytes, &back, NULL), RDT_OK);
    CHECK_UINT_EQ(back.desc.struct_size, sizeof(back.desc));
    CHECK_UINT_EQ(back.desc.ndim, 2);
    CHECK_UINT_EQ(back.desc.dims[0], 0);
    CHECK_UINT_EQ(back.desc.dims[1], 0);
}

TEST_MAIN()
