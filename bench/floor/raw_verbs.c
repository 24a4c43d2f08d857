/* SPDX-License-Identifier: Apache-2.0
 * RC QPs on plain libibverbs; see raw_verbs.h. */
#include "raw_verbs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

#define INLINE_BYTES 220 /* what ib_write_lat asks for */
#define PSN_MASK UINT32_C(0xffffff)
#define MAX_WRS 32        /* of one call that posts or polls */
#define ACK_TIMEOUT 14    /* 67 ms a try, perftest's too */
#define RETRIES 7         /* 7: the other side may have to wait for a core */
#define RNR_TIMER 12      /* 0.64 ms: perftest's too */
#define RNR_WITHOUT_END 7 /* what waits here has a deadline of its own */
#define HOP_LIMIT 64

/* ---- A port ------------------------------------------------------------------------------- */

static struct ibv_context *
open_named(const char *device)
{
    int count = 0;
    struct ibv_context *context = NULL;
    struct ibv_device **list = ibv_get_device_list(&count);

    for (int i = 0; list != NULL && i < count && context == NULL; i++) {
        if (strcmp(ibv_get_device_name(list[i]), device) != 0)
            continue;
        context = ibv_open_device(list[i]);
        if (context == NULL)
            bench_die(device);
    }
    if (list != NULL)
        ibv_free_device_list(list);
    if (context == NULL)
        bench_fail("there is no RDMA device %s", device);
    return context;
}

/* The first port that is active and has the GID, which InfiniBand does not need. */
static bool
choose_port(struct ibv_context *context, struct raw_verbs_port *out)
{
    struct ibv_device_attr device;
    struct ibv_port_attr port;
    struct ibv_gid_entry entry;

    if (ibv_query_device(context, &device) != 0)
        bench_fail("ibv_query_device failed on %s", out->device);
    for (uint8_t i = 1; i <= device.phys_port_cnt; i++) {
        if (ibv_query_port(context, i, &port) != 0 || port.state != IBV_PORT_ACTIVE)
            continue;
        out->number = i;
        out->is_infiniband = port.link_layer == IBV_LINK_LAYER_INFINIBAND;
        out->lid = port.lid;
        out->mtu = port.active_mtu;
        out->max_msg_size = port.max_msg_sz;
        out->max_wrs = (uint32_t)device.max_qp_wr;
        out->reads = (uint8_t)(device.max_qp_rd_atom < 16 ? device.max_qp_rd_atom : 16);
        if (ibv_query_gid_ex(context, i, (uint32_t)out->gid_index, &entry, 0) == 0) {
            out->gid = entry.gid;
            return true;
        }
        if (out->is_infiniband)
            return true;
    }
    return false;
}

void
raw_verbs_find(const char *device, int gid_index, struct raw_verbs_port *out)
{
    struct ibv_context *context = open_named(device);

    *out = (struct raw_verbs_port){.gid_index = gid_index};
    (void)snprintf(out->device, sizeof(out->device), "%s", device);
    if (!choose_port(context, out))
        bench_fail("%s has no active port with an entry %d of GIDs", device, gid_index);
    (void)ibv_close_device(context);
}

/* ---- Two QPs ------------------------------------------------------------------------------- */

static struct ibv_cq *
create_cq(struct raw_verbs *v, uint32_t depth)
{
    struct ibv_cq *cq = ibv_create_cq(v->context, (int)depth, NULL, NULL, 0);

    if (cq == NULL)
        bench_die("ibv_create_cq");
    return cq;
}

static void
create_qp(struct raw_verbs *v, uint32_t depth)
{
    struct ibv_qp_init_attr attr = {.send_cq = v->send_cq,
                                    .recv_cq = v->recv_cq,
                                    .qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = depth,
                                            .max_recv_wr = v->recv_depth,
                                            .max_send_sge = 1,
                                            .max_recv_sge = 1,
                                            .max_inline_data = INLINE_BYTES}};

    v->qp = ibv_create_qp(v->pd, &attr);
    if (v->qp == NULL) { /* a device with less refuses; the output names what was given */
        attr.cap.max_inline_data = 0;
        v->qp = ibv_create_qp(v->pd, &attr);
    }
    if (v->qp == NULL)
        bench_die("ibv_create_qp");
    v->inline_bytes = attr.cap.max_inline_data;
}

void
raw_verbs_open(struct raw_verbs *v, const struct raw_verbs_port *port, uint32_t depth, void *memory,
               size_t len_bytes, struct raw_verbs_address *own)
{
    *v = (struct raw_verbs){.port = *port, .context = open_named(port->device)};
    v->pd = ibv_alloc_pd(v->context);
    if (v->pd == NULL)
        bench_die("ibv_alloc_pd");
    v->mr = ibv_reg_mr(v->pd, memory, len_bytes,
                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    if (v->mr == NULL)
        bench_die("ibv_reg_mr");
    v->recv_depth = port->max_wrs < RAW_VERBS_RECVS ? port->max_wrs : RAW_VERBS_RECVS;
    v->send_cq = create_cq(v, depth);
    v->recv_cq = create_cq(v, v->recv_depth);
    create_qp(v, depth);
    v->psn = (uint32_t)getpid() << 8 & PSN_MASK; /* late packets of others do not have it */
    *own = (struct raw_verbs_address){.gid = port->gid,
                                      .addr = (uint64_t)(uintptr_t)memory,
                                      .rkey = v->mr->rkey,
                                      .qpn = v->qp->qp_num,
                                      .psn = v->psn,
                                      .lid = port->lid};
}

static void
modify(struct raw_verbs *v, struct ibv_qp_attr *attr, int mask, const char *to)
{
    const int failed = ibv_modify_qp(v->qp, attr, mask);

    if (failed != 0)
        bench_fail("ibv_modify_qp to %s on %s: %s", to, v->port.device,
                   strerror(failed > 0 ? failed : errno));
}

void
raw_verbs_connect(struct raw_verbs *v, const struct raw_verbs_address *peer)
{
    const struct raw_verbs_port *port = &v->port;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                               .path_mtu = port->mtu,
                               .port_num = port->number,
                               .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};

    v->peer = *peer;
    modify(v, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT");
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                                .path_mtu = port->mtu,
                                .dest_qp_num = peer->qpn,
                                .rq_psn = peer->psn,
                                .max_dest_rd_atomic = port->reads,
                                .min_rnr_timer = RNR_TIMER,
                                .ah_attr = {.dlid = peer->lid, .port_num = port->number}};
    if (!port->is_infiniband) {
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.dgid = peer->gid;
        attr.ah_attr.grh.sgid_index = (uint8_t)port->gid_index;
        attr.ah_attr.grh.hop_limit = HOP_LIMIT;
    }
    modify(v, &attr,
           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
           "RTR");
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                .path_mtu = port->mtu,
                                .timeout = ACK_TIMEOUT,
                                .retry_cnt = RETRIES,
                                .rnr_retry = RNR_WITHOUT_END,
                                .sq_psn = v->psn,
                                .max_rd_atomic = port->reads};
    modify(v, &attr,
           IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
               IBV_QP_MAX_QP_RD_ATOMIC,
           "RTS");
}

void
raw_verbs_close(struct raw_verbs *v)
{
    if (ibv_destroy_qp(v->qp) != 0 || ibv_destroy_cq(v->send_cq) != 0 ||
        ibv_destroy_cq(v->recv_cq) != 0 || ibv_dereg_mr(v->mr) != 0 || ibv_dealloc_pd(v->pd) != 0 ||
        ibv_close_device(v->context) != 0)
        bench_fail("%s does not close", v->port.device);
    *v = (struct raw_verbs){0};
}

/* ---- Requests ------------------------------------------------------------------------------ */

void
raw_verbs_post(struct raw_verbs *v, enum ibv_wr_opcode opcode, const char *local, size_t len_bytes,
               uint64_t remote_off)
{
    struct ibv_sge sge = {.addr = (uint64_t)(uintptr_t)local,
                          .length = (uint32_t)len_bytes,
                          .lkey = v->mr->lkey};
    const bool is_inline = opcode != IBV_WR_RDMA_READ && len_bytes <= v->inline_bytes;
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = opcode,
                             .send_flags =
                                 IBV_SEND_SIGNALED | (is_inline ? (unsigned)IBV_SEND_INLINE : 0U),
                             .wr.rdma = {.remote_addr = v->peer.addr + remote_off,
                                         .rkey = v->peer.rkey}};
    struct ibv_send_wr *bad = NULL;
    const int failed = ibv_post_send(v->qp, &wr, &bad);

    if (failed != 0)
        bench_fail("ibv_post_send on %s: %s", v->port.device,
                   strerror(failed > 0 ? failed : errno));
}

void
raw_verbs_post_recvs(struct raw_verbs *v, char *local, size_t len_bytes, uint32_t count)
{
    struct ibv_sge sge = {.addr = (uint64_t)(uintptr_t)local,
                          .length = (uint32_t)len_bytes,
                          .lkey = v->mr->lkey};
    struct ibv_recv_wr wrs[MAX_WRS];

    while (count > 0) {
        const uint32_t some = count < MAX_WRS ? count : MAX_WRS;
        struct ibv_recv_wr *bad = NULL;

        for (uint32_t i = 0; i < some; i++)
            wrs[i] = (struct ibv_recv_wr){.next = i + 1 < some ? &wrs[i + 1] : NULL,
                                          .sg_list = len_bytes > 0 ? &sge : NULL,
                                          .num_sge = len_bytes > 0 ? 1 : 0};
        const int failed = ibv_post_recv(v->qp, wrs, &bad);
        if (failed != 0)
            bench_fail("ibv_post_recv on %s: %s", v->port.device,
                       strerror(failed > 0 ? failed : errno));
        count -= some;
    }
}

uint32_t
raw_verbs_take(struct ibv_cq *cq, uint32_t least, uint32_t most)
{
    uint64_t deadline_ns = 0; /* known once it has taken longer: what is quick reads no clock */
    struct ibv_wc wcs[MAX_WRS];
    uint32_t taken = 0;

    for (uint32_t spins = 1;; spins++) {
        const uint32_t room = most - taken < MAX_WRS ? most - taken : MAX_WRS;
        const int got = ibv_poll_cq(cq, (int)room, wcs);

        if (got < 0)
            bench_fail("ibv_poll_cq: %d", got);
        for (int i = 0; i < got; i++)
            if (wcs[i].status != IBV_WC_SUCCESS)
                bench_fail("a request ended with \"%s\"", ibv_wc_status_str(wcs[i].status));
        taken += (uint32_t)got;
        if (taken >= least)
            return taken;
        if (spins % 4096 != 0)
            continue;
        if (deadline_ns == 0)
            deadline_ns = bench_now_ns() + BENCH_PATIENCE_NS;
        if (bench_now_ns() > deadline_ns)
            bench_fail("no completion comes");
    }
}
