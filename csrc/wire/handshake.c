/* SPDX-License-Identifier: Apache-2.0
 * Encodes and decodes the handshake's messages, and computes the keyed hashes over them. */
#include "wire/handshake.h"

#include <string.h>

#include "base/error.h"
#include "wire/bytes.h"
#include "wire/fields.h"

#define VIABLE_BITS (1u << RDT_TRANSPORT_SHM | 1u << RDT_TRANSPORT_TCP | 1u << RDT_TRANSPORT_VERBS)

static const char label_listener[] = "rdt listener";
static const char label_connector[] = "rdt connector";
static const char label_session[] = "rdt session";
static const char label_join[] = "rdt join";

struct handshake_kind {
    const char *name;
    uint32_t magic;
    uint16_t total_bytes;
    bool has_library_version; /* directly after the head, in every wire version */
};

static const struct handshake_kind kind_hello = {"HELLO", RDTI_HELLO_MAGIC, RDTI_HELLO_BYTES, true};
static const struct handshake_kind kind_challenge = {"CHALLENGE", RDTI_CHALLENGE_MAGIC,
                                                     RDTI_CHALLENGE_BYTES, true};
static const struct handshake_kind kind_auth = {"AUTH", RDTI_AUTH_MAGIC, RDTI_AUTH_BYTES, false};
static const struct handshake_kind kind_reject = {"REJECT", RDTI_REJECT_MAGIC, RDTI_REJECT_BYTES,
                                                  false};
static const struct handshake_kind kind_join = {"JOIN", RDTI_JOIN_MAGIC, RDTI_JOIN_BYTES, false};

void
rdti_head_write(struct rdti_writer *w, uint32_t magic, uint16_t total_bytes)
{
    rdti_write_u32(w, magic);
    rdti_write_u16(w, RDTI_WIRE_VERSION);
    rdti_write_u16(w, total_bytes);
}

rdt_status
rdti_head_refuse_version(const char *what, uint16_t version, const uint8_t *library_version,
                         struct rdt_error *err)
{
    const char *library = "unknown";

    if (library_version != NULL &&
        rdti_text_is_plain((const char *)library_version, RDTI_VERSION_BYTES))
        library = (const char *)library_version;
    return rdti_error_set(err, RDT_EVERSION, 0,
                          "%s: the peer speaks wire version %u (library %s), this process %d "
                          "(library %s): install the same rdmatensor on both hosts",
                          what, version, library, RDTI_WIRE_VERSION, rdt_version());
}

/* Checks that this is a message of this kind and this wire version, and reads its head; f is then
 * at the first field. */
static rdt_status
wire_handshake_begin(struct rdti_fields *f, const struct handshake_kind *kind, const uint8_t *buf,
                     size_t len_bytes, struct rdt_error *err)
{
    if (len_bytes < RDTI_OPENING_HEAD_BYTES)
        return rdti_error_set(err, RDT_EPROTO, 0, "%s: %zu bytes, want %u", kind->name, len_bytes,
                              kind->total_bytes);
    if (rdti_get_u32(buf) != kind->magic)
        return rdti_error_set(err, RDT_EPROTO, 0, "%s: magic 0x%08x, want 0x%08x", kind->name,
                              rdti_get_u32(buf), kind->magic);
    const uint16_t version = rdti_get_u16(buf + 4);
    if (version != RDTI_WIRE_VERSION) {
        const bool has_library =
            kind->has_library_version && len_bytes >= RDTI_OPENING_HEAD_BYTES + RDTI_VERSION_BYTES;
        return rdti_head_refuse_version(kind->name, version,
                                        has_library ? buf + RDTI_OPENING_HEAD_BYTES : NULL, err);
    }
    rdt_status status = rdti_fields_begin(f, kind->name, buf, len_bytes, kind->total_bytes, err);
    if (status != RDT_OK)
        return status;
    if (rdti_get_u16(buf + 6) != kind->total_bytes)
        return rdti_error_set(err, RDT_EPROTO, 0, "%s: says %u bytes, is %u", kind->name,
                              rdti_get_u16(buf + 6), kind->total_bytes);
    (void)rdti_read_bytes(&f->r, RDTI_OPENING_HEAD_BYTES);
    return RDT_OK;
}

/* Which of two kinds has this head; NULL: neither, and the outputs are untouched. */
static const struct handshake_kind *
wire_handshake_parse_head(const uint8_t head[RDTI_OPENING_HEAD_BYTES],
                          const struct handshake_kind *one, const struct handshake_kind *other,
                          uint16_t *version_out, uint16_t *total_bytes_out)
{
    const struct handshake_kind *kind = rdti_get_u32(head) == one->magic ? one : other;
    const uint16_t version = rdti_get_u16(head + 4);
    const uint16_t total_bytes = rdti_get_u16(head + 6);

    if (rdti_get_u32(head) != kind->magic)
        return NULL;
    if (version == RDTI_WIRE_VERSION && total_bytes != kind->total_bytes)
        return NULL;
    if (total_bytes < RDTI_OPENING_HEAD_BYTES || total_bytes > RDTI_OPENING_MAX_BYTES)
        return NULL;
    *version_out = version;
    *total_bytes_out = total_bytes;
    return kind;
}

enum rdti_opening
rdti_opening_parse(const uint8_t head[RDTI_OPENING_HEAD_BYTES], uint16_t *version_out,
                   uint16_t *total_bytes_out)
{
    const struct handshake_kind *kind =
        wire_handshake_parse_head(head, &kind_hello, &kind_join, version_out, total_bytes_out);

    if (kind == NULL)
        return RDTI_OPENING_GARBAGE;
    return kind == &kind_hello ? RDTI_OPENING_HELLO : RDTI_OPENING_JOIN;
}

enum rdti_answer
rdti_answer_parse(const uint8_t head[RDTI_OPENING_HEAD_BYTES], uint16_t *total_bytes_out)
{
    uint16_t version;
    const struct handshake_kind *kind =
        wire_handshake_parse_head(head, &kind_challenge, &kind_reject, &version, total_bytes_out);

    if (kind == NULL)
        return RDTI_ANSWER_GARBAGE;
    return kind == &kind_challenge ? RDTI_ANSWER_CHALLENGE : RDTI_ANSWER_REJECT;
}

static void
wire_handshake_write_role(struct rdti_writer *w, uint32_t epoch, int32_t rank, uint32_t transports,
                          uint32_t force_transport, uint32_t require_transport)
{
    rdti_write_u32(w, epoch);
    rdti_write_u32(w, (uint32_t)rank);
    rdti_write_u32(w, transports);
    rdti_write_u32(w, force_transport);
    rdti_write_u32(w, require_transport);
}

static void
wire_handshake_check_role(struct rdti_fields *f, int32_t rank, uint32_t transports,
                          uint32_t force_transport, uint32_t require_transport)
{
    rdti_fields_require(f, rank >= RDT_RANK_UNKNOWN, "negative rank");
    rdti_fields_require(f, (transports & ~(VIABLE_BITS | RDTI_TRANSPORTS_VERIFY)) == 0,
                        "unknown transport bit");
    rdti_fields_require(f, force_transport <= RDT_TRANSPORT_VERBS, "unknown forced transport");
    rdti_fields_require(f, require_transport <= RDT_TRANSPORT_VERBS, "unknown required transport");
}

void
rdti_hello_encode(const struct rdti_hello *in, uint8_t out[RDTI_HELLO_BYTES])
{
    struct rdti_writer w = {.p = out, .left = RDTI_HELLO_BYTES, .is_ok = true};

    rdti_head_write(&w, RDTI_HELLO_MAGIC, RDTI_HELLO_BYTES);
    rdti_write_text(&w, in->library_version, sizeof(in->library_version));
    rdti_write_text(&w, in->job_id, sizeof(in->job_id));
    (void)rdti_write_bytes(&w, in->connector, sizeof(in->connector));
    (void)rdti_write_bytes(&w, in->listener, sizeof(in->listener));
    (void)rdti_write_bytes(&w, in->nonce, sizeof(in->nonce));
    wire_handshake_write_role(&w, in->epoch, in->rank, in->transports, in->force_transport,
                              in->require_transport);
}

rdt_status
rdti_hello_decode(const uint8_t *buf, size_t len_bytes, struct rdti_hello *out,
                  struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_hello hello = {0};

    rdt_status status = wire_handshake_begin(&f, &kind_hello, buf, len_bytes, err);
    if (status != RDT_OK)
        return status;
    rdti_fields_text(&f, hello.library_version, sizeof(hello.library_version),
                     "library version is not plain text");
    rdti_fields_text(&f, hello.job_id, sizeof(hello.job_id), "job id is not plain text");
    rdti_fields_copy(&f, hello.connector, sizeof(hello.connector));
    rdti_fields_copy(&f, hello.listener, sizeof(hello.listener));
    rdti_fields_copy(&f, hello.nonce, sizeof(hello.nonce));
    hello.epoch = rdti_read_u32(&f.r);
    hello.rank = (int32_t)rdti_read_u32(&f.r);
    hello.transports = rdti_read_u32(&f.r);
    hello.force_transport = rdti_read_u32(&f.r);
    hello.require_transport = rdti_read_u32(&f.r);
    wire_handshake_check_role(&f, hello.rank, hello.transports, hello.force_transport,
                              hello.require_transport);
    status = rdti_fields_end(&f, kind_hello.name, err);
    if (status == RDT_OK)
        *out = hello;
    return status;
}

void
rdti_challenge_encode(const struct rdti_challenge *in, uint8_t out[RDTI_CHALLENGE_BYTES])
{
    struct rdti_writer w = {.p = out, .left = RDTI_CHALLENGE_BYTES, .is_ok = true};

    rdti_head_write(&w, RDTI_CHALLENGE_MAGIC, RDTI_CHALLENGE_BYTES);
    rdti_write_text(&w, in->library_version, sizeof(in->library_version));
    (void)rdti_write_bytes(&w, in->listener, sizeof(in->listener));
    (void)rdti_write_bytes(&w, in->nonce, sizeof(in->nonce));
    wire_handshake_write_role(&w, in->epoch, in->rank, in->transports, in->force_transport,
                              in->require_transport);
    (void)rdti_write_bytes(&w, in->mac, sizeof(in->mac));
}

rdt_status
rdti_challenge_decode(const uint8_t *buf, size_t len_bytes, struct rdti_challenge *out,
                      struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_challenge challenge = {0};

    rdt_status status = wire_handshake_begin(&f, &kind_challenge, buf, len_bytes, err);
    if (status != RDT_OK)
        return status;
    rdti_fields_text(&f, challenge.library_version, sizeof(challenge.library_version),
                     "library version is not plain text");
    rdti_fields_copy(&f, challenge.listener, sizeof(challenge.listener));
    rdti_fields_copy(&f, challenge.nonce, sizeof(challenge.nonce));
    challenge.epoch = rdti_read_u32(&f.r);
    challenge.rank = (int32_t)rdti_read_u32(&f.r);
    challenge.transports = rdti_read_u32(&f.r);
    challenge.force_transport = rdti_read_u32(&f.r);
    challenge.require_transport = rdti_read_u32(&f.r);
    wire_handshake_check_role(&f, challenge.rank, challenge.transports, challenge.force_transport,
                              challenge.require_transport);
    rdti_fields_copy(&f, challenge.mac, sizeof(challenge.mac));
    status = rdti_fields_end(&f, kind_challenge.name, err);
    if (status == RDT_OK)
        *out = challenge;
    return status;
}

void
rdti_auth_encode(const struct rdti_auth *in, uint8_t out[RDTI_AUTH_BYTES])
{
    struct rdti_writer w = {.p = out, .left = RDTI_AUTH_BYTES, .is_ok = true};

    rdti_head_write(&w, RDTI_AUTH_MAGIC, RDTI_AUTH_BYTES);
    (void)rdti_write_bytes(&w, in->mac, sizeof(in->mac));
}

rdt_status
rdti_auth_decode(const uint8_t *buf, size_t len_bytes, struct rdti_auth *out, struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_auth auth = {0};

    rdt_status status = wire_handshake_begin(&f, &kind_auth, buf, len_bytes, err);
    if (status != RDT_OK)
        return status;
    rdti_fields_copy(&f, auth.mac, sizeof(auth.mac));
    status = rdti_fields_end(&f, kind_auth.name, err);
    if (status == RDT_OK)
        *out = auth;
    return status;
}

void
rdti_reject_encode(const struct rdti_reject *in, uint8_t out[RDTI_REJECT_BYTES])
{
    struct rdti_writer w = {.p = out, .left = RDTI_REJECT_BYTES, .is_ok = true};

    rdti_head_write(&w, RDTI_REJECT_MAGIC, RDTI_REJECT_BYTES);
    rdti_write_u32(&w, (uint32_t)in->status);
    rdti_write_text(&w, in->text, sizeof(in->text));
}

rdt_status
rdti_reject_decode(const uint8_t *buf, size_t len_bytes, struct rdti_reject *out,
                   struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_reject reject = {0};

    rdt_status status = wire_handshake_begin(&f, &kind_reject, buf, len_bytes, err);
    if (status != RDT_OK)
        return status;
    reject.status = (int32_t)rdti_read_u32(&f.r);
    rdti_fields_require(&f, reject.status < 0, "its status is not a failure");
    rdti_fields_text(&f, reject.text, sizeof(reject.text), "its text is not plain text");
    status = rdti_fields_end(&f, kind_reject.name, err);
    if (status == RDT_OK)
        *out = reject;
    return status;
}

void
rdti_join_encode(const struct rdti_join *in, uint8_t out[RDTI_JOIN_BYTES])
{
    struct rdti_writer w = {.p = out, .left = RDTI_JOIN_BYTES, .is_ok = true};

    rdti_head_write(&w, RDTI_JOIN_MAGIC, RDTI_JOIN_BYTES);
    (void)rdti_write_bytes(&w, in->session_id, sizeof(in->session_id));
    rdti_write_u32(&w, in->index);
    (void)rdti_write_bytes(&w, in->nonce, sizeof(in->nonce));
    (void)rdti_write_bytes(&w, in->mac, sizeof(in->mac));
}

rdt_status
rdti_join_decode(const uint8_t *buf, size_t len_bytes, struct rdti_join *out, struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_join join = {0};

    rdt_status status = wire_handshake_begin(&f, &kind_join, buf, len_bytes, err);
    if (status != RDT_OK)
        return status;
    rdti_fields_copy(&f, join.session_id, sizeof(join.session_id));
    join.index = rdti_read_u32(&f.r);
    rdti_fields_copy(&f, join.nonce, sizeof(join.nonce));
    rdti_fields_copy(&f, join.mac, sizeof(join.mac));
    status = rdti_fields_end(&f, kind_join.name, err);
    if (status == RDT_OK)
        *out = join;
    return status;
}

void
rdti_handshake_mac(enum rdti_mac_role role, const uint8_t *secret, size_t secret_bytes,
                   const uint8_t hello[RDTI_HELLO_BYTES],
                   const uint8_t challenge[RDTI_CHALLENGE_BYTES], uint8_t out[RDTI_SHA256_BYTES])
{
    uint8_t data[sizeof(label_connector) + RDTI_HELLO_BYTES + RDTI_CHALLENGE_BYTES];
    struct rdti_writer w = {.p = data, .left = sizeof(data), .is_ok = true};
    const char *label = role == RDTI_MAC_LISTENER    ? label_listener
                        : role == RDTI_MAC_CONNECTOR ? label_connector
                                                     : label_session;

    (void)rdti_write_bytes(&w, label, strlen(label));
    (void)rdti_write_bytes(&w, hello, RDTI_HELLO_BYTES);
    (void)rdti_write_bytes(&w, challenge, RDTI_CHALLENGE_BYTES - RDTI_SHA256_BYTES);
    rdti_hmac_sha256(secret, secret_bytes, data, sizeof(data) - w.left, out);
}

void
rdti_join_mac(const uint8_t session_key[RDTI_SHA256_BYTES], const uint8_t join[RDTI_JOIN_BYTES],
              uint8_t out[RDTI_SHA256_BYTES])
{
    uint8_t data[sizeof(label_join) - 1 + RDTI_JOIN_BYTES - RDTI_SHA256_BYTES];

    memcpy(data, label_join, sizeof(label_join) - 1);
    memcpy(data + sizeof(label_join) - 1, join, RDTI_JOIN_BYTES - RDTI_SHA256_BYTES);
    rdti_hmac_sha256(session_key, RDTI_SHA256_BYTES, data, sizeof(data), out);
}
