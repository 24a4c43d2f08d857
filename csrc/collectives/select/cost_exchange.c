/* SPDX-License-Identifier: Apache-2.0
 * One table of costs for all members. */
#include "collectives/select/cost_exchange.h"

#include <stdlib.h>

#include "collectives/collective.h"
#include "collectives/team/team.h"
#include "rdmatensor_ext.h"

/* In addition to the tags of the set-up. */
#define TAG_TABLE (UINT64_C(3) << 62 | 2)

/* The partners that rank 0 measures with, one after the other. */
enum { FAR, NEAR, PARTNERS };

static const char *
cost_exchange_table_path(void)
{
    const char *path = getenv("RDMATENSOR_COST_TABLE");

    return path == NULL || path[0] == '\0' ? NULL : path;
}

rdt_status
rdti_agreement_look(struct rdti_coll *coll, bool *must_measure_out, struct rdt_error *err)
{
    bool is_there = false;
    rdt_status status = RDT_OK;

    if (coll->rank == 0 && cost_exchange_table_path() != NULL)
        status = rdti_costs_load(cost_exchange_table_path(), coll->team->costs, &is_there, err);
    if (status == RDT_OK)
        *must_measure_out = coll->rank == 0 && !is_there;
    return status;
}

/* The first rank that is not on rank 0's host, and the first other that is; 0: there is none. */
static uint32_t
cost_exchange_partner_of(const struct rdti_coll *coll, unsigned partner)
{
    const struct rdti_hosts *hosts = &coll->team->hosts;

    for (uint32_t i = 1; i < coll->size; i++)
        if ((hosts->of[i] != hosts->of[0]) == (partner == FAR))
            return i;
    return 0;
}

rdt_status
rdti_agreement_begin(struct rdti_agreement *a, struct rdti_coll *coll, bool must_measure,
                     struct rdt_error *err)
{
    rdt_endpoint *endpoint = NULL;

    a->must_measure = must_measure;
    if (coll->rank != 0)
        return RDT_OK;
    const rdt_status status =
        rdt_group_endpoint(coll->group, cost_exchange_partner_of(coll, FAR), &endpoint, err);
    if (status != RDT_OK)
        return status;
    coll->team->costs->far = rdt_endpoint_transport(endpoint);
    rdti_costs_clamp(coll->team->costs);
    return RDT_OK;
}

/* Takes over the results of the messages with one partner. */
static void
cost_exchange_take_result(struct rdti_agreement *a, struct rdti_costs *costs)
{
    const struct rdti_path_cost cost = rdti_measure_result(&a->measure);

    costs->source = RDTI_COSTS_MEASURED;
    if (a->partner == FAR) {
        costs->paths[costs->far] = cost;
        costs->gamma_ps = rdti_measure_sum_ps(&a->measure);
    } else {
        costs->paths[RDTI_PATH_SHM] = cost;
        /* A tick wakes a sleeping member, as a message does; a byte is stored, and read. */
        costs->paths[RDTI_PATH_BOARD] =
            (struct rdti_path_cost){.alpha_ns = cost.alpha_ns,
                                    .beta_ps = 2 * rdti_measure_copy_ps(&a->measure),
                                    .duplex_permille = cost.duplex_permille};
    }
    rdti_costs_clamp(costs);
}

/* Rank 0 measures with each partner in turn; a partner with rank 0; others have nothing to do. */
static rdt_status
cost_exchange_measure(struct rdti_agreement *a, struct rdti_coll *coll, uint32_t *peer_out,
                      struct rdt_error *err)
{
    const bool leads = coll->rank == 0;

    for (; a->must_measure && a->partner < PARTNERS; a->partner++) {
        const uint32_t partner = cost_exchange_partner_of(coll, a->partner);
        rdt_status status = RDT_OK;
        if (partner == 0 || (!leads && coll->rank != partner))
            continue;
        *peer_out = leads ? partner : 0;
        if (a->measure.memory == NULL)
            status = rdti_measure_init(&a->measure, *peer_out, leads, err);
        if (status == RDT_OK)
            status = rdti_measure_advance(&a->measure, coll, err);
        if (status != RDT_OK)
            return status;
        if (leads)
            cost_exchange_take_result(a, coll->team->costs);
        rdti_measure_fini(&a->measure);
    }
    return RDT_OK;
}

static rdt_status
cost_exchange_tell(struct rdti_agreement *a, struct rdti_coll *coll, uint32_t *peer_out,
                   struct rdt_error *err)
{
    const struct rdt_message_desc desc = rdti_coll_desc(coll);
    struct rdti_costs *costs = coll->team->costs;
    rdt_status status = RDT_OK;

    a->is_told = true;
    *peer_out = 0;
    if (coll->rank != 0)
        return rdt_group_recv(coll->group, 0, TAG_TABLE, a->table, RDTI_COSTS_BYTES, &desc,
                              &a->transfers[0], err);
    if (cost_exchange_table_path() != NULL && costs->source == RDTI_COSTS_MEASURED)
        status = rdti_costs_save(cost_exchange_table_path(), costs, err);
    rdti_costs_encode(costs, a->table);
    for (uint32_t i = 1; i < coll->size && status == RDT_OK; i++) {
        *peer_out = i;
        status = rdt_group_send(coll->group, i, TAG_TABLE, a->table, RDTI_COSTS_BYTES, &desc,
                                &a->transfers[i], err);
    }
    return status;
}

rdt_status
rdti_agreement_advance(struct rdti_agreement *a, struct rdti_coll *coll, uint32_t *peer_out,
                       struct rdt_error *err)
{
    const uint64_t want_bytes = coll->rank == 0 ? 0 : RDTI_COSTS_BYTES;
    rdt_status status = RDT_OK;

    if (!a->is_told) {
        status = cost_exchange_measure(a, coll, peer_out, err);
        if (status == RDT_OK)
            status = cost_exchange_tell(a, coll, peer_out, err);
    }
    for (uint32_t i = 0; i < coll->size && status == RDT_OK; i++) {
        if (a->transfers[i] == NULL)
            continue;
        *peer_out = i;
        status = rdti_coll_end_message(&a->transfers[i], want_bytes, "a table", err);
        if (status == RDT_OK && coll->rank != 0)
            status = rdti_costs_decode(a->table, sizeof(a->table), coll->team->costs, err);
    }
    return status;
}

bool
rdti_agreement_is_quiet(struct rdti_agreement *a, const struct rdti_coll *coll)
{
    bool is_quiet = rdti_measure_is_quiet(&a->measure);

    for (uint32_t i = 0; i < coll->size; i++)
        is_quiet &= rdti_coll_end_message(&a->transfers[i], 0, "a table", NULL) != RDT_EAGAIN;
    return is_quiet;
}

uint32_t
rdti_agreement_late(const struct rdti_agreement *a, const struct rdti_coll *coll, uint32_t *late)
{
    uint32_t count = 0;

    if (a->measure.memory != NULL)
        late[count++] = a->measure.peer;
    for (uint32_t i = 0; i < coll->size && a->measure.memory == NULL; i++)
        if (a->transfers[i] != NULL)
            late[count++] = i;
    return count;
}

void
rdti_agreement_fini(struct rdti_agreement *a)
{
    rdti_measure_fini(&a->measure);
    for (uint32_t i = 0; i < RDTI_TEAM_MAX; i++)
        rdt_transfer_free(a->transfers[i]);
}
