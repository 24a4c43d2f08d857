/* SPDX-License-Identifier: Apache-2.0
 * The table of operations that every transport implements: its comments are the specification, and
 * the contract suite tests every transport against it.
 *
 * Words. A *lane* is one transport's connection of an endpoint to one peer. The *host* is the core:
 * it owns regions, endpoints and the engine, and a transport sees it only as struct rdti_host. A
 * transport does not use other transports, slots, messages or groups.
 *
 * Threads and locks. Everything marked [driver] is called with the engine's lock held, by the
 * thread that drives; it must not block, sleep or wait. Any thread may call write() and read() at
 * any time while the lane is open, several at once: the lane has its own lock for its transmit
 * side. The order of locks is engine, then lane. A transport calls the host only from functions
 * marked [driver], except for calls that the host allows to any thread, and never with its lane
 * lock held.
 *
 * Order. Writes and notifications of one lane reach the peer in the order in which write() was
 * called. A notification is delivered after all bytes of its own and of earlier writes are in place
 * and visible to any thread that sees the notification. Reads are not ordered. One exception: of
 * two notifications that arrive as flags (struct rdti_flag) either may be delivered first, each
 * after its own bytes; all other rules apply to them.
 *
 * Ends. Each accepted op (RDT_OK returned) is completed exactly once, by op->complete(), with
 * RDT_OK or with the error that ended it. A write is complete when its bytes are in place at the
 * target (acknowledged after placement) and its source may change; a read when its bytes are in the
 * destination. After the first error of a lane every later op is refused with it. Ops in flight
 * complete with it, or with the error of close_lane(), since the host may learn the cause in
 * between. Until an op has completed, its memory may still be read (write) or written (read).
 *
 * Sleep. A transport never sleeps. shm peers ring the doorbell of the process; the other transports
 * pass file descriptors to the engine through host->watch(). needs_epoll() makes a sleeping waiter
 * sleep in epoll and not on the futex.
 */
#ifndef RDTI_TRANSPORT_H
#define RDTI_TRANSPORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/system/doorbell.h"
#include "base/list.h"
#include "rdmatensor.h"
#include "wire/limits.h"

struct rdti_lane; /* each transport's own struct begins with struct rdti_lane */

enum rdti_op_kind { RDTI_OP_WRITE = 1, RDTI_OP_READ = 2 };

/* The class of an op's bytes, for the counters: see struct rdt_counters. */
enum rdti_traffic {
    RDTI_TRAFFIC_PLANNED = 0,
    RDTI_TRAFFIC_DYNAMIC,
    RDTI_TRAFFIC_CONTROL,
    RDTI_TRAFFIC_COUNT
};
#define RDTI_TRANSPORT_COUNT 4 /* indexed by RDT_TRANSPORT_*; entry 0 is none */

/*
 * One operation. The core allocates and fills it. From an accepted write()/read() to complete() the
 * lane owns it and may use `link` and `scratch`. `blocks` points to `block_count` entries that live
 * as long as the op, often the op's own `block`. len_bytes is the sum of their lengths. For a read
 * the single block's src is the destination.
 */
struct rdti_op {
    struct rdti_list link;
    uint32_t kind;   /* enum rdti_op_kind */
    uint32_t notify; /* 32 bits (wire/notify.h) or RDTI_NOTIFY_NONE; writes only */
    struct rdt_remote_region remote;
    const struct rdt_block *blocks;
    struct rdt_block block;
    uint32_t block_count;
    bool is_urgent;  /* the peer's progress thread has to act on the notification: wake it */
    bool may_ride;   /* a write without bytes that may wait for the lane's next op, or a pass */
    bool has_ridden; /* set by the lane: it was sent with another op */
    /* Later ops imply that this one arrived. If it is refused after write() has accepted it, for a
     * reason other than a freed region, the lane sends nothing after it, and the host ends it. */
    bool is_relied_on;
    uint8_t traffic; /* enum rdti_traffic */
    /* Not 0: the lane may notify by a flag. The peer reserves RDTI_FLAG_BYTES at flag_off of the
     * region for it, and the gap between the bytes and the flag, shorter than that, is unused. */
    uint32_t flag_sequence;
    uint64_t flag_off;
    uint64_t len_bytes;
    uint64_t scratch[7];
    /* [driver] or in the thread inside write()/read(): at most once; must not call the lane. */
    void (*complete)(struct rdti_op *op, rdt_status status, const struct rdt_error *err);
};

/*
 * A place where the next notification of one kind may arrive as a flag (wire/notify.h), written
 * with its payload. Its owner updates it within on_notify(), and may remove it from the lane's list
 * at any time; the lane does so at its end. [driver]
 */
struct rdti_flag {
    struct rdti_list link;
    const _Atomic uint64_t *word; /* a device writes it */
    uint32_t sequence;            /* of the next flag */
    uint32_t notification;        /* that the flag stands for */
};

/* Called when a watched file descriptor is ready. Level-triggered. [driver] */
typedef void (*rdti_watch_fn)(void *arg, uint32_t epoll_events);
struct rdti_watch; /* owned by the engine; freed by unwatch() */

/* A segment of this process's arena. */
struct rdti_memory {
    void *addr;
    uint64_t len_bytes;
    uint32_t segment;
};

/* An address range of this process that a peer may access, checked and pinned; release it after the
 * last byte. */
struct rdti_target {
    void *addr;
    void *pin;             /* the region, opaque here */
    uint64_t region_bytes; /* length of the whole region */
};

/* The core's interface to transports. All functions are [driver] unless stated otherwise. */
struct rdti_host {
    void *core; /* first argument of every call below */

    /* A notification arrived on the lane. May post writes on any lane. */
    void (*on_notify)(void *core, struct rdti_lane *lane, uint32_t notification);
    /* The lane broke: called once, from poll(), a watch, words_arrived() or fence(); close_lane()
     * follows later. */
    void (*on_error)(void *core, struct rdti_lane *lane, const struct rdt_error *err);
    /* After connect(): the lane became usable. */
    void (*on_ready)(void *core, struct rdti_lane *lane);
    /* Only the lane's path to the peer is lost: whether another lane may replace it. False: the
     * lane breaks. NULL: always false. */
    bool (*may_move)(void *core, const struct rdti_lane *lane);
    /*
     * If another lane may, once, in place of on_error(): the lane is fenced. It places no more
     * bytes of the peer or of this side's reads, and delivers nothing more; `delivered`
     * notifications were delivered. write() and read() still queue. hand_over() or close_lane()
     * follows. May be called from fence().
     */
    void (*on_fenced)(void *core, struct rdti_lane *lane, uint64_t delivered,
                      const struct rdt_error *why);

    /*
     * Check that (index, generation) is a live exported region of this process and that the range
     * lies in it, and pin it.
     *   RDT_ESTALE  RDT_ERANGE  RDT_EPROTO (no such index)
     */
    rdt_status (*target_acquire)(void *core, uint32_t index, uint32_t generation,
                                 uint64_t off_bytes, uint64_t len_bytes, struct rdti_target *out,
                                 struct rdt_error *err);
    void (*target_release)(void *core, struct rdti_target *target);

    /* shm: request the descriptor of a segment of the peer's arena; segment_arrived() delivers it.
     * Any thread. */
    void (*request_segment)(void *core, struct rdti_lane *lane, uint32_t segment);

    /* Send a message to the other half of the lane, over the authenticated side channel and in
     * order: the peer's words_arrived() gets it. At most RDTI_LANE_WORDS_MAX_BYTES. Any thread. */
    void (*send_words)(void *core, struct rdti_lane *lane, const uint8_t *bytes,
                       uint32_t len_bytes);
    /*
     * The segment of the arena that holds [addr, addr + len_bytes), and the segment of a number.
     * Any thread.
     *   RDT_EINVAL no such segment
     */
    rdt_status (*memory_find)(void *core, const void *addr, uint64_t len_bytes,
                              struct rdti_memory *out, struct rdt_error *err);
    rdt_status (*memory_segment)(void *core, uint32_t segment, struct rdti_memory *out,
                                 struct rdt_error *err);
    /*
     * Populate the segment's pages and keep them in place, so that a device may use their physical
     * addresses. Its time depends on the number of missing pages. Any thread.
     *   RDT_ENOMEM not enough memory for all pages
     */
    rdt_status (*memory_keep)(void *core, uint32_t segment, struct rdt_error *err);

    rdt_status (*watch)(void *core, int fd, uint32_t epoll_events, rdti_watch_fn fn, void *arg,
                        struct rdti_watch **out, struct rdt_error *err);
    void (*rewatch)(void *core, struct rdti_watch *watch, uint32_t epoll_events); /* any thread */
    void (*unwatch)(void *core, struct rdti_watch *watch);

    /* This process's doorbell page (a memfd), eventfd and table of generations; immutable after
     * open. */
    int doorbell_fd;
    int event_fd;
    int generation_fd; /* memfd: uint32_t generation[], indexed by region index; grows, never
                          shrinks */
    struct rdti_counters_ref *counters; /* see rdti_count() below */
    uint32_t tcp_streams;
};

/* Counters that transports increment; relaxed atomics, read by rdt_context_counters(). */
struct rdti_counters_ref {
    /* Entry 0 of the first index: within this process. */
    _Atomic uint64_t moved_bytes[RDTI_TRANSPORT_COUNT][RDTI_TRAFFIC_COUNT];
    _Atomic uint64_t fallback_bytes;
    _Atomic uint64_t copied_bytes[RDTI_TRAFFIC_COUNT];
    _Atomic uint64_t wakeups_sent;
    _Atomic uint64_t wire_bytes;
    _Atomic uint64_t notifications;
    _Atomic uint64_t registered_bytes; /* with devices */
    _Atomic uint64_t registration_ns;  /* in their calls, including deregistration */
};

static inline void
rdti_count(_Atomic uint64_t *counter, uint64_t n)
{
    /* relaxed: a statistic, not ordered with anything */
    (void)atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

#define RDTI_OFFER_MAX_FDS 4

/* One side's description of its half of a lane, sent over the authenticated side channel. */
struct rdti_offer {
    uint8_t bytes[RDTI_OFFER_MAX_BYTES];
    uint32_t len_bytes;
    uint32_t fd_count; /* 0 unless the side channel is a Unix socket */
    int fds[RDTI_OFFER_MAX_FDS];
};

#define RDTI_SESSION_KEY_BYTES 32

struct rdti_lane_args {
    bool is_connector; /* this side opened the side channel */
    int32_t peer_rank; /* for messages */
    bool is_loopback;  /* the peer's address is in 127/8 or ::1 */
    /* The address at which the peer listens; connector only. */
    const void *peer_sockaddr;
    uint32_t peer_sockaddr_bytes;
    uint8_t session_id[RDTI_SESSION_ID_BYTES];   /* names the endpoint in JOIN messages */
    uint8_t session_key[RDTI_SESSION_KEY_BYTES]; /* known only to both sides */
    uint64_t deadline_ns;                        /* of the lane's set-up */
};

/* Head of every lane. The core reads it and sets `owner`; the transport sets the rest before
 * make_offer() returns. */
struct rdti_lane {
    const struct rdti_transport *transport;
    void *owner;      /* the endpoint */
    bool is_fallback; /* a better path was available but failed; set by the core before any op */
};

/* Facts that do not change after open(). */
struct rdti_transport_caps {
    bool can_map;             /* map() works */
    bool target_checks;       /* the target refuses a stale generation; else quarantine needs an
                                 acknowledgement */
    bool is_same_host;        /* only between processes that share memory */
    uint32_t arrival_passes;  /* calls of poll() that take all that a peer may have sent; 0: 16 */
    uint64_t eager_max_bytes; /* larger messages use rendezvous, which is cheaper than a copy */
};

struct rdti_transport {
    const char *name; /* "shm" */
    uint32_t id;      /* RDT_TRANSPORT_* */
    struct rdti_transport_caps caps;

    /* Once per context, before any lane. RDT_ENOTVIABLE with a reason if it cannot work here. */
    rdt_status (*open)(const struct rdti_host *host, void **state_out, struct rdt_error *err);
    void (*close)(void *state); /* after the last lane */

    /* [driver] Allocate this side's half of a lane and describe it. The lane keeps the offer's
     * fds. */
    rdt_status (*make_offer)(void *state, const struct rdti_lane_args *args, struct rdti_lane **out,
                             struct rdti_offer *offer, struct rdt_error *err);
    /*
     * [driver] The peer's half has arrived. Takes ownership of its fds in every case. Afterwards
     * the peer may write to this process, and write() may be called; host->on_ready() follows, at
     * once or later.
     *   RDT_EPROTO (the offer is malformed)  RDT_ENOTVIABLE (it cannot be reached, because ...)
     */
    rdt_status (*connect)(struct rdti_lane *lane, struct rdti_offer *peer, struct rdt_error *err);
    /* [driver] A socket that the listener accepted, with a verified JOIN; takes ownership.
     * RDT_EPROTO: the index is invalid or in use; the socket is closed, and the lane continues. Any
     * other error ends the lane. tcp only, else NULL. */
    rdt_status (*add_stream)(struct rdti_lane *lane, int fd, uint32_t index, struct rdt_error *err);
    /* [driver] An answer to request_segment(); takes ownership of the descriptor. shm only, else
     * NULL. */
    void (*segment_arrived)(struct rdti_lane *lane, uint32_t segment, int fd, uint64_t len_bytes);

    /* [driver] A message that the peer's half sent by send_words(). RDT_EPROTO: it is invalid.
     * verbs only, else NULL. */
    rdt_status (*words_arrived)(struct rdti_lane *lane, const uint8_t *bytes, uint32_t len_bytes,
                                struct rdt_error *err);
    /*
     * [driver] The peer freed a region: from now on refuse ops on it. Called again until it returns
     * true: this side has no access to it in flight. verbs only; NULL: every access has ended when
     * write() and read() have returned.
     */
    bool (*revoke)(struct rdti_lane *lane, uint32_t index, uint32_t generation);
    /* [driver] Also check this flag in every poll(). verbs only, else NULL. */
    void (*watch_flag)(struct rdti_lane *lane, struct rdti_flag *flag);
    /*
     * A region of this process has left quarantine. True: no device accesses it any more. False: a
     * thread that holds no lock calls then(arg) when none does, before close() has returned. Any
     * thread, with no lock held except possibly the engine's. verbs only, else NULL.
     */
    bool (*forget_region)(void *state, uint32_t index, uint32_t generation, void (*then)(void *arg),
                          void *arg);

    /*
     * Start an op. Never blocks: the lane queues an op that cannot be sent now.
     *   RDT_ERANGE, RDT_ESTALE  refused here; the op is not accepted and complete() is not called
     *   any other error         the lane's first error
     */
    rdt_status (*write)(struct rdti_lane *lane, struct rdti_op *op, struct rdt_error *err);
    rdt_status (*read)(struct rdti_lane *lane, struct rdti_op *op, struct rdt_error *err);

    /*
     * [driver] Poll every lane: take arrivals, deliver notifications, push queued ops. Bounded work
     * per call. Returns the amount of work done; 0 lets the caller consider sleep.
     */
    uint32_t (*poll)(void *state);
    /*
     * [driver] Before a pass after which a thread may sleep: an arrival from now on that the next
     * poll() does not find must make a watched descriptor readable. NULL: the descriptors always do
     * so.
     */
    void (*arm)(void *state);
    /* [driver] The following poll() takes what the lane's descriptors hold now, whether or not an
     * event has announced it. NULL: poll() always does so. */
    void (*hear)(struct rdti_lane *lane);
    /* Whether arrivals are signalled by file descriptors while any lane is open. */
    bool (*needs_epoll)(void *state);

    /* The remote region's address in this process, or RDT_EAGAIN after requesting the segment.
     * NULL: RDT_ENOTSUP. */
    rdt_status (*map)(struct rdti_lane *lane, const struct rdt_remote_region *remote, void **out,
                      struct rdt_error *err);
    /* After a seq_cst store into memory that map() returned: wake the peer if it sleeps. Any
     * thread, until close_lane(), also after a failure. NULL if map is. */
    void (*ring)(struct rdti_lane *lane);
    /* [driver] The peer reports that it lost the path: treat it as lost. False: the lane cannot be
     * moved, or it broke. verbs only, else NULL. */
    bool (*fence)(struct rdti_lane *lane, const struct rdt_error *why);
    /*
     * [driver] After on_fenced(), with no thread inside write() or read(): end the lane, and pass
     * to take(), in order, what it did not complete: an op, or (op NULL) the notification of a
     * complete op that the peer did not deliver. Ops that the peer delivered, by its count, and the
     * writes before them are completed with RDT_OK. close_lane() follows.
     *   RDT_EPROTO  the count is impossible; nothing was done
     */
    rdt_status (*hand_over)(struct rdti_lane *lane, uint64_t delivered,
                            void (*take)(void *arg, struct rdti_op *op, uint32_t notify), void *arg,
                            struct rdt_error *err);
    /* One line about the lane for describe(): device, addresses, streams. */
    void (*explain)(const struct rdti_lane *lane, char *buf, size_t cap);
    /* Whether any op is in flight or queued. Any thread. */
    bool (*is_idle)(struct rdti_lane *lane);
    /*
     * [driver] Complete the remaining ops with `err`, refuse every later op and deliver nothing
     * more. Memory that map() returned stays mapped until close_lane(), which follows. NULL if map
     * is.
     */
    void (*fail_lane)(struct rdti_lane *lane, const struct rdt_error *err);
    /* [driver] Complete the remaining ops with `err` (RDT_ECLOSED, RDT_EPEER ...) and free the
     * lane. */
    void (*close_lane)(struct rdti_lane *lane, const struct rdt_error *err);
};

/* Counts an op of the lane whose bytes are in place. */
static inline void
rdti_count_moved(struct rdti_counters_ref *counters, const struct rdti_lane *lane,
                 const struct rdti_op *op)
{
    rdti_count(&counters->moved_bytes[lane->transport->id][op->traffic], op->len_bytes);
    if (lane->is_fallback && op->traffic != RDTI_TRAFFIC_CONTROL)
        rdti_count(&counters->fallback_bytes, op->len_bytes);
}

extern const struct rdti_transport rdti_transport_shm;
extern const struct rdti_transport rdti_transport_tcp;
extern const struct rdti_transport rdti_transport_verbs;

#endif
