/* SPDX-License-Identifier: Apache-2.0
 * A member of the host that writes what it likes into its board: whoever reads it is told what was
 * wrong, and no byte that the collective does not own changes. */
#include "collectives/fake_group.h"

#include "collectives/team/team.h"
#include "rdmatensor_ext.h"

static struct fake_world world;
static struct rdt_error results[FAKE_RANKS_MAX];

enum {
    LIAR = 1,
    TENSOR_BYTES = 512 * 1024, /* from 256 KiB on, the first tick says where a tensor lies */
    TENSOR_OFF = 64 * 1024,
    REGION_BYTES = TENSOR_OFF + TENSOR_BYTES + 64 * 1024,
};

/* What the liar stores, after an honest description and with all that it does not name zero. */
struct lie {
    struct rdt_message_desc desc; /* added to the honest one */
    uint64_t tick;                /* likewise, and of the tick that follows */
    uint64_t passed;              /* added to the tick before, which is stored already */
    uint64_t steps;               /* of all_to_all */
    uint64_t sent_bytes;          /* of all_to_all, to everybody */
    bool is_counted;              /* they are right */
    uint8_t saying;               /* the first bytes of the stage, as wire.md has them */
    uint8_t number;
    bool is_foreign;       /* the region is nobody's */
    uint64_t region_bytes; /* less than the region has; 0: what it has */
    uint64_t off_bytes;
    bool is_busy; /* it is at work in others' tensors, for ever */
};

static struct {
    struct lie lie;
    uint32_t op;
    rdt_status status;
    const char *said;
} now;

static struct rdt_coll_args
call_of(uint8_t *tensor, uint8_t *other)
{
    const bool is_sum = now.op == RDT_COLL_ALLREDUCE;

    if (now.op == RDT_COLL_BARRIER)
        return (struct rdt_coll_args){.struct_size = sizeof(struct rdt_coll_args), .op = now.op};
    return (struct rdt_coll_args){.struct_size = sizeof(struct rdt_coll_args),
                                  .op = now.op,
                                  .dtype = RDT_I32,
                                  .reduce_op = is_sum ? RDT_SUM : 0,
                                  .count = TENSOR_BYTES / 4 / (is_sum ? 1 : world.size),
                                  .send = is_sum ? tensor : other,
                                  .recv = tensor};
}

/* Of the honest: what all that is not its tensor holds is what it was. */
static void
check_outside(const uint8_t *bytes)
{
    for (uint64_t i = 0; i < REGION_BYTES; i++)
        if (i < TENSOR_OFF || i >= TENSOR_OFF + TENSOR_BYTES)
            CHECK_INT_EQ(bytes[i], 0x5a);
}

static void
tell(rdt_group *group, rdt_region *region)
{
    struct rdti_team *team = rdt_group_attached(group);
    struct rdti_board *board = team->members[LIAR].board;
    const uint64_t tick = team->tick + 1;
    struct rdti_line *line = &board->ticks[tick % RDTI_AHEAD_TICKS].line;
    struct rdti_line *next = &board->ticks[(tick + 1) % RDTI_AHEAD_TICKS].line;
    uint8_t *stage = board->stages[tick % 2];
    const struct lie *lie = &now.lie;
    const struct rdt_coll_args args = call_of(NULL, NULL);
    const uint64_t count = now.op == RDT_COLL_ALLTOALL ? 0 : args.count; /* may differ */
    const uint64_t sent_bytes = lie->is_counted ? 4 * args.count : lie->sent_bytes;
    struct rdt_remote_region remote;

    line->desc = (struct rdt_message_desc){.op = args.op + lie->desc.op,
                                           .dtype = args.dtype + lie->desc.dtype,
                                           .reduce_op = args.reduce_op + lie->desc.reduce_op,
                                           .root = args.root + lie->desc.root,
                                           .count = count + lie->desc.count,
                                           .sequence = 2 + lie->desc.sequence};
    line->u.steps = lie->steps;
    if (now.op == RDT_COLL_ALLTOALL) {
        for (uint32_t i = 0; i < world.size; i++)
            memcpy(stage + i * sizeof(uint64_t), &sent_bytes, sizeof(uint64_t));
    } else {
        CHECK_STATUS(rdt_region_export(region, &remote, NULL), RDT_OK);
        remote.addr += lie->is_foreign ? 64 : 0;
        if (lie->region_bytes != 0)
            remote.len_bytes = lie->region_bytes;
        stage[0] = lie->saying;
        stage[1] = lie->number;
        memcpy(stage + 2, &lie->off_bytes, sizeof(uint64_t));
        rdt_remote_region_encode(&remote, stage + 2 + sizeof(uint64_t));
    }
    atomic_store(&board->place.is_busy, lie->is_busy ? 1 : 0);
    if (lie->tick != 0)
        atomic_store(&next->tick, tick + 1 + lie->tick);
    atomic_store(&line->tick, tick + lie->tick);
}

/* Before anybody looks: where the liar says that it is. */
static void
tell_passed(rdt_group *group)
{
    struct rdti_team *team = rdt_group_attached(group);
    struct rdti_board *board = team->members[LIAR].board;

    atomic_store(&board->ticks[team->tick % RDTI_AHEAD_TICKS].line.tick,
                 team->tick + now.lie.passed);
}

static void *
run_rank(void *arg)
{
    rdt_group *group = arg;
    struct rdt_coll_args args = {.struct_size = sizeof(args), .op = RDT_COLL_BARRIER};
    struct rdt_error err = {0};
    rdt_region *region = NULL;
    uint8_t *other = calloc(1, TENSOR_BYTES);

    CHECK_NOT_NULL(other);
    CHECK_OK(fake_run_coll(group, &args, &err), &err); /* the set-up */
    CHECK_OK(rdt_region_alloc(&group->context, REGION_BYTES, RDT_REGION_ZERO, &region, &err), &err);
    uint8_t *bytes = rdt_region_addr(region);
    memset(bytes, 0x5a, REGION_BYTES);
    fake_world_meet(&world); /* all are through with the set-up */
    if (group->rank == LIAR)
        tell_passed(group);
    fake_world_meet(&world);
    if (group->rank == LIAR) {
        tell(group, region);
    } else {
        args = call_of(bytes + TENSOR_OFF, other);
        if (fake_run_coll(group, &args, &results[group->rank]) != RDT_OK)
            rdt_group_abort(group, results[group->rank].message);
    }
    fake_world_meet(&world);
    if (group->rank == LIAR)
        for (uint64_t i = 0; i < REGION_BYTES; i++)
            CHECK_INT_EQ(bytes[i], 0x5a);
    check_outside(bytes);
    rdt_region_free(region, NULL, NULL);
    free(other);
    return NULL;
}

/* With two members all is told to the honest one; of three the other may hear of the end first, or
 * come later than a short deadline. */
static void
check_lie(void)
{
    const uint32_t most = now.status == RDT_ETIMEDOUT ? 2 : 3;

    for (uint32_t size = 2; size <= most; size++) {
        unsigned told = 0;
        memset(results, 0, sizeof(results));
        fake_force("direct");
        fake_world_init(&world, size, size);
        for (uint32_t rank = 0; rank < size; rank++)
            if (now.status == RDT_ETIMEDOUT)
                world.groups[rank].timeout_ns = UINT64_C(100000000);
        fake_world_run(&world, run_rank);
        for (uint32_t rank = 0; rank < size; rank++) {
            CHECK_MSG(rank == LIAR || results[rank].status != RDT_OK, "%s: rank %u believed it",
                      now.said, (unsigned)rank);
            if (results[rank].status != now.status)
                continue;
            CHECK_STR_CONTAINS(results[rank].message, now.said);
            if (!now.lie.is_foreign) /* the call of the fake that refuses it names nobody */
                CHECK_STR_CONTAINS(results[rank].message, "rank 1");
            told++;
        }
        CHECK_MSG(told > 0, "%s: nobody was told, but: %s", now.said, results[0].message);
        fake_world_fini(&world);
    }
}

static void
lie_of(uint32_t op, rdt_status status, const char *said, struct lie lie)
{
    now.lie = lie;
    now.op = op;
    now.status = status;
    now.said = said;
    check_lie();
}

TEST_TIMEOUT(a_call_that_is_none_is_refused, 60)
{
    const uint32_t op = RDT_COLL_ALLREDUCE;

    lie_of(op, RDT_EMISMATCH, "rank 1 called", (struct lie){.desc.op = 90});
    lie_of(op, RDT_EMISMATCH, "rank 1 called", (struct lie){.desc.op = UINT32_MAX});
    lie_of(op, RDT_EMISMATCH, "rank 1 called", (struct lie){.desc.dtype = 1000});
    lie_of(op, RDT_EMISMATCH, "rank 1 called", (struct lie){.desc.reduce_op = UINT32_MAX});
    lie_of(op, RDT_EMISMATCH, "rank 1 called", (struct lie){.desc.root = 64});
    lie_of(op, RDT_EMISMATCH, "rank 1 called", (struct lie){.desc.count = UINT64_MAX / 2});
    lie_of(op, RDT_EMISMATCH, "rank 1 called", (struct lie){.desc.sequence = UINT64_MAX - 5});
}

TEST_TIMEOUT(a_place_that_is_none_is_refused, 60)
{
    static const char outside[] = "its tensor lies where it does not fit";
    static const char nothing[] = "its tensor lies in bytes that mean nothing: place of a tensor: ";
    const uint32_t op = RDT_COLL_ALLREDUCE;
    enum { IS_NEW = 1, IS_KNOWN = 2 };

    lie_of(op, RDT_EPROTO, outside,
           (struct lie){.saying = IS_NEW, .off_bytes = REGION_BYTES - TENSOR_BYTES + 1});
    lie_of(op, RDT_EPROTO, outside, (struct lie){.saying = IS_NEW, .off_bytes = REGION_BYTES});
    lie_of(op, RDT_EPROTO, nothing, (struct lie){.saying = IS_NEW, .off_bytes = UINT64_MAX});
    lie_of(op, RDT_EPROTO, nothing,
           (struct lie){.saying = IS_NEW, .off_bytes = UINT64_MAX - TENSOR_BYTES + 1});
    lie_of(op, RDT_EPROTO, nothing, (struct lie){.saying = 3});
    lie_of(op, RDT_EPROTO, nothing, (struct lie){.saying = UINT8_MAX});
    lie_of(op, RDT_EPROTO, nothing, (struct lie){.saying = 0, .number = 7});
    lie_of(op, RDT_EPROTO, outside,
           (struct lie){.saying = IS_NEW, .region_bytes = TENSOR_BYTES - 1});
    lie_of(op, RDT_EPROTO, "named a place that it had not told",
           (struct lie){.saying = IS_KNOWN, .number = 7});
    lie_of(op, RDT_ESTALE, "", (struct lie){.saying = IS_NEW, .is_foreign = true});
}

/* Those that fail wait for it, as they would for an honest one, but not for ever. */
TEST_TIMEOUT(a_member_that_is_always_at_work_is_not_waited_for, 60)
{
    lie_of(RDT_COLL_ALLREDUCE, RDT_ETIMEDOUT, "nothing from",
           (struct lie){.tick = UINT64_MAX / 2, .is_busy = true});
}

TEST_TIMEOUT(an_exchange_that_is_none_is_refused, 60)
{
    const uint32_t op = RDT_COLL_ALLTOALL;

    lie_of(op, RDT_EMISMATCH, "it sends 18446744073709551615 bytes",
           (struct lie){.steps = 1, .sent_bytes = UINT64_MAX});
    lie_of(op, RDT_EMISMATCH, "it sends 0 bytes", (struct lie){.steps = 1});
}

/* No member can be further than the tick that it waits for us in: such a one has not come. */
TEST_TIMEOUT(a_tick_that_cannot_be_is_no_progress, 60)
{
    lie_of(RDT_COLL_BARRIER, RDT_ETIMEDOUT, "nothing from", (struct lie){.tick = UINT64_MAX / 2});
    lie_of(RDT_COLL_ALLREDUCE, RDT_ETIMEDOUT, "nothing from rank 1 (round 1 of 2)",
           (struct lie){.passed = 2 * RDTI_AHEAD_TICKS});
    lie_of(RDT_COLL_ALLREDUCE, RDT_ETIMEDOUT, "nothing from rank 1 (round 1 of 2)",
           (struct lie){.passed = RDTI_AHEAD_TICKS, .tick = RDTI_AHEAD_TICKS});
}

TEST_TIMEOUT(ticks_without_an_end_end_at_the_deadline, 20)
{
    lie_of(RDT_COLL_ALLTOALL, RDT_ETIMEDOUT, "nothing from",
           (struct lie){.tick = UINT64_MAX / 2, .steps = UINT64_MAX / 4, .is_counted = true});
}

TEST_MAIN()
