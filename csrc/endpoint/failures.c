/* SPDX-License-Identifier: Apache-2.0
 * Processes known to be dead: the first news of each is kept and passed on. News of processes that
 * this one never met comes from peers alone, which may report anything: the number remembered is
 * limited to the number of ranks that they could be. News that is not remembered is not passed on
 * either, or two processes that forget would send it to each other for ever. Also peers that were
 * refused permanently, so that their leaving can be explained later. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "endpoint/endpoint_impl.h"
#include "endpoint/failures.h"

/* Without a group, or with small ones: ranks that died in earlier lives of the job. */
#define HEARSAY_LEAST 256
/* Only the last are kept: a peer with the secret may connect any number of times under new
 * names. */
#define REJECTIONS_MAX 64

const struct rdti_obituary *
rdti_context_find_obituary(const rdt_context *ctx, const uint8_t uuid[RDT_UUID_BYTES])
{
    for (const struct rdti_list *node = ctx->obituaries.next; node != &ctx->obituaries;
         node = node->next) {
        const struct rdti_obituary *obituary =
            RDTI_CONTAINER(node, const struct rdti_obituary, link);
        if (memcmp(obituary->uuid, uuid, RDT_UUID_BYTES) == 0)
            return obituary;
    }
    return NULL;
}

static void
failures_tell(rdt_endpoint *ep, const struct rdti_obituary *news)
{
    struct rdti_death death = {.rank = news->rank};
    uint8_t payload[RDTI_FRAME_PAYLOAD_MAX];

    memcpy(death.uuid, news->uuid, RDT_UUID_BYTES);
    rdti_text_copy(death.reason, sizeof(death.reason), news->reason);
    rdti_channel_send(ep->channel, RDTI_FRAME_DEATH, payload, rdti_death_encode(&death, payload),
                      NULL, 0);
}

/* All processes hold the same ones for dead. A process that is alive all the same (only another
 * peer's link to it is down, or it was stopped) is notified and must not go on half-way: it would
 * take this side's silence for a death. */
static void
failures_end_as_dead(rdt_endpoint *ep, const struct rdti_obituary *news)
{
    struct rdt_error err = {.peer_rank = rdti_endpoint_rank(ep)};

    /* The report may be faster than what the peer itself sent, which lies in place already. */
    if (!rdti_endpoint_is_ended(ep) && rdti_endpoint_get_state(ep) != RDTI_EP_CONNECTING)
        rdti_endpoint_take_arrivals(ep);
    (void)rdti_error_set_rank(&err, RDT_EPEER, news->rank, "%s", news->reason);
    rdti_endpoint_fail(ep, &err, true);
}

void
rdti_context_tell_obituaries(rdt_context *ctx, rdt_endpoint *ep)
{
    for (const struct rdti_list *node = ctx->obituaries.next; node != &ctx->obituaries;
         node = node->next) {
        const struct rdti_obituary *obituary =
            RDTI_CONTAINER(node, const struct rdti_obituary, link);
        failures_tell(ep, obituary);
    }
}

static bool
failures_has_met(const rdt_context *ctx, const uint8_t uuid[RDT_UUID_BYTES])
{
    for (const struct rdti_list *node = ctx->endpoints.next; node != &ctx->endpoints;
         node = node->next)
        if (memcmp(RDTI_CONTAINER(node, const rdt_endpoint, link)->uuid, uuid, RDT_UUID_BYTES) == 0)
            return true;
    return false;
}

/* False, logged once: no more of what peers report is remembered, until there are more ranks. */
static bool
failures_may_remember_hearsay(rdt_context *ctx, const struct rdti_obituary *news)
{
    const uint64_t most = HEARSAY_LEAST + ctx->upcalls->membership->rank_count(ctx);

    if (ctx->hearsay_count < most)
        return true;
    if (!ctx->has_warned_of_hearsay)
        rdti_log(RDT_LOG_WARN,
                 "peers told of more than %llu dead processes that this one never met, the last "
                 "of them rank %d: no more are remembered",
                 (unsigned long long)most, (int)news->rank);
    ctx->has_warned_of_hearsay = true;
    return false;
}

void
rdti_context_announce_death(rdt_context *ctx, const struct rdti_obituary *news,
                            const rdt_endpoint *source)
{
    struct rdti_obituary *obituary = NULL;

    if (rdti_context_find_obituary(ctx, news->uuid) != NULL)
        return;
    const bool is_hearsay = !failures_has_met(ctx, news->uuid);
    if (!is_hearsay || failures_may_remember_hearsay(ctx, news)) {
        obituary = malloc(sizeof(*obituary));
        if (obituary == NULL)
            rdti_log(RDT_LOG_ERROR, "no memory to remember that rank %d died", (int)news->rank);
    }
    if (obituary == NULL) { /* only the groups of this process learn of it */
        ctx->upcalls->membership->on_death(ctx, news);
        return;
    }
    ctx->hearsay_count += is_hearsay ? 1 : 0;
    *obituary = *news;
    rdti_list_append(&ctx->obituaries, &obituary->link);
    for (struct rdti_list *node = ctx->endpoints.next; node != &ctx->endpoints; node = node->next) {
        rdt_endpoint *ep = RDTI_CONTAINER(node, rdt_endpoint, link);
        if (ep != source && memcmp(ep->uuid, news->uuid, RDT_UUID_BYTES) == 0)
            failures_end_as_dead(ep, news);
        else if (ep != source && rdti_endpoint_get_state(ep) == RDTI_EP_READY)
            failures_tell(ep, news);
    }
    ctx->upcalls->membership->on_death(ctx, news);
}

const struct rdt_error *
rdti_context_find_rejection(const rdt_context *ctx, const uint8_t uuid[RDT_UUID_BYTES])
{
    for (const struct rdti_list *node = ctx->rejections.next; node != &ctx->rejections;
         node = node->next) {
        const struct rdti_rejection *rejection =
            RDTI_CONTAINER(node, const struct rdti_rejection, link);
        if (memcmp(rejection->uuid, uuid, RDT_UUID_BYTES) == 0)
            return &rejection->error;
    }
    return NULL;
}

void
rdti_context_note_rejection(rdt_context *ctx, const uint8_t uuid[RDT_UUID_BYTES],
                            const struct rdt_error *err)
{
    struct rdti_rejection *rejection;

    if (rdti_context_find_rejection(ctx, uuid) != NULL)
        return;
    if (ctx->rejection_count == REJECTIONS_MAX)
        rejection =
            RDTI_CONTAINER(rdti_list_take_first(&ctx->rejections), struct rdti_rejection, link);
    else
        rejection = malloc(sizeof(*rejection));
    if (rejection == NULL) {
        rdti_log(RDT_LOG_ERROR, "no memory to remember why a peer was refused: %s", err->message);
        return;
    }
    ctx->rejection_count += ctx->rejection_count < REJECTIONS_MAX ? 1 : 0;
    memcpy(rejection->uuid, uuid, RDT_UUID_BYTES);
    rejection->error = *err;
    rdti_list_append(&ctx->rejections, &rejection->link);
}

void
rdti_context_note_met(rdt_context *ctx, const uint8_t uuid[RDT_UUID_BYTES])
{
    for (uint32_t i = 0; i < ctx->met_count; i++) {
        if (memcmp(ctx->met[i], uuid, RDT_UUID_BYTES) != 0)
            continue;
        rdti_count(&ctx->counters.reconnections, 1);
        return;
    }
    if (ctx->met_count == ctx->met_cap) {
        const uint32_t cap = ctx->met_cap == 0 ? 16 : 2 * ctx->met_cap;
        void *met = realloc(ctx->met, sizeof(*ctx->met) * cap);
        if (met == NULL) {
            rdti_log(RDT_LOG_ERROR, "no memory to remember a peer: reconnections are not counted");
            return;
        }
        ctx->met = met;
        ctx->met_cap = cap;
    }
    memcpy(ctx->met[ctx->met_count++], uuid, RDT_UUID_BYTES);
}
