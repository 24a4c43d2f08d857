/* SPDX-License-Identifier: Apache-2.0
 * Sums of payload: made, sent, compared. */
#include "message/checksum.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/error.h"
#include "message/mailbox_impl.h"
#include "message/persistent_impl.h"
#include "message/request_impl.h"
#include "wire/bytes.h"
#include "wire/notify.h"
#include "wire/endpoint/sums.h"

/* Sums of one message: 256 GiB of it, and 64 MiB of local memory. More is a flood. */
#define OFFERED_SUMS_MAX (UINT32_C(1) << 24)

uint32_t *
rdti_sums_make(const void *src, uint64_t len_bytes)
{
    uint32_t *sums = malloc(sizeof(*sums) * (rdti_sum_count(len_bytes) + 1));

    if (sums != NULL)
        rdti_crc32c_chunks(src, len_bytes, sums);
    return sums;
}

/* ---- Comparing --------------------------------------------------------------------------- */

/* False: the bytes of *chunk_out differ from those that were summed. */
static bool
checksum_is_same(rdt_context *ctx, const void *at, uint64_t len_bytes, const uint32_t *sums,
                 uint64_t *chunk_out)
{
    uint32_t own[64];
    const uint8_t *p = at;

    rdti_count(&ctx->counters.verified_bytes, len_bytes);
    for (uint64_t done = 0; done < len_bytes;) {
        const uint64_t left = len_bytes - done;
        const uint64_t len = left < sizeof(own) / sizeof(own[0]) * RDT_SUM_CHUNK_BYTES
                                 ? left
                                 : sizeof(own) / sizeof(own[0]) * RDT_SUM_CHUNK_BYTES;
        rdti_crc32c_chunks(p + done, len, own);
        for (size_t i = 0; i < rdti_sum_count(len); i++) {
            if (own[i] == sums[done / RDT_SUM_CHUNK_BYTES + i])
                continue;
            *chunk_out = done / RDT_SUM_CHUNK_BYTES + i;
            return false;
        }
        done += len;
    }
    return true;
}

static rdt_status
checksum_corrupt(rdt_endpoint *ep, const struct rdti_sums_subject *subject, uint64_t from,
                 uint64_t to, struct rdt_error *err)
{
    rdt_context *ctx = rdti_endpoint_context(ep);
    const uint32_t transport = rdt_endpoint_transport(ep);

    rdti_count(&ctx->counters.mismatches, 1);
    return rdti_error_set_rank(
        err, RDT_ECORRUPT, rdti_endpoint_rank(ep),
        "%s of rank %d over %s: bytes %" PRIu64 " to %" PRIu64
        " are others than were sent: look at the memory and the network of both hosts",
        subject->text, (int)rdti_endpoint_rank(ep),
        transport != RDT_TRANSPORT_AUTO ? ctx->found[transport].transport->name : "a broken path",
        subject->off_bytes + from, subject->off_bytes + to - 1);
}

rdt_status
rdti_sums_compare(rdt_endpoint *ep, const void *at, uint64_t len_bytes, const uint32_t *sums,
                  const struct rdti_sums_subject *subject, struct rdt_error *err)
{
    uint64_t chunk = 0;

    if (checksum_is_same(rdti_endpoint_context(ep), at, len_bytes, sums, &chunk))
        return RDT_OK;
    const uint64_t from = chunk * RDT_SUM_CHUNK_BYTES;
    const uint64_t to = from + RDT_SUM_CHUNK_BYTES;
    return checksum_corrupt(ep, subject, from, to < len_bytes ? to : len_bytes, err);
}

static void
checksum_name_message(const struct rdti_request *request, struct rdti_sums_subject *out)
{
    (void)snprintf(out->text, sizeof(out->text),
                   "the message with tag %" PRIu64 " in group '%.120s'", request->tag,
                   request->scope->name);
}

/* ---- Writes: the sender ------------------------------------------------------------------ */

void
rdti_sums_tell_written(struct rdti_mailbox *m, const struct rdt_remote_region *region,
                       uint64_t off_bytes, uint64_t len_bytes, const uint32_t *sums,
                       uint32_t notification)
{
    uint64_t done = 0;

    do {
        const uint64_t left = len_bytes - done;
        struct rdti_sums body = {.off_bytes = off_bytes + done,
                                 .len_bytes =
                                     left < RDTI_SUMS_PIECE_BYTES ? left : RDTI_SUMS_PIECE_BYTES,
                                 .index = region->index,
                                 .generation = region->generation,
                                 .notification = RDTI_NOTIFY_NONE};
        uint8_t bytes[RDTI_SUMS_BYTES_MAX];
        if (left <= RDTI_SUMS_PIECE_BYTES)
            body.notification = notification;
        body.count = (uint32_t)rdti_sum_count(body.len_bytes);
        if (body.count > 0)
            memcpy(body.sums, sums + done / RDT_SUM_CHUNK_BYTES, sizeof(body.sums[0]) * body.count);
        const struct rdti_message head = {.kind = RDTI_MESSAGE_WRITTEN, .count = body.count};
        rdti_mailbox_queue(m, &head, bytes, (uint32_t)rdti_sums_encode(&body, bytes));
        done += body.len_bytes;
    } while (done < len_bytes);
}

void
rdti_sums_push(struct rdti_mailbox *m)
{
    rdti_mailbox_flush(m);
    if (!rdti_list_is_empty(&m->control))
        rdti_mailbox_ask_growth(m);
}

struct range {
    uint64_t off_bytes;
    uint64_t len_bytes;
};

/* The ranges and sums of a write, in one allocation: neither blocks nor source are read once the
 * lane has them. */
struct written {
    uint32_t range_count;
    struct range *ranges;
    uint32_t *sums;
};

static rdt_status
checksum_sum_blocks(const struct rdti_op *op, const struct rdt_block *in_place, struct written *out,
                    struct rdt_error *err)
{
    uint64_t count = in_place != NULL ? rdti_sum_count(in_place->len_bytes) : 0;

    for (uint32_t i = 0; i < op->block_count; i++)
        count += rdti_sum_count(op->blocks[i].len_bytes);
    const size_t range_bytes = sizeof(struct range) * ((size_t)op->block_count + 1);
    uint8_t *memory = malloc(range_bytes + sizeof(uint32_t) * count);
    if (memory == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "%llu sums of a write",
                              (unsigned long long)count);
    out->ranges = (struct range *)(void *)memory;
    out->sums = (uint32_t *)(void *)(memory + range_bytes);
    out->range_count = 0;
    uint32_t *sums = out->sums;
    for (uint32_t i = 0; i < op->block_count + (in_place != NULL ? 1 : 0); i++) {
        const struct rdt_block *block = i < op->block_count ? &op->blocks[i] : in_place;
        if (block->len_bytes == 0)
            continue;
        out->ranges[out->range_count++] = (struct range){block->dst_off, block->len_bytes};
        rdti_crc32c_chunks(block->src, block->len_bytes, sums);
        sums += rdti_sum_count(block->len_bytes);
    }
    return RDT_OK;
}

rdt_status
rdti_sums_post(rdt_endpoint *ep, struct rdt_transfer *t, const struct rdt_block *in_place,
               struct rdt_error *err)
{
    struct rdti_mailbox *m = rdti_mailbox_of(ep);
    const struct rdt_remote_region remote = t->op.remote;
    const uint32_t notification = t->op.notify;
    struct written written = {0};
    rdt_status status = checksum_sum_blocks(&t->op, in_place, &written, err);

    if (status != RDT_OK)
        return status;
    t->op.notify = RDTI_NOTIFY_NONE;
    t->op.is_relied_on = true; /* its sums follow it */
    t->op.flag_sequence = 0;
    /* Without the lock: over shared memory the post itself moves the bytes. */
    status = rdti_endpoint_post(ep, t, err);
    if (status != RDT_OK) {
        free(written.ranges);
        return status;
    }
    rdti_engine_enter(m->ctx->engine);
    const uint32_t *sums = written.sums;
    for (uint32_t i = 0; i < written.range_count; i++) {
        const struct range *range = &written.ranges[i];
        const bool is_last = i + 1 == written.range_count;
        rdti_sums_tell_written(m, &remote, range->off_bytes, range->len_bytes, sums,
                               is_last ? notification : RDTI_NOTIFY_NONE);
        sums += rdti_sum_count(range->len_bytes);
    }
    if (written.range_count == 0 && notification != RDTI_NOTIFY_NONE)
        rdti_sums_tell_written(m, &remote, 0, 0, NULL, notification);
    rdti_sums_push(m);
    rdti_engine_leave(m->ctx->engine);
    free(written.ranges);
    return RDT_OK;
}

/* ---- Writes: the receiver ---------------------------------------------------------------- */

static struct rdti_request *
checksum_find_in(struct rdti_list *receives, const void *at)
{
    for (struct rdti_list *node = receives->next; node != receives; node = node->next) {
        struct rdti_request *receive = RDTI_CONTAINER(node, struct rdti_request, link);
        if ((uintptr_t)at - (uintptr_t)receive->buf < receive->len_bytes)
            return receive;
    }
    return NULL;
}

/* The receive that is to land there, or NULL. */
static struct rdti_request *
checksum_find_receive(struct rdti_mailbox *m, const void *at)
{
    struct rdti_request *receive = checksum_find_in(&m->granted, at);

    for (struct rdti_list *node = m->rx_streams.next; node != &m->rx_streams && receive == NULL;
         node = node->next)
        receive = checksum_find_in(&RDTI_CONTAINER(node, struct rdti_rx_stream, link)->told, at);
    return receive;
}

static void
checksum_name_region(const struct rdti_mailbox *m, const struct rdti_sums *sums,
                     const struct rdti_request *receive, struct rdti_sums_subject *out)
{
    uint64_t off_bytes = sums->off_bytes;
    const char *slot = rdti_endpoint_name_at(m->ep, sums->index, &off_bytes);

    out->off_bytes = off_bytes;
    if (slot != NULL)
        (void)snprintf(out->text, sizeof(out->text), "slot '%s'", slot);
    else if (receive != NULL)
        checksum_name_message(receive, out);
    else
        (void)snprintf(out->text, sizeof(out->text), "region %u, written by a write", sums->index);
}

/* These bytes were compared, after those before them if they follow each other. */
static void
checksum_note_compared(struct rdti_mailbox *m, uintptr_t at, uint64_t len_bytes)
{
    if (at != m->compared_from + m->compared_bytes) {
        m->compared_from = at;
        m->compared_bytes = 0;
    }
    m->compared_bytes += len_bytes;
}

static rdt_status
checksum_deliver(struct rdti_mailbox *m, uint32_t notification, bool is_stale,
                 struct rdt_error *err)
{
    const rdt_status status = rdti_endpoint_on_summed(m->ep, notification, is_stale, err);

    if (notification != RDTI_NOTIFY_NONE)
        m->compared_bytes = 0;
    return status;
}

rdt_status
rdti_sums_on_written(struct rdti_mailbox *m, const uint8_t *body, uint64_t body_bytes,
                     struct rdt_error *err)
{
    const int32_t rank = rdti_endpoint_rank(m->ep);
    struct rdti_target target;
    struct rdti_sums_subject subject = {.off_bytes = 0};
    struct rdti_sums sums;
    struct rdt_error why;
    rdt_status status = rdti_sums_decode(body, body_bytes, &sums, err);

    if (status != RDT_OK)
        return status;
    if (sums.len_bytes == 0)
        return checksum_deliver(m, sums.notification, false, err);
    status = rdti_regions_acquire(m->ctx->regions, sums.index, sums.generation, sums.off_bytes,
                                  sums.len_bytes, &target, &why);
    if (status == RDT_ESTALE)
        return checksum_deliver(m, sums.notification, true, err);
    if (status != RDT_OK)
        return rdti_error_set_rank(err, RDT_EPROTO, rank,
                                   "rank %d summed bytes outside of our memory: %s", (int)rank,
                                   why.message);
    struct rdti_request *receive = checksum_find_receive(m, target.addr);
    checksum_name_region(m, &sums, receive, &subject);
    status = rdti_sums_compare(m->ep, target.addr, sums.len_bytes, sums.sums, &subject, err);
    if (status == RDT_OK)
        checksum_note_compared(m, (uintptr_t)target.addr, sums.len_bytes);
    rdti_regions_release(m->ctx->regions, &target);
    if (receive != NULL && receive->state == RDTI_REQUEST_GRANTED)
        receive->checked_bytes += sums.len_bytes;
    return status == RDT_OK ? checksum_deliver(m, sums.notification, false, err) : status;
}

/* ---- Messages ---------------------------------------------------------------------------- */

bool
rdti_sums_tell_message(struct rdti_mailbox *m, struct rdti_request *send)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};

    if (send->sums == NULL)
        send->sums = rdti_sums_make(send->buf, send->len_bytes);
    if (send->sums == NULL) {
        (void)rdti_error_set(&err, RDT_ENOMEM, 0, "sums of a message of %" PRIu64 " bytes",
                             send->len_bytes);
        rdti_endpoint_fail(m->ep, &err, false);
        return false;
    }
    for (uint64_t done = 0; done < send->len_bytes; done += RDTI_SUMS_PIECE_BYTES) {
        const uint64_t left = send->len_bytes - done;
        struct rdti_sums body = {.off_bytes = done,
                                 .len_bytes =
                                     left < RDTI_SUMS_PIECE_BYTES ? left : RDTI_SUMS_PIECE_BYTES,
                                 .notification = RDTI_NOTIFY_NONE};
        uint8_t bytes[RDTI_SUMS_BYTES_MAX];
        body.count = (uint32_t)rdti_sum_count(body.len_bytes);
        memcpy(body.sums, send->sums + done / RDT_SUM_CHUNK_BYTES,
               sizeof(body.sums[0]) * body.count);
        const struct rdti_message head = {.kind = RDTI_MESSAGE_SUMS,
                                          .id = send->id,
                                          .len_bytes = send->len_bytes,
                                          .count = body.count};
        rdti_mailbox_queue(m, &head, bytes, (uint32_t)rdti_sums_encode(&body, bytes));
    }
    return true;
}

uint32_t *
rdti_sums_of_granted(struct rdti_request *send, uint64_t len_bytes)
{
    uint32_t *sums = send->sums;

    if (sums == NULL || len_bytes != send->len_bytes) /* in pieces: only a peer of another make */
        return rdti_sums_make((const uint8_t *)send->buf + send->done_bytes, len_bytes);
    send->sums = NULL;
    return sums;
}

/* They come one after the other, and their RTS is next. */
rdt_status
rdti_sums_on_message_sums(struct rdti_mailbox *m, const struct rdti_message *head,
                          const uint8_t *body, uint64_t body_bytes, struct rdt_error *err)
{
    const int32_t rank = rdti_endpoint_rank(m->ep);
    struct rdti_sums sums;
    const rdt_status status = rdti_sums_decode(body, body_bytes, &sums, err);

    if (status != RDT_OK)
        return status;
    if (sums.off_bytes == 0) {
        free(m->offered_sums);
        m->offered_sums = NULL;
        m->offered_id = head->id;
        m->offered_bytes = 0;
    }
    const uint64_t total = m->offered_bytes + sums.len_bytes;
    if (rdti_sum_count(total) > OFFERED_SUMS_MAX)
        return rdti_error_set_rank(err, RDT_EPROTO, rank,
                                   "mailbox: rank %d sent more sums than a message can have",
                                   (int)rank);
    if (sums.len_bytes == 0 || head->id != m->offered_id || sums.off_bytes != m->offered_bytes ||
        sums.off_bytes % RDT_SUM_CHUNK_BYTES != 0 || total < sums.len_bytes)
        return rdti_error_set_rank(err, RDT_EPROTO, rank,
                                   "mailbox: rank %d sent sums of a message out of order",
                                   (int)rank);
    /* Grows by what has come, not by what the peer announces. */
    uint32_t *grown =
        realloc(m->offered_sums, sizeof(*grown) * (rdti_sum_count(m->offered_bytes) + sums.count));
    if (grown == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "%u sums of a message", sums.count);
    memcpy(grown + rdti_sum_count(m->offered_bytes), sums.sums, sizeof(sums.sums[0]) * sums.count);
    m->offered_sums = grown;
    m->offered_bytes = total;
    return RDT_OK;
}

rdt_status
rdti_sums_check_receive(struct rdti_request *receive, struct rdt_error *err)
{
    const uint64_t from = receive->checked_bytes;
    const uint64_t to = receive->done_bytes == receive->len_bytes
                            ? receive->len_bytes
                            : receive->done_bytes / RDT_SUM_CHUNK_BYTES * RDT_SUM_CHUNK_BYTES;
    struct rdti_sums_subject subject = {.off_bytes = from};

    if (receive->sums == NULL || to <= from)
        return RDT_OK;
    checksum_name_message(receive, &subject);
    receive->checked_bytes = to;
    return rdti_sums_compare(receive->mailbox->ep, (const uint8_t *)receive->buf + from, to - from,
                             receive->sums + from / RDT_SUM_CHUNK_BYTES, &subject, err);
}

rdt_status
rdti_sums_check_eager(struct rdti_request *receive, const struct rdti_message *head,
                      struct rdt_error *err)
{
    rdt_context *ctx = receive->scope->ctx;
    const int32_t rank = rdti_scope_global_rank(receive->scope, head->source);
    struct rdti_sums_subject subject = {.off_bytes = 0};

    rdti_count(&ctx->counters.verified_bytes, head->len_bytes);
    if (rdti_crc32c(receive->buf, head->len_bytes) == head->id)
        return RDT_OK;
    checksum_name_message(receive, &subject);
    rdt_endpoint *ep = receive->scope->members[head->source].ep;
    if (ep != NULL)
        return checksum_corrupt(ep, &subject, 0, head->len_bytes, err);
    rdti_count(&ctx->counters.mismatches, 1); /* it came over a path that is gone */
    return rdti_error_set_rank(err, RDT_ECORRUPT, rank, "%s of rank %d was changed on its way",
                               subject.text, (int)rank);
}
