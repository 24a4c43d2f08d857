/* SPDX-License-Identifier: Apache-2.0
 * See fake_victim.h. */
#include "fake_victim.h"

#include <fcntl.h>
#include <sys/socket.h>

#include "../harness.h"
#include "transport/tcp/tcp.h"
#include "wire/bytes.h"
#include "wire/notify.h"

uint64_t fake_random_state;

uint64_t
fake_random_u64(void)
{
    fake_random_state ^= fake_random_state << 13;
    fake_random_state ^= fake_random_state >> 7;
    fake_random_state ^= fake_random_state << 17;
    return fake_random_state;
}

void
fake_victim_lane(struct fake_victim *v)
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

void
fake_victim_open(struct fake_victim *v)
{
    memset(v, 0, sizeof(*v));
    fake_host_open(&v->host, &rdti_transport_tcp);
    v->host.host.tcp_streams = 1;
    v->memory = calloc(1, FAKE_VICTIM_REGION_BYTES + 2 * FAKE_VICTIM_GUARD_BYTES);
    v->read_dst = malloc(FAKE_VICTIM_READ_BYTES);
    CHECK(v->memory != NULL && v->read_dst != NULL);
    v->region = fake_region_private(&v->host, v->memory + FAKE_VICTIM_GUARD_BYTES,
                                    FAKE_VICTIM_REGION_BYTES);
    fake_victim_lane(v);
}

void
fake_victim_pump(struct fake_victim *v)
{
    uint8_t sink[4096];

    for (int i = 0; i < 4; i++) {
        (void)fake_pump(&v->host);
        while (recv(v->fd, sink, sizeof(sink), 0) > 0)
            ;
    }
}

/* Ends the lane and checks that it left nothing behind. */
void
fake_victim_end_lane(struct fake_victim *v)
{
    if (v->link.error_count > 0)
        CHECK(v->link.error.status == RDT_EPROTO || v->link.error.status == RDT_EPEER);
    fake_link_close(&v->link, RDT_ECLOSED);
    fake_link_free(&v->link);
    if (v->fd >= 0)
        CHECK_INT_EQ(close(v->fd), 0);
    CHECK_INT_EQ(v->region->pins, 0);
    for (int i = 0; i < FAKE_VICTIM_GUARD_BYTES; i++) {
        CHECK_INT_EQ(v->memory[i], 0);
        CHECK_INT_EQ(v->memory[FAKE_VICTIM_GUARD_BYTES + FAKE_VICTIM_REGION_BYTES + i], 0);
    }
}

void
fake_victim_close(struct fake_victim *v)
{
    fake_host_close(&v->host);
    free(v->memory);
    free(v->read_dst);
}

/* Operations of the victim's own, so that acknowledgements and answers mean something. */
void
fake_victim_start_ops(struct fake_victim *v)
{
    static const uint8_t src[64];
    const struct rdt_remote_region remote = {.len_bytes = 1 << 20, .index = 9, .generation = 8};

    fake_write(&v->ops[0], src, sizeof(src), &remote, 0, rdti_notify_user(1));
    fake_write(&v->ops[1], src, 8, &remote, 64, RDTI_NOTIFY_NONE);
    fake_read(&v->ops[2], v->read_dst, FAKE_VICTIM_READ_BYTES, &remote, 0);
    for (int i = 0; i < 3; i++)
        fake_must_start(&v->link, &v->ops[i]);
}

void
fake_victim_check_ops(struct fake_victim *v)
{
    for (int i = 0; i < 3; i++)
        CHECK(fake_op_is_done(&v->ops[i]));
}

void
fake_victim_send(struct fake_victim *v, const uint8_t *bytes, size_t len_bytes)
{
    (void)!send(v->fd, bytes, len_bytes, MSG_NOSIGNAL); /* the victim may have closed: as it may */
}

void
fake_script_add(struct fake_script *s, struct rdti_stream_head head, size_t payload_bytes)
{
    CHECK(s->len_bytes + RDTI_STREAM_HEAD_BYTES + payload_bytes <= FAKE_VICTIM_STREAM_CAP);
    rdti_stream_head_encode(&head, s->bytes + s->len_bytes);
    s->len_bytes += RDTI_STREAM_HEAD_BYTES;
    for (size_t i = 0; i < payload_bytes; i++)
        s->bytes[s->len_bytes++] = (uint8_t)(i + 1);
}

void
fake_mutate(uint8_t *bytes, size_t *len_bytes)
{
    const uint64_t count = 1 + fake_random_u64() % 4;

    for (uint64_t i = 0; i < count; i++) {
        const size_t at = fake_random_u64() % *len_bytes;

        switch (fake_random_u64() % 4) {
        case 0:
            bytes[at] ^= (uint8_t)(1 << fake_random_u64() % 8);
            break;
        case 1:
            bytes[at] = (uint8_t)fake_random_u64();
            break;
        case 2: /* lose a byte */
            memmove(bytes + at, bytes + at + 1, *len_bytes - at - 1);
            (*len_bytes)--;
            break;
        default: /* a field at its limit */
            if (at + 4 <= *len_bytes)
                rdti_put_u32(bytes + at, UINT32_MAX - (uint32_t)(fake_random_u64() % 3));
            break;
        }
    }
}
