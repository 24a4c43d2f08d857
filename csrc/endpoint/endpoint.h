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
 * READY and CLOSING do not change while a lost lane is replaced (failover.c): ops posted meanwhile
 * are queued, as in CONNECTING, and ops that were in flight wait.
 *
 * In CLOSING the endpoint says goodbye once it is idle; only the core's own messages are still
 * given to the lane.
 *
 * An endpoint that ended while its peer may still use local memory (shm only: the peer is in the
 * middle of a write, fills a buffer, or holds some) lingers: until the peer is known to be done,
 * the endpoint is not freed, and freed memory of that kind is not used again. The peer reports that
 * it is done by closing its half of the side channel; a process keeps its half open while it uses
 * the other process's memory.
 *
 * FAILED keeps the first error for ever: every later call returns it. All state is under the
 * engine's lock, except the path of a write in READY, which takes a reference on the lane
 * (lane_users) and no lock of the core.
 */
#ifndef RDTI_ENDPOINT_ENDPOINT_H
#define RDTI_ENDPOINT_ENDPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "process/process.h"
#include "progress/transfer.h"
#include "rdmatensor.h"
#include "wire/endpoint/frame.h"

/* The inbound ring that set-up allocates and describes to the peer. */
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
/* Global rank, for use in messages, or RDT_RANK_UNKNOWN. */
int32_t rdti_endpoint_rank(const rdt_endpoint *ep);
const char *rdti_endpoint_job_id(const rdt_endpoint *ep); /* [driver] */
/* The state of a protocol on this endpoint (endpoint/protocol.h). */
void *rdti_endpoint_attached(const rdt_endpoint *ep, uint32_t protocol);
/* [driver] The name of the slot whose buffers are the region of this index, or NULL; *off_bytes, an
 * offset in the region, becomes the offset in its buffer. */
const char *rdti_endpoint_name_at(const rdt_endpoint *ep, uint32_t index, uint64_t *off_bytes);
/* Capabilities of the path in use; all false while there is none. */
struct rdti_transport_caps rdti_endpoint_caps(const rdt_endpoint *ep);
/* [driver] Still CONNECTING, but the peer may hold it for READY: it accepts frames, and if the
 * endpoint ends now, nothing is said later. */
bool rdti_endpoint_is_half_ready(const rdt_endpoint *ep);
/* [driver] The error that ended it, with its status, or RDT_OK. */
rdt_status rdti_endpoint_error(const rdt_endpoint *ep, struct rdt_error *err);

/*
 * Give an op (op.kind, notify, remote, blocks, len_bytes, is_urgent filled in) to the lane, or
 * queue it while CONNECTING. Any thread. On RDT_OK the transfer belongs to the lane until
 * op.complete; on an error nothing happened. Counts writes and reads.
 */
rdt_status rdti_endpoint_post(rdt_endpoint *ep, struct rdt_transfer *t, struct rdt_error *err);
/* The same for a write, with sums where the context verifies. The extra block, or NULL, describes
 * bytes that belong to the write and are in the peer's memory already. */
rdt_status rdti_endpoint_post_verified(rdt_endpoint *ep, struct rdt_transfer *t,
                                       const struct rdt_block *in_place, struct rdt_error *err);
/* A write without a handle: the block is copied into the op. Its source must stay valid until
 * `on_release` of the transfer, which gets `owner`, unless the lane took it at once (shm). */
rdt_status rdti_endpoint_post_write(rdt_endpoint *ep, const struct rdt_block *block,
                                    const struct rdt_remote_region *dst, enum rdti_traffic traffic,
                                    uint32_t notify, bool is_urgent,
                                    void (*on_release)(struct rdt_transfer *t), void *owner,
                                    struct rdt_error *err);
uint64_t rdti_endpoint_posts(const rdt_endpoint *ep); /* ops that move bytes, so far */
/* A credit: a bare notification, sent as a write of no bytes into the peer's mailbox ring region.
 * may_ride: it may wait for the next transfer to the peer, or for the next pass of a driver.
 * Counted on completion, as sent alone or not. */
rdt_status rdti_endpoint_post_credit(rdt_endpoint *ep, uint32_t notify, bool may_ride,
                                     struct rdt_error *err);

/* As rdt_endpoint_read(). */
rdt_status rdti_endpoint_read(rdt_endpoint *ep, void *dst, uint64_t len_bytes,
                              const struct rdt_remote_region *src, uint64_t src_off,
                              enum rdti_traffic traffic, rdt_transfer **out, struct rdt_error *err);
/* [driver] Whether a better path was available and failed. */
bool rdti_endpoint_is_fallback(const rdt_endpoint *ep);

/* Sends a frame on the side channel; dropped silently once the endpoint has ended. Any thread. */
void rdti_endpoint_send_frame(rdt_endpoint *ep, enum rdti_frame_type type, const uint8_t *payload,
                              size_t len_bytes);

/* [driver], READY: the peer's inbound mailbox ring, as received at set-up, and the local one. */
const struct rdt_remote_region *rdti_endpoint_peer_ring(const rdt_endpoint *ep);
rdt_region *rdti_endpoint_own_ring(rdt_endpoint *ep);

/* [driver] The error that broke the endpoint or its path, or the peer's leaving, also before the
 * endpoint has ended because of it; else RDT_OK. */
rdt_status rdti_endpoint_trouble(const rdt_endpoint *ep, struct rdt_error *err);
/* [driver] For an endpoint that has not ended: the time since something came from the peer; before
 * it is READY, since its set-up began. */
uint64_t rdti_endpoint_silence_ns(const rdt_endpoint *ep);
/* [driver] Reads what has come from the peer, before its silence is held against it: this process
 * may have had no time to read. May end the endpoint, and groups with it. */
void rdti_endpoint_hear(rdt_endpoint *ep);
/* [driver] The peer is unreachable, as the caller has seen by other means than the path. The
 * endpoint ends, at once if its side channel agrees, else a moment later. */
void rdti_endpoint_on_lane_error(rdt_endpoint *ep, const struct rdt_error *err);

/* [driver] A user's or a slot's notification, or none, after its bytes were compared. `is_stale`:
 * they could not be compared, as their region was freed. RDT_EPROTO: a notification of another
 * kind. */
rdt_status rdti_endpoint_on_summed(rdt_endpoint *ep, uint32_t notification, bool is_stale,
                                   struct rdt_error *err);

/* [driver] Finds by uuid among the endpoints that are CONNECTING or READY and whose peer has said
 * no goodbye; NULL if none. */
rdt_endpoint *rdti_endpoint_find(rdt_context *ctx, const uint8_t uuid[RDT_UUID_BYTES]);

/* [driver] One more reference; dropped by rdt_endpoint_close(). */
void rdti_endpoint_ref(rdt_endpoint *ep);

/* A user has a mapped buffer of the peer: revocations wait for the unpin. */
void rdti_endpoint_pin_mapping(rdt_endpoint *ep);
void rdti_endpoint_unpin_mapping(rdt_endpoint *ep);

/* [driver] READY: the path polls this flag too, if it supports flags. The owner removes it. */
void rdti_endpoint_watch_flag(rdt_endpoint *ep, struct rdti_flag *flag);

/* rdt_endpoint_map() with the caller's deadline. */
rdt_status rdti_endpoint_map_until(rdt_endpoint *ep, const struct rdt_remote_region *remote,
                                   uint64_t deadline_ns, void **out, struct rdt_error *err);

/* [driver] One more reference, which rdt_endpoint_close() drops; false if the endpoint is closing
 * or has ended. */
bool rdti_endpoint_hold(rdt_endpoint *ep);

/* Waits, but not long, for the goodbyes of endpoints that were closed here: a process that learns
 * of the close by another way and opens again must find that the goodbye has arrived before. Call
 * without the lock; with it nothing happens. */
void rdti_endpoints_await_goodbyes(rdt_context *ctx);

/* [driver] Ends the endpoint: closes the lane (completing its ops), fails mailbox and slots, and
 * announces the death to all if `is_death`. */
void rdti_endpoint_fail(rdt_endpoint *ep, const struct rdt_error *err, bool is_death);

/* host.c: the table for transports; the engine and the regions exist already. */
void rdti_context_fill_host(rdt_context *ctx);

/* [driver] The number of peers that share this host's cores changed: may waiters spin? */
void rdti_context_recount_local(rdt_context *ctx);

#endif
