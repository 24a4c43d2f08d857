/* SPDX-License-Identifier: Apache-2.0
 * What a worker writes into a server's inbox, and a server into a worker's outbox.
 *
 * An inbox has `slots` slots of RDTI_PS_HEAD_BYTES and slot_bytes of payload; the notification of a
 * request is its slot. An outbox begins with RDTI_PS_TEXT_BYTES for a failure's reason; then
 * come as many slots of the same size for the answers; that of an answer is its slot. */
#ifndef RDTI_PS_MODEL_WIRE_H
#define RDTI_PS_MODEL_WIRE_H

#include <stdint.h>

#include "rdmatensor_ps.h"

enum {
    RDTI_PS_HEAD_BYTES = 64,
    RDTI_PS_TEXT_BYTES = 512,
    RDTI_PS_SLOTS_MAX = 64,
    RDTI_PS_SLOT_BYTES_MAX = 1 << 26,
    RDTI_PS_NOTIFY_FAILED = 0x10000, /* the server ends: the outbox begins with the reason */
};

enum {
    RDTI_PS_OP_PUSH = 1, /* count ids, padded to 8 bytes, then their rows */
    RDTI_PS_OP_PULL,     /* count ids; the answer has their rows */
    RDTI_PS_OP_TICK,     /* count numbers of what was pushed, 4 bytes each; members */
    RDTI_PS_OP_CALL,     /* for the program that runs the server */
    RDTI_PS_OP_LEASE,    /* of queue; the answer: chunk, is stale, 8 bytes each, and members */
    RDTI_PS_OP_LEAVE,
    RDTI_PS_OP_VALUES, /* of dense models that have changed, into the worker's parameters */
    RDTI_PS_OP_LIMIT,
};
/* Members: in RDT_PS_SYNC the workers that were given leases together, and whose ticks are one
 * round: a bit for each worker. A tick without them is for a round of all workers. */
enum { RDTI_PS_WORKERS_MAX = 4096, RDTI_PS_MEMBERS_BYTES = RDTI_PS_WORKERS_MAX / 8 };
/* In a tick: the number of a dense model, not of a table. */
#define RDTI_PS_IS_DENSE UINT32_C(0x80000000)
enum { RDTI_PS_DENSE_MAX = 64 };
enum { RDTI_PS_LEASE_BYTES = 16 };
enum {
    RDTI_PS_FLAG_UNIQUE = 1, /* the push has each id once */
    RDTI_PS_FLAG_DROP = 2,   /* the tick's step is dropped: a server has refused a push of it */
};

struct rdti_ps_request {
    uint16_t op;
    uint16_t flags;
    uint32_t table;
    uint32_t map_version;
    uint32_t count;
    uint64_t sequence; /* of the worker's requests to this server: 1, 2, ... */
    uint64_t clock;    /* RDTI_PS_OP_TICK: the worker's clock after it */
    double lr_scale;
    uint32_t payload_bytes;
    uint32_t queue; /* from 1 on, or 0; RDTI_PS_OP_TICK: of the chunk that the step processed */
    uint64_t chunk;
};
struct rdti_ps_answer {
    int32_t status;
    uint32_t payload_bytes; /* of the result, or of the error's text */
    uint64_t sequence;
    uint64_t clock; /* RDTI_PS_OP_TICK: the least of all workers */
};

void rdti_ps_request_encode(const struct rdti_ps_request *request, uint8_t out[RDTI_PS_HEAD_BYTES]);
/* RDT_EPROTO: not a request, or its payload exceeds slot_bytes. */
rdt_status rdti_ps_request_decode(const uint8_t in[RDTI_PS_HEAD_BYTES], uint32_t slot_bytes,
                                  struct rdti_ps_request *out, struct rdt_error *err);
void rdti_ps_answer_encode(const struct rdti_ps_answer *answer, uint8_t out[RDTI_PS_HEAD_BYTES]);
/* RDT_EPROTO: not an answer, or its payload exceeds slot_bytes. */
rdt_status rdti_ps_answer_decode(const uint8_t in[RDTI_PS_HEAD_BYTES], uint32_t slot_bytes,
                                 struct rdti_ps_answer *out, struct rdt_error *err);

static inline uint32_t
rdti_ps_members_bytes(uint32_t workers)
{
    return (workers + 7) / 8;
}

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
