/* SPDX-License-Identifier: Apache-2.0
 * Lanes: created with an offer, connected by the peer's, closed; the words between the halves. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "transport/verbs/flag.h"
#include "transport/verbs/keys.h"
#include "transport/verbs/memory/memory.h"
#include "transport/verbs/wish.h"
#include "transport/verbs/down.h"
#include "transport/verbs/lane.h"

/* ---- The offer ------------------------------------------------------------------------------ */

static uint8_t
verbs_lane_mtu_code(uint32_t mtu_bytes)
{
    uint8_t code = 1; /* enum ibv_mtu: 256 is 1 */

    while (mtu_bytes > 256) {
        mtu_bytes /= 2;
        code++;
    }
    return code;
}

static void
verbs_lane_describe_port(const struct rdti_verbs_link *link, struct rdti_verbs_port_offer *out)
{
    const struct rdti_verbs_nic *nic = link->nic;
    const uint32_t mtu_bytes = nic->verbs->settings.mtu_bytes;

    rdti_text_copy(out->device, sizeof(out->device), nic->name);
    out->port = nic->port;
    out->is_infiniband = nic->is_infiniband;
    out->mtu = nic->mtu;
    if (mtu_bytes != 0 && verbs_lane_mtu_code(mtu_bytes) < out->mtu)
        out->mtu = verbs_lane_mtu_code(mtu_bytes);
    out->lid = nic->lid;
    out->reads_in = nic->reads_in;
    out->reads_out = nic->reads_out;
    out->max_msg_bytes = nic->max_msg_bytes;
    out->gid_count = nic->gid_count;
    memcpy(out->gids, nic->gids, sizeof(out->gids));
    for (uint32_t i = 0; i < link->qp_count; i++)
        out->qps[i] =
            (struct rdti_verbs_qp_offer){.qpn = link->qps[i]->qp->qp_num, .psn = link->qps[i]->psn};
}

static void
verbs_lane_describe(struct rdti_verbs_lane *lane)
{
    const struct rdti_verbs_settings *settings = &lane->verbs->settings;
    struct rdti_verbs_offer *own = &lane->own;
    uint32_t least = UINT32_MAX;

    own->port_count = (uint8_t)lane->link_count;
    own->qp_count = (uint8_t)settings->qp_count;
    own->timeout = settings->timeout;
    own->retry = settings->retry;
    own->service_level = settings->service_level;
    own->traffic_class = settings->traffic_class;
    own->pkey = settings->pkey;
    for (uint32_t i = 0; i < lane->link_count; i++) {
        verbs_lane_describe_port(&lane->links[i], &own->ports[i]);
        if (lane->links[i].nic->rq_depth < least)
            least = lane->links[i].nic->rq_depth;
    }
    own->window = least - RDTI_VERBS_RQ_RESERVE;
}

/* One link on every port whose device is present; all or nothing. */
static rdt_status
verbs_lane_create_links(struct rdti_verbs_lane *lane, struct rdt_error *err)
{
    struct rdti_verbs *verbs = lane->verbs;
    rdt_status status = RDT_OK;

    for (uint32_t i = 0; status == RDT_OK && i < verbs->nic_count; i++) {
        struct rdti_verbs_link *link = &lane->links[lane->link_count];

        if (verbs->nics[i].is_gone)
            continue;
        status = rdti_verbs_create_link(lane, &verbs->nics[i], i, link, err);
        if (status == RDT_OK)
            link->port_index = lane->link_count++;
    }
    if (status == RDT_OK && lane->link_count == 0)
        status = rdti_error_set(err, RDT_ENOTVIABLE, 0, "verbs: no device is left: %s port %u: %s",
                                verbs->nics[0].name, verbs->nics[0].port, verbs->nics[0].event);
    while (status != RDT_OK && lane->link_count > 0)
        rdti_verbs_destroy_link(&lane->links[--lane->link_count]);
    for (uint32_t i = 0; i < lane->link_count; i++)
        lane->port_nics[i] = lane->links[i].nic_index;
    return status;
}

rdt_status
rdti_verbs_make_offer(void *state, const struct rdti_lane_args *args, struct rdti_lane **out,
                      struct rdti_offer *offer, struct rdt_error *err)
{
    struct rdti_verbs *verbs = state;
    struct rdti_verbs_lane *lane = calloc(1, sizeof(*lane));
    rdt_status status;

    if (lane == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "verbs lane: %zu bytes", sizeof(*lane));
    lane->base.transport = verbs->transport;
    lane->deliver = rdti_verbs_deliver;
    lane->verbs = verbs;
    lane->args = *args;
    lane->max_chunk_bytes = UINT64_C(1) << 30; /* a length has 32 bits, a message 31 */
    rdti_list_init(&lane->node);
    rdti_list_init(&lane->ops);
    rdti_list_init(&lane->remotes);
    rdti_list_init(&lane->flags);
    status = verbs_lane_create_links(lane, err);
    if (status != RDT_OK)
        goto err_free;
    verbs_lane_describe(lane);
    memset(offer, 0, sizeof(*offer));
    offer->len_bytes = (uint32_t)rdti_verbs_offer_encode(&lane->own, offer->bytes);
    (void)pthread_mutex_init(&lane->lock, NULL);
    rdti_list_append(&verbs->lanes, &lane->node);
    (void)atomic_fetch_add_explicit(&verbs->lane_count, 1, memory_order_relaxed);
    *out = &lane->base;
    return RDT_OK;

err_free:
    free(lane);
    return status;
}

rdt_status
rdti_verbs_connect(struct rdti_lane *base, struct rdti_offer *peer, struct rdt_error *err)
{
    struct rdti_verbs_lane *lane = (struct rdti_verbs_lane *)base;
    struct rdt_error why;
    rdt_status status;

    for (uint32_t i = 0; i < peer->fd_count && i < RDTI_OFFER_MAX_FDS; i++)
        (void)close(peer->fds[i]); /* connect() owns them; verbs uses none */
    if (peer->fd_count > 0)
        status =
            rdti_error_set(&why, RDT_EPROTO, 0, "verbs offer with %u descriptors", peer->fd_count);
    else
        status = rdti_verbs_offer_decode(peer->bytes, peer->len_bytes, &lane->peer, &why);
    if (status == RDT_EVERSION) { /* of this transport only: another path may work */
        status = RDT_ENOTVIABLE;
        why.status = RDT_ENOTVIABLE;
    }
    if (status == RDT_OK && lane->peer.qp_count != lane->own.qp_count)
        status = rdti_error_set_rank(&why, RDT_ENOTVIABLE, lane->args.peer_rank,
                                     "verbs: rank %d has %u QPs for each port, this process %u: "
                                     "set RDMATENSOR_VERBS_QPS alike",
                                     lane->args.peer_rank, lane->peer.qp_count, lane->own.qp_count);
    if (status == RDT_OK)
        status = rdti_verbs_pair_links(lane, &why);
    if (status == RDT_OK) {
        (void)pthread_mutex_lock(&lane->lock);
        if (lane->peer.window > RDTI_VERBS_IMMS) /* tx_notes keeps this many */
            lane->peer.window = RDTI_VERBS_IMMS;
        lane->tx_window = lane->peer.window;
        lane->is_connected = true;
        (void)pthread_mutex_unlock(&lane->lock);
        status = rdti_verbs_begin_proof(lane, &why);
    }
    if (status == RDT_OK)
        return RDT_OK;
    rdti_verbs_teardown(lane, &why);
    return rdti_error_copy(err, &why);
}

/* ---- Words ---------------------------------------------------------------------------------- */

static rdt_status
verbs_lane_answer_key(struct rdti_verbs_lane *lane, const struct rdti_verbs_words *get,
                      struct rdt_error *err)
{
    struct rdti_verbs_words key;
    const rdt_status status = rdti_verbs_grant(lane->verbs, get, &key, err);

    if (status == RDT_EAGAIN)
        return rdti_verbs_await_grant(lane, get, err);
    if (status == RDT_EPROTO)
        return rdti_error_set_rank(err, RDT_EPROTO, lane->args.peer_rank,
                                   "rank %d asks for the key of region %u in piece %u, which is "
                                   "none",
                                   lane->args.peer_rank, get->index, get->segment);
    rdti_verbs_send_key(lane, &key, status, err);
    return RDT_OK;
}

static rdt_status
verbs_lane_take_key(struct rdti_verbs_lane *lane, const struct rdti_verbs_words *words,
                    struct rdt_error *err)
{
    (void)pthread_mutex_lock(&lane->lock);
    const rdt_status status = rdti_verbs_take_key(lane, words, err);
    (void)pthread_mutex_unlock(&lane->lock);
    if (status == RDT_OK)
        (void)rdti_verbs_push(lane);
    return status;
}

rdt_status
rdti_verbs_words_arrived(struct rdti_lane *base, const uint8_t *bytes, uint32_t len_bytes,
                         struct rdt_error *err)
{
    struct rdti_verbs_lane *lane = (struct rdti_verbs_lane *)base;
    struct rdti_verbs_words words;
    struct rdt_error why;
    rdt_status status = rdti_verbs_words_decode(bytes, len_bytes, &words, err);

    if (status != RDT_OK)
        return status;
    if (rdti_verbs_phase_of(lane) == RDTI_VERBS_FAILED || lane->is_lost)
        return RDT_OK; /* it was in flight when the lane failed */
    if (!lane->is_connected)
        return rdti_error_set_rank(err, RDT_EPROTO, lane->args.peer_rank,
                                   "rank %d speaks before its offer", lane->args.peer_rank);
    switch (words.kind) {
    case RDTI_VERBS_KEY_GET:
        status = verbs_lane_answer_key(lane, &words, &why);
        break;
    case RDTI_VERBS_KEY:
    case RDTI_VERBS_KEY_REFUSED:
        status = verbs_lane_take_key(lane, &words, &why);
        break;
    case RDTI_VERBS_FLAGS:
        status = rdti_verbs_take_flags_word(lane, &words, &why);
        break;
    case RDTI_VERBS_LINK_DOWN:
        status = rdti_verbs_take_down_word(lane, &words, &why);
        break;
    default:
        status = rdti_verbs_take_link_word(lane, &words, &why);
        break;
    }
    return status == RDT_OK ? RDT_OK : rdti_error_copy(err, &why);
}

/* ---- Small entries -------------------------------------------------------------------------- */

static size_t
verbs_lane_explain_broken(const struct rdti_verbs_link *link, size_t used, char *buf, size_t cap)
{
    const struct rdti_verbs_ops *ops = link->lane->verbs->ops;
    int wrote = snprintf(buf, cap, "%s%s:%u is down: %s", used > 0 ? "; " : "", link->nic->name,
                         link->nic->port, link->error.message);
    size_t total = wrote > 0 ? (size_t)wrote : 0;

    for (uint32_t i = 0; link->qp_count > 1 && i < link->qp_count && total < cap; i++) {
        const struct rdti_verbs_qp *qp = link->qps[i];

        if (qp->wc_status == 0)
            continue;
        wrote = snprintf(buf + total, cap - total, "; first of QP %u: \"%s\" (vendor code 0x%x)", i,
                         ops->wc_status_str((enum ibv_wc_status)qp->wc_status), qp->vendor_err);
        total += wrote > 0 ? (size_t)wrote : 0;
    }
    return total;
}

static size_t
verbs_lane_explain_good(const struct rdti_verbs_link *link, size_t used, char *buf, size_t cap)
{
    const char *event = link->nic->event;
    char counters[RDTI_VERBS_COUNTERS_TEXT];
    char notify[128];

    rdti_verbs_explain_counters(link->nic, counters, sizeof(counters));
    rdti_verbs_explain_notify(link->lane, notify, sizeof(notify));
    const int wrote = snprintf(buf, cap,
                               "%s%s:%u %s, %u QPs, messages of up to %" PRIu64
                               " B, order of bytes %s, notify %s%s%s%s%s",
                               used > 0 ? "; " : "", link->nic->name, link->nic->port,
                               link->pair_text, link->qp_count, link->nic->max_msg_bytes,
                               link->lane->is_in_order ? "promised" : "not promised", notify,
                               counters[0] != '\0' ? "; device since open: " : "", counters,
                               event[0] != '\0' ? "; the device reported: " : "", event);

    return wrote > 0 ? (size_t)wrote : 0;
}

void
rdti_verbs_explain(const struct rdti_lane *base, char *buf, size_t cap)
{
    const struct rdti_verbs_lane *lane = (const struct rdti_verbs_lane *)base;
    char stage[256];
    size_t used = 0;

    buf[0] = '\0';
    for (uint32_t i = 0; i < lane->link_count && used < cap; i++) {
        const struct rdti_verbs_link *link = &lane->links[i];

        if (link->state > RDTI_VERBS_LINK_DROPPED)
            used += verbs_lane_explain_broken(link, used, buf + used, cap - used);
        else if (link->state == RDTI_VERBS_LINK_GOOD)
            used += verbs_lane_explain_good(link, used, buf + used, cap - used);
    }
    if (lane->flushed > 0 && used < cap) {
        const int wrote = snprintf(buf + used, cap - used,
                                   "; %u requests of broken links were flushed", lane->flushed);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
    rdti_verbs_explain_stage(lane->verbs, stage, sizeof(stage));
    if (stage[0] != '\0' && used < cap)
        (void)snprintf(buf + used, cap - used, "%s%s", used > 0 ? "; " : "", stage);
}

bool
rdti_verbs_is_idle(struct rdti_lane *base)
{
    struct rdti_verbs_lane *lane = (struct rdti_verbs_lane *)base;

    /* acquire: pairs with the decrement before complete() */
    return atomic_load_explicit(&lane->ops_open, memory_order_acquire) == 0;
}

bool
rdti_verbs_revoke(struct rdti_lane *base, uint32_t index, uint32_t generation)
{
    struct rdti_verbs_lane *lane = (struct rdti_verbs_lane *)base;

    (void)pthread_mutex_lock(&lane->lock);
    bool is_over = rdti_verbs_mark_stale(lane, index, generation);
    const bool is_failed = rdti_verbs_phase_of(lane) == RDTI_VERBS_FAILED; /* no QP is left */
    for (struct rdti_list *at = lane->ops.next; is_over && !is_failed && at != &lane->ops;
         at = at->next) {
        const struct rdti_op *op = RDTI_CONTAINER(at, struct rdti_op, link);

        if (op->scratch[RDTI_VERBS_OP_STEP] == 0)
            break; /* this and later ops are not posted; the mark stops them */
        is_over = op->remote.index != index || op->remote.generation > generation;
    }
    (void)pthread_mutex_unlock(&lane->lock);
    return is_over;
}

void
rdti_verbs_close_lane(struct rdti_lane *base, const struct rdt_error *err)
{
    struct rdti_verbs_lane *lane = (struct rdti_verbs_lane *)base;
    struct rdti_verbs *verbs = lane->verbs;

    lane->is_closed = true;
    rdti_verbs_teardown(lane, err);
    (void)atomic_fetch_sub_explicit(&verbs->lane_count, 1, memory_order_relaxed);
    verbs->has_closed = true; /* a running pass may use it: freed after that pass */
    if (!verbs->is_polling)
        rdti_verbs_sweep(verbs);
}
