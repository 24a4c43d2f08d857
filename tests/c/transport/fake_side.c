/* SPDX-License-Identifier: Apache-2.0
 * Links of fake hosts: the side channel, and how lanes are opened and closed through it. */
#include "fake_side.h"

#include <sys/socket.h>

#include "../harness.h"
#include "base/clock.h"
#include "base/error.h"

bool
fake_side_send(int side_fd, const struct fake_frame *frame, const int *fds, uint32_t fd_count)
{
    struct iovec iov = {.iov_base = (void *)(uintptr_t)frame, .iov_len = sizeof(*frame)};
    union {
        struct cmsghdr head;
        char buf[CMSG_SPACE(RDTI_OFFER_MAX_FDS * sizeof(int))];
    } control = {0};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (side_fd < 0) /* a link without a peer */
        return false;
    if (fd_count > 0) {
        msg.msg_control = control.buf;
        msg.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
        memcpy(CMSG_DATA(cmsg), fds, fd_count * sizeof(int));
    }
    const ssize_t sent = sendmsg(side_fd, &msg, MSG_NOSIGNAL);
    CHECK_MSG(sent == (ssize_t)sizeof(*frame) || errno == EPIPE || errno == ECONNRESET,
              "sendmsg: %s", strerror(errno));
    return sent >= 0;
}

/* 1: a frame, 0: none now, -1: the peer's end is gone. Descriptors are the caller's. */
static int
receive(int side_fd, struct fake_frame *frame, int *fds, uint32_t *fd_count)
{
    struct iovec iov = {.iov_base = frame, .iov_len = sizeof(*frame)};
    union {
        struct cmsghdr head;
        char buf[CMSG_SPACE(RDTI_OFFER_MAX_FDS * sizeof(int))];
    } control;
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.buf,
                         .msg_controllen = sizeof(control.buf)};

    *fd_count = 0;
    const ssize_t got = recvmsg(side_fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (got <= 0)
        return -1;
    CHECK_INT_EQ(got, sizeof(*frame));
    CHECK_INT_EQ(msg.msg_flags & MSG_CTRUNC, 0);
    for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg); cmsg != NULL; cmsg = CMSG_NXTHDR(&msg, cmsg)) {
        const size_t bytes = cmsg->cmsg_len - CMSG_LEN(0);
        memcpy(fds, CMSG_DATA(cmsg), bytes);
        *fd_count = (uint32_t)(bytes / sizeof(int));
    }
    return 1;
}

static void
send_segment(struct fake_link *link, uint32_t number)
{
    struct fake_frame frame = {.type = FAKE_FRAME_SEGMENT, .segment = number};
    const struct fake_host *host = link->host;

    if (number >= host->segment_count) { /* refused: no descriptor */
        (void)fake_side_send(link->side_fd, &frame, NULL, 0);
        return;
    }
    frame.len_bytes = host->segments[number].len_bytes;
    (void)fake_side_send(link->side_fd, &frame, &host->segments[number].fd, 1);
}

static void
take_offer(struct fake_link *link, const struct fake_frame *frame, const int *fds,
           uint32_t fd_count)
{
    struct rdti_offer offer = {.len_bytes = frame->offer_bytes, .fd_count = fd_count};

    memcpy(offer.bytes, frame->offer, sizeof(offer.bytes));
    memcpy(offer.fds, fds, fd_count * sizeof(int));
    link->is_offered = true;
    link->connect_status = link->host->transport->connect(link->lane, &offer, &link->connect_error);
}

static void
take_frame(struct fake_link *link, const struct fake_frame *frame, const int *fds,
           uint32_t fd_count)
{
    struct rdt_error err;

    switch (frame->type) {
    case FAKE_FRAME_OFFER:
        take_offer(link, frame, fds, fd_count);
        return;
    case FAKE_FRAME_GET:
        if (!link->is_holding) {
            send_segment(link, frame->segment);
            return;
        }
        CHECK_INT_LT(link->held_count, FAKE_SEGMENTS_MAX);
        link->held[link->held_count++] = frame->segment;
        return;
    case FAKE_FRAME_SEGMENT:
        CHECK_NOT_NULL(link->host->transport->segment_arrived);
        link->host->transport->segment_arrived(link->lane, frame->segment,
                                               fd_count == 1 ? fds[0] : -1, frame->len_bytes);
        return;
    case FAKE_FRAME_WORDS:
        CHECK_NOT_NULL(link->host->transport->words_arrived);
        CHECK_OK(link->host->transport->words_arrived(link->lane, frame->offer, frame->offer_bytes,
                                                      &err),
                 &err);
        return;
    default:
        FAIL("side channel: frame type %u", frame->type);
    }
}

uint32_t
fake_side_serve(struct fake_link *link)
{
    uint32_t work = 0;

    while (link->side_fd >= 0 && !link->is_peer_gone && link->lane != NULL) {
        struct fake_frame frame;
        int fds[RDTI_OFFER_MAX_FDS];
        uint32_t fd_count;
        const int got = receive(link->side_fd, &frame, fds, &fd_count);

        if (got == 0)
            break;
        work++;
        if (got < 0)
            link->is_peer_gone = true;
        else
            take_frame(link, &frame, fds, fd_count);
    }
    return work;
}

struct rdti_lane_args
fake_lane_args(bool is_connector)
{
    struct rdti_lane_args args = {
        .is_connector = is_connector,
        .peer_rank = is_connector ? 1 : 0,
        .is_loopback = true,
        .deadline_ns = fake_deadline_ns(30),
    };

    memset(args.session_id, 0x5a, sizeof(args.session_id));
    memset(args.session_key, 0xa5, sizeof(args.session_key));
    return args;
}

void
fake_side_channel(int out[2])
{
    CHECK_INT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, out), 0);
}

static rdt_status
try_offer(struct fake_host *host, struct fake_link *link, int side_fd,
          const struct rdti_lane_args *args, struct rdti_offer *offer, struct rdt_error *err)
{
    memset(link, 0, sizeof(*link));
    memset(offer, 0, sizeof(*offer));
    link->host = host;
    link->side_fd = side_fd;
    CHECK_INT_EQ(pthread_mutex_lock(&host->engine), 0);
    const rdt_status status =
        host->transport->make_offer(host->state, args, &link->lane, offer, err);
    if (status != RDT_OK) {
        CHECK_NULL(link->lane);
        CHECK_INT_EQ(pthread_mutex_unlock(&host->engine), 0);
        CHECK_INT_EQ(close(side_fd), 0);
        return status;
    }
    CHECK_PTR_EQ(link->lane->transport, host->transport);
    CHECK_UINT_LE(offer->len_bytes, RDTI_OFFER_MAX_BYTES);
    CHECK_UINT_LE(offer->fd_count, RDTI_OFFER_MAX_FDS);
    link->lane->owner = link;
    rdti_list_append(&host->links, &link->node);
    CHECK_INT_EQ(pthread_mutex_unlock(&host->engine), 0);
    return RDT_OK;
}

void
fake_link_offer(struct fake_host *host, struct fake_link *link, int side_fd,
                const struct rdti_lane_args *args, struct rdti_offer *offer)
{
    struct rdt_error err;

    CHECK_OK(try_offer(host, link, side_fd, args, offer, &err), &err);
}

void
fake_link_send_offer(struct fake_link *link, const struct rdti_offer *offer)
{
    struct fake_frame frame = {.type = FAKE_FRAME_OFFER, .offer_bytes = offer->len_bytes};

    memcpy(frame.offer, offer->bytes, sizeof(frame.offer));
    CHECK(fake_side_send(link->side_fd, &frame, offer->fds, offer->fd_count));
}

void
fake_link_open(struct fake_host *host, struct fake_link *link, int side_fd,
               const struct rdti_lane_args *args)
{
    struct rdti_offer offer;

    fake_link_offer(host, link, side_fd, args, &offer);
    fake_link_send_offer(link, &offer);
}

rdt_status
fake_link_try_open(struct fake_host *host, struct fake_link *link, int side_fd,
                   const struct rdti_lane_args *args, struct rdt_error *err)
{
    struct rdti_offer offer;
    const rdt_status status = try_offer(host, link, side_fd, args, &offer, err);

    if (status == RDT_OK)
        fake_link_send_offer(link, &offer);
    return status;
}

void
fake_link_answer(struct fake_link *link)
{
    link->is_holding = false;
    for (uint32_t i = 0; i < link->held_count; i++)
        send_segment(link, link->held[i]);
    link->held_count = 0;
}

void
fake_link_close(struct fake_link *link, rdt_status status)
{
    struct fake_host *host = link->host;
    struct rdt_error err;

    (void)rdti_error_set(&err, status, 0, "closed by the test");
    CHECK_INT_EQ(pthread_mutex_lock(&host->engine), 0);
    host->transport->close_lane(link->lane, &err);
    link->lane = NULL;
    rdti_list_remove(&link->node);
    CHECK_INT_EQ(pthread_mutex_unlock(&host->engine), 0);
    if (link->side_fd >= 0)
        CHECK_INT_EQ(close(link->side_fd), 0);
    link->side_fd = -1;
}

void
fake_link_free(struct fake_link *link)
{
    CHECK_NULL(link->lane);
    free(link->notifications);
    link->notifications = NULL;
}

void
fake_connect(struct fake_host *a, struct fake_link *ab, struct fake_host *b, struct fake_link *ba,
             const struct rdti_lane_args *connector_args)
{
    const struct rdti_lane_args connector =
        connector_args != NULL ? *connector_args : fake_lane_args(true);
    struct rdti_lane_args listener = fake_lane_args(false);
    int side[2];

    memcpy(listener.session_id, connector.session_id, sizeof(listener.session_id));
    memcpy(listener.session_key, connector.session_key, sizeof(listener.session_key));
    fake_side_channel(side);
    fake_link_open(b, ba, side[1], &listener);
    fake_link_open(a, ab, side[0], &connector);
    FAKE_PUMP_UNTIL(a, b, ab->is_offered && ba->is_offered, 10);
    CHECK_OK(ab->connect_status, &ab->connect_error);
    CHECK_OK(ba->connect_status, &ba->connect_error);
    FAKE_PUMP_UNTIL(a, b, ab->ready_count == 1 && ba->ready_count == 1, 10);
}

void
fake_disconnect(struct fake_link *ab, struct fake_link *ba)
{
    fake_link_close(ab, RDT_ECLOSED);
    fake_link_close(ba, RDT_ECLOSED);
    fake_link_free(ab);
    fake_link_free(ba);
}
