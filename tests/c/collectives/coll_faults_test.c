/* SPDX-License-Identifier: Apache-2.0
 *
 * What goes wrong: ranks that disagree, calls that fail, messages that break off, deadlines. In
 * every case all ranks end in time with an error that says why, and nothing is left or written
 * after a transfer's end: buffers are freed right then, so that ASan sees who still uses them.
 */
#include "collectives/collective.h"
#include "collectives/fake_group.h"

static struct fake_world world;
static struct rdt_error results[FAKE_RANKS_MAX];
static const char *way = "messages"; /* or over memory that the ranks share */

static void
clear_results(void)
{
    fake_force(way);
    memset(results, 0, sizeof(results));
}

/* Run args with fresh buffers of exactly the sizes that matter; the error goes to results[]. */
static rdt_status
run_with_buffers(rdt_group *group, struct rdt_coll_args args, uint64_t elem_bytes)
{
    const uint32_t rank = rdt_group_rank(group);
    const uint64_t len_bytes = args.count * elem_bytes * world.size;
    void *send = calloc(1, len_bytes + 1);
    void *recv = calloc(1, len_bytes + 1);

    CHECK(send != NULL && recv != NULL);
    args.struct_size = sizeof(args);
    args.send = send;
    args.recv = recv;
    const rdt_status status = fake_run_coll(group, &args, &results[rank]);
    free(send);
    free(recv);
    return status;
}

/* ---- Ranks that disagree ---- */

static struct rdt_coll_args calls[FAKE_RANKS_MAX];
static bool is_after_barrier;

static void *
run_own_call(void *arg)
{
    const struct rdt_coll_args barrier = {.struct_size = sizeof(barrier), .op = RDT_COLL_BARRIER};
    rdt_group *group = arg;

    if (is_after_barrier) {
        CHECK_INT_EQ(fake_run_coll(group, &barrier, NULL), RDT_OK);
        fake_world_meet(&world);
    }
    (void)run_with_buffers(group, calls[rdt_group_rank(group)], 8);
    return NULL;
}

static void
check_call_is_named(const char *message, const char *who, const struct rdt_coll_args *call)
{
    char words[160];

    (void)snprintf(words, sizeof(words), "%s " FAKE_CALL_WORDS ",", who, call->op,
                   (unsigned long long)call->count, call->dtype, call->reduce_op);
    CHECK_STR_CONTAINS(message, words);
}

/* Whose message it was, and what it and this rank called. */
static void
check_mismatch_is_named(uint32_t rank)
{
    static const char from[] = "receive from rank ";
    const char *message = results[rank].message;
    const char *named = strstr(message, from);

    CHECK_MSG(named != NULL, "nobody is named: %s", message);
    const unsigned long source = strtoul(named + strlen(from), NULL, 10);
    CHECK(source < world.size && source != rank);
    check_call_is_named(message, "it calls", &calls[source]);
    check_call_is_named(message, "we call", &calls[rank]);
    CHECK_STR_CONTAINS(message, is_after_barrier ? " #2, round " : " #1, round ");
    CHECK_STR_CONTAINS(message, rdti_coll_name(calls[rank].op));
}

/* Rank `odd` calls `other`, the rest `usual`: at least one ends with the mismatch, the group
 * breaks, and all hear of both calls and of two ranks of which one is `odd`. */
static void
check_mismatch(struct rdt_coll_args usual, struct rdt_coll_args other, uint32_t size, uint32_t odd)
{
    char rank_name[16];
    unsigned mismatches = 0;

    clear_results();
    fake_world_init(&world, size, size * 10 + odd);
    for (uint32_t rank = 0; rank < size; rank++)
        calls[rank] = rank == odd ? other : usual;
    fake_world_run(&world, run_own_call);
    for (uint32_t rank = 0; rank < size; rank++) {
        if (results[rank].status != RDT_EMISMATCH)
            continue;
        mismatches++;
        check_mismatch_is_named(rank);
    }
    (void)snprintf(rank_name, sizeof(rank_name), "rank %u", odd);
    CHECK_MSG(mismatches > 0, "size %u, rank %u differs: nobody noticed", size, odd);
    CHECK(world.aborts > 0 && world.broken.status != RDT_OK);
    CHECK_STR_CONTAINS(world.broken.message, "aborted: rank ");
    CHECK_STR_CONTAINS(world.broken.message, ", receive from rank ");
    CHECK_STR_CONTAINS(world.broken.message, rank_name);
    check_call_is_named(world.broken.message, "", &usual);
    check_call_is_named(world.broken.message, "", &other);
    fake_world_fini(&world);
}

TEST(ranks_that_disagree_learn_how)
{
    const struct rdt_coll_args sum = {.op = RDT_COLL_ALLREDUCE,
                                      .dtype = RDT_I64,
                                      .reduce_op = RDT_SUM,
                                      .count = 5};
    struct rdt_coll_args other = sum;

    for (uint32_t size = 2; size <= 5; size++)
        for (uint32_t odd = 0; odd < size; odd++) {
            other = sum;
            other.count = 6;
            check_mismatch(sum, other, size, odd);
            other.count = 100000; /* another algorithm on that rank */
            check_mismatch(sum, other, size, odd);
            other = sum;
            other.dtype = RDT_F64;
            check_mismatch(sum, other, size, odd);
            other = sum;
            other.reduce_op = RDT_MAX;
            check_mismatch(sum, other, size, odd);
            other = sum;
            other.count = 0;
            check_mismatch(sum, other, size, odd);
            other = (struct rdt_coll_args){.op = RDT_COLL_BARRIER};
            check_mismatch(sum, other, size, odd);
            other = (struct rdt_coll_args){.op = RDT_COLL_ALLGATHER, .dtype = RDT_I64, .count = 5};
            check_mismatch(sum, other, size, odd);
        }
}

/* Large ones go round a ring, small ones down a tree. */
TEST(ranks_that_disagree_on_a_broadcast_learn_how)
{
    const struct rdt_coll_args small = {.op = RDT_COLL_BROADCAST, .dtype = RDT_I64, .count = 5};
    struct rdt_coll_args large = small;

    large.count = 100000;
    for (uint32_t size = 2; size <= 5; size++)
        for (uint32_t odd = 0; odd < size; odd++) {
            check_mismatch(small, large, size, odd);
            check_mismatch(large, small, size, odd);
        }
}

/* A sum, which needs the table of costs, against what does not, once the group is set up. */
TEST(ranks_that_disagree_later_learn_it_too)
{
    const struct rdt_coll_args sum = {.op = RDT_COLL_ALLREDUCE,
                                      .dtype = RDT_I64,
                                      .reduce_op = RDT_SUM,
                                      .count = 5};
    struct rdt_coll_args other = sum;

    other.op = RDT_COLL_ALLGATHER;
    other.reduce_op = 0; /* it has none, and says none */
    is_after_barrier = true;
    for (uint32_t size = 2; size <= 4; size++)
        for (uint32_t odd = 0; odd < size; odd++)
            check_mismatch(sum, other, size, odd);
    is_after_barrier = false;
}

/* all_to_all with counts that do not fit names the pair that differs. */
static void *
run_unfit_counts(void *arg)
{
    rdt_group *group = arg;
    const uint32_t rank = rdt_group_rank(group);
    const uint64_t fits[3] = {2, 2, 2};
    const uint64_t unfit[3] = {2, 3, 2};
    const uint64_t offs[3] = {0, 4, 8};
    const struct rdt_coll_args args = {.op = RDT_COLL_ALLTOALL,
                                       .dtype = RDT_I32,
                                       .count = 4,
                                       .send_counts = rank == 2 ? unfit : fits,
                                       .send_offs = offs,
                                       .recv_counts = fits,
                                       .recv_offs = offs};

    (void)run_with_buffers(group, args, 4);
    return NULL;
}

TEST(uneven_counts_that_do_not_fit_end_on_the_receiver)
{
    clear_results();
    fake_world_init(&world, 3, 3);
    fake_world_run(&world, run_unfit_counts);
    CHECK_INT_EQ(results[1].status, RDT_EMISMATCH);
    CHECK_STR_CONTAINS(results[1].message, "all_to_all #1");
    CHECK_STR_CONTAINS(results[1].message, "receive from rank 2: ");
    CHECK_STR_CONTAINS(results[1].message, "it calls operation 8 of 3, ");
    CHECK_STR_CONTAINS(results[1].message, "we call operation 8 of 2, ");
    fake_world_fini(&world);
    clear_results();
    fake_world_init(&world, 3, 3);
    world.global_first = 4;
    fake_world_run(&world, run_unfit_counts);
    CHECK_STR_CONTAINS(results[1].message, "receive from rank 2 (global rank 6): ");
    fake_world_fini(&world);
}

/* ---- Injected failures, swept ---- */

static const struct rdt_coll_args kinds[] = {
    {.op = RDT_COLL_BROADCAST, .dtype = RDT_I32, .count = 100, .root = 1},
    {.op = RDT_COLL_ALLREDUCE, .dtype = RDT_F32, .reduce_op = RDT_AVG, .count = 100},
    {.op = RDT_COLL_ALLREDUCE, .dtype = RDT_F32, .reduce_op = RDT_SUM, .count = 20000},
    {.op = RDT_COLL_REDUCE, .dtype = RDT_U8, .reduce_op = RDT_BXOR, .count = 100, .root = 1},
    {.op = RDT_COLL_ALLGATHER, .dtype = RDT_I32, .count = 100},
    {.op = RDT_COLL_ALLGATHER, .dtype = RDT_I32, .count = 5000},
    {.op = RDT_COLL_REDUCE_SCATTER, .dtype = RDT_F16, .reduce_op = RDT_MAX, .count = 100},
    {.op = RDT_COLL_GATHER, .dtype = RDT_I32, .count = 100, .root = 1},
    {.op = RDT_COLL_SCATTER, .dtype = RDT_I32, .count = 100, .root = 1},
    {.op = RDT_COLL_ALLTOALL, .dtype = RDT_I32, .count = 100},
    {.op = RDT_COLL_BARRIER},
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static const struct rdt_coll_args *kind;
static size_t kind_step = 1;   /* a sweep takes one kind in so many */
static unsigned call_step = 1; /* and one call */

static void *
run_kind(void *arg)
{
    rdt_group *group = arg;

    if (run_with_buffers(group, *kind, 4) == RDT_OK)
        return NULL;
    /* One that could not start is like one that died; the group's owner then gives it up. */
    rdt_group_abort(group, results[rdt_group_rank(group)].message);
    return NULL;
}

/* Every n-th call of one sort fails once, until there is no n-th. Returns how many there are,
 * rounded up to whole steps. */
static unsigned
sweep(enum fake_call call, uint32_t size)
{
    unsigned failures = 0;

    for (unsigned n = 1;; n += call_step) {
        unsigned failed_ranks = 0;
        clear_results();
        fake_world_init(&world, size, 31 * n + size);
        world.fail_at[call] = n;
        fake_world_run(&world, run_kind);
        const bool has_failed = world.has_failed;
        for (uint32_t rank = 0; rank < size; rank++) {
            if (results[rank].status == RDT_OK)
                continue;
            failed_ranks++;
            CHECK_STR_CONTAINS(results[rank].message, "injected: ");
        }
        fake_world_fini(&world);
        CHECK_MSG(has_failed == (failed_ranks > 0), "op %u, call %d, n %u: %u ranks failed",
                  kind->op, (int)call, n, failed_ranks);
        if (!has_failed)
            return failures;
        failures += call_step;
    }
}

static void
sweep_all(enum fake_call call, bool needs_messages)
{
    static const uint32_t sizes[] = {2, 3, 5};
    unsigned failures = 0;

    for (size_t i = 0; i < KINDS; i += kind_step)
        for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
            kind = &kinds[i];
            const unsigned found = sweep(call, sizes[s]);
            CHECK_MSG(found >= (needs_messages ? sizes[s] - 1 : sizes[s]),
                      "op %u on %u ranks: the sweep met %u calls", kind->op, sizes[s], found);
            failures += found;
        }
    CHECK_UINT_LE((KINDS + kind_step - 1) / kind_step * 3, failures);
}

TEST_TIMEOUT(a_send_that_is_refused_ends_it_everywhere, 60)
{
    sweep_all(FAKE_SEND, true);
}

TEST_TIMEOUT(a_receive_that_is_refused_ends_it_everywhere, 60)
{
    sweep_all(FAKE_RECV, true);
}

TEST_TIMEOUT(a_message_that_breaks_off_ends_it_everywhere, 60)
{
    sweep_all(FAKE_DELIVERY, true);
}

TEST_TIMEOUT(a_start_without_endpoint_leaves_nothing, 60)
{
    sweep_all(FAKE_ENDPOINT, true);
}

TEST_TIMEOUT(a_start_without_transfer_leaves_nothing, 60)
{
    sweep_all(FAKE_CREATE, false);
}

TEST_TIMEOUT(a_start_without_task_leaves_nothing, 60)
{
    sweep_all(FAKE_TASK, false);
}

/* The group's first collective sets up what the ranks share, whichever it is: sanitizers, which are
 * slow where much memory is mapped, take a few kinds. */
static void
sweep_direct(enum fake_call call, bool needs_messages)
{
    way = "direct";
    kind_step = test_timeout_scale() > 1 ? 4 : 1;
    call_step = TEST_TSAN_STRIDE;
    sweep_all(call, needs_messages);
    kind_step = 1;
    call_step = 1;
    way = "messages";
}

TEST_TIMEOUT(a_message_of_the_set_up_that_fails_ends_it_everywhere, 60)
{
    sweep_direct(FAKE_SEND, true);
    sweep_direct(FAKE_RECV, true);
    sweep_direct(FAKE_DELIVERY, true);
}

TEST_TIMEOUT(memory_that_cannot_be_held_ends_it_everywhere, 60)
{
    sweep_direct(FAKE_HOLD, true);
}

TEST_TIMEOUT(a_start_that_is_refused_during_the_set_up_leaves_nothing, 60)
{
    sweep_direct(FAKE_ENDPOINT, true);
    sweep_direct(FAKE_CREATE, false);
    sweep_direct(FAKE_TASK, false);
}

static void *
fail_to_offer(void *arg)
{
    rdt_group *group = arg;
    struct rdt_error err = {0};
    float in[64] = {0};
    float out[64] = {0};
    struct rdt_coll_args args = calls[0];

    args.struct_size = sizeof(args);
    args.send = in;
    args.recv = out;
    if (rdt_group_rank(group) == 0)
        CHECK_STATUS(fake_run_coll(group, &args, &err), RDT_EDEVICE);
    return NULL;
}

/* Else the answer to a peer's offer would go out before our own, and the peer's answer to that
 * behind all that it writes. */
TEST(what_is_sent_is_offered_before_anything_is_received)
{
    static const struct {
        const char *algorithm;
        uint32_t op;
    } cases[] = {{"halving-doubling", RDT_COLL_ALLREDUCE},
                 {"ring", RDT_COLL_ALLREDUCE},
                 {"messages", RDT_COLL_ALLREDUCE},
                 {"messages", RDT_COLL_ALLGATHER},
                 {"messages", RDT_COLL_ALLTOALL}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fake_force(cases[i].algorithm);
        fake_world_init(&world, 2, 3);
        world.fail_at[FAKE_SEND] = 1;
        calls[0] = (struct rdt_coll_args){.op = cases[i].op,
                                          .dtype = RDT_F32,
                                          .reduce_op = RDT_SUM,
                                          .count = 32};
        fake_world_run(&world, fail_to_offer);
        CHECK_UINT_EQ(world.calls[FAKE_SEND], 1);
        CHECK_UINT_EQ(world.calls[FAKE_RECV], 0);
        fake_world_fini(&world);
    }
}

TEST(a_refused_start_does_not_count)
{
    fake_world_init(&world, 2, 1);
    for (enum fake_call call = FAKE_CREATE; call <= FAKE_ENDPOINT; call++) {
        const struct rdt_coll_args args = {.struct_size = sizeof(args), .op = RDT_COLL_BARRIER};
        struct rdt_error err = {0};
        rdt_transfer *t = NULL;
        world.fail_at[call] = world.calls[call] + 1;
        CHECK(rdt_coll_post(&world.groups[0], &args, &t, &err) != RDT_OK);
        CHECK_STR_CONTAINS(err.message, "injected");
        CHECK_NULL(t);
    }
    CHECK_UINT_EQ(world.groups[0].sequence, 0);
    CHECK_UINT_EQ(world.aborts, 0);
    fake_world_fini(&world);
}

/* ---- Deadlines ---- */

/* Of rank 0. What the message says of the others needs their part to be done by then. */
static uint64_t deadline_ns;

static uint64_t
ample_ns(void)
{
    return (uint64_t)(5e8 * test_timeout_scale());
}

/* All but ranks 1 and 3 come. */
static void *
run_without_two(void *arg)
{
    rdt_group *group = arg;
    const uint32_t rank = rdt_group_rank(group);
    struct rdt_coll_args args = *kind;

    if (rank == 1 || rank == 3)
        return NULL;
    args.timeout_ns = rank == 0 ? deadline_ns : 0; /* the others learn it from rank 0 */
    CHECK(run_with_buffers(group, args, 4) != RDT_OK || kind->op == RDT_COLL_GATHER);
    return NULL;
}

TEST(a_deadline_names_the_ranks_that_are_missing)
{
    static const struct rdt_coll_args gather = {.op = RDT_COLL_GATHER,
                                                .dtype = RDT_I32,
                                                .count = 3};

    clear_results();
    kind = &gather;
    deadline_ns = ample_ns();
    fake_world_init(&world, 5, 4);
    fake_world_run(&world, run_without_two);
    CHECK_INT_EQ(results[0].status, RDT_ETIMEDOUT);
    CHECK_STR_CONTAINS(results[0].message, "gather #1: after ");
    CHECK_STR_CONTAINS(results[0].message, " s nothing from ranks 1, 3 (round 1 of 1)");
    CHECK_INT_EQ(results[0].peer_rank, RDT_RANK_UNKNOWN);
    CHECK_STR_CONTAINS(world.broken.message, "rank 0: gather #1: after ");
    CHECK_STR_CONTAINS(world.broken.message, " s nothing from ranks 1, 3");
    fake_world_fini(&world);
}

TEST(a_deadline_names_the_ranks_of_the_job_too)
{
    static const struct rdt_coll_args gather = {.op = RDT_COLL_GATHER,
                                                .dtype = RDT_I32,
                                                .count = 3};

    clear_results();
    kind = &gather;
    deadline_ns = ample_ns();
    fake_world_init(&world, 5, 4);
    world.global_first = 10;
    fake_world_run(&world, run_without_two);
    CHECK_STR_CONTAINS(results[0].message,
                       " s nothing from ranks 1, 3 (global ranks 11, 13) (round 1 of 1)");
    CHECK_STR_CONTAINS(world.broken.message, "rank 0 (global rank 10): gather #1: ");
    fake_world_fini(&world);
}

TEST(a_deadline_of_one_rank_ends_all)
{
    for (size_t i = 0; i < KINDS; i++) {
        kind = &kinds[i];
        if (kind->op != RDT_COLL_ALLREDUCE && kind->op != RDT_COLL_BARRIER &&
            kind->op != RDT_COLL_ALLGATHER)
            continue; /* in the others rank 0 may well be done */
        clear_results();
        deadline_ns = UINT64_C(30000000);
        fake_world_init(&world, 5, 40 + i);
        fake_world_run(&world, run_without_two);
        CHECK_INT_EQ(results[0].status, RDT_ETIMEDOUT);
        CHECK_STR_CONTAINS(results[0].message, " #1: after ");
        CHECK_STR_CONTAINS(results[2].message, "aborted: rank 0: ");
        CHECK_STR_CONTAINS(results[4].message, "aborted: rank 0: ");
        fake_world_fini(&world);
    }
}

TEST(the_group_gives_the_deadline_where_the_call_does_not)
{
    const struct rdt_coll_args asks[] = {{.op = RDT_COLL_BARRIER},
                                         {.op = RDT_COLL_BARRIER,
                                          .timeout_ns = RDT_TIMEOUT_DEFAULT}};

    for (size_t i = 0; i < 2; i++) {
        clear_results();
        fake_world_init(&world, 2, 5);
        world.groups[0].timeout_ns = UINT64_C(10000000);
        const uint64_t start_ns = test_now_ns();
        CHECK_STATUS(run_with_buffers(&world.groups[0], asks[i], 1), RDT_ETIMEDOUT);
        CHECK_INT_EQ(results[0].peer_rank, 1);
        CHECK_UINT_LE(UINT64_C(10000000), test_now_ns() - start_ns);
        fake_world_fini(&world);
    }
}

/* ---- The group breaks or goes while a collective waits ---- */

TEST(a_broken_group_ends_what_waits)
{
    const struct rdt_coll_args args = {.struct_size = sizeof(args), .op = RDT_COLL_BARRIER};
    struct rdt_error err = {0};
    rdt_transfer *t = NULL;

    fake_world_init(&world, 3, 6);
    CHECK_OK(rdt_coll_post(&world.groups[0], &args, &t, &err), &err);
    rdt_group_abort(&world.groups[2], "somebody pulled the plug");
    CHECK_STATUS(fake_wait(&world.groups[0], t, &err), RDT_EPEER);
    CHECK_STR_CONTAINS(err.message, "somebody pulled the plug");
    fake_world_fini(&world);
}

TEST(a_handle_that_was_given_up_does_not_stop_it)
{
    static int32_t values[2][4];
    struct rdt_error err = {0};

    fake_world_init(&world, 2, 7);
    for (uint32_t rank = 0; rank < 2; rank++) {
        rdt_transfer *t = NULL;
        for (int i = 0; i < 4; i++)
            values[rank][i] = i + (int32_t)rank;
        const struct rdt_coll_args args = {.struct_size = sizeof(args),
                                           .op = RDT_COLL_ALLREDUCE,
                                           .dtype = RDT_I32,
                                           .reduce_op = RDT_SUM,
                                           .count = 4,
                                           .send = values[rank],
                                           .recv = values[rank]};
        CHECK_OK(rdt_coll_post(&world.groups[rank], &args, &t, &err), &err);
        rdt_transfer_free(t);
    }
    for (int pass = 0; pass < 100; pass++)
        fake_drive(&world.groups[pass % 2].context);
    for (int i = 0; i < 4; i++)
        CHECK(values[0][i] == 2 * i + 1 && values[1][i] == 2 * i + 1);
    fake_world_fini(&world);
}

TEST_MAIN()
