/* SPDX-License-Identifier: Apache-2.0
 * Filling struct rdt_error. */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A cut in the middle of a UTF-8 sequence would leave bytes that Python cannot decode. */
static void
error_drop_partial_utf8(char *text, size_t len_bytes)
{
    size_t lead = len_bytes;

    while (lead > 0 && len_bytes - lead < 4) {
        const unsigned char byte = (unsigned char)text[--lead];
        const size_t need = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;

        if ((byte & 0xc0) == 0x80)
            continue; /* a continuation byte: its lead byte comes before it */
        if (len_bytes - lead < need)
            text[lead] = '\0';
        return;
    }
}

/* A hint to the remedy, for errors whose remedy does not depend on the call. */
static const char *
error_hint_of(int sys_errno)
{
    return sys_errno == EMFILE ? "; raise RLIMIT_NOFILE (ulimit -n)" : "";
}

/* The arguments may point into err itself, so the text is formatted elsewhere and copied in. */
static void
error_fill(struct rdt_error *err, rdt_status status, int sys_errno, int32_t peer_rank,
           const char *fmt, va_list args)
{
    char text[RDT_ERROR_MESSAGE_BYTES];
    int used = vsnprintf(text, sizeof(text), fmt, args);

    if (used < 0)
        used = snprintf(text, sizeof(text), "%s (its message cannot be formatted)",
                        rdt_status_name(status));
    if (sys_errno != 0 && used >= 0 && (size_t)used < sizeof(text)) {
        char buf[128];
        const char *why = strerror_r(sys_errno, buf, sizeof(buf));
        const int more = snprintf(text + used, sizeof(text) - (size_t)used, ": %s (errno %d)%s",
                                  why, sys_errno, error_hint_of(sys_errno));

        used = more < 0 ? used : used + more;
    }
    if ((size_t)used >= sizeof(text))
        error_drop_partial_utf8(text, sizeof(text) - 1);

    memset(err, 0, sizeof(*err));
    err->status = status;
    err->sys_errno = sys_errno;
    err->peer_rank = peer_rank;
    memcpy(err->message, text, strlen(text) + 1);
}

rdt_status
rdti_error_set(struct rdt_error *err, rdt_status status, int sys_errno, const char *fmt, ...)
{
    va_list args;

    if (err == NULL)
        return status;
    va_start(args, fmt);
    error_fill(err, status, sys_errno, RDT_RANK_UNKNOWN, fmt, args);
    va_end(args);
    return status;
}

rdt_status
rdti_error_set_rank(struct rdt_error *err, rdt_status status, int32_t peer_rank, const char *fmt,
                    ...)
{
    va_list args;

    if (err == NULL)
        return status;
    va_start(args, fmt);
    error_fill(err, status, 0, peer_rank, fmt, args);
    va_end(args);
    return status;
}

rdt_status
rdti_error_copy(struct rdt_error *err, const struct rdt_error *src)
{
    if (err != NULL && err != src)
        *err = *src;
    return (rdt_status)src->status;
}
