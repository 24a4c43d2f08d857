/* SPDX-License-Identifier: Apache-2.0
 * See liar.h. */
#include "support/liar.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "connect/netaddr.h"
#include "endpoint/endpoint_impl.h"
#include "message/mailbox.h"
#include "wire/endpoint/message.h"
#include "wire/notify.h"
#include "wire/endpoint/stream.h"

#define SECRET ((const uint8_t *)"secret")
#define SECRET_BYTES 6
#define JOB "job"
/* What is honest is answered in microseconds; a loaded machine takes its time. */
#define PATIENCE_NS UINT64_C(10000000000)

static int
knock(const struct rdti_address *address, bool is_unix)
{
    struct sockaddr_storage addr = {0};
    socklen_t addr_bytes;

    if (is_unix) {
        struct sockaddr_un *un = (struct sockaddr_un *)(void *)&addr;
        const size_t name_bytes = strlen(address->unix_name);
        un->sun_family = AF_UNIX;
        memcpy(un->sun_path + 1, address->unix_name, name_bytes);
        addr_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + name_bytes);
    } else {
        addr_bytes = rdti_sockaddr_of_ip(&address->addrs[0], &addr);
    }
    const int fd = socket(addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_INT_GE(fd, 0);
    /* No TIME_WAIT: a minute of fuzzing would use up the ports. */
    const struct linger reset = {.l_onoff = 1, .l_linger = 0};
    const int one = 1;
    CHECK_INT_EQ(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
    if (!is_unix)
        CHECK_INT_EQ(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)), 0);
    int sys_errno = EINTR; /* libFuzzer has a timer; an interrupted connect() goes on by itself */
    while (sys_errno == EINTR || sys_errno == EALREADY)
        sys_errno = connect(fd, (struct sockaddr *)&addr, addr_bytes) == 0 ? 0 : errno;
    CHECK_MSG(sys_errno == 0 || sys_errno == EISCONN, "connect: %s", strerror(sys_errno));
    return fd;
}

/* Exactly len_bytes, which an honest peer is owed. */
static void
hear(struct liar *liar, int fd, uint8_t *bytes, size_t len_bytes, const char *what)
{
    const uint64_t deadline_ns = test_now_ns() + PATIENCE_NS;
    size_t have = 0;

    while (have < len_bytes) {
        CHECK_OK(rdt_context_progress(liar->ctx), &(struct rdt_error){0});
        const ssize_t got = recv(fd, bytes + have, len_bytes - have, MSG_DONTWAIT);
        CHECK_MSG(got != 0 && (got > 0 || errno == EAGAIN), "%s: the connection ended", what);
        CHECK_MSG(test_now_ns() < deadline_ns, "%s: no answer", what);
        if (got > 0) {
            have += (size_t)got;
            continue;
        }
        struct pollfd pollfd = {.fd = fd, .events = POLLIN};
        (void)poll(&pollfd, 1, 1);
    }
}

void
liar_begin(struct liar *liar, rdt_context *ctx, bool is_unix, uint64_t number)
{
    struct rdt_error err = {0};
    uint8_t bytes[RDT_ADDRESS_MAX_BYTES];
    size_t len_bytes = 0;

    *liar = (struct liar){.ctx = ctx, .data_fd = -1};
    CHECK_OK(rdt_context_address(ctx, bytes, sizeof(bytes), &len_bytes, &err), &err);
    CHECK_OK(rdti_address_decode(bytes, len_bytes, &liar->address, &err), &err);
    memset(liar->uuid, 0xab, sizeof(liar->uuid));
    rdti_put_u64(liar->uuid, number);
    liar->fd = knock(&liar->address, is_unix);
}

static void
authenticate(struct liar *liar)
{
    struct rdti_hello hello = {.epoch = 1, .rank = 5, .transports = 6};
    uint8_t hello_bytes[RDTI_HELLO_BYTES];
    uint8_t challenge[RDTI_CHALLENGE_BYTES];
    uint8_t auth_bytes[RDTI_AUTH_BYTES];
    struct rdti_auth auth;

    if (liar->address.verify != RDT_VERIFY_OFF)
        hello.transports |= RDTI_TRANSPORTS_VERIFY;
    (void)snprintf(hello.library_version, sizeof(hello.library_version), "%s", rdt_version());
    (void)snprintf(hello.job_id, sizeof(hello.job_id), JOB);
    memcpy(hello.connector, liar->uuid, sizeof(hello.connector));
    memcpy(hello.listener, liar->address.uuid, sizeof(hello.listener));
    memset(hello.nonce, 0x11, sizeof(hello.nonce));
    rdti_hello_encode(&hello, hello_bytes);
    liar_say(liar->fd, hello_bytes, sizeof(hello_bytes));
    hear(liar, liar->fd, challenge, sizeof(challenge), "CHALLENGE");
    rdti_handshake_mac(RDTI_MAC_CONNECTOR, SECRET, SECRET_BYTES, hello_bytes, challenge, auth.mac);
    rdti_handshake_mac(RDTI_MAC_SESSION, SECRET, SECRET_BYTES, hello_bytes, challenge,
                       liar->session_key);
    rdti_auth_encode(&auth, auth_bytes);
    liar_say(liar->fd, auth_bytes, sizeof(auth_bytes));
}

/* The next frame of that type; others are passed over. */
static size_t
hear_frame(struct liar *liar, uint16_t wanted, uint8_t *payload)
{
    uint8_t head[RDTI_FRAME_HEAD_BYTES];
    struct rdt_error err = {0};
    uint16_t type = 0;
    uint32_t len_bytes = 0;

    while (type != wanted) {
        hear(liar, liar->fd, head, sizeof(head), "a frame's head");
        CHECK_OK(rdti_frame_head_decode(head, &type, &len_bytes, &err), &err);
        hear(liar, liar->fd, payload, len_bytes, "a frame");
    }
    return len_bytes;
}

static void
join(struct liar *liar)
{
    struct rdti_path answer = {.transport = RDT_TRANSPORT_TCP,
                               .ring = {.len_bytes = RDTI_RING_SMALL_BYTES,
                                        .segment = RDT_SEGMENT_NONE,
                                        .index = 1,
                                        .generation = 1},
                               .offer_bytes = RDTI_STREAM_OFFER_BYTES};
    struct rdti_join join = {.nonce = {3}};
    uint8_t payload[RDTI_FRAME_PAYLOAD_MAX];
    uint8_t bytes[RDTI_JOIN_BYTES];
    uint8_t ready[RDTI_STREAM_HEAD_BYTES];
    struct rdt_error err = {0};

    const size_t len_bytes = hear_frame(liar, RDTI_FRAME_PATH, payload);
    CHECK_OK(rdti_path_decode(payload, len_bytes, &liar->path, &err), &err);
    CHECK_UINT_EQ(liar->path.transport, RDT_TRANSPORT_TCP);
    memcpy(answer.session_id, liar->path.session_id, sizeof(answer.session_id));
    memcpy(answer.ring.owner, liar->uuid, sizeof(answer.ring.owner));
    memset(answer.nonce, 0x77, sizeof(answer.nonce));
    rdti_stream_offer_encode(1, answer.offer);
    liar_frame(liar, RDTI_FRAME_PATH, payload, rdti_path_encode(&answer, payload), NULL, 0);

    memcpy(join.session_id, liar->path.session_id, sizeof(join.session_id));
    rdti_join_encode(&join, bytes);
    rdti_join_mac(liar->session_key, bytes, join.mac);
    rdti_join_encode(&join, bytes);
    liar->data_fd = knock(&liar->address, false);
    liar_say(liar->data_fd, bytes, sizeof(bytes));
    hear(liar, liar->data_fd, ready, sizeof(ready), "the stream's READY");
}

static void
prove(struct liar *liar)
{
    uint8_t payload[RDTI_FRAME_PAYLOAD_MAX];
    uint8_t nonce[RDTI_PROBE_NONCE_BYTES];

    memset(nonce, 0x77, sizeof(nonce));
    liar_write_ring(liar, RDTI_NOTIFY_PROBE, nonce, sizeof(nonce));
    liar->ring_at = 0;
    (void)hear_frame(liar, RDTI_FRAME_READY, payload);
    liar_frame(liar, RDTI_FRAME_READY, NULL, 0, NULL, 0);
}

void
liar_reach(struct liar *liar, enum liar_stage stage)
{
    if (stage >= LIAR_AUTHENTICATED)
        authenticate(liar);
    if (stage >= LIAR_JOINED)
        join(liar);
    if (stage >= LIAR_READY)
        prove(liar);
}

void
liar_say(int fd, const uint8_t *bytes, size_t len_bytes)
{
    if (fd >= 0) /* the other side may have had enough in the middle of it */
        (void)!send(fd, bytes, len_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void
liar_frame(struct liar *liar, uint16_t type, const uint8_t *payload, size_t len_bytes,
           const int *fds, uint32_t fd_count)
{
    uint8_t bytes[RDTI_FRAME_HEAD_BYTES + RDTI_FRAME_PAYLOAD_MAX];
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(8 * sizeof(int))];
    } control = {0};
    struct iovec iov = {.iov_base = bytes, .iov_len = RDTI_FRAME_HEAD_BYTES + len_bytes};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};

    CHECK(len_bytes <= RDTI_FRAME_PAYLOAD_MAX && fd_count <= 8);
    rdti_frame_head_encode(type, (uint32_t)len_bytes, bytes);
    if (len_bytes > 0)
        memcpy(bytes + RDTI_FRAME_HEAD_BYTES, payload, len_bytes);
    if (fd_count > 0) {
        message.msg_control = control.space;
        message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        control.head.cmsg_level = SOL_SOCKET;
        control.head.cmsg_type = SCM_RIGHTS;
        control.head.cmsg_len = CMSG_LEN(fd_count * sizeof(int));
        memcpy(CMSG_DATA(&control.head), fds, fd_count * sizeof(int));
    }
    (void)!sendmsg(liar->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void
liar_write_ring(struct liar *liar, uint32_t notification, const uint8_t *bytes, size_t len_bytes)
{
    uint8_t head[RDTI_STREAM_HEAD_BYTES];
    const struct rdti_stream_head write = {.op = RDTI_STREAM_WRITE,
                                           .flags = RDTI_STREAM_NOTIFY,
                                           .value = notification,
                                           .index = liar->path.ring.index,
                                           .generation = liar->path.ring.generation,
                                           .len_bytes = (uint32_t)len_bytes,
                                           .off_bytes = liar->ring_at};

    rdti_stream_head_encode(&write, head);
    liar_say(liar->data_fd, head, sizeof(head));
    liar_say(liar->data_fd, bytes, len_bytes);
    liar->ring_at +=
        (uint32_t)(len_bytes + RDTI_MESSAGE_ALIGN - 1) / RDTI_MESSAGE_ALIGN * RDTI_MESSAGE_ALIGN;
    if (liar->ring_at >= RDTI_RING_SMALL_BYTES)
        liar->ring_at = 0;
}

void
liar_pump(struct liar *liar)
{
    uint8_t sink[4096];

    for (int i = 0; i < 4; i++) {
        CHECK_OK(rdt_context_progress(liar->ctx), &(struct rdt_error){0});
        while (recv(liar->fd, sink, sizeof(sink), MSG_DONTWAIT) > 0)
            ;
        while (liar->data_fd >= 0 && recv(liar->data_fd, sink, sizeof(sink), MSG_DONTWAIT) > 0)
            ;
    }
}

/* Nothing is held for the peer but, where it gave its path up in time, a place to come back to
 * until the deadline of set-up. */
static bool
is_forgotten(const struct liar *liar)
{
    bool is_held = false;

    rdti_engine_enter(liar->ctx->engine);
    for (struct rdti_list *node = liar->ctx->endpoints.next; node != &liar->ctx->endpoints;
         node = node->next) {
        const rdt_endpoint *ep = RDTI_CONTAINER(node, const rdt_endpoint, link);
        const bool may_come_back = rdti_endpoint_get_state(ep) == RDTI_EP_CONNECTING &&
                                   ep->channel == NULL && ep->lane == NULL;
        is_held = is_held || (memcmp(ep->uuid, liar->uuid, RDT_UUID_BYTES) == 0 && !may_come_back);
    }
    rdti_engine_leave(liar->ctx->engine);
    return !is_held;
}

void
liar_end(struct liar *liar)
{
    const uint64_t deadline_ns = test_now_ns() + PATIENCE_NS;

    liar_pump(liar);
    CHECK_INT_EQ(close(liar->fd), 0); /* first: a lane's end alone is waited out */
    if (liar->data_fd >= 0)
        CHECK_INT_EQ(close(liar->data_fd), 0);
    while (!is_forgotten(liar)) {
        CHECK_OK(rdt_context_progress(liar->ctx), &(struct rdt_error){0});
        CHECK_MSG(test_now_ns() < deadline_ns, "what a peer that is gone held stays");
        (void)sched_yield(); /* the context's own thread may have it to do */
    }
}
