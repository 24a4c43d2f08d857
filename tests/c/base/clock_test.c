/* SPDX-License-Identifier: Apache-2.0
 * Deadlines: they count down, and saturate instead of wrapping. */
#include "base/clock.h"

#include "harness.h"

TEST(now_is_the_monotonic_clock)
{
    const uint64_t before_ns = test_now_ns();
    const uint64_t now_ns = rdti_now_ns();
    const uint64_t after_ns = test_now_ns();

    CHECK_UINT_GE(now_ns, before_ns);
    CHECK_UINT_LE(now_ns, after_ns);
}

TEST(a_deadline_saturates_at_never)
{
    CHECK_UINT_EQ(rdti_deadline_after(UINT64_MAX), UINT64_MAX);
    CHECK_UINT_EQ(rdti_deadline_after(UINT64_MAX - 1), UINT64_MAX);
    const uint64_t deadline_ns = rdti_deadline_after(UINT64_C(1000000000));
    CHECK_UINT_GE(deadline_ns, rdti_now_ns());
    CHECK_UINT_LE(deadline_ns, rdti_now_ns() + UINT64_C(1000000000));
}

TEST(remaining_counts_down_to_zero)
{
    CHECK_UINT_EQ(rdti_remaining_ns(0), 0);
    CHECK_UINT_EQ(rdti_remaining_ns(rdti_now_ns()), 0);
    CHECK_UINT_EQ(rdti_remaining_ns(UINT64_MAX), UINT64_MAX);

    const uint64_t deadline_ns = rdti_deadline_after(UINT64_C(3000000000));
    const uint64_t first_ns = rdti_remaining_ns(deadline_ns);
    test_sleep_ns(UINT64_C(2000000));
    const uint64_t second_ns = rdti_remaining_ns(deadline_ns);

    CHECK_UINT_LE(first_ns, UINT64_C(3000000000));
    CHECK_UINT_LE(second_ns + UINT64_C(2000000), first_ns);
}

TEST_MAIN()
