/* SPDX-License-Identifier: Apache-2.0
 * Collectives that repeat, over tcp and verbs, where the members share no memory: after the first
 * rounds none of them sends a control message or registers anything, whatever their algorithm,
 * size, order and memory, and every result is right. */
#include <pthread.h>
#include <stdlib.h>

#include "core/group_rig.h"

enum { WARM = 4, ROUNDS = 3, TENSORS = 4 };

/* What a rank's thread has. */
struct member {
    struct rig *rig;
    uint32_t rank;
    rdt_region *region; /* NULL: its tensors are private */
    uint8_t *memory;
};

static const uint64_t *script; /* elements of each collective of a round, in i32 */
static uint32_t script_length;
static bool is_private;
static bool is_sums_only;
static bool is_at_once;

static uint64_t
most_elements(void)
{
    uint64_t most = 0;

    for (uint32_t i = 0; i < script_length; i++)
        most = script[i] > most ? script[i] : most;
    return most;
}

static int32_t *
tensor_of(const struct member *m, uint32_t number, uint64_t elements)
{
    return (int32_t *)(void *)m->memory + (size_t)number * m->rig->size * elements;
}

static int32_t
value(uint32_t rank, uint64_t at, uint32_t round)
{
    return (int32_t)((at * 7 + rank * 1000 + round) % 100000);
}

static void
run(rdt_group *group, const struct rdt_coll_args *args)
{
    struct rdt_error err = {0};
    rdt_transfer *t = NULL;

    CHECK_OK(rdt_coll_post(group, args, &t, &err), &err);
    CHECK_OK(rig_end(t, &err), &err);
}

static struct rdt_coll_args
args_of(uint32_t op, uint64_t count)
{
    return (struct rdt_coll_args){.struct_size = sizeof(struct rdt_coll_args),
                                  .op = op,
                                  .dtype = RDT_I32,
                                  .reduce_op = RDT_SUM,
                                  .count = count};
}

static void
sum(const struct member *m, uint32_t number, uint64_t count, uint32_t round)
{
    const uint32_t size = m->rig->size;
    struct rdt_coll_args args = args_of(RDT_COLL_ALLREDUCE, count);
    int32_t *tensor = tensor_of(m, number % TENSORS, most_elements());

    for (uint64_t i = 0; i < count; i++)
        tensor[i] = value(m->rank, i, round);
    args.send = args.recv = tensor;
    run(m->rig->group[m->rank], &args);
    for (uint64_t i = 0; i < count; i++) {
        int64_t want = 0;
        for (uint32_t r = 0; r < size; r++)
            want += value(r, i, round);
        CHECK(tensor[i] == (int32_t)want);
    }
}

static void
spread(const struct member *m, uint32_t number, uint64_t count, uint32_t round)
{
    const uint32_t root = number % m->rig->size;
    struct rdt_coll_args args = args_of(RDT_COLL_BROADCAST, count);
    int32_t *tensor = tensor_of(m, number % TENSORS, most_elements());

    for (uint64_t i = 0; i < count; i++)
        tensor[i] = m->rank == root ? value(root, i, round) : -1;
    args.root = root;
    args.recv = tensor;
    run(m->rig->group[m->rank], &args);
    for (uint64_t i = 0; i < count; i++)
        CHECK(tensor[i] == value(root, i, round));
}

static void
gather(const struct member *m, uint32_t number, uint64_t count, uint32_t round)
{
    const uint32_t size = m->rig->size;
    struct rdt_coll_args args = args_of(RDT_COLL_ALLGATHER, count);
    int32_t *all = tensor_of(m, number % TENSORS, most_elements());

    for (uint64_t i = 0; i < count; i++)
        all[m->rank * count + i] = value(m->rank, i, round);
    args.send = all + m->rank * count;
    args.recv = all;
    run(m->rig->group[m->rank], &args);
    for (uint32_t r = 0; r < size; r++)
        for (uint64_t i = 0; i < count; i++)
            CHECK(all[r * count + i] == value(r, i, round));
}

/* Out of one tensor, with a part for each member, and into another, which is returned. */
static const int32_t *
run_in_parts(const struct member *m, uint32_t op, uint32_t number, uint64_t count, uint32_t round)
{
    struct rdt_coll_args args = args_of(op, count);
    int32_t *in = tensor_of(m, number % TENSORS, most_elements());
    int32_t *out = tensor_of(m, (number + 1) % TENSORS, most_elements());

    for (uint64_t i = 0; i < m->rig->size * count; i++)
        in[i] = value(m->rank, i, round);
    args.send = in;
    args.recv = out;
    run(m->rig->group[m->rank], &args);
    return out;
}

static void
scatter_sums(const struct member *m, uint32_t number, uint64_t count, uint32_t round)
{
    const int32_t *out = run_in_parts(m, RDT_COLL_REDUCE_SCATTER, number, count, round);

    for (uint64_t i = 0; i < count; i++) {
        int64_t want = 0;
        for (uint32_t r = 0; r < m->rig->size; r++)
            want += value(r, m->rank * count + i, round);
        CHECK(out[i] == (int32_t)want);
    }
}

static void
exchange(const struct member *m, uint32_t number, uint64_t count, uint32_t round)
{
    const int32_t *out = run_in_parts(m, RDT_COLL_ALLTOALL, number, count, round);

    for (uint32_t r = 0; r < m->rig->size; r++)
        for (uint64_t i = 0; i < count; i++)
            CHECK(out[r * count + i] == value(r, m->rank * count + i, round));
}

/* All of a round at once, each in a tensor of its own. */
static void
sum_at_once(const struct member *m, uint32_t round)
{
    rdt_transfer *transfers[TENSORS];
    struct rdt_error err = {0};

    CHECK(script_length <= TENSORS);
    for (uint32_t n = 0; n < script_length; n++) {
        struct rdt_coll_args args = args_of(RDT_COLL_ALLREDUCE, script[n]);
        int32_t *tensor = tensor_of(m, n, most_elements());
        for (uint64_t i = 0; i < script[n]; i++)
            tensor[i] = value(m->rank, i, round + n);
        args.send = args.recv = tensor;
        CHECK_OK(rdt_coll_post(m->rig->group[m->rank], &args, &transfers[n], &err), &err);
    }
    for (uint32_t n = 0; n < script_length; n++) {
        const int32_t *tensor = tensor_of(m, n, most_elements());
        CHECK_OK(rig_end(transfers[n], &err), &err);
        for (uint64_t i = 0; i < script[n]; i++)
            CHECK(tensor[i] == value(0, i, round + n) + value(1, i, round + n));
    }
}

static void
run_round(const struct member *m, uint32_t round)
{
    static void (*const kinds[])(const struct member *, uint32_t, uint64_t,
                                 uint32_t) = {sum, spread, gather, scatter_sums, exchange};

    if (is_at_once)
        sum_at_once(m, round);
    for (uint32_t i = 0; i < script_length && !is_at_once; i++)
        (is_sums_only ? sum : kinds[i % 5])(m, i, script[i], round);
}

/* Nobody looks, or goes on, before all are here. */
static pthread_barrier_t meeting;

static struct rdt_counters
look(const struct member *m)
{
    struct rdt_counters now = {.struct_size = sizeof(now)};

    (void)pthread_barrier_wait(&meeting);
    rdt_context_counters(m->rig->ctx[m->rank], &now);
    (void)pthread_barrier_wait(&meeting);
    return now;
}

static void *
run_member(void *arg)
{
    const struct member *m = arg;

    for (uint32_t round = 0; round < WARM; round++)
        run_round(m, round);
    const struct rdt_counters before = look(m);
    for (uint32_t round = 0; round < ROUNDS; round++)
        run_round(m, WARM + round);
    const struct rdt_counters after = look(m);
    CHECK_UINT_EQ(after.control_messages, before.control_messages);
    CHECK_UINT_EQ(after.registrations, before.registrations);
    CHECK_UINT_EQ(after.mailbox_rendezvous, before.mailbox_rendezvous);
    CHECK_UINT_EQ(after.registered_bytes, before.registered_bytes);
    return NULL;
}

static void
make_memory(struct member *m)
{
    const uint64_t bytes = TENSORS * m->rig->size * most_elements() * sizeof(int32_t);
    struct rdt_error err = {0};

    if (is_private) {
        m->memory = malloc(bytes);
        CHECK_NOT_NULL(m->memory);
        return;
    }
    CHECK_OK(rdt_region_alloc(m->rig->ctx[m->rank], bytes, 0, &m->region, &err), &err);
    m->memory = rdt_region_addr(m->region);
}

static void
free_memory(struct member *m)
{
    if (m->region == NULL)
        free(m->memory);
    rdt_region_free(m->region, NULL, NULL);
    m->region = NULL;
}

/* Each round in memory of its own, freed after it. */
static void *
run_moving_member(void *arg)
{
    struct member *m = arg;
    for (uint32_t round = 0; round < WARM + ROUNDS; round++) {
        make_memory(m);
        run_round(m, round);
        free_memory(m);
    }
    return NULL;
}

static void
repeat_as(uint32_t transport, uint32_t size, const char *algorithm, void *(*body)(void *))
{
    struct rig rig;
    struct member members[RIG_RANKS_MAX];
    pthread_t threads[RIG_RANKS_MAX];

    CHECK_INT_EQ(setenv("RDMATENSOR_ALGO", algorithm, 1), 0);
    rig_open(&rig, size, transport);
    CHECK_INT_EQ(pthread_barrier_init(&meeting, NULL, size), 0);
    for (uint32_t i = 0; i < size; i++) {
        members[i] = (struct member){.rig = &rig, .rank = i};
        if (body != run_moving_member)
            make_memory(&members[i]);
    }
    for (uint32_t i = 0; i < size; i++)
        CHECK_INT_EQ(pthread_create(&threads[i], NULL, body, &members[i]), 0);
    for (uint32_t i = 0; i < size; i++)
        CHECK_INT_EQ(pthread_join(threads[i], NULL), 0);
    for (uint32_t i = 0; i < size && body != run_moving_member; i++)
        free_memory(&members[i]);
    CHECK_INT_EQ(pthread_barrier_destroy(&meeting), 0);
    rig_close(&rig);
}

static void
repeat(uint32_t transport, uint32_t size, const char *algorithm)
{
    repeat_as(transport, size, algorithm, run_member);
}

static const char *const algorithms[] = {"auto", "direct", "ring", "halving-doubling", "tree"};
#define ALGORITHMS (sizeof(algorithms) / sizeof(algorithms[0]))

/* Elements: 8 B to 16 MiB. */
static const uint64_t sums[] = {2, 1024, 16384, 65536, 262144, 4194304};
static const uint64_t mixed[] = {30000, 100, 20001, 40000, 17000, 262147, 70000, 3, 50001, 25000};
/* One size after the other, and back: no collective is as the one before it. */
static const uint64_t changing[] = {20000,  40000, 80000, 160000, 320000,
                                    160000, 80000, 40000, 20001};

static void
use_script(const uint64_t *elements, size_t count, bool only_sums)
{
    script = elements;
    script_length = (uint32_t)count;
    is_sums_only = only_sums;
}

/* An emulated machine with a device is as slow as ThreadSanitizer. */
static size_t
share_of_cases(void)
{
    return sim_is_off() ? 3 : TEST_TSAN_SHARE;
}

static void
all_sums(uint32_t transport)
{
    for (int i = 0; i < 2; i++) {
        is_private = i != 0;
        for (size_t a = 0; a < ALGORITHMS; a += share_of_cases()) {
            const bool is_long = a == 0 && share_of_cases() == 1; /* they are slow to check */
            use_script(sums, sizeof(sums) / sizeof(sums[0]) - (is_long ? 0 : 1), true);
            repeat(transport, 2, algorithms[a]);
        }
    }
}

static void
all_mixed(uint32_t transport)
{
    for (int i = 0; i < 2; i++) {
        is_private = i != 0;
        use_script(mixed, sizeof(mixed) / sizeof(mixed[0]), false);
        repeat(transport, 2, "auto");
        repeat(transport, 3, "ring");
        if (share_of_cases() == 1)
            repeat(transport, 4, "messages");
        use_script(changing, sizeof(changing) / sizeof(changing[0]), true);
        repeat(transport, 3, "messages");
        is_at_once = true;
        use_script(changing + 1, TENSORS, true);
        repeat(transport, 2, "ring");
        is_at_once = false;
    }
}

TEST_TIMEOUT(over_tcp_sums_of_any_size_send_no_control_message, 120)
{
    all_sums(RDT_TRANSPORT_TCP);
}

TEST_TIMEOUT(over_tcp_neither_do_others_in_any_order, 120)
{
    all_mixed(RDT_TRANSPORT_TCP);
}

TEST_TIMEOUT(over_verbs_sums_of_any_size_send_no_control_message, 120)
{
    all_sums(RDT_TRANSPORT_VERBS);
}

TEST_TIMEOUT(over_verbs_neither_do_others_in_any_order, 120)
{
    all_mixed(RDT_TRANSPORT_VERBS);
}

static void
all_moving(uint32_t transport)
{
    use_script(mixed, sizeof(mixed) / sizeof(mixed[0]), false);
    for (int i = 0; i < 2; i++) {
        is_private = i != 0;
        repeat_as(transport, 2, "messages", run_moving_member);
        repeat_as(transport, 3, "ring", run_moving_member);
    }
}

TEST_TIMEOUT(over_tcp_tensors_that_move_are_right, 120)
{
    all_moving(RDT_TRANSPORT_TCP);
}

TEST_TIMEOUT(over_verbs_tensors_that_move_are_right, 120)
{
    all_moving(RDT_TRANSPORT_VERBS);
}

/* ---- Ranks that disagree ----------------------------------------------------------------- */

/* The root's message waits for a receive that is for another, and is never told. */
static void *
run_member_that_errs(void *arg)
{
    const struct member *m = arg;
    rdt_group *group = m->rig->group[m->rank];
    struct rdt_coll_args args = args_of(RDT_COLL_BROADCAST, m->rank == 0 ? script[0] : 25);
    struct rdt_error err = {0};
    rdt_transfer *t = NULL;

    for (uint32_t round = 0; round < WARM; round++)
        spread(m, 0, script[0], round);
    args.recv = m->memory;
    const rdt_status status = rdt_coll_post(group, &args, &t, &err);
    CHECK((status == RDT_OK ? rig_end(t, &err) : status) < RDT_OK);
    CHECK_STR_CONTAINS(err.message, "broadcast of 70000 int32 from root 0");
    CHECK_STR_CONTAINS(err.message, "broadcast of 25 int32 from root 0");
    return NULL;
}

TEST_TIMEOUT(ranks_that_disagree_when_all_stands_learn_how, 60)
{
    is_private = false;
    use_script(mixed + 6, 1, false);
    repeat_as(RDT_TRANSPORT_TCP, 2, "messages", run_member_that_errs);
}

TEST_MAIN()
