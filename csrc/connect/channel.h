/* SPDX-License-Identifier: Apache-2.0
 * The side channel: frames (wire/frame.h) over a stream socket that has been authenticated, with
 * descriptors over Unix sockets. Its end is how a death is noticed: on_end's error has RDT_EPEER if
 * and only if the socket has ended. */
#ifndef RDTI_CONNECT_CHANNEL_H
#define RDTI_CONNECT_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "progress/engine.h"
#include "rdmatensor.h"
#include "wire/frame.h"

struct rdti_channel;

/* A side channel that lost a frame is no side channel: its owner ends it, which is noticed at a
 * tick, and says why. Until then it stays open: to the peer, its end would be this process's. */
enum rdti_channel_loss {
    RDTI_CHANNEL_LOSS_NONE,
    RDTI_CHANNEL_LOSS_MEMORY, /* there was none for a frame */
    RDTI_CHANNEL_LOSS_UNREAD, /* the peer does not read; what waits for it has a bound */
};

struct rdti_channel_events {
    /* [driver] A frame. Descriptors that came with it are taken by rdti_channel_take_fds() inside
     * the call. An error ends the channel. */
    rdt_status (*on_frame)(void *arg, uint16_t type, const uint8_t *payload, uint32_t payload_bytes,
                           struct rdt_error *err);
    /* [driver] Once: end of file, an error of the socket, a frame that breaks the protocol, or
     * on_frame's error. */
    void (*on_end)(void *arg, const struct rdt_error *err);
};

/* Takes fd over (nonblocking, close-on-exec). [driver] `bytes_count` grows by what is queued, and
 * outlives the channel. */
rdt_status rdti_channel_create(struct rdti_engine *engine, int fd, bool is_unix,
                               const struct rdti_channel_events *events, void *arg,
                               _Atomic uint64_t *bytes_count, struct rdti_channel **out,
                               struct rdt_error *err);
/* Queue a frame and send what the socket takes; once one was lost, none. `fds` are duplicated by
 * the kernel and stay the caller's; they must stay open until the frame has left (in practice at
 * once; arena and lane descriptors live as long as the context). Any thread. */
void rdti_channel_send(struct rdti_channel *channel, uint16_t type, const uint8_t *payload,
                       size_t payload_bytes, const int *fds, uint32_t fd_count);
/* The goodbye, or why there is none: once, behind everything that is queued; also when frames were
 * lost, since its memory was set aside. At most RDTI_DEATH_BYTES. Any thread. */
void rdti_channel_send_last(struct rdti_channel *channel, uint16_t type, const uint8_t *payload,
                            size_t payload_bytes);
/* Try again to send what a shortage of the kernel's held back. Any thread. */
void rdti_channel_flush(struct rdti_channel *channel);
/* [driver] Descriptors that have arrived and were not taken, oldest first; ownership moves. Returns
 * how many. */
uint32_t rdti_channel_take_fds(struct rdti_channel *channel, int *out, uint32_t cap);
/* [driver] Take what the socket has now, without waiting for the engine to see it. May end the
 * channel. */
void rdti_channel_drain(struct rdti_channel *channel);
/* Whether a frame could not be queued, and why the first could not. Any thread. */
enum rdti_channel_loss rdti_channel_get_loss(struct rdti_channel *channel);
/* Monotonic time of the last bytes from the peer. */
uint64_t rdti_channel_last_heard_ns(const struct rdti_channel *channel);
/* True once all queued frames are with the kernel. */
bool rdti_channel_is_flushed(struct rdti_channel *channel);
/*
 * [driver] Give the channel up after a goodbye: what is queued still goes out, what comes is thrown
 * away, and it closes once the peer has closed its end. A plain close with bytes unread would reset
 * the connection and take our goodbye out of the peer's hands. It joins `retired` until then; no
 * event follows. NULL is legal.
 */
void rdti_channel_retire(struct rdti_channel *channel, struct rdti_list *retired);
/* [driver] What comes is thrown away from now on, but on_end() follows, however long it takes.
 * False: it does not: the socket has ended already, or cannot be watched any more. */
bool rdti_channel_linger(struct rdti_channel *channel);
/* [driver] Nothing more is sent: our half is closed once what is queued has left, and the peer sees
 * that. Again is legal. */
void rdti_channel_shut(struct rdti_channel *channel);
/* [driver] Closes retired ones whose peers did not answer within RDTI_RETIRE_NS; all, if now_ns is
 * UINT64_MAX. */
void rdti_channels_expire(struct rdti_list *retired, uint64_t now_ns);
#define RDTI_RETIRE_NS UINT64_C(2000000000)
/* [driver] Closes; no event follows. NULL is legal. */
void rdti_channel_destroy(struct rdti_channel *channel);

#endif
