/* SPDX-License-Identifier: Apache-2.0
 * The sim's QPs: their lives and states, and whom they reach. What they do is the wire's
 * (sim_wire.c). */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "sim/sim_impl.h"

struct ibv_qp *
sim_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
    struct sim_qp *qp = NULL;
    uint32_t at = 0;

    CHECK_INT_EQ(init->qp_type, IBV_QPT_RC);
    sim_lock();
    if (sim.config.is_inline_strict && init->cap.max_inline_data > sim.config.inline_bytes) {
        errno = EINVAL;
    } else if (!sim_refuses(pd->context, "create_qp")) {
        while (at < SIM_QPS_MAX && sim.qps[at] != NULL)
            at++;
        CHECK_INT_LT(at, SIM_QPS_MAX);
        qp = calloc(1, sizeof(*qp));
        CHECK_NOT_NULL(qp);
        if (init->cap.max_inline_data > sim.config.inline_bytes)
            init->cap.max_inline_data = sim.config.inline_bytes;
        CHECK_UINT_LE(init->cap.max_send_sge, 2);
        CHECK(sim.config.segments == 0 || init->cap.max_send_sge <= sim.config.segments);
        qp->init = *init;
        qp->device = sim_device_of(pd->context);
        qp->qp = (struct ibv_qp){.context = pd->context, .pd = pd, .qp_num = at + 1};
        qp->attr.qp_state = IBV_QPS_RESET;
        qp->sends = calloc(init->cap.max_send_wr, sizeof(*qp->sends));
        qp->receives = calloc(init->cap.max_recv_wr, sizeof(*qp->receives));
        CHECK(qp->sends != NULL && qp->receives != NULL);
        sim.qps[at] = qp;
        ((struct sim_pd *)pd)->children++;
        ((struct sim_cq *)init->send_cq)->children++;
        sim_track(SIM_QP, pd->context, qp);
    }
    sim_unlock();
    return qp != NULL ? &qp->qp : NULL;
}

void
sim_free_qp(struct sim_qp *qp)
{
    sim.qps[qp->qp.qp_num - 1] = NULL;
    sim_drop_completions((struct sim_cq *)qp->init.send_cq, qp->qp.qp_num);
    ((struct sim_pd *)qp->qp.pd)->children--;
    ((struct sim_cq *)qp->init.send_cq)->children--;
    sim_untrack(qp);
    free(qp->sends);
    free(qp->receives);
    free(qp);
}

int
sim_destroy_qp(struct ibv_qp *base)
{
    struct sim_qp *qp = (struct sim_qp *)base;

    sim_lock_still();
    CHECK_PTR_EQ(sim.qps[base->qp_num - 1], qp);
    const int failed = sim_is_failing("destroy_qp") ? errno : 0;
    if (failed == 0) {
        sim.counts.stopped += qp->attr.qp_state == IBV_QPS_ERR;
        sim.counts.running += qp->attr.qp_state == IBV_QPS_RTR || qp->attr.qp_state == IBV_QPS_RTS;
        sim.counts.untaken += sim_untaken((struct sim_cq *)qp->init.send_cq, base->qp_num);
        sim_free_qp(qp);
    }
    sim_unlock();
    return failed;
}

/* What a real device asks for on each transition, and where from. */
static bool
is_legal(enum ibv_qp_state from, enum ibv_qp_state to, int mask)
{
    switch (to) {
    case IBV_QPS_RESET:
        return mask == IBV_QP_STATE;
    case IBV_QPS_ERR: /* kernels refuse it; nothing is gained by trying, and it may be logged */
        CHECK_MSG(from != IBV_QPS_RESET, "a QP goes from RESET to ERR");
        return mask == IBV_QP_STATE;
    case IBV_QPS_INIT:
        return from == IBV_QPS_RESET &&
               mask == (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    case IBV_QPS_RTR:
        return from == IBV_QPS_INIT &&
               mask == (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                        IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    case IBV_QPS_RTS:
        return from == IBV_QPS_RTR &&
               mask == (IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                        IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    default:
        return false;
    }
}

int
sim_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask)
{
    struct sim_qp *qp = (struct sim_qp *)base;
    const enum ibv_qp_state to = attr->qp_state;
    const char *call = to == IBV_QPS_ERR ? "modify_qp to ERR" : "modify_qp";
    int result = 0;

    sim_lock_still();
    if (!is_legal(qp->attr.qp_state, to, mask)) {
        result = EINVAL;
    } else if (sim_refuses(base->context, call)) {
        result = errno;
    } else if (to == IBV_QPS_RESET) {
        sim_empty_qp(qp);
        qp->attr = *attr;
    } else if (to == IBV_QPS_ERR) {
        sim_to_error(qp);
    } else if (to == IBV_QPS_INIT) {
        CHECK_INT_LT(attr->pkey_index, SIM_PKEYS_MAX);
        qp->attr.qp_state = to;
        qp->port = attr->port_num;
        qp->pkey = sim.config.devices[qp->device->index].pkeys[attr->pkey_index];
    } else if (to == IBV_QPS_RTR) {
        CHECK_INT_EQ(attr->ah_attr.port_num, qp->port);
        CHECK_INT_EQ(attr->ah_attr.is_global, sim.config.devices[qp->device->index].lid == 0);
        qp->attr = *attr;
    } else {
        CHECK_INT_LT(attr->rnr_retry, 7);
        qp->attr.qp_state = to;
        qp->attr.rnr_retry = attr->rnr_retry;
        qp->attr.retry_cnt = attr->retry_cnt;
        qp->attr.timeout = attr->timeout;
        qp->attr.sq_psn = attr->sq_psn;
        qp->attr.max_rd_atomic = attr->max_rd_atomic;
    }
    if (result == 0)
        base->state = to; /* as libibverbs keeps it: what the program asked for last */
    sim_unlock();
    return result;
}

/* ---- Whom they reach ------------------------------------------------------------------------ */

static bool
is_blocked(const union ibv_gid *gid)
{
    union ibv_gid blocked;

    return sim.blocked[0] != '\0' && inet_pton(AF_INET6, sim.blocked, blocked.raw) == 1 &&
           memcmp(blocked.raw, gid->raw, sizeof(blocked.raw)) == 0;
}

static bool
has_gid(const struct sim_qp *qp, const union ibv_gid *gid)
{
    union ibv_gid own;

    for (uint32_t i = 0; i < SIM_GIDS_MAX; i++)
        if (sim_gid_of(qp->device->index, qp->port, i, &own) && memcmp(own.raw, gid->raw, 16) == 0)
            return true;
    return false;
}

/* One of two members has to be a full one. */
static bool
is_one_partition(uint16_t a, uint16_t b)
{
    return (a & 0x7fff) == (b & 0x7fff) && ((a | b) & 0x8000) != 0;
}

/* Both ends know each other, as set-up has told them. */
static bool
is_joined(const struct sim_qp *qp, const struct sim_qp *peer)
{
    return (peer->attr.qp_state == IBV_QPS_RTR || peer->attr.qp_state == IBV_QPS_RTS) &&
           peer->attr.dest_qp_num == qp->qp.qp_num && peer->attr.rq_psn == qp->attr.sq_psn &&
           peer->attr.path_mtu == qp->attr.path_mtu && is_one_partition(qp->pkey, peer->pkey);
}

static bool
is_lost(const struct sim_qp *qp)
{
    return qp->qp.qp_num < 64 && (sim.config.lost_qps >> qp->qp.qp_num & 1) != 0;
}

/* Of two Ethernet ports by GIDs, of two InfiniBand ports by LIDs, without a GRH. */
static bool
is_addressed(const struct sim_qp *qp, const struct sim_qp *peer)
{
    const union ibv_gid *to = &qp->attr.ah_attr.grh.dgid;
    const uint16_t peer_lid = sim.config.devices[peer->device->index].lid;
    union ibv_gid from;

    if (qp->attr.ah_attr.is_global == 0)
        return peer_lid != 0 && peer_lid == qp->attr.ah_attr.dlid;
    return peer_lid == 0 && peer->port != 0 &&
           sim_gid_of(qp->device->index, qp->port, qp->attr.ah_attr.grh.sgid_index, &from) &&
           !is_blocked(&from) && !is_blocked(to) && has_gid(peer, to);
}

struct sim_qp *
sim_find_peer(const struct sim_qp *qp)
{
    const uint32_t qpn = qp->attr.dest_qp_num;
    struct sim_qp *peer = qpn >= 1 && qpn <= SIM_QPS_MAX ? sim.qps[qpn - 1] : NULL;

    if (peer == NULL || is_lost(qp) || is_lost(peer) || !is_addressed(qp, peer) ||
        !is_joined(qp, peer))
        return NULL;
    return peer;
}
