/* SPDX-License-Identifier: Apache-2.0
 * Slots: where a tensor of a known description lands, double-buffered, with credit and epoch.
 *
 * Receiver (rdt_slot), per buffer:
 *   state   may the peer write?   leaves by
 *   FREE    yes, it has a credit  notification of the next epoch -> FULL
 *   FULL    no                    get -> HELD
 *   HELD    no                    release -> FREE (the credit goes back)
 *
 * They go round: of the tensors that `arrived`, the `got` ones after the `released` are HELD, those
 * after `got` are FULL, and the remaining buffers are FREE.
 * Sender (rdt_slot_tx): credits 0..2; put or buffer takes one, its return raises it. Between
 * rdt_slot_tx_buffer() and rdt_slot_tx_post() the buffer is the caller's.
 * Either side ENDED: the endpoint ended, or the other side destroyed its half; every call then
 * returns the error.
 *
 * A buffer of a static slot holds the payload; of a bounded slot, the payload and then a header
 * (wire/endpoint/slot_header.h); of a dynamic slot, only the header, which says where to read.
 * After that is a place for a flag (wire/notify.h). Buffers lie stride_bytes apart in one region.
 */
#ifndef RDTI_SLOT_SLOT_H
#define RDTI_SLOT_SLOT_H

#include <stdint.h>

#include "endpoint/endpoint.h"
#include "endpoint/protocol.h"
#include "wire/endpoint/frame.h"

#define RDTI_SLOT_BUFFERS 2

struct rdti_slots;

extern const struct rdti_protocol rdti_slot_protocol; /* protocol.c */

/* The slot table of an endpoint. */
static inline struct rdti_slots *
rdti_slots_of(const rdt_endpoint *ep)
{
    return rdti_endpoint_attached(ep, RDTI_PROTOCOL_SLOTS);
}

rdt_status rdti_slots_create(rdt_endpoint *ep, struct rdti_slots **out, struct rdt_error *err);
/* [driver] No handle of either half is left: each holds a reference to the endpoint that has this
 * table. */
void rdti_slots_destroy(struct rdti_slots *slots);
/* [driver] The endpoint became READY: queued announcements go out. */
void rdti_slots_on_ready(struct rdti_slots *slots);
/* [driver] Notifications. RDT_EPROTO for an impossible id or epoch. */
rdt_status rdti_slots_on_data(struct rdti_slots *slots, uint32_t slot_id, uint32_t epoch,
                              struct rdt_error *err);
rdt_status rdti_slots_on_credit(struct rdti_slots *slots, uint32_t slot_id, struct rdt_error *err);
/* [driver] Frames. */
rdt_status rdti_slots_on_announce(struct rdti_slots *slots,
                                  const struct rdti_slot_announce *announce, struct rdt_error *err);
/* RDT_EPROTO: the peer claims to have released more than was sent. */
rdt_status rdti_slots_on_gone(struct rdti_slots *slots, const struct rdti_slot_gone *gone,
                              struct rdt_error *err);
void rdti_slots_on_refused(struct rdti_slots *slots, const struct rdti_slot_gone *refused);
/* [driver] The slot whose buffers are the region of this index, or NULL; *off_bytes, an offset in
 * the region, becomes the offset in its buffer. */
const char *rdti_slots_name_at(const struct rdti_slots *slots, uint32_t index, uint64_t *off_bytes);
/* [driver] */
void rdti_slots_on_ended(struct rdti_slots *slots, const struct rdt_error *err);

#endif
