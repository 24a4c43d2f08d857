/* SPDX-License-Identifier: Apache-2.0
 * Inside the verbs transport: one lane is some QPs to one peer, over one link or several.
 *
 *   lib.c       libibverbs at run time           settings.c  the environment
 *   nic.c       ports of devices, their events   gid.c       which pair of ports and GIDs
 *   mr.c        our memory, registered           keys.c      the peer's memory: its rkeys
 *   qp.c        QPs and their states             link.c      proving a link, round by round
 *   tx.c        write() and read(), posting      cq.c        completions, notifications, restocking
 *   ends.c      the first error, teardown        lane.c      offers, words, close
 *   table.c     the table of operations, the pass over all lanes
 *
 * A *link* is one port of ours paired with one of the peer's. All QPs of all proved links are the
 * lane's QPs, in an order both sides know. The steps of an op (its chunks) go round them; a message
 * with a notification is one immediate on every QP, on its last step there, so that the receiver
 * delivers it when it has counted one on each: RC keeps the order of one QP, and the count that of
 * all.
 *
 * An op:
 *   state     may the NIC touch its memory?   leaves by
 *   QUEUED    no                              its turn, room in the send queues, the peer's key and
 *                                             window -> POSTING; its region freed -> refused
 *   POSTING   yes                             its last step is posted -> POSTED
 *   POSTED    yes                             the last of its work requests completed -> complete()
 *   any       until the QPs are destroyed     the lane's first error or close_lane() -> complete()
 *
 * Who may touch what. "driver": only with the engine's lock. "lock": only with lane->lock, which is
 * held while work requests are posted, because the order of write() is the order on the QPs, and
 * never while the host or an op's complete() is called. Order: engine, lane->lock, verbs->mr_lock.
 */
#ifndef RDTI_VERBS_VERBS_H
#define RDTI_VERBS_VERBS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "transport/transport.h"
#include "transport/verbs/settings.h"
#include "transport/verbs/verbs_ops.h"
#include "wire/verbs.h"

/* Work requests of one QP that may be outstanding: at 92 ns a WQE a NIC empties it in 24 us, more
 * than a pass of the engine takes. A device with less gets what it has. */
#define RDTI_VERBS_SQ_DEPTH 256
/* Of them kept for restocking messages, so that data cannot keep the peer from being told. */
#define RDTI_VERBS_SQ_RESERVE 4
/* Messages with a notification that a peer may have on the way: what one pass can take. Receives
 * beyond it are for restocking messages, of which no more than 2 can be unseen: one for each half
 * of the window. */
#define RDTI_VERBS_WINDOW 256
#define RDTI_VERBS_RQ_RESERVE 8
/* In attributes that set none: zero is no value of its type. */
#define RDTI_VERBS_NO_MTU .path_mtu = IBV_MTU_256
/* Immediates of one QP that may wait for the other QPs': all that a peer within its window sends. A
 * power of two: the ring's ends count on past 2^32. */
#define RDTI_VERBS_IMMS 512
_Static_assert(RDTI_VERBS_IMMS >= RDTI_VERBS_WINDOW + RDTI_VERBS_RQ_RESERVE &&
                   (RDTI_VERBS_IMMS & (RDTI_VERBS_IMMS - 1)) == 0,
               "the ring holds a window, and wraps where its counters do");
/* Work requests in one call of ibv_post_send; the last of each chain is signaled. */
#define RDTI_VERBS_CHAIN 16
/* Of one poll of a CQ. */
#define RDTI_VERBS_WCS 32
/* Asked for; the device says what it gives. A credit, a flag and most control messages fit. */
#define RDTI_VERBS_INLINE_BYTES 64
/* A message of this many bytes for each QP and more goes over all of them. */
#define RDTI_VERBS_STRIPE_MIN_BYTES (UINT64_C(64) << 10)
/* Memory that is not registered goes through pieces that are; 16 cover what a link holds. */
#define RDTI_VERBS_STAGE_BYTES (UINT64_C(64) << 10)
#define RDTI_VERBS_STAGE_PIECES 16
/* A copy of 64 KiB takes 7 us, a rendezvous a round trip and a READ. */
#define RDTI_VERBS_EAGER_MAX_BYTES (UINT64_C(64) << 10)
/* Reads that one QP asks a device to have open; most devices have 16. */
#define RDTI_VERBS_READS 16

/* 4.096 us * 2^17 = 0.54 s a try: with 6 retries a cable may be out for 3 s and more. Never 7: rxe
 * then tries for ever, and a cable that stays out is no error (tests/c/transport/verbs_trace_test.c
 * saw no completion within a minute on kernel 6.12). */
#define RDTI_VERBS_TIMEOUT 17
#define RDTI_VERBS_RETRY 6
/* Receives are restocked ahead of the window, so that RNR does not occur; if it does, it ends: 7
 * would be for ever. 0.64 ms between two tries. */
#define RDTI_VERBS_RNR_RETRY 6
#define RDTI_VERBS_RNR_TIMER 12
#define RDTI_VERBS_HOP_LIMIT 64

/* All pairs of GIDs of a link have so long together, each the same part: the core gives a path five
 * seconds. One round takes an emulated machine 100 ms, and a lost packet another half second. */
#define RDTI_VERBS_PROOF_NS UINT64_C(4000000000)
#define RDTI_VERBS_PAIRS_MAX 4
/* Teardown waits so long for flushed completions, which only serve the count in the message. */
#define RDTI_VERBS_DRAIN_NS UINT64_C(20000000)

struct rdti_verbs_lane;
struct rdti_verbs_link;

enum { RDTI_VERBS_COUNTERS = 4 };

/* One port of one device, open while its context is. */
struct rdti_verbs_nic {
    struct rdti_verbs *verbs;
    char name[64];
    uint8_t port;
    bool is_infiniband;
    uint8_t mtu; /* enum ibv_mtu */
    uint16_t lid;
    uint16_t pkey_index;
    uint8_t reads_in;
    uint8_t reads_out;
    uint32_t sq_depth;
    uint32_t rq_depth;
    uint64_t max_msg_bytes;
    uint64_t max_mr_bytes;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct rdti_watch *channel_watch;
    struct rdti_watch *async_watch;
    struct rdti_verbs_gid gids[RDTI_VERBS_GIDS_MAX]; /* best first */
    uint32_t gid_scores[RDTI_VERBS_GIDS_MAX];
    uint8_t gid_count;
    char event[96];                        /* driver: the last asynchronous one; "": none */
    int64_t counters[RDTI_VERBS_COUNTERS]; /* at open; negative: the device has none */
};

/* Registered memory of ours. */
struct rdti_verbs_memory {
    struct rdti_list link;
    uint8_t *addr;
    uint64_t len_bytes;
    uint32_t segment; /* RDT_SEGMENT_NONE: a region, by index and generation */
    uint32_t index;
    uint32_t generation;
    struct ibv_mr *mrs[RDTI_VERBS_PORTS_MAX][2]; /* by nic; peers write [0] and read [1] */
};

struct rdti_verbs {
    const struct rdti_host *host;
    const struct rdti_verbs_ops *ops;
    struct rdti_verbs_settings settings;
    struct rdti_verbs_nic nics[RDTI_VERBS_PORTS_MAX];
    uint32_t nic_count;
    struct rdti_list lanes;      /* driver */
    bool is_polling;             /* driver */
    bool has_closed;             /* driver: a lane of the list is closed, and to be freed */
    _Atomic uint32_t lane_count; /* relaxed: a hint that the engine's lock orders */
    char skipped[256];           /* ports that are not used, and why */
    pthread_mutex_t mr_lock;
    struct rdti_list memories; /* mr_lock; entries stay until close, regions until forgotten */
};

/* What one work request in the send queue is for. */
struct rdti_verbs_record {
    struct rdti_op *op;  /* NULL: restocking */
    int32_t piece;       /* of the stage, or -1 */
    uint32_t copy_bytes; /* READ into the stage: copied to copy_to when it is here */
    void *copy_to;
};

struct rdti_verbs_qp {
    struct rdti_verbs_link *link;
    struct ibv_qp *qp;
    uint32_t psn;
    uint32_t inline_bytes;
    /* lock */
    uint64_t tx_posted; /* work requests, chain included */
    uint64_t tx_done;
    uint32_t chain_count;
    struct ibv_send_wr chain[RDTI_VERBS_CHAIN];
    struct ibv_sge sges[RDTI_VERBS_CHAIN];
    struct rdti_verbs_record records[RDTI_VERBS_SQ_DEPTH];
    /* driver */
    uint64_t rx_posted;
    uint64_t rx_taken;
    uint32_t imm_first; /* the ring is [imm_first, imm_end) */
    uint32_t imm_end;
    uint32_t imms[RDTI_VERBS_IMMS]; /* not delivered yet */
};

enum rdti_verbs_link_state {
    RDTI_VERBS_LINK_PROVING = 0,
    RDTI_VERBS_LINK_GOOD = 1,
    RDTI_VERBS_LINK_DROPPED = 2
};

/* One pair of GIDs: indices into the two offers' tables. */
struct rdti_verbs_pair {
    uint8_t own;
    uint8_t peer;
    uint32_t score;
};

struct rdti_verbs_link {
    struct rdti_verbs_lane *lane;
    struct rdti_verbs_nic *nic;
    uint32_t nic_index;
    struct ibv_cq *cq;
    bool is_armed; /* driver */
    struct rdti_verbs_qp *qps[RDTI_VERBS_QPS_MAX];
    uint32_t qp_count;
    /* Once paired; driver. */
    uint32_t number;    /* the same on both sides */
    uint32_t peer_port; /* in the peer's offer */
    enum rdti_verbs_link_state state;
    uint32_t round;
    uint32_t pair_count;
    struct rdti_verbs_pair pairs[RDTI_VERBS_PAIRS_MAX];
    bool is_peer_ready;
    bool is_probe_posted;
    uint8_t own_verdict;  /* 0, RDTI_VERBS_LINK_PROVED or _FAILED, of this round */
    uint8_t peer_verdict; /* the same */
    uint64_t proof_deadline_ns;
    char pair_text[128]; /* of the round: GIDs, for people */
    char why[96];        /* the last round failed */
};

enum rdti_verbs_phase { RDTI_VERBS_SETUP = 0, RDTI_VERBS_READY = 1, RDTI_VERBS_FAILED = 2 };

enum rdti_verbs_key_state {
    RDTI_VERBS_KEY_ASKED = 1,
    RDTI_VERBS_KEY_HERE = 2,
    RDTI_VERBS_KEY_NONE = 3
};

/* Memory of the peer's, for one kind of access. */
struct rdti_verbs_remote {
    struct rdti_list link;
    uint8_t state;  /* enum rdti_verbs_key_state */
    uint8_t access; /* RDTI_VERBS_MAY_* */
    uint32_t segment;
    uint32_t index;
    uint32_t generation;
    uint64_t base;
    uint64_t len_bytes;
    uint32_t rkeys[RDTI_VERBS_PORTS_MAX]; /* by the peer's ports */
};

/* Indices of op->scratch. */
enum {
    RDTI_VERBS_OP_STEP = 0,  /* the next */
    RDTI_VERBS_OP_STEPS = 1, /* of the whole op */
    RDTI_VERBS_OP_BLOCK = 2, /* where the next step begins */
    RDTI_VERBS_OP_OFF = 3,
    RDTI_VERBS_OP_OPEN = 4, /* work requests posted and not complete */
    RDTI_VERBS_OP_CHUNK = 5 /* bytes of a step at most; | RDTI_VERBS_OP_STAGED */
};
#define RDTI_VERBS_OP_STAGED (UINT64_C(1) << 63)

struct rdti_verbs_lane {
    struct rdti_lane base; /* first */
    struct rdti_verbs *verbs;
    struct rdti_list node; /* driver: in verbs->lanes */
    struct rdti_lane_args args;
    struct rdti_verbs_offer own;
    struct rdti_verbs_offer peer;
    struct rdti_verbs_link links[RDTI_VERBS_PORTS_MAX]; /* by nic until they are paired */
    uint32_t link_count;
    struct rdti_verbs_qp *qps[RDTI_VERBS_PORTS_MAX * RDTI_VERBS_QPS_MAX]; /* once READY */
    uint32_t qp_count;
    uint32_t inline_bytes;     /* that every QP takes in the request itself */
    uint64_t max_chunk_bytes;  /* no work request is longer */
    _Atomic uint32_t phase;    /* written under lock by the driver; release, acquire */
    bool is_connected;         /* driver */
    bool is_closed;            /* driver */
    _Atomic uint64_t ops_open; /* accepted and not completed; acq_rel, is_idle() acquires */
    const char *why_no_flag;   /* driver: RDMATENSOR_VERBS_NOTIFY asked for one; else NULL */
    uint64_t rx_messages;      /* driver */
    uint32_t rx_owed;          /* driver: delivered, and not told of */
    uint32_t flushed;          /* driver: completions of the kind that only follows an error */
    _Atomic bool owes_restock; /* driver sets and pushes; relaxed: a hint to itself */
    _Atomic bool is_tx_broken; /* set under lock with tx_errno; relaxed: a hint to the driver */

    pthread_mutex_t lock;
    /* lock */
    struct rdt_error error; /* the first, once FAILED */
    int tx_errno;           /* posting failed with it; the driver makes the error of it */
    struct rdti_list ops;   /* not complete, in order */
    struct rdti_op *cursor; /* the next to post; NULL: none */
    uint64_t tx_messages;   /* notifications posted */
    uint64_t tx_window;     /* and how many may be */
    struct rdti_list remotes;
    struct rdti_verbs_remote *last_remote;
    uint32_t *stale; /* by region index: the newest generation that is over */
    uint32_t stale_count;
    uint8_t *stage;                                 /* NULL until it is needed */
    struct ibv_mr *stage_mrs[RDTI_VERBS_PORTS_MAX]; /* by nic */
    uint32_t stage_free;                            /* bit i: piece i */
    struct rdti_verbs_words asked[4];               /* keys to ask for once the lock is given up */
    uint32_t asked_count;
};

static inline enum rdti_verbs_phase
rdti_verbs_phase_of(const struct rdti_verbs_lane *lane)
{
    /* acquire: pairs with the release when the driver changes it */
    return (enum rdti_verbs_phase)atomic_load_explicit(&lane->phase, memory_order_acquire);
}

/* wr_id: what kind of work request it was, and which of its QP. */
enum { RDTI_VERBS_WR_TX = 1, RDTI_VERBS_WR_RX = 2, RDTI_VERBS_WR_PROBE = 3 };

static inline uint64_t
rdti_verbs_wr_id(uint32_t kind, uint32_t qp_index, uint64_t sequence)
{
    return (uint64_t)kind << 56 | (uint64_t)qp_index << 48 | (sequence & UINT64_C(0xffffffffffff));
}

/* ---- nic.c */
/* RDT_ENOTVIABLE with every port and its reason where none is left. */
rdt_status rdti_verbs_open_nics(struct rdti_verbs *verbs, struct rdt_error *err);
void rdti_verbs_close_nics(struct rdti_verbs *verbs);
/* "retries 3, out of sequence 0, ..." since the context was opened. */
void rdti_verbs_explain_counters(const struct rdti_verbs_nic *nic, char *buf, size_t cap);

/* ---- gid.c */
/* Fill gids, best first. RDT_ENOTVIABLE where the port has none that will do. */
rdt_status rdti_verbs_find_gids(struct rdti_verbs_nic *nic, uint32_t table_count,
                                struct rdt_error *err);
/* Pair the lane's links with the peer's ports; the best pairs of GIDs of each. Unpaired links are
 * destroyed. RDT_ENOTVIABLE: no two can meet. */
rdt_status rdti_verbs_pair_links(struct rdti_verbs_lane *lane, struct rdt_error *err);
void rdti_verbs_gid_text(const uint8_t raw[16], char *buf, size_t cap);

/* ---- mr.c */
/* The lkey of a port for bytes of ours. False: they are not in the arena, or cannot be registered.
 */
bool rdti_verbs_own_key(struct rdti_verbs *verbs, const void *addr, uint64_t len_bytes,
                        uint32_t nic, uint32_t *lkey_out);
/* Answer a peer's KEY_GET. [driver] RDT_EPROTO, RDT_ESTALE, RDT_ENOMEM (with memlock's lines). */
rdt_status rdti_verbs_grant(struct rdti_verbs *verbs, const struct rdti_verbs_words *get,
                            struct rdti_verbs_words *out, struct rdt_error *err);
void rdti_verbs_forget_region(void *state, uint32_t index, uint32_t generation);
void rdti_verbs_free_memories(struct rdti_verbs *verbs);
/* Whether so much can be locked in memory at all. RDT_ENOMEM with the lines that change it. */
rdt_status rdti_verbs_check_memlock(uint64_t len_bytes, struct rdt_error *err);
rdt_status rdti_verbs_register(struct rdti_verbs_nic *nic, void *addr, uint64_t len_bytes,
                               unsigned int access, struct ibv_mr **out, struct rdt_error *err);

/* ---- keys.c: all under lock but words */
/* RDT_OK with *out (NULL: wait for the peer's answer), RDT_ESTALE, RDT_ERANGE. */
rdt_status rdti_verbs_find_remote(struct rdti_verbs_lane *lane, const struct rdti_op *op,
                                  struct rdti_verbs_remote **out, struct rdt_error *err);
rdt_status rdti_verbs_check_stale(const struct rdti_verbs_lane *lane, const struct rdti_op *op,
                                  struct rdt_error *err);
bool rdti_verbs_mark_stale(struct rdti_verbs_lane *lane, uint32_t index, uint32_t generation);
/* KEY and KEY_REFUSED. RDT_EPROTO. */
rdt_status rdti_verbs_take_key(struct rdti_verbs_lane *lane, const struct rdti_verbs_words *words,
                               struct rdt_error *err);
void rdti_verbs_free_remotes(struct rdti_verbs_lane *lane);
/* Send what `asked` holds. Lock not held, any thread. */
void rdti_verbs_ask(struct rdti_verbs_lane *lane, const struct rdti_verbs_words *asked,
                    uint32_t count);

/* ---- qp.c */
/* A link on a port with its CQ and QPs in RESET. All or nothing. */
rdt_status rdti_verbs_create_link(struct rdti_verbs_lane *lane, struct rdti_verbs_nic *nic,
                                  uint32_t nic_index, struct rdti_verbs_link *link,
                                  struct rdt_error *err);
void rdti_verbs_destroy_link(struct rdti_verbs_link *link);
/* RESET, INIT, RTR, RTS by the round's pair, receives posted. [driver] */
rdt_status rdti_verbs_raise_link(struct rdti_verbs_link *link, struct rdt_error *err);
/* Post receives up to the full depth. [driver] */
rdt_status rdti_verbs_restock(struct rdti_verbs_qp *qp, struct rdt_error *err);
/* Our table's entry for a work request, of the link's QPs; NULL: there is none. */
struct rdti_verbs_qp *rdti_verbs_qp_of(const struct rdti_verbs_link *link, uint64_t wr_id);

/* ---- link.c [driver] */
/* Begin the first round of every link. */
rdt_status rdti_verbs_begin_proof(struct rdti_verbs_lane *lane, struct rdt_error *err);
rdt_status rdti_verbs_take_link_word(struct rdti_verbs_lane *lane,
                                     const struct rdti_verbs_words *words, struct rdt_error *err);
/* The probe's completion. */
void rdti_verbs_probe_done(struct rdti_verbs_link *link, const struct ibv_wc *wc);
/* Deadlines of proofs. */
void rdti_verbs_watch_proof(struct rdti_verbs_lane *lane);

/* ---- table.c [driver] */
/* Free lanes that are closed. No pass runs. */
void rdti_verbs_sweep(struct rdti_verbs *verbs);

/* ---- tx.c */
rdt_status rdti_verbs_write(struct rdti_lane *base, struct rdti_op *op, struct rdt_error *err);
rdt_status rdti_verbs_read(struct rdti_lane *base, struct rdti_op *op, struct rdt_error *err);
/* Post what can go; ops that were refused are completed. Returns work requests posted. Any thread,
 * lock not held. */
uint32_t rdti_verbs_push(struct rdti_verbs_lane *lane);
/* Tell the peer of receives that are free again. [driver] */
void rdti_verbs_send_restocked(struct rdti_verbs_lane *lane);

/* ---- cq.c [driver] */
/* Completions of all links; returns how many. */
uint32_t rdti_verbs_poll_lane(struct rdti_verbs_lane *lane);
/* Arm every CQ that is not armed. */
void rdti_verbs_arm_lane(struct rdti_verbs_lane *lane);
void rdti_verbs_on_channel(void *arg, uint32_t epoll_events);
/* Deliver what has been counted on every QP. */
uint32_t rdti_verbs_deliver(struct rdti_verbs_lane *lane);

/* ---- ends.c [driver] */
/* End the lane: QPs destroyed, all ops complete with *err. Once; later calls do nothing. */
void rdti_verbs_teardown(struct rdti_verbs_lane *lane, const struct rdt_error *err);
/* teardown, and the host is told. */
void rdti_verbs_fail(struct rdti_verbs_lane *lane, const struct rdt_error *err);
/* The error of a completion: device, peer, GIDs, status, vendor code, what to try. */
void rdti_verbs_fail_completion(struct rdti_verbs_link *link, const struct ibv_wc *wc);
void rdti_verbs_complete_all(struct rdti_verbs_lane *lane, struct rdti_list *ops, rdt_status status,
                             const struct rdt_error *err);
void rdti_verbs_free_lane(struct rdti_verbs_lane *lane);

/* ---- lane.c */
rdt_status rdti_verbs_make_offer(void *state, const struct rdti_lane_args *args,
                                 struct rdti_lane **out, struct rdti_offer *offer,
                                 struct rdt_error *err);
rdt_status rdti_verbs_connect(struct rdti_lane *base, struct rdti_offer *peer,
                              struct rdt_error *err);
rdt_status rdti_verbs_words_arrived(struct rdti_lane *base, const uint8_t *bytes,
                                    uint32_t len_bytes, struct rdt_error *err);
void rdti_verbs_send_words(struct rdti_verbs_lane *lane, const struct rdti_verbs_words *words);
void rdti_verbs_explain(const struct rdti_lane *base, char *buf, size_t cap);
bool rdti_verbs_is_idle(struct rdti_lane *base);
bool rdti_verbs_revoke(struct rdti_lane *base, uint32_t index, uint32_t generation);
void rdti_verbs_close_lane(struct rdti_lane *base, const struct rdt_error *err);

#endif
