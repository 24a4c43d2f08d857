/* SPDX-License-Identifier: Apache-2.0
 * Completions: ours end ops and free places, the peer's immediates are counted and delivered, and
 * receives are restocked. All [driver]. */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "transport/verbs/verbs.h"
#include "wire/notify.h"

/* Receives are posted in batches: a call costs as much as ten more of its entries. */
#define RESTOCK_BATCH 32

static void
fail_protocol(struct rdti_verbs_link *link, const char *what, uint64_t value)
{
    struct rdti_verbs_lane *lane = link->lane;
    struct rdt_error err;

    (void)rdti_error_set_rank(&err, RDT_EPROTO, lane->args.peer_rank,
                              "verbs lane to rank %d on %s port %u: %s (0x%llx)",
                              lane->args.peer_rank, link->nic->name, link->nic->port, what,
                              (unsigned long long)value);
    rdti_verbs_fail(lane, &err);
}

/* ---- What we sent --------------------------------------------------------------------------- */

/* Lock is held; ops that are over go to *done. */
static void
retire(struct rdti_verbs_lane *lane, const struct rdti_verbs_record *record, struct rdti_list *done)
{
    struct rdti_op *op = record->op;

    if (record->piece >= 0) {
        if (record->copy_to != NULL)
            memcpy(record->copy_to, lane->stage + (uint64_t)record->piece * RDTI_VERBS_STAGE_BYTES,
                   record->copy_bytes);
        lane->stage_free |= 1u << record->piece;
    }
    if (op == NULL || --op->scratch[RDTI_VERBS_OP_OPEN] > 0 ||
        op->scratch[RDTI_VERBS_OP_STEP] < op->scratch[RDTI_VERBS_OP_STEPS])
        return;
    rdti_list_remove(&op->link);
    rdti_list_append(done, &op->link);
}

static void
take_sent(struct rdti_verbs_link *link, const struct ibv_wc *wc)
{
    struct rdti_verbs_lane *lane = link->lane;
    struct rdti_verbs_qp *qp = rdti_verbs_qp_of(link, wc->wr_id);
    const uint64_t sequence = wc->wr_id & UINT64_C(0xffffffffffff);
    struct rdti_list done;

    rdti_list_init(&done);
    (void)pthread_mutex_lock(&lane->lock);
    const bool is_known = sequence < qp->tx_posted;
    /* One that was reported before finds nothing left to do. */
    while (is_known && qp->tx_done <= sequence) {
        retire(lane, &qp->records[qp->tx_done % RDTI_VERBS_SQ_DEPTH], &done);
        qp->tx_done++;
    }
    (void)pthread_mutex_unlock(&lane->lock);
    rdti_verbs_complete_all(lane, &done, RDT_OK, NULL);
    if (!is_known)
        fail_protocol(link, "the device completed what was not posted", wc->wr_id);
}

/* ---- What came ------------------------------------------------------------------------------ */

static void
take_window(struct rdti_verbs_link *link, uint32_t count)
{
    struct rdti_verbs_lane *lane = link->lane;

    (void)pthread_mutex_lock(&lane->lock);
    lane->tx_window += count;
    const bool is_sane = lane->tx_window - lane->tx_messages <= lane->peer.window;
    (void)pthread_mutex_unlock(&lane->lock);
    if (!is_sane)
        fail_protocol(link, "the peer restocked more receives than it has", count);
}

/* Post receives again, once that is worth a call. */
static void
restock(struct rdti_verbs_qp *qp, uint32_t from)
{
    const struct rdti_verbs_link *link = qp->link;
    struct rdt_error err;

    if (link->nic->rq_depth - (qp->rx_posted - qp->rx_taken) >= from &&
        rdti_verbs_restock(qp, &err) != RDT_OK)
        rdti_verbs_fail(link->lane, &err);
}

static void
take_received(struct rdti_verbs_link *link, const struct ibv_wc *wc)
{
    struct rdti_verbs_qp *qp = rdti_verbs_qp_of(link, wc->wr_id);
    const uint64_t sequence = wc->wr_id & UINT64_C(0xffffffffffff);
    const uint32_t imm = be32toh(wc->imm_data);

    if (sequence < qp->rx_taken) /* reported before */
        return;
    if (sequence != qp->rx_taken || wc->opcode != IBV_WC_RECV_RDMA_WITH_IMM ||
        (wc->wc_flags & IBV_WC_WITH_IMM) == 0) {
        fail_protocol(link, "a completion that is no notification", wc->wr_id);
        return;
    }
    qp->rx_taken++;
    if ((imm & UINT32_C(0xffff0000)) == RDTI_NOTIFY_RESTOCKED) {
        take_window(link, imm & UINT32_C(0xffff));
        if (rdti_verbs_phase_of(link->lane) != RDTI_VERBS_FAILED)
            restock(qp, 1); /* these have a small reserve of their own */
        return;
    }
    if (qp->imm_end - qp->imm_first == RDTI_VERBS_IMMS) {
        fail_protocol(link, "the peer sends beyond its window", imm);
        return;
    }
    qp->imms[qp->imm_end++ % RDTI_VERBS_IMMS] = imm;
    restock(qp, RESTOCK_BATCH);
}

/* ---- Delivery ------------------------------------------------------------------------------- */

/* A message that has come on every QP. */
static bool
next_message(struct rdti_verbs_lane *lane, uint32_t *value_out)
{
    uint32_t value = 0;
    bool is_mixed = false;

    for (uint32_t i = 0; i < lane->qp_count; i++)
        if (lane->qps[i]->imm_first == lane->qps[i]->imm_end)
            return false;
    for (uint32_t i = 0; i < lane->qp_count; i++) {
        struct rdti_verbs_qp *qp = lane->qps[i];
        const uint32_t imm = qp->imms[qp->imm_first++ % RDTI_VERBS_IMMS];

        is_mixed |= i > 0 && imm != value;
        value = imm;
    }
    if (is_mixed) {
        fail_protocol(lane->qps[0]->link, "one message has two notifications", value);
        return false;
    }
    *value_out = value;
    return true;
}

static void
tell_restocked(struct rdti_verbs_lane *lane)
{
    for (uint32_t i = 0; i < lane->qp_count; i++) {
        restock(lane->qps[i], 1);
        if (rdti_verbs_phase_of(lane) != RDTI_VERBS_READY)
            return;
    }
    rdti_verbs_send_restocked(lane);
}

uint32_t
rdti_verbs_deliver(struct rdti_verbs_lane *lane)
{
    const struct rdti_host *host = lane->verbs->host;
    uint32_t count = 0;
    uint32_t value;

    /* A callback may end the lane. */
    while (rdti_verbs_phase_of(lane) == RDTI_VERBS_READY && next_message(lane, &value)) {
        lane->rx_messages++;
        lane->rx_owed++;
        count++;
        rdti_count(&host->counters->notifications, 1);
        host->on_notify(host->core, &lane->base, value);
    }
    if (rdti_verbs_phase_of(lane) == RDTI_VERBS_READY && lane->rx_owed >= lane->own.window / 2)
        tell_restocked(lane);
    return count;
}

/* ---- The pass ------------------------------------------------------------------------------- */

static void
take(struct rdti_verbs_link *link, const struct ibv_wc *wc)
{
    const uint32_t kind = (uint32_t)(wc->wr_id >> 56);

    if (kind == RDTI_VERBS_WR_PROBE) {
        rdti_verbs_probe_done(link, wc);
    } else if (wc->status != IBV_WC_SUCCESS) {
        /* What a round of set-up that failed left behind is no error of the lane. */
        if (link->state == RDTI_VERBS_LINK_GOOD)
            rdti_verbs_fail_completion(link, wc);
    } else if (rdti_verbs_qp_of(link, wc->wr_id) == NULL) {
        fail_protocol(link, "the device completed for a QP that is none", wc->wr_id);
    } else if (kind == RDTI_VERBS_WR_TX) {
        take_sent(link, wc);
    } else {
        take_received(link, wc);
    }
}

static uint32_t
poll_link(struct rdti_verbs_link *link)
{
    struct rdti_verbs_lane *lane = link->lane;
    struct ibv_wc wcs[RDTI_VERBS_WCS];

    const int count = lane->verbs->ops->poll_cq(link->cq, RDTI_VERBS_WCS, wcs);
    if (count < 0) {
        fail_protocol(link, "ibv_poll_cq failed", (uint64_t)-(int64_t)count);
        return 1;
    }
    for (int i = 0; i < count && rdti_verbs_phase_of(lane) != RDTI_VERBS_FAILED; i++)
        take(link, &wcs[i]);
    return (uint32_t)count;
}

uint32_t
rdti_verbs_poll_lane(struct rdti_verbs_lane *lane)
{
    uint32_t work = 0;

    for (uint32_t i = 0; i < lane->link_count; i++) {
        work += poll_link(&lane->links[i]);
        if (rdti_verbs_phase_of(lane) == RDTI_VERBS_FAILED)
            return work;
    }
    if (work > 0)
        work += rdti_verbs_deliver(lane);
    return work;
}

void
rdti_verbs_arm_lane(struct rdti_verbs_lane *lane)
{
    for (uint32_t i = 0; i < lane->link_count; i++) {
        struct rdti_verbs_link *link = &lane->links[i];

        /* Where it fails the device has, and its event or the next post says so. */
        if (!link->is_armed)
            link->is_armed = lane->verbs->ops->req_notify_cq(link->cq, 0) == 0;
    }
}

static void
disarm(struct rdti_verbs *verbs, const struct ibv_cq *cq)
{
    for (struct rdti_list *at = verbs->lanes.next; at != &verbs->lanes; at = at->next) {
        struct rdti_verbs_lane *lane = RDTI_CONTAINER(at, struct rdti_verbs_lane, node);

        for (uint32_t i = 0; i < lane->link_count; i++)
            if (lane->links[i].cq == cq)
                lane->links[i].is_armed = false;
    }
}

void
rdti_verbs_on_channel(void *arg, uint32_t epoll_events)
{
    struct rdti_verbs_nic *nic = arg;
    const struct rdti_verbs_ops *ops = nic->verbs->ops;
    struct ibv_cq *cq;
    void *cq_context;

    (void)epoll_events;
    while (ops->get_cq_event(nic->channel, &cq, &cq_context) == 0) {
        ops->ack_cq_events(cq, 1); /* at once: destroying a CQ waits for it */
        disarm(nic->verbs, cq);
    }
}
