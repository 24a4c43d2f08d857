/* SPDX-License-Identifier: Apache-2.0
 * Names of statuses, sizes of dtypes, versions: what the public header promises of its numbers. */
#include "rdmatensor.h"

#include "harness.h"

TEST(every_status_has_a_name_of_its_own)
{
    CHECK_STR_EQ(rdt_status_name(RDT_OK), "RDT_OK");
    CHECK_STR_EQ(rdt_status_name(RDT_EPEER), "RDT_EPEER");
    CHECK_STR_EQ(rdt_status_name(RDT_EINTERNAL), "RDT_EINTERNAL");
    for (int32_t a = RDT_ECORRUPT; a <= RDT_OK; a++) {
        CHECK_MSG(strchr(rdt_status_name(a), '(') == NULL, "status %d has no name", a);
        for (int32_t b = a + 1; b <= RDT_OK; b++)
            CHECK(strcmp(rdt_status_name(a), rdt_status_name(b)) != 0);
    }
}

TEST(an_unknown_status_has_a_name_too)
{
    CHECK_STR_EQ(rdt_status_name(1), "RDT_E(unknown)");
    CHECK_STR_EQ(rdt_status_name(RDT_ECORRUPT - 1), "RDT_E(unknown)");
    CHECK_STR_EQ(rdt_status_name(INT32_MIN), "RDT_E(unknown)");
}

TEST(dtype_bytes_are_those_of_the_c_types)
{
    static const struct {
        uint32_t dtype;
        size_t bytes;
    } cases[] = {
        {RDT_BOOL, sizeof(bool)},
        {RDT_U8, sizeof(uint8_t)},
        {RDT_I8, sizeof(int8_t)},
        {RDT_I16, sizeof(int16_t)},
        {RDT_U16, sizeof(uint16_t)},
        {RDT_I32, sizeof(int32_t)},
        {RDT_U32, sizeof(uint32_t)},
        {RDT_I64, sizeof(int64_t)},
        {RDT_U64, sizeof(uint64_t)},
        {RDT_F16, 2},
        {RDT_BF16, 2},
        {RDT_F32, sizeof(float)},
        {RDT_F64, sizeof(double)},
        {RDT_C64, 2 * sizeof(float)},
        {RDT_C128, 2 * sizeof(double)},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        CHECK_UINT_EQ(rdt_dtype_bytes(cases[i].dtype), cases[i].bytes);
    CHECK_UINT_EQ(rdt_dtype_bytes(0), 0);
    CHECK_UINT_EQ(rdt_dtype_bytes(RDT_C128 + 1), 0);
    CHECK_UINT_EQ(rdt_dtype_bytes(UINT32_MAX), 0);
}

TEST(versions_are_the_headers)
{
    CHECK_UINT_EQ(rdt_abi_version() >> 16, RDT_ABI_MAJOR);
    CHECK_UINT_EQ(rdt_abi_version() & 0xffff, RDT_ABI_MINOR);

    unsigned major;
    unsigned minor;
    unsigned patch;
    char rest;
    CHECK_INT_EQ(sscanf(rdt_version(), "%u.%u.%u%c", &major, &minor, &patch, &rest), 3);
}

TEST_MAIN()
