/* SPDX-License-Identifier: Apache-2.0
 * Who leaves takes its memory along only when nobody uses it any more: what a peer holds or fills
 * serves nothing else until the peer gives it up, or is gone. */
#include <stdatomic.h>

#include "proc_rig.h"
#include "process/process.h"
#include "rdmatensor_ext.h"

enum { REGION_BYTES = 4096, AGAIN = 32 };

static struct rdt_error err;
static atomic_uint drained;

static uint64_t
soon_ns(void)
{
    return (uint64_t)(10e9 * test_timeout_scale());
}

static void
on_drained(void *arg)
{
    (void)arg;
    /* seq_cst: nothing to save */
    (void)atomic_fetch_add_explicit(&drained, 1, memory_order_seq_cst);
}

static bool
is_drained(void)
{
    return atomic_load_explicit(&drained, memory_order_seq_cst) != 0;
}

static rdt_region *
new_region(rdt_context *ctx, struct rdt_remote_region *remote_out)
{
    rdt_region *region = NULL;

    CHECK_OK(rdt_region_alloc(ctx, REGION_BYTES, RDT_REGION_ZERO, &region, &err), &err);
    CHECK_OK(rdt_region_export(region, remote_out, &err), &err);
    return region;
}

/* RDT_EAGAIN until the piece is here. */
static void *
hold(rdt_context *ctx, rdt_endpoint *ep, const struct rdt_remote_region *remote)
{
    const uint64_t end_ns = test_now_ns() + soon_ns();
    void *held = NULL;
    rdt_status status;

    while ((status = rdt_endpoint_hold(ep, remote, &held, &err)) == RDT_EAGAIN) {
        CHECK_OK(rdt_context_progress(ctx), &err);
        CHECK(test_now_ns() < end_ns);
        test_sleep_ns(100000);
    }
    CHECK_OK(status, &err);
    return held;
}

/* Zeroed memory again and again, as who makes new groups asks for: none of it is at addr. */
static void
check_not_reused(rdt_context *ctx, const void *addr)
{
    rdt_region *again[AGAIN];

    for (int i = 0; i < AGAIN; i++) {
        CHECK_OK(rdt_region_alloc(ctx, REGION_BYTES, RDT_REGION_ZERO, &again[i], &err), &err);
        CHECK_MSG(rdt_region_addr(again[i]) != addr, "region %d has the bytes that are held", i);
    }
    for (int i = 0; i < AGAIN; i++)
        rdt_region_free(again[i], NULL, NULL);
}

static void
wait_for_end(rdt_endpoint *ep)
{
    CHECK_EVENTUALLY(rdt_endpoint_error(ep, &err) != RDT_OK, 10);
}

static uint64_t
quarantine_count(rdt_context *ctx)
{
    struct rdti_region_stats stats;

    rdti_regions_get_stats(ctx->regions, &stats);
    return stats.quarantine_count;
}

static uint64_t
endpoint_count(rdt_context *ctx)
{
    uint64_t count = 0;

    rdti_engine_enter(ctx->engine);
    for (const struct rdti_list *node = ctx->endpoints.next; node != &ctx->endpoints;
         node = node->next)
        count++;
    rdti_engine_leave(ctx->engine);
    return count;
}

/* ---- Held ---------------------------------------------------------------------------------- */

TEST(held_memory_is_not_used_again_when_its_owner_leaves)
{
    for (int is_freed_late = 0; is_freed_late < 2; is_freed_late++) {
        struct rdt_remote_region remote;
        struct pair pair;
        atomic_store(&drained, 0);
        pair_open(&pair, RDT_TRANSPORT_SHM);
        rdt_region *region = new_region(pair.ctx[0], &remote);
        void *addr = rdt_region_addr(region);
        const char *held = hold(pair.ctx[1], pair.ep[1], &remote);
        (void)hold(pair.ctx[1], pair.ep[1], &remote);
        strcpy(addr, "still here");
        if (!is_freed_late)
            rdt_region_free(region, on_drained, NULL);
        rdt_endpoint_close(pair.ep[0]);
        wait_for_end(pair.ep[1]);
        test_sleep_ns(50000000); /* the owner has its answer by now */
        if (is_freed_late)
            rdt_region_free(region, on_drained, NULL);
        check_not_reused(pair.ctx[0], addr);
        CHECK_STR_EQ(held, "still here");
        rdt_endpoint_unhold(pair.ep[1], &remote);
        test_sleep_ns(50000000);
        CHECK_MSG(!is_drained(), "given back while it is held a second time");
        rdt_endpoint_unhold(pair.ep[1], &remote);
        CHECK_EVENTUALLY(is_drained(), 10);
        CHECK_EVENTUALLY(quarantine_count(pair.ctx[0]) == 0, 10);
        CHECK_EVENTUALLY(endpoint_count(pair.ctx[0]) == 0, 10);
        rdt_endpoint_close(pair.ep[1]);
        CHECK_EVENTUALLY(endpoint_count(pair.ctx[1]) == 0, 10);
        for (int i = 0; i < 2; i++)
            CHECK_OK(rdt_context_close(pair.ctx[i], &err), &err);
    }
}

/* What came after the goodbye the peer cannot have got hold of. */
TEST(memory_exported_after_a_goodbye_waits_for_nobody)
{
    struct rdt_remote_region remote;
    struct rdt_remote_region later;
    struct pair pair;

    atomic_store(&drained, 0);
    pair_open(&pair, RDT_TRANSPORT_SHM);
    rdt_region *region = new_region(pair.ctx[0], &remote);
    (void)hold(pair.ctx[1], pair.ep[1], &remote);
    rdt_region_free(region, NULL, NULL);
    rdt_endpoint_close(pair.ep[0]);
    wait_for_end(pair.ep[1]);
    test_sleep_ns(50000000); /* the owner has its answer by now */
    const uint64_t before = quarantine_count(pair.ctx[0]);
    CHECK_UINT_GE(before, 1);
    for (int i = 0; i < 100; i++)
        rdt_region_free(new_region(pair.ctx[0], &later), on_drained, NULL);
    CHECK_EVENTUALLY(atomic_load(&drained) == 100, 10);
    CHECK_UINT_EQ(quarantine_count(pair.ctx[0]), before);
    rdt_endpoint_unhold(pair.ep[1], &remote);
    CHECK_EVENTUALLY(quarantine_count(pair.ctx[0]) == 0, 10);
    rdt_endpoint_close(pair.ep[1]);
    for (int i = 0; i < 2; i++)
        CHECK_OK(rdt_context_close(pair.ctx[i], &err), &err);
}

/* Who meets again meets by a new endpoint, while the old one waits. */
TEST(held_memory_stays_while_the_two_meet_again)
{
    enum { ROUNDS = 8 };
    struct rdt_remote_region remotes[ROUNDS];
    rdt_endpoint *old[ROUNDS];
    const char *held[ROUNDS];
    struct pair pair;

    pair_open(&pair, RDT_TRANSPORT_SHM);
    for (int i = 0; i < ROUNDS; i++) {
        rdt_region *region = new_region(pair.ctx[0], &remotes[i]);
        CHECK_STR_EQ(rdt_region_addr(region), "");
        held[i] = hold(pair.ctx[1], pair.ep[1], &remotes[i]);
        (void)snprintf(rdt_region_addr(region), REGION_BYTES, "board %d", i);
        rdt_region_free(region, NULL, NULL);
        rdt_endpoint_close(pair.ep[0]);
        old[i] = pair.ep[1];
        wait_for_end(old[i]);
        for (int side = 0; side < 2; side++)
            endpoint_make(pair.ctx[side], pair.ctx[1 - side], 1 - side, &pair.ep[side]);
        for (int side = 0; side < 2; side++)
            CHECK_OK(rdt_endpoint_wait_ready(pair.ep[side], 10 * RIG_S, &err), &err);
    }
    for (int i = 0; i < ROUNDS; i++) {
        char want[32];
        (void)snprintf(want, sizeof(want), "board %d", i);
        CHECK_STR_EQ(held[i], want);
        rdt_endpoint_unhold(old[i], &remotes[i]);
        rdt_endpoint_close(old[i]);
    }
    CHECK_EVENTUALLY(quarantine_count(pair.ctx[0]) == 0, 10);
    for (int side = 0; side < 2; side++)
        CHECK_EVENTUALLY(endpoint_count(pair.ctx[side]) == 1, 10);
    pair_close(&pair);
}

/* A context that closes waits for no holder; its memory lives as long as who has it mapped. */
TEST(closing_does_not_wait_for_who_holds)
{
    uint64_t best_ns[2] = {UINT64_MAX, UINT64_MAX}; /* a busy machine is slow now and then */

    for (int round = 0; round < 8; round++) {
        const bool is_left_before = round % 2 != 0;
        struct rdt_remote_region remote;
        struct pair pair;
        pair_open(&pair, RDT_TRANSPORT_SHM);
        rdt_region *region = new_region(pair.ctx[0], &remote);
        const char *held = hold(pair.ctx[1], pair.ep[1], &remote);
        strcpy(rdt_region_addr(region), "left behind");
        rdt_region_free(region, NULL, NULL);
        const uint64_t start_ns = test_now_ns();
        rdt_endpoint_close(pair.ep[0]);
        if (is_left_before)
            wait_for_end(pair.ep[1]);
        CHECK_OK(rdt_context_close(pair.ctx[0], &err), &err);
        const uint64_t took_ns = test_now_ns() - start_ns;
        if (took_ns < best_ns[is_left_before])
            best_ns[is_left_before] = took_ns;
        wait_for_end(pair.ep[1]);
        CHECK_STR_CONTAINS(err.message, "rank 0 left");
        CHECK_STR_EQ(held, "left behind");
        rdt_endpoint_unhold(pair.ep[1], &remote);
        rdt_endpoint_close(pair.ep[1]);
        CHECK_OK(rdt_context_close(pair.ctx[1], &err), &err);
    }
    for (int i = 0; i < 2; i++) /* two seconds would be those of a peer that does not answer */
        CHECK_UINT_LE(best_ns[i], UINT64_C(1500000000));
}

/* More than the arena keeps of what is free: it must not take the pages back on its way out. */
TEST_TIMEOUT(large_memory_outlives_the_context_that_it_came_from, 120)
{
    const uint64_t len_bytes = UINT64_C(400) << 20;
    struct rdt_remote_region remote;
    rdt_region *region = NULL;
    struct pair pair;

    pair_open(&pair, RDT_TRANSPORT_SHM);
    CHECK_OK(rdt_region_alloc(pair.ctx[0], len_bytes, 0, &region, &err), &err);
    CHECK_OK(rdt_region_export(region, &remote, &err), &err);
    const uint8_t *held = hold(pair.ctx[1], pair.ep[1], &remote);
    for (uint64_t i = 0; i < len_bytes; i += REGION_BYTES)
        ((uint8_t *)rdt_region_addr(region))[i] = 7;
    rdt_region_free(region, NULL, NULL);
    rdt_endpoint_close(pair.ep[0]);
    CHECK_OK(rdt_context_close(pair.ctx[0], &err), &err);
    for (uint64_t i = 0; i < len_bytes; i += REGION_BYTES)
        CHECK_MSG(held[i] == 7, "byte %llu is %u", (unsigned long long)i, held[i]);
    rdt_endpoint_unhold(pair.ep[1], &remote);
    rdt_endpoint_close(pair.ep[1]);
    CHECK_OK(rdt_context_close(pair.ctx[1], &err), &err);
}

TEST(a_context_that_refuses_to_close_goes_on_keeping_what_is_held)
{
    struct rdt_remote_region remote;
    struct rdt_remote_region other;
    struct pair pair;

    atomic_store(&drained, 0);
    pair_open(&pair, RDT_TRANSPORT_SHM);
    rdt_region *region = new_region(pair.ctx[0], &remote);
    rdt_region *live = new_region(pair.ctx[0], &other);
    (void)hold(pair.ctx[1], pair.ep[1], &remote);
    rdt_region_free(region, on_drained, NULL);
    rdt_endpoint_close(pair.ep[0]);
    CHECK_STATUS(rdt_context_close(pair.ctx[0], &err), RDT_EBUSY);
    CHECK_STR_CONTAINS(err.message, "1 regions");
    CHECK_MSG(!is_drained(), "given back while it is held");
    rdt_endpoint_unhold(pair.ep[1], &remote);
    CHECK_EVENTUALLY(is_drained(), 10);
    rdt_region_free(live, NULL, NULL);
    rdt_endpoint_close(pair.ep[1]);
    for (int i = 0; i < 2; i++)
        CHECK_OK(rdt_context_close(pair.ctx[i], &err), &err);
}

/* The holder breaks the connection off; what it says at that does not give up what it holds. */
TEST_TIMEOUT(held_memory_stays_when_the_holder_breaks_off, 60)
{
    struct rdt_remote_region remote;
    struct rdt_remote_region sink;
    rdt_status status = RDT_OK;
    struct pair pair;

    atomic_store(&drained, 0);
    pair_open(&pair, RDT_TRANSPORT_SHM);
    rdt_region *region = new_region(pair.ctx[0], &remote);
    rdt_region *target = new_region(pair.ctx[1], &sink);
    void *addr = rdt_region_addr(region);
    const char *held = hold(pair.ctx[1], pair.ep[1], &remote);
    strcpy(addr, "still here");
    while (status == RDT_OK) { /* until its inbox overflows */
        rdt_transfer *transfer = NULL;
        status = rdt_endpoint_write(pair.ep[0], "one", 4, &sink, 0, 1, &transfer, &err);
        if (status == RDT_OK)
            status = rdt_transfer_wait(transfer, 10 * RIG_S, &err);
        if (transfer != NULL)
            rdt_transfer_free(transfer);
    }
    CHECK_STATUS(status, RDT_EPEER);
    CHECK_STR_CONTAINS(err.message, "rank 1 closed the connection");
    rdt_region_free(target, NULL, NULL);
    rdt_region_free(region, on_drained, NULL);
    rdt_endpoint_close(pair.ep[0]);
    test_sleep_ns(50000000);
    check_not_reused(pair.ctx[0], addr);
    CHECK_STR_EQ(held, "still here");
    CHECK(!is_drained());
    rdt_endpoint_unhold(pair.ep[1], &remote);
    CHECK_EVENTUALLY(is_drained(), 10);
    CHECK_EVENTUALLY(endpoint_count(pair.ctx[0]) == 0, 10);
    rdt_endpoint_close(pair.ep[1]);
    for (int i = 0; i < 2; i++)
        CHECK_OK(rdt_context_close(pair.ctx[i], &err), &err);
}

/* ---- Being filled -------------------------------------------------------------------------- */

TEST(a_buffer_being_filled_is_not_used_again_when_its_owner_leaves)
{
    static const struct rdt_tensor_desc desc = {.struct_size = sizeof(desc),
                                                .kind = RDT_SLOT_STATIC,
                                                .dtype = RDT_U8,
                                                .ndim = 1,
                                                .dims = {REGION_BYTES}};
    struct pair pair;
    rdt_slot_tx *tx;
    rdt_slot *slot;
    void *buffer;

    pair_open(&pair, RDT_TRANSPORT_SHM);
    CHECK_OK(rdt_slot_create(pair.ep[0], "acts", &desc, &slot, &err), &err);
    CHECK_OK(rdt_slot_tx_open(pair.ep[1], "acts", &desc, 10 * RIG_S, &tx, &err), &err);
    CHECK_OK(rdt_slot_tx_buffer(tx, 10 * RIG_S, &buffer, &err), &err);
    rdt_slot_destroy(slot);
    rdt_endpoint_close(pair.ep[0]);
    wait_for_end(pair.ep[1]);
    test_sleep_ns(50000000);
    CHECK_UINT_GE(quarantine_count(pair.ctx[0]), 1);
    memset(buffer, 7, REGION_BYTES); /* into bytes that nobody else has */
    CHECK_STATUS(rdt_slot_tx_post(tx, NULL, NULL, &err), RDT_EPEER);
    CHECK_EVENTUALLY(quarantine_count(pair.ctx[0]) == 0, 10);
    rdt_slot_tx_destroy(tx);
    rdt_endpoint_close(pair.ep[1]);
    for (int i = 0; i < 2; i++)
        CHECK_OK(rdt_context_close(pair.ctx[i], &err), &err);
}

/* ---- Stopped and dead ---------------------------------------------------------------------- */

/* Rank 0 owns what rank 1 holds, and leaves when it hears a byte. */
static void
live_as_owner(rdt_context *ctx, int fd, rdt_endpoint *ep)
{
    struct rdt_remote_region remote;
    uint64_t count;
    char step;

    rdt_region *region = new_region(ctx, &remote);
    strcpy(rdt_region_addr(region), "still here");
    proc_write(fd, &remote, sizeof(remote));
    proc_read(fd, &step, 1);
    rdt_region_free(region, NULL, NULL);
    rdt_endpoint_close(ep);
    proc_say(fd);
    for (;;) { /* 'n': the number now; '0': wait until it is none; 'e': the end */
        proc_read(fd, &step, 1);
        if (step == 'e')
            break;
        const uint64_t end_ns = test_now_ns() + soon_ns();
        while ((count = quarantine_count(ctx)) > 0 && step == '0' && test_now_ns() < end_ns)
            test_sleep_ns(5 * PROC_MS);
        proc_write(fd, &count, sizeof(count));
    }
}

static void
live_as_holder(rdt_context *ctx, int fd, rdt_endpoint *ep)
{
    struct rdt_remote_region remote;

    proc_read(fd, &remote, sizeof(remote));
    const char *held = hold(ctx, ep, &remote);
    proc_say(fd);
    proc_hear(fd);
    wait_for_end(ep);
    CHECK_STR_EQ(held, "still here");
    proc_say(fd);
    proc_hear(fd);
    CHECK_STR_EQ(held, "still here");
    rdt_endpoint_unhold(ep, &remote);
    rdt_endpoint_close(ep);
}

static void
live(rdt_context *ctx, int32_t rank, int fd)
{
    rdt_endpoint *ep = proc_take_peer(ctx, fd);

    if (rank == 0)
        live_as_owner(ctx, fd, ep);
    else
        live_as_holder(ctx, fd, ep);
    CHECK_OK(rdt_context_close(ctx, &err), &err);
}

static void
begin_holding(struct proc procs[2])
{
    const struct proc_opts opts = {.force = RDT_TRANSPORT_SHM};
    struct rdt_remote_region remote;

    for (int i = 0; i < 2; i++)
        proc_begin(&procs[i], &opts, i, live);
    for (int i = 0; i < 2; i++)
        proc_introduce(&procs[i], &procs[1 - i]);
    proc_read(procs[0].fd, &remote, sizeof(remote));
    proc_write(procs[1].fd, &remote, sizeof(remote));
    proc_hear(procs[1].fd);
}

/* Returns when the owner's close has, whatever the holder does. */
static void
leave(const struct proc *owner)
{
    proc_say(owner->fd);
    proc_hear(owner->fd);
}

static uint64_t
ask_quarantine(const struct proc *owner, char how)
{
    uint64_t count;

    proc_write(owner->fd, &how, 1);
    proc_read(owner->fd, &count, sizeof(count));
    return count;
}

TEST(a_dead_holder_gives_back)
{
    struct proc procs[2];

    begin_holding(procs);
    leave(&procs[0]);
    proc_say(procs[1].fd);
    proc_hear(procs[1].fd); /* it knows that the owner has left, and holds on */
    CHECK_UINT_GE(ask_quarantine(&procs[0], 'n'), 1);
    CHECK_INT_EQ(proc_end(&procs[1], SIGKILL), -SIGKILL);
    CHECK_UINT_EQ(ask_quarantine(&procs[0], '0'), 0);
    proc_write(procs[0].fd, "e", 1);
    CHECK_INT_EQ(proc_end(&procs[0], 0), 0);
}

/* Whoever is gone answers no more: what we hold of its memory keeps nothing of ours. */
TEST(memory_of_who_is_gone_keeps_none_of_ours)
{
    struct rdt_remote_region theirs;
    struct rdt_remote_region ours;
    struct pair pair;

    pair_open(&pair, RDT_TRANSPORT_SHM);
    rdt_region *held = new_region(pair.ctx[0], &theirs);
    rdt_region *own = new_region(pair.ctx[1], &ours);
    CHECK_NOT_NULL(hold(pair.ctx[1], pair.ep[1], &theirs));
    rdt_region_free(held, NULL, NULL);
    rdt_endpoint_close(pair.ep[0]);
    CHECK_OK(rdt_context_close(pair.ctx[0], &err), &err);
    wait_for_end(pair.ep[1]);
    test_sleep_ns(200 * PROC_MS); /* the end of its half of the socket is heard too */
    rdt_region_free(own, on_drained, NULL);
    CHECK_EVENTUALLY(is_drained(), 5);
    rdt_endpoint_unhold(pair.ep[1], &theirs);
    rdt_endpoint_close(pair.ep[1]);
    CHECK_OK(rdt_context_close(pair.ctx[1], &err), &err);
}

/* Takes its time, on the thread that heard of the last answer, and ends a transfer. */
static void
on_drained_slowly(void *arg)
{
    on_drained(NULL);
    test_sleep_ns(50 * PROC_MS);
    rdt_transfer_finish(arg, RDT_OK, NULL);
}

TEST(closing_waits_for_who_is_just_told_that_bytes_are_free)
{
    struct rdt_remote_region remote;
    rdt_transfer *transfer = NULL;
    struct pair pair;

    pair_open(&pair, RDT_TRANSPORT_SHM);
    rdt_region *region = new_region(pair.ctx[0], &remote);
    CHECK_OK(rdt_transfer_create(pair.ctx[0], &transfer, &err), &err);
    rdt_region_free(region, on_drained_slowly, transfer);
    rdt_transfer_free(transfer);
    CHECK_EVENTUALLY(is_drained(), 10);
    pair_close(&pair);
}

/* The owner waits two seconds for an answer, and goes; the memory waits longer. */
TEST_TIMEOUT(a_stopped_holder_still_holds, 60)
{
    for (int is_killed = 0; is_killed < 2; is_killed++) {
        struct proc procs[2];
        begin_holding(procs);
        CHECK(kill(procs[1].pid, SIGSTOP) == 0);
        leave(&procs[0]);
        test_sleep_ns(3000 * PROC_MS);
        CHECK_UINT_GE(ask_quarantine(&procs[0], 'n'), 1);
        if (is_killed) {
            CHECK_INT_EQ(proc_end(&procs[1], SIGKILL), -SIGKILL);
        } else {
            CHECK(kill(procs[1].pid, SIGCONT) == 0);
            proc_say(procs[1].fd);
            proc_hear(procs[1].fd);
            test_sleep_ns(50 * PROC_MS);
            CHECK_UINT_GE(ask_quarantine(&procs[0], 'n'), 1);
            proc_say(procs[1].fd); /* it lets go */
        }
        CHECK_UINT_EQ(ask_quarantine(&procs[0], '0'), 0);
        proc_write(procs[0].fd, "e", 1);
        CHECK_INT_EQ(proc_end(&procs[0], 0), 0);
        if (!is_killed)
            CHECK_INT_EQ(proc_end(&procs[1], 0), 0);
    }
}

TEST_MAIN()
