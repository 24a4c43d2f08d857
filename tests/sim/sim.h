/* SPDX-License-Identifier: Apache-2.0
 * Verbs in memory: devices, QPs and a wire between them behind
 * csrc/transport/verbs/device/verbs_ops.h, for unit tests and sanitizers on machines without RDMA.
 * What it does is what a NIC does as far as the transport can see: order within one QP, none
 * between QPs; retries that end; receives that run out; keys and ranges that are checked; sources
 * read when a request goes out and not when it is posted. A thread of its own is the wire.
 *
 *     struct sim_config config = sim_default();
 *     config.device_count = 2;
 *     sim_begin(&config);          (contexts opened from now on use the sim)
 *     ...
 *     sim_end();                   (checks that nothing is left)
 */
#ifndef RDT_TESTS_SIM_H
#define RDT_TESTS_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/verbs/device/verbs_ops.h"

#define SIM_DEVICES_MAX 4
#define SIM_GIDS_MAX 8
#define SIM_PORTS_MAX 6
#define SIM_PKEYS_MAX 4
#define SIM_RKEYS_FROM UINT32_C(0x5ec70000) /* remote keys lie above, so that a log shows them */
#define SIM_WHOLE 1
#define SIM_128 2

struct sim_gid {
    const char *text; /* NULL: a hole */
    bool is_v1;
    bool is_unbound; /* no network device */
};

/* A port behind the first. */
struct sim_port_config {
    bool is_down;
    int query_errno; /* query_port fails with it */
    struct sim_gid gids[SIM_GIDS_MAX];
};

struct sim_device_config {
    bool is_down;
    uint16_t lid;    /* not 0: an InfiniBand port, whose QPs are raised by LIDs */
    bool is_refused; /* opening it fails with EACCES */
    uint32_t mtu;    /* enum ibv_mtu; 0: 4096 bytes */
    struct sim_gid gids[SIM_GIDS_MAX];
    uint16_t pkeys[SIM_PKEYS_MAX]; /* 0: a hole */
    uint32_t more_ports;           /* than the first, which what stands above is of */
    struct sim_port_config more[SIM_PORTS_MAX - 1];
};

struct sim_config {
    uint64_t seed;
    uint32_t device_count;
    struct sim_device_config devices[SIM_DEVICES_MAX];
    uint32_t max_msg_bytes;           /* 0: 8 MiB, as rxe */
    uint32_t queue_depth;             /* max_qp_wr; 0: 4096 */
    uint32_t segments;                /* max_sge; 0: 32 */
    uint32_t delay_us;                /* each request waits a random time up to this */
    uint32_t duplicates;              /* of a hundred completions, so many come twice */
    uint32_t inline_bytes;            /* the most that a QP gives */
    bool is_inline_strict;            /* a QP that is to give more is refused, with EINVAL */
    uint64_t retry_ns;                /* how long a request to nobody is tried; 0: 100 ms */
    bool has_own_retry;               /* as long as its QP says instead */
    uint64_t memlock_bytes;           /* all registrations together; 0: no limit */
    uint64_t max_mr_bytes;            /* max_mr_size: of one registration; 0: no limit */
    int list_errno;                   /* get_device_list fails with it */
    enum ibv_fork_status fork_status; /* 0: fork_init is asked for */
    uint64_t lost_qps;  /* bit n: packets of QP n, from 1 in the order of making, are lost */
    bool is_scattering; /* bytes of one write land in random order, aligned blocks of 128 whole */
    uint32_t piece_us;  /* between two pieces of a write, a random time up to this */
    /* What query_qp_data_in_order answers: 0 (as rxe), SIM_WHOLE, SIM_128: the latter only where it
     * is asked for by flags, as newer libraries are. */
    int in_order;
};

/* Of all QPs since sim_begin(). */
struct sim_counts {
    uint64_t requests;  /* given to post_send */
    uint64_t signalled; /* of them, asking for a completion */
    uint64_t inlined;   /* with their bytes */
    uint64_t bare;      /* without any */
    uint64_t stopped;   /* QPs that were destroyed in ERR */
    uint64_t running;   /* in RTR or RTS */
    uint64_t untaken;   /* completions of requests that stood in a CQ when their QP went */
    uint64_t starved;   /* times that an immediate found no receive */
};

struct sim_config sim_default(void);
void sim_begin(const struct sim_config *config);
void sim_end(void);
/* RDT_TEST_VERBS=device asks for real devices in its place. */
bool sim_is_off(void);
/* Begin with defaults, unless it was begun, or is off. */
void sim_use(void);

/* Whether this thread is in a call of the sim, which needs memory of its own. */
bool sim_is_inside(void);

/* The n-th control call from now on (1: the next) fails with sys_errno; 0: none does. */
void sim_fail_call(uint32_t n, int sys_errno);
/* Behind `skip` calls of this name, `count` of them fail with sys_errno. */
void sim_fail_named(const char *call, uint32_t skip, uint32_t count, int sys_errno);
/* Control calls since sim_begin(). */
uint32_t sim_call_count(void);
/* Name of the call that failed last, or NULL. */
const char *sim_failed_call(void);
/* Contexts, PDs, MRs, channels, CQs and QPs that exist. */
uint32_t sim_live_objects(void);
/* PDs alone. */
uint32_t sim_live_pds(void);

/* Access flags of the registrations that hold this address, by their keys; how many. */
uint32_t sim_accesses_of(const void *addr, unsigned int *out, uint32_t cap);

/* From now on registering and deregistering at least so many bytes waits, as for pages that are
 * pinned slowly; 0: those that wait go on, and no other waits. */
void sim_hold_mrs(uint64_t from_bytes);
/* One of those that wait goes on, or the next one that would wait. */
void sim_let_mr(void);
/* How many wait. */
uint32_t sim_held_mrs(void);

/* Packets to this GID are lost, both ways; NULL: all arrive again. */
void sim_block_gid(const char *text);
/* The same for a whole device, by index, until told otherwise. */
void sim_cut_device(uint32_t device, bool is_cut);
/* The same once n requests more have been executed; then `unanswered` more of it arrive, of which
 * the sender never hears. */
void sim_cut_after(uint32_t device, uint64_t n, uint32_t unanswered);
/* The next request on the wire ends with this status. */
void sim_break_next(enum ibv_wc_status status);
void sim_raise_event(uint32_t device, enum ibv_event_type type);
/* As if it was pulled out: descriptors end, calls fail with EIO, nothing completes. */
void sim_remove_device(uint32_t device);
/* To the QP's or the CQ's own context. */
void sim_raise_qp_event(struct ibv_qp *qp, enum ibv_event_type type);
void sim_raise_cq_event(struct ibv_cq *cq, enum ibv_event_type type);
/* Another GID at this place of its table; the event comes with it. */
void sim_change_gid(uint32_t device, uint32_t index, const char *text);
/* The same for its LID, and for an entry of its table of partitions (0: a hole). */
void sim_change_lid(uint32_t device, uint16_t lid);
void sim_change_pkey(uint32_t device, uint32_t index, uint16_t pkey);
/* What the QP was raised with. */
struct ibv_qp_attr sim_attr_of(const struct ibv_qp *qp);
enum ibv_mtu sim_path_mtu(const struct ibv_qp *qp);
/* What a device's counter of this name shows from now on; one that was never set is not there. */
void sim_set_counter(const char *name, int64_t value);
/* As another process has it that has not called fork_init() yet. */
void sim_forget_fork_init(void);
uint32_t sim_fork_inits(void);
/* Requests that the wire has executed, of all QPs. */
uint64_t sim_executed(void);
struct sim_counts sim_counts(void);

#endif
