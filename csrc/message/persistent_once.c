/* SPDX-License-Identifier: Apache-2.0
 * The sender of messages under tags that are used once. Each that is not sent eagerly waits until
 * its receive was announced. It is then written there, or takes the default path if the receive has
 * no place. Bytes from peers are not trusted. */
#include "base/error.h"
#include "message/mailbox_impl.h"
#include "message/persistent.h"
#include "message/persistent_impl.h"
#include "message/request_impl.h"

/* Heartbeats that a message waits, three to four seconds. A receive that is for something else is
 * never announced, and only the message itself shows the ranks that they disagree. Long enough that
 * a machine that stalls for a moment does not cause the default path; a receiver that is that late
 * loses nothing anyway. */
#define BEATS_MAX 4

struct rdti_tx_stream *
rdti_keyed_find(struct rdti_mailbox *m, uint64_t group_id)
{
    for (struct rdti_list *node = m->tx_streams.next; node != &m->tx_streams; node = node->next) {
        struct rdti_tx_stream *stream = RDTI_CONTAINER(node, struct rdti_tx_stream, link);
        if (stream->is_keyed && stream->group_id == group_id)
            return stream;
    }
    return NULL;
}

static bool
persistent_once_is_of(const struct rdti_tx_stream *stream, const struct rdti_request *send)
{
    return send->has_desc && rdti_tag_is_once(send->tag) && send->scope->id == stream->group_id &&
           send->len_bytes >= stream->least_bytes;
}

static void
persistent_once_wait_for_receive(struct rdti_tx_stream *stream, struct rdti_request *send)
{
    send->waits_since = stream->beats;
    rdti_list_append(&stream->waiting, &send->link);
}

void
rdti_keyed_begin(struct rdti_tx_stream *stream)
{
    struct rdti_list *sends = &stream->m->sends;

    for (struct rdti_list *node = sends->next, *next; node != sends; node = next) {
        struct rdti_request *send = RDTI_CONTAINER(node, struct rdti_request, link);
        next = node->next;
        if (!persistent_once_is_of(stream, send))
            continue;
        rdti_list_remove(node);
        persistent_once_wait_for_receive(stream, send);
    }
}

/* ---- Announcements ----------------------------------------------------------------------- */

/* NULL: its receive was not announced. */
static struct rdti_announced_receive *
persistent_once_find_told(const struct rdti_tx_stream *stream, uint64_t tag)
{
    for (uint32_t i = 0; i < stream->told_count; i++)
        if (stream->told[i].number == tag)
            return &stream->told[i];
    return NULL;
}

bool
rdti_keyed_is_used(const struct rdti_tx_stream *stream, uint64_t place)
{
    for (uint32_t i = 0; i < stream->told_count; i++)
        if (stream->told[i].place == place)
            return true;
    return false;
}

static struct rdti_request *
persistent_once_find_send(struct rdti_list *sends, uint64_t group_id, uint64_t tag)
{
    for (struct rdti_list *node = sends->next; node != sends; node = node->next) {
        struct rdti_request *send = RDTI_CONTAINER(node, struct rdti_request, link);
        if (send->tag == tag && send->scope->id == group_id)
            return send;
    }
    return NULL;
}

static bool
persistent_once_is_same(const struct rdt_message_desc *ours, const struct rdt_message_desc *theirs)
{
    return ours->op == theirs->op && ours->dtype == theirs->dtype &&
           ours->reduce_op == theirs->reduce_op && ours->root == theirs->root &&
           ours->count == theirs->count;
}

/* ---- Messages ---------------------------------------------------------------------------- */

/* If the two ends do not mean the same, the message takes the default path, which reports that. */
static void
persistent_once_go(struct rdti_tx_stream *stream, struct rdti_request *send,
                   const struct rdti_announced_receive *told)
{
    struct rdti_mailbox *m = stream->m;
    const struct rdti_stand_place *place =
        told->place != RDTI_PLACE_NONE ? &stream->places[told->place] : NULL;

    if (place != NULL && place->len_bytes == send->len_bytes &&
        persistent_once_is_same(&send->desc, &told->desc))
        (void)rdti_tx_stream_write(stream, send, told->place);
    else
        rdti_list_append(&m->sends, &send->link);
    rdti_mailbox_flush(m);
}

void
rdti_keyed_send(struct rdti_tx_stream *stream, struct rdti_request *send)
{
    struct rdti_announced_receive *entry = persistent_once_find_told(stream, send->tag);

    if (entry == NULL) {
        persistent_once_wait_for_receive(stream, send);
        return;
    }
    const struct rdti_announced_receive told = *entry;
    *entry = stream->told[--stream->told_count];
    persistent_once_go(stream, send, &told);
}

rdt_status
rdti_keyed_on_posted(struct rdti_tx_stream *stream, const struct rdti_message *head,
                     struct rdt_error *err)
{
    struct rdti_mailbox *m = stream->m;
    const struct rdti_announced_receive told = {.number = head->count,
                                                .place = head->len_bytes,
                                                .desc = {.op = head->op,
                                                         .dtype = head->dtype,
                                                         .reduce_op = head->reduce_op,
                                                         .root = head->root,
                                                         .count = head->tag}};

    if (!rdti_tag_is_once(told.number) || persistent_once_find_told(stream, told.number) != NULL)
        return rdti_stand_broken(m, err, "tells a receive twice, or one of a tag that is none");
    if (told.place != RDTI_PLACE_NONE && told.place >= stream->place_count)
        return rdti_stand_broken(m, err, "tells a receive in a place that it did not tell");
    struct rdti_request *send =
        persistent_once_find_send(&stream->waiting, stream->group_id, told.number);
    if (send != NULL) {
        rdti_list_remove(&send->link);
        persistent_once_go(stream, send, &told);
        return RDT_OK;
    }
    /* Its message waited too long, and was sent already. */
    if (persistent_once_find_send(&m->offered, stream->group_id, told.number) != NULL ||
        persistent_once_find_send(&m->sends, stream->group_id, told.number) != NULL)
        return RDT_OK;
    if (stream->told_count == RDTI_TOLD_MAX)
        return rdti_stand_broken(m, err, "tells more receives than can wait");
    if (rdti_tx_stream_grow_told(stream))
        stream->told[stream->told_count++] = told;
    return RDT_OK;
}

static void
persistent_once_on_beat(struct rdti_tx_stream *stream)
{
    struct rdti_list *waiting = &stream->waiting;

    stream->beats++;
    for (struct rdti_list *node = waiting->next, *next; node != waiting; node = next) {
        struct rdti_request *send = RDTI_CONTAINER(node, struct rdti_request, link);
        next = node->next;
        if (stream->beats - send->waits_since < BEATS_MAX)
            continue;
        rdti_list_remove(node);
        rdti_list_append(&stream->m->sends, node);
    }
}

bool
rdti_stand_is_told(const struct rdti_scope *scope, uint32_t dst, uint64_t tag, uint64_t len_bytes)
{
    rdt_endpoint *ep = scope->members[dst].ep;
    struct rdti_mailbox *m = ep != NULL ? rdti_mailbox_of(ep) : NULL;
    const struct rdti_tx_stream *stream =
        m != NULL && !m->has_ended ? rdti_keyed_find(m, scope->id) : NULL;

    if (stream == NULL || len_bytes < stream->least_bytes)
        return false;
    const struct rdti_announced_receive *told = persistent_once_find_told(stream, tag);
    return told != NULL && told->place != RDTI_PLACE_NONE &&
           stream->places[told->place].len_bytes == len_bytes;
}

void
rdti_stand_on_beat(struct rdti_mailbox *m)
{
    rdti_stand_end_refused(m);
    for (struct rdti_list *node = m->tx_streams.next; node != &m->tx_streams; node = node->next) {
        struct rdti_tx_stream *stream = RDTI_CONTAINER(node, struct rdti_tx_stream, link);
        if (stream->is_keyed)
            persistent_once_on_beat(stream);
    }
    rdti_mailbox_flush(m);
}
