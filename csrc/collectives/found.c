/* SPDX-License-Identifier: Apache-2.0
 * How a team is founded: every member tells every other where its board lies, tries to hold theirs,
 * and says whether it could. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/agreement.h"
#include "collectives/coll.h"
#include "collectives/team.h"

/* Beside the tags of schedules, which have bit 63 set and bit 62 clear. */
#define TAG_FOUNDING (UINT64_C(3) << 62)

enum {
    ADDRESS_BYTES = 1 + RDT_REMOTE_REGION_BYTES, /* whether there is a board, and where */
    MEMBERS_BYTES = RDTI_TEAM_MAX / 8,
    VOTE_BYTES = MEMBERS_BYTES + 1, /* whose boards the voter can use; of rank 0: does it measure */
};

/* Groups on one host have no costs to agree on. */
enum phase { PHASE_BEGIN, PHASE_ADDRESSES, PHASE_HOLD, PHASE_VOTES, PHASE_COSTS, PHASE_OVER };

struct exchange {
    rdt_transfer *send; /* NULL: over, or not begun */
    rdt_transfer *recv;
    uint8_t address[ADDRESS_BYTES];
    uint8_t vote[VOTE_BYTES];
};

struct rdti_founding {
    enum phase phase;
    struct rdti_team *local; /* for the verdict HOSTS */
    struct rdti_agreement costs;
    uint8_t address[ADDRESS_BYTES];
    uint8_t vote[VOTE_BYTES];
    struct exchange peers[];
};

/* A board that nobody has, for lack of memory, is a vote for messages and no error. */
static void
make_board(struct rdti_team *team, rdt_group *group, struct rdti_founding *founding)
{
    struct rdt_remote_region remote;

    if (rdt_region_alloc(rdt_group_context(group), sizeof(struct rdti_board), RDT_REGION_ZERO,
                         &team->region, NULL) != RDT_OK)
        return;
    if (rdt_region_export(team->region, &remote, NULL) != RDT_OK)
        return;
    team->members[team->rank].board = rdt_region_addr(team->region);
    founding->address[0] = 1;
    rdt_remote_region_encode(&remote, founding->address + 1);
}

/* One message of each kind, in each direction, between any two members. */
static rdt_status
post(struct rdti_coll *coll, uint32_t peer, bool is_vote, struct rdt_error *err)
{
    struct rdti_founding *founding = coll->team->founding;
    struct exchange *with = &founding->peers[peer];
    struct rdt_message_desc desc = rdti_coll_desc(coll);
    void *in = is_vote ? with->vote : with->address;
    const void *out = is_vote ? founding->vote : founding->address;
    const uint64_t len_bytes = is_vote ? VOTE_BYTES : ADDRESS_BYTES;
    const uint64_t tag = TAG_FOUNDING | (is_vote ? 1 : 0);

    rdt_status status =
        rdt_group_recv(coll->group, peer, tag, in, len_bytes, &desc, &with->recv, err);
    if (status == RDT_OK)
        status = rdt_group_send(coll->group, peer, tag, out, len_bytes, &desc, &with->send, err);
    return status;
}

/* "all_reduce #0, round 1 of 2, receive from rank 3: " before what the mailbox said. */
static rdt_status
with_context(const struct rdti_coll *coll, uint32_t peer, const char *what, rdt_status status,
             struct rdt_error *err)
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
post_all(struct rdti_coll *coll, bool is_vote, struct rdt_error *err)
{
    for (uint32_t i = 0; i < coll->size; i++) {
        if (i == coll->rank)
            continue;
        const rdt_status status = post(coll, i, is_vote, err);
        if (status != RDT_OK)
            return with_context(coll, i, "exchange with", status, err);
    }
    return RDT_OK;
}

static rdt_status
test_all(struct rdti_coll *coll, uint64_t want_bytes, struct rdt_error *err)
{
    bool is_done = true;

    for (uint32_t i = 0; i < coll->size; i++) {
        struct exchange *with = &coll->team->founding->peers[i];
        rdt_status status = rdti_coll_end_message(&with->recv, want_bytes, "the set-up", err);
        if (status != RDT_OK && status != RDT_EAGAIN)
            return with_context(coll, i, "receive from", status, err);
        is_done &= status == RDT_OK;
        status = rdti_coll_end_message(&with->send, 0, "the set-up", err);
        if (status != RDT_OK && status != RDT_EAGAIN)
            return with_context(coll, i, "send to", status, err);
        is_done &= status == RDT_OK;
    }
    return is_done ? RDT_OK : RDT_EAGAIN;
}

/* RDT_OK with `can_hold_out`: whether its board can be used from here. */
static rdt_status
hold_one(struct rdti_coll *coll, uint32_t peer, bool *can_hold_out, struct rdt_error *err)
{
    struct rdti_member *member = &coll->team->members[peer];
    const uint8_t *address = coll->team->founding->peers[peer].address;
    rdt_endpoint *endpoint = NULL;
    void *board = NULL;

    *can_hold_out = false;
    if (address[0] == 0)
        return RDT_OK;
    rdt_status status =
        rdt_remote_region_decode(address + 1, RDT_REMOTE_REGION_BYTES, &member->remote, err);
    if (status == RDT_OK && member->remote.len_bytes < sizeof(struct rdti_board))
        status = rdti_coll_error_set(err, RDT_EPROTO, "its board has %llu bytes",
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

static void
vote_for(uint8_t *vote, uint32_t member)
{
    vote[member / 8] |= (uint8_t)(1U << member % 8);
}

static rdt_status
hold_all(struct rdti_coll *coll, struct rdt_error *err)
{
    struct rdti_team *team = coll->team;
    struct rdti_founding *founding = team->founding;
    bool is_done = true;

    if (founding->address[0] != 0)
        vote_for(founding->vote, coll->rank);
    for (uint32_t i = 0; i < coll->size; i++) {
        bool can_hold = team->members[i].board != NULL;
        rdt_status status = RDT_OK;
        if (i == coll->rank)
            continue;
        if (!can_hold)
            status = hold_one(coll, i, &can_hold, err);
        if (status == RDT_EAGAIN)
            is_done = false;
        else if (status != RDT_OK)
            return with_context(coll, i, "memory of", status, err);
        if (can_hold)
            vote_for(founding->vote, i);
    }
    return is_done ? RDT_OK : RDT_EAGAIN;
}

static uint64_t
read_vote(const uint8_t *vote)
{
    uint64_t members = 0;

    for (unsigned i = 0; i < MEMBERS_BYTES; i++)
        members |= (uint64_t)vote[i] << (8 * i);
    return members;
}

static void
sort_hosts(struct rdti_coll *coll)
{
    struct rdti_founding *founding = coll->team->founding;
    uint64_t can_hold[RDTI_TEAM_MAX];

    for (uint32_t i = 0; i < coll->size; i++)
        can_hold[i] = read_vote(i == coll->rank ? founding->vote : founding->peers[i].vote);
    rdti_hosts_sort(can_hold, coll->size, coll->rank, &coll->team->hosts);
}

static void
decide(struct rdti_coll *coll)
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
    /* release: partner in rdti_team_verdict() */
    atomic_store_explicit(&team->verdict, verdict, memory_order_release);
}

static rdt_status
begin(struct rdti_coll *coll, struct rdt_error *err)
{
    struct rdti_team *team = coll->team;

    team->founding =
        calloc(1, sizeof(*team->founding) + coll->size * sizeof(team->founding->peers[0]));
    if (team->founding == NULL)
        return rdti_coll_error_set(err, RDT_ENOMEM, "no memory to found a team of %u ranks",
                                   coll->size);
    const rdt_status status = rdti_team_make(coll->size, &team->founding->local, err);
    if (status != RDT_OK)
        return status;
    make_board(team, coll->group, team->founding);
    team->founding->phase = PHASE_ADDRESSES;
    return post_all(coll, false, err);
}

/* Who shares memory with whom. */
static rdt_status
meet(struct rdti_coll *coll, struct rdt_error *err)
{
    struct rdti_team *team = coll->team;
    rdt_status status = RDT_OK;

    if (team->founding == NULL)
        status = begin(coll, err);
    if (status == RDT_OK && team->founding->phase == PHASE_ADDRESSES) {
        status = test_all(coll, ADDRESS_BYTES, err);
        if (status == RDT_OK)
            team->founding->phase = PHASE_HOLD;
    }
    if (status == RDT_OK && team->founding->phase == PHASE_HOLD) {
        status = hold_all(coll, err);
        if (status == RDT_OK) {
            team->founding->phase = PHASE_VOTES;
            status = rdti_agreement_look(coll, &team->founding->vote[MEMBERS_BYTES], err);
        }
        if (status == RDT_OK)
            status = post_all(coll, true, err);
    }
    if (status == RDT_OK)
        status = test_all(coll, VOTE_BYTES, err);
    if (status == RDT_OK)
        sort_hosts(coll);
    return status;
}

/* What things cost between hosts: rank 0 measures, or has a table, and tells it. */
static rdt_status
agree_on_costs(struct rdti_coll *coll, struct rdt_error *err)
{
    struct rdti_founding *founding = coll->team->founding;
    const bool leads = coll->rank == 0;
    const uint8_t *vote = leads ? founding->vote : founding->peers[0].vote;
    uint32_t peer = 0;
    rdt_status status = RDT_OK;

    if (founding->phase == PHASE_VOTES) {
        founding->phase = PHASE_COSTS;
        status = rdti_agreement_begin(&founding->costs, coll, vote[MEMBERS_BYTES] != 0, err);
    }
    if (status == RDT_OK)
        status = rdti_agreement_advance(&founding->costs, coll, &peer, err);
    return status == RDT_OK || status == RDT_EAGAIN
               ? status
               : with_context(coll, peer, "costs, with", status, err);
}

rdt_status
rdti_team_found(struct rdti_coll *coll, struct rdt_error *err)
{
    struct rdti_team *team = coll->team;
    rdt_status status = RDT_OK;

    if (team->founding == NULL || team->founding->phase < PHASE_COSTS)
        status = meet(coll, err);
    if (status == RDT_OK && team->hosts.count > 1)
        status = agree_on_costs(coll, err);
    if (status == RDT_OK)
        decide(coll);
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
