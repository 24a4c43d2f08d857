/* SPDX-License-Identifier: Apache-2.0
 * What an endpoint does with the frames of its side channel. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "endpoint/endpoint_impl.h"
#include "endpoint/failures.h"

/* Revocations that may be open at once between two processes. An index is used again only after its
 * answers, so that a peer that keeps to the protocol never has more. */
#define REVOKES_MAX (RDTI_REGION_INDEX_MAX + 1)

static rdt_status
frames_on_death(rdt_endpoint *ep, const uint8_t *payload, uint32_t payload_bytes,
                struct rdt_error *err)
{
    struct rdti_death death;
    struct rdti_obituary news = {0};
    struct rdt_error why = {.peer_rank = rdti_endpoint_rank(ep)};
    const rdt_status status = rdti_death_decode(payload, payload_bytes, &death, err);

    if (status != RDT_OK)
        return status;
    if (memcmp(death.uuid, ep->ctx->uuid, RDT_UUID_BYTES) == 0) {
        (void)rdti_error_set_rank(&why, RDT_EPEER, rdti_endpoint_rank(ep),
                                  "rank %d gave this process up for dead: %s",
                                  (int)rdti_endpoint_rank(ep), death.reason);
        rdti_endpoint_hear_last_words(ep, true);
        rdti_endpoint_fail(ep, &why, false);
        return RDT_OK;
    }
    if ((death.is_left != 0) != (memcmp(death.uuid, ep->uuid, RDT_UUID_BYTES) == 0))
        return rdti_error_set_rank(err, RDT_EPROTO, rdti_endpoint_rank(ep),
                                   "rank %d reports another's leaving, or its own death",
                                   (int)rdti_endpoint_rank(ep));
    if (death.is_left != 0) { /* the peer's last words */
        rdti_endpoint_take_arrivals(ep);
        (void)rdti_error_set_rank(&why, RDT_EPEER, rdti_endpoint_rank(ep),
                                  "rank %d closed the connection: %s", (int)rdti_endpoint_rank(ep),
                                  death.reason);
        rdti_endpoint_hear_last_words(ep, true);
        rdti_endpoint_fail(ep, &why, false);
        return RDT_OK;
    }
    memcpy(news.uuid, death.uuid, RDT_UUID_BYTES);
    news.rank = death.rank;
    rdti_text_copy(news.reason, sizeof(news.reason), death.reason);
    rdti_context_announce_death(ep->ctx, &news, ep);
    return RDT_OK;
}

rdt_status
rdti_endpoint_push_revoke(struct rdti_revoke **list, uint32_t *count, uint32_t *cap,
                          const struct rdti_revoke *revoke)
{
    if (*count == *cap) {
        const uint32_t grown = *cap == 0 ? 16 : *cap * 2;
        struct rdti_revoke *bigger =
            grown > REVOKES_MAX ? NULL : realloc(*list, sizeof(*bigger) * grown);
        if (bigger == NULL)
            return RDT_ENOMEM;
        *list = bigger;
        *cap = grown;
    }
    (*list)[(*count)++] = *revoke;
    return RDT_OK;
}

static rdt_status
frames_on_revoke(rdt_endpoint *ep, const uint8_t *payload, uint32_t payload_bytes,
                 struct rdt_error *err)
{
    struct rdti_revoke revoke;
    const rdt_status status = rdti_revoke_decode(payload, payload_bytes, &revoke, err);

    if (status != RDT_OK)
        return status;
    if (revoke.index == 0 || revoke.index > RDTI_REGION_INDEX_MAX)
        return rdti_error_set_rank(err, RDT_EPROTO, rdti_endpoint_rank(ep),
                                   "rank %d freed region %u, which no region can be",
                                   (int)rdti_endpoint_rank(ep), revoke.index);
    if (ep->answer_count == REVOKES_MAX)
        return rdti_error_set_rank(err, RDT_EPROTO, rdti_endpoint_rank(ep),
                                   "rank %d freed more than %u regions at once",
                                   (int)rdti_endpoint_rank(ep), REVOKES_MAX);
    if (rdti_endpoint_push_revoke(&ep->answers, &ep->answer_count, &ep->answer_cap, &revoke) !=
        RDT_OK)
        return rdti_error_set_rank(err, RDT_ENOMEM, rdti_endpoint_rank(ep),
                                   "no memory to answer that rank %d freed a region",
                                   (int)rdti_endpoint_rank(ep));
    ep->ctx->has_core_work = true; /* answered once no local writer is in the lane */
    return RDT_OK;
}

static rdt_status
frames_on_revoked(rdt_endpoint *ep, const uint8_t *payload, uint32_t payload_bytes,
                  struct rdt_error *err)
{
    struct rdti_revoke revoke;
    const rdt_status status = rdti_revoke_decode(payload, payload_bytes, &revoke, err);

    if (status != RDT_OK)
        return status;
    for (uint32_t i = 0; i < ep->revoke_count; i++) {
        if (ep->revokes[i].index != revoke.index || ep->revokes[i].generation != revoke.generation)
            continue;
        ep->revokes[i] = ep->revokes[--ep->revoke_count];
        (void)rdti_regions_acknowledge(ep->ctx->regions, revoke.index, revoke.generation);
        return RDT_OK;
    }
    return rdti_error_set_rank(err, RDT_EPROTO, rdti_endpoint_rank(ep),
                               "rank %d acknowledged a revocation that was not sent",
                               (int)rdti_endpoint_rank(ep));
}

static rdt_status
frames_on_segment_get(rdt_endpoint *ep, const uint8_t *payload, uint32_t payload_bytes,
                      struct rdt_error *err)
{
    struct rdti_segment segment;
    uint8_t out[RDTI_FRAME_PAYLOAD_MAX];
    int fd;
    rdt_status status = rdti_segment_decode(payload, payload_bytes, &segment, err);

    if (status != RDT_OK)
        return status;
    if (rdti_endpoint_transport_id(ep) != RDT_TRANSPORT_SHM)
        return rdti_error_set_rank(err, RDT_EPROTO, rdti_endpoint_rank(ep),
                                   "rank %d asks for memory over a path that shares none",
                                   (int)rdti_endpoint_rank(ep));
    if (rdti_arena_segment(ep->ctx->arena, segment.segment, &fd, &segment.len_bytes) != RDT_OK)
        return rdti_error_set_rank(err, RDT_EPROTO, rdti_endpoint_rank(ep),
                                   "rank %d asks for piece %u of the arena, which is none",
                                   (int)rdti_endpoint_rank(ep), segment.segment);
    rdti_count(&ep->ctx->counters.control_messages[RDTI_TRAFFIC_CONTROL], 1);
    rdti_channel_send(ep->channel, RDTI_FRAME_SEGMENT, out, rdti_segment_encode(&segment, out), &fd,
                      1);
    return RDT_OK;
}

static rdt_status
frames_on_segment(rdt_endpoint *ep, const uint8_t *payload, uint32_t payload_bytes,
                  struct rdt_error *err)
{
    struct rdti_segment segment;
    int fd;
    rdt_status status = rdti_segment_decode(payload, payload_bytes, &segment, err);

    if (status != RDT_OK)
        return status;
    if (ep->lane == NULL || ep->lane->transport->segment_arrived == NULL)
        return rdti_error_set_rank(err, RDT_EPROTO, rdti_endpoint_rank(ep),
                                   "rank %d sent a piece of memory that was not requested",
                                   (int)rdti_endpoint_rank(ep));
    if (rdti_channel_take_fds(ep->channel, &fd, 1) != 1)
        return rdti_error_set_rank(err, RDT_EPROTO, rdti_endpoint_rank(ep),
                                   "rank %d sent a piece of memory without its descriptor",
                                   (int)rdti_endpoint_rank(ep));
    ep->lane->transport->segment_arrived(ep->lane, segment.segment, fd, segment.len_bytes);
    rdti_engine_wake(ep->ctx->engine);
    return RDT_OK;
}

static rdt_status
frames_on_lane_words(rdt_endpoint *ep, const uint8_t *payload, uint32_t payload_bytes,
                     struct rdt_error *err)
{
    if (ep->has_moved) /* for the old lane, sent before the move */
        return RDT_OK;
    if (ep->lane == NULL || ep->lane->transport->words_arrived == NULL)
        return rdti_error_set_rank(err, RDT_EPROTO, rdti_endpoint_rank(ep),
                                   "rank %d sent words for a lane that takes none",
                                   (int)rdti_endpoint_rank(ep));
    const rdt_status status =
        ep->lane->transport->words_arrived(ep->lane, payload, payload_bytes, err);
    rdti_engine_wake(ep->ctx->engine);
    return status;
}

static rdt_status
frames_on_slot_frame(rdt_endpoint *ep, uint16_t type, const uint8_t *payload,
                     uint32_t payload_bytes, struct rdt_error *err)
{
    return ep->ctx->upcalls->protocols[RDTI_PROTOCOL_SLOTS]->on_frame(
        ep->attached[RDTI_PROTOCOL_SLOTS], (enum rdti_frame_type)type, payload, payload_bytes, err);
}

static rdt_status
frames_on_abort(rdt_endpoint *ep, const uint8_t *payload, uint32_t payload_bytes,
                struct rdt_error *err)
{
    struct rdti_abort abort;
    const rdt_status status = rdti_abort_decode(payload, payload_bytes, &abort, err);

    if (status != RDT_OK)
        return status;
    rdti_endpoint_take_arrivals(ep); /* anything sent before the abort counts as sent */
    ep->ctx->upcalls->membership->on_abort(ep->ctx, &abort, ep);
    return RDT_OK;
}

/* over budget: one branch per type of frame. */
static rdt_status
frames_on_frame(void *arg, uint16_t type, const uint8_t *payload, uint32_t payload_bytes,
                struct rdt_error *err)
{
    rdt_endpoint *ep = arg;

    if (rdti_endpoint_is_ended(ep))
        return RDT_OK;
    switch ((enum rdti_frame_type)type) {
    case RDTI_FRAME_PATH:
        return rdti_path_on_path(ep, payload, payload_bytes, err);
    case RDTI_FRAME_PATH_FAILED:
        return rdti_path_on_path_failed(ep, payload, payload_bytes, err);
    case RDTI_FRAME_READY:
        return rdti_path_on_ready_frame(ep, err);
    case RDTI_FRAME_HEARTBEAT:
        return RDT_OK; /* the channel has noted the time */
    case RDTI_FRAME_DEATH:
        return frames_on_death(ep, payload, payload_bytes, err);
    case RDTI_FRAME_GOODBYE:
        if (rdti_endpoint_get_state(ep) == RDTI_EP_CONNECTING)
            return RDT_OK; /* it gave up before it was ready: the socket's end says the same */
        rdti_endpoint_take_arrivals(ep);
        rdti_endpoint_on_goodbye(ep);
        return RDT_OK;
    case RDTI_FRAME_REVOKE:
        return frames_on_revoke(ep, payload, payload_bytes, err);
    case RDTI_FRAME_REVOKED:
        return frames_on_revoked(ep, payload, payload_bytes, err);
    case RDTI_FRAME_SEGMENT_GET:
        return frames_on_segment_get(ep, payload, payload_bytes, err);
    case RDTI_FRAME_SEGMENT:
        return frames_on_segment(ep, payload, payload_bytes, err);
    case RDTI_FRAME_LANE_WORDS:
        return frames_on_lane_words(ep, payload, payload_bytes, err);
    case RDTI_FRAME_MOVE:
        return rdti_failover_on_move(ep, payload, payload_bytes, err);
    case RDTI_FRAME_SLOT:
    case RDTI_FRAME_SLOT_GONE:
    case RDTI_FRAME_SLOT_REFUSED:
        return frames_on_slot_frame(ep, type, payload, payload_bytes, err);
    case RDTI_FRAME_ABORT:
        return frames_on_abort(ep, payload, payload_bytes, err);
    }
    return rdti_error_set_rank(err, RDT_EPROTO, rdti_endpoint_rank(ep),
                               "rank %d sent a frame of unknown type %u",
                               (int)rdti_endpoint_rank(ep), (unsigned)type);
}

static void
frames_on_end(void *arg, const struct rdt_error *why)
{
    rdt_endpoint *ep = arg;
    struct rdt_error err = {.peer_rank = rdti_endpoint_rank(ep)};

    if (why->status == RDT_EPEER) /* the socket ended; no frame was at fault */
        rdti_endpoint_on_peer_done(ep);
    if (rdti_endpoint_is_ended(ep))
        return;
    if (rdti_endpoint_get_state(ep) == RDTI_EP_CONNECTING) {
        (void)rdti_error_set_rank(&err, (rdt_status)why->status, rdti_endpoint_rank(ep),
                                  "rank %d: %s during set-up", (int)rdti_endpoint_rank(ep),
                                  why->message);
        err.sys_errno = why->sys_errno;
        rdti_path_channel_lost(ep, &err);
        return;
    }
    if (why->status == RDT_EPEER)
        rdti_endpoint_take_arrivals(ep);
    if (ep->goodbye_ns != 0) /* the peer had left before */
        rdti_endpoint_end_goodbye(ep);
    if (rdti_endpoint_is_ended(ep)) /* because of what arrived */
        return;
    /* A shortage in this process is not a death of the peer. */
    const bool is_death = why->status != RDT_ENOMEM && why->status != RDT_EDEVICE;
    (void)rdti_error_set_rank(&err, (rdt_status)why->status, rdti_endpoint_rank(ep),
                              "rank %d%s: %s", (int)rdti_endpoint_rank(ep), is_death ? " died" : "",
                              why->message);
    rdti_endpoint_fail(ep, &err, is_death);
}

const struct rdti_channel_events rdti_endpoint_channel_events = {.on_frame = frames_on_frame,
                                                                 .on_end = frames_on_end};
