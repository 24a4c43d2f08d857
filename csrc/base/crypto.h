/* SPDX-License-Identifier: Apache-2.0
 * Primitives of the handshake: random bytes, SHA-256 (FIPS 180-4), HMAC (RFC 2104) and comparison
 * in constant time. */
#ifndef RDTI_BASE_CRYPTO_H
#define RDTI_BASE_CRYPTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"

#define RDTI_SHA256_BYTES 32

/* From getrandom(2); RDT_EDEVICE if the kernel refuses. */
rdt_status rdti_random_bytes(void *out, size_t len_bytes, struct rdt_error *err);

void rdti_sha256(const void *data, size_t len_bytes, uint8_t out[RDTI_SHA256_BYTES]);

void rdti_hmac_sha256(const uint8_t *key, size_t key_bytes, const void *data, size_t data_bytes,
                      uint8_t out[RDTI_SHA256_BYTES]);

/* Its time depends only on len_bytes. */
bool rdti_equal_constant_time(const void *a, const void *b, size_t len_bytes);

/* FNV-1a of text or bytes, for tables and fingerprints; not for security. */
uint64_t rdti_hash64(const void *data, size_t len_bytes);

#endif
