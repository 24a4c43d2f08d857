/* SPDX-License-Identifier: Apache-2.0
 * Sums of payload, where the context verifies (struct rdt_context_opts): callers have checked that.
 *
 * A write is sent without its notification. WRITTEN follows in the mailbox ring: the sums of the
 * bytes, made before the write by the thread that posts, and the notification. The thread that
 * takes that message compares, and only then delivers the notification. So nothing is held back,
 * and a message of sums covers so little (RDTI_SUMS_MAX chunks) that its comparison is a step under
 * the engine's lock like others.
 *
 * A read is followed by SUMS_GET, a piece at a time, which the owner of the memory answers by
 * SUMS_READ.
 *
 * An eager message of the mailbox has its sum in its head. The source of a message that the
 * receiver may fetch by itself (on one host) is summed before it is offered: SUMS, then RTS. For
 * other messages the write into the granted or announced place is a write as above.
 */
#ifndef RDTI_MESSAGE_CHECKSUM_H
#define RDTI_MESSAGE_CHECKSUM_H

#include <stdbool.h>
#include <stdint.h>

#include "endpoint/endpoint.h"
#include "progress/transfer.h"
#include "wire/endpoint/sums.h"

extern const struct rdti_filter rdti_sums_filter; /* lifecycle.c */

struct rdti_mailbox;
struct rdti_message;
struct rdti_request;

/* As rdti_endpoint_post() for a write with a user's or a slot's notification, or none. The extra
 * block, or NULL, describes bytes that belong to the write and are in the peer's memory already. */
rdt_status rdti_sums_post(rdt_endpoint *ep, struct rdt_transfer *t,
                          const struct rdt_block *in_place, struct rdt_error *err);
/* As rdti_endpoint_post() for a read of one block that *t holds: *t is replaced by the transfer
 * that ends once the bytes were compared. */
rdt_status rdti_sums_read(rdt_endpoint *ep, struct rdt_transfer **t, struct rdt_error *err);

/* The sums of a message's source, which the caller frees; NULL: no memory. */
uint32_t *rdti_sums_make(const void *src, uint64_t len_bytes);

/* The most that one message of sums covers. */
#define RDTI_SUMS_PIECE_BYTES ((uint64_t)RDTI_SUMS_MAX * RDT_SUM_CHUNK_BYTES)

/* What is compared, for use in an error message. */
struct rdti_sums_subject {
    char text[224];
    uint64_t off_bytes; /* of the first byte in it */
};
/* Counts the bytes. RDT_ECORRUPT names the first chunk that differs. */
rdt_status rdti_sums_compare(rdt_endpoint *ep, const void *at, uint64_t len_bytes,
                             const uint32_t *sums, const struct rdti_sums_subject *subject,
                             struct rdt_error *err);
/* [driver] Sends what was queued, or asks for a larger ring. */
void rdti_sums_push(struct rdti_mailbox *m);

/* [driver] Messages; RDT_EPROTO, RDT_ECORRUPT: the endpoint is to end. */
rdt_status rdti_sums_on_message_sums(struct rdti_mailbox *m, const struct rdti_message *head,
                                     const uint8_t *body, uint64_t body_bytes,
                                     struct rdt_error *err);
rdt_status rdti_sums_on_written(struct rdti_mailbox *m, const uint8_t *body, uint64_t body_bytes,
                                struct rdt_error *err);
rdt_status rdti_sums_on_get(struct rdti_mailbox *m, const struct rdti_message *head,
                            const uint8_t *body, struct rdt_error *err);
rdt_status rdti_sums_on_read(struct rdti_mailbox *m, const struct rdti_message *head,
                             const uint8_t *body, uint64_t body_bytes, struct rdt_error *err);
/* [driver] Reads that wait for sums end with err. */
void rdti_sums_on_ended(struct rdti_mailbox *m, const struct rdt_error *err);

/* [driver] Sends the sums of a message before its offer. False: no memory; the endpoint ends. */
bool rdti_sums_tell_message(struct rdti_mailbox *m, struct rdti_request *send);
/* [driver] The sums of the next bytes of a message, which the caller frees; NULL: no memory. */
uint32_t *rdti_sums_of_granted(struct rdti_request *send, uint64_t len_bytes);
/* [driver] Queues the sums of bytes that were just written: a WRITTEN for each RDTI_SUMS_MAX
 * chunks, the last with the notification. */
void rdti_sums_tell_written(struct rdti_mailbox *m, const struct rdt_remote_region *region,
                            uint64_t off_bytes, uint64_t len_bytes, const uint32_t *sums,
                            uint32_t notification);
/* [driver] Compares with its sums what has come of a receive since the last call. RDT_ECORRUPT. */
rdt_status rdti_sums_check_receive(struct rdti_request *receive, struct rdt_error *err);
/* [driver] Checks an eager payload in its place. RDT_ECORRUPT. */
rdt_status rdti_sums_check_eager(struct rdti_request *receive, const struct rdti_message *head,
                                 struct rdt_error *err);

#endif
