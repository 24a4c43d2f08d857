/* SPDX-License-Identifier: Apache-2.0
 * Ends of lanes: stopping, teardown, freeing. [driver] */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "transport/verbs/flag.h"
#include "transport/verbs/keys.h"
#include "transport/verbs/wish.h"
#include "transport/verbs/down.h"
#include "transport/verbs/lane.h"

static void
verbs_ends_stop_qps(struct rdti_verbs_lane *lane)
{
    for (uint32_t i = 0; i < lane->link_count; i++) {
        const struct rdti_verbs_link *link = &lane->links[i];

        for (uint32_t q = 0; q < link->qp_count; q++) {
            struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR, RDTI_VERBS_NO_MTU};

            /* A QP in RESET, its state until the peer's offer arrives, moves no data. */
            if (link->qps[q]->qp == NULL || link->qps[q]->qp->state == IBV_QPS_RESET)
                continue;
            const int failed = lane->verbs->ops->modify_qp(link->qps[q]->qp, &attr, IBV_QP_STATE);

            /* Destroying it stops it, too. */
            if (failed != 0)
                rdti_log(link->nic->is_gone ? RDT_LOG_DEBUG : RDT_LOG_WARN,
                         "verbs: ibv_modify_qp to ERR on device %s port %u: %s", link->nic->name,
                         link->nic->port, strerror(failed > 0 ? failed : errno));
        }
    }
}

static uint64_t
verbs_ends_outstanding(const struct rdti_verbs_lane *lane)
{
    uint64_t count = 0;

    for (uint32_t i = 0; i < lane->link_count; i++)
        for (uint32_t q = 0; q < lane->links[i].qp_count; q++)
            count += lane->links[i].qps[q]->tx_posted - lane->links[i].qps[q]->tx_done;
    return count;
}

/* Requests in flight come back flushed; only their number matters. No other thread uses the QPs, as
 * the phase is FAILED. */
static void
verbs_ends_drain(struct rdti_verbs_lane *lane)
{
    const uint64_t deadline_ns = rdti_deadline_after(RDTI_VERBS_DRAIN_NS);
    struct ibv_wc wcs[RDTI_VERBS_WCS];

    while (verbs_ends_outstanding(lane) > 0 && rdti_now_ns() < deadline_ns) {
        for (uint32_t i = 0; i < lane->link_count; i++) {
            struct rdti_verbs_link *link = &lane->links[i];
            const int count = lane->verbs->ops->poll_cq(link->cq, RDTI_VERBS_WCS, wcs);

            for (int c = 0; c < count; c++) {
                struct rdti_verbs_qp *qp = rdti_verbs_qp_of(link, wcs[c].wr_id);
                const uint64_t sequence = wcs[c].wr_id & UINT64_C(0xffffffffffff);

                rdti_verbs_count_flush(lane, &wcs[c]);
                if (qp != NULL && wcs[c].wr_id >> 56 == RDTI_VERBS_WR_TX &&
                    sequence >= qp->tx_done && sequence < qp->tx_posted)
                    qp->tx_done = sequence + 1;
            }
            if (count < 0)
                return;
        }
    }
}

/* Appends the number of flushed requests to the error that ended the lane. */
static void
verbs_ends_tell_flushed(struct rdti_verbs_lane *lane)
{
    if (lane->flushed == 0)
        return;
    (void)pthread_mutex_lock(&lane->lock);
    const size_t used = strlen(lane->error.message);
    (void)snprintf(lane->error.message + used, sizeof(lane->error.message) - used,
                   "; %u requests after it were flushed", lane->flushed);
    (void)pthread_mutex_unlock(&lane->lock);
    /* Logged, too: the error of a lane that moves to tcp is not reported. */
    rdti_log(RDT_LOG_DEBUG, "verbs lane to rank %d: %u requests were flushed", lane->args.peer_rank,
             lane->flushed);
}

bool
rdti_verbs_stop_lane(struct rdti_verbs_lane *lane, const struct rdt_error *err,
                     struct rdti_list *ops)
{
    rdti_list_init(ops);
    (void)pthread_mutex_lock(&lane->lock);
    if (rdti_verbs_phase_of(lane) == RDTI_VERBS_FAILED) {
        (void)pthread_mutex_unlock(&lane->lock);
        return false;
    }
    lane->error = *err;
    rdti_list_splice(ops, &lane->ops);
    lane->cursor = NULL;
    lane->again_count = 0;
    lane->again_next = 0;
    /* release: pairs with rdti_verbs_phase_of(); from here on no thread posts */
    atomic_store_explicit(&lane->phase, RDTI_VERBS_FAILED, memory_order_release);
    (void)pthread_mutex_unlock(&lane->lock);

    /* ERR first, not directly RESET, so that requests in flight are flushed and counted. */
    verbs_ends_stop_qps(lane);
    if (!lane->is_fenced) /* else they have come back already */
        verbs_ends_drain(lane);
    verbs_ends_tell_flushed(lane);
    lane->qp_count = 0;
    rdti_verbs_drop_wishes(lane);
    rdti_verbs_forget_flags(lane);
    while (lane->link_count > 0)
        rdti_verbs_destroy_link(&lane->links[--lane->link_count]);
    return true; /* no device accesses the ops' memory any more */
}

void
rdti_verbs_teardown(struct rdti_verbs_lane *lane, const struct rdt_error *err)
{
    struct rdti_list ops;

    (void)rdti_verbs_stop_lane(lane, err, &ops);
    (void)pthread_mutex_lock(&lane->lock);
    rdti_list_splice(&ops, &lane->ops); /* the ops of a lane that failed before */
    (void)pthread_mutex_unlock(&lane->lock);
    rdti_verbs_complete_all(lane, &ops, (rdt_status)err->status, err);
}

void
rdti_verbs_fail(struct rdti_verbs_lane *lane, const struct rdt_error *err)
{
    const struct rdti_host *host = lane->verbs->host;
    const struct rdt_error copy = *err; /* err may point into the lane */
    struct rdti_list ops;

    if (!rdti_verbs_stop_lane(lane, &copy, &ops))
        return;
    (void)pthread_mutex_lock(&lane->lock);
    rdti_list_splice(&lane->ops, &ops); /* for close_lane(): the host may know a better reason */
    const struct rdt_error told = lane->error;
    (void)pthread_mutex_unlock(&lane->lock);
    host->on_error(host->core, &lane->base, &told);
}

void
rdti_verbs_free_lane(struct rdti_verbs_lane *lane)
{
    struct rdti_verbs *verbs = lane->verbs;

    for (uint32_t i = 0; i < verbs->nic_count; i++)
        rdti_verbs_deregister(&verbs->nics[i], lane->stage_mrs[i]);
    if (lane->stage != NULL)
        (void)munmap(lane->stage, RDTI_VERBS_STAGE_PIECES * RDTI_VERBS_STAGE_BYTES);
    rdti_verbs_free_tails(lane);
    rdti_verbs_free_remotes(lane);
    free(lane->again);
    (void)pthread_mutex_destroy(&lane->lock);
    explicit_bzero(lane->args.session_key, sizeof(lane->args.session_key));
    free(lane);
}

void
rdti_verbs_sweep(struct rdti_verbs *verbs)
{
    if (!verbs->has_closed)
        return;
    verbs->has_closed = false;
    for (struct rdti_list *node = verbs->lanes.next, *next; node != &verbs->lanes; node = next) {
        struct rdti_verbs_lane *lane = RDTI_CONTAINER(node, struct rdti_verbs_lane, node);

        next = node->next;
        if (!lane->is_closed)
            continue;
        rdti_list_remove(&lane->node);
        rdti_verbs_free_lane(lane);
    }
}
