/* SPDX-License-Identifier: Apache-2.0
 * Persistent receives: where they land, what of them is announced, and how they end. */
#include "message/persistent.h"

#include <stdlib.h>

#include "base/error.h"
#include "message/mailbox_impl.h"
#include "message/persistent_impl.h"
#include "message/request_impl.h"

/* For a stream that only watches: all are compared for each receive, in half a microsecond. */
#define WATCHED_MAX 256

/* ---- Places ------------------------------------------------------------------------------ */

bool
rdti_place_is_there(const struct rdti_rx_stream *stream, const struct rdti_request *receive)
{
    const struct rdti_watched *place = &stream->places[receive->place];
    struct rdti_regions *regions = stream->m->ctx->regions;
    struct rdti_target target;

    if (rdti_regions_acquire(regions, place->index, place->generation, 0, receive->len_bytes,
                             &target, NULL) != RDT_OK)
        return false;
    rdti_regions_release(regions, &target);
    return true;
}

rdt_status
rdti_place_freed_early(struct rdt_error *err)
{
    err->peer_rank = RDT_RANK_UNKNOWN;
    return rdti_error_set(err, RDT_ESTALE, 0,
                          "the memory of the receive was freed before its message came");
}

/* Whether the peer can write there, over this path. Exports the region. */
static bool
persistent_receive_is_reachable(const struct rdti_mailbox *m, const void *addr, uint64_t len_bytes,
                                struct rdti_place *out)
{
    uint32_t segment;
    uint64_t segment_off;

    if (len_bytes == 0)
        return false;
    if (rdti_endpoint_caps(m->ep).is_same_host &&
        (len_bytes > RDTI_STAND_COPY_BYTES ||
         rdti_arena_locate(m->ctx->arena, addr, len_bytes, &segment, &segment_off) != RDT_OK))
        return false;
    return rdti_regions_place_at(m->ctx->regions, addr, len_bytes, out, NULL) == RDT_OK;
}

/* The first of those that wait in this place, or NULL. Writes into one place arrive in order. */
static struct rdti_request *
persistent_receive_told_in(const struct rdti_rx_stream *stream, uint64_t place)
{
    for (struct rdti_list *node = stream->told.next; node != &stream->told; node = node->next) {
        struct rdti_request *receive = RDTI_CONTAINER(node, struct rdti_request, link);
        if (receive->place == place)
            return receive;
    }
    return NULL;
}

static bool
persistent_receive_is_at(const struct rdti_watched *place, const void *addr, uint64_t len_bytes)
{
    return place->addr == addr && place->len_bytes == len_bytes;
}

static struct rdti_watched
persistent_receive_watched(const void *addr, uint64_t len_bytes, const struct rdti_place *at)
{
    return (struct rdti_watched){.addr = addr,
                                 .len_bytes = len_bytes,
                                 .index = at->region.index,
                                 .generation = at->region.generation};
}

/* False: no memory. */
static bool
persistent_receive_add_place(struct rdti_rx_stream *stream, struct rdti_watched place)
{
    if (stream->place_count == stream->place_cap) {
        const uint32_t cap = stream->place_cap == 0 ? 16 : stream->place_cap * 2;
        struct rdti_watched *places = realloc(stream->places, sizeof(*places) * cap);
        if (places == NULL)
            return false;
        stream->places = places;
        stream->place_cap = cap;
    }
    stream->places[stream->place_count++] = place;
    return true;
}

/* Whether a receive was posted there before. */
static bool
persistent_receive_has_seen(struct rdti_rx_stream *stream, const void *addr, uint64_t len_bytes)
{
    for (uint32_t i = 0; i < stream->place_count; i++)
        if (persistent_receive_is_at(&stream->places[i], addr, len_bytes))
            return true;
    if (stream->place_count >= WATCHED_MAX)
        stream->place_count = 0;
    (void)persistent_receive_add_place(/* without memory nothing repeats */
                                       stream,
                                       (struct rdti_watched){.addr = addr, .len_bytes = len_bytes});
    return false;
}

/* For a keyed stream that is asked for: messages sent before its sender gets the request take the
 * default path. The place is announced with the others, so that the next message has it. */
static void
persistent_receive_remember(struct rdti_rx_stream *stream, const void *addr, uint64_t len_bytes)
{
    struct rdti_place at;

    for (uint32_t i = 0; i < stream->place_count; i++)
        if (persistent_receive_is_at(&stream->places[i], addr, len_bytes))
            return;
    if (stream->place_count < RDTI_KEYED_PLACES_MAX &&
        persistent_receive_is_reachable(stream->m, addr, len_bytes, &at)) /* else it is later */
        (void)persistent_receive_add_place(stream,
                                           persistent_receive_watched(addr, len_bytes, &at));
}

/* It is still reachable, in the same region: a later one there might not be for this peer. */
static bool
persistent_receive_is_as_seen(const struct rdti_rx_stream *stream, const struct rdti_watched *seen)
{
    struct rdti_place at;

    return persistent_receive_is_reachable(stream->m, seen->addr, seen->len_bytes, &at) &&
           at.region.index == seen->index && at.region.generation == seen->generation;
}

/* The number of this place; RDTI_PLACE_NONE: it was not announced. */
static uint64_t
persistent_receive_find_place(struct rdti_rx_stream *stream, const struct rdti_watched *wanted)
{
    for (uint32_t i = 0; i < stream->place_count; i++) {
        const uint32_t at = (stream->hint + i) % stream->place_count;
        const struct rdti_watched *place = &stream->places[at];
        if (!persistent_receive_is_at(place, wanted->addr, wanted->len_bytes) ||
            place->index != wanted->index || place->generation != wanted->generation)
            continue;
        stream->hint = at + 1;
        return at;
    }
    return RDTI_PLACE_NONE;
}

/* A place that no write uses, or may use: it can be announced again. RDTI_PLACE_NONE: none. */
static uint64_t
persistent_receive_unused_place(struct rdti_rx_stream *stream)
{
    for (uint32_t i = 0; i < stream->place_count; i++) {
        const uint32_t at = stream->oldest;
        stream->oldest = (at + 1) % stream->place_count;
        if (persistent_receive_told_in(stream, at) == NULL)
            return at;
    }
    return RDTI_PLACE_NONE;
}

/* The number of a place that the sender does not know yet. RDTI_PLACE_NONE: no room. */
static uint64_t
persistent_receive_new_place(struct rdti_rx_stream *stream, const struct rdti_watched *place)
{
    const uint32_t most = stream->is_keyed ? RDTI_KEYED_PLACES_MAX : RDTI_STAND_PLACES_MAX;

    if (stream->place_count < most)
        return persistent_receive_add_place(stream, *place) ? stream->place_count - 1
                                                            : RDTI_PLACE_NONE;
    const uint64_t at =
        stream->is_keyed ? persistent_receive_unused_place(stream) : RDTI_PLACE_NONE;
    if (at != RDTI_PLACE_NONE)
        stream->places[at] = *place;
    return at;
}

/* The number of the place where these bytes land, and *is_new for one that has yet to be announced.
 * RDTI_PLACE_NONE: there is none. */
static uint64_t
persistent_receive_need_place(struct rdti_rx_stream *stream, const void *addr, uint64_t len_bytes,
                              struct rdti_place *at, bool *is_new)
{
    if (!persistent_receive_is_reachable(stream->m, addr, len_bytes, at))
        return RDTI_PLACE_NONE;
    const struct rdti_watched wanted = persistent_receive_watched(addr, len_bytes, at);
    const uint64_t known = persistent_receive_find_place(stream, &wanted);
    if (known != RDTI_PLACE_NONE)
        return known;
    const uint64_t place = persistent_receive_new_place(stream, &wanted);
    *is_new = place != RDTI_PLACE_NONE;
    return place;
}

static void
persistent_receive_tell_place(const struct rdti_rx_stream *stream, uint64_t place,
                              uint64_t len_bytes, const struct rdti_place *at)
{
    const struct rdti_message head = {.kind = RDTI_MESSAGE_PLACE,
                                      .id = stream->id,
                                      .count = place,
                                      .len_bytes = len_bytes};
    uint8_t body[RDTI_PLACE_BYTES];

    rdti_place_encode(at, body);
    rdti_mailbox_queue(stream->m, &head, body, sizeof(body));
}

void
rdti_stand_tell_remembered(struct rdti_rx_stream *stream)
{
    struct rdti_mailbox *m = stream->m;
    struct rdti_watched *seen = stream->places;
    const uint32_t count = stream->place_count;
    const uint64_t id = stream->id;

    stream->places = NULL;
    stream->place_count = 0;
    stream->place_cap = 0;
    for (uint32_t i = 0; i < count && stream != NULL && stream->state == RDTI_RX_STANDING; i++) {
        struct rdti_place at = {0};
        bool is_new = false;

        if (!persistent_receive_is_as_seen(stream, &seen[i]))
            continue;
        const uint64_t place =
            persistent_receive_need_place(stream, seen[i].addr, seen[i].len_bytes, &at, &is_new);
        if (!is_new)
            continue;
        persistent_receive_tell_place(stream, place, seen[i].len_bytes, &at);
        stream = rdti_rx_stream_find_id(m, id); /* the path may have ended */
    }
    free(seen);
}

/* ---- Receives ---------------------------------------------------------------------------- */

/* Adds the description that a keyed sender compares, so that ranks that disagree learn how. */
static void
persistent_receive_add_desc(struct rdti_message *posted, const struct rdt_message_desc *desc)
{
    const uint64_t number = posted->count;

    rdti_message_set_desc(posted, desc);
    posted->tag = desc->count;
    posted->count = number;
}

/* Such a receive has a number that can be announced, and a message that needs no offer first. */
static bool
persistent_receive_can_tell(const struct rdti_rx_stream *stream, const struct rdti_request *receive,
                            int64_t number, uint64_t place)
{
    if (stream->told_count == RDTI_TOLD_MAX)
        return false;
    if (stream->is_keyed)
        return true;
    /* A receive that waits has met no message, so that its number is not that of an earlier one. */
    return number >= 0 && (place != RDTI_PLACE_NONE || receive->len_bytes <= RDTI_STAND_WAIT_BYTES);
}

/* The receive ends, or no longer waits for a place. */
static void
persistent_receive_untell(struct rdti_request *receive)
{
    if (receive->told == NULL)
        return;
    receive->told->told_count--;
    receive->told = NULL;
    receive->forget = NULL;
    receive->cancel = NULL;
    rdti_list_remove(&receive->link);
}

/* An announced receive is given up, or its group broke. */
static void
persistent_receive_cancel(struct rdti_request *receive, const struct rdt_error *err)
{
    struct rdti_mailbox *m = receive->told->m;

    if (receive->is_cancelled)
        return;
    receive->is_cancelled = true;
    receive->error = *err;
    rdti_rx_stream_leave(receive->told);
    rdti_mailbox_flush(m);
}

void
rdti_stand_tell(struct rdti_rx_stream *stream, struct rdti_request *receive)
{
    struct rdti_mailbox *m = stream->m;
    const int64_t number = stream->is_keyed ? (int64_t)receive->tag : stream->next++;
    struct rdti_place at = {0};
    bool is_new = false;
    uint64_t place =
        receive->has_desc && !stream->is_keyed
            ? RDTI_PLACE_NONE
            : persistent_receive_need_place(stream, receive->buf, receive->len_bytes, &at, &is_new);

    /* Keyed messages come in any order, and a write names its place alone. Bytes that have yet to
     * be compared must not be written over. */
    if ((stream->is_keyed || rdti_context_verifies(m->ctx)) &&
        persistent_receive_told_in(stream, place) != NULL)
        place = RDTI_PLACE_NONE;
    if (!persistent_receive_can_tell(stream, receive, number, place)) {
        rdti_rx_stream_leave(stream);
        return;
    }
    struct rdti_message posted = {.kind = RDTI_MESSAGE_POSTED,
                                  .id = stream->id,
                                  .count = (uint64_t)number,
                                  .len_bytes = place};
    receive->told = stream;
    receive->forget = persistent_receive_untell;
    receive->cancel = persistent_receive_cancel;
    receive->place = place;
    rdti_list_append(&stream->told, &receive->link);
    stream->told_count++;
    rdti_count(&m->ctx->counters.credits_alone, 1);
    if (is_new)
        persistent_receive_tell_place(stream, place, receive->len_bytes, &at);
    if (stream->is_keyed)
        persistent_receive_add_desc(&posted, &receive->desc);
    /* A message for such a short receive has not waited for this: its sender takes the place if it
     * checks before it sends, and else the default path. A longer message, which will not fit, may
     * wait for it: then its sender checks within a heartbeat. */
    if (!stream->is_keyed && receive->len_bytes <= RDTI_STAND_WAIT_BYTES)
        rdti_mailbox_queue_quietly(m, &posted);
    else
        rdti_mailbox_queue(m, &posted, NULL, 0);
}

/* A receive is about to be posted there. True: the address repeats, and the sender can write
 * there. */
static bool
persistent_receive_does_repeat(struct rdti_rx_stream *stream, const void *addr, uint64_t len_bytes)
{
    struct rdti_place at;

    return stream->state == RDTI_RX_WATCHING && !stream->is_shut &&
           stream->ends < RDTI_STREAM_ENDS_MAX && len_bytes >= RDTI_STAND_MIN_BYTES &&
           persistent_receive_has_seen(stream, addr, len_bytes) && stream->m->is_ready &&
           persistent_receive_is_reachable(stream->m, addr, len_bytes, &at);
}

/* NULL: no path leads there. */
static struct rdti_mailbox *
persistent_receive_mailbox_of(const struct rdti_scope *scope, uint32_t source)
{
    rdt_endpoint *ep = source != scope->rank ? scope->members[source].ep : NULL;
    struct rdti_mailbox *m = ep != NULL ? rdti_mailbox_of(ep) : NULL;

    return m != NULL && !m->has_ended ? m : NULL;
}

/* The group's keyed stream of a source; the receiver asks for it from the first receive on. */
static struct rdti_rx_stream *
persistent_receive_find_keyed(const struct rdti_scope *scope, uint32_t source, uint64_t len_bytes)
{
    struct rdti_mailbox *m =
        len_bytes >= RDTI_KEYED_MIN_BYTES ? persistent_receive_mailbox_of(scope, source) : NULL;

    if (m == NULL || !m->is_ready || rdti_endpoint_caps(m->ep).is_same_host)
        return NULL;
    struct rdti_rx_stream *stream = rdti_rx_stream_find_keyed(m, scope->id);
    if (len_bytes < (stream != NULL ? stream->least_bytes : rdti_keyed_least_bytes(m)))
        return NULL;
    if (stream == NULL)
        stream = rdti_rx_stream_new(m, scope, source, RDT_TAG_ONCE, true);
    if (stream == NULL || stream->state != RDTI_RX_WATCHING || stream->ends >= RDTI_STREAM_ENDS_MAX)
        return stream;
    rdti_rx_stream_ask(stream);
    rdti_mailbox_flush(m);
    return rdti_rx_stream_find_keyed(m, scope->id);
}

static struct rdti_rx_stream *
persistent_receive_find_counted(const struct rdti_scope *scope, uint32_t source, uint64_t tag,
                                const void *addr, uint64_t len_bytes, bool has_desc)
{
    struct rdti_mailbox *m = persistent_receive_mailbox_of(scope, source);

    if (m == NULL)
        return NULL;
    struct rdti_rx_stream *stream = rdti_rx_stream_find(m, scope->id, tag);
    if (stream == NULL && !has_desc && len_bytes >= RDTI_STAND_MIN_BYTES && !scope->has_any_source)
        stream = rdti_rx_stream_new(m, scope, source, tag, false);
    if (stream == NULL || has_desc || !persistent_receive_does_repeat(stream, addr, len_bytes))
        return stream;
    rdti_rx_stream_ask(stream);
    rdti_mailbox_flush(m);
    return rdti_rx_stream_find(m, scope->id, tag); /* the path may have ended, and more with it */
}

struct rdti_rx_stream *
rdti_stand_find(struct rdti_scope *scope, uint32_t source, uint64_t tag, const void *addr,
                uint64_t len_bytes, bool has_desc)
{
    if (source == RDT_SOURCE_ANY) {
        if (!scope->has_any_source)
            rdti_rx_stream_shut_all(scope);
        scope->has_any_source = true;
        return NULL;
    }
    if (has_desc && rdti_tag_is_once(tag)) {
        struct rdti_rx_stream *stream = persistent_receive_find_keyed(scope, source, len_bytes);

        if (stream != NULL && stream->state == RDTI_RX_ASKED)
            persistent_receive_remember(stream, addr, len_bytes);
        return stream;
    }
    return persistent_receive_find_counted(scope, source, tag, addr, len_bytes, has_desc);
}

void
rdti_stand_skip(struct rdti_rx_stream *stream)
{
    if (stream != NULL && stream->state == RDTI_RX_STANDING)
        stream->next++;
}

void
rdti_stand_missed(const struct rdti_scope *scope, uint32_t source, const void *addr,
                  uint64_t len_bytes)
{
    struct rdti_mailbox *m =
        len_bytes >= RDTI_KEYED_MIN_BYTES ? persistent_receive_mailbox_of(scope, source) : NULL;
    struct rdti_rx_stream *stream = m != NULL ? rdti_rx_stream_find_keyed(m, scope->id) : NULL;
    struct rdti_place at = {0};
    bool is_new = false;

    if (stream == NULL || stream->state != RDTI_RX_STANDING || len_bytes < stream->least_bytes)
        return;
    const uint64_t place = persistent_receive_need_place(stream, addr, len_bytes, &at, &is_new);
    if (!is_new)
        return;
    persistent_receive_tell_place(stream, place, len_bytes, &at);
    rdti_mailbox_flush(m);
}

void
rdti_stand_posted(struct rdti_rx_stream *stream, struct rdti_request *receive)
{
    if (stream == NULL || stream->state != RDTI_RX_STANDING)
        return;
    struct rdti_mailbox *m = stream->m;
    /* Against the rules: its message is the second of its tag, and is sent as it can be. */
    if (stream->is_keyed && rdti_rx_stream_has(stream, receive->tag))
        return;
    rdti_stand_tell(stream, receive);
    rdti_mailbox_flush(m);
}

void
rdti_stand_meet(struct rdti_request *receive, const struct rdti_message *head)
{
    struct rdti_rx_stream *stream = receive->told;

    persistent_receive_untell(receive);
    if (stream == NULL || !stream->is_keyed)
        return;
    const bool is_looked_for = head->op != 0 && head->len_bytes >= stream->least_bytes;
    if (!is_looked_for)
        rdti_rx_stream_leave(stream);
}

bool
rdti_stand_keep(struct rdti_request *receive)
{
    struct rdti_rx_stream *stream = receive->told;
    const struct rdt_error err = receive->error;
    const bool is_kept = !stream->is_keyed; /* else only this receive could take them */

    if (is_kept) {
        stream->m->keep_count += stream->is_keeping ? 0 : 1;
        stream->is_keeping = true;
    }
    rdti_request_finish(receive, (rdt_status)err.status, &err);
    return is_kept;
}

bool
rdti_stand_keeps(struct rdti_mailbox *m, uint64_t group_id, uint64_t tag)
{
    const struct rdti_rx_stream *stream =
        m->keep_count > 0 ? rdti_rx_stream_find(m, group_id, tag) : NULL;

    return stream != NULL && stream->is_keeping;
}

/* ---- Messages that landed ---------------------------------------------------------------- */

/* With sums: all of the receive was compared since the notification before. */
static bool
persistent_receive_is_compared(const struct rdti_mailbox *m, const struct rdti_request *receive)
{
    const uintptr_t at = (uintptr_t)receive->buf;

    return !rdti_context_verifies(m->ctx) ||
           (at >= m->compared_from &&
            at + receive->len_bytes <= m->compared_from + m->compared_bytes);
}

rdt_status
rdti_stand_on_landed(struct rdti_mailbox *m, uint32_t id, uint32_t place, struct rdt_error *err)
{
    struct rdti_rx_stream *stream = rdti_rx_stream_find_id(m, id);
    struct rdti_request *receive =
        stream != NULL ? persistent_receive_told_in(stream, place) : NULL;
    struct rdt_error why = {.peer_rank = RDT_RANK_UNKNOWN};

    if (receive == NULL)
        return rdti_error_set_rank(err, RDT_EPROTO, rdti_endpoint_rank(m->ep),
                                   "mailbox: rank %d wrote where no receive was announced",
                                   (int)rdti_endpoint_rank(m->ep));
    if (receive->is_cancelled)
        why = receive->error;
    else if (!rdti_place_is_there(stream, receive))
        (void)rdti_place_freed_early(&why);
    else if (!persistent_receive_is_compared(m, receive))
        return rdti_error_set_rank(err, RDT_EPROTO, rdti_endpoint_rank(m->ep),
                                   "mailbox: rank %d did not sum all that it wrote in a place",
                                   (int)rdti_endpoint_rank(m->ep));
    persistent_receive_untell(receive);
    rdti_request_finish(receive, (rdt_status)why.status, &why);
    return RDT_OK;
}

/* ---- Questions --------------------------------------------------------------------------- */

uint32_t
rdti_stand_reach(const struct rdti_scope *scope, uint32_t source, const void *addr,
                 uint64_t len_bytes)
{
    struct rdti_place at;
    const struct rdti_mailbox *m = persistent_receive_mailbox_of(scope, source);

    if (m == NULL || !m->is_ready || rdti_endpoint_caps(m->ep).is_same_host ||
        len_bytes < rdti_keyed_least_bytes(m))
        return RDT_STANDS_NOT;
    return persistent_receive_is_reachable(m, addr, len_bytes, &at) ? RDT_STANDS_HERE
                                                                    : RDT_STANDS_ELSEWHERE;
}
