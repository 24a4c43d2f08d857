/* SPDX-License-Identifier: Apache-2.0
 * A device says that a lane broke, and how; the side channel says a moment later why: a process
 * that dies takes its memory from its device first. What was in flight, and what comes in between,
 * ends with that verdict; where nobody says anything, with what the device said. */
#include <string.h>
#include <sys/socket.h>

#include "group_rig.h"
#include "process/process.h"
#include "progress/engine_impl.h"

enum { BYTES = 4096, WRITES = 3 };

static struct rig rig;
static struct rdt_remote_region remote; /* of rank 1 */
static rdt_endpoint *ep;                /* rank 0's */
static rdt_transfer *writes[WRITES];

/* As if the process of rank 1 was over: the kernel ends its sockets. Both ranks are in this one,
 * and rank 1 stands still, so that rank 0 hears of its end and of nothing else. */
static void
end_sockets(void)
{
    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_storage addr;
        socklen_t addr_bytes = sizeof(addr);

        if (getpeername(fd, (struct sockaddr *)&addr, &addr_bytes) == 0 &&
            (addr.ss_family == AF_INET || addr.ss_family == AF_INET6))
            (void)shutdown(fd, SHUT_RDWR);
    }
}

static rdt_transfer *
begin_write(void)
{
    static const uint8_t bytes[BYTES];
    struct rdt_error err = {0};
    rdt_transfer *t = NULL;

    CHECK_OK(rdt_endpoint_write(ep, bytes, BYTES, &remote, 0, RDT_NOTIFY_NONE, &t, &err), &err);
    return t;
}

/* Rank 0's device refuses a write, and nobody says why. */
static void
break_lane(void)
{
    const uint64_t before = sim_executed();
    const uint64_t deadline_ns = test_now_ns() + rig_patience_ns();

    sim_break_next(IBV_WC_REM_ACCESS_ERR);
    writes[0] = begin_write();
    while (sim_executed() == before && test_now_ns() < deadline_ns)
        test_sleep_ns(100000);
    CHECK_UINT_GE(sim_executed(), before + 1);
    (void)rdti_engine_pass(rig.ctx[0]->engine, false);
    CHECK_STATUS(rdt_transfer_test(writes[0], NULL), RDT_EAGAIN); /* not by that alone */
}

/* `dies`: the side channel ends behind the break, before rank 0 looks again. */
static void
check_end(bool dies, rdt_status wanted, const char *words)
{
    struct rdt_error err = {0};
    rdt_region *region = NULL;

    rig_open(&rig, 2, RDT_TRANSPORT_VERBS);
    ep = rig_ready(rig.group[0], 1);
    (void)rig_ready(rig.group[1], 0);
    CHECK_OK(rdt_region_alloc(rig.ctx[1], BYTES, RDT_REGION_ZERO, &region, &err), &err);
    CHECK_OK(rdt_region_export(region, &remote, &err), &err);
    CHECK_OK(rig_end(begin_write(), &err), &err);
    for (uint32_t i = 0; i < 2; i++)
        rdti_engine_enter(rig.ctx[i]->engine);
    break_lane();
    for (uint32_t i = 1; i < WRITES; i++)
        writes[i] = begin_write(); /* in between: none is refused */
    if (dies)
        end_sockets();
    rdti_engine_leave(rig.ctx[0]->engine);
    for (uint32_t i = 0; i < WRITES; i++) {
        CHECK_STATUS(rig_end(writes[i], &err), wanted);
        CHECK_INT_EQ(err.peer_rank, 1);
        CHECK_STR_CONTAINS(err.message, words);
    }
    rdti_engine_leave(rig.ctx[1]->engine);
    rdt_region_free(region, NULL, NULL);
    rig_close(&rig);
}

TEST_TIMEOUT(a_death_that_is_heard_behind_the_break_is_the_reason, 60)
{
    check_end(true, RDT_EPEER, "died");
}

TEST_TIMEOUT(a_break_of_which_nobody_says_more_is_the_reason_itself, 60)
{
    check_end(false, RDT_EDEVICE, "remote access error");
}

/* Nothing is on the wire, and rank 1 posts nothing: rank 0's next request is the one to break. */
static void
hold_rank_1(void)
{
    const uint64_t deadline_ns = test_now_ns() + rig_patience_ns();

    rdti_engine_enter(rig.ctx[1]->engine);
    while (sim_executed() != sim_counts().requests && test_now_ns() < deadline_ns)
        test_sleep_ns(100000);
    CHECK_UINT_EQ(sim_executed(), sim_counts().requests);
}

/* The lane knows its device and no tensor; whoever waits for one hears of both. */
static void
check_slot_is_named(uint32_t kind)
{
    static const char *const words[] = {
        "slot 'acts': verbs lane to rank 1: a write on sim0 port 1, ",
        "::ffff:10.0.0.1 to ::ffff:10.0.0.1",
        "ended with \"remote access error\" (status 10, vendor code 0x51)", "refused the key"};
    static const float tensor[16];
    const struct rdt_tensor_desc desc = {
        .struct_size = sizeof(desc), .kind = kind, .dtype = RDT_F32, .ndim = 2, .dims = {4, 4}};
    struct rdt_error err[2] = {{0}};
    rdt_transfer *put = NULL;
    rdt_region *region = NULL;
    rdt_slot *slot = NULL;
    rdt_slot_tx *tx = NULL;

    rig_open(&rig, 2, RDT_TRANSPORT_VERBS);
    ep = rig_ready(rig.group[0], 1);
    CHECK_OK(rdt_region_alloc(rig.ctx[1], BYTES, 0, &region, err), err);
    CHECK_OK(rdt_region_export(region, &remote, err), err);
    CHECK_OK(rdt_slot_create(rig_ready(rig.group[1], 0), "acts", &desc, &slot, err), err);
    CHECK_OK(rdt_slot_tx_open(ep, "acts", &desc, rig_patience_ns(), &tx, err), err);
    CHECK_OK(rig_end(begin_write(), err), err); /* rank 1's key is here */
    hold_rank_1();
    sim_break_next(IBV_WC_REM_ACCESS_ERR);
    CHECK_OK(rdt_slot_tx_put(tx, tensor, desc.dims, rig_patience_ns(), &put, err), err);
    CHECK_STATUS(rig_end(put, &err[0]), RDT_EDEVICE);
    rdti_engine_leave(rig.ctx[1]->engine);
    CHECK_STATUS(rdt_slot_tx_put(tx, tensor, desc.dims, rig_patience_ns(), &put, &err[1]),
                 RDT_EDEVICE); /* as every later call */
    for (uint32_t i = 0; i < 2; i++) {
        CHECK_INT_EQ(err[i].peer_rank, 1);
        for (uint32_t w = 0; w < sizeof(words) / sizeof(words[0]); w++)
            CHECK_STR_CONTAINS(err[i].message, words[w]);
    }
    rdt_slot_tx_destroy(tx);
    rdt_slot_destroy(slot);
    rdt_region_free(region, NULL, NULL);
    rig_close(&rig);
}

TEST_TIMEOUT(a_static_slot_is_named_with_all_that_the_device_said, 60)
{
    check_slot_is_named(RDT_SLOT_STATIC);
}

TEST_TIMEOUT(a_bounded_slot_is_named_too, 60)
{
    check_slot_is_named(RDT_SLOT_BOUNDED);
}

TEST_TIMEOUT(a_dynamic_slot_is_named_too, 60)
{
    check_slot_is_named(RDT_SLOT_DYNAMIC);
}

TEST_MAIN()
