/* SPDX-License-Identifier: Apache-2.0
 * The sender of persistent streams. Bytes from peers are not trusted. */
#include <stdlib.h>

#include "base/error.h"
#include "message/checksum.h"
#include "message/mailbox_impl.h"
#include "message/persistent.h"
#include "message/persistent_impl.h"
#include "message/request_impl.h"
#include "progress/engine.h"

enum way { INTO_PLACE, ORDINARY, LATER };

rdt_status
rdti_stand_broken(const struct rdti_mailbox *m, struct rdt_error *err, const char *how)
{
    const int32_t rank = rdti_endpoint_rank(m->ep);

    return rdti_error_set_rank(err, RDT_EPROTO, rank, "mailbox: rank %d %s", (int)rank, how);
}

/* ---- Streams ----------------------------------------------------------------------------- */

struct rdti_tx_stream *
rdti_stand_find_tx(struct rdti_mailbox *m, uint64_t group_id, uint64_t tag)
{
    for (struct rdti_list *node = m->tx_streams.next; node != &m->tx_streams; node = node->next) {
        struct rdti_tx_stream *stream = RDTI_CONTAINER(node, struct rdti_tx_stream, link);
        if (stream->tag == tag && stream->group_id == group_id && !stream->is_keyed)
            return stream;
    }
    return NULL;
}

struct rdti_tx_stream *
rdti_tx_stream_find_id(struct rdti_mailbox *m, uint64_t id)
{
    for (struct rdti_list *node = m->tx_streams.next; node != &m->tx_streams; node = node->next) {
        struct rdti_tx_stream *stream = RDTI_CONTAINER(node, struct rdti_tx_stream, link);
        if (stream->id == id)
            return stream;
    }
    return NULL;
}

/* Answers the receiver: messages are counted from here on, or all announcements are void. */
static void
persistent_send_answer(struct rdti_mailbox *m, uint64_t id, bool is_standing)
{
    const struct rdti_message head = {.kind = RDTI_MESSAGE_STOOD,
                                      .count = is_standing ? 1 : 0,
                                      .id = id};

    rdti_mailbox_queue(m, &head, NULL, 0);
}

/* Messages that wait take the default path. */
static void
persistent_send_release_waiting(struct rdti_tx_stream *stream)
{
    struct rdti_list *node;

    while ((node = rdti_list_take_first(&stream->waiting)) != NULL) {
        stream->sent++;
        stream->has_ordinary = true;
        rdti_list_append(&stream->m->sends, node);
    }
}

static void
persistent_send_free_stream(struct rdti_tx_stream *stream)
{
    rdti_list_remove(&stream->link);
    stream->m->tx_stream_count--;
    free(stream->told);
    free(stream->places);
    free(stream);
}

void
rdti_tx_stream_end(struct rdti_tx_stream *stream)
{
    struct rdti_mailbox *m = stream->m;
    const uint64_t id = stream->id;

    persistent_send_release_waiting(stream);
    persistent_send_free_stream(stream);
    persistent_send_answer(m, id, false); /* before the sends just released, as a control message */
}

/* ---- Messages out ------------------------------------------------------------------------ */

static struct rdti_announced_receive *
persistent_send_first_told(struct rdti_tx_stream *stream)
{
    while (stream->told_count > 0) {
        struct rdti_announced_receive *first = &stream->told[stream->told_head];
        if (first->number >= stream->sent)
            return first;
        stream->told_head = (stream->told_head + 1) % stream->told_cap;
        stream->told_count--;
    }
    return NULL;
}

static enum way
persistent_send_way_of(struct rdti_tx_stream *stream, uint64_t len_bytes, bool has_desc)
{
    const struct rdti_announced_receive *first = persistent_send_first_told(stream);
    const struct rdti_mailbox *m = stream->m;

    if (rdti_list_is_empty(&m->sends) && rdti_list_is_empty(&m->control))
        stream->has_ordinary = false;
    if (first == NULL)
        return len_bytes > RDTI_STAND_WAIT_BYTES ? LATER : ORDINARY;
    if (first->number != stream->sent || first->place == RDTI_PLACE_NONE || has_desc ||
        stream->has_ordinary)
        return ORDINARY;
    return stream->places[first->place].len_bytes == len_bytes ? INTO_PLACE : ORDINARY;
}

/* Counts a message that cannot go to the announced place of its receive. A slow path counts all
 * that it carries by itself. */
static void
persistent_send_count_missed(struct rdti_tx_stream *stream, uint64_t len_bytes)
{
    const struct rdti_announced_receive *first = persistent_send_first_told(stream);

    if (first != NULL && first->number == stream->sent && first->place != RDTI_PLACE_NONE &&
        !rdti_endpoint_is_fallback(stream->m->ep))
        rdti_count(&stream->m->ctx->moved.fallback_bytes, len_bytes);
}

bool
rdti_tx_stream_write(struct rdti_tx_stream *stream, struct rdti_request *send, uint64_t place)
{
    struct rdti_mailbox *m = stream->m;
    const uint64_t id = stream->id;
    const struct rdti_place at = stream->places[place].at;

    send->is_in_place = true;
    send->id = id;
    const bool is_written = /* may end the send, and the path */
        rdti_offer_write(m, send, &at, rdti_notify_stream((uint32_t)id, (uint32_t)place));
    stream = rdti_tx_stream_find_id(m, id);
    if (stream == NULL)
        return false;
    if (!is_written || stream->is_refused) { /* after the sums, which have the notification */
        rdti_tx_stream_end(stream);
        return false;
    }
    stream->sent++;
    rdti_count(&m->ctx->counters.mailbox_placed, 1);
    return true;
}

static struct rdti_tx_stream *
persistent_send_find_refused(struct rdti_mailbox *m)
{
    for (struct rdti_list *node = m->tx_streams.next; node != &m->tx_streams; node = node->next) {
        struct rdti_tx_stream *stream = RDTI_CONTAINER(node, struct rdti_tx_stream, link);
        if (stream->is_refused)
            return stream;
    }
    return NULL;
}

void
rdti_stand_end_refused(struct rdti_mailbox *m)
{
    struct rdti_tx_stream *stream;

    while ((stream = persistent_send_find_refused(m)) != NULL) /* the path may end, and so all */
        rdti_tx_stream_end(stream);
}

static rdt_status
persistent_send_refused_step(void *arg)
{
    struct rdti_mailboxes *mailboxes = arg;
    struct rdti_list *all = &mailboxes->all;

    mailboxes->has_refused_task = false;
    for (struct rdti_list *node = all->next, *next; node != all; node = next) {
        struct rdti_mailbox *m = RDTI_CONTAINER(node, struct rdti_mailbox, link);
        next = node->next;
        if (persistent_send_find_refused(m) == NULL)
            continue;
        rdti_stand_end_refused(m);
        rdti_mailbox_flush(m);
    }
    return RDT_OK;
}

void
rdti_stand_on_refused(struct rdti_mailbox *m, uint64_t id)
{
    struct rdti_tx_stream *stream = rdti_tx_stream_find_id(m, id);
    struct rdti_mailboxes *mailboxes = m->mailboxes;

    if (stream == NULL)
        return;
    stream->is_refused = true;
    if (mailboxes->has_refused_task || /* without memory the next heartbeat ends it */
        rdti_engine_add_task(m->ctx->engine, persistent_send_refused_step, mailboxes, NULL) !=
            RDT_OK)
        return;
    mailboxes->has_refused_task = true;
    rdti_engine_poke(m->ctx->engine);
}

static void
persistent_send_run(struct rdti_tx_stream *stream)
{
    struct rdti_mailbox *m = stream->m;

    while (!rdti_list_is_empty(&stream->waiting)) {
        struct rdti_request *send = RDTI_CONTAINER(stream->waiting.next, struct rdti_request, link);
        const enum way way = persistent_send_way_of(stream, send->len_bytes, send->has_desc);
        if (way == LATER)
            break;
        rdti_list_remove(&send->link);
        if (way == INTO_PLACE) {
            if (!rdti_tx_stream_write(stream, send, persistent_send_first_told(stream)->place))
                break;
            continue;
        }
        persistent_send_count_missed(stream, send->len_bytes);
        stream->sent++;
        stream->has_ordinary = true;
        rdti_list_append(&m->sends, &send->link);
    }
    rdti_mailbox_flush(m);
}

static bool
persistent_send_is_keyed(uint64_t tag, bool has_desc)
{
    return has_desc && rdti_tag_is_once(tag);
}

bool
rdti_stand_is_awaited(struct rdti_mailbox *m, uint64_t group_id, uint64_t tag, bool has_desc,
                      uint64_t len_bytes)
{
    if (len_bytes < RDTI_KEYED_MIN_BYTES || !persistent_send_is_keyed(tag, has_desc))
        return false;
    const struct rdti_tx_stream *stream = rdti_keyed_find(m, group_id);
    return stream != NULL && len_bytes >= stream->least_bytes;
}

bool
rdti_stand_send_now(struct rdti_mailbox *m, const struct rdti_message *head, const void *src,
                    struct rdt_transfer *t, rdt_status *status_out, struct rdt_error *err)
{
    struct rdti_tx_stream *stream = rdti_stand_find_tx(m, head->group_id, head->tag);

    if (persistent_send_is_keyed(head->tag, head->op != 0))
        return !rdti_stand_is_awaited(m, head->group_id, head->tag, true, head->len_bytes) &&
               rdti_mailbox_send_now(m, head, src, t, status_out, err);
    if (stream != NULL &&
        (!rdti_list_is_empty(&stream->waiting) ||
         persistent_send_way_of(stream, head->len_bytes, head->op != 0) != ORDINARY))
        return false;
    if (!rdti_mailbox_send_now(m, head, src, t, status_out, err))
        return false;
    stream = rdti_stand_find_tx(m, head->group_id, head->tag); /* the path may have ended */
    if (stream != NULL && *status_out == RDT_OK) {
        persistent_send_count_missed(stream, head->len_bytes);
        stream->sent++;
    }
    return true;
}

void
rdti_stand_send(struct rdti_mailbox *m, struct rdti_request *send)
{
    const bool is_once = persistent_send_is_keyed(send->tag, send->has_desc);
    struct rdti_tx_stream *stream = is_once ? rdti_keyed_find(m, send->scope->id)
                                            : rdti_stand_find_tx(m, send->scope->id, send->tag);

    if (stream == NULL || (is_once && send->len_bytes < stream->least_bytes)) {
        rdti_mailbox_send(m, send);
        return;
    }
    send->mailbox = m;
    send->state = RDTI_REQUEST_QUEUED;
    if (is_once) {
        rdti_keyed_send(stream, send);
        return;
    }
    /* A message that may end before its receive is posted must not wait for those before it. */
    if (send->len_bytes <= RDTI_STAND_WAIT_BYTES)
        persistent_send_release_waiting(stream);
    rdti_list_append(&stream->waiting, &send->link);
    persistent_send_run(stream);
}

void
rdti_stand_not_sent(struct rdti_mailbox *m, const struct rdti_request *send)
{
    struct rdti_tx_stream *stream = persistent_send_is_keyed(send->tag, send->has_desc)
                                        ? NULL
                                        : rdti_stand_find_tx(m, send->scope->id, send->tag);

    if (stream != NULL)
        rdti_tx_stream_end(stream);
}

/* ---- Messages in ------------------------------------------------------------------------- */

/* Sends that are not in the ring yet come after the answer. */
static uint64_t
persistent_send_count_queued(const struct rdti_mailbox *m, uint64_t group_id, uint64_t tag)
{
    uint64_t count = 0;

    for (const struct rdti_list *node = m->sends.next; node != &m->sends; node = node->next) {
        const struct rdti_request *send = RDTI_CONTAINER(node, struct rdti_request, link);
        count += send->scope->id == group_id && send->tag == tag ? 1 : 0;
    }
    return count;
}

/* Checks that the receiver may ask for this stream now. */
static rdt_status
persistent_send_check_stand(struct rdti_mailbox *m, const struct rdti_message *head,
                            struct rdt_error *err)
{
    const bool is_once = head->count == RDTI_STAND_KEYED;
    const struct rdti_tx_stream *there = is_once ? rdti_keyed_find(m, head->group_id)
                                                 : rdti_stand_find_tx(m, head->group_id, head->tag);

    if (head->count > RDTI_STAND_KEYED || head->id > RDTI_STREAM_ID_MAX ||
        (is_once && (head->tag != RDT_TAG_ONCE || head->len_bytes < RDTI_KEYED_MIN_BYTES)))
        return rdti_stand_broken(m, err, "lets receives stand in a way that is none");
    if (there != NULL || rdti_tx_stream_find_id(m, head->id) != NULL)
        return rdti_stand_broken(m, err, "lets receives stand that stand already");
    if (m->tx_stream_count == RDTI_STREAMS_MAX)
        return rdti_stand_broken(m, err, "lets more receives stand than it may");
    return RDT_OK;
}

/* False: the group does not work, or not yet; or no memory is left. */
static bool
persistent_send_begin(struct rdti_mailbox *m, const struct rdti_message *head)
{
    const struct rdti_scope *scope = rdti_scope_find(m->mailboxes, head->group_id);
    struct rdti_tx_stream *stream =
        scope != NULL && scope->is_live ? calloc(1, sizeof(*stream)) : NULL;

    if (stream == NULL)
        return false;
    stream->m = m;
    stream->id = head->id;
    stream->group_id = head->group_id;
    stream->tag = head->tag;
    stream->is_keyed = head->count == RDTI_STAND_KEYED;
    stream->least_bytes = head->len_bytes;
    rdti_list_init(&stream->waiting);
    rdti_list_append(&m->tx_streams, &stream->link);
    m->tx_stream_count++;
    if (stream->is_keyed)
        rdti_keyed_begin(stream);
    else
        stream->sent = persistent_send_count_queued(m, head->group_id, head->tag);
    stream->has_ordinary = stream->sent > 0;
    return true;
}

rdt_status
rdti_stand_on_stand(struct rdti_mailbox *m, const struct rdti_message *head, struct rdt_error *err)
{
    struct rdti_tx_stream *stream = rdti_tx_stream_find_id(m, head->id);

    if (m->answer_count >= RDTI_ANSWERS_MAX)
        return rdti_stand_broken(m, err, "asks for receives to stand and takes no answer");
    if (head->count == RDTI_STAND_NO_MORE) {
        if (stream != NULL)
            rdti_tx_stream_end(stream);
        else
            persistent_send_answer(m, head->id, false);
        return RDT_OK;
    }
    const rdt_status status = persistent_send_check_stand(m, head, err);
    if (status == RDT_OK)
        persistent_send_answer(m, head->id, persistent_send_begin(m, head));
    return status;
}

/* False: no memory. */
static bool
persistent_send_add_place(struct rdti_tx_stream *stream, const struct rdti_stand_place *place)
{
    if (stream->place_count == stream->place_cap) {
        const uint32_t cap = stream->place_cap == 0 ? 16 : stream->place_cap * 2;
        struct rdti_stand_place *places = realloc(stream->places, sizeof(*places) * cap);
        if (places == NULL)
            return false;
        stream->places = places;
        stream->place_cap = cap;
    }
    stream->places[stream->place_count++] = *place;
    return true;
}

rdt_status
rdti_stand_on_place(struct rdti_mailbox *m, const struct rdti_message *head, const uint8_t *body,
                    struct rdt_error *err)
{
    struct rdti_tx_stream *stream = rdti_tx_stream_find_id(m, head->id);
    struct rdti_stand_place place = {.len_bytes = head->len_bytes};
    const rdt_status status = rdti_place_decode(body, RDTI_PLACE_BYTES, &place.at, err);

    if (status != RDT_OK || stream == NULL) /* it has ended here */
        return status;
    if (head->len_bytes == 0 ||
        !rdti_place_holds(&place.at, rdti_endpoint_uuid(m->ep), head->len_bytes))
        return rdti_stand_broken(m, err, "tells a place that is empty or not its own");
    if (stream->is_keyed && head->count < stream->place_count) {
        if (rdti_keyed_is_used(stream, head->count))
            return rdti_stand_broken(m, err, "announces a place again that waits for its message");
        stream->places[head->count] = place;
        return RDT_OK;
    }
    if (head->count != stream->place_count || stream->place_count == RDTI_STAND_PLACES_MAX)
        return rdti_stand_broken(m, err, "tells a place out of order");
    if (!persistent_send_add_place(stream, &place))
        rdti_tx_stream_end(stream); /* later messages of it are ignored */
    return RDT_OK;
}

bool
rdti_tx_stream_grow_told(struct rdti_tx_stream *stream)
{
    struct rdti_mailbox *m = stream->m;

    if (stream->told_count < stream->told_cap)
        return true;
    const uint32_t cap = stream->told_cap == 0 ? 64 : stream->told_cap * 2;
    struct rdti_announced_receive *told = malloc(sizeof(*told) * cap);

    if (told == NULL) {
        rdti_tx_stream_end(stream);
        rdti_mailbox_flush(m);
        return false;
    }
    for (uint32_t i = 0; i < stream->told_count; i++)
        told[i] = stream->told[(stream->told_head + i) % stream->told_cap];
    free(stream->told);
    stream->told = told;
    stream->told_cap = cap;
    stream->told_head = 0;
    return true;
}

rdt_status
rdti_stand_on_posted(struct rdti_mailbox *m, const struct rdti_message *head, struct rdt_error *err)
{
    struct rdti_tx_stream *stream = rdti_tx_stream_find_id(m, head->id);

    if (stream == NULL)
        return RDT_OK; /* it has ended here */
    if (stream->is_keyed)
        return rdti_keyed_on_posted(stream, head, err);
    if (head->count < stream->told_next || head->count == UINT64_MAX ||
        (head->len_bytes != RDTI_PLACE_NONE && head->len_bytes >= stream->place_count))
        return rdti_stand_broken(m, err,
                                 "tells a receive twice, or one in a place that it did not tell");
    (void)persistent_send_first_told(stream); /* drops those that are over */
    if (stream->told_count == RDTI_TOLD_MAX)
        return rdti_stand_broken(m, err, "tells more receives than can wait");
    if (!rdti_tx_stream_grow_told(stream))
        return RDT_OK;
    stream->told[(stream->told_head + stream->told_count++) % stream->told_cap] =
        (struct rdti_announced_receive){.number = head->count, .place = head->len_bytes};
    stream->told_next = head->count + 1;
    persistent_send_run(stream);
    return RDT_OK;
}

/* ---- Ends -------------------------------------------------------------------------------- */

bool
rdti_stand_is_idle_tx(const struct rdti_mailbox *m)
{
    for (const struct rdti_list *node = m->tx_streams.next; node != &m->tx_streams;
         node = node->next)
        if (!rdti_list_is_empty(&RDTI_CONTAINER(node, struct rdti_tx_stream, link)->waiting))
            return false;
    return true;
}

static struct rdti_tx_stream *
persistent_send_find_group(struct rdti_mailbox *m, uint64_t group_id)
{
    for (struct rdti_list *node = m->tx_streams.next; node != &m->tx_streams; node = node->next) {
        struct rdti_tx_stream *stream = RDTI_CONTAINER(node, struct rdti_tx_stream, link);
        if (stream->group_id == group_id)
            return stream;
    }
    return NULL;
}

void
rdti_stand_end_tx(struct rdti_mailbox *m, uint64_t group_id)
{
    struct rdti_tx_stream *stream;

    while ((stream = persistent_send_find_group(m, group_id)) != NULL)
        rdti_tx_stream_end(stream);
    rdti_mailbox_flush(m);
}

void
rdti_stand_on_ended_tx(struct rdti_mailbox *m, const struct rdt_error *err)
{
    while (!rdti_list_is_empty(&m->tx_streams)) {
        struct rdti_tx_stream *stream =
            RDTI_CONTAINER(m->tx_streams.next, struct rdti_tx_stream, link);
        struct rdti_list *node;
        while ((node = rdti_list_take_first(&stream->waiting)) != NULL)
            rdti_request_finish(RDTI_CONTAINER(node, struct rdti_request, link),
                                (rdt_status)err->status, err);
        persistent_send_free_stream(stream);
    }
}
