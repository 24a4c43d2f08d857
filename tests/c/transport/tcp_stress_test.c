/* SPDX-License-Identifier: Apache-2.0
 * Two processes write to and read from each other at random, every byte is checked; and two
 * threads write on one lane while a third drives. */
#include "../harness.h"

#include <sys/socket.h>

#include "fake_tcp.h"
#include "transport/tcp/tcp.h"
#include "wire/notify.h"

/* Each side has WINDOWS windows that the other writes in turn and a constant part that it reads.
 * Notification i says that write i is in window i % WINDOWS; it is checked against what both
 * derive from i, and answered, so that a window is never overwritten before it was looked at. */
enum { WINDOWS = 16, IN_FLIGHT = 12, WINDOW_BYTES = 1 << 20, CONSTANT_BYTES = 1 << 20 };
#define REGION_BYTES ((uint64_t)WINDOWS * WINDOW_BYTES + CONSTANT_BYTES)
/* Sanitizers cost a multiple of the time, and they find an access or a race the first time that it
 * happens: an eighth of the operations still has each kind and size, of the rarest, striped ones,
 * about ten a run; the rings of requests, answers and parts still wrap, that of stripes does in
 * tcp_stripes_test. Orders that need many tries are the plain build's to find. */
#if defined(__SANITIZE_ADDRESS__)
#define COUNT(plain) ((plain) / 8)
#elif defined(__SANITIZE_THREAD__) /* half as many again */
#define COUNT(plain) ((plain) / 16)
#else
#define COUNT(plain) (plain)
#endif
#define ANSWER UINT32_C(0x20000) /* of the 18 bits of a user notification */

struct side {
    struct fake_host host;
    struct fake_link link;
    struct fake_region *region;
    struct rdt_remote_region peer;
    uint32_t count;   /* ops to start */
    bool is_sleeping; /* between passes, instead of spinning */
    uint32_t started;
    uint32_t checked;  /* writes of the peer */
    uint32_t answered; /* of our writes */
    uint32_t writes;
    struct fake_op ops[IN_FLIGHT];
    bool is_used[IN_FLIGHT];
    uint64_t dst_off[IN_FLIGHT]; /* of reads */
    uint8_t *buffers[IN_FLIGHT];
    struct fake_op answers[4 * WINDOWS];
    uint32_t answer_next;
    uint64_t seed;
};

static uint64_t
mix(uint64_t x)
{
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* What write i is: most are small, one in a hundred is up to a mebibyte. */
static void
place(uint32_t i, uint64_t *off, uint64_t *len)
{
    const uint64_t r = mix(i * UINT64_C(2654435761) + 17);
    const uint64_t kind = r % 100;
    const uint64_t max = kind < 60 ? 256 : kind < 90 ? 4096 : kind < 99 ? 65536 : WINDOW_BYTES;

    *len = mix(r) % (max + 1);
    *off = mix(r + 1) % (WINDOW_BYTES - *len + 1);
}

static void
fill(uint8_t *at, uint64_t len_bytes, uint32_t i)
{
    uint64_t word = mix(i + 1);

    for (uint64_t k = 0; k < len_bytes; k += 8, word = word * 6364136223846793005u + 1)
        memcpy(at + k, &word, len_bytes - k < 8 ? len_bytes - k : 8);
}

static void
on_notify(struct fake_link *link, uint32_t notification, void *arg)
{
    struct side *s = arg;
    uint32_t value;
    uint32_t epoch;

    CHECK_INT_EQ(rdti_notify_parse(notification, &value, &epoch), RDTI_NOTIFY_IS_USER);
    if ((value & ANSWER) != 0) {
        CHECK_INT_EQ(value & ~ANSWER, s->answered % ANSWER);
        s->answered++;
        return;
    }
    static uint8_t want[WINDOW_BYTES];
    uint64_t off;
    uint64_t len;

    CHECK_INT_EQ(value, s->checked); /* in order, none lost */
    place(value, &off, &len);
    fill(want, len, value);
    CHECK_MEM_EQ(s->region->addr + (uint64_t)(value % WINDOWS) * WINDOW_BYTES + off, want, len);
    struct fake_op *op = &s->answers[s->answer_next++ % (4 * WINDOWS)];
    if (s->answer_next > 4 * WINDOWS)
        CHECK(fake_op_is_done(op));
    fake_write(op, NULL, 0, &s->peer, 0, rdti_notify_user(ANSWER | s->checked % ANSWER));
    fake_must_start(link, op);
    s->checked++;
}

static void
start_write(struct side *s, uint32_t k)
{
    const uint32_t i = s->writes++;
    uint64_t off;
    uint64_t len;

    place(i, &off, &len);
    fill(s->buffers[k], len, i);
    fake_write(&s->ops[k], s->buffers[k], len, &s->peer,
               (uint64_t)(i % WINDOWS) * WINDOW_BYTES + off, rdti_notify_user(i));
}

static void
start_read(struct side *s, uint32_t k)
{
    uint64_t off;
    uint64_t len;

    place((uint32_t)mix(s->seed + s->started), &off, &len);
    s->dst_off[k] = off;
    memset(s->buffers[k], 0, len);
    fake_read(&s->ops[k], s->buffers[k], len, &s->peer, (uint64_t)WINDOWS * WINDOW_BYTES + off);
}

static void
finish(struct side *s, uint32_t k)
{
    static uint8_t constant[CONSTANT_BYTES];
    struct fake_op *op = &s->ops[k];

    CHECK_MSG(op->status == RDT_OK, "%s", op->error.message);
    s->is_used[k] = false;
    if (op->op.kind == RDTI_OP_WRITE)
        return;
    if (constant[0] == 0)
        fake_tcp_pattern(constant, CONSTANT_BYTES, 99);
    CHECK_MEM_EQ(s->buffers[k], constant + s->dst_off[k], op->op.len_bytes);
}

static void
step(struct side *s)
{
    for (uint32_t k = 0; k < IN_FLIGHT; k++) {
        if (s->is_used[k] && fake_op_is_done(&s->ops[k]))
            finish(s, k);
        if (s->is_used[k] || s->started == s->count)
            continue;
        if (mix(s->seed ^ s->started) % 3 == 0)
            start_read(s, k);
        else if (s->writes - s->answered < IN_FLIGHT)
            start_write(s, k);
        else
            continue;
        s->started++;
        s->is_used[k] = true;
        fake_must_start(&s->link, &s->ops[k]);
    }
    if (s->is_sleeping)
        (void)fake_pump_or_sleep(&s->host, UINT64_C(1000000000));
    else
        (void)fake_pump(&s->host);
    CHECK_MSG(s->link.error_count == 0, "%s", s->link.error.message);
}

static bool
is_done(const struct side *s)
{
    if (s->started < s->count || s->answered < s->writes)
        return false;
    for (uint32_t k = 0; k < IN_FLIGHT; k++)
        if (s->is_used[k])
            return false;
    return true;
}

struct plan {
    uint32_t streams;
    uint32_t count;
    int buffer_bytes; /* SO_SNDBUF; 0: the kernel's */
    bool is_sleeping;
};

static void
shrink_buffers(struct side *s, int buffer_bytes)
{
    struct rdti_tcp_lane *lane = (struct rdti_tcp_lane *)s->link.lane;

    for (uint32_t i = 0; buffer_bytes > 0 && i < lane->stream_count; i++) {
        const int fd = lane->streams[i]->fd;

        CHECK_INT_EQ(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof(int)), 0);
    }
}

/* Returns when all of ours is done and the peer says that all of its own is. */
static void
run_side(const struct plan *plan, struct fake_tcp_listener *listener,
         const struct rdti_lane_args *args, int side_fd, int control_fd)
{
    static struct side s;
    bool is_told = false;
    char byte = 1;

    fake_host_open(&s.host, &rdti_transport_tcp);
    s.host.host.tcp_streams = plan->streams;
    s.region = fake_region(&s.host, REGION_BYTES);
    fake_tcp_pattern(s.region->addr + (uint64_t)WINDOWS * WINDOW_BYTES, CONSTANT_BYTES, 99);
    for (uint32_t k = 0; k < IN_FLIGHT; k++)
        CHECK_NOT_NULL(s.buffers[k] = malloc(WINDOW_BYTES));
    s.count = plan->count;
    s.is_sleeping = plan->is_sleeping;
    s.seed = listener != NULL ? 1 : 2;
    CHECK_INT_EQ(write(control_fd, &s.region->remote, sizeof(s.peer)), sizeof(s.peer));
    CHECK_INT_EQ(recv(control_fd, &s.peer, sizeof(s.peer), MSG_WAITALL), sizeof(s.peer));
    fake_tcp_join(&s.host, &s.link, side_fd, listener, args);
    s.link.on_notify = on_notify;
    s.link.on_notify_arg = &s;
    shrink_buffers(&s, plan->buffer_bytes);
    /* Nobody writes before both can tell what arrives. */
    CHECK_INT_EQ(write(control_fd, &byte, 1), 1);
    CHECK_INT_EQ(recv(control_fd, &byte, 1, 0), 1);
    while (!is_told || recv(control_fd, &byte, 1, MSG_DONTWAIT) != 1) {
        step(&s);
        if (!is_told && is_done(&s)) {
            CHECK_INT_EQ(write(control_fd, &byte, 1), 1);
            is_told = true;
            s.is_sleeping = false; /* the control channel wakes nobody */
        }
    }
    /* Both have left the loop: from here on nobody takes an end for an error. */
    CHECK_INT_EQ(write(control_fd, &byte, 1), 1);
    CHECK_INT_EQ(recv(control_fd, &byte, 1, 0), 1);
    CHECK_INT_GT(s.writes, plan->count / 3);
    CHECK_INT_GT(s.checked, plan->count / 3);
    /* The last answers may wait for their acks: closing flushes what we owe. */
    fake_link_close(&s.link, RDT_ECLOSED);
    fake_link_free(&s.link);
    fake_host_close(&s.host);
    for (uint32_t k = 0; k < IN_FLIGHT; k++)
        free(s.buffers[k]);
}

static void
run(const struct plan *plan)
{
    struct fake_tcp_listener listener;
    int control[2];
    int side[2];
    int status;

    fake_tcp_listen(&listener, AF_INET);
    fake_side_channel(side);
    CHECK_INT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, control), 0);
    const struct rdti_lane_args args = fake_tcp_args(&listener);
    fflush(NULL);
    const pid_t child = fork();
    CHECK_INT_GE(child, 0);
    if (child == 0) {
        CHECK_INT_EQ(close(side[0]) + close(control[0]), 0);
        run_side(plan, &listener, &args, side[1], control[1]);
        _exit(0);
    }
    CHECK_INT_EQ(close(side[1]) + close(control[1]), 0);
    run_side(plan, NULL, &args, side[0], control[0]);
    CHECK_INT_EQ(waitpid(child, &status, 0), child);
    CHECK_INT_EQ(status, 0);
    fake_tcp_unlisten(&listener);
}

/* 10^5 operations in all, without sanitizers. */
TEST_TIMEOUT(two_processes_exchange_random_ops_on_one_stream_asleep, 120)
{
    run(&(struct plan){.streams = 1, .count = COUNT(20000), .is_sleeping = true});
}

TEST_TIMEOUT(two_processes_exchange_random_ops_on_two_streams, 120)
{
    run(&(struct plan){.streams = 2, .count = COUNT(10000)});
}

TEST_TIMEOUT(two_processes_exchange_random_ops_on_four_streams_asleep, 120)
{
    run(&(struct plan){.streams = 4, .count = COUNT(18000), .is_sleeping = true});
}

/* Nearly every send and receive is cut short. */
TEST_TIMEOUT(two_processes_exchange_random_ops_through_tiny_buffers, 120)
{
    run(&(struct plan){.streams = 1, .count = COUNT(2000), .buffer_bytes = 8192});
    run(&(struct plan){
        .streams = 3, .count = COUNT(2000), .buffer_bytes = 8192, .is_sleeping = true});
}

/* ---- Threads ------------------------------------------------------------------------------- */

enum { THREAD_OPS = COUNT(3200) };

struct writer {
    struct fake_link *link;
    const struct rdt_remote_region *remote;
    uint32_t number;
    uint32_t errors;
};

/* Writes to a half of the region of its own, and reads it back: both from the calling thread. */
static void *
write_and_read(void *arg)
{
    struct writer *w = arg;
    uint8_t *src = malloc(WINDOW_BYTES);
    uint8_t *dst = malloc(WINDOW_BYTES);

    CHECK(src != NULL && dst != NULL);
    for (uint32_t i = 0; i < THREAD_OPS; i++) {
        struct fake_op write_op;
        struct fake_op read_op;
        uint64_t off;
        uint64_t len;

        place(i + w->number * THREAD_OPS, &off, &len);
        const uint64_t at = w->number * (uint64_t)WINDOW_BYTES + off;
        fill(src, len, i);
        fake_write(&write_op, src, len, w->remote, at,
                   i % 2 == 0 ? rdti_notify_user(w->number) : RDTI_NOTIFY_NONE);
        fake_must_start(w->link, &write_op);
        const uint64_t deadline = fake_deadline_ns(20);
        while (!fake_op_is_done(&write_op)) {
            (void)fake_pump(w->link->host); /* any thread may drive */
            fake_check_deadline(deadline, __FILE__, __LINE__, "the write is done");
        }
        fake_read(&read_op, dst, len, w->remote, at);
        fake_must_start(w->link, &read_op);
        while (!fake_op_is_done(&read_op)) {
            test_sleep_ns(1000); /* the driver does it */
            fake_check_deadline(deadline, __FILE__, __LINE__, "the read is done");
        }
        CHECK_MEM_EQ(dst, src, len);
    }
    free(src);
    free(dst);
    return NULL;
}

struct driver {
    struct fake_host *host;
    _Atomic bool is_over; /* seq_cst: a flag of the test */
};

static void *
drive(void *arg)
{
    struct driver *d = arg;

    while (!atomic_load(&d->is_over))
        (void)fake_pump_or_sleep(d->host, UINT64_C(1000000));
    return NULL;
}

static void
write_from_two_threads(uint32_t streams)
{
    struct fake_tcp_pair p = {0};
    pthread_t writer_threads[2];
    pthread_t driver_threads[2];

    fake_tcp_pair_open(&p, streams, AF_INET);
    struct fake_region *region = fake_region(&p.b, 2 * WINDOW_BYTES);
    struct writer writers[2];
    struct driver drivers[2] = {{.host = &p.a}, {.host = &p.b}};
    for (uint32_t i = 0; i < 2; i++) {
        writers[i] = (struct writer){.link = &p.ab, .remote = &region->remote, .number = i};
        CHECK_INT_EQ(pthread_create(&driver_threads[i], NULL, drive, &drivers[i]), 0);
        CHECK_INT_EQ(pthread_create(&writer_threads[i], NULL, write_and_read, &writers[i]), 0);
    }
    for (uint32_t i = 0; i < 2; i++)
        CHECK_INT_EQ(pthread_join(writer_threads[i], NULL), 0);
    for (uint32_t i = 0; i < 2; i++) {
        atomic_store(&drivers[i].is_over, true);
        CHECK_INT_EQ(pthread_join(driver_threads[i], NULL), 0);
    }
    CHECK_INT_EQ(p.ba.notify_count, THREAD_OPS);
    fake_tcp_pair_close(&p);
}

TEST_TIMEOUT(two_threads_write_and_read_on_one_stream, 60)
{
    write_from_two_threads(1);
}

TEST_TIMEOUT(two_threads_write_and_read_on_three_streams, 60)
{
    write_from_two_threads(3);
}

TEST_MAIN()
