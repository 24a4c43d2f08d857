/* SPDX-License-Identifier: Apache-2.0
 * The memory through which a worker and a server of a parameter server talk.
 *
 * A server has an inbox for each worker: slots of a head and slot_bytes of payload. The
 * notification of a request is its slot. A worker has an outbox for each server: a text of
 * RDTI_PS_TEXT_BYTES, then as many slots; the notification of an answer is its slot, which is its
 * request's. Any thread; no state. */
#ifndef RDTI_WIRE_PS_BOX_H
#define RDTI_WIRE_PS_BOX_H

#include <stdint.h>

#include "rdmatensor.h"

#define RDTI_PS_HEAD_BYTES 64 /* of a request or an answer */
#define RDTI_PS_TEXT_BYTES 512
#define RDTI_PS_SLOTS_MAX 64
#define RDTI_PS_SLOT_BYTES_LEAST 1024
#define RDTI_PS_SLOT_BYTES_MAX (1 << 26)
#define RDTI_PS_NOTIFY_FAILED 0x10000 /* the server ends: the outbox begins with the reason */

/* Bytes of one slot with its head, and of a whole inbox or outbox. */
static inline uint64_t
rdti_ps_slot_stride(uint32_t slot_bytes)
{
    return (uint64_t)RDTI_PS_HEAD_BYTES + slot_bytes;
}

static inline uint64_t
rdti_ps_inbox_bytes(uint32_t slots, uint32_t slot_bytes)
{
    return slots * rdti_ps_slot_stride(slot_bytes);
}

static inline uint64_t
rdti_ps_outbox_bytes(uint32_t slots, uint32_t slot_bytes)
{
    return RDTI_PS_TEXT_BYTES + rdti_ps_inbox_bytes(slots, slot_bytes);
}

/* RDT_EINVAL: a number of slots or bytes out of range, or not a multiple of 64. */
rdt_status rdti_ps_check_slots(uint32_t slots, uint32_t slot_bytes, struct rdt_error *err);

#endif
