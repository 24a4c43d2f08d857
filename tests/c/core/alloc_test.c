/* SPDX-License-Identifier: Apache-2.0
 * The allocator against a naive model that owns one cell per unit of address. */
#include "memory/allocator.h"

#include "harness.h"

#define UNIT 64
#define SPANS 3
#define SPAN_UNITS 2048
#define MODEL_MAX (SPANS * SPAN_UNITS)

/* splitmix64: the seed is printed where a run fails, so that it can be repeated. */
static uint64_t
next_random(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

struct model {
    struct rdti_alloc *alloc;
    uint64_t bases[SPANS];             /* of the spans, far apart */
    uint32_t owner[SPANS][SPAN_UNITS]; /* 0: free, else the block's number */
    struct {
        uint64_t base;
        uint64_t units;
        uint32_t number;
    } taken[MODEL_MAX];
    uint32_t taken_count;
    uint32_t last_number;
    uint64_t seed;
};

static uint32_t *
cell_of(struct model *m, uint64_t addr)
{
    for (int s = 0; s < SPANS; s++)
        if (addr >= m->bases[s] && addr < m->bases[s] + SPAN_UNITS * UNIT)
            return &m->owner[s][(addr - m->bases[s]) / UNIT];
    FAIL("0x%" PRIx64 " lies in no span", addr);
}

static uint64_t
model_largest_free(const struct model *m)
{
    uint64_t most = 0;

    for (int s = 0; s < SPANS; s++) {
        uint64_t run = 0;

        for (int u = 0; u < SPAN_UNITS; u++) {
            run = m->owner[s][u] == 0 ? run + 1 : 0;
            most = run > most ? run : most;
        }
    }
    return most * UNIT;
}

static void
model_take(struct model *m, uint64_t len_bytes)
{
    const uint64_t units = len_bytes == 0 ? 1 : (len_bytes + UNIT - 1) / UNIT;
    const uint64_t largest = model_largest_free(m);
    uint64_t base = 1;

    if (rdti_alloc_take(m->alloc, len_bytes, &base) != RDT_OK) {
        CHECK_UINT_EQ(base, 1);
        CHECK_MSG(largest < units * UNIT, "refused %" PRIu64 " bytes with %" PRIu64 " in one piece",
                  len_bytes, largest);
        return;
    }
    CHECK_UINT_EQ(base % UNIT, 0);
    CHECK_UINT_EQ(rdti_alloc_len_bytes(m->alloc, base), units * UNIT);
    m->last_number++;
    uint32_t *cell = cell_of(m, base);

    CHECK_PTR_EQ(cell_of(m, base + units * UNIT - 1), cell + units - 1);
    for (uint64_t u = 0; u < units; u++) {
        CHECK_MSG(cell[u] == 0, "unit %" PRIu64 " given out twice", u);
        cell[u] = m->last_number;
    }
    m->taken[m->taken_count].base = base;
    m->taken[m->taken_count].units = units;
    m->taken[m->taken_count++].number = m->last_number;
}

/* As give(), by way of absorb: what comes in must be exactly the free neighbourhood. */
static uint64_t
absorb_and_compare(struct model *m, uint64_t base, uint64_t units)
{
    uint64_t merged = 0;
    uint64_t merged_bytes = 0;

    CHECK(rdti_alloc_absorb(m->alloc, base, &merged, &merged_bytes));
    CHECK(merged <= base && merged + merged_bytes >= base + units * UNIT);
    for (uint64_t a = merged; a < merged + merged_bytes; a += UNIT)
        CHECK((a >= base && a < base + units * UNIT) || *cell_of(m, a) == 0);
    CHECK_UINT_EQ(rdti_alloc_len_bytes(m->alloc, merged), merged_bytes);
    if (merged != base)
        CHECK_UINT_EQ(rdti_alloc_len_bytes(m->alloc, base), 0);
    return merged;
}

static void
model_give(struct model *m, uint32_t which, bool is_absorbing)
{
    const uint64_t base = m->taken[which].base;
    const uint64_t units = m->taken[which].units;
    uint64_t given = base;

    if (is_absorbing)
        given = absorb_and_compare(m, base, units);
    CHECK(rdti_alloc_give(m->alloc, given));
    CHECK(!rdti_alloc_give(m->alloc, base)); /* a double free is reported */
    CHECK(!rdti_alloc_give(m->alloc, base + 1));
    for (uint64_t u = 0; u < units; u++) {
        CHECK_UINT_EQ(cell_of(m, base)[u], m->taken[which].number);
        cell_of(m, base)[u] = 0;
    }
    m->taken[which] = m->taken[--m->taken_count];
}

static uint64_t
random_len(uint64_t *rng)
{
    switch (next_random(rng) % 8) {
    case 0:
        return 0;
    case 1:
    case 2:
    case 3:
        return next_random(rng) % (4 * UNIT);
    case 4:
    case 5:
    case 6:
        return next_random(rng) % (64 * UNIT);
    default:
        return next_random(rng) % (SPAN_UNITS * UNIT + 2 * UNIT);
    }
}

static void
run_model(uint64_t seed, uint32_t rounds)
{
    struct model *m = calloc(1, sizeof(*m));
    struct rdt_error err;
    uint64_t rng = seed;
    uint64_t taken_units = 0;

    CHECK_NOT_NULL(m);
    CHECK_OK(rdti_alloc_create(UNIT, &m->alloc, &err), &err);
    for (int s = 0; s < SPANS; s++) {
        m->bases[s] = UINT64_C(0x10000000) * (uint64_t)(s + 1);
        CHECK_OK(rdti_alloc_add(m->alloc, m->bases[s], SPAN_UNITS * UNIT, &err), &err);
    }
    for (uint32_t round = 0; round < rounds; round++) {
        /* Long phases that fill and that empty: both ends of the range are reached. */
        const uint64_t take_percent = (round / 400) % 2 == 0 ? 70 : 30;

        if (m->taken_count == 0 || next_random(&rng) % 100 < take_percent)
            model_take(m, random_len(&rng));
        else
            model_give(m, (uint32_t)(next_random(&rng) % m->taken_count),
                       next_random(&rng) % 8 == 0);
        if (round % 16 == 0)
            CHECK_MSG(rdti_alloc_check(m->alloc), "seed %" PRIu64 " round %u", seed, round);
        CHECK_UINT_EQ(rdti_alloc_largest_free(m->alloc), model_largest_free(m));
    }
    for (uint32_t i = 0; i < m->taken_count; i++)
        taken_units += m->taken[i].units;
    CHECK_UINT_EQ(rdti_alloc_taken_bytes(m->alloc), taken_units * UNIT);
    while (m->taken_count > 0)
        model_give(m, m->taken_count - 1, false);
    CHECK_UINT_EQ(rdti_alloc_largest_free(m->alloc), SPAN_UNITS * UNIT);
    CHECK(rdti_alloc_check(m->alloc));
    rdti_alloc_destroy(m->alloc);
    free(m);
}

TEST_TIMEOUT(alloc_agrees_with_a_naive_model, 60)
{
    for (uint64_t seed = 1; seed <= 6; seed++)
        run_model(seed * 7919, 3000);
}

TEST(alloc_refuses_what_it_cannot_manage)
{
    struct rdti_alloc *alloc = NULL;
    struct rdt_error err;
    uint64_t base = 5;

    CHECK_STATUS(rdti_alloc_create(0, &alloc, &err), RDT_EINVAL);
    CHECK_STATUS(rdti_alloc_create(48, &alloc, &err), RDT_EINVAL);
    CHECK_NULL(alloc);
    CHECK_OK(rdti_alloc_create(UNIT, &alloc, &err), &err);
    CHECK_STATUS(rdti_alloc_take(alloc, 1, &base), RDT_ENOMEM); /* nothing was added */
    CHECK_STATUS(rdti_alloc_add(alloc, 4096, 0, &err), RDT_EINVAL);
    CHECK_STATUS(rdti_alloc_add(alloc, 4096 + 1, 4096, &err), RDT_EINVAL);
    CHECK_STATUS(rdti_alloc_add(alloc, 4096, 4096 + 1, &err), RDT_EINVAL);
    CHECK_STATUS(rdti_alloc_add(alloc, UINT64_MAX - 63, 4096, &err), RDT_EINVAL);
    CHECK_OK(rdti_alloc_add(alloc, 4096, 4096, &err), &err);
    CHECK_STATUS(rdti_alloc_add(alloc, 4096 + 2048, 4096, &err), RDT_EINVAL);
    CHECK_STATUS(rdti_alloc_take(alloc, UINT64_MAX, &base), RDT_ENOMEM);
    CHECK_STATUS(rdti_alloc_take(alloc, UINT64_MAX - 4096, &base), RDT_ENOMEM);
    CHECK_STATUS(rdti_alloc_take(alloc, 4097, &base), RDT_ENOMEM);
    CHECK_UINT_EQ(base, 5);
    CHECK_STATUS(rdti_alloc_take(alloc, 4096, &base), RDT_OK);
    CHECK_UINT_EQ(base, 4096);
    CHECK_UINT_EQ(rdti_alloc_largest_free(alloc), 0);
    CHECK(!rdti_alloc_give(alloc, 4096 + 64));
    CHECK(rdti_alloc_give(alloc, 4096));
    rdti_alloc_destroy(alloc);
    rdti_alloc_destroy(NULL);
}

/* Every length from one unit up fits into a span of exactly that length: no class rounding loses
 * it. */
TEST(alloc_serves_a_span_of_exactly_the_length)
{
    for (uint64_t units = 1; units < 3000; units++) {
        struct rdti_alloc *alloc;
        uint64_t base;

        CHECK_STATUS(rdti_alloc_create(UNIT, &alloc, NULL), RDT_OK);
        CHECK_STATUS(rdti_alloc_add(alloc, 1 << 20, units * UNIT, NULL), RDT_OK);
        CHECK_STATUS(rdti_alloc_take(alloc, units * UNIT, &base), RDT_OK);
        CHECK_UINT_EQ(base, 1 << 20);
        rdti_alloc_destroy(alloc);
    }
}

TEST(alloc_does_not_merge_over_the_border_of_two_adds)
{
    struct rdti_alloc *alloc;
    uint64_t a;
    uint64_t b;

    CHECK_STATUS(rdti_alloc_create(UNIT, &alloc, NULL), RDT_OK);
    CHECK_STATUS(rdti_alloc_add(alloc, 1 << 20, 4096, NULL), RDT_OK);
    CHECK_STATUS(rdti_alloc_add(alloc, (1 << 20) + 4096, 4096, NULL), RDT_OK);
    CHECK_STATUS(rdti_alloc_take(alloc, 4096, &a), RDT_OK);
    CHECK_STATUS(rdti_alloc_take(alloc, 4096, &b), RDT_OK);
    CHECK(rdti_alloc_give(alloc, a));
    CHECK(rdti_alloc_give(alloc, b));
    CHECK_UINT_EQ(rdti_alloc_largest_free(alloc), 4096);
    CHECK(rdti_alloc_check(alloc));
    rdti_alloc_destroy(alloc);
}

TEST_TIMEOUT(alloc_a_million_operations, 60)
{
    enum { SLOTS = 4096, OPS = 1000000 };
    static uint64_t bases[SLOTS];
    struct rdti_alloc *alloc;
    uint64_t rng = 42;
    uint32_t refused = 0;

    CHECK_STATUS(rdti_alloc_create(UNIT, &alloc, NULL), RDT_OK);
    CHECK_STATUS(rdti_alloc_add(alloc, UINT64_C(1) << 32, UINT64_C(1) << 30, NULL), RDT_OK);
    const uint64_t start_ns = test_now_ns();

    for (uint32_t i = 0; i < OPS; i++) {
        uint64_t *slot = &bases[next_random(&rng) % SLOTS];

        if (*slot != 0) {
            CHECK(rdti_alloc_give(alloc, *slot));
            *slot = 0;
        } else if (rdti_alloc_take(alloc, next_random(&rng) % (256 << 10), slot) != RDT_OK) {
            refused++;
        }
    }
    const double ns = (double)(test_now_ns() - start_ns) / OPS;

    printf("  %d operations, %.0f ns each, %u refused\n", OPS, ns, refused);
    CHECK_UINT_EQ(refused, 0); /* 2048 live blocks of 128 KiB on average: a quarter of the span */
    CHECK(rdti_alloc_check(alloc));
    /* Bounded by the clock of a slow, loaded machine; a linear search would cost 10 us and more. */
    CHECK_MSG(ns < 5000 * test_timeout_scale(), "%.0f ns an operation", ns);
    rdti_alloc_destroy(alloc);
}

TEST_MAIN()
