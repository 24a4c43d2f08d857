/* SPDX-License-Identifier: Apache-2.0
 * Links of a lane and their QPs. The states of a link are in lane.h. */
#ifndef RDTI_VERBS_LINK_H
#define RDTI_VERBS_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/verbs/device/device.h"

struct rdti_verbs_lane;
struct rdti_verbs_link;

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

/* wr_id: the kind of work request, its QP, and its number there. */
enum { RDTI_VERBS_WR_TX = 1, RDTI_VERBS_WR_RX = 2, RDTI_VERBS_WR_PROBE = 3 };

static inline uint64_t
rdti_verbs_wr_id(uint32_t kind, uint32_t qp_index, uint64_t sequence)
{
    return (uint64_t)kind << 56 | (uint64_t)qp_index << 48 | (sequence & UINT64_C(0xffffffffffff));
}

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

/* ---- pair.c */
/* Pair the lane's links with the peer's ports; the best pairs of GIDs of each. Unpaired links are
 * destroyed. RDT_ENOTVIABLE: no two can meet. */
rdt_status rdti_verbs_pair_links(struct rdti_verbs_lane *lane, struct rdt_error *err);
/* The reason for the link's pair of GIDs, as text. */
void rdti_verbs_explain_choice(const struct rdti_verbs_link *link, char *buf, size_t cap);

#endif
