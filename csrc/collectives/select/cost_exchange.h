/* SPDX-License-Identifier: Apache-2.0
 * How the members of a group on several hosts come to one table of costs: rank 0 measures with a
 * member of another host and with one of its own, or has a table, and sends it to all.
 */
#ifndef RDTI_COLLECTIVES_SELECT_COST_EXCHANGE_H
#define RDTI_COLLECTIVES_SELECT_COST_EXCHANGE_H

#include <stdbool.h>
#include <stdint.h>

#include "collectives/select/cost.h"
#include "collectives/select/measure.h"
#include "rdmatensor.h"

struct rdti_coll;

struct rdti_agreement {
    bool must_measure;
    bool is_told;     /* the table is on its way */
    unsigned partner; /* the partner that `measure` is with */
    struct rdti_measure measure;
    uint8_t table[RDTI_COSTS_BYTES];
    rdt_transfer *transfers[RDTI_TEAM_MAX]; /* of the table; NULL: over, or not begun */
};

/* Before the votes: rank 0 reads its table, if it has one, into the team's. */
rdt_status rdti_agreement_look(struct rdti_coll *coll, bool *must_measure_out,
                               struct rdt_error *err);
/* *a is zeroed; the team's hosts are known. */
rdt_status rdti_agreement_begin(struct rdti_agreement *a, struct rdti_coll *coll, bool must_measure,
                                struct rdt_error *err);
/* RDT_OK: the team has the table. *peer_out: the member that an error is about. */
rdt_status rdti_agreement_advance(struct rdti_agreement *a, struct rdti_coll *coll,
                                  uint32_t *peer_out, struct rdt_error *err);
bool rdti_agreement_is_quiet(struct rdti_agreement *a, const struct rdti_coll *coll);
/* The members that it waits for; returns how many. */
uint32_t rdti_agreement_late(const struct rdti_agreement *a, const struct rdti_coll *coll,
                             uint32_t *late);
/* Quiet or over; a zeroed one is allowed. */
void rdti_agreement_fini(struct rdti_agreement *a);

#endif
