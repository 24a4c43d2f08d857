/* SPDX-License-Identifier: Apache-2.0
 * Writes JSON into a buffer of a fixed size. The caller writes commas and brackets; this escapes
 * strings. Text that does not fit is counted and left out, and rdti_json_finish() reports it: a
 * truncated text cannot be mistaken for a whole one. One thread at a time. */
#ifndef RDTI_BASE_JSON_H
#define RDTI_BASE_JSON_H

#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"

struct rdti_json {
    char *buf;         /* the caller's; may be NULL where cap is 0 */
    size_t cap;        /* with the final NUL */
    size_t used;       /* bytes that the whole text takes, without the final NUL */
    rdt_status status; /* RDT_EINTERNAL once a format failed */
};

void rdti_json_init(struct rdti_json *json, char *buf, size_t cap);

/* As printf(), unescaped: for text without quotes, backslashes and control characters. */
void rdti_json_put(struct rdti_json *json, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* A JSON string of `text` in quotes. Each byte that is not UTF-8 (RFC 3629) becomes U+FFFD: the
 * text may come from a peer. */
void rdti_json_put_string(struct rdti_json *json, const char *text);

/* A JSON string of the bytes, two lower-case digits each. */
void rdti_json_put_hex(struct rdti_json *json, const uint8_t *bytes, size_t len_bytes);

/* The number value / 10^digits (digits at most 19), with all its digits. printf()'s %f would use
 * the decimal comma of the program's locale. */
void rdti_json_put_decimal(struct rdti_json *json, uint64_t value, uint32_t digits);

/*
 * The text ends with NUL; *needed_out (may be NULL) is its length, whether it fits or not.
 *   RDT_EINVAL     it does not fit: the buffer holds "", the message says how many bytes it takes
 *   RDT_EINTERNAL  a format failed: the buffer holds ""
 */
rdt_status rdti_json_finish(struct rdti_json *json, const char *what, size_t *needed_out,
                            struct rdt_error *err);

#endif
