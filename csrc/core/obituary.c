/* SPDX-License-Identifier: Apache-2.0
 * Who is known to be dead: the first news of each process wins and is passed on. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "core/endpoint_impl.h"
#include "core/group.h"

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
tell(rdt_endpoint *ep, const struct rdti_obituary *news)
{
    struct rdti_death death = {.rank = news->rank};
    uint8_t payload[RDTI_FRAME_PAYLOAD_MAX];

    memcpy(death.uuid, news->uuid, RDT_UUID_BYTES);
    rdti_text_copy(death.reason, sizeof(death.reason), news->reason);
    rdti_channel_send(ep->channel, RDTI_FRAME_DEATH, payload, rdti_death_encode(&death, payload),
                      NULL, 0);
}

/* Everybody holds the same for dead. One that lives all the same, because only somebody else's link
 * to it is down or because it was stopped, is told so and must not go on half-way: it would take
 * our silence for our death. */
static void
end_as_dead(rdt_endpoint *ep, const struct rdti_obituary *news)
{
    struct rdt_error err = {.peer_rank = rdti_endpoint_rank(ep)};

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
        tell(ep, obituary);
    }
}

void
rdti_context_announce_death(rdt_context *ctx, const struct rdti_obituary *news,
                            const rdt_endpoint *source)
{
    struct rdti_obituary *obituary;

    if (rdti_context_find_obituary(ctx, news->uuid) != NULL)
        return;
    obituary = malloc(sizeof(*obituary));
    if (obituary == NULL) {
        /* News that cannot be remembered is not passed on: two processes without memory would tell
         * each other for ever. Our own groups hear of it. */
        rdti_log(RDT_LOG_ERROR, "no memory to remember that rank %d died", (int)news->rank);
        rdti_groups_on_death(ctx->groups, news);
        return;
    }
    *obituary = *news;
    rdti_list_append(&ctx->obituaries, &obituary->link);
    for (struct rdti_list *node = ctx->endpoints.next; node != &ctx->endpoints; node = node->next) {
        rdt_endpoint *ep = RDTI_CONTAINER(node, rdt_endpoint, link);
        if (ep != source && memcmp(ep->uuid, news->uuid, RDT_UUID_BYTES) == 0)
            end_as_dead(ep, news);
        else if (ep != source && rdti_endpoint_get_state(ep) == RDTI_EP_READY)
            tell(ep, news);
    }
    rdti_groups_on_death(ctx->groups, news);
}
