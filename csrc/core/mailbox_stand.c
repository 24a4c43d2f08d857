/* SPDX-License-Identifier: Apache-2.0
 * The receiver of a stream that stands.
 * over budget: the states of a stream and of its receives are seen from each other. */
#include "core/mailbox_stand.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "core/mailbox_impl.h"
#include "core/sums.h"

/* Of a stream that only watches: all are looked at for each receive, in half a microsecond. */
#define WATCHED_MAX 256

enum stream_state { WATCHING, ASKED, STANDING, LEAVING };

/* Where a receive was posted; of a stream that stands, where its sender may write. */
struct watched {
    const void *addr;
    uint64_t len_bytes;
    uint32_t index; /* of the region, as it was told */
    uint32_t generation;
};

struct rdti_rx_stream {
    struct rdti_list link; /* m->rx_streams, the oldest first */
    struct rdti_mailbox *m;
    enum stream_state state;
    bool is_orphan;  /* its group has ended: it goes with its last receive */
    bool is_keeping; /* LEAVING: see rdti_stand_keep() */
    bool is_shut;    /* any source was asked for: who gets what is open */
    uint64_t id;     /* of this time that it stands */
    uint64_t group_id;
    uint64_t tag;
    uint32_t source;
    uint32_t ends;
    int64_t next;          /* number of the next receive; negative: its message is here */
    struct rdti_list told; /* receives, by their link, in order */
    uint32_t told_count;
    struct watched *places;
    uint32_t place_count;
    uint32_t place_cap;
    uint32_t hint; /* where the last was found: most come in order */
};

/* ---- Streams ----------------------------------------------------------------------------- */

static void
free_stream(struct rdti_rx_stream *stream)
{
    rdti_list_remove(&stream->link);
    stream->m->rx_stream_count--;
    free(stream->places);
    free(stream);
}

static struct rdti_rx_stream *
find_stream(struct rdti_mailbox *m, uint64_t group_id, uint64_t tag)
{
    for (struct rdti_list *node = m->rx_streams.next; node != &m->rx_streams; node = node->next) {
        struct rdti_rx_stream *stream = RDTI_CONTAINER(node, struct rdti_rx_stream, link);
        if (stream->tag == tag && stream->group_id == group_id && !stream->is_orphan)
            return stream;
    }
    return NULL;
}

static struct rdti_rx_stream *
find_id(struct rdti_mailbox *m, uint64_t id)
{
    for (struct rdti_list *node = m->rx_streams.next; node != &m->rx_streams; node = node->next) {
        struct rdti_rx_stream *stream = RDTI_CONTAINER(node, struct rdti_rx_stream, link);
        if (stream->id == id && stream->state != WATCHING)
            return stream;
    }
    return NULL;
}

/* Takes the place of the oldest that only watches. NULL: there is no room. */
static struct rdti_rx_stream *
new_stream(struct rdti_mailbox *m, const rdt_group *group, uint32_t source, uint64_t tag)
{
    struct rdti_list *node = m->rx_streams.next;

    while (m->rx_stream_count >= RDTI_STREAMS_MAX && node != &m->rx_streams) {
        struct rdti_rx_stream *oldest = RDTI_CONTAINER(node, struct rdti_rx_stream, link);
        node = node->next;
        if (oldest->state == WATCHING)
            free_stream(oldest);
    }
    struct rdti_rx_stream *stream =
        m->rx_stream_count < RDTI_STREAMS_MAX ? calloc(1, sizeof(*stream)) : NULL;
    if (stream == NULL)
        return NULL;
    stream->m = m;
    stream->group_id = group->id;
    stream->source = source;
    stream->tag = tag;
    rdti_list_init(&stream->told);
    rdti_list_append(&m->rx_streams, &stream->link);
    m->rx_stream_count++;
    return stream;
}

/* May end the endpoint, and with it the stream, as whatever queues a message. */
static void
say(struct rdti_rx_stream *stream, bool is_standing)
{
    const struct rdti_message head = {.kind = RDTI_MESSAGE_STAND,
                                      .group_id = stream->group_id,
                                      .tag = stream->tag,
                                      .count = is_standing ? 1 : 0,
                                      .id = stream->id};

    rdti_mailbox_queue(stream->m, &head, NULL, 0);
}

/* What was told stays so until the sender answers. */
static void
leave(struct rdti_rx_stream *stream)
{
    if (stream->state != ASKED && stream->state != STANDING)
        return;
    stream->state = LEAVING;
    stream->ends++;
    say(stream, false);
}

/* Nobody has freed it meanwhile: the region that was told. Others may cover the same memory. */
static bool
is_still_there(const struct rdti_rx_stream *stream, const struct rdti_request *receive)
{
    const struct watched *place = &stream->places[receive->place];
    struct rdti_regions *regions = stream->m->ctx->regions;
    struct rdti_target target;

    if (rdti_regions_acquire(regions, place->index, place->generation, 0, receive->len_bytes,
                             &target, NULL) != RDT_OK)
        return false;
    rdti_regions_release(regions, &target);
    return true;
}

static rdt_status
freed_early(struct rdt_error *err)
{
    err->peer_rank = RDT_RANK_UNKNOWN;
    return rdti_error_set(err, RDT_ESTALE, 0,
                          "the memory of the receive was freed before its message came");
}

/* What was told is void, and what was cancelled is over. So is a receive whose place was freed,
 * which may be why the sender ended the stream: its message is lost, and nothing else may be
 * written there either. */
static void
untell_all(struct rdti_rx_stream *stream, struct rdti_list *over)
{
    struct rdti_list *node;

    while ((node = rdti_list_take_first(&stream->told)) != NULL) {
        struct rdti_request *receive = RDTI_CONTAINER(node, struct rdti_request, link);
        receive->told = NULL;
        if (!receive->is_cancelled && receive->place != RDTI_PLACE_NONE &&
            !is_still_there(stream, receive)) {
            receive->is_cancelled = true;
            (void)freed_early(&receive->error);
        }
        if (receive->is_cancelled)
            rdti_list_append(over, &receive->link);
    }
    stream->told_count = 0;
    stream->place_count = 0;
}

/* The sender writes no more. */
static void
on_left(struct rdti_rx_stream *stream)
{
    struct rdti_mailbox *m = stream->m;
    const uint64_t tag = stream->tag;
    struct rdti_list over;
    struct rdti_list *node;
    rdt_group *group = NULL;

    stream->ends += stream->state == STANDING ? 1 : 0;
    stream->state = WATCHING;
    rdti_list_init(&over);
    untell_all(stream, &over);
    if (stream->is_keeping && !stream->is_orphan)
        group = rdti_groups_find(m->groups, stream->group_id);
    m->keep_count -= stream->is_keeping ? 1 : 0;
    stream->is_keeping = false;
    if (stream->is_orphan)
        free_stream(stream);
    while ((node = rdti_list_take_first(&over)) != NULL) {
        struct rdti_request *receive = RDTI_CONTAINER(node, struct rdti_request, link);
        const struct rdt_error err = receive->error;
        rdti_request_finish(receive, (rdt_status)err.status, &err);
    }
    if (group != NULL)
        rdti_group_hand_out(group, m, tag);
}

/* ---- Places ------------------------------------------------------------------------------ */

/* The peer can write there, over this path. Exports the region. */
static bool
is_reachable(const struct rdti_mailbox *m, const void *addr, uint64_t len_bytes,
             struct rdt_remote_region *out)
{
    uint32_t segment;
    uint64_t segment_off;

    if (len_bytes == 0)
        return false;
    /* A larger one would be summed for long, with the lock held. */
    if (rdti_context_verifies(m->ctx) && len_bytes > RDTI_SUMS_PIECE_BYTES)
        return false;
    if (rdti_endpoint_caps(m->ep).is_same_host &&
        (len_bytes > RDTI_STAND_COPY_BYTES ||
         rdti_arena_locate(m->ctx->arena, addr, len_bytes, &segment, &segment_off) != RDT_OK))
        return false;
    return rdti_regions_export_at(m->ctx->regions, addr, len_bytes, out, NULL) == RDT_OK;
}

static bool
is_at(const struct watched *place, const void *addr, uint64_t len_bytes)
{
    return place->addr == addr && place->len_bytes == len_bytes;
}

/* False: no memory. */
static bool
add_place(struct rdti_rx_stream *stream, const void *addr, uint64_t len_bytes, uint32_t index,
          uint32_t generation)
{
    if (stream->place_count == stream->place_cap) {
        const uint32_t cap = stream->place_cap == 0 ? 16 : stream->place_cap * 2;
        struct watched *places = realloc(stream->places, sizeof(*places) * cap);
        if (places == NULL)
            return false;
        stream->places = places;
        stream->place_cap = cap;
    }
    stream->places[stream->place_count++] = (struct watched){.addr = addr,
                                                             .len_bytes = len_bytes,
                                                             .index = index,
                                                             .generation = generation};
    return true;
}

/* Whether a receive was posted there before. */
static bool
has_seen(struct rdti_rx_stream *stream, const void *addr, uint64_t len_bytes)
{
    for (uint32_t i = 0; i < stream->place_count; i++)
        if (is_at(&stream->places[i], addr, len_bytes))
            return true;
    if (stream->place_count >= WATCHED_MAX)
        stream->place_count = 0;
    (void)add_place(stream, addr, len_bytes, 0, 0); /* without memory nothing repeats */
    return false;
}

/* The number of the receive's place in this region; RDTI_PLACE_NONE: it was not told. */
static uint64_t
find_place(struct rdti_rx_stream *stream, const struct rdti_request *receive,
           const struct rdt_remote_region *region)
{
    for (uint32_t i = 0; i < stream->place_count; i++) {
        const uint32_t at = (stream->hint + i) % stream->place_count;
        const struct watched *place = &stream->places[at];
        if (!is_at(place, receive->buf, receive->len_bytes) || place->index != region->index ||
            place->generation != region->generation)
            continue;
        stream->hint = at + 1;
        return at;
    }
    return RDTI_PLACE_NONE;
}

/* The same, and *is_new for one that has yet to be told. RDTI_PLACE_NONE: there is none. */
static uint64_t
need_place(struct rdti_rx_stream *stream, const struct rdti_request *receive, struct rdti_cts *cts,
           bool *is_new)
{
    if (receive->has_desc ||
        !is_reachable(stream->m, receive->buf, receive->len_bytes, &cts->region))
        return RDTI_PLACE_NONE;
    const uint64_t known = find_place(stream, receive, &cts->region);
    if (known != RDTI_PLACE_NONE || stream->place_count == RDTI_PLACES_MAX ||
        !add_place(stream, receive->buf, receive->len_bytes, cts->region.index,
                   cts->region.generation))
        return known;
    cts->region_off = (uint64_t)(uintptr_t)receive->buf - cts->region.addr;
    *is_new = true;
    return stream->place_count - 1;
}

/* ---- Receives ---------------------------------------------------------------------------- */

static void
tell(struct rdti_rx_stream *stream, struct rdti_request *receive)
{
    struct rdti_mailbox *m = stream->m;
    const int64_t number = stream->next++;
    struct rdti_cts cts = {0};
    uint8_t body[RDTI_CTS_BYTES];
    bool is_new = false;
    const uint64_t place = need_place(stream, receive, &cts, &is_new);

    /* What waits has met no message, so that its number is none of one that came before. */
    if (number < 0 || stream->told_count == RDTI_TOLD_MAX ||
        (place == RDTI_PLACE_NONE && receive->len_bytes > RDTI_STAND_WAIT_BYTES)) {
        leave(stream);
        return;
    }
    const struct rdti_message new_place = {.kind = RDTI_MESSAGE_PLACE,
                                           .id = stream->id,
                                           .count = place,
                                           .len_bytes = receive->len_bytes};
    const struct rdti_message posted = {.kind = RDTI_MESSAGE_POSTED,
                                        .id = stream->id,
                                        .count = (uint64_t)number,
                                        .len_bytes = place};
    receive->told = stream;
    receive->number = (uint64_t)number;
    receive->place = place;
    rdti_list_append(&stream->told, &receive->link);
    stream->told_count++;
    rdti_count(&m->ctx->counters.credits_alone, 1);
    if (is_new) {
        rdti_cts_encode(&cts, body);
        rdti_mailbox_queue(m, &new_place, body, sizeof(body));
    }
    rdti_mailbox_queue(m, &posted, NULL, 0);
}

/* One of the group's that lives; or NULL. */
static struct rdti_rx_stream *
find_any(struct rdti_mailbox *m, uint64_t group_id, bool is_shut_too)
{
    for (struct rdti_list *node = m->rx_streams.next; node != &m->rx_streams; node = node->next) {
        struct rdti_rx_stream *stream = RDTI_CONTAINER(node, struct rdti_rx_stream, link);
        if (stream->group_id == group_id && !stream->is_orphan && (!stream->is_shut || is_shut_too))
            return stream;
    }
    return NULL;
}

/* From now on nothing of the group stands. */
static void
shut_all(const rdt_group *group)
{
    struct rdti_list *all = &group->groups->mailboxes;
    struct rdti_rx_stream *stream;

    for (struct rdti_list *node = all->next, *next; node != all; node = next) {
        struct rdti_mailbox *m = RDTI_CONTAINER(node, struct rdti_mailbox, link);
        next = node->next;
        while ((stream = find_any(m, group->id, false)) != NULL) {
            stream->is_shut = true;
            leave(stream);
        }
        rdti_mailbox_flush(m);
    }
}

/* A receive is about to be posted there. True: it repeats, and its sender can write there. */
static bool
does_repeat(struct rdti_rx_stream *stream, const void *addr, uint64_t len_bytes)
{
    struct rdt_remote_region region;

    return stream->state == WATCHING && !stream->is_shut && stream->ends < RDTI_STREAM_ENDS_MAX &&
           len_bytes >= RDTI_STAND_MIN_BYTES && has_seen(stream, addr, len_bytes) &&
           stream->m->is_ready && is_reachable(stream->m, addr, len_bytes, &region);
}

/* NULL: no path leads there. */
static struct rdti_mailbox *
mailbox_of(const rdt_group *group, uint32_t source)
{
    rdt_endpoint *ep = source != group->rank ? group->members[source].ep : NULL;
    struct rdti_mailbox *m = ep != NULL ? rdti_endpoint_mailbox(ep) : NULL;

    return m != NULL && !m->has_ended ? m : NULL;
}

struct rdti_rx_stream *
rdti_stand_find(rdt_group *group, uint32_t source, uint64_t tag, const void *addr,
                uint64_t len_bytes, bool has_desc)
{
    if (source == RDT_SOURCE_ANY) {
        if (!group->has_any_source)
            shut_all(group);
        group->has_any_source = true;
        return NULL;
    }
    struct rdti_mailbox *m = mailbox_of(group, source);
    if (m == NULL)
        return NULL;
    struct rdti_rx_stream *stream = find_stream(m, group->id, tag);
    if (stream == NULL && !has_desc && len_bytes >= RDTI_STAND_MIN_BYTES && !group->has_any_source)
        stream = new_stream(m, group, source, tag);
    if (stream == NULL || has_desc || !does_repeat(stream, addr, len_bytes))
        return stream;
    stream->state = ASKED;
    stream->id = ++m->next_stream;
    say(stream, true);
    rdti_mailbox_flush(m);
    return find_stream(m, group->id, tag); /* the path may have ended, and more with it */
}

void
rdti_stand_skip(struct rdti_rx_stream *stream)
{
    if (stream != NULL && stream->state == STANDING)
        stream->next++;
}

void
rdti_stand_posted(struct rdti_rx_stream *stream, struct rdti_request *receive)
{
    if (stream == NULL || stream->state != STANDING)
        return;
    struct rdti_mailbox *m = stream->m;
    tell(stream, receive);
    rdti_mailbox_flush(m);
}

void
rdti_stand_untell(struct rdti_request *receive)
{
    if (receive->told == NULL)
        return;
    receive->told->told_count--;
    receive->told = NULL;
    rdti_list_remove(&receive->link);
}

void
rdti_stand_cancel(struct rdti_request *receive, const struct rdt_error *err)
{
    struct rdti_mailbox *m = receive->told->m;

    if (receive->is_cancelled)
        return;
    receive->is_cancelled = true;
    receive->error = *err;
    leave(receive->told);
    rdti_mailbox_flush(m);
}

void
rdti_stand_keep(struct rdti_request *receive)
{
    struct rdti_rx_stream *stream = receive->told;
    const struct rdt_error err = receive->error;

    stream->m->keep_count += stream->is_keeping ? 0 : 1;
    stream->is_keeping = true;
    rdti_request_finish(receive, (rdt_status)err.status, &err);
}

bool
rdti_stand_keeps(struct rdti_mailbox *m, uint64_t group_id, uint64_t tag)
{
    const struct rdti_rx_stream *stream = m->keep_count > 0 ? find_stream(m, group_id, tag) : NULL;

    return stream != NULL && stream->is_keeping;
}

/* ---- Messages ---------------------------------------------------------------------------- */

/* The first receive that waits and was not told. */
static struct rdti_request *
find_untold(const struct rdti_rx_stream *stream, rdt_group *group)
{
    for (struct rdti_list *node = group->requests.next; node != &group->requests;
         node = node->next) {
        struct rdti_request *request = RDTI_CONTAINER(node, struct rdti_request, group_link);
        if (!request->is_send && request->state == RDTI_REQUEST_POSTED && request->told == NULL &&
            request->peer == stream->source && request->tag == stream->tag)
            return request;
    }
    return NULL;
}

/* From here on all messages count. What was sent before is here, and what waits was posted
 * before. */
static void
begin(struct rdti_rx_stream *stream, rdt_group *group)
{
    struct rdti_mailbox *m = stream->m;
    const uint64_t id = stream->id;
    struct rdti_request *receive;

    stream->state = STANDING;
    stream->next = 0;
    stream->place_count = 0;
    for (struct rdti_list *node = group->arrivals.next; node != &group->arrivals;
         node = node->next) {
        const struct rdti_arrival *arrival = RDTI_CONTAINER(node, struct rdti_arrival, group_link);
        if (arrival->head.source == stream->source && arrival->head.tag == stream->tag)
            stream->next--;
    }
    while ((stream = find_id(m, id)) != NULL && stream->state == STANDING &&
           (receive = find_untold(stream, group)) != NULL)
        tell(stream, receive);
}

rdt_status
rdti_stand_on_stood(struct rdti_mailbox *m, const struct rdti_message *head, struct rdt_error *err)
{
    struct rdti_rx_stream *stream = find_id(m, head->id);

    (void)err;
    if (stream == NULL)
        return RDT_OK; /* both have ended it at once */
    if (head->count == 0) {
        on_left(stream);
        return RDT_OK;
    }
    rdt_group *group = rdti_groups_find(m->groups, stream->group_id);
    if (stream->state == ASKED && group != NULL)
        begin(stream, group);
    return RDT_OK;
}

/* Its bytes are there. What is wrong with them ends the receive; RDT_ECORRUPT the endpoint too. */
static rdt_status
check_landed(struct rdti_request *receive, const struct rdti_message *head, bool is_there,
             struct rdt_error *err)
{
    const struct rdti_message sum = {.source = (uint16_t)receive->peer,
                                     .len_bytes = head->len_bytes,
                                     .id = head->tag};

    if (!is_there)
        return freed_early(err);
    return rdti_context_verifies(receive->group->ctx) ? rdti_sums_check_eager(receive, &sum, err)
                                                      : RDT_OK;
}

rdt_status
rdti_stand_on_landed(struct rdti_mailbox *m, const struct rdti_message *head, struct rdt_error *err)
{
    struct rdti_rx_stream *stream = find_id(m, head->id);
    struct rdt_error why = {.peer_rank = RDT_RANK_UNKNOWN};

    for (struct rdti_list *node = stream != NULL ? stream->told.next : NULL;
         node != NULL && node != &stream->told; node = node->next) {
        struct rdti_request *receive = RDTI_CONTAINER(node, struct rdti_request, link);
        if (receive->number != head->count)
            continue;
        if (receive->place == RDTI_PLACE_NONE || receive->len_bytes != head->len_bytes)
            break;
        const bool is_there = receive->is_cancelled || is_still_there(stream, receive);
        rdti_stand_untell(receive);
        rdt_status status = RDT_OK;
        if (receive->is_cancelled) {
            why = receive->error;
            status = (rdt_status)why.status;
        } else {
            status = check_landed(receive, head, is_there, &why);
        }
        rdti_request_finish(receive, status, &why);
        if (status == RDT_ECORRUPT)
            rdti_endpoint_fail(m->ep, &why, false);
        return RDT_OK;
    }
    return rdti_error_set_rank(err, RDT_EPROTO, rdti_endpoint_rank(m->ep),
                               "mailbox: rank %d says that it wrote where nothing was told",
                               (int)rdti_endpoint_rank(m->ep));
}

/* ---- Ends -------------------------------------------------------------------------------- */

bool
rdti_stand_is_idle(const struct rdti_mailbox *m)
{
    for (const struct rdti_list *node = m->rx_streams.next; node != &m->rx_streams;
         node = node->next) {
        const struct rdti_rx_stream *stream = RDTI_CONTAINER(node, struct rdti_rx_stream, link);
        if (stream->state == LEAVING && stream->told_count > 0)
            return false;
    }
    return rdti_stand_is_idle_tx(m);
}

static void
end_stream(struct rdti_rx_stream *stream)
{
    if (stream->state == WATCHING) {
        free_stream(stream);
        return;
    }
    stream->is_orphan = true;
    leave(stream);
}

void
rdti_stand_end_group(const rdt_group *group)
{
    struct rdti_list *all = &group->groups->mailboxes;
    struct rdti_rx_stream *stream;

    for (struct rdti_list *node = all->next, *next; node != all; node = next) {
        struct rdti_mailbox *m = RDTI_CONTAINER(node, struct rdti_mailbox, link);
        next = node->next;
        while ((stream = find_any(m, group->id, true)) != NULL)
            end_stream(stream);
        rdti_stand_end_tx(m, group->id);
    }
}

void
rdti_stand_on_ended(struct rdti_mailbox *m, const struct rdt_error *err)
{
    for (struct rdti_list *node = m->rx_streams.next, *next; node != &m->rx_streams; node = next) {
        struct rdti_rx_stream *stream = RDTI_CONTAINER(node, struct rdti_rx_stream, link);
        next = node->next;
        if (stream->state != WATCHING)
            on_left(stream);
    }
    rdti_stand_on_ended_tx(m, err);
}

void
rdti_stand_destroy(struct rdti_mailbox *m)
{
    while (!rdti_list_is_empty(&m->rx_streams))
        free_stream(RDTI_CONTAINER(m->rx_streams.next, struct rdti_rx_stream, link));
}
