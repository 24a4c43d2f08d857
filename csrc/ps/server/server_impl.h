/* SPDX-License-Identifier: Apache-2.0
 * The body of a server, for the files that are the server.
 *
 * Threads: a task of the engine takes notifications and puts them into `arrivals`; the server's
 * thread handles them; threads of the program take calls and answer them. `arrivals_lock` guards
 * what the task shares with them and is held for some instructions only; `lock` guards the rest.
 * Order: lock, then the engine's, then arrivals_lock. */
#ifndef RDTI_PS_SERVER_SERVER_IMPL_H
#define RDTI_PS_SERVER_SERVER_IMPL_H

#include <pthread.h>
#include <stdbool.h>

#include "ps/model/clocks.h"
#include "ps/model/merge.h"
#include "ps/model/queue.h"
#include "ps/model/stage.h"
#include "ps/server/table.h"
#include "wire/ps/answer.h"
#include "wire/ps/request.h"

enum { RDTI_PS_TABLES_MAX = 4096 };
enum { RDTI_PS_ARRIVED_END = UINT32_MAX }; /* in place of a slot: the worker left or died */

struct rdti_ps_arrival {
    uint32_t worker;
    uint32_t slot;
};

/* A slot's request: the peer may not write it while it is busy. */
struct rdti_ps_server_slot {
    bool is_busy;  /* under arrivals_lock */
    bool is_taken; /* the program has the call */
    uint64_t sequence;
};

struct rdti_ps_client {
    rdt_endpoint *ep; /* NULL until it is attached; under arrivals_lock until then */
    rdt_region *inbox;
    rdt_region *answers; /* what is written to the outbox */
    struct rdt_remote_region outbox;
    struct rdti_ps_server_slot slots[RDTI_PS_SLOTS_MAX];
    bool is_over; /* the task polls it no more; under arrivals_lock */
    bool has_left;
    bool is_dead;
    bool has_switched; /* it reads from this backup, as the primary is lost */
    bool has_tick;     /* one waits for its answer */
    uint32_t tick_slot;
    double lr_scale; /* of that tick, as the next */
    uint32_t age;
    uint32_t tick_queue; /* from 1 on, or 0 */
    uint64_t tick_chunk;
    uint32_t members_bytes;
    uint8_t members[RDTI_PS_MEMBERS_BYTES]; /* of the tick's round: bits by worker */
    uint64_t dense_mask;                    /* of the tick: the dense models that were pushed */
    bool is_refused;                        /* a push since the last tick was */
    bool is_deferred;                       /* its requests wait for a cut */
    /* The tick's step does not count: a push of it was refused, or its chunk was applied before. */
    bool is_void;
    bool has_lease_request;
    bool has_ticked_chunk; /* the leased chunk's step has ended on this server */
    uint32_t lease_slot;
    uint32_t lease_queue; /* from 1 on */
    uint64_t leased;      /* that is being given */
    bool is_lease_due;
    uint64_t sequence; /* of the last request */
    uint64_t heard_ns; /* when it came; 0: none has */
    struct rdti_ps_stage stage;
    struct rdt_error end; /* why it is over */
};

/* A checkpoint from the hold to the cut. */
enum { RDTI_PS_CUT_NONE = 0, RDTI_PS_CUT_HOLDS, RDTI_PS_CUT_WAITS };
struct rdti_ps_cut {
    uint32_t phase;
    uint32_t worker; /* that takes it */
    bool is_increment;
    bool is_begun;                    /* a checkpoint is being read */
    uint64_t applied;                 /* chunks of all queues, at the cut */
    uint64_t *goals;                  /* RDTI_PS_CUT_WAITS: the steps of each worker */
    struct rdti_ps_arrival *deferred; /* as many as arrivals */
    uint32_t deferred_count;
    struct rdt_error end; /* how it ended */
};

struct rdt_ps_server {
    rdt_context *ctx;
    struct rdt_ps_server_opts opts;
    const struct rdti_ps_kernels *kernels;
    struct rdti_ps_client *clients; /* opts.workers */
    pthread_t thread;
    bool has_thread;

    pthread_mutex_t arrivals_lock;
    struct rdti_ps_arrival *arrivals; /* a ring; each busy slot and each end once */
    uint32_t arrivals_room;
    uint32_t arrivals_first;
    uint32_t arrivals_count;
    rdt_transfer *arrival; /* that the thread waits for, or NULL */
    bool is_arrival_done;
    bool is_stopping;
    bool is_task_over;

    pthread_mutex_t lock;
    pthread_cond_t calls_changed;
    struct rdti_ps_arrival *calls; /* a ring, as large */
    uint32_t calls_first;
    uint32_t calls_count;
    struct rdti_ps_table *tables[RDTI_PS_TABLES_MAX];
    struct rdti_ps_queue *queues;
    uint32_t queue_count;
    uint32_t queue_room;
    struct rdti_ps_dense *dense[RDTI_PS_DENSE_MAX];
    uint32_t dense_count;
    struct rdti_ps_clocks clocks;
    struct rdti_ps_cut cut;
    struct rdti_ps_merge merge;
    struct rdt_ps_server_counters counters;
    struct rdt_error failure; /* RDT_OK while it works */
    bool is_failure_taken;
};

/* Whether the worker takes values, rows and waits from the primary. */
static inline bool
rdti_ps_is_quiet(const rdt_ps_server *server, uint32_t worker)
{
    return server->opts.is_backup != 0 && !server->clients[worker].has_switched;
}

/* arrivals.c */
rdt_status rdti_ps_arrivals_start(rdt_ps_server *server, struct rdt_error *err);
/* The next one; false: none within a tenth of a second, or the server stops. */
bool rdti_ps_arrivals_next(rdt_ps_server *server, struct rdti_ps_arrival *out);
/* The task polls this worker from now on. RDT_EINVAL: it does already. */
rdt_status rdti_ps_arrivals_add(rdt_ps_server *server, uint32_t worker, rdt_endpoint *ep,
                                struct rdt_error *err);
/* The peer may use the slot again. */
void rdti_ps_arrivals_release(rdt_ps_server *server, uint32_t worker, uint32_t slot);
/* Take these next, in this order; under server->lock. */
void rdti_ps_arrivals_put_back(rdt_ps_server *server, const struct rdti_ps_arrival *arrivals,
                               uint32_t count);
/* Nothing of this worker is taken any more, because of err. */
void rdti_ps_arrivals_end(rdt_ps_server *server, uint32_t worker, const struct rdt_error *err);
void rdti_ps_arrivals_stop(rdt_ps_server *server);

/* answers.c; under server->lock */
/* Bytes of the answer's payload, to be filled before rdti_ps_answer_send(). */
uint8_t *rdti_ps_answer_payload(rdt_ps_server *server, uint32_t worker, uint32_t slot);
void rdti_ps_answer_result(rdt_ps_server *server, uint32_t worker, uint32_t slot, rdt_status status,
                           uint32_t payload_bytes);
/* The same with RDT_OK. */
void rdti_ps_answer_send(rdt_ps_server *server, uint32_t worker, uint32_t slot,
                         uint32_t payload_bytes);
void rdti_ps_answer_error(rdt_ps_server *server, uint32_t worker, uint32_t slot, rdt_status status,
                          const char *text);
/* Tell all workers that the server ends. */
void rdti_ps_answer_failure(rdt_ps_server *server);
/* Tell one worker that the server ends its connection. */
void rdti_ps_answer_end(rdt_ps_server *server, uint32_t worker, const char *message);

/* steps.c; under server->lock */
/* What ticks have made possible: applies rounds, and answers ticks that need wait no longer. */
void rdti_ps_steps_advance(rdt_ps_server *server);
/* A tick was counted; its client waits for the answer. */
void rdti_ps_steps_tick(rdt_ps_server *server, uint32_t worker);
/* What the client has pushed since its last tick will not be applied. */
void rdti_ps_steps_drop(rdt_ps_server *server, struct rdti_ps_client *client);
/* RDT_PS_SYNC: whether a round has begun to end, and needs this worker's tick. */
bool rdti_ps_steps_needs(const rdt_ps_server *server, uint32_t worker);

/* holders.c; under server->lock */
/* Whether another worker waits for this one: for its tick, or for its chunk. */
bool rdti_ps_holders_has(const rdt_ps_server *server, uint32_t worker);
/* Names those workers; "" if there are none. */
void rdti_ps_holders_text(const rdt_ps_server *server, char out[RDTI_PS_TEXT_BYTES]);

/* leases.c; under server->lock */
/* Gives the leases that can be given. */
void rdti_ps_leases_advance(rdt_ps_server *server);
/* All servers have answered the tick of the worker's chunk. */
void rdti_ps_leases_confirm(rdt_ps_server *server, uint32_t worker);
/* Ends everything: the reason goes to all. */
void rdti_ps_server_fail(rdt_ps_server *server, const struct rdt_error *err);

/* dense.c; under server->lock */
/* Whether dense models have changed since their values were sent to the worker. */
bool rdti_ps_dense_is_stale(const rdt_ps_server *server, uint32_t worker);
/* Writes those values, before the answer that says so. */
void rdti_ps_dense_bring(rdt_ps_server *server, uint32_t worker);
/* The worker may have none of those values. */
void rdti_ps_dense_forget(rdt_ps_server *server, uint32_t worker);
/* The worker has those values from the primary. */
void rdti_ps_dense_skip(rdt_ps_server *server, uint32_t worker);

/* replica.c; under server->lock */
/* RDT_ESTALE: this is a backup, which may be behind, and the worker has the primary. */
rdt_status rdti_ps_replica_check_reader(const rdt_ps_server *server, uint32_t worker,
                                        struct rdt_error *err);
/* The worker has lost the primary. RDT_EPROTO: this is not a backup. */
rdt_status rdti_ps_replica_switch(rdt_ps_server *server, uint32_t worker, uint32_t slot,
                                  struct rdt_error *err);
/* The other replica has leased the request's chunk to the worker. The queue exists. */
rdt_status rdti_ps_replica_take(rdt_ps_server *server, uint32_t worker, uint32_t slot,
                                const struct rdti_ps_request *request, struct rdt_error *err);

/* cut.c; under server->lock */
rdt_status rdti_ps_cut_init(rdt_ps_server *server, struct rdt_error *err);
void rdti_ps_cut_free(rdt_ps_server *server);
/* Whether an arrival waits for the cut. */
bool rdti_ps_cut_defers(rdt_ps_server *server, const struct rdti_ps_arrival *arrival);
/* Cuts, if all steps are there. */
void rdti_ps_cut_advance(rdt_ps_server *server);

/* requests.c; under server->lock */
void rdti_ps_request_handle(rdt_ps_server *server, uint32_t worker, uint32_t slot);
void rdti_ps_request_end(rdt_ps_server *server, uint32_t worker);

#endif
