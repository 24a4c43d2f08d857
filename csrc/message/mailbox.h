/* SPDX-License-Identifier: Apache-2.0
 * The mailbox of one endpoint: tagged messages, matched by (group, source, tag), FIFO.
 *
 * A message travels as bytes in the receiver's inbound ring (wire/message.h), put there by
 * one-sided writes with RDTI_NOTIFY_MESSAGE:
 *   eager        head and payload; the sender is done at once; two copies (counted)
 *   rendezvous   RTS; the receiver that matches it either reads the source itself (mapped region,
 *                READ, process_vm_readv) and answers FIN, or sends CTS with a place to write to
 *
 * The first ring has RDTI_RING_SMALL_BYTES, so that an idle connection is cheap; the first message
 * that would gain by it asks for RDTI_RING_LARGE_BYTES (GROW, RING, SWITCH).
 *
 * Flow: `consumed` counts ring bytes that were taken out, `delivered` eager bytes that reached a
 * receive. The sender never writes past consumed + ring, keeps RDTI_RING_RESERVE_BYTES for CREDIT
 * messages, and turns to rendezvous while more than RDTI_UNEXPECTED_MAX_BYTES of eager payload wait
 * for a receive: unexpected messages cannot fill the receiver's memory.
 */
#ifndef RDTI_MESSAGE_MAILBOX_H
#define RDTI_MESSAGE_MAILBOX_H

#include <stdint.h>

#include "endpoint/endpoint.h"
#include "rdmatensor.h"

#define RDTI_RING_SMALL_BYTES 4096
#define RDTI_RING_LARGE_BYTES 262144
#define RDTI_RING_RESERVE_BYTES 256
#define RDTI_UNEXPECTED_MAX_BYTES (16 << 20)

struct rdti_mailbox;

rdt_status rdti_mailbox_create(rdt_endpoint *ep, struct rdti_mailbox **out, struct rdt_error *err);
/* [driver] The endpoint is READY: messages queued meanwhile go out. */
void rdti_mailbox_on_ready(struct rdti_mailbox *mailbox);
/* [driver] RDTI_NOTIFY_MESSAGE arrived: take every message that lies in the ring. RDT_EPROTO breaks
 * the endpoint. */
rdt_status rdti_mailbox_on_message(struct rdti_mailbox *mailbox, struct rdt_error *err);
/* [driver] The endpoint ended: sends and matched receives in flight, and receives posted for this
 * source, end with err. What has arrived whole can still be received. */
void rdti_mailbox_on_ended(struct rdti_mailbox *mailbox, const struct rdt_error *err);
/* [driver] A heartbeat is due: what waits for the peer for too long goes another way. */
void rdti_mailbox_on_beat(struct rdti_mailbox *mailbox);
/* [driver] Nothing queued or unacknowledged on our side. */
bool rdti_mailbox_is_idle(const struct rdti_mailbox *mailbox);
void rdti_mailbox_destroy(struct rdti_mailbox *mailbox);

#endif
