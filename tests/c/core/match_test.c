/* SPDX-License-Identifier: Apache-2.0
 * Matching against a naive model: two lists, searched from the front. */
#include "message/match/match.h"

#include <stdlib.h>
#include <string.h>

#include "harness.h"

#define NODES 4000
#define STEPS 200000
#define SOURCES 3
#define TAGS 4

struct item {
    struct rdti_match_posted posted;
    struct rdti_match_arrival arrival;
    bool is_posted;
    bool is_stored;
    uint32_t source;
    uint64_t tag;
};

/* Waiting items in the order in which they came. */
struct model {
    struct item *items[NODES];
    uint32_t count;
};

static uint64_t state = 1;

static uint32_t
random_below(uint32_t n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 33) % n;
}

static bool
fits(uint32_t a, uint32_t b)
{
    return a == b || a == RDT_SOURCE_ANY || b == RDT_SOURCE_ANY;
}

/* The first that fits, out of the list; NULL: none. */
static struct item *
model_take(struct model *model, uint32_t source, uint64_t tag)
{
    for (uint32_t i = 0; i < model->count; i++) {
        struct item *item = model->items[i];
        if (item->tag != tag || !fits(item->source, source))
            continue;
        memmove(&model->items[i], &model->items[i + 1], sizeof(item) * (model->count - i - 1));
        model->count--;
        return item;
    }
    return NULL;
}

static void
model_remove(struct model *model, const struct item *gone)
{
    for (uint32_t i = 0; i < model->count; i++) {
        if (model->items[i] != gone)
            continue;
        memmove(&model->items[i], &model->items[i + 1], sizeof(gone) * (model->count - i - 1));
        model->count--;
        return;
    }
}

static struct item *
free_item(struct item *items)
{
    for (uint32_t i = 0; i < NODES; i++)
        if (!items[i].is_posted && !items[i].is_stored)
            return &items[i];
    return NULL;
}

static void
step_post(struct rdti_matcher *m, struct item *item, struct model *posted, struct model *stored)
{
    struct rdt_error err = {0};
    const uint32_t source = random_below(4) == 0 ? RDT_SOURCE_ANY : random_below(SOURCES);
    const uint64_t tag = random_below(TAGS);
    struct rdti_match_arrival *got = rdti_match_take_arrival(m, source, tag);
    struct item *want = model_take(stored, source, tag);

    CHECK_PTR_EQ(got, want == NULL ? NULL : &want->arrival);
    if (want != NULL) {
        want->is_stored = false;
        return;
    }
    *item = (struct item){.is_posted = true, .source = source, .tag = tag};
    rdti_list_init(&item->posted.link);
    CHECK_OK(rdti_match_post(m, source, tag, &item->posted, &err), &err);
    posted->items[posted->count++] = item;
}

static void
step_arrive(struct rdti_matcher *m, struct item *item, struct model *posted, struct model *stored)
{
    struct rdt_error err = {0};
    const uint32_t source = random_below(SOURCES);
    const uint64_t tag = random_below(TAGS);
    struct rdti_match_posted *got = rdti_match_take_posted(m, source, tag);
    struct item *want = model_take(posted, source, tag);

    CHECK_PTR_EQ(got, want == NULL ? NULL : &want->posted);
    if (want != NULL) {
        want->is_posted = false;
        return;
    }
    *item = (struct item){.is_stored = true, .source = source, .tag = tag};
    CHECK_OK(rdti_match_store(m, source, tag, &item->arrival, &err), &err);
    stored->items[stored->count++] = item;
}

TEST(it_matches_as_the_model_does)
{
    struct rdt_error err = {0};
    struct rdti_matcher m;
    struct item *items = calloc(NODES, sizeof(*items));
    struct model *posted = calloc(1, sizeof(*posted));
    struct model *stored = calloc(1, sizeof(*stored));
    uint32_t met = 0;

    CHECK_OK(rdti_matcher_init(&m, &err), &err);
    for (uint32_t i = 0; i < STEPS; i++) {
        const uint32_t before = posted->count + stored->count;
        /* For a while more receives than messages, then the other way. */
        const bool is_post = random_below(100) < (i / 2000 % 2 == 0 ? 55u : 45u);
        struct item *item = free_item(items);
        if (item == NULL || random_below(20) == 0) {
            struct item *gone = &items[random_below(NODES)];
            rdti_match_cancel(&m, &gone->posted);
            rdti_match_remove(&m, &gone->arrival);
            model_remove(gone->is_posted ? posted : stored, gone);
            gone->is_posted = false;
            gone->is_stored = false;
        } else if (is_post) {
            step_post(&m, item, posted, stored);
        } else {
            step_arrive(&m, item, posted, stored);
        }
        met += posted->count + stored->count < before ? 1 : 0;
    }
    CHECK_UINT_GE(met, STEPS / 10);
    for (uint32_t i = 0; i < NODES; i++) {
        rdti_match_cancel(&m, &items[i].posted);
        rdti_match_remove(&m, &items[i].arrival);
    }
    CHECK_UINT_EQ(m.bin_count, 0);
    CHECK_UINT_EQ(m.any_count, 0);
    rdti_matcher_clear(&m);
    free(items);
    free(posted);
    free(stored);
}

/* Distinct tags in steps of a power of two, as collectives have them. */
TEST(a_hundred_thousand_tags_take_constant_time)
{
    struct rdt_error err = {0};
    struct rdti_matcher m;
    const uint32_t count = 100000;
    struct item *items = calloc(count, sizeof(*items));

    CHECK_OK(rdti_matcher_init(&m, &err), &err);
    const uint64_t begun_ns = test_now_ns();
    for (uint32_t i = 0; i < count; i++)
        CHECK_OK(rdti_match_post(&m, i % 7, (uint64_t)i << 16, &items[i].posted, &err), &err);
    for (uint32_t i = count; i-- > 0;)
        CHECK_PTR_EQ(rdti_match_take_posted(&m, i % 7, (uint64_t)i << 16), &items[i].posted);
    /* 20 ms where it was measured; a search through a list would take minutes. */
    CHECK_UINT_LE(test_now_ns() - begun_ns, (uint64_t)(2e9 * test_timeout_scale()));
    rdti_matcher_clear(&m);
    free(items);
}

TEST_MAIN()
