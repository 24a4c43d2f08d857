/* SPDX-License-Identifier: Apache-2.0
 * What a lane's other files do to its state: words to the peer, ops that complete, flushed
 * requests. */
#include <string.h>

#include "transport/verbs/down.h"
#include "transport/verbs/lane.h"

void
rdti_verbs_send_words(struct rdti_verbs_lane *lane, const struct rdti_verbs_words *words)
{
    const struct rdti_host *host = lane->verbs->host;
    uint8_t bytes[RDTI_LANE_WORDS_MAX_BYTES];
    const size_t len = rdti_verbs_words_encode(words, bytes);

    host->send_words(host->core, &lane->base, bytes, (uint32_t)len);
}

/* ---- Ops ------------------------------------------------------------------------------------ */

void
rdti_verbs_complete_all(struct rdti_verbs_lane *lane, struct rdti_list *ops, rdt_status status,
                        const struct rdt_error *err)
{
    struct rdti_list *node;

    while ((node = rdti_list_take_first(ops)) != NULL) {
        struct rdti_op *op = RDTI_CONTAINER(node, struct rdti_op, link);

        /* acq_rel: is_idle() sees all earlier stores */
        (void)atomic_fetch_sub_explicit(&lane->ops_open, 1, memory_order_acq_rel);
        if (status == RDT_OK)
            rdti_count_moved(lane->verbs->host->counters, &lane->base, op);
        op->complete(op, status, err);
    }
}

static bool
lane_state_is_finished(const struct rdti_op *op)
{
    return op->scratch[RDTI_VERBS_OP_STEPS] > 0 && op->scratch[RDTI_VERBS_OP_OPEN] == 0 &&
           op->scratch[RDTI_VERBS_OP_STEP] >= op->scratch[RDTI_VERBS_OP_STEPS];
}

/*
 * QPs finish in any order, but no write completes before the writes that were called before it: its
 * caller may then write there again, or reuse all their sources, while one of them still waits for
 * another QP, and is sent a second time if that QP breaks. Reads are not ordered.
 */
static void
lane_state_take_complete(struct rdti_verbs_lane *lane, struct rdti_op *op, struct rdti_list *done)
{
    struct rdti_list *next;

    if (op->kind == RDTI_OP_READ) {
        rdti_list_remove(&op->link);
        rdti_list_append(done, &op->link);
        return;
    }
    for (struct rdti_list *at = lane->ops.next; at != &lane->ops; at = next) {
        struct rdti_op *first = RDTI_CONTAINER(at, struct rdti_op, link);

        next = at->next;
        if (first->kind == RDTI_OP_READ)
            continue;
        if (!lane_state_is_finished(first))
            return;
        rdti_list_remove(at);
        rdti_list_append(done, at);
    }
}

void
rdti_verbs_retire(struct rdti_verbs_lane *lane, const struct rdti_verbs_record *record,
                  struct rdti_list *done)
{
    struct rdti_op *op = record->op;

    if (record->piece >= 0) {
        if (record->is_read)
            memcpy(record->local, lane->stage + (uint64_t)record->piece * RDTI_VERBS_STAGE_BYTES,
                   record->len_bytes);
        lane->stage_free |= 1u << record->piece;
    }
    if (op == NULL || --op->scratch[RDTI_VERBS_OP_OPEN] > 0 ||
        op->scratch[RDTI_VERBS_OP_STEP] < op->scratch[RDTI_VERBS_OP_STEPS])
        return;
    lane_state_take_complete(lane, op, done);
}

/* ---- Completions ---------------------------------------------------------------------------- */

void
rdti_verbs_count_flush(struct rdti_verbs_lane *lane, const struct ibv_wc *wc)
{
    lane->flushed += wc->status == IBV_WC_WR_FLUSH_ERR && wc->wr_id >> 56 == RDTI_VERBS_WR_TX;
}

void
rdti_verbs_keep_error(struct rdti_verbs_qp *qp, const struct ibv_wc *wc)
{
    if (wc->status == IBV_WC_SUCCESS || wc->status == IBV_WC_WR_FLUSH_ERR || qp->wc_status != 0)
        return;
    qp->wc_status = (int)wc->status;
    qp->vendor_err = wc->vendor_err;
}

void
rdti_verbs_note_flush(struct rdti_verbs_link *link, const struct ibv_wc *wc)
{
    struct rdti_verbs_qp *qp = rdti_verbs_qp_of(link, wc->wr_id);
    const uint64_t sequence = wc->wr_id & UINT64_C(0xffffffffffff);

    rdti_verbs_count_flush(link->lane, wc);
    if (qp == NULL)
        return;
    rdti_verbs_keep_error(qp, wc);
    if (wc->wr_id >> 56 == RDTI_VERBS_WR_RX)
        qp->is_rx_flushed = true; /* receives end in order */
    else if (sequence >= qp->tx_flushed)
        qp->tx_flushed = sequence + 1;
}

void
rdti_verbs_disarm(struct rdti_verbs *verbs, const struct ibv_cq *cq)
{
    for (struct rdti_list *at = verbs->lanes.next; at != &verbs->lanes; at = at->next) {
        struct rdti_verbs_lane *lane = RDTI_CONTAINER(at, struct rdti_verbs_lane, node);

        for (uint32_t i = 0; i < lane->link_count; i++)
            if (lane->links[i].cq == cq)
                lane->links[i].is_armed = false;
    }
}
