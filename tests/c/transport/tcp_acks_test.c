/* SPDX-License-Identifier: Apache-2.0
 * Two hosts of one process over tcp: when an acknowledgement rides, waits and goes alone. */
#include "../harness.h"

#include <pthread.h>

#include "base/clock.h"
#include "fake_tcp.h"
#include "transport/tcp/tcp.h"
#include "wire/notify.h"

struct pinger {
    struct fake_link *link;
    struct fake_op ops[2];
    const struct rdt_remote_region *remote;
    uint64_t value;
    uint32_t rounds_left;
    uint32_t posted;
};

static void
ping(struct pinger *p)
{
    /* Two ops in turn: the ack of the last rides on the message that this one answers. */
    struct fake_op *op = &p->ops[p->posted % 2];

    if (p->posted >= 2)
        CHECK(fake_op_is_done(op));
    p->posted++;
    fake_write(op, &p->value, 8, p->remote, 0, rdti_notify_user(1));
    fake_must_start(p->link, op);
}

static void
pong(struct fake_link *link, uint32_t notification, void *arg)
{
    struct pinger *p = arg;

    (void)link;
    (void)notification;
    if (p->rounds_left == 0)
        return;
    p->rounds_left--;
    ping(p);
}

TEST(acks_ride_on_replies)
{
    enum { ROUNDS = 1000 };
    struct fake_tcp_pair p = {0};

    fake_tcp_pair_open(&p, 1, AF_INET);
    struct fake_region *at_a = fake_region(&p.a, 64);
    struct fake_region *at_b = fake_region(&p.b, 64);
    struct pinger pa = {.link = &p.ab, .remote = &at_b->remote, .rounds_left = ROUNDS};
    struct pinger pb = {.link = &p.ba, .remote = &at_a->remote, .rounds_left = ROUNDS};
    p.ab.on_notify = pong;
    p.ab.on_notify_arg = &pa;
    p.ba.on_notify = pong;
    p.ba.on_notify_arg = &pb;
    const uint64_t before =
        atomic_load(&p.a.counters.wire_bytes) + atomic_load(&p.b.counters.wire_bytes);
    ping(&pa);
    FAKE_TCP_PUMP(&p, pa.rounds_left == 0 && pb.rounds_left == 0);
    const uint64_t sent =
        atomic_load(&p.a.counters.wire_bytes) + atomic_load(&p.b.counters.wire_bytes) - before;
    const uint64_t writes = pa.posted + pb.posted;
    CHECK_UINT_EQ(sent, writes * RDTI_STREAM_HEAD_BYTES);
    FAKE_TCP_PUMP(&p,
                  rdti_transport_tcp.is_idle(p.ab.lane) && rdti_transport_tcp.is_idle(p.ba.lane));
    fake_tcp_pair_close(&p);
}

struct sleeper {
    struct fake_host *host;
    _Atomic bool is_over; /* seq_cst: a flag of the test */
};

static void *
sleep_on_host(void *arg)
{
    struct sleeper *s = arg;

    while (!atomic_load(&s->is_over))
        (void)fake_pump_or_sleep(s->host, UINT64_C(1000000000));
    return NULL;
}

/* Nothing goes the other way: the ack comes alone after the hold, though its sender sleeps. */
TEST(an_ack_is_not_held_longer_than_the_hold)
{
    struct fake_tcp_pair p = {0};
    uint64_t value = 3;
    uint64_t best_ns = UINT64_MAX;
    struct fake_op op;
    pthread_t thread;

    fake_tcp_pair_open(&p, 1, AF_INET);
    struct fake_region *region = fake_region(&p.b, 64);
    struct sleeper sleeper = {.host = &p.b};
    CHECK_INT_EQ(pthread_create(&thread, NULL, sleep_on_host, &sleeper), 0);
    for (uint32_t i = 0; i < 50; i++) {
        const uint64_t start = rdti_now_ns();

        if (i == 49)
            atomic_store(&sleeper.is_over, true);
        fake_write(&op, &value, 8, &region->remote, 0, rdti_notify_user(i));
        fake_must_start(&p.ab, &op);
        if (i == 49)
            break; /* only wakes the sleeper */
        FAKE_PUMP_UNTIL(&p.a, NULL, fake_op_is_done(&op), 10);
        const uint64_t took = rdti_now_ns() - start;
        CHECK_UINT_LE(took,
                      UINT64_C(500000000)); /* woken by the timer, not by the end of its sleep */
        best_ns = took < best_ns ? took : best_ns;
    }
    CHECK_INT_EQ(pthread_join(thread, NULL), 0);
    CHECK_UINT_LE(best_ns, RDTI_TCP_ACK_HOLD_NS); /* after the first it no longer waits */
    fake_tcp_pair_close(&p);
}

static const struct rdti_tcp_lane *
lane_of(const struct fake_link *link)
{
    return (const struct rdti_tcp_lane *)link->lane;
}

/* One write each way, sent before either hears of the other's; over with both acks. */
static void
cross(struct fake_tcp_pair *p, const struct rdt_remote_region *at_a,
      const struct rdt_remote_region *at_b)
{
    uint64_t value = 3;
    struct fake_op from_a;
    struct fake_op from_b;

    fake_write(&from_a, &value, 8, at_b, 0, rdti_notify_user(1));
    fake_write(&from_b, &value, 8, at_a, 0, rdti_notify_user(1));
    fake_must_start(&p->ab, &from_a);
    fake_must_start(&p->ba, &from_b);
    FAKE_TCP_PUMP(p, fake_op_is_done(&from_a) && fake_op_is_done(&from_b));
}

/* Each holds the ack that the other waits for: once, and again only in trials that grow rarer. */
TEST(sides_that_wait_for_each_others_ack_stop_holding_it)
{
    enum { ROUNDS = 3 * RDTI_TCP_TRIAL_FIRST + 2 };
    struct fake_tcp_pair p = {0};
    uint32_t held = 0;

    fake_tcp_pair_open(&p, 1, AF_INET);
    const struct fake_region *at_a = fake_region(&p.a, 64);
    const struct fake_region *at_b = fake_region(&p.b, 64);
    CHECK(lane_of(&p.ab)->is_patient && lane_of(&p.ba)->is_patient);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        const bool is_held = lane_of(&p.ab)->is_patient || lane_of(&p.ba)->is_patient;

        cross(&p, &at_a->remote, &at_b->remote);
        held += is_held;
    }
    CHECK_UINT_EQ(held,
                  2); /* the first, and one trial after FIRST; the next comes after twice that */
    CHECK(lane_of(&p.ab)->args.is_connector);
    CHECK_UINT_EQ(lane_of(&p.ab)->trial_gap, 2 * RDTI_TCP_TRIAL_FIRST);
    CHECK_UINT_EQ(lane_of(&p.ba)->trial_gap, RDTI_TCP_TRIAL_LATER * RDTI_TCP_TRIAL_FIRST);
    fake_tcp_pair_close(&p);
}

/* Replies, a pause, replies: what the pause taught is forgotten within a few acks. */
TEST(a_pause_does_not_end_the_rides_of_acks)
{
    struct fake_tcp_pair p = {0};
    uint64_t value = 3;
    struct fake_op op;

    fake_tcp_pair_open(&p, 1, AF_INET);
    struct fake_region *at_a = fake_region(&p.a, 64);
    struct fake_region *at_b = fake_region(&p.b, 64);
    struct pinger pa = {.link = &p.ab, .remote = &at_b->remote, .rounds_left = 50};
    struct pinger pb = {.link = &p.ba, .remote = &at_a->remote, .rounds_left = 50};
    p.ab.on_notify = pong;
    p.ab.on_notify_arg = &pa;
    p.ba.on_notify = pong;
    p.ba.on_notify_arg = &pb;
    ping(&pa);
    FAKE_TCP_PUMP(&p,
                  rdti_transport_tcp.is_idle(p.ab.lane) && rdti_transport_tcp.is_idle(p.ba.lane));
    CHECK(lane_of(&p.ab)->is_patient !=
          lane_of(&p.ba)->is_patient); /* who got the last one waited */
    const bool is_at_b = lane_of(&p.ab)->is_patient;
    const struct rdti_tcp_lane *taught = lane_of(is_at_b ? &p.ba : &p.ab);
    for (uint32_t i = 0; i < RDTI_TCP_TRIAL_FEW; i++) {
        CHECK(!taught->is_patient);
        fake_write(&op, &value, 8, is_at_b ? &at_b->remote : &at_a->remote, 0, rdti_notify_user(1));
        fake_must_start(is_at_b ? &p.ab : &p.ba, &op);
        FAKE_TCP_PUMP(&p, fake_op_is_done(&op));
    }
    CHECK(taught->is_patient);
    fake_tcp_pair_close(&p);
}

TEST(a_stream_of_small_writes_is_acknowledged_in_batches)
{
    enum { COUNT = 4096 };
    struct fake_tcp_pair p = {0};
    static struct fake_op ops[COUNT];
    uint64_t value[2] = {3, 4};

    fake_tcp_pair_open(&p, 1, AF_INET);
    struct fake_region *region = fake_region(&p.b, 64);
    const uint64_t before_a = atomic_load(&p.a.counters.wire_bytes);
    const uint64_t before_b = atomic_load(&p.b.counters.wire_bytes);
    for (uint32_t i = 0; i < COUNT; i++) {
        fake_write(&ops[i], value, 16, &region->remote, 0, RDTI_NOTIFY_NONE);
        fake_must_start(&p.ab, &ops[i]);
    }
    for (uint32_t i = 0; i < COUNT; i++)
        FAKE_TCP_PUMP(&p, fake_op_is_done(&ops[i]));
    CHECK_UINT_EQ(atomic_load(&p.a.counters.wire_bytes) - before_a,
                  COUNT * (16 + RDTI_STREAM_HEAD_BYTES));
    CHECK_UINT_LE(atomic_load(&p.b.counters.wire_bytes) - before_b,
                  COUNT / 8 * RDTI_STREAM_HEAD_BYTES);
    CHECK_UINT_EQ(atomic_load(&p.a.counters.moved_bytes[RDT_TRANSPORT_TCP][RDTI_TRAFFIC_PLANNED]),
                  COUNT * 16);
    CHECK_UINT_EQ(atomic_load(&p.b.counters.copied_bytes[RDTI_TRAFFIC_PLANNED]), 0);
    fake_tcp_pair_close(&p);
}

TEST_MAIN()
