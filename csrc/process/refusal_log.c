/* SPDX-License-Identifier: Apache-2.0
 * See refusal_log.h. */
#include "process/refusal_log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "rdmatensor.h"

static const char *const what[RDTI_REFUSAL_COUNT] = {
    [RDTI_REFUSAL_CROWD] = "for others that want to connect",
    [RDTI_REFUSAL_USER] = "of other users of this host",
    [RDTI_REFUSAL_GARBAGE] = "without an rdmatensor handshake",
    [RDTI_REFUSAL_VERSION] = "of another version",
    [RDTI_REFUSAL_AUTH] = "for their job or secret",
    [RDTI_REFUSAL_MISMATCH] = "that did not match",
    [RDTI_REFUSAL_STREAM] = "for data that no endpoint waits for",
};

void
rdti_refusal_log(struct rdti_refusals *refusals, enum rdti_refusal kind, const char *fmt, ...)
{
    const uint64_t now_ns = rdti_now_ns();
    char text[RDT_ERROR_MESSAGE_BYTES + 64];
    va_list args;

    rdti_refusals_tell(refusals, now_ns);
    if (now_ns < refusals->kinds[kind].until_ns) {
        refusals->kinds[kind].held++;
        return;
    }
    refusals->kinds[kind].until_ns = now_ns + RDTI_REFUSAL_QUIET_NS;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    rdti_log(RDT_LOG_WARN, "%s", text);
}

void
rdti_refusals_tell(struct rdti_refusals *refusals, uint64_t now_ns)
{
    for (int kind = 0; kind < RDTI_REFUSAL_COUNT; kind++) {
        const uint64_t held = refusals->kinds[kind].held;
        if (held == 0 || now_ns < refusals->kinds[kind].until_ns)
            continue;
        refusals->kinds[kind].held = 0;
        rdti_log(RDT_LOG_WARN, "%" PRIu64 " more connections were refused %s", held, what[kind]);
    }
}
