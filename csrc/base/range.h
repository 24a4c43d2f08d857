/* SPDX-License-Identifier: Apache-2.0
 * The one place where an offset and a length are compared with a total. */
#ifndef RDTI_BASE_RANGE_H
#define RDTI_BASE_RANGE_H

#include <stdbool.h>
#include <stdint.h>

/* [off_bytes, off_bytes + len_bytes) lies in [0, total_bytes). Cannot overflow. */
static inline bool
rdti_range_ok(uint64_t off_bytes, uint64_t len_bytes, uint64_t total_bytes)
{
    return off_bytes <= total_bytes && len_bytes <= total_bytes - off_bytes;
}

#endif
