/* SPDX-License-Identifier: Apache-2.0
 * The peer's memory: requests keys when memory is first used, over the authenticated side channel,
 * and keeps them as long as the lane. Refuses ops on regions that the peer freed. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/range.h"
#include "transport/verbs/flag.h"
#include "transport/verbs/keys.h"
#include "transport/verbs/lane.h"

static bool
keys_is_meant(const struct rdti_verbs_remote *remote, uint8_t access, uint32_t segment,
              uint32_t index, uint32_t generation)
{
    return remote->access == access && remote->segment == segment &&
           (segment != RDT_SEGMENT_NONE ||
            (remote->index == index && remote->generation == generation));
}

static struct rdti_verbs_remote *
keys_find(struct rdti_verbs_lane *lane, uint8_t access, uint32_t segment, uint32_t index,
          uint32_t generation)
{
    if (lane->last_remote != NULL &&
        keys_is_meant(lane->last_remote, access, segment, index, generation))
        return lane->last_remote;
    for (struct rdti_list *at = lane->remotes.next; at != &lane->remotes; at = at->next) {
        struct rdti_verbs_remote *remote = RDTI_CONTAINER(at, struct rdti_verbs_remote, link);

        if (!keys_is_meant(remote, access, segment, index, generation))
            continue;
        lane->last_remote = remote;
        return remote;
    }
    return NULL;
}

/* A generation of an index has ended when a later one is used; its keys would accumulate. */
static void
keys_forget_older(struct rdti_verbs_lane *lane, const struct rdt_remote_region *region)
{
    for (struct rdti_list *at = lane->remotes.next, *next; at != &lane->remotes; at = next) {
        struct rdti_verbs_remote *remote = RDTI_CONTAINER(at, struct rdti_verbs_remote, link);

        next = at->next;
        if (remote->segment != RDT_SEGMENT_NONE || remote->index != region->index ||
            remote->generation >= region->generation || remote->state == RDTI_VERBS_KEY_ASKED)
            continue;
        if (lane->last_remote == remote)
            lane->last_remote = NULL;
        rdti_list_remove(&remote->link);
        free(remote);
    }
}

/* `remote`: an entry whose key is requested again, or NULL. */
static rdt_status
keys_ask_for(struct rdti_verbs_lane *lane, uint8_t access, const struct rdt_remote_region *region,
             struct rdti_verbs_remote *remote, struct rdt_error *err)
{
    if (lane->asked_count == sizeof(lane->asked) / sizeof(lane->asked[0]))
        return RDT_OK; /* retried with the next push */
    if (region->segment == RDT_SEGMENT_NONE)
        keys_forget_older(lane, region);
    if (remote == NULL) {
        remote = calloc(1, sizeof(*remote));
        if (remote == NULL)
            return rdti_error_set(err, RDT_ENOMEM, 0, "a remote key of %zu bytes", sizeof(*remote));
        rdti_list_append(&lane->remotes, &remote->link);
    }
    remote->state = RDTI_VERBS_KEY_ASKED;
    remote->access = access;
    remote->segment = region->segment;
    remote->index = region->index;
    remote->generation = region->generation;
    lane->asked[lane->asked_count++] = (struct rdti_verbs_words){
        .kind = RDTI_VERBS_KEY_GET,
        .access = access,
        .segment = remote->segment,
        .index = remote->index,
        .generation = remote->generation,
    };
    return RDT_OK;
}

static rdt_status
keys_refused(const struct rdti_verbs_lane *lane, const struct rdti_verbs_remote *remote,
             struct rdt_error *err)
{
    const int32_t rank = lane->args.peer_rank;

    switch (remote->refusal) {
    case RDTI_VERBS_MEMLOCK:
        return rdti_error_set_rank(
            err, RDT_ENOMEM, rank,
            "rank %d cannot register the %llu bytes that hold region %u: RLIMIT_MEMLOCK is %llu "
            "there. " RDTI_VERBS_MEMLOCK_CURE,
            rank, (unsigned long long)remote->len_bytes, remote->index,
            (unsigned long long)remote->base);
    case RDTI_VERBS_NOT_REGISTERED:
        (void)rdti_error_set_rank(
            err, RDT_EDEVICE, rank,
            "rank %d cannot register the %llu bytes that hold region %u; its log says more", rank,
            (unsigned long long)remote->len_bytes, remote->index);
        if (err != NULL)
            err->sys_errno = (int32_t)(remote->base & 0xffff);
        return RDT_EDEVICE;
    default:
        return rdti_error_set_rank(err, RDT_ESTALE, rank,
                                   "rank %d gives no key for region %u, generation %u: it was "
                                   "freed",
                                   rank, remote->index, remote->generation);
    }
}

static rdt_status
keys_find_remote(struct rdti_verbs_lane *lane, const struct rdti_op *op, uint8_t access,
                 struct rdti_verbs_remote **out, struct rdt_error *err)
{
    const struct rdt_remote_region *region = &op->remote;
    struct rdti_verbs_remote *remote =
        keys_find(lane, access, region->segment, region->index, region->generation);

    *out = NULL;
    if (region->index == 0)
        return rdti_error_set(err, RDT_ESTALE, 0, "no region has the index 0");
    if (remote == NULL)
        return keys_ask_for(lane, access, region, NULL, err);
    if (remote->state == RDTI_VERBS_KEY_ASKED)
        return RDT_OK;
    /* A refusal because one region had ended does not apply to another region of its segment. */
    if (remote->state == RDTI_VERBS_KEY_NONE && remote->refusal == RDTI_VERBS_REGION_OVER &&
        (remote->index != region->index || remote->generation != region->generation))
        return keys_ask_for(lane, access, region, remote, err);
    if (remote->state == RDTI_VERBS_KEY_NONE)
        return keys_refused(lane, remote, err);
    const uint64_t off = region->segment == RDT_SEGMENT_NONE ? 0 : region->segment_off;
    if (!rdti_range_ok(off, region->len_bytes, remote->len_bytes))
        return rdti_error_set(err, RDT_ERANGE, 0,
                              "region %u (%llu bytes at %llu) leaves the %llu bytes of its piece",
                              region->index, (unsigned long long)region->len_bytes,
                              (unsigned long long)off, (unsigned long long)remote->len_bytes);
    *out = remote;
    return RDT_OK;
}

const struct rdti_verbs_remote *
rdti_verbs_known_key(const struct rdti_verbs_lane *lane, const struct rdti_op *op)
{
    const struct rdt_remote_region *region = &op->remote;
    const struct rdti_verbs_remote *last = lane->last_remote;
    const uint64_t off = region->segment == RDT_SEGMENT_NONE ? 0 : region->segment_off;

    return last != NULL && last->state == RDTI_VERBS_KEY_HERE && region->index != 0 &&
                   keys_is_meant(last, RDTI_VERBS_MAY_WRITE, region->segment, region->index,
                                 region->generation) &&
                   rdti_range_ok(off, region->len_bytes, last->len_bytes)
               ? last
               : NULL;
}

rdt_status
rdti_verbs_find_key(struct rdti_verbs_lane *lane, const struct rdti_op *op, bool *has_flag,
                    struct rdti_verbs_remote **out, struct rdt_error *err)
{
    const uint8_t access = op->kind == RDTI_OP_READ ? RDTI_VERBS_MAY_READ : RDTI_VERBS_MAY_WRITE;

    *has_flag = rdti_verbs_may_flag(lane, op);
    if (*has_flag) {
        const rdt_status status = keys_find_remote(lane, op, RDTI_VERBS_MAY_WRITE_STRICT, out, err);
        if (status != RDT_ENOMEM && status != RDT_EDEVICE)
            return status;
        *has_flag = false; /* the second registration failed: an immediate does not need it */
    }
    return keys_find_remote(lane, op, access, out, err);
}

/* ---- Regions that have ended ---------------------------------------------------------------- */

rdt_status
rdti_verbs_check_stale(const struct rdti_verbs_lane *lane, const struct rdti_op *op,
                       struct rdt_error *err)
{
    const struct rdt_remote_region *region = &op->remote;

    /* Generations of one index only grow. */
    if (region->index >= lane->stale_count || region->generation > lane->stale[region->index])
        return RDT_OK;
    return rdti_error_set_rank(err, RDT_ESTALE, lane->args.peer_rank,
                               "region %u of rank %d was freed: generation %u is over",
                               region->index, lane->args.peer_rank, region->generation);
}

bool
rdti_verbs_mark_stale(struct rdti_verbs_lane *lane, uint32_t index, uint32_t generation)
{
    if (index >= lane->stale_count) {
        const uint32_t count = index < 64 ? 128 : 2 * index;
        uint32_t *stale = realloc(lane->stale, (size_t)count * sizeof(*stale));

        if (stale == NULL)
            return false;
        memset(stale + lane->stale_count, 0, (size_t)(count - lane->stale_count) * sizeof(*stale));
        lane->stale = stale;
        lane->stale_count = count;
    }
    if (generation > lane->stale[index])
        lane->stale[index] = generation;
    return true;
}

/* ---- Words ---------------------------------------------------------------------------------- */

void
rdti_verbs_ask(struct rdti_verbs_lane *lane, const struct rdti_verbs_words *asked, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        rdti_verbs_send_words(lane, &asked[i]);
}

rdt_status
rdti_verbs_take_key(struct rdti_verbs_lane *lane, const struct rdti_verbs_words *words,
                    struct rdt_error *err)
{
    struct rdti_verbs_remote *remote =
        keys_find(lane, words->access, words->segment, words->index, words->generation);

    if (remote == NULL || remote->state != RDTI_VERBS_KEY_ASKED || remote->index != words->index ||
        remote->generation != words->generation)
        return rdti_error_set_rank(err, RDT_EPROTO, lane->args.peer_rank,
                                   "rank %d sent a key without a request", lane->args.peer_rank);
    if (words->kind == RDTI_VERBS_KEY_REFUSED) {
        remote->state = RDTI_VERBS_KEY_NONE;
        remote->refusal = words->refusal;
        remote->base = words->base;
        remote->len_bytes = words->len_bytes;
        return RDT_OK;
    }
    if (words->rkey_count != lane->peer.port_count)
        return rdti_error_set_rank(err, RDT_EPROTO, lane->args.peer_rank,
                                   "rank %d sent %u keys for %u ports", lane->args.peer_rank,
                                   words->rkey_count, lane->peer.port_count);
    remote->base = words->base;
    remote->len_bytes = words->len_bytes;
    memcpy(remote->rkeys, words->rkeys, sizeof(remote->rkeys));
    remote->state = RDTI_VERBS_KEY_HERE;
    return RDT_OK;
}

void
rdti_verbs_free_remotes(struct rdti_verbs_lane *lane)
{
    struct rdti_list *node;

    while ((node = rdti_list_take_first(&lane->remotes)) != NULL)
        free(RDTI_CONTAINER(node, struct rdti_verbs_remote, link));
    free(lane->stale);
}
