/* SPDX-License-Identifier: Apache-2.0
 * Endpoints: the connection to one peer.
 *
 *   state       ops are        bytes of accepted ops move?   leaves by
 *   CONNECTING  queued         no                            both probes proved -> READY
 *                                                            error, deadline -> FAILED
 *                                                            last close -> LEFT
 *   READY       given to lane  yes                           peer dies, lane breaks -> FAILED
 *                                                            goodbye -> LEFT; last close -> CLOSING
 *   CLOSING     refused        yes, until flushed            goodbye, lane breaks, 2 s -> LEFT
 *                                                            peer dies -> FAILED
 *   LEFT        refused        no                            last close -> freed
 *   FAILED      refused        no (the lane is ended first)  last close -> freed
 *
 * READY and CLOSING stay what they are while a lane that was lost is replaced (failover.c): ops
 * that are posted meanwhile are queued, as in CONNECTING, and those that were in flight wait.
 *
 * CLOSING says goodbye once it is idle; only the core's own messages are still given to the lane.
 *
 * One that ended while its peer may still use our memory (shm only: it is in the middle of a write,
 * fills a buffer, or holds some) lingers: it is not freed, and what was freed of that memory not
 * used again, before the peer is known to be done. The peer says so by the end of its half of the
 * side channel, which whoever uses the other's memory keeps open.
 *
 * FAILED keeps the first error for ever: every later call returns it. All state is under the
 * engine's lock, but for the path of a write in READY, which takes a reference on the lane
 * (lane_users) and no lock of ours.
 */
#ifndef RDTI_ENDPOINT_ENDPOINT_H
#define RDTI_ENDPOINT_ENDPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "process/process.h"
#include "progress/transfer.h"
#include "rdmatensor.h"
#include "wire/frame.h"

/* The inbound ring that set-up makes and tells the peer of. */
#define RDTI_RING_SMALL_BYTES 4096

enum rdti_endpoint_state {
    RDTI_EP_CONNECTING,
    RDTI_EP_READY,
    RDTI_EP_CLOSING,
    RDTI_EP_LEFT,
    RDTI_EP_FAILED
};

enum rdti_endpoint_state rdti_endpoint_get_state(const rdt_endpoint *ep); /* any thread */
bool rdti_endpoint_is_ended(const rdt_endpoint *ep);                      /* LEFT or FAILED */
rdt_context *rdti_endpoint_context(const rdt_endpoint *ep);
const uint8_t *rdti_endpoint_uuid(const rdt_endpoint *ep);
/* Global rank for messages, or RDT_RANK_UNKNOWN. */
int32_t rdti_endpoint_rank(const rdt_endpoint *ep);
const char *rdti_endpoint_job_id(const rdt_endpoint *ep); /* [driver] */
/* The state of a protocol on it (endpoint/protocol.h). */
void *rdti_endpoint_attached(const rdt_endpoint *ep, uint32_t protocol);
/* The name of the slot whose buffers are the region of this index, or NULL; *off_bytes, in the
 * region, becomes the offset in its buffer. [driver] */
const char *rdti_endpoint_name_at(const rdt_endpoint *ep, uint32_t index, uint64_t *off_bytes);
/* Of the path in use; caps of an endpoint that has none yet are all false. */
struct rdti_transport_caps rdti_endpoint_caps(const rdt_endpoint *ep);
/* It is CONNECTING still, and the peer may hold it for READY: it takes frames, and if the endpoint
 * ends now, nothing is said later. [driver] */
bool rdti_endpoint_is_half_ready(const rdt_endpoint *ep);
/* The error that ended it, with its status, or RDT_OK. [driver] */
rdt_status rdti_endpoint_error(const rdt_endpoint *ep, struct rdt_error *err);

/*
 * Give an op (op.kind, notify, remote, blocks, len_bytes, is_urgent filled in) to the lane, or
 * queue it while CONNECTING. Any thread. On RDT_OK the transfer belongs to the lane until
 * op.complete; on an error nothing happened. Counts writes and reads.
 */
rdt_status rdti_endpoint_post(rdt_endpoint *ep, struct rdt_transfer *t, struct rdt_error *err);
/* The same of a write with sums where the context verifies. `born`: what is in the peer's memory
 * already and belongs to the write, or NULL. */
rdt_status rdti_endpoint_post_verified(rdt_endpoint *ep, struct rdt_transfer *t,
                                       const struct rdt_block *born, struct rdt_error *err);
/* A write without a handle: the block is copied into the op; its source must stay until
 * `on_release` of the transfer, which gets `owner`, unless the lane took it at once (shm). */
rdt_status rdti_endpoint_post_write(rdt_endpoint *ep, const struct rdt_block *block,
                                    const struct rdt_remote_region *dst, enum rdti_traffic traffic,
                                    uint32_t notify, bool is_urgent,
                                    void (*on_release)(struct rdt_transfer *t), void *owner,
                                    struct rdt_error *err);
uint64_t rdti_endpoint_posts(const rdt_endpoint *ep); /* ops that move bytes, so far */
/* A credit: a bare notification, by a write of no bytes into the peer's mailbox ring region.
 * may_ride: it may wait for what goes to the peer next, or for the next pass of a driver. Counted
 * when it is over, as one that went alone or not. */
rdt_status rdti_endpoint_post_credit(rdt_endpoint *ep, uint32_t notify, bool may_ride,
                                     struct rdt_error *err);

/* As rdt_endpoint_read(). */
rdt_status rdti_endpoint_read(rdt_endpoint *ep, void *dst, uint64_t len_bytes,
                              const struct rdt_remote_region *src, uint64_t src_off,
                              enum rdti_traffic traffic, rdt_transfer **out, struct rdt_error *err);
/* Whether a better path was to be had, and failed. [driver] */
bool rdti_endpoint_is_fallback(const rdt_endpoint *ep);

/* A frame on the side channel; dropped silently once the endpoint has ended. Any thread. */
void rdti_endpoint_send_frame(rdt_endpoint *ep, enum rdti_frame_type type, const uint8_t *payload,
                              size_t len_bytes);

/* The region of the peer's inbound mailbox ring as it told us at set-up, and ours. [driver],
 * READY */
const struct rdt_remote_region *rdti_endpoint_peer_ring(const rdt_endpoint *ep);
rdt_region *rdti_endpoint_own_ring(rdt_endpoint *ep);

/* [driver] What broke it or its path, or the peer's leaving, also before that has become its end;
 * else RDT_OK. */
rdt_status rdti_endpoint_trouble(const rdt_endpoint *ep, struct rdt_error *err);
/* [driver] Of an endpoint that has not ended: how long nothing has come from the peer; before it is
 * READY, since its set-up began. */
uint64_t rdti_endpoint_silence_ns(const rdt_endpoint *ep);
/* [driver] Reads what has come from the peer, before its silence is held against it: this process
 * may have had no time for it. May end the endpoint, and groups with it. */
void rdti_endpoint_hear(rdt_endpoint *ep);
/* [driver] The peer cannot be reached any more, as whoever calls has seen by other means than the
 * path: the endpoint ends, at once if its side channel agrees, else a moment later. */
void rdti_endpoint_on_lane_error(rdt_endpoint *ep, const struct rdt_error *err);

/* [driver] A user's or a slot's notification, or none, after its bytes were compared; `is_stale`:
 * they could not be, as their region was freed. RDT_EPROTO: it is no such. */
rdt_status rdti_endpoint_on_summed(rdt_endpoint *ep, uint32_t notification, bool is_stale,
                                   struct rdt_error *err);

/* [driver] Find by uuid among those that are CONNECTING or READY and whose peer has said no
 * goodbye; NULL if none. */
rdt_endpoint *rdti_endpoint_find(rdt_context *ctx, const uint8_t uuid[RDT_UUID_BYTES]);

/* [driver] One more count; dropped by rdt_endpoint_close(). */
void rdti_endpoint_ref(rdt_endpoint *ep);

/* A mapped buffer of the peer's is in the user's hands: revocations wait for the unpin. */
void rdti_endpoint_pin_mapping(rdt_endpoint *ep);
void rdti_endpoint_unpin_mapping(rdt_endpoint *ep);

/* [driver] READY: the path looks for this flag too, where it knows flags. The owner takes it
 * out. */
void rdti_endpoint_watch_flag(rdt_endpoint *ep, struct rdti_flag *flag);

/* rdt_endpoint_map() with a deadline of the caller's. */
rdt_status rdti_endpoint_map_until(rdt_endpoint *ep, const struct rdt_remote_region *remote,
                                   uint64_t deadline_ns, void **out, struct rdt_error *err);

/* [driver] One count more, which rdt_endpoint_close() drops; false if it is closing or has
 * ended. */
bool rdti_endpoint_hold(rdt_endpoint *ep);

/* Wait, but not long, for the goodbyes of what was closed here: whoever hears of the close by
 * another way and opens anew must find that the peer has heard it before. Without the lock; with it
 * nothing happens. */
void rdti_endpoints_await_goodbyes(rdt_context *ctx);

/* [driver] End it: closes the lane (completing its ops), fails mailbox and slots, tells everybody
 * if `is_death`. */
void rdti_endpoint_fail(rdt_endpoint *ep, const struct rdt_error *err, bool is_death);

/* host.c: what transports get; the engine and the regions are there. */
void rdti_context_fill_host(rdt_context *ctx);

/* [driver] The number of peers that share our cores changed: may waiters spin? */
void rdti_context_recount_local(rdt_context *ctx);

#endif
