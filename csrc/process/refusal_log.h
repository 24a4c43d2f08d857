/* SPDX-License-Identifier: Apache-2.0
 * Lines of the log about connections that were refused. Whoever can connect causes them, so they
 * are limited: of each kind the first in RDTI_REFUSAL_QUIET_NS is told, and after that time how
 * many more there were. [driver] */
#ifndef RDTI_PROCESS_REFUSAL_LOG_H
#define RDTI_PROCESS_REFUSAL_LOG_H

#include <stdint.h>

#define RDTI_REFUSAL_QUIET_NS UINT64_C(10000000000)

/* Apart, so that a flood of one does not hide the first of another. */
enum rdti_refusal {
    RDTI_REFUSAL_CROWD,    /* dropped unfinished: there were too many */
    RDTI_REFUSAL_USER,     /* another user of this host */
    RDTI_REFUSAL_GARBAGE,  /* no handshake of ours */
    RDTI_REFUSAL_VERSION,  /* another version of it */
    RDTI_REFUSAL_AUTH,     /* another job or secret */
    RDTI_REFUSAL_MISMATCH, /* another epoch, rank or setting */
    RDTI_REFUSAL_STREAM,   /* a data stream that no endpoint of ours waits for */
    RDTI_REFUSAL_COUNT
};

/* Zero at first. */
struct rdti_refusals {
    struct {
        uint64_t until_ns; /* what comes before is only counted */
        uint64_t held;     /* of them, not yet told */
    } kinds[RDTI_REFUSAL_COUNT];
};

void rdti_refusal_log(struct rdti_refusals *refusals, enum rdti_refusal kind, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* How many more there were, of each kind whose time is over; UINT64_MAX: of all. */
void rdti_refusals_tell(struct rdti_refusals *refusals, uint64_t now_ns);

#endif
