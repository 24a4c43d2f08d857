/* SPDX-License-Identifier: Apache-2.0
 * Ends of ops and lanes: the first error and its message, teardown. [driver] */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "transport/verbs/down.h"
#include "transport/verbs/registrar.h"
#include "transport/verbs/verbs.h"

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

/* ---- Teardown ------------------------------------------------------------------------------- */

static void
stop_qps(struct rdti_verbs_lane *lane)
{
    for (uint32_t i = 0; i < lane->link_count; i++) {
        const struct rdti_verbs_link *link = &lane->links[i];

        for (uint32_t q = 0; q < link->qp_count; q++) {
            struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR, RDTI_VERBS_NO_MTU};

            /* A QP in RESET, its state until the peer's offer arrives, moves no data. */
            if (link->qps[q]->qp == NULL || link->qps[q]->qp->state == IBV_QPS_RESET)
                continue;
            const int failed = lane->verbs->ops->modify_qp(link->qps[q]->qp, &attr, IBV_QP_STATE);

            /* Destroying it stops it, too. */
            if (failed != 0)
                rdti_log(link->nic->is_gone ? RDT_LOG_DEBUG : RDT_LOG_WARN,
                         "verbs: ibv_modify_qp to ERR on device %s port %u: %s", link->nic->name,
                         link->nic->port, strerror(failed > 0 ? failed : errno));
        }
    }
}

static uint64_t
outstanding(const struct rdti_verbs_lane *lane)
{
    uint64_t count = 0;

    for (uint32_t i = 0; i < lane->link_count; i++)
        for (uint32_t q = 0; q < lane->links[i].qp_count; q++)
            count += lane->links[i].qps[q]->tx_posted - lane->links[i].qps[q]->tx_done;
    return count;
}

/* Requests in flight come back flushed; only their number matters. No other thread uses the QPs, as
 * the phase is FAILED. */
static void
drain(struct rdti_verbs_lane *lane)
{
    const uint64_t deadline_ns = rdti_deadline_after(RDTI_VERBS_DRAIN_NS);
    struct ibv_wc wcs[RDTI_VERBS_WCS];

    while (outstanding(lane) > 0 && rdti_now_ns() < deadline_ns) {
        for (uint32_t i = 0; i < lane->link_count; i++) {
            struct rdti_verbs_link *link = &lane->links[i];
            const int count = lane->verbs->ops->poll_cq(link->cq, RDTI_VERBS_WCS, wcs);

            for (int c = 0; c < count; c++) {
                struct rdti_verbs_qp *qp = rdti_verbs_qp_of(link, wcs[c].wr_id);
                const uint64_t sequence = wcs[c].wr_id & UINT64_C(0xffffffffffff);

                rdti_verbs_count_flush(lane, &wcs[c]);
                if (qp != NULL && wcs[c].wr_id >> 56 == RDTI_VERBS_WR_TX &&
                    sequence >= qp->tx_done && sequence < qp->tx_posted)
                    qp->tx_done = sequence + 1;
            }
            if (count < 0)
                return;
        }
    }
}

void
rdti_verbs_count_flush(struct rdti_verbs_lane *lane, const struct ibv_wc *wc)
{
    lane->flushed += wc->status == IBV_WC_WR_FLUSH_ERR && wc->wr_id >> 56 == RDTI_VERBS_WR_TX;
}

/* Appends the number of flushed requests to the error that ended the lane. */
static void
tell_flushed(struct rdti_verbs_lane *lane)
{
    if (lane->flushed == 0)
        return;
    (void)pthread_mutex_lock(&lane->lock);
    const size_t used = strlen(lane->error.message);
    (void)snprintf(lane->error.message + used, sizeof(lane->error.message) - used,
                   "; %u requests behind it were flushed", lane->flushed);
    (void)pthread_mutex_unlock(&lane->lock);
    /* Logged, too: the error of a lane that moves to tcp is not reported. */
    rdti_log(RDT_LOG_DEBUG, "verbs lane to rank %d: %u requests were flushed", lane->args.peer_rank,
             lane->flushed);
}

bool
rdti_verbs_stop_lane(struct rdti_verbs_lane *lane, const struct rdt_error *err,
                     struct rdti_list *ops)
{
    rdti_list_init(ops);
    (void)pthread_mutex_lock(&lane->lock);
    if (rdti_verbs_phase_of(lane) == RDTI_VERBS_FAILED) {
        (void)pthread_mutex_unlock(&lane->lock);
        return false;
    }
    lane->error = *err;
    rdti_list_splice(ops, &lane->ops);
    lane->cursor = NULL;
    lane->again_count = 0;
    lane->again_next = 0;
    /* release: pairs with rdti_verbs_phase_of(); from here on no thread posts */
    atomic_store_explicit(&lane->phase, RDTI_VERBS_FAILED, memory_order_release);
    (void)pthread_mutex_unlock(&lane->lock);

    /* ERR first, not directly RESET, so that requests in flight are flushed and counted. */
    stop_qps(lane);
    if (!lane->is_fenced) /* else they have come back already */
        drain(lane);
    tell_flushed(lane);
    lane->qp_count = 0;
    rdti_verbs_drop_wishes(lane);
    rdti_verbs_forget_flags(lane);
    while (lane->link_count > 0)
        rdti_verbs_destroy_link(&lane->links[--lane->link_count]);
    return true; /* no device accesses the ops' memory any more */
}

void
rdti_verbs_teardown(struct rdti_verbs_lane *lane, const struct rdt_error *err)
{
    struct rdti_list ops;

    (void)rdti_verbs_stop_lane(lane, err, &ops);
    (void)pthread_mutex_lock(&lane->lock);
    rdti_list_splice(&ops, &lane->ops); /* the ops of a lane that failed before */
    (void)pthread_mutex_unlock(&lane->lock);
    rdti_verbs_complete_all(lane, &ops, (rdt_status)err->status, err);
}

void
rdti_verbs_fail(struct rdti_verbs_lane *lane, const struct rdt_error *err)
{
    const struct rdti_host *host = lane->verbs->host;
    const struct rdt_error copy = *err; /* err may point into the lane */
    struct rdti_list ops;

    if (!rdti_verbs_stop_lane(lane, &copy, &ops))
        return;
    (void)pthread_mutex_lock(&lane->lock);
    rdti_list_splice(&lane->ops, &ops); /* for close_lane(): the host may know a better reason */
    const struct rdt_error told = lane->error;
    (void)pthread_mutex_unlock(&lane->lock);
    host->on_error(host->core, &lane->base, &told);
}

void
rdti_verbs_free_lane(struct rdti_verbs_lane *lane)
{
    struct rdti_verbs *verbs = lane->verbs;

    for (uint32_t i = 0; i < verbs->nic_count; i++)
        rdti_verbs_deregister(&verbs->nics[i], lane->stage_mrs[i]);
    if (lane->stage != NULL)
        (void)munmap(lane->stage, RDTI_VERBS_STAGE_PIECES * RDTI_VERBS_STAGE_BYTES);
    rdti_verbs_free_tails(lane);
    rdti_verbs_free_remotes(lane);
    free(lane->again);
    (void)pthread_mutex_destroy(&lane->lock);
    explicit_bzero(lane->args.session_key, sizeof(lane->args.session_key));
    free(lane);
}

/* ---- The first error ------------------------------------------------------------------------ */

static const char *
advice_for(enum ibv_wc_status status)
{
    switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
        return "the peer's host or the path to it is down, or drops large packets: look at its "
               "last log lines, at ping -M do -s, and at RDMATENSOR_VERBS_TIMEOUT";
    case IBV_WC_RNR_RETRY_EXC_ERR:
        return "the peer's device found no receive posted: its process is stopped, or rdmatensor "
               "has a bug";
    case IBV_WC_REM_ACCESS_ERR:
        return "the peer's device refused the key or the range: the memory was freed or never "
               "registered there";
    case IBV_WC_LOC_PROT_ERR:
        return "this device refused our own memory: was it unmapped while in use?";
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_REM_ABORT_ERR:
        return "the peer's device failed: look at dmesg there";
    case IBV_WC_WR_FLUSH_ERR:
        return "its device stopped the QP and gave no reason with it: it could not send (a route, "
               "a firewall), refused what the peer asked for (the peer's error says what), or "
               "failed; look at dmesg";
    default:
        return "look at dmesg and at the device's firmware";
    }
}

/* Whether another link may succeed: not if the request or its memory was refused. */
static bool
is_of_link(enum ibv_wc_status status)
{
    return status != IBV_WC_LOC_LEN_ERR && status != IBV_WC_LOC_QP_OP_ERR &&
           status != IBV_WC_LOC_PROT_ERR && status != IBV_WC_MW_BIND_ERR &&
           status != IBV_WC_LOC_ACCESS_ERR && status != IBV_WC_REM_INV_REQ_ERR &&
           status != IBV_WC_REM_ACCESS_ERR;
}

/* A device that stops a QP by itself may flush all its requests without a status that has the
 * reason; an event that was not polled yet may have it. False: that event broke the link. */
static bool
is_unexplained(struct rdti_verbs_link *link, const struct ibv_wc *wc)
{
    const struct rdti_verbs_lane *lane = link->lane;

    if (wc->status != IBV_WC_WR_FLUSH_ERR)
        return true;
    rdti_verbs_on_async(link->nic, 0);
    if (rdti_verbs_phase_of(lane) == RDTI_VERBS_FAILED) /* its links are destroyed */
        return false;
    if (link->state <= RDTI_VERBS_LINK_GOOD)
        return true;
    rdti_verbs_note_flush(link, wc);
    return false;
}

/* A failed request's completion has few valid fields, so this uses its record. `qp` may be NULL. */
static const char *
kind_of(struct rdti_verbs_lane *lane, const struct rdti_verbs_qp *qp, const struct ibv_wc *wc)
{
    const uint64_t sequence = wc->wr_id & UINT64_C(0xffffffffffff);
    const char *kind = "request";

    if (wc->wr_id >> 56 == RDTI_VERBS_WR_RX)
        return "receive";
    (void)pthread_mutex_lock(&lane->lock);
    if (qp != NULL && sequence >= qp->tx_done && sequence < qp->tx_posted)
        kind = qp->records[sequence % RDTI_VERBS_SQ_DEPTH].is_read ? "read" : "write";
    (void)pthread_mutex_unlock(&lane->lock);
    return kind;
}

void
rdti_verbs_fail_completion(struct rdti_verbs_link *link, const struct ibv_wc *wc)
{
    struct rdti_verbs_lane *lane = link->lane;
    const struct rdti_verbs_nic *nic = link->nic;
    const struct rdti_verbs_qp *qp = rdti_verbs_qp_of(link, wc->wr_id);
    const bool is_peer = wc->status == IBV_WC_RETRY_EXC_ERR ||
                         wc->status == IBV_WC_RNR_RETRY_EXC_ERR ||
                         wc->status == IBV_WC_WR_FLUSH_ERR || wc->status == IBV_WC_REM_ABORT_ERR;
    char counters[RDTI_VERBS_COUNTERS_TEXT];
    struct rdt_error err;

    if (!is_unexplained(link, wc))
        return;
    rdti_verbs_explain_counters(nic, counters, sizeof(counters));
    (void)rdti_error_set_rank(
        &err, is_peer ? RDT_EPEER : RDT_EDEVICE, lane->args.peer_rank,
        "verbs lane to rank %d: a %s on %s port %u, QP 0x%x to 0x%x, %s, ended with \"%s\" (status "
        "%d, vendor code 0x%x)%s%s%s%s; %llu messages came before; %s",
        lane->args.peer_rank, kind_of(lane, qp, wc), nic->name, nic->port, wc->qp_num,
        qp == NULL ? 0 : lane->peer.ports[link->peer_port].qps[wc->wr_id >> 48 & 0xff].qpn,
        link->pair_text, lane->verbs->ops->wc_status_str(wc->status), (int)wc->status,
        wc->vendor_err, nic->event[0] != '\0' ? "; the device reported: " : "", nic->event,
        counters[0] != '\0' ? "; device since open: " : "", counters,
        (unsigned long long)lane->rx_messages, advice_for(wc->status));
    err.wc_status = (int32_t)wc->status;
    err.vendor_err = wc->vendor_err;
    if (!is_of_link(wc->status)) {
        rdti_verbs_fail(lane, &err);
        return;
    }
    rdti_verbs_break_link(link, &err);
    if (rdti_verbs_phase_of(lane) != RDTI_VERBS_FAILED)
        rdti_verbs_note_flush(link, wc);
}
