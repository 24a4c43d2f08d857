/* SPDX-License-Identifier: Apache-2.0
 * Lines to stderr. */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Holds a whole struct rdt_error message and the prefix. Within PIPE_BUF, so that lines of several
 * processes do not mix in a pipe. */
#define LOG_LINE_BYTES 1024

/* Relaxed everywhere: the level orders nothing. */
static _Atomic int32_t log_level = RDT_LOG_WARN;

void
rdt_log_set_level(int32_t level)
{
    atomic_store_explicit(&log_level, level, memory_order_relaxed);
}

static const char *
log_level_name(int32_t level)
{
    switch (level) {
    case RDT_LOG_ERROR:
        return "ERROR";
    case RDT_LOG_WARN:
        return "WARN";
    case RDT_LOG_INFO:
        return "INFO";
    default:
        return "DEBUG";
    }
}

/* The line may hold text of a peer, which must not forge a second line or control a terminal. */
static void
log_blank_control_bytes(char *text, size_t len_bytes)
{
    for (size_t i = 0; i < len_bytes; i++) {
        const unsigned char byte = (unsigned char)text[i];

        if (byte < 0x20 || byte == 0x7f)
            text[i] = ' ';
    }
}

void
rdti_log(int32_t level, const char *fmt, ...)
{
    const int saved_errno = errno;
    char line[LOG_LINE_BYTES];
    va_list args;

    if (level > atomic_load_explicit(&log_level, memory_order_relaxed))
        return;

    const int head =
        snprintf(line, sizeof(line), "rdmatensor[%ld] %s ", (long)getpid(), log_level_name(level));
    if (head < 0)
        goto out;
    va_start(args, fmt);
    const int body = vsnprintf(line + head, sizeof(line) - (size_t)head, fmt, args);
    va_end(args);
    if (body < 0)
        goto out;

    size_t len = (size_t)head + (size_t)body;
    if (len > sizeof(line) - 1) {
        len = sizeof(line) - 1;
        memset(line + len - 3, '.', 3);
    }
    log_blank_control_bytes(line, len);
    line[len++] = '\n'; /* replaces the NUL */

    /* A failed write to stderr is ignored: there is nowhere to report it. */
    ssize_t wrote;
    do {
        wrote = write(STDERR_FILENO, line, len);
    } while (wrote < 0 && errno == EINTR);
out:
    errno = saved_errno;
}
