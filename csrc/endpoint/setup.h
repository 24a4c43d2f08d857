/* SPDX-License-Identifier: Apache-2.0
 * What the files of set-up share: setup.c (the authenticated socket, halves of lanes),
 * setup_connect.c (places to try), setup_accept.c (admission), setup_probe.c (frames and the
 * probe), timers.c (deadlines, retries, heartbeats).
 */
#ifndef RDTI_ENDPOINT_SETUP_H
#define RDTI_ENDPOINT_SETUP_H

#include "endpoint/endpoint_impl.h"

/* Time for one place, and for the proof of one path, before the next is tried: a packet that a
 * firewall drops gets no answer. */
#define RDTI_ATTEMPT_NS UINT64_C(5000000000)
/* Something of the peer is on its way that makes room: an earlier endpoint's goodbye, a connection
 * that crossed. */
#define RDTI_RETRY_NS UINT64_C(5000000)
/* The peer's own connection goes on. If it fails (a firewall lets only one side connect), another
 * attempt is made. */
#define RDTI_CROSSED_NS UINT64_C(500000000)

const char *rdti_path_transport_name(uint32_t id);
/* Remember why a path was not taken, for describe() and for messages. */
void rdti_path_note(rdt_endpoint *ep, const char *text);
rdt_status rdti_path_create(rdt_context *ctx, const uint8_t uuid[RDT_UUID_BYTES], int32_t rank,
                            const char *job_id, uint64_t timeout_ns, rdt_endpoint **out,
                            struct rdt_error *err);
/* RDT_EMISMATCH if either side requires a better transport. */
rdt_status rdti_path_check_floor(const rdt_endpoint *ep, uint32_t transport, uint32_t peer_floor,
                                 struct rdt_error *err);
/* The transport that the listener of an authenticated connection offers: wire.md, "Path". The
 * connector derives it by the same rule where none was offered. */
uint32_t rdti_path_choice(const struct rdti_authenticated *with);
/* Makes the local half of a lane -> PATH. */
rdt_status rdti_path_make_half(rdt_endpoint *ep, uint32_t transport,
                               const struct rdti_authenticated *result, struct rdt_error *err);

/* setup_connect.c */
void rdti_path_fill_hello(const rdt_context *ctx, const struct rdti_job *job,
                          const uint8_t peer[RDT_UUID_BYTES], struct rdti_hello *out);
void rdti_path_try_next(rdt_endpoint *ep);
/* Tries all places again, after a while. */
void rdti_path_retry(rdt_endpoint *ep, uint64_t after_ns);
void rdti_path_attempt_failed(rdt_endpoint *ep, const struct rdt_error *err);

/* setup_accept.c */
rdt_status rdti_path_admit(rdt_context *ctx, const struct rdti_hello *hello, bool is_unix,
                           struct rdti_job **job_out, struct rdti_challenge *challenge_out,
                           struct rdt_error *err);
void rdti_path_on_join(rdt_context *ctx, int fd, const uint8_t *join_bytes);

/* setup_probe.c: sends PATH_FAILED. */
void rdti_path_tell_failure(rdt_endpoint *ep, const struct rdt_error *err);
/* setup_probe.c: the listener's half was not made. The connector, which is notified, closes the
 * channel and goes on, unless this side's floor ends the endpoint. */
void rdti_path_refuse(rdt_endpoint *ep, const struct rdt_error *err);
/* setup_probe.c: this path does not work, and the peer knows. */
void rdti_path_abandon(rdt_endpoint *ep, const struct rdt_error *err);

/* RDT_EMISMATCH: only one of the two sides sums its payload. */
rdt_status rdti_path_check_sums(const rdt_context *ctx, bool is_theirs, int32_t their_rank,
                                int32_t own_rank, struct rdt_error *err);
/* RDT_EMISMATCH: the process says that it is rank `told` of that job, but it was opened as another.
 * An unknown rank is not compared. */
rdt_status rdti_path_check_rank(const char *job_id, int32_t opened, int32_t told,
                                struct rdt_error *err);

#endif
