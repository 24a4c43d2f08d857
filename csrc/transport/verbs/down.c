/* SPDX-License-Identifier: Apache-2.0
 * A link that breaks while others continue: stopped, drained, reported by DOWN, settled (the table
 * in lane.h). All [driver]. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "transport/verbs/down.h"
#include "transport/verbs/lane.h"

static uint32_t
down_count_good(const struct rdti_verbs_lane *lane)
{
    uint32_t good = 0;

    for (uint32_t i = 0; i < lane->link_count; i++)
        good += lane->links[i].state == RDTI_VERBS_LINK_GOOD;
    return good;
}

/* ---- Breaking ------------------------------------------------------------------------------- */

/* From here on no packet of the peer accesses this side's memory over the link, and this device
 * does not read. Exception: QPs with a stop_errno, which rdti_verbs_stop_rest() handles. */
void
rdti_verbs_stop_link(struct rdti_verbs_link *link)
{
    const struct rdti_verbs_nic *nic = link->nic;

    for (uint32_t i = 0; i < link->qp_count; i++) {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR, RDTI_VERBS_NO_MTU};
        const int failed = nic->verbs->ops->modify_qp(link->qps[i]->qp, &attr, IBV_QP_STATE);

        if (failed != 0 && !nic->is_gone)
            link->qps[i]->stop_errno = failed > 0 ? failed : errno;
    }
}

static bool
down_is_stopped(const struct rdti_verbs_link *link)
{
    for (uint32_t i = 0; i < link->qp_count; i++)
        if (link->qps[i]->stop_errno != 0)
            return false;
    return true;
}

/* A failing device may refuse to modify a QP before its event arrives, but still destroy it. The
 * QP's completions are then lost. */
static rdt_status
down_destroy_unstopped(struct rdti_verbs_qp *qp, struct rdt_error *err)
{
    const struct rdti_verbs_link *link = qp->link;
    const struct rdti_verbs_nic *nic = link->nic;
    const int failed = nic->verbs->ops->destroy_qp(qp->qp);
    const int sys_errno = failed > 0 ? failed : errno;

    if (failed != 0 && nic->is_gone) { /* its event came meanwhile: it moves no more data */
        qp->stop_errno = 0;
        return RDT_OK;
    }
    if (failed != 0) {
        (void)rdti_error_set_rank(err, RDT_EDEVICE, link->lane->args.peer_rank,
                                  "%s; and its QP goes on: ibv_modify_qp to ERR: %s, "
                                  "ibv_destroy_qp: %s",
                                  link->error.message, strerror(qp->stop_errno),
                                  strerror(sys_errno));
        err->sys_errno = qp->stop_errno;
        return RDT_EDEVICE;
    }
    rdti_log(RDT_LOG_WARN, "verbs: a QP of %s port %u is destroyed: ibv_modify_qp to ERR: %s",
             nic->name, nic->port, strerror(qp->stop_errno));
    qp->qp = NULL;
    qp->stop_errno = 0;
    qp->is_rx_flushed = true;
    qp->tx_flushed = qp->tx_given; /* constant, as the link is_tx_out */
    return RDT_OK;
}

/* Takes all completions from the CQ of a stopped link; finite, as nothing is posted there any more.
 * False: the lane ended, and the link with it. */
static bool
down_empty_cq(struct rdti_verbs_link *link)
{
    const struct rdti_verbs_lane *lane = link->lane;

    while (rdti_verbs_poll_link(link) > 0)
        if (rdti_verbs_phase_of(lane) == RDTI_VERBS_FAILED)
            return false;
    return true;
}

/* Takes all completions from the CQ first: the device may have acknowledged them to the peer. If
 * the peer stopped before its DOWN, that is all. Else a message that arrives meanwhile is lost, and
 * its sender, to which it was acknowledged, finds the count too low and ends the lane. */
static void
down_stop_rest_of(struct rdti_verbs_link *link)
{
    struct rdti_verbs_lane *lane = link->lane;
    rdt_status status = RDT_OK;
    struct rdt_error err;

    if (!down_empty_cq(link))
        return;
    for (uint32_t i = 0; status == RDT_OK && i < link->qp_count; i++)
        if (link->qps[i]->stop_errno != 0)
            status = down_destroy_unstopped(link->qps[i], &err);
    (void)lane->deliver(lane);
    if (status != RDT_OK)
        rdti_verbs_fail(lane, &err);
}

void
rdti_verbs_stop_rest(struct rdti_verbs_lane *lane)
{
    for (uint32_t i = 0; i < lane->link_count; i++)
        if (lane->links[i].state == RDTI_VERBS_LINK_DRAINING && !down_is_stopped(&lane->links[i]))
            down_stop_rest_of(&lane->links[i]);
}

void
rdti_verbs_break_link(struct rdti_verbs_link *link, const struct rdt_error *err)
{
    struct rdti_verbs_lane *lane = link->lane;
    const enum rdti_verbs_phase phase = rdti_verbs_phase_of(lane);

    if (phase == RDTI_VERBS_FAILED || link->state > RDTI_VERBS_LINK_GOOD)
        return; /* the first error counts */
    const uint32_t left = down_count_good(lane) - (link->state == RDTI_VERBS_LINK_GOOD);
    if (phase == RDTI_VERBS_READY && left == 0 && rdti_verbs_lose(lane, err))
        return;
    if (phase == RDTI_VERBS_SETUP || left == 0) {
        rdti_verbs_fail(lane, err);
        return;
    }
    (void)pthread_mutex_lock(&lane->lock);
    link->is_tx_out = true;
    lane->is_held = true;
    (void)pthread_mutex_unlock(&lane->lock);
    link->state = RDTI_VERBS_LINK_DRAINING;
    link->error = *err;
    link->down_deadline_ns = rdti_deadline_after(RDTI_VERBS_FLUSH_NS);
    rdti_log(RDT_LOG_WARN, "verbs: rank %d loses %s port %u, %s; %u of its links carry on: %s",
             lane->args.peer_rank, link->nic->name, link->nic->port, link->pair_text, left,
             err->message);
    rdti_verbs_stop_link(link);
}

void
rdti_verbs_break_unposted(struct rdti_verbs_lane *lane)
{
    struct rdt_error err;

    /* relaxed: a hint; the lock orders tx_errno */
    atomic_store_explicit(&lane->is_tx_broken, false, memory_order_relaxed);
    for (uint32_t i = 0; i < lane->link_count; i++) {
        struct rdti_verbs_link *link = &lane->links[i];

        (void)pthread_mutex_lock(&lane->lock);
        const int sys_errno = link->tx_errno;
        (void)pthread_mutex_unlock(&lane->lock);
        if (sys_errno == 0)
            continue;
        (void)rdti_error_set(&err, RDT_EDEVICE, sys_errno,
                             "verbs lane to rank %d: ibv_post_send on %s port %u",
                             lane->args.peer_rank, link->nic->name, link->nic->port);
        err.peer_rank = lane->args.peer_rank;
        rdti_verbs_break_link(link, &err);
    }
}

/* ---- Draining ------------------------------------------------------------------------------- */

static bool
down_is_drained(struct rdti_verbs_link *link)
{
    struct rdti_verbs_lane *lane = link->lane;
    bool is_over = true;

    (void)pthread_mutex_lock(&lane->lock);
    for (uint32_t i = 0; i < link->qp_count; i++) {
        const struct rdti_verbs_qp *qp = link->qps[i];

        is_over &= qp->tx_done >= qp->tx_given || qp->tx_flushed >= qp->tx_given;
        is_over &= qp->is_rx_flushed || qp->rx_taken == qp->rx_posted;
    }
    (void)pthread_mutex_unlock(&lane->lock);
    return is_over;
}

/* Time alone does not decide: a process that was stopped has not polled yet. The completions that
 * the CQ holds after the deadline are the last. False also if taking them ended the lane. */
bool
rdti_verbs_is_over(struct rdti_verbs_link *link)
{
    if (!down_is_stopped(link))
        return false;
    if (down_is_drained(link))
        return true;
    if (rdti_now_ns() < link->down_deadline_ns)
        return false;
    return down_empty_cq(link);
}

static void
down_tell(struct rdti_verbs_link *link)
{
    struct rdti_verbs_words words = {.kind = RDTI_VERBS_LINK_DOWN,
                                     .link = (uint8_t)link->number,
                                     .qp_count = (uint8_t)link->qp_count};

    for (uint32_t i = 0; i < link->qp_count; i++)
        words.received[i] = link->qps[i]->rx_taken;
    link->state = RDTI_VERBS_LINK_TOLD;
    link->down_deadline_ns = rdti_deadline_after(RDTI_VERBS_ANSWER_NS);
    rdti_verbs_send_words(link->lane, &words);
}

/* ---- Settling ------------------------------------------------------------------------------- */

static rdt_status
down_keep(struct rdti_verbs_lane *lane, const struct rdti_verbs_record *record,
          struct rdt_error *err)
{
    if (lane->again_count == lane->again_cap) {
        const uint32_t cap = lane->again_cap == 0 ? RDTI_VERBS_SQ_DEPTH : 2 * lane->again_cap;
        struct rdti_verbs_record *again = realloc(lane->again, cap * sizeof(*again));

        if (again == NULL)
            return rdti_error_set(err, RDT_ENOMEM, 0, "verbs: %u requests to send again", cap);
        lane->again = again;
        lane->again_cap = cap;
    }
    lane->again[lane->again_count++] = *record;
    return RDT_OK;
}

/* Lock is held. `received`: immediates of this QP that the peer has. */
static rdt_status
down_settle_qp(struct rdti_verbs_lane *lane, struct rdti_verbs_qp *qp, uint64_t received,
               struct rdti_list *done, struct rdt_error *err)
{
    const uint64_t answered = qp->tx_done < qp->tx_posted
                                  ? qp->records[qp->tx_done % RDTI_VERBS_SQ_DEPTH].imms
                                  : qp->tx_imms;
    rdt_status status = RDT_OK;

    if (received < answered || received > qp->tx_imms)
        return rdti_error_set_rank(err, RDT_EPROTO, lane->args.peer_rank,
                                   "rank %d counts %llu notifications on a QP of %s port %u that "
                                   "answered %llu of %llu",
                                   lane->args.peer_rank, (unsigned long long)received,
                                   qp->link->nic->name, qp->link->nic->port,
                                   (unsigned long long)answered, (unsigned long long)qp->tx_imms);
    for (; status == RDT_OK && qp->tx_done < qp->tx_posted; qp->tx_done++) {
        const struct rdti_verbs_record *record = &qp->records[qp->tx_done % RDTI_VERBS_SQ_DEPTH];

        /* Its own immediate or a later one has arrived, so its bytes have, too. The bytes of a read
         * travel in the other direction. */
        if (!record->is_read && record->imms < received)
            rdti_verbs_retire(lane, record, done);
        else
            status = down_keep(lane, record, err);
    }
    return status;
}

static void
down_settle(struct rdti_verbs_link *link)
{
    struct rdti_verbs_lane *lane = link->lane;
    rdt_status status = RDT_OK;
    struct rdti_list done;
    struct rdt_error err;

    rdti_list_init(&done);
    link->state = RDTI_VERBS_LINK_IS_DOWN;
    (void)pthread_mutex_lock(&lane->lock);
    if (lane->again_next == lane->again_count) {
        lane->again_next = 0;
        lane->again_count = 0;
    }
    const uint32_t before = lane->again_count;
    for (uint32_t i = 0; status == RDT_OK && i < link->qp_count; i++)
        status = down_settle_qp(lane, link->qps[i], link->peer_received[i], &done, &err);
    const uint32_t count = lane->again_count - before;
    link->owes_mark = true;
    lane->marks_owed++;
    lane->is_held = false;
    for (uint32_t i = 0; i < lane->link_count; i++) {
        const struct rdti_verbs_link *other = &lane->links[i];
        lane->is_held |= other->state == RDTI_VERBS_LINK_DRAINING ||
                         other->state == RDTI_VERBS_LINK_TOLD ||
                         (other->state == RDTI_VERBS_LINK_GOOD && other->is_tx_out);
    }
    (void)pthread_mutex_unlock(&lane->lock);
    rdti_verbs_complete_all(lane, &done, RDT_OK, NULL);
    if (status != RDT_OK) {
        rdti_verbs_fail(lane, &err);
        return;
    }
    rdti_log(RDT_LOG_DEBUG, "verbs: rank %d: %s port %u is settled, %u requests go again",
             lane->args.peer_rank, link->nic->name, link->nic->port, count);
    (void)rdti_verbs_push(lane);
}

/* If this process was stopped until the deadline, the peer's word may have arrived meanwhile: this
 * leaves time to read it. */
static bool
down_is_late(struct rdti_verbs_link *link)
{
    if (rdti_now_ns() < link->down_deadline_ns)
        return false;
    if (link->had_last_call)
        return true;
    link->had_last_call = true;
    link->down_deadline_ns = rdti_deadline_after(RDTI_VERBS_FLUSH_NS);
    return false;
}

void
rdti_verbs_watch_links(struct rdti_verbs_lane *lane)
{
    struct rdt_error err;

    if (lane->is_lost) {
        rdti_verbs_watch_loss(lane);
        return;
    }
    for (uint32_t i = 0; i < lane->link_count; i++) {
        struct rdti_verbs_link *link = &lane->links[i];

        if (link->state != RDTI_VERBS_LINK_DRAINING && link->state != RDTI_VERBS_LINK_TOLD)
            continue;
        if (link->state == RDTI_VERBS_LINK_DRAINING && rdti_verbs_is_over(link))
            down_tell(link);
        if (link->state != RDTI_VERBS_LINK_TOLD)
            continue;
        if (link->is_peer_told) {
            down_settle(link);
        } else if (down_is_late(link)) {
            (void)rdti_error_set_rank(&err, RDT_EPEER, lane->args.peer_rank,
                                      "verbs: rank %d does not say what it received over %s port "
                                      "%u, which broke: %s",
                                      lane->args.peer_rank, link->nic->name, link->nic->port,
                                      link->error.message);
            rdti_verbs_fail(lane, &err);
        }
    }
}

/* ---- Words and marks of the peer ------------------------------------------------------------ */

rdt_status
rdti_verbs_take_down_word(struct rdti_verbs_lane *lane, const struct rdti_verbs_words *words,
                          struct rdt_error *err)
{
    struct rdti_verbs_link *link = &lane->links[words->link];
    struct rdt_error why;

    if (rdti_verbs_phase_of(lane) != RDTI_VERBS_READY || words->link >= lane->link_count ||
        link->state == RDTI_VERBS_LINK_PROVING || link->state == RDTI_VERBS_LINK_DROPPED ||
        link->is_peer_told || words->qp_count != link->qp_count)
        return rdti_error_set_rank(err, RDT_EPROTO, lane->args.peer_rank,
                                   "rank %d speaks out of turn: link %u is down",
                                   lane->args.peer_rank, words->link);
    link->is_peer_told = true;
    memcpy(link->peer_received, words->received, sizeof(link->peer_received));
    (void)rdti_error_set_rank(&why, RDT_EPEER, lane->args.peer_rank,
                              "verbs lane to rank %d: it gave up %s port %u, %s; its log says why",
                              lane->args.peer_rank, link->nic->name, link->nic->port,
                              link->pair_text);
    rdti_verbs_break_link(link, &why); /* no effect if this side has already broken it */
    if (rdti_verbs_phase_of(lane) == RDTI_VERBS_READY)
        rdti_verbs_watch_links(lane);
    return RDT_OK;
}

rdt_status
rdti_verbs_take_mark(struct rdti_verbs_lane *lane, uint32_t number, struct rdt_error *err)
{
    struct rdti_verbs_link *link = &lane->links[number < lane->link_count ? number : 0];

    /* It follows this side's DOWN, whose counts the peer needs to know what is missing. */
    if (number >= lane->link_count || link->state < RDTI_VERBS_LINK_TOLD || link->is_rx_out)
        return rdti_error_set_rank(err, RDT_EPROTO, lane->args.peer_rank,
                                   "rank %d has settled link %u, which is not down",
                                   lane->args.peer_rank, number);
    link->is_rx_out = true;
    return RDT_OK;
}
