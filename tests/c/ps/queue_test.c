/* SPDX-License-Identifier: Apache-2.0
 * Leases: workers lease, end steps and die in random order, and each chunk is applied once on each
 * of two servers. */
#include "harness.h"

#include "ps/model/queue.h"

enum { WORKERS = 5, SERVERS = 2, CHUNKS_MAX = 40 };

static uint64_t random_state = 3;

static uint32_t
random_below(uint32_t bound)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33) % bound;
}

struct model {
    struct rdti_ps_queue queues[SERVERS];
    uint64_t leased[WORKERS]; /* RDT_PS_CHUNK_NONE: nothing */
    bool is_dead[WORKERS];
    uint32_t alive;
    uint32_t applied[SERVERS][CHUNKS_MAX];
};

static void
model_apply(struct model *model, uint32_t server, uint64_t chunk)
{
    if (rdti_ps_queue_apply(&model->queues[server], chunk))
        model->applied[server][chunk]++;
}

/* A step reaches both servers, unless the worker dies after the first, or before it. */
static void
model_step(struct model *model, uint32_t worker)
{
    const uint32_t reached =
        model->alive > 1 && random_below(4) == 0 ? random_below(3) : SERVERS + 1;

    for (uint32_t server = 0; server < SERVERS && server < reached; server++)
        model_apply(model, server, model->leased[worker]);
    if (reached <= SERVERS) {
        model->is_dead[worker] = true;
        model->alive--;
        rdti_ps_queue_return(&model->queues[0], worker);
    } else {
        rdti_ps_queue_confirm(&model->queues[0], model->leased[worker], worker);
    }
    model->leased[worker] = RDT_PS_CHUNK_NONE;
}

static void
check_run(uint64_t chunks)
{
    struct model model = {.alive = WORKERS};

    for (uint32_t server = 0; server < SERVERS; server++)
        CHECK_INT_EQ(rdti_ps_queue_init(&model.queues[server], chunks, NULL), RDT_OK);
    for (uint32_t worker = 0; worker < WORKERS; worker++)
        model.leased[worker] = RDT_PS_CHUNK_NONE;
    while (!rdti_ps_queue_is_over(&model.queues[0])) {
        const uint32_t worker = random_below(WORKERS);
        if (model.is_dead[worker])
            continue;
        if (model.leased[worker] == RDT_PS_CHUNK_NONE)
            model.leased[worker] = rdti_ps_queue_lease(&model.queues[0], worker);
        else
            model_step(&model, worker);
        for (uint32_t other = 0; other < worker; other++)
            CHECK(model.leased[other] == RDT_PS_CHUNK_NONE ||
                  model.leased[other] != model.leased[worker]);
    }
    for (uint32_t server = 0; server < SERVERS; server++) {
        for (uint64_t chunk = 0; chunk < chunks; chunk++)
            CHECK_UINT_EQ(model.applied[server][chunk], 1);
        rdti_ps_queue_free(&model.queues[server]);
    }
}

TEST(each_chunk_is_applied_once_whatever_dies)
{
    for (int round = 0; round < 3000; round++)
        check_run(random_below(CHUNKS_MAX + 1));
}

/* Decisions of one queue are taken by another one, which then goes on alone. */
TEST(a_queue_that_takes_leases_goes_on_with_the_rest)
{
    for (uint64_t round = 0; round < 300; round++) {
        const uint64_t chunks = 1 + random_below(CHUNKS_MAX - 1);
        const uint64_t decided = random_below((uint32_t)chunks + 1);
        uint32_t seen[CHUNKS_MAX] = {0};
        uint64_t leased[CHUNKS_MAX];
        struct rdti_ps_queue first;
        struct rdti_ps_queue second;
        CHECK_INT_EQ(rdti_ps_queue_init(&first, chunks, NULL), RDT_OK);
        CHECK_INT_EQ(rdti_ps_queue_init(&second, chunks, NULL), RDT_OK);
        for (uint64_t i = 0; i < decided; i++)
            leased[i] = rdti_ps_queue_lease(&first, (uint32_t)i % WORKERS);
        for (uint64_t i = decided; i-- > 0;) { /* in another order */
            rdti_ps_queue_take(&second, leased[i], (uint32_t)i % WORKERS);
            CHECK(rdti_ps_queue_is_held(&second, leased[i], (uint32_t)i % WORKERS));
            seen[leased[i]]++;
        }
        rdti_ps_queue_take(&second, RDT_PS_CHUNK_NONE, 0);
        for (uint64_t chunk; (chunk = rdti_ps_queue_lease(&second, 1)) != RDT_PS_CHUNK_NONE;)
            seen[chunk]++;
        for (uint64_t chunk = 0; chunk < chunks; chunk++)
            CHECK_UINT_EQ(seen[chunk], 1);
        CHECK_UINT_EQ(second.returned, 0);
        rdti_ps_queue_free(&first);
        rdti_ps_queue_free(&second);
    }
}

TEST(leases_are_in_order_and_come_back_first)
{
    struct rdti_ps_queue queue;

    CHECK_INT_EQ(rdti_ps_queue_init(&queue, UINT64_C(1) << 29, NULL), RDT_EINVAL);
    CHECK_INT_EQ(rdti_ps_queue_init(&queue, 3, NULL), RDT_OK);
    CHECK_UINT_EQ(rdti_ps_queue_lease(&queue, 0), 0);
    CHECK_UINT_EQ(rdti_ps_queue_lease(&queue, 1), 1);
    rdti_ps_queue_return(&queue, 0);
    CHECK_UINT_EQ(rdti_ps_queue_lease(&queue, 1), 0);
    CHECK_UINT_EQ(rdti_ps_queue_lease(&queue, 1), 2);
    CHECK_UINT_EQ(rdti_ps_queue_lease(&queue, 0), RDT_PS_CHUNK_NONE);
    CHECK(!rdti_ps_queue_is_over(&queue));
    rdti_ps_queue_confirm(&queue, 0, 0); /* it is not worker 0's */
    rdti_ps_queue_confirm(&queue, 0, 1);
    rdti_ps_queue_confirm(&queue, 0, 1);
    rdti_ps_queue_confirm(&queue, 1, 1);
    CHECK(!rdti_ps_queue_is_over(&queue));
    rdti_ps_queue_give_back(&queue, 2, 0);
    rdti_ps_queue_give_back(&queue, 2, 1);
    CHECK_UINT_EQ(rdti_ps_queue_lease(&queue, 0), 2);
    rdti_ps_queue_confirm(&queue, 2, 0);
    CHECK(rdti_ps_queue_is_over(&queue));
    CHECK(queue.holders == NULL);
    CHECK_UINT_EQ(rdti_ps_queue_lease(&queue, 0), RDT_PS_CHUNK_NONE);
    for (uint64_t chunk = 0; chunk < 3; chunk++) {
        CHECK(rdti_ps_queue_apply(&queue, chunk));
        CHECK(!rdti_ps_queue_apply(&queue, chunk));
    }
    CHECK(queue.is_applied == NULL);
    rdti_ps_queue_free(&queue);
}

TEST(an_open_queue_grows_and_is_over_when_it_is_closed)
{
    struct rdti_ps_queue queue;
    uint64_t chunks = 0;
    uint64_t next = 0;

    CHECK_INT_EQ(rdti_ps_queue_init(&queue, RDT_PS_CHUNKS_OPEN, NULL), RDT_OK);
    CHECK_UINT_EQ(rdti_ps_queue_lease(&queue, 0), RDT_PS_CHUNK_NONE);
    for (int round = 0; round < 200; round++) {
        CHECK(!rdti_ps_queue_is_over(&queue));
        chunks += random_below(4);
        CHECK_INT_EQ(rdti_ps_queue_extend(&queue, chunks, false, NULL), RDT_OK);
        for (uint64_t chunk; (chunk = rdti_ps_queue_lease(&queue, 1)) != RDT_PS_CHUNK_NONE;) {
            CHECK_UINT_EQ(chunk, next);
            if (random_below(3) == 0) {
                rdti_ps_queue_return(&queue, 1);
                continue;
            }
            CHECK(rdti_ps_queue_apply(&queue, chunk));
            CHECK(!rdti_ps_queue_apply(&queue, chunk));
            rdti_ps_queue_confirm(&queue, chunk, 1);
            next++;
        }
        CHECK_UINT_EQ(next, chunks);
    }
    CHECK_INT_EQ(rdti_ps_queue_extend(&queue, chunks - 1, true, NULL), RDT_EINVAL);
    CHECK_INT_EQ(rdti_ps_queue_extend(&queue, UINT64_C(1) << 29, true, NULL), RDT_EINVAL);
    CHECK_INT_EQ(rdti_ps_queue_extend(&queue, chunks, true, NULL), RDT_OK);
    CHECK(rdti_ps_queue_is_over(&queue));
    CHECK_INT_EQ(rdti_ps_queue_extend(&queue, chunks + 1, true, NULL), RDT_EINVAL);
    rdti_ps_queue_free(&queue);
}

TEST(a_restored_queue_has_the_same_chunks_done)
{
    uint8_t saved[CHUNKS_MAX];

    for (uint64_t round = 0; round < 300; round++) {
        const uint64_t chunks = random_below(CHUNKS_MAX);
        struct rdti_ps_queue queue;
        struct rdti_ps_queue again;
        uint64_t left = 0;
        CHECK_INT_EQ(rdti_ps_queue_init(&queue, chunks, NULL), RDT_OK);
        CHECK_INT_EQ(rdti_ps_queue_init(&again, chunks, NULL), RDT_OK);
        for (uint64_t i = 0; i < chunks; i++)
            if (random_below(3) > 0 || round % 7 == 0)
                CHECK(rdti_ps_queue_apply(&queue, i));
        rdti_ps_queue_save(&queue, saved);
        rdti_ps_queue_restore(&again, saved);
        CHECK_UINT_EQ(again.applied, queue.applied);
        CHECK_UINT_EQ(again.done, queue.applied);
        for (uint64_t i = 0; i < chunks; i++)
            left += saved[i] == 0;
        for (uint64_t chunk; (chunk = rdti_ps_queue_lease(&again, 1)) != RDT_PS_CHUNK_NONE;) {
            CHECK(left > 0 && saved[chunk] == 0);
            left--;
            CHECK(rdti_ps_queue_apply(&again, chunk));
            rdti_ps_queue_confirm(&again, chunk, 1);
        }
        CHECK_UINT_EQ(left, 0);
        CHECK(rdti_ps_queue_is_over(&again));
        rdti_ps_queue_free(&queue);
        rdti_ps_queue_free(&again);
    }
}

TEST_MAIN()
