/* SPDX-License-Identifier: Apache-2.0
 * Messages under tags that are used once, while they stand both ways: an end dies, the group is
 * aborted or destroyed, a receive is given up, memory is freed under it, RDMA is lost permanently.
 * Each ends, nothing is taken for received that was not, and what goes on goes on to the byte. */
#include "core/failover_rig.h"

#include "base/error.h"
#include "message/mailbox_impl.h"
#include "message/persistent.h"

enum { DEPTH = 3, ROUNDS = 10 };
#define LEN_BYTES (RDTI_KEYED_MIN_BYTES + 5000)

static uint64_t next_tag;

/* One direction: DEPTH messages in flight, into memory of the receiver's arena. */
struct way {
    uint32_t from;
    rdt_region *region;
    uint8_t *src;
    rdt_transfer *sends[DEPTH];
    rdt_transfer *receives[DEPTH];
};

static struct way ways[2];

static uint8_t *
place_of(const struct way *way, uint32_t i)
{
    return (uint8_t *)rdt_region_addr(way->region) + i * LEN_BYTES;
}

static void
open_ways(void)
{
    struct rdt_error err = {0};

    next_tag = RDT_TAG_ONCE;
    for (uint32_t d = 0; d < 2; d++) {
        ways[d] = (struct way){.from = d, .src = malloc(DEPTH * LEN_BYTES)};
        CHECK_NOT_NULL(ways[d].src);
        CHECK_OK(rdt_region_alloc(rig.ctx[1 - d], DEPTH * LEN_BYTES, 0, &ways[d].region, &err),
                 &err);
    }
}

static void
close_ways(void)
{
    for (uint32_t d = 0; d < 2; d++) {
        rdt_region_free(ways[d].region, NULL, NULL);
        free(ways[d].src);
    }
}

static const struct rdt_message_desc desc = {.op = RDT_COLL_ALLTOALL,
                                             .dtype = RDT_U8,
                                             .count = LEN_BYTES};

static void
begin_receive(struct way *way, uint32_t i, uint64_t tag)
{
    struct rdt_error err = {0};

    CHECK_OK(rdt_group_recv(rig.group[1 - way->from], way->from, tag, place_of(way, i), LEN_BYTES,
                            &desc, &way->receives[i], &err),
             &err);
}

static void
begin_send(struct way *way, uint32_t i, uint64_t tag)
{
    struct rdt_error err = {0};

    CHECK_OK(rdt_group_send(rig.group[way->from], 1 - way->from, tag, way->src + i * LEN_BYTES,
                            LEN_BYTES, &desc, &way->sends[i], &err),
             &err);
}

static void
exchange_round(uint64_t seed)
{
    const uint64_t first = next_tag;

    next_tag += DEPTH;
    for (uint32_t d = 0; d < 2; d++)
        rig_fill(ways[d].src, DEPTH * LEN_BYTES, 2 * seed + d);
    for (uint32_t i = 0; i < DEPTH; i++)
        for (uint32_t d = 0; d < 2; d++) {
            begin_receive(&ways[d], i, first + i);
            begin_send(&ways[d], DEPTH - 1 - i, first + DEPTH - 1 - i);
        }
    for (uint32_t d = 0; d < 2; d++)
        for (uint32_t i = 0; i < DEPTH; i++) {
            end_op(ways[d].receives[i], "receive", i);
            end_op(ways[d].sends[i], "send", i);
            CHECK_MEM_EQ(place_of(&ways[d], i), ways[d].src + i * LEN_BYTES, LEN_BYTES);
        }
}

static uint64_t
placed_by(uint32_t rank)
{
    struct rdt_counters now = {.struct_size = sizeof(now)};

    rdt_context_counters(rig.ctx[rank], &now);
    return now.mailbox_placed;
}

static void
begin_standing(uint32_t transport)
{
    rig_open(&rig, 2, transport);
    open_ways();
    for (uint64_t i = 0; i < 3; i++)
        exchange_round(i);
    CHECK_UINT_GE(placed_by(0), DEPTH);
    CHECK_UINT_GE(placed_by(1), DEPTH);
}

static void
end_standing(void)
{
    close_ways();
    rig_close(&rig);
}

/* ---- Ends -------------------------------------------------------------------------------- */

static bool
has_requests(rdt_group *group)
{
    rdti_engine_enter(group->scope.ctx->engine);
    const bool is_any = !rdti_list_is_empty(&group->scope.requests);
    rdti_engine_leave(group->scope.ctx->engine);
    return is_any;
}

static void
break_path(uint32_t rank)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    rdt_endpoint *ep = rig_ready(rig.group[rank], 1 - rank);

    (void)rdti_error_set_rank(&err, RDT_EPEER, (int32_t)(1 - rank), "rank %u died", 1 - rank);
    rdti_engine_enter(rig.ctx[rank]->engine);
    rdti_endpoint_fail(ep, &err, true);
    rdti_engine_leave(rig.ctx[rank]->engine);
}

/* Rank 1 has receives that were told and rank 0 has messages that wait for theirs. */
static void
begin_waits(rdt_transfer **told, rdt_transfer **waiting)
{
    begin_receive(&ways[0], 0, next_tag++);
    begin_send(&ways[0], 1, next_tag++);
    *told = ways[0].receives[0];
    *waiting = ways[0].sends[1];
    test_sleep_ns(5000000); /* it is heard */
    CHECK_STATUS(rdt_transfer_test(*waiting, NULL), RDT_EAGAIN);
}

TEST_TIMEOUT(the_death_of_either_end_ends_what_waits, 60)
{
    const struct rig_paths paths = rig_far_paths();

    for (uint32_t p = 0; p < paths.count; p++)
        for (uint32_t witness = 0; witness < 2; witness++) {
            rdt_transfer *told;
            rdt_transfer *waiting;
            struct rdt_error err = {0};
            begin_standing(paths.transports[p]);
            begin_waits(&told, &waiting);
            break_path(witness);
            CHECK_STATUS(rig_end(witness == 0 ? waiting : told, &err), RDT_EPEER);
            CHECK_INT_EQ(err.peer_rank, (int32_t)(1 - witness));
            CHECK(rig_end(witness == 0 ? told : waiting, &err) != RDT_OK);
            CHECK_EVENTUALLY(!has_requests(rig.group[0]) && !has_requests(rig.group[1]), 10);
            end_standing();
        }
}

TEST_TIMEOUT(the_end_of_a_group_ends_what_waits, 60)
{
    const struct rig_paths paths = rig_far_paths();

    for (uint32_t p = 0; p < paths.count; p++)
        for (uint32_t how = 0; how < 4; how++) {
            const uint32_t rank = how % 2;
            rdt_transfer *told;
            rdt_transfer *waiting;
            struct rdt_error err = {0};
            begin_standing(paths.transports[p]);
            begin_waits(&told, &waiting);
            if (how < 2) {
                rdt_group_abort(rig.group[rank], "enough");
            } else {
                rdt_group_destroy(rig.group[rank]);
                rig.group[rank] = NULL;
                rdt_group_abort(rig.group[1 - rank], "alone");
            }
            CHECK(rig_end(told, &err) < RDT_OK);
            CHECK(rig_end(waiting, &err) < RDT_OK);
            end_standing();
        }
}

/* Against what collectives do, and yet nothing else changes. */
TEST_TIMEOUT(a_receive_that_is_given_up_takes_nothing, 60)
{
    const struct rig_paths paths = rig_far_paths();

    for (uint32_t p = 0; p < paths.count; p++) {
        begin_standing(paths.transports[p]);
        const uint64_t tag = next_tag++;
        begin_receive(&ways[0], 0, tag);
        memset(place_of(&ways[0], 0), 0x11, LEN_BYTES);
        rdt_transfer_free(ways[0].receives[0]);
        CHECK_EVENTUALLY(!has_requests(rig.group[1]), 10);
        begin_receive(&ways[0], 1, tag);
        begin_send(&ways[0], 1, tag);
        end_op(ways[0].receives[1], "receive", 1);
        end_op(ways[0].sends[1], "send", 1);
        for (uint64_t b = 0; b < LEN_BYTES; b++)
            CHECK_INT_EQ(((const uint8_t *)place_of(&ways[0], 0))[b], 0x11);
        const uint64_t before = placed_by(0);
        for (uint64_t i = 0; i < 3; i++)
            exchange_round(10 + i);
        CHECK_UINT_GE(placed_by(0) - before, DEPTH); /* they stand again */
        end_standing();
    }
}

TEST_TIMEOUT(a_place_that_is_freed_under_its_receive_ends_it, 60)
{
    struct rdt_error err = {0};

    begin_standing(RDT_TRANSPORT_TCP);
    const uint64_t tag = next_tag++;
    begin_receive(&ways[0], 0, tag);
    test_sleep_ns(5000000);
    rdt_region_free(ways[0].region, NULL, NULL);
    begin_send(&ways[0], 0, tag);
    CHECK(rig_end(ways[0].sends[0], &err) != RDT_OK);
    CHECK_STATUS(rig_end(ways[0].receives[0], &err), RDT_ESTALE);
    CHECK_STR_CONTAINS(err.message, "freed before its message came");
    CHECK_OK(rdt_region_alloc(rig.ctx[1], DEPTH * LEN_BYTES, 0, &ways[0].region, &err), &err);
    for (uint64_t i = 0; i < 3; i++)
        exchange_round(20 + i);
    end_standing();
}

/* ---- RDMA is lost ------------------------------------------------------------------------ */

/* Requests that were executed. */
static uint64_t
run_and_cut(const struct sim_config *config, bool is_cut, uint64_t n, bool *has_moved)
{
    open_rig(config, RDT_TRANSPORT_AUTO);
    open_ways();
    exchange_round(1);
    CHECK_UINT_EQ(rdt_endpoint_transport(rig_ready(rig.group[0], 1)), RDT_TRANSPORT_VERBS);
    const uint64_t before = sim_executed();
    if (is_cut)
        sim_cut_after(0, n, (uint32_t)(n % 11));
    for (uint64_t i = 0; i < ROUNDS; i++)
        exchange_round(2 + i);
    const uint64_t executed = sim_executed() - before;
    *has_moved = rdt_endpoint_transport(rig_ready(rig.group[0], 1)) == RDT_TRANSPORT_TCP;
    if (*has_moved) { /* what stood stands over tcp */
        const uint64_t placed = placed_by(0);
        for (uint64_t i = 0; i < 3; i++)
            exchange_round(90 + i);
        CHECK_UINT_EQ(placed_by(0) - placed, 3 * DEPTH);
    }
    close_ways();
    close_rig();
    return executed;
}

TEST_TIMEOUT(what_stands_goes_on_over_tcp_when_rdma_is_lost, 240)
{
    struct sim_config config = config_of(1, 1);
    bool has_moved = false;
    uint32_t runs = 0, moves = 0;
    const uint64_t count = run_and_cut(&config, false, 0, &has_moved);
    const uint64_t step = count / (test_timeout_scale() > 1 ? 4 : 24) + 1;

    CHECK(!has_moved);
    for (uint64_t n = 0; n < count; n += step) {
        config = config_of(1, n + 1);
        (void)run_and_cut(&config, true, n, &has_moved);
        runs++;
        moves += has_moved;
    }
    printf("  lost before %u of %" PRIu64 " requests, %u times seen\n", runs, count, moves);
    CHECK_UINT_GE(moves, runs / 2);
}

TEST_MAIN()
