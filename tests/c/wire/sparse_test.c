/* SPDX-License-Identifier: Apache-2.0
 * Entries of sparse tensors: as many as there can be, and none outside. */
#include "harness.h"

#include "wire/group/sparse.h"

TEST(a_count_fits_what_the_sizes_have)
{
    static const struct {
        int64_t count;
        size_t dims;
        int64_t sizes[4];
        bool fits;
    } cases[] = {
        {0, 0, {0}, true},
        {1, 0, {0}, true},
        {2, 0, {0}, false},
        {-1, 1, {4}, false},
        {INT64_MIN, 1, {4}, false},
        {4, 1, {4}, true},
        {5, 1, {4}, false},
        {12, 2, {3, 4}, true},
        {13, 2, {3, 4}, false},
        {INT64_MAX, 2, {3, 4}, false},
        {0, 3, {INT64_MAX, INT64_MAX, 0}, true},
        {1, 3, {INT64_MAX, INT64_MAX, 0}, false},
        {INT64_MAX, 2, {INT64_MAX, INT64_MAX}, true},
        {INT64_MAX, 4, {INT64_C(1) << 32, 1, INT64_C(1) << 31, 2}, true}, /* the product is 2^64 */
        {INT64_C(1) << 62, 2, {INT64_C(1) << 31, INT64_C(1) << 31}, true},
        {(INT64_C(1) << 62) + 1, 2, {INT64_C(1) << 31, INT64_C(1) << 31}, false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        CHECK_MSG(rdti_sparse_count_fits(cases[i].count, cases[i].sizes, cases[i].dims) ==
                      cases[i].fits,
                  "case %zu", i);
}

TEST(an_index_fits_inside_its_dimension_alone)
{
    static const int64_t sizes[] = {4, 2};
    static const int64_t edges[] = {INT64_MIN, -1, 0, 1, 2, 3, 4, INT64_MAX};

    for (size_t row = 0; row < 2; row++)
        for (size_t column = 0; column < 3; column++)
            for (size_t i = 0; i < sizeof(edges) / sizeof(edges[0]); i++) {
                int64_t indices[2][3] = {{0, 3, 1}, {1, 0, 1}};
                const bool is_inside = edges[i] >= 0 && edges[i] < sizes[row];
                indices[row][column] = edges[i];
                CHECK_MSG(rdti_sparse_indices_fit(indices[0], 3, 3, sizes, 2) == is_inside,
                          "row %zu, column %zu, edge %zu", row, column, i);
                /* What lies behind the count is nobody's. */
                CHECK(rdti_sparse_indices_fit(indices[0], 3, 2, sizes, 2) ==
                      (is_inside || column == 2));
                CHECK(rdti_sparse_indices_fit(indices[0], 3, 0, sizes, 2));
            }
}

TEST_MAIN()
