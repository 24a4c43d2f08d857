/* SPDX-License-Identifier: Apache-2.0
 * What the mailboxes of a context share: memory, the scopes that live, and the table by which
 * messages call the groups above them. Everything but create is under the engine's lock.
 */
#ifndef RDTI_MESSAGE_MAILBOXES_H
#define RDTI_MESSAGE_MAILBOXES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "message/match/buffer_pool.h"
#include "rdmatensor.h"
#include "wire/endpoint/message.h"

struct rdti_mailbox;
struct rdti_scope;

#define RDTI_SCOPE_BUCKETS 64

/* What groups do for messages; one for the context. All [driver]. */
struct rdti_message_sink {
    /* An eager message or an RTS came through a mailbox. The payload is copied where it is kept.
     * RDT_EPROTO: no such member, RDT_ENOMEM. */
    rdt_status (*on_arrival)(struct rdti_mailbox *m, const struct rdti_message *head,
                             const uint8_t *payload, const struct rdti_rts *rts,
                             struct rdt_error *err);
    /* The peer uses this path for its half of the scope, which keeps it as long as it lives.
     * RDT_EPROTO: the peer cannot be the member that it says it is. */
    rdt_status (*on_interest)(struct rdti_mailbox *m, uint64_t scope_id, uint32_t source,
                              struct rdt_error *err);
    /* A path has become ready. */
    void (*on_ready)(rdt_context *ctx);
    /* Kept messages of a mailbox and tag are matched with receives now, or wait for them. */
    void (*hand_out)(struct rdti_scope *scope, struct rdti_mailbox *m, uint64_t tag);
    /* The last reference to the scope is gone. */
    void (*on_unused)(struct rdti_scope *scope);
};

struct rdti_mailboxes {
    rdt_context *ctx;
    const struct rdti_message_sink *sink;
    struct rdti_list all;                        /* struct rdti_mailbox */
    struct rdti_list scopes[RDTI_SCOPE_BUCKETS]; /* struct rdti_scope by id */
    struct rdti_pool requests;
    struct rdti_pool arrivals;
    struct rdti_parcels parcels;
    bool has_refused_task; /* it ends the streams of refused writes (persistent_send.c) */
};

rdt_status rdti_mailboxes_create(rdt_context *ctx, const struct rdti_message_sink *sink,
                                 struct rdti_mailboxes **out, struct rdt_error *err);
/* No endpoint and no group is left. NULL is allowed. */
void rdti_mailboxes_destroy(struct rdti_mailboxes *mailboxes);

/* Makes the scope known by its id, until it is removed. */
void rdti_scope_add(struct rdti_scope *scope);
void rdti_scope_remove(struct rdti_scope *scope);
/* NULL: no live scope has that id here. */
struct rdti_scope *rdti_scope_find(const struct rdti_mailboxes *mailboxes, uint64_t id);
void rdti_scope_unref(struct rdti_scope *scope);

#endif
