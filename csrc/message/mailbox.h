/* SPDX-License-Identifier: Apache-2.0
 * The mailbox of one endpoint: tagged messages, matched by (group, source, tag), FIFO.
 *
 * A message travels as bytes in the receiver's inbound ring (wire/endpoint/message.h), put there by
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
#include "endpoint/protocol.h"
#include "rdmatensor.h"

#define RDTI_RING_LARGE_BYTES 262144
#define RDTI_RING_RESERVE_BYTES 256
#define RDTI_UNEXPECTED_MAX_BYTES (16 << 20)

struct rdti_mailbox;

extern const struct rdti_protocol rdti_message_protocol; /* lifecycle.c */

/* The mailbox of an endpoint. */
static inline struct rdti_mailbox *
rdti_mailbox_of(const rdt_endpoint *ep)
{
    return rdti_endpoint_attached(ep, RDTI_PROTOCOL_MESSAGES);
}

/* [driver] RDTI_NOTIFY_MESSAGE arrived: takes all messages of the ring. RDT_EPROTO breaks the
 * endpoint. */
rdt_status rdti_mailbox_on_message(struct rdti_mailbox *mailbox, struct rdt_error *err);
/* [driver] NULL is allowed. Messages that have arrived whole can still be received. */
void rdti_mailbox_destroy(struct rdti_mailbox *mailbox);

#endif
