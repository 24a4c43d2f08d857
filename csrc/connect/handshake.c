/* SPDX-License-Identifier: Apache-2.0
 * Handshakes. */
#include "connect/handshake.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/system/fork.h"
#include "base/log.h"
#include "base/system/sockaddr.h"
#include "base/text.h"
#include "connect/listener.h"

/* An unknown process that connects and sends nothing occupies a place for this long. */
#define LISTENER_DEADLINE_NS UINT64_C(5000000000)

enum handshake_state { CONNECTING, WAIT_CHALLENGE, WAIT_OPENING, WAIT_AUTH };

struct rdti_handshake {
    struct rdti_list link; /* in the context's table */
    rdt_context *ctx;
    const struct rdti_handshake_events *events;
    void *arg;
    const struct rdti_job *job;
    struct rdti_watch *watch;
    enum handshake_state state;
    uint64_t deadline_ns;
    char place[96];
    struct rdti_authenticated result;
    uint8_t hello_bytes[RDTI_HELLO_BYTES];
    uint8_t challenge_bytes[RDTI_CHALLENGE_BYTES];
    uint8_t in[RDTI_OPENING_MAX_BYTES]; /* holds another version's message, too, to report it */
    size_t in_bytes;
};

/* Unlinks and frees; closes the socket unless its ownership has moved (fd -1). */
static void
handshake_dispose(struct rdti_handshake *hs)
{
    rdti_engine_unwatch(hs->ctx->engine, hs->watch);
    if (hs->result.fd >= 0) {
        rdti_fork_close_remove(hs->result.fd);
        (void)close(hs->result.fd);
    }
    rdti_list_remove(&hs->link);
    free(hs);
}

void
rdti_handshake_cancel(struct rdti_handshake *hs)
{
    if (hs != NULL)
        handshake_dispose(hs);
}

static void
handshake_log_refusal(rdt_context *ctx, const struct rdt_error *err)
{
    enum rdti_refusal kind;

    switch (err->status) {
    case RDT_EPROTO:
        kind = RDTI_REFUSAL_GARBAGE;
        break;
    case RDT_EVERSION:
        kind = RDTI_REFUSAL_VERSION;
        break;
    case RDT_EAUTH:
        kind = RDTI_REFUSAL_AUTH;
        break;
    case RDT_EMISMATCH:
        kind = RDTI_REFUSAL_MISMATCH;
        break;
    default: /* crossing connections and peers that give up: normal during set-up */
        rdti_log(RDT_LOG_DEBUG, "refused a connection: %s", err->message);
        return;
    }
    rdti_refusal_log(&ctx->refusals, kind, "refused a connection: %s", err->message);
}

static void
handshake_fail(struct rdti_handshake *hs, const struct rdt_error *err)
{
    rdt_context *ctx = hs->ctx;
    void *arg = hs->arg;
    const struct rdti_handshake_events *events = hs->events;
    const bool is_connector = hs->result.is_connector;

    if (!is_connector)
        handshake_log_refusal(ctx, err);
    handshake_dispose(hs);
    if (is_connector)
        events->failed(ctx, arg, err);
}

static void
handshake_finish(struct rdti_handshake *hs)
{
    const struct rdti_authenticated result = hs->result;
    rdt_context *ctx = hs->ctx;
    void *arg = hs->arg;
    const struct rdti_handshake_events *events = hs->events;

    hs->result.fd = -1;
    rdti_engine_unwatch(ctx->engine, hs->watch);
    hs->watch = NULL;
    handshake_dispose(hs);
    events->done(ctx, arg, &result);
}

/* Messages are a few hundred bytes on a new socket: a socket that does not accept one whole is
 * broken. */
static rdt_status
handshake_send_whole(const struct rdti_handshake *hs, const uint8_t *bytes, size_t len_bytes,
                     struct rdt_error *err)
{
    ssize_t sent;

    do
        sent = send(hs->result.fd, bytes, len_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent != (ssize_t)len_bytes)
        return rdti_error_set(err, RDT_EPEER, sent < 0 ? errno : 0,
                              "%s: sending %zu bytes of the handshake%s", hs->place, len_bytes,
                              sent < 0 ? "" : ": the socket took a part");
    return RDT_OK;
}

static void
handshake_reject(struct rdti_handshake *hs, const struct rdt_error *why)
{
    struct rdti_reject reject = {.status = why->status};
    uint8_t bytes[RDTI_REJECT_BYTES];

    rdti_text_copy(reject.text, sizeof(reject.text), why->message);
    rdti_reject_encode(&reject, bytes);
    (void)handshake_send_whole(hs, bytes, sizeof(bytes),
                               NULL); /* the refusal does not depend on its delivery */
    handshake_fail(hs, why);
}

/* ---- Listener ---------------------------------------------------------------------------- */

static rdt_status
handshake_answer_hello(struct rdti_handshake *hs, struct rdt_error *err)
{
    struct rdti_authenticated *result = &hs->result;
    struct rdti_job *job = NULL;
    rdt_status status = rdti_hello_decode(hs->in, hs->in_bytes, &result->hello, err);

    if (status == RDT_OK)
        status = hs->events->admit(hs->ctx, &result->hello, result->is_unix, &job,
                                   &result->challenge, err);
    if (status == RDT_OK)
        status = rdti_random_bytes(result->challenge.nonce, RDTI_NONCE_BYTES, err);
    if (status != RDT_OK)
        return status;
    hs->job = job;
    memcpy(hs->hello_bytes, hs->in, RDTI_HELLO_BYTES);
    rdti_challenge_encode(&result->challenge, hs->challenge_bytes);
    rdti_handshake_mac(RDTI_MAC_LISTENER, job->secret, job->secret_bytes, hs->hello_bytes,
                       hs->challenge_bytes, result->challenge.mac);
    rdti_challenge_encode(&result->challenge, hs->challenge_bytes);
    status = handshake_send_whole(hs, hs->challenge_bytes, RDTI_CHALLENGE_BYTES, err);
    if (status != RDT_OK)
        return status;
    hs->state = WAIT_AUTH;
    return RDT_OK;
}

static rdt_status
handshake_check_auth(struct rdti_handshake *hs, struct rdt_error *err)
{
    uint8_t want[RDTI_SHA256_BYTES];
    struct rdti_auth auth;
    const rdt_status status = rdti_auth_decode(hs->in, hs->in_bytes, &auth, err);

    if (status != RDT_OK)
        return status;
    rdti_handshake_mac(RDTI_MAC_CONNECTOR, hs->job->secret, hs->job->secret_bytes, hs->hello_bytes,
                       hs->challenge_bytes, want);
    if (!rdti_equal_constant_time(want, auth.mac, sizeof(want)))
        return rdti_error_set_rank(err, RDT_EAUTH, hs->result.hello.rank,
                                   "%s says it is rank %d of job '%s' but does not know the job's "
                                   "secret: all ranks need the "
                                   "same RDMATENSOR_SECRET",
                                   hs->place, (int)hs->result.hello.rank, hs->job->job_id);
    rdti_handshake_mac(RDTI_MAC_SESSION, hs->job->secret, hs->job->secret_bytes, hs->hello_bytes,
                       hs->challenge_bytes, hs->result.session_key);
    return RDT_OK;
}

/* ---- Connector --------------------------------------------------------------------------- */

static rdt_status
handshake_rejection(const struct rdti_handshake *hs, struct rdt_error *err)
{
    struct rdti_reject reject;
    const rdt_status status = rdti_reject_decode(hs->in, hs->in_bytes, &reject, err);

    if (status != RDT_OK)
        return status;
    return rdti_error_set(err,
                          reject.status < 0 && reject.status >= RDT_ECORRUPT
                              ? (rdt_status)reject.status
                              : RDT_EPEER,
                          0, "%s refused us: %s", hs->place, reject.text);
}

static rdt_status
handshake_answer_challenge(struct rdti_handshake *hs, struct rdt_error *err)
{
    struct rdti_authenticated *result = &hs->result;
    uint8_t want[RDTI_SHA256_BYTES];
    uint8_t auth_bytes[RDTI_AUTH_BYTES];
    struct rdti_auth auth;
    rdt_status status = rdti_challenge_decode(hs->in, hs->in_bytes, &result->challenge, err);

    if (status != RDT_OK)
        return status;
    if (memcmp(result->challenge.listener, result->hello.listener, RDT_UUID_BYTES) != 0)
        return rdti_error_set(err, RDT_EPEER, 0, "%s: another process listens there now",
                              hs->place);
    memcpy(hs->challenge_bytes, hs->in, RDTI_CHALLENGE_BYTES);
    rdti_handshake_mac(RDTI_MAC_LISTENER, hs->job->secret, hs->job->secret_bytes, hs->hello_bytes,
                       hs->challenge_bytes, want);
    if (!rdti_equal_constant_time(want, result->challenge.mac, sizeof(want)))
        return rdti_error_set(err, RDT_EAUTH, 0,
                              "%s does not know the secret of job '%s': all ranks need the same "
                              "RDMATENSOR_SECRET",
                              hs->place, hs->job->job_id);
    status = hs->events->confirm(hs->arg, &result->challenge, err);
    if (status != RDT_OK)
        return status;
    rdti_handshake_mac(RDTI_MAC_CONNECTOR, hs->job->secret, hs->job->secret_bytes, hs->hello_bytes,
                       hs->challenge_bytes, auth.mac);
    rdti_handshake_mac(RDTI_MAC_SESSION, hs->job->secret, hs->job->secret_bytes, hs->hello_bytes,
                       hs->challenge_bytes, result->session_key);
    rdti_auth_encode(&auth, auth_bytes);
    return handshake_send_whole(hs, auth_bytes, sizeof(auth_bytes), err);
}

static rdt_status
handshake_send_hello(struct rdti_handshake *hs, struct rdt_error *err)
{
    int sys_errno = 0;
    socklen_t len = sizeof(sys_errno);

    if (getsockopt(hs->result.fd, SOL_SOCKET, SO_ERROR, &sys_errno, &len) != 0)
        sys_errno = errno;
    if (sys_errno != 0)
        return rdti_error_set(err, RDT_EPEER, sys_errno, "%s: connect", hs->place);
    rdt_status status = rdti_random_bytes(hs->result.hello.nonce, RDTI_NONCE_BYTES, err);
    if (status != RDT_OK)
        return status;
    rdti_hello_encode(&hs->result.hello, hs->hello_bytes);
    status = handshake_send_whole(hs, hs->hello_bytes, RDTI_HELLO_BYTES, err);
    if (status != RDT_OK)
        return status;
    hs->state = WAIT_CHALLENGE;
    rdti_engine_rewatch(hs->ctx->engine, hs->watch, EPOLLIN);
    return RDT_OK;
}

/* ---- Both roles -------------------------------------------------------------------------- */

/* The number of bytes to read: of the head until it is complete, then of the whole message. */
static rdt_status
handshake_expected_bytes(const struct rdti_handshake *hs, size_t *out, bool *is_join_out,
                         struct rdt_error *err)
{
    uint16_t version;
    uint16_t total = 0;
    enum rdti_opening opening;

    *is_join_out = false;
    *out = RDTI_OPENING_HEAD_BYTES;
    if (hs->in_bytes < RDTI_OPENING_HEAD_BYTES)
        return RDT_OK;
    switch (hs->state) {
    case WAIT_OPENING:
        opening = rdti_opening_parse(hs->in, &version, &total);
        if (opening == RDTI_OPENING_GARBAGE)
            return rdti_error_set(err, RDT_EPROTO, 0, "%s sent something that is not a handshake",
                                  hs->place);
        *is_join_out = opening == RDTI_OPENING_JOIN;
        *out = total;
        break;
    case WAIT_AUTH:
        *out = RDTI_AUTH_BYTES;
        break;
    default:
        if (rdti_answer_parse(hs->in, &total) == RDTI_ANSWER_GARBAGE)
            return rdti_error_set(err, RDT_EPROTO, 0, "%s answered with an invalid handshake",
                                  hs->place);
        *out = total;
        break;
    }
    return RDT_OK;
}

/* `in` holds a whole message. May end the handshake. */
static void
handshake_handle_message(struct rdti_handshake *hs, bool is_join)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    uint16_t total;

    if (is_join) {
        const int fd = hs->result.fd;
        uint8_t join_bytes[RDTI_JOIN_BYTES];
        rdt_context *ctx = hs->ctx;
        const struct rdti_handshake_events *events = hs->events;

        memcpy(join_bytes, hs->in, sizeof(join_bytes));
        hs->result.fd = -1;
        rdti_engine_unwatch(ctx->engine, hs->watch);
        hs->watch = NULL;
        handshake_dispose(hs);
        events->join(ctx, fd, join_bytes);
        return;
    }
    switch (hs->state) {
    case WAIT_OPENING:
        if (handshake_answer_hello(hs, &err) != RDT_OK)
            handshake_reject(hs, &err);
        else
            hs->in_bytes = 0;
        return;
    case WAIT_AUTH:
        if (handshake_check_auth(hs, &err) != RDT_OK)
            handshake_reject(hs, &err);
        else
            handshake_finish(hs);
        return;
    default:
        if (rdti_answer_parse(hs->in, &total) == RDTI_ANSWER_REJECT) {
            (void)handshake_rejection(hs, &err);
            handshake_fail(hs, &err);
        } else if (handshake_answer_challenge(hs, &err) != RDT_OK) {
            handshake_fail(hs, &err);
        } else {
            handshake_finish(hs);
        }
        return;
    }
}

/* Reads no byte past the expected message: the bytes after it belong to the frames. */
static void
handshake_read_message(struct rdti_handshake *hs)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    size_t want;
    bool is_join;

    for (;;) {
        if (handshake_expected_bytes(hs, &want, &is_join, &err) != RDT_OK) {
            handshake_fail(hs, &err);
            return;
        }
        if (hs->in_bytes == want) {
            handshake_handle_message(hs, is_join);
            return;
        }
        ssize_t got;
        do
            got = recv(hs->result.fd, hs->in + hs->in_bytes, want - hs->in_bytes, MSG_DONTWAIT);
        while (got < 0 && errno == EINTR);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (got <= 0) {
            (void)rdti_error_set(&err, RDT_EPEER, got < 0 ? errno : 0, "%s: the handshake ended%s",
                                 hs->place, got < 0 ? "" : ": connection closed");
            handshake_fail(hs, &err);
            return;
        }
        hs->in_bytes += (size_t)got;
    }
}

static void
handshake_on_socket(void *arg, uint32_t epoll_events)
{
    struct rdti_handshake *hs = arg;
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};

    if (hs->state == CONNECTING) {
        if (handshake_send_hello(hs, &err) != RDT_OK)
            handshake_fail(hs, &err);
        return;
    }
    if ((epoll_events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0)
        handshake_read_message(hs);
}

static void
handshake_describe_peer(struct rdti_handshake *hs, const struct sockaddr_storage *addr,
                        bool is_unix)
{
    if (is_unix) {
        struct ucred cred = {0};
        socklen_t len = sizeof(cred);
        if (getsockopt(hs->result.fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0)
            hs->result.peer_pid = cred.pid;
        (void)snprintf(hs->place, sizeof(hs->place), "process %d of this host", (int)cred.pid);
        return;
    }
    rdti_sockaddr_text((const struct sockaddr *)addr, hs->place, sizeof(hs->place));
}

/* Frames are small and must not wait for the acknowledgement of the previous one (40 ms). A failure
 * only makes them slow. */
static void
handshake_set_nodelay(int fd)
{
    const int one = 1;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

/* Makes room for one more incoming handshake. */
static void
handshake_make_room(rdt_context *ctx, struct rdti_list *table)
{
    struct rdti_handshake *oldest = NULL;
    uint32_t count = 0;

    for (struct rdti_list *node = table->next; node != table; node = node->next) {
        struct rdti_handshake *hs = RDTI_CONTAINER(node, struct rdti_handshake, link);
        if (hs->result.is_connector)
            continue;
        count++;
        if (oldest == NULL || (oldest->state != WAIT_OPENING && hs->state == WAIT_OPENING))
            oldest = hs;
    }
    if (count < RDTI_HANDSHAKES_MAX || oldest == NULL)
        return;
    rdti_refusal_log(&ctx->refusals, RDTI_REFUSAL_CROWD,
                     "%s: dropped unfinished, since %u others want to connect", oldest->place,
                     count);
    handshake_dispose(oldest);
}

void
rdti_handshake_accept(rdt_context *ctx, int fd, bool is_unix,
                      const struct rdti_handshake_events *events, struct rdti_list *table)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    struct rdti_handshake *hs = calloc(1, sizeof(*hs));

    if (hs == NULL) {
        (void)close(fd);
        return;
    }
    handshake_make_room(ctx, table);
    if (!is_unix)
        handshake_set_nodelay(fd);
    hs->ctx = ctx;
    hs->events = events;
    hs->state = WAIT_OPENING;
    hs->deadline_ns = rdti_deadline_after(LISTENER_DEADLINE_NS);
    hs->result.fd = fd;
    hs->result.is_unix = is_unix;
    hs->result.peer_bytes = sizeof(hs->result.peer);
    rdti_list_append(table, &hs->link);
    if (getpeername(fd, (struct sockaddr *)&hs->result.peer, &hs->result.peer_bytes) != 0)
        hs->result.peer_bytes = 0;
    handshake_describe_peer(hs, &hs->result.peer, is_unix);
    (void)rdti_fork_close_add(fd);
    if (rdti_engine_watch(ctx->engine, fd, EPOLLIN, handshake_on_socket, hs, &hs->watch, &err) !=
        RDT_OK)
        handshake_fail(hs, &err);
}

static rdt_status
handshake_open_socket(struct rdti_handshake *hs, const struct rdti_contact *contact,
                      struct rdt_error *err)
{
    const int fd = socket(contact->addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return rdti_error_set(err, RDT_EDEVICE, errno, "%s: socket", contact->text);
    hs->result.fd = fd;
    (void)rdti_fork_close_add(fd);
    if (!contact->is_unix)
        handshake_set_nodelay(fd);
    if (connect(fd, (const struct sockaddr *)&contact->addr, contact->addr_bytes) != 0 &&
        errno != EINPROGRESS) {
        const int sys_errno = errno; /* EAGAIN: a Unix socket's backlog is full */
        return rdti_error_set(err, sys_errno == EAGAIN ? RDT_EAGAIN : RDT_EPEER, sys_errno,
                              "%s: connect", contact->text);
    }
    return rdti_engine_watch(hs->ctx->engine, fd, EPOLLOUT, handshake_on_socket, hs, &hs->watch,
                             err);
}

rdt_status
rdti_handshake_connect(rdt_context *ctx, const struct rdti_contact *contact,
                       const struct rdti_hello *hello, const struct rdti_job *job,
                       uint64_t deadline_ns, const struct rdti_handshake_events *events, void *arg,
                       struct rdti_handshake **out, struct rdt_error *err)
{
    struct rdti_handshake *hs = calloc(1, sizeof(*hs));

    if (hs == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a handshake of %zu bytes", sizeof(*hs));
    hs->ctx = ctx;
    hs->events = events;
    hs->arg = arg;
    hs->job = job;
    hs->state = CONNECTING;
    hs->deadline_ns = deadline_ns;
    hs->result.fd = -1;
    hs->result.is_unix = contact->is_unix;
    hs->result.is_connector = true;
    hs->result.hello = *hello;
    hs->result.peer = contact->addr;
    hs->result.peer_bytes = contact->addr_bytes;
    rdti_text_copy(hs->place, sizeof(hs->place), contact->text);
    rdti_list_append(rdti_listener_handshakes(ctx->listener), &hs->link);
    const rdt_status status = handshake_open_socket(hs, contact, err);
    if (status != RDT_OK) {
        handshake_dispose(hs);
        return status;
    }
    if (contact->is_unix)
        handshake_describe_peer(hs, &hs->result.peer, true);
    *out = hs;
    return RDT_OK;
}

void
rdti_handshakes_expire(struct rdti_list *table, uint64_t now_ns)
{
    struct rdti_list *node = table->next;

    while (node != table) {
        struct rdti_handshake *hs = RDTI_CONTAINER(node, struct rdti_handshake, link);
        node = node->next;
        if (hs->deadline_ns > now_ns)
            continue;
        struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
        (void)rdti_error_set(&err, RDT_ETIMEDOUT, 0, "%s: the handshake was not over in time",
                             hs->place);
        handshake_fail(hs, &err);
        node = table->next; /* failed() may have changed the table */
    }
}

void
rdti_handshakes_cancel_all(struct rdti_list *table)
{
    while (!rdti_list_is_empty(table))
        handshake_dispose(RDTI_CONTAINER(table->next, struct rdti_handshake, link));
}
