/* SPDX-License-Identifier: Apache-2.0
 * What all files do to a lane and its streams: asking for a pass, watching a socket, closing it. */
#include <sys/epoll.h>
#include <unistd.h>

#include "base/system/fork.h"
#include "transport/tcp/tcp.h"

void
rdti_tcp_make_hot(struct rdti_tcp_lane *lane)
{
    if (rdti_list_is_empty(&lane->hot_link) && !lane->is_closed)
        rdti_list_append(&lane->tcp->hot, &lane->hot_link);
}

void
rdti_tcp_call_attention(struct rdti_tcp_lane *lane)
{
    struct rdti_tcp *tcp = lane->tcp;

    (void)pthread_mutex_lock(&tcp->attention_lock);
    if (rdti_list_is_empty(&lane->attention_link))
        rdti_list_append(&tcp->attention, &lane->attention_link);
    /* release: pairs with the acquire in tcp_take_attention() */
    atomic_store_explicit(&tcp->has_attention, true, memory_order_release);
    (void)pthread_mutex_unlock(&tcp->attention_lock);
}

void
rdti_tcp_update_watch(struct rdti_tcp_stream *stream)
{
    const struct rdti_host *host = stream->lane->tcp->host;

    (void)pthread_mutex_lock(&stream->lane->watch_lock);
    if (stream->watch != NULL) {
        /* relaxed: set before this lock was taken, by this thread or by one that takes it later */
        const bool in = atomic_load_explicit(&stream->wants_in, memory_order_relaxed);
        const bool out = atomic_load_explicit(&stream->wants_out, memory_order_relaxed);
        const uint32_t events = (in ? (uint32_t)EPOLLIN : 0) | (out ? (uint32_t)EPOLLOUT : 0);

        if (events != stream->watched_events) {
            host->rewatch(host->core, stream->watch, events);
            stream->watched_events = events;
        }
    }
    (void)pthread_mutex_unlock(&stream->lane->watch_lock);
}

void
rdti_tcp_close_stream(struct rdti_tcp_stream *stream)
{
    const struct rdti_host *host = stream->lane->tcp->host;

    (void)pthread_mutex_lock(&stream->lane->watch_lock);
    struct rdti_watch *watch = stream->watch;
    stream->watch = NULL;
    (void)pthread_mutex_unlock(&stream->lane->watch_lock);
    if (watch != NULL)
        host->unwatch(host->core, watch);
    if (stream->fd >= 0) {
        rdti_fork_close_remove(stream->fd);
        (void)close(stream->fd);
        stream->fd = -1;
    }
}

void
rdti_tcp_release_part(struct rdti_tcp_stream *stream)
{
    const struct rdti_host *host = stream->lane->tcp->host;

    rdti_tcp_pool_give(&stream->lane->tcp->lists, stream->rx.list);
    stream->rx.list = NULL;
    if (!stream->rx.has_target)
        return;
    stream->rx.has_target = false;
    host->target_release(host->core, &stream->rx.target);
}

void
rdti_tcp_break_sending(struct rdti_tcp_stream *stream, int sys_errno)
{
    struct rdti_tcp_lane *lane = stream->lane;

    lane->tx_errno = sys_errno;
    lane->tx_errno_stream = stream->index;
    atomic_store_explicit(&lane->is_tx_broken, true, memory_order_relaxed);
}
