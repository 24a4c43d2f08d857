/* SPDX-License-Identifier: Apache-2.0
 * What stands on endpoints: messages, slots and groups hand these tables to the context, so that
 * an endpoint calls them and knows none of them. */
#ifndef RDTI_ENDPOINT_PROTOCOL_H
#define RDTI_ENDPOINT_PROTOCOL_H

#include <stdbool.h>
#include <stdint.h>

#include "process/process.h"
#include "progress/transfer.h"
#include "rdmatensor.h"
#include "wire/frame.h"
#include "wire/notify.h"

/* Their order is that of attach, on_ready, on_ended and detach. */
enum { RDTI_PROTOCOL_MESSAGES, RDTI_PROTOCOL_SLOTS, RDTI_PROTOCOLS };

/* One for each endpoint. All but attach are [driver]. */
struct rdti_protocol {
    rdt_status (*attach)(rdt_endpoint *ep, void **state_out, struct rdt_error *err);
    /* No handle of it is left. */
    void (*detach)(void *state);
    /* The endpoint is READY: what waited goes out. */
    void (*on_ready)(void *state);
    void (*on_ended)(void *state, const struct rdt_error *err);
    /* A heartbeat is due. NULL: it is none of its business. */
    void (*on_beat)(void *state);
    /* Nothing of ours is queued or unacknowledged. NULL: never is. */
    bool (*is_idle)(const void *state);
    /* RDT_EPROTO: the peer may not have sent that, and the endpoint ends. */
    rdt_status (*on_notify)(void *state, enum rdti_notify_kind kind, uint32_t value, uint32_t epoch,
                            struct rdt_error *err);
    rdt_status (*on_frame)(void *state, enum rdti_frame_type type, const uint8_t *payload,
                           uint32_t payload_bytes, struct rdt_error *err);
    /* Of slots: the name of the one whose buffers are the region of this index, or NULL;
     * *off_bytes, in the region, becomes the offset in its buffer. */
    const char *(*name_at)(const void *state, uint32_t index, uint64_t *off_bytes);
};

/* What hears of processes that die or leave; one for the context. All [driver]. */
struct rdti_membership {
    void (*on_death)(rdt_context *ctx, const struct rdti_obituary *news);
    void (*on_left)(rdt_context *ctx, rdt_endpoint *ep, const struct rdt_error *err);
    void (*on_abort)(rdt_context *ctx, const struct rdti_abort *abort, rdt_endpoint *source);
    /* How many processes peers may tell of. */
    uint64_t (*rank_count)(const rdt_context *ctx);
};

/* Posting where payload is verified (struct rdt_context_opts). */
struct rdti_filter {
    /* `born`: what is in the peer's memory already and belongs to the write, or NULL. */
    rdt_status (*write)(rdt_endpoint *ep, struct rdt_transfer *t, const struct rdt_block *born,
                        struct rdt_error *err);
    /* *t is replaced by the transfer that ends when the bytes were compared. */
    rdt_status (*read)(rdt_endpoint *ep, struct rdt_transfer **t, struct rdt_error *err);
};

/* What a context's endpoints call. Static. */
struct rdti_upcalls {
    const struct rdti_protocol *protocols[RDTI_PROTOCOLS];
    const struct rdti_membership *membership;
    const struct rdti_filter *filter;
};

#endif
