/* SPDX-License-Identifier: Apache-2.0
 * Random values of every struct of the wire, for codecs.h. */
#ifndef RDT_TESTS_WIRE_CODECS_VALUES_H
#define RDT_TESTS_WIRE_CODECS_VALUES_H

#include "harness.h"

#include "rdmatensor.h"
#include "wire/address.h"
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
fill_address(struct rng *rng, void *value)
{
    struct rdti_address *v = value;

    rng_text(rng, v->library_version, sizeof(v->library_version));
    rng_bytes(rng, v->uuid, sizeof(v->uuid));
    rng_bytes(rng, v->host_hint, sizeof(v->host_hint));
    v->pid_hint = rng_u32(rng);
    rng_text(rng, v->unix_name, sizeof(v->unix_name));
    v->addr_count = rng_below(rng, RDTI_ADDRESS_IPS_MAX + 1);
    v->verify = rng_below(rng, RDT_VERIFY_CRC32C + 1);
    for (uint32_t i = 0; i < v->addr_count; i++) {
        struct rdti_address_ip *addr = &v->addrs[i];
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

    v->op = (uint16_t)(RDTI_PS_OP_PUSH + rng_below(rng, RDTI_PS_OP_HOLDERS));
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
        v->age = rng_u32(rng);
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

#endif
