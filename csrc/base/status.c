/* SPDX-License-Identifier: Apache-2.0
 * Exported facts that need no object: names of statuses, dtype sizes, versions. */
#include "rdmatensor.h"

#ifndef RDT_VERSION_TEXT
#error "define RDT_VERSION_TEXT, the version of the package as a string (CMake does)"
#endif

struct status_name {
    int32_t status;
    const char *name;
};

#define NAME(status) {status, #status}

static const struct status_name status_names[] = {
    NAME(RDT_OK),        NAME(RDT_EINVAL),    NAME(RDT_ENOMEM),     NAME(RDT_EAGAIN),
    NAME(RDT_ETIMEDOUT), NAME(RDT_ECLOSED),   NAME(RDT_EPEER),      NAME(RDT_EPROTO),
    NAME(RDT_EAUTH),     NAME(RDT_EVERSION),  NAME(RDT_EDEVICE),    NAME(RDT_ESTALE),
    NAME(RDT_ERANGE),    NAME(RDT_EBUSY),     NAME(RDT_EFORKED),    NAME(RDT_EMISMATCH),
    NAME(RDT_ENOTSUP),   NAME(RDT_ECANCELED), NAME(RDT_ENOTVIABLE), NAME(RDT_EINTERNAL),
    NAME(RDT_ECORRUPT),
};

static const uint32_t dtype_bytes[] = {
    [RDT_BOOL] = 1, [RDT_U8] = 1,  [RDT_I8] = 1,  [RDT_I16] = 2, [RDT_U16] = 2,
    [RDT_I32] = 4,  [RDT_U32] = 4, [RDT_I64] = 8, [RDT_U64] = 8, [RDT_F16] = 2,
    [RDT_BF16] = 2, [RDT_F32] = 4, [RDT_F64] = 8, [RDT_C64] = 8, [RDT_C128] = 16,
};

const char *
rdt_status_name(int32_t status)
{
    for (size_t i = 0; i < sizeof(status_names) / sizeof(status_names[0]); i++) {
        if (status_names[i].status == status)
            return status_names[i].name;
    }
    return "RDT_E(unknown)";
}

uint32_t
rdt_dtype_bytes(uint32_t dtype)
{
    if (dtype >= sizeof(dtype_bytes) / sizeof(dtype_bytes[0]))
        return 0;
    return dtype_bytes[dtype]; /* the unused index 0 holds 0 */
}

uint32_t
rdt_abi_version(void)
{
    return ((uint32_t)RDT_ABI_MAJOR << 16) | (uint32_t)RDT_ABI_MINOR;
}

const char *
rdt_version(void)
{
    return RDT_VERSION_TEXT;
}

const char *
rdt_dtype_name(uint32_t dtype)
{
    static const char *const names[] = {
        [RDT_BOOL] = "bool",   [RDT_U8] = "uint8",      [RDT_I8] = "int8",
        [RDT_I16] = "int16",   [RDT_U16] = "uint16",    [RDT_I32] = "int32",
        [RDT_U32] = "uint32",  [RDT_I64] = "int64",     [RDT_U64] = "uint64",
        [RDT_F16] = "float16", [RDT_BF16] = "bfloat16", [RDT_F32] = "float32",
        [RDT_F64] = "float64", [RDT_C64] = "complex64", [RDT_C128] = "complex128",
    };

    if (dtype >= sizeof(names) / sizeof(names[0]) || names[dtype] == NULL)
        return "unknown";
    return names[dtype];
}
