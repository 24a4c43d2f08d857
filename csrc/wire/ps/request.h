/* SPDX-License-Identifier: Apache-2.0
 * Requests of a worker to a server: a head, and a payload of payload_bytes after it.
 * Any thread; no state. */
#ifndef RDTI_WIRE_PS_REQUEST_H
#define RDTI_WIRE_PS_REQUEST_H

#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"
#include "wire/ps/box.h"

#define RDTI_PS_REQUEST_MAGIC UINT32_C(0x51544452)

enum {
    RDTI_PS_OP_PUSH = 1,    /* count ids of 8 bytes, then their rows */
    RDTI_PS_OP_PULL = 2,    /* count ids; the answer has their rows */
    RDTI_PS_OP_TICK = 3,    /* count numbers of 4 bytes of what was pushed; members */
    RDTI_PS_OP_CALL = 4,    /* for the program that runs the server */
    RDTI_PS_OP_LEASE = 5,   /* of a queue */
    RDTI_PS_OP_LEAVE = 6,   /* the worker ends */
    RDTI_PS_OP_VALUES = 7,  /* have those of dense models that changed written to the worker */
    RDTI_PS_OP_HOLDERS = 8, /* the answer: a text that names who holds a wait of this worker */
    RDTI_PS_OP_SWITCH = 9,  /* to a backup: from now on the worker reads from it */
    RDTI_PS_OP_TAKE = 10,   /* to server 0's other replica: the chunk that the worker has leased,
                               or 2^64 - 1: none is left */
};
/* In a tick: the number of a dense model, not of a table. */
#define RDTI_PS_IS_DENSE UINT32_C(0x80000000)
#define RDTI_PS_DENSE_MAX 64
/* Members: in RDT_PS_SYNC the workers that were given leases together, and whose ticks are one
 * round: a bit for each worker. A tick without them is for a round of all workers. */
#define RDTI_PS_WORKERS_MAX 4096
#define RDTI_PS_MEMBERS_BYTES 512

enum {
    RDTI_PS_FLAG_UNIQUE = 1, /* of a push: each id once */
    RDTI_PS_FLAG_FIND = 4,   /* of a pull: a byte for each row follows the rows; 1: it is there */
    RDTI_PS_FLAG_DROP = 2,   /* of a tick: its step is dropped, as a server refused a push of it */
};

struct rdti_ps_request {
    uint16_t op;
    uint16_t flags;
    uint32_t table;
    uint32_t map_version;
    uint32_t payload_bytes;
    uint32_t count;
    uint32_t queue;    /* from 1 on, or 0; of a tick: of the chunk that the step processed */
    uint32_t age;      /* ticks of the worker since it pulled the oldest rows of the tick's step */
    uint64_t sequence; /* of the worker's requests to this server: 1, 2, ... */
    uint64_t clock;    /* the worker's after the tick */
    double lr_scale;
    uint64_t chunk;
};

static inline uint32_t
rdti_ps_members_bytes(uint32_t workers)
{
    return (workers + 7) / 8;
}

void rdti_ps_request_encode(const struct rdti_ps_request *in, uint8_t out[RDTI_PS_HEAD_BYTES]);
/* RDT_EPROTO: wrong length, no such op, a field or a flag that the op has not, a payload that does
 * not fit its count or slot_bytes. The caller checks numbers of tables, queues and ids. *out is
 * untouched on failure. */
rdt_status rdti_ps_request_decode(const uint8_t *buf, size_t len_bytes, uint32_t slot_bytes,
                                  struct rdti_ps_request *out, struct rdt_error *err);

#endif
