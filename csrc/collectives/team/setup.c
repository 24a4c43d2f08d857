/* SPDX-License-Identifier: Apache-2.0
 * How a team is set up: every member sends every other the address of its board, tries to hold the
 * others' boards, and votes on whether it could. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "collectives/collective.h"
#include "collectives/select/cost_exchange.h"
#include "collectives/team/team.h"
#include "wire/group/founding.h"
#include "rdmatensor_ext.h"

/* In addition to the tags of schedules, which have bit 63 set and bit 62 clear. */
#define TAG_FOUNDING (UINT64_C(3) << 62)

_Static_assert(RDTI_TEAM_MAX == 64, "a vote has a bit for each member");

/* Groups on one host have no costs to agree on. */
enum phase { PHASE_BEGIN, PHASE_ADDRESSES, PHASE_HOLD, PHASE_VOTES, PHASE_COSTS, PHASE_OVER };

struct exchange {
    rdt_transfer *send; /* NULL: over, or not begun */
    rdt_transfer *recv;
    uint8_t address[RDTI_FOUNDING_ADDRESS_BYTES];
    uint8_t vote[RDTI_FOUNDING_VOTE_BYTES];
};

struct rdti_founding {
    enum phase phase;
    struct rdti_team *local; /* for the verdict HOSTS */
    struct rdti_agreement costs;
    bool has_board;
    bool must_measure; /* as rank 0 stated */
    uint64_t can_hold; /* whose boards can be used from here: bits of ranks */
    uint8_t address[RDTI_FOUNDING_ADDRESS_BYTES];
    uint8_t vote[RDTI_FOUNDING_VOTE_BYTES];
    struct exchange peers[];
};

/* A member without a board, for lack of memory, votes for messages; this is not an error. */
static void
team_setup_make_board(struct rdti_team *team, rdt_group *group, struct rdti_founding *founding)
{
    struct rdti_founding_address own = {0};

    if (rdt_region_alloc(rdt_group_context(group), sizeof(struct rdti_board), RDT_REGION_ZERO,
                         &team->region, NULL) == RDT_OK &&
        rdt_region_export(team->region, &own.board, NULL) == RDT_OK) {
        own.has_board = 1;
        team->members[team->rank].board = rdt_region_addr(team->region);
    }
    founding->has_board = own.has_board != 0;
    rdti_founding_address_encode(&own, founding->address);
}

/* One message of each kind, in each direction, between any two members. */
static rdt_status
team_setup_post(struct rdti_coll *coll, uint32_t peer, bool is_vote, struct rdt_error *err)
{
    struct rdti_founding *founding = coll->team->founding;
    struct exchange *with = &founding->peers[peer];
    struct rdt_message_desc desc = rdti_coll_desc(coll);
    void *in = is_vote ? with->vote : with->address;
    const void *out = is_vote ? founding->vote : founding->address;
    const uint64_t len_bytes = is_vote ? RDTI_FOUNDING_VOTE_BYTES : RDTI_FOUNDING_ADDRESS_BYTES;
    const uint64_t tag = TAG_FOUNDING | (is_vote ? 1 : 0);

    rdt_status status =
        rdt_group_recv(coll->group, peer, tag, in, len_bytes, &desc, &with->recv, err);
    if (status == RDT_OK)
        status = rdt_group_send(coll->group, peer, tag, out, len_bytes, &desc, &with->send, err);
    return status;
}

/* Puts "all_reduce #1, round 1 of 2 of the set-up, send to rank 3: " before the mailbox's
 * message. */
static rdt_status
team_setup_with_context(const struct rdti_coll *coll, uint32_t peer, const char *what,
                        rdt_status status, struct rdt_error *err)
{
    char said[RDT_ERROR_MESSAGE_BYTES];

    if (err == NULL)
        return status;
    memcpy(said, err->message, sizeof(said));
    said[sizeof(said) - 1] = '\0';
    /* A message that would not fit loses its end. */
    const int written = snprintf(err->message, sizeof(err->message),
                                 "%s #%llu, round %d of 2 of the set-up, %s rank %s: %s",
                                 rdti_coll_name(coll->args.op), (unsigned long long)coll->sequence,
                                 coll->team->founding->phase >= PHASE_VOTES ? 2 : 1, what,
                                 rdti_coll_rank_name(coll, peer).text + sizeof("rank ") - 1, said);
    if (written < 0)
        memcpy(err->message, said, sizeof(said));
    err->status = status;
    return status;
}

static rdt_status
team_setup_post_all(struct rdti_coll *coll, bool is_vote, struct rdt_error *err)
{
    for (uint32_t i = 0; i < coll->size; i++) {
        if (i == coll->rank)
            continue;
        const rdt_status status = team_setup_post(coll, i, is_vote, err);
        if (status != RDT_OK)
            return team_setup_with_context(coll, i, "exchange with", status, err);
    }
    return RDT_OK;
}

static rdt_status
team_setup_test_all(struct rdti_coll *coll, uint64_t want_bytes, struct rdt_error *err)
{
    bool is_done = true;

    for (uint32_t i = 0; i < coll->size; i++) {
        struct exchange *with = &coll->team->founding->peers[i];
        rdt_status status = rdti_coll_end_message(&with->recv, want_bytes, "the set-up", err);
        if (status != RDT_OK && status != RDT_EAGAIN)
            return team_setup_with_context(coll, i, "receive from", status, err);
        is_done &= status == RDT_OK;
        status = rdti_coll_end_message(&with->send, 0, "the set-up", err);
        if (status != RDT_OK && status != RDT_EAGAIN)
            return team_setup_with_context(coll, i, "send to", status, err);
        is_done &= status == RDT_OK;
    }
    return is_done ? RDT_OK : RDT_EAGAIN;
}

/* RDT_OK with `can_hold_out`: whether the peer's board can be used from here. */
static rdt_status
team_setup_hold_one(struct rdti_coll *coll, uint32_t peer, bool *can_hold_out,
                    struct rdt_error *err)
{
    struct rdti_team_member *member = &coll->team->members[peer];
    struct rdti_founding_address theirs;
    rdt_endpoint *endpoint = NULL;
    void *board = NULL;

    *can_hold_out = false;
    rdt_status status = rdti_founding_address_decode(coll->team->founding->peers[peer].address,
                                                     RDTI_FOUNDING_ADDRESS_BYTES, &theirs, err);
    if (status != RDT_OK || theirs.has_board == 0)
        return status;
    member->remote = theirs.board;
    if (member->remote.len_bytes < sizeof(struct rdti_board))
        status = rdti_error_set(err, RDT_EPROTO, 0, "its board has %llu bytes",
                                (unsigned long long)member->remote.len_bytes);
    if (status == RDT_OK)
        status = rdt_group_endpoint(coll->group, peer, &endpoint, err);
    if (status == RDT_OK)
        status = rdt_endpoint_hold(endpoint, &member->remote, &board, err);
    if (status == RDT_OK) {
        member->endpoint = endpoint;
        member->board = board;
        *can_hold_out = true;
    }
    return status == RDT_ENOTSUP || status == RDT_ENOMEM ? RDT_OK : status;
}

static rdt_status
team_setup_hold_all(struct rdti_coll *coll, struct rdt_error *err)
{
    struct rdti_team *team = coll->team;
    struct rdti_founding *founding = team->founding;
    bool is_done = true;

    if (founding->has_board)
        founding->can_hold |= UINT64_C(1) << coll->rank;
    for (uint32_t i = 0; i < coll->size; i++) {
        bool can_hold = team->members[i].board != NULL;
        rdt_status status = RDT_OK;
        if (i == coll->rank)
            continue;
        if (!can_hold)
            status = team_setup_hold_one(coll, i, &can_hold, err);
        if (status == RDT_EAGAIN)
            is_done = false;
        else if (status != RDT_OK)
            return team_setup_with_context(coll, i, "memory of", status, err);
        if (can_hold)
            founding->can_hold |= UINT64_C(1) << i;
    }
    return is_done ? RDT_OK : RDT_EAGAIN;
}

/* Votes with the boards that this member can hold, now that every address was tried. */
static rdt_status
team_setup_begin_votes(struct rdti_coll *coll, struct rdt_error *err)
{
    struct rdti_founding *founding = coll->team->founding;
    struct rdti_founding_vote own = {.members = founding->can_hold};

    founding->phase = PHASE_VOTES;
    const rdt_status status = rdti_agreement_look(coll, &founding->must_measure, err);
    if (status != RDT_OK)
        return status;
    own.must_measure = founding->must_measure;
    rdti_founding_vote_encode(&own, founding->vote);
    return team_setup_post_all(coll, true, err);
}

static rdt_status
team_setup_read_vote(struct rdti_coll *coll, uint32_t peer, struct rdti_founding_vote *out,
                     struct rdt_error *err)
{
    const uint64_t members = UINT64_MAX >> (RDTI_TEAM_MAX - coll->size);
    const rdt_status status = rdti_founding_vote_decode(coll->team->founding->peers[peer].vote,
                                                        RDTI_FOUNDING_VOTE_BYTES, out, err);

    if (status == RDT_OK && ((out->members & ~members) != 0 || (out->must_measure && peer != 0)))
        return rdti_error_set(err, RDT_EPROTO, 0,
                              "its vote is of members that a group of %u has not, or says "
                              "that it measures, as rank 0 alone does",
                              coll->size);
    return status;
}

static rdt_status
team_setup_sort_hosts(struct rdti_coll *coll, struct rdt_error *err)
{
    struct rdti_founding *founding = coll->team->founding;
    uint64_t can_hold[RDTI_TEAM_MAX] = {0};

    for (uint32_t i = 0; i < coll->size; i++) {
        struct rdti_founding_vote vote;
        can_hold[i] = founding->can_hold;
        if (i == coll->rank)
            continue;
        const rdt_status status = team_setup_read_vote(coll, i, &vote, err);
        if (status != RDT_OK)
            return team_setup_with_context(coll, i, "vote of", status, err);
        can_hold[i] = vote.members;
        if (i == 0)
            founding->must_measure = vote.must_measure != 0;
    }
    rdti_hosts_sort(can_hold, coll->size, coll->rank, &coll->team->hosts);
    return RDT_OK;
}

static void
team_setup_decide(struct rdti_coll *coll)
{
    struct rdti_team *team = coll->team;
    struct rdti_founding *founding = team->founding;
    unsigned verdict = RDTI_VERDICT_MESSAGES;

    if (team->hosts.count == 1)
        verdict = RDTI_VERDICT_DIRECT;
    else if (team->hosts.most > 1)
        verdict = RDTI_VERDICT_HOSTS;
    if (verdict == RDTI_VERDICT_HOSTS) {
        rdti_team_split(team, founding->local);
        founding->local = NULL;
    }
    founding->phase = PHASE_OVER;
    /* release: pairs with rdti_team_verdict() */
    atomic_store_explicit(&team->verdict, verdict, memory_order_release);
}

static rdt_status
team_setup_begin(struct rdti_coll *coll, struct rdt_error *err)
{
    struct rdti_team *team = coll->team;

    team->founding =
        calloc(1, sizeof(*team->founding) + coll->size * sizeof(team->founding->peers[0]));
    if (team->founding == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "no memory to found a team of %u ranks",
                              coll->size);
    const rdt_status status = rdti_team_make(coll->size, &team->founding->local, err);
    if (status != RDT_OK)
        return status;
    team_setup_make_board(team, coll->group, team->founding);
    team->founding->phase = PHASE_ADDRESSES;
    return team_setup_post_all(coll, false, err);
}

/* Finds which members share memory. */
static rdt_status
team_setup_meet(struct rdti_coll *coll, struct rdt_error *err)
{
    struct rdti_team *team = coll->team;
    rdt_status status = RDT_OK;

    if (team->founding == NULL)
        status = team_setup_begin(coll, err);
    if (status == RDT_OK && team->founding->phase == PHASE_ADDRESSES) {
        status = team_setup_test_all(coll, RDTI_FOUNDING_ADDRESS_BYTES, err);
        if (status == RDT_OK)
            team->founding->phase = PHASE_HOLD;
    }
    if (status == RDT_OK && team->founding->phase == PHASE_HOLD) {
        status = team_setup_hold_all(coll, err);
        if (status == RDT_OK)
            status = team_setup_begin_votes(coll, err);
    }
    if (status == RDT_OK)
        status = team_setup_test_all(coll, RDTI_FOUNDING_VOTE_BYTES, err);
    return status == RDT_OK ? team_setup_sort_hosts(coll, err) : status;
}

/* The costs between hosts: rank 0 measures them, or has a table, and sends it. */
static rdt_status
team_setup_agree_on_costs(struct rdti_coll *coll, struct rdt_error *err)
{
    struct rdti_founding *founding = coll->team->founding;
    uint32_t peer = 0;
    rdt_status status = RDT_OK;

    if (founding->phase == PHASE_VOTES) {
        founding->phase = PHASE_COSTS;
        status = rdti_agreement_begin(&founding->costs, coll, founding->must_measure, err);
    }
    if (status == RDT_OK)
        status = rdti_agreement_advance(&founding->costs, coll, &peer, err);
    return status == RDT_OK || status == RDT_EAGAIN
               ? status
               : team_setup_with_context(coll, peer, "costs, with", status, err);
}

rdt_status
rdti_team_found(struct rdti_coll *coll, struct rdt_error *err)
{
    struct rdti_team *team = coll->team;
    rdt_status status = RDT_OK;

    if (team->founding == NULL || team->founding->phase < PHASE_COSTS)
        status = team_setup_meet(coll, err);
    if (status == RDT_OK && team->hosts.count > 1)
        status = team_setup_agree_on_costs(coll, err);
    if (status == RDT_OK)
        team_setup_decide(coll);
    return status;
}

bool
rdti_founding_is_quiet(struct rdti_coll *coll)
{
    struct rdti_founding *founding = coll->team->founding;
    bool is_quiet = founding == NULL || rdti_agreement_is_quiet(&founding->costs, coll);

    for (uint32_t i = 0; founding != NULL && i < coll->size; i++) {
        is_quiet &=
            rdti_coll_end_message(&founding->peers[i].recv, 0, "the set-up", NULL) != RDT_EAGAIN;
        is_quiet &=
            rdti_coll_end_message(&founding->peers[i].send, 0, "the set-up", NULL) != RDT_EAGAIN;
    }
    return is_quiet;
}

uint32_t
rdti_founding_describe(const struct rdti_coll *coll, char *text, size_t cap)
{
    const struct rdti_founding *founding = coll->team->founding;
    uint32_t late[RDTI_TEAM_MAX];
    char ranks[RDTI_COLL_RANKS_BYTES];
    uint32_t count = 0;

    for (uint32_t i = 0; founding != NULL && i < coll->size; i++)
        if (founding->peers[i].recv != NULL)
            late[count++] = i;
    if (founding != NULL && founding->phase == PHASE_COSTS)
        count = rdti_agreement_late(&founding->costs, coll, late);
    rdti_coll_name_ranks(coll, late, count, ranks, sizeof(ranks));
    (void)snprintf(text, cap, "nothing from %s (set-up of the group)", ranks);
    return rdti_coll_only_one(coll, late, count);
}

void
rdti_founding_free(struct rdti_team *team)
{
    struct rdti_founding *founding = team->founding;

    team->founding = NULL;
    for (uint32_t i = 0; founding != NULL && i < team->size; i++) {
        rdt_transfer_free(founding->peers[i].recv);
        rdt_transfer_free(founding->peers[i].send);
    }
    if (founding != NULL) {
        rdti_agreement_fini(&founding->costs);
        rdti_team_release(founding->local);
    }
    free(founding);
}
