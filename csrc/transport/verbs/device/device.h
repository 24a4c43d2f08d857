/* SPDX-License-Identifier: Apache-2.0
 * Ports of devices, and the transport's state, which has them.
 *
 *   lib.c       libibverbs at run time        settings.c  the environment
 *   nic.c       opening and closing ports     gid.c       a port's GIDs, ranked
 *   memlock.c   the limit on locked memory    leftover.c  objects that a device does not destroy
 */
#ifndef RDTI_VERBS_DEVICE_DEVICE_H
#define RDTI_VERBS_DEVICE_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "transport/transport.h"
#include "transport/verbs/device/limits.h"
#include "transport/verbs/device/settings.h"
#include "transport/verbs/device/verbs_ops.h"
#include "wire/endpoint/verbs.h"

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

struct rdti_verbs {
    const struct rdti_transport *transport;
    const struct rdti_host *host;
    const struct rdti_verbs_ops *ops;
    struct rdti_verbs_settings settings;
    /* Called by the watches of a port's nic: the device's events, and completions. Either may
     * report that the device was removed. */
    void (*on_async)(void *nic, uint32_t epoll_events);
    void (*on_channel)(void *nic, uint32_t epoll_events);
    struct rdti_verbs_nic nics[RDTI_VERBS_PORTS_MAX];
    uint32_t nic_count;
    struct rdti_list lanes;      /* driver: struct rdti_verbs_lane */
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
    /* mr_lock: struct rdti_verbs_memory; entries stay until close, regions until forgotten */
    struct rdti_list memories;
    pthread_t registrar;
    bool has_registrar;        /* mr_lock: from the first large memory on */
    bool is_registrar_leaving; /* mr_lock */
    pthread_cond_t job_cond;   /* mr_lock: jobs, or is_registrar_leaving */
    struct rdti_list jobs;     /* mr_lock: memory to register */
    struct rdti_list ends;     /* mr_lock: memory to end, before jobs */
    _Atomic bool has_news;     /* the registrar finished one; release, the driver acquires */
    struct rdti_list wishes;   /* driver: struct rdti_verbs_wish */
};

/* ---- nic.c */
/* RDT_ENOTVIABLE with every port and its reason if none is left. */
rdt_status rdti_verbs_open_nics(struct rdti_verbs *verbs, struct rdt_error *err);
void rdti_verbs_close_nics(struct rdti_verbs *verbs);
/* The index of a partition in the port's table. RDT_ENOTVIABLE: it is not there. */
rdt_status rdti_verbs_find_pkey(struct rdti_verbs_nic *nic, uint16_t pkey, uint16_t *index_out,
                                struct rdt_error *err);
/* "retries 3, out of sequence 0, ..." since the context was opened; "": the device has none. */
void rdti_verbs_explain_counters(const struct rdti_verbs_nic *nic, char *buf, size_t cap);

/* ---- leftover.c: destroying objects that a device may refuse to destroy */
/* NULL is legal. A failure is logged and the object kept on the port's list; any thread. */
void rdti_verbs_deregister(struct rdti_verbs_nic *nic, struct ibv_mr *mr);
void rdti_verbs_destroy_qp(struct rdti_verbs_nic *nic, struct ibv_qp *qp);
void rdti_verbs_destroy_cq(struct rdti_verbs_nic *nic, struct ibv_cq *cq);
/* Retries before the device is closed: the kernel ends what the device still refuses. */
void rdti_verbs_free_leftovers(struct rdti_verbs_nic *nic);

/* ---- memlock.c */
/* Check that len_bytes can be locked in memory. RDT_ENOMEM with the lines that change the limit. */
rdt_status rdti_verbs_check_memlock(uint64_t len_bytes, struct rdt_error *err);
/* Whether a call failed with this errno because of the limit. */
bool rdti_verbs_is_memlock_short(int sys_errno);
/* RDT_ENOMEM with the lines that change the limit. */
rdt_status rdti_verbs_memlock_error(uint64_t len_bytes, int sys_errno, struct rdt_error *err);
/* UINT64_MAX: there is none. */
uint64_t rdti_verbs_memlock_limit(void);

#endif
