/* SPDX-License-Identifier: Apache-2.0
 * The ring of transfers: alone, from several threads, and as a pair of contexts fills it. */
#include <pthread.h>

#include "pair_rig.h"
#include "progress/trace.h"
#include "rdmatensor_ext.h"

static struct rdt_error err;

TEST(what_began_is_read_in_order_with_its_end)
{
    struct rdti_trace *trace = rdti_trace_create(8);
    struct rdt_trace_event events[8];
    uint64_t next = 0;

    CHECK(trace != NULL);
    CHECK_INT_EQ(rdti_trace_read(trace, 0, events, 8, &next), 0);
    CHECK_INT_EQ(next, 1);
    const uint64_t first = rdti_trace_begin(trace, "write", 3, 4096);
    const uint64_t second = rdti_trace_begin(trace, "receive", RDT_RANK_UNKNOWN, 100);
    rdti_trace_end(trace, second, RDT_OK, 60);
    CHECK_INT_EQ(rdti_trace_read(trace, 0, events, 8, &next), 2);
    CHECK_INT_EQ(next, 3);
    CHECK_INT_EQ(events[0].sequence, first);
    CHECK_STR_EQ(events[0].name, "write");
    CHECK_INT_EQ(events[0].status, RDT_EAGAIN);
    CHECK_INT_EQ(events[0].end_ns, 0);
    CHECK_INT_EQ(events[0].peer_rank, 3);
    CHECK_INT_EQ(events[0].len_bytes, 4096);
    CHECK_INT_EQ(events[1].status, RDT_OK);
    CHECK_INT_EQ(events[1].len_bytes, 60);
    CHECK(events[1].start_ns >= events[0].start_ns);
    CHECK(events[1].end_ns >= events[1].start_ns);
    rdti_trace_end(trace, first, RDT_EPEER, 0);
    CHECK_INT_EQ(rdti_trace_read(trace, first, events, 1, &next), 1);
    CHECK_INT_EQ(next, second);
    CHECK_INT_EQ(events[0].status, RDT_EPEER);
    CHECK_INT_EQ(events[0].len_bytes, 4096);
    rdti_trace_destroy(trace);
}

TEST(the_oldest_make_room_and_their_ends_are_dropped)
{
    struct rdti_trace *trace = rdti_trace_create(4);
    struct rdt_trace_event events[8];
    uint64_t next = 0;

    CHECK(trace != NULL);
    for (int i = 0; i < 10; i++)
        (void)rdti_trace_begin(trace, "write", i, 8);
    rdti_trace_end(trace, 3, RDT_EPEER, 0); /* its entry is the eleventh's now */
    CHECK_INT_EQ(rdti_trace_read(trace, 2, events, 8, &next), 4);
    for (unsigned i = 0; i < 4; i++) {
        CHECK_INT_EQ(events[i].sequence, 7 + i);
        CHECK_INT_EQ(events[i].peer_rank, (int)(6 + i));
        CHECK_INT_EQ(events[i].status, RDT_EAGAIN);
    }
    rdti_trace_destroy(trace);
}

enum { THREADS = 4, ROUNDS = 2000 };

static void *
begin_and_end(void *arg)
{
    for (int i = 0; i < ROUNDS; i++) {
        const uint64_t sequence = rdti_trace_begin(arg, "write", 1, 8);
        rdti_trace_end(arg, sequence, RDT_OK, 8);
    }
    return NULL;
}

TEST(threads_that_trace_at_once_lose_nothing)
{
    struct rdti_trace *trace = rdti_trace_create(THREADS * ROUNDS);
    struct rdt_trace_event events[64];
    pthread_t threads[THREADS];
    uint64_t next = 1;
    unsigned seen = 0;
    uint32_t count;

    CHECK(trace != NULL);
    for (int i = 0; i < THREADS; i++)
        CHECK_INT_EQ(pthread_create(&threads[i], NULL, begin_and_end, trace), 0);
    for (int i = 0; i < 100; i++) /* while they write */
        (void)rdti_trace_read(trace, 0, events, 64, &next);
    for (int i = 0; i < THREADS; i++)
        CHECK_INT_EQ(pthread_join(threads[i], NULL), 0);
    next = 1;
    while ((count = rdti_trace_read(trace, next, events, 64, &next)) > 0)
        for (uint32_t i = 0; i < count; i++) {
            CHECK_INT_EQ(events[i].sequence, ++seen);
            CHECK_INT_EQ(events[i].status, RDT_OK);
        }
    CHECK_INT_EQ(seen, THREADS * ROUNDS);
    rdti_trace_destroy(trace);
}

static struct rdt_trace_histogram
histogram_at(const struct rdti_trace *trace, uint32_t index)
{
    struct rdt_trace_histogram histogram;

    CHECK_INT_EQ(rdti_trace_histogram(trace, index, &histogram), RDT_OK);
    return histogram;
}

TEST(each_name_has_a_histogram_that_forgets_nothing)
{
    struct rdti_trace *trace = rdti_trace_create(2);
    struct rdt_trace_histogram histogram;
    uint64_t in_buckets = 0;

    CHECK(trace != NULL);
    CHECK_INT_EQ(rdti_trace_histogram(trace, 0, &histogram), RDT_ERANGE);
    for (int i = 0; i < 9; i++)
        rdti_trace_end(trace, rdti_trace_begin(trace, i < 6 ? "write" : "read", 1, 10), RDT_OK, 0);
    (void)rdti_trace_begin(trace, "read", 1, 10); /* in flight: not yet */
    CHECK_STR_EQ(histogram_at(trace, 0).name, "write");
    CHECK_INT_EQ(histogram_at(trace, 0).count, 6);
    CHECK_INT_EQ(histogram_at(trace, 0).sum_bytes, 60);
    histogram = histogram_at(trace, 1);
    CHECK_STR_EQ(histogram.name, "read");
    CHECK_INT_EQ(histogram.count, 3);
    for (int i = 0; i < RDT_TRACE_BUCKETS; i++)
        in_buckets += histogram.buckets[i];
    CHECK_INT_EQ(in_buckets, 3);
    CHECK_INT_EQ(rdti_trace_histogram(trace, 2, &histogram), RDT_ERANGE);
    rdti_trace_destroy(trace);
}

TEST(what_took_longer_lies_in_a_later_bucket)
{
    struct rdti_trace *trace = rdti_trace_create(2);

    CHECK(trace != NULL);
    const uint64_t sequence = rdti_trace_begin(trace, "write", 1, 10);
    test_sleep_ns(5000000);
    rdti_trace_end(trace, sequence, RDT_OK, 0);
    const struct rdt_trace_histogram histogram = histogram_at(trace, 0);
    CHECK(histogram.sum_ns >= 5000000);
    for (int i = 0; i <= 12; i++) /* up to 4.1 ms */
        CHECK_INT_EQ(histogram.buckets[i], 0);
    rdti_trace_destroy(trace);
}

TEST(names_without_a_place_of_their_own_share_the_last)
{
    struct rdti_trace *trace = rdti_trace_create(2);
    char name[16];

    CHECK(trace != NULL);
    for (int i = 0; i < 40; i++) {
        (void)snprintf(name, sizeof(name), "n%d", i);
        rdti_trace_end(trace, rdti_trace_begin(trace, name, 1, 10), RDT_OK, 0);
    }
    CHECK_STR_EQ(histogram_at(trace, 30).name, "n30");
    CHECK_STR_EQ(histogram_at(trace, 31).name, "other");
    CHECK_INT_EQ(histogram_at(trace, 31).count, 9);
    rdti_trace_destroy(trace);
}

TEST(a_context_traces_once_it_is_told_to)
{
    struct rdt_trace_event events[4];
    struct rdt_remote_region remote;
    rdt_region *region = NULL;
    rdt_transfer *transfer = NULL;
    char bytes[512] = {1};
    struct pair pair;
    uint64_t next = 0;

    pair_open(&pair, RDT_TRANSPORT_SHM);
    CHECK_INT_EQ(rdt_context_trace_read(pair.ctx[0], 0, events, 4, &next), 0);
    CHECK_INT_EQ(rdt_context_trace_start(pair.ctx[0], 0, &err), RDT_EINVAL);
    CHECK_OK(rdt_context_trace_start(pair.ctx[0], 16, &err), &err);
    CHECK_INT_EQ(rdt_context_trace_start(pair.ctx[0], 16, &err), RDT_EINVAL);
    CHECK_OK(rdt_region_alloc(pair.ctx[1], 4096, RDT_REGION_ZERO, &region, &err), &err);
    CHECK_OK(rdt_region_export(region, &remote, &err), &err);
    CHECK_OK(rdt_endpoint_write(pair.ep[0], bytes, sizeof(bytes), &remote, 0, 7, &transfer, &err),
             &err);
    CHECK_OK(rdt_transfer_wait(transfer, 10 * RIG_S, &err), &err);
    rdt_transfer_free(transfer);
    CHECK_OK(rdt_transfer_create(pair.ctx[0], &transfer, &err), &err);
    rdt_transfer_trace(transfer, "1234567890123456789012345678901234567890", 1, 0);
    rdt_transfer_finish(transfer, RDT_ECANCELED, NULL);
    rdt_transfer_free(transfer);

    CHECK_INT_EQ(rdt_context_trace_read(pair.ctx[0], 0, events, 4, &next), 2);
    CHECK_STR_EQ(events[0].name, "write");
    CHECK_INT_EQ(events[0].peer_rank, 1);
    CHECK_INT_EQ(events[0].len_bytes, sizeof(bytes));
    CHECK_INT_EQ(events[0].status, RDT_OK);
    CHECK_STR_EQ(events[1].name, "1234567890123456789012345678901");
    CHECK_INT_EQ(events[1].status, RDT_ECANCELED);
    rdt_region_free(region, NULL, NULL);
    pair_close(&pair);
}

TEST_MAIN()
