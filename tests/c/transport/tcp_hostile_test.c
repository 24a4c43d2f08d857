/* SPDX-License-Identifier: Apache-2.0
 * A peer that sends garbage, lies or ends anywhere: the lane says so once, nothing outside a
 * region changes, and nothing is left pinned. The peer is a bare socket. */
#include "../harness.h"

#include <fcntl.h>
#include <sys/socket.h>

#include "fake_victim.h"
#include "transport/tcp/tcp.h"
#include "wire/bytes.h"
#include "wire/notify.h"

/* ---- A conversation that is valid ---------------------------------------------------------- */

static void
add_list(struct fake_script *s, uint32_t generation)
{
    const struct rdti_stream_entry entries[3] = {{0, 10},
                                                 {100, 20},
                                                 {FAKE_VICTIM_REGION_BYTES - 5, 5}};

    fake_script_add(s,
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
make_script(struct fake_script *s, uint32_t generation)
{
    struct rdti_stream_head write = {.op = RDTI_STREAM_WRITE,
                                     .flags = RDTI_STREAM_NOTIFY,
                                     .value = rdti_notify_user(3),
                                     .index = 1,
                                     .generation = generation,
                                     .len_bytes = 300,
                                     .off_bytes = 17};

    s->len_bytes = 0;
    fake_script_add(s, write, 300);
    write.flags = RDTI_STREAM_MORE;
    write.value = 0;
    fake_script_add(s, write, 300);
    add_list(s, generation);
    fake_script_add(s, (struct rdti_stream_head){.op = RDTI_STREAM_ACK, .ack = 1}, 0);
    fake_script_add(s,
                    (struct rdti_stream_head){.op = RDTI_STREAM_READ_DATA,
                                              .ack = 1,
                                              .len_bytes = FAKE_VICTIM_READ_BYTES},
                    FAKE_VICTIM_READ_BYTES);
    fake_script_add(
        s, (struct rdti_stream_head){.op = RDTI_STREAM_REFUSED, .ack = 2, .aux = -RDT_ESTALE}, 0);
    write.flags = RDTI_STREAM_NOTIFY;
    write.value = rdti_notify_user(4);
    write.ack = 2;
    write.generation = generation + 1;
    fake_script_add(s, write, 300);
    write.op = RDTI_STREAM_WRITE_INLINE;
    write.generation = generation;
    write.len_bytes = 5;
    fake_script_add(s, write, 0);
    fake_script_add(s,
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
    write.off_bytes = FAKE_VICTIM_REGION_BYTES;
    write.len_bytes = 0;
    fake_script_add(s, write, 0);
}

TEST(the_script_itself_is_accepted)
{
    struct fake_victim v;
    struct fake_script s;

    fake_victim_open(&v);
    fake_victim_start_ops(&v);
    make_script(&s, v.region->remote.generation);
    for (size_t i = 0; i < s.len_bytes; i++) { /* byte by byte: every state is entered half way */
        fake_victim_send(&v, s.bytes + i, 1);
        (void)fake_pump(&v.host);
    }
    fake_victim_pump(&v);
    CHECK_MSG(v.link.error_count == 0, "%s", v.link.error.message);
    fake_victim_check_ops(&v);
    CHECK_INT_EQ(v.ops[0].status, RDT_OK);
    CHECK_INT_EQ(v.ops[1].status, RDT_ESTALE);
    CHECK_INT_EQ(v.ops[2].status, RDT_OK);
    for (int i = 0; i < FAKE_VICTIM_READ_BYTES; i++)
        CHECK_INT_EQ(v.read_dst[i], (uint8_t)(i + 1));
    CHECK_INT_EQ(v.link.notify_count, 3);
    CHECK_HEX_EQ(v.link.notifications[2], rdti_notify_user(4));
    CHECK_INT_EQ(v.region->addr[FAKE_VICTIM_REGION_BYTES - 1], 0x5a);
    fake_victim_end_lane(&v);
    fake_victim_close(&v);
}

TEST_TIMEOUT(closing_at_every_byte_ends_the_lane_once, 60)
{
    struct fake_victim v;
    struct fake_script s;

    fake_victim_open(&v);
    fake_victim_end_lane(&v);
    const uint32_t fds = fake_count_fds();
    make_script(&s, v.region->remote.generation);
    for (size_t n = 0; n <= s.len_bytes; n++) {
        fake_victim_lane(&v);
        fake_victim_start_ops(&v);
        fake_victim_send(&v, s.bytes, n);
        if (n % 2 == 0)
            (void)fake_pump(&v.host);
        fake_victim_pump(&v);
        CHECK_INT_EQ(close(v.fd), 0);
        v.fd = -1;
        FAKE_PUMP_UNTIL(&v.host, NULL, v.link.error_count == 1, 10);
        CHECK_INT_EQ(v.link.error.status, RDT_EPEER);
        fake_victim_check_ops(&v);
        fake_victim_end_lane(&v);
    }
    CHECK_INT_EQ(fake_count_fds(), fds);
    fake_victim_close(&v);
}

TEST_TIMEOUT(random_bytes_never_harm, 120)
{
    struct fake_victim v;

    fake_random_state = 88172645463325252u;
    fake_victim_open(&v);
    fake_victim_end_lane(&v);
    for (int round = 0; round < 4000; round++) {
        uint8_t bytes[1024];

        fake_victim_lane(&v);
        fake_victim_start_ops(&v);
        for (size_t i = 0; i < sizeof(bytes); i++)
            bytes[i] = (uint8_t)fake_random_u64();
        if (round % 2 == 0) { /* past the first check: a known op */
            bytes[0] = (uint8_t)(1 + fake_random_u64() % 9);
            bytes[1] &= 0xf;
            memset(bytes + 2, 0, 30);
            bytes[2 + fake_random_u64() % 30] = (uint8_t)fake_random_u64();
        }
        fake_victim_send(&v, bytes, 1 + fake_random_u64() % sizeof(bytes));
        fake_victim_pump(&v);
        fake_victim_end_lane(&v);
        fake_victim_check_ops(&v);
    }
    fake_victim_close(&v);
}

TEST_TIMEOUT(mutated_streams_never_harm, 120)
{
    struct fake_victim v;
    struct fake_script s;
    uint32_t broken = 0;

    fake_random_state = 2463534242u;
    fake_victim_open(&v);
    fake_victim_end_lane(&v);
    make_script(&s, v.region->remote.generation);
    for (int round = 0; round < 8000; round++) {
        size_t len_bytes = s.len_bytes;
        uint8_t *bytes = malloc(len_bytes);

        CHECK_NOT_NULL(bytes);
        memcpy(bytes, s.bytes, len_bytes);
        fake_mutate(bytes, &len_bytes);
        fake_victim_lane(&v);
        fake_victim_start_ops(&v);
        const size_t cut = fake_random_u64() % len_bytes;
        fake_victim_send(&v, bytes, cut);
        (void)fake_pump(&v.host);
        fake_victim_send(&v, bytes + cut, len_bytes - cut);
        fake_victim_pump(&v);
        broken += v.link.error_count;
        fake_victim_end_lane(&v);
        fake_victim_check_ops(&v);
        free(bytes);
    }
    CHECK_INT_GT(broken, 1000); /* else the mutations hit nothing that matters */
    CHECK_INT_LT(broken, 8000);
    fake_victim_close(&v);
}

/* ---- Lies, one by one ---------------------------------------------------------------------- */

static void
expect_protocol_error(struct rdti_stream_head head, const char *what)
{
    struct fake_victim v;
    struct fake_script s = {0};

    fake_victim_open(&v);
    fake_victim_start_ops(&v);
    head.index = head.index == 1 ? 1 : head.index;
    if (head.index == 1)
        head.generation = v.region->remote.generation;
    fake_script_add(&s, head, 0);
    fake_victim_send(&v, s.bytes, s.len_bytes);
    fake_victim_pump(&v);
    CHECK_MSG(v.link.error_count == 1, "%s", what);
    CHECK_INT_EQ(v.link.error.status, RDT_EPROTO);
    fake_victim_check_ops(&v);
    CHECK_INT_EQ(v.ops[0].status, RDT_EPROTO);
    fake_victim_end_lane(&v);
    fake_victim_close(&v);
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
                                                    .len_bytes = FAKE_VICTIM_READ_BYTES},
                          "answers a read that was not asked");
    expect_protocol_error((struct rdti_stream_head){.op = RDTI_STREAM_READ_DATA,
                                                    .len_bytes = FAKE_VICTIM_READ_BYTES + 1},
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
    struct fake_victim v;
    struct fake_script s = {0};
    uint8_t answer[RDTI_STREAM_HEAD_BYTES * 4];
    struct rdti_stream_head head;
    struct rdt_error err;
    size_t got = 0;

    fake_victim_open(&v);
    fake_script_add(
        &s, (struct rdti_stream_head){.op = RDTI_STREAM_WRITE, .index = 77, .len_bytes = 100}, 100);
    fake_victim_send(&v, s.bytes, s.len_bytes);
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
    fake_victim_end_lane(&v);
    fake_victim_close(&v);
}

TEST(too_many_unanswered_reads_are_a_protocol_error)
{
    struct fake_victim v;
    struct fake_script s = {0};
    const int small = 4096;

    fake_victim_open(&v);
    struct rdti_tcp_lane *lane = (struct rdti_tcp_lane *)v.link.lane;
    CHECK_INT_EQ(setsockopt(lane->streams[0]->fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
    for (uint32_t i = 0; i < 2 * RDTI_STREAM_READS_MAX; i++)
        fake_script_add(&s,
                        (struct rdti_stream_head){.op = RDTI_STREAM_READ_REQUEST,
                                                  .value = i,
                                                  .index = 1,
                                                  .generation = v.region->remote.generation,
                                                  .len_bytes = FAKE_VICTIM_REGION_BYTES},
                        0);
    fake_victim_send(&v, s.bytes, s.len_bytes);
    for (int i = 0; i < 100; i++)
        (void)fake_pump(&v.host); /* nobody takes the answers */
    CHECK_INT_EQ(v.link.error_count, 1);
    CHECK_INT_EQ(v.link.error.status, RDT_EPROTO);
    fake_victim_end_lane(&v);
    fake_victim_close(&v);
}

/* A peer that asks for refusals without reading them must not make us keep more and more of
 * them. */
TEST(refusals_that_nobody_reads_stop_the_peer)
{
    struct fake_victim v;
    struct fake_script s = {0};
    const int small = 4096;
    int sent = 0;

    fake_victim_open(&v);
    struct rdti_tcp_lane *lane = (struct rdti_tcp_lane *)v.link.lane;
    CHECK_INT_EQ(setsockopt(lane->streams[0]->fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
    fake_script_add(&s,
                    (struct rdti_stream_head){.op = RDTI_STREAM_WRITE, .index = 1, .generation = 1},
                    0);
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
        fake_victim_pump(&v); /* once read, all are answered */
    CHECK_UINT_EQ(lane->rx_messages, sent);
    fake_victim_end_lane(&v);
    fake_victim_close(&v);
}

TEST_MAIN()
