/* SPDX-License-Identifier: Apache-2.0
 * Verifies links. Both sides try the same pairs of GIDs in the same order, in rounds:
 *
 *   raise the QPs with the round's pair -> send READY
 *   after the peer's READY, write on every QP (no bytes, but a real packet, acknowledged by the
 *   peer's NIC)
 *   all acknowledged -> send PROVED; an error, or a timeout -> send FAILED
 *   both sent PROVED: the link is good; one sent FAILED and the other its verdict: the next round,
 *   or, after the final pair, the link is dropped
 *
 * So both sides get the same links. The lane is ready when each link is good or dropped and at
 * least one is good. All [driver].
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "transport/verbs/flag.h"
#include "transport/verbs/device/gid.h"
#include "transport/verbs/lane.h"

static void
link_say(struct rdti_verbs_link *link, enum rdti_verbs_word kind)
{
    const struct rdti_verbs_words words = {.kind = (uint8_t)kind,
                                           .link = (uint8_t)link->number,
                                           .round = (uint8_t)link->round};

    rdti_verbs_send_words(link->lane, &words);
}

static void
link_describe_pair(struct rdti_verbs_link *link)
{
    const struct rdti_verbs_lane *lane = link->lane;
    const struct rdti_verbs_port_offer *own = &lane->own.ports[link->port_index];
    const struct rdti_verbs_port_offer *peer = &lane->peer.ports[link->peer_port];
    const struct rdti_verbs_pair *pair = &link->pairs[link->round];
    char own_gid[48];
    char peer_gid[48];

    if (link->nic->is_infiniband) {
        (void)snprintf(link->pair_text, sizeof(link->pair_text), "LID %u to LID %u", own->lid,
                       peer->lid);
        return;
    }
    rdti_verbs_gid_text(own->gids[pair->own].raw, own_gid, sizeof(own_gid));
    rdti_verbs_gid_text(peer->gids[pair->peer].raw, peer_gid, sizeof(peer_gid));
    (void)snprintf(link->pair_text, sizeof(link->pair_text), "GID %u %s to %s",
                   own->gids[pair->own].index, own_gid, peer_gid);
}

static rdt_status
link_begin_round(struct rdti_verbs_link *link, struct rdt_error *err)
{
    link->is_peer_ready = false;
    link->is_probe_posted = false;
    link->own_verdict = 0;
    link->peer_verdict = 0;
    link_describe_pair(link);
    const rdt_status status = rdti_verbs_raise_link(link, err);
    if (status != RDT_OK)
        return status;
    link->proof_deadline_ns = rdti_deadline_after(RDTI_VERBS_PROOF_NS / link->pair_count);
    link_say(link, RDTI_VERBS_LINK_READY);
    return RDT_OK;
}

rdt_status
rdti_verbs_begin_proof(struct rdti_verbs_lane *lane, struct rdt_error *err)
{
    rdt_status status = RDT_OK;

    for (uint32_t i = 0; status == RDT_OK && i < lane->link_count; i++)
        status = link_begin_round(&lane->links[i], err);
    return status;
}

/* ---- Ready ---------------------------------------------------------------------------------- */

static void
link_report_choice(const struct rdti_verbs_lane *lane)
{
    char reasons[128];

    for (uint32_t i = 0; i < lane->link_count; i++) {
        const struct rdti_verbs_link *link = &lane->links[i];

        if (link->state == RDTI_VERBS_LINK_GOOD) {
            rdti_verbs_explain_choice(link, reasons, sizeof(reasons));
            rdti_log(RDT_LOG_INFO,
                     "verbs: rank %d by %s port %u, %s, %u QPs: pair %u of %u (%s), proved by a "
                     "write each way%s%s",
                     lane->args.peer_rank, link->nic->name, link->nic->port, link->pair_text,
                     link->qp_count, link->round + 1, link->pair_count, reasons,
                     link->why[0] != '\0' ? "; before: " : "", link->why);
        } else {
            rdti_log(RDT_LOG_WARN, "verbs: %s port %u does not reach rank %d: %s", link->nic->name,
                     link->nic->port, lane->args.peer_rank, link->why);
        }
    }
}

static void
link_add_qp(struct rdti_verbs_lane *lane, struct rdti_verbs_qp *qp)
{
    lane->qps[lane->qp_count++] = qp;
    lane->tx_qps[lane->tx_count++] = qp;
    if (qp->inline_bytes < lane->inline_bytes)
        lane->inline_bytes = qp->inline_bytes;
}

static void
link_become_ready(struct rdti_verbs_lane *lane)
{
    const struct rdti_host *host = lane->verbs->host;

    link_report_choice(lane);
    (void)pthread_mutex_lock(&lane->lock);
    lane->inline_bytes = UINT32_MAX;
    for (uint32_t i = 0; i < lane->link_count; i++) {
        struct rdti_verbs_link *link = &lane->links[i];
        const uint64_t peer_max = lane->peer.ports[link->peer_port].max_msg_bytes;

        if (link->state != RDTI_VERBS_LINK_GOOD)
            continue;
        for (uint32_t q = 0; q < link->qp_count; q++)
            link_add_qp(lane, link->qps[q]);
        if (peer_max < lane->max_chunk_bytes)
            lane->max_chunk_bytes = peer_max;
        if (link->nic->max_msg_bytes < lane->max_chunk_bytes)
            lane->max_chunk_bytes = link->nic->max_msg_bytes;
    }
    lane->max_chunk_bytes &= ~UINT64_C(4095);
    /* release: pairs with rdti_verbs_phase_of() */
    atomic_store_explicit(&lane->phase, RDTI_VERBS_READY, memory_order_release);
    (void)pthread_mutex_unlock(&lane->lock);
    rdti_verbs_agree_flags(lane);
    (void)rdti_verbs_push(lane);
    host->on_ready(host->core, &lane->base);
    (void)lane->deliver(lane); /* the peer may have been ready earlier and written */
}

/* Each link with its own reason. */
static void
link_explain_dropped(const struct rdti_verbs_lane *lane, char *buf, size_t cap)
{
    size_t used = 0;

    buf[0] = '\0';
    for (uint32_t i = 0; i < lane->link_count && used < cap; i++) {
        const struct rdti_verbs_link *link = &lane->links[i];
        const int wrote =
            snprintf(buf + used, cap - used, "%s%s port %u, %s: %s", i > 0 ? "; " : "",
                     link->nic->name, link->nic->port, link->pair_text, link->why);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
}

static void
link_check_links(struct rdti_verbs_lane *lane)
{
    char why[256 * RDTI_VERBS_PORTS_MAX];
    uint32_t good = 0;
    struct rdt_error err;

    for (uint32_t i = 0; i < lane->link_count; i++) {
        if (lane->links[i].state == RDTI_VERBS_LINK_PROVING)
            return;
        good += lane->links[i].state == RDTI_VERBS_LINK_GOOD;
    }
    if (good > 0) {
        link_become_ready(lane);
        return;
    }
    link_explain_dropped(lane, why, sizeof(why));
    (void)rdti_error_set_rank(&err, RDT_ENOTVIABLE, lane->args.peer_rank,
                              "verbs: no write reached rank %d: %s; is there a route between these "
                              "addresses, and UDP port 4791 open?",
                              lane->args.peer_rank, why);
    rdti_verbs_fail(lane, &err);
}

/* ---- Verdicts ------------------------------------------------------------------------------- */

static void
link_settle(struct rdti_verbs_link *link)
{
    struct rdti_verbs_lane *lane = link->lane;
    struct rdt_error err;

    if (link->own_verdict == 0 || link->peer_verdict == 0)
        return;
    if (link->own_verdict == RDTI_VERBS_LINK_PROVED && link->peer_verdict == link->own_verdict) {
        link->state = RDTI_VERBS_LINK_GOOD;
    } else if (link->round + 1 < link->pair_count) {
        link->round++;
        if (link_begin_round(link, &err) != RDT_OK)
            rdti_verbs_fail(lane, &err);
        return;
    } else {
        link->state = RDTI_VERBS_LINK_DROPPED;
    }
    link_check_links(lane);
}

static void
link_judge(struct rdti_verbs_link *link, enum rdti_verbs_word verdict, const char *why)
{
    if (verdict == RDTI_VERBS_LINK_FAILED)
        rdti_text_copy(link->why, sizeof(link->why), why);
    link->own_verdict = (uint8_t)verdict;
    link_say(link, verdict);
    link_settle(link);
}

/* On every QP: the packets of two QPs may take different routes because of their UDP ports. */
static void
link_post_probes(struct rdti_verbs_link *link)
{
    int failed = 0;

    link->is_probe_posted = true;
    link->probes_left = (1u << link->qp_count) - 1;
    for (uint32_t i = 0; failed == 0 && i < link->qp_count; i++) {
        struct ibv_send_wr wr = {
            .wr_id = rdti_verbs_wr_id(RDTI_VERBS_WR_PROBE, i, link->round),
            .opcode = IBV_WR_RDMA_WRITE,
            .send_flags = IBV_SEND_SIGNALED,
        };
        struct ibv_send_wr *bad = NULL;

        failed = link->nic->verbs->ops->post_send(link->qps[i]->qp, &wr, &bad);
    }
    if (failed != 0)
        link_judge(link, RDTI_VERBS_LINK_FAILED, strerror(failed > 0 ? failed : -failed));
}

void
rdti_verbs_probe_done(struct rdti_verbs_link *link, const struct ibv_wc *wc)
{
    const struct rdti_verbs_lane *lane = link->lane;
    char why[96];

    if (rdti_verbs_phase_of(lane) != RDTI_VERBS_SETUP || link->state != RDTI_VERBS_LINK_PROVING ||
        link->own_verdict != 0 || (wc->wr_id & 0xff) != link->round)
        return; /* of an earlier round */
    if (wc->status == IBV_WC_SUCCESS) {
        link->probes_left &= ~(1u << (wc->wr_id >> 48 & 0xff) % 32);
        if (link->probes_left == 0)
            link_judge(link, RDTI_VERBS_LINK_PROVED, NULL);
        return;
    }
    (void)snprintf(why, sizeof(why), "the probe ended with \"%s\" (vendor code 0x%x)",
                   lane->verbs->ops->wc_status_str(wc->status), wc->vendor_err);
    link_judge(link, RDTI_VERBS_LINK_FAILED, why);
}

void
rdti_verbs_watch_proof(struct rdti_verbs_lane *lane)
{
    const uint64_t now_ns = rdti_now_ns();

    for (uint32_t i = 0; i < lane->link_count; i++) {
        struct rdti_verbs_link *link = &lane->links[i];

        if (rdti_verbs_phase_of(lane) != RDTI_VERBS_SETUP)
            return;
        /* This deadline is only for a probe in flight; the core's bounds a peer that is not
         * ready. */
        if (link->state == RDTI_VERBS_LINK_PROVING && link->own_verdict == 0 &&
            link->is_probe_posted && now_ns >= link->proof_deadline_ns)
            link_judge(link, RDTI_VERBS_LINK_FAILED, "the probe was not answered in time");
    }
}

rdt_status
rdti_verbs_take_link_word(struct rdti_verbs_lane *lane, const struct rdti_verbs_words *words,
                          struct rdt_error *err)
{
    struct rdti_verbs_link *link = &lane->links[words->link];

    if (words->link >= lane->link_count || link->state != RDTI_VERBS_LINK_PROVING ||
        words->round != link->round ||
        (words->kind == RDTI_VERBS_LINK_READY ? link->is_peer_ready
                                              : !link->is_peer_ready || link->peer_verdict != 0))
        return rdti_error_set_rank(err, RDT_EPROTO, lane->args.peer_rank,
                                   "rank %d speaks out of turn: word %u, link %u, round %u",
                                   lane->args.peer_rank, words->kind, words->link, words->round);
    if (words->kind != RDTI_VERBS_LINK_READY) {
        link->peer_verdict = words->kind;
        link_settle(link);
        return RDT_OK;
    }
    link->is_peer_ready = true;
    link->proof_deadline_ns = rdti_deadline_after(RDTI_VERBS_PROOF_NS / link->pair_count);
    if (link->own_verdict == 0)
        link_post_probes(link);
    return RDT_OK;
}
