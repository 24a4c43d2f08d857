/* SPDX-License-Identifier: Apache-2.0
 * Protocols on endpoints: messages, slots and groups hand these tables to the context, so that an
 * endpoint can call them without depending on them. */
#ifndef RDTI_ENDPOINT_PROTOCOL_H
#define RDTI_ENDPOINT_PROTOCOL_H

#include <stdbool.h>
#include <stdint.h>

#include "process/process.h"
#include "progress/transfer.h"
#include "rdmatensor.h"
#include "wire/endpoint/frame.h"
#include "wire/notify.h"

/* The order of attach, on_ready, on_ended and detach. */
enum { RDTI_PROTOCOL_MESSAGES, RDTI_PROTOCOL_SLOTS, RDTI_PROTOCOLS };

/* Each endpoint has its own state. All but attach are [driver]. */
struct rdti_protocol {
    rdt_status (*attach)(rdt_endpoint *ep, void **state_out, struct rdt_error *err);
    /* No handle of the endpoint is left. */
    void (*detach)(void *state);
    /* The endpoint is READY: queued data goes out. */
    void (*on_ready)(void *state);
    void (*on_ended)(void *state, const struct rdt_error *err);
    /* A heartbeat is due. NULL: the protocol ignores it. */
    void (*on_beat)(void *state);
    /* Nothing local is queued or unacknowledged. NULL: always idle. */
    bool (*is_idle)(const void *state);
    /* RDT_EPROTO: the peer may not send that, and the endpoint ends. */
    rdt_status (*on_notify)(void *state, enum rdti_notify_kind kind, uint32_t value, uint32_t epoch,
                            struct rdt_error *err);
    rdt_status (*on_frame)(void *state, enum rdti_frame_type type, const uint8_t *payload,
                           uint32_t payload_bytes, struct rdt_error *err);
    /* Slots only: the name of the slot whose buffers are the region of this index, or NULL;
     * *off_bytes, an offset in the region, becomes the offset in its buffer. */
    const char *(*name_at)(const void *state, uint32_t index, uint64_t *off_bytes);
};

/* Receives the processes that die or leave; one for the context. All [driver]. */
struct rdti_membership {
    void (*on_death)(rdt_context *ctx, const struct rdti_obituary *news);
    void (*on_left)(rdt_context *ctx, rdt_endpoint *ep, const struct rdt_error *err);
    void (*on_abort)(rdt_context *ctx, const struct rdti_abort *abort, rdt_endpoint *source);
    /* How many processes peers may report on. */
    uint64_t (*rank_count)(const rdt_context *ctx);
};

/* Posting where payload is verified (struct rdt_context_opts). */
struct rdti_filter {
    /* The extra block, or NULL, describes bytes that belong to the write and are in the peer's
     * memory already. */
    rdt_status (*write)(rdt_endpoint *ep, struct rdt_transfer *t, const struct rdt_block *in_place,
                        struct rdt_error *err);
    /* *t is replaced by the transfer that ends once the bytes were compared. */
    rdt_status (*read)(rdt_endpoint *ep, struct rdt_transfer **t, struct rdt_error *err);
};

/* The tables that a context's endpoints call. Static. */
struct rdti_upcalls {
    const struct rdti_protocol *protocols[RDTI_PROTOCOLS];
    const struct rdti_membership *membership;
    const struct rdti_filter *filter;
};

#endif
