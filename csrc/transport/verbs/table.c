/* SPDX-License-Identifier: Apache-2.0
 * The verbs transport's table of operations and its pass over the lanes. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/system/fork.h"
#include "base/log.h"
#include "transport/verbs/flag.h"
#include "transport/verbs/memory/registrar.h"
#include "transport/verbs/memory/memory.h"
#include "transport/verbs/wish.h"
#include "transport/verbs/down.h"
#include "transport/verbs/lane.h"

/* ---- The pass ------------------------------------------------------------------------------- */

/* Whether a link needs more than polls. */
static bool
verbs_has_trouble(const struct rdti_verbs_lane *lane)
{
    bool found = lane->is_lost;

    for (uint32_t i = 0; i < lane->link_count; i++)
        found |=
            lane->links[i].state != RDTI_VERBS_LINK_GOOD || lane->links[i].nic->down_since_ns != 0;
    return found;
}

/* Whether a pass that did `work` must do more for the lane than poll it. */
static bool
verbs_wants_more(const struct rdti_verbs_lane *lane, uint32_t work)
{
    /* relaxed: hints that the lock orders, see lane.h, or this thread's own; seq_cst: see
     * verbs_tx_rides() */
    return rdti_verbs_phase_of(lane) != RDTI_VERBS_READY ||
           (work > 0 && atomic_load_explicit(&lane->has_queued, memory_order_relaxed)) ||
           atomic_load_explicit(&lane->has_riders, memory_order_seq_cst) ||
           atomic_load_explicit(&lane->owes_restock, memory_order_relaxed) ||
           atomic_load_explicit(&lane->is_tx_broken, memory_order_relaxed) ||
           verbs_has_trouble(lane);
}

__attribute__((noinline)) static uint32_t
verbs_serve_more(struct rdti_verbs_lane *lane, bool has_keys, uint32_t work)
{
    switch (rdti_verbs_phase_of(lane)) {
    case RDTI_VERBS_SETUP:
        rdti_verbs_watch_proof(lane);
        return work;
    case RDTI_VERBS_FAILED:
        return work;
    case RDTI_VERBS_READY:
        break;
    }
    /* as in verbs_wants_more() */
    if (has_keys || (work > 0 && atomic_load_explicit(&lane->has_queued, memory_order_relaxed)) ||
        atomic_load_explicit(&lane->has_riders, memory_order_seq_cst))
        work += rdti_verbs_push(lane);
    if (atomic_load_explicit(&lane->owes_restock, memory_order_relaxed))
        rdti_verbs_send_restocked(lane);
    if (atomic_load_explicit(&lane->is_tx_broken, memory_order_relaxed))
        rdti_verbs_break_unposted(lane);
    if (!verbs_has_trouble(lane))
        return work;
    rdti_verbs_watch_ports(lane);
    rdti_verbs_stop_rest(lane); /* for links that broke above, or before the pass */
    rdti_verbs_watch_links(lane);
    if (rdti_verbs_phase_of(lane) == RDTI_VERBS_READY) /* what a drained link still held */
        work += rdti_verbs_deliver(lane);
    return work;
}

static uint32_t
verbs_serve(struct rdti_verbs_lane *lane, bool has_keys)
{
    const uint32_t work = rdti_verbs_poll_lane(lane);

    return has_keys || verbs_wants_more(lane, work) ? verbs_serve_more(lane, has_keys, work) : work;
}

static uint32_t
verbs_serve_all(struct rdti_verbs *verbs)
{
    const bool has_keys = rdti_verbs_take_news(verbs);
    uint32_t work = has_keys;

    for (struct rdti_list *node = verbs->lanes.next, *next; node != &verbs->lanes; node = next) {
        struct rdti_verbs_lane *lane = RDTI_CONTAINER(node, struct rdti_verbs_lane, node);

        next = node->next; /* lanes that a callback closes stay in the list until the sweep */
        work += verbs_serve(lane, has_keys);
    }
    return work;
}

/* An armed CQ gives one event, for later completions; the next poll() sees the earlier ones. */
static void
verbs_arm(void *state)
{
    struct rdti_verbs *verbs = state;

    for (struct rdti_list *at = verbs->lanes.next; at != &verbs->lanes; at = at->next)
        rdti_verbs_arm_lane(RDTI_CONTAINER(at, struct rdti_verbs_lane, node));
    rdti_verbs_arm_flags(verbs);
}

static uint32_t
verbs_poll(void *state)
{
    struct rdti_verbs *verbs = state;

    if (rdti_list_is_empty(&verbs->lanes))
        return 0;
    const bool was_polling = verbs->is_polling; /* a callback may make the core poll again */
    verbs->is_polling = true;
    const uint32_t work = verbs_serve_all(verbs);
    verbs->is_polling = was_polling;
    if (!was_polling)
        rdti_verbs_sweep(verbs);
    return work;
}

/* ---- The table ------------------------------------------------------------------------------ */

static rdt_status
verbs_open(const struct rdti_host *host, void **state_out, struct rdt_error *err)
{
    struct rdti_verbs *verbs = calloc(1, sizeof(*verbs));

    if (verbs == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "verbs: %zu bytes", sizeof(*verbs));
    verbs->transport = &rdti_transport_verbs;
    verbs->host = host;
    verbs->on_async = rdti_verbs_on_async;
    verbs->on_channel = rdti_verbs_on_channel;
    verbs->flag_timer_fd = -1;
    rdti_list_init(&verbs->lanes);
    rdti_list_init(&verbs->memories);
    rdti_list_init(&verbs->jobs);
    rdti_list_init(&verbs->ends);
    rdti_list_init(&verbs->wishes);
    (void)pthread_mutex_init(&verbs->mr_lock, NULL);
    (void)pthread_cond_init(&verbs->job_cond, NULL);
    rdti_fork_guard();
    rdt_status status = rdti_verbs_read_settings(&verbs->settings, err);
    if (status == RDT_OK)
        status = rdti_verbs_load(&verbs->ops, err);
    if (status == RDT_OK)
        status = rdti_verbs_open_nics(verbs, err);
    if (status == RDT_OK) {
        status = rdti_verbs_open_flags(verbs, err);
        if (status != RDT_OK)
            rdti_verbs_close_nics(verbs);
    }
    if (status != RDT_OK)
        goto err_free;
    if (verbs->skipped[0] != '\0')
        rdti_log(RDT_LOG_INFO, "verbs: ports that are not used: %s", verbs->skipped);
    *state_out = verbs;
    return RDT_OK;

err_free:
    (void)pthread_cond_destroy(&verbs->job_cond);
    (void)pthread_mutex_destroy(&verbs->mr_lock);
    free(verbs);
    return status;
}

static void
verbs_close(void *state)
{
    struct rdti_verbs *verbs = state;

    assert(rdti_list_is_empty(&verbs->wishes)); /* the last lane is closed */
    rdti_verbs_close_registrar(verbs);
    rdti_verbs_free_memories(verbs);
    rdti_verbs_close_flags(verbs);
    rdti_verbs_close_nics(verbs);
    (void)pthread_cond_destroy(&verbs->job_cond);
    (void)pthread_mutex_destroy(&verbs->mr_lock);
    free(verbs);
}

static bool
verbs_needs_epoll(void *state)
{
    struct rdti_verbs *verbs = state;

    return atomic_load_explicit(&verbs->lane_count, memory_order_relaxed) > 0;
}

const struct rdti_transport rdti_transport_verbs = {
    .name = "verbs",
    .id = RDT_TRANSPORT_VERBS,
    .caps = {.can_map = false,
             .target_checks = false,
             .is_same_host = false,
             .arrival_passes = RDTI_VERBS_ARRIVAL_PASSES,
             .eager_max_bytes = RDTI_VERBS_EAGER_MAX_BYTES},
    .open = verbs_open,
    .close = verbs_close,
    .make_offer = rdti_verbs_make_offer,
    .connect = rdti_verbs_connect,
    .words_arrived = rdti_verbs_words_arrived,
    .revoke = rdti_verbs_revoke,
    .watch_flag = rdti_verbs_watch_flag,
    .forget_region = rdti_verbs_forget_region,
    .write = rdti_verbs_start,
    .read = rdti_verbs_start,
    .poll = verbs_poll,
    .arm = verbs_arm,
    .needs_epoll = verbs_needs_epoll,
    .fence = rdti_verbs_fence,
    .hand_over = rdti_verbs_hand_over,
    .explain = rdti_verbs_explain,
    .is_idle = rdti_verbs_is_idle,
    .close_lane = rdti_verbs_close_lane,
};
