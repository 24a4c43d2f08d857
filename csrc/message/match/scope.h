/* SPDX-License-Identifier: Apache-2.0
 * A scope: the ranks among which messages match, which is what messages need of a group. A group
 * contains one and fills it in. Everything here is under the engine's lock.
 */
#ifndef RDTI_MESSAGE_MATCH_SCOPE_H
#define RDTI_MESSAGE_MATCH_SCOPE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "message/match/match.h"
#include "rdmatensor.h"

struct rdti_mailboxes; /* message/mailboxes.h */

struct rdti_member {
    rdt_endpoint *ep; /* counted, or NULL */
    bool has_uuid;
    bool has_heard; /* what broke the group */
    uint8_t uuid[RDT_UUID_BYTES];
};

struct rdti_scope {
    struct rdti_list bucket; /* of mailboxes->scopes, while it can be found by its id */
    struct rdti_mailboxes *mailboxes;
    rdt_context *ctx;
    uint64_t id;
    uint32_t rank;
    uint32_t size;
    char *name;
    int32_t *global_ranks;       /* NULL: equal to ranks */
    struct rdti_member *members; /* by rank */
    struct rdti_matcher matcher;
    struct rdti_list requests; /* every one that has not finished */
    struct rdti_list arrivals; /* every message that waits */
    uint32_t refs;             /* the group's handles, each request */
    bool is_live;
    bool has_any_source;      /* a receive from any source was posted: none is persistent */
    struct rdt_error cause;   /* the first member that left, or whose death another reported */
    struct rdt_error refusal; /* the first member that ended a message: its half is over */
};

int32_t rdti_scope_global_rank(const struct rdti_scope *scope, uint32_t rank);
/* How messages name a member, as collectives do: "rank 1", or, where the job counts otherwise,
 * "rank 1 (global rank 3)". */
#define RDTI_RANK_NAME_BYTES 48
struct rdti_rank_name {
    char text[RDTI_RANK_NAME_BYTES];
};
struct rdti_rank_name rdti_scope_rank_name(const struct rdti_scope *scope, uint32_t rank);
/* What to blame if the group is aborted here; the first counts. */
void rdti_scope_note_cause(struct rdti_scope *scope, const struct rdt_error *err);

#endif
