/* SPDX-License-Identifier: Apache-2.0
 * Two ranks, and memory of the second one in which receives stand. */
#ifndef RDTI_TESTS_STAND_RIG_H
#define RDTI_TESTS_STAND_RIG_H

#include "core/group_rig.h"
#include "message/mailbox_impl.h"
#include "message/persistent.h"
#include "message/persistent_impl.h"

#define TAG 7
#define LARGE UINT64_C(262144)
#define PLACES 4

/* Memory of rank 1's arena, in pieces. */
struct field {
    rdt_region *region;
    uint8_t *piece[PLACES];
};

static inline void
field_make(struct field *field, rdt_context *ctx, uint64_t piece_bytes)
{
    struct rdt_error err = {0};

    CHECK_OK(rdt_region_alloc(ctx, piece_bytes * PLACES, 0, &field->region, &err), &err);
    for (int i = 0; i < PLACES; i++)
        field->piece[i] = (uint8_t *)rdt_region_addr(field->region) + piece_bytes * (uint64_t)i;
}

static inline struct rdt_counters
counters(struct rig *rig, uint32_t rank)
{
    struct rdt_counters now = {.struct_size = sizeof(now)};

    rdt_context_counters(rig->ctx[rank], &now);
    return now;
}

/* One message of rank 0, whichever comes first. */
static inline void
exchange_with(struct rig *rig, uint64_t tag, uint8_t *dst, uint64_t len_bytes, uint64_t seed,
              bool is_send_first)
{
    struct rdt_error err = {0};
    uint8_t *src = malloc(len_bytes);
    rdt_transfer *recv = NULL;

    rig_fill(src, len_bytes, seed);
    if (!is_send_first)
        recv = rig_recv(rig, 1, 0, tag, dst, len_bytes);
    rdt_transfer *send = rig_send(rig, 0, 1, tag, src, len_bytes);
    if (is_send_first) {
        CHECK_STATUS(rdt_context_progress(rig->ctx[1]), RDT_OK);
        recv = rig_recv(rig, 1, 0, tag, dst, len_bytes);
    }
    CHECK_OK(rig_end(recv, &err), &err);
    CHECK_OK(rig_end(send, &err), &err);
    CHECK_MEM_EQ(dst, src, len_bytes);
    free(src);
}

static inline void
exchange(struct rig *rig, uint8_t *dst, uint64_t len_bytes, uint64_t seed, bool is_send_first)
{
    exchange_with(rig, TAG, dst, len_bytes, seed, is_send_first);
}

/* Rank 0's half of the stream from it to rank 1. */
static inline bool
stands(struct rig *rig, uint64_t tag)
{
    rdt_group *group = rig->group[0];

    rdti_engine_enter(group->scope.ctx->engine);
    const bool is_standing = rdti_stand_find_tx(rdti_mailbox_of(group->scope.members[1].ep),
                                                group->scope.id, tag) != NULL;
    rdti_engine_leave(group->scope.ctx->engine);
    return is_standing;
}

/* Rank 0 knows that the receives for its next messages, so many, are posted. */
static inline bool
has_heard_of(struct rig *rig, uint64_t tag, uint64_t count)
{
    rdt_group *group = rig->group[0];

    rdti_engine_enter(group->scope.ctx->engine);
    const struct rdti_tx_stream *stream =
        rdti_stand_find_tx(rdti_mailbox_of(group->scope.members[1].ep), group->scope.id, tag);
    const bool is_heard = stream != NULL && stream->told_next >= stream->sent + count;
    rdti_engine_leave(group->scope.ctx->engine);
    return is_heard;
}

/* It waits no more for the receive of its next message. */
static inline bool
has_heard(struct rig *rig, uint64_t tag)
{
    return has_heard_of(rig, tag, 1);
}

static inline bool
has_requests(rdt_group *group)
{
    rdti_engine_enter(group->scope.ctx->engine);
    const bool is_any = !rdti_list_is_empty(&group->scope.requests);
    rdti_engine_leave(group->scope.ctx->engine);
    return is_any;
}

#endif
