/* SPDX-License-Identifier: Apache-2.0
 * Error context: the function that decides an error fills it, callers pass it up untouched. */
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

/* No error yet, of that rank if there will be one. The message's half a KiB stays as it is:
 * to clear it costs more than most calls that take an error and succeed. */
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
