/* SPDX-License-Identifier: Apache-2.0
 *
 * coll.h - one collective in flight, and the interface of the algorithms that can carry it out.
 *
 *   state     leaves by
 *   RUNNING   the algorithm is done -> FINISHED (RDT_OK)
 *             a step fails, the group is broken, the deadline passed -> DRAINING
 *   DRAINING  nothing of it touches a buffer any more -> FINISHED (the first error)
 *   FINISHED  the starter and the task have both let go -> freed
 *
 * A collective is driven by its starter, once, and by a task of the context. Both go through
 * `turn`, so that one of them at a time works on it and neither waits for the other.
 */
#ifndef RDTI_COLLECTIVES_COLL_H
#define RDTI_COLLECTIVES_COLL_H

#include <stdatomic.h>
#include <stdbool.h>

#include "collectives/reduce_kernels.h"
#include "collectives/schedule.h"
#include "rdmatensor.h"

struct rdti_coll;

/*
 * A way to carry out one operation. All members must choose the same one: the choice hangs on
 * nothing but what they agree on. prepare() runs in the caller's thread and may wait, for endpoints
 * and maps; the others run in whatever thread drives and must not.
 */
struct rdti_coll_algorithm {
    const char *name;
    /* All-or-nothing. Afterwards the arrays of coll->args are gone. */
    rdt_status (*prepare)(struct rdti_coll *coll, struct rdt_error *err);
    /* RDT_OK done, RDT_EAGAIN in flight, or the error that ended it. */
    rdt_status (*advance)(struct rdti_coll *coll, struct rdt_error *err);
    /* Nothing in flight reads or writes a buffer; asked after a failure only. */
    bool (*is_quiet)(struct rdti_coll *coll);
    /* What it waits for right now, e.g. "nothing from rank 3"; for messages. */
    void (*describe)(const struct rdti_coll *coll, char *text, size_t cap);
    /* Undoes prepare(); quiet or done. */
    void (*release)(struct rdti_coll *coll);
};

enum { RDTI_COLL_RUNNING = 0, RDTI_COLL_DRAINING, RDTI_COLL_FINISHED };

struct rdti_coll {
    const struct rdti_coll_algorithm *algorithm;
    rdt_group *group; /* untouched once FINISHED: the user may destroy it then */
    struct rdt_coll_args args;
    uint32_t rank;
    uint32_t size;
    uint64_t elem_bytes;  /* 0 for a barrier */
    uint64_t block_bytes; /* of args.count elements */
    rdti_reduce_fn reduce;
    rdti_divide_fn divide; /* NULL unless the operation is an average */
    uint64_t sequence;
    uint64_t start_ns;
    uint64_t timeout_ns;
    rdt_transfer *transfer;
    struct rdti_schedule schedule;
    int state;
    struct rdt_error error; /* from DRAINING on */
    atomic_uint turn;
    atomic_uint refs;
};

/* coll_args.c: checks args and fills coll->args and all that follows from it but the schedule. */
rdt_status rdti_coll_accept(struct rdti_coll *coll, rdt_group *group,
                            const struct rdt_coll_args *args, struct rdt_error *err);
/* "rank 1", or, where the job counts otherwise, "rank 1 (global rank 3)", as the core names
 * members. */
#define RDTI_COLL_RANK_BYTES 48
struct rdti_coll_rank {
    char text[RDTI_COLL_RANK_BYTES];
};
struct rdti_coll_rank rdti_coll_rank_name(const struct rdti_coll *coll, uint32_t rank);
/* "all_reduce"; "unknown" for what is none. */
const char *rdti_coll_name(uint32_t op);
/* Fills err, which may be NULL, and returns status. */
rdt_status rdti_coll_error_set(struct rdt_error *err, rdt_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* choose.c: never NULL for what rdti_coll_accept() let pass. */
const struct rdti_coll_algorithm *rdti_coll_choose(const struct rdti_coll *coll);

/* Algorithms that are schedules; each in the file that its comment names. */
extern const struct rdti_coll_algorithm rdti_broadcast_binomial;    /* tree.c */
extern const struct rdti_coll_algorithm rdti_reduce_binomial;       /* tree.c */
extern const struct rdti_coll_algorithm rdti_allreduce_doubling;    /* doubling.c */
extern const struct rdti_coll_algorithm rdti_allreduce_ring;        /* ring.c */
extern const struct rdti_coll_algorithm rdti_reduce_scatter_ring;   /* ring.c */
extern const struct rdti_coll_algorithm rdti_allgather_ring;        /* ring.c */
extern const struct rdti_coll_algorithm rdti_allgather_direct;      /* pairwise.c */
extern const struct rdti_coll_algorithm rdti_gather_direct;         /* pairwise.c */
extern const struct rdti_coll_algorithm rdti_scatter_direct;        /* pairwise.c */
extern const struct rdti_coll_algorithm rdti_alltoall_pairwise;     /* pairwise.c */
extern const struct rdti_coll_algorithm rdti_barrier_dissemination; /* doubling.c */

/* p + bytes, where p may be NULL for empty buffers. */
static inline void *
rdti_coll_at(void *p, uint64_t bytes)
{
    return bytes == 0 ? p : (uint8_t *)p + bytes;
}

static inline const void *
rdti_coll_at_const(const void *p, uint64_t bytes)
{
    return bytes == 0 ? p : (const uint8_t *)p + bytes;
}

/* The place of a member's block in the output of ALLGATHER and GATHER. */
static inline void *
rdti_coll_recv_block(const struct rdti_coll *coll, uint32_t member)
{
    if (coll->args.blocks != NULL)
        return coll->args.blocks[member];
    return rdti_coll_at(coll->args.recv, member * coll->block_bytes);
}

/* The block for a member in the input of SCATTER and REDUCE_SCATTER. */
static inline const void *
rdti_coll_send_block(const struct rdti_coll *coll, uint32_t member)
{
    if (coll->args.blocks != NULL)
        return coll->args.blocks[member];
    return rdti_coll_at_const(coll->args.send, member * coll->block_bytes);
}

/* (rank + by) and (rank - by) modulo the size; by is at most the size. */
static inline uint32_t
rdti_coll_after(const struct rdti_coll *coll, uint32_t by)
{
    return (uint32_t)(((uint64_t)coll->rank + by) % coll->size);
}

static inline uint32_t
rdti_coll_before(const struct rdti_coll *coll, uint32_t by)
{
    return (uint32_t)(((uint64_t)coll->rank + coll->size - by) % coll->size);
}

#endif
