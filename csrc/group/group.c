/* SPDX-License-Identifier: Apache-2.0
 * Groups: members and their endpoints. How a group ends is group_end.c. */
#include "group/group.h"

#include <stdlib.h>
#include <string.h>

#include "base/crypto.h"
#include "base/error.h"
#include "base/system/fork.h"
#include "endpoint/failures.h"
#include "group/group_impl.h"
#include "message/mailbox_impl.h"
#include "wire/address.h"
#include "rdmatensor_ext.h"

/* `source` of a message has 16 bits. */
#define GROUP_SIZE_MAX 65535

/* ---- The table --------------------------------------------------------------------------- */

rdt_status
rdti_groups_create(rdt_context *ctx, struct rdti_groups **out, struct rdt_error *err)
{
    struct rdti_groups *groups = calloc(1, sizeof(*groups));

    if (groups == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a table of groups of %zu bytes",
                              sizeof(*groups));
    groups->ctx = ctx;
    rdti_list_init(&groups->all);
    *out = groups;
    return RDT_OK;
}

rdt_status
rdti_groups_check_empty(struct rdti_groups *groups, struct rdt_error *err)
{
    rdti_engine_enter(groups->ctx->engine);
    const bool is_empty = rdti_list_is_empty(&groups->all);
    const uint32_t live_count = groups->live_count;
    rdti_engine_leave(groups->ctx->engine);
    if (is_empty)
        return RDT_OK;
    if (live_count > 0)
        return rdti_error_set(err, RDT_EBUSY, 0, "%u groups were not destroyed", live_count);
    return rdti_error_set(err, RDT_EBUSY, 0,
                          "a destroyed group has operations or persistent collectives");
}

rdt_status
rdti_groups_destroy(struct rdti_groups *groups, struct rdt_error *err)
{
    if (groups == NULL)
        return RDT_OK;
    const rdt_status status = rdti_groups_check_empty(groups, err);
    if (status != RDT_OK)
        return status;
    free(groups);
    return RDT_OK;
}

rdt_group *
rdti_groups_find(struct rdti_groups *groups, uint64_t id)
{
    struct rdti_scope *scope = rdti_scope_find(groups->ctx->mailboxes, id);

    return scope != NULL ? rdti_group_of(scope) : NULL;
}

const struct rdti_gone *
rdti_groups_find_gone(const struct rdti_groups *groups, uint64_t id)
{
    const uint32_t known =
        groups->gone_count < RDTI_GROUPS_GONE ? groups->gone_count : RDTI_GROUPS_GONE;

    for (uint32_t i = 0; i < known; i++)
        if (groups->gone[i].group_id == id)
            return &groups->gone[i];
    return NULL;
}

int32_t
rdt_group_global_rank(const rdt_group *group, uint32_t rank)
{
    return rank < group->scope.size ? rdti_scope_global_rank(&group->scope, rank)
                                    : RDT_RANK_UNKNOWN;
}

/* ---- Members ----------------------------------------------------------------------------- */

/* The address identifies the member's process, which may be known to be dead. */
static rdt_status
group_note_identity(rdt_group *group, uint32_t rank, const uint8_t *bytes, size_t len_bytes,
                    struct rdt_error *err)
{
    struct rdti_member *member = &group->scope.members[rank];
    struct rdti_address address;
    const rdt_status status = rdti_address_decode(bytes, len_bytes, &address, err);

    if (status != RDT_OK)
        return status;
    rdti_engine_enter(group->scope.ctx->engine);
    memcpy(member->uuid, address.uuid, RDT_UUID_BYTES);
    member->has_uuid = true;
    const struct rdti_obituary *news = rdti_context_find_obituary(group->scope.ctx, address.uuid);
    if (news != NULL)
        rdti_groups_on_death(group->groups, news);
    const rdt_status broken =
        group->state != RDTI_GROUP_LIVE ? rdti_error_copy(err, &group->error) : RDT_OK;
    rdti_engine_leave(group->scope.ctx->engine);
    return broken;
}

/* Gets the member's address by the program's address function. */
static rdt_status
group_get_address(rdt_group *group, uint32_t rank, uint8_t address[RDT_ADDRESS_MAX_BYTES],
                  size_t *len_out, struct rdt_error *err)
{
    struct rdt_error why = {.peer_rank = RDT_RANK_UNKNOWN};
    const rdt_status status = group->address(group->address_arg, rank, rdt_group_timeout(group),
                                             address, RDT_ADDRESS_MAX_BYTES, len_out, &why);

    if (status == RDT_OK)
        return RDT_OK;
    if (why.message[0] == '\0')
        (void)rdti_error_set(&why, status, 0, "the address of %s did not come",
                             rdti_scope_rank_name(&group->scope, rank).text);
    why.status = status;
    if (status == RDT_ETIMEDOUT) {
        if (why.peer_rank == RDT_RANK_UNKNOWN)
            why.peer_rank = rdti_scope_global_rank(&group->scope, rank);
        rdti_engine_enter(group->scope.ctx->engine);
        group->suspect = why;
        rdti_engine_leave(group->scope.ctx->engine);
    }
    if (err != NULL)
        *err = why;
    return status;
}

/* Without a lock: the store may take its time. Two threads at once both do it, and the second
 * reference is returned. */
static rdt_status
group_open_member(rdt_group *group, uint32_t rank, struct rdt_error *err)
{
    const struct rdt_endpoint_opts opts = {
        .struct_size = sizeof(opts),
        .peer_rank = rdti_scope_global_rank(&group->scope, rank),
        .timeout_ns = rdt_group_timeout(group),
        .job_id = group->job_id,
    };
    uint8_t address[RDT_ADDRESS_MAX_BYTES];
    size_t len_bytes = 0;
    rdt_endpoint *ep = NULL;
    rdt_status status = group_get_address(group, rank, address, &len_bytes, err);

    if (status == RDT_OK)
        status = group_note_identity(group, rank, address, len_bytes, err);
    if (status == RDT_OK)
        status = rdt_endpoint_open(group->scope.ctx, address, len_bytes, &opts, &ep, err);
    if (status != RDT_OK)
        return status;
    rdti_engine_enter(group->scope.ctx->engine);
    const bool is_new = group->scope.members[rank].ep == NULL;
    rdti_member_hold(group, rank, ep);
    if (is_new)
        rdti_mailbox_show_interest(rdti_mailbox_of(ep), group->scope.id, group->scope.rank);
    if (group->scope.members[rank].ep == NULL) { /* it has ended already */
        status = rdti_endpoint_error(ep, err);
        status = status != RDT_OK ? status
                                  : rdti_error_set(err, RDT_ECLOSED, 0, "the endpoint is closing");
    }
    rdt_endpoint_close(ep); /* the group has its own reference, or had one */
    rdti_engine_leave(group->scope.ctx->engine);
    return status;
}

/* [driver] The first member that `peer` stands for and that has no endpoint; size: all have. */
static uint32_t
group_find_missing(const rdt_group *group, uint32_t peer)
{
    if (peer != RDT_SOURCE_ANY)
        return peer == group->scope.rank || group->scope.members[peer].ep != NULL
                   ? group->scope.size
                   : peer;
    if (group->opened == group->scope.size - 1)
        return group->scope.size;
    for (uint32_t i = 0; i < group->scope.size; i++)
        if (i != group->scope.rank && group->scope.members[i].ep == NULL)
            return i;
    return group->scope.size;
}

rdt_status
rdti_group_enter(rdt_group *group, uint32_t peer, struct rdt_error *err)
{
    struct rdti_engine *engine = group->scope.ctx->engine;
    const bool is_task = rdti_engine_is_driver(engine);
    rdt_status status = RDT_OK;

    for (;;) {
        rdti_engine_enter(engine);
        const uint32_t missing = group_find_missing(group, peer);
        if (group->state != RDTI_GROUP_LIVE)
            status = rdti_error_copy(err, &group->error);
        else if (missing == group->scope.size)
            return RDT_OK;
        else if (is_task)
            status = rdti_error_set_rank(
                err, RDT_EAGAIN, rdti_scope_global_rank(&group->scope, missing),
                "the endpoint of %s is not open, and a task must not wait for its address: "
                "call rdt_group_endpoint() first",
                rdti_scope_rank_name(&group->scope, missing).text);
        rdti_engine_leave(engine);
        if (status == RDT_OK)
            status = group_open_member(group, missing, err);
        if (status != RDT_OK)
            return status;
    }
}

static rdt_status
group_left_error(const rdt_group *group, uint32_t rank, struct rdt_error *err)
{
    return rdti_endpoint_error(group->scope.members[rank].ep, err);
}

rdt_status
rdti_group_can_receive(rdt_group *group, uint32_t src, struct rdt_error *err)
{
    if (src == group->scope.rank)
        return RDT_OK;
    if (src != RDT_SOURCE_ANY)
        return group_left_error(group, src, err);
    for (uint32_t i = 0; i < group->scope.size; i++)
        if (i != group->scope.rank && !rdti_endpoint_is_ended(group->scope.members[i].ep))
            return RDT_OK;
    return group->scope.size == 1 ? RDT_OK
                                  : group_left_error(group, group->scope.rank == 0 ? 1 : 0, err);
}

/* ---- Creation ---------------------------------------------------------------------------- */

static uint64_t
group_make_id(const char *job_id, const char *name)
{
    const size_t job_bytes = strlen(job_id) + 1; /* with its NUL, so that nothing runs together */
    const size_t name_bytes = strlen(name) + 1;
    char text[RDTI_JOB_ID_BYTES + 512];

    memcpy(text, job_id, job_bytes);
    memcpy(text + job_bytes, name, name_bytes);
    return rdti_hash64(text, job_bytes + name_bytes);
}

/* over budget: one check per option, each with its message. */
static rdt_status
group_check_opts(const struct rdt_group_opts *opts, struct rdt_error *err)
{
    if (opts == NULL || opts->struct_size < sizeof(*opts) || opts->reserved != 0)
        return rdti_error_set(
            err, RDT_EINVAL, 0,
            "group_create: opts, its struct_size and zero in reserved are needed");
    if (opts->size == 0 || opts->size > GROUP_SIZE_MAX || opts->rank >= opts->size)
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "group_create: rank %u of %u; a group has 1 to %d members",
                              opts->rank, opts->size, GROUP_SIZE_MAX);
    if (opts->name == NULL || strnlen(opts->name, 512) == 512)
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "group_create: a name of less than 512 bytes is needed");
    if (opts->job_id == NULL || strnlen(opts->job_id, RDTI_JOB_ID_BYTES) == RDTI_JOB_ID_BYTES)
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "group_create: a job_id of less than %d bytes is needed",
                              RDTI_JOB_ID_BYTES);
    if (opts->address == NULL && opts->size > 1)
        return rdti_error_set(err, RDT_EINVAL, 0, "group_create: the address function is NULL");
    return RDT_OK;
}

static void
group_free(rdt_group *group)
{
    free(group->scope.name);
    free(group->job_id);
    free(group->scope.global_ranks);
    free(group->scope.members);
    rdti_matcher_clear(&group->scope.matcher);
    free(group);
}

static rdt_status
group_new(rdt_context *ctx, const struct rdt_group_opts *opts, rdt_group **out,
          struct rdt_error *err)
{
    rdt_group *group = calloc(1, sizeof(*group));

    if (group == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a group of %zu bytes", sizeof(*group));
    rdt_status status = rdti_matcher_init(&group->scope.matcher, err);
    if (status != RDT_OK) {
        free(group);
        return status;
    }
    group->scope.ctx = ctx;
    group->scope.mailboxes = ctx->mailboxes;
    group->scope.is_live = true;
    group->groups = ctx->groups;
    group->scope.rank = opts->rank;
    group->scope.size = opts->size;
    group->scope.name = strdup(opts->name);
    group->job_id = strdup(opts->job_id);
    group->scope.members = calloc(opts->size, sizeof(*group->scope.members));
    if (opts->global_ranks != NULL)
        group->scope.global_ranks = malloc(sizeof(*group->scope.global_ranks) * opts->size);
    if (group->scope.name == NULL || group->job_id == NULL || group->scope.members == NULL ||
        (opts->global_ranks != NULL && group->scope.global_ranks == NULL)) {
        group_free(group);
        return rdti_error_set(err, RDT_ENOMEM, 0, "a group of %u members", opts->size);
    }
    if (opts->global_ranks != NULL)
        memcpy(group->scope.global_ranks, opts->global_ranks,
               sizeof(*group->scope.global_ranks) * opts->size);
    group->scope.id = group_make_id(opts->job_id, opts->name);
    group->address = opts->address;
    group->address_arg = opts->address_arg;
    group->scope.refs = 1;
    rdti_list_init(&group->scope.requests);
    rdti_list_init(&group->scope.arrivals);
    rdt_group_set_timeout(group, opts->timeout_ns);
    *out = group;
    return RDT_OK;
}

static void
group_catch_up_with(rdt_group *group, struct rdti_mailbox *m)
{
    rdti_group_adopt(group, &m->orphans);
    for (uint32_t i = 0; i < RDTI_INTERESTS; i++) {
        struct rdti_interest *interest = &m->interests[i];
        if (interest->group_id != group->scope.id || m->has_ended)
            continue;
        struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
        interest->group_id = 0;
        if (rdti_group_on_interest(m, group->scope.id, interest->source, &err) != RDT_OK)
            rdti_endpoint_fail(m->ep, &err, false);
    }
}

/* Takes over what arrived before the group existed: messages, notices of interest, and an abort. */
static void
group_catch_up(rdt_group *group)
{
    struct rdti_groups *groups = group->groups;
    struct rdti_list *all = &groups->ctx->mailboxes->all;
    const uint32_t known =
        groups->early_count < RDTI_ABORTS_EARLY ? groups->early_count : RDTI_ABORTS_EARLY;

    for (struct rdti_list *node = all->next; node != all; node = node->next)
        group_catch_up_with(group, RDTI_CONTAINER(node, struct rdti_mailbox, link));
    for (uint32_t i = 0; i < known; i++) {
        const struct rdti_abort abort = groups->early[i];
        if (abort.group_id == group->scope.id)
            rdti_groups_on_abort(groups, &abort, NULL);
    }
}

rdt_status
rdt_group_create(rdt_context *ctx, const struct rdt_group_opts *opts, rdt_group **out,
                 struct rdt_error *err)
{
    rdt_group *group = NULL;
    rdt_status status = rdti_context_check(ctx, "group_create", err);

    if (status == RDT_OK)
        status = group_check_opts(opts, err);
    if (status == RDT_OK && out == NULL)
        status = rdti_error_set(err, RDT_EINVAL, 0, "group_create: out is NULL");
    if (status == RDT_OK)
        status = group_new(ctx, opts, &group, err);
    if (status != RDT_OK)
        return status;
    rdti_engine_enter(ctx->engine);
    if (rdti_groups_find(ctx->groups, group->scope.id) != NULL) {
        rdti_engine_leave(ctx->engine);
        status = rdti_error_set(err, RDT_EINVAL, 0,
                                "group_create: a group of the name '%s' lives already", opts->name);
        group_free(group);
        return status;
    }
    rdti_scope_add(&group->scope);
    rdti_list_append(&ctx->groups->all, &group->link);
    ctx->groups->live_count++;
    group_catch_up(group);
    rdti_engine_leave(ctx->engine);
    *out = group;
    return RDT_OK;
}

void
rdti_group_free(struct rdti_scope *scope)
{
    rdt_group *group = rdti_group_of(scope);

    rdti_list_remove(&group->link);
    group_free(group);
}

void
rdt_group_retain(rdt_group *group)
{
    if (rdti_in_forked_child()) /* a thread of the parent may have held the lock */
        return;
    rdti_engine_enter(group->scope.ctx->engine);
    group->scope.refs++;
    rdti_engine_leave(group->scope.ctx->engine);
}

void
rdt_group_release(rdt_group *group)
{
    struct rdti_engine *engine = group->scope.ctx->engine;

    if (rdti_in_forked_child())
        return;
    rdti_engine_enter(engine);
    rdti_scope_unref(&group->scope);
    rdti_engine_leave(engine);
}

/* ---- Small calls ------------------------------------------------------------------------- */

uint32_t
rdt_group_rank(const rdt_group *group)
{
    return group->scope.rank;
}

uint32_t
rdt_group_size(const rdt_group *group)
{
    return group->scope.size;
}

rdt_context *
rdt_group_context(rdt_group *group)
{
    return group->scope.ctx;
}

void
rdt_group_set_timeout(rdt_group *group, uint64_t timeout_ns)
{
    const bool is_default = timeout_ns == 0 || timeout_ns == RDT_TIMEOUT_DEFAULT;

    /* relaxed, all three: a number of its own */
    atomic_store_explicit(&group->timeout_ns,
                          is_default ? group->scope.ctx->opts.timeout_ns : timeout_ns,
                          memory_order_relaxed);
}

uint64_t
rdt_group_timeout(const rdt_group *group)
{
    return atomic_load_explicit(&group->timeout_ns, memory_order_relaxed);
}

uint64_t
rdt_group_next_sequence(rdt_group *group)
{
    return atomic_fetch_add_explicit(&group->sequence, 1, memory_order_relaxed) + 1;
}

rdt_status
rdt_group_attach(rdt_group *group, void *state, void (*detach)(void *state), struct rdt_error *err)
{
    rdt_status status = rdti_context_check(group->scope.ctx, "group_attach", err);

    if (status != RDT_OK)
        return status;
    rdti_engine_enter(group->scope.ctx->engine);
    if (atomic_load_explicit(&group->attached, memory_order_relaxed) != 0) {
        status =
            rdti_error_set(err, RDT_EBUSY, 0, "group_attach: '%s' has a state", group->scope.name);
    } else {
        group->detach = detach;
        /* release: pairs with rdt_group_attached() */
        atomic_store_explicit(&group->attached, (uintptr_t)state, memory_order_release);
    }
    rdti_engine_leave(group->scope.ctx->engine);
    return status;
}

void *
rdt_group_attached(const rdt_group *group)
{
    /* acquire: pairs with rdt_group_attach() */
    return (void *)atomic_load_explicit(&group->attached, memory_order_acquire);
}

rdt_status
rdt_group_endpoint(rdt_group *group, uint32_t rank, rdt_endpoint **out, struct rdt_error *err)
{
    if (group == NULL || out == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "group_endpoint: the group or out is NULL");
    rdt_status status = rdti_context_check(group->scope.ctx, "group_endpoint", err);
    if (status == RDT_OK && (rank >= group->scope.size || rank == group->scope.rank))
        status =
            rdti_error_set(err, RDT_EINVAL, 0, "group_endpoint: rank %u, but this is rank %u of %u",
                           rank, group->scope.rank, group->scope.size);
    if (status == RDT_OK)
        status = rdti_group_enter(group, rank, err);
    if (status != RDT_OK)
        return status;
    *out = group->scope.members[rank].ep;
    rdti_engine_leave(group->scope.ctx->engine);
    return RDT_OK;
}
