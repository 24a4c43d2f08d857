/* SPDX-License-Identifier: Apache-2.0
 * The address, which anybody who can write the key-value store can forge. */
#include "codecs.h"

TEST(address_round_trips)
{
    check_round_trips("address");
}

TEST(address_rejects_every_truncation)
{
    check_truncations("address");
}

TEST(address_survives_every_bit_flip)
{
    check_bit_flips("address");
}

static struct rdti_address
sample(void)
{
    return (
        struct rdti_address){.library_version = "1.2.3",
                             .uuid = {0x11},
                             .host_hint = {0x22},
                             .pid_hint = 0x01020304,
                             .unix_name = "rdt-1",
                             .addr_count = 2,
                             .addrs = {{.family = 4, .port = 0x1234, .addr = {10, 0, 0, 1}},
                                       {.family = 6, .port = 80, .is_loopback = 1, .addr = {1}}}};
}

TEST(address_lies_at_the_documented_offsets)
{
    const struct rdti_address address = sample();
    uint8_t wire[RDT_ADDRESS_MAX_BYTES];
    size_t len_bytes;

    CHECK_STATUS(rdti_address_encode(&address, wire, sizeof(wire), &len_bytes, NULL), RDT_OK);
    CHECK_UINT_EQ(len_bytes, 128 + 2 * 24);
    CHECK_MEM_EQ(wire, "RDTB\x01\x00\xb0\x00", 8);
    CHECK_STR_EQ((char *)wire + 8, "1.2.3");
    CHECK_UINT_EQ(wire[24], 0x11);
    CHECK_UINT_EQ(wire[40], 0x22);
    CHECK_MEM_EQ(wire + 56, "\4\3\2\1rdt-1", 10);
    CHECK_MEM_EQ(wire + 124, "\2\0\0\0\4\0\x34\x12\0\0\0\0\x0a\0\0\1\0", 17);
    CHECK_MEM_EQ(wire + 152, "\6\1\x50\0\0\0\0\0\1\0", 10);
}

TEST(address_encode_refuses_small_buffers_and_impossible_addresses)
{
    struct rdti_address address = sample();
    uint8_t wire[RDT_ADDRESS_MAX_BYTES];
    size_t len_bytes = 7;
    struct rdt_error err;

    for (size_t cap = 0; cap < 128 + 2 * 24; cap++) {
        uint8_t *exact = malloc(cap > 0 ? cap : 1);
        CHECK_NOT_NULL(exact);
        CHECK_STATUS(rdti_address_encode(&address, exact, cap, &len_bytes, &err), RDT_EINVAL);
        free(exact);
    }
    CHECK_STR_CONTAINS(err.message, "176 bytes, room for 175");
    address.addr_count = RDTI_ADDRESS_IPS_MAX + 1;
    CHECK_STATUS(rdti_address_encode(&address, wire, sizeof(wire), &len_bytes, &err), RDT_EINVAL);
    address = sample();
    address.addrs[0].port = 0;
    CHECK_STATUS(rdti_address_encode(&address, wire, sizeof(wire), &len_bytes, &err), RDT_EINVAL);
    address = sample();
    address.addrs[0].addr[4] = 1;
    CHECK_STATUS(rdti_address_encode(&address, wire, sizeof(wire), &len_bytes, &err), RDT_EINVAL);
    CHECK_UINT_EQ(len_bytes, 7);
}

TEST(address_decode_refuses_each_bad_field)
{
    static const struct {
        size_t off;
        uint8_t value;
        rdt_status want;
    } faults[] = {
        {0, 'r', RDT_EPROTO},    /* magic */
        {4, 2, RDT_EVERSION},    /* wire version */
        {6, 175, RDT_EPROTO},    /* length */
        {8, '\n', RDT_EPROTO},   /* library version */
        {60, 27, RDT_EPROTO},    /* unix name */
        {124, 1, RDT_EPROTO},    /* fewer addresses than bytes */
        {124, 3, RDT_EPROTO},    /* more */
        {124, 17, RDT_EPROTO},   /* more than there can be */
        {127, 0xff, RDT_EPROTO}, /* a number that overflows sizes */
        {128, 5, RDT_EPROTO},    /* family */
        {129, 2, RDT_EPROTO},    /* loopback flag */
        {132, 1, RDT_EPROTO},    /* scope */
        {140, 1, RDT_EPROTO},    /* IPv4 in more than 4 bytes */
        {154, 0, RDT_EPROTO},    /* port 0 */
    };

    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        const struct rdti_address address = sample();
        uint8_t wire[RDT_ADDRESS_MAX_BYTES];
        size_t len_bytes;
        union any_value out;
        CHECK_STATUS(rdti_address_encode(&address, wire, sizeof(wire), &len_bytes, NULL), RDT_OK);
        CHECK_INT_EQ(decode_strictly(codec_named("address"), wire, len_bytes, &out), RDT_OK);
        wire[faults[i].off] = faults[i].value;
        CHECK_MSG(decode_strictly(codec_named("address"), wire, len_bytes, &out) == faults[i].want,
                  "fault %zu", i);
    }
}

TEST(address_of_another_version_names_both)
{
    const struct rdti_address address = sample();
    uint8_t wire[RDT_ADDRESS_MAX_BYTES];
    size_t len_bytes;
    struct rdti_address out;
    struct rdt_error err;

    CHECK_STATUS(rdti_address_encode(&address, wire, sizeof(wire), &len_bytes, NULL), RDT_OK);
    rdti_put_u16(wire + 4, 500);
    CHECK_STATUS(rdti_address_decode(wire, 24, &out, &err), RDT_EVERSION);
    CHECK_STR_CONTAINS(err.message, "wire version 500 (library 1.2.3)");
    CHECK_STR_CONTAINS(err.message, rdt_version());
    CHECK_STATUS(rdti_address_decode(wire, 23, &out, &err), RDT_EVERSION);
    CHECK_STR_CONTAINS(err.message, "library unknown");
}

TEST_MAIN()
