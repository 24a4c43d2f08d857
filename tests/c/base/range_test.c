/* SPDX-License-Identifier: Apache-2.0
 * Against 128-bit arithmetic, at every combination of the values where 64 bits go wrong. */
#include "base/range.h"

#include "harness.h"

TEST(range_agrees_with_wide_arithmetic)
{
    static const uint64_t values[] = {0,
                                      1,
                                      2,
                                      4095,
                                      4096,
                                      UINT64_C(0x7fffffffffffffff),
                                      UINT64_C(0x8000000000000000),
                                      UINT64_MAX - 1,
                                      UINT64_MAX};
    const size_t n = sizeof(values) / sizeof(values[0]);
    unsigned inside = 0;

    for (size_t i = 0; i < n * n * n; i++) {
        const uint64_t off = values[i % n];
        const uint64_t len = values[i / n % n];
        const uint64_t total = values[i / n / n];
        const bool want = (unsigned __int128)off + len <= total;

        CHECK_MSG(rdti_range_ok(off, len, total) == want, "%" PRIu64 " + %" PRIu64 " of %" PRIu64,
                  off, len, total);
        inside += want;
    }
    CHECK_UINT_GE(inside, 50); /* both answers occur */
    CHECK_UINT_LE(inside, n * n * n - 50);
}

TEST_MAIN()
