/* SPDX-License-Identifier: Apache-2.0
 * Ends of ops and lanes: completion, the first error and its message. */
#include <errno.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "transport/tcp/tcp.h"

static rdt_status
tcp_ends_refusal_error(const struct rdti_tcp_lane *lane, const struct rdti_op *op,
                       rdt_status status, struct rdt_error *err)
{
    return rdti_error_set_rank(
        err, status, lane->args.peer_rank,
        "rank %d at %s refused a %s of %llu bytes: region %u, generation %u: %s",
        lane->args.peer_rank, lane->peer_text, op->kind == RDTI_OP_READ ? "read" : "write",
        (unsigned long long)op->len_bytes, op->remote.index, op->remote.generation,
        status == RDT_ESTALE   ? "the region was freed"
        : status == RDT_ERANGE ? "the range leaves the region"
                               : rdt_status_name(status));
}

void
rdti_tcp_complete_all(struct rdti_tcp_lane *lane, struct rdti_list *ops,
                      const struct rdt_error *err)
{
    struct rdti_list *node;

    while ((node = rdti_list_take_first(ops)) != NULL) {
        struct rdti_op *op = RDTI_CONTAINER(node, struct rdti_op, link);
        const rdt_status status = (rdt_status)(int64_t)op->scratch[RDTI_TCP_OP_STATUS];
        struct rdt_error refusal;

        /* acq_rel: is_idle() sees all earlier stores */
        (void)atomic_fetch_sub_explicit(&lane->ops_open, 1, memory_order_acq_rel);
        if (err != NULL) {
            op->complete(op, (rdt_status)err->status, err);
        } else if (status != RDT_OK) {
            (void)tcp_ends_refusal_error(lane, op, status, &refusal);
            op->complete(op, status, &refusal);
        } else {
            rdti_count_moved(lane->tcp->host->counters, &lane->base, op);
            op->complete(op, RDT_OK, NULL);
        }
    }
}

void
rdti_tcp_give_back(struct rdti_tcp_lane *lane)
{
    struct rdti_tcp *tcp = lane->tcp;

    for (uint32_t i = 0; i < RDTI_STREAM_STREAMS_MAX; i++) {
        if (lane->streams[i] == NULL)
            continue;
        rdti_tcp_pool_give(&tcp->batches, lane->streams[i]->batch);
        lane->streams[i]->batch = NULL;
    }
    rdti_tcp_pool_give(&tcp->backlogs, lane->backlog);
    rdti_tcp_pool_give(&tcp->requests, lane->requests);
    rdti_tcp_pool_give(&tcp->responses, lane->responses);
    lane->backlog = NULL;
    lane->requests = NULL;
    lane->responses = NULL;
}

void
rdti_tcp_teardown(struct rdti_tcp_lane *lane, const struct rdt_error *err)
{
    const struct rdti_host *host = lane->tcp->host;
    struct rdti_list ops;

    rdti_list_init(&ops);
    (void)pthread_mutex_lock(&lane->lock);
    if (rdti_tcp_phase_of(lane) == RDTI_TCP_FAILED) {
        (void)pthread_mutex_unlock(&lane->lock);
        return;
    }
    lane->error = *err;
    rdti_list_splice(&ops, &lane->ops);
    rdti_list_splice(&ops, &lane->reads);
    lane->read_cursor = NULL;
    for (uint32_t i = 0; i < RDTI_STREAM_STREAMS_MAX; i++)
        if (lane->streams[i] != NULL)
            lane->streams[i]->cursor = NULL;
    /* release: pairs with rdti_tcp_phase_of(); from here on no thread sends */
    atomic_store_explicit(&lane->phase, RDTI_TCP_FAILED, memory_order_release);
    (void)pthread_mutex_unlock(&lane->lock);

    for (uint32_t i = 0; i < RDTI_STREAM_STREAMS_MAX; i++) {
        if (lane->streams[i] == NULL)
            continue;
        rdti_tcp_close_stream(lane->streams[i]);
        rdti_tcp_release_part(lane->streams[i]);
    }
    for (; lane->response_out != lane->response_in; lane->response_out++)
        host->target_release(host->core,
                             &lane->responses[lane->response_out % RDTI_STREAM_READS_MAX].target);
    rdti_tcp_give_back(lane);
    rdti_tcp_complete_all(lane, &ops, err);
}

void
rdti_tcp_fail(struct rdti_tcp_lane *lane, const struct rdt_error *err)
{
    const struct rdti_host *host = lane->tcp->host;
    const struct rdt_error copy = *err;

    if (rdti_tcp_phase_of(lane) == RDTI_TCP_FAILED)
        return;
    rdti_tcp_teardown(lane, &copy);
    if (!lane->is_closed)
        host->on_error(host->core, &lane->base, &copy);
}

void
rdti_tcp_fail_socket(struct rdti_tcp_stream *stream, const char *what, int sys_errno)
{
    struct rdti_tcp_lane *lane = stream->lane;
    struct rdt_error err;
    char progress[96] = "none yet";
    const bool is_memory = sys_errno == ENOMEM;

    (void)pthread_mutex_lock(&lane->lock); /* writers may change tx_number meanwhile */
    const uint32_t sent = lane->tx_number;
    (void)pthread_mutex_unlock(&lane->lock);
    if (lane->is_progress_new)
        lane->last_progress_ns = rdti_now_ns();
    if (lane->last_progress_ns != 0)
        (void)snprintf(progress, sizeof(progress),
                       "%.3f s ago, %llu messages received, %u of %u sent are acknowledged",
                       (double)(rdti_now_ns() - lane->last_progress_ns) * 1e-9,
                       (unsigned long long)lane->rx_messages, lane->tx_acked, sent);
    (void)rdti_error_set(&err, is_memory ? RDT_ENOMEM : RDT_EPEER, sys_errno,
                         "tcp lane to rank %d at %s, stream %u of %u: %s (last progress: %s); %s",
                         lane->args.peer_rank, lane->peer_text, stream->index, lane->stream_count,
                         what, progress,
                         is_memory ? "this process has no memory left"
                                   : "look at what that process logged last, and whether its host "
                                     "or the path to it is down");
    err.peer_rank = lane->args.peer_rank;
    rdti_tcp_fail(lane, &err);
}
