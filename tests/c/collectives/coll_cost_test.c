/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables of costs: what they choose, how they travel, and how they are kept; and that the ranks of
 * a group have one, whoever measured it.
 */
#include "collectives/fake_group.h"

#include <inttypes.h>
#include <unistd.h>

#include "collectives/collective.h"
#include "collectives/select/cost.h"
#include "collectives/select/measure.h"
#include "collectives/team/team.h"

static struct fake_world world;
static char path[64];

static void
make_path(void)
{
    (void)snprintf(path, sizeof(path), "/tmp/rdt-costs-%ld", (long)getpid());
    (void)unlink(path);
}

static void
write_file(const char *text)
{
    FILE *file = fopen(path, "w");

    CHECK_NOT_NULL(file);
    CHECK(fputs(text, file) >= 0);
    CHECK_INT_EQ(fclose(file), 0);
}

/* ---- What it chooses ---- */

static struct rdti_hosts
hosts_of(const char *layout)
{
    struct rdti_hosts hosts;
    uint64_t can_hold[FAKE_RANKS_MAX] = {0};
    const uint32_t size = (uint32_t)strlen(layout);

    for (uint32_t i = 0; i < size; i++)
        for (uint32_t j = 0; j < size; j++)
            if (layout[i] == layout[j])
                can_hold[i] |= UINT64_C(1) << j;
    rdti_hosts_sort(can_hold, size, 0, &hosts);
    return hosts;
}

TEST(few_messages_for_small_sums_and_few_bytes_for_large_ones)
{
    const struct rdti_costs *costs = &rdti_costs_built_in;

    CHECK(rdti_cost_flat(costs, RDT_COLL_ALLREDUCE, 8, NULL, 8).algorithm ==
          &rdti_allreduce_doubling);
    const struct rdti_cost_plan large = rdti_cost_flat(costs, RDT_COLL_ALLREDUCE, 8, NULL, 1 << 28);
    CHECK(large.algorithm == &rdti_allreduce_halving || large.algorithm == &rdti_allreduce_ring);
    CHECK(large.cost_ps > rdti_cost_flat(costs, RDT_COLL_ALLREDUCE, 8, NULL, 8).cost_ps);
}

TEST(rails_are_used_where_directions_do_not_hinder_each_other)
{
    struct rdti_costs costs = rdti_costs_built_in;
    const struct rdti_hosts hosts = hosts_of("00001111");

    costs.paths[costs.far].duplex_permille = 1000;
    CHECK_UINT_EQ(rdti_cost_by_hosts(&costs, &hosts, 8).rails, 1);
    CHECK_UINT_EQ(rdti_cost_by_hosts(&costs, &hosts, 1 << 24).rails, 4);
    for (unsigned i = 0; i < RDTI_PATHS; i++)
        costs.paths[i].duplex_permille = 2000;
    CHECK_UINT_EQ(rdti_cost_by_hosts(&costs, &hosts, 1 << 24).rails, 1);
}

TEST(every_table_and_size_gives_a_plan)
{
    const char *const layouts[] = {"01", "0011", "0001", "01234567", "00000001"};
    uint64_t random = 5;

    for (int round = 0; round < 20000; round++) {
        struct rdti_costs costs;
        uint64_t values[RDTI_COSTS_BYTES / 8];
        for (size_t i = 0; i < RDTI_COSTS_BYTES / 8; i++)
            values[i] = fake_random(&random) << (fake_random(&random) % 33);
        memcpy(&costs, values, sizeof(costs));
        rdti_costs_clamp(&costs);
        const char *layout = layouts[(size_t)round % 5];
        const struct rdti_hosts hosts = hosts_of(layout);
        const uint64_t len_bytes = UINT64_C(1) << (fake_random(&random) % 63);
        const struct rdti_cost_plan flat =
            rdti_cost_flat(&costs, RDT_COLL_ALLREDUCE, (uint32_t)strlen(layout), NULL, len_bytes);
        const struct rdti_cost_plan by_hosts = rdti_cost_by_hosts(&costs, &hosts, len_bytes);
        CHECK(flat.algorithm != NULL && flat.rails == 0);
        CHECK(by_hosts.algorithm != NULL);
        CHECK(by_hosts.rails == 1 || by_hosts.rails == hosts.least);
    }
}

/* Packed tensors must have the bits that each has alone. */
TEST(all_small_sums_have_one_plan_that_knows_no_places)
{
    struct rdti_costs costs = rdti_costs_built_in;
    const struct rdti_hosts hosts = hosts_of("001122");

    for (uint64_t alpha_ns = 1; alpha_ns < 1000000; alpha_ns *= 10) {
        costs.paths[RDTI_PATH_TCP].alpha_ns = alpha_ns;
        const struct rdti_cost_plan flat = rdti_cost_flat(&costs, RDT_COLL_ALLREDUCE, 6, NULL, 1);
        const struct rdti_cost_plan by_hosts = rdti_cost_by_hosts(&costs, &hosts, 1);
        CHECK(flat.algorithm != &rdti_allreduce_ring && by_hosts.rails == 1);
        CHECK(by_hosts.algorithm != &rdti_allreduce_ring);
        for (uint64_t bytes = 0; bytes <= RDT_COLL_PART_MAX_BYTES; bytes += 1024) {
            CHECK(rdti_cost_flat(&costs, RDT_COLL_ALLREDUCE, 6, NULL, bytes).algorithm ==
                  flat.algorithm);
            CHECK(rdti_cost_by_hosts(&costs, &hosts, bytes).algorithm == by_hosts.algorithm);
        }
    }
}

/* ---- How it travels, and how it is kept ---- */

/* What clamping leaves alone is what may travel. */
TEST(the_built_in_table_comes_back_from_bytes_as_it_was)
{
    uint8_t bytes[RDTI_COSTS_BYTES];
    struct rdti_costs out = {0};
    struct rdt_error err = {0};

    rdti_costs_encode(&rdti_costs_built_in, bytes);
    CHECK_OK(rdti_costs_decode(bytes, sizeof(bytes), &out, &err), &err);
    CHECK(memcmp(&out, &rdti_costs_built_in, sizeof(out)) == 0);
    rdti_costs_clamp(&out);
    CHECK(memcmp(&out, &rdti_costs_built_in, sizeof(out)) == 0);
    for (uint64_t extreme = 0; extreme <= 1; extreme++) {
        memset(&out, extreme != 0 ? 0xff : 0, sizeof(out));
        rdti_costs_clamp(&out);
        rdti_costs_encode(&out, bytes);
        CHECK_OK(rdti_costs_decode(bytes, sizeof(bytes), &out, &err), &err);
    }
}

TEST(a_table_comes_back_from_a_file_as_it_was)
{
    struct rdti_costs costs = rdti_costs_built_in;
    struct rdti_costs out = {0};
    struct rdt_error err = {0};
    bool is_there = true;

    make_path();
    CHECK_OK(rdti_costs_load(path, &out, &is_there, &err), &err);
    CHECK(!is_there);
    costs.paths[RDTI_PATH_VERBS].beta_ps = 12345;
    CHECK_OK(rdti_costs_save(path, &costs, &err), &err);
    CHECK_OK(rdti_costs_load(path, &out, &is_there, &err), &err);
    CHECK(is_there);
    CHECK_UINT_EQ(out.source, RDTI_COSTS_FILE);
    CHECK(memcmp(out.paths, costs.paths, sizeof(out.paths)) == 0);
    CHECK_UINT_EQ(out.gamma_ps, costs.gamma_ps);
    (void)unlink(path);
}

TEST(a_file_that_is_no_table_is_refused)
{
    const char *const texts[] = {"",
                                 "tcp.alpha_ns\n",
                                 "nonsense 5\n",
                                 "gamma_ps 1\ngamma_ps 1\n",
                                 "gamma_ps 1\n",
                                 "gamma_ps 1 2\n"};
    char whole[2048];
    struct rdti_costs costs = rdti_costs_built_in;
    struct rdti_costs out = {0};
    struct rdt_error err = {0};
    bool is_there;

    make_path();
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        write_file(texts[i]);
        CHECK_STATUS(rdti_costs_load(path, &out, &is_there, &err), RDT_EINVAL);
        CHECK_STR_CONTAINS(err.message, "RDMATENSOR_COST_TABLE=/tmp/rdt-costs-");
    }
    costs.gamma_ps = UINT64_MAX;
    CHECK(rdti_costs_print(&costs, whole, sizeof(whole)) < (int)sizeof(whole));
    write_file(whole);
    CHECK_STATUS(rdti_costs_load(path, &out, &is_there, &err), RDT_EINVAL);
    CHECK_STR_CONTAINS(err.message, "out of range");
    CHECK_UINT_EQ(out.gamma_ps, 0);
    (void)unlink(path);
}

TEST(a_place_that_cannot_be_written_is_an_error)
{
    struct rdt_error err = {0};

    CHECK_STATUS(rdti_costs_save("/nonexistent/costs", &rdti_costs_built_in, &err), RDT_EDEVICE);
    CHECK_STR_CONTAINS(err.message, "/nonexistent/costs: ");
}

/* ---- One table for all ---- */

static void *
sum_once(void *arg)
{
    rdt_group *group = arg;
    struct rdt_error err = {0};
    int32_t value = 1;
    struct rdt_coll_args args = {.struct_size = sizeof(args),
                                 .op = RDT_COLL_ALLREDUCE,
                                 .dtype = RDT_I32,
                                 .reduce_op = RDT_SUM,
                                 .count = 1,
                                 .send = &value,
                                 .recv = &value};

    CHECK_OK(fake_run_coll(group, &args, &err), &err);
    CHECK_INT_EQ(value, (int32_t)world.size);
    return NULL;
}

/* What it says is whole JSON of exactly so many bytes, and is refused less room. */
static void
check_description(rdt_group *group, const char *says)
{
    char text[4096];
    char small[4096];
    struct rdt_error err = {0};
    size_t needed = 0;

    CHECK_OK(rdt_group_coll_describe(group, text, sizeof(text), &needed, &err), &err);
    CHECK_UINT_EQ(strlen(text), needed);
    CHECK_STR_CONTAINS(text, says);
    CHECK(text[0] == '{' && text[needed - 1] == '}');
    CHECK_STATUS(rdt_group_coll_describe(group, small, needed, &needed, &err), RDT_EINVAL);
    CHECK_UINT_EQ(needed, strlen(text));
}

static void
check_tables(const char *layout, uint64_t source)
{
    fake_force("auto");
    fake_world_init(&world, (uint32_t)strlen(layout), 3);
    for (uint32_t rank = 0; rank < world.size; rank++)
        world.hosts[rank] = (uint32_t)(layout[rank] - '0');
    fake_world_run(&world, sum_once);
    const struct rdti_team *first = world.groups[0].attached;
    CHECK_UINT_EQ(first->costs->source, source);
    if (source == RDTI_COSTS_BUILT_IN)
        check_description(
            &world.groups[0],
            "{\"way\":\"shared memory\",\"algorithm\":\"auto\",\"is_deterministic\":false,"
            "\"ran\":{\"direct\":");
    else
        check_description(&world.groups[0], "\"between\":\"shm\",\"board.alpha_ns\":");
    for (uint32_t rank = 1; rank < world.size; rank++) {
        const struct rdti_team *team = world.groups[rank].attached;
        CHECK(memcmp(team->costs, first->costs, sizeof(*first->costs)) == 0);
    }
    fake_world_fini(&world);
}

/* There and back: small ones 20 us, large ones 60; both ways at once 50; times `factor`. */
static struct rdti_measure
measured(uint64_t factor)
{
    struct rdti_measure m = {.leads = true, .step = RDTI_MEASURE_STEPS};

    for (unsigned i = 0; i < RDTI_MEASURE_STEPS; i++) {
        const bool is_small = i < RDTI_MEASURE_SMALL;
        const bool is_large = !is_small && i < RDTI_MEASURE_SMALL + RDTI_MEASURE_LARGE;

        m.taken_ns[i] = factor * (is_small ? 20000 : is_large ? 60000 : 50000);
    }
    return m;
}

/* Somebody else had the cores during all samples but one of each kind. */
TEST(a_measurement_is_what_was_least_disturbed)
{
    const struct rdti_measure quiet = measured(1);
    struct rdti_measure busy = measured(100);

    busy.taken_ns[3] = quiet.taken_ns[3];
    busy.taken_ns[RDTI_MEASURE_SMALL + 5] = quiet.taken_ns[RDTI_MEASURE_SMALL + 5];
    busy.taken_ns[RDTI_MEASURE_STEPS - 1] = quiet.taken_ns[RDTI_MEASURE_STEPS - 1];
    const struct rdti_path_cost want = rdti_measure_result(&quiet);
    const struct rdti_path_cost cost = rdti_measure_result(&busy);
    CHECK_UINT_EQ(want.alpha_ns, 10000);
    CHECK_UINT_EQ(want.beta_ps, UINT64_C(20000) * 1000 / (128 * 1024));
    CHECK_UINT_EQ(want.duplex_permille, 2000);
    CHECK_UINT_EQ(cost.alpha_ns, want.alpha_ns);
    CHECK_UINT_EQ(cost.beta_ps, want.beta_ps);
    CHECK_UINT_EQ(cost.duplex_permille, want.duplex_permille);
}

/* All of them were disturbed, the small ones more than the large ones. */
TEST(bytes_never_cost_nothing)
{
    struct rdti_measure m = measured(1);

    for (unsigned i = 0; i < RDTI_MEASURE_SMALL; i++)
        m.taken_ns[i] = 12000000;
    for (unsigned i = RDTI_MEASURE_SMALL + RDTI_MEASURE_LARGE; i < RDTI_MEASURE_STEPS; i++)
        m.taken_ns[i] = 1000;
    const struct rdti_path_cost cost = rdti_measure_result(&m);
    CHECK_UINT_EQ(cost.alpha_ns, 15000);
    CHECK_UINT_EQ(cost.beta_ps, UINT64_C(15000) * 1000 / (128 * 1024));
    CHECK_UINT_EQ(cost.duplex_permille, 1000); /* both ways take no less than one */
}

TEST(all_ranks_have_the_table_that_rank_0_measured)
{
    check_tables("01", RDTI_COSTS_MEASURED);
    check_tables("0011", RDTI_COSTS_MEASURED);
    check_tables("0111", RDTI_COSTS_MEASURED);
    check_tables("0000", RDTI_COSTS_BUILT_IN);
}

TEST(a_table_is_kept_where_there_is_none_and_used_where_there_is)
{
    struct rdti_costs kept;
    struct rdt_error err = {0};
    bool is_there = false;

    make_path();
    CHECK_INT_EQ(setenv("RDMATENSOR_COST_TABLE", path, 1), 0);
    check_tables("0011", RDTI_COSTS_MEASURED);
    CHECK_OK(rdti_costs_load(path, &kept, &is_there, &err), &err);
    CHECK(is_there);
    check_tables("0011", RDTI_COSTS_FILE);
    CHECK_INT_EQ(unsetenv("RDMATENSOR_COST_TABLE"), 0);
    (void)unlink(path);
}

static void *
fail_to_sum(void *arg)
{
    rdt_group *group = arg;
    struct rdt_error err = {0};
    int32_t value = 1;
    struct rdt_coll_args args = {.struct_size = sizeof(args),
                                 .op = RDT_COLL_ALLREDUCE,
                                 .dtype = RDT_I32,
                                 .reduce_op = RDT_SUM,
                                 .count = 1,
                                 .send = &value,
                                 .recv = &value};

    CHECK(fake_run_coll(group, &args, &err) != RDT_OK);
    CHECK_STR_CONTAINS(err.message, "RDMATENSOR_COST_TABLE=/tmp/rdt-costs-");
    return NULL;
}

TEST(a_table_that_is_none_ends_the_group_on_all_ranks)
{
    make_path();
    write_file("nonsense 5\n");
    CHECK_INT_EQ(setenv("RDMATENSOR_COST_TABLE", path, 1), 0);
    fake_force("auto");
    fake_world_init(&world, 4, 9);
    world.hosts[2] = world.hosts[3] = 1;
    fake_world_run(&world, fail_to_sum);
    CHECK_STR_CONTAINS(world.broken.message, "aborted: rank 0: ");
    fake_world_fini(&world);
    CHECK_INT_EQ(unsetenv("RDMATENSOR_COST_TABLE"), 0);
    (void)unlink(path);
}

TEST_MAIN()
