/* SPDX-License-Identifier: Apache-2.0
 * The path to the peer is lost: the last link broke, or the peer reports that its last did. If the
 * core has another lane as a replacement, all links are drained, and incomplete ops are given back.
 * All [driver].
 *
 * One number shows what the peer has: the notifications that it delivered. They arrive in order,
 * and each after all bytes written before it. So up to the last one everything is in place; the
 * peer may already use it, and it must not be written again. After it nothing was delivered, and
 * ops may be repeated whole. Completions show less: a link that broke earlier may have lost a
 * notification whose bytes have arrived.
 */
#include "base/clock.h"
#include "base/error.h"
#include "transport/verbs/down.h"
#include "transport/verbs/lane.h"
#include "wire/notify.h"

/* Not with flags: they are not counted, and two may arrive in either order. Not if the peer posts
 * no receives: then the path is not broken. */
static bool
lost_may_move(const struct rdti_verbs_lane *lane, const struct rdt_error *why)
{
    const struct rdti_host *host = lane->verbs->host;

    return host->may_move != NULL && lane->rx_flags == 0 && lane->peer_flags == 0 &&
           why->wc_status != IBV_WC_RNR_RETRY_EXC_ERR && !lane->is_closed &&
           host->may_move(host->core, &lane->base);
}

bool
rdti_verbs_lose(struct rdti_verbs_lane *lane, const struct rdt_error *err)
{
    const struct rdt_error why = *err; /* err may point into a link */

    if (lane->is_lost)
        return true;
    if (!lost_may_move(lane, &why))
        return false;
    (void)pthread_mutex_lock(&lane->lock);
    if (lane->is_stopped) { /* ops after the refused one must not be sent */
        (void)pthread_mutex_unlock(&lane->lock);
        return false;
    }
    lane->is_held = true;
    for (uint32_t i = 0; i < lane->link_count; i++)
        lane->links[i].is_tx_out = true;
    (void)pthread_mutex_unlock(&lane->lock);
    lane->is_lost = true;
    lane->loss = why;
    for (uint32_t i = 0; i < lane->link_count; i++) {
        struct rdti_verbs_link *link = &lane->links[i];

        if (link->state != RDTI_VERBS_LINK_GOOD) { /* a link that was never used lost none */
            lane->had_broken |= link->state > RDTI_VERBS_LINK_DROPPED;
            continue;
        }
        link->state = RDTI_VERBS_LINK_DRAINING;
        link->error = why;
        link->down_deadline_ns = rdti_deadline_after(RDTI_VERBS_FLUSH_NS);
        rdti_verbs_stop_link(link);
    }
    return true;
}

/* From here on the receive side has ended: the peer repeats what is not counted here. */
void
rdti_verbs_watch_loss(struct rdti_verbs_lane *lane)
{
    const struct rdti_host *host = lane->verbs->host;

    if (lane->is_fenced)
        return;
    for (uint32_t i = 0; i < lane->link_count; i++)
        if (lane->links[i].state == RDTI_VERBS_LINK_DRAINING &&
            !rdti_verbs_is_over(&lane->links[i]))
            return;
    (void)lane->deliver(lane);
    if (rdti_verbs_phase_of(lane) != RDTI_VERBS_READY)
        return;
    for (uint32_t i = 0; i < lane->link_count; i++)
        if (lane->links[i].state == RDTI_VERBS_LINK_DRAINING)
            lane->links[i].state = RDTI_VERBS_LINK_TOLD;
    lane->is_fenced = true;
    host->on_fenced(host->core, &lane->base, lane->rx_messages, &lane->loss);
}

bool
rdti_verbs_fence(struct rdti_lane *base, const struct rdt_error *why)
{
    struct rdti_verbs_lane *lane = (struct rdti_verbs_lane *)base;

    if (rdti_verbs_phase_of(lane) != RDTI_VERBS_READY || !rdti_verbs_lose(lane, why))
        return false;
    rdti_verbs_watch_loss(lane);
    return true;
}

/* The last op in the list that the peer delivered; NULL: none is there. */
static const struct rdti_op *
lost_last_delivered(const struct rdti_list *ops, uint64_t delivered)
{
    const struct rdti_op *last = NULL;

    for (struct rdti_list *at = ops->next; at != ops; at = at->next) {
        const struct rdti_op *op = RDTI_CONTAINER(at, struct rdti_op, link);
        const uint64_t number = op->scratch[RDTI_VERBS_OP_MESSAGE];

        if (number != 0 && number <= delivered)
            last = op;
    }
    return last;
}

/* Writes up to the last delivered one are in place; reads travel in the other direction. */
static void
lost_sort_out(struct rdti_list *ops, uint64_t delivered, struct rdti_list *done,
              struct rdti_list *left)
{
    const struct rdti_op *last = lost_last_delivered(ops, delivered);
    bool is_in_place = last != NULL;
    struct rdti_list *node;

    rdti_list_init(done);
    rdti_list_init(left);
    while ((node = rdti_list_take_first(ops)) != NULL) {
        const struct rdti_op *op = RDTI_CONTAINER(node, struct rdti_op, link);

        rdti_list_append(is_in_place && op->kind == RDTI_OP_WRITE ? done : left, node);
        is_in_place = is_in_place && op != last;
    }
}

/* The notifications in [*next, end) whose ops are complete, but which the peer has not
 * delivered. */
static void
lost_give_notes(const struct rdti_verbs_lane *lane, uint64_t *next, uint64_t end,
                void (*take)(void *arg, struct rdti_op *op, uint32_t notify), void *arg)
{
    for (; *next < end; (*next)++)
        take(arg, NULL, lane->tx_notes[*next % RDTI_VERBS_IMMS]);
}

/* Number of messages that were begun and not delivered, and whose ops are complete. */
static uint64_t
lost_count_bare(struct rdti_verbs_lane *lane, uint64_t begun, uint64_t delivered)
{
    uint64_t bare = begun - delivered;

    (void)pthread_mutex_lock(&lane->lock);
    for (struct rdti_list *at = lane->ops.next; at != &lane->ops; at = at->next)
        bare -=
            RDTI_CONTAINER(at, struct rdti_op, link)->scratch[RDTI_VERBS_OP_MESSAGE] > delivered;
    (void)pthread_mutex_unlock(&lane->lock);
    return bare;
}

rdt_status
rdti_verbs_hand_over(struct rdti_lane *base, uint64_t delivered,
                     void (*take)(void *arg, struct rdti_op *op, uint32_t notify), void *arg,
                     struct rdt_error *err)
{
    struct rdti_verbs_lane *lane = (struct rdti_verbs_lane *)base;
    struct rdti_list ops, done, left;
    struct rdti_list *node;
    uint64_t next = delivered;

    (void)pthread_mutex_lock(&lane->lock);
    const uint64_t begun = lane->tx_messages;
    (void)pthread_mutex_unlock(&lane->lock);
    if (delivered > begun || begun - delivered > RDTI_VERBS_IMMS)
        return rdti_error_set_rank(err, RDT_EPROTO, lane->args.peer_rank,
                                   "rank %d counts %llu notifications of %llu that were sent",
                                   lane->args.peer_rank, (unsigned long long)delivered,
                                   (unsigned long long)begun);
    /* A link that broke earlier may have lost notifications whose bytes have arrived. Else the
     * peer's device acknowledged messages that it did not report: their bytes may be missing. */
    if (!lane->had_broken && lost_count_bare(lane, begun, delivered) > 0)
        return rdti_error_set_rank(err, RDT_EDEVICE, lane->args.peer_rank,
                                   "rank %d: its device acknowledged messages that it did not "
                                   "deliver",
                                   lane->args.peer_rank);
    if (!rdti_verbs_stop_lane(lane, &lane->loss, &ops))
        return rdti_error_copy(err, &lane->error);
    lost_sort_out(&ops, delivered, &done, &left);
    rdti_verbs_complete_all(lane, &done, RDT_OK, NULL);
    while ((node = rdti_list_take_first(&left)) != NULL) {
        struct rdti_op *op = RDTI_CONTAINER(node, struct rdti_op, link);
        const uint64_t number = op->scratch[RDTI_VERBS_OP_MESSAGE];

        if (number != 0) {
            lost_give_notes(lane, &next, number - 1, take, arg);
            next = number;
        } else if (op->scratch[RDTI_VERBS_OP_STEP] == 0) { /* after all begun messages */
            lost_give_notes(lane, &next, begun, take, arg);
        }
        (void)atomic_fetch_sub_explicit(&lane->ops_open, 1, memory_order_acq_rel);
        take(arg, op, RDTI_NOTIFY_NONE);
    }
    lost_give_notes(lane, &next, begun, take, arg);
    return RDT_OK;
}
