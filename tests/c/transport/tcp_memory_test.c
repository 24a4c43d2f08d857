/* SPDX-License-Identifier: Apache-2.0
 * What a lane takes from the transport while something is on its way: it gives all of it back, and
 * a lack of it ends the lane with a reason instead of being lost. */
#include "../harness.h"

#include "fake_tcp.h"
#include "transport/tcp/tcp.h"
#include "wire/notify.h"

/* The shortage below asks for more than there can be: the answer wanted is NULL. */
const char *__asan_default_options(void);
const char *__tsan_default_options(void);

__attribute__((visibility("default"))) const char *
__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

__attribute__((visibility("default"))) const char *
__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}

enum { LIST_BLOCKS = 100, LARGE_BYTES = 9 << 20 };

static struct rdti_tcp *
tcp_of(struct fake_link *link)
{
    return ((struct rdti_tcp_lane *)link->lane)->tcp;
}

static void
check_holds_nothing(struct fake_link *link)
{
    const struct rdti_tcp_lane *lane = (const struct rdti_tcp_lane *)link->lane;

    for (uint32_t i = 0; i < lane->stream_count; i++) {
        CHECK_NULL(lane->streams[i]->batch);
        CHECK_NULL(lane->streams[i]->rx.list);
    }
    CHECK_NULL(lane->backlog);
    CHECK_NULL(lane->requests);
    CHECK_NULL(lane->responses);
}

static void
write_list(struct fake_link *link, struct fake_op *op, const struct rdt_remote_region *remote)
{
    static uint8_t src[LIST_BLOCKS * 16];
    static struct rdt_block blocks[LIST_BLOCKS];

    for (uint32_t i = 0; i < LIST_BLOCKS; i++)
        blocks[i] = (struct rdt_block){.src = src + i * 16, .len_bytes = 16, .dst_off = i * 32};
    fake_write_many(op, blocks, LIST_BLOCKS, remote, rdti_notify_user(1));
    fake_must_start(link, op);
}

static void
use_everything(uint32_t streams)
{
    struct fake_tcp_pair p = {0};
    struct fake_op ops[4];
    uint8_t *buf = calloc(2, LARGE_BYTES);

    CHECK_NOT_NULL(buf);
    fake_tcp_pair_open(&p, streams, AF_INET);
    struct fake_region *region = fake_region(&p.b, LARGE_BYTES);
    for (uint32_t round = 0; round < 3; round++) {
        write_list(&p.ab, &ops[0], &region->remote);
        fake_write(&ops[1], buf, LARGE_BYTES, &region->remote, 0, rdti_notify_user(2));
        fake_must_start(&p.ab, &ops[1]);
        fake_write(&ops[2], buf, 8, &region->remote, 0, rdti_notify_user(3));
        fake_must_start(&p.ab, &ops[2]);
        fake_read(&ops[3], buf + LARGE_BYTES, LARGE_BYTES, &region->remote, 0);
        fake_must_start(&p.ab, &ops[3]);
        for (uint32_t i = 0; i < 4; i++)
            FAKE_TCP_PUMP(&p, fake_op_is_done(&ops[i]));
        const struct rdti_tcp_lane *answering = (const struct rdti_tcp_lane *)p.ba.lane;
        FAKE_TCP_PUMP(&p, answering->responses == NULL); /* the pass after the last byte */
        check_holds_nothing(&p.ab);
        check_holds_nothing(&p.ba);
    }
    CHECK_UINT_LE(tcp_of(&p.ab)->batches.spare_count, streams);
    CHECK_UINT_GE(tcp_of(&p.ab)->batches.spare_count, 1);
    CHECK_INT_EQ(tcp_of(&p.ba)->lists.spare_count, 1);
    CHECK_INT_EQ(tcp_of(&p.ba)->backlogs.spare_count, streams > 1);
    fake_tcp_pair_close(&p);
    free(buf);
}

TEST(a_lane_at_rest_holds_nothing_on_one_stream)
{
    use_everything(1);
}

TEST(a_lane_at_rest_holds_nothing_on_four_streams)
{
    use_everything(4);
}

TEST(a_pool_keeps_few_spares)
{
    struct rdti_tcp_pool pool;
    void *items[2 * RDTI_TCP_SPARES_MAX];

    rdti_tcp_pool_open(&pool, 64);
    for (uint32_t i = 0; i < 2 * RDTI_TCP_SPARES_MAX; i++)
        CHECK_NOT_NULL(items[i] = rdti_tcp_pool_take(&pool));
    for (uint32_t i = 0; i < 2 * RDTI_TCP_SPARES_MAX; i++)
        rdti_tcp_pool_give(&pool, items[i]);
    CHECK_INT_EQ(pool.spare_count, RDTI_TCP_SPARES_MAX);
    CHECK_PTR_EQ(rdti_tcp_pool_take(&pool), items[RDTI_TCP_SPARES_MAX - 1]); /* the warmest */
    rdti_tcp_pool_give(&pool, items[RDTI_TCP_SPARES_MAX - 1]);
    rdti_tcp_pool_give(&pool, NULL);
    rdti_tcp_pool_close(&pool);
}

/* From here on the pool has nothing. */
static void
exhaust(struct rdti_tcp_pool *pool)
{
    const size_t item_bytes = pool->item_bytes;

    rdti_tcp_pool_close(pool);
    rdti_tcp_pool_open(pool, SIZE_MAX / 2);
    CHECK_UINT_LE(item_bytes, 65536); /* it was one that a lane uses */
}

enum shortage { BATCHES, REQUESTS, LISTS, BACKLOGS, RESPONSES };

/* The side that is short names it; the op ends with an error; the other side sees its end. */
static void
run_short_of(enum shortage what)
{
    struct fake_tcp_pair p = {0};
    struct fake_op op;
    uint8_t *buf = calloc(1, LARGE_BYTES);

    CHECK_NOT_NULL(buf);
    fake_tcp_pair_open(&p, 2, AF_INET);
    struct fake_region *region = fake_region(&p.b, LARGE_BYTES);
    struct rdti_tcp *sender = tcp_of(&p.ab);
    struct rdti_tcp *receiver = tcp_of(&p.ba);
    struct rdti_tcp_pool *const pools[] = {&sender->batches, &sender->requests, &receiver->lists,
                                           &receiver->backlogs, &receiver->responses};
    struct fake_link *const link = what <= REQUESTS ? &p.ab : &p.ba;
    exhaust(pools[what]);
    if (what == LISTS) {
        write_list(&p.ab, &op, &region->remote);
    } else if (what == REQUESTS || what == RESPONSES) {
        fake_read(&op, buf, 64, &region->remote, 0);
        fake_must_start(&p.ab, &op);
    } else {
        fake_write(&op, buf, what == BATCHES ? 8 : LARGE_BYTES, &region->remote, 0,
                   rdti_notify_user(1));
        fake_must_start(&p.ab, &op);
    }
    FAKE_TCP_PUMP(&p, fake_op_is_done(&op) && p.ab.error_count == 1 && p.ba.error_count == 1);
    CHECK_INT_EQ(op.status, what <= REQUESTS ? RDT_ENOMEM : RDT_EPEER);
    CHECK_INT_EQ(link->error.status, RDT_ENOMEM);
    CHECK_STR_CONTAINS(link->error.message, "no memory left");
    CHECK_INT_EQ(p.ba.notify_count, 0);
    CHECK_INT_EQ(region->pins, 0);
    check_holds_nothing(&p.ab);
    check_holds_nothing(&p.ba);
    fake_tcp_pair_close(&p);
    free(buf);
}

TEST(no_memory_for_a_batch_ends_the_lane)
{
    run_short_of(BATCHES);
}

TEST(no_memory_for_requests_ends_the_lane)
{
    run_short_of(REQUESTS);
}

TEST(no_memory_for_a_list_ends_the_lane)
{
    run_short_of(LISTS);
}

TEST(no_memory_for_a_backlog_ends_the_lane)
{
    run_short_of(BACKLOGS);
}

TEST(no_memory_for_answers_ends_the_lane)
{
    run_short_of(RESPONSES);
}

TEST_MAIN()
