/* SPDX-License-Identifier: Apache-2.0
 * Sums of payload, where the context verifies (struct rdt_context_opts): who calls here has looked.
 *
 * A write goes without its notification. Behind it, in the mailbox ring, goes WRITTEN: the sums of
 * its bytes, made before the write by the thread that posts, and the notification. Whoever takes
 * that message compares, and only then knows of the notification. So nothing is held back, and a
 * message of sums covers so little (RDTI_SUMS_MAX chunks) that its comparison is a step under the
 * engine's lock like others.
 *
 * A read is followed by SUMS_GET, a piece at a time, which its owner answers by SUMS_READ.
 *
 * A message of the mailbox has its sum in its head if it is eager. The source of one that the
 * receiver may fetch by itself (on one host) is summed before it is offered: SUMS, then RTS; of
 * others what was granted is a write as above.
 */
#ifndef RDTI_MESSAGE_CHECKSUM_H
#define RDTI_MESSAGE_CHECKSUM_H

#include <stdbool.h>
#include <stdint.h>

#include "endpoint/endpoint.h"
#include "progress/transfer.h"
#include "wire/sums.h"

extern const struct rdti_filter rdti_sums_filter; /* lifecycle.c */

struct rdti_mailbox;
struct rdti_message;
struct rdti_request;

/* As rdti_endpoint_post() for a write with a user's or a slot's notification, or none. `born`: what
 * is in the peer's memory already and belongs to it, or NULL. */
rdt_status rdti_sums_post(rdt_endpoint *ep, struct rdt_transfer *t, const struct rdt_block *born,
                          struct rdt_error *err);
/* As rdti_endpoint_post() for a read of one block that *t holds: *t is replaced by the transfer
 * that ends when the bytes were compared. */
rdt_status rdti_sums_read(rdt_endpoint *ep, struct rdt_transfer **t, struct rdt_error *err);

/* The sums of a message's source, to be freed; NULL: no memory. */
uint32_t *rdti_sums_make(const void *src, uint64_t len_bytes);

/* One sum of a message that is written into its place, of those of its chunks; `sums` NULL: they
 * are not made yet. */
uint32_t rdti_sums_digest(const void *data, uint64_t len_bytes, const uint32_t *sums);

/* What one message of sums speaks of at most. */
#define RDTI_SUMS_PIECE_BYTES ((uint64_t)RDTI_SUMS_MAX * RDT_SUM_CHUNK_BYTES)

/* What is compared, in words for an error. */
struct rdti_sums_subject {
    char text[224];
    uint64_t off_bytes; /* of the first byte in it */
};
/* Counts; RDT_ECORRUPT, naming the first chunk that differs. */
rdt_status rdti_sums_compare(rdt_endpoint *ep, const void *at, uint64_t len_bytes,
                             const uint32_t *sums, const struct rdti_sums_subject *subject,
                             struct rdt_error *err);
/* [driver] What was queued goes out, or asks for a larger ring. */
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

/* [driver] The sums of a message that is about to be offered. False: no memory; the endpoint
 * ends. */
bool rdti_sums_tell_message(struct rdti_mailbox *m, struct rdti_request *send);
/* [driver] The sums of the next bytes of a message, to be freed; NULL: no memory. */
uint32_t *rdti_sums_of_granted(struct rdti_request *send, uint64_t len_bytes);
/* [driver] Tells them behind the write into the granted place. */
void rdti_sums_tell_granted(struct rdti_mailbox *m, const struct rdt_remote_region *region,
                            uint64_t region_off, uint64_t len_bytes, const uint32_t *sums);
/* [driver] What has come of a receive since the last call, by its sums. RDT_ECORRUPT. */
rdt_status rdti_sums_check_receive(struct rdti_request *receive, struct rdt_error *err);
/* [driver] An eager payload in its place. RDT_ECORRUPT. */
rdt_status rdti_sums_check_eager(struct rdti_request *receive, const struct rdti_message *head,
                                 struct rdt_error *err);
/* [driver] The same of one that was written there, by its LANDED. */
rdt_status rdti_sums_check_landed(struct rdti_request *receive, const struct rdti_message *head,
                                  struct rdt_error *err);

#endif
