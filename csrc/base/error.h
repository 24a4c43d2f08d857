/* SPDX-License-Identifier: Apache-2.0
 * Error context: the function that detects an error fills it, callers pass it up unchanged. */
#ifndef RDTI_BASE_ERROR_H
#define RDTI_BASE_ERROR_H

#include "rdmatensor.h"

/*
 * Fill *err (NULL is legal) and return `status`, so that a caller can write
 * `return rdti_error_set(err, RDT_EINVAL, 0, "offset %llu ...", off);`. Any thread.
 */
rdt_status rdti_error_set(struct rdt_error *err, rdt_status status, int sys_errno, const char *fmt,
                          ...) __attribute__((cold, format(printf, 4, 5)));

/* As rdti_error_set, naming the global rank at fault (RDT_RANK_UNKNOWN if not known). */
rdt_status rdti_error_set_rank(struct rdt_error *err, rdt_status status, int32_t peer_rank,
                               const char *fmt, ...) __attribute__((cold, format(printf, 4, 5)));

/* Sets *err to no error, with the rank that a later error will have. It leaves the message's half
 * KiB as it is: clearing that costs more than most successful calls that take an error. */
static inline void
rdti_error_init(struct rdt_error *err, int32_t peer_rank)
{
    err->status = RDT_OK;
    err->sys_errno = 0;
    err->wc_status = 0;
    err->vendor_err = 0;
    err->peer_rank = peer_rank;
    err->reserved = 0;
    err->message[0] = '\0';
}

/* Copy src into *err (NULL is legal) and return its status. */
rdt_status rdti_error_copy(struct rdt_error *err, const struct rdt_error *src);

#endif
