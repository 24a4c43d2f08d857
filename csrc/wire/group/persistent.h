/* SPDX-License-Identifier: Apache-2.0
 * What the members of a group exchange about a persistent collective. Each contributes a record to
 * an all-gather when it initialises it, and a vote to another when it has bound it. Each start of
 * one that is landed begins by a line on the member's board (collectives/team/team.h). */
#ifndef RDTI_WIRE_GROUP_PERSISTENT_H
#define RDTI_WIRE_GROUP_PERSISTENT_H

#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"
#include "wire/place.h"

struct rdti_persistent_record {
    uint32_t op;             /* one byte, as the next three; RDT_COLL_* */
    uint32_t dtype;          /* 0 of a barrier */
    uint32_t reduce_op;      /* 0 of an operation that reduces nothing */
    uint32_t landing;        /* RDT_LANDING_*, up to RDT_LANDING_NOT_IN_ARENA */
    uint32_t root;           /* 0 of an operation without one */
    uint64_t count;          /* elements; 0 of an all_to_all, where counts may differ */
    struct rdti_place place; /* of the tensor, if it is offered; else zeros */
};
#define RDTI_PERSISTENT_RECORD_BYTES (4 + 4 + 8 + RDTI_PLACE_BYTES)

void rdti_persistent_record_encode(const struct rdti_persistent_record *in,
                                   uint8_t out[RDTI_PERSISTENT_RECORD_BYTES]);
/* RDT_EPROTO: a number that is none, a field that the operation has not, a bad place. The
 * caller checks that the tensor fits. *out is untouched on
 * failure. */
rdt_status rdti_persistent_record_decode(const uint8_t *buf, size_t len_bytes,
                                         struct rdti_persistent_record *out, struct rdt_error *err);

enum {
    RDTI_VOTE_BOUND = 1,  /* it is bound, and by the records no member uses another's tensor */
    RDTI_VOTE_LANDED = 2, /* it is bound, and holds the tensors that it uses */
    RDTI_VOTE_UNHELD = 3, /* it is bound, but cannot hold one of them */
    RDTI_VOTE_FAILED = 4, /* it cannot be bound */
};

struct rdti_persistent_vote {
    uint32_t vote; /* RDTI_VOTE_*; one byte */
};
#define RDTI_PERSISTENT_VOTE_BYTES 1

void rdti_persistent_vote_encode(const struct rdti_persistent_vote *in,
                                 uint8_t out[RDTI_PERSISTENT_VOTE_BYTES]);
/* RDT_EPROTO: another vote. *out is untouched on failure. */
rdt_status rdti_persistent_vote_decode(const uint8_t *buf, size_t len_bytes,
                                       struct rdti_persistent_vote *out, struct rdt_error *err);

struct rdti_persistent_start {
    uint64_t number;   /* the group's number of the exchange that initialised it */
    uint64_t is_aside; /* 0 or 1: this start has other memory, and all use stages */
};
#define RDTI_PERSISTENT_START_BYTES 16

void rdti_persistent_start_encode(const struct rdti_persistent_start *in,
                                  uint8_t out[RDTI_PERSISTENT_START_BYTES]);
/* RDT_EPROTO: a flag that is neither. *out is untouched on failure. */
rdt_status rdti_persistent_start_decode(const uint8_t *buf, size_t len_bytes,
                                        struct rdti_persistent_start *out, struct rdt_error *err);

#endif
