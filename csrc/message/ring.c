/* SPDX-License-Identifier: Apache-2.0
 * Putting messages into the peer's ring. */
#include <string.h>

#include "base/error.h"
#include "message/mailbox_impl.h"
#include "wire/notify.h"

/* Wake-ups while a ring goes from empty to full. The last ones come late enough that the sender
 * may have missed the effect of the first. */
#define URGES 8

/* All but its kind is zero: a PAD reports no credit. */
static const uint8_t pad_head[RDTI_MESSAGE_HEAD_BYTES] = {RDTI_MESSAGE_PAD};

uint64_t
rdti_ring_eager_max(const struct rdti_mailbox *m, uint32_t units)
{
    /* A quarter: two messages and a PAD fit, so that one can be taken while the next is written. */
    const uint64_t by_ring = (uint64_t)units * RDTI_MESSAGE_ALIGN / 4;
    const uint64_t by_path = rdti_endpoint_caps(m->ep).eager_max_bytes;

    return by_ring < by_path ? by_ring : by_path;
}

static void
message_ring_on_parcel_released(struct rdt_transfer *t)
{
    struct rdti_parcel *parcel = t->owner;
    struct rdti_engine *engine = parcel->parcels->engine;

    rdti_engine_enter(engine); /* a lane may complete in any thread */
    rdti_parcel_free(parcel);
    rdti_engine_leave(engine);
}

/* The ring now has a gap, where the peer would look for a message. If a working lane refuses, the
 * cause is a bug here or a lack of memory; after a lane's first error the core ends the
 * endpoint. */
static void
message_ring_on_refused(struct rdti_mailbox *m, rdt_status status, const struct rdt_error *err)
{
    if (status == RDT_ENOMEM || status == RDT_ERANGE || status == RDT_EINTERNAL)
        rdti_endpoint_fail(m->ep, err, false);
}

static void
message_ring_pad(struct rdti_mailbox *m)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    const struct rdt_block block = {.src = pad_head,
                                    .len_bytes = sizeof(pad_head),
                                    .dst_off = (uint64_t)m->tx_pos * RDTI_MESSAGE_ALIGN};
    const rdt_status status =
        rdti_endpoint_post_write(m->ep, &block, &m->ring, RDTI_TRAFFIC_CONTROL, RDTI_NOTIFY_NONE,
                                 false, NULL, NULL, &err);

    if (status != RDT_OK)
        message_ring_on_refused(m, status, &err);
    m->tx_sent += m->tx_units - m->tx_pos;
    m->tx_pos = 0;
}

bool
rdti_ring_reserve(struct rdti_mailbox *m, uint32_t units, uint32_t keep_units, uint64_t *off_out)
{
    const uint32_t room = m->tx_units - (m->tx_sent - m->tx_consumed);
    const uint32_t tail = m->tx_units - m->tx_pos;
    const uint32_t padding = tail < units ? tail : 0;

    if (room < units + padding + keep_units)
        return false;
    if (padding > 0)
        message_ring_pad(m);
    *off_out = (uint64_t)m->tx_pos * RDTI_MESSAGE_ALIGN;
    m->tx_pos += units;
    if (m->tx_pos == m->tx_units)
        m->tx_pos = 0;
    m->tx_sent += units;
    return true;
}

/* Whether the peer's progress thread has to act: an answer is needed, or the ring fills and no
 * thread takes messages. That thread then takes all, so one wake-up does for a while. */
static bool
message_ring_is_urgent(struct rdti_mailbox *m, const struct rdti_parcel *parcel)
{
    const struct rdti_message *head = &parcel->head;
    const bool is_credit = head->kind == RDTI_MESSAGE_CREDIT && head->group_id == 0;

    const bool is_sums = head->kind == RDTI_MESSAGE_SUMS || head->kind == RDTI_MESSAGE_WRITTEN;

    if (head->kind != RDTI_MESSAGE_EAGER && !is_credit && head->kind != RDTI_MESSAGE_SWITCH &&
        !parcel->is_quiet && !is_sums) /* they need no more than what they are sums of */
        return true;
    if (!rdti_ring_is_filling(m) || m->tx_sent - m->tx_urged < m->tx_units / URGES)
        return false;
    m->tx_urged = m->tx_sent;
    return true;
}

/* Every head carries credit. */
static void
message_ring_encode_head(struct rdti_mailbox *m, struct rdti_parcel *parcel)
{
    parcel->head.consumed = m->rx_consumed;
    parcel->head.delivered = m->delivered;
    m->rx_reported = m->rx_consumed;
    m->delivered_reported = m->delivered;
    rdti_message_encode(&parcel->head, parcel->bytes);
}

void
rdti_ring_place(struct rdti_mailbox *m, struct rdti_parcel *parcel, uint64_t off)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    const struct rdt_block block = {.src = parcel->bytes,
                                    .len_bytes = RDTI_MESSAGE_HEAD_BYTES + parcel->body_bytes,
                                    .dst_off = off};

    const enum rdti_traffic traffic =
        parcel->head.kind == RDTI_MESSAGE_EAGER ? RDTI_TRAFFIC_DYNAMIC : RDTI_TRAFFIC_CONTROL;

    message_ring_encode_head(m, parcel);
    const rdt_status status =
        rdti_endpoint_post_write(m->ep, &block, &m->ring, traffic, RDTI_NOTIFY_MESSAGE,
                                 message_ring_is_urgent(m, parcel), message_ring_on_parcel_released,
                                 parcel, &err);
    if (status == RDT_OK)
        return;
    rdti_parcel_free(parcel);
    message_ring_on_refused(m, status, &err);
}

/* The lane takes the bytes inside the call, or reports when it has: the op is that of the user's
 * own transfer. */
static rdt_status
message_ring_place_in_place(struct rdti_mailbox *m, struct rdti_parcel *parcel, uint64_t off,
                            const void *src, struct rdt_transfer *t, struct rdt_error *err)
{
    const bool is_inlined = parcel->head.len_bytes <= RDTI_MESSAGE_INLINE_BYTES;

    t->pair[0] = (struct rdt_block){.src = parcel->bytes,
                                    .len_bytes = RDTI_MESSAGE_HEAD_BYTES,
                                    .dst_off = off};
    t->pair[1] = (struct rdt_block){.src = src,
                                    .len_bytes = parcel->head.len_bytes,
                                    .dst_off = off + RDTI_MESSAGE_HEAD_BYTES};
    t->op.kind = RDTI_OP_WRITE;
    t->op.traffic = RDTI_TRAFFIC_DYNAMIC;
    t->op.notify = RDTI_NOTIFY_MESSAGE;
    t->op.is_urgent = message_ring_is_urgent(m, parcel);
    t->op.remote = m->ring;
    t->op.blocks = t->pair;
    t->op.block_count = is_inlined ? 1 : 2;
    t->op.len_bytes = RDTI_MESSAGE_HEAD_BYTES + (is_inlined ? 0 : parcel->head.len_bytes);
    t->owner = parcel;
    t->on_release = message_ring_on_parcel_released;
    const rdt_status status = rdti_endpoint_post(m->ep, t, err);
    if (status != RDT_OK) {
        t->owner = NULL;
        t->on_release = NULL;
        rdti_parcel_free(parcel);
    }
    return status;
}

static rdt_status
message_ring_place_copy(struct rdti_mailbox *m, struct rdti_parcel *parcel, uint64_t off,
                        const void *src, struct rdt_transfer *t, struct rdt_error *err)
{
    struct rdt_block block = {.src = parcel->bytes,
                              .len_bytes = RDTI_MESSAGE_HEAD_BYTES,
                              .dst_off = off};

    if (parcel->head.len_bytes > RDTI_MESSAGE_INLINE_BYTES) {
        memcpy(parcel->bytes + RDTI_MESSAGE_HEAD_BYTES, src, parcel->head.len_bytes);
        block.len_bytes += parcel->head.len_bytes;
    }
    const rdt_status status =
        rdti_endpoint_post_write(m->ep, &block, &m->ring, RDTI_TRAFFIC_DYNAMIC, RDTI_NOTIFY_MESSAGE,
                                 message_ring_is_urgent(m, parcel), message_ring_on_parcel_released,
                                 parcel, err);
    if (status != RDT_OK)
        rdti_parcel_free(parcel);
    else
        rdti_transfer_finish(t, RDT_OK, NULL); /* buffered */
    return status;
}

rdt_status
rdti_ring_place_eager(struct rdti_mailbox *m, struct rdti_parcel *parcel, uint64_t off,
                      const void *src, struct rdt_transfer *t, struct rdt_error *err)
{
    struct rdt_error why = {.peer_rank = RDT_RANK_UNKNOWN};
    const uint64_t len_bytes = parcel->head.len_bytes;

    memset(parcel->head.inlined, 0, sizeof(parcel->head.inlined));
    if (len_bytes > 0 && len_bytes <= RDTI_MESSAGE_INLINE_BYTES) /* src may be NULL for nothing */
        memcpy(parcel->head.inlined, src, len_bytes);
    message_ring_encode_head(m, parcel);
    m->eager_sent += (uint32_t)rdti_message_footprint(len_bytes);
    rdti_count(&m->ctx->counters.mailbox_eager, 1);
    rdti_count(&m->ctx->counters.copied_bytes[RDTI_TRAFFIC_DYNAMIC], len_bytes);
    const rdt_status status = rdti_endpoint_caps(m->ep).is_same_host
                                  ? message_ring_place_in_place(m, parcel, off, src, t, &why)
                                  : message_ring_place_copy(m, parcel, off, src, t, &why);
    if (status == RDT_OK)
        return RDT_OK;
    message_ring_on_refused(m, status, &why);
    return rdti_error_copy(err, &why);
}
