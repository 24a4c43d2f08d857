/* SPDX-License-Identifier: Apache-2.0
 * A frame of the side channel finds no memory: the connection ends here and there, and nobody is
 * taken for dead, whose memory would be given away while it is still used. */
#include <stdatomic.h>
#include <stdlib.h>

#include "connect/channel.h"
#include "endpoint/endpoint_impl.h"
#include "pair_rig.h"
#include "rdmatensor_ext.h"

static const uint32_t transports[] = {RDT_TRANSPORT_SHM, RDT_TRANSPORT_TCP};

/* ---- What the linker hands here (cmake/CTests.cmake) ----------------------------------------- */

static _Atomic(struct rdti_channel *) poor; /* whose frames find no memory */
static _Thread_local bool is_poor_frame;

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void __real_rdti_channel_send(struct rdti_channel *channel, uint16_t type, const uint8_t *payload,
                              size_t payload_bytes, const int *fds, uint32_t fd_count);
void __wrap_rdti_channel_send(struct rdti_channel *channel, uint16_t type, const uint8_t *payload,
                              size_t payload_bytes, const int *fds, uint32_t fd_count);

void *
__wrap_malloc(size_t bytes)
{
    return is_poor_frame ? NULL : __real_malloc(bytes);
}

void
__wrap_rdti_channel_send(struct rdti_channel *channel, uint16_t type, const uint8_t *payload,
                         size_t payload_bytes, const int *fds, uint32_t fd_count)
{
    is_poor_frame = channel == atomic_load(&poor);
    __real_rdti_channel_send(channel, type, payload, payload_bytes, fds, fd_count);
    is_poor_frame = false;
}

/* ---- Ends ------------------------------------------------------------------------------------ */

static atomic_uint drained;

static void
on_drained(void *arg)
{
    (void)arg;
    (void)atomic_fetch_add(&drained, 1);
}

static rdt_region *
new_region(rdt_context *ctx, struct rdt_remote_region *remote_out)
{
    struct rdt_error err = {0};
    rdt_region *region = NULL;

    CHECK_OK(rdt_region_alloc(ctx, 4096, RDT_REGION_ZERO, &region, &err), &err);
    CHECK_OK(rdt_region_export(region, remote_out, &err), &err);
    return region;
}

/* ep[1] ends at its next heartbeat, for want of memory; ep[0] hears why. */
static void
starve(struct pair *pair)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    uint32_t value;

    atomic_store(&poor, pair->ep[1]->channel);
    CHECK_STATUS(rdt_endpoint_wait_notify(pair->ep[0], 20 * RIG_S, &value, &err), RDT_EPEER);
    atomic_store(&poor, NULL);
    CHECK_INT_EQ(err.peer_rank, 1);
    CHECK_STR_CONTAINS(err.message, "rank 1 closed the connection: no memory for a frame");
    CHECK_STATUS(rdt_endpoint_wait_notify(pair->ep[1], 20 * RIG_S, &value, &err), RDT_ENOMEM);
    CHECK_INT_EQ(err.peer_rank, 0);
}

TEST_TIMEOUT(who_lost_a_frame_lives_and_comes_back, 60)
{
    for (int t = 0; t < 2; t++) {
        struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
        struct pair pair;
        pair_open(&pair, transports[t]);
        starve(&pair);
        for (int i = 0; i < 2; i++)
            rdt_endpoint_close(pair.ep[i]);
        for (int i = 0; i < 2; i++)
            endpoint_make(pair.ctx[i], pair.ctx[1 - i], 1 - i, &pair.ep[i]);
        for (int i = 0; i < 2; i++)
            check_ok(rdt_endpoint_wait_ready(pair.ep[i], 10 * RIG_S, &err), &err, "again");
        pair_close(&pair);
    }
}

TEST_TIMEOUT(memory_that_it_holds_is_not_given_away, 60)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    struct rdt_remote_region remote;
    struct pair pair;
    void *held = NULL;
    rdt_status status;

    pair_open(&pair, RDT_TRANSPORT_SHM);
    rdt_region *region = new_region(pair.ctx[0], &remote);
    while ((status = rdt_endpoint_hold(pair.ep[1], &remote, &held, &err)) == RDT_EAGAIN) {
        CHECK_OK(rdt_context_progress(pair.ctx[1]), &err);
        test_sleep_ns(100000);
    }
    CHECK_OK(status, &err);
    starve(&pair);
    rdt_region_free(region, on_drained, NULL);
    test_sleep_ns((uint64_t)(300e6 * test_timeout_scale()));
    CHECK_UINT_EQ(atomic_load(&drained), 0);
    strcpy(held, "written by who holds it");
    rdt_endpoint_unhold(pair.ep[1], &remote);
    CHECK_EVENTUALLY(atomic_load(&drained) == 1, 10);
    pair_close(&pair);
}

TEST_TIMEOUT(a_goodbye_needs_no_memory, 60)
{
    for (int t = 0; t < 2; t++) {
        struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
        struct pair pair;
        uint32_t value;
        pair_open(&pair, transports[t]);
        atomic_store(&poor, pair.ep[1]->channel);
        rdt_endpoint_close(pair.ep[1]);
        CHECK_STATUS(rdt_endpoint_wait_notify(pair.ep[0], 20 * RIG_S, &value, &err), RDT_EPEER);
        atomic_store(&poor, NULL);
        CHECK_MSG(strstr(err.message, "died") == NULL, "%s", err.message);
        rdt_endpoint_close(pair.ep[0]);
        for (int i = 0; i < 2; i++)
            check_ok(rdt_context_close(pair.ctx[i], &err), &err, "context_close");
    }
}

TEST_MAIN()
