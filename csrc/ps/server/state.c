/* SPDX-License-Identifier: Apache-2.0
 * What a server reports of itself and of each worker. Any thread. */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "ps/server/dense.h"
#include "ps/server/server_impl.h"

void
rdt_ps_server_counters(rdt_ps_server *server, struct rdt_ps_server_counters *out)
{
    const uint32_t size =
        out->struct_size < sizeof(*out) ? out->struct_size : (uint32_t)sizeof(*out);

    (void)pthread_mutex_lock(&server->lock);
    server->counters.workers_in = 0;
    for (uint32_t worker = 0; worker < server->opts.workers; worker++)
        if (server->clocks.of[worker].state == RDTI_PS_IN)
            server->counters.workers_in++;
    server->counters.rows_bytes = 0;
    server->counters.state_bytes = 0;
    for (uint32_t i = 0; i < server->counters.tables; i++) {
        server->counters.rows_bytes += rdti_ps_table_values_bytes(server->tables[i]);
        server->counters.state_bytes += rdti_ps_table_state_bytes(server->tables[i]);
    }
    for (uint32_t i = 0; i < server->dense_count; i++) {
        server->counters.rows_bytes += rdt_region_len_bytes(server->dense[i]->values_region);
        server->counters.state_bytes += rdt_region_len_bytes(server->dense[i]->state_region);
    }
    memcpy(server->counters.staleness, server->clocks.stale, sizeof(server->clocks.stale));
    (void)pthread_mutex_lock(&server->arrivals_lock);
    server->counters.queued = server->arrivals_count + server->calls_count;
    (void)pthread_mutex_unlock(&server->arrivals_lock);
    server->counters.struct_size = out->struct_size;
    memcpy(out, &server->counters, size);
    (void)pthread_mutex_unlock(&server->lock);
}

static uint32_t
state_part(const rdt_ps_server *server, uint32_t worker)
{
    const struct rdti_ps_client *client = &server->clients[worker];

    if (client->is_dead)
        return RDT_PS_PART_DEAD;
    if (client->has_left)
        return RDT_PS_PART_LEFT;
    if (server->clocks.of[worker].state == RDTI_PS_PARKED)
        return RDT_PS_PART_PARKED;
    return client->heard_ns == 0 ? RDT_PS_PART_ABSENT : RDT_PS_PART_IN;
}

rdt_status
rdt_ps_server_part(rdt_ps_server *server, uint32_t worker, struct rdt_ps_part *out,
                   struct rdt_error *err)
{
    if (out == NULL || out->struct_size != sizeof(*out))
        return rdti_error_set(err, RDT_EINVAL, 0, "part: not a struct of this version");
    if (worker >= server->opts.workers)
        return rdti_error_set(err, RDT_EINVAL, 0, "worker %u is not one of %u", worker,
                              server->opts.workers);
    (void)pthread_mutex_lock(&server->lock);
    const struct rdti_ps_client *client = &server->clients[worker];
    out->part = state_part(server, worker);
    out->is_waiting = client->has_tick || client->has_lease_request;
    out->reserved = 0;
    out->clock = server->clocks.of[worker].ticks;
    out->requests = client->sequence;
    out->staged_bytes = client->stage.used_bytes;
    out->quiet_ns = client->heard_ns == 0 ? 0 : rdti_now_ns() - client->heard_ns;
    (void)pthread_mutex_unlock(&server->lock);
    return RDT_OK;
}
