/* SPDX-License-Identifier: Apache-2.0
 * Every format of the wire as one table entry: how to make a random value, its bytes, and back. The
 * checks below hold for all of them. over budget: one table, so that no format is left out. */
#ifndef RDT_TESTS_WIRE_CODECS_H
#define RDT_TESTS_WIRE_CODECS_H

#include "harness.h"

#include "rdmatensor.h"
#include "wire/blob.h"
#include "wire/bytes.h"
#include "wire/group/founding.h"
#include "wire/endpoint/frame.h"
#include "wire/handshake.h"
#include "wire/endpoint/message.h"
#include "wire/notify.h"
#include "wire/group/persistent.h"
#include "wire/group/placement.h"
#include "wire/endpoint/slot_header.h"
#include "wire/endpoint/sums.h"
#include "wire/group/symmetric.h"
#include "wire/group/told.h"
#include "wire/ps/answer.h"
#include "wire/ps/request.h"
#include "wire/endpoint/verbs.h"

#define WIRE_MAX_BYTES RDTI_FRAME_PAYLOAD_MAX

/* splitmix64: a seed in the failure message makes a run again. */
struct rng {
    uint64_t state;
};

static inline uint64_t
rng_next(struct rng *rng)
{
    uint64_t z = rng->state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static inline uint32_t
rng_below(struct rng *rng, uint32_t bound)
{
    return (uint32_t)(rng_next(rng) % bound);
}

static inline void
rng_bytes(struct rng *rng, void *out, size_t len_bytes)
{
    uint8_t *p = out;

    for (size_t i = 0; i < len_bytes; i += sizeof(uint64_t)) {
        const uint64_t word = rng_next(rng);
        memcpy(p + i, &word, len_bytes - i < sizeof(word) ? len_bytes - i : sizeof(word));
    }
}

/* Text of any length that fits, the rest zeros; bytes above 0x7f are legal. */
static inline void
rng_text(struct rng *rng, char *out, size_t field_bytes)
{
    const size_t len = rng_below(rng, (uint32_t)field_bytes);

    memset(out, 0, field_bytes);
    for (size_t i = 0; i < len; i++)
        out[i] = (char)(rng_below(rng, 8) == 0 ? 0x80 + rng_below(rng, 0x80)
                                               : 0x20 + rng_below(rng, 0x7f - 0x20));
}

/* Any width of value, so that small ones and the largest both occur. */
static inline uint64_t
rng_u64(struct rng *rng)
{
    return rng_next(rng) >> rng_below(rng, 64);
}

static inline uint32_t
rng_u32(struct rng *rng)
{
    return (uint32_t)(rng_next(rng) & UINT32_MAX) >> rng_below(rng, 32);
}

static inline int32_t
rng_rank(struct rng *rng)
{
    return (int32_t)(rng_next(rng) & INT32_MAX) - (rng_below(rng, 2) == 0 ? 1 : 0);
}

static inline void
rng_region(struct rng *rng, struct rdt_remote_region *out)
{
    rng_bytes(rng, out->owner, sizeof(out->owner));
    out->addr = rng_u64(rng) >> 1;
    out->len_bytes = rng_u64(rng) >> 1;
    out->segment_off = rng_u64(rng) >> 1;
    out->segment = rng_u32(rng);
    out->index = rng_u32(rng);
    out->generation = rng_u32(rng);
    out->rkey = rng_u32(rng);
}

static inline void
rng_place(struct rng *rng, struct rdti_place *out)
{
    rng_region(rng, &out->region);
    out->off_bytes = rng_u64(rng) % (out->region.len_bytes + 1);
}

static inline uint32_t
rng_dtype(struct rng *rng)
{
    return RDT_BOOL + rng_below(rng, RDT_C128);
}

/* dims whose product stays below 2^56, so that any dtype fits in 63 bits. */
static inline void
rng_dims(struct rng *rng, uint32_t ndim, uint64_t *dims)
{
    for (uint32_t i = 0; i < ndim; i++)
        dims[i] = rng_next(rng) >> (64 - rng_below(rng, 7) - 1);
}

struct codec {
    const char *name;
    size_t struct_bytes;
    size_t least_bytes; /* of the encoding */
    size_t most_bytes;
    bool is_prefix_enough; /* the decoder takes longer buffers and reads the front */
    void (*fill)(struct rng *rng, void *value); /* *value is zero before */
    size_t (*encode)(const void *value, uint8_t *out);
    rdt_status (*decode)(const uint8_t *buf, size_t len_bytes, void *out, struct rdt_error *err);
};

union any_value {
    struct rdti_hello hello;
    struct rdti_challenge challenge;
    struct rdti_auth auth;
    struct rdti_reject reject;
    struct rdti_join join;
    struct rdti_blob blob;
    struct rdti_path path;
    struct rdti_text text;
    struct rdti_death death;
    struct rdti_revoke revoke;
    struct rdti_segment segment;
    struct rdti_slot_announce slot_announce;
    struct rdti_slot_gone slot_gone;
    struct rdti_abort abort_frame;
    struct rdti_move move;
    struct rdti_message message;
    struct rdti_rts rts;
    struct rdti_place place;
    struct rdti_nack nack;
    struct rdti_sums sums;
    struct rdti_sums_get sums_get;
    struct rdti_slot_header slot_header;
    struct rdt_remote_region region;
    struct rdti_verbs_offer verbs_offer;
    struct rdti_verbs_words verbs_words;
    struct rdti_founding_address founding_address;
    struct rdti_founding_vote founding_vote;
    struct rdti_costs costs;
    struct rdti_placement placement;
    struct rdti_card card;
    struct rdti_told told;
    struct rdti_persistent_record persistent_record;
    struct rdti_persistent_vote persistent_vote;
    struct rdti_persistent_start persistent_start;
    struct rdti_ps_request ps_request;
    struct rdti_ps_answer ps_answer;
    struct rdti_ps_lease ps_lease;
};

/* Thunks of one codec of fixed size whose encoder returns nothing. */
#define FIXED_CODEC(type, name, total_bytes)                                                \
    static inline size_t encode_##name(const void *value, uint8_t *out)                     \
    {                                                                                       \
        type##_encode(value, out);                                                          \
        return (total_bytes);                                                               \
    }                                                                                       \
    static inline rdt_status decode_##name(const uint8_t *buf, size_t len_bytes, void *out, \
                                           struct rdt_error *err)                           \
    {                                                                                       \
        return type##_decode(buf, len_bytes, out, err);                                     \
    }

/* The same for frames, whose encoders return the length. */
#define FRAME_CODEC(type, name)                                                             \
    static inline size_t encode_##name(const void *value, uint8_t *out)                     \
    {                                                                                       \
        return type##_encode(value, out);                                                   \
    }                                                                                       \
    static inline rdt_status decode_##name(const uint8_t *buf, size_t len_bytes, void *out, \
                                           struct rdt_error *err)                           \
    {                                                                                       \
        return type##_decode(buf, len_bytes, out, err);                                     \
    }

FIXED_CODEC(rdti_hello, hello, RDTI_HELLO_BYTES)
FIXED_CODEC(rdti_challenge, challenge, RDTI_CHALLENGE_BYTES)
FIXED_CODEC(rdti_auth, auth, RDTI_AUTH_BYTES)
FIXED_CODEC(rdti_reject, reject, RDTI_REJECT_BYTES)
FIXED_CODEC(rdti_join, join, RDTI_JOIN_BYTES)
FIXED_CODEC(rdti_message, message, RDTI_MESSAGE_HEAD_BYTES)
FIXED_CODEC(rdti_rts, rts, RDTI_RTS_BYTES)
FIXED_CODEC(rdti_place, place, RDTI_PLACE_BYTES)
FIXED_CODEC(rdti_nack, nack, RDTI_NACK_BYTES)
FIXED_CODEC(rdti_sums_get, sums_get, RDTI_SUMS_GET_BYTES)
FIXED_CODEC(rdti_slot_header, slot_header, RDTI_SLOT_HEADER_BYTES)
FIXED_CODEC(rdt_remote_region, region, RDT_REMOTE_REGION_BYTES)
FIXED_CODEC(rdti_founding_address, founding_address, RDTI_FOUNDING_ADDRESS_BYTES)
FIXED_CODEC(rdti_founding_vote, founding_vote, RDTI_FOUNDING_VOTE_BYTES)
FIXED_CODEC(rdti_costs, costs, RDTI_COSTS_BYTES)
FIXED_CODEC(rdti_card, card, RDTI_CARD_BYTES)
FIXED_CODEC(rdti_told, told, RDTI_TOLD_BYTES)
FIXED_CODEC(rdti_persistent_record, persistent_record, RDTI_PERSISTENT_RECORD_BYTES)
FIXED_CODEC(rdti_persistent_vote, persistent_vote, RDTI_PERSISTENT_VOTE_BYTES)
FIXED_CODEC(rdti_persistent_start, persistent_start, RDTI_PERSISTENT_START_BYTES)
FRAME_CODEC(rdti_placement, placement)
FRAME_CODEC(rdti_sums, sums)
FRAME_CODEC(rdti_path, path)
FRAME_CODEC(rdti_text, text)
FRAME_CODEC(rdti_death, death)
FRAME_CODEC(rdti_revoke, revoke)
FRAME_CODEC(rdti_segment, segment)
FRAME_CODEC(rdti_slot_announce, slot_announce)
FRAME_CODEC(rdti_slot_gone, slot_gone)
FRAME_CODEC(rdti_abort, abort)
FRAME_CODEC(rdti_move, move)
FRAME_CODEC(rdti_verbs_offer, verbs_offer)
FRAME_CODEC(rdti_verbs_words, verbs_words)
FRAME_CODEC(rdti_ps_lease, ps_lease)

/* The heads of requests and answers, whose slots are as large as they may be. */
#define HEAD_CODEC(type, name)                                                              \
    static inline size_t encode_##name(const void *value, uint8_t *out)                     \
    {                                                                                       \
        type##_encode(value, out);                                                          \
        return RDTI_PS_HEAD_BYTES;                                                          \
    }                                                                                       \
    static inline rdt_status decode_##name(const uint8_t *buf, size_t len_bytes, void *out, \
                                           struct rdt_error *err)                           \
    {                                                                                       \
        return type##_decode(buf, len_bytes, RDTI_PS_SLOT_BYTES_MAX, out, err);             \
    }

HEAD_CODEC(rdti_ps_request, ps_request)
HEAD_CODEC(rdti_ps_answer, ps_answer)

static inline size_t
encode_blob(const void *value, uint8_t *out)
{
    struct rdt_error err;
    size_t len_bytes = 0;

    CHECK_OK(rdti_blob_encode(value, out, WIRE_MAX_BYTES, &len_bytes, &err), &err);
    return len_bytes;
}

static inline rdt_status
decode_blob(const uint8_t *buf, size_t len_bytes, void *out, struct rdt_error *err)
{
    return rdti_blob_decode(buf, len_bytes, out, err);
}

static inline void
fill_hello(struct rng *rng, void *value)
{
    struct rdti_hello *v = value;

    rng_text(rng, v->library_version, sizeof(v->library_version));
    rng_text(rng, v->job_id, sizeof(v->job_id));
    rng_bytes(rng, v->connector, sizeof(v->connector));
    rng_bytes(rng, v->listener, sizeof(v->listener));
    rng_bytes(rng, v->nonce, sizeof(v->nonce));
    v->epoch = rng_u32(rng);
    v->rank = rng_rank(rng);
    v->transports = rng_below(rng, 8) << 1 | rng_below(rng, 2) << 31;
    v->force_transport = rng_below(rng, 4);
    v->require_transport = rng_below(rng, 4);
}

static inline void
fill_challenge(struct rng *rng, void *value)
{
    struct rdti_challenge *v = value;

    rng_text(rng, v->library_version, sizeof(v->library_version));
    rng_bytes(rng, v->listener, sizeof(v->listener));
    rng_bytes(rng, v->nonce, sizeof(v->nonce));
    v->epoch = rng_u32(rng);
    v->rank = rng_rank(rng);
    v->transports = rng_below(rng, 8) << 1 | rng_below(rng, 2) << 31;
    v->force_transport = rng_below(rng, 4);
    v->require_transport = rng_below(rng, 4);
    rng_bytes(rng, v->mac, sizeof(v->mac));
}

static inline void
fill_auth(struct rng *rng, void *value)
{
    rng_bytes(rng, ((struct rdti_auth *)value)->mac, RDTI_SHA256_BYTES);
}

static inline void
fill_reject(struct rng *rng, void *value)
{
    struct rdti_reject *v = value;

    v->status = -1 - (int32_t)rng_below(rng, 100);
    rng_text(rng, v->text, sizeof(v->text));
}

static inline void
fill_join(struct rng *rng, void *value)
{
    struct rdti_join *v = value;

    rng_bytes(rng, v->session_id, sizeof(v->session_id));
    v->index = rng_u32(rng);
    rng_bytes(rng, v->nonce, sizeof(v->nonce));
    rng_bytes(rng, v->mac, sizeof(v->mac));
}

static inline void
fill_blob(struct rng *rng, void *value)
{
    struct rdti_blob *v = value;

    rng_text(rng, v->library_version, sizeof(v->library_version));
    rng_bytes(rng, v->uuid, sizeof(v->uuid));
    rng_bytes(rng, v->host_hint, sizeof(v->host_hint));
    v->pid_hint = rng_u32(rng);
    rng_text(rng, v->unix_name, sizeof(v->unix_name));
    v->addr_count = rng_below(rng, RDTI_BLOB_ADDRS_MAX + 1);
    v->verify = rng_below(rng, RDT_VERIFY_CRC32C + 1);
    for (uint32_t i = 0; i < v->addr_count; i++) {
        struct rdti_blob_addr *addr = &v->addrs[i];
        addr->family = rng_below(rng, 2) == 0 ? 4 : 6;
        addr->is_loopback = (uint8_t)rng_below(rng, 2);
        addr->port = (uint16_t)(1 + rng_below(rng, UINT16_MAX));
        rng_bytes(rng, addr->addr, addr->family == 4 ? 4 : 16);
    }
}

static inline void
fill_path(struct rng *rng, void *value)
{
    struct rdti_path *v = value;

    v->transport = RDT_TRANSPORT_SHM + rng_below(rng, 3);
    rng_bytes(rng, v->session_id, sizeof(v->session_id));
    rng_bytes(rng, v->nonce, sizeof(v->nonce));
    rng_region(rng, &v->ring);
    rng_text(rng, v->reason, sizeof(v->reason));
    v->offer_bytes = rng_below(rng, RDTI_OFFER_MAX_BYTES + 1);
    rng_bytes(rng, v->offer, v->offer_bytes);
}

static inline void
fill_text(struct rng *rng, void *value)
{
    rng_text(rng, ((struct rdti_text *)value)->text, RDTI_REASON_BYTES);
}

static inline void
fill_death(struct rng *rng, void *value)
{
    struct rdti_death *v = value;

    rng_bytes(rng, v->uuid, sizeof(v->uuid));
    v->rank = rng_rank(rng);
    v->is_left = rng_below(rng, 2);
    rng_text(rng, v->reason, sizeof(v->reason));
}

static inline void
fill_revoke(struct rng *rng, void *value)
{
    struct rdti_revoke *v = value;

    v->index = rng_u32(rng);
    v->generation = rng_u32(rng);
}

static inline void
fill_segment(struct rng *rng, void *value)
{
    struct rdti_segment *v = value;

    v->segment = rng_u32(rng) >> 1;
    v->len_bytes = rng_u64(rng) >> 1;
}

static inline void
fill_slot_announce(struct rng *rng, void *value)
{
    struct rdti_slot_announce *v = value;

    v->slot_id = rng_below(rng, RDTI_SLOT_ID_MAX + 1);
    v->buffers = 1 + rng_below(rng, 4);
    rng_text(rng, v->name, sizeof(v->name));
    v->desc.struct_size = sizeof(v->desc);
    v->desc.kind = RDT_SLOT_STATIC + rng_below(rng, 3);
    v->desc.dtype = rng_dtype(rng);
    v->desc.ndim = rng_below(rng, RDT_MAX_NDIM + 1);
    if (v->desc.kind != RDT_SLOT_DYNAMIC)
        rng_dims(rng, v->desc.ndim, v->desc.dims);
    v->stride_bytes = rng_u64(rng);
    rng_region(rng, &v->region);
}

static inline void
fill_slot_gone(struct rng *rng, void *value)
{
    struct rdti_slot_gone *v = value;

    v->slot_id = rng_below(rng, RDTI_SLOT_ID_MAX + 1);
    v->released = (uint32_t)rng_next(rng);
    rng_text(rng, v->text, sizeof(v->text));
}

static inline void
fill_abort(struct rng *rng, void *value)
{
    struct rdti_abort *v = value;

    v->group_id = rng_u64(rng);
    v->rank = rng_rank(rng);
    rng_text(rng, v->reason, sizeof(v->reason));
}

static inline void
fill_move(struct rng *rng, void *value)
{
    struct rdti_move *v = value;

    v->transport = RDT_TRANSPORT_TCP;
    v->delivered = rng_u64(rng);
    rng_text(rng, v->reason, sizeof(v->reason));
    v->offer_bytes = rng_below(rng, RDTI_OFFER_MAX_BYTES + 1);
    rng_bytes(rng, v->offer, v->offer_bytes);
}

static inline void
fill_message(struct rng *rng, void *value)
{
    struct rdti_message *v = value;

    v->kind = (uint8_t)(RDTI_MESSAGE_EAGER + rng_below(rng, RDTI_MESSAGE_POSTED));
    v->op = (uint8_t)rng_u32(rng);
    v->dtype = (uint8_t)rng_u32(rng);
    v->reduce_op = (uint8_t)rng_u32(rng);
    v->source = (uint16_t)rng_u32(rng);
    v->root = (uint16_t)rng_u32(rng);
    v->group_id = rng_u64(rng);
    v->tag = rng_u64(rng);
    v->len_bytes = rng_u64(rng);
    v->count = rng_u64(rng);
    v->id = rng_u64(rng);
    v->consumed = rng_u32(rng);
    v->delivered = rng_u32(rng);
    rng_bytes(rng, v->inlined, sizeof(v->inlined));
}

static inline void
fill_rts(struct rng *rng, void *value)
{
    struct rdti_rts *v = value;

    v->has_region = (uint8_t)rng_below(rng, 2);
    v->has_process = (uint8_t)rng_below(rng, 2);
    v->pid = rng_u32(rng);
    v->addr = rng_u64(rng);
    v->canary_addr = rng_u64(rng);
    v->canary = rng_u64(rng);
    if (v->has_region != 0)
        rng_place(rng, &v->place);
}

static inline void
fill_place(struct rng *rng, void *value)
{
    rng_place(rng, value);
}

static inline void
fill_nack(struct rng *rng, void *value)
{
    struct rdti_nack *v = value;

    rng_text(rng, v->text, sizeof(v->text));
}

/* Any length that a message of sums may speak of, whole chunks and not. */
static inline uint64_t
rng_summed(struct rng *rng)
{
    return 1 + rng_below(rng, RDTI_SUMS_MAX * RDT_SUM_CHUNK_BYTES);
}

static inline void
fill_sums(struct rng *rng, void *value)
{
    struct rdti_sums *v = value;

    v->off_bytes = rng_u64(rng) >> 1;
    v->len_bytes = rng_below(rng, 8) == 0 ? 0 : rng_summed(rng);
    v->index = rng_u32(rng);
    v->generation = rng_u32(rng);
    v->notification = rng_u32(rng);
    v->count = (uint32_t)((v->len_bytes + RDT_SUM_CHUNK_BYTES - 1) / RDT_SUM_CHUNK_BYTES);
    for (uint32_t i = 0; i < v->count; i++)
        v->sums[i] = (uint32_t)rng_next(rng);
}

static inline void
fill_sums_get(struct rng *rng, void *value)
{
    struct rdti_sums_get *v = value;

    v->off_bytes = rng_u64(rng) >> 1;
    v->len_bytes = rng_summed(rng);
    v->index = rng_u32(rng);
    v->generation = rng_u32(rng);
}

static inline void
fill_slot_header(struct rng *rng, void *value)
{
    struct rdti_slot_header *v = value;

    v->epoch = rng_u32(rng);
    v->dtype = rng_dtype(rng);
    v->ndim = rng_below(rng, RDT_MAX_NDIM + 1);
    rng_dims(rng, v->ndim, v->dims);
    if (rng_below(rng, 2) == 0)
        rng_place(rng, &v->place);
}

#include "codecs_verbs.h"

static inline void
fill_founding_address(struct rng *rng, void *value)
{
    struct rdti_founding_address *v = value;

    v->has_board = rng_below(rng, 2);
    if (v->has_board != 0)
        rng_region(rng, &v->board);
}

static inline void
fill_founding_vote(struct rng *rng, void *value)
{
    struct rdti_founding_vote *v = value;

    v->members = rng_next(rng);
    v->must_measure = rng_below(rng, 2);
}

static inline void
fill_costs(struct rng *rng, void *value)
{
    struct rdti_costs *v = value;

    v->source = rng_below(rng, RDTI_COSTS_SOURCES);
    v->far = RDTI_PATH_SHM + rng_below(rng, RDTI_PATHS - RDTI_PATH_SHM);
    for (uint32_t i = 0; i < RDTI_PATHS; i++) {
        v->paths[i].alpha_ns = 1 + rng_below(rng, RDTI_COSTS_ALPHA_MAX_NS);
        v->paths[i].beta_ps = 1 + rng_below(rng, RDTI_COSTS_BETA_MAX_PS);
        v->paths[i].duplex_permille =
            RDTI_COSTS_DUPLEX_MIN_PERMILLE +
            rng_below(rng, RDTI_COSTS_DUPLEX_MAX_PERMILLE - RDTI_COSTS_DUPLEX_MIN_PERMILLE + 1);
    }
    v->gamma_ps = 1 + rng_below(rng, RDTI_COSTS_BETA_MAX_PS);
}

static inline void
fill_placement(struct rng *rng, void *value)
{
    struct rdti_placement *v = value;

    v->saying = rng_below(rng, RDTI_PLACEMENT_KNOWN + 1);
    v->number = v->saying == RDTI_PLACEMENT_NONE ? 0 : rng_below(rng, UINT8_MAX + 1);
    if (v->saying == RDTI_PLACEMENT_NEW)
        rng_place(rng, &v->place);
}

static inline void
fill_card(struct rng *rng, void *value)
{
    struct rdti_card *v = value;

    v->number = rng_below(rng, 4) == 0 ? RDTI_CARD_NOBODYS : rng_u64(rng) >> 1;
    v->buffer_bytes = rng_u64(rng);
    v->pad_bytes = rng_u64(rng);
    if (v->number != RDTI_CARD_NOBODYS)
        rng_place(rng, &v->buffer);
}

static inline void
fill_told(struct rng *rng, void *value)
{
    struct rdti_told *v = value;

    rng_bytes(rng, v->id, sizeof(v->id));
    rng_bytes(rng, v->group_id, sizeof(v->group_id));
    v->epoch = rng_u32(rng);
    v->has_secret = rng_below(rng, 2);
    v->is_store_at_rank_0 = rng_below(rng, 2);
    if (v->has_secret != 0)
        rng_bytes(rng, v->secret, sizeof(v->secret));
    rng_text(rng, v->algo, sizeof(v->algo));
    rng_text(rng, v->deterministic, sizeof(v->deterministic));
}

static inline void
fill_persistent_record(struct rng *rng, void *value)
{
    struct rdti_persistent_record *v = value;
    const bool reduces[RDT_COLL_BARRIER + 1] = {[RDT_COLL_ALLREDUCE] = true,
                                                [RDT_COLL_REDUCE] = true,
                                                [RDT_COLL_REDUCE_SCATTER] = true};
    const bool is_rootless[RDT_COLL_BARRIER + 1] = {[RDT_COLL_ALLREDUCE] = true,
                                                    [RDT_COLL_ALLGATHER] = true,
                                                    [RDT_COLL_REDUCE_SCATTER] = true,
                                                    [RDT_COLL_ALLTOALL] = true,
                                                    [RDT_COLL_BARRIER] = true};

    v->op = 1 + rng_below(rng, RDT_COLL_BARRIER);
    v->dtype = v->op == RDT_COLL_BARRIER ? 0 : rng_dtype(rng);
    v->reduce_op = reduces[v->op] ? 1 + rng_below(rng, RDT_BXOR) : 0;
    v->root = is_rootless[v->op] ? 0 : rng_u32(rng);
    v->count = v->op == RDT_COLL_BARRIER || v->op == RDT_COLL_ALLTOALL ? 0 : rng_u64(rng);
    v->landing = rng_below(rng, RDT_LANDING_NOT_IN_ARENA + 1);
    if (v->landing == RDT_LANDING_OFFERED)
        rng_place(rng, &v->place);
}

static inline void
fill_persistent_vote(struct rng *rng, void *value)
{
    ((struct rdti_persistent_vote *)value)->vote = 1 + rng_below(rng, RDTI_VOTE_FAILED);
}

static inline void
fill_persistent_start(struct rng *rng, void *value)
{
    struct rdti_persistent_start *v = value;

    v->number = rng_u64(rng);
    v->is_aside = rng_below(rng, 2);
}

/* A request that has what its op has. */
static inline void
fill_ps_request(struct rng *rng, void *value)
{
    struct rdti_ps_request *v = value;

    v->op = (uint16_t)(RDTI_PS_OP_PUSH + rng_below(rng, RDTI_PS_OP_VALUES));
    v->sequence = 1 + (rng_u64(rng) >> 1);
    if (v->op == RDTI_PS_OP_PUSH || v->op == RDTI_PS_OP_PULL) {
        v->table = rng_u32(rng);
        v->map_version = rng_u32(rng);
        v->count = rng_below(rng, 1000);
        v->payload_bytes = v->count * 8;
    }
    if (v->op == RDTI_PS_OP_PUSH) {
        v->flags = (uint16_t)(rng_below(rng, 2) * RDTI_PS_FLAG_UNIQUE);
        v->payload_bytes += 4 * v->count * rng_below(rng, 70);
    } else if (v->op == RDTI_PS_OP_TICK) {
        v->flags = (uint16_t)(rng_below(rng, 2) * RDTI_PS_FLAG_DROP);
        v->count = rng_below(rng, 1000);
        v->payload_bytes = v->count * 4 + rng_below(rng, RDTI_PS_MEMBERS_BYTES + 1);
        v->clock = 1 + (rng_u64(rng) >> 1);
        v->lr_scale = rng_u32(rng) / 1024.0;
    } else if (v->op == RDTI_PS_OP_CALL) {
        v->payload_bytes = rng_below(rng, RDTI_PS_SLOT_BYTES_MAX + 1);
    }
    if (v->op == RDTI_PS_OP_LEASE || (v->op == RDTI_PS_OP_TICK && rng_below(rng, 2) == 0))
        v->queue = 1 + rng_u32(rng) / 2;
    if (v->op == RDTI_PS_OP_TICK && v->queue != 0)
        v->chunk = rng_u64(rng);
}

static inline void
fill_ps_answer(struct rng *rng, void *value)
{
    struct rdti_ps_answer *v = value;

    v->status = -(int32_t)rng_below(rng, 20);
    v->payload_bytes = rng_below(rng, RDTI_PS_SLOT_BYTES_MAX + 1);
    v->sequence = 1 + (rng_u64(rng) >> 1);
    v->clock = rng_u64(rng);
}

static inline void
fill_ps_lease(struct rng *rng, void *value)
{
    struct rdti_ps_lease *v = value;

    v->chunk = rng_u64(rng);
    v->is_stale = rng_below(rng, 2);
    v->members_bytes = rng_below(rng, RDTI_PS_MEMBERS_BYTES + 1);
    rng_bytes(rng, v->members, v->members_bytes);
}

static inline void
fill_region(struct rng *rng, void *value)
{
    rng_region(rng, value);
}

/* clang-format off */
static const struct codec codecs[] = {
#define ENTRY(name, type, least, most, prefix) \
    {#name, sizeof(type), (least), (most), (prefix), fill_##name, encode_##name, decode_##name}
    ENTRY(hello, struct rdti_hello, RDTI_HELLO_BYTES, RDTI_HELLO_BYTES, false),
    ENTRY(challenge, struct rdti_challenge, RDTI_CHALLENGE_BYTES, RDTI_CHALLENGE_BYTES, false),
    ENTRY(auth, struct rdti_auth, RDTI_AUTH_BYTES, RDTI_AUTH_BYTES, false),
    ENTRY(reject, struct rdti_reject, RDTI_REJECT_BYTES, RDTI_REJECT_BYTES, false),
    ENTRY(join, struct rdti_join, RDTI_JOIN_BYTES, RDTI_JOIN_BYTES, false),
    ENTRY(blob, struct rdti_blob, RDTI_BLOB_FIXED_BYTES, RDTI_BLOB_BYTES_MAX, false),
    ENTRY(path, struct rdti_path, RDTI_PATH_FIXED_BYTES,
          RDTI_PATH_FIXED_BYTES + RDTI_OFFER_MAX_BYTES, false),
    ENTRY(text, struct rdti_text, RDTI_TEXT_BYTES, RDTI_TEXT_BYTES, false),
    ENTRY(death, struct rdti_death, RDTI_DEATH_BYTES, RDTI_DEATH_BYTES, false),
    ENTRY(revoke, struct rdti_revoke, RDTI_REVOKE_BYTES, RDTI_REVOKE_BYTES, false),
    ENTRY(segment, struct rdti_segment, RDTI_SEGMENT_BYTES, RDTI_SEGMENT_BYTES, false),
    ENTRY(slot_announce, struct rdti_slot_announce, RDTI_SLOT_ANNOUNCE_BYTES,
          RDTI_SLOT_ANNOUNCE_BYTES, false),
    ENTRY(slot_gone, struct rdti_slot_gone, RDTI_SLOT_GONE_BYTES, RDTI_SLOT_GONE_BYTES, false),
    ENTRY(abort, struct rdti_abort, RDTI_ABORT_BYTES, RDTI_ABORT_BYTES, false),
    ENTRY(move, struct rdti_move, RDTI_MOVE_FIXED_BYTES,
          RDTI_MOVE_FIXED_BYTES + RDTI_OFFER_MAX_BYTES, false),
    ENTRY(message, struct rdti_message, RDTI_MESSAGE_HEAD_BYTES, RDTI_MESSAGE_HEAD_BYTES, true),
    ENTRY(rts, struct rdti_rts, RDTI_RTS_BYTES, RDTI_RTS_BYTES, false),
    ENTRY(place, struct rdti_place, RDTI_PLACE_BYTES, RDTI_PLACE_BYTES, false),
    ENTRY(nack, struct rdti_nack, RDTI_NACK_BYTES, RDTI_NACK_BYTES, false),
    ENTRY(sums, struct rdti_sums, RDTI_SUMS_FIXED_BYTES, RDTI_SUMS_BYTES_MAX, false),
    ENTRY(sums_get, struct rdti_sums_get, RDTI_SUMS_GET_BYTES, RDTI_SUMS_GET_BYTES, false),
    ENTRY(slot_header, struct rdti_slot_header, RDTI_SLOT_HEADER_BYTES, RDTI_SLOT_HEADER_BYTES,
          false),
    ENTRY(region, struct rdt_remote_region, RDT_REMOTE_REGION_BYTES, RDT_REMOTE_REGION_BYTES,
          false),
    ENTRY(verbs_offer, struct rdti_verbs_offer,
          RDTI_VERBS_OFFER_FIXED_BYTES + RDTI_VERBS_PORT_FIXED_BYTES + RDTI_VERBS_QP_BYTES,
          RDTI_OFFER_MAX_BYTES, false),
    ENTRY(verbs_words, struct rdti_verbs_words, RDTI_VERBS_WORDS_FIXED_BYTES,
          RDTI_LANE_WORDS_MAX_BYTES, false),
    ENTRY(founding_address, struct rdti_founding_address, RDTI_FOUNDING_ADDRESS_BYTES,
          RDTI_FOUNDING_ADDRESS_BYTES, false),
    ENTRY(founding_vote, struct rdti_founding_vote, RDTI_FOUNDING_VOTE_BYTES,
          RDTI_FOUNDING_VOTE_BYTES, false),
    ENTRY(costs, struct rdti_costs, RDTI_COSTS_BYTES, RDTI_COSTS_BYTES, false),
    ENTRY(card, struct rdti_card, RDTI_CARD_BYTES, RDTI_CARD_BYTES, false),
    ENTRY(told, struct rdti_told, RDTI_TOLD_BYTES, RDTI_TOLD_BYTES, false),
    ENTRY(placement, struct rdti_placement, RDTI_PLACEMENT_BRIEF_BYTES, RDTI_PLACEMENT_BYTES, true),
    ENTRY(persistent_record, struct rdti_persistent_record, RDTI_PERSISTENT_RECORD_BYTES,
          RDTI_PERSISTENT_RECORD_BYTES, false),
    ENTRY(persistent_vote, struct rdti_persistent_vote, RDTI_PERSISTENT_VOTE_BYTES,
          RDTI_PERSISTENT_VOTE_BYTES, false),
    ENTRY(persistent_start, struct rdti_persistent_start, RDTI_PERSISTENT_START_BYTES,
          RDTI_PERSISTENT_START_BYTES, false),
    ENTRY(ps_request, struct rdti_ps_request, RDTI_PS_HEAD_BYTES, RDTI_PS_HEAD_BYTES, false),
    ENTRY(ps_answer, struct rdti_ps_answer, RDTI_PS_HEAD_BYTES, RDTI_PS_HEAD_BYTES, false),
    ENTRY(ps_lease, struct rdti_ps_lease, RDTI_PS_LEASE_FIXED_BYTES,
          RDTI_PS_LEASE_FIXED_BYTES + RDTI_PS_MEMBERS_BYTES, false),
#undef ENTRY
};
/* clang-format on */

#define CODEC_COUNT (sizeof(codecs) / sizeof(codecs[0]))

static inline const struct codec *
codec_named(const char *name)
{
    for (size_t i = 0; i < CODEC_COUNT; i++) {
        if (strcmp(codecs[i].name, name) == 0)
            return &codecs[i];
    }
    FAIL("no codec is named %s", name);
}

/* A copy of exactly len_bytes, so that an address sanitizer sees a read behind it. */
static inline uint8_t *
exact_copy(const uint8_t *bytes, size_t len_bytes)
{
    uint8_t *copy = malloc(len_bytes > 0 ? len_bytes : 1);

    CHECK_NOT_NULL(copy);
    if (len_bytes > 0)
        memcpy(copy, bytes, len_bytes);
    return copy;
}

/*
 * Decode len_bytes at `bytes`, from an allocation of that size, into *out. On failure the status is
 * one of the two that the wire may give, err says something, and *out is untouched; on success the
 * encoder gives the same bytes again. Returns the status.
 */
static inline rdt_status
decode_strictly(const struct codec *codec, const uint8_t *bytes, size_t len_bytes,
                union any_value *out)
{
    union any_value before;
    struct rdt_error err = {0};
    uint8_t again[WIRE_MAX_BYTES];
    uint8_t *exact = exact_copy(bytes, len_bytes);

    memset(out, 0xa5, sizeof(*out));
    memset(&before, 0xa5, sizeof(before));
    const rdt_status status = codec->decode(exact, len_bytes, out, &err);
    if (status == RDT_OK) {
        const size_t used = codec->encode(out, again);
        CHECK_MSG(used == len_bytes || (codec->is_prefix_enough && used < len_bytes),
                  "%s: %zu bytes became %zu", codec->name, len_bytes, used);
        test_check_mem_eq(__FILE__, __LINE__, codec->name, again, exact, used);
    } else {
        CHECK_MSG(status == RDT_EPROTO || status == RDT_EVERSION, "%s gave %d", codec->name,
                  (int)status);
        CHECK_INT_EQ(err.status, status);
        CHECK(strlen(err.message) > 10);
        CHECK_MEM_EQ(out, &before, sizeof(before));
        CHECK_INT_EQ(codec->decode(exact, len_bytes, out, NULL), status);
    }
    free(exact);
    return status;
}

static inline size_t
encode_random(const struct codec *codec, struct rng *rng, union any_value *value, uint8_t *wire)
{
    memset(value, 0, sizeof(*value));
    codec->fill(rng, value);
    const size_t len_bytes = codec->encode(value, wire);
    CHECK_MSG(len_bytes >= codec->least_bytes && len_bytes <= codec->most_bytes,
              "%s: %zu bytes, want %zu to %zu", codec->name, len_bytes, codec->least_bytes,
              codec->most_bytes);
    return len_bytes;
}

/* Random values come back the same, field by field. */
static inline void
check_round_trips(const char *name)
{
    const struct codec *codec = codec_named(name);
    struct rng rng = {.state = 1};
    union any_value value;
    union any_value back;
    uint8_t wire[WIRE_MAX_BYTES];

    for (int round = 0; round < 2000; round++) {
        const size_t len_bytes = encode_random(codec, &rng, &value, wire);
        CHECK_MSG(decode_strictly(codec, wire, len_bytes, &back) == RDT_OK, "%s, round %d", name,
                  round);
        memset(&back, 0, sizeof(back)); /* the gaps between fields, which nobody writes */
        CHECK_STATUS(codec->decode(wire, len_bytes, &back, NULL), RDT_OK);
        CHECK_MEM_EQ(&back, &value, codec->struct_bytes);
    }
}

static inline void
check_truncations(const char *name)
{
    const struct codec *codec = codec_named(name);
    struct rng rng = {.state = 2};
    union any_value value;
    union any_value out;
    uint8_t wire[WIRE_MAX_BYTES + 1];

    for (int round = 0; round < 4; round++) {
        const size_t len_bytes = encode_random(codec, &rng, &value, wire);
        for (size_t n = 0; n < len_bytes; n++)
            CHECK_INT_EQ(decode_strictly(codec, wire, n, &out), RDT_EPROTO);
        wire[len_bytes] = 0;
        CHECK_INT_EQ(decode_strictly(codec, wire, len_bytes + 1, &out),
                     codec->is_prefix_enough ? RDT_OK : RDT_EPROTO);
    }
}

/* Each flip gives another value (that encodes to the flipped bytes) or a clean failure. */
static inline void
check_bit_flips(const char *name)
{
    const struct codec *codec = codec_named(name);
    struct rng rng = {.state = 3};
    union any_value value;
    union any_value out;
    uint8_t wire[WIRE_MAX_BYTES];

    for (int round = 0; round < 3; round++) {
        const size_t len_bytes = encode_random(codec, &rng, &value, wire);
        for (size_t bit = 0; bit < 8 * len_bytes; bit++) {
            wire[bit / 8] ^= (uint8_t)(1u << bit % 8);
            (void)decode_strictly(codec, wire, len_bytes, &out);
            wire[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
    }
}

#endif
