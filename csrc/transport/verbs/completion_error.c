/* SPDX-License-Identifier: Apache-2.0
 * A completion with an error: its message, and what it ends. [driver] */
#include "base/error.h"
#include "transport/verbs/device/device.h"
#include "transport/verbs/down.h"
#include "transport/verbs/lane.h"

static const char *
completion_error_advice_for(enum ibv_wc_status status)
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
completion_error_is_of_link(enum ibv_wc_status status)
{
    return status != IBV_WC_LOC_LEN_ERR && status != IBV_WC_LOC_QP_OP_ERR &&
           status != IBV_WC_LOC_PROT_ERR && status != IBV_WC_MW_BIND_ERR &&
           status != IBV_WC_LOC_ACCESS_ERR && status != IBV_WC_REM_INV_REQ_ERR &&
           status != IBV_WC_REM_ACCESS_ERR;
}

/* A device that stops a QP by itself may flush all its requests without a status that has the
 * reason; an event that was not polled yet may have it. False: that event broke the link. */
static bool
completion_error_is_unexplained(struct rdti_verbs_link *link, const struct ibv_wc *wc)
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
completion_error_kind_of(struct rdti_verbs_lane *lane, const struct rdti_verbs_qp *qp,
                         const struct ibv_wc *wc)
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

    if (!completion_error_is_unexplained(link, wc))
        return;
    rdti_verbs_explain_counters(nic, counters, sizeof(counters));
    (void)rdti_error_set_rank(
        &err, is_peer ? RDT_EPEER : RDT_EDEVICE, lane->args.peer_rank,
        "verbs lane to rank %d: a %s on %s port %u, QP 0x%x to 0x%x, %s, ended with \"%s\" (status "
        "%d, vendor code 0x%x)%s%s%s%s; %llu messages came before; %s",
        lane->args.peer_rank, completion_error_kind_of(lane, qp, wc), nic->name, nic->port,
        wc->qp_num,
        qp == NULL ? 0 : lane->peer.ports[link->peer_port].qps[wc->wr_id >> 48 & 0xff].qpn,
        link->pair_text, lane->verbs->ops->wc_status_str(wc->status), (int)wc->status,
        wc->vendor_err, nic->event[0] != '\0' ? "; the device reported: " : "", nic->event,
        counters[0] != '\0' ? "; device since open: " : "", counters,
        (unsigned long long)lane->rx_messages, completion_error_advice_for(wc->status));
    err.wc_status = (int32_t)wc->status;
    err.vendor_err = wc->vendor_err;
    if (!completion_error_is_of_link(wc->status)) {
        rdti_verbs_fail(lane, &err);
        return;
    }
    rdti_verbs_break_link(link, &err);
    if (rdti_verbs_phase_of(lane) != RDTI_VERBS_FAILED)
        rdti_verbs_note_flush(link, wc);
}
