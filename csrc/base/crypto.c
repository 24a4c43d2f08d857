/* SPDX-License-Identifier: Apache-2.0
 * SHA-256 (FIPS 180-4), HMAC (RFC 2104) and the other primitives of the handshake. A connection
 * hashes a few kilobytes in its lifetime, so the code is short rather than fast. */
#include "base/crypto.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/error.h"

#define SHA256_BLOCK_BYTES 64
#define LENGTH_BYTES 8 /* the message's length in bits ends the last block */

struct sha256 {
    uint32_t state[8];
    uint64_t total_bytes;
    uint8_t block[SHA256_BLOCK_BYTES];
    size_t block_used;
};

/* FIPS 180-4, 4.2.2: the first 32 bits of the fractional parts of the cube roots of the first 64
 * primes. */
static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t
crypto_rotate_right(uint32_t x, unsigned n)
{
    return (x >> n) | (x << (32 - n));
}

static uint32_t
crypto_get_be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
}

static void
crypto_put_be32(uint8_t *p, uint32_t x)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(x >> (24 - 8 * i));
}

/* FIPS 180-4, 6.2.2; the names are the standard's. */
static void
crypto_compress(uint32_t state[8], const uint8_t block[SHA256_BLOCK_BYTES])
{
    uint32_t w[64];
    uint32_t v[8];

    for (size_t t = 0; t < 16; t++)
        w[t] = crypto_get_be32(block + 4 * t);
    for (size_t t = 16; t < 64; t++) {
        const uint32_t s0 = crypto_rotate_right(w[t - 15], 7) ^ crypto_rotate_right(w[t - 15], 18) ^
                            (w[t - 15] >> 3);
        const uint32_t s1 = crypto_rotate_right(w[t - 2], 17) ^ crypto_rotate_right(w[t - 2], 19) ^
                            (w[t - 2] >> 10);
        w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }

    memcpy(v, state, sizeof(v));
    for (size_t t = 0; t < 64; t++) {
        const uint32_t e = v[4];
        const uint32_t a = v[0];
        const uint32_t sum1 =
            crypto_rotate_right(e, 6) ^ crypto_rotate_right(e, 11) ^ crypto_rotate_right(e, 25);
        const uint32_t choose = (e & v[5]) ^ (~e & v[6]);
        const uint32_t t1 = v[7] + sum1 + choose + round_constants[t] + w[t];
        const uint32_t sum0 =
            crypto_rotate_right(a, 2) ^ crypto_rotate_right(a, 13) ^ crypto_rotate_right(a, 22);
        const uint32_t majority = (a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]);

        memmove(v + 1, v, 7 * sizeof(v[0]));
        v[4] += t1;
        v[0] = t1 + sum0 + majority;
    }
    for (size_t i = 0; i < 8; i++)
        state[i] += v[i];
}

static void
crypto_sha256_init(struct sha256 *h)
{
    /* FIPS 180-4, 5.3.3: the same bits of the square roots of the first 8 primes. */
    static const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

    memcpy(h->state, initial, sizeof(initial));
    h->total_bytes = 0;
    h->block_used = 0;
}

static void
crypto_sha256_update(struct sha256 *h, const void *data, size_t len_bytes)
{
    const uint8_t *p = data;

    h->total_bytes += len_bytes;
    while (len_bytes > 0) {
        const size_t room = SHA256_BLOCK_BYTES - h->block_used;
        const size_t part = len_bytes < room ? len_bytes : room;

        memcpy(h->block + h->block_used, p, part);
        h->block_used += part;
        p += part;
        len_bytes -= part;
        if (h->block_used == SHA256_BLOCK_BYTES) {
            crypto_compress(h->state, h->block);
            h->block_used = 0;
        }
    }
}

static void
crypto_sha256_final(struct sha256 *h, uint8_t out[RDTI_SHA256_BYTES])
{
    static const uint8_t padding[SHA256_BLOCK_BYTES] = {0x80};
    const uint64_t total_bits = h->total_bytes * 8;
    const size_t used = h->block_used;
    const size_t data_end = SHA256_BLOCK_BYTES - LENGTH_BYTES;
    uint8_t length[LENGTH_BYTES];

    crypto_sha256_update(h, padding,
                         used < data_end ? data_end - used : SHA256_BLOCK_BYTES + data_end - used);
    crypto_put_be32(length, (uint32_t)(total_bits >> 32));
    crypto_put_be32(length + 4, (uint32_t)total_bits);
    crypto_sha256_update(h, length, sizeof(length));
    for (size_t i = 0; i < 8; i++)
        crypto_put_be32(out + 4 * i, h->state[i]);
    explicit_bzero(h, sizeof(*h)); /* for HMAC it held the secret */
}

void
rdti_sha256(const void *data, size_t len_bytes, uint8_t out[RDTI_SHA256_BYTES])
{
    struct sha256 h;

    crypto_sha256_init(&h);
    crypto_sha256_update(&h, data, len_bytes);
    crypto_sha256_final(&h, out);
}

void
rdti_hmac_sha256(const uint8_t *key, size_t key_bytes, const void *data, size_t data_bytes,
                 uint8_t out[RDTI_SHA256_BYTES])
{
    uint8_t padded[SHA256_BLOCK_BYTES] = {0};
    uint8_t inner[RDTI_SHA256_BYTES];
    struct sha256 h;

    if (key_bytes > SHA256_BLOCK_BYTES)
        rdti_sha256(key, key_bytes, padded);
    else if (key_bytes > 0)
        memcpy(padded, key, key_bytes);

    for (size_t i = 0; i < SHA256_BLOCK_BYTES; i++)
        padded[i] ^= 0x36;
    crypto_sha256_init(&h);
    crypto_sha256_update(&h, padded, sizeof(padded));
    crypto_sha256_update(&h, data, data_bytes);
    crypto_sha256_final(&h, inner);

    for (size_t i = 0; i < SHA256_BLOCK_BYTES; i++)
        padded[i] ^= 0x36 ^ 0x5c;
    crypto_sha256_init(&h);
    crypto_sha256_update(&h, padded, sizeof(padded));
    crypto_sha256_update(&h, inner, sizeof(inner));
    crypto_sha256_final(&h, out);
    explicit_bzero(padded, sizeof(padded));
    explicit_bzero(inner, sizeof(inner));
}

rdt_status
rdti_random_bytes(void *out, size_t len_bytes, struct rdt_error *err)
{
    uint8_t *p = out;
    size_t left = len_bytes;

    while (left > 0) {
        const ssize_t got = getrandom(p, left, 0);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return rdti_error_set(err, RDT_EDEVICE, got < 0 ? errno : 0, "getrandom of %zu bytes",
                                  left);
        p += got;
        left -= (size_t)got;
    }
    return RDT_OK;
}

bool
rdti_equal_constant_time(const void *a, const void *b, size_t len_bytes)
{
    /* volatile: keeps the compiler from leaving the loop at the first difference. */
    const volatile uint8_t *x = a;
    const volatile uint8_t *y = b;
    uint8_t difference = 0;

    for (size_t i = 0; i < len_bytes; i++)
        difference |= (uint8_t)(x[i] ^ y[i]);
    return difference == 0;
}

uint64_t
rdti_hash64(const void *data, size_t len_bytes)
{
    const uint8_t *p = data;
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a's offset basis and prime, 64 bits */

    for (size_t i = 0; i < len_bytes; i++) {
        hash ^= p[i];
        hash *= UINT64_C(0x100000001b3);
    }
    return hash;
}
