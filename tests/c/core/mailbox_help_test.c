/* SPDX-License-Identifier: Apache-2.0
 * The sender of a large message that its receiver reads: where it helps, where it does not,
 * that nobody waits for it, and that nobody is believed. */
#include <pthread.h>
#include <unistd.h>

#include "core/prey_rig.h"

#define MIB (UINT64_C(1) << 20)

static const uint64_t sizes[] = {MIB, MIB + 1, 3 * MIB - 8, 8 * MIB + 13, 33 * MIB};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))
#define LARGEST (33 * MIB)

static uint64_t
moved(rdt_context *ctx)
{
    struct rdt_counters counters = {.struct_size = sizeof(counters)};

    rdt_context_counters(ctx, &counters);
    return counters.moved_bytes;
}

struct waiter {
    rdt_transfer *transfer;
    rdt_status status;
    struct rdt_error error;
};

static void *
wait_for(void *arg)
{
    struct waiter *waiter = arg;

    waiter->status = rdt_transfer_wait(waiter->transfer, rig_patience_ns(), &waiter->error);
    return NULL;
}

/* A thread of its own waits for the transfer from when this returns. */
static pthread_t
wait_apart(rdt_context *ctx, struct waiter *waiter, rdt_transfer *transfer)
{
    const uint64_t deadline_ns = test_now_ns() + rig_patience_ns();
    pthread_t thread;

    waiter->transfer = transfer;
    CHECK(pthread_create(&thread, NULL, wait_for, waiter) == 0);
    while (!rdti_engine_is_attended(ctx->engine) && test_now_ns() < deadline_ns)
        test_sleep_ns(100000);
    return thread;
}

struct buffers {
    uint8_t *src;
    uint8_t *dst;
};

static struct buffers
make_buffers(void)
{
    const struct buffers buffers = {malloc(LARGEST), malloc(LARGEST + 1)};

    CHECK_NOT_NULL(buffers.src);
    CHECK_NOT_NULL(buffers.dst);
    return buffers;
}

static void
free_buffers(const struct buffers *buffers)
{
    free(buffers->src);
    free(buffers->dst);
}

/* Here, or in the thread that drives already. */
static void
pass(rdt_context *ctx)
{
    const rdt_status status = rdt_context_progress(ctx);

    CHECK(status == RDT_OK || status == RDT_EAGAIN);
}

static struct rdti_mailbox *
mailbox(rdt_group *group, uint32_t rank)
{
    return rdti_endpoint_mailbox(rig_ready(group, rank));
}

/* Until the sender has the desk before it. */
static void
warm_up(struct rig *rig, const struct buffers *buffers)
{
    const uint64_t deadline_ns = test_now_ns() + rig_patience_ns();
    struct rdti_mailbox *m = mailbox(rig->group[0], 1);
    struct rdt_error err = {0};
    bool is_near = false;

    rdt_transfer *send = rig_send(rig, 0, 1, 7, buffers->src, 2 * MIB);
    CHECK_OK(rig_end(rig_recv(rig, 1, 0, 7, buffers->dst, 2 * MIB), &err), &err);
    CHECK_OK(rig_end(send, &err), &err);
    while (!is_near && test_now_ns() < deadline_ns) {
        pass(rig->ctx[0]);
        rdti_engine_enter(rig->ctx[0]->engine);
        is_near = m->peer_desk.len_bytes > 0 && rdti_endpoint_writes_at_once(m->ep, &m->peer_desk);
        rdti_engine_leave(rig->ctx[0]->engine);
    }
    CHECK(is_near);
    rdti_engine_enter(rig->ctx[1]->engine);
    mailbox(rig->group[1], 0)->help_pause = 0;
    mailbox(rig->group[1], 0)->help_refusals = 0;
    rdti_engine_leave(rig->ctx[1]->engine);
}

static void
open_rig(struct rig *rig, const struct buffers *buffers)
{
    rig_open(rig, 2, RDT_TRANSPORT_SHM);
    (void)mailbox(rig->group[0], 1);
    (void)mailbox(rig->group[1], 0);
    /* Processes that count as few as the cores: the machine of the test may have fewer. */
    for (int i = 0; i < 2; i++)
        rdti_engine_set_local_ranks(rig->ctx[i]->engine, 1);
    memset(buffers->src, 1, 2 * MIB);
    warm_up(rig, buffers);
}

TEST(a_sender_that_waits_writes_a_part_itself)
{
    struct buffers buffers = make_buffers();
    struct rdt_error err = {0};
    struct rig rig;

    open_rig(&rig, &buffers);
    for (size_t i = 0; i < SIZES; i++) {
        const uint64_t before = moved(rig.ctx[0]);
        struct waiter waiter;
        rig_fill(buffers.src, sizes[i], i + 1);
        memset(buffers.dst, 0xa5, LARGEST + 1);
        const pthread_t thread =
            wait_apart(rig.ctx[0], &waiter, rig_send(&rig, 0, 1, 7, buffers.src, sizes[i]));
        CHECK_OK(rig_end(rig_recv(&rig, 1, 0, 7, buffers.dst + 1, sizes[i]), &err), &err);
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK_OK(waiter.status, &waiter.error);
        rdt_transfer_free(waiter.transfer);
        CHECK_MEM_EQ(buffers.dst + 1, buffers.src, sizes[i]);
        CHECK_UINT_EQ(buffers.dst[0], 0xa5);
        const uint64_t helped = moved(rig.ctx[0]) - before;
        CHECK(helped >= RDTI_SHARE_BYTES);
    }
    rig_close(&rig);
    free_buffers(&buffers);
}

TEST(a_sender_that_does_not_wait_leaves_it_to_the_receiver)
{
    struct buffers buffers = make_buffers();
    struct rdt_error err = {0};
    struct rig rig;

    open_rig(&rig, &buffers);
    for (size_t i = 0; i < SIZES; i++) {
        const uint64_t before = moved(rig.ctx[0]);
        rig_fill(buffers.src, sizes[i], i + 1);
        memset(buffers.dst, 0xa5, LARGEST);
        mailbox(rig.group[1], 0)->help_pause = 0;
        rdt_transfer *send = rig_send(&rig, 0, 1, 7, buffers.src, sizes[i]);
        CHECK_OK(rig_end(rig_recv(&rig, 1, 0, 7, buffers.dst, sizes[i]), &err), &err);
        const uint64_t helped = moved(rig.ctx[0]) - before;
        CHECK_OK(rig_end(send, &err), &err);
        CHECK_MEM_EQ(buffers.dst, buffers.src, sizes[i]);
        CHECK(helped < 4096);
    }
    rig_close(&rig);
    free_buffers(&buffers);
}

TEST(a_sender_that_refuses_is_not_asked_each_time)
{
    struct buffers buffers = make_buffers();
    const uint64_t deadline_ns = test_now_ns() + rig_patience_ns();
    struct rdt_error err = {0};
    struct rig rig;
    uint32_t paused = 0;

    open_rig(&rig, &buffers);
    struct rdti_mailbox *m = mailbox(rig.group[1], 0);
    rig_fill(buffers.src, LARGEST, 1);
    /* Where its refusals come too late the receiver has read all meanwhile. */
    while (paused < 7 && test_now_ns() < deadline_ns) {
        rdt_transfer *send = rig_send(&rig, 0, 1, 7, buffers.src, 8 * MIB);
        CHECK_OK(rig_end(rig_recv(&rig, 1, 0, 7, buffers.dst, 8 * MIB), &err), &err);
        CHECK_OK(rig_end(send, &err), &err);
        paused = m->help_pause;
    }
    CHECK_UINT_EQ(paused, 7);
    while (paused-- > 0) {
        struct rdt_counters before = {.struct_size = sizeof(before)};
        struct rdt_counters after = {.struct_size = sizeof(after)};
        rdt_context_counters(rig.ctx[1], &before);
        rdt_transfer *send = rig_send(&rig, 0, 1, 7, buffers.src, 8 * MIB);
        CHECK_OK(rig_end(rig_recv(&rig, 1, 0, 7, buffers.dst, 8 * MIB), &err), &err);
        CHECK_OK(rig_end(send, &err), &err);
        rdt_context_counters(rig.ctx[1], &after);
        CHECK_UINT_EQ(after.control_messages, before.control_messages);
        CHECK_UINT_EQ(m->help_pause, paused);
    }
    rig_close(&rig);
    free_buffers(&buffers);
}

TEST(several_messages_at_once_are_helped_in_turn)
{
    struct buffers buffers = make_buffers();
    struct rdt_error err = {0};
    struct waiter waiter;
    rdt_transfer *recv[4];
    rdt_transfer *send[4];
    struct rig rig;

    open_rig(&rig, &buffers);
    rig_fill(buffers.src, LARGEST, 3);
    memset(buffers.dst, 0, LARGEST);
    for (uint32_t i = 0; i < 4; i++)
        send[i] = rig_send(&rig, 0, 1, i, buffers.src + i * 8 * MIB, 8 * MIB);
    const pthread_t thread = wait_apart(rig.ctx[0], &waiter, send[3]);
    const uint64_t before = moved(rig.ctx[0]);
    for (uint32_t i = 0; i < 4; i++)
        recv[i] = rig_recv(&rig, 1, 0, i, buffers.dst + i * 8 * MIB, 8 * MIB);
    for (uint32_t i = 0; i < 4; i++)
        CHECK_OK(rig_end(recv[i], &err), &err);
    CHECK(pthread_join(thread, NULL) == 0);
    for (uint32_t i = 0; i < 4; i++)
        CHECK_OK(rig_end(send[i], &err), &err);
    CHECK_MEM_EQ(buffers.dst, buffers.src, 32 * MIB);
    CHECK(moved(rig.ctx[0]) - before >= RDTI_SHARE_BYTES);
    rig_close(&rig);
    free_buffers(&buffers);
}

TEST(nobody_waits_for_a_sender_that_was_asked_and_does_nothing)
{
    struct buffers buffers = make_buffers();
    struct rdt_error err = {0};
    struct rig rig;

    open_rig(&rig, &buffers);
    struct rdti_mailbox *m = mailbox(rig.group[1], 0);
    rig_fill(buffers.src, LARGEST, 5);
    for (uint32_t turn = 0; turn < 3; turn++) {
        uint8_t *src = buffers.src + turn * 9 * MIB;
        struct waiter waiter;
        memset(buffers.dst, 0xa5, LARGEST);
        rdt_transfer *send[] = {rig_send(&rig, 0, 1, 7, src, 8 * MIB),
                                rig_send(&rig, 0, 1, 8, src + MIB, 8 * MIB)};
        const pthread_t thread = wait_apart(rig.ctx[0], &waiter, send[1]);
        rdti_engine_enter(rig.ctx[0]->engine);
        CHECK_OK(rig_end(rig_recv(&rig, 1, 0, 7, buffers.dst, 8 * MIB), &err), &err);
        CHECK_MEM_EQ(buffers.dst, src, 8 * MIB);
        memset(buffers.dst, 0x5a, 8 * MIB);
        if (turn == 0)
            CHECK_INT_EQ(m->shares[0].state, RDTI_SHARE_BUSY);
        rdt_transfer *recv = rig_recv(&rig, 1, 0, 8, buffers.dst + 8 * MIB, 8 * MIB);
        rdti_engine_leave(rig.ctx[0]->engine); /* what it was asked for is written now */
        CHECK_OK(rig_end(recv, &err), &err);
        CHECK_MEM_EQ(buffers.dst + 8 * MIB, src + MIB, 8 * MIB);
        for (uint64_t i = 0; i < 8 * MIB; i++)
            CHECK_UINT_EQ(buffers.dst[i], 0x5a);
        CHECK(pthread_join(thread, NULL) == 0);
        for (int i = 0; i < 2; i++)
            CHECK_OK(rig_end(send[i], &err), &err);
        m->help_pause = 0;
    }
    rig_close(&rig);
    free_buffers(&buffers);
}

static void *
wait_and_leave(void *arg)
{
    struct waiter *waiter = arg;

    (void)wait_for(waiter);
    rdt_transfer_free(waiter->transfer);
    return NULL;
}

/* At every stage of the copying; the memory of both is given back at once. */
TEST_TIMEOUT(groups_that_break_at_any_time, 60)
{
    for (uint32_t turn = 0; turn < 20; turn++) {
        struct buffers buffers = make_buffers();
        struct rdt_error err = {0};
        struct waiter waiter;
        struct rig rig;
        pthread_t thread;

        open_rig(&rig, &buffers);
        rig_fill(buffers.src, LARGEST, turn);
        waiter.transfer = rig_send(&rig, 0, 1, 7, buffers.src, LARGEST);
        CHECK(pthread_create(&thread, NULL, wait_and_leave, &waiter) == 0);
        rdt_transfer *recv = rig_recv(&rig, 1, 0, 7, buffers.dst, LARGEST);
        const uint64_t until_ns = test_now_ns() + turn * UINT64_C(450000);
        while (test_now_ns() < until_ns)
            pass(rig.ctx[1]);
        rdt_group_abort(rig.group[turn % 2], "the test wants it");
        const rdt_status status = rig_end(recv, &err);
        if (status == RDT_OK)
            CHECK_MEM_EQ(buffers.dst, buffers.src, LARGEST);
        free(buffers.dst);
        CHECK(pthread_join(thread, NULL) == 0);
        free(buffers.src);
        rig_close(&rig);
    }
}

TEST(lies_about_shares)
{
    struct prey prey;
    struct rdti_message head;
    struct rdt_remote_region desk;
    uint8_t body[RDT_REMOTE_REGION_BYTES];
    struct rdt_error err = {0};
    rdt_region *region;

    prey_make(&prey);
    head = plain(&prey, RDTI_MESSAGE_SHARE);
    head.len_bytes = 1;
    REFUSED(&head, NULL, 0, "has no desk for it");
    CHECK_OK(rdt_region_alloc(prey.rig.ctx[1], RDTI_SHARES * RDTI_SHARE_BYTES, 0, &region, &err),
             &err);
    CHECK_OK(rdt_region_export(region, &desk, &err), &err);
    head = plain(&prey, RDTI_MESSAGE_DESK);
    memset(body, 0xff, sizeof(body));
    REFUSED(&head, body, sizeof(body), "in bytes that are none");
    desk.owner[0] ^= 1;
    rdt_remote_region_encode(&desk, body);
    REFUSED(&head, body, sizeof(body), "not its own");
    desk.owner[0] ^= 1;
    rdt_remote_region_encode(&desk, body);
    IGNORED(&head, body, sizeof(body));
    REFUSED(&head, body, sizeof(body), "a second desk");

    head = plain(&prey, RDTI_MESSAGE_SHARE);
    head.len_bytes = RDTI_SHARE_BYTES;
    head.tag = RDTI_SHARES * RDTI_SHARE_BYTES;
    REFUSED(&head, NULL, 0, "has no desk for it");
    head.tag = 64;
    REFUSED(&head, NULL, 0, "has no desk for it");
    head.tag = UINT64_MAX;
    REFUSED(&head, NULL, 0, "has no desk for it");
    head.tag = 0;
    head.id = 12345;
    IGNORED(&head, NULL, 0); /* of a message that is over: the answer is no */
    head.id = 0;             /* what the rig has offered */
    head.count = LARGE_BYTES - RDTI_SHARE_BYTES + 1;
    REFUSED(&head, NULL, 0, "that it may not ask for");
    head.count = UINT64_MAX;
    REFUSED(&head, NULL, 0, "that it may not ask for");
    head.count = 0;
    head.len_bytes = RDTI_SHARE_BYTES + 1;
    REFUSED(&head, NULL, 0, "has no desk for it");
    head.len_bytes = RDTI_SHARE_BYTES;
    for (uint32_t i = 0; i < LARGE_BYTES / RDTI_SHARE_BYTES; i++)
        IGNORED(&head, NULL, 0);
    REFUSED(&head, NULL, 0, "that it may not ask for"); /* more than all of it */
    prey_free_and(&prey, NULL, 0, region);
}

TEST(answers_for_shares_that_are_lies)
{
    struct prey prey;
    struct rdti_message head;

    prey_make(&prey);
    head = plain(&prey, RDTI_MESSAGE_SHARED);
    REFUSED(&head, NULL, 0, "was not asked for");
    for (uint64_t tag = 1; tag != 0; tag <<= 1) {
        head.tag = tag;
        REFUSED(&head, NULL, 0, "was not asked for");
    }
    prey.m->shares[1] = (struct rdti_share){.state = RDTI_SHARE_BUSY,
                                            .id = 7,
                                            .off_bytes = 8,
                                            .len_bytes = RDTI_SHARE_BYTES};
    head.tag = RDTI_SHARE_BYTES;
    head.id = 8;
    head.count = 8;
    REFUSED(&head, NULL, 0, "was not asked for");
    head.id = 7;
    head.count = 9;
    REFUSED(&head, NULL, 0, "was not asked for");
    head.count = 8;
    head.len_bytes = RDTI_SHARE_BYTES - 1;
    REFUSED(&head, NULL, 0, "was not asked for");
    head.len_bytes = RDTI_SHARE_BYTES;
    IGNORED(&head, NULL, 0); /* the message is over: only the slot is free again */
    CHECK_INT_EQ(prey.m->shares[1].state, RDTI_SHARE_FREE);
    REFUSED(&head, NULL, 0, "was not asked for");
    prey_free(&prey);
}

TEST_MAIN()
