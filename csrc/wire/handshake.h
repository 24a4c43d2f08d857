/* SPDX-License-Identifier: Apache-2.0
 * Messages between two processes before they trust each other; frame.h has the later ones.
 *
 * A connection begins with one of two messages of the connector, distinguished by their magic:
 *   HELLO  opens a side channel:  HELLO ->  <- CHALLENGE  AUTH ->
 *          (or <- REJECT at any point, then close)
 *   JOIN   adds a tcp stream to an endpoint that exists; no answer: the listener keeps the socket,
 *          or closes it
 *
 * Transcript = HELLO bytes || CHALLENGE bytes without its mac. HMAC-SHA256 under the job's secret:
 *   challenge mac  "rdt listener"  || transcript
 *   auth mac       "rdt connector" || transcript
 *   session key    "rdt session"   || transcript
 * and under the session key:
 *   join mac       "rdt join" || JOIN bytes without its mac
 *
 * The labels have no NUL. Each message: u32 magic, u16 wire version, u16 total length, then the
 * fields in the order of the struct, little endian. The head, and the library version after it if
 * there is one, have the same offset in every version, so that the error of a version mismatch can
 * name both versions.
 */
#ifndef RDTI_WIRE_HANDSHAKE_H
#define RDTI_WIRE_HANDSHAKE_H

#include <stddef.h>
#include <stdint.h>

#include "base/crypto.h"
#include "rdmatensor.h"
#include "wire/bytes.h"
#include "wire/limits.h"

#define RDTI_WIRE_VERSION 1
#define RDTI_NONCE_BYTES 32
#define RDTI_JOIN_NONCE_BYTES 16
#define RDTI_JOB_ID_BYTES 64  /* with the final NUL */
#define RDTI_VERSION_BYTES 16 /* "1.2.3", padded with NUL */

struct rdti_hello {
    char library_version[RDTI_VERSION_BYTES];
    char job_id[RDTI_JOB_ID_BYTES];
    uint8_t connector[RDT_UUID_BYTES];
    uint8_t listener[RDT_UUID_BYTES]; /* the process that the connector expects to reach */
    uint8_t nonce[RDTI_NONCE_BYTES];
    uint32_t epoch;
    int32_t rank;             /* global, or RDT_RANK_UNKNOWN */
    uint32_t transports;      /* bit 1 << RDT_TRANSPORT_*: viable there; RDTI_TRANSPORTS_VERIFY */
    uint32_t force_transport; /* RDT_TRANSPORT_* */
    uint32_t require_transport;
};

struct rdti_challenge {
    char library_version[RDTI_VERSION_BYTES];
    uint8_t listener[RDT_UUID_BYTES];
    uint8_t nonce[RDTI_NONCE_BYTES];
    uint32_t epoch;
    int32_t rank;
    uint32_t transports;
    uint32_t force_transport;
    uint32_t require_transport;
    uint8_t mac[RDTI_SHA256_BYTES];
};

struct rdti_auth {
    uint8_t mac[RDTI_SHA256_BYTES];
};

/* status is an rdt_status as seen by the listener (that of a later library may be unknown here);
 * text is human-readable and NUL-terminated. */
struct rdti_reject {
    int32_t status;
    char text[256];
};

struct rdti_join {
    uint8_t session_id[RDTI_SESSION_ID_BYTES];
    uint32_t index; /* of the stream, 0 first */
    uint8_t nonce[RDTI_JOIN_NONCE_BYTES];
    uint8_t mac[RDTI_SHA256_BYTES];
};

/* In `transports`: this side computes checksums of payload and expects them from the peer. */
#define RDTI_TRANSPORTS_VERIFY UINT32_C(0x80000000)

enum rdti_opening { RDTI_OPENING_HELLO, RDTI_OPENING_JOIN, RDTI_OPENING_GARBAGE };
enum rdti_answer { RDTI_ANSWER_CHALLENGE, RDTI_ANSWER_REJECT, RDTI_ANSWER_GARBAGE };

#define RDTI_OPENING_HEAD_BYTES 8
/* Bounds the bytes read of an opening or answer: in no version, older or newer, is one longer. */
#define RDTI_OPENING_MAX_BYTES 1024

/* "RDTH" and so on, as bytes in this order. */
#define RDTI_HELLO_MAGIC UINT32_C(0x48544452)
#define RDTI_CHALLENGE_MAGIC UINT32_C(0x43544452)
#define RDTI_AUTH_MAGIC UINT32_C(0x41544452)
#define RDTI_REJECT_MAGIC UINT32_C(0x58544452)
#define RDTI_JOIN_MAGIC UINT32_C(0x4a544452)
#define RDTI_ADDRESS_MAGIC UINT32_C(0x42544452)

/* Total bytes of each message on the wire. */
#define RDTI_HELLO_BYTES \
    (8 + RDTI_VERSION_BYTES + RDTI_JOB_ID_BYTES + 2 * RDT_UUID_BYTES + RDTI_NONCE_BYTES + 20)
#define RDTI_CHALLENGE_BYTES \
    (8 + RDTI_VERSION_BYTES + RDT_UUID_BYTES + RDTI_NONCE_BYTES + 20 + RDTI_SHA256_BYTES)
#define RDTI_AUTH_BYTES (8 + RDTI_SHA256_BYTES)
#define RDTI_REJECT_BYTES (8 + 4 + 256)
#define RDTI_JOIN_BYTES (8 + RDTI_SESSION_ID_BYTES + 4 + RDTI_JOIN_NONCE_BYTES + RDTI_SHA256_BYTES)

/*
 * Parses the first bytes of a connection: the kind of message, its wire version and total length. A
 * length that does not fit the kind in this wire version, or exceeds RDTI_OPENING_MAX_BYTES in
 * another, is garbage: then the outputs are untouched.
 */
enum rdti_opening rdti_opening_parse(const uint8_t head[RDTI_OPENING_HEAD_BYTES],
                                     uint16_t *version_out, uint16_t *total_bytes_out);
/* The same for the first bytes of the answer to a HELLO. */
enum rdti_answer rdti_answer_parse(const uint8_t head[RDTI_OPENING_HEAD_BYTES],
                                   uint16_t *total_bytes_out);

/*
 * encode: buffers of exactly the size above. decode: RDT_EPROTO (wrong magic or length, text that
 * is not plain, values out of range), RDT_EVERSION (the message names both versions; the length may
 * be any); the output is untouched on failure.
 */
void rdti_hello_encode(const struct rdti_hello *in, uint8_t out[RDTI_HELLO_BYTES]);
rdt_status rdti_hello_decode(const uint8_t *buf, size_t len_bytes, struct rdti_hello *out,
                             struct rdt_error *err);
void rdti_challenge_encode(const struct rdti_challenge *in, uint8_t out[RDTI_CHALLENGE_BYTES]);
rdt_status rdti_challenge_decode(const uint8_t *buf, size_t len_bytes, struct rdti_challenge *out,
                                 struct rdt_error *err);
void rdti_auth_encode(const struct rdti_auth *in, uint8_t out[RDTI_AUTH_BYTES]);
rdt_status rdti_auth_decode(const uint8_t *buf, size_t len_bytes, struct rdti_auth *out,
                            struct rdt_error *err);
void rdti_reject_encode(const struct rdti_reject *in, uint8_t out[RDTI_REJECT_BYTES]);
rdt_status rdti_reject_decode(const uint8_t *buf, size_t len_bytes, struct rdti_reject *out,
                              struct rdt_error *err);
void rdti_join_encode(const struct rdti_join *in, uint8_t out[RDTI_JOIN_BYTES]);
rdt_status rdti_join_decode(const uint8_t *buf, size_t len_bytes, struct rdti_join *out,
                            struct rdt_error *err);

enum rdti_mac_role { RDTI_MAC_LISTENER, RDTI_MAC_CONNECTOR, RDTI_MAC_SESSION };
/* The three keyed hashes over the transcript (the encoded HELLO and CHALLENGE). */
void rdti_handshake_mac(enum rdti_mac_role role, const uint8_t *secret, size_t secret_bytes,
                        const uint8_t hello[RDTI_HELLO_BYTES],
                        const uint8_t challenge[RDTI_CHALLENGE_BYTES],
                        uint8_t out[RDTI_SHA256_BYTES]);
/* The mac of an encoded JOIN (its own mac field is left out). */
void rdti_join_mac(const uint8_t session_key[RDTI_SHA256_BYTES],
                   const uint8_t join[RDTI_JOIN_BYTES], uint8_t out[RDTI_SHA256_BYTES]);

/* For the formats that share the head: write it, refuse another version (library_version: the
 * RDTI_VERSION_BYTES bytes received, or NULL). */
void rdti_head_write(struct rdti_writer *w, uint32_t magic, uint16_t total_bytes);
rdt_status rdti_head_refuse_version(const char *what, uint16_t version,
                                    const uint8_t *library_version, struct rdt_error *err);

#endif
