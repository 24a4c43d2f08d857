/* SPDX-License-Identifier: Apache-2.0
 * Two copy what one would. A large message from private memory is read by its receiver through the
 * kernel, with one core, while the sender waits with another. So the receiver asks the sender for
 * shares, from the end on, which are written to slots of a desk in the receiver's arena; it copies
 * what has come, and reads on from the start while nothing has:
 *
 *      |  read by the receiver  >     | not taken yet |    <  shares of the sender   |
 *      0                          done_bytes       own_bytes                     len_bytes
 *
 * A share is copied twice, and still two that each stream one side of it through a cache are
 * faster than one that streams both.
 *
 * The sender helps where a thread of it waits and it has nothing of its own to read; else it says
 * so at once. Nothing waits for it: what has not come when all else is done the receiver reads
 * itself, and whatever is written then meets a slot that nobody looks at. A slot is used again once
 * its share was answered, whatever became of the message meanwhile; the desk goes with the mailbox,
 * as any region.
 */
#include <string.h>

#include "base/copy.h"
#include "base/error.h"
#include "base/log.h"
#include "base/range.h"
#include "core/mailbox_impl.h"

/* Below, what two save is less than what asking costs. */
#define HELP_LEAST_BYTES (UINT64_C(1) << 20)
/* A sender that computes while it sends is not asked, and woken, for each message: not for one more
 * than the last time, up to so many. The first no may only say that it has not mapped the desk. */
#define PAUSE_MOST 7
#define DESK_BYTES (RDTI_SHARES * RDTI_SHARE_BYTES)

static rdt_status
broken(const struct rdti_mailbox *m, struct rdt_error *err, const char *how)
{
    const int32_t rank = rdti_endpoint_rank(m->ep);

    return rdti_error_set_rank(err, RDT_EPROTO, rank, "mailbox: rank %d %s", (int)rank, how);
}

/* ---- The receiver ------------------------------------------------------------------------ */

/* There is a desk afterwards, and the peer knows it. */
static bool
need_desk(struct rdti_mailbox *m)
{
    const struct rdti_message head = {.kind = RDTI_MESSAGE_DESK};
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    struct rdt_remote_region remote;
    uint8_t body[RDT_REMOTE_REGION_BYTES];

    if (m->desk != NULL)
        return true;
    rdt_status status = rdti_regions_alloc(m->ctx->regions, DESK_BYTES, 0, &m->desk, &err);
    if (status == RDT_OK)
        status = rdt_region_export(m->desk, &remote, &err);
    if (status != RDT_OK) {
        rdti_log(RDT_LOG_DEBUG, "rank %d is not asked for shares: %s",
                 (int)rdti_endpoint_rank(m->ep), err.message);
        rdt_region_free(m->desk, NULL, NULL);
        m->desk = NULL;
        return false;
    }
    rdt_remote_region_encode(&remote, body);
    rdti_mailbox_queue(m, &head, body, sizeof(body));
    return true;
}

/* Sums are of bytes in the order in which they are read. Ranks that share a core gain nothing: who
 * waits is not on it. */
static bool
is_worth_it(struct rdti_mailbox *m, struct rdti_request *receive)
{
    const bool is_first = receive->done_bytes == 0 && receive->own_bytes == receive->len_bytes;

    if (is_first && receive->len_bytes >= HELP_LEAST_BYTES && m->help_pause > 0) {
        m->help_pause--;
        receive->is_unhelped = true;
    }
    return receive->len_bytes >= HELP_LEAST_BYTES && !receive->is_unhelped &&
           !rdti_context_verifies(m->ctx) && rdti_engine_spin_ns(m->ctx->engine) > 0;
}

void
rdti_help_ask(struct rdti_mailbox *m, struct rdti_request *receive)
{
    bool has_asked = false;

    if (!is_worth_it(m, receive))
        return;
    for (uint32_t i = 0; i < RDTI_SHARES; i++) {
        struct rdti_share *share = &m->shares[i];
        /* One more is for us, who would have nothing to do but wait. */
        if (receive->own_bytes - receive->done_bytes < 2 * RDTI_SHARE_BYTES)
            break;
        if (share->state != RDTI_SHARE_FREE)
            continue;
        if (!need_desk(m)) {
            receive->is_unhelped = true;
            break;
        }
        receive->own_bytes -= RDTI_SHARE_BYTES;
        receive->share_count++;
        *share = (struct rdti_share){.state = RDTI_SHARE_BUSY,
                                     .id = receive->id,
                                     .off_bytes = receive->own_bytes,
                                     .len_bytes = RDTI_SHARE_BYTES};
        const struct rdti_message head = {.kind = RDTI_MESSAGE_SHARE,
                                          .id = share->id,
                                          .tag = i * RDTI_SHARE_BYTES,
                                          .count = share->off_bytes,
                                          .len_bytes = share->len_bytes};
        rdti_mailbox_queue(m, &head, NULL, 0);
        has_asked = true;
    }
    if (has_asked)
        rdti_mailbox_flush(m);
}

bool
rdti_help_take(struct rdti_mailbox *m, struct rdti_request *receive)
{
    for (uint32_t i = 0; i < RDTI_SHARES; i++) {
        struct rdti_share *share = &m->shares[i];
        if (share->state != RDTI_SHARE_READY || share->id != receive->id)
            continue;
        rdti_receive_populate(receive, share->off_bytes, share->len_bytes);
        /* The kind of all of the message: it sweeps the caches as a whole. */
        rdti_copy_as((char *)receive->buf + share->off_bytes,
                     (const char *)rdt_region_addr(m->desk) + i * RDTI_SHARE_BYTES,
                     share->len_bytes, rdti_copy_choose(receive->len_bytes, RDTI_COPY_TO_OWN));
        rdti_count(&m->ctx->counters.copied_bytes[RDTI_TRAFFIC_DYNAMIC], share->len_bytes);
        share->state = RDTI_SHARE_FREE;
        receive->share_count--;
        rdti_help_ask(m, receive);
        return true;
    }
    return false;
}

void
rdti_help_take_back(struct rdti_mailbox *m, struct rdti_request *receive)
{
    struct rdti_share *last = NULL;

    for (uint32_t i = 0; i < RDTI_SHARES; i++) {
        struct rdti_share *share = &m->shares[i];
        if (share->state == RDTI_SHARE_BUSY && !share->is_unwanted && share->id == receive->id &&
            (last == NULL || share->off_bytes < last->off_bytes))
            last = share;
    }
    if (last == NULL)
        return;
    /* Of a peer that answers out of turn some of it is here; it is read again. */
    last->is_unwanted = true;
    receive->own_bytes = last->off_bytes + last->len_bytes;
    receive->share_count--;
}

void
rdti_help_end(struct rdti_mailbox *m, struct rdti_request *receive)
{
    for (uint32_t i = 0; i < RDTI_SHARES && receive->share_count > 0; i++) {
        struct rdti_share *share = &m->shares[i];
        if (share->id != receive->id || share->is_unwanted || share->state == RDTI_SHARE_FREE)
            continue;
        receive->share_count--;
        if (share->state == RDTI_SHARE_READY)
            share->state = RDTI_SHARE_FREE;
        else
            share->is_unwanted = true;
    }
}

static struct rdti_request *
find_pull(struct rdti_mailbox *m, uint64_t id)
{
    for (struct rdti_list *node = m->pulls.next; node != &m->pulls; node = node->next) {
        struct rdti_request *receive = RDTI_CONTAINER(node, struct rdti_request, link);
        if (receive->id == id)
            return receive;
    }
    return NULL;
}

/* The sender does not help, nor will it: what it was asked for later, which lies before, is ours
 * again. */
static void
refused(struct rdti_mailbox *m, struct rdti_request *receive, uint64_t to_bytes)
{
    receive->is_unhelped = true;
    m->help_pause = m->help_refusals;
    if (m->help_refusals < PAUSE_MOST)
        m->help_refusals++;
    if (receive->own_bytes < to_bytes)
        receive->own_bytes = to_bytes;
    for (uint32_t i = 0; i < RDTI_SHARES; i++) {
        struct rdti_share *share = &m->shares[i];
        if (share->state != RDTI_SHARE_BUSY || share->is_unwanted || share->id != receive->id ||
            share->off_bytes >= to_bytes)
            continue;
        share->is_unwanted = true;
        receive->share_count--;
    }
}

rdt_status
rdti_help_on_shared(struct rdti_mailbox *m, const struct rdti_message *head, struct rdt_error *err)
{
    struct rdti_share *share = &m->shares[head->tag / RDTI_SHARE_BYTES % RDTI_SHARES];

    if (head->tag >= DESK_BYTES || head->tag % RDTI_SHARE_BYTES != 0 ||
        share->state != RDTI_SHARE_BUSY || share->id != head->id ||
        share->off_bytes != head->count ||
        (head->len_bytes != 0 && head->len_bytes != share->len_bytes))
        return broken(m, err, "answers for a share that it was not asked for");
    struct rdti_request *receive = find_pull(m, head->id);
    if (share->is_unwanted || receive == NULL) {
        share->state = RDTI_SHARE_FREE;
    } else if (head->len_bytes > 0) {
        share->state = RDTI_SHARE_READY;
        m->help_refusals = 0;
    } else {
        share->state = RDTI_SHARE_FREE;
        receive->share_count--;
        refused(m, receive, share->off_bytes + share->len_bytes);
    }
    return RDT_OK;
}

/* ---- The sender -------------------------------------------------------------------------- */

rdt_status
rdti_help_on_desk(struct rdti_mailbox *m, const uint8_t *body, struct rdt_error *err)
{
    struct rdt_remote_region remote;

    if (rdt_remote_region_decode(body, RDT_REMOTE_REGION_BYTES, &remote, err) != RDT_OK)
        return broken(m, err, "tells of a desk in bytes that are none");
    if (m->peer_desk.len_bytes != 0)
        return broken(m, err, "tells of a second desk");
    if (memcmp(remote.owner, rdti_endpoint_uuid(m->ep), RDT_UUID_BYTES) != 0 ||
        remote.len_bytes != DESK_BYTES)
        return broken(m, err, "tells of a desk that is not its own or not as long as one");
    m->peer_desk = remote;
    (void)rdti_endpoint_writes_at_once(m->ep, &m->peer_desk); /* asks for its segment */
    return RDT_OK;
}

/* Whether a core of ours would be idle otherwise, and the write is over when it is posted: one that
 * waited in the lane would keep a send from its end, and all that comes behind it. */
static bool
is_able(struct rdti_mailbox *m, const struct rdti_request *send)
{
    return send->state == RDTI_REQUEST_OFFERED && !send->is_cancelled && !send->is_unhelped &&
           rdti_engine_is_attended(m->ctx->engine) && rdti_list_is_empty(&m->pulls) &&
           rdti_endpoint_writes_at_once(m->ep, &m->peer_desk);
}

static rdt_status
check_share(const struct rdti_mailbox *m, const struct rdti_request *send,
            const struct rdti_message *head, struct rdt_error *err)
{
    if (!rdti_range_ok(head->tag, head->len_bytes, m->peer_desk.len_bytes) ||
        head->len_bytes == 0 || head->len_bytes > RDTI_SHARE_BYTES ||
        head->tag % RDTI_SHARE_BYTES != 0)
        return broken(m, err, "asks for a share where it has no desk for it");
    if (m->answer_count >= RDTI_ANSWERS_MAX)
        return broken(m, err, "asks for more shares than it takes answers");
    if (send != NULL &&
        (send->done_bytes > 0 || !rdti_range_ok(head->count, head->len_bytes, send->len_bytes) ||
         head->len_bytes > send->len_bytes - send->own_bytes))
        return broken(m, err, "asks for a share of a message that it may not ask for");
    return RDT_OK;
}

/* Afterwards the send may be over, and is not looked at. */
static bool
write_share(struct rdti_mailbox *m, struct rdti_request *send, const struct rdti_message *head)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};

    send->own_bytes += head->len_bytes;
    send->is_unhelped = !is_able(m, send);
    if (send->is_unhelped)
        return false;
    if (rdti_offer_write_part(m, send, head->count, head->len_bytes, &m->peer_desk, head->tag,
                              RDTI_TRAFFIC_DYNAMIC, &err) == RDT_OK)
        return true;
    rdti_log(RDT_LOG_WARN, "no share for rank %d: %s", (int)rdti_endpoint_rank(m->ep), err.message);
    send->is_unhelped = true;
    return false;
}

rdt_status
rdti_help_on_share(struct rdti_mailbox *m, const struct rdti_message *head, struct rdt_error *err)
{
    struct rdti_request *send = rdti_offer_find(m, head->id);
    struct rdti_message answer = {.kind = RDTI_MESSAGE_SHARED,
                                  .id = head->id,
                                  .tag = head->tag,
                                  .count = head->count};
    const rdt_status status = check_share(m, send, head, err);

    if (status != RDT_OK)
        return status;
    if (send != NULL && write_share(m, send, head))
        answer.len_bytes = head->len_bytes;
    rdti_mailbox_queue(m, &answer, NULL, 0);
    return RDT_OK;
}
