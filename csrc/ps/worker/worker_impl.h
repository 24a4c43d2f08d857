/* SPDX-License-Identifier: Apache-2.0
 * The body of a worker, for the files that are the worker. One thread at a time.
 *
 * Server s is reached by connection s, and its backup, if there are replicas, by connection
 * servers + s. Arrays "of servers" have servers entries, those "of connections" conn_count. */
#ifndef RDTI_PS_WORKER_WORKER_IMPL_H
#define RDTI_PS_WORKER_WORKER_IMPL_H

#include <stdbool.h>

#include "ps/model/map.h"
#include "ps/model/merge.h"
#include "wire/ps/answer.h"

enum { RDTI_PS_WORKER_TABLES_MAX = 4096 };

/* What an answer is for. */
enum {
    RDTI_PS_FREE = 0, /* the slot holds no request */
    RDTI_PS_FOR_PUSH,
    RDTI_PS_FOR_PULL,
    RDTI_PS_FOR_TICK,
    RDTI_PS_FOR_CALL,
    RDTI_PS_FOR_LEASE,
    RDTI_PS_FOR_LEAVE,
    RDTI_PS_FOR_VALUES,  /* part of a tick */
    RDTI_PS_FOR_HOLDERS, /* the operation does not wait for it */
    RDTI_PS_FOR_SWITCH,  /* to a backup, before what else it gets */
    RDTI_PS_FOR_TAKE,    /* part of a lease */
};

struct rdti_ps_worker_slot {
    uint32_t purpose;
    bool is_given_up; /* its answer is dropped */
    uint64_t sequence;
    uint64_t first; /* RDTI_PS_FOR_PULL: of its ids in the operation's order */
    uint64_t count;
};

/* The connection to one server. */
struct rdti_ps_conn {
    rdt_endpoint *ep; /* NULL until it is attached */
    struct rdt_remote_region inbox;
    uint8_t *mapped;     /* the inbox in this process, or NULL */
    rdt_region *staging; /* the requests, where the inbox is not mapped */
    rdt_region *outbox;
    struct rdti_ps_worker_slot slots[RDTI_PS_SLOTS_MAX];
    uint64_t sequence;
    uint32_t in_flight;    /* slots that are not free */
    uint32_t of_operation; /* of them, those whose answer the operation needs */
    uint32_t pushes;       /* of them, pushes */
    bool has_failed;       /* the server has said that it ends the job */
    bool has_let_go;       /* it has answered this worker's leave, and may be gone */
    bool is_lost;          /* it is gone, and the other replica goes on */
    bool owes_switch;      /* a backup that this worker reads from, and that does not know yet */
    bool is_switched;      /* it knows */
};

struct rdti_ps_view {
    struct rdt_ps_table_opts opts;
    struct rdti_ps_map map;
    uint32_t *ids;                     /* its number, of connections */
    const uint8_t **rows;              /* of connections: mapped, or NULL; reads use the first */
    const _Atomic uint32_t **versions; /* the same; RDT_PS_ROW */
    bool is_mapped;                    /* on all servers that are read from */
    bool is_pushed;                    /* since the last tick */
};

/* A dense model. */
struct rdti_ps_gradients {
    const float *floats;
    uint64_t *starts;                /* servers + 1 */
    uint32_t *ids;                   /* of connections */
    struct rdt_remote_region *slots; /* the same */
    bool is_pushed;                  /* since the last tick */
};

/* A lease from server 0's replicas: 0 is the primary, 1 the backup. */
struct rdti_ps_leasing {
    bool is_asked[2];
    bool has_answer[2];
    struct rdti_ps_lease answers[2];
    bool is_decided; /* by `giver`; the other one takes its decision */
    bool is_taken;   /* the other one was asked to */
    uint32_t giver;
};

/* The operation in flight. */
struct rdti_ps_operation {
    uint32_t purpose; /* RDTI_PS_FOR_*, or RDTI_PS_FREE */
    struct rdti_ps_view *view;
    const int64_t *ids; /* RDTI_PS_FOR_PULL: the caller's */
    float *out;
    uint8_t *found;    /* or NULL */
    const float *rows; /* RDTI_PS_FOR_PUSH: of ids[i] at rows + i * dim, or of the merge */
    double lr_scale;
    uint32_t server; /* RDTI_PS_FOR_CALL */
    const uint8_t *bytes;
    uint64_t len_bytes;
    uint8_t *answer;
    uint64_t cap;
    uint64_t *len_out;
    uint64_t *chunk_out; /* RDTI_PS_FOR_LEASE */
    uint32_t *stale_out;
    struct rdti_ps_leasing leasing;
    uint64_t primary_ns;    /* RDTI_PS_FOR_TICK: when the last one that is read from had answered */
    rdt_transfer *span;     /* its entry in the trace; NULL without memory */
    uint64_t asked_ns;      /* since when it waits, or when it asked for who holds it; 0: neither */
    uint32_t next;          /* requests of a tick, call, lease or leave that were posted */
    struct rdt_error error; /* of the first answer that was one */
};

struct rdt_ps_worker {
    rdt_context *ctx;
    struct rdt_ps_worker_opts opts;
    const struct rdti_ps_kernels *kernels;
    struct rdti_ps_conn *conns;
    uint32_t conn_count;
    uint32_t *active;   /* of servers: the connection that is read from */
    uint32_t losses;    /* connections without which this worker goes on */
    uint64_t backup_ns; /* that ticks have waited for backups alone */
    struct rdti_ps_view *views[RDTI_PS_WORKER_TABLES_MAX];
    uint32_t view_count;
    struct rdti_ps_gradients dense[RDTI_PS_DENSE_MAX];
    uint32_t dense_count;
    uint64_t clock;
    uint64_t age; /* of the oldest rows that the step uses, in ticks */
    bool has_left;
    bool is_given_up; /* the failure is an operation of this worker that was given up */
    bool has_chunk;   /* leased, and not ended by a tick */
    uint32_t *queues; /* of that chunk, or of the lease in flight: its number, of connections */
    uint64_t chunk;
    uint32_t members_bytes; /* of the round in which it was leased */
    uint8_t members[RDTI_PS_MEMBERS_BYTES];
    struct rdti_ps_merge merge;
    struct rdti_ps_operation op;
    /* Indices of the operation's ids, sorted by server; those of server s begin at starts[s]. */
    uint64_t *order;
    uint64_t order_room;
    uint64_t *starts;            /* servers + 1 */
    uint64_t *cursors;           /* of connections */
    struct rdt_error push_error; /* the first since the last tick */
    struct rdt_error ended;      /* what the first server that ended the job has said */
    struct rdt_error failure;
    struct rdt_error scrap;
    char holders[RDTI_PS_TEXT_BYTES]; /* of the operation in flight, as a server said */
};

/* conn.c; `server` is the number of a connection */
/* A free slot, or RDT_EAGAIN. */
rdt_status rdti_ps_conn_find_slot(struct rdt_ps_worker *worker, uint32_t server, uint32_t *out);
/* Where the slot's payload is written before rdti_ps_conn_post(). */
uint8_t *rdti_ps_conn_payload(struct rdt_ps_worker *worker, uint32_t server, uint32_t slot);
/* Sends the request in this slot; the sequence is filled in. */
rdt_status rdti_ps_conn_post(struct rdt_ps_worker *worker, uint32_t server, uint32_t slot,
                             struct rdti_ps_request *request, uint32_t purpose,
                             struct rdt_error *err);
/* Takes what a server has announced: an answer, or the reason why it ends (RDT_EPEER). RDT_EPROTO:
 * bytes that no server sends. */
rdt_status rdti_ps_conn_take(struct rdt_ps_worker *worker, uint32_t server, uint32_t notification,
                             struct rdt_error *err);
/* Takes what a server has sent; waits for at least one if wait_ns is not 0. RDT_ETIMEDOUT. */
rdt_status rdti_ps_conn_receive(struct rdt_ps_worker *worker, uint32_t server, uint64_t wait_ns,
                                struct rdt_error *err);

/* replicas.c */
/* The connection of the same server's other replica; without replicas the same one. */
uint32_t rdti_ps_replicas_other(const struct rdt_ps_worker *worker, uint32_t conn);
/* A connection has failed with this status. RDT_OK: the worker goes on with the other replica; else
 * the status with which the operation ends. */
rdt_status rdti_ps_replicas_lose(struct rdt_ps_worker *worker, uint32_t conn, rdt_status status,
                                 struct rdt_error *err);
/* A tick was answered; all of one were. */
void rdti_ps_replicas_ticked(struct rdt_ps_worker *worker, uint32_t conn);
void rdti_ps_replicas_end_tick(struct rdt_ps_worker *worker);
/* Tells backups that this worker has lost their primaries. RDT_EAGAIN: *blocked has no slot. */
rdt_status rdti_ps_replicas_send(struct rdt_ps_worker *worker, uint32_t *blocked,
                                 struct rdt_error *err);

/* leasing.c */
/* Sends what a lease needs next. RDT_EAGAIN: *blocked has no free slot. */
rdt_status rdti_ps_leasing_send(struct rdt_ps_worker *worker, uint32_t *blocked,
                                struct rdt_error *err);
void rdti_ps_leasing_answered(struct rdt_ps_worker *worker, uint32_t conn, const uint8_t *payload,
                              uint32_t payload_bytes);
/* A replica of server 0 is lost. */
void rdti_ps_leasing_lose(struct rdt_ps_worker *worker);
/* The operation is over, without an error. */
void rdti_ps_leasing_end(struct rdt_ps_worker *worker);

/* rows.c */
/* The rows of a pull that were asked of a lost server are asked of the other replica. */
void rdti_ps_rows_restart(struct rdt_ps_worker *worker, uint32_t server);
/* The view's rows of this server are read from its active connection. */
void rdti_ps_rows_switch(struct rdt_ps_worker *worker, struct rdti_ps_view *view, uint32_t server);
/* Sends as much of a pull or push as a connection has slots for. RDT_EAGAIN: there is more. */
rdt_status rdti_ps_rows_send(struct rdt_ps_worker *worker, uint32_t conn, struct rdt_error *err);
/* The answer to a pull. RDT_EPROTO: it has another size. */
rdt_status rdti_ps_rows_scatter(struct rdt_ps_worker *worker,
                                const struct rdti_ps_worker_slot *slot, const uint8_t *payload,
                                uint32_t payload_bytes);

/* gradients.c */
void rdti_ps_gradients_free(struct rdt_ps_worker *worker);

/* operation.c */
/* Takes what servers have sent, without waiting. RDT_EPEER: one is gone, or has failed. */
rdt_status rdti_ps_operation_poll(struct rdt_ps_worker *worker, struct rdt_error *err);
/* Whether operations are possible: the reason why not. */
rdt_status rdti_ps_operation_check(const struct rdt_ps_worker *worker, uint32_t purpose,
                                   struct rdt_error *err);
/* RDT_EBUSY: one is in flight. */
/* len_bytes: of its payload, for the trace. */
rdt_status rdti_ps_operation_begin(struct rdt_ps_worker *worker, uint32_t purpose,
                                   uint64_t len_bytes, struct rdt_error *err);
/* An answer to the operation in flight; its payload is read in place. */
/* It is over, or given up: another one may begin. */
void rdti_ps_operation_finish(struct rdt_ps_worker *worker, rdt_status status);
void rdti_ps_operation_answered(struct rdt_ps_worker *worker, uint32_t conn,
                                const struct rdti_ps_worker_slot *slot, rdt_status status,
                                const uint8_t *payload, uint32_t payload_bytes);

#endif
