/* SPDX-License-Identifier: Apache-2.0
 * Log lines about refused connections. Any process that can connect can cause them, so they are
 * rate-limited: of each kind, only the first in RDTI_REFUSAL_QUIET_NS is logged, and after that
 * time the number of further ones. [driver] */
#ifndef RDTI_PROCESS_REFUSAL_LOG_H
#define RDTI_PROCESS_REFUSAL_LOG_H

#include <stdint.h>

#define RDTI_REFUSAL_QUIET_NS UINT64_C(10000000000)

/* Counted separately, so that a flood of one kind does not hide the first of another. */
enum rdti_refusal {
    RDTI_REFUSAL_CROWD,    /* dropped before its handshake ended: there were too many */
    RDTI_REFUSAL_USER,     /* another user of this host */
    RDTI_REFUSAL_GARBAGE,  /* not an rdmatensor handshake */
    RDTI_REFUSAL_VERSION,  /* another version of the handshake */
    RDTI_REFUSAL_AUTH,     /* another job or secret */
    RDTI_REFUSAL_MISMATCH, /* another epoch, rank or setting */
    RDTI_REFUSAL_STREAM,   /* a data stream that no endpoint of this process waits for */
    RDTI_REFUSAL_COUNT
};

/* Initialized to zero. */
struct rdti_refusals {
    struct {
        uint64_t until_ns; /* refusals before this time are only counted */
        uint64_t held;     /* their number, not yet logged */
    } kinds[RDTI_REFUSAL_COUNT];
};

void rdti_refusal_log(struct rdti_refusals *refusals, enum rdti_refusal kind, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Logs the number of further refusals of each kind whose quiet time has ended; UINT64_MAX: of all
 * kinds. */
void rdti_refusals_tell(struct rdti_refusals *refusals, uint64_t now_ns);

#endif
