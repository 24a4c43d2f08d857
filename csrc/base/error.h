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
                          ...) __attribute__((format(printf, 4, 5)));

/* As rdti_error_set, naming the global rank at fault (RDT_RANK_UNKNOWN if not known). */
rdt_status rdti_error_set_rank(struct rdt_error *err, rdt_status status, int32_t peer_rank,
                               const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* Copy src into *err (NULL is legal) and return its status. */
rdt_status rdti_error_copy(struct rdt_error *err, const struct rdt_error *src);

#endif
