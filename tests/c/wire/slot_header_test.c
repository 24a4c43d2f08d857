/* SPDX-License-Identifier: Apache-2.0
 * The header of bounded and dynamic slots, and sizes of tensors. */
#include "codecs.h"

TEST(slot_header_round_trips)
{
    check_round_trips("slot_header");
}

TEST(slot_header_rejects_every_truncation)
{
    check_truncations("slot_header");
}

TEST(slot_header_survives_every_bit_flip)
{
    check_bit_flips("slot_header");
}

TEST(slot_header_lies_at_the_documented_offsets)
{
    const struct rdti_slot_header header = {.epoch = 0x0d0c0b0a,
                                            .dtype = RDT_F32,
                                            .ndim = 2,
                                            .dims = {3, 4, 99}, /* the third is not said */
                                            .place = {.off_bytes = 5,
                                                      .region = {.len_bytes = 10, .index = 6}}};
    uint8_t wire[RDTI_SLOT_HEADER_BYTES];
    struct rdti_slot_header back;

    rdti_slot_header_encode(&header, wire);
    CHECK_MEM_EQ(wire, "\x0a\x0b\x0c\x0d\x0c\0\0\0\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\4\0", 26);
    CHECK_UINT_EQ(rdti_get_u64(wire + 32), 0);
    CHECK_UINT_EQ(rdti_get_u64(wire + 80), 5);
    CHECK_UINT_EQ(rdti_get_u32(wire + 88 + 44), 6);
    CHECK_STATUS(rdti_slot_header_decode(wire, sizeof(wire), &back, NULL), RDT_OK);
    CHECK_UINT_EQ(back.dims[2], 0);
}

TEST(slot_header_without_a_region_has_zeros_there)
{
    static const uint8_t zeros[RDTI_SLOT_HEADER_BYTES - 80];
    const struct rdti_slot_header header = {.dtype = RDT_U8};
    const struct rdt_remote_region none = {0};
    uint8_t wire[RDTI_SLOT_HEADER_BYTES];
    union any_value out;

    rdti_slot_header_encode(&header, wire);
    CHECK_MEM_EQ(wire + 80, zeros, sizeof(zeros));
    rdt_remote_region_encode(&none, wire + 88); /* another way to say it: refused */
    CHECK_INT_EQ(decode_strictly(codec_named("slot_header"), wire, sizeof(wire), &out), RDT_EPROTO);
}

TEST(slot_header_refuses_each_bad_field)
{
    static const struct {
        size_t off;
        uint8_t value;
    } faults[] = {
        {4, 0},  {4, 16},    {8, 9},   {8, 1},  {11, 0x80}, {12, 1},
        {32, 1}, {31, 0x40}, {80, 11}, {88, 1}, {152, 1},   {191, 1},
    };
    const struct rdti_slot_header header = {.dtype = RDT_F32,
                                            .ndim = 2,
                                            .dims = {3, 4},
                                            .place = {.region = {.len_bytes = 10}}};

    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        uint8_t wire[RDTI_SLOT_HEADER_BYTES];
        union any_value out;
        rdti_slot_header_encode(&header, wire);
        CHECK_INT_EQ(decode_strictly(codec_named("slot_header"), wire, sizeof(wire), &out), RDT_OK);
        wire[faults[i].off] = faults[i].value;
        CHECK_MSG(decode_strictly(codec_named("slot_header"), wire, sizeof(wire), &out) ==
                      RDT_EPROTO,
                  "fault %zu", i);
    }
}

TEST(tensor_bytes_multiplies_and_bounds)
{
    static const struct {
        uint32_t dtype;
        uint32_t ndim;
        uint64_t dims[9];
        rdt_status want;
        uint64_t bytes;
    } cases[] = {
        {RDT_F32, 0, {0}, RDT_OK, 4},
        {RDT_F32, 3, {2, 3, 5}, RDT_OK, 120},
        {RDT_C128, 1, {7}, RDT_OK, 112},
        {RDT_BOOL, 2, {0, 9}, RDT_OK, 0},
        {RDT_U8, 1, {INT64_MAX}, RDT_OK, INT64_MAX},
        {RDT_U8, 1, {UINT64_C(1) << 63}, RDT_EINVAL, 0},
        {RDT_I16, 1, {UINT64_C(1) << 62}, RDT_EINVAL, 0},
        {RDT_I16, 1, {(UINT64_C(1) << 62) - 1}, RDT_OK, (UINT64_C(1) << 63) - 2},
        {RDT_U8, 2, {UINT64_C(1) << 32, UINT64_C(1) << 32}, RDT_EINVAL, 0},    /* wraps to 0 */
        {RDT_U8, 3, {0, UINT64_C(1) << 32, UINT64_C(1) << 32}, RDT_EINVAL, 0}, /* its strides do */
        {RDT_U8, 3, {UINT64_C(1) << 32, UINT64_C(1) << 32, 0}, RDT_EINVAL, 0},
        {RDT_U8, 1, {UINT64_MAX}, RDT_EINVAL, 0},
        {0, 1, {1}, RDT_EINVAL, 0},
        {16, 1, {1}, RDT_EINVAL, 0},
        {UINT32_MAX, 1, {1}, RDT_EINVAL, 0},
        {RDT_U8, 8, {1, 1, 1, 1, 1, 1, 1, 2}, RDT_OK, 2},
        {RDT_U8, 9, {1, 1, 1, 1, 1, 1, 1, 1, 1}, RDT_EINVAL, 0},
        {RDT_U8, UINT32_MAX, {1}, RDT_EINVAL, 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t got = 77;
        CHECK_MSG(rdti_tensor_bytes(cases[i].dtype, cases[i].ndim, cases[i].dims, &got, NULL) ==
                      cases[i].want,
                  "case %zu", i);
        CHECK_UINT_EQ(got, cases[i].want == RDT_OK ? cases[i].bytes : 77);
    }
}

TEST_MAIN()
