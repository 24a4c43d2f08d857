/* SPDX-License-Identifier: Apache-2.0
 * What the mailboxes of a context share. */
#include "message/mailboxes.h"

#include <stdlib.h>

#include "base/error.h"
#include "message/mailbox_impl.h"
#include "message/match/scope.h"
#include "message/request_impl.h"

#define REQUESTS_KEEP 1024
#define ARRIVALS_KEEP 1024

rdt_status
rdti_mailboxes_create(rdt_context *ctx, const struct rdti_message_sink *sink,
                      struct rdti_mailboxes **out, struct rdt_error *err)
{
    struct rdti_mailboxes *mailboxes = calloc(1, sizeof(*mailboxes));

    if (mailboxes == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a table of mailboxes of %zu bytes",
                              sizeof(*mailboxes));
    mailboxes->ctx = ctx;
    mailboxes->sink = sink;
    rdti_list_init(&mailboxes->all);
    for (uint32_t i = 0; i < RDTI_SCOPE_BUCKETS; i++)
        rdti_list_init(&mailboxes->scopes[i]);
    rdti_pool_init(&mailboxes->requests, sizeof(struct rdti_request), REQUESTS_KEEP);
    rdti_pool_init(&mailboxes->arrivals, sizeof(struct rdti_arrival), ARRIVALS_KEEP);
    rdti_parcels_init(&mailboxes->parcels, ctx->engine);
    *out = mailboxes;
    return RDT_OK;
}

void
rdti_mailboxes_destroy(struct rdti_mailboxes *mailboxes)
{
    struct rdti_list *node;

    if (mailboxes == NULL)
        return;
    /* Left over: mailboxes whose task never ran again. */
    while ((node = rdti_list_take_first(&mailboxes->all)) != NULL) {
        struct rdti_mailbox *m = RDTI_CONTAINER(node, struct rdti_mailbox, link);
        free(m->ids);
        free(m);
    }
    rdti_pool_clear(&mailboxes->requests);
    rdti_pool_clear(&mailboxes->arrivals);
    rdti_parcels_clear(&mailboxes->parcels);
    free(mailboxes);
}

void
rdti_scope_add(struct rdti_scope *scope)
{
    rdti_list_append(&scope->mailboxes->scopes[scope->id % RDTI_SCOPE_BUCKETS], &scope->bucket);
}

void
rdti_scope_remove(struct rdti_scope *scope)
{
    rdti_list_remove(&scope->bucket);
}

struct rdti_scope *
rdti_scope_find(const struct rdti_mailboxes *mailboxes, uint64_t id)
{
    const struct rdti_list *bucket = &mailboxes->scopes[id % RDTI_SCOPE_BUCKETS];

    for (struct rdti_list *node = bucket->next; node != bucket; node = node->next) {
        struct rdti_scope *scope = RDTI_CONTAINER(node, struct rdti_scope, bucket);
        if (scope->id == id)
            return scope;
    }
    return NULL;
}

void
rdti_scope_unref(struct rdti_scope *scope)
{
    if (--scope->refs == 0)
        scope->mailboxes->sink->on_unused(scope);
}
