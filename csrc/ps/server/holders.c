/* SPDX-License-Identifier: Apache-2.0
 * Which workers hold others, for the errors of those and for descriptions. */
#include <stdarg.h>
#include <stdio.h>

#include "ps/server/server_impl.h"

enum { NAMED_MOST = 8 };

/* Whether a tick that waits needs one of this worker. */
static bool
holders_hold_tick(const rdt_ps_server *server, uint32_t worker)
{
    const uint64_t own = server->clocks.of[worker].ticks;

    if (server->opts.mode == RDT_PS_SYNC)
        return rdti_ps_steps_needs(server, worker);
    if (server->opts.mode == RDT_PS_ASYNC || server->opts.index != 0 ||
        server->clocks.of[worker].state != RDTI_PS_IN)
        return false;
    for (uint32_t other = 0; other < server->opts.workers; other++)
        if (server->clients[other].has_tick &&
            rdti_ps_clocks_needed(server->opts.mode, server->opts.staleness,
                                  server->clocks.of[other].ticks) > own)
            return true;
    return false;
}

/* Whether a lease that waits needs this worker's tick, or its chunk if it dies. */
static bool
holders_hold_lease(const rdt_ps_server *server, uint32_t worker)
{
    const struct rdti_ps_client *client = &server->clients[worker];
    bool has_request = false;

    for (uint32_t other = 0; other < server->opts.workers; other++)
        has_request = has_request || server->clients[other].has_lease_request;
    if (!has_request || client->has_lease_request || client->has_tick)
        return false;
    if (server->opts.mode == RDT_PS_SYNC)
        return server->clocks.of[worker].state == RDTI_PS_IN;
    return client->lease_queue != 0 &&
           rdti_ps_queue_is_held(&server->queues[client->lease_queue - 1], client->leased, worker);
}

bool
rdti_ps_holders_has(const rdt_ps_server *server, uint32_t worker)
{
    return holders_hold_tick(server, worker) || holders_hold_lease(server, worker);
}

static void
holders_add(char *out, size_t *used, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    const int added = vsnprintf(out + *used, RDTI_PS_TEXT_BYTES - *used, format, args);
    va_end(args);
    if (added > 0)
        *used += (size_t)added < RDTI_PS_TEXT_BYTES - *used ? (size_t)added
                                                            : RDTI_PS_TEXT_BYTES - 1 - *used;
}

void
rdti_ps_holders_text(const rdt_ps_server *server, char out[RDTI_PS_TEXT_BYTES])
{
    size_t used = 0;
    uint32_t count = 0;

    out[0] = '\0';
    for (uint32_t worker = 0; worker < server->opts.workers; worker++) {
        if (!rdti_ps_holders_has(server, worker))
            continue;
        count++;
        if (count <= NAMED_MOST)
            holders_add(out, &used, "%sworker %u has not ended step %llu by clock()",
                        count > 1 ? ", " : "", worker,
                        (unsigned long long)server->clocks.of[worker].ticks + 1);
    }
    if (count > NAMED_MOST)
        holders_add(out, &used, ", nor have %u others", count - NAMED_MOST);
}
