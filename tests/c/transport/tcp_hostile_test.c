/* SPDX-License-Identifier: Apache-2.0
 * A peer that sends garbage, lies or ends anywhere: the lane says so once, nothing outside a
 * region changes, and nothing is left pinned. The peer is a bare socket. */
#include "../harness.h"

#include <fcntl.h>
#include <sys/socket.h>

#include "fake_tcp.h"
#include "transport/tcp/tcp.h"
#include "wire/bytes.h"
#include "wire/notify.h"

enum { REGION_BYTES = 4096, GUARD_BYTES = 4096, READ_BYTES = 512, STREAM_CAP = 65536 };

/* A lane in the listener's role, ready, with a bare socket as its peer. */
struct victim {
    struct fake_host host;
    struct fake_link link;
    int fd;
    uint8_t *memory; /* guard, region, guard */
    struct fake_region *region;
    uint8_t *read_dst; /* of exactly READ_BYTES */
    struct fake_op ops[3];
};

static uint64_t random_state;

static uint64_t
random_u64(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static void
victim_lane(struct victim *v)
{
    struct rdti_offer offer;
    struct rdti_offer peer = {.len_bytes = RDTI_STREAM_OFFER_BYTES};
    struct rdt_error err;
    int pair[2];

    memset(&v->link, 0, sizeof(v->link));
    const struct rdti_lane_args args = fake_lane_args(false);
    fake_link_offer(&v->host, &v->link, -1, &args, &offer);
    rdti_stream_offer_encode(1, peer.bytes);
    CHECK_OK(rdti_transport_tcp.connect(v->link.lane, &peer, &err), &err);
    CHECK_INT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    v->fd = pair[0];
    CHECK_INT_EQ(fcntl(v->fd, F_SETFL, O_NONBLOCK), 0);
    CHECK_OK(rdti_transport_tcp.add_stream(v->link.lane, pair[1], 0, &err), &err);
    CHECK_INT_EQ(v->link.ready_count, 1);
}

static void
victim_open(struct victim *v)
{
    memset(v, 0, sizeof(*v));
    fake_host_open(&v->host, &rdti_transport_tcp);
    v->host.host.tcp_streams = 1;
    v->memory = calloc(1, REGION_BYTES + 2 * GUARD_BYTES);
    v->read_dst = malloc(READ_BYTES);
    CHECK(v->memory != NULL && v->read_dst != NULL);
    v->region = fake_region_private(&v->host, v->memory + GUARD_BYTES, REGION_BYTES);
    victim_lane(v);
}

static void
victim_pump(struct victim *v)
{
    uint8_t sink[4096];

    for (int i = 0; i < 4; i++) {
        (void)fake_pump(&v->host);
        while (recv(v->fd, sink, sizeof(sink), 0) > 0)
            ;
    }
}

/* Ends the lane and checks that it left nothing behind. */
static void
victim_end_lane(struct victim *v)
{
    if (v->link.error_count > 0)
        CHECK(v->link.error.status == RDT_EPROTO || v->link.error.status == RDT_EPEER);
    fake_link_close(&v->link, RDT_ECLOSED);
    fake_link_free(&v->link);
    if (v->fd >= 0)
        CHECK_INT_EQ(close(v->fd), 0);
    CHECK_INT_EQ(v->region->pins, 0);
    for (int i = 0; i < GUARD_BYTES; i++) {
        CHECK_INT_EQ(v->memory[i], 0);
        CHECK_INT_EQ(v->memory[GUARD_BYTES + REGION_BYTES + i], 0);
    }
}

static void
victim_close(struct victim *v)
{
    fake_host_close(&v->host);
    free(v->memory);
    free(v->read_dst);
}

/* Operations of the victim's own, so that acknowledgements and answers mean something. */
static void
victim_start_ops(struct victim *v)
{
    static const uint8_t src[64];
    const struct rdt_remote_region remote = {.len_bytes = 1 << 20, .index = 9, .generation = 8};

    fake_write(&v->ops[0], src, sizeof(src), &remote, 0, rdti_notify_user(1));
    fake_write(&v->ops[1], src, 8, &remote, 64, RDTI_NOTIFY_NONE);
    fake_read(&v->ops[2], v->read_dst, READ_BYTES, &remote, 0);
    for (int i = 0; i < 3; i++)
        fake_must_start(&v->link, &v->ops[i]);
}

static void
victim_check_ops(struct victim *v)
{
    for (int i = 0; i < 3; i++)
        CHECK(fake_op_is_done(&v->ops[i]));
}

static void
send_bytes(struct victim *v, const uint8_t *bytes, size_t len_bytes)
{
    (void)!send(v->fd, bytes, len_bytes, MSG_NOSIGNAL); /* the victim may have closed: as it may */
}

/* ---- A conversation that is valid ---------------------------------------------------------- */

struct script {
    uint8_t bytes[STREAM_CAP];
    size_t len_bytes;
};

static void
add(struct script *s, struct rdti_stream_head head, size_t payload_bytes)
{
    CHECK(s->len_bytes + RDTI_STREAM_HEAD_BYTES + payload_bytes <= STREAM_CAP);
    rdti_stream_head_encode(&head, s->bytes + s->len_bytes);
    s->len_bytes += RDTI_STREAM_HEAD_BYTES;
    for (size_t i = 0; i < payload_bytes; i++)
        s->bytes[s->len_bytes++] = (uint8_t)(i + 1);
}

static void
add_list(struct script *s, uint32_t generation)
{
    const struct rdti_stream_entry entries[3] = {{0, 10}, {100, 20}, {REGION_BYTES - 5, 5}};

    add(s,
        (struct rdti_stream_head){.op = RDTI_STREAM_WRITE_LIST,
                                  .flags = RDTI_STREAM_NOTIFY,
                                  .aux = 3,
                                  .value = rdti_notify_user(7),
                                  .index = 1,
                                  .generation = generation,
                                  .len_bytes = 35},
        0);
    for (int i = 0; i < 3; i++) {
        rdti_stream_entry_encode(&entries[i], s->bytes + s->len_bytes);
        s->len_bytes += RDTI_STREAM_ENTRY_BYTES;
    }
    memset(s->bytes + s->len_bytes, 0x5a, 35);
    s->len_bytes += 35;
}

/* Every op, some of them refused; acknowledges the victim's two writes and answers its read. */
static void
make_script(struct script *s, uint32_t generation)
{
    struct rdti_stream_head write = {.op = RDTI_STREAM_WRITE,
                                     .flags = RDTI_STREAM_NOTIFY,
                                     .value = rdti_notify_user(3),
                                     .index = 1,
                                     .generation = generation,
                                     .len_bytes = 300,
                                     .off_bytes = 17};

    s->len_bytes = 0;
    add(s, write, 300);
    write.flags = RDTI_STREAM_MORE;
    write.value = 0;
    add(s, write, 300);
    add_list(s, generation);
    add(s, (struct rdti_stream_head){.op = RDTI_STREAM_ACK, .ack = 1}, 0);
    add(s,
        (struct rdti_stream_head){.op = RDTI_STREAM_READ_DATA, .ack = 1, .len_bytes = READ_BYTES},
        READ_BYTES);
    add(s, (struct rdti_stream_head){.op = RDTI_STREAM_REFUSED, .ack = 2, .aux = -RDT_ESTALE}, 0);
    write.flags = RDTI_STREAM_NOTIFY;
    write.value = rdti_notify_user(4);
    write.ack = 2;
    write.generation = generation + 1;
    add(s, write, 300);
    write.op = RDTI_STREAM_WRITE_INLINE;
    write.generation = generation;
    write.len_bytes = 5;
    add(s, write, 0);
    add(s,
        (struct rdti_stream_head){.op = RDTI_STREAM_READ_REQUEST,
                                  .ack = 2,
                                  .index = 1,
                                  .generation = generation,
                                  .len_bytes = 4000,
                                  .off_bytes = 96},
        0);
    write.op = RDTI_STREAM_WRITE;
    write.flags = RDTI_STREAM_ACK_NOW;
    write.value = 0;
    write.off_bytes = REGION_BYTES;
    write.len_bytes = 0;
    add(s, write, 0);
}

TEST(the_script_itself_is_accepted)
{
    struct victim v;
    struct script s;

    victim_open(&v);
    victim_start_ops(&v);
    make_script(&s, v.region->remote.generation);
    for (size_t i = 0; i < s.len_bytes; i++) { /* byte by byte: every state is entered half way */
        send_bytes(&v, s.bytes + i, 1);
        (void)fake_pump(&v.host);
    }
    victim_pump(&v);
    CHECK_MSG(v.link.error_count == 0, "%s", v.link.error.message);
    victim_check_ops(&v);
    CHECK_INT_EQ(v.ops[0].status, RDT_OK);
    CHECK_INT_EQ(v.ops[1].status, RDT_ESTALE);
    CHECK_INT_EQ(v.ops[2].status, RDT_OK);
    for (int i = 0; i < READ_BYTES; i++)
        CHECK_INT_EQ(v.read_dst[i], (uint8_t)(i + 1));
    CHECK_INT_EQ(v.link.notify_count, 3);
    CHECK_HEX_EQ(v.link.notifications[2], rdti_notify_user(4));
    CHECK_INT_EQ(v.region->addr[REGION_BYTES - 1], 0x5a);
    victim_end_lane(&v);
    victim_close(&v);
}

TEST_TIMEOUT(closing_at_every_byte_ends_the_lane_once, 60)
{
    struct victim v;
    struct script s;

    victim_open(&v);
    victim_end_lane(&v);
    const uint32_t fds = fake_count_fds();
    make_script(&s, v.region->remote.generation);
    for (size_t n = 0; n <= s.len_bytes; n++) {
        victim_lane(&v);
        victim_start_ops(&v);
        send_bytes(&v, s.bytes, n);
        if (n % 2 == 0)
            (void)fake_pump(&v.host);
        victim_pump(&v);
        CHECK_INT_EQ(close(v.fd), 0);
        v.fd = -1;
        FAKE_PUMP_UNTIL(&v.host, NULL, v.link.error_count == 1, 10);
        CHECK_INT_EQ(v.link.error.status, RDT_EPEER);
        victim_check_ops(&v);
        victim_end_lane(&v);
    }
    CHECK_INT_EQ(fake_count_fds(), fds);
    victim_close(&v);
}

TEST_TIMEOUT(random_bytes_never_harm, 120)
{
    struct victim v;

    random_state = 88172645463325252u;
    victim_open(&v);
    victim_end_lane(&v);
    for (int round = 0; round < 4000; round++) {
        uint8_t bytes[1024];

        victim_lane(&v);
        victim_start_ops(&v);
        for (size_t i = 0; i < sizeof(bytes); i++)
            bytes[i] = (uint8_t)random_u64();
        if (round % 2 == 0) { /* past the first check: a known op */
            bytes[0] = (uint8_t)(1 + random_u64() % 9);
            bytes[1] &= 0xf;
            memset(bytes + 2, 0, 30);
            bytes[2 + random_u64() % 30] = (uint8_t)random_u64();
        }
        send_bytes(&v, bytes, 1 + random_u64() % sizeof(bytes));
        victim_pump(&v);
        victim_end_lane(&v);
        victim_check_ops(&v);
    }
    victim_close(&v);
}

static void
mutate(uint8_t *bytes, size_t *len_bytes)
{
    const uint64_t count = 1 + random_u64() % 4;

    for (uint64_t i = 0; i < count; i++) {
        const size_t at = random_u64() % *len_bytes;

        switch (random_u64() % 4) {
        case 0:
            bytes[at] ^= (uint8_t)(1 << random_u64() % 8);
            break;
        case 1:
            bytes[at] = (uint8_t)random_u64();
            break;
        case 2: /* lose a byte */
            memmove(bytes + at, bytes + at + 1, *len_bytes - at - 1);
            (*len_bytes)--;
            break;
        default: /* a field at its limit */
            if (at + 4 <= *len_bytes)
                rdti_put_u32(bytes + at, UINT32_MAX - (uint32_t)(random_u64() % 3));
            break;
        }
    }
}

TEST_TIMEOUT(mutated_streams_never_harm, 120)
{
    struct victim v;
    struct script s;
    uint32_t broken = 0;

    random_state = 2463534242u;
    victim_open(&v);
    victim_end_lane(&v);
    make_script(&s, v.region->remote.generation);
    for (int round = 0; round < 8000; round++) {
        size_t len_bytes = s.len_bytes;
        uint8_t *bytes = malloc(len_bytes);

        CHECK_NOT_NULL(bytes);
        memcpy(bytes, s.bytes, len_bytes);
        mutate(bytes, &len_bytes);
        victim_lane(&v);
        victim_start_ops(&v);
        const size_t cut = random_u64() % len_bytes;
        send_bytes(&v, bytes, cut);
        (void)fake_pump(&v.host);
        send_bytes(&v, bytes + cut, len_bytes - cut);
        victim_pump(&v);
        broken += v.link.error_count;
        victim_end_lane(&v);
        victim_check_ops(&v);
        free(bytes);
    }
    CHECK_INT_GT(broken, 1000); /* else the mutations hit nothing that matters */
    CHECK_INT_LT(broken, 8000);
    victim_close(&v);
}

/* ---- Lies, one by one ---------------------------------------------------------------------- */

static void
expect_protocol_error(struct rdti_stream_head head, const char *what)
{
    struct victim v;
    struct script s = {0};

    victim_open(&v);
    victim_start_ops(&v);
    head.index = head.index == 1 ? 1 : head.index;
    if (head.index == 1)
        head.generation = v.region->remote.generation;
    add(&s, head, 0);
    send_bytes(&v, s.bytes, s.len_bytes);
    victim_pump(&v);
    CHECK_MSG(v.link.error_count == 1, "%s", what);
    CHECK_INT_EQ(v.link.error.status, RDT_EPROTO);
    victim_check_ops(&v);
    CHECK_INT_EQ(v.ops[0].status, RDT_EPROTO);
    victim_end_lane(&v);
    victim_close(&v);
}

TEST(lies_are_protocol_errors)
{
    expect_protocol_error((struct rdti_stream_head){.op = RDTI_STREAM_ACK, .ack = 3},
                          "acknowledges more than was sent");
    expect_protocol_error((struct rdti_stream_head){.op = RDTI_STREAM_ACK, .ack = UINT32_MAX},
                          "acknowledges backwards");
    expect_protocol_error((struct rdti_stream_head){.op = RDTI_STREAM_REFUSED,
                                                    .aux = -RDT_ESTALE,
                                                    .ack = 0},
                          "refuses nothing");
    expect_protocol_error((struct rdti_stream_head){.op = RDTI_STREAM_READY},
                          "READY to a listener");
    expect_protocol_error((struct rdti_stream_head){.op = RDTI_STREAM_READ_DATA,
                                                    .value = 1,
                                                    .len_bytes = READ_BYTES},
                          "answers a read that was not asked");
    expect_protocol_error((struct rdti_stream_head){.op = RDTI_STREAM_READ_DATA,
                                                    .len_bytes = READ_BYTES + 1},
                          "answers with more than was asked");
    expect_protocol_error((struct rdti_stream_head){.op = RDTI_STREAM_READ_REFUSED,
                                                    .value = 5,
                                                    .aux = 1},
                          "refuses a read that was not asked");
    expect_protocol_error((struct rdti_stream_head){.op = RDTI_STREAM_WRITE,
                                                    .index = 1,
                                                    .len_bytes = RDTI_STREAM_PART_MAX_BYTES + 1},
                          "a part that is too long");
}

TEST(an_unknown_region_is_refused_and_the_lane_lives)
{
    struct victim v;
    struct script s = {0};
    uint8_t answer[RDTI_STREAM_HEAD_BYTES * 4];
    struct rdti_stream_head head;
    struct rdt_error err;
    size_t got = 0;

    victim_open(&v);
    add(&s, (struct rdti_stream_head){.op = RDTI_STREAM_WRITE, .index = 77, .len_bytes = 100}, 100);
    send_bytes(&v, s.bytes, s.len_bytes);
    for (int i = 0; i < 10; i++) {
        (void)fake_pump(&v.host);
        const ssize_t n = recv(v.fd, answer + got, sizeof(answer) - got, 0);
        got += n > 0 ? (size_t)n : 0;
    }
    CHECK_INT_EQ(v.link.error_count, 0);
    CHECK_INT_EQ(got, 2 * RDTI_STREAM_HEAD_BYTES); /* READY, REFUSED */
    CHECK_OK(rdti_stream_head_decode(answer + RDTI_STREAM_HEAD_BYTES, RDTI_STREAM_HEAD_BYTES, 0, 1,
                                     &head, &err),
             &err);
    CHECK_INT_EQ(head.op, RDTI_STREAM_REFUSED);
    CHECK_INT_EQ(head.ack, 1);
    CHECK_INT_EQ(head.aux, -RDT_EPROTO);
    victim_end_lane(&v);
    victim_close(&v);
}

TEST(too_many_unanswered_reads_are_a_protocol_error)
{
    struct victim v;
    struct script s = {0};
    const int small = 4096;

    victim_open(&v);
    struct rdti_tcp_lane *lane = (struct rdti_tcp_lane *)v.link.lane;
    CHECK_INT_EQ(setsockopt(lane->streams[0]->fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
    for (uint32_t i = 0; i < 2 * RDTI_STREAM_READS_MAX; i++)
        add(&s,
            (struct rdti_stream_head){.op = RDTI_STREAM_READ_REQUEST,
                                      .value = i,
                                      .index = 1,
                                      .generation = v.region->remote.generation,
                                      .len_bytes = REGION_BYTES},
            0);
    send_bytes(&v, s.bytes, s.len_bytes);
    for (int i = 0; i < 100; i++)
        (void)fake_pump(&v.host); /* nobody takes the answers */
    CHECK_INT_EQ(v.link.error_count, 1);
    CHECK_INT_EQ(v.link.error.status, RDT_EPROTO);
    victim_end_lane(&v);
    victim_close(&v);
}

/* A peer that asks for refusals without reading them must not make us keep more and more of
 * them. */
TEST(refusals_that_nobody_reads_stop_the_peer)
{
    struct victim v;
    struct script s = {0};
    const int small = 4096;
    int sent = 0;

    victim_open(&v);
    struct rdti_tcp_lane *lane = (struct rdti_tcp_lane *)v.link.lane;
    CHECK_INT_EQ(setsockopt(lane->streams[0]->fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
    add(&s, (struct rdti_stream_head){.op = RDTI_STREAM_WRITE, .index = 1, .generation = 1}, 0);
    for (int i = 0; i < 100000; i++) {
        if (send(v.fd, s.bytes, s.len_bytes, MSG_NOSIGNAL) != (ssize_t)s.len_bytes)
            break;
        sent++;
        (void)fake_pump(&v.host);
    }
    CHECK_INT_LT(sent, 100000); /* its own socket is full now */
    CHECK_INT_EQ(v.link.error_count, 0);
    for (int i = 0; i < 100; i++)
        (void)fake_pump(&v.host);
    CHECK_INT_EQ(fake_pump(&v.host), 0); /* and we do not spin over it */
    for (int i = 0; i < 10000; i++)
        victim_pump(&v); /* once read, all are answered */
    CHECK_UINT_EQ(lane->rx_messages, sent);
    victim_end_lane(&v);
    victim_close(&v);
}

TEST_MAIN()
