/* SPDX-License-Identifier: Apache-2.0
 * Receives that stand among others, under several tags: all arrives, and in order. */
#include "core/stand_rig.h"

struct random {
    uint64_t state;
};

static uint64_t
next(struct random *random)
{
    random->state = random->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return random->state >> 33;
}

#define DEPTH 6

struct mixed {
    rdt_transfer *recv;
    rdt_transfer *send;
    uint8_t *src;
    uint8_t *dst;
    uint8_t *own; /* if it is no piece of the field */
    uint64_t tag;
    uint64_t len_bytes;
    uint64_t cap_bytes;
};

/* Most are as in every batch; a few have another size, or go to private memory. */
static void
choose(struct mixed *one, int i, struct field *field, struct random *random)
{
    static const uint64_t sizes[] = {0, 5, 64, 5000, 60000, 65536, 65537, LARGE - 3, LARGE};
    const bool is_regular = next(random) % 8 != 0;

    one->tag = (uint64_t)i % 3;
    one->cap_bytes = is_regular ? (i < 3 ? LARGE : 5000) : sizes[next(random) % 9];
    one->len_bytes = one->cap_bytes;
    if (next(random) % 16 == 0)
        one->len_bytes -= one->len_bytes / 3;
    if (!is_regular && next(random) % 2 == 0)
        one->own = malloc(one->cap_bytes + 1);
    /* Two rows of pieces: what stands under a tag does so at one address and size. */
    one->dst = one->own != NULL ? one->own : field->piece[i % 3] + (i < 3 ? 0 : LARGE);
    one->src = malloc(one->len_bytes + 1);
    rig_fill(one->src, one->len_bytes, next(random));
}

static void
check_mixed(struct mixed *one)
{
    struct rdt_error err = {0};

    CHECK_OK(rdt_transfer_wait(one->recv, rig_patience_ns(), &err), &err);
    CHECK_UINT_EQ(rdt_transfer_len_bytes(one->recv), one->len_bytes);
    rdt_transfer_free(one->recv);
    CHECK_OK(rig_end(one->send, &err), &err);
    CHECK_MEM_EQ(one->dst, one->src, one->len_bytes);
    free(one->src);
    free(one->own);
}

/* A batch of messages under some tags, sends and receives each in the same order of every tag, but
 * those of one side before those of the other. Returns how many went under tags that stand. */
static uint64_t
batch(struct rig *rig, struct field *field, struct random *random)
{
    struct mixed all[DEPTH] = {{0}};
    uint64_t standing = 0;

    const uint64_t order = next(random) % 3;
    for (int i = 0; i < DEPTH; i++)
        choose(&all[i], i, field, random);
    for (int i = 0; i < 2 * DEPTH; i++) {
        const bool is_send = order == 0 ? i < DEPTH : order == 1 ? i >= DEPTH : i % 2 == 0;
        struct mixed *one = &all[order == 2 ? i / 2 : i % DEPTH];
        if (is_send)
            one->send = rig_send(rig, 0, 1, one->tag, one->src, one->len_bytes);
        else
            one->recv = rig_recv(rig, 1, 0, one->tag, one->dst, one->cap_bytes);
    }
    for (int i = 0; i < DEPTH; i++) {
        check_mixed(&all[i]);
        standing += stands(rig, all[i].tag) ? 1 : 0;
    }
    return standing;
}

static void
mixes(uint32_t transport, uint64_t seed)
{
    struct random random = {seed};
    struct rig rig;
    struct field field;
    uint64_t standing = 0;

    rig_open(&rig, 2, transport);
    field_make(&field, rig.ctx[1], 2 * LARGE);
    exchange(&rig, field.piece[0], 1, 1, false);
    for (int i = 0; i < 60; i++) {
        if (i % 15 == 0) { /* each time as if nothing had ever stood */
            rdt_group_destroy(rig.group[0]);
            rdt_group_destroy(rig.group[1]);
            const char name[] = {'m', (char)('a' + i / 15), '\0'};
            rig.group[0] = rig_group(&rig, 0, name);
            rig.group[1] = rig_group(&rig, 1, name);
            exchange(&rig, field.piece[0], 1, 1, false);
        }
        standing += batch(&rig, &field, &random);
    }
    CHECK_UINT_GE(standing, 20); /* else nothing was shown */
    rdt_region_free(field.region, NULL, NULL);
    rig_close(&rig);
}

TEST_TIMEOUT(any_mixture_arrives_in_order_over_shm, 120)
{
    for (uint64_t seed = 1; seed <= 6; seed += TEST_TSAN_SHARE)
        mixes(RDT_TRANSPORT_SHM, seed);
}

TEST_TIMEOUT(any_mixture_arrives_in_order_over_tcp, 120)
{
    for (uint64_t seed = 11; seed <= 13; seed += TEST_TSAN_SHARE)
        mixes(RDT_TRANSPORT_TCP, seed);
}

TEST_MAIN()
