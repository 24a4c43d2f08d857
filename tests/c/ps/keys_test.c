/* SPDX-License-Identifier: Apache-2.0
 * Keys of a table, against a model that searches all of them. */
#include "harness.h"

#include "ps/model/map.h"
#include "ps/rows/keys.h"

static uint64_t random_state = 11;

static uint32_t
random_below(uint32_t bound)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33) % bound;
}

enum { KEYS = 200, STEPS = 150 };

struct model_key {
    bool is_there;
    bool has_row;
    uint64_t last;
    uint64_t order; /* of its last push */
    uint32_t count;
    uint32_t epoch;
};

struct model {
    struct rdti_ps_keys_opts opts;
    struct model_key keys[KEYS];
    uint64_t order;
    uint64_t step;
    uint32_t epoch;
    uint64_t evictions;
    uint64_t expirations;
    uint64_t forgotten;
    uint64_t rows_most; /* that memory was there for */
};

/* Keys in all partitions, of all bits. */
static uint64_t
key_of(uint32_t i)
{
    return (uint64_t)i * UINT64_C(0x9e3779b97f4a7c15) - 5;
}

static uint64_t
model_count(const struct model *model, bool has_row)
{
    uint64_t count = 0;

    for (uint32_t i = 0; i < KEYS; i++)
        count += model->keys[i].is_there && model->keys[i].has_row == has_row;
    return count;
}

static bool
model_is_less(const struct model *model, uint32_t a, uint32_t b)
{
    const struct model_key *one = &model->keys[a];
    const struct model_key *other = &model->keys[b];

    if (!one->has_row || model->opts.evict == RDT_PS_EVICT_LRU)
        return one->order < other->order;
    if (model->opts.evict == RDT_PS_EVICT_EPOCH && one->epoch != other->epoch)
        return one->epoch < other->epoch;
    if (one->count != other->count)
        return one->count < other->count;
    if (model->opts.evict == RDT_PS_EVICT_LFU && one->last != other->last)
        return one->last < other->last;
    return key_of(a) < key_of(b);
}

static void
model_remove_least(struct model *model, bool has_row)
{
    uint32_t least = KEYS;

    for (uint32_t i = 0; i < KEYS; i++)
        if (model->keys[i].is_there && model->keys[i].has_row == has_row &&
            (least == KEYS || model_is_less(model, i, least)))
            least = i;
    CHECK(least < KEYS);
    model->keys[least] = (struct model_key){0};
}

static void
model_begin_step(struct model *model)
{
    model->step++;
    for (uint32_t i = 0; i < KEYS; i++)
        if (model->opts.expire_after > 0 && model->keys[i].is_there &&
            model->step - model->keys[i].last > model->opts.expire_after) {
            model->keys[i] = (struct model_key){0};
            model->expirations++;
        }
}

static void
model_push(struct model *model, uint32_t i)
{
    struct model_key *one = &model->keys[i];

    if (!one->is_there && model->opts.admit_after > 1 && model->opts.capacity > 0 &&
        model_count(model, false) == model->opts.capacity) {
        model_remove_least(model, false);
        model->forgotten++;
    }
    one->is_there = true;
    one->count++;
    one->last = model->step;
    one->epoch = model->epoch;
    one->order = ++model->order;
    if (one->has_row || one->count < model->opts.admit_after)
        return;
    if (model->opts.capacity > 0 && model_count(model, true) == model->opts.capacity) {
        model_remove_least(model, true);
        model->evictions++;
    }
    one->has_row = true;
}

static void
check_equal(const struct rdti_ps_keys *keys, const struct model *model)
{
    static bool is_used[KEYS];

    memset(is_used, 0, sizeof(is_used));
    for (uint32_t i = 0; i < KEYS; i++) {
        const struct rdti_ps_key *found = rdti_ps_keys_find(keys, key_of(i));
        const struct model_key *want = &model->keys[i];
        CHECK_INT_EQ(found != NULL, want->is_there);
        if (found == NULL)
            continue;
        CHECK_UINT_EQ(found->last, want->last);
        CHECK_UINT_EQ(found->count, want->count);
        CHECK_INT_EQ(found->row != RDTI_PS_NO_ROW, want->has_row);
        if (!want->has_row)
            continue;
        CHECK(found->row < keys->rows_ever && found->row < KEYS && !is_used[found->row]);
        is_used[found->row] = true;
    }
    CHECK_UINT_EQ(keys->admitted.count, model_count(model, true));
    CHECK_UINT_EQ(keys->filtered.count, model_count(model, false));
    CHECK_UINT_EQ(keys->evictions, model->evictions);
    CHECK_UINT_EQ(keys->expirations, model->expirations);
    CHECK_UINT_EQ(keys->forgotten, model->forgotten);
}

/* Pushes of several workers are reserved before some of them are made, in any order. */
static void
check_step(struct rdti_ps_keys *keys, struct model *model)
{
    uint64_t ids[2][KEYS];
    uint32_t numbers[2][KEYS];
    uint8_t marks[2][KEYS];
    uint64_t counts[2];

    for (int worker = 0; worker < 2; worker++) {
        const uint32_t start = random_below(KEYS);
        counts[worker] = random_below(40);
        for (uint32_t i = 0; i < counts[worker]; i++) {
            numbers[worker][i] = (start + i * 7) % KEYS;
            ids[worker][i] = key_of(numbers[worker][i]);
        }
        CHECK_INT_EQ(rdti_ps_keys_reserve(keys, ids[worker], counts[worker], marks[worker], NULL),
                     RDT_OK);
    }
    const bool is_dropped = random_below(4) == 0;
    for (int worker = 0; worker < 2; worker++) {
        bool is_new;
        if (rdti_ps_keys_rows_most(keys) > model->rows_most)
            model->rows_most = rdti_ps_keys_rows_most(keys);
        rdti_ps_keys_unreserve(keys, ids[worker], counts[worker], marks[worker]);
        if (worker == 1 && is_dropped)
            continue;
        model_begin_step(model);
        rdti_ps_keys_begin_step(keys, model->step);
        for (uint32_t i = 0; i < counts[worker]; i++) {
            const bool had_row = model->keys[numbers[worker][i]].has_row;
            model_push(model, numbers[worker][i]);
            const struct rdti_ps_key *one = rdti_ps_keys_push(keys, ids[worker][i], &is_new);
            CHECK_INT_EQ(is_new, !had_row && model->keys[numbers[worker][i]].has_row);
            CHECK(one->row == RDTI_PS_NO_ROW || one->row < model->rows_most);
        }
    }
    CHECK_UINT_EQ(keys->reserved, 0);
    CHECK_UINT_EQ(keys->reserved_rows, 0);
    if (random_below(10) == 0)
        keys->epoch = ++model->epoch;
}

TEST(keys_behave_as_a_model_that_searches_all)
{
    for (uint32_t round = 0; round < 48; round++) {
        struct model model = {.opts = {.capacity = round % 4 * 17,
                                       .expire_after = round / 4 % 2 * 9,
                                       .admit_after = 1 + round / 8 % 2 * 2,
                                       .evict = round / 16 % 3}};
        struct rdti_ps_keys keys;
        CHECK_INT_EQ(rdti_ps_keys_init(&keys, &model.opts, NULL), RDT_OK);
        for (int step = 0; step < STEPS; step++) {
            check_step(&keys, &model);
            check_equal(&keys, &model);
        }
        CHECK(model.opts.capacity == 0 || model.opts.expire_after > 0 ||
              model.opts.admit_after > 1 || model.evictions > 0);
        CHECK(model.opts.expire_after == 0 || model.opts.capacity > 0 || model.expirations > 0);
        rdti_ps_keys_free(&keys);
    }
}

/* Entries of all partitions, put into other keys in any order, go on as before. */
static void
restore_all(const struct rdti_ps_keys *from, struct rdti_ps_keys *to)
{
    CHECK_INT_EQ(rdti_ps_keys_init(to, &from->opts, NULL), RDT_OK);
    for (uint32_t partition = RDTI_PS_PARTITIONS; partition-- > 0;) {
        const struct rdti_ps_key *one;
        uint64_t at = 0;
        while ((one = rdti_ps_keys_next(from, partition, &at)) != NULL)
            CHECK(rdti_ps_keys_restore(to, one, one->row != RDTI_PS_NO_ROW, NULL) != NULL);
    }
    to->epoch = from->epoch;
    to->evictions = from->evictions;
    to->expirations = from->expirations;
    to->forgotten = from->forgotten;
}

TEST(restored_keys_go_on_as_before)
{
    for (uint32_t round = 0; round < 48; round++) {
        struct model model = {.opts = {.capacity = round % 4 * 17,
                                       .expire_after = round / 4 % 2 * 9,
                                       .admit_after = 1 + round / 8 % 2 * 2,
                                       .evict = round / 16 % 3}};
        struct rdti_ps_keys keys;
        CHECK_INT_EQ(rdti_ps_keys_init(&keys, &model.opts, NULL), RDT_OK);
        for (int step = 0; step < 100; step++) {
            check_step(&keys, &model);
            check_equal(&keys, &model);
            if (step % 20 == 19) {
                struct rdti_ps_keys other;
                restore_all(&keys, &other);
                rdti_ps_keys_free(&keys);
                keys = other;
                check_equal(&keys, &model);
            }
        }
        rdti_ps_keys_free(&keys);
    }
}

TEST(restored_keys_beyond_the_capacity_are_evicted)
{
    const struct rdti_ps_keys_opts opts = {.admit_after = 1, .capacity = 10};
    struct rdti_ps_keys keys;
    uint64_t key = 7;
    uint8_t mark;
    bool is_new;

    CHECK_INT_EQ(rdti_ps_keys_init(&keys, &opts, NULL), RDT_OK);
    for (uint64_t i = 0; i < 25; i++) {
        const struct rdti_ps_key saved = {.key = key_of((uint32_t)i), .last = i, .order = i + 1};
        CHECK(rdti_ps_keys_restore(&keys, &saved, true, NULL) != NULL);
    }
    CHECK_INT_EQ(rdti_ps_keys_reserve(&keys, &key, 1, &mark, NULL), RDT_OK);
    rdti_ps_keys_unreserve(&keys, &key, 1, &mark);
    rdti_ps_keys_begin_step(&keys, 30);
    CHECK_UINT_EQ(keys.admitted.count, 10);
    CHECK(rdti_ps_keys_push(&keys, key, &is_new)->row < 25);
    CHECK_UINT_EQ(keys.admitted.count, 10);
    CHECK(rdti_ps_keys_find(&keys, key_of(24)) != NULL);
    CHECK(rdti_ps_keys_find(&keys, key_of(15)) == NULL);
    rdti_ps_keys_free(&keys);
}

TEST(a_million_keys_have_a_row_each)
{
    const struct rdti_ps_keys_opts opts = {.admit_after = 1};
    const uint64_t count = 1000000;
    struct rdti_ps_keys keys;
    uint8_t mark;
    bool is_new;

    CHECK_INT_EQ(rdti_ps_keys_init(&keys, &opts, NULL), RDT_OK);
    rdti_ps_keys_begin_step(&keys, 1);
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t key = rdti_ps_map_hash(i + 1);
        CHECK_INT_EQ(rdti_ps_keys_reserve(&keys, &key, 1, &mark, NULL), RDT_OK);
        rdti_ps_keys_unreserve(&keys, &key, 1, &mark);
        CHECK_UINT_EQ(rdti_ps_keys_push(&keys, key, &is_new)->row, i);
        CHECK(is_new);
    }
    for (uint64_t i = 0; i < count; i++)
        CHECK_UINT_EQ(rdti_ps_keys_find(&keys, rdti_ps_map_hash(i + 1))->row, i);
    CHECK(rdti_ps_keys_find(&keys, rdti_ps_map_hash(count + 1)) == NULL);
    CHECK(rdti_ps_keys_bytes(&keys) < 160 * count);
    rdti_ps_keys_free(&keys);
}

TEST(wrong_options_of_keys_are_refused)
{
    struct rdti_ps_keys keys;
    const struct rdti_ps_keys_opts wrong[] = {
        {.admit_after = 0},
        {.admit_after = 1, .evict = 9},
        {.admit_after = 1, .capacity = UINT64_C(1) << 32},
    };

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        CHECK_INT_EQ(rdti_ps_keys_init(&keys, &wrong[i], NULL), RDT_EINVAL);
        rdti_ps_keys_free(&keys);
    }
}

TEST_MAIN()
