/* SPDX-License-Identifier: Apache-2.0
 * The table of operations that every transport fills: its comments are the specification, and the
 * contract suite runs over all of them.
 *
 * Words. A *lane* is one transport's connection of an endpoint to one peer. The *host* is the core:
 * it owns regions, endpoints and the engine, and is seen from here only as struct rdti_host. A
 * transport knows no other transport and nothing of slots, messages or groups.
 *
 * Threads and locks. Everything marked [driver] is called with the engine's lock held, by whatever
 * thread drives; it must not block, sleep or wait. write() and read() may be called by any thread
 * at any time while the lane is open, several at once: the lane has its own lock for its transmit
 * side. The order of locks is engine, then lane. A transport calls the host back only from
 * functions marked [driver], but for what the host allows to any thread, and never with its lane
 * lock held.
 *
 * Order. Of one lane, writes and notifications reach the peer in the order in which write() was
 * called. A notification is delivered after all bytes of its own and of earlier writes are in place
 * and visible to any thread that sees the notification. Reads are ordered behind nothing. One
 * exception: of two notifications that come as flags (struct rdti_flag) either may be delivered
 * first, each after its own bytes; everything else about them is as said.
 *
 * Ends. Each op that was accepted (RDT_OK returned) is completed exactly once, by op->complete(),
 * with RDT_OK or with the error that ended it. A write is complete when its bytes are in place at
 * the target (acknowledged after placement) and its source may change; a read when its bytes are in
 * the destination. After the first error of a lane every later op is refused with it, and those in
 * flight complete with it, or with what close_lane() says: the host may hear in between why it
 * broke. Until an op completed, its memory may still be read (write) or written (read).
 *
 * Sleep. A transport never sleeps. shm peers ring the doorbell of the process; the others give file
 * descriptors to the engine through host->watch(). needs_epoll() tells the engine that a sleeping
 * waiter must sleep in epoll and not on the futex.
 */
#ifndef RDTI_TRANSPORT_H
#define RDTI_TRANSPORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/doorbell.h"
#include "base/list.h"
#include "rdmatensor.h"
#include "wire/limits.h"

struct rdti_lane; /* each transport's own struct begins with struct rdti_lane */

enum rdti_op_kind { RDTI_OP_WRITE = 1, RDTI_OP_READ = 2 };

/* What an op's bytes are, for the counters: see struct rdt_counters. */
enum rdti_traffic {
    RDTI_TRAFFIC_PLANNED = 0,
    RDTI_TRAFFIC_DYNAMIC,
    RDTI_TRAFFIC_CONTROL,
    RDTI_TRAFFIC_COUNT
};
#define RDTI_TRANSPORT_COUNT 4 /* indexed by RDT_TRANSPORT_*; entry 0 is none */

/*
 * One operation. The core allocates and fills it; from an accepted write()/read() to complete() it
 * belongs to the lane, which may use `link` and `scratch`. Blocks: `blocks` points to `block_count`
 * entries that live as long as the op, often the op's own `block`. len_bytes is their sum. For a
 * read the single block's src is the destination.
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
    bool has_ridden; /* the lane's answer: it went with another */
    /* What comes behind says that this one arrived. If it is refused later than by write(), and not
     * because the region is over, nothing behind it goes: the lane stops, and the host ends it. */
    bool is_relied_on;
    uint8_t traffic; /* enum rdti_traffic */
    /* Not 0: the peer keeps RDTI_FLAG_BYTES at flag_off of the region for this flag, and what lies
     * between the bytes and it, fewer than that, is nobody's. The lane may notify so. */
    uint32_t flag_sequence;
    uint64_t flag_off;
    uint64_t len_bytes;
    uint64_t scratch[7];
    /* [driver] or the thread inside write()/read(): at most once; must not call back into the
     * lane. */
    void (*complete)(struct rdti_op *op, rdt_status status, const struct rdt_error *err);
};

/*
 * Where the next notification of a kind may stand as a flag (wire/notify.h), written with the bytes
 * that it is for. Whoever owns it keeps it up to date, within on_notify(), and may take it out of
 * the lane's list at any time; the lane does so at its end. [driver]
 */
struct rdti_flag {
    struct rdti_list link;
    const _Atomic uint64_t *word; /* a device writes it */
    uint32_t sequence;            /* of the next one */
    uint32_t notification;        /* and what it stands for */
};

/* Why a file descriptor is watched. Level-triggered. [driver] */
typedef void (*rdti_watch_fn)(void *arg, uint32_t epoll_events);
struct rdti_watch; /* owned by the engine; freed by unwatch() */

/* A piece of our arena. */
struct rdti_memory {
    void *addr;
    uint64_t len_bytes;
    uint32_t segment;
};

/* An address range of ours that a peer may reach, checked and pinned; release it after the last
 * byte. */
struct rdti_target {
    void *addr;
    void *pin;             /* the region, opaque here */
    uint64_t region_bytes; /* of all of it */
};

/* What the core gives to transports. All functions are [driver] unless said otherwise. */
struct rdti_host {
    void *core; /* first argument of every call below */

    /* A notification arrived on the lane. May post writes on any lane. */
    void (*on_notify)(void *core, struct rdti_lane *lane, uint32_t notification);
    /* The lane broke: called once, from poll(), a watch, words_arrived() or fence(); close_lane()
     * follows later. */
    void (*on_error)(void *core, struct rdti_lane *lane, const struct rdt_error *err);
    /* The lane, asked by connect(), became usable. */
    void (*on_ready)(void *core, struct rdti_lane *lane);
    /* The lane's way to the peer is lost, and nothing else of it: whether another lane may take its
     * place. False: the lane breaks. NULL: it never may. */
    bool (*may_move)(void *core, const struct rdti_lane *lane);
    /*
     * Where it may, once, in place of on_error(): the lane is fenced. No byte of the peer's lands
     * over it any more and no read of ours, nothing is delivered, and so many notifications were.
     * write() and read() still queue. hand_over() or close_lane() follows. May be called from
     * fence().
     */
    void (*on_fenced)(void *core, struct rdti_lane *lane, uint64_t delivered,
                      const struct rdt_error *why);

    /*
     * Check that (index, generation) is a live exported region of ours and that the range lies in
     * it, and pin it.
     *   RDT_ESTALE  RDT_ERANGE  RDT_EPROTO (no such index)
     */
    rdt_status (*target_acquire)(void *core, uint32_t index, uint32_t generation,
                                 uint64_t off_bytes, uint64_t len_bytes, struct rdti_target *out,
                                 struct rdt_error *err);
    void (*target_release)(void *core, struct rdti_target *target);

    /* shm: ask the peer for the descriptor of a piece of its arena; segment_arrived() answers. Any
     * thread. */
    void (*request_segment)(void *core, struct rdti_lane *lane, uint32_t segment);

    /* Words to the other half of the lane, over the authenticated side channel and in order: the
     * peer's words_arrived() takes them. At most RDTI_LANE_WORDS_MAX_BYTES. Any thread. */
    void (*send_words)(void *core, struct rdti_lane *lane, const uint8_t *bytes,
                       uint32_t len_bytes);
    /*
     * The piece of our arena that holds [addr, addr + len_bytes), and the piece of a number. Any
     * thread.
     *   RDT_EINVAL none does, or there is none
     */
    rdt_status (*memory_find)(void *core, const void *addr, uint64_t len_bytes,
                              struct rdti_memory *out, struct rdt_error *err);
    rdt_status (*memory_segment)(void *core, uint32_t segment, struct rdti_memory *out,
                                 struct rdt_error *err);
    /*
     * The piece's pages are there when this returns, and stay where they are, so that a device may
     * know them. It takes as long as the pages that are missing. Any thread.
     *   RDT_ENOMEM they cannot all be had
     */
    rdt_status (*memory_keep)(void *core, uint32_t segment, struct rdt_error *err);

    rdt_status (*watch)(void *core, int fd, uint32_t epoll_events, rdti_watch_fn fn, void *arg,
                        struct rdti_watch **out, struct rdt_error *err);
    void (*rewatch)(void *core, struct rdti_watch *watch, uint32_t epoll_events); /* any thread */
    void (*unwatch)(void *core, struct rdti_watch *watch);

    /* Our own doorbell page (a memfd), our eventfd and the table of generations; immutable after
     * open. */
    int doorbell_fd;
    int event_fd;
    int generation_fd; /* memfd: uint32_t generation[], indexed by region index; grows, never
                          shrinks */
    struct rdti_counters_ref *counters; /* see rdti_count() below */
    uint32_t tcp_streams;
};

/* Counters that transports raise; relaxed atomics, read by rdt_context_counters(). */
struct rdti_counters_ref {
    /* Entry 0 of the first: within this process. */
    _Atomic uint64_t moved_bytes[RDTI_TRANSPORT_COUNT][RDTI_TRAFFIC_COUNT];
    _Atomic uint64_t fallback_bytes;
    _Atomic uint64_t copied_bytes[RDTI_TRAFFIC_COUNT];
    _Atomic uint64_t wakeups_sent;
    _Atomic uint64_t wire_bytes;
    _Atomic uint64_t notifications;
    _Atomic uint64_t registered_bytes; /* with devices */
    _Atomic uint64_t registration_ns;  /* in their calls, deregistering included */
};

static inline void
rdti_count(_Atomic uint64_t *counter, uint64_t n)
{
    /* relaxed: a statistic, ordered with nothing */
    (void)atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

#define RDTI_OFFER_MAX_FDS 4

/* What one side tells the other about its half of a lane, over the authenticated side channel. */
struct rdti_offer {
    uint8_t bytes[RDTI_OFFER_MAX_BYTES];
    uint32_t len_bytes;
    uint32_t fd_count; /* only where the side channel is a Unix socket */
    int fds[RDTI_OFFER_MAX_FDS];
};

#define RDTI_SESSION_KEY_BYTES 32

struct rdti_lane_args {
    bool is_connector; /* this side opened the side channel */
    int32_t peer_rank; /* for messages */
    bool is_loopback;  /* the peer is reached over 127/8 or ::1 */
    /* The address at which the peer listens; connector only. */
    const void *peer_sockaddr;
    uint32_t peer_sockaddr_bytes;
    uint8_t session_id[RDTI_SESSION_ID_BYTES];   /* names the endpoint in JOIN messages */
    uint8_t session_key[RDTI_SESSION_KEY_BYTES]; /* known to both sides only */
    uint64_t deadline_ns;                        /* of the lane's set-up */
};

/* Head of every lane. The core reads it and sets `owner`; the transport sets the rest before
 * make_offer() returns. */
struct rdti_lane {
    const struct rdti_transport *transport;
    void *owner;      /* the endpoint */
    bool is_fallback; /* a better path was to be had, and failed; the core sets it before any op */
};

/* Facts that do not change after open(). */
struct rdti_transport_caps {
    bool can_map;            /* map() works */
    bool target_checks;      /* a stale generation is refused at the target; else quarantine needs
                                acknowledgement */
    bool is_same_host;       /* only between processes that share memory */
    uint32_t arrival_passes; /* of poll() that take all that one peer may have written; 0: 16 */
    uint64_t
        eager_max_bytes; /* above it a receive is cheaper than a copy: where rendezvous begins */
};

struct rdti_transport {
    const char *name; /* "shm" */
    uint32_t id;      /* RDT_TRANSPORT_* */
    struct rdti_transport_caps caps;

    /* Once per context, before any lane. RDT_ENOTVIABLE with a reason where it cannot work here. */
    rdt_status (*open)(const struct rdti_host *host, void **state_out, struct rdt_error *err);
    void (*close)(void *state); /* after the last lane */

    /* [driver] Allocate our half of a lane and describe it. The offer's fds stay the lane's. */
    rdt_status (*make_offer)(void *state, const struct rdti_lane_args *args, struct rdti_lane **out,
                             struct rdti_offer *offer, struct rdt_error *err);
    /*
     * [driver] The peer's half has arrived. Takes over its fds in every case. Afterwards the peer
     * may write to us, and write() may be called; host->on_ready() follows, at once or later.
     *   RDT_EPROTO (the offer is malformed)  RDT_ENOTVIABLE (it cannot be reached, because ...)
     */
    rdt_status (*connect)(struct rdti_lane *lane, struct rdti_offer *peer, struct rdt_error *err);
    /* [driver] A socket that the listener accepted and whose JOIN was verified; taken over.
     * RDT_EPROTO: there is no such place, or it is taken; it is closed, and the lane goes on. Any
     * other error ends the lane. tcp only, else NULL. */
    rdt_status (*add_stream)(struct rdti_lane *lane, int fd, uint32_t index, struct rdt_error *err);
    /* [driver] An answer to request_segment(): the descriptor is taken over. shm only, else
     * NULL. */
    void (*segment_arrived)(struct rdti_lane *lane, uint32_t segment, int fd, uint64_t len_bytes);

    /* [driver] What the peer's half sent by send_words(). RDT_EPROTO: it makes no sense. verbs
     * only, else NULL. */
    rdt_status (*words_arrived)(struct rdti_lane *lane, const uint8_t *bytes, uint32_t len_bytes,
                                struct rdt_error *err);
    /*
     * [driver] The peer freed a region: from now on ops on it are refused. Called again until it
     * returns true: no access of ours to it is in flight. verbs only; NULL: every access is over
     * when write() and read() have returned.
     */
    bool (*revoke)(struct rdti_lane *lane, uint32_t index, uint32_t generation);
    /* [driver] Look for this flag too, in every poll(). verbs only, else NULL. */
    void (*watch_flag)(struct rdti_lane *lane, struct rdti_flag *flag);
    /*
     * A region of ours is out of quarantine. True: no device reaches it any more. False: then(arg)
     * is called once none does, by a thread that holds no lock, and before close() has returned.
     * Any thread, no lock held but perhaps the engine's. verbs only, else NULL.
     */
    bool (*forget_region)(void *state, uint32_t index, uint32_t generation, void (*then)(void *arg),
                          void *arg);

    /*
     * Start an op. Never blocks: what cannot go now is queued by the lane.
     *   RDT_ERANGE, RDT_ESTALE  refused here; the op is not accepted and complete() is not called
     *   any other error         the lane's first error
     */
    rdt_status (*write)(struct rdti_lane *lane, struct rdti_op *op, struct rdt_error *err);
    rdt_status (*read)(struct rdti_lane *lane, struct rdti_op *op, struct rdt_error *err);

    /*
     * [driver] Look at every lane: take arrivals, deliver notifications, push queued ops. Bounded
     * work per call. Returns how much was done; 0 lets the caller consider sleep.
     */
    uint32_t (*poll)(void *state);
    /*
     * [driver] Before a pass after which the engine may sleep: what arrives from now on, and what
     * the poll() that follows does not find, must make a watched descriptor readable. NULL: the
     * descriptors do so always.
     */
    void (*arm)(void *state);
    /* Whether arrivals are signalled by file descriptors while any lane is open. */
    bool (*needs_epoll)(void *state);

    /* The remote region in our address space, or RDT_EAGAIN after asking for the segment. NULL:
     * RDT_ENOTSUP. */
    rdt_status (*map)(struct rdti_lane *lane, const struct rdt_remote_region *remote, void **out,
                      struct rdt_error *err);
    /* After a seq_cst store into memory that map() gave: wake the peer if it sleeps. Any thread, as
     * long as the lane is there, failed or not. NULL where map is. */
    void (*ring)(struct rdti_lane *lane);
    /* [driver] The peer has lost the way: treat it as lost. False: the lane cannot be moved, or it
     * broke. verbs only, else NULL. */
    bool (*fence)(struct rdti_lane *lane, const struct rdt_error *why);
    /*
     * [driver] After on_fenced(), nobody inside write() or read(): end the lane, and give what it
     * did not complete, in order, to take(): an op, or (op NULL) the notification of one that is
     * complete and that the peer did not deliver. What the peer delivered, by its count, and the
     * writes before it are completed with RDT_OK. close_lane() follows.
     *   RDT_EPROTO  the count cannot be; nothing was done
     */
    rdt_status (*hand_over)(struct rdti_lane *lane, uint64_t delivered,
                            void (*take)(void *arg, struct rdti_op *op, uint32_t notify), void *arg,
                            struct rdt_error *err);
    /* One line about the lane for describe(): device, addresses, streams. */
    void (*explain)(const struct rdti_lane *lane, char *buf, size_t cap);
    /* Whether any op is in flight or queued. Any thread. */
    bool (*is_idle)(struct rdti_lane *lane);
    /*
     * [driver] Complete what is left with `err`, refuse every later op and deliver nothing more;
     * what map() gave stays mapped until close_lane(), which follows. NULL where map is.
     */
    void (*fail_lane)(struct rdti_lane *lane, const struct rdt_error *err);
    /* [driver] Complete what is left with `err` (RDT_ECLOSED, RDT_EPEER ...) and free the lane. */
    void (*close_lane)(struct rdti_lane *lane, const struct rdt_error *err);
};

/* The bytes of an op of the lane are in place. */
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
