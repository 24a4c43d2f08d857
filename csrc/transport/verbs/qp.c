/* SPDX-License-Identifier: Apache-2.0
 * QPs and CQs of one link: created, raised to RTS, supplied with receives, destroyed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/crypto.h"
#include "base/error.h"
#include "transport/verbs/lane.h"

#define PSN_MASK UINT32_C(0xffffff)

/* ---- Creation ------------------------------------------------------------------------------- */

/* No query returns a device's inline limit: some devices refuse a larger value, others lower it.
 * Not every driver sets errno. */
static struct ibv_qp *
qp_make(struct rdti_verbs_link *link, uint32_t *inline_bytes_out)
{
    static const uint32_t tries[] = {RDTI_VERBS_INLINE_BYTES, RDTI_VERBS_INLINE_BYTES / 2, 0};
    struct rdti_verbs_nic *nic = link->nic;
    struct ibv_qp *qp = NULL;

    for (size_t i = 0; qp == NULL && i < sizeof(tries) / sizeof(tries[0]); i++) {
        struct ibv_qp_init_attr attr = {
            .send_cq = link->cq,
            .recv_cq = link->cq,
            .qp_type = IBV_QPT_RC,
            .cap = {.max_send_wr = nic->sq_depth,
                    .max_recv_wr = nic->rq_depth,
                    .max_send_sge = nic->segments,
                    .max_recv_sge = 1,
                    .max_inline_data = tries[i]},
        };
        errno = 0;
        qp = nic->verbs->ops->create_qp(nic->pd, &attr);
        *inline_bytes_out = attr.cap.max_inline_data; /* as granted, possibly 0 */
        if (qp == NULL && errno != 0 && errno != EINVAL && errno != EOPNOTSUPP)
            break; /* another reason, which is the error to report */
    }
    return qp;
}

static rdt_status
qp_create(struct rdti_verbs_link *link, struct rdt_error *err)
{
    const struct rdti_verbs_nic *nic = link->nic;
    struct rdti_verbs_qp *qp = calloc(1, sizeof(*qp));

    if (qp == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "verbs: a QP of %zu bytes", sizeof(*qp));
    rdt_status status = rdti_random_bytes(&qp->psn, sizeof(qp->psn), err);
    if (status != RDT_OK)
        goto err_free;
    qp->psn &= PSN_MASK;
    qp->link = link;
    qp->qp = qp_make(link, &qp->inline_bytes);
    if (qp->qp == NULL) {
        status = rdti_error_set(err, RDT_EDEVICE, errno, "ibv_create_qp on %s, sq %u, rq %u",
                                nic->name, nic->sq_depth, nic->rq_depth);
        goto err_free;
    }
    qp->index = link->qp_count;
    link->qps[link->qp_count++] = qp;
    return RDT_OK;

err_free:
    free(qp);
    return status;
}

rdt_status
rdti_verbs_create_link(struct rdti_verbs_lane *lane, struct rdti_verbs_nic *nic, uint32_t nic_index,
                       struct rdti_verbs_link *link, struct rdt_error *err)
{
    const struct rdti_verbs *verbs = nic->verbs;
    const uint32_t qp_count = verbs->settings.qp_count;
    /* The work requests of all QPs may complete at the same time: an overrun is fatal. */
    const uint32_t depth = qp_count * (nic->sq_depth + nic->rq_depth + 1);
    rdt_status status = RDT_OK;

    memset(link, 0, sizeof(*link));
    link->lane = lane;
    link->nic = nic;
    link->nic_index = nic_index;
    link->cq = verbs->ops->create_cq(nic->context, (int)depth, lane, nic->channel, 0);
    if (link->cq == NULL) {
        status = rdti_error_set(err, RDT_EDEVICE, errno, "ibv_create_cq on %s, depth %u", nic->name,
                                depth);
        memset(link, 0, sizeof(*link));
        return status;
    }
    while (status == RDT_OK && link->qp_count < qp_count)
        status = qp_create(link, err);
    if (status != RDT_OK)
        rdti_verbs_destroy_link(link);
    return status;
}

void
rdti_verbs_destroy_link(struct rdti_verbs_link *link)
{
    if (link->nic == NULL)
        return;
    for (uint32_t i = 0; i < link->qp_count; i++) {
        rdti_verbs_destroy_qp(link->nic, link->qps[i]->qp);
        free(link->qps[i]);
    }
    rdti_verbs_destroy_cq(link->nic, link->cq);
    memset(link, 0, sizeof(*link));
}

struct rdti_verbs_qp *
rdti_verbs_qp_of(const struct rdti_verbs_link *link, uint64_t wr_id)
{
    const uint32_t index = (uint32_t)(wr_id >> 48 & 0xff);

    return index < link->qp_count ? link->qps[index] : NULL;
}

/* ---- Receives ------------------------------------------------------------------------------- */

rdt_status
rdti_verbs_restock(struct rdti_verbs_qp *qp, struct rdt_error *err)
{
    const struct rdti_verbs_nic *nic = qp->link->nic;
    struct ibv_recv_wr wrs[RDTI_VERBS_WCS];

    while (qp->rx_posted - qp->rx_taken < nic->rq_depth) {
        const uint64_t room = nic->rq_depth - (qp->rx_posted - qp->rx_taken);
        const uint32_t count = room < RDTI_VERBS_WCS ? (uint32_t)room : RDTI_VERBS_WCS;
        struct ibv_recv_wr *bad = NULL;

        for (uint32_t i = 0; i < count; i++)
            wrs[i] = (struct ibv_recv_wr){
                .wr_id = rdti_verbs_wr_id(RDTI_VERBS_WR_RX, qp->index, qp->rx_posted + i),
                .next = i + 1 < count ? &wrs[i + 1] : NULL,
            };
        const int failed = nic->verbs->ops->post_recv(qp->qp, wrs, &bad);
        if (failed != 0)
            return rdti_error_set(err, RDT_EDEVICE, failed > 0 ? failed : errno,
                                  "ibv_post_recv on %s", nic->name);
        qp->rx_posted += count;
    }
    return RDT_OK;
}

/* ---- States --------------------------------------------------------------------------------- */

static uint8_t
qp_agreed(uint8_t connector, uint8_t listener, uint8_t otherwise)
{
    if (connector != RDTI_VERBS_UNSET)
        return connector;
    return listener != RDTI_VERBS_UNSET ? listener : otherwise;
}

/* One of the settings that both directions share, by its field in the offer. */
#define AGREED(lane, field, otherwise)                                            \
    qp_agreed((lane)->args.is_connector ? (lane)->own.field : (lane)->peer.field, \
              (lane)->args.is_connector ? (lane)->peer.field : (lane)->own.field, otherwise)

static rdt_status
qp_modify(struct rdti_verbs_qp *qp, struct ibv_qp_attr *attr, int mask, const char *to,
          struct rdt_error *err)
{
    const struct rdti_verbs_link *link = qp->link;
    const int failed = link->nic->verbs->ops->modify_qp(qp->qp, attr, mask);

    if (failed == 0)
        return RDT_OK;
    return rdti_error_set(err, RDT_EDEVICE, failed > 0 ? failed : errno,
                          "ibv_modify_qp to %s on %s port %u (%s)", to, link->nic->name,
                          link->nic->port, link->pair_text);
}

static rdt_status
qp_to_init(struct rdti_verbs_qp *qp, struct rdt_error *err)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET, RDTI_VERBS_NO_MTU};
    rdt_status status = qp_modify(qp, &attr, IBV_QP_STATE, "RESET", err);

    if (status != RDT_OK)
        return status;
    qp->rx_posted = 0;
    qp->rx_taken = 0;
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_INIT,
        RDTI_VERBS_NO_MTU,
        .pkey_index = qp->link->pkey_index,
        .port_num = qp->link->nic->port,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
    };
    return qp_modify(qp, &attr,
                     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT",
                     err);
}

/* Both sides restart in each round, with PSNs that late packets of the previous one do not have. */
static uint32_t
qp_psn_in(uint32_t psn, uint32_t round)
{
    return (psn + round * UINT32_C(0x100000)) & PSN_MASK;
}

static uint8_t
qp_path_mtu(const struct rdti_verbs_link *link, const struct rdti_verbs_port_offer *peer)
{
    const uint8_t own = link->lane->own.ports[link->port_index].mtu; /* includes the setting */

    return own < peer->mtu ? own : peer->mtu;
}

static rdt_status
qp_to_rtr(struct rdti_verbs_qp *qp, uint32_t index, struct rdt_error *err)
{
    const struct rdti_verbs_link *link = qp->link;
    const struct rdti_verbs_lane *lane = link->lane;
    const struct rdti_verbs_port_offer *own = &lane->own.ports[link->port_index];
    const struct rdti_verbs_port_offer *peer = &lane->peer.ports[link->peer_port];
    const struct rdti_verbs_pair *pair = &link->pairs[link->round];
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = (enum ibv_mtu)qp_path_mtu(link, peer),
        .dest_qp_num = peer->qps[index].qpn,
        .rq_psn = qp_psn_in(peer->qps[index].psn, link->round),
        .max_dest_rd_atomic = own->reads_in < peer->reads_out ? own->reads_in : peer->reads_out,
        .min_rnr_timer = RDTI_VERBS_RNR_TIMER,
        .ah_attr = {.dlid = peer->lid,
                    .sl = AGREED(lane, service_level, 0),
                    .port_num = link->nic->port},
    };

    if (!link->nic->is_infiniband) {
        attr.ah_attr.is_global = 1;
        memcpy(attr.ah_attr.grh.dgid.raw, peer->gids[pair->peer].raw, 16);
        attr.ah_attr.grh.sgid_index = own->gids[pair->own].index;
        attr.ah_attr.grh.hop_limit = RDTI_VERBS_HOP_LIMIT;
        attr.ah_attr.grh.traffic_class = AGREED(lane, traffic_class, 0);
    }
    return qp_modify(qp, &attr,
                     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                     "RTR", err);
}

uint64_t
rdti_verbs_retry_window_ns(const struct rdti_verbs_lane *lane)
{
    const uint64_t try_ns = UINT64_C(4096) << AGREED(lane, timeout, RDTI_VERBS_TIMEOUT);

    return try_ns * (AGREED(lane, retry, RDTI_VERBS_RETRY) + 1u);
}

static rdt_status
qp_to_rts(struct rdti_verbs_qp *qp, struct rdt_error *err)
{
    const struct rdti_verbs_link *link = qp->link;
    const struct rdti_verbs_lane *lane = link->lane;
    const struct rdti_verbs_port_offer *own = &lane->own.ports[link->port_index];
    const struct rdti_verbs_port_offer *peer = &lane->peer.ports[link->peer_port];
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTS,
        RDTI_VERBS_NO_MTU,
        .timeout = AGREED(lane, timeout, RDTI_VERBS_TIMEOUT),
        .retry_cnt = AGREED(lane, retry, RDTI_VERBS_RETRY),
        .rnr_retry = RDTI_VERBS_RNR_RETRY,
        .sq_psn = qp_psn_in(qp->psn, link->round),
        .max_rd_atomic = own->reads_out < peer->reads_in ? own->reads_out : peer->reads_in,
    };

    return qp_modify(qp, &attr,
                     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                         IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                     "RTS", err);
}

static rdt_status
qp_agree_pkey(struct rdti_verbs_link *link, struct rdt_error *err)
{
    const struct rdti_verbs_lane *lane = link->lane;
    const uint16_t connector = lane->args.is_connector ? lane->own.pkey : lane->peer.pkey;
    const uint16_t listener = lane->args.is_connector ? lane->peer.pkey : lane->own.pkey;
    struct rdt_error why;

    link->pkey = connector != 0 ? connector : listener;
    link->pkey_index = 0;
    if (link->pkey == 0 ||
        rdti_verbs_find_pkey(link->nic, link->pkey, &link->pkey_index, &why) == RDT_OK)
        return RDT_OK;
    (void)rdti_error_set_rank(err, RDT_ENOTVIABLE, lane->args.peer_rank,
                              "verbs: rank %d asks for a partition that device %s port %u is not "
                              "in: %s",
                              lane->args.peer_rank, link->nic->name, link->nic->port, why.message);
    if (err != NULL)
        err->sys_errno = why.sys_errno;
    return RDT_ENOTVIABLE;
}

rdt_status
rdti_verbs_raise_link(struct rdti_verbs_link *link, struct rdt_error *err)
{
    rdt_status status = qp_agree_pkey(link, err);

    for (uint32_t i = 0; status == RDT_OK && i < link->qp_count; i++) {
        struct rdti_verbs_qp *qp = link->qps[i];

        status = qp_to_init(qp, err);
        if (status == RDT_OK)
            status = rdti_verbs_restock(qp, err);
        if (status == RDT_OK)
            status = qp_to_rtr(qp, i, err);
        if (status == RDT_OK)
            status = qp_to_rts(qp, err);
    }
    return status;
}
