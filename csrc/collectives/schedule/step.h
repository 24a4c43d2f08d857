/* SPDX-License-Identifier: Apache-2.0
 * One step of a schedule; for the files that build and run schedules.
 */
#ifndef RDTI_COLLECTIVES_SCHEDULE_STEP_H
#define RDTI_COLLECTIVES_SCHEDULE_STEP_H

#include <stdbool.h>

#include "collectives/schedule/schedule.h"
#include "rdmatensor.h"

struct rdti_temp;

enum {
    RDTI_STEP_SEND,        /* lhs to peer */
    RDTI_STEP_RECV,        /* from peer into landing */
    RDTI_STEP_RECV_REDUCE, /* the same; on arrival dst = lhs op rhs */
    RDTI_STEP_REDUCE,      /* dst = lhs op rhs */
    RDTI_STEP_FOLD,        /* dst = fold over the array of operands that lhs is, one of each rank */
    RDTI_STEP_DIVIDE,      /* dst = lhs / the divisor of an average; halves only */
    RDTI_STEP_COPY,        /* dst = lhs */
    RDTI_STEP_CALL,        /* run(), of peer and number count, from landing to dst */
};

struct rdti_step {
    uint32_t kind;
    uint32_t round;
    uint32_t peer;
    uint16_t ordinal; /* messages between the two in this direction before this one */
    bool is_pending;  /* posted, and not seen to end */
    bool is_last;     /* of a sum: all ranks' values are in it, and it may be averaged */
    uint64_t count;   /* elements */
    void *landing;
    void *dst;
    const void *lhs;
    const void *rhs;
    rdti_call_fn run;
    struct rdti_temp *kept; /* RECV: where the message lands in place of `landing`; NULL: there */
    rdt_transfer *transfer; /* kept until the next round is posted */
};

static inline bool
rdti_step_is_message(const struct rdti_step *step)
{
    return step->kind <= RDTI_STEP_RECV_REDUCE;
}

#endif
