/* SPDX-License-Identifier: Apache-2.0
 * Requests of peers for keys: answered at once, or, as wishes, once the registrar has finished. All
 * [driver]. */
#include "transport/verbs/wish.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "transport/verbs/memory/memory.h"

/* From the order of nics to the order of the offer's ports; a device may be missing there. */
static void
wish_order_keys(const struct rdti_verbs_lane *lane, struct rdti_verbs_words *key)
{
    const struct rdti_verbs_words all = *key;

    key->rkey_count = lane->own.port_count;
    memset(key->rkeys, 0, sizeof(key->rkeys));
    for (uint32_t i = 0; i < lane->own.port_count; i++)
        key->rkeys[i] = all.rkeys[lane->port_nics[i]];
}

void
rdti_verbs_send_key(struct rdti_verbs_lane *lane, struct rdti_verbs_words *key, rdt_status status,
                    const struct rdt_error *err)
{
    if (status != RDT_OK)
        rdti_log(status == RDT_ESTALE ? RDT_LOG_DEBUG : RDT_LOG_ERROR,
                 "verbs: rank %d gets no key for piece %u, region %u: %s", lane->args.peer_rank,
                 key->segment, key->index, err->message);
    if (key->kind == RDTI_VERBS_KEY)
        wish_order_keys(lane, key);
    rdti_verbs_send_words(lane, key);
}

static bool
wish_is_same(const struct rdti_verbs_words *a, const struct rdti_verbs_words *b)
{
    return a->access == b->access && a->segment == b->segment &&
           (a->segment != RDT_SEGMENT_NONE ||
            (a->index == b->index && a->generation == b->generation));
}

static void
wish_free(struct rdti_verbs_wish *wish)
{
    rdti_list_remove(&wish->link);
    free(wish);
}

rdt_status
rdti_verbs_await_grant(struct rdti_verbs_lane *lane, const struct rdti_verbs_words *get,
                       struct rdt_error *err)
{
    struct rdti_list *wishes = &lane->verbs->wishes;

    /* A peer that repeats a request before the answer would make this list grow without bound. */
    for (struct rdti_list *at = wishes->next; at != wishes; at = at->next) {
        const struct rdti_verbs_wish *wish = RDTI_CONTAINER(at, struct rdti_verbs_wish, link);

        if (wish->lane == lane && wish_is_same(&wish->get, get))
            return rdti_error_set_rank(err, RDT_EPROTO, lane->args.peer_rank,
                                       "rank %d asks twice for the key of region %u",
                                       lane->args.peer_rank, get->index);
    }
    struct rdti_verbs_wish *wish = calloc(1, sizeof(*wish));
    if (wish == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a request for a key of %zu bytes",
                              sizeof(*wish));
    wish->lane = lane;
    wish->get = *get;
    rdti_list_append(wishes, &wish->link);
    return RDT_OK;
}

void
rdti_verbs_drop_wishes(struct rdti_verbs_lane *lane)
{
    struct rdti_list *wishes = &lane->verbs->wishes;

    for (struct rdti_list *at = wishes->next, *next; at != wishes; at = next) {
        struct rdti_verbs_wish *wish = RDTI_CONTAINER(at, struct rdti_verbs_wish, link);

        next = at->next;
        if (wish->lane == lane)
            wish_free(wish);
    }
}

/* ---- News ----------------------------------------------------------------------------------- */

/* mr_lock is held. It clears the failure, so that the next request tries again. */
static void
wish_settle_failure(struct rdti_verbs *verbs, struct rdti_verbs_memory *memory)
{
    for (struct rdti_list *at = verbs->wishes.next; at != &verbs->wishes; at = at->next) {
        struct rdti_verbs_wish *wish = RDTI_CONTAINER(at, struct rdti_verbs_wish, link);

        if (!rdti_verbs_is_requested(memory, &wish->get, memory->failed))
            continue;
        wish->failed_bytes = memory->len_bytes;
        wish->error = memory->error;
    }
    /* For any purpose: else ops of this side would wait for the next attempt, and pay for it. */
    if (memory->is_source && memory->made == 0) {
        rdti_verbs_note_unregistered(verbs, &memory->error);
        memory->is_source = false;
    }
    memory->failed = 0;
    if ((memory->made | memory->wanted) == 0)
        rdti_verbs_free_memory(verbs, memory);
}

static void
wish_settle_failures(struct rdti_verbs *verbs)
{
    (void)pthread_mutex_lock(&verbs->mr_lock);
    for (struct rdti_list *at = verbs->memories.next, *next; at != &verbs->memories; at = next) {
        struct rdti_verbs_memory *memory = RDTI_CONTAINER(at, struct rdti_verbs_memory, link);

        next = at->next;
        if (memory->failed != 0)
            wish_settle_failure(verbs, memory);
    }
    (void)pthread_mutex_unlock(&verbs->mr_lock);
}

static void
wish_answer(struct rdti_verbs *verbs, struct rdti_verbs_wish *wish)
{
    rdt_status status = (rdt_status)wish->error.status;
    struct rdti_verbs_words key;

    if (wish->failed_bytes > 0)
        rdti_verbs_refuse_key(&wish->get, wish->failed_bytes, &wish->error, &key);
    else
        status = rdti_verbs_grant(verbs, &wish->get, &key, &wish->error);
    if (status == RDT_EAGAIN)
        return;
    rdti_verbs_send_key(wish->lane, &key, status, &wish->error);
    wish_free(wish);
}

bool
rdti_verbs_take_news(struct rdti_verbs *verbs)
{
    /* relaxed: the exchange orders; acquire: pairs with registrar_announce() */
    if (!atomic_load_explicit(&verbs->has_news, memory_order_relaxed) ||
        !atomic_exchange_explicit(&verbs->has_news, false, memory_order_acquire))
        return false;
    wish_settle_failures(verbs);
    for (struct rdti_list *at = verbs->wishes.next, *next; at != &verbs->wishes; at = next) {
        next = at->next;
        wish_answer(verbs, RDTI_CONTAINER(at, struct rdti_verbs_wish, link));
    }
    return true;
}
