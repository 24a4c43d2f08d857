/* SPDX-License-Identifier: Apache-2.0
 * A member that sends nonsense where persistent collectives are initialised and started: the others
 * name it and what was wrong, and write nothing outside their tensors. */
#include "collectives/fake_group.h"

#include "collectives/team/team.h"
#include "wire/group/persistent.h"

enum {
    LIAR = 1,
    COUNT = 64 * 1024,
    TENSOR_BYTES = COUNT * 4, /* from 128 KiB on, tensors in arenas are used in place */
    REGION_BYTES = 2 * TENSOR_BYTES,
};

static struct fake_world world;

/* What the liar sends in place of an honest record, vote or start. */
static struct {
    struct rdti_persistent_record record;
    bool is_foreign; /* its region is of no member */
    uint8_t vote;
    uint64_t number; /* added to the honest one */
    uint64_t is_aside;
} lie;

static struct rdt_coll_args
args_of(uint8_t *tensor)
{
    return (struct rdt_coll_args){.struct_size = sizeof(struct rdt_coll_args),
                                  .op = RDT_COLL_ALLREDUCE,
                                  .dtype = RDT_I32,
                                  .reduce_op = RDT_SUM,
                                  .count = COUNT,
                                  .send = tensor,
                                  .recv = tensor};
}

/* The exchange of an initialisation, with bytes of the caller's choice. */
static void
exchange(rdt_group *group, const void *own, uint64_t len_bytes)
{
    uint8_t *all = calloc(world.size, len_bytes);
    struct rdt_error err = {0};

    CHECK_NOT_NULL(all);
    const struct rdt_coll_args args = {.struct_size = sizeof(args),
                                       .op = RDT_COLL_ALLGATHER,
                                       .dtype = RDT_U8,
                                       .count = len_bytes,
                                       .send = own,
                                       .recv = all};
    CHECK_OK(fake_run_coll(group, &args, &err), &err);
    free(all);
}

static void
send_lies(rdt_group *group, rdt_region *region)
{
    struct rdti_persistent_record record = lie.record;
    uint8_t bytes[RDTI_PERSISTENT_RECORD_BYTES];

    if (record.landing == RDT_LANDING_OFFERED) {
        CHECK_STATUS(rdt_region_export(region, &record.place.region, NULL), RDT_OK);
        record.place.region.addr += lie.is_foreign ? 64 : 0;
    }
    rdti_persistent_record_encode(&record, bytes);
    exchange(group, bytes, sizeof(bytes));
    exchange(group, &lie.vote, 1);
}

/* The first tick of a start, as docs/wire.md has it. */
static void
send_start(rdt_group *group)
{
    struct rdti_team *team = rdt_group_attached(group);
    const uint64_t tick = team->tick + 1;
    struct rdti_line *line = &team->members[LIAR].board->ticks[tick % RDTI_AHEAD_TICKS].line;
    const struct rdti_persistent_start start = {.number = 1 + lie.number, .is_aside = lie.is_aside};
    const uint32_t number = 1 + 1; /* the first of the group's collectives */

    line->desc = (struct rdt_message_desc){.op = RDT_COLL_ALLREDUCE,
                                           .dtype = RDT_I32,
                                           .reduce_op = RDT_SUM | number << RDT_DESC_BITS,
                                           .count = COUNT,
                                           .sequence = 3};
    rdti_persistent_start_encode(&start, line->u.payload);
    atomic_store(&line->tick, tick);
}

static rdt_status
init(rdt_group *group, uint8_t *tensor, rdt_persistent **out, struct rdt_error *err)
{
    const struct rdt_coll_args args = args_of(tensor);
    rdt_transfer *t = NULL;

    CHECK_OK(rdt_coll_init(group, &args, out, &t, err), err);
    CHECK_OK(fake_wait(group, t, err), err);
    const rdt_status status = rdt_coll_bind(*out, &t, err);
    return status == RDT_OK ? fake_wait(group, t, err) : status;
}

static struct {
    rdt_status status;
    const char *said;
    uint32_t way;
    uint32_t landing;
} want;

static void
check_end(rdt_status status, const struct rdt_error *err)
{
    CHECK_MSG(status == want.status, "%d, not %d: %s", (int)status, (int)want.status, err->message);
    if (want.status == RDT_OK)
        return;
    CHECK_STR_CONTAINS(err->message, want.said);
    CHECK_STR_CONTAINS(err->message, "rank 1");
}

static void
check_binding(const rdt_persistent *persistent)
{
    struct rdt_coll_binding binding = {.struct_size = sizeof(binding)};

    rdt_coll_get_binding(persistent, &binding);
    CHECK_UINT_EQ(binding.way, want.way);
    CHECK_UINT_EQ(binding.landing, want.landing);
    CHECK_UINT_EQ(binding.struct_size, sizeof(binding));
}

static void *
run_lies(void *arg)
{
    rdt_group *group = arg;
    rdt_region *region = NULL;
    rdt_persistent *persistent = NULL;
    struct rdt_error err = {0};
    const struct rdt_coll_args barrier = {.struct_size = sizeof(barrier), .op = RDT_COLL_BARRIER};

    CHECK_OK(rdt_region_alloc(&group->context, REGION_BYTES, RDT_REGION_ZERO, &region, &err), &err);
    if (group->rank == LIAR) {
        send_lies(group, region);
    } else {
        check_end(init(group, rdt_region_addr(region), &persistent, &err), &err);
        check_binding(persistent);
        rdt_coll_free(persistent);
    }
    CHECK_OK(fake_run_coll(group, &barrier, &err), &err); /* the group goes on */
    rdt_region_free(region, NULL, NULL);
    return NULL;
}

static void *
run_start(void *arg)
{
    rdt_group *group = arg;
    rdt_region *region = NULL;
    rdt_persistent *persistent = NULL;
    rdt_transfer *t = NULL;
    struct rdt_error err = {0};

    CHECK_OK(rdt_region_alloc(&group->context, REGION_BYTES, RDT_REGION_ZERO, &region, &err), &err);
    CHECK_OK(init(group, rdt_region_addr(region), &persistent, &err), &err);
    check_binding(persistent);
    fake_world_meet(&world);
    if (group->rank == LIAR) {
        send_start(group);
    } else {
        CHECK_OK(rdt_coll_start(persistent, 0, &t, &err), &err);
        check_end(fake_wait(group, t, &err), &err);
    }
    fake_world_meet(&world);
    const uint8_t *bytes = rdt_region_addr(region);
    for (uint64_t i = 0; i < REGION_BYTES; i++)
        CHECK_INT_EQ(bytes[i], 0);
    rdt_coll_free(persistent);
    rdt_region_free(region, NULL, NULL);
    return NULL;
}

static void
run(void *(*rank_main)(void *group), uint32_t most)
{
    for (uint32_t size = 2; size <= most; size++) {
        fake_force("direct");
        fake_world_init(&world, size, size);
        fake_world_run(&world, rank_main);
        fake_world_fini(&world);
    }
}

static void
be_honest(void)
{
    memset(&lie, 0, sizeof(lie));
    lie.record = (struct rdti_persistent_record){.op = RDT_COLL_ALLREDUCE,
                                                 .dtype = RDT_I32,
                                                 .reduce_op = RDT_SUM,
                                                 .count = COUNT,
                                                 .landing = RDT_LANDING_OFFERED};
    lie.vote = RDTI_VOTE_LANDED;
}

static void
expect(rdt_status status, const char *said, uint32_t way, uint32_t landing)
{
    want.status = status;
    want.said = said;
    want.way = way;
    want.landing = landing;
}

TEST(without_a_lie_all_is_well)
{
    be_honest();
    expect(RDT_OK, NULL, RDT_WAY_IN_PLACE, RDT_LANDING_OFFERED);
    run(run_lies, 3);
}

TEST(a_record_that_means_nothing_is_refused)
{
    be_honest();
    lie.record.op = 77;
    expect(RDT_EPROTO, "initialised a persistent collective: no such operation", RDT_WAY_UNBOUND,
           0);
    run(run_lies, 3);
    be_honest();
    lie.record.dtype = UINT8_MAX;
    expect(RDT_EPROTO, "initialised a persistent collective: no such dtype", RDT_WAY_UNBOUND, 0);
    run(run_lies, 3);
    be_honest();
    lie.record.landing = RDT_LANDING_NOT_HELD;
    expect(RDT_EPROTO, "initialised a persistent collective: no such landing", RDT_WAY_UNBOUND, 0);
    run(run_lies, 3);
}

TEST(a_tensor_that_does_not_fit_is_refused)
{
    be_honest();
    lie.record.place.off_bytes = REGION_BYTES - TENSOR_BYTES + 1;
    expect(RDT_EPROTO, "sent the place of a tensor that does not fit there", RDT_WAY_UNBOUND, 0);
    run(run_lies, 3);
}

/* All use stages, as where memory was freed. */
TEST(a_region_of_nobody_is_not_used)
{
    be_honest();
    lie.is_foreign = true;
    expect(RDT_OK, NULL, RDT_WAY_STAGES, RDT_LANDING_NOT_HELD);
    run(run_lies, 3);
}

TEST(an_offer_that_is_none_is_not_used)
{
    be_honest();
    lie.record.landing = RDT_LANDING_UNUSED;
    lie.vote = RDTI_VOTE_BOUND;
    expect(RDT_OK, NULL, RDT_WAY_STAGES, RDT_LANDING_UNUSED);
    run(run_lies, 3);
}

TEST(a_vote_that_is_none_is_refused)
{
    be_honest();
    lie.vote = 0;
    expect(RDT_EPROTO, "sent a vote for a persistent collective: no such vote", RDT_WAY_UNBOUND, 0);
    run(run_lies, 3);
    lie.vote = UINT8_MAX;
    run(run_lies, 3);
}

/* The others would write into tensors that the liar does not use. */
TEST(a_vote_that_ignores_the_offers_is_refused)
{
    be_honest();
    lie.vote = RDTI_VOTE_BOUND;
    expect(RDT_EPROTO, "does not use the tensors that it was offered", RDT_WAY_UNBOUND, 0);
    run(run_lies, 3);
}

TEST(a_vote_that_it_failed_fails_on_all)
{
    be_honest();
    lie.vote = RDTI_VOTE_FAILED;
    expect(RDT_ENOMEM, "could not initialise it", RDT_WAY_UNBOUND, 0);
    run(run_lies, 3);
}

TEST(a_start_that_means_nothing_is_refused)
{
    be_honest();
    lie.is_aside = 2;
    expect(RDT_EPROTO, "sent a start of a persistent collective: the flag is not 0 or 1",
           RDT_WAY_IN_PLACE, RDT_LANDING_OFFERED);
    run(run_start, 2);
    be_honest();
    lie.number = 1;
    expect(RDT_EMISMATCH, "started the persistent collective that the group's collective #2",
           RDT_WAY_IN_PLACE, RDT_LANDING_OFFERED);
    run(run_start, 2);
}

TEST_MAIN()
