/* SPDX-License-Identifier: Apache-2.0
 * Answers of a server to a worker: a head, and a payload of payload_bytes after it: a result, or
 * the text of an error. Any thread; no state. */
#ifndef RDTI_WIRE_PS_ANSWER_H
#define RDTI_WIRE_PS_ANSWER_H

#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"
#include "wire/ps/box.h"
#include "wire/ps/request.h"

#define RDTI_PS_ANSWER_MAGIC UINT32_C(0x50544452)

struct rdti_ps_answer {
    int32_t status; /* RDT_OK, or less */
    uint32_t payload_bytes;
    uint64_t sequence; /* of the request */
    uint64_t clock;    /* the least of all workers; 2^64 - 1: all have left */
};

void rdti_ps_answer_encode(const struct rdti_ps_answer *in, uint8_t out[RDTI_PS_HEAD_BYTES]);
/* RDT_EPROTO: wrong length, a positive status, a payload that exceeds slot_bytes. *out is untouched
 * on failure. */
rdt_status rdti_ps_answer_decode(const uint8_t *buf, size_t len_bytes, uint32_t slot_bytes,
                                 struct rdti_ps_answer *out, struct rdt_error *err);

/* The text of an error, of len_bytes from a peer: cut, and without control characters. */
void rdti_ps_answer_text(const uint8_t *bytes, size_t len_bytes, char out[RDTI_PS_TEXT_BYTES]);

/* The payload of the answer to a lease. */
struct rdti_ps_lease {
    uint64_t chunk;         /* 2^64 - 1: the queue is over */
    uint32_t is_stale;      /* 0 or 1: rounds without the worker changed dense models */
    uint32_t members_bytes; /* 0, or as many as there are workers */
    uint8_t members[RDTI_PS_MEMBERS_BYTES]; /* of the round; see wire/ps/request.h */
};
#define RDTI_PS_LEASE_FIXED_BYTES 16

/* Returns the bytes written, at most RDTI_PS_LEASE_FIXED_BYTES + RDTI_PS_MEMBERS_BYTES. */
size_t rdti_ps_lease_encode(const struct rdti_ps_lease *in, uint8_t *out);
/* RDT_EPROTO: wrong length, too many members, a flag that is neither. *out is untouched on
 * failure. */
rdt_status rdti_ps_lease_decode(const uint8_t *buf, size_t len_bytes, struct rdti_ps_lease *out,
                                struct rdt_error *err);

#endif
