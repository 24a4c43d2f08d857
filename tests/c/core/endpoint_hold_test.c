/* SPDX-License-Identifier: Apache-2.0
 * Memory of a peer that is held: its bytes stay when the owner frees it, and whoever sleeps is
 * woken. */
#include <pthread.h>
#include <stdatomic.h>

#include "pair_rig.h"
#include "rdmatensor_ext.h"

static struct rdt_error err;
static atomic_uint drained;

static void
on_drained(void *arg)
{
    (void)arg;
    /* seq_cst: nothing to save */
    (void)atomic_fetch_add_explicit(&drained, 1, memory_order_seq_cst);
}

static rdt_region *
new_region(rdt_context *ctx, struct rdt_remote_region *remote_out)
{
    rdt_region *region = NULL;

    CHECK_OK(rdt_region_alloc(ctx, 4096, RDT_REGION_ZERO, &region, &err), &err);
    CHECK_OK(rdt_region_export(region, remote_out, &err), &err);
    return region;
}

/* RDT_EAGAIN until the piece is here. */
static rdt_status
hold(struct pair *pair, const struct rdt_remote_region *remote, void **out)
{
    const uint64_t end_ns = test_now_ns() + (uint64_t)(10e9 * test_timeout_scale());
    rdt_status status;

    while ((status = rdt_endpoint_hold(pair->ep[1], remote, out, &err)) == RDT_EAGAIN) {
        CHECK_OK(rdt_context_progress(pair->ctx[1]), &err);
        CHECK(test_now_ns() < end_ns);
        test_sleep_ns(100000);
    }
    return status;
}

static bool
is_drained_within(uint64_t wait_ns)
{
    const uint64_t end_ns = test_now_ns() + wait_ns;

    while (atomic_load_explicit(&drained, memory_order_seq_cst) == 0 && test_now_ns() < end_ns)
        test_sleep_ns(1000000);
    return atomic_load_explicit(&drained, memory_order_seq_cst) != 0;
}

TEST(held_bytes_stay_until_they_are_given_up)
{
    struct rdt_remote_region remote;
    struct pair pair;
    void *held = NULL;
    void *again = NULL;

    atomic_store(&drained, 0);
    pair_open(&pair, RDT_TRANSPORT_SHM);
    rdt_region *region = new_region(pair.ctx[0], &remote);
    CHECK_OK(hold(&pair, &remote, &held), &err);
    CHECK_OK(hold(&pair, &remote, &again), &err);
    strcpy(rdt_region_addr(region), "still here");
    rdt_region_free(region, on_drained, NULL);
    CHECK_MSG(!is_drained_within(150000000), "given back while it is held");
    CHECK_STR_EQ(held, "still here");
    CHECK_STATUS(rdt_endpoint_hold(pair.ep[1], &remote, &again, &err), RDT_ESTALE);
    rdt_endpoint_unhold(pair.ep[1], &remote);
    CHECK_MSG(!is_drained_within(50000000), "given back while it is held a second time");
    rdt_endpoint_unhold(pair.ep[1], &remote);
    CHECK_MSG(is_drained_within((uint64_t)(5e9 * test_timeout_scale())), "never given back");
    pair_close(&pair);
}

TEST(another_region_is_given_back_meanwhile)
{
    struct rdt_remote_region remotes[2];
    struct pair pair;
    void *held = NULL;

    atomic_store(&drained, 0);
    pair_open(&pair, RDT_TRANSPORT_SHM);
    rdt_region *first = new_region(pair.ctx[0], &remotes[0]);
    rdt_region *second = new_region(pair.ctx[0], &remotes[1]);
    CHECK_OK(hold(&pair, &remotes[0], &held), &err);
    rdt_region_free(second, on_drained, NULL);
    CHECK_MSG(is_drained_within((uint64_t)(5e9 * test_timeout_scale())), "never given back");
    rdt_region_free(first, NULL, NULL);
    rdt_endpoint_unhold(pair.ep[1], &remotes[0]);
    pair_close(&pair);
}

TEST(a_hold_outlives_the_handle_and_the_owner)
{
    struct rdt_remote_region remote;
    struct pair pair;
    void *held = NULL;

    pair_open(&pair, RDT_TRANSPORT_SHM);
    rdt_region *region = new_region(pair.ctx[0], &remote);
    CHECK_OK(hold(&pair, &remote, &held), &err);
    strcpy(rdt_region_addr(region), "left behind");
    rdt_region_free(region, NULL, NULL);
    rdt_endpoint_close(pair.ep[0]);
    CHECK_OK(rdt_context_close(pair.ctx[0], &err), &err);
    CHECK_STR_EQ(held, "left behind");
    rdt_endpoint_close(pair.ep[1]);
    CHECK_STR_EQ(held, "left behind");
    rdt_endpoint_ring(pair.ep[1]); /* nobody is there to hear it */
    rdt_endpoint_unhold(pair.ep[1], &remote);
    CHECK_OK(rdt_context_close(pair.ctx[1], &err), &err);
}

TEST(a_path_without_shared_memory_cannot_hold)
{
    struct rdt_remote_region remote;
    struct pair pair;
    void *held = NULL;

    pair_open(&pair, RDT_TRANSPORT_TCP);
    rdt_region *region = new_region(pair.ctx[0], &remote);
    CHECK_STATUS(rdt_endpoint_hold(pair.ep[1], &remote, &held, &err), RDT_ENOTSUP);
    CHECK_STR_CONTAINS(err.message, "tcp");
    CHECK_STATUS(rdt_endpoint_hold(pair.ep[0], &remote, &held, &err), RDT_EINVAL);
    CHECK_STATUS(rdt_endpoint_hold(NULL, &remote, &held, &err), RDT_EINVAL);
    rdt_region_free(region, NULL, NULL);
    pair_close(&pair);
}

/* ---- Ringing ---- */

enum { ROUNDS = 40 };

struct watch {
    _Atomic uint64_t *word;
    uint64_t want;
    rdt_transfer *transfer;
};

static rdt_status
look(void *arg)
{
    struct watch *watch = arg;

    /* seq_cst: pairs with the store before the ring */
    if (atomic_load_explicit(watch->word, memory_order_seq_cst) < watch->want)
        return RDT_EAGAIN;
    rdt_transfer_finish(watch->transfer, RDT_OK, NULL);
    return RDT_OK;
}

struct sleeper {
    rdt_context *ctx;
    _Atomic uint64_t *word;
    _Atomic uint64_t begun;
};

static void *
sleep_for_rounds(void *arg)
{
    struct sleeper *sleeper = arg;
    struct rdt_error why = {0};

    for (uint64_t round = 1; round <= ROUNDS; round++) {
        struct watch watch = {.word = sleeper->word, .want = round};
        CHECK_OK(rdt_transfer_create(sleeper->ctx, &watch.transfer, &why), &why);
        CHECK_OK(rdt_context_add_task(sleeper->ctx, look, &watch, &why), &why);
        atomic_store(&sleeper->begun, round);
        CHECK_OK(rdt_transfer_wait(watch.transfer, 20 * RIG_S, &why), &why);
        rdt_transfer_free(watch.transfer);
    }
    return NULL;
}

/* Without a ring each round takes a slice of 100 ms. */
TEST_TIMEOUT(a_ring_wakes_who_sleeps, 60)
{
    struct rdt_remote_region remote;
    struct sleeper sleeper = {0};
    struct pair pair;
    pthread_t thread;
    uint64_t taken_ns = 0;
    void *held = NULL;

    pair_open(&pair, RDT_TRANSPORT_SHM);
    rdt_region *region = new_region(pair.ctx[0], &remote);
    CHECK_OK(hold(&pair, &remote, &held), &err);
    sleeper.ctx = pair.ctx[0];
    sleeper.word = rdt_region_addr(region);
    CHECK_INT_EQ(pthread_create(&thread, NULL, sleep_for_rounds, &sleeper), 0);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        while (atomic_load(&sleeper.begun) < round)
            test_sleep_ns(100000);
        test_sleep_ns(5000000); /* it sleeps by now */
        const uint64_t start_ns = test_now_ns();
        atomic_store_explicit((_Atomic uint64_t *)held, round, memory_order_seq_cst);
        rdt_endpoint_ring(pair.ep[1]);
        while (round < ROUNDS && atomic_load(&sleeper.begun) == round)
            test_sleep_ns(20000);
        taken_ns += test_now_ns() - start_ns;
    }
    CHECK_INT_EQ(pthread_join(thread, NULL), 0);
    CHECK_UINT_LE(taken_ns, ROUNDS * UINT64_C(40000000));
    rdt_region_free(region, NULL, NULL);
    rdt_endpoint_unhold(pair.ep[1], &remote);
    pair_close(&pair);
}

TEST_MAIN()
