/* SPDX-License-Identifier: Apache-2.0
 * The shm transport: its table of operations, and poll(). */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "transport/shm/lane.h"

static rdt_status
shm_open(const struct rdti_host *host, void **state_out, struct rdt_error *err)
{
    const rdt_status status = rdti_shm_viable(err);

    if (status != RDT_OK)
        return status;
    struct shm_state *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "shm: %zu bytes", sizeof(*s));
    s->host = host;
    rdti_list_init(&s->lanes);
    rdti_list_init(&s->closed);
    *state_out = s;
    return RDT_OK;
}

static void
shm_close(void *state)
{
    struct shm_state *s = state;

    assert(rdti_list_is_empty(&s->lanes) && rdti_list_is_empty(&s->closed));
    free(s);
}

/* Publishes the receiver's position, and wakes the sender if it waits for room. */
static void
shm_publish_head(struct shm_lane *l)
{
    struct shm_ring *ring = l->ring;

    l->rx_unpublished = 0;
    /* seq_cst, both: see ring.h, "room"; pairs with execute_has_room_at_last(). */
    atomic_store_explicit(&ring->head, l->rx.sequence, memory_order_seq_cst);
    if (atomic_load_explicit(&ring->producer_waits, memory_order_seq_cst) == 0)
        return;
    /* seq_cst: a sender that sets it again checks head, or is woken by the ring below. */
    atomic_store_explicit(&ring->producer_waits, 0, memory_order_seq_cst);
    const uint32_t calls = rdti_doorbell_ring(l->bell, l->event_fd, true);
    if (calls > 0)
        rdti_count(&l->state->host->counters->wakeups_sent, calls);
}

static uint32_t
shm_take_arrivals(struct shm_lane *l)
{
    const struct rdti_host *host = l->state->host;
    enum shm_taken taken = SHM_NOTHING;
    uint32_t notification;
    uint32_t count = 0;

    while (count < SHM_ARRIVALS_PER_POLL && !l->is_closed) {
        taken = shm_ring_take(l->ring, &l->rx, &notification);
        if (taken != SHM_TAKEN)
            break;
        count++;
        if (++l->rx_unpublished == SHM_HEAD_EVERY)
            shm_publish_head(l);
        host->on_notify(host->core, &l->base, notification);
    }
    if (taken == SHM_BROKEN) {
        struct rdt_error err;
        (void)rdti_error_set_rank(&err, RDT_EPROTO, l->peer_rank,
                                  "shm ring: entry %u has a sequence that cannot be",
                                  l->rx.sequence + 1);
        rdti_shm_fail(l, &err);
    }
    if (count > 0)
        rdti_count(&host->counters->notifications, count);
    return count;
}

static void
shm_report_error(struct shm_lane *l)
{
    const struct rdti_host *host = l->state->host;

    l->is_error_reported = true;
    rdti_shm_drain(l, &l->error);
    host->on_error(host->core, &l->base, &l->error);
}

static uint32_t
shm_poll_lane(struct shm_lane *l)
{
    uint32_t work = 0;

    if (!l->is_error_reported)
        work += shm_take_arrivals(l);
    /* acquire: pairs with the release of the thread that set a bit; the error is complete then. */
    const uint32_t attention = atomic_load_explicit(&l->attention, memory_order_acquire);
    if (attention == 0 || l->is_closed)
        return work;
    if ((attention & SHM_ATTENTION_QUEUE) != 0)
        work += rdti_shm_push(l);
    if ((attention & SHM_ATTENTION_ERROR) != 0 && !l->is_error_reported) {
        shm_report_error(l);
        work++;
    }
    return work;
}

/* A separate function, so that a pass without lanes costs next to nothing. */
__attribute__((noinline)) static uint32_t
shm_poll_lanes(struct shm_state *s)
{
    struct rdti_list *node;
    uint32_t work = 0;

    s->is_polling = true;
    for (node = s->lanes.next; node != &s->lanes;) {
        struct shm_lane *l = RDTI_CONTAINER(node, struct shm_lane, node);

        if (l->is_connected)
            work += shm_poll_lane(l);
        /* A lane that was closed meanwhile is in the other list: start again in the next pass. */
        node = l->is_closed ? &s->lanes : node->next;
    }
    s->is_polling = false;
    while ((node = rdti_list_take_first(&s->closed)) != NULL)
        rdti_shm_lane_free(RDTI_CONTAINER(node, struct shm_lane, node));
    return work;
}

static uint32_t
shm_poll(void *state)
{
    struct shm_state *s = state;

    return rdti_list_is_empty(&s->lanes) && rdti_list_is_empty(&s->closed) ? 0 : shm_poll_lanes(s);
}

static void
shm_ring(struct rdti_lane *lane)
{
    const struct shm_lane *l = shm_lane_of(lane);
    const uint32_t calls = rdti_doorbell_ring(l->bell, l->event_fd, false);

    if (calls > 0)
        rdti_count(&l->state->host->counters->wakeups_sent, calls);
}

static bool
shm_needs_epoll(void *state)
{
    (void)state;
    return false;
}

static void
shm_explain(const struct rdti_lane *lane, char *buf, size_t cap)
{
    struct shm_lane *l = shm_lane_of((struct rdti_lane *)(uintptr_t)lane);
    uint64_t mapped_bytes = 0;
    uint32_t mapped = 0;

    if (!l->is_connected) {
        (void)snprintf(buf, cap, "same host, not connected yet");
        return;
    }
    rdti_shm_lock(&l->tx_lock);
    for (uint32_t i = 0; i < l->segments.count; i++) {
        if (!shm_segment_is_mapped(&l->segments.table[i]))
            continue;
        mapped++;
        mapped_bytes += l->segments.table[i].len_bytes;
    }
    rdti_shm_unlock(&l->tx_lock);
    (void)snprintf(buf, cap, "same host, process %u, %llu MiB of its arena mapped in %u part%s, %s",
                   l->process.pid, (unsigned long long)(mapped_bytes >> 20), mapped,
                   mapped == 1 ? "" : "s",
                   atomic_load_explicit(&l->process.is_permitted, memory_order_relaxed)
                       ? "private memory by process_vm_writev"
                       : "private memory not permitted");
}

const struct rdti_transport rdti_transport_shm = {
    .name = "shm",
    .id = RDT_TRANSPORT_SHM,
    .caps = {.can_map = true,
             .target_checks = false,
             .is_same_host = true,
             .eager_max_bytes = SHM_EAGER_MAX_BYTES},
    .open = shm_open,
    .close = shm_close,
    .make_offer = rdti_shm_make_offer,
    .connect = rdti_shm_connect,
    .add_stream = NULL,
    .segment_arrived = rdti_shm_segment_arrived,
    .write = rdti_shm_write,
    .read = rdti_shm_read,
    .poll = shm_poll,
    .needs_epoll = shm_needs_epoll,
    .map = rdti_shm_map_region,
    .ring = shm_ring,
    .explain = shm_explain,
    .is_idle = rdti_shm_is_idle,
    .fail_lane = rdti_shm_fail_lane,
    .close_lane = rdti_shm_close_lane,
};
