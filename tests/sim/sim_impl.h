/* SPDX-License-Identifier: Apache-2.0
 * The sim's objects, shared by sim.c (control calls) and sim_wire.c (the data path). One lock
 * guards everything. */
#ifndef RDT_TESTS_SIM_IMPL_H
#define RDT_TESTS_SIM_IMPL_H

#include <pthread.h>

#include "sim/sim.h"

#define SIM_QPS_MAX 1024
#define SIM_MRS_MAX 4096

struct sim_device {
    struct ibv_device device; /* first */
    uint32_t index;
    bool is_cut;
};

struct sim_context {
    struct ibv_context context; /* first */
    struct sim_context *next;
    struct sim_device *device;
    int event_write_fd;
    uint32_t children;
};

struct sim_pd {
    struct ibv_pd pd;
    uint32_t children;
};

struct sim_mr {
    struct ibv_mr mr;
    unsigned int access;
};

struct sim_channel {
    struct ibv_comp_channel channel;
    int write_fd;
    uint32_t children;
};

struct sim_cq {
    struct ibv_cq cq;
    struct sim_channel *channel;
    struct ibv_wc *ring;
    uint32_t depth;
    uint32_t first;
    uint32_t count;
    bool is_armed;
    uint32_t unacked;
    uint32_t children;
};

struct sim_send {
    struct ibv_send_wr wr;
    struct ibv_sge sge;
    uint8_t inlined[256];
    uint64_t not_before_ns;
    uint64_t failing_since_ns;
};

struct sim_qp {
    struct ibv_qp qp;
    struct sim_device *device;
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    struct sim_send *sends;
    uint32_t send_first;
    uint32_t send_count;
    struct ibv_recv_wr *receives;
    uint32_t receive_first;
    uint32_t receive_count;
};

struct sim {
    pthread_mutex_t lock;
    pthread_cond_t work;
    pthread_t wire;
    bool is_wire_running;
    bool is_stopping;
    struct sim_config config;
    uint64_t random;
    struct sim_device devices[SIM_DEVICES_MAX];
    struct sim_context *contexts;
    uint32_t context_count;
    uint32_t live_objects;
    struct sim_qp *qps[SIM_QPS_MAX]; /* by number, less one */
    struct sim_mr *mrs[SIM_MRS_MAX]; /* by key, less one */
    char blocked[64];
    enum ibv_wc_status break_next;
    uint64_t executed;
    uint32_t calls;
    uint32_t fail_at;
    int fail_errno;
    const char *failed_call;
};

extern struct sim sim;
extern const struct rdti_verbs_ops sim_table;

void sim_lock(void);
void sim_unlock(void);
uint64_t sim_random(uint64_t below);
/* A control call: true if it is to fail, with errno set. Locked. */
bool sim_is_failing(const char *call);
/* A GID of a device as bytes; false: a hole. */
bool sim_gid_of(uint32_t device, uint32_t index, union ibv_gid *out);

/* sim_wire.c; locked but for the calls of the data path. */
void sim_start_wire(void);
void sim_stop_wire(void);
void sim_to_error(struct sim_qp *qp);
/* QPs forget what they held. */
void sim_empty_qp(struct sim_qp *qp);
void sim_drop_completions(struct sim_cq *cq, uint32_t qp_num);
int sim_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc);
int sim_req_notify_cq(struct ibv_cq *cq, int solicited_only);
int sim_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int sim_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

#endif
