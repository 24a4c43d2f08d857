/* SPDX-License-Identifier: Apache-2.0
 * The body of a worker, for the files that are the worker. One thread at a time. */
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
};

struct rdti_ps_view {
    struct rdt_ps_table_opts opts;
    struct rdti_ps_map map;
    uint32_t *ids;                     /* its number on each server */
    const uint8_t **rows;              /* on each server: mapped, or NULL */
    const _Atomic uint32_t **versions; /* the same; RDT_PS_ROW */
    bool is_mapped;                    /* on all servers */
    bool is_pushed;                    /* since the last tick */
};

/* A dense model. */
struct rdti_ps_gradients {
    const float *floats;
    uint64_t *starts; /* servers + 1 */
    uint32_t *ids;
    struct rdt_remote_region *slots;
    bool is_pushed; /* since the last tick */
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
    struct rdti_ps_view *views[RDTI_PS_WORKER_TABLES_MAX];
    uint32_t view_count;
    struct rdti_ps_gradients dense[RDTI_PS_DENSE_MAX];
    uint32_t dense_count;
    uint64_t clock;
    uint64_t age; /* of the oldest rows that the step uses, in ticks */
    bool has_left;
    bool is_given_up; /* the failure is an operation of this worker that was given up */
    bool has_chunk;   /* leased, and not ended by a tick */
    uint32_t *queues; /* of that chunk, or of the lease in flight: its number on each server */
    uint64_t chunk;
    uint32_t members_bytes; /* of the round in which it was leased */
    uint8_t members[RDTI_PS_MEMBERS_BYTES];
    struct rdti_ps_merge merge;
    struct rdti_ps_operation op;
    /* Indices of the operation's ids, sorted by server; those of server s begin at starts[s]. */
    uint64_t *order;
    uint64_t order_room;
    uint64_t *starts;            /* servers + 1 */
    uint64_t *cursors;           /* servers */
    struct rdt_error push_error; /* the first since the last tick */
    struct rdt_error ended;      /* what the first server that ended the job has said */
    struct rdt_error failure;
    struct rdt_error scrap;
    char holders[RDTI_PS_TEXT_BYTES]; /* of the operation in flight, as a server said */
};

/* conn.c */
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

/* rows.c */
/* Sends as much of a pull or push to one server as it has slots for. RDT_EAGAIN: there is more. */
rdt_status rdti_ps_rows_send(struct rdt_ps_worker *worker, uint32_t server, struct rdt_error *err);
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
void rdti_ps_operation_answered(struct rdt_ps_worker *worker, uint32_t server,
                                const struct rdti_ps_worker_slot *slot, rdt_status status,
                                const uint8_t *payload, uint32_t payload_bytes);

#endif
