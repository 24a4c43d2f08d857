/* SPDX-License-Identifier: Apache-2.0
 * Persistent streams at the receiver: how one begins, and how it ends. */
#include "message/persistent.h"

#include <stdlib.h>

#include "base/error.h"
#include "message/mailbox_impl.h"
#include "message/persistent_impl.h"
#include "message/request_impl.h"

/* ---- Life -------------------------------------------------------------------------------- */

static void
persistent_free_stream(struct rdti_rx_stream *stream)
{
    rdti_list_remove(&stream->link);
    stream->m->rx_stream_count--;
    free(stream->places);
    free(stream);
}

struct rdti_rx_stream *
rdti_rx_stream_find(struct rdti_mailbox *m, uint64_t group_id, uint64_t tag)
{
    for (struct rdti_list *node = m->rx_streams.next; node != &m->rx_streams; node = node->next) {
        struct rdti_rx_stream *stream = RDTI_CONTAINER(node, struct rdti_rx_stream, link);
        if (stream->tag == tag && stream->group_id == group_id && !stream->is_orphan &&
            !stream->is_keyed)
            return stream;
    }
    return NULL;
}

struct rdti_rx_stream *
rdti_rx_stream_find_keyed(struct rdti_mailbox *m, uint64_t group_id)
{
    for (struct rdti_list *node = m->rx_streams.next; node != &m->rx_streams; node = node->next) {
        struct rdti_rx_stream *stream = RDTI_CONTAINER(node, struct rdti_rx_stream, link);
        if (stream->is_keyed && stream->group_id == group_id && !stream->is_orphan)
            return stream;
    }
    return NULL;
}

struct rdti_rx_stream *
rdti_rx_stream_find_id(struct rdti_mailbox *m, uint64_t id)
{
    for (struct rdti_list *node = m->rx_streams.next; node != &m->rx_streams; node = node->next) {
        struct rdti_rx_stream *stream = RDTI_CONTAINER(node, struct rdti_rx_stream, link);
        if (stream->id == id && stream->state != RDTI_RX_WATCHING)
            return stream;
    }
    return NULL;
}

uint64_t
rdti_keyed_least_bytes(const struct rdti_mailbox *m)
{
    return rdti_ring_eager_max(m, RDTI_RING_LARGE_UNITS) + 1;
}

struct rdti_rx_stream *
rdti_rx_stream_new(struct rdti_mailbox *m, const struct rdti_scope *scope, uint32_t source,
                   uint64_t tag, bool is_keyed)
{
    struct rdti_list *node = m->rx_streams.next;

    while (m->rx_stream_count >= RDTI_STREAMS_MAX && node != &m->rx_streams) {
        struct rdti_rx_stream *oldest = RDTI_CONTAINER(node, struct rdti_rx_stream, link);
        node = node->next;
        if (oldest->state == RDTI_RX_WATCHING)
            persistent_free_stream(oldest);
    }
    struct rdti_rx_stream *stream =
        m->rx_stream_count < RDTI_STREAMS_MAX ? calloc(1, sizeof(*stream)) : NULL;
    if (stream == NULL)
        return NULL;
    stream->m = m;
    stream->group_id = scope->id;
    stream->source = source;
    stream->tag = tag;
    stream->is_keyed = is_keyed;
    stream->least_bytes = is_keyed ? rdti_keyed_least_bytes(m) : 0;
    rdti_list_init(&stream->told);
    rdti_list_append(&m->rx_streams, &stream->link);
    m->rx_stream_count++;
    return stream;
}

static void
persistent_say(struct rdti_rx_stream *stream, bool is_standing)
{
    const uint64_t how = stream->is_keyed ? RDTI_STAND_KEYED : RDTI_STAND_COUNTED;
    const struct rdti_message head = {.kind = RDTI_MESSAGE_STAND,
                                      .group_id = stream->group_id,
                                      .tag = stream->tag,
                                      .count = is_standing ? how : RDTI_STAND_NO_MORE,
                                      .len_bytes = stream->least_bytes,
                                      .id = stream->id};

    rdti_mailbox_queue(stream->m, &head, NULL, 0);
}

bool
rdti_rx_stream_has(const struct rdti_rx_stream *stream, uint64_t tag)
{
    for (const struct rdti_list *node = stream->told.next; node != &stream->told; node = node->next)
        if (RDTI_CONTAINER(node, const struct rdti_request, link)->tag == tag)
            return true;
    return false;
}

void
rdti_rx_stream_ask(struct rdti_rx_stream *stream)
{
    struct rdti_mailbox *m = stream->m;

    do /* no message about an old stream is left when its number returns */
        m->next_stream = m->next_stream == RDTI_STREAM_ID_MAX ? 0 : m->next_stream + 1;
    while (rdti_rx_stream_find_id(m, m->next_stream) != NULL);
    stream->id = m->next_stream;
    stream->state = RDTI_RX_ASKED;
    persistent_say(stream, true);
}

void
rdti_rx_stream_leave(struct rdti_rx_stream *stream)
{
    if (stream->state != RDTI_RX_ASKED && stream->state != RDTI_RX_STANDING)
        return;
    stream->state = RDTI_RX_LEAVING;
    stream->ends++;
    persistent_say(stream, false);
}

/* All announcements become void, and cancelled receives are over. So is a receive whose place was
 * freed, which may be why the sender ended the stream: its message is lost, and nothing else may be
 * written there either. */
static void
persistent_untell_all(struct rdti_rx_stream *stream, struct rdti_list *over)
{
    struct rdti_list *node;

    while ((node = rdti_list_take_first(&stream->told)) != NULL) {
        struct rdti_request *receive = RDTI_CONTAINER(node, struct rdti_request, link);
        receive->told = NULL;
        receive->forget = NULL;
        receive->cancel = NULL;
        if (!receive->is_cancelled && receive->place != RDTI_PLACE_NONE &&
            !rdti_place_is_there(stream, receive)) {
            receive->is_cancelled = true;
            (void)rdti_place_freed_early(&receive->error);
        }
        if (receive->is_cancelled)
            rdti_list_append(over, &receive->link);
    }
    stream->told_count = 0;
    stream->place_count = 0;
    stream->oldest = 0;
}

/* The sender writes no more. */
static void
persistent_on_left(struct rdti_rx_stream *stream)
{
    struct rdti_mailbox *m = stream->m;
    const uint64_t tag = stream->tag;
    struct rdti_list over;
    struct rdti_list *node;
    struct rdti_scope *scope = NULL;

    stream->ends += stream->state == RDTI_RX_STANDING ? 1 : 0;
    stream->state = RDTI_RX_WATCHING;
    rdti_list_init(&over);
    persistent_untell_all(stream, &over);
    if (stream->is_keeping && !stream->is_orphan)
        scope = rdti_scope_find(m->mailboxes, stream->group_id);
    m->keep_count -= stream->is_keeping ? 1 : 0;
    stream->is_keeping = false;
    if (stream->is_orphan)
        persistent_free_stream(stream);
    while ((node = rdti_list_take_first(&over)) != NULL) {
        struct rdti_request *receive = RDTI_CONTAINER(node, struct rdti_request, link);
        const struct rdt_error err = receive->error;
        rdti_request_finish(receive, (rdt_status)err.status, &err);
    }
    if (scope != NULL)
        m->mailboxes->sink->hand_out(scope, m, tag);
}

/* A live stream of the group, or NULL. */
static struct rdti_rx_stream *
persistent_find_any(struct rdti_mailbox *m, uint64_t group_id, bool is_shut_too)
{
    for (struct rdti_list *node = m->rx_streams.next; node != &m->rx_streams; node = node->next) {
        struct rdti_rx_stream *stream = RDTI_CONTAINER(node, struct rdti_rx_stream, link);
        if (stream->group_id == group_id && !stream->is_orphan &&
            (is_shut_too || (!stream->is_shut && !stream->is_keyed)))
            return stream;
    }
    return NULL;
}

void
rdti_rx_stream_shut_all(const struct rdti_scope *scope)
{
    struct rdti_list *all = &scope->mailboxes->all;
    struct rdti_rx_stream *stream;

    for (struct rdti_list *node = all->next, *next; node != all; node = next) {
        struct rdti_mailbox *m = RDTI_CONTAINER(node, struct rdti_mailbox, link);
        next = node->next;
        while ((stream = persistent_find_any(m, scope->id, false)) != NULL) {
            stream->is_shut = true;
            rdti_rx_stream_leave(stream);
        }
        rdti_mailbox_flush(m);
    }
}

/* ---- Messages ---------------------------------------------------------------------------- */

static bool
persistent_is_of(const struct rdti_rx_stream *stream, const struct rdti_request *receive)
{
    if (receive->peer != stream->source)
        return false;
    if (stream->is_keyed)
        return receive->has_desc && rdti_tag_is_once(receive->tag) &&
               receive->len_bytes >= stream->least_bytes &&
               !rdti_rx_stream_has(stream, receive->tag);
    return receive->tag == stream->tag;
}

/* The first receive that waits and was not announced. */
static struct rdti_request *
persistent_find_untold(const struct rdti_rx_stream *stream, struct rdti_scope *scope)
{
    for (struct rdti_list *node = scope->requests.next; node != &scope->requests;
         node = node->next) {
        struct rdti_request *request = RDTI_CONTAINER(node, struct rdti_request, scope_link);
        if (!request->is_send && request->state == RDTI_REQUEST_POSTED && request->told == NULL &&
            persistent_is_of(stream, request))
            return request;
    }
    return NULL;
}

/* From here on all messages count. Earlier messages have arrived, and the receives that wait were
 * posted before. */
static void
persistent_begin(struct rdti_rx_stream *stream, struct rdti_scope *scope)
{
    struct rdti_mailbox *m = stream->m;
    const uint64_t id = stream->id;
    struct rdti_request *receive;

    stream->state = RDTI_RX_STANDING;
    stream->next = 0;
    if (stream->is_keyed)
        rdti_stand_tell_remembered(stream);
    else
        stream->place_count = 0;
    if ((stream = rdti_rx_stream_find_id(m, id)) == NULL)
        return;
    for (struct rdti_list *node = scope->arrivals.next; node != &scope->arrivals;
         node = node->next) {
        const struct rdti_arrival *arrival = RDTI_CONTAINER(node, struct rdti_arrival, scope_link);
        if (arrival->head.source == stream->source && arrival->head.tag == stream->tag)
            stream->next--;
    }
    while ((stream = rdti_rx_stream_find_id(m, id)) != NULL && stream->state == RDTI_RX_STANDING &&
           (receive = persistent_find_untold(stream, scope)) != NULL)
        rdti_stand_tell(stream, receive);
}

rdt_status
rdti_stand_on_stood(struct rdti_mailbox *m, const struct rdti_message *head, struct rdt_error *err)
{
    struct rdti_rx_stream *stream = rdti_rx_stream_find_id(m, head->id);

    (void)err;
    if (stream == NULL)
        return RDT_OK; /* both sides ended it at once */
    if (head->count == 0) {
        persistent_on_left(stream);
        return RDT_OK;
    }
    struct rdti_scope *scope = rdti_scope_find(m->mailboxes, stream->group_id);
    if (stream->state == RDTI_RX_ASKED && scope != NULL)
        persistent_begin(stream, scope);
    return RDT_OK;
}

/* ---- Ends -------------------------------------------------------------------------------- */

bool
rdti_stand_is_idle(const struct rdti_mailbox *m)
{
    for (const struct rdti_list *node = m->rx_streams.next; node != &m->rx_streams;
         node = node->next) {
        const struct rdti_rx_stream *stream = RDTI_CONTAINER(node, struct rdti_rx_stream, link);
        if (stream->state == RDTI_RX_LEAVING && stream->told_count > 0)
            return false;
    }
    return rdti_stand_is_idle_tx(m);
}

static void
persistent_end_stream(struct rdti_rx_stream *stream)
{
    if (stream->state == RDTI_RX_WATCHING) {
        persistent_free_stream(stream);
        return;
    }
    stream->is_orphan = true;
    rdti_rx_stream_leave(stream);
}

void
rdti_stand_end_group(const struct rdti_scope *scope)
{
    struct rdti_list *all = &scope->mailboxes->all;
    struct rdti_rx_stream *stream;

    for (struct rdti_list *node = all->next, *next; node != all; node = next) {
        struct rdti_mailbox *m = RDTI_CONTAINER(node, struct rdti_mailbox, link);
        next = node->next;
        while ((stream = persistent_find_any(m, scope->id, true)) != NULL)
            persistent_end_stream(stream);
        rdti_stand_end_tx(m, scope->id);
    }
}

void
rdti_stand_on_ended(struct rdti_mailbox *m, const struct rdt_error *err)
{
    for (struct rdti_list *node = m->rx_streams.next, *next; node != &m->rx_streams; node = next) {
        struct rdti_rx_stream *stream = RDTI_CONTAINER(node, struct rdti_rx_stream, link);
        next = node->next;
        if (stream->state != RDTI_RX_WATCHING)
            persistent_on_left(stream);
    }
    rdti_stand_on_ended_tx(m, err);
}

void
rdti_stand_destroy(struct rdti_mailbox *m)
{
    while (!rdti_list_is_empty(&m->rx_streams))
        persistent_free_stream(RDTI_CONTAINER(m->rx_streams.next, struct rdti_rx_stream, link));
}
