/* SPDX-License-Identifier: Apache-2.0
 * A collective of a group that has no verdict yet: the first one carries the set-up, the others
 * wait for it; then each becomes what it would have been. */
#include "collectives/collective.h"
#include "collectives/team/team.h"
#include "rdmatensor_ext.h"

/* Endpoints are opened here because the first use of a member may wait for its address. */
static rdt_status
deferred_prepare(struct rdti_coll *coll, struct rdt_error *err)
{
    struct rdti_coll *none = NULL;

    for (uint32_t i = 0; i < coll->size; i++) {
        rdt_endpoint *ignored;
        if (i == coll->rank)
            continue;
        const rdt_status status = rdt_group_endpoint(coll->group, i, &ignored, err);
        if (status != RDT_OK)
            return status;
    }
    /* relaxed: only the founder's role follows from it; pairs with deferred_release() */
    (void)atomic_compare_exchange_strong_explicit(&coll->team->founder, &none, coll,
                                                  memory_order_relaxed, memory_order_relaxed);
    return RDT_OK;
}

static bool
deferred_is_founder(const struct rdti_coll *coll)
{
    /* relaxed: pairs with deferred_prepare() and deferred_release(); only the founder itself acts
     * on it */
    return atomic_load_explicit(&coll->team->founder, memory_order_relaxed) == coll;
}

static rdt_status
deferred_advance(struct rdti_coll *coll, struct rdt_error *err)
{
    if (deferred_is_founder(coll)) {
        const rdt_status status = rdti_team_found(coll, err);
        if (status != RDT_OK)
            return status;
    }
    if (rdti_team_verdict(coll->team) == RDTI_VERDICT_UNDECIDED)
        return RDT_EAGAIN;
    const struct rdti_coll_algorithm *algorithm = rdti_coll_choose(coll);
    /* It does not use boards after all, and others that do need their turn. */
    if (rdti_team_verdict(coll->team) == RDTI_VERDICT_HOSTS && algorithm != &rdti_hierarchical &&
        !rdti_team_pass_turn(coll->team->local, &coll->direct))
        return RDT_EAGAIN;
    const rdt_status status = algorithm->prepare(coll, err);
    if (status != RDT_OK)
        return status;
    coll->algorithm = algorithm;
    return algorithm->advance(coll, err);
}

static bool
deferred_is_quiet(struct rdti_coll *coll)
{
    return !deferred_is_founder(coll) || rdti_founding_is_quiet(coll);
}

static uint32_t
deferred_describe(const struct rdti_coll *coll, char *text, size_t cap)
{
    return rdti_founding_describe(coll, text, cap);
}

/* A founder that never began leaves the role to the next. */
static void
deferred_release(struct rdti_coll *coll)
{
    struct rdti_coll *self = coll;

    /* Only the founder may read `founding`. relaxed: pairs with deferred_prepare() */
    if (deferred_is_founder(coll) && coll->team->founding == NULL)
        (void)atomic_compare_exchange_strong_explicit(&coll->team->founder, &self, NULL,
                                                      memory_order_relaxed, memory_order_relaxed);
}

const struct rdti_coll_algorithm rdti_undecided = {
    .name = "undecided",
    .takes_turns = true,
    .prepare = deferred_prepare,
    .advance = deferred_advance,
    .is_quiet = deferred_is_quiet,
    .describe = deferred_describe,
    .release = deferred_release,
};
