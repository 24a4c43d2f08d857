/* SPDX-License-Identifier: Apache-2.0
 * Verbs with nothing of the library: one RC QP of each side on libibverbs, the floor under that
 * path. Everything that fails ends the program. */
#ifndef RDT_BENCH_RAW_VERBS_H
#define RDT_BENCH_RAW_VERBS_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A port, and what is needed of it to connect; values only, so that a fork may take it along. */
struct raw_verbs_port {
    char device[64];
    uint8_t number;
    bool is_infiniband; /* LIDs; else GIDs */
    int gid_index;
    union ibv_gid gid;
    uint16_t lid;
    enum ibv_mtu mtu;      /* the active one */
    uint32_t max_msg_size; /* rxe does not check it when a request is posted */
    uint32_t max_wrs;      /* of one queue */
    uint8_t reads;         /* under way, of one QP */
};

/* What the other side has to know; goes over a socket as it is. */
struct raw_verbs_address {
    union ibv_gid gid;
    uint64_t addr;
    uint32_t rkey;
    uint32_t qpn;
    uint32_t psn;
    uint16_t lid;
};

struct raw_verbs {
    struct raw_verbs_port port;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *send_cq;
    struct ibv_cq *recv_cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr; /* all of the caller's memory */
    uint32_t psn;
    uint32_t inline_bytes; /* what the device gave; 0: nothing goes inline */
    uint32_t recv_depth;
    struct raw_verbs_address peer;
};

/* The first port of the device that is active and has this entry of GIDs. */
void raw_verbs_find(const char *device, int gid_index, struct raw_verbs_port *out);

/* Open the device, register `memory`, make the QP with `depth` sends and as many receives as
 * RAW_VERBS_RECVS or the device allows; *own: what the other side needs. */
#define RAW_VERBS_RECVS 512 /* as perftest has it */
void raw_verbs_open(struct raw_verbs *v, const struct raw_verbs_port *port, uint32_t depth,
                    void *memory, size_t len_bytes, struct raw_verbs_address *own);
/* Receives may be posted from here on. */
void raw_verbs_connect(struct raw_verbs *v, const struct raw_verbs_address *peer);
void raw_verbs_close(struct raw_verbs *v);

/* One signaled request from `local`, which lies in the memory; remote_off counts from its begin. */
void raw_verbs_post(struct raw_verbs *v, enum ibv_wr_opcode opcode, const char *local,
                    size_t len_bytes, uint64_t remote_off);
/* `count` receives of len_bytes into the same place; with 0 bytes they take immediates only. */
void raw_verbs_post_recvs(struct raw_verbs *v, char *local, size_t len_bytes, uint32_t count);
/* Spin until `least` completions were taken, and no more than `most`; returns how many. */
uint32_t raw_verbs_take(struct ibv_cq *cq, uint32_t least, uint32_t most);

#endif
