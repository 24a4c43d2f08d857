/* SPDX-License-Identifier: Apache-2.0
 * Authenticates a new socket (wire/handshake.h), for both roles. Everything is [driver] and
 * nonblocking; a handshake that is not complete at its deadline fails. At most RDTI_HANDSHAKES_MAX
 * incoming ones are open at a time: one more ends the oldest of those that have not sent their
 * opening, so that silent connections cannot keep peers out.
 *
 *   role       state            leaves by
 *   connector  CONNECTING       socket writable -> sends HELLO -> WAIT_CHALLENGE
 *              WAIT_CHALLENGE   CHALLENGE with a good mac, of the expected rank ->
 *                               sends AUTH -> done; REJECT -> failed
 *   listener   WAIT_OPENING     HELLO that is admitted -> sends CHALLENGE -> WAIT_AUTH;
 *                               JOIN -> handed on; else REJECT or close
 *              WAIT_AUTH        AUTH with a good mac -> done; else REJECT and close
 */
#ifndef RDTI_CONNECT_HANDSHAKE_H
#define RDTI_CONNECT_HANDSHAKE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "process/process.h"
#include "wire/handshake.h"

#define RDTI_HANDSHAKES_MAX 256

struct rdti_handshake;

/* An authenticated socket and its peer. */
struct rdti_authenticated {
    int fd; /* the receiver of this struct owns it */
    bool is_unix;
    bool is_connector;
    struct rdti_hello hello;
    struct rdti_challenge challenge;
    uint8_t session_key[RDTI_SHA256_BYTES];
    struct sockaddr_storage peer; /* tcp: the peer's address */
    socklen_t peer_bytes;
    int32_t peer_pid; /* Unix socket: in this process's pid namespace, else 0 */
};

/* One address to try: an abstract Unix name or a socket address. */
struct rdti_contact {
    bool is_unix;
    struct sockaddr_storage addr;
    socklen_t addr_bytes;
    char text[96]; /* for messages */
};

struct rdti_handshake_events {
    /* Listener: decides whether to admit this HELLO. Sets the job whose secret applies, and the
     * fields of this side's CHALLENGE except nonce and mac. */
    rdt_status (*admit)(rdt_context *ctx, const struct rdti_hello *hello, bool is_unix,
                        struct rdti_job **job_out, struct rdti_challenge *challenge_out,
                        struct rdt_error *err);
    /* Connector: the listener knows the secret; checks that it is the expected process. */
    rdt_status (*confirm)(void *arg, const struct rdti_challenge *challenge, struct rdt_error *err);
    /* Both roles: it succeeded. The handshake is freed. `arg` is NULL for the listener. */
    void (*done)(rdt_context *ctx, void *arg, const struct rdti_authenticated *result);
    /* Connector: it failed. The handshake is freed. */
    void (*failed)(rdt_context *ctx, void *arg, const struct rdt_error *err);
    /* Listener: a JOIN, not yet verified; takes ownership of fd. */
    void (*join)(rdt_context *ctx, int fd, const uint8_t *join_bytes);
};

/* Takes ownership of fd. */
void rdti_handshake_accept(rdt_context *ctx, int fd, bool is_unix,
                           const struct rdti_handshake_events *events, struct rdti_list *table);
/* Begins to connect; `hello` is complete except for the nonce. The job must outlive the handshake.
 * RDT_EAGAIN: the listener's backlog is full. */
rdt_status rdti_handshake_connect(rdt_context *ctx, const struct rdti_contact *contact,
                                  const struct rdti_hello *hello, const struct rdti_job *job,
                                  uint64_t deadline_ns, const struct rdti_handshake_events *events,
                                  void *arg, struct rdti_handshake **out, struct rdt_error *err);
/* Ends without an event. */
void rdti_handshake_cancel(struct rdti_handshake *hs);
/* Ends the handshakes of the table whose deadline has passed. */
void rdti_handshakes_expire(struct rdti_list *table, uint64_t now_ns);
void rdti_handshakes_cancel_all(struct rdti_list *table);

#endif
