/* SPDX-License-Identifier: Apache-2.0
 * How a scope's members are named, and which of them is to blame. */
#include "message/match/scope.h"

#include <stdio.h>

int32_t
rdti_scope_global_rank(const struct rdti_scope *scope, uint32_t rank)
{
    return scope->global_ranks != NULL ? scope->global_ranks[rank] : (int32_t)rank;
}

struct rdti_rank_name
rdti_scope_rank_name(const struct rdti_scope *scope, uint32_t rank)
{
    const int32_t global_rank = rdti_scope_global_rank(scope, rank);
    struct rdti_rank_name name;

    if (global_rank == (int32_t)rank)
        (void)snprintf(name.text, sizeof(name.text), "rank %u", rank);
    else
        (void)snprintf(name.text, sizeof(name.text), "rank %u (global rank %d)", rank,
                       (int)global_rank);
    return name;
}

void
rdti_scope_note_cause(struct rdti_scope *scope, const struct rdt_error *err)
{
    if (scope->cause.status == RDT_OK)
        scope->cause = *err;
}
