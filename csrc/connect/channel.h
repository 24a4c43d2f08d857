/* SPDX-License-Identifier: Apache-2.0
 * The side channel: frames (wire/endpoint/frame.h) over an authenticated stream socket, with
 * descriptors over Unix sockets. A peer's death is detected by its end: the
 * error of on_end is RDT_EPEER if and only if the socket has ended. */
#ifndef RDTI_CONNECT_CHANNEL_H
#define RDTI_CONNECT_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "progress/engine.h"
#include "rdmatensor.h"
#include "wire/endpoint/frame.h"

struct rdti_channel;

/* A side channel that lost a frame is unusable: its owner notices that at a tick, ends it and
 * reports why. Until then it stays open: the peer would take its end for the death of this
 * process. */
enum rdti_channel_loss {
    RDTI_CHANNEL_LOSS_NONE,
    RDTI_CHANNEL_LOSS_MEMORY, /* no memory for a frame */
    RDTI_CHANNEL_LOSS_UNREAD, /* the peer does not read, and the queue has reached its bound */
};

struct rdti_channel_events {
    /* [driver] A frame. Inside the call, rdti_channel_take_fds() takes the descriptors that arrived
     * with it. An error ends the channel. */
    rdt_status (*on_frame)(void *arg, uint16_t type, const uint8_t *payload, uint32_t payload_bytes,
                           struct rdt_error *err);
    /* [driver] Once: end of file, an error of the socket, a frame that breaks the protocol, or
     * on_frame's error. */
    void (*on_end)(void *arg, const struct rdt_error *err);
};

/* Takes ownership of fd (nonblocking, close-on-exec). [driver] `bytes_count` counts the queued
 * bytes and must outlive the channel. */
rdt_status rdti_channel_create(struct rdti_engine *engine, int fd, bool is_unix,
                               const struct rdti_channel_events *events, void *arg,
                               _Atomic uint64_t *bytes_count, struct rdti_channel **out,
                               struct rdt_error *err);
/* Queue a frame and send what the socket accepts; after a frame was lost, does nothing. The kernel
 * duplicates `fds` and the caller keeps them; they must stay open until the frame is sent (usually
 * at once; arena and lane descriptors live as long as the context). Any thread. */
void rdti_channel_send(struct rdti_channel *channel, uint16_t type, const uint8_t *payload,
                       size_t payload_bytes, const int *fds, uint32_t fd_count);
/* Sends the goodbye, or the reason for its absence: once, after everything queued. Works also after
 * frames were lost, since its memory was reserved. At most RDTI_DEATH_BYTES. Any thread. */
void rdti_channel_send_last(struct rdti_channel *channel, uint16_t type, const uint8_t *payload,
                            size_t payload_bytes);
/* Retry to send what a shortage of kernel resources held back. Any thread. */
void rdti_channel_flush(struct rdti_channel *channel);
/* [driver] Takes descriptors that have arrived, oldest first, with their ownership. Returns their
 * number. */
uint32_t rdti_channel_take_fds(struct rdti_channel *channel, int *out, uint32_t cap);
/* [driver] Receive what the socket has now, without waiting for an event of the engine. May end the
 * channel. */
void rdti_channel_drain(struct rdti_channel *channel);
/* Whether a frame was lost, and the reason for the first loss. Any thread. */
enum rdti_channel_loss rdti_channel_get_loss(struct rdti_channel *channel);
/* Monotonic time of the last bytes from the peer. */
uint64_t rdti_channel_last_heard_ns(const struct rdti_channel *channel);
/* True when all queued frames have been passed to the kernel. */
bool rdti_channel_is_flushed(struct rdti_channel *channel);
/*
 * [driver] Retire the channel after a goodbye. It still sends the queue, discards what arrives, and
 * closes when the peer has closed its end; until then it is in `retired`. A plain close with unread
 * bytes would reset the connection, and the peer might lose the goodbye. No event follows. NULL is
 * legal.
 */
void rdti_channel_retire(struct rdti_channel *channel, struct rdti_list *retired);
/* [driver] From now on discards what arrives, but on_end() follows at any later time. False: it
 * does not follow, because the socket has already ended or cannot be watched any more. */
bool rdti_channel_linger(struct rdti_channel *channel);
/* [driver] The caller sends nothing more: shuts down the sending half after the queue is sent,
 * which the peer sees. May be repeated. */
void rdti_channel_shut(struct rdti_channel *channel);
/* [driver] Closes retired channels whose peers did not close within RDTI_RETIRE_NS; all, if now_ns
 * is UINT64_MAX. */
void rdti_channels_expire(struct rdti_list *retired, uint64_t now_ns);
#define RDTI_RETIRE_NS UINT64_C(2000000000)
/* [driver] Closes; no event follows. NULL is legal. */
void rdti_channel_destroy(struct rdti_channel *channel);

#endif
