/* SPDX-License-Identifier: Apache-2.0
 * CRC-32C (Castagnoli): the checksum of payload, to detect corruption in transit. */
#ifndef RDTI_BASE_CRC32C_H
#define RDTI_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"

#define RDTI_SUM_CHUNK_BYTES ((size_t)RDT_SUM_CHUNK_BYTES)

static inline size_t
rdti_sum_count(uint64_t len_bytes)
{
    return (size_t)(len_bytes / RDTI_SUM_CHUNK_BYTES + (len_bytes % RDTI_SUM_CHUNK_BYTES != 0));
}

/* Of one span; 0 for no bytes. */
uint32_t rdti_crc32c(const void *data, size_t len_bytes);
/* The same by a byte table: the reference for the others, and the fallback for a CPU without the
 * instruction. */
uint32_t rdti_crc32c_by_table(const void *data, size_t len_bytes);
/* Of each chunk (the last may be shorter): stores rdti_sum_count(len_bytes) sums in `out`. */
void rdti_crc32c_chunks(const void *data, size_t len_bytes, uint32_t *out);
/* "sse4.2", "armv8-crc" or "table". */
const char *rdti_crc32c_name(void);

#endif
