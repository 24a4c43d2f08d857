/* SPDX-License-Identifier: Apache-2.0
 * Merging of rows, the map of partitions, and clocks. */
#include "harness.h"

#include "ps/model/clocks.h"
#include "ps/model/map.h"
#include "ps/model/merge.h"

static uint64_t random_state = 7;

static uint32_t
random_below(uint32_t bound)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33) % bound;
}

enum { IDS = 500, DIM = 3, MOST = 2000 };

/* Small integers, whose sums are exact in any order. */
static void
check_merge(struct rdti_ps_merge *merge, uint64_t count, bool is_last)
{
    static float want[IDS][DIM];
    static bool has[IDS];
    uint64_t distinct = 0;

    memset(want, 0, sizeof(want));
    memset(has, 0, sizeof(has));
    CHECK_INT_EQ(rdti_ps_merge_begin(merge, DIM, count, NULL), RDT_OK);
    CHECK_INT_EQ(rdti_ps_merge_reserve_rows(merge, count, NULL), RDT_OK);
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t id = random_below(IDS);
        float row[DIM];
        for (int k = 0; k < DIM; k++) {
            row[k] = (float)random_below(1000);
            want[id][k] = is_last || !has[id] ? row[k] : want[id][k] + row[k];
        }
        distinct += !has[id];
        has[id] = true;
        rdti_ps_merge_row(merge, rdti_ps_kernels_best(), id, row, is_last);
    }
    CHECK_UINT_EQ(merge->count, distinct);
    for (uint64_t i = 0; i < merge->count; i++) {
        const uint64_t id = merge->ids[i];
        CHECK(id < IDS && has[id]);
        has[id] = false; /* once */
        for (int k = 0; k < DIM; k++)
            CHECK(merge->rows[i * DIM + (uint64_t)k] == want[id][k]);
    }
}

TEST(rows_of_one_id_are_merged_in_every_batch)
{
    struct rdti_ps_merge merge = {0};

    for (int round = 0; round < 300; round++)
        check_merge(&merge, random_below(MOST), round % 3 == 0);
    check_merge(&merge, 0, false);
    rdti_ps_merge_free(&merge);
}

TEST(stamps_begin_again)
{
    struct rdti_ps_merge merge = {0};

    check_merge(&merge, 100, false);
    merge.stamp = UINT32_MAX - 2;
    for (int round = 0; round < 6; round++)
        check_merge(&merge, 100, false);
    CHECK(merge.stamp < 10);
    rdti_ps_merge_free(&merge);
}

static void
check_map(uint32_t servers, uint64_t rows)
{
    static struct rdti_ps_map map;
    uint8_t *seen[8] = {NULL};
    uint64_t all = 0;

    CHECK_INT_EQ(rdti_ps_map_init(&map, servers, rows, NULL), RDT_OK);
    for (uint32_t server = 0; server < servers; server++) {
        seen[server] = calloc(1, rdti_ps_map_rows(&map, server) + 1);
        CHECK(seen[server] != NULL);
        all += rdti_ps_map_rows(&map, server);
    }
    CHECK_UINT_EQ(all, rows);
    for (uint64_t id = 0; id < rows; id++) {
        const uint32_t server = rdti_ps_map_owner(&map, id);
        const uint64_t local = rdti_ps_map_local(&map, id);
        CHECK(server < servers && local < rdti_ps_map_rows(&map, server));
        CHECK(seen[server][local]++ == 0);
    }
    for (uint32_t server = 0; server < servers; server++)
        free(seen[server]);
}

TEST(each_row_has_a_place_of_its_own)
{
    const uint64_t rows[] = {0, 1, 3, 1023, 1024, 1025, 5000, 100000};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (uint32_t servers = 1; servers <= 7; servers++)
            check_map(servers, rows[i]);
}

TEST(clocks_hold_and_let_go)
{
    struct rdti_ps_clocks clocks;

    CHECK_INT_EQ(rdti_ps_clocks_init(&clocks, RDT_PS_SYNC, 0, 0, NULL), RDT_EINVAL);
    CHECK_INT_EQ(rdti_ps_clocks_init(&clocks, 9, 0, 1, NULL), RDT_EINVAL);
    CHECK_INT_EQ(rdti_ps_clocks_init(&clocks, RDT_PS_SYNC, 0, 2, NULL), RDT_OK);
    CHECK_INT_EQ(rdti_ps_clocks_tick(&clocks, 0, 2, NULL), RDT_EPROTO);
    CHECK_INT_EQ(rdti_ps_clocks_tick(&clocks, 0, 1, NULL), RDT_OK);
    CHECK_UINT_EQ(rdti_ps_clocks_least(&clocks), 0);
    CHECK_INT_EQ(rdti_ps_clocks_tick(&clocks, 1, 1, NULL), RDT_OK);
    CHECK_UINT_EQ(rdti_ps_clocks_least(&clocks), 1);
    rdti_ps_clocks_out(&clocks, 1);
    CHECK_INT_EQ(rdti_ps_clocks_tick(&clocks, 1, 2, NULL), RDT_EPROTO);
    CHECK_INT_EQ(rdti_ps_clocks_tick(&clocks, 0, 2, NULL), RDT_OK);
    CHECK_UINT_EQ(rdti_ps_clocks_least(&clocks), 2);
    rdti_ps_clocks_out(&clocks, 0);
    CHECK_UINT_EQ(rdti_ps_clocks_least(&clocks), UINT64_MAX);
    rdti_ps_clocks_free(&clocks);
    CHECK_UINT_EQ(rdti_ps_clocks_needed(RDT_PS_SYNC, 3, 5), 5);
    CHECK_UINT_EQ(rdti_ps_clocks_needed(RDT_PS_ASYNC, 3, 5), 0);
    CHECK_UINT_EQ(rdti_ps_clocks_needed(RDT_PS_SSP, 3, 5), 2);
    CHECK_UINT_EQ(rdti_ps_clocks_needed(RDT_PS_SSP, 5, 5), 0);
}

TEST_MAIN()
