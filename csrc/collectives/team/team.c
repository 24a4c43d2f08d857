/* SPDX-License-Identifier: Apache-2.0
 * The life of a team. */
#include "base/error.h"
#include "collectives/team/team.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "collectives/collective.h"
#include "collectives/select/choice.h"
#include "collectives/select/cost.h"
#include "rdmatensor_ext.h"

static void
team_destroy(struct rdti_team *team)
{
    rdti_founding_free(team);
    rdti_team_release(team->local);
    for (uint32_t i = 0; i < team->size; i++)
        if (team->members[i].endpoint != NULL)
            rdt_endpoint_unhold(team->members[i].endpoint, &team->members[i].remote);
    for (uint32_t i = 0; i < team->size; i++)
        free(team->members[i].places);
    rdti_temps_fini(&team->temps);
    rdti_temps_fini(&team->landings);
    rdt_region_free(team->region, NULL, NULL); /* its bytes stay as long as peers hold them */
    free(team->costs);
    free(team);
}

void
rdti_team_release(struct rdti_team *team)
{
    /* acq_rel: the thread that destroys it sees all that others did; pairs with their releases */
    if (team != NULL && atomic_fetch_sub_explicit(&team->refs, 1, memory_order_acq_rel) == 1)
        team_destroy(team);
}

static void
team_detach(void *state)
{
    rdti_team_release(state);
}

rdt_status
rdti_team_make(uint32_t size, struct rdti_team **out, struct rdt_error *err)
{
    struct rdti_team *team = calloc(1, sizeof(*team) + size * sizeof(team->members[0]));

    if (team == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "no memory for a team of %u ranks", size);
    team->size = size;
    rdti_temps_init(&team->temps, RDTI_TEMPS_SUMS_BYTES, false);
    rdti_temps_init(&team->landings, RDTI_TEMPS_REPEATS_BYTES, true);
    atomic_init(&team->refs, 1);
    team->costs = malloc(sizeof(*team->costs));
    if (team->costs == NULL) {
        free(team);
        return rdti_error_set(err, RDT_ENOMEM, 0, "no memory for a table of costs");
    }
    *team->costs = rdti_costs_built_in;
    *out = team;
    return RDT_OK;
}

void
rdti_team_split(struct rdti_team *team, struct rdti_team *local)
{
    const struct rdti_hosts *hosts = &team->hosts;

    local->size = rdti_hosts_members(hosts, hosts->own);
    local->rank = hosts->index;
    local->choice = team->choice;
    local->is_ordered = team->is_ordered;
    local->region = team->region;
    team->region = NULL;
    for (uint32_t i = 0; i < local->size; i++) {
        struct rdti_team_member *member =
            &team->members[hosts->ranks[hosts->first[hosts->own] + i]];
        local->members[i] = *member;
        *member = (struct rdti_team_member){0};
    }
    atomic_store_explicit(&local->verdict, RDTI_VERDICT_DIRECT, memory_order_relaxed);
    team->local = local;
}

uint64_t
rdti_team_writes(const struct rdti_team *team)
{
    uint64_t writes = atomic_load_explicit(&team->writes, memory_order_relaxed);

    /* A verdict implies that the other team exists. */
    if (rdti_team_verdict(team) == RDTI_VERDICT_HOSTS)
        writes += atomic_load_explicit(&team->local->writes, memory_order_relaxed);
    return writes;
}

uint64_t
rdti_pass_begin(uint64_t len_bytes)
{
    return len_bytes < RDTI_TIMED_FROM_BYTES ? 0 : rdti_now_ns();
}

void
rdti_team_count_pass(struct rdti_team *team, enum rdti_pass pass, uint64_t began_ns)
{
    if (team != NULL && began_ns != 0)
        (void)atomic_fetch_add_explicit(&team->passes_ns[pass], rdti_now_ns() - began_ns,
                                        memory_order_relaxed);
}

uint64_t
rdti_team_passes_ns(const struct rdti_team *team, enum rdti_pass pass)
{
    uint64_t passes_ns = atomic_load_explicit(&team->passes_ns[pass], memory_order_relaxed);

    if (rdti_team_verdict(team) == RDTI_VERDICT_HOSTS) /* as in rdti_team_writes() */
        passes_ns += atomic_load_explicit(&team->local->passes_ns[pass], memory_order_relaxed);
    return passes_ns;
}

void
rdti_team_count_ran(struct rdti_team *team, const char *name)
{
    for (unsigned i = 0; i < RDTI_RAN_MAX; i++) {
        /* relaxed: the text is static, whichever thread stored it; pairs with the store below */
        const char *there = atomic_load_explicit(&team->ran[i].name, memory_order_relaxed);
        if (there == NULL &&
            atomic_compare_exchange_strong_explicit(&team->ran[i].name, &there, name,
                                                    memory_order_relaxed, memory_order_relaxed))
            there = name;
        /* Several algorithms have one name, whose text may be in several places. */
        if (there != name && strcmp(there, name) != 0)
            continue;
        (void)atomic_fetch_add_explicit(&team->ran[i].count, 1, memory_order_relaxed);
        return;
    }
}

bool
rdti_team_pass_turn(struct rdti_team *team, const struct rdti_direct *ticket)
{
    /* acquire, release: pair with board_begin() and board_end() */
    if (atomic_load_explicit(&team->serving, memory_order_acquire) != ticket->ticket)
        return false;
    atomic_store_explicit(&team->serving, ticket->ticket_after, memory_order_release);
    return true;
}

static rdt_status
team_make(rdt_group *group, struct rdti_team **out, struct rdt_error *err)
{
    const uint32_t size = rdt_group_size(group);
    struct rdti_team *team = NULL;
    unsigned choice = 0;
    bool is_ordered = false;

    rdt_status status = rdti_choice_from_environment(&choice, err);
    if (status == RDT_OK)
        status = rdti_choice_is_ordered(choice, &is_ordered, err);
    if (status == RDT_OK)
        status = rdti_team_make(size, &team, err);
    if (status != RDT_OK)
        return status;
    team->rank = rdt_group_rank(group);
    team->choice = choice;
    team->is_ordered = is_ordered;
    /* Data that goes over boards has no sums. */
    const bool may_share = rdt_context_verifies(rdt_group_context(group)) == RDT_VERIFY_OFF;
    atomic_init(&team->verdict, may_share && rdti_choice_wants_boards(team->choice, size)
                                    ? RDTI_VERDICT_UNDECIDED
                                    : RDTI_VERDICT_MESSAGES);
    *out = team;
    return RDT_OK;
}

rdt_status
rdti_team_get(rdt_group *group, struct rdti_team **out, struct rdt_error *err)
{
    struct rdti_team *team = rdt_group_attached(group);

    if (team == NULL) {
        struct rdti_team *made = NULL;
        rdt_status status = team_make(group, &made, err);
        if (status != RDT_OK)
            return status;
        status = rdt_group_attach(group, made, team_detach, err);
        if (status != RDT_OK)
            rdti_team_release(made);
        if (status != RDT_OK && status != RDT_EBUSY) /* another thread was first */
            return status;
        team = rdt_group_attached(group);
    }
    atomic_fetch_add_explicit(&team->refs, 1, memory_order_relaxed); /* the group holds one */
    *out = team;
    return RDT_OK;
}
