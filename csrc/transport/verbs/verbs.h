/* SPDX-License-Identifier: Apache-2.0
 * Inside the verbs transport: one lane is some QPs to one peer, over one link or several.
 *
 *   lib.c       libibverbs at run time           settings.c  the environment
 *   nic.c       ports of devices, their events   gid.c       the pair of ports and GIDs
 *   mr.c        own registered memory            keys.c      the peer's memory: its rkeys
 *   registrar.c registering large memory in a thread
 *   qp.c        QPs and their states             link.c      verifying a link, round by round
 *   tx.c        write() and read(), their order  cq.c        completions, notifications, restocking
 *   post.c      work requests onto QPs
 *   ends.c      the first error, teardown        lane.c      offers, words, close
 *   down.c      a link breaks, the others        events.c    ports that go down, change, or are
 *               continue                                     removed with their device
 *   lost.c      the last link breaks: the rest
 *               moves to another lane
 *   leftover.c  objects that a device does not destroy   flag.c   notifications as words in memory
 *   table.c     the table of operations, the pass over all lanes
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
    uint8_t segments; /* SGEs per send request; a flag needs a second */
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
    uint32_t score; /* of its best address, before any peer is known */
    uint8_t gid_count;
    uint32_t gid_table_count;
    char event[96];             /* driver: the last asynchronous one; "": none */
    uint64_t down_since_ns;     /* driver: the port reported it; 0: the port is up */
    bool is_gone;               /* the device failed as a whole; set by the driver under mr_lock */
    pthread_mutex_t left_lock;  /* of the list below; taken after every other lock */
    struct rdti_list leftovers; /* left_lock: objects that could not be destroyed */
    int64_t counters[RDTI_VERBS_COUNTERS]; /* at open; negative: the device has none */
};

/* The purpose of a registration: the access of peers, and whether it is ordered. */
enum {
    RDTI_VERBS_KIND_WRITE = 0,
    RDTI_VERBS_KIND_READ = 1,
    RDTI_VERBS_KIND_STRICT = 2, /* to write bytes followed by a flag */
    RDTI_VERBS_KINDS = 3
};

/* Memory of this process that is registered, or about to be. The registrar handles large memory
 * without a lock, and ops wait for it (registrar.c). Kinds are sets: bit `kind`. */
struct rdti_verbs_memory {
    struct rdti_list link;
    uint8_t *addr;
    uint64_t len_bytes;
    uint32_t segment; /* RDT_SEGMENT_NONE: a region, by index and generation */
    uint32_t index;
    uint32_t generation;
    uint32_t made;                                              /* kinds that are registered */
    uint32_t wanted;                                            /* kinds for the registrar */
    uint32_t failed;                                            /* kinds that failed: `error` */
    struct ibv_mr *mrs[RDTI_VERBS_KINDS][RDTI_VERBS_PORTS_MAX]; /* by nic */
    bool is_source;                                             /* an op waits for it as a source */
    bool is_busy; /* the registrar works on it, and only the registrar may free it */
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
    int flag_timer_fd;           /* ends naps; -1: flags are not requested */
    bool is_flag_timer_set;      /* driver */
    struct rdti_watch *flag_watch;
    char skipped[256]; /* unused ports, with reasons */
    pthread_mutex_t mr_lock;
    uint64_t own_retry_ns;        /* mr_lock: sources are not registered before this time */
    _Atomic uint64_t staged_ops;  /* ops copied for lack of a registration; relaxed: a statistic */
    struct rdt_error own_failure; /* mr_lock: the last failure to register a source */
    struct rdti_list memories;    /* mr_lock; entries stay until close, regions until forgotten */
    pthread_t registrar;
    bool has_registrar;        /* mr_lock: from the first large memory on */
    bool is_registrar_leaving; /* mr_lock */
    pthread_cond_t job_cond;   /* mr_lock: jobs, or is_registrar_leaving */
    struct rdti_list jobs;     /* mr_lock: memory to register */
    struct rdti_list ends;     /* mr_lock: memory to end, before jobs */
    _Atomic bool has_news;     /* the registrar finished one; release, the driver acquires */
    struct rdti_list wishes;   /* driver */
};

struct rdti_verbs_remote;

/* One work request in the send queue: its purpose, and all that is needed to post it again. */
struct rdti_verbs_record {
    struct rdti_op *op;                   /* NULL: an immediate of the lane itself */
    uint32_t rkeys[RDTI_VERBS_PORTS_MAX]; /* a copy: keys of older generations are freed */
    void *local; /* the op's memory, also if a piece of the stage replaces it */
    uint64_t remote_addr;
    uint64_t imms; /* immediates posted on its QP before it */
    uint32_t len_bytes;
    uint32_t imm;  /* or the sequence of a flag */
    int32_t piece; /* of the stage, or -1 */
    bool has_imm;
    bool is_read;
    uint8_t tail_bytes; /* bytes that a flag adds after them; 0: no flag */
};

struct rdti_verbs_qp {
    struct rdti_verbs_link *link;
    uint32_t index;    /* within the link */
    struct ibv_qp *qp; /* driver: NULL after it was destroyed because of stop_errno */
    uint32_t psn;
    uint32_t inline_bytes;
    /* lock */
    uint64_t tx_posted; /* work requests, including the chain */
    uint64_t tx_done;
    uint64_t tx_given; /* accepted by the device: fewer than posted after a call failed */
    uint64_t tx_imms;  /* immediates among those posted */
    uint32_t chain_count;
    struct ibv_send_wr chain[RDTI_VERBS_CHAIN];
    struct ibv_sge sges[RDTI_VERBS_CHAIN][2]; /* the bytes; a flag */
    struct rdti_verbs_record records[RDTI_VERBS_SQ_DEPTH];
    /* driver */
    uint64_t rx_posted;
    uint64_t rx_taken;
    uint64_t tx_flushed; /* all before it have ended, the last of them flushed */
    bool is_rx_flushed;  /* no receive succeeds any more */
    int stop_errno;      /* it did not go to ERR, and has to be destroyed */
    int wc_status;       /* its first error that is not a flush: enum ibv_wc_status; 0: none */
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
    uint32_t port_index; /* in this side's offer */
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
    uint32_t probes_left; /* bit q: the probe of QP q was not answered yet */
    uint8_t own_verdict;  /* 0, RDTI_VERBS_LINK_PROVED or _FAILED, of this round */
    uint8_t peer_verdict; /* the same */
    uint64_t proof_deadline_ns;
    uint16_t pkey;       /* agreed; 0: the first entry of the port's table */
    uint16_t pkey_index; /* its index in the port's table */
    char pair_text[128]; /* of the round: GIDs as text */
    char why[96];        /* the last round failed */
    /* After it broke; driver. */
    struct rdt_error error;
    uint64_t down_deadline_ns; /* of the state */
    bool had_last_call;        /* extended once, as this process may have been stopped */
    bool is_peer_told;
    uint64_t peer_received[RDTI_VERBS_QPS_MAX]; /* this side's immediates, from its DOWN */
    bool is_rx_out; /* the peer's SETTLED arrived: messages do not need the link */
    /* lock */
    bool is_tx_out; /* nothing is posted there any more */
    bool owes_mark; /* settled, but SETTLED is not posted yet */
    int tx_errno;   /* posting failed with it; the driver reports it */
};

enum rdti_verbs_phase { RDTI_VERBS_SETUP = 0, RDTI_VERBS_READY = 1, RDTI_VERBS_FAILED = 2 };

enum rdti_verbs_key_state {
    RDTI_VERBS_KEY_ASKED = 1,
    RDTI_VERBS_KEY_HERE = 2,
    RDTI_VERBS_KEY_NONE = 3
};

/* Memory of the peer, for one kind of access. */
struct rdti_verbs_remote {
    struct rdti_list link;
    uint8_t state;   /* enum rdti_verbs_key_state */
    uint8_t access;  /* RDTI_VERBS_MAY_* */
    uint8_t refusal; /* KEY_NONE: enum rdti_verbs_refusal */
    uint32_t segment;
    uint32_t index; /* of the region of the request; a segment also serves others */
    uint32_t generation;
    uint64_t base; /* KEY_NONE: detail of the refusal */
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
    RDTI_VERBS_OP_CHUNK = 5,  /* maximum bytes of a step; | RDTI_VERBS_OP_STAGED or _FLAGGED */
    RDTI_VERBS_OP_MESSAGE = 6 /* number of its message on the lane, after it began; 0: none */
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

/* wr_id: the kind of work request, its QP, and its number there. */
enum { RDTI_VERBS_WR_TX = 1, RDTI_VERBS_WR_RX = 2, RDTI_VERBS_WR_PROBE = 3 };

static inline uint64_t
rdti_verbs_wr_id(uint32_t kind, uint32_t qp_index, uint64_t sequence)
{
    return (uint64_t)kind << 56 | (uint64_t)qp_index << 48 | (sequence & UINT64_C(0xffffffffffff));
}

/* ---- nic.c */
/* RDT_ENOTVIABLE with every port and its reason if none is left. */
rdt_status rdti_verbs_open_nics(struct rdti_verbs *verbs, struct rdt_error *err);
void rdti_verbs_close_nics(struct rdti_verbs *verbs);
/* The index of a partition in the port's table. RDT_ENOTVIABLE: it is not there. */
rdt_status rdti_verbs_find_pkey(struct rdti_verbs_nic *nic, uint16_t pkey, uint16_t *index_out,
                                struct rdt_error *err);
/* "retries 3, out of sequence 0, ..." since the context was opened; "": the device has none. */
void rdti_verbs_explain_counters(const struct rdti_verbs_nic *nic, char *buf, size_t cap);

/* ---- events.c [driver] */
/* Watches: the device's events, and completions; either may report that the device was removed. */
void rdti_verbs_on_async(void *arg, uint32_t epoll_events);
void rdti_verbs_on_channel(void *arg, uint32_t epoll_events);
/* Breaks links whose port has been down for longer than their QPs retry. */
void rdti_verbs_watch_ports(struct rdti_verbs_lane *lane);

/* ---- mr.c */
/* The lkey of a port for bytes of this process. RDT_EAGAIN: the registrar is registering them, and
 * lanes are pushed then; RDT_EINVAL: they are not in the arena, or cannot be registered. */
rdt_status rdti_verbs_own_key(struct rdti_verbs *verbs, const void *addr, uint64_t len_bytes,
                              uint32_t nic, uint32_t *lkey_out);
/* Text for describe() about sources that could not be registered; "": none. */
void rdti_verbs_explain_stage(struct rdti_verbs *verbs, char *buf, size_t cap);
/* Answer a peer's KEY_GET: *out is KEY, or KEY_REFUSED with an error that has the reason. [driver]
 * RDT_EAGAIN (not answered yet), RDT_EPROTO (no answer: the region never existed), RDT_ESTALE,
 * RDT_ENOMEM (with memlock's lines), RDT_EDEVICE. */
rdt_status rdti_verbs_grant(struct rdti_verbs *verbs, const struct rdti_verbs_words *get,
                            struct rdti_verbs_words *out, struct rdt_error *err);
/* The answer to KEY_GET if registering len_bytes failed. */
void rdti_verbs_refuse_key(const struct rdti_verbs_words *get, uint64_t len_bytes,
                           const struct rdt_error *err, struct rdti_verbs_words *out);
bool rdti_verbs_forget_region(void *state, uint32_t index, uint32_t generation,
                              void (*then)(void *arg), void *arg);
/* Whether a peer's request refers to the entry, for one of these kinds. */
bool rdti_verbs_is_requested(const struct rdti_verbs_memory *memory,
                             const struct rdti_verbs_words *get, uint32_t kinds);
/* Register for one kind, on `nics` (a set), in mrs that are NULL: all or nothing. mr_lock is held,
 * except by the registrar. */
rdt_status rdti_verbs_register_kind(struct rdti_verbs *verbs,
                                    const struct rdti_verbs_memory *memory, uint32_t kind,
                                    uint32_t nics, struct ibv_mr *mrs[RDTI_VERBS_PORTS_MAX],
                                    struct rdt_error *err);
/* The nics that are present, as a set. mr_lock is held. */
uint32_t rdti_verbs_nics_left(const struct rdti_verbs *verbs);
/* Remove from the table, deregister and free. The registrar is not working on it. */
void rdti_verbs_free_memory(struct rdti_verbs *verbs, struct rdti_verbs_memory *memory);
/* The last attempt to register a source failed. mr_lock is held. */
void rdti_verbs_note_unregistered(struct rdti_verbs *verbs, const struct rdt_error *why);
void rdti_verbs_free_memories(struct rdti_verbs *verbs);
/* Check that len_bytes can be locked in memory. RDT_ENOMEM with the lines that change the limit. */
rdt_status rdti_verbs_check_memlock(uint64_t len_bytes, struct rdt_error *err);
/* Lock is held. Create the staging buffer, registered on every port, for unregistered memory. */
rdt_status rdti_verbs_make_stage(struct rdti_verbs_lane *lane, struct rdt_error *err);
/* The caller counts registered_bytes. */
rdt_status rdti_verbs_register(struct rdti_verbs_nic *nic, void *addr, uint64_t len_bytes,
                               unsigned int access, struct ibv_mr **out, struct rdt_error *err);

/* ---- leftover.c: destroying objects that a device may refuse to destroy */
/* NULL is legal. A failure is logged and the object kept on the port's list; any thread. */
void rdti_verbs_deregister(struct rdti_verbs_nic *nic, struct ibv_mr *mr);
void rdti_verbs_destroy_qp(struct rdti_verbs_nic *nic, struct ibv_qp *qp);
void rdti_verbs_destroy_cq(struct rdti_verbs_nic *nic, struct ibv_cq *cq);
/* Retries before the device is closed: the kernel ends what the device still refuses. */
void rdti_verbs_free_leftovers(struct rdti_verbs_nic *nic);

/* ---- keys.c: all under lock but words */
/* The key that the op needs, and whether it uses a flag. RDT_OK with *out (NULL: wait for the
 * peer's answer), RDT_ESTALE, RDT_ERANGE. */
rdt_status rdti_verbs_find_key(struct rdti_verbs_lane *lane, const struct rdti_op *op,
                               bool *has_flag, struct rdti_verbs_remote **out,
                               struct rdt_error *err);
/* The key for a write if it is the key used last; NULL: call find_key(). */
const struct rdti_verbs_remote *rdti_verbs_known_key(const struct rdti_verbs_lane *lane,
                                                     const struct rdti_op *op);
rdt_status rdti_verbs_check_stale(const struct rdti_verbs_lane *lane, const struct rdti_op *op,
                                  struct rdt_error *err);
bool rdti_verbs_mark_stale(struct rdti_verbs_lane *lane, uint32_t index, uint32_t generation);
/* KEY and KEY_REFUSED. RDT_EPROTO. */
rdt_status rdti_verbs_take_key(struct rdti_verbs_lane *lane, const struct rdti_verbs_words *words,
                               struct rdt_error *err);
void rdti_verbs_free_remotes(struct rdti_verbs_lane *lane);
/* Send the requests in `asked`. Lock not held, any thread. */
void rdti_verbs_ask(struct rdti_verbs_lane *lane, const struct rdti_verbs_words *asked,
                    uint32_t count);

/* ---- qp.c */
/* A link on a port with its CQ and QPs in RESET. All or nothing. */
rdt_status rdti_verbs_create_link(struct rdti_verbs_lane *lane, struct rdti_verbs_nic *nic,
                                  uint32_t nic_index, struct rdti_verbs_link *link,
                                  struct rdt_error *err);
void rdti_verbs_destroy_link(struct rdti_verbs_link *link);
/* RESET, INIT, RTR, RTS with the round's pair, and receives posted. [driver] */
rdt_status rdti_verbs_raise_link(struct rdti_verbs_link *link, struct rdt_error *err);
/* Minimum time for which a request is retried before it fails. */
uint64_t rdti_verbs_retry_window_ns(const struct rdti_verbs_lane *lane);
/* Post receives up to the full depth. [driver] */
rdt_status rdti_verbs_restock(struct rdti_verbs_qp *qp, struct rdt_error *err);
/* The QP of the link that a work request belongs to; NULL: there is none. */
struct rdti_verbs_qp *rdti_verbs_qp_of(const struct rdti_verbs_link *link, uint64_t wr_id);

/* ---- link.c [driver] */
/* Begin the first round of every link. */
rdt_status rdti_verbs_begin_proof(struct rdti_verbs_lane *lane, struct rdt_error *err);
rdt_status rdti_verbs_take_link_word(struct rdti_verbs_lane *lane,
                                     const struct rdti_verbs_words *words, struct rdt_error *err);
/* The probe's completion. */
void rdti_verbs_probe_done(struct rdti_verbs_link *link, const struct ibv_wc *wc);
/* Check the deadlines of probes. */
void rdti_verbs_watch_proof(struct rdti_verbs_lane *lane);

/* ---- table.c [driver] */
/* Free closed lanes. No pass is running. */
void rdti_verbs_sweep(struct rdti_verbs *verbs);

/* ---- tx.c */
/* The table's write() and read(). */
rdt_status rdti_verbs_start(struct rdti_lane *base, struct rdti_op *op, struct rdt_error *err);
/* Post what can be posted, and complete refused ops. Returns the work requests posted. Any thread,
 * lock not held. */
uint32_t rdti_verbs_push(struct rdti_verbs_lane *lane);
/* The request of one record has ended: frees its piece, and moves ops that are complete to *done.
 * Lock is held. */
void rdti_verbs_retire(struct rdti_verbs_lane *lane, const struct rdti_verbs_record *record,
                       struct rdti_list *done);
/* Send RESTOCKED for receives that are posted again. [driver] */
void rdti_verbs_send_restocked(struct rdti_verbs_lane *lane);

/* ---- flag.c */
/* Open the timer for naps, if flags may be requested. */
rdt_status rdti_verbs_open_flags(struct rdti_verbs *verbs, struct rdt_error *err);
void rdti_verbs_close_flags(struct rdti_verbs *verbs);
/* [driver] The lane is READY: send FLAGS to the peer if this side polls for flags, or note why
 * not. */
void rdti_verbs_agree_flags(struct rdti_verbs_lane *lane);
/* [driver] The peer's FLAGS. RDT_EPROTO. */
rdt_status rdti_verbs_take_flags_word(struct rdti_verbs_lane *lane,
                                      const struct rdti_verbs_words *words, struct rdt_error *err);
/* [driver] The table's watch_flag(). */
void rdti_verbs_watch_flag(struct rdti_lane *base, struct rdti_flag *flag);
/* [driver] Takes a flag that has arrived and may be delivered now. */
bool rdti_verbs_take_flag(struct rdti_verbs_lane *lane, uint32_t *value_out);
/* [driver] If flags are expected, no sleep from here on is longer than a nap. */
void rdti_verbs_arm_flags(struct rdti_verbs *verbs);
/* Lock is held. Whether the op's notification may be a flag, or, after it is cut, is one. */
bool rdti_verbs_may_flag(const struct rdti_verbs_lane *lane, const struct rdti_op *op);
/* Lock is held. Adds the flag after the bytes of the QP's last request. */
void rdti_verbs_attach_flag(struct rdti_verbs_qp *qp, const struct rdti_verbs_record *record,
                            struct ibv_send_wr *wr);
/* [driver] At the lane's end: polls for no flags any more. */
void rdti_verbs_forget_flags(struct rdti_verbs_lane *lane);
void rdti_verbs_free_tails(struct rdti_verbs_lane *lane);
/* "flag", "imm (no flag: ...)", or one text for each direction. */
void rdti_verbs_explain_notify(const struct rdti_verbs_lane *lane, char *buf, size_t cap);

/* ---- cq.c [driver] */
/* Take completions of one link; returns their number, 0: it has none. */
uint32_t rdti_verbs_poll_link(struct rdti_verbs_link *link);
/* The same of all links. */
uint32_t rdti_verbs_poll_lane(struct rdti_verbs_lane *lane);
/* Arm every CQ that is not armed. */
void rdti_verbs_arm_lane(struct rdti_verbs_lane *lane);
/* This CQ has given its one event. */
void rdti_verbs_disarm(struct rdti_verbs *verbs, const struct ibv_cq *cq);
/* Deliver messages that have arrived on every QP. */
uint32_t rdti_verbs_deliver(struct rdti_verbs_lane *lane);

/* ---- ends.c [driver] */
/* End the lane: destroys its QPs, moves its ops to *ops. False: it has already ended. */
bool rdti_verbs_stop_lane(struct rdti_verbs_lane *lane, const struct rdt_error *err,
                          struct rdti_list *ops);
/* The same, and completes all ops with *err, also those that fail() left. */
void rdti_verbs_teardown(struct rdti_verbs_lane *lane, const struct rdt_error *err);
/* stop_lane, and host->on_error(); the host's close_lane() completes the ops. */
void rdti_verbs_fail(struct rdti_verbs_lane *lane, const struct rdt_error *err);
/* Reports a failed completion: device, peer, GIDs, status, vendor code, remedy. It breaks the link,
 * or ends the lane if the request itself was wrong. */
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
/* [driver] The answer to KEY_GET: a key, or the reason why there is none. */
void rdti_verbs_send_key(struct rdti_verbs_lane *lane, struct rdti_verbs_words *key,
                         rdt_status status, const struct rdt_error *err);
void rdti_verbs_send_words(struct rdti_verbs_lane *lane, const struct rdti_verbs_words *words);
void rdti_verbs_explain(const struct rdti_lane *base, char *buf, size_t cap);
bool rdti_verbs_is_idle(struct rdti_lane *base);
bool rdti_verbs_revoke(struct rdti_lane *base, uint32_t index, uint32_t generation);
void rdti_verbs_close_lane(struct rdti_lane *base, const struct rdt_error *err);

#endif
