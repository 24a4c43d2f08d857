/* SPDX-License-Identifier: Apache-2.0
 * Memory that takes long to register, under the whole core: transfers go on meanwhile, and regions,
 * messages, endpoints and contexts end after it. On the sim, which holds registrations back. */
#include "harness.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "group_rig.h"
#include "pair_rig.h"
#include "transport/verbs/device/limits.h"

#define LARGE_BYTES (RDTI_VERBS_REGISTER_NOW_BYTES + (UINT64_C(1) << 20))

static uint8_t *
map_large(void)
{
    uint8_t *at = mmap(NULL, LARGE_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    CHECK(at != MAP_FAILED);
    return at;
}

struct drained {
    _Atomic uint32_t count; /* release in the callback, acquire here */
    uint8_t *memory;        /* unmapped then */
};

static void
on_drained(void *arg)
{
    struct drained *drained = arg;

    CHECK_INT_EQ(munmap(drained->memory, LARGE_BYTES), 0);
    (void)atomic_fetch_add_explicit(&drained->count, 1, memory_order_release);
}

static uint32_t
drained_count(const struct drained *drained)
{
    return atomic_load_explicit(&drained->count, memory_order_acquire);
}

static void
wait_until_held(void)
{
    const uint64_t deadline_ns = test_now_ns() + rig_patience_ns();

    while (sim_held_mrs() == 0) {
        CHECK(test_now_ns() < deadline_ns);
        test_sleep_ns(1000000);
    }
}

/* ctx[1] registers memory of its caller's for a write of ctx[0]'s, and is held back. */
static rdt_transfer *
hold_region(struct pair *pair, uint8_t *memory, rdt_region **out)
{
    struct rdt_remote_region remote;
    struct rdt_error err = {0};
    rdt_transfer *t;

    sim_hold_mrs(LARGE_BYTES);
    CHECK_OK(rdt_region_register(pair->ctx[1], memory, LARGE_BYTES, out, &err), &err);
    CHECK_OK(rdt_region_export(*out, &remote, &err), &err);
    CHECK_OK(rdt_endpoint_write(pair->ep[0], "12345678", 8, &remote, LARGE_BYTES - 8, 5, &t, &err),
             &err);
    wait_until_held();
    return t;
}

/* Small writes of ctx[1]'s, by its own driving and its own path. Not into the arena, where a small
 * piece may lie behind a large one. */
static void
check_writes_move(struct pair *pair)
{
    static uint8_t target[64];
    struct rdt_remote_region remote;
    struct rdt_error err = {0};
    rdt_region *region;
    uint32_t value = 0;

    CHECK_OK(rdt_region_register(pair->ctx[0], target, sizeof(target), &region, &err), &err);
    CHECK_OK(rdt_region_export(region, &remote, &err), &err);
    for (uint32_t i = 0; i < 20; i++) {
        rdt_transfer *t;
        CHECK_OK(rdt_endpoint_write(pair->ep[1], "abcdefgh", 8, &remote, 0, i, &t, &err), &err);
        CHECK_OK(rig_end(t, &err), &err);
        CHECK_OK(rdt_endpoint_wait_notify(pair->ep[0], rig_patience_ns(), &value, &err), &err);
        CHECK_UINT_EQ(value, i);
    }
    rdt_region_free(region, NULL, NULL);
}

TEST(writes_move_while_a_region_is_registered)
{
    struct drained drained = {.memory = map_large()};
    struct rdt_counters counters = {.struct_size = sizeof(counters)};
    struct rdt_error err = {0};
    struct pair pair;
    rdt_region *region;

    pair_open(&pair, RDT_TRANSPORT_VERBS);
    rdt_transfer *t = hold_region(&pair, drained.memory, &region);
    check_writes_move(&pair);
    CHECK_INT_EQ(rdt_transfer_test(t, &err), RDT_EAGAIN);
    sim_hold_mrs(0);
    CHECK_OK(rig_end(t, &err), &err);
    CHECK_MEM_EQ(drained.memory + LARGE_BYTES - 8, "12345678", 8);
    rdt_context_counters(pair.ctx[1], &counters);
    CHECK_UINT_GE(counters.registered_bytes, LARGE_BYTES);
    CHECK_UINT_GE(counters.registration_ns, 1);
    rdt_region_free(region, on_drained, &drained);
    pair_close(&pair);
    CHECK_UINT_EQ(drained_count(&drained), 1);
}

/* The same of a piece of the arena, as a source: from the thread that calls. */
TEST(a_write_from_a_large_piece_does_not_block_its_caller)
{
    struct rdt_remote_region remote;
    struct rdt_error err = {0};
    struct pair pair;
    rdt_region *source;
    rdt_region *target;
    rdt_transfer *t;

    pair_open(&pair, RDT_TRANSPORT_VERBS);
    CHECK_OK(rdt_region_alloc(pair.ctx[0], LARGE_BYTES, 0, &source, &err), &err);
    CHECK_OK(rdt_region_alloc(pair.ctx[1], 100000, 0, &target, &err), &err);
    CHECK_OK(rdt_region_export(target, &remote, &err), &err);
    memset(rdt_region_addr(source), 0x5a, 100000);
    sim_hold_mrs(LARGE_BYTES);
    CHECK_OK(rdt_endpoint_write(pair.ep[0], rdt_region_addr(source), 100000, &remote, 0, 5, &t,
                                &err),
             &err);
    wait_until_held();
    check_writes_move(&pair);
    CHECK_INT_EQ(rdt_transfer_test(t, &err), RDT_EAGAIN);
    sim_hold_mrs(0);
    CHECK_OK(rig_end(t, &err), &err);
    CHECK_MEM_EQ(rdt_region_addr(target), rdt_region_addr(source), 100000);
    rdt_region_free(source, NULL, NULL);
    rdt_region_free(target, NULL, NULL);
    pair_close(&pair);
}

/* drained() is the caller's leave to unmap: not before the device is done with the pages. */
TEST(a_region_freed_meanwhile_drains_behind_it)
{
    struct drained drained = {.memory = map_large()};
    struct rdt_error err = {0};
    struct pair pair;
    rdt_region *region;

    pair_open(&pair, RDT_TRANSPORT_VERBS);
    rdt_transfer *t = hold_region(&pair, drained.memory, &region);
    rdt_region_free(region, on_drained, &drained);
    check_writes_move(&pair);
    CHECK_UINT_EQ(drained_count(&drained), 0);
    sim_hold_mrs(0);
    CHECK_INT_EQ(rig_end(t, &err), RDT_ESTALE);
    check_writes_move(&pair);
    pair_close(&pair);
    CHECK_UINT_EQ(drained_count(&drained), 1);
}

/* As when it dies: the connection is gone, the registration is not. */
TEST(a_peer_that_leaves_meanwhile_takes_only_its_own)
{
    struct drained drained = {.memory = map_large()};
    struct rdt_error err = {0};
    struct pair pair;
    rdt_region *region;

    pair_open(&pair, RDT_TRANSPORT_VERBS);
    rdt_transfer *t = hold_region(&pair, drained.memory, &region);
    rdt_endpoint_close(pair.ep[0]);
    CHECK(rig_end(t, &err) != RDT_OK);
    CHECK_OK(rdt_context_close(pair.ctx[0], &err), &err);
    rdt_region_free(region, on_drained, &drained);
    rdt_endpoint_close(pair.ep[1]);
    CHECK_UINT_EQ(drained_count(&drained), 0);
    sim_hold_mrs(0);
    CHECK_OK(rdt_context_close(pair.ctx[1], &err), &err);
    CHECK_UINT_EQ(drained_count(&drained), 1);
}

struct release {
    uint64_t after_ns;
    _Atomic bool is_released;
};

static void *
release_later(void *arg)
{
    struct release *release = arg;

    test_sleep_ns(release->after_ns);
    atomic_store_explicit(&release->is_released, true, memory_order_release);
    sim_hold_mrs(0);
    return NULL;
}

TEST(a_context_closes_behind_a_registration)
{
    struct drained drained = {.memory = map_large()};
    struct release release = {.after_ns = 200000000};
    struct rdt_error err = {0};
    struct pair pair;
    rdt_region *region;
    pthread_t thread;

    pair_open(&pair, RDT_TRANSPORT_VERBS);
    rdt_transfer *t = hold_region(&pair, drained.memory, &region);
    rdt_region_free(region, on_drained, &drained);
    for (int i = 0; i < 2; i++)
        rdt_endpoint_close(pair.ep[i]);
    CHECK(rig_end(t, &err) != RDT_OK);
    CHECK_INT_EQ(pthread_create(&thread, NULL, release_later, &release), 0);
    CHECK_OK(rdt_context_close(pair.ctx[1], &err), &err);
    CHECK(atomic_load_explicit(&release.is_released, memory_order_acquire));
    CHECK_UINT_EQ(drained_count(&drained), 1);
    CHECK_INT_EQ(pthread_join(thread, NULL), 0);
    CHECK_OK(rdt_context_close(pair.ctx[0], &err), &err);
}

/* The region is not in the table any more: only the registrar knows of it. */
static void
wait_until_region_is_gone(rdt_context *ctx)
{
    const uint64_t deadline_ns = test_now_ns() + rig_patience_ns();
    struct rdti_region_stats stats;

    do {
        CHECK(test_now_ns() < deadline_ns);
        test_sleep_ns(1000000);
        rdti_regions_get_stats(ctx->regions, &stats);
    } while (stats.live_bytes + stats.quarantine_bytes >= LARGE_BYTES);
}

/* The receive's sender is gone, its user has lost patience, and the device is still at its buffer:
 * for longer than peers have to say goodbye. */
static void
close_behind_a_receive(uint64_t held_ns)
{
    struct release release = {.after_ns = held_ns};
    struct rdt_error err = {0};
    uint8_t *sent = map_large();
    uint8_t *received = map_large();
    pthread_t thread;
    struct rig rig;

    rig_open(&rig, 2, RDT_TRANSPORT_VERBS);
    sim_hold_mrs(LARGE_BYTES);
    rdt_transfer *recv = rig_recv(&rig, 1, 0, 7, received, LARGE_BYTES);
    rdt_transfer *send = rig_send(&rig, 0, 1, 7, sent, LARGE_BYTES);
    wait_until_held();
    rdt_group_destroy(rig.group[0]);
    CHECK(rig_end(send, &err) != RDT_OK);
    rig_close_context(rig.ctx[0]);
    wait_until_region_is_gone(rig.ctx[1]);
    CHECK_INT_EQ(rdt_transfer_wait(recv, 1000000, &err), RDT_ETIMEDOUT);
    rdt_transfer_free(recv);
    rdt_group_destroy(rig.group[1]);
    CHECK_INT_EQ(pthread_create(&thread, NULL, release_later, &release), 0);
    CHECK_OK(rdt_context_close(rig.ctx[1], &err), &err);
    CHECK(atomic_load_explicit(&release.is_released, memory_order_acquire));
    CHECK_INT_EQ(pthread_join(thread, NULL), 0);
    CHECK_INT_EQ(munmap(sent, LARGE_BYTES), 0);
    CHECK_INT_EQ(munmap(received, LARGE_BYTES), 0);
}

TEST(a_context_closes_behind_a_transfer_that_ends_behind_a_registration)
{
    close_behind_a_receive(200000000);
}

TEST(a_context_closes_behind_a_registration_of_many_seconds)
{
    close_behind_a_receive(UINT64_C(4000000000));
}

struct closing {
    rdt_context *ctx;
    rdt_status status;
    struct rdt_error err;
};

static void
close_from_drained(void *arg)
{
    struct closing *closing = arg;

    closing->status = rdt_context_close(closing->ctx, &closing->err);
}

/* Which waits for the end of the callback that it is called from. */
TEST(a_close_within_a_drained_callback_is_refused)
{
    struct closing closing = {.status = RDT_OK};
    struct rdt_error err = {0};
    rdt_region *region;

    context_make(&closing.ctx, RDT_TRANSPORT_SHM, "secret", 0);
    check_ok(rdt_region_alloc(closing.ctx, 4096, 0, &region, &err), &err, "alloc");
    rdt_region_free(region, close_from_drained, &closing);
    CHECK_INT_EQ(closing.status, RDT_EBUSY);
    CHECK_STR_CONTAINS(closing.err.message, "drained callback");
    check_ok(rdt_context_close(closing.ctx, &err), &err, "close");
}

/* ---- Messages ------------------------------------------------------------------------------- */

/* The receiver's buffer is registered for the message, and deregistered before its end is told. */
TEST_TIMEOUT(messages_move_while_a_large_one_is_registered, 60)
{
    static uint8_t small[64];
    struct rdt_error err = {0};
    uint8_t *sent = map_large();
    uint8_t *received = map_large();
    struct rig rig;

    rig_open(&rig, 3, RDT_TRANSPORT_VERBS);
    rig_fill(sent, LARGE_BYTES, 3);
    sim_hold_mrs(LARGE_BYTES);
    rdt_transfer *large[2] = {rig_recv(&rig, 1, 0, 7, received, LARGE_BYTES),
                              rig_send(&rig, 0, 1, 7, sent, LARGE_BYTES)};
    wait_until_held();
    for (uint32_t i = 0; i < 20; i++) {
        rdt_transfer *recv = rig_recv(&rig, 1, 2, i, small, sizeof(small));
        rdt_transfer *send = rig_send(&rig, 2, 1, i, sent, sizeof(small));
        CHECK_OK(rig_end(recv, &err), &err);
        CHECK_OK(rig_end(send, &err), &err);
    }
    for (int i = 0; i < 2; i++)
        CHECK_INT_EQ(rdt_transfer_test(large[i], &err), RDT_EAGAIN);
    sim_hold_mrs(0);
    for (int i = 0; i < 2; i++)
        CHECK_OK(rig_end(large[i], &err), &err);
    CHECK_MEM_EQ(received, sent, LARGE_BYTES);
    rig_close(&rig);
    CHECK_INT_EQ(munmap(sent, LARGE_BYTES), 0);
    CHECK_INT_EQ(munmap(received, LARGE_BYTES), 0);
}

TEST_MAIN()
