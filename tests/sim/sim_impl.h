/* SPDX-License-Identifier: Apache-2.0
 * The sim's objects, shared by sim.c (devices), sim_objects.c and sim_qp.c (control calls) and
 * sim_wire.c (the data path). One lock guards everything. */
#ifndef RDT_TESTS_SIM_IMPL_H
#define RDT_TESTS_SIM_IMPL_H

#include <pthread.h>

#include "sim/sim.h"

#define SIM_QPS_MAX 1024
#define SIM_MRS_MAX 4096
#define SIM_COUNTERS_MAX 4

struct sim_counter {
    const char *name; /* NULL: none */
    int64_t value;
};

struct sim_device {
    struct ibv_device device; /* first */
    uint32_t index;
    bool is_cut;
    bool is_removed;
    uint64_t cut_at; /* executed requests; 0: never */
    uint32_t unanswered;
};

struct sim_context {
    struct ibv_context context; /* first */
    struct sim_context *next;
    struct sim_device *device;
    int event_write_fd; /* -1: the device was removed */
};

/* In the order in which a closing device ends them. */
enum sim_kind { SIM_QP, SIM_MR, SIM_CQ, SIM_CHANNEL, SIM_PD };

struct sim_object {
    struct sim_object *next;
    struct ibv_context *context;
    void *object;
    enum sim_kind kind;
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
    int write_fd; /* -1: the device was removed */
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
    struct ibv_sge sges[2];
    uint8_t inlined[256];
    uint64_t not_before_ns;
    uint64_t failing_since_ns;
};

struct sim_qp {
    struct ibv_qp qp;
    struct sim_device *device;
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    uint16_t pkey;
    uint8_t port; /* from INIT on */
    struct sim_send *sends;
    uint32_t send_first;
    uint32_t send_count;
    uint32_t send_unanswered; /* of these: executed, and the answer was lost */
    struct ibv_recv_wr *receives;
    uint32_t receive_first;
    uint32_t receive_count;
};

struct sim {
    pthread_mutex_t lock;
    pthread_cond_t work;
    pthread_cond_t placed;
    bool is_placing; /* the lock is given up between two pieces: nothing may go meanwhile */
    pthread_t wire;
    bool is_wire_running;
    bool is_stopping;
    struct sim_config config;
    uint64_t random;
    struct sim_device devices[SIM_DEVICES_MAX];
    struct sim_context *contexts;
    uint32_t context_count;
    struct sim_object *objects;
    uint32_t live_objects; /* and contexts */
    uint64_t locked_bytes;
    uint64_t hold_from_bytes; /* 0: no MR is held back */
    uint32_t held_mrs;
    uint32_t let_mrs; /* so many that are held, or will be, go on all the same */
    pthread_cond_t released;
    struct sim_qp *qps[SIM_QPS_MAX]; /* by number, less one */
    struct sim_mr *mrs[SIM_MRS_MAX]; /* by key, less one */
    char blocked[64];
    enum ibv_wc_status break_next;
    uint64_t executed;
    struct sim_counts counts;
    struct sim_counter counters[SIM_COUNTERS_MAX];
    bool has_registered;
    uint32_t fork_inits;
    uint32_t calls;
    uint32_t fail_at;
    int fail_errno;
    const char *failed_call;
    const char *named; /* NULL: no call fails by its name */
    uint32_t named_skip;
    uint32_t named_count;
    int named_errno;
};

extern struct sim sim;
extern const struct rdti_verbs_ops sim_table;

void sim_lock(void);
/* The same once nothing is half placed: for whoever destroys or stops. */
void sim_lock_still(void);
void sim_unlock(void);
uint64_t sim_random(uint64_t below);
/* Locked; given up while the test holds MRs of this length. */
void sim_wait_while_held(uint64_t len_bytes);
/* A control call: true if it is to fail, with errno set. Locked. */
bool sim_is_failing(const char *call);
/* The same for a call of the data path, which fails by its name alone: how often it is made is
 * nobody's plan. */
bool sim_is_failing_by_name(const char *call);
/* The same, of a device that may have been removed. */
bool sim_refuses(struct ibv_context *context, const char *call);

static inline struct sim_device *
sim_device_of(struct ibv_context *context)
{
    return ((struct sim_context *)context)->device;
}

/* What a port's table has there. */
const struct sim_gid *sim_entry_of(uint32_t device, uint32_t port, uint32_t index);
/* The same as bytes; false: a hole. */
bool sim_gid_of(uint32_t device, uint32_t port, uint32_t index, union ibv_gid *out);

/* sim_knobs.c */
int sim_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags);
int64_t sim_read_counter(const char *device, uint32_t port, const char *name);
enum ibv_fork_status sim_is_fork_initialized(void);
int sim_fork_init(void);

/* sim_objects.c, sim_qp.c; the small ones are called locked. */
void sim_track(enum sim_kind kind, struct ibv_context *context, void *object);
void sim_untrack(void *object);
/* End what is left of a context; returns how much. */
uint32_t sim_reap(struct ibv_context *context);
void sim_free_pd(struct sim_pd *pd);
void sim_free_mr(struct sim_mr *mr);
void sim_free_channel(struct sim_channel *channel);
void sim_free_cq(struct sim_cq *cq);
void sim_free_qp(struct sim_qp *qp);
struct ibv_pd *sim_alloc_pd(struct ibv_context *context);
int sim_dealloc_pd(struct ibv_pd *pd);
struct ibv_mr *sim_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t len_bytes, uint64_t iova,
                                unsigned int access);
int sim_dereg_mr(struct ibv_mr *mr);
struct ibv_comp_channel *sim_create_comp_channel(struct ibv_context *context);
int sim_destroy_comp_channel(struct ibv_comp_channel *channel);
struct ibv_cq *sim_create_cq(struct ibv_context *context, int entries, void *cq_context,
                             struct ibv_comp_channel *channel, int vector);
int sim_destroy_cq(struct ibv_cq *cq);
int sim_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context);
void sim_ack_cq_events(struct ibv_cq *cq, unsigned int count);
struct ibv_qp *sim_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init);
int sim_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
int sim_destroy_qp(struct ibv_qp *qp);
/* The QP that a packet of this one reaches, or NULL: there is none. Locked. */
struct sim_qp *sim_find_peer(const struct sim_qp *qp);

/* sim_wire.c; locked but for the calls of the data path. */
void sim_start_wire(void);
void sim_stop_wire(void);
uint32_t sim_send_bytes(const struct sim_send *send);
void sim_to_error(struct sim_qp *qp);
/* QPs forget what they held. */
void sim_empty_qp(struct sim_qp *qp);
void sim_drop_completions(struct sim_cq *cq, uint32_t qp_num);
/* Of a QP's requests, not of its receives. */
uint64_t sim_untaken(const struct sim_cq *cq, uint32_t qp_num);
int sim_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc);
int sim_req_notify_cq(struct ibv_cq *cq, int solicited_only);
int sim_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int sim_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

#endif
