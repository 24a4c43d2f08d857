/* SPDX-License-Identifier: Apache-2.0
 * The calibration of the sim: one sequence of calls on two QPs of one port, with the completions
 * that must come of it, in order. It runs on the sim, and with RDT_TEST_VERBS=device on a device:
 * where both pass, order, status and the fields that are no vendor's own agree. */
#include "../harness.h"

#include "base/error.h"
#include "verbs_rig.h"

#define CELL 4096

struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;      /* peers may write and read */
    struct ibv_mr *mr_deaf; /* peers may only write */
    uint8_t *memory;
    uint8_t gid_index;
    union ibv_gid gid;
    enum ibv_mtu mtu;
};

static const struct rdti_verbs_ops *ops;

static void
find_gid(struct end *e)
{
    struct ibv_port_attr port;

    memset(&port, 0, sizeof(port));
    CHECK_INT_EQ(ops->query_port(e->context, 1, &port), 0);
    e->mtu = port.active_mtu;
    for (uint32_t i = 0; i < (uint32_t)port.gid_tbl_len && i < 256; i++) {
        struct ibv_gid_entry entry;

        memset(&entry, 0, sizeof(entry));
        if (ops->query_gid_ex(e->context, 1, i, &entry, 0, sizeof(entry)) != 0 ||
            entry.gid_type != IBV_GID_TYPE_ROCE_V2)
            continue;
        e->gid = entry.gid;
        e->gid_index = (uint8_t)i; /* the last one: IPv4 where there is one */
    }
}

static void
open_end(struct end *e, struct ibv_device *device)
{
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = 16,
                                            .max_recv_wr = 16,
                                            .max_send_sge = 1,
                                            .max_recv_sge = 1,
                                            .max_inline_data = 32}};

    *e = (struct end){.context = ops->open_device(device)};
    CHECK_NOT_NULL(e->context);
    find_gid(e);
    e->pd = ops->alloc_pd(e->context);
    e->channel = ops->create_comp_channel(e->context);
    e->cq = ops->create_cq(e->context, 64, NULL, e->channel, 0);
    CHECK(e->pd != NULL && e->cq != NULL);
    attr.send_cq = e->cq;
    attr.recv_cq = e->cq;
    e->qp = ops->create_qp(e->pd, &attr);
    CHECK_NOT_NULL(e->qp);
    e->memory = aligned_alloc(CELL, 4 * CELL);
    CHECK_NOT_NULL(e->memory);
    memset(e->memory, 0, 4 * CELL);
    e->mr = ops->reg_mr_iova2(e->pd, e->memory, 2 * CELL, (uintptr_t)e->memory,
                              IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                  IBV_ACCESS_REMOTE_READ);
    e->mr_deaf =
        ops->reg_mr_iova2(e->pd, e->memory + 2 * CELL, 2 * CELL, (uintptr_t)e->memory + 2 * CELL,
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    CHECK(e->mr != NULL && e->mr_deaf != NULL);
}

static void
close_end(struct end *e)
{
    CHECK_INT_EQ(ops->destroy_qp(e->qp), 0);
    CHECK_INT_EQ(ops->destroy_cq(e->cq), 0);
    CHECK_INT_EQ(ops->destroy_comp_channel(e->channel), 0);
    CHECK_INT_EQ(ops->dereg_mr(e->mr), 0);
    CHECK_INT_EQ(ops->dereg_mr(e->mr_deaf), 0);
    CHECK_INT_EQ(ops->dealloc_pd(e->pd), 0);
    CHECK_INT_EQ(ops->close_device(e->context), 0);
    free(e->memory);
}

static void
join(struct end *e, const struct end *peer)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                               .port_num = 1,
                               .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};

    CHECK_INT_EQ(ops->modify_qp(e->qp, &attr,
                                IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                                    IBV_QP_ACCESS_FLAGS),
                 0);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = e->mtu,
        .dest_qp_num = peer->qp->qp_num,
        .rq_psn = 100,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1,
                    .port_num = 1,
                    .grh = {.dgid = peer->gid, .sgid_index = e->gid_index, .hop_limit = 64}}};
    CHECK_INT_EQ(ops->modify_qp(e->qp, &attr,
                                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                    IBV_QP_MIN_RNR_TIMER),
                 0);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                .timeout = 14,
                                .retry_cnt = 6, /* 7 is for ever on rxe */
                                .rnr_retry = 1,
                                .sq_psn = 100,
                                .max_rd_atomic = 1};
    CHECK_INT_EQ(ops->modify_qp(e->qp, &attr,
                                IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                    IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
                 0);
}

static void
post_receives(struct end *e, uint64_t first_id, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct ibv_recv_wr wr = {.wr_id = first_id + i};
        struct ibv_recv_wr *bad;

        CHECK_INT_EQ(ops->post_recv(e->qp, &wr, &bad), 0);
    }
}

struct request {
    uint64_t id;
    enum ibv_wr_opcode opcode;
    uint32_t len_bytes;
    uint32_t imm;
    bool is_signaled;
    bool is_inline;
};

static void
post(struct end *e, const struct end *peer, const struct request *r, const struct ibv_mr *target)
{
    struct ibv_sge sge = {.addr = (uintptr_t)e->memory,
                          .length = r->len_bytes,
                          .lkey = e->mr->lkey};
    struct ibv_send_wr wr = {
        .wr_id = r->id,
        .opcode = r->opcode,
        .sg_list = &sge,
        .num_sge = r->len_bytes > 0 ? 1 : 0,
        .imm_data = htobe32(r->imm),
        .send_flags = (r->is_signaled ? (unsigned)IBV_SEND_SIGNALED : 0) |
                      (r->is_inline ? (unsigned)IBV_SEND_INLINE : 0),
        .wr.rdma = {.remote_addr = (uintptr_t)target->addr, .rkey = target->rkey},
    };
    struct ibv_send_wr *bad;

    (void)peer;
    CHECK_INT_EQ(ops->post_send(e->qp, &wr, &bad), 0);
}

struct expected {
    uint64_t id;
    enum ibv_wc_status status;
    enum ibv_wc_opcode opcode; /* of successes: errors leave it undefined */
    uint32_t imm;              /* of receives */
    uint32_t len_bytes;        /* of receives */
};

/* The next completions of a CQ are these, in this order. */
static void
expect(struct end *e, const struct expected *want, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t deadline_ns = fake_deadline_ns(10);
        struct ibv_wc wc;
        int got;

        while ((got = ops->poll_cq(e->cq, 1, &wc)) == 0)
            fake_check_deadline(deadline_ns, __FILE__, __LINE__, "a completion");
        CHECK_INT_EQ(got, 1);
        CHECK_MSG(wc.wr_id == want[i].id, "completion %u has id %llu, want %llu", i,
                  (unsigned long long)wc.wr_id, (unsigned long long)want[i].id);
        CHECK_MSG(wc.status == want[i].status, "id %llu: status %d, want %d",
                  (unsigned long long)wc.wr_id, wc.status, want[i].status);
        CHECK_INT_EQ(wc.qp_num, e->qp->qp_num);
        if (wc.status != IBV_WC_SUCCESS)
            continue;
        CHECK_INT_EQ(wc.opcode, want[i].opcode);
        if (wc.opcode != IBV_WC_RECV_RDMA_WITH_IMM)
            continue;
        CHECK_HEX_EQ(wc.wc_flags & IBV_WC_WITH_IMM, IBV_WC_WITH_IMM);
        CHECK_HEX_EQ(be32toh(wc.imm_data), want[i].imm);
        CHECK_INT_EQ(wc.byte_len, want[i].len_bytes);
    }
}

static void
expect_nothing(struct end *e)
{
    struct ibv_wc wc;

    test_sleep_ns(20 * UINT64_C(1000000));
    CHECK_INT_EQ(ops->poll_cq(e->cq, 1, &wc), 0);
}

static struct ibv_device **list;

static void
open_ends(struct end ends[2])
{
    const struct sim_config config = sim_default();
    struct rdt_error err;
    int count = 0;

    verbs_begin(&config);
    CHECK_OK(rdti_verbs_load(&ops, &err), &err);
    list = ops->get_device_list(&count);
    CHECK_NOT_NULL(list);
    CHECK_INT_GT(count, 0);
    for (int i = 0; i < 2; i++)
        open_end(&ends[i], list[0]);
    for (int i = 0; i < 2; i++)
        join(&ends[i], &ends[1 - i]);
}

static void
close_ends(struct end ends[2])
{
    for (int i = 0; i < 2; i++)
        close_end(&ends[i]);
    ops->free_device_list(list);
    verbs_end();
}

TEST(successes_complete_alike)
{
    struct end e[2];

    open_ends(e);
    memset(e[0].memory, 0x5a, CELL);
    post_receives(&e[1], 100, 4);
    const struct request requests[] = {
        {.id = 1, .opcode = IBV_WR_RDMA_WRITE, .len_bytes = CELL},
        {.id = 2,
         .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
         .len_bytes = 16,
         .imm = 0xabcd1234,
         .is_inline = true},
        {.id = 3, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm = 7, .is_signaled = true},
        {.id = 4, .opcode = IBV_WR_RDMA_READ, .len_bytes = CELL, .is_signaled = true},
        {.id = 5, .opcode = IBV_WR_RDMA_WRITE, .is_signaled = true},
        {.id = 6,
         .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
         .len_bytes = CELL,
         .imm = 9,
         .is_signaled = true},
    };
    for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++)
        post(&e[0], &e[1], &requests[i], e[1].mr);
    const struct expected sent[] = {{.id = 3, .opcode = IBV_WC_RDMA_WRITE},
                                    {.id = 4, .opcode = IBV_WC_RDMA_READ},
                                    {.id = 5, .opcode = IBV_WC_RDMA_WRITE},
                                    {.id = 6, .opcode = IBV_WC_RDMA_WRITE}};
    const struct expected came[] = {
        {.id = 100, .opcode = IBV_WC_RECV_RDMA_WITH_IMM, .imm = 0xabcd1234, .len_bytes = 16},
        {.id = 101, .opcode = IBV_WC_RECV_RDMA_WITH_IMM, .imm = 7},
        {.id = 102, .opcode = IBV_WC_RECV_RDMA_WITH_IMM, .imm = 9, .len_bytes = CELL}};
    expect(&e[0], sent, 4);
    expect(&e[1], came, 3);
    expect_nothing(&e[0]);
    expect_nothing(&e[1]);
    CHECK_MEM_EQ(e[1].memory, e[0].memory, CELL);
    close_ends(e);
}

/* A key that may not read, and what stands after it. */
TEST(a_refused_key_ends_both_qps_alike)
{
    struct end e[2];

    open_ends(e);
    post_receives(&e[1], 100, 1);
    const struct request requests[] = {
        {.id = 1, .opcode = IBV_WR_RDMA_WRITE, .len_bytes = 8},
        {.id = 2, .opcode = IBV_WR_RDMA_READ, .len_bytes = 8},
        {.id = 3, .opcode = IBV_WR_RDMA_WRITE, .len_bytes = 8},
    };
    for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++)
        post(&e[0], &e[1], &requests[i], e[1].mr_deaf);
    const struct expected sent[] = {{.id = 2, .status = IBV_WC_REM_ACCESS_ERR},
                                    {.id = 3, .status = IBV_WC_WR_FLUSH_ERR}};
    expect(&e[0], sent, 2);
    const struct expected came[] = {{.id = 100, .status = IBV_WC_WR_FLUSH_ERR}};
    expect(&e[1], came, 1);
    close_ends(e);
}

TEST(a_receiver_without_receives_ends_the_sender)
{
    const struct expected sent[] = {{.id = 1, .status = IBV_WC_RNR_RETRY_EXC_ERR},
                                    {.id = 2, .status = IBV_WC_WR_FLUSH_ERR}};
    const struct request requests[] = {
        {.id = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .len_bytes = 8},
        {.id = 2, .opcode = IBV_WR_RDMA_WRITE, .len_bytes = 8},
    };
    struct end e[2];

    open_ends(e);
    for (size_t i = 0; i < 2; i++)
        post(&e[0], &e[1], &requests[i], e[1].mr);
    expect(&e[0], sent, 2);
    expect_nothing(&e[1]);
    close_ends(e);
}

/* ERR flushes what is queued, each request once and in order, receives too. */
TEST(an_error_state_flushes_in_order)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    const struct expected want[] = {{.id = 100, .status = IBV_WC_WR_FLUSH_ERR},
                                    {.id = 101, .status = IBV_WC_WR_FLUSH_ERR},
                                    {.id = 102, .status = IBV_WC_WR_FLUSH_ERR}};
    struct end e[2];

    open_ends(e);
    post_receives(&e[0], 100, 3);
    CHECK_INT_EQ(ops->modify_qp(e[0].qp, &attr, IBV_QP_STATE), 0);
    expect(&e[0], want, 3);
    const struct request late = {.id = 5, .opcode = IBV_WR_RDMA_WRITE, .len_bytes = 8};
    post(&e[0], &e[1], &late, e[1].mr);
    const struct expected flushed[] = {{.id = 5, .status = IBV_WC_WR_FLUSH_ERR}};
    expect(&e[0], flushed, 1);
    close_ends(e);
}

TEST(a_peer_that_is_gone_ends_by_retries)
{
    const struct request request = {.id = 1, .opcode = IBV_WR_RDMA_WRITE, .len_bytes = 8};
    const struct expected sent[] = {{.id = 1, .status = IBV_WC_RETRY_EXC_ERR}};
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    struct end e[2];

    open_ends(e);
    CHECK_INT_EQ(ops->modify_qp(e[1].qp, &attr, IBV_QP_STATE), 0);
    post(&e[0], &e[1], &request, e[1].mr);
    expect(&e[0], sent, 1);
    close_ends(e);
}

/* One event for a CQ that is armed, none for one that is not, and none for what came before. */
TEST(an_armed_cq_gives_one_event)
{
    const struct request request = {.id = 1,
                                    .opcode = IBV_WR_RDMA_WRITE,
                                    .len_bytes = 8,
                                    .is_signaled = true};
    const struct expected sent[] = {{.id = 1, .opcode = IBV_WC_RDMA_WRITE},
                                    {.id = 1, .opcode = IBV_WC_RDMA_WRITE}};
    struct end e[2];
    struct ibv_cq *cq = NULL;
    void *cq_context;

    open_ends(e);
    post(&e[0], &e[1], &request, e[1].mr);
    expect(&e[0], sent, 1);
    CHECK_INT_EQ(ops->req_notify_cq(e[0].cq, 0), 0);
    post(&e[0], &e[1], &request, e[1].mr);
    post(&e[0], &e[1], &request, e[1].mr);
    CHECK_INT_EQ(ops->get_cq_event(e[0].channel, &cq, &cq_context), 0);
    CHECK_PTR_EQ(cq, e[0].cq);
    ops->ack_cq_events(cq, 1);
    expect(&e[0], sent, 2);
    close_ends(e);
}

TEST_MAIN()
