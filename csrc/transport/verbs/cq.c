/* SPDX-License-Identifier: Apache-2.0
 * Completions: send completions end ops and free send queue entries; the peer's immediates are
 * counted and delivered, and receives reposted. All [driver]. */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "transport/verbs/flag.h"
#include "transport/verbs/down.h"
#include "transport/verbs/lane.h"
#include "wire/notify.h"

/* Receives are posted in batches: a call costs as much as ten more of its entries. */
#define RESTOCK_BATCH 32

static void
cq_fail_protocol(struct rdti_verbs_link *link, const char *what, uint64_t value)
{
    struct rdti_verbs_lane *lane = link->lane;
    struct rdt_error err;

    (void)rdti_error_set_rank(&err, RDT_EPROTO, lane->args.peer_rank,
                              "verbs lane to rank %d on %s port %u: %s (0x%llx)",
                              lane->args.peer_rank, link->nic->name, link->nic->port, what,
                              (unsigned long long)value);
    rdti_verbs_fail(lane, &err);
}

/* The link stops, and the following polls drain it; if they also fail, it is unknown what it has
 * carried, and the lane fails. */
static void
cq_fail_poll(struct rdti_verbs_link *link, int result, int sys_errno)
{
    struct rdti_verbs_lane *lane = link->lane;
    struct rdt_error err;

    (void)rdti_error_set(&err, RDT_EDEVICE, sys_errno,
                         "verbs lane to rank %d: ibv_poll_cq on %s port %u returned %d",
                         lane->args.peer_rank, link->nic->name, link->nic->port, result);
    err.peer_rank = lane->args.peer_rank;
    if (link->state <= RDTI_VERBS_LINK_GOOD)
        rdti_verbs_break_link(link, &err);
    else
        rdti_verbs_fail(lane, &err);
}

/* ---- Send completions ----------------------------------------------------------------------- */

static void
cq_take_sent(struct rdti_verbs_link *link, const struct ibv_wc *wc)
{
    struct rdti_verbs_lane *lane = link->lane;
    struct rdti_verbs_qp *qp = rdti_verbs_qp_of(link, wc->wr_id);
    const uint64_t sequence = wc->wr_id & UINT64_C(0xffffffffffff);
    struct rdti_list done;

    rdti_list_init(&done);
    (void)pthread_mutex_lock(&lane->lock);
    const bool is_known = sequence < qp->tx_posted;
    /* A completion that was reported before finds nothing to do. */
    while (is_known && qp->tx_done <= sequence) {
        rdti_verbs_retire(lane, &qp->records[qp->tx_done % RDTI_VERBS_SQ_DEPTH], &done);
        qp->tx_done++;
    }
    (void)pthread_mutex_unlock(&lane->lock);
    rdti_verbs_complete_all(lane, &done, RDT_OK, NULL);
    if (!is_known)
        cq_fail_protocol(link, "the device completed what was not posted", wc->wr_id);
}

/* ---- Receive completions -------------------------------------------------------------------- */

static void
cq_take_window(struct rdti_verbs_link *link, uint32_t count)
{
    struct rdti_verbs_lane *lane = link->lane;

    (void)pthread_mutex_lock(&lane->lock);
    lane->tx_window += count;
    const bool is_sane = lane->tx_window - lane->tx_messages <= lane->peer.window;
    (void)pthread_mutex_unlock(&lane->lock);
    if (!is_sane)
        cq_fail_protocol(link, "the peer restocked more receives than it has", count);
}

/* Repost receives when that is worth a call; a broken link needs none. */
static void
cq_restock(struct rdti_verbs_qp *qp, uint32_t from)
{
    struct rdti_verbs_link *link = qp->link;
    struct rdt_error err;

    if (link->state <= RDTI_VERBS_LINK_GOOD &&
        link->nic->rq_depth - (qp->rx_posted - qp->rx_taken) >= from &&
        rdti_verbs_restock(qp, &err) != RDT_OK)
        rdti_verbs_break_link(link, &err);
}

static void
cq_take_mark(struct rdti_verbs_link *link, uint32_t number)
{
    struct rdti_verbs_lane *lane = link->lane;
    struct rdt_error err;

    if (rdti_verbs_take_mark(lane, number, &err) != RDT_OK)
        rdti_verbs_fail(lane, &err);
}

static void
cq_take_received(struct rdti_verbs_link *link, const struct ibv_wc *wc)
{
    struct rdti_verbs_lane *lane = link->lane;
    struct rdti_verbs_qp *qp = rdti_verbs_qp_of(link, wc->wr_id);
    const uint64_t sequence = wc->wr_id & UINT64_C(0xffffffffffff);
    const uint32_t imm = be32toh(wc->imm_data);

    if (sequence < qp->rx_taken) /* reported before */
        return;
    if (sequence != qp->rx_taken || wc->opcode != IBV_WC_RECV_RDMA_WITH_IMM ||
        (wc->wc_flags & IBV_WC_WITH_IMM) == 0) {
        cq_fail_protocol(link, "a completion that is not a notification", wc->wr_id);
        return;
    }
    qp->rx_taken++;
    const uint32_t kind = imm & UINT32_C(0xffff0000);
    if (kind == RDTI_NOTIFY_RESTOCKED || kind == RDTI_NOTIFY_SETTLED) {
        if (kind == RDTI_NOTIFY_RESTOCKED)
            cq_take_window(link, imm & UINT32_C(0xffff));
        else
            cq_take_mark(link, imm & UINT32_C(0xffff));
        if (rdti_verbs_phase_of(lane) != RDTI_VERBS_FAILED)
            cq_restock(qp, 1); /* they use a small separate reserve */
        return;
    }
    if (qp->imm_end - qp->imm_first == RDTI_VERBS_IMMS) {
        cq_fail_protocol(link, "the peer sends beyond its window", imm);
        return;
    }
    qp->imms[qp->imm_end++ % RDTI_VERBS_IMMS] = imm;
    cq_restock(qp, RESTOCK_BATCH);
}

/* ---- Delivery ------------------------------------------------------------------------------- */

/* A message that has arrived on every QP except those of settled links. */
static bool
cq_next_of_all(struct rdti_verbs_lane *lane, uint32_t *value_out)
{
    struct rdti_verbs_link *mixed = NULL;
    uint32_t value = 0;
    uint32_t count = 0;

    for (uint32_t i = 0; i < lane->qp_count; i++)
        if (!lane->qps[i]->link->is_rx_out && lane->qps[i]->imm_first == lane->qps[i]->imm_end)
            return false;
    for (uint32_t i = 0; i < lane->qp_count; i++) {
        struct rdti_verbs_qp *qp = lane->qps[i];

        if (qp->link->is_rx_out)
            continue;
        const uint32_t imm = qp->imms[qp->imm_first++ % RDTI_VERBS_IMMS];
        if (count++ > 0 && imm != value)
            mixed = qp->link;
        value = imm;
    }
    if (mixed != NULL) {
        cq_fail_protocol(mixed, "one message has two notifications", value);
        return false;
    }
    *value_out = value;
    return true;
}

static bool
cq_next_message(struct rdti_verbs_lane *lane, uint32_t *value_out)
{
    struct rdti_verbs_qp *only = lane->qps[0];

    if (lane->qp_count != 1 || only->link->is_rx_out)
        return cq_next_of_all(lane, value_out);
    if (only->imm_first == only->imm_end)
        return false;
    *value_out = only->imms[only->imm_first++ % RDTI_VERBS_IMMS];
    return true;
}

static void
cq_tell_restocked(struct rdti_verbs_lane *lane)
{
    for (uint32_t i = 0; i < lane->qp_count; i++) {
        cq_restock(lane->qps[i], 1);
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

    /* A callback may end the lane. Flags first: flags sent before an immediate are in place when it
     * arrives, and flags sent after it wait for it. */
    while (rdti_verbs_phase_of(lane) == RDTI_VERBS_READY && !lane->is_fenced) {
        if (rdti_list_is_empty(&lane->flags) || !rdti_verbs_take_flag(lane, &value)) {
            if (!cq_next_message(lane, &value))
                break;
            lane->rx_messages++;
            lane->rx_owed++;
        }
        count++;
        rdti_count(&host->counters->notifications, 1);
        host->on_notify(host->core, &lane->base, value);
    }
    if (rdti_verbs_phase_of(lane) == RDTI_VERBS_READY && lane->rx_owed >= lane->own.window / 2)
        cq_tell_restocked(lane);
    return count;
}

/* ---- The pass ------------------------------------------------------------------------------- */

static void
cq_take(struct rdti_verbs_link *link, const struct ibv_wc *wc)
{
    const uint32_t kind = (uint32_t)(wc->wr_id >> 56);

    if (kind == RDTI_VERBS_WR_PROBE)
        rdti_verbs_probe_done(link, wc);
    else if (wc->status != IBV_WC_SUCCESS && link->state == RDTI_VERBS_LINK_DRAINING)
        rdti_verbs_note_flush(link, wc);
    else if (wc->status != IBV_WC_SUCCESS)
        return; /* left by a failed round of set-up: not an error of the lane */
    else if (rdti_verbs_qp_of(link, wc->wr_id) == NULL)
        cq_fail_protocol(link, "the device completed for a QP that is none", wc->wr_id);
    else if (kind == RDTI_VERBS_WR_TX)
        cq_take_sent(link, wc);
    else
        cq_take_received(link, wc);
}

static bool
cq_breaks(const struct rdti_verbs_link *link, const struct ibv_wc *wc)
{
    return wc->status != IBV_WC_SUCCESS && wc->wr_id >> 56 != RDTI_VERBS_WR_PROBE &&
           link->state == RDTI_VERBS_LINK_GOOD;
}

static int
cq_poll(struct rdti_verbs_link *link, struct ibv_wc wcs[RDTI_VERBS_WCS])
{
    errno = 0; /* not every driver sets it */
    return link->lane->verbs->ops->poll_cq(link->cq, RDTI_VERBS_WCS, wcs);
}

/* Completions of one poll; the first that breaks the link goes to *first, for a later action. */
static void
cq_take_batch(struct rdti_verbs_link *link, const struct ibv_wc *wcs, int count,
              struct ibv_wc *first, bool *is_broken)
{
    const struct rdti_verbs_lane *lane = link->lane;

    for (int i = 0; i < count && rdti_verbs_phase_of(lane) != RDTI_VERBS_FAILED; i++) {
        if (!cq_breaks(link, &wcs[i])) {
            cq_take(link, &wcs[i]);
        } else if (*is_broken) {
            rdti_verbs_note_flush(link, &wcs[i]);
        } else {
            struct rdti_verbs_qp *qp = rdti_verbs_qp_of(link, wcs[i].wr_id);

            if (qp != NULL)
                rdti_verbs_keep_error(qp, &wcs[i]);
            *first = wcs[i];
            *is_broken = true;
        }
    }
}

/* Complete messages are delivered before an error of the same batch ends the lane, so this first
 * takes all that the CQ holds, at most its depth. `count`: of the first poll. A separate function:
 * most polls return nothing. If the lane fails, the link is gone, too. */
__attribute__((noinline)) static uint32_t
cq_take_polled(struct rdti_verbs_link *link, struct ibv_wc wcs[RDTI_VERBS_WCS], int count)
{
    struct rdti_verbs_lane *lane = link->lane;
    struct ibv_wc first;
    bool is_broken = false;
    uint32_t work = 0;

    while (count > 0) {
        cq_take_batch(link, wcs, count, &first, &is_broken);
        work += (uint32_t)count;
        if (!is_broken || rdti_verbs_phase_of(lane) == RDTI_VERBS_FAILED)
            return work;
        if (count < RDTI_VERBS_WCS ||
            work >= link->qp_count * (link->nic->sq_depth + link->nic->rq_depth + 1))
            break;
        count = cq_poll(link, wcs);
    }
    if (count < 0) {
        cq_fail_poll(link, count, errno);
        return 1;
    }
    (void)rdti_verbs_deliver(lane);
    if (rdti_verbs_phase_of(lane) != RDTI_VERBS_FAILED)
        rdti_verbs_fail_completion(link, &first);
    return work;
}

uint32_t
rdti_verbs_poll_link(struct rdti_verbs_link *link)
{
    struct ibv_wc wcs[RDTI_VERBS_WCS];

    if (link->state > RDTI_VERBS_LINK_DRAINING)
        return 0; /* DOWN has reported the counts of received messages: they must not grow */
    const int count = cq_poll(link, wcs);
    return count == 0 ? 0 : cq_take_polled(link, wcs, count);
}

uint32_t
rdti_verbs_poll_lane(struct rdti_verbs_lane *lane)
{
    uint32_t work = 0;

    for (uint32_t i = 0; i < lane->link_count; i++) {
        work += rdti_verbs_poll_link(&lane->links[i]);
        if (rdti_verbs_phase_of(lane) == RDTI_VERBS_FAILED)
            return work;
    }
    if (work > 0 || !rdti_list_is_empty(&lane->flags))
        work += rdti_verbs_deliver(lane);
    return work;
}

void
rdti_verbs_arm_lane(struct rdti_verbs_lane *lane)
{
    for (uint32_t i = 0; i < lane->link_count; i++) {
        struct rdti_verbs_link *link = &lane->links[i];

        /* It fails only if the device has failed; its event or the next post reports that. */
        if (!link->is_armed && link->state <= RDTI_VERBS_LINK_DRAINING)
            link->is_armed = lane->verbs->ops->req_notify_cq(link->cq, 0) == 0;
    }
}
