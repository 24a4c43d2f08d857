/* SPDX-License-Identifier: Apache-2.0
 * Send and receive between members, over each transport, on real contexts. */
#include "core/group_rig.h"
#include "endpoint/endpoint.h"
#include "message/mailbox_impl.h"
#include "rdmatensor_ext.h"

/* Zero, inlined, around the edges of units, of the small ring, of eager and rendezvous. */
static const uint64_t sizes[] = {0,     1,     8,     9,      63,      64,      65,     960,
                                 961,   1024,  1025,  4096,   16384,   16385,   65472,  65473,
                                 65535, 65536, 65537, 262144, 1048576, 1048577, 3000001};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))
#define LARGEST_BYTES 3000001

static void
exchange_every_size(uint32_t transport, bool is_receive_first, bool is_in_arena)
{
    struct rig rig;
    struct rdt_error err = {0};
    rdt_region *region[2] = {NULL, NULL};
    uint8_t *src = malloc(LARGEST_BYTES);
    uint8_t *dst = malloc(LARGEST_BYTES);

    rig_open(&rig, 2, transport);
    if (is_in_arena) {
        for (int i = 0; i < 2; i++)
            CHECK_OK(rdt_region_alloc(rig.ctx[i], LARGEST_BYTES, 0, &region[i], &err), &err);
        free(src);
        free(dst);
        src = rdt_region_addr(region[0]);
        dst = rdt_region_addr(region[1]);
    }
    for (size_t i = 0; i < SIZES; i++) {
        rdt_transfer *recv = NULL;
        rdt_transfer *send;
        rig_fill(src, sizes[i], i + 1);
        memset(dst, 0xa5, sizes[i]);
        if (is_receive_first)
            recv = rig_recv(&rig, 1, 0, 7, dst, LARGEST_BYTES);
        send = rig_send(&rig, 0, 1, 7, src, sizes[i]);
        if (!is_receive_first)
            recv = rig_recv(&rig, 1, 0, 7, dst, sizes[i]);
        CHECK_OK(rdt_transfer_wait(recv, rig_patience_ns(), &err), &err);
        CHECK_UINT_EQ(rdt_transfer_len_bytes(recv), sizes[i]);
        CHECK_INT_EQ(rdt_transfer_source(recv), 0);
        rdt_transfer_free(recv);
        CHECK_OK(rig_end(send, &err), &err);
        CHECK_MEM_EQ(dst, src, sizes[i]);
    }
    if (is_in_arena) {
        rdt_region_free(region[0], NULL, NULL);
        rdt_region_free(region[1], NULL, NULL);
    } else {
        free(src);
        free(dst);
    }
    rig_close(&rig);
}

TEST(every_size_over_shm_receive_first)
{
    exchange_every_size(RDT_TRANSPORT_SHM, true, false);
}

TEST(every_size_over_shm_send_first)
{
    exchange_every_size(RDT_TRANSPORT_SHM, false, false);
}

TEST(every_size_over_shm_in_the_arena)
{
    exchange_every_size(RDT_TRANSPORT_SHM, true, true);
}

TEST(every_size_over_tcp_receive_first)
{
    exchange_every_size(RDT_TRANSPORT_TCP, true, false);
}

TEST(every_size_over_tcp_send_first)
{
    exchange_every_size(RDT_TRANSPORT_TCP, false, false);
}

TEST(every_size_over_tcp_in_the_arena)
{
    exchange_every_size(RDT_TRANSPORT_TCP, true, true);
}

TEST(every_size_over_verbs_receive_first)
{
    exchange_every_size(RDT_TRANSPORT_VERBS, true, false);
}

TEST(every_size_over_verbs_send_first)
{
    exchange_every_size(RDT_TRANSPORT_VERBS, false, false);
}

TEST(every_size_over_verbs_in_the_arena)
{
    exchange_every_size(RDT_TRANSPORT_VERBS, true, true);
}

/* Where the kernel lets nobody read a process, and nothing lies in the arena. */
TEST(every_size_through_the_bounce_buffer)
{
    struct rig rig;
    struct rdt_error err = {0};
    uint8_t *src = malloc(LARGEST_BYTES);
    uint8_t *dst = malloc(2 * LARGEST_BYTES);

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    rdti_mailbox_of(rig_ready(rig.group[1], 0))->process_reach = RDTI_REACH_NO;
    for (size_t i = 0; i < SIZES; i++) {
        rdt_transfer *recv[2];
        rdt_transfer *send[2];
        rig_fill(src, sizes[i], i + 1);
        memset(dst, 0xa5, 2 * LARGEST_BYTES);
        for (int k = 0; k < 2; k++) /* two at once: one has to wait for the buffer */
            recv[k] = rig_recv(&rig, 1, 0, 7, dst + k * LARGEST_BYTES, LARGEST_BYTES);
        for (int k = 0; k < 2; k++)
            send[k] = rig_send(&rig, 0, 1, 7, src, sizes[i]);
        for (int k = 0; k < 2; k++) {
            CHECK_OK(rig_end(recv[k], &err), &err);
            CHECK_OK(rig_end(send[k], &err), &err);
            CHECK_MEM_EQ(dst + k * LARGEST_BYTES, src, sizes[i]);
        }
    }
    rig_close(&rig);
    free(src);
    free(dst);
}

/* ---- Self-send, any source ---------------------------------------------------------------- */

TEST(self_send_in_both_orders)
{
    struct rig rig;
    struct rdt_error err = {0};
    uint8_t src[100];
    uint8_t dst[100] = {0};

    rig_open(&rig, 1, RDT_TRANSPORT_SHM);
    for (int is_receive_first = 0; is_receive_first < 2; is_receive_first++) {
        rdt_transfer *recv = NULL;
        rig_fill(src, sizeof(src), (uint64_t)is_receive_first);
        if (is_receive_first)
            recv = rig_recv(&rig, 0, RDT_SOURCE_ANY, 3, dst, sizeof(dst));
        rdt_transfer *send = rig_send(&rig, 0, 0, 3, src, sizeof(src));
        if (!is_receive_first) {
            CHECK_STATUS(rdt_transfer_test(send, NULL), RDT_EAGAIN);
            recv = rig_recv(&rig, 0, 0, 3, dst, sizeof(dst));
        }
        CHECK_INT_EQ(rdt_transfer_source(recv), 0);
        CHECK_OK(rig_end(recv, &err), &err);
        CHECK_OK(rig_end(send, &err), &err);
        CHECK_MEM_EQ(dst, src, sizeof(src));
    }
    rdt_transfer *recv = rig_recv(&rig, 0, 0, 3, dst, 99);
    rdt_transfer *send = rig_send(&rig, 0, 0, 3, src, 100);
    CHECK_STATUS(rig_end(recv, &err), RDT_EMISMATCH);
    CHECK_STATUS(rig_end(send, &err), RDT_EMISMATCH);
    rig_close(&rig);
}

TEST(any_source_takes_the_first_posted)
{
    struct rig rig;
    struct rdt_error err = {0};
    uint32_t got[3] = {0};
    const uint32_t one = 1;
    const uint32_t two = 2;

    rig_open(&rig, 3, RDT_TRANSPORT_SHM);
    rdt_transfer *any = rig_recv(&rig, 0, RDT_SOURCE_ANY, 1, &got[0], 4);
    rdt_transfer *from1 = rig_recv(&rig, 0, 1, 1, &got[1], 4);
    rdt_transfer *last = rig_recv(&rig, 0, RDT_SOURCE_ANY, 1, &got[2], 4);
    CHECK_OK(rig_end(rig_send(&rig, 1, 0, 1, &one, 4), &err), &err);
    CHECK_OK(rdt_transfer_wait(any, rig_patience_ns(), &err), &err);
    CHECK_OK(rig_end(rig_send(&rig, 2, 0, 1, &two, 4), &err), &err);
    CHECK_OK(rdt_transfer_wait(last, rig_patience_ns(), &err), &err);
    CHECK_STATUS(rdt_transfer_test(from1, NULL), RDT_EAGAIN);
    CHECK_OK(rig_end(rig_send(&rig, 1, 0, 1, &one, 4), &err), &err);
    CHECK_OK(rdt_transfer_wait(from1, rig_patience_ns(), &err), &err);
    CHECK_INT_EQ(rdt_transfer_source(any), 1);
    CHECK_INT_EQ(rdt_transfer_source(last), 2);
    CHECK_UINT_EQ(got[0], 1);
    CHECK_UINT_EQ(got[1], 1);
    CHECK_UINT_EQ(got[2], 2);
    rdt_transfer_free(any);
    rdt_transfer_free(from1);
    rdt_transfer_free(last);
    rig_close(&rig);
}

/* ---- Disagreement ------------------------------------------------------------------------- */

static void
send_too_much(uint64_t len_bytes, rdt_status sender_sees)
{
    struct rig rig;
    struct rdt_error err = {0};
    uint8_t *src = calloc(1, len_bytes);
    uint8_t *dst = calloc(1, len_bytes);

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    for (int is_receive_first = 0; is_receive_first < 2; is_receive_first++) {
        rdt_transfer *recv = NULL;
        if (is_receive_first)
            recv = rig_recv(&rig, 1, 0, 9, dst, len_bytes - 1);
        rdt_transfer *send = rig_send(&rig, 0, 1, 9, src, len_bytes);
        if (!is_receive_first)
            recv = rig_recv(&rig, 1, 0, 9, dst, len_bytes - 1);
        CHECK_STATUS(rig_end(recv, &err), RDT_EMISMATCH);
        CHECK_STR_CONTAINS(err.message, "rank 0 sent");
        CHECK_STR_CONTAINS(err.message, "the receive of rank 1 has room for");
        CHECK_INT_EQ(err.peer_rank, 0);
        CHECK_STATUS(rig_end(send, &err), sender_sees);
        /* The message is gone, the next one is received. */
        recv = rig_recv(&rig, 1, 0, 9, dst, len_bytes);
        send = rig_send(&rig, 0, 1, 9, src, len_bytes);
        CHECK_OK(rig_end(recv, &err), &err);
        CHECK_OK(rig_end(send, &err), &err);
    }
    free(src);
    free(dst);
    rig_close(&rig);
}

TEST(a_message_that_is_too_long_when_eager)
{
    send_too_much(100, RDT_OK);
}

TEST(a_message_that_is_too_long_by_rendezvous)
{
    send_too_much(1 << 20, RDT_EMISMATCH);
}

TEST(ranks_that_call_other_collectives_learn_how)
{
    struct rig rig;
    struct rdt_error err = {0};
    const struct rdt_message_desc theirs = {.op = RDT_COLL_BROADCAST,
                                            .dtype = RDT_F32,
                                            .count = 4,
                                            .sequence = 7};
    const struct rdt_message_desc ours = {.op = RDT_COLL_ALLREDUCE,
                                          .dtype = RDT_F32,
                                          .reduce_op = RDT_SUM,
                                          .count = 4,
                                          .sequence = 7};
    float data[4] = {0};
    rdt_transfer *recv;

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    CHECK_OK(rdt_group_recv(rig.group[0], 1, 5, data, 16, &ours, &recv, &err), &err);
    CHECK_OK(rdt_group_send(rig.group[1], 0, 5, data, 16, &theirs, NULL, &err), &err);
    CHECK_STATUS(rig_end(recv, &err), RDT_EMISMATCH);
    CHECK_STR_EQ(err.message, "rank 1 called broadcast of 4 float32 from root 0 as collective #7, "
                              "rank 0 (this one) all_reduce (sum) of 4 float32");
    /* Against a plain message a description says nothing. */
    CHECK_OK(rdt_group_recv(rig.group[0], 1, 5, data, 16, NULL, &recv, &err), &err);
    CHECK_OK(rdt_group_send(rig.group[1], 0, 5, data, 16, &theirs, NULL, &err), &err);
    CHECK_OK(rig_end(recv, &err), &err);
    rig_close(&rig);
}

/* ---- Much at once -------------------------------------------------------------------------- */

struct flood {
    uint32_t count;
    uint64_t len_bytes;
    uint8_t *src;
    uint8_t *dst;
    rdt_transfer **send;
    rdt_transfer **recv;
};

static void
flood_make(struct flood *flood, uint32_t count, uint64_t len_bytes)
{
    *flood = (struct flood){.count = count, .len_bytes = len_bytes};
    flood->src = malloc(len_bytes * count);
    flood->dst = calloc(count, len_bytes);
    flood->send = calloc(count, sizeof(*flood->send));
    flood->recv = calloc(count, sizeof(*flood->recv));
    rig_fill(flood->src, len_bytes * count, len_bytes);
}

static void
flood_send(struct flood *flood, struct rig *rig, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < flood->count; i++)
        flood->send[i] =
            rig_send(rig, from, to, 1, flood->src + i * flood->len_bytes, flood->len_bytes);
}

static void
flood_receive(struct flood *flood, struct rig *rig, uint32_t at, uint32_t from)
{
    for (uint32_t i = 0; i < flood->count; i++)
        flood->recv[i] =
            rig_recv(rig, at, from, 1, flood->dst + i * flood->len_bytes, flood->len_bytes);
}

static void
flood_end(struct flood *flood)
{
    struct rdt_error err = {0};

    for (uint32_t i = 0; i < flood->count; i++) {
        CHECK_OK(rig_end(flood->recv[i], &err), &err);
        CHECK_OK(rig_end(flood->send[i], &err), &err);
    }
    CHECK_MEM_EQ(flood->dst, flood->src, flood->len_bytes * flood->count);
    free(flood->src);
    free(flood->dst);
    free(flood->send);
    free(flood->recv);
}

static bool
flood_is_out(const struct flood *flood, rdt_context *ctx)
{
    struct rdt_counters counters = {.struct_size = sizeof(counters)};

    rdt_context_counters(ctx, &counters);
    return counters.mailbox_eager + counters.mailbox_rendezvous == flood->count;
}

/* Nobody receives until all is sent, in both directions at once: rings and budgets fill on both
 * sides. */
static void
flood_both_ways(uint32_t transport, uint32_t count, uint64_t len_bytes)
{
    struct rig rig;
    struct flood there;
    struct flood back;

    rig_open(&rig, 2, transport);
    flood_make(&there, count, len_bytes);
    flood_make(&back, count, len_bytes);
    flood_send(&there, &rig, 0, 1);
    flood_send(&back, &rig, 1, 0);
    CHECK_EVENTUALLY(flood_is_out(&there, rig.ctx[0]) && flood_is_out(&back, rig.ctx[1]), 15);
    flood_receive(&there, &rig, 1, 0);
    flood_receive(&back, &rig, 0, 1);
    flood_end(&there);
    flood_end(&back);
    rig_close(&rig);
}

TEST_TIMEOUT(hundred_thousand_small_messages_wait_over_shm, 60)
{
    flood_both_ways(RDT_TRANSPORT_SHM, 100000 / TEST_TSAN_SHARE, 8);
}

TEST_TIMEOUT(many_small_messages_wait_over_tcp, 60)
{
    flood_both_ways(RDT_TRANSPORT_TCP, 20000, 8);
}

TEST_TIMEOUT(many_small_messages_wait_over_verbs, 60)
{
    flood_both_ways(RDT_TRANSPORT_VERBS, 20000, 8);
}

TEST_TIMEOUT(more_than_the_budget_waits_over_shm, 60)
{
    flood_both_ways(RDT_TRANSPORT_SHM, 3000, 16000);
}

TEST_TIMEOUT(more_than_the_budget_waits_over_tcp, 60)
{
    flood_both_ways(RDT_TRANSPORT_TCP, 3000, 16000);
}

TEST_TIMEOUT(hundred_thousand_receives_wait, 60)
{
    struct rig rig;
    struct flood flood;

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    flood_make(&flood, 100000 / TEST_TSAN_SHARE, 24);
    flood_receive(&flood, &rig, 1, 0);
    flood_send(&flood, &rig, 0, 1);
    flood_end(&flood);
    rig_close(&rig);
}

/* ---- Handles ------------------------------------------------------------------------------- */

TEST(a_receive_that_is_given_up_takes_nothing)
{
    struct rig rig;
    struct rdt_error err = {0};
    uint64_t lost = 0;
    uint64_t got = 0;
    const uint64_t value = 42;

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    rdt_transfer_free(rig_recv(&rig, 1, 0, 4, &lost, 8));
    rdt_transfer *recv = rig_recv(&rig, 1, 0, 4, &got, 8);
    CHECK_OK(rig_end(rig_send(&rig, 0, 1, 4, &value, 8), &err), &err);
    CHECK_OK(rig_end(recv, &err), &err);
    CHECK_UINT_EQ(got, 42);
    CHECK_UINT_EQ(lost, 0);
    rig_close(&rig);
}

static rdt_status
send_from_task(void *arg)
{
    struct rig *rig = arg;
    static const uint32_t value = 5;
    struct rdt_error err = {0};
    const rdt_status status = rdt_group_send(rig->group[0], 1, 2, &value, 4, NULL, NULL, &err);

    if (status == RDT_EAGAIN)
        CHECK_STR_CONTAINS(err.message, "rank 1 is not open");
    return status;
}

TEST(a_task_does_not_wait_for_an_address)
{
    struct rig rig;
    struct rdt_error err = {0};
    uint32_t got = 0;
    rdt_endpoint *ep;

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    CHECK_OK(rdt_context_add_task(rig.ctx[0], send_from_task, &rig, &err), &err);
    rdt_transfer *recv = rig_recv(&rig, 1, RDT_SOURCE_ANY, 2, &got, 4);
    CHECK_STATUS(rdt_context_progress(rig.ctx[0]), RDT_OK);
    CHECK_OK(rdt_group_endpoint(rig.group[0], 1, &ep, &err), &err);
    CHECK_OK(rig_end(recv, &err), &err);
    CHECK_UINT_EQ(got, 5);
    rig_close(&rig);
}

TEST_MAIN()
