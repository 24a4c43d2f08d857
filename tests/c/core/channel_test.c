/* SPDX-License-Identifier: Apache-2.0
 * The side channel over a socket pair: order, back-pressure, descriptors, and every way to end. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/error.h"
#include "connect/channel.h"
#include "harness.h"

#define MS UINT64_C(1000000)

/* One side; all under the engine's lock but the atomics. */
struct side {
    struct rdti_channel *channel;
    _Atomic uint64_t sent_bytes; /* as the channel counts them */
    _Atomic uint64_t got_bytes;  /* as the other end sees them */
    _Atomic uint32_t frames;
    _Atomic uint32_t ends;
    rdt_status end_status;
    uint32_t out_of_order;
    rdt_status answer; /* of on_frame */
    bool destroys_in_frame;
    bool destroys_in_end;
    int fds[4];
    _Atomic uint32_t fd_count;
};

struct rig {
    struct rdti_engine *engine;
    struct side sides[2];
    int raw; /* the bare other end, where there is only one channel */
};

static rdt_status
on_frame(void *arg, uint16_t type, const uint8_t *payload, uint32_t payload_bytes,
         struct rdt_error *err)
{
    struct side *side = arg;
    uint32_t number = 0;

    if (type == RDTI_FRAME_SEGMENT_GET) {
        memcpy(&number, payload, sizeof(number));
        side->out_of_order += number != atomic_load(&side->frames);
    }
    (void)atomic_fetch_add(&side->got_bytes, RDTI_FRAME_HEAD_BYTES + payload_bytes);
    const uint32_t got = rdti_channel_take_fds(side->channel, side->fds, 4);
    if (got > 0)
        atomic_store(&side->fd_count, got);
    (void)atomic_fetch_add(&side->frames, 1);
    if (side->destroys_in_frame) {
        rdti_channel_destroy(side->channel);
        side->channel = NULL;
    }
    return side->answer == RDT_OK ? RDT_OK : rdti_error_set(err, side->answer, 0, "enough");
}

static void
on_end(void *arg, const struct rdt_error *err)
{
    struct side *side = arg;

    side->end_status = (rdt_status)err->status;
    if (side->destroys_in_end) {
        rdti_channel_destroy(side->channel);
        side->channel = NULL;
    }
    (void)atomic_fetch_add(&side->ends, 1);
}

static const struct rdti_channel_events events = {.on_frame = on_frame, .on_end = on_end};

static void
rig_begin(struct rig *rig, int count)
{
    struct rdt_error err = {0};
    int ends[2];

    *rig = (struct rig){.raw = -1};
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    CHECK_OK(rdti_engine_create(1, &rig->engine, &err), &err);
    CHECK_OK(rdti_engine_start(rig->engine, &err), &err);
    rdti_engine_enter(rig->engine);
    for (int i = 0; i < count; i++)
        CHECK_OK(rdti_channel_create(rig->engine, ends[i], true, &events, &rig->sides[i],
                                     &rig->sides[i].sent_bytes, &rig->sides[i].channel, &err),
                 &err);
    rdti_engine_leave(rig->engine);
    if (count == 1)
        rig->raw = ends[1];
}

static void
rig_end(struct rig *rig)
{
    rdti_engine_enter(rig->engine);
    for (int i = 0; i < 2; i++)
        rdti_channel_destroy(rig->sides[i].channel);
    rdti_engine_leave(rig->engine);
    rdti_engine_stop(rig->engine);
    rdti_engine_destroy(rig->engine);
    if (rig->raw >= 0)
        (void)close(rig->raw);
}

static void
send_number(struct rdti_channel *channel, uint32_t number)
{
    uint8_t payload[RDTI_SEGMENT_BYTES] = {0};

    memcpy(payload, &number, sizeof(number));
    rdti_channel_send(channel, RDTI_FRAME_SEGMENT_GET, payload, sizeof(payload), NULL, 0);
}

/* ---- Frames -------------------------------------------------------------------------------- */

TEST(frames_arrive_in_order_through_a_socket_that_is_full)
{
    enum { COUNT = 60000 }; /* 1.2 MB: several times what a socket holds */
    struct rig rig;

    rig_begin(&rig, 2);
    rdti_engine_enter(rig.engine); /* nobody reads meanwhile */
    for (uint32_t i = 0; i < COUNT; i++)
        send_number(rig.sides[0].channel, i);
    CHECK(!rdti_channel_is_flushed(rig.sides[0].channel));
    rdti_engine_leave(rig.engine);
    CHECK_EVENTUALLY(atomic_load(&rig.sides[1].frames) == COUNT, 10);
    rdti_engine_enter(rig.engine);
    CHECK(rdti_channel_is_flushed(rig.sides[0].channel));
    CHECK_UINT_EQ(rig.sides[1].out_of_order, 0);
    CHECK_UINT_EQ(atomic_load(&rig.sides[0].sent_bytes), atomic_load(&rig.sides[1].got_bytes));
    CHECK_UINT_EQ(atomic_load(&rig.sides[1].sent_bytes), 0);
    rdti_engine_leave(rig.engine);
    rig_end(&rig);
}

struct sender {
    struct rdti_channel *channel;
    uint32_t count;
};

static void *
send_many(void *arg)
{
    const struct sender *sender = arg;

    for (uint32_t i = 0; i < sender->count; i++)
        rdti_channel_send(sender->channel, RDTI_FRAME_HEARTBEAT, NULL, 0, NULL, 0);
    return NULL;
}

TEST(any_thread_may_send)
{
    enum { THREADS = 4, COUNT = 5000 };
    struct rig rig;
    pthread_t threads[THREADS];

    rig_begin(&rig, 2);
    struct sender sender = {.channel = rig.sides[0].channel, .count = COUNT};
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, send_many, &sender) == 0);
    for (int i = 0; i < THREADS; i++)
        (void)pthread_join(threads[i], NULL);
    CHECK_EVENTUALLY(atomic_load(&rig.sides[1].frames) == THREADS * COUNT, 10);
    rig_end(&rig);
}

/* The end tears down what a writer's thread is about to use. */
TEST(a_channel_may_end_while_threads_send)
{
    for (int round = 0; round < 50; round++) {
        struct rig rig;
        pthread_t threads[2];
        rig_begin(&rig, 1);
        struct sender sender = {.channel = rig.sides[0].channel, .count = 20000};
        for (int i = 0; i < 2; i++)
            CHECK(pthread_create(&threads[i], NULL, send_many, &sender) == 0);
        test_sleep_ns((uint64_t)round * 20000);
        (void)close(rig.raw);
        rig.raw = -1;
        for (int i = 0; i < 2; i++)
            (void)pthread_join(threads[i], NULL);
        CHECK_EVENTUALLY(atomic_load(&rig.sides[0].ends) == 1, 5);
        CHECK_INT_EQ(rig.sides[0].end_status, RDT_EPEER);
        rig_end(&rig);
    }
}

/* The last words wait behind the rest, for a peer that reads again. */
TEST(a_peer_that_never_reads_is_not_buffered_for_ever)
{
    struct rig rig;
    uint8_t payload[RDTI_FRAME_PAYLOAD_MAX] = {0};
    const uint64_t frame_bytes = RDTI_FRAME_HEAD_BYTES + sizeof(payload);
    uint64_t left_bytes;

    rig_begin(&rig, 1);
    for (int i = 0; i < 1500; i++) /* 6 MB */
        rdti_channel_send(rig.sides[0].channel, RDTI_FRAME_PATH, payload, sizeof(payload), NULL, 0);
    CHECK_INT_EQ(rdti_channel_get_loss(rig.sides[0].channel), RDTI_CHANNEL_LOSS_UNREAD);
    left_bytes = atomic_load(&rig.sides[0].sent_bytes); /* what was queued, or has left */
    CHECK_UINT_EQ(left_bytes % frame_bytes, 0);
    rdti_channel_send(rig.sides[0].channel, RDTI_FRAME_HEARTBEAT, NULL, 0, NULL, 0);
    CHECK_UINT_EQ(atomic_load(&rig.sides[0].sent_bytes), left_bytes); /* nothing behind a gap */
    rdti_channel_send_last(rig.sides[0].channel, RDTI_FRAME_GOODBYE, NULL, 0);
    left_bytes += RDTI_FRAME_HEAD_BYTES;
    const uint64_t end_ns = test_now_ns() + (uint64_t)(10e9 * test_timeout_scale());
    while (left_bytes > 0 && test_now_ns() < end_ns) {
        const ssize_t got = recv(rig.raw, payload, sizeof(payload), 0);
        left_bytes -= got > 0 ? (uint64_t)got : 0;
    }
    CHECK_UINT_EQ(left_bytes, 0);
    CHECK(recv(rig.raw, payload, 1, MSG_DONTWAIT) < 0); /* its end would be a death */
    CHECK_UINT_EQ(atomic_load(&rig.sides[0].ends), 0);
    rig_end(&rig);
}

TEST(descriptors_travel_and_none_is_lost)
{
    struct rig rig;
    struct stat stats[2];
    int ends[2];

    rig_begin(&rig, 2);
    CHECK(pipe(ends) == 0);
    rdti_channel_send(rig.sides[0].channel, RDTI_FRAME_HEARTBEAT, NULL, 0, ends, 2);
    CHECK_EVENTUALLY(atomic_load(&rig.sides[1].fd_count) == 2, 5);
    for (int i = 0; i < 2; i++) {
        CHECK(fstat(ends[i], &stats[0]) == 0 && fstat(rig.sides[1].fds[i], &stats[1]) == 0);
        CHECK_UINT_EQ(stats[0].st_ino, stats[1].st_ino);
        (void)close(ends[i]);
        (void)close(rig.sides[1].fds[i]);
    }
    rig_end(&rig);
}

/* ---- Ends ---------------------------------------------------------------------------------- */

TEST(a_frame_that_cannot_be_ends_it_once)
{
    static const uint8_t unknown[8] = {0xff, 0xff, 0, 0, 0, 0, 0, 0};
    static const uint8_t filler[8] = {4, 0, 1, 0, 0, 0, 0, 0};
    static const uint8_t endless[8] = {1, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f};
    static const uint8_t *const faults[] = {unknown, filler, endless};

    for (int i = 0; i < 3; i++) {
        struct rig rig;
        rig_begin(&rig, 1);
        CHECK(send(rig.raw, faults[i], 8, 0) == 8);
        CHECK(send(rig.raw, faults[i], 8, 0) == 8);
        CHECK_EVENTUALLY(atomic_load(&rig.sides[0].ends) == 1, 5);
        (void)close(rig.raw);
        rig.raw = -1;
        test_sleep_ns(5 * MS);
        CHECK_UINT_EQ(atomic_load(&rig.sides[0].ends), 1);
        CHECK_INT_EQ(rig.sides[0].end_status, RDT_EPROTO);
        CHECK_UINT_EQ(atomic_load(&rig.sides[0].frames), 0);
        rig_end(&rig);
    }
}

TEST(it_may_be_destroyed_inside_its_own_callbacks)
{
    for (int where = 0; where < 3; where++) {
        struct rig rig;
        rig_begin(&rig, 2);
        rig.sides[1].destroys_in_frame = where == 0;
        rig.sides[1].destroys_in_end = where > 0;
        rig.sides[1].answer = where == 1 ? RDT_EPROTO : RDT_OK;
        rdti_engine_enter(rig.engine);
        for (uint32_t i = 0; i < 10; i++)
            send_number(rig.sides[0].channel, i);
        if (where == 2) {
            rdti_channel_destroy(rig.sides[0].channel);
            rig.sides[0].channel = NULL;
        }
        rdti_engine_leave(rig.engine);
        if (where == 0)
            CHECK_EVENTUALLY(atomic_load(&rig.sides[1].frames) > 0, 5);
        else
            CHECK_EVENTUALLY(atomic_load(&rig.sides[1].ends) == 1, 5);
        test_sleep_ns(5 * MS);
        CHECK_UINT_EQ(atomic_load(&rig.sides[1].frames), where == 2 ? 10 : 1);
        rig_end(&rig);
    }
}

static bool
is_list_empty(struct rdti_engine *engine, const struct rdti_list *list)
{
    rdti_engine_enter(engine);
    const bool is_empty = rdti_list_is_empty(list);
    rdti_engine_leave(engine);
    return is_empty;
}

/* What was queued still goes out, what comes is thrown away, and the descriptor goes with the
 * peer's end, or in time. */
TEST(a_retired_channel_says_its_last_words)
{
    for (int answers = 0; answers < 2; answers++) {
        struct rig rig;
        struct rdti_list retired;
        uint8_t bytes[64];
        size_t have = 0;
        rig_begin(&rig, 1);
        rdti_list_init(&retired);
        rdti_engine_enter(rig.engine);
        rdti_channel_send(rig.sides[0].channel, RDTI_FRAME_GOODBYE, NULL, 0, NULL, 0);
        rdti_channel_retire(rig.sides[0].channel, &retired);
        rig.sides[0].channel = NULL;
        CHECK(!rdti_list_is_empty(&retired));
        rdti_engine_leave(rig.engine);
        CHECK(send(rig.raw, "garbage that nobody reads", 25, MSG_NOSIGNAL) == 25);
        for (ssize_t got = 1; got != 0 && have < sizeof(bytes);) {
            got = recv(rig.raw, bytes + have, sizeof(bytes) - have, 0);
            have += got > 0 ? (size_t)got : 0;
        }
        CHECK_UINT_EQ(have, RDTI_FRAME_HEAD_BYTES); /* the goodbye, then the end */
        if (answers == 1) {
            (void)close(rig.raw);
            rig.raw = -1;
            CHECK_EVENTUALLY(is_list_empty(rig.engine, &retired), 5);
        }
        CHECK_INT_EQ(is_list_empty(rig.engine, &retired), answers == 1);
        rdti_engine_enter(rig.engine);
        rdti_channels_expire(&retired, UINT64_MAX);
        CHECK(rdti_list_is_empty(&retired));
        rdti_engine_leave(rig.engine);
        CHECK_UINT_EQ(atomic_load(&rig.sides[0].ends), 0);
        rig_end(&rig);
    }
}

/* It waits for the peer's end however long that takes, after a frame that could not be as well. */
TEST(a_lingering_channel_tells_of_the_peers_end)
{
    for (int fault = 0; fault < 2; fault++) {
        static const uint8_t unknown[8] = {0xff, 0xff, 0, 0, 0, 0, 0, 0};
        struct rig rig;
        char byte;
        rig_begin(&rig, 1);
        if (fault == 1) {
            CHECK(send(rig.raw, unknown, 8, 0) == 8);
            CHECK_EVENTUALLY(atomic_load(&rig.sides[0].ends) == 1, 5);
        }
        rdti_engine_enter(rig.engine);
        CHECK(rdti_channel_linger(rig.sides[0].channel));
        rdti_engine_leave(rig.engine);
        test_sleep_ns(20 * MS);
        CHECK(recv(rig.raw, &byte, 1, MSG_DONTWAIT) < 0); /* our half is open still */
        rdti_engine_enter(rig.engine);
        rdti_channel_shut(rig.sides[0].channel);
        rdti_channel_shut(rig.sides[0].channel);
        rdti_engine_leave(rig.engine);
        CHECK_EVENTUALLY(recv(rig.raw, &byte, 1, MSG_DONTWAIT) == 0, 5);
        CHECK(send(rig.raw, unknown, 8, MSG_NOSIGNAL) == 8);
        test_sleep_ns(20 * MS);
        CHECK_UINT_EQ(atomic_load(&rig.sides[0].ends), (uint64_t)fault);
        (void)close(rig.raw);
        rig.raw = -1;
        CHECK_EVENTUALLY(atomic_load(&rig.sides[0].ends) == (uint32_t)fault + 1, 5);
        CHECK_INT_EQ(rig.sides[0].end_status, RDT_EPEER);
        rdti_engine_enter(rig.engine);
        CHECK(!rdti_channel_linger(rig.sides[0].channel)); /* there is nothing to wait for */
        rdti_engine_leave(rig.engine);
        rig_end(&rig);
    }
}

TEST_MAIN()
