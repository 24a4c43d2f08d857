/* SPDX-License-Identifier: Apache-2.0
 * The shm transport between two processes: order under load, sleep, threads, death. */
#include "harness.h"

#include <pthread.h>
#include <sched.h>
#include <sys/select.h>

#include "shm_rig.h"

/* ---- Order of bytes and notifications ------------------------------------------------------ */

/*
 * Each message is two writes: a body without a notification, then a head with one. The consumer
 * checks both when the notification comes, and gives the slot back by a credit, every CREDIT_EVERY
 * messages.
 */
#define MESSAGES (1000000u / TEST_ALIKE_SHARE)
#define SLOTS 128u
#define SLOT_BYTES 1024u
#define BODY_OFF 64u
#define CREDIT_EVERY 16u

static uint64_t
mix(uint64_t value)
{
    value ^= value >> 31;
    value *= UINT64_C(0x9e3779b97f4a7c15);
    return value ^ value >> 29;
}

static uint32_t
body_words(uint32_t message)
{
    return (uint32_t)(mix(message) % 97); /* 0 to 96: up to 768 bytes */
}

static void
fill_body(uint64_t *body, uint32_t message)
{
    for (uint32_t i = 0; i < body_words(message); i++)
        body[i] = mix((uint64_t)message << 8 | i);
}

struct order {
    struct shm_rig *rig;
    uint32_t count; /* messages seen, or credits got */
};

static void
write_done(struct shm_rig *rig, struct fake_op *op)
{
    while (!fake_op_is_done(op))
        shm_rig_wait(rig, 1000);
    CHECK_OK(op->status, &op->error);
}

static void
take_message(struct fake_link *link, uint32_t notification, void *arg)
{
    static struct fake_op credit;
    static bool has_credit;
    struct order *order = arg;
    const uint8_t *slot = order->rig->region->addr + order->count % SLOTS * SLOT_BYTES;
    const uint32_t words = body_words(order->count);
    uint64_t head;

    CHECK_UINT_EQ(notification, order->count);
    memcpy(&head, slot, sizeof(head));
    CHECK_HEX_EQ(head, mix(order->count));
    for (uint32_t i = 0; i < words; i++) {
        uint64_t got;
        memcpy(&got, slot + BODY_OFF + i * sizeof(got), sizeof(got));
        CHECK_MSG(got == mix((uint64_t)order->count << 8 | i), "message %u, word %u of %u",
                  order->count, i, words);
    }
    if (++order->count % CREDIT_EVERY != 0)
        return;
    const struct rdt_remote_region none = {0};
    CHECK(!has_credit || fake_op_is_done(&credit));
    fake_write(&credit, NULL, 0, &none, 0, order->count);
    fake_must_start(link, &credit);
    has_credit = true;
}

static void
consume(struct shm_rig *rig)
{
    struct order order = {.rig = rig};

    rig->link.on_notify_arg = &order;
    rig->link.on_notify = take_message;
    shm_rig_meet(rig);
    while (order.count < MESSAGES) {
        /* Hardly any spinning for a while now and then, so that the sleep is met too. */
        shm_rig_wait(rig, order.count / 1000 % 4 == 0 ? 10 : 2000);
    }
}

static void
take_credit(struct fake_link *link, uint32_t notification, void *arg)
{
    struct order *order = arg;

    (void)link;
    CHECK_UINT_EQ(notification, order->count + CREDIT_EVERY);
    order->count = notification;
}

static void
produce(struct shm_rig *rig)
{
    static uint64_t body[SLOTS][SLOT_BYTES / 8];
    static uint64_t head[SLOTS];
    static struct fake_op ops[SLOTS][2];
    struct order order = {.rig = rig};

    rig->link.on_notify_arg = &order;
    rig->link.on_notify = take_credit;
    shm_rig_meet(rig);
    for (uint32_t i = 0; i < MESSAGES; i++) {
        const uint32_t slot = i % SLOTS;
        const uint64_t off = slot * SLOT_BYTES;

        while (i - order.count >= SLOTS)
            shm_rig_wait(rig, 2000);
        if (i >= SLOTS) {
            write_done(rig, &ops[slot][0]);
            write_done(rig, &ops[slot][1]);
        }
        fill_body(body[slot], i);
        head[slot] = mix(i);
        fake_write(&ops[slot][0], body[slot], body_words(i) * UINT64_C(8), &rig->peer,
                   off + BODY_OFF, RDT_NOTIFY_NONE);
        fake_write(&ops[slot][1], &head[slot], 8, &rig->peer, off, i);
        fake_must_start(&rig->link, &ops[slot][0]);
        fake_must_start(&rig->link, &ops[slot][1]);
    }
    while (order.count < MESSAGES / CREDIT_EVERY * CREDIT_EVERY)
        shm_rig_wait(rig, 2000);
    CHECK(rig->host.transport->is_idle(rig->link.lane));
}

TEST_TIMEOUT(a_million_messages_arrive_whole_and_in_order, 120)
{
    shm_rig_run(produce, consume, (uint64_t)SLOTS * SLOT_BYTES);
}

/* ---- Sleep --------------------------------------------------------------------------------- */

#define NAPS 200

static void
nap(struct shm_rig *rig)
{
    const struct rdt_remote_region none = {0};
    struct fake_op op;

    for (uint32_t i = 0; i < NAPS; i++) {
        const uint64_t start_ns = test_now_ns();
        while (rig->link.notify_count == i)
            (void)fake_pump_or_sleep(&rig->host, UINT64_C(5000000000));
        CHECK_MSG(test_now_ns() - start_ns < UINT64_C(4000000000), "nap %u was not ended", i);
        fake_write(&op, NULL, 0, &none, 0, i);
        fake_must_start(&rig->link, &op);
        CHECK(fake_op_is_done(&op));
    }
}

static void
disturb(struct shm_rig *rig)
{
    const struct rdt_remote_region none = {0};
    struct fake_op op;

    for (uint32_t i = 0; i < NAPS; i++) {
        test_sleep_ns(i % 10 == 0 ? 3000000 : 50000);
        fake_write(&op, NULL, 0, &none, 0, i);
        fake_must_start(&rig->link, &op);
        CHECK(fake_op_is_done(&op));
        while (rig->link.notify_count == i)
            (void)fake_pump_or_sleep(&rig->host, UINT64_C(5000000000));
    }
    CHECK_UINT_GE(atomic_load_explicit(&rig->host.counters.wakeups_sent, memory_order_relaxed),
                  NAPS / 20);
}

TEST_TIMEOUT(sleeping_consumer_is_woken, 60)
{
    shm_rig_run(disturb, nap, 64);
}

/*
 * The consumer computes; only its background thread, played here by a sleep in epoll that hears
 * urgent rings, may take from a ring that ran full. The producer sleeps until it is told of room.
 */
#define BURST 500u

static void
take_in_background(struct shm_rig *rig)
{
    struct rdti_doorbell *bell = rig->host.bell;
    uint64_t rings;

    while (rig->link.notify_count < BURST) {
        /* seq_cst: pairs with the load in rdti_doorbell_ring(). */
        atomic_store_explicit(&bell->background, 1, memory_order_seq_cst);
        if (fake_pump(&rig->host) == 0) {
            fd_set set;
            struct timeval left = {5, 0};
            FD_ZERO(&set);
            FD_SET(rig->host.host.event_fd, &set);
            CHECK_MSG(select(rig->host.host.event_fd + 1, &set, NULL, NULL, &left) == 1 ||
                          rig->link.notify_count + 62 > BURST,
                      "no urgent ring after %u", rig->link.notify_count);
        }
        atomic_store_explicit(&bell->background, 0, memory_order_seq_cst);
        CHECK(read(rig->host.host.event_fd, &rings, sizeof(rings)) == 8 || errno == EAGAIN);
        if (rig->link.notify_count + 62 > BURST) /* fewer than a ring: nothing is urgent any more */
            while (rig->link.notify_count < BURST)
                (void)fake_pump(&rig->host);
    }
    for (uint32_t i = 0; i < BURST; i++)
        CHECK_UINT_EQ(rig->link.notifications[i], i);
}

static void
burst(struct shm_rig *rig)
{
    static struct fake_op ops[BURST];
    const struct rdt_remote_region none = {0};

    for (uint32_t i = 0; i < BURST; i++) {
        fake_write(&ops[i], NULL, 0, &none, 0, i);
        fake_must_start(&rig->link, &ops[i]);
    }
    const uint64_t deadline_ns = fake_deadline_ns(20);
    while (!fake_op_is_done(&ops[BURST - 1])) {
        (void)fake_pump_or_sleep(&rig->host, UINT64_C(5000000000));
        fake_check_deadline(deadline_ns, __FILE__, __LINE__, "the burst is written");
    }
    CHECK(rig->host.transport->is_idle(rig->link.lane));
}

TEST_TIMEOUT(full_ring_wakes_the_background_and_room_wakes_the_producer, 60)
{
    shm_rig_run(burst, take_in_background, 64);
}

/* ---- Threads --------------------------------------------------------------------------------- */

/* Several threads write at once while one drives: each thread's own order holds, no byte is lost.
 * */
#define THREADS 4u
#define PER_THREAD 20000u

struct writer {
    struct shm_rig *rig;
    uint32_t number;
    pthread_t thread;
};

static void *
write_many_times(void *arg)
{
    const struct writer *writer = arg;
    struct shm_rig *rig = writer->rig;
    struct rdt_error err;

    for (uint32_t i = 0; i < PER_THREAD; i++) {
        const uint64_t value = (uint64_t)writer->number << 32 | i;
        struct fake_op op;

        fake_write(&op, &value, sizeof(value), &rig->peer, writer->number * UINT64_C(64),
                   writer->number << 24 | i);
        CHECK_OK(fake_start(&rig->link, &op, &err), &err);
        while (!fake_op_is_done(&op)) /* the driver pushes it */
            (void)sched_yield();
        CHECK_OK(op.status, &op.error);
        if (i % 64 == 0) {
            uint64_t back = 0;
            fake_read(&op, &back, sizeof(back), &rig->peer, writer->number * UINT64_C(64));
            CHECK_OK(fake_start(&rig->link, &op, &err), &err);
            CHECK(fake_op_is_done(&op));
            CHECK_HEX_EQ(back, value);
        }
    }
    return NULL;
}

static void
write_from_threads(struct shm_rig *rig)
{
    struct writer writers[THREADS];

    for (uint32_t i = 0; i < THREADS; i++) {
        writers[i] = (struct writer){.rig = rig, .number = i};
        CHECK_INT_EQ(pthread_create(&writers[i].thread, NULL, write_many_times, &writers[i]), 0);
    }
    const uint64_t deadline_ns = fake_deadline_ns(100);
    while (rig->link.notify_count == 0) { /* the consumer says when it has seen all */
        (void)fake_pump(&rig->host);
        (void)rig->host.transport->is_idle(rig->link.lane);
        (void)sched_yield();
        fake_check_deadline(deadline_ns, __FILE__, __LINE__, "the threads' writes are taken");
    }
    for (uint32_t i = 0; i < THREADS; i++)
        CHECK_INT_EQ(pthread_join(writers[i].thread, NULL), 0);
}

static void
take_from_threads(struct shm_rig *rig)
{
    uint32_t next[THREADS] = {0};
    uint32_t taken = 0;
    struct fake_op op;
    const struct rdt_remote_region none = {0};

    while (taken < THREADS * PER_THREAD) {
        shm_rig_wait(rig, 100);
        for (; taken < rig->link.notify_count; taken++) {
            const uint32_t notification = rig->link.notifications[taken];
            const uint32_t number = notification >> 24;
            uint64_t value;

            CHECK_UINT_LE(number, THREADS - 1);
            CHECK_UINT_EQ(notification & 0xffffff, next[number]);
            next[number]++;
            /* The thread may have written its next value already, never an older one. */
            memcpy(&value, rig->region->addr + number * UINT64_C(64), sizeof(value));
            CHECK_UINT_EQ(value >> 32, number);
            CHECK_UINT_GE((uint32_t)value, notification & 0xffffff);
        }
    }
    fake_write(&op, NULL, 0, &none, 0, 1);
    fake_must_start(&rig->link, &op);
}

TEST_TIMEOUT(threads_may_write_at_once, 120)
{
    shm_rig_run(write_from_threads, take_from_threads, THREADS * 64);
}

/* ---- Private memory and death ------------------------------------------------------------------
 * */

static uint8_t private_bytes[100000];

static void
own_private(struct shm_rig *rig)
{
    struct fake_region *region =
        fake_region_private(&rig->host, private_bytes, sizeof(private_bytes));

    CHECK_INT_EQ(send(rig->talk_fd, &region->remote, sizeof(region->remote), MSG_NOSIGNAL),
                 sizeof(region->remote));
    FAKE_PUMP_UNTIL(&rig->host, NULL, rig->link.notify_count == 1, 20);
    if (rig->link.notifications[0] == 1)
        return; /* not permitted here */
    for (uint32_t i = 0; i < sizeof(private_bytes); i++)
        CHECK_INT_EQ(private_bytes[i], (uint8_t)(i * 31));
}

static void
write_private(struct shm_rig *rig)
{
    static uint8_t src[sizeof(private_bytes)];
    static uint8_t got[sizeof(private_bytes)];
    struct rdt_remote_region remote;
    struct rdt_error err;
    struct fake_op op;

    CHECK_INT_EQ(recv(rig->talk_fd, &remote, sizeof(remote), MSG_WAITALL), sizeof(remote));
    for (uint32_t i = 0; i < sizeof(src); i++)
        src[i] = (uint8_t)(i * 31);
    fake_write(&op, src, sizeof(src), &remote, 0, 2);
    const rdt_status status = fake_start(&rig->link, &op, &err);
    if (status == RDT_ENOTSUP) {
        const struct rdt_remote_region none = {0};
        CHECK_STR_CONTAINS(err.message, "arena");
        fake_write(&op, NULL, 0, &none, 0, 1);
        fake_must_start(&rig->link, &op);
        return;
    }
    CHECK_OK(status, &err);
    fake_read(&op, got, sizeof(got), &remote, 0);
    fake_must_start(&rig->link, &op);
    CHECK_MEM_EQ(got, src, sizeof(src));
}

TEST(private_memory_of_another_process)
{
    shm_rig_run(write_private, own_private, 64);
}

static void
die(struct shm_rig *rig)
{
    (void)rig;
    (void)kill(getpid(), SIGKILL);
}

/* The peer is killed in the middle: writes go on into memory that nobody reads, nothing faults. */
TEST(killed_peer_is_harmless)
{
    static struct shm_rig rig;
    static struct fake_op ops[300];
    static uint8_t src[1 << 20];
    struct rdt_error err;
    int side[2];
    int talk[2];
    int status;

    const uint32_t fds = fake_count_fds();
    fake_side_channel(side);
    CHECK_INT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, talk), 0);
    const pid_t pid = fork();
    CHECK_INT_GE(pid, 0);
    const int mine = pid == 0 ? 1 : 0;
    CHECK_INT_EQ(close(side[1 - mine]), 0);
    CHECK_INT_EQ(close(talk[1 - mine]), 0);
    shm_rig_open(&rig, side[mine], talk[mine], pid == 0, sizeof(src));
    if (pid == 0)
        die(&rig);
    CHECK_INT_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    for (int i = 0; i < 300; i++) {
        fake_write(&ops[i], src, sizeof(src), &rig.peer, 0, 1);
        CHECK_OK(fake_start(&rig.link, &ops[i], &err), &err);
    }
    FAKE_PUMP_UNTIL(&rig.host, NULL, rig.link.is_peer_gone, 10);
    (void)fake_pump(&rig.host);
    shm_rig_close(&rig);
    for (int i = 0; i < 300; i++) {
        CHECK(fake_op_is_done(&ops[i]));
        CHECK_INT_EQ(ops[i].status, i < 62 ? RDT_OK : RDT_ECLOSED);
    }
    CHECK_UINT_EQ(fake_count_fds(), fds);
}

TEST_MAIN()
