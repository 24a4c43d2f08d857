/* SPDX-License-Identifier: Apache-2.0
 * Writing JSON; the header has the rules. */
#include "base/json.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

void
rdti_json_init(struct rdti_json *json, char *buf, size_t cap)
{
    *json = (struct rdti_json){.buf = buf, .cap = cap, .status = RDT_OK};
}

void
rdti_json_put(struct rdti_json *json, const char *fmt, ...)
{
    va_list args;
    const bool fits = json->used < json->cap;

    va_start(args, fmt);
    const int len = vsnprintf(fits ? json->buf + json->used : NULL,
                              fits ? json->cap - json->used : 0, fmt, args);
    va_end(args);
    if (len < 0)
        json->status = RDT_EINTERNAL;
    else
        json->used += (size_t)len;
}

/* Leaves room for the final NUL. After a text did not fit, `used` stays past the buffer. */
static void
json_put_bytes(struct rdti_json *json, const char *bytes, size_t len_bytes)
{
    if (json->used < json->cap && len_bytes < json->cap - json->used)
        memcpy(json->buf + json->used, bytes, len_bytes);
    json->used += len_bytes;
}

/* The continuation bytes that may follow each lead byte (RFC 3629, 4): no overlong form, no
 * surrogate, nothing above U+10FFFF. */
static const struct {
    unsigned char lead_first, lead_last;
    unsigned char second_first, second_last;
    size_t len_bytes;
} sequences[] = {
    {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
    {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
    {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
};

/* The length of the UTF-8 sequence that begins at p, 0 if it is invalid. The final NUL is not a
 * continuation byte, so nothing is read past it. */
static size_t
json_utf8_sequence_bytes(const unsigned char *p)
{
    if (p[0] < 0x80)
        return 1;
    for (size_t i = 0; i < sizeof(sequences) / sizeof(sequences[0]); i++) {
        if (p[0] < sequences[i].lead_first || p[0] > sequences[i].lead_last)
            continue;
        if (p[1] < sequences[i].second_first || p[1] > sequences[i].second_last)
            return 0;
        for (size_t at = 2; at < sequences[i].len_bytes; at++)
            if ((p[at] & 0xc0) != 0x80)
                return 0;
        return sequences[i].len_bytes;
    }
    return 0;
}

void
rdti_json_put_string(struct rdti_json *json, const char *text)
{
    size_t len_bytes;

    json_put_bytes(json, "\"", 1);
    for (const char *p = text; *p != '\0'; p += len_bytes) {
        const unsigned char c = (unsigned char)*p;
        const size_t sequence_bytes = json_utf8_sequence_bytes((const unsigned char *)p);
        len_bytes = sequence_bytes > 0 ? sequence_bytes : 1;
        if (sequence_bytes == 0)
            json_put_bytes(json, REPLACEMENT, sizeof(REPLACEMENT) - 1);
        else if (c == '"' || c == '\\')
            rdti_json_put(json, "\\%c", c);
        else if (c < 0x20)
            rdti_json_put(json, "\\u%04x", c);
        else
            json_put_bytes(json, p, len_bytes);
    }
    json_put_bytes(json, "\"", 1);
}

void
rdti_json_put_hex(struct rdti_json *json, const uint8_t *bytes, size_t len_bytes)
{
    json_put_bytes(json, "\"", 1);
    for (size_t i = 0; i < len_bytes; i++)
        rdti_json_put(json, "%02x", bytes[i]);
    json_put_bytes(json, "\"", 1);
}

void
rdti_json_put_decimal(struct rdti_json *json, uint64_t value, uint32_t digits)
{
    uint64_t one = 1;

    for (uint32_t i = 0; i < digits; i++)
        one *= 10;
    rdti_json_put(json, "%" PRIu64, value / one);
    if (digits > 0)
        rdti_json_put(json, ".%0*" PRIu64, (int)digits, value % one);
}

rdt_status
rdti_json_finish(struct rdti_json *json, const char *what, size_t *needed_out,
                 struct rdt_error *err)
{
    const bool is_whole = json->status == RDT_OK && json->used < json->cap;

    if (json->cap > 0)
        json->buf[is_whole ? json->used : 0] = '\0';
    if (needed_out != NULL)
        *needed_out = json->used;
    if (json->status != RDT_OK)
        return rdti_error_set(err, json->status, 0, "%s: a value cannot be formatted", what);
    if (!is_whole)
        return rdti_error_set(err, RDT_EINVAL, 0, "%s: %zu bytes are needed, the buffer has %zu",
                              what, json->used + 1, json->cap);
    return RDT_OK;
}
