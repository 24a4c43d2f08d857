/* SPDX-License-Identifier: Apache-2.0
 * Inside the verbs transport: one lane is some QPs to one peer, over one link or several.
 *
 *   lib.c       libibverbs at run time           settings.c  the environment
 *   nic.c       ports of devices, their events   gid.c       which pair of ports and GIDs
 *   mr.c        our memory, registered           keys.c      the peer's memory: its rkeys
 *   registrar.c the same, where it takes long: a thread
 *   qp.c        QPs and their states             link.c      proving a link, round by round
 *   tx.c        write() and read(), whose turn   cq.c        completions, notifications, restocking
 *   post.c      work requests onto QPs
 *   ends.c      the first error, teardown        lane.c      offers, words, close
 *   down.c      a link that breaks, the others   events.c    ports that go down, change, or are
 *               go on                                        removed with their device
 *   lost.c      the last link breaks: what is
 *               left goes to another lane
 *   leftover.c  what a device refuses to destroy   flag.c   notifications as words in memory
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
 *   any       until the QPs are destroyed     close_lane(), also after the lane's first error ->
 *                                             complete(); hand_over() -> the core's, or complete()
 *
 * A link of a lane that is READY and has several:
 *   state     posts?  completions            leaves by
 *   GOOD      yes     all count              its first error, or the peer's DOWN -> DRAINING; where
 *                                            no other link is GOOD the lane is lost: it ends, or
 *                                            all its links drain and it is handed over (lost.c)
 *   DRAINING  no      those that succeeded   its QPs are in ERR and have given back all they had,
 *                                            or destroyed where they do not go there, after what
 *                                            the CQ held: DOWN is said, with the immediates
 *                                            received on each QP -> TOLD; nothing that comes later
 *                                            is looked at
 *   TOLD      no      none                   the peer's DOWN -> settled -> DOWN
 *   DOWN      no      none                   never: a link does not come back
 *
 * A sender holds its lane back from the break of a link until it is settled. Settled is what each
 * QP of the link held: up to the peer's last immediate everything is in place (RC keeps the order)
 * and done with, also where the device had no answer. What was posted later is uncertain and sent
 * again over the first QP that is left: as plain writes (which do no harm twice: the ops are not
 * complete, and no message of theirs is delivered), as reads, and our own immediates as they were.
 * A message that is half posted is finished, the dead QPs' steps over the same QP and without
 * immediates. Then one SETTLED immediate on that QP says that nothing is missing from the link: the
 * receiver, which until then wants an immediate of each message from the dead QPs too, now does
 * without them. What is posted behind it is striped over what is left. The two directions of a link
 * are settled apart. If the QP that carries this breaks as well, its link is settled the same way.
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
#include "transport/verbs/limits.h"
#include "transport/verbs/settings.h"
#include "transport/verbs/verbs_ops.h"
#include "wire/verbs.h"

struct rdti_verbs_lane;
struct rdti_verbs_link;

enum { RDTI_VERBS_COUNTERS = 5 };

/* One port of one device, open while its context is. */
struct rdti_verbs_nic {
    struct rdti_verbs *verbs;
    char name[64];
    uint8_t port;
    bool is_infiniband;
    uint8_t mtu; /* enum ibv_mtu */
    uint16_t lid;
    uint32_t pkey_table_count;
    uint8_t reads_in, reads_out;
    uint8_t segments; /* of one request that we post; a flag needs a second */
    uint32_t sq_depth, rq_depth;
    uint64_t max_msg_bytes;
    uint64_t max_mr_bytes;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct rdti_watch *channel_watch;
    struct rdti_watch *async_watch;
    struct rdti_verbs_gid gids[RDTI_VERBS_GIDS_MAX]; /* best first */
    uint32_t gid_scores[RDTI_VERBS_GIDS_MAX];
    uint32_t score; /* how good its best address is, before any peer is known */
    uint8_t gid_count;
    uint32_t gid_table_count;
    char event[96];             /* driver: the last asynchronous one; "": none */
    uint64_t down_since_ns;     /* driver: the port reported so; 0: it is up */
    bool is_gone;               /* the device failed as a whole; set by the driver under mr_lock */
    pthread_mutex_t left_lock;  /* of the list below; taken behind every other lock */
    struct rdti_list leftovers; /* left_lock: objects that could not be destroyed */
    int64_t counters[RDTI_VERBS_COUNTERS]; /* at open; negative: the device has none */
};

/* What a registration is for: what peers may do, and whether in order. */
enum {
    RDTI_VERBS_KIND_WRITE = 0,
    RDTI_VERBS_KIND_READ = 1,
    RDTI_VERBS_KIND_STRICT = 2, /* to write, bytes and a flag behind them */
    RDTI_VERBS_KINDS = 3
};

/* Memory of ours that is registered, or about to be. What takes long is the registrar's, without a
 * lock; whoever needs it waits (registrar.c). Kinds are sets: bit `kind`. */
struct rdti_verbs_memory {
    struct rdti_list link;
    uint8_t *addr;
    uint64_t len_bytes;
    uint32_t segment; /* RDT_SEGMENT_NONE: a region, by index and generation */
    uint32_t index;
    uint32_t generation;
    uint32_t made;                                              /* kinds whose mrs stand */
    uint32_t wanted;                                            /* the registrar is to make them */
    uint32_t failed;                                            /* it could not: `error` */
    struct ibv_mr *mrs[RDTI_VERBS_KINDS][RDTI_VERBS_PORTS_MAX]; /* by nic */
    bool is_source;                                             /* an op of ours waits for it */
    bool is_busy; /* the registrar is at it just now, and nobody else may free it */
    bool is_over; /* out of the table: the registrar ends it, and calls then() */
    void (*then)(void *arg);
    void *then_arg;
    struct rdti_list job; /* in verbs->jobs, or ends */
    struct rdt_error error;
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
    int flag_timer_fd;           /* ends naps; -1: nobody asked for flags */
    bool is_flag_timer_set;      /* driver */
    struct rdti_watch *flag_watch;
    char skipped[256]; /* ports that are not used, and why */
    pthread_mutex_t mr_lock;
    uint64_t own_retry_ns;        /* mr_lock: our own sources are not registered before */
    _Atomic uint64_t staged_ops;  /* that were to go without a copy; relaxed: a statistic */
    struct rdt_error own_failure; /* mr_lock: the last time that registering one failed */
    struct rdti_list memories;    /* mr_lock; entries stay until close, regions until forgotten */
    pthread_t registrar;
    bool has_registrar;        /* mr_lock: from the first piece that takes long */
    bool is_registrar_leaving; /* mr_lock */
    pthread_cond_t job_cond;   /* mr_lock: jobs, or is_registrar_leaving */
    struct rdti_list jobs;     /* mr_lock: memory that it is to register */
    struct rdti_list ends;     /* mr_lock: memory that it is to end, which comes first */
    _Atomic bool has_news;     /* it has done one; release, the driver acquires */
    struct rdti_list wishes;   /* driver */
};

struct rdti_verbs_remote;

/* One work request in the send queue: what it is for, and all that it takes to post it again. */
struct rdti_verbs_record {
    struct rdti_op *op;                   /* NULL: an immediate of our own */
    uint32_t rkeys[RDTI_VERBS_PORTS_MAX]; /* a copy: keys of older generations go */
    void *local; /* the op's memory, also where a piece of the stage stands in for it */
    uint64_t remote_addr;
    uint64_t imms; /* posted on its QP before it */
    uint32_t len_bytes;
    uint32_t imm;  /* or the sequence of a flag */
    int32_t piece; /* of the stage, or -1 */
    bool has_imm;
    bool is_read;
    uint8_t tail_bytes; /* what a flag adds behind them; 0: there is none */
};

struct rdti_verbs_qp {
    struct rdti_verbs_link *link;
    uint32_t index;    /* of the link's */
    struct ibv_qp *qp; /* driver: NULL once it was destroyed because of stop_errno */
    uint32_t psn;
    uint32_t inline_bytes;
    /* lock */
    uint64_t tx_posted; /* work requests, chain included */
    uint64_t tx_done;
    uint64_t tx_given; /* the device took them: fewer than posted once a call failed */
    uint64_t tx_imms;  /* of those posted */
    uint32_t chain_count;
    struct ibv_send_wr chain[RDTI_VERBS_CHAIN];
    struct ibv_sge sges[RDTI_VERBS_CHAIN][2]; /* the bytes; a flag */
    struct rdti_verbs_record records[RDTI_VERBS_SQ_DEPTH];
    /* driver */
    uint64_t rx_posted;
    uint64_t rx_taken;
    uint64_t tx_flushed; /* all before it have ended, the last of them flushed */
    bool is_rx_flushed;  /* no receive succeeds any more */
    int stop_errno;      /* it did not go to ERR, and is to be destroyed */
    int wc_status;       /* its first of its own, not flushed: enum ibv_wc_status; 0: none */
    uint32_t vendor_err; /* with it */
    uint32_t imm_first;  /* the ring is [imm_first, imm_end) */
    uint32_t imm_end;
    uint32_t imms[RDTI_VERBS_IMMS]; /* not delivered yet */
};

enum rdti_verbs_link_state {
    RDTI_VERBS_LINK_PROVING = 0,
    RDTI_VERBS_LINK_GOOD = 1,
    RDTI_VERBS_LINK_DROPPED = 2,
    RDTI_VERBS_LINK_DRAINING = 3,
    RDTI_VERBS_LINK_TOLD = 4,
    RDTI_VERBS_LINK_IS_DOWN = 5
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
    uint32_t port_index; /* in our offer */
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
    uint32_t probes_left; /* bit q: that of QP q was not answered yet */
    uint8_t own_verdict;  /* 0, RDTI_VERBS_LINK_PROVED or _FAILED, of this round */
    uint8_t peer_verdict; /* the same */
    uint64_t proof_deadline_ns;
    uint16_t pkey;       /* agreed; 0: what stands first in the port's table */
    uint16_t pkey_index; /* its place in the port's table */
    char pair_text[128]; /* of the round: GIDs, for people */
    char why[96];        /* the last round failed */
    /* Once it broke; driver. */
    struct rdt_error error;
    uint64_t down_deadline_ns; /* of the state */
    bool had_last_call;        /* it was put off once: this process may have stood still */
    bool is_peer_told;
    uint64_t peer_received[RDTI_VERBS_QPS_MAX]; /* immediates, of ours */
    bool is_rx_out; /* the peer's SETTLED came: messages do without it */
    /* lock */
    bool is_tx_out; /* nothing is posted there any more */
    bool owes_mark; /* settled, and SETTLED is not posted yet */
    int tx_errno;   /* posting failed with it; the driver makes the error of it */
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
    uint8_t state;   /* enum rdti_verbs_key_state */
    uint8_t access;  /* RDTI_VERBS_MAY_* */
    uint8_t refusal; /* KEY_NONE: enum rdti_verbs_refusal */
    uint32_t segment;
    uint32_t index; /* of the region that it was asked for; a piece serves others too */
    uint32_t generation;
    uint64_t base; /* KEY_NONE: what the refusal says */
    uint64_t len_bytes;
    uint32_t rkeys[RDTI_VERBS_PORTS_MAX]; /* by the peer's ports */
};

/* Indices of op->scratch. */
enum {
    RDTI_VERBS_OP_STEP = 0,  /* the next */
    RDTI_VERBS_OP_STEPS = 1, /* of the whole op */
    RDTI_VERBS_OP_BLOCK = 2, /* where the next step begins */
    RDTI_VERBS_OP_OFF = 3,
    RDTI_VERBS_OP_OPEN = 4,   /* work requests posted and not complete */
    RDTI_VERBS_OP_CHUNK = 5,  /* bytes of a step at most; | RDTI_VERBS_OP_STAGED or _FLAGGED */
    RDTI_VERBS_OP_MESSAGE = 6 /* the how manieth of the lane, once begun; 0: it is none */
};
#define RDTI_VERBS_OP_STAGED (UINT64_C(1) << 63)
#define RDTI_VERBS_OP_FLAGGED (UINT64_C(1) << 62)

struct rdti_verbs_lane {
    struct rdti_lane base; /* first */
    struct rdti_verbs *verbs;
    struct rdti_list node; /* driver: in verbs->lanes */
    struct rdti_lane_args args;
    struct rdti_verbs_offer own;
    struct rdti_verbs_offer peer;
    struct rdti_verbs_link links[RDTI_VERBS_PORTS_MAX]; /* by nic until they are paired */
    uint32_t link_count;
    uint32_t port_nics[RDTI_VERBS_PORTS_MAX]; /* of our offer's ports: which of verbs->nics */
    struct rdti_verbs_qp *qps[RDTI_VERBS_PORTS_MAX * RDTI_VERBS_QPS_MAX]; /* once READY; all */
    uint32_t qp_count;
    uint64_t max_chunk_bytes;  /* no work request is longer */
    uint32_t inline_bytes;     /* every QP takes so many */
    _Atomic uint32_t phase;    /* written under lock by the driver; release, acquire */
    bool is_connected;         /* driver */
    bool is_closed;            /* driver */
    _Atomic uint64_t ops_open; /* accepted and not completed; acq_rel, is_idle() acquires */
    bool is_in_order;          /* driver: the device promises to write in order, also in part */
    const char *why_no_flag;   /* driver: the peer was told of none, though we are to; else NULL */
    uint8_t rx_flags;          /* driver: RDTI_VERBS_FLAGS_*, as the peer was told; 0: none */
    uint8_t peer_flags;        /* driver: the same of the peer */
    struct rdti_list flags;    /* driver: those that we look for */
    uint64_t rx_flagged;       /* driver: messages that came so */
    uint64_t rx_messages;      /* driver */
    uint32_t rx_owed;          /* driver: delivered, and not told of */
    uint32_t flushed;          /* driver: requests of ours that an error before them ended */
    bool is_lost;              /* driver: no link is left, and another lane may take its place */
    bool is_fenced;            /* driver: and the core was told */
    bool had_broken;           /* driver: a link had broken before it was lost */
    struct rdt_error loss;     /* driver: how it was lost */
    _Atomic bool owes_restock; /* driver sets and pushes; relaxed: a hint to itself */
    /* The last pump left something that waits for room, a window or a key. Set under lock: who
     * makes room under it and then looks sees it, or the pump saw the room. relaxed */
    _Atomic bool has_queued;
    _Atomic bool has_riders; /* ops that wait for another, or a pass; set under lock, seq_cst */
    _Atomic bool
        is_tx_broken; /* set under lock with a link's tx_errno; relaxed: a hint to the driver */

    pthread_mutex_t lock;
    /* lock */
    struct rdt_error error; /* the first, once FAILED */
    struct rdti_list ops;   /* not complete, in order */
    struct rdti_op *cursor; /* the next to post; NULL: none */
    struct rdti_verbs_qp
        *tx_qps[RDTI_VERBS_PORTS_MAX * RDTI_VERBS_QPS_MAX]; /* of the cursor's op */
    uint32_t tx_count;
    uint32_t marks_owed;             /* links that are settled, whose SETTLED is not posted */
    bool is_held;                    /* a link is broken and not settled: nothing goes */
    bool is_stopped;                 /* for good: an op that others rely on was refused */
    struct rdti_verbs_record *again; /* [again_next, again_count) is to be sent again */
    uint32_t again_next;
    uint32_t again_count;
    uint32_t again_cap;
    uint64_t tx_messages;               /* notifications posted, flags not counted */
    uint32_t tx_notes[RDTI_VERBS_IMMS]; /* what they were: those within the window */
    uint64_t tx_window;                 /* and how many may be */
    uint8_t tx_flags;                   /* RDTI_VERBS_FLAGS_* that may be used; 0: none */
    bool is_tx_plain;                   /* bytes were written behind the last immediate */
    uint8_t *tails; /* one of each request in the send queue; NULL until there are flags */
    struct rdti_verbs_nic *tails_nic;
    struct ibv_mr *tails_mr;
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
/* The place of a partition in the port's table. RDT_ENOTVIABLE: it has none. */
rdt_status rdti_verbs_find_pkey(struct rdti_verbs_nic *nic, uint16_t pkey, uint16_t *index_out,
                                struct rdt_error *err);
/* "retries 3, out of sequence 0, ..." since the context was opened; "": the device has none. */
void rdti_verbs_explain_counters(const struct rdti_verbs_nic *nic, char *buf, size_t cap);

/* ---- events.c [driver] */
/* Watches: the device's events, and completions; either may say that the device was removed. */
void rdti_verbs_on_async(void *arg, uint32_t epoll_events);
void rdti_verbs_on_channel(void *arg, uint32_t epoll_events);
/* Links whose port has been down for longer than their QPs try. */
void rdti_verbs_watch_ports(struct rdti_verbs_lane *lane);

/* ---- mr.c */
/* The lkey of a port for bytes of ours. RDT_EAGAIN: it takes a while, and every lane is pushed
 * then; RDT_EINVAL: they are not in the arena, or cannot be registered. */
rdt_status rdti_verbs_own_key(struct rdti_verbs *verbs, const void *addr, uint64_t len_bytes,
                              uint32_t nic, uint32_t *lkey_out);
/* What describe() says of sources that could not be registered; "": nothing. */
void rdti_verbs_explain_stage(struct rdti_verbs *verbs, char *buf, size_t cap);
/* Answer a peer's KEY_GET: *out is KEY, or KEY_REFUSED with an error that says why. [driver]
 * RDT_EAGAIN (there is no answer yet), RDT_EPROTO (there is none: no such region was ever there),
 * RDT_ESTALE, RDT_ENOMEM (with memlock's lines), RDT_EDEVICE. */
rdt_status rdti_verbs_grant(struct rdti_verbs *verbs, const struct rdti_verbs_words *get,
                            struct rdti_verbs_words *out, struct rdt_error *err);
/* The answer to KEY_GET where registering so many bytes failed. */
void rdti_verbs_refuse_key(const struct rdti_verbs_words *get, uint64_t len_bytes,
                           const struct rdt_error *err, struct rdti_verbs_words *out);
bool rdti_verbs_forget_region(void *state, uint32_t index, uint32_t generation,
                              void (*then)(void *arg), void *arg);
/* Whether a peer's request means the entry, for one of these kinds. */
bool rdti_verbs_is_requested(const struct rdti_verbs_memory *memory,
                             const struct rdti_verbs_words *get, uint32_t kinds);
/* Registered for one kind, on `nics` (a set), in mrs that are NULL: all or nothing. mr_lock is held
 * or, by the registrar, not. */
rdt_status rdti_verbs_register_kind(struct rdti_verbs *verbs,
                                    const struct rdti_verbs_memory *memory, uint32_t kind,
                                    uint32_t nics, struct ibv_mr *mrs[RDTI_VERBS_PORTS_MAX],
                                    struct rdt_error *err);
/* Those that are there, as a set. mr_lock is held. */
uint32_t rdti_verbs_nics_left(const struct rdti_verbs *verbs);
/* Out of the table, deregistered, gone. The registrar is not at it. */
void rdti_verbs_free_memory(struct rdti_verbs *verbs, struct rdti_verbs_memory *memory);
/* The last try to register a source failed. mr_lock is held. */
void rdti_verbs_note_unregistered(struct rdti_verbs *verbs, const struct rdt_error *why);
void rdti_verbs_free_memories(struct rdti_verbs *verbs);
/* Whether so much can be locked in memory at all. RDT_ENOMEM with the lines that change it. */
rdt_status rdti_verbs_check_memlock(uint64_t len_bytes, struct rdt_error *err);
/* Lock is held. A place, registered on every port, for bytes of memory that is not. */
rdt_status rdti_verbs_make_stage(struct rdti_verbs_lane *lane, struct rdt_error *err);
/* What is kept the caller counts. */
rdt_status rdti_verbs_register(struct rdti_verbs_nic *nic, void *addr, uint64_t len_bytes,
                               unsigned int access, struct ibv_mr **out, struct rdt_error *err);

/* ---- leftover.c: destroying what a device may refuse to give back */
/* NULL is nothing. What fails is logged and kept on the port's list; any thread. */
void rdti_verbs_deregister(struct rdti_verbs_nic *nic, struct ibv_mr *mr);
void rdti_verbs_destroy_qp(struct rdti_verbs_nic *nic, struct ibv_qp *qp);
void rdti_verbs_destroy_cq(struct rdti_verbs_nic *nic, struct ibv_cq *cq);
/* Once more, before the device is closed: the kernel ends what it still refuses. */
void rdti_verbs_free_leftovers(struct rdti_verbs_nic *nic);

/* ---- keys.c: all under lock but words */
/* The key that the op needs, and whether it goes with a flag. RDT_OK with *out (NULL: wait for the
 * peer's answer), RDT_ESTALE, RDT_ERANGE. */
rdt_status rdti_verbs_find_key(struct rdti_verbs_lane *lane, const struct rdti_op *op,
                               bool *has_flag, struct rdti_verbs_remote **out,
                               struct rdt_error *err);
/* The key for a write, where it is that which was used last; NULL: find_key() knows more. */
const struct rdti_verbs_remote *rdti_verbs_known_key(const struct rdti_verbs_lane *lane,
                                                     const struct rdti_op *op);
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
/* For how long a request is tried before it fails, at least. */
uint64_t rdti_verbs_retry_window_ns(const struct rdti_verbs_lane *lane);
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
/* The table's write() and read(). */
rdt_status rdti_verbs_start(struct rdti_lane *base, struct rdti_op *op, struct rdt_error *err);
/* Post what can go; ops that were refused are completed. Returns work requests posted. Any thread,
 * lock not held. */
uint32_t rdti_verbs_push(struct rdti_verbs_lane *lane);
/* What one record stands for is over: its piece is free, its op may be. Lock is held; ops that are
 * over go to *done. */
void rdti_verbs_retire(struct rdti_verbs_lane *lane, const struct rdti_verbs_record *record,
                       struct rdti_list *done);
/* Tell the peer of receives that are free again. [driver] */
void rdti_verbs_send_restocked(struct rdti_verbs_lane *lane);

/* ---- flag.c */
/* What naps need, if flags may be asked for. */
rdt_status rdti_verbs_open_flags(struct rdti_verbs *verbs, struct rdt_error *err);
void rdti_verbs_close_flags(struct rdti_verbs *verbs);
/* [driver] The lane is READY: tell the peer whether we look for flags, or ourselves why not. */
void rdti_verbs_agree_flags(struct rdti_verbs_lane *lane);
/* [driver] The peer's FLAGS. RDT_EPROTO. */
rdt_status rdti_verbs_take_flags_word(struct rdti_verbs_lane *lane,
                                      const struct rdti_verbs_words *words, struct rdt_error *err);
/* [driver] The table's watch_flag(). */
void rdti_verbs_watch_flag(struct rdti_lane *base, struct rdti_flag *flag);
/* [driver] A flag that came and has its turn. */
bool rdti_verbs_take_flag(struct rdti_verbs_lane *lane, uint32_t *value_out);
/* [driver] No sleep from here on is longer than a nap, if there are flags to look for. */
void rdti_verbs_arm_flags(struct rdti_verbs *verbs);
/* Lock is held. Whether the op's notification may go as a flag; does, once it is cut. */
bool rdti_verbs_may_flag(const struct rdti_verbs_lane *lane, const struct rdti_op *op);
/* Lock is held. The flag behind the bytes of the QP's last request. */
void rdti_verbs_attach_flag(struct rdti_verbs_qp *qp, const struct rdti_verbs_record *record,
                            struct ibv_send_wr *wr);
/* [driver] At the lane's end: nothing is looked for. */
void rdti_verbs_forget_flags(struct rdti_verbs_lane *lane);
void rdti_verbs_free_tails(struct rdti_verbs_lane *lane);
/* "flag", "imm (no flag: ...)" and what is between. */
void rdti_verbs_explain_notify(const struct rdti_verbs_lane *lane, char *buf, size_t cap);

/* ---- cq.c [driver] */
/* Completions of one link; returns how many, 0: it holds none. */
uint32_t rdti_verbs_poll_link(struct rdti_verbs_link *link);
/* Those of all links. */
uint32_t rdti_verbs_poll_lane(struct rdti_verbs_lane *lane);
/* Arm every CQ that is not armed. */
void rdti_verbs_arm_lane(struct rdti_verbs_lane *lane);
/* This CQ has given its one event. */
void rdti_verbs_disarm(struct rdti_verbs *verbs, const struct ibv_cq *cq);
/* Deliver what has been counted on every QP. */
uint32_t rdti_verbs_deliver(struct rdti_verbs_lane *lane);

/* ---- ends.c [driver] */
/* End the lane: QPs destroyed, its ops in *ops. False: it has ended before. */
bool rdti_verbs_stop_lane(struct rdti_verbs_lane *lane, const struct rdt_error *err,
                          struct rdti_list *ops);
/* The same, and all ops complete with *err; so do those that fail() left. */
void rdti_verbs_teardown(struct rdti_verbs_lane *lane, const struct rdt_error *err);
/* stop_lane, and the host is told, whose close_lane() completes the ops. */
void rdti_verbs_fail(struct rdti_verbs_lane *lane, const struct rdt_error *err);
/* The error of a completion: device, peer, GIDs, status, vendor code, what to try. It breaks the
 * link, or, where a request itself was wrong, ends the lane. */
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
/* [driver] What came of KEY_GET: a key, or why there is none. */
void rdti_verbs_send_key(struct rdti_verbs_lane *lane, struct rdti_verbs_words *key,
                         rdt_status status, const struct rdt_error *err);
void rdti_verbs_send_words(struct rdti_verbs_lane *lane, const struct rdti_verbs_words *words);
void rdti_verbs_explain(const struct rdti_lane *base, char *buf, size_t cap);
bool rdti_verbs_is_idle(struct rdti_lane *base);
bool rdti_verbs_revoke(struct rdti_lane *base, uint32_t index, uint32_t generation);
void rdti_verbs_close_lane(struct rdti_lane *base, const struct rdt_error *err);

#endif
