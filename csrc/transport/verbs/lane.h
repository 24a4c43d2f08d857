/* SPDX-License-Identifier: Apache-2.0
 * Inside the verbs transport: one lane is some QPs to one peer, over one link or several.
 *
 *   device/     ports of devices                memory/    registered memory, own keys
 *   pair.c      the pair of ports and GIDs      link.c     verifying a link, round by round
 *   qp.c        QPs and their states            keys.c     the peer's memory: its rkeys
 *   tx.c        write() and read(), their order cq.c       completions, notifications, restocking
 *   post.c      work requests onto QPs          flag.c     notifications as words in memory
 *   lane.c      offers, words, close            lane_state.c  what all files do to a lane
 *   ends.c      the end of a lane               completion_error.c  a failed completion
 *   down.c      a link breaks, the others       events.c   ports that go down, change, or are
 *               continue                                   removed with their device
 *   lost.c      the last link breaks: the rest  wish.c     peers' requests for keys
 *               moves to another lane           table.c    the table of operations, the pass
 *
 * A *link* is one port of this side paired with one of the peer's. All QPs of all verified links
 * are the lane's QPs, in an order that both sides know. The steps of an op (its chunks) are posted
 * round robin. A message with a notification is one immediate on every QP, on its last step there,
 * and the receiver delivers it when it has counted one on each: RC keeps the order within a QP, the
 * count that of all.
 *
 * An op:
 *   state     may the NIC touch its memory?   leaves by
 *   QUEUED    no                              is next, room in the send queues, the peer's key and
 *                                             window -> POSTING; its region freed -> refused
 *   POSTING   yes                             its last step is posted -> POSTED
 *   POSTED    yes                             the last of its work requests completed -> complete()
 *   any       until the QPs are destroyed     close_lane(), also after the lane's first error ->
 *                                             complete(); hand_over() -> the core's, or complete()
 *
 * A link of a lane that is READY and has several:
 *   state     posts?  completions            leaves by
 *   GOOD      yes     all count              its first error, or the peer's DOWN -> DRAINING; if no
 *                                            other link is GOOD the lane is lost: it ends, or all
 *                                            its links drain and it is handed over (lost.c)
 *   DRAINING  no      those that succeeded   its QPs are in ERR and have returned all requests, or
 *                                            are destroyed, after the CQ was emptied, if they do
 *                                            not go there: sends DOWN, with the immediates received
 *                                            on each QP -> TOLD; later arrivals are ignored
 *   TOLD      no      none                   the peer's DOWN -> settled -> DOWN
 *   DOWN      no      none                   never: a link does not come back
 *
 * A sender holds its lane from the break of a link until the link is settled. Settling handles the
 * requests of each QP of the link. Up to the peer's last immediate everything is in place (RC keeps
 * the order) and complete, also if the device did not answer. Later requests are uncertain, and are
 * sent again over the first remaining QP: as plain writes (harmless if repeated: the ops are not
 * complete, and none of their messages is delivered), as reads, and the lane's own immediates
 * unchanged. A half-posted message is finished, with the dead QPs' steps on the same QP and without
 * immediates. Then one SETTLED immediate on that QP reports that nothing is missing from the link:
 * until then the receiver expects an immediate of each message also from the dead QPs. Later
 * requests are striped over the remaining QPs. The two directions of a link are settled separately.
 * If the QP that carries this breaks, too, its link is settled the same way.
 *
 * Access rules. "driver": only with the engine's lock. "lock": only with lane->lock, which is held
 * while work requests are posted, because the order of write() is the order on the QPs, and never
 * while the host or an op's complete() is called. Order: engine, lane->lock, verbs->mr_lock.
 */
#ifndef RDTI_VERBS_LANE_H
#define RDTI_VERBS_LANE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "transport/transport.h"
#include "transport/verbs/device/device.h"
#include "transport/verbs/link.h"
#include "wire/endpoint/verbs.h"

struct rdti_verbs_lane;
struct rdti_verbs_remote; /* keys.h */

enum rdti_verbs_phase { RDTI_VERBS_SETUP = 0, RDTI_VERBS_READY = 1, RDTI_VERBS_FAILED = 2 };

/* Indices of op->scratch. */
enum {
    RDTI_VERBS_OP_STEP = 0,  /* the next */
    RDTI_VERBS_OP_STEPS = 1, /* of the whole op */
    RDTI_VERBS_OP_BLOCK = 2, /* where the next step begins */
    RDTI_VERBS_OP_OFF = 3,
    RDTI_VERBS_OP_OPEN = 4,   /* work requests posted and not complete */
    RDTI_VERBS_OP_CHUNK = 5,  /* maximum bytes of a step; | RDTI_VERBS_OP_STAGED or _FLAGGED */
    RDTI_VERBS_OP_MESSAGE = 6 /* number of its message on the lane, after it began; 0: none */
};
#define RDTI_VERBS_OP_STAGED (UINT64_C(1) << 63)
#define RDTI_VERBS_OP_FLAGGED (UINT64_C(1) << 62)

struct rdti_verbs_lane {
    struct rdti_lane base; /* first */
    struct rdti_verbs *verbs;
    uint32_t (*deliver)(struct rdti_verbs_lane *lane); /* driver: rdti_verbs_deliver() */
    struct rdti_list node;                             /* driver: in verbs->lanes */
    struct rdti_lane_args args;
    struct rdti_verbs_offer own;
    struct rdti_verbs_offer peer;
    struct rdti_verbs_link links[RDTI_VERBS_PORTS_MAX]; /* by nic until they are paired */
    uint32_t link_count;
    uint32_t port_nics[RDTI_VERBS_PORTS_MAX]; /* by this offer's ports: index in verbs->nics */
    struct rdti_verbs_qp *qps[RDTI_VERBS_PORTS_MAX * RDTI_VERBS_QPS_MAX]; /* all; when READY */
    uint32_t qp_count;
    uint64_t max_chunk_bytes;  /* maximum of a work request */
    uint32_t inline_bytes;     /* every QP accepts this many */
    _Atomic uint32_t phase;    /* written under lock by the driver; release, acquire */
    bool is_connected;         /* driver */
    bool is_closed;            /* driver */
    _Atomic uint64_t ops_open; /* accepted and not completed; acq_rel, is_idle() acquires */
    bool is_in_order;          /* driver: the device guarantees (partly) ordered writes */
    const char *why_no_flag;   /* driver: why no FLAGS were sent though enabled; else NULL */
    uint8_t rx_flags;          /* driver: RDTI_VERBS_FLAGS_*, as sent to the peer; 0: none */
    uint8_t peer_flags;        /* driver: as received from the peer */
    struct rdti_list flags;    /* driver: the flags to poll */
    uint64_t rx_flagged;       /* driver: messages that arrived as flags */
    uint64_t rx_messages;      /* driver */
    uint32_t rx_owed;          /* driver: delivered, but not in a RESTOCKED yet */
    uint32_t flushed;          /* driver: requests that an earlier error ended */
    bool is_lost;              /* driver: no link is left, and another lane may replace this one */
    bool is_fenced;            /* driver: and on_fenced() was called */
    bool had_broken;           /* driver: a link had broken before it was lost */
    struct rdt_error loss;     /* driver: why it was lost */
    _Atomic bool owes_restock; /* driver sets and pushes; relaxed: a hint to itself */
    /* The last pump left ops that wait for room, a window or a key. Set under lock: a thread that
     * makes room under it and then checks sees it, or the pump saw the room. relaxed */
    _Atomic bool has_queued;
    _Atomic bool has_riders; /* ops wait for another op or a pass; set under lock, seq_cst */
    _Atomic bool
        is_tx_broken; /* set under lock with a link's tx_errno; relaxed: a hint to the driver */

    pthread_mutex_t lock;
    /* lock */
    struct rdt_error error; /* the first, after FAILED */
    struct rdti_list ops;   /* not complete, in order */
    struct rdti_op *cursor; /* the next to post; NULL: none */
    struct rdti_verbs_qp
        *tx_qps[RDTI_VERBS_PORTS_MAX * RDTI_VERBS_QPS_MAX]; /* of the cursor's op */
    uint32_t tx_count;
    uint32_t marks_owed;             /* settled links whose SETTLED is not posted */
    bool is_held;                    /* a link is broken and not settled: nothing is posted */
    bool is_stopped;                 /* permanently: an op that others rely on was refused */
    struct rdti_verbs_record *again; /* [again_next, again_count) has to be sent again */
    uint32_t again_next;
    uint32_t again_count;
    uint32_t again_cap;
    uint64_t tx_messages;               /* notifications posted, without flags */
    uint32_t tx_notes[RDTI_VERBS_IMMS]; /* their values: of those within the window */
    uint64_t tx_window;                 /* how many may be posted */
    uint8_t tx_flags;                   /* RDTI_VERBS_FLAGS_* that may be used; 0: none */
    bool is_tx_plain;                   /* bytes were written after the last immediate */
    uint8_t *tails; /* one for each request in the send queue; NULL until flags are used */
    struct rdti_verbs_nic *tails_nic;
    struct ibv_mr *tails_mr;
    struct rdti_list remotes;
    struct rdti_verbs_remote *last_remote;
    uint32_t *stale; /* by region index: the newest generation that has ended */
    uint32_t stale_count;
    uint8_t *stage;                                 /* NULL until it is needed */
    struct ibv_mr *stage_mrs[RDTI_VERBS_PORTS_MAX]; /* by nic */
    uint32_t stage_free;                            /* bit i: piece i */
    struct rdti_verbs_words asked[4];               /* keys to request after the lock is released */
    uint32_t asked_count;
};

static inline enum rdti_verbs_phase
rdti_verbs_phase_of(const struct rdti_verbs_lane *lane)
{
    /* acquire: pairs with the release when the driver changes it */
    return (enum rdti_verbs_phase)atomic_load_explicit(&lane->phase, memory_order_acquire);
}

/* ---- lane_state.c */
void rdti_verbs_send_words(struct rdti_verbs_lane *lane, const struct rdti_verbs_words *words);
/* Completes the ops of a list. [driver] */
void rdti_verbs_complete_all(struct rdti_verbs_lane *lane, struct rdti_list *ops, rdt_status status,
                             const struct rdt_error *err);
/* The request of one record has ended: frees its piece, and moves ops that are complete to *done.
 * Lock is held. */
void rdti_verbs_retire(struct rdti_verbs_lane *lane, const struct rdti_verbs_record *record,
                       struct rdti_list *done);
/* Counts a completion if it is a flushed request. [driver] */
void rdti_verbs_count_flush(struct rdti_verbs_lane *lane, const struct ibv_wc *wc);
/* A completion with an error, of a link that drains. */
__attribute__((cold)) void rdti_verbs_note_flush(struct rdti_verbs_link *link,
                                                 const struct ibv_wc *wc);
/* Keeps the first error of a QP that is not a flush, for describe(). */
void rdti_verbs_keep_error(struct rdti_verbs_qp *qp, const struct ibv_wc *wc);
/* This CQ has given its one event. */
void rdti_verbs_disarm(struct rdti_verbs *verbs, const struct ibv_cq *cq);

/* ---- events.c [driver] */
/* Watches: the device's events, and completions; either may report that the device was removed. */
void rdti_verbs_on_async(void *arg, uint32_t epoll_events);
void rdti_verbs_on_channel(void *arg, uint32_t epoll_events);
/* Breaks links whose port has been down for longer than their QPs retry. */
void rdti_verbs_watch_ports(struct rdti_verbs_lane *lane);

/* ---- tx.c */
/* The table's write() and read(). */
rdt_status rdti_verbs_start(struct rdti_lane *base, struct rdti_op *op, struct rdt_error *err);
/* Post what can be posted, and complete refused ops. Returns the work requests posted. Any thread,
 * lock not held. */
uint32_t rdti_verbs_push(struct rdti_verbs_lane *lane);
/* Send RESTOCKED for receives that are posted again. [driver] */
void rdti_verbs_send_restocked(struct rdti_verbs_lane *lane);

/* ---- cq.c [driver] */
/* Take completions of one link; returns their number, 0: it has none. */
uint32_t rdti_verbs_poll_link(struct rdti_verbs_link *link);
/* The same of all links. */
uint32_t rdti_verbs_poll_lane(struct rdti_verbs_lane *lane);
/* Arm every CQ that is not armed. */
void rdti_verbs_arm_lane(struct rdti_verbs_lane *lane);
/* Deliver messages that have arrived on every QP. */
uint32_t rdti_verbs_deliver(struct rdti_verbs_lane *lane);

/* ---- completion_error.c [driver] */
/* Reports a failed completion: device, peer, GIDs, status, vendor code, remedy. It breaks the link,
 * or ends the lane if the request itself was wrong. */
void rdti_verbs_fail_completion(struct rdti_verbs_link *link, const struct ibv_wc *wc);

/* ---- ends.c [driver] */
/* End the lane: destroys its QPs, moves its ops to *ops. False: it has already ended. */
bool rdti_verbs_stop_lane(struct rdti_verbs_lane *lane, const struct rdt_error *err,
                          struct rdti_list *ops);
/* The same, and completes all ops with *err, also those that fail() left. */
void rdti_verbs_teardown(struct rdti_verbs_lane *lane, const struct rdt_error *err);
/* stop_lane, and host->on_error(); the host's close_lane() completes the ops. */
void rdti_verbs_fail(struct rdti_verbs_lane *lane, const struct rdt_error *err);
/* Free closed lanes. No pass is running. */
void rdti_verbs_sweep(struct rdti_verbs *verbs);
void rdti_verbs_free_lane(struct rdti_verbs_lane *lane);

/* ---- lane.c */
rdt_status rdti_verbs_make_offer(void *state, const struct rdti_lane_args *args,
                                 struct rdti_lane **out, struct rdti_offer *offer,
                                 struct rdt_error *err);
rdt_status rdti_verbs_connect(struct rdti_lane *base, struct rdti_offer *peer,
                              struct rdt_error *err);
rdt_status rdti_verbs_words_arrived(struct rdti_lane *base, const uint8_t *bytes,
                                    uint32_t len_bytes, struct rdt_error *err);
void rdti_verbs_explain(const struct rdti_lane *base, char *buf, size_t cap);
bool rdti_verbs_is_idle(struct rdti_lane *base);
bool rdti_verbs_revoke(struct rdti_lane *base, uint32_t index, uint32_t generation);
void rdti_verbs_close_lane(struct rdti_lane *base, const struct rdt_error *err);

#endif
