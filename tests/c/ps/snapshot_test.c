/* SPDX-License-Identifier: Apache-2.0
 * A snapshot keeps rows as they were, while they change before, while and after they are read. */
#include "harness.h"

#include "ps/model/snapshot.h"

static uint64_t random_state = 11;

static uint32_t
random_below(uint32_t bound)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33) % bound;
}

enum { ROWS = 700, VALUES = 2, STATE = 1, WIDTH = VALUES + STATE };

static void
change_some(struct rdti_ps_snapshot *snapshot, float (*rows)[WIDTH])
{
    for (uint32_t i = random_below(40); i > 0; i--) {
        const uint32_t row = random_below(ROWS);
        rdti_ps_snapshot_keep(snapshot, row, rows[row], rows[row] + VALUES);
        for (int k = 0; k < WIDTH; k++)
            rows[row][k] += 1.0f;
    }
}

TEST(rows_are_as_they_were_at_the_beginning)
{
    static float rows[ROWS][WIDTH];
    static float before[ROWS][WIDTH];

    for (int round = 0; round < 50; round++) {
        struct rdti_ps_snapshot *snapshot;
        CHECK_INT_EQ(rdti_ps_snapshot_create(ROWS, VALUES, STATE, &snapshot, NULL), RDT_OK);
        memcpy(before, rows, sizeof(rows));
        for (uint32_t row = 0; row < ROWS; row++) {
            if (row % 10 == 0)
                change_some(snapshot, rows);
            const float *copy = rdti_ps_snapshot_find(snapshot, row);
            CHECK(memcmp(copy != NULL ? copy : rows[row], before[row], sizeof(rows[row])) == 0);
            snapshot->read = row + 1;
        }
        const uint32_t copies = snapshot->copies;
        change_some(snapshot, rows);
        CHECK_UINT_EQ(snapshot->copies, copies); /* all rows were read */
        CHECK(!snapshot->has_failed);
        rdti_ps_snapshot_destroy(snapshot);
    }
}

TEST(sets_of_rows_have_what_was_added)
{
    struct rdti_ps_rows one = {0};
    struct rdti_ps_rows two = {0};

    CHECK_INT_EQ(rdti_ps_rows_init(&one, ROWS, NULL), RDT_OK);
    CHECK_INT_EQ(rdti_ps_rows_init(&two, ROWS, NULL), RDT_OK);
    for (uint64_t row = 0; row < ROWS; row += 3)
        rdti_ps_rows_add(&one, row);
    for (uint64_t row = 0; row < ROWS; row += 5)
        rdti_ps_rows_add(&two, row);
    rdti_ps_rows_unite(&one, &two);
    for (uint64_t row = 0; row < ROWS; row++)
        CHECK(rdti_ps_rows_has(&one, row) == (row % 3 == 0 || row % 5 == 0));
    rdti_ps_rows_add_all(&two);
    for (uint64_t row = 0; row < ROWS; row++)
        CHECK(rdti_ps_rows_has(&two, row));
    rdti_ps_rows_free(&one);
    rdti_ps_rows_free(&two);
}

TEST_MAIN()
