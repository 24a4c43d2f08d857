/* SPDX-License-Identifier: Apache-2.0
 * Algorithms that somebody prefers. */
#include "collectives/prefer.h"

#include <string.h>

#include "collectives/coll.h"
#include "collectives/team.h"

bool
rdti_preferred(const struct rdti_coll *coll, unsigned *choice_out)
{
    if (coll->team == NULL || coll->args.op != RDT_COLL_ALLREDUCE || coll->pack != NULL ||
        coll->whole != NULL)
        return false;
    for (unsigned i = 0; i < RDTI_PREFERENCES_MAX; i++) {
        const struct rdti_preference *one = &coll->team->preferences.list[i];
        /* acquire: partner in set(), the choice is there */
        const uint64_t len_bytes = atomic_load_explicit(&one->len_bytes, memory_order_acquire);
        if (len_bytes == 0)
            return false;
        if (len_bytes != coll->block_bytes)
            continue;
        /* relaxed: behind the acquire above; a choice changes only between two sums of a group */
        *choice_out = atomic_load_explicit(&one->choice, memory_order_relaxed);
        return *choice_out != RDTI_CHOICE_AUTO;
    }
    return false;
}

static rdt_status
set(struct rdti_preferences *preferences, uint64_t len_bytes, unsigned choice,
    struct rdt_error *err)
{
    struct rdti_preference *spare = NULL;

    for (unsigned i = 0; i < RDTI_PREFERENCES_MAX; i++) {
        struct rdti_preference *one = &preferences->list[i];
        /* relaxed, here and below: only the one that calls rdt_group_coll_prefer() writes */
        const uint64_t has = atomic_load_explicit(&one->len_bytes, memory_order_relaxed);
        if (has == len_bytes) {
            atomic_store_explicit(&one->choice, choice, memory_order_relaxed);
            return RDT_OK;
        }
        const unsigned old = atomic_load_explicit(&one->choice, memory_order_relaxed);
        if (spare == NULL && (has == 0 || old == RDTI_CHOICE_AUTO)) /* taken back: free again */
            spare = one;
        if (has == 0)
            break;
    }
    if (choice == RDTI_CHOICE_AUTO)
        return RDT_OK;
    if (spare == NULL)
        return rdti_coll_error_set(err, RDT_ENOMEM,
                                   "all_reduce: algorithms are preferred for %d lengths already",
                                   RDTI_PREFERENCES_MAX);
    atomic_store_explicit(&spare->choice, choice, memory_order_relaxed);
    /* release: the choice; partner in rdti_preferred() */
    atomic_store_explicit(&spare->len_bytes, len_bytes, memory_order_release);
    return RDT_OK;
}

/* The group decides by costs, and has the table. */
static rdt_status
check_team(const struct rdti_team *team, struct rdt_error *err)
{
    if (team == NULL || rdti_team_verdict(team) != RDTI_VERDICT_MESSAGES)
        return rdti_coll_error_set(err, RDT_ENOTSUP,
                                   "all_reduce: the group does not send messages among all, so "
                                   "that no algorithm of theirs can be preferred");
    if (team->is_ordered || !rdti_choice_is_free(team->choice))
        return rdti_coll_error_set(err, RDT_ENOTSUP,
                                   "all_reduce: RDMATENSOR_ALGO or RDMATENSOR_DETERMINISTIC has "
                                   "the say, and no algorithm can be preferred");
    return RDT_OK;
}

rdt_status
rdt_group_coll_prefer(rdt_group *group, uint64_t len_bytes, const char *algorithm,
                      struct rdt_error *err)
{
    unsigned choice;

    if (group == NULL || algorithm == NULL || len_bytes <= RDT_COLL_PART_MAX_BYTES)
        return rdti_coll_error_set(err, RDT_EINVAL,
                                   "rdt_group_coll_prefer: group or algorithm is NULL, or of at "
                                   "most %d bytes, which packs of small tensors share",
                                   RDT_COLL_PART_MAX_BYTES);
    if (!rdti_choice_of_sum(algorithm, &choice))
        return rdti_coll_error_set(err, RDT_EINVAL,
                                   "rdt_group_coll_prefer: '%.40s' is none of auto, direct, ring, "
                                   "halving-doubling and tree",
                                   algorithm);
    struct rdti_team *team = rdt_group_attached(group);
    const rdt_status status = check_team(team, err);
    return status == RDT_OK ? set(&team->preferences, len_bytes, choice, err) : status;
}
