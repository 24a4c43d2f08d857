/* SPDX-License-Identifier: Apache-2.0
 * What messages, copies and sums cost, and what algorithms would cost by that.
 *
 * A table is measured by rank 0, or read from RDMATENSOR_COST_TABLE, in the set-up of a group whose
 * members share no memory with some others, and sent to all: ranks must never choose differently.
 * All values are whole numbers, so that the same table gives the same choice on every machine.
 * Other groups have the table that is built in.
 */
#ifndef RDTI_COLLECTIVES_SELECT_COST_H
#define RDTI_COLLECTIVES_SELECT_COST_H

#include <stdint.h>

#include "collectives/team/team.h"
#include "rdmatensor.h"
#include "wire/group/founding.h"

extern const struct rdti_costs rdti_costs_built_in;

/* `name value` lines, as rdti_costs_print() makes them; unknown names are refused, as are missing
 * ones. RDT_EINVAL; *is_there_out false, and *out untouched, where the file does not exist. */
rdt_status rdti_costs_load(const char *path, struct rdti_costs *out, bool *is_there_out,
                           struct rdt_error *err);
/* RDT_EDEVICE. Readers of the file see all of it or nothing. */
rdt_status rdti_costs_save(const char *path, const struct rdti_costs *costs, struct rdt_error *err);
/* As snprintf(). */
int rdti_costs_print(const struct rdti_costs *costs, char *text, size_t cap);
const char *rdti_costs_source(const struct rdti_costs *costs); /* "measured" */
const char *rdti_path_name(uint64_t path);                     /* "tcp" */
/* Values without a meaning, and those that would overflow, become the nearest valid ones. */
void rdti_costs_clamp(struct rdti_costs *costs);

/* How an operation is carried out. */
struct rdti_cost_plan {
    const struct rdti_coll_algorithm *algorithm; /* of all members; between hosts if rails > 0 */
    uint32_t rails;                              /* 0: not by way of hosts */
    uint64_t cost_ps;
};

/* Over messages among all `size` members; hosts NULL: each is alone on its host. len_bytes: of a
 * member's block. The algorithm is NULL for operations that have only one. */
struct rdti_cost_plan rdti_cost_flat(const struct rdti_costs *costs, uint32_t op, uint32_t size,
                                     const struct rdti_hosts *hosts, uint64_t len_bytes);
/* An all_reduce. */
struct rdti_cost_plan rdti_cost_by_hosts(const struct rdti_costs *costs,
                                         const struct rdti_hosts *hosts, uint64_t len_bytes);

#endif
