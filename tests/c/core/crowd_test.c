/* SPDX-License-Identifier: Apache-2.0
 * What counts as a finding that others use the cores, and for how long it holds. */
#include "harness.h"
#include "progress/contention.h"

#define LOST RDTI_CROWD_LOST_NS
#define LEAST RDTI_CROWD_LEAST_NS
#define MOST RDTI_CROWD_MOST_NS
#define START UINT64_C(1000000000)

TEST(a_thread_that_had_the_core_has_found_nothing)
{
    struct rdti_crowd crowd = {0};

    CHECK(!rdti_crowd_judge(&crowd, 0, 0, START));
    CHECK(!rdti_crowd_judge(&crowd, 4 * LOST, 4 * LOST, START));
    CHECK(!rdti_crowd_judge(&crowd, 4 * LOST, 3 * LOST + 1, START));
    CHECK(!rdti_crowd_judge(&crowd, LOST, 3 * LOST, START)); /* the clocks differ by some ns */
    CHECK(!rdti_crowd_judge(&crowd, LOST - 1, 0, START));
    CHECK(!rdti_crowd_is_known(&crowd));
    CHECK(!rdti_crowd_is_there(&crowd, START));
}

TEST(a_finding_holds_for_longer_while_more_follow)
{
    struct rdti_crowd crowd = {0};
    uint64_t now_ns = START;

    for (uint64_t for_ns = LEAST; for_ns <= 4 * MOST; for_ns *= 2) {
        const uint64_t holds_ns = for_ns < MOST ? for_ns : MOST;
        CHECK(rdti_crowd_judge(&crowd, LOST, 0, now_ns));
        CHECK(rdti_crowd_is_known(&crowd));
        CHECK(rdti_crowd_is_there(&crowd, now_ns - 1)); /* another thread's reading */
        CHECK(rdti_crowd_is_there(&crowd, now_ns + holds_ns - 1));
        CHECK(!rdti_crowd_is_there(&crowd, now_ns + holds_ns)); /* the next wait tries again */
        now_ns += 2 * holds_ns - 1;
        CHECK(!rdti_crowd_is_there(&crowd, now_ns));
        CHECK(rdti_crowd_is_known(&crowd));
    }
}

TEST(a_machine_that_is_quiet_again_is_one_on_which_nothing_was_found)
{
    struct rdti_crowd crowd = {0};

    for (int i = 0; i < 10; i++)
        CHECK(rdti_crowd_judge(&crowd, LOST, 0, START));
    CHECK(rdti_crowd_is_there(&crowd, START + MOST - 1));
    CHECK(!rdti_crowd_is_there(&crowd, START + 2 * MOST));
    CHECK(!rdti_crowd_is_known(&crowd)); /* no look at the clock from now on */
    CHECK(rdti_crowd_judge(&crowd, LOST, 0, START + 2 * MOST));
    CHECK(!rdti_crowd_is_there(&crowd, START + 2 * MOST + LEAST));
}

TEST_MAIN()
