/* SPDX-License-Identifier: Apache-2.0
 * How credits of slots travel: with what goes back, and never so late that a sender stands. */
#include "base/clock.h"
#include "pair_rig.h"

#define S RIG_S

static const uint32_t transports[] = {RDT_TRANSPORT_SHM, RDT_TRANSPORT_TCP, RDT_TRANSPORT_VERBS};
static const struct rdt_tensor_desc desc = {.struct_size = sizeof(desc),
                                            .kind = RDT_SLOT_STATIC,
                                            .dtype = RDT_F32,
                                            .ndim = 1,
                                            .dims = {256}};

/* One slot each way: `in[i]` is context i's, filled by out[1 - i]. */
struct ways {
    struct pair pair;
    rdt_slot *in[2];
    rdt_slot_tx *out[2];
    float tensor[256];
};

static void
ways_open(struct ways *w, uint32_t transport)
{
    struct rdt_error err = {0};

    memset(w, 0, sizeof(*w));
    pair_open(&w->pair, transport);
    for (int i = 0; i < 2; i++) {
        check_ok(rdt_slot_create(w->pair.ep[i], "t", &desc, &w->in[i], &err), &err, "create");
        check_ok(rdt_slot_tx_open(w->pair.ep[1 - i], "t", &desc, 5 * S, &w->out[1 - i], &err), &err,
                 "open");
    }
}

static void
ways_close(struct ways *w)
{
    for (int i = 0; i < 2; i++)
        rdt_slot_tx_destroy(w->out[i]);
    for (int i = 0; i < 2; i++)
        rdt_slot_destroy(w->in[i]);
    pair_close(&w->pair);
}

static void
put(struct ways *w, int from)
{
    struct rdt_error err = {0};
    rdt_transfer *t;

    check_ok(rdt_slot_tx_put(w->out[from], w->tensor, NULL, 10 * S, &t, &err), &err, "put");
    check_ok(rdt_transfer_wait(t, 10 * S, &err), &err, "wait");
    rdt_transfer_free(t);
}

static void
take(struct ways *w, int at)
{
    struct rdt_error err = {0};
    struct rdt_slot_view view;

    check_ok(rdt_slot_get(w->in[at], 10 * S, &view, &err), &err, "get");
    CHECK_MEM_EQ(view.addr, w->tensor, sizeof(w->tensor));
    check_ok(rdt_slot_release(w->in[at], &err), &err, "release");
}

static uint64_t
credits_alone(const struct ways *w)
{
    uint64_t sum = 0;

    for (int i = 0; i < 2; i++) {
        struct rdt_counters counters = {.struct_size = sizeof(counters)};
        rdt_context_counters(w->pair.ctx[i], &counters);
        sum += counters.credits_alone;
    }
    return sum;
}

/* A progress thread that looks between the two may still send one alone. Over shared memory one is
 * a place in a ring, and costs as much alone. */
TEST(a_credit_rides_on_what_goes_back)
{
    enum { TRIPS = 200 };

    for (int t = pair_first_transport(); t < 3; t++) {
        struct ways w;
        if (transports[t] == RDT_TRANSPORT_SHM)
            continue;
        ways_open(&w, transports[t]);
        for (int trip = 0; trip < TRIPS; trip++) {
            w.tensor[0] = (float)trip;
            put(&w, 0);
            take(&w, 1);
            put(&w, 1);
            take(&w, 0);
        }
        CHECK_UINT_LE(credits_alone(&w), TRIPS); /* of twice as many */
        ways_close(&w);
    }
}

/* The receiver does not call the library again after it has released one: what the sender sends for
 * its other credit brings the first back, and does not wait for a slice of somebody's sleep. */
TEST(a_sender_is_not_left_without_credits)
{
    enum { ROUNDS = 20 };
    const uint64_t slice_ns = S / 10;

    for (int t = pair_first_transport(); t < 3; t++) {
        struct ways w;
        int slow = 0;
        ways_open(&w, transports[t]);
        for (int round = 0; round < ROUNDS; round++) {
            const uint64_t begin_ns = rdti_now_ns();
            put(&w, 1); /* or no credit of 1 waits for what it may send */
            take(&w, 0);
            put(&w, 0);
            take(&w, 1); /* its credit may wait */
            put(&w, 0);  /* the other one */
            put(&w, 0);  /* needs the first */
            slow += rdti_now_ns() - begin_ns > slice_ns / 10 * 8;
            take(&w, 1);
            take(&w, 1);
        }
        CHECK_INT_LE(slow, ROUNDS / 2); /* what else a busy machine does is not every time */
        ways_close(&w);
    }
}

struct stream {
    struct ways *w;
    int count;
};

static void *
send_all(void *arg)
{
    const struct stream *stream = arg;

    for (int i = 0; i < stream->count; i++) {
        put(stream->w, 0);
        if (i % 3 == 0)
            take(stream->w, 0);
    }
    return NULL;
}

/* Arrivals and releases cross each other at every moment. */
TEST_TIMEOUT(no_credit_is_forgotten_where_arrivals_meet_releases, 60)
{
    for (int t = pair_first_transport(); t < 3; t++) {
        struct ways w;
        struct stream stream = {.w = &w,
                                .count = transports[t] == RDT_TRANSPORT_VERBS ? 500 : 5000};
        pthread_t sender;
        ways_open(&w, transports[t]);
        const uint64_t begin_ns = rdti_now_ns();
        CHECK_INT_EQ(pthread_create(&sender, NULL, send_all, &stream), 0);
        for (int i = 0; i < stream.count; i++) {
            if (i % 3 == 0) /* the credits of what follows may wait, until the next of these */
                put(&w, 1);
            take(&w, 1);
        }
        CHECK_INT_EQ(pthread_join(sender, NULL), 0);
        CHECK_UINT_LE(rdti_now_ns() - begin_ns, (uint64_t)stream.count * S / 100);
        ways_close(&w);
    }
}

TEST_MAIN()
