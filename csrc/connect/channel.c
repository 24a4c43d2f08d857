/* SPDX-License-Identifier: Apache-2.0
 * Side channels. */
#include "connect/channel.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/system/fork.h"
#include "base/log.h"

/* Descriptors that arrived and were not taken yet. A peer sends four at set-up, then one per
 * segment of its arena. */
#define FDS_MAX 16
/* If a peer does not read this much of its side channel, the channel counts as broken: the queue is
 * bounded. */
#define QUEUE_MAX_BYTES (4u << 20)
#define LAST_WORDS_MAX_BYTES RDTI_DEATH_BYTES

struct outgoing {
    struct rdti_list link;
    size_t sent_bytes;
    size_t len_bytes;
    uint32_t fd_count;
    int fds[RDTI_OFFER_MAX_FDS];
    uint8_t bytes[];
};

struct rdti_channel {
    struct rdti_engine *engine;
    int fd;
    bool is_unix;
    bool is_ended; /* on_end was called or is running */
    bool has_socket_ended;
    bool has_lost_fds;   /* of the last message: this process had no free descriptors */
    bool is_dispatching; /* channel_on_socket() is on the stack */
    bool is_zombie;      /* destroyed meanwhile: channel_on_socket() frees it */
    bool is_deaf;        /* discards frames: retired or lingering */
    bool is_shut_due;    /* shut down the sending half when the queue is empty */
    bool is_retired;     /* has no owner; waits until the peer closes */
    uint64_t retired_ns;
    struct rdti_list link; /* in the list of retired channels */
    struct rdti_channel_events events;
    void *arg;
    _Atomic uint64_t *bytes_count; /* relaxed: a statistic */
    _Atomic uint64_t last_heard_ns;

    pthread_mutex_t tx_lock; /* guards watch to last_words; never held while a caller's code runs */
    struct rdti_watch *watch;
    struct rdti_list queue;
    size_t queued_bytes;
    bool is_waiting; /* EPOLLOUT is armed */
    bool is_broken;  /* a send failed: the receiving side will report it */
    enum rdti_channel_loss loss;
    struct outgoing *last_words; /* reserved for the last frame; NULL after it was queued */

    uint8_t in[RDTI_FRAME_HEAD_BYTES + RDTI_FRAME_PAYLOAD_MAX];
    size_t in_bytes;
    int fds[FDS_MAX];
    uint32_t fd_count;
};

/* Takes tx_lock: a sending thread may be about to request EPOLLOUT. */
static void
channel_drop_watch(struct rdti_channel *channel)
{
    (void)pthread_mutex_lock(&channel->tx_lock);
    struct rdti_watch *watch = channel->watch;
    channel->watch = NULL;
    (void)pthread_mutex_unlock(&channel->tx_lock);
    rdti_engine_unwatch(channel->engine, watch);
}

static void
channel_end(struct rdti_channel *channel, const struct rdt_error *err)
{
    if (channel->is_ended)
        return;
    if (channel->is_retired) {
        rdti_channel_destroy(channel);
        return;
    }
    channel->is_ended = true;
    channel_drop_watch(channel);
    channel->events.on_end(channel->arg, err); /* may destroy the channel */
}

static ssize_t
channel_send_some(struct rdti_channel *channel, const struct outgoing *out)
{
    struct iovec iov = {.iov_base = (void *)(uintptr_t)(out->bytes + out->sent_bytes),
                        .iov_len = out->len_bytes - out->sent_bytes};
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(sizeof(int) * RDTI_OFFER_MAX_FDS)];
    } control = {0};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (out->fd_count > 0 && out->sent_bytes == 0) {
        const size_t fd_bytes = sizeof(int) * out->fd_count;
        msg.msg_control = control.space;
        msg.msg_controllen = CMSG_SPACE(fd_bytes);
        control.head.cmsg_level = SOL_SOCKET;
        control.head.cmsg_type = SCM_RIGHTS;
        control.head.cmsg_len = CMSG_LEN(fd_bytes);
        memcpy(CMSG_DATA(&control.head), out->fds, fd_bytes);
    }
    ssize_t sent;
    do
        sent = sendmsg(channel->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent;
}

/* A temporary shortage of the kernel: no memory for buffers, or too many descriptors in flight. */
static bool
channel_is_shortage(int sys_errno)
{
    return sys_errno == ENOBUFS || sys_errno == ENOMEM || sys_errno == ETOOMANYREFS;
}

/* True: the socket will accept more later, and epoll will report it. */
static bool
channel_on_send_error(struct rdti_channel *channel, int sys_errno)
{
    if (sys_errno == EAGAIN || sys_errno == EWOULDBLOCK)
        return true;
    if (channel_is_shortage(sys_errno))
        return false; /* rdti_channel_flush() retries */
    /* After the shutdown the receiving side reports the end with a reason. */
    channel->is_broken = true;
    (void)shutdown(channel->fd, SHUT_RDWR);
    return false;
}

/* tx_lock held. */
static void
channel_flush_queue(struct rdti_channel *channel)
{
    bool would_block = false;

    while (!channel->is_broken && !rdti_list_is_empty(&channel->queue)) {
        struct outgoing *out = RDTI_CONTAINER(channel->queue.next, struct outgoing, link);
        const ssize_t sent = channel_send_some(channel, out);
        if (sent < 0) {
            would_block = channel_on_send_error(channel, errno);
            break;
        }
        out->sent_bytes += (size_t)sent;
        channel->queued_bytes -= (size_t)sent;
        if (out->sent_bytes == out->len_bytes) {
            rdti_list_remove(&out->link);
            free(out);
        }
    }
    if (would_block != channel->is_waiting && channel->watch != NULL) {
        channel->is_waiting = would_block;
        rdti_engine_rewatch(channel->engine, channel->watch,
                            EPOLLIN | (would_block ? (uint32_t)EPOLLOUT : 0));
    }
}

void
rdti_channel_flush(struct rdti_channel *channel)
{
    (void)pthread_mutex_lock(&channel->tx_lock);
    if (!channel->is_waiting)
        channel_flush_queue(channel);
    (void)pthread_mutex_unlock(&channel->tx_lock);
}

/* tx_lock held. `out` has room for the frame; the queue takes ownership. */
static void
channel_enqueue(struct rdti_channel *channel, struct outgoing *out, uint16_t type,
                const uint8_t *payload, size_t payload_bytes)
{
    out->len_bytes = RDTI_FRAME_HEAD_BYTES + payload_bytes;
    rdti_frame_head_encode(type, (uint32_t)payload_bytes, out->bytes);
    if (payload_bytes > 0)
        memcpy(out->bytes + RDTI_FRAME_HEAD_BYTES, payload, payload_bytes);
    rdti_list_append(&channel->queue, &out->link);
    channel->queued_bytes += out->len_bytes;
    (void)atomic_fetch_add_explicit(channel->bytes_count, out->len_bytes, memory_order_relaxed);
    if (!channel->is_waiting)
        channel_flush_queue(channel);
}

/* tx_lock held. Takes `out`, which is NULL if its allocation failed. False: this frame is the first
 * one lost. */
static bool
channel_enqueue_or_lose(struct rdti_channel *channel, struct outgoing *out, uint16_t type,
                        const uint8_t *payload, size_t payload_bytes)
{
    const size_t len_bytes = RDTI_FRAME_HEAD_BYTES + payload_bytes;

    if (channel->is_broken || channel->loss != RDTI_CHANNEL_LOSS_NONE) {
        free(out);
        return true;
    }
    if (out != NULL && channel->queued_bytes + len_bytes <= QUEUE_MAX_BYTES) {
        channel_enqueue(channel, out, type, payload, payload_bytes);
        return true;
    }
    channel->loss = out == NULL ? RDTI_CHANNEL_LOSS_MEMORY : RDTI_CHANNEL_LOSS_UNREAD;
    free(out);
    return false;
}

void
rdti_channel_send(struct rdti_channel *channel, uint16_t type, const uint8_t *payload,
                  size_t payload_bytes, const int *fds, uint32_t fd_count)
{
    struct outgoing *out = malloc(sizeof(*out) + RDTI_FRAME_HEAD_BYTES + payload_bytes);

    if (out != NULL) {
        *out = (struct outgoing){.fd_count = fd_count};
        if (fd_count > 0)
            memcpy(out->fds, fds, sizeof(int) * fd_count);
    }
    (void)pthread_mutex_lock(&channel->tx_lock);
    const size_t queued_bytes = channel->queued_bytes;
    const bool is_kept = channel_enqueue_or_lose(channel, out, type, payload, payload_bytes);
    (void)pthread_mutex_unlock(&channel->tx_lock);
    if (!is_kept)
        rdti_log(RDT_LOG_ERROR, "side channel: frame %u could not be queued (%zu bytes wait)",
                 (unsigned)type, queued_bytes);
}

void
rdti_channel_send_last(struct rdti_channel *channel, uint16_t type, const uint8_t *payload,
                       size_t payload_bytes)
{
    assert(payload_bytes <= LAST_WORDS_MAX_BYTES);
    (void)pthread_mutex_lock(&channel->tx_lock);
    struct outgoing *out = channel->last_words;
    channel->last_words = NULL;
    assert(out != NULL); /* the last frame is sent once */
    if (out != NULL && !channel->is_broken)
        channel_enqueue(channel, out, type, payload, payload_bytes);
    else
        free(out);
    (void)pthread_mutex_unlock(&channel->tx_lock);
}

static void
channel_keep_fds(struct rdti_channel *channel, struct msghdr *msg)
{
    for (struct cmsghdr *head = CMSG_FIRSTHDR(msg); head != NULL; head = CMSG_NXTHDR(msg, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
            continue;
        const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof(int));
            if (channel->fd_count < FDS_MAX)
                channel->fds[channel->fd_count++] = fd;
            else
                (void)close(fd); /* the peer exceeds the protocol's number of descriptors */
        }
    }
}

static ssize_t
channel_receive_some(struct rdti_channel *channel)
{
    struct iovec iov = {.iov_base = channel->in + channel->in_bytes,
                        .iov_len = sizeof(channel->in) - channel->in_bytes};
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(sizeof(int) * FDS_MAX)];
    } control;
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (channel->is_unix) {
        msg.msg_control = control.space;
        msg.msg_controllen = sizeof(control.space);
    }
    ssize_t got;
    do
        got = recvmsg(channel->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got >= 0 && channel->is_unix)
        channel_keep_fds(channel, &msg);
    /* MSG_CTRUNC with room left: this process had no free descriptor numbers. */
    channel->has_lost_fds =
        got >= 0 && (msg.msg_flags & MSG_CTRUNC) != 0 && channel->fd_count < FDS_MAX;
    return got;
}

/* Delivers every complete frame. False: the channel has ended (and may be freed). */
static bool
channel_dispatch_frames(struct rdti_channel *channel)
{
    size_t off = 0;

    if (channel->is_deaf) {
        channel->in_bytes = 0;
        return true;
    }

    while (channel->in_bytes - off >= RDTI_FRAME_HEAD_BYTES) {
        struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
        uint16_t type;
        uint32_t payload_bytes;
        rdt_status status = rdti_frame_head_decode(channel->in + off, &type, &payload_bytes, &err);
        if (status == RDT_OK && channel->in_bytes - off - RDTI_FRAME_HEAD_BYTES < payload_bytes)
            break;
        if (status == RDT_OK)
            status = channel->events.on_frame(channel->arg, type,
                                              channel->in + off + RDTI_FRAME_HEAD_BYTES,
                                              payload_bytes, &err);
        if (status != RDT_OK) {
            channel_end(channel, &err);
            return false;
        }
        if (channel->is_ended)
            return false;
        off += RDTI_FRAME_HEAD_BYTES + payload_bytes;
    }
    memmove(channel->in, channel->in + off, channel->in_bytes - off);
    channel->in_bytes -= off;
    return true;
}

static void
channel_free(struct rdti_channel *channel)
{
    struct rdti_list *node;

    while ((node = rdti_list_take_first(&channel->queue)) != NULL)
        free(RDTI_CONTAINER(node, struct outgoing, link));
    free(channel->last_words);
    for (uint32_t i = 0; i < channel->fd_count; i++)
        (void)close(channel->fds[i]);
    rdti_fork_close_remove(channel->fd);
    (void)close(channel->fd);
    (void)pthread_mutex_destroy(&channel->tx_lock);
    free(channel);
}

static void channel_shut_if_flushed(struct rdti_channel *channel);

static void
channel_handle_socket(struct rdti_channel *channel, uint32_t epoll_events)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};

    if ((epoll_events & EPOLLOUT) != 0) {
        (void)pthread_mutex_lock(&channel->tx_lock);
        channel_flush_queue(channel);
        (void)pthread_mutex_unlock(&channel->tx_lock);
        channel_shut_if_flushed(channel);
    }
    if ((epoll_events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0)
        return;
    for (;;) {
        const ssize_t got = channel_receive_some(channel);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (got == 0) {
            channel->has_socket_ended = true;
            (void)rdti_error_set(&err, RDT_EPEER, 0, "its side channel closed without a goodbye");
            channel_end(channel, &err);
            return;
        }
        if (got < 0) {
            channel->has_socket_ended = true;
            (void)rdti_error_set(&err, RDT_EPEER, errno, "its side channel broke");
            channel_end(channel, &err);
            return;
        }
        if (channel->has_lost_fds) {
            (void)rdti_error_set(&err, RDT_EDEVICE, EMFILE, "descriptors of its memory are lost");
            channel_end(channel, &err);
            return;
        }
        channel->in_bytes += (size_t)got;
        /* relaxed: a time stamp for the heartbeat */
        atomic_store_explicit(&channel->last_heard_ns, rdti_now_ns(), memory_order_relaxed);
        if (!channel_dispatch_frames(channel))
            return;
    }
}

static void
channel_on_socket(void *arg, uint32_t epoll_events)
{
    struct rdti_channel *channel = arg;

    channel->is_dispatching = true;
    channel_handle_socket(channel, epoll_events);
    channel->is_dispatching = false;
    if (channel->is_zombie)
        channel_free(channel);
}

void
rdti_channel_drain(struct rdti_channel *channel)
{
    if (!channel->is_dispatching && !channel->is_ended)
        channel_on_socket(channel, EPOLLIN);
}

rdt_status
rdti_channel_create(struct rdti_engine *engine, int fd, bool is_unix,
                    const struct rdti_channel_events *events, void *arg,
                    _Atomic uint64_t *bytes_count, struct rdti_channel **out, struct rdt_error *err)
{
    struct rdti_channel *channel = calloc(1, sizeof(*channel));
    struct outgoing *last_words =
        calloc(1, sizeof(*last_words) + RDTI_FRAME_HEAD_BYTES + LAST_WORDS_MAX_BYTES);

    if (channel == NULL || last_words == NULL) {
        free(channel);
        free(last_words);
        return rdti_error_set(err, RDT_ENOMEM, 0, "a side channel of %zu bytes", sizeof(*channel));
    }
    channel->last_words = last_words;
    channel->engine = engine;
    channel->fd = fd;
    channel->is_unix = is_unix;
    channel->events = *events;
    channel->arg = arg;
    channel->bytes_count = bytes_count;
    rdti_list_init(&channel->queue);
    rdti_list_init(&channel->link);
    atomic_store_explicit(&channel->last_heard_ns, rdti_now_ns(), memory_order_relaxed);
    const rdt_status status =
        rdti_engine_watch(engine, fd, EPOLLIN, channel_on_socket, channel, &channel->watch, err);
    if (status != RDT_OK) {
        free(last_words);
        free(channel);
        return status;
    }
    (void)pthread_mutex_init(&channel->tx_lock, NULL);
    *out = channel;
    return RDT_OK;
}

uint32_t
rdti_channel_take_fds(struct rdti_channel *channel, int *out, uint32_t cap)
{
    const uint32_t count = channel->fd_count < cap ? channel->fd_count : cap;

    memcpy(out, channel->fds, sizeof(int) * count);
    channel->fd_count -= count;
    memmove(channel->fds, channel->fds + count, sizeof(int) * channel->fd_count);
    return count;
}

enum rdti_channel_loss
rdti_channel_get_loss(struct rdti_channel *channel)
{
    (void)pthread_mutex_lock(&channel->tx_lock);
    const enum rdti_channel_loss loss = channel->loss;
    (void)pthread_mutex_unlock(&channel->tx_lock);
    return loss;
}

uint64_t
rdti_channel_last_heard_ns(const struct rdti_channel *channel)
{
    return atomic_load_explicit(&channel->last_heard_ns, memory_order_relaxed);
}

bool
rdti_channel_is_flushed(struct rdti_channel *channel)
{
    (void)pthread_mutex_lock(&channel->tx_lock);
    const bool is_flushed = channel->is_broken || rdti_list_is_empty(&channel->queue);
    (void)pthread_mutex_unlock(&channel->tx_lock);
    return is_flushed;
}

/* Shuts down the sending half after the last frame was sent. */
static void
channel_shut_if_flushed(struct rdti_channel *channel)
{
    if (channel->is_shut_due && rdti_channel_is_flushed(channel))
        (void)shutdown(channel->fd, SHUT_WR); /* ENOTCONN: the peer was faster */
}

void
rdti_channel_retire(struct rdti_channel *channel, struct rdti_list *retired)
{
    if (channel == NULL)
        return;
    if (channel->is_ended) {
        rdti_channel_destroy(channel);
        return;
    }
    channel->is_deaf = true;
    channel->is_retired = true;
    channel->retired_ns = rdti_now_ns();
    rdti_list_append(retired, &channel->link);
    rdti_channel_shut(channel);
}

void
rdti_channel_shut(struct rdti_channel *channel)
{
    channel->is_shut_due = true;
    channel_shut_if_flushed(channel);
}

bool
rdti_channel_linger(struct rdti_channel *channel)
{
    struct rdt_error err;

    if (channel->is_ended && channel->has_socket_ended)
        return false;
    if (channel->is_ended && /* because of a frame: the socket itself is still open */
        rdti_engine_watch(channel->engine, channel->fd, EPOLLIN, channel_on_socket, channel,
                          &channel->watch, &err) != RDT_OK)
        return false;
    channel->is_ended = false;
    channel->is_deaf = true;
    channel->in_bytes = 0;
    return true;
}

void
rdti_channels_expire(struct rdti_list *retired, uint64_t now_ns)
{
    for (struct rdti_list *node = retired->next, *next; node != retired; node = next) {
        struct rdti_channel *channel = RDTI_CONTAINER(node, struct rdti_channel, link);
        next = node->next;
        if (now_ns == UINT64_MAX || now_ns - channel->retired_ns > RDTI_RETIRE_NS)
            rdti_channel_destroy(channel);
    }
}

void
rdti_channel_destroy(struct rdti_channel *channel)
{
    if (channel == NULL)
        return;
    rdti_list_remove(&channel->link);
    channel_drop_watch(channel);
    channel->is_ended = true;
    channel->is_zombie = channel->is_dispatching;
    if (!channel->is_zombie)
        channel_free(channel);
}
