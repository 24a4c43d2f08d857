/* SPDX-License-Identifier: Apache-2.0
 *
 * rdmatensor_ps.h - a parameter server on one-sided writes: tables of rows that servers hold and
 * update, and that workers pull and push.
 *
 *   rdt_ps_server  holds rows; a thread of its own applies what workers push
 *   rdt_ps_worker  a worker's connections to all servers
 *
 * A worker's request is one write into memory of the server that was announced once (the inbox),
 * with a notification; the answer is one write into memory of the worker (the outbox). A worker's
 * pushes are staged on the servers until its clock ticks, and applied then as one transaction for
 * each server. parameter-server.md has the rules.
 *
 * These calls have a version of their own, as those of rdmatensor_ext.h. The rules at the head of
 * rdmatensor.h hold here too; a call that waits ends with RDT_ETIMEDOUT and is continued by
 * rdt_ps_worker_resume().
 */
#ifndef RDMATENSOR_PS_H
#define RDMATENSOR_PS_H

#include "rdmatensor.h"

#define RDT_PS_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Rules ------------------------------------------------------------------------------- */

enum {
    RDT_PS_ASSIGN = 1,  /* the row becomes the pushed value */
    RDT_PS_ADD,         /* the pushed value is added */
    RDT_PS_SGD,         /* torch.optim.SGD, with weight decay */
    RDT_PS_MOMENTUM,    /* the same with momentum, and nesterov */
    RDT_PS_ADAGRAD,     /* torch.optim.Adagrad */
    RDT_PS_ROW_ADAGRAD, /* one float of state for a row: the sum of its gradients' mean squares */
    RDT_PS_LAZY_ADAM,   /* torch.optim.SparseAdam: only pushed rows change, one step count */
    RDT_PS_ADAM,        /* torch.optim.Adam, for tensors that change as a whole */
    RDT_PS_ADAMW,       /* torch.optim.AdamW */
    RDT_PS_CUSTOM       /* what rdt_ps_table_opts.apply does; only for tables */
};

struct rdt_ps_rule {
    uint32_t struct_size;
    uint32_t kind; /* RDT_PS_ASSIGN ... */
    uint32_t nesterov;
    uint32_t state_floats; /* RDT_PS_CUSTOM: of a row, at most RDT_PS_STATE_MAX; else 0 */
    double lr;
    double momentum;
    double weight_decay; /* of the rows that a push touches, when it touches them */
    double eps;
    double beta1;
    double beta2;
    double initial;  /* RDT_PS_ADAGRAD, RDT_PS_ROW_ADAGRAD, RDT_PS_CUSTOM: of their state */
    uint32_t is_sum; /* RDT_PS_CUSTOM: 1 if the pushes of several workers are not averaged */
    uint32_t reserved;
};
#define RDT_PS_STATE_MAX 1048576
/* RDT_EINVAL: a number out of range, or one that the kind does not use. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_rule_check(const struct rdt_ps_rule *rule,
                                                   struct rdt_error *err);
/*
 * Apply a rule to `count` elements in memory of the caller. state has the rule's arrays of count
 * floats, one after the other, or one float (RDT_PS_ROW_ADAGRAD). step: from 1 on. The three do not
 * overlap. RDT_EINVAL as rdt_ps_rule_check(), and for RDT_PS_CUSTOM.
 */
RDT_API RDT_NODISCARD rdt_status rdt_ps_rule_apply(const struct rdt_ps_rule *rule, uint64_t step,
                                                   double lr_scale, float *value, float *state,
                                                   const float *gradient, uint64_t count,
                                                   struct rdt_error *err);

/* Floats of state of `count` elements that are updated together. The rule is valid. */
RDT_API uint64_t rdt_ps_rule_state_floats(const struct rdt_ps_rule *rule, uint64_t count);

/* ---- Tables ------------------------------------------------------------------------------ */

enum { RDT_PS_INIT_ZERO = 0, RDT_PS_INIT_CONSTANT, RDT_PS_INIT_UNIFORM, RDT_PS_INIT_NORMAL };

enum {
    RDT_PS_KEYS_DENSE = 0, /* ids are 0 to rows - 1 */
    RDT_PS_KEYS_INT64      /* any 64 bits; a row is made when its key is pushed */
};
/* Which row of a table of keys makes room: see parameter-server.md. */
enum { RDT_PS_EVICT_LRU = 0, RDT_PS_EVICT_LFU, RDT_PS_EVICT_EPOCH };

/* What a worker sees of a row that it reads in a server's memory. */
enum {
    RDT_PS_RELAXED = 0, /* it may hold parts of two versions */
    RDT_PS_ROW,         /* one version */
};

/* Rows of one application of RDT_PS_CUSTOM: copies, each id once. */
struct rdt_ps_batch {
    uint32_t struct_size;
    uint32_t dim;
    uint64_t count;
    uint64_t state_floats; /* of a row */
    uint64_t step;         /* applications of the table so far, with this one */
    double lr_scale;
    float *values;    /* count x dim; as the rows become */
    float *state;     /* count x state_floats; the same */
    float *gradients; /* count x dim; may be used as scratch */
};
/* Changes values and state. The server's thread calls it with the server's lock held: it calls no
 * function of this server. If it does not return RDT_OK, no row is changed, and the server fails
 * with err. */
typedef int32_t (*rdt_ps_apply)(void *arg, const struct rdt_ps_batch *batch, struct rdt_error *err);

/* The same on all servers and workers, but for spill and apply. */
struct rdt_ps_table_opts {
    uint32_t struct_size;
    uint32_t dim;  /* floats of a row */
    uint64_t rows; /* of all servers: ids are 0 to rows - 1; 0 with keys */
    struct rdt_ps_rule rule;
    uint32_t init;        /* RDT_PS_INIT_*: of the rows, from their ids and the seed alone */
    uint32_t consistency; /* RDT_PS_RELAXED or RDT_PS_ROW */
    uint64_t seed;
    double init_from;     /* the constant; the least value; the mean */
    double init_to;       /* the bound; the standard deviation */
    uint32_t keys;        /* RDT_PS_KEYS_*; the next four are for RDT_PS_KEYS_INT64, else 0 */
    uint32_t evict;       /* RDT_PS_EVICT_* */
    uint32_t admit_after; /* steps in which a key is pushed before it gets a row; from 1 on */
    uint32_t reserved2;
    uint64_t expire_after; /* steps without a push after which a key is forgotten; 0: never */
    uint64_t capacity;     /* rows of all servers, which each has its part of; 0: no limit */
    uint64_t
        memory_bytes;   /* 0; or of rows in the arenas of all servers: the others are in a file */
    const char *spill;  /* servers: the folder of that file; workers: NULL */
    rdt_ps_apply apply; /* servers with RDT_PS_CUSTOM; else NULL */
    void *apply_arg;    /* lives as long as the server */
};
#define RDT_PS_DIM_MAX 65536

/* ---- Servers ----------------------------------------------------------------------------- */

typedef struct rdt_ps_server rdt_ps_server;
typedef struct rdt_ps_worker rdt_ps_worker;

enum { RDT_PS_SYNC = 1, RDT_PS_ASYNC, RDT_PS_SSP };

struct rdt_ps_server_opts {
    uint32_t struct_size;
    uint32_t mode;      /* RDT_PS_SYNC ... */
    uint32_t staleness; /* RDT_PS_SSP: clocks by which a worker may be ahead of the slowest */
    uint32_t index;     /* of this server, from 0 on */
    uint32_t servers;
    uint32_t workers;
    uint32_t slots;      /* requests in flight of one worker; 2 to 64 */
    uint32_t slot_bytes; /* payload of one request; a multiple of 64 */
    uint32_t goes_on;    /* 1: the others continue if a worker dies; 0: all end with RDT_EPEER */
    uint32_t is_backup;  /* 1: the second replica of what server `index` has; see "Replicas" */
    uint64_t staged_max_bytes; /* of one worker's pushes between two ticks; 0: 1 GiB */
};
/* RDT_EINVAL a field is out of range   RDT_ENOMEM as rdt_region_alloc() */
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_create(rdt_context *ctx,
                                                      const struct rdt_ps_server_opts *opts,
                                                      rdt_ps_server **out, struct rdt_error *err);
/* The memory into which a worker writes its requests. RDT_EINVAL: the worker. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_inbox(rdt_ps_server *server, uint32_t worker,
                                                     struct rdt_remote_region *out,
                                                     struct rdt_error *err);
/* The server's connection to a worker, and where its answers go. From now on the server takes the
 * endpoint's notifications; the caller keeps the endpoint open until rdt_ps_server_destroy().
 * RDT_EINVAL: no such worker, it is attached, or an outbox of another size. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_attach(rdt_ps_server *server, uint32_t worker,
                                                      rdt_endpoint *ep,
                                                      const struct rdt_remote_region *outbox,
                                                      struct rdt_error *err);
/* A new table; its rows get their first values before the call returns. out: for workers.
 *   RDT_EINVAL   RDT_ENOMEM as rdt_region_alloc(): nothing was changed */
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_add_table(rdt_ps_server *server,
                                                         const struct rdt_ps_table_opts *opts,
                                                         uint32_t *id_out,
                                                         struct rdt_remote_region *rows_out,
                                                         struct rdt_error *err);
/* Of a table with keys or a file, on one server. */
struct rdt_ps_table_counters {
    uint32_t struct_size;
    uint32_t epoch;
    uint64_t rows;     /* keys that have one */
    uint64_t filtered; /* keys that were pushed, and have none yet */
    uint64_t capacity;
    uint64_t hits;   /* pulls of rows that were there */
    uint64_t misses; /* and of those that were not: first values */
    uint64_t admissions;
    uint64_t evictions;
    uint64_t expirations;
    uint64_t forgotten;    /* filtered keys that made room for others */
    uint64_t memory_bytes; /* of rows and their state in the arena */
    uint64_t index_bytes;  /* of keys, on the heap */
    uint64_t file_bytes;
    uint64_t file_reads;
    uint64_t file_writes;
};
/* The caller sets out->struct_size. RDT_EINVAL: no such table. Any thread. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_table_counters(rdt_ps_server *server, uint32_t id,
                                                              struct rdt_ps_table_counters *out,
                                                              struct rdt_error *err);
/* The epoch of pushes from now on, for RDT_PS_EVICT_EPOCH; it never falls. RDT_EINVAL: no such
 * table, or one without keys. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_set_epoch(rdt_ps_server *server, uint32_t id,
                                                         uint32_t epoch, struct rdt_error *err);
/* A server's part of a dense model: a span of its parameters, which are one array. */
struct rdt_ps_dense_opts {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t count;          /* floats of this server's part */
    uint64_t params_off;     /* floats before it in a worker's parameters */
    struct rdt_ps_rule rule; /* not RDT_PS_ROW_ADAGRAD, RDT_PS_LAZY_ADAM, RDT_PS_CUSTOM */
};
/* RDT_EINVAL, RDT_ENOMEM: nothing was changed. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_add_dense(rdt_ps_server *server,
                                                         const struct rdt_ps_dense_opts *opts,
                                                         uint32_t *id_out, struct rdt_error *err);
/* A worker's parameters, and where it writes its gradients. RDT_EINVAL: no such model or worker, or
 * too few parameters. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_attach_dense(rdt_ps_server *server, uint32_t id,
                                                            uint32_t worker,
                                                            const struct rdt_remote_region *params,
                                                            struct rdt_remote_region *slot_out,
                                                            struct rdt_error *err);
/* The first values are those that the worker has written in place of gradients. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_load_dense(rdt_ps_server *server, uint32_t id,
                                                          uint32_t worker, struct rdt_error *err);
/* Write the values into a worker's parameters; they are there when a later answer is. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_send_dense(rdt_ps_server *server, uint32_t id,
                                                          uint32_t worker, struct rdt_error *err);

/* A new queue of chunks, which workers lease from server 0; *id_out is from 1 on.
 * RDT_PS_CHUNKS_OPEN: none yet, and it is not over until rdt_ps_server_extend_queue() says so. */
#define RDT_PS_CHUNKS_OPEN UINT64_MAX
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_add_queue(rdt_ps_server *server, uint64_t chunks,
                                                         uint32_t *id_out, struct rdt_error *err);

/* An open queue has `chunks` of them from now on, which is at most 2^28 and not less than before;
 * server 0 gets them last, as it leases them. is_last: 1 if no more follow. RDT_EINVAL, RDT_ENOMEM:
 * nothing was changed. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_extend_queue(rdt_ps_server *server, uint32_t id,
                                                            uint64_t chunks, uint32_t is_last,
                                                            struct rdt_error *err);
/* The worker ends no steps: the others never wait for it. RDT_EINVAL: no such worker. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_observe(rdt_ps_server *server, uint32_t worker,
                                                       struct rdt_error *err);

/* A request for the program, see rdt_ps_worker_call(). */
struct rdt_ps_call {
    uint32_t worker;
    uint32_t slot;
    uint64_t sequence;
    uint64_t len_bytes;
};
/*
 * The next call of a worker, in the order of arrival; its bytes go to buf. Answer it.
 *   RDT_ETIMEDOUT   RDT_ECLOSED all workers have left or died   RDT_EPEER a worker died, and the
 *   server does not go on without it; at most once   RDT_EINVAL cap is less than a slot
 */
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_take(rdt_ps_server *server, uint64_t timeout_ns,
                                                    uint8_t *buf, size_t cap,
                                                    struct rdt_ps_call *out, struct rdt_error *err);
/* Answer with a result (status RDT_OK) or an error's text of len_bytes, at most a slot.
 * RDT_EINVAL: no such call waits. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_answer(rdt_ps_server *server,
                                                      const struct rdt_ps_call *call,
                                                      int32_t status, const uint8_t *bytes,
                                                      size_t len_bytes, struct rdt_error *err);

/* ---- Checkpoints --------------------------------------------------------------------------
 *
 * A checkpoint is cut at one vector of clocks: on all servers it has the same steps of each worker.
 * The one who takes it holds all servers, takes for each worker the most steps that any server has
 * applied, and cuts each server there. Steps that arrive meanwhile are carried out afterwards.
 * After the cut, rows are read while steps go on. */

/* Partition p of a table is on server p % servers, and has the ids p, p + RDT_PS_PARTITIONS, ... */
#define RDT_PS_PARTITIONS 1024
#define RDT_PS_NO_CLOCK UINT64_MAX
/* Steps of workers that arrive from now on wait for rdt_ps_server_cut(), or for this worker's end.
 * clocks_out[workers]: the steps that were applied; RDT_PS_NO_CLOCK: the worker has left or died.
 * RDT_EBUSY: steps are held already, or a checkpoint is read. RDT_ECLOSED: that worker is gone. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_hold(rdt_ps_server *server, uint32_t worker,
                                                    uint64_t *clocks_out, struct rdt_error *err);
/*
 * Apply the steps up to clocks[], which are not less than those that were returned, begin the
 * checkpoint, and hold no longer. Each RDT_PS_NO_CLOCK becomes the worker's steps.
 * applied_out: chunks of all queues that this server has applied. If it differs between servers, a
 * worker has died within a step, and a later checkpoint is possible when another one has repeated
 * it.
 *   RDT_ETIMEDOUT steps have not arrived: call again, or rdt_ps_server_release()
 *   RDT_ECANCELED a worker has died, and other steps were applied   RDT_ENOMEM   RDT_EINVAL nothing
 *   is held. After these nothing is held, and no checkpoint was begun.
 */
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_cut(rdt_ps_server *server, uint64_t *clocks,
                                                   uint32_t is_increment, uint64_t timeout_ns,
                                                   uint64_t *applied_out, struct rdt_error *err);
/* Hold no longer. Legal if nothing is held. */
RDT_API void rdt_ps_server_release(rdt_ps_server *server);
/* Bytes of one record that rdt_ps_server_read_rows() gives. RDT_EINVAL: no such table. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_record_bytes(rdt_ps_server *server, uint32_t table,
                                                            uint64_t *bytes_out,
                                                            struct rdt_error *err);
/*
 * The next records of a partition: 8 bytes of id, the row's floats, its state's floats, and no gap.
 * With keys there follow 8 bytes of the step of its last push, 8 of that push's number, and 4 each
 * of the count of such steps, the epoch, whether it has a row, and 0; an increment has all of them.
 * The caller sets *next to 0, and reads partitions in ascending order, each until *len_out is 0. An
 * increment has the rows that have changed since the last full checkpoint that was saved.
 *   RDT_EINVAL no checkpoint has it   RDT_ERANGE cap is less than a record
 *   RDT_ENOMEM there was no memory for rows that have changed meanwhile: the checkpoint is lost
 */
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_read_rows(rdt_ps_server *server, uint32_t table,
                                                         uint32_t partition, uint64_t *next,
                                                         uint8_t *buf, uint64_t cap,
                                                         uint64_t *len_out, struct rdt_error *err);
/* Elements of a dense model: array 0 has the values, the others the rule's state. RDT_EINVAL. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_read_dense(rdt_ps_server *server, uint32_t id,
                                                          uint32_t array, uint64_t first,
                                                          uint64_t count, float *out,
                                                          struct rdt_error *err);
/* Of each chunk 1 if it was applied, else 0. RDT_EINVAL: also if it has not `chunks` of them. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_read_queue(rdt_ps_server *server, uint32_t id,
                                                          uint8_t *out, uint64_t chunks,
                                                          struct rdt_error *err);
enum { RDT_PS_TABLE = 1, RDT_PS_DENSE };
/* Applications of the rule until the cut. RDT_EINVAL. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_read_step(rdt_ps_server *server, uint32_t kind,
                                                         uint32_t id, uint64_t *step_out,
                                                         struct rdt_error *err);
/* The checkpoint was read. is_saved: it is safe; else its rows are part of the next increment. */
RDT_API void rdt_ps_server_end_cut(rdt_ps_server *server, uint32_t is_saved);

/* Put back what was read, before a worker uses it. RDT_EINVAL: it is not of this server. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_write_rows(rdt_ps_server *server, uint32_t table,
                                                          const uint8_t *records, uint64_t count,
                                                          struct rdt_error *err);
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_write_dense(rdt_ps_server *server, uint32_t id,
                                                           uint32_t array, uint64_t first,
                                                           uint64_t count, const float *in,
                                                           struct rdt_error *err);
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_write_queue(rdt_ps_server *server, uint32_t id,
                                                           const uint8_t *in, uint64_t chunks,
                                                           struct rdt_error *err);
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_write_step(rdt_ps_server *server, uint32_t kind,
                                                          uint32_t id, uint64_t step,
                                                          struct rdt_error *err);
/* The steps of each worker so far; before one is attached. */
RDT_API void rdt_ps_server_write_clocks(rdt_ps_server *server, const uint64_t *clocks);

#define RDT_PS_STALENESS_BUCKETS 16
struct rdt_ps_server_counters {
    uint32_t struct_size;
    uint32_t tables;
    uint64_t requests;
    uint64_t replays; /* requests that had been carried out before */
    uint64_t refused; /* requests that were answered with an error */
    uint64_t pushed_rows;
    uint64_t pulled_rows; /* by request; rows that workers read in mapped memory are not counted */
    uint64_t applied_rows;
    uint64_t ticks;
    uint64_t rounds;     /* RDT_PS_SYNC */
    uint64_t rows_bytes; /* of values, on this server */
    uint64_t state_bytes;
    uint64_t staged_bytes; /* pushed and not applied yet */
    uint64_t apply_ns;     /* time of the server's thread in applying */
    uint32_t workers_in;   /* that have neither left nor died */
    uint32_t workers_dead;
    /* Ticks of other workers that were applied between two of a worker; the last: all larger. */
    uint64_t staleness[RDT_PS_STALENESS_BUCKETS];
    uint64_t queued;   /* requests that have arrived and are not begun */
    uint64_t switches; /* of a backup: workers that read from it, as the primary is lost */
};
/* The caller sets out->struct_size. Any thread. */
RDT_API void rdt_ps_server_counters(rdt_ps_server *server, struct rdt_ps_server_counters *out);

enum {
    RDT_PS_PART_ABSENT = 0, /* nothing has come from it */
    RDT_PS_PART_IN,
    RDT_PS_PART_PARKED, /* waits for a lease: it holds no other */
    RDT_PS_PART_LEFT,
    RDT_PS_PART_DEAD
};
/* A worker, as a server sees it. */
struct rdt_ps_part {
    uint32_t struct_size;
    uint32_t part;       /* RDT_PS_PART_* */
    uint32_t is_waiting; /* for the answer to a tick or a lease */
    uint32_t reserved;
    uint64_t clock; /* ticks so far */
    uint64_t requests;
    uint64_t staged_bytes; /* pushed since its last tick */
    uint64_t quiet_ns;     /* since its last request */
};
/* The caller sets out->struct_size. Any thread. RDT_EINVAL: no such worker. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_server_part(rdt_ps_server *server, uint32_t worker,
                                                    struct rdt_ps_part *out, struct rdt_error *err);
/* Ends the server's thread and frees the rows. NULL is legal. */
RDT_API void rdt_ps_server_destroy(rdt_ps_server *server);

/* ---- Workers ----------------------------------------------------------------------------- */

/*
 * Replicas. With replicas, a worker has two connections for each of `servers` servers: connection s
 * is to server s's primary, and connection servers + s to its backup. Calls that take a `server`,
 * or arrays by server, then mean connections: `servers` primaries, and as many backups. A worker
 * sends each push, tick and leave to both, and pulls from the primary. If it loses one of the two,
 * the operation in flight goes on with the other one; if it loses both, the operation ends with
 * RDT_EPEER. A call is for one of the two: RDT_ECANCELED says that this one is lost, and may have
 * carried it out, and that the worker goes on with the other one. In RDT_PS_SYNC the two hold the
 * same bits while no worker dies. In the other modes each push counts once on both, in an order of
 * their own.
 */

struct rdt_ps_worker_opts {
    uint32_t struct_size;
    uint32_t mode; /* the next five as for the servers */
    uint32_t staleness;
    uint32_t index; /* of this worker */
    uint32_t servers;
    uint32_t slots;
    uint32_t slot_bytes;
    uint32_t maps;     /* 1: rows and inboxes of servers on this host are mapped; 0: never */
    uint32_t replicas; /* 0, or 1: each server has a backup; see "Replicas" */
    uint32_t reserved;
};
/* One thread at a time uses a worker and its tables. RDT_EINVAL, RDT_ENOMEM as of the server. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_worker_create(rdt_context *ctx,
                                                      const struct rdt_ps_worker_opts *opts,
                                                      rdt_ps_worker **out, struct rdt_error *err);
/* The memory into which a server writes its answers. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_worker_outbox(rdt_ps_worker *worker, uint32_t server,
                                                      struct rdt_remote_region *out,
                                                      struct rdt_error *err);
/* As rdt_ps_server_attach(). Waits for the connection. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_worker_attach(rdt_ps_worker *worker, uint32_t server,
                                                      rdt_endpoint *ep,
                                                      const struct rdt_remote_region *inbox,
                                                      struct rdt_error *err);
/* A table that all servers have: its number and rows on each of them. Not for pulls and pushes in
 * flight. RDT_EINVAL: regions of another size than the table's. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_worker_add_table(
    rdt_ps_worker *worker, const struct rdt_ps_table_opts *opts, const uint32_t *ids,
    const struct rdt_remote_region *rows, uint32_t *table_out, struct rdt_error *err);
/* The gradients of a dense model: `floats` in memory of the caller, which lives as long as the
 * worker; those from starts[s] to before starts[s + 1] go to slots[s] of server s, where the model
 * has the number ids[s]. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_worker_add_dense(
    rdt_ps_worker *worker, const float *gradients, uint64_t floats, const uint64_t *starts,
    const uint32_t *ids, const struct rdt_remote_region *slots, uint32_t *dense_out,
    struct rdt_error *err);
/* Start to write `count` gradients, or first values (rdt_ps_server_load_dense()), from `first` on:
 * one write for each server that has some of them, without a notification. A later write of the
 * same ones replaces them. RDT_EBUSY: an operation is in flight. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_worker_push_dense(rdt_ps_worker *worker, uint32_t dense,
                                                          uint64_t first, uint64_t count,
                                                          struct rdt_error *err);
/* The next tick applies the gradients that were written. They must not change until it returns;
 * then the new values are in the worker's parameters. Errors as above. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_worker_commit_dense(rdt_ps_worker *worker, uint32_t dense,
                                                            struct rdt_error *err);
/*
 * Operations of a worker. One that ends with RDT_ETIMEDOUT is in flight, with the caller's memory:
 * continue it by rdt_ps_worker_resume() with the same meaning, or give it up by
 * rdt_ps_worker_abandon(). Another operation meanwhile: RDT_EBUSY.
 *   RDT_EINVAL  an argument; an id out of range: nothing was sent
 *   RDT_EPEER   a server died, or a worker without which the job ends
 *   RDT_EPROTO, RDT_EMISMATCH, RDT_ENOMEM: a server refused; push's errors come with the next
 *   push, where it sends nothing, and with the next tick
 */

/* The rows of `count` ids into out[count][dim]. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_worker_pull(rdt_ps_worker *worker, uint32_t table,
                                                    const int64_t *ids, uint64_t count, float *out,
                                                    uint64_t timeout_ns, struct rdt_error *err);
/* The same, and found[count]: 1 if the row was there, 0 if it has its first values. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_worker_find(rdt_ps_worker *worker, uint32_t table,
                                                    const int64_t *ids, uint64_t count, float *out,
                                                    uint8_t *found, uint64_t timeout_ns,
                                                    struct rdt_error *err);
/* Rows for ids, which may repeat: they are merged before they are sent. When it returns RDT_OK, the
 * memory may be used again; the rows are applied after the next tick. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_worker_push(rdt_ps_worker *worker, uint32_t table,
                                                    const int64_t *ids, const float *rows,
                                                    uint64_t count, uint64_t timeout_ns,
                                                    struct rdt_error *err);
/* End a step: apply what was pushed since the last tick, and wait as the mode says. lr_scale
 * multiplies the rules' learning rates. If a server refused a push of the step, all servers drop
 * the step, its chunk is free again, and the tick ends with that error. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_worker_tick(rdt_ps_worker *worker, double lr_scale,
                                                    uint64_t timeout_ns, struct rdt_error *err);
/* The step uses rows that were pulled when the clock was `clock`; the next tick tells the servers,
 * which count its staleness from there. RDT_EINVAL: a later clock than the worker's. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_worker_use(rdt_ps_worker *worker, uint64_t clock,
                                                   struct rdt_error *err);
/* The next tick drops what was pushed since the last one, as if a server had refused it, and ends
 * with RDT_ECANCELED: its chunk is free again. Changes nothing of a tick that has timed out. */
RDT_API void rdt_ps_worker_drop(rdt_ps_worker *worker);
/* Send bytes to the program that runs a server, and get its answer, at most a slot of each. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_worker_call(rdt_ps_worker *worker, uint32_t server,
                                                    const uint8_t *bytes, uint64_t len_bytes,
                                                    uint8_t *answer, uint64_t cap,
                                                    uint64_t *len_out, uint64_t timeout_ns,
                                                    struct rdt_error *err);
#define RDT_PS_CHUNK_NONE UINT64_MAX
/*
 * The next chunk of a queue: `ids` has the queue's number on each server. RDT_PS_CHUNK_NONE: all
 * are done. Waits while the rest is leased to others. The next tick says that the chunk is done:
 * its pushes are applied once, whatever dies. In RDT_PS_SYNC leases are given when all members wait
 * for one, in the order of their numbers; with several servers a tick without a chunk then ends the
 * job if another worker waits for a chunk. *stale_out: 1 if rounds without this worker have changed
 * dense models: have each server send its values (rdt_ps_server_send_dense()) before use.
 */
RDT_API RDT_NODISCARD rdt_status rdt_ps_worker_lease(rdt_ps_worker *worker, const uint32_t *ids,
                                                     uint64_t *chunk_out, uint32_t *stale_out,
                                                     uint64_t timeout_ns, struct rdt_error *err);
/* This worker ends: pushes without a tick are dropped, and the others do not wait for it. */
RDT_API RDT_NODISCARD rdt_status rdt_ps_worker_leave(rdt_ps_worker *worker, uint64_t timeout_ns,
                                                     struct rdt_error *err);
RDT_API RDT_NODISCARD rdt_status rdt_ps_worker_resume(rdt_ps_worker *worker, uint64_t timeout_ns,
                                                      struct rdt_error *err);
/* The operation in flight will not use the caller's memory any more. After a push, a tick, a lease
 * or a leave the servers' state is not known: all operations but leave end with RDT_ECANCELED. */
RDT_API void rdt_ps_worker_abandon(rdt_ps_worker *worker);
/* The ticks so far, of a checkpoint; before the first operation. */
RDT_API void rdt_ps_worker_write_clock(rdt_ps_worker *worker, uint64_t clock);
/* Ticks so far. */
RDT_API uint64_t rdt_ps_worker_clock(const rdt_ps_worker *worker);
/* 1 if the rows on this server are read in mapped memory. */
RDT_API uint32_t rdt_ps_worker_is_mapped(const rdt_ps_worker *worker, uint32_t server);
/* The connection that rows of this server are read from: `server`, or its backup's. */
RDT_API uint32_t rdt_ps_worker_active(const rdt_ps_worker *worker, uint32_t server);
/* 1 if this connection is lost, and the worker goes on without it. */
RDT_API uint32_t rdt_ps_worker_is_lost(const rdt_ps_worker *worker, uint32_t connection);
/* How many are. */
RDT_API uint32_t rdt_ps_worker_losses(const rdt_ps_worker *worker);
/* Time that this worker's ticks have waited for backups after all primaries had answered. */
RDT_API uint64_t rdt_ps_worker_backup_ns(const rdt_ps_worker *worker);
/* NULL is legal. */
RDT_API void rdt_ps_worker_destroy(rdt_ps_worker *worker);

#ifdef __cplusplus
}
#endif

#endif
