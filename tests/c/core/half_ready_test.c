/* SPDX-License-Identifier: Apache-2.0
 * Rank 2 holds its path to rank 1 for ready, which has not heard of it yet. Rank 1 leaves: what
 * made it leave is told before the goodbye, or rank 2 would name the one that noticed. Or its time
 * is over: it checks whether the answer is there already. */
#include <stdatomic.h>

#include "endpoint/endpoint_impl.h"
#include "endpoint/failures.h"
#include "group_rig.h"
#include "process/process.h"
#include "rdmatensor_ext.h"

/* ---- What the linker hands here (cmake/CTests.cmake) ----------------------------------------- */

static _Atomic(struct rdti_engine *) slow; /* whose READY waits until it is slow no more */
static atomic_bool is_waiting;

void __real_rdti_channel_send(struct rdti_channel *channel, uint16_t type, const uint8_t *payload,
                              size_t payload_bytes, const int *fds, uint32_t fd_count);
void __wrap_rdti_channel_send(struct rdti_channel *channel, uint16_t type, const uint8_t *payload,
                              size_t payload_bytes, const int *fds, uint32_t fd_count);

void
__wrap_rdti_channel_send(struct rdti_channel *channel, uint16_t type, const uint8_t *payload,
                         size_t payload_bytes, const int *fds, uint32_t fd_count)
{
    struct rdti_engine *engine = type == RDTI_FRAME_READY ? atomic_load(&slow) : NULL;
    const uint64_t deadline_ns = test_now_ns() + rig_patience_ns();

    if (engine != NULL && rdti_engine_is_driver(engine)) {
        atomic_store(&is_waiting, true);
        while (atomic_load(&slow) == engine && test_now_ns() < deadline_ns)
            test_sleep_ns(100000);
    }
    __real_rdti_channel_send(channel, type, payload, payload_bytes, fds, fd_count);
}

/* ---- The one that leaves --------------------------------------------------------------------- */

static bool
is_half_ready(rdt_context *ctx, rdt_endpoint *ep)
{
    rdti_engine_enter(ctx->engine);
    const bool is_half = rdti_endpoint_is_half_ready(ep);
    rdti_engine_leave(ctx->engine);
    return is_half;
}

static bool
knows_of_death(rdt_context *ctx, const rdt_context *dead)
{
    rdti_engine_enter(ctx->engine);
    const bool is_known = rdti_context_find_obituary(ctx, dead->uuid) != NULL;
    rdti_engine_leave(ctx->engine);
    return is_known;
}

/* Rank 2 waits for a message of rank 1, to which its READY is on its way. */
static rdt_transfer *
begin(struct rig *rig, uint32_t *got)
{
    struct rdt_error err = {0};
    rdt_endpoint *ep;

    rig_open(rig, 3, RDT_TRANSPORT_SHM);
    (void)rig_ready(rig->group[1], 0);
    rdti_engine_enter(rig->ctx[1]->engine); /* no answer before rank 2 is to be slow */
    rdt_transfer *waits = rig_recv(rig, 2, 1, 1, got, sizeof(*got));
    atomic_store(&is_waiting, false);
    atomic_store(&slow, rig->ctx[2]->engine);
    rdti_engine_leave(rig->ctx[1]->engine);
    CHECK_OK(rdt_group_endpoint(rig->group[1], 2, &ep, &err), &err);
    CHECK_EVENTUALLY(atomic_load(&is_waiting), 10);
    CHECK_EVENTUALLY(is_half_ready(rig->ctx[1], ep), 10);
    return waits;
}

/* Rank 1 leaves, rank 2 goes on and names `rank`. */
static void
end(struct rig *rig, rdt_transfer *waits, int32_t rank, const char *words)
{
    struct rdt_error err = {0};

    rdt_group_destroy(rig->group[1]);
    rig->group[1] = NULL;
    atomic_store(&slow, NULL);
    CHECK_STATUS(rig_end(waits, &err), RDT_EPEER);
    CHECK_STR_CONTAINS(err.message, words);
    CHECK_INT_EQ(err.peer_rank, rank);
}

TEST(who_leaves_half_ready_names_the_dead)
{
    struct rdti_obituary news = {.rank = 0, .reason = "rank 0 died: killed"};
    struct rig rig;
    uint32_t got;
    rdt_transfer *waits = begin(&rig, &got);

    memcpy(news.uuid, rig.ctx[0]->uuid, RDT_UUID_BYTES);
    rdti_engine_enter(rig.ctx[1]->engine);
    rdti_context_announce_death(rig.ctx[1], &news, NULL);
    rdti_engine_leave(rig.ctx[1]->engine);
    end(&rig, waits, 0, "rank 0 died: killed");
    /* Also to groups to come, and to whoever asks rank 2. */
    CHECK_EVENTUALLY(knows_of_death(rig.ctx[2], rig.ctx[0]), 10);
    rig_close(&rig);
}

TEST(who_aborts_half_ready_says_why)
{
    struct rig rig;
    uint32_t got;
    rdt_transfer *waits = begin(&rig, &got);

    rdt_group_abort(rig.group[1], "its loss is not a number");
    end(&rig, waits, 1, "rank 1 aborted the group 'world': its loss is not a number");
    rig_close(&rig);
}

TEST(who_had_no_core_takes_the_answer_that_is_there)
{
    const uint32_t said = 7;
    struct rdt_error err = {0};
    struct rig rig;
    rdt_endpoint *here, *there;
    uint32_t got = 0;
    rdt_transfer *waits = begin(&rig, &got);

    CHECK_OK(rdt_group_endpoint(rig.group[1], 2, &here, &err), &err);
    rdti_engine_enter(rig.ctx[1]->engine); /* nobody reads what comes */
    atomic_store(&slow, NULL);
    CHECK_OK(rdt_group_endpoint(rig.group[2], 1, &there, &err), &err);
    CHECK_EVENTUALLY(rdti_endpoint_get_state(there) == RDTI_EP_READY, 10);
    here->setup->path_deadline_ns = 0;
    rdti_path_tick(rig.ctx[1]);
    rdti_engine_leave(rig.ctx[1]->engine);
    CHECK_OK(rig_end(rig_send(&rig, 1, 2, 1, &said, sizeof(said)), &err), &err);
    CHECK_OK(rig_end(waits, &err), &err);
    CHECK_UINT_EQ(got, said);
    rig_close(&rig);
}

TEST_MAIN()
