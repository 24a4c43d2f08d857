/* SPDX-License-Identifier: Apache-2.0
 * JSON into a buffer of a fixed size. Commas and brackets are the caller's; strings are escaped
 * here. What does not fit is counted and left out, and rdti_json_finish() says so: a text that was
 * cut cannot be taken for a whole one. One thread at a time. */
#ifndef RDTI_BASE_JSON_H
#define RDTI_BASE_JSON_H

#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"

struct rdti_json {
    char *buf;         /* the caller's; may be NULL where cap is 0 */
    size_t cap;        /* with the final NUL */
    size_t used;       /* bytes that all of it takes, without the final NUL */
    rdt_status status; /* RDT_EINTERNAL once a format failed */
};

void rdti_json_init(struct rdti_json *json, char *buf, size_t cap);

/* As printf(), unescaped: for what cannot hold a quote, a backslash or a control character. */
void rdti_json_put(struct rdti_json *json, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* A JSON string of `text` in quotes. Bytes that are not UTF-8 (RFC 3629) become U+FFFD, one each:
 * texts of peers are shown here. */
void rdti_json_put_string(struct rdti_json *json, const char *text);

/* A JSON string of the bytes, two lower-case digits each. */
void rdti_json_put_hex(struct rdti_json *json, const uint8_t *bytes, size_t len_bytes);

/* The number value / 10^digits (digits at most 19), all of its digits written. printf()'s %f would
 * write a comma where the program's locale has one. */
void rdti_json_put_decimal(struct rdti_json *json, uint64_t value, uint32_t digits);

/*
 * The text ends with NUL; *needed_out (may be NULL) is its length, whether it fits or not.
 *   RDT_EINVAL     it does not fit: the buffer holds "", the message says how many bytes it takes
 *   RDT_EINTERNAL  a format failed: the buffer holds ""
 */
rdt_status rdti_json_finish(struct rdti_json *json, const char *what, size_t *needed_out,
                            struct rdt_error *err);

#endif
