/* SPDX-License-Identifier: Apache-2.0
 * Sums of reads: the reader asks the owner of the memory, a piece at a time. */
#include <stdio.h>
#include <stdlib.h>

#include "base/crc32c.h"
#include "base/error.h"
#include "message/checksum.h"
#include "message/mailbox_impl.h"
#include "wire/notify.h"
#include "wire/endpoint/sums.h"

/* A read whose bytes are here, or on their way; its sums are then requested piece by piece. */
struct asked {
    struct rdti_list link; /* m->asked, once the bytes are here */
    struct rdti_mailbox *m;
    rdt_transfer *transfer; /* the caller's */
    struct rdt_remote_region remote;
    const uint8_t *dst;
    uint64_t off_bytes;
    uint64_t len_bytes;
    uint64_t done_bytes; /* compared */
    uint64_t id;
};

static void
checksum_read_end_asked(struct asked *asked, rdt_status status, const struct rdt_error *err)
{
    rdti_list_remove(&asked->link);
    if (status == RDT_OK)
        asked->transfer->len_bytes = asked->len_bytes;
    rdti_transfer_finish(asked->transfer, status, err);
    free(asked);
}

static uint64_t
checksum_read_next_piece(const struct asked *asked)
{
    const uint64_t left = asked->len_bytes - asked->done_bytes;

    return left < RDTI_SUMS_PIECE_BYTES ? left : RDTI_SUMS_PIECE_BYTES;
}

static void
checksum_read_ask(struct asked *asked)
{
    const struct rdti_message head = {.kind = RDTI_MESSAGE_SUMS_GET, .id = asked->id};
    const struct rdti_sums_get get = {.off_bytes = asked->off_bytes + asked->done_bytes,
                                      .len_bytes = checksum_read_next_piece(asked),
                                      .index = asked->remote.index,
                                      .generation = asked->remote.generation};
    uint8_t bytes[RDTI_SUMS_GET_BYTES];

    rdti_sums_get_encode(&get, bytes);
    rdti_mailbox_queue(asked->m, &head, bytes, sizeof(bytes));
    rdti_count(&asked->m->ctx->counters.control_messages[RDTI_TRAFFIC_PLANNED], 1);
    rdti_sums_push(asked->m);
}

static void
checksum_read_on_bytes_read(struct rdti_op *op, rdt_status status, const struct rdt_error *err)
{
    struct rdt_transfer *t = RDTI_CONTAINER(op, struct rdt_transfer, op);
    struct asked *asked = t->owner;
    struct rdti_mailbox *m = asked->m;
    struct rdti_engine *engine = m->ctx->engine;
    struct rdt_error why = {.peer_rank = RDT_RANK_UNKNOWN};

    rdti_engine_enter(engine); /* a lane may complete in any thread */
    if (status == RDT_OK && m->has_ended)
        status = rdti_endpoint_error(m->ep, &why);
    if (status != RDT_OK || asked->len_bytes == 0) {
        checksum_read_end_asked(asked, status, err != NULL ? err : &why);
    } else {
        rdti_list_append(&m->asked, &asked->link);
        checksum_read_ask(asked);
    }
    rdti_transfer_op_complete(op, RDT_OK, NULL); /* no handle of it is left */
    rdti_engine_leave(engine);
}

rdt_status
rdti_sums_read(rdt_endpoint *ep, struct rdt_transfer **t, struct rdt_error *err)
{
    struct rdti_mailbox *m = rdti_mailbox_of(ep);
    struct asked *asked = calloc(1, sizeof(*asked));
    struct rdt_transfer *inner = *t;
    struct rdt_transfer *outer = rdti_transfer_new(m->ctx->pool);
    rdt_status status;

    if (asked == NULL || outer == NULL) {
        if (outer != NULL)
            rdti_transfer_discard(outer);
        free(asked);
        return rdti_error_set(err, RDT_ENOMEM, 0, "a read of %zu bytes", sizeof(*asked));
    }
    rdti_list_init(&asked->link);
    asked->m = m;
    asked->transfer = outer;
    asked->remote = inner->op.remote;
    asked->dst = inner->op.block.src;
    asked->off_bytes = inner->op.block.dst_off;
    asked->len_bytes = inner->op.len_bytes;
    inner->op.complete = checksum_read_on_bytes_read;
    inner->owner = asked;
    rdti_engine_enter(m->ctx->engine);
    asked->id = m->next_asked++;
    rdti_engine_leave(m->ctx->engine);
    status = rdti_endpoint_post(ep, inner, err); /* may be over afterwards, and so `asked` */
    if (status != RDT_OK) {
        rdti_transfer_discard(outer);
        free(asked);
        return status;
    }
    rdt_transfer_free(inner);
    *t = outer;
    return RDT_OK;
}

rdt_status
rdti_sums_on_get(struct rdti_mailbox *m, const struct rdti_message *head, const uint8_t *body,
                 struct rdt_error *err)
{
    struct rdti_message answer = {.kind = RDTI_MESSAGE_SUMS_READ, .id = head->id};
    struct rdti_target target;
    struct rdti_sums_get get;
    struct rdti_sums sums = {.notification = RDTI_NOTIFY_NONE};
    uint8_t bytes[RDTI_SUMS_BYTES_MAX];
    struct rdt_error why;
    rdt_status status = rdti_sums_get_decode(body, RDTI_SUMS_GET_BYTES, &get, err);

    if (status != RDT_OK)
        return status;
    if (m->answer_count >= RDTI_ANSWERS_MAX)
        return rdti_error_set_rank(err, RDT_EPROTO, rdti_endpoint_rank(m->ep),
                                   "rank %d asks for sums, and takes none of the %u answers that "
                                   "wait for it",
                                   (int)rdti_endpoint_rank(m->ep), m->answer_count);
    status = rdti_regions_acquire(m->ctx->regions, get.index, get.generation, get.off_bytes,
                                  get.len_bytes, &target, &why);
    if (status == RDT_OK) {
        sums.off_bytes = get.off_bytes;
        sums.len_bytes = get.len_bytes;
        sums.index = get.index;
        sums.generation = get.generation;
        sums.count = (uint32_t)rdti_sum_count(get.len_bytes);
        rdti_crc32c_chunks(target.addr, get.len_bytes, sums.sums);
        rdti_regions_release(m->ctx->regions, &target);
    } else if (status != RDT_ESTALE) {
        return rdti_error_set_rank(err, RDT_EPROTO, rdti_endpoint_rank(m->ep),
                                   "rank %d asks for sums outside of our memory: %s",
                                   (int)rdti_endpoint_rank(m->ep), why.message);
    }
    answer.count = sums.count; /* 0: the region is gone */
    rdti_mailbox_queue(m, &answer, bytes, (uint32_t)rdti_sums_encode(&sums, bytes));
    rdti_sums_push(m);
    return RDT_OK;
}

static struct asked *
checksum_read_find_asked(const struct rdti_mailbox *m, uint64_t id)
{
    for (struct rdti_list *node = m->asked.next; node != &m->asked; node = node->next) {
        struct asked *asked = RDTI_CONTAINER(node, struct asked, link);
        if (asked->id == id)
            return asked;
    }
    return NULL;
}

rdt_status
rdti_sums_on_read(struct rdti_mailbox *m, const struct rdti_message *head, const uint8_t *body,
                  uint64_t body_bytes, struct rdt_error *err)
{
    const int32_t rank = rdti_endpoint_rank(m->ep);
    struct asked *asked = checksum_read_find_asked(m, head->id);
    struct rdti_sums_subject subject = {.off_bytes = 0};
    struct rdti_sums sums;
    struct rdt_error why = {.peer_rank = rank};
    rdt_status status = rdti_sums_decode(body, body_bytes, &sums, err);

    if (status != RDT_OK)
        return status;
    if (asked == NULL ||
        (sums.len_bytes != 0 && (sums.len_bytes != checksum_read_next_piece(asked) ||
                                 sums.off_bytes != asked->off_bytes + asked->done_bytes)))
        return rdti_error_set_rank(err, RDT_EPROTO, rank,
                                   "rank %d gave sums that were not requested", (int)rank);
    if (sums.len_bytes == 0) {
        (void)rdti_error_set_rank(&why, RDT_ESTALE, rank,
                                  "rank %d freed the region before what was read of it could be "
                                  "compared",
                                  (int)rank);
        checksum_read_end_asked(asked, RDT_ESTALE, &why);
        return RDT_OK;
    }
    (void)snprintf(subject.text, sizeof(subject.text),
                   "region %u, which was read (unless its owner changed it meanwhile),",
                   asked->remote.index);
    subject.off_bytes = sums.off_bytes;
    status = rdti_sums_compare(m->ep, asked->dst + asked->done_bytes, sums.len_bytes, sums.sums,
                               &subject, &why);
    asked->done_bytes += sums.len_bytes;
    if (status != RDT_OK) {
        checksum_read_end_asked(asked, status, &why);
        return rdti_error_copy(err, &why);
    }
    if (asked->done_bytes < asked->len_bytes)
        checksum_read_ask(asked);
    else
        checksum_read_end_asked(asked, RDT_OK, NULL);
    return RDT_OK;
}

void
rdti_sums_on_ended(struct rdti_mailbox *m, const struct rdt_error *err)
{
    while (!rdti_list_is_empty(&m->asked)) {
        struct asked *asked = RDTI_CONTAINER(m->asked.next, struct asked, link);
        checksum_read_end_asked(asked, (rdt_status)err->status, err);
    }
    free(m->offered_sums);
    m->offered_sums = NULL;
}
