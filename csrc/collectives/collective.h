/* SPDX-License-Identifier: Apache-2.0
 * One collective in flight, and the interface of the algorithms that can carry it out.
 *
 *   state     leaves by
 *   RUNNING   the algorithm is done -> FINISHED (RDT_OK)
 *             a step fails, the group is broken, the deadline passed -> DRAINING
 *   DRAINING  nothing of it touches a buffer any more -> FINISHED (the first error)
 *   FINISHED  the starter and the task have both let go -> freed
 *
 * A collective is driven by its starter, once, and by a task of the context. Both take `turn`, so
 * that one of them at a time works on it and neither waits for the other.
 */
#ifndef RDTI_COLLECTIVES_COLLECTIVE_H
#define RDTI_COLLECTIVES_COLLECTIVE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "collectives/board/board.h"
#include "collectives/coalesce.h"
#include "collectives/lossy/lossy.h"
#include "collectives/reduce/kernels.h"
#include "collectives/schedule/schedule.h"
#include "rdmatensor.h"

struct rdti_coll;
struct rdti_hierarchy;
struct rdti_pack;
struct rdti_team;
struct rdt_persistent;

/*
 * A way to carry out one operation. All members must choose the same one: the choice depends only
 * on what they agree on. prepare() runs in the caller's thread and may wait for endpoints, unless
 * the group's are open already: then any thread that drives may call it. The others run in any
 * thread that drives and must not wait.
 */
struct rdti_coll_algorithm {
    const char *name;
    bool takes_turns;  /* it works on boards, or may do so later */
    bool is_on_boards; /* it waits for nothing but boards, so that its caller may spin */
    /* All-or-nothing. */
    rdt_status (*prepare)(struct rdti_coll *coll, struct rdt_error *err);
    /* RDT_OK done, RDT_EAGAIN in flight, or the error that ended it. */
    rdt_status (*advance)(struct rdti_coll *coll, struct rdt_error *err);
    /* Nothing in flight reads or writes a buffer; called after a failure only. */
    bool (*is_quiet)(struct rdti_coll *coll);
    /* While it waits: the error of an awaited member that is gone without notice to the group, or
     * RDT_OK. NULL: its transfers report that. */
    rdt_status (*check_members)(const struct rdti_coll *coll, struct rdt_error *err);
    /* What it waits for right now, e.g. "nothing from rank 3"; for messages. Returns the group's
     * rank of the only member that it waits for, or RDT_SOURCE_ANY. */
    uint32_t (*describe)(const struct rdti_coll *coll, char *text, size_t cap);
    /* Makes what prepare() built ready for another run; done. NULL: prepare() comes before each
     * run. */
    void (*rest)(struct rdti_coll *coll);
    /* Undoes prepare(); quiet or done. */
    void (*release)(struct rdti_coll *coll);
};

enum rdti_coll_state { RDTI_COLL_RUNNING, RDTI_COLL_DRAINING, RDTI_COLL_FINISHED };

struct rdti_coll {
    const struct rdti_coll_algorithm *algorithm;
    rdt_group *group;          /* untouched once FINISHED: the user may destroy it then */
    struct rdt_coll_args args; /* its arrays are the caller's until they are kept */
    void *arrays;              /* the copies, or NULL */
    struct rdti_team *team;    /* NULL in a group of one */
    struct rdti_pack *pack;    /* coalesce.h: args describe its memory; NULL: the caller's */
    /* persistent.h: it is a start of that, which has what is prepared, the arrays and the team; or,
     * if not is_start, the exchange that initialises it. NULL: neither. */
    struct rdt_persistent *persistent;
    bool is_start;
    bool is_fresh; /* this start was prepared for itself alone */
    bool is_aside; /* this start has memory of its own */
    /* For a part of a hierarchical one, which some members do among themselves: the collective that
     * it belongs to, and those members; its rank, size and root are positions among them. */
    const struct rdti_coll *whole;
    const uint32_t *members;
    uint32_t rank;
    uint32_t size;
    uint64_t elem_bytes;  /* 0 for a barrier */
    uint64_t block_bytes; /* of args.count elements */
    rdti_reduce_fn reduce;
    rdti_divide_fn divide; /* NULL unless the operation is an average */
    uint32_t divisor;      /* for it: the group's size, also in a part of a collective; else 1 */
    rdti_fold_fn fold;     /* of halves; NULL: operands are reduced two by two */
    struct rdti_lossy lossy;
    uint64_t sequence;
    uint64_t start_ns;
    uint64_t timeout_ns;
    rdt_transfer *transfer;
    struct rdti_schedule schedule;
    struct rdti_direct direct;
    struct rdti_hierarchy *hierarchy; /* hierarchical.c; NULL: not hierarchical */
    enum rdti_coll_state state;
    struct rdt_error error; /* from DRAINING on */
    atomic_uint turn;
    atomic_uint refs;
};

/* arguments.c: flags that a call may have. */
rdt_status rdti_coll_accept_flags(const struct rdt_coll_args *args, struct rdt_error *err);
/* arguments.c: the fields that the caller's header has; the others are 0. */
struct rdt_coll_args rdti_coll_args_known(const struct rdt_coll_args *args);
/* arguments.c: checks args and fills coll->args and all that follows from it but the schedule. */
rdt_status rdti_coll_accept(struct rdti_coll *coll, rdt_group *group,
                            const struct rdt_coll_args *args, struct rdt_error *err);
/* "rank 1", or, where the job counts otherwise, "rank 1 (global rank 3)", as the core names
 * members. */
#define RDTI_COLL_RANK_BYTES 48
struct rdti_coll_rank {
    char text[RDTI_COLL_RANK_BYTES];
};
struct rdti_coll_rank rdti_coll_rank_name(const struct rdti_coll *coll, uint32_t rank);
/* "ranks 1, 3 and 2 more (global ranks 11, 13)"; the job's numbers where one of them differs. The
 * first of them, if they are many. */
#define RDTI_COLL_RANKS_BYTES 288
void rdti_coll_name_ranks(const struct rdti_coll *coll, const uint32_t *ranks, uint32_t count,
                          char *text, size_t cap);
/* The group's rank of the member if all of these are one; RDT_SOURCE_ANY: none, or several. */
uint32_t rdti_coll_only_one(const struct rdti_coll *coll, const uint32_t *ranks, uint32_t count);
/* Where an operation has no root, its descriptor has a label, or the digest of a pack's sizes. */
enum { RDTI_COLL_LABEL_SHIFT = 16, RDTI_PACK_DIGEST_FLAG = 0x8000 };
/* rdmatensor.h: of a start, a number in the upper halves of dtype and reduce_op tells persistent
 * collectives of one description apart. */
/* What the members must agree on; the bytes of two can be compared. */
struct rdt_message_desc rdti_coll_desc(const struct rdti_coll *coll);
/* The same, whichever persistent collective it is of. */
struct rdt_message_desc rdti_coll_plain_desc(const struct rdti_coll *coll);
/* RDT_EMISMATCH: a peer reported a different operation. */
rdt_status rdti_coll_mismatch(const struct rdti_coll *coll, uint32_t peer,
                              const struct rdt_message_desc *theirs, struct rdt_error *err);
/* "all_reduce"; "unknown" for an invalid op. */
const char *rdti_coll_name(uint32_t op);
const char *rdti_reduction_name(uint32_t reduce_op); /* "sum" */
/*
 * Whether a message of a set-up has ended; RDT_EAGAIN: in flight. One that has is freed and becomes
 * NULL, which counts as ended. want_bytes: 0, or RDT_EPROTO where it had others of `what`.
 */
rdt_status rdti_coll_end_message(rdt_transfer **transfer, uint64_t want_bytes, const char *what,
                                 struct rdt_error *err);

/*
 * select.c: never NULL for what rdti_coll_accept() let pass. Without a verdict of the group, the
 * algorithm that waits for one.
 */
const struct rdti_coll_algorithm *rdti_coll_choose(const struct rdti_coll *coll);
/* The name of the algorithm that costs select for a block of this many bytes, with rank 0 as the
 * root; for a group whose verdict is MESSAGES or HOSTS. */
const char *rdti_choice_at(struct rdti_team *team, uint32_t op, uint64_t len_bytes);
/* Whether members may use each other's memory. */
bool rdti_choice_wants_boards(unsigned choice, uint32_t size);
/* Whether a small all_reduce sums an element in an order that depends on its place. */
bool rdti_choice_sums_by_chunk(const struct rdti_coll *coll);
/* ring.c: where a chunk of an all_reduce begins, in elements. */
uint64_t rdti_ring_chunk_begin(uint64_t count, uint64_t elem_bytes, uint32_t size, uint32_t chunk);

/* arrays.c: from now on coll->args has its own arrays. RDT_ENOMEM. */
rdt_status rdti_coll_keep_arrays(struct rdti_coll *coll, struct rdt_error *err);

extern const struct rdti_coll_algorithm rdti_direct;    /* board/board.c */
extern const struct rdti_coll_algorithm rdti_undecided; /* deferred.c: until there is a verdict */
/* hierarchical.c: boards within hosts, messages between them; for a team with that verdict. */
extern const struct rdti_coll_algorithm rdti_hierarchical;
bool rdti_hierarchical_has(uint32_t op);

/* Algorithms that are schedules; each in the file of schedule/ that its comment names. */
extern const struct rdti_coll_algorithm rdti_broadcast_binomial;     /* tree.c */
extern const struct rdti_coll_algorithm rdti_broadcast_ring;         /* tree.c */
extern const struct rdti_coll_algorithm rdti_reduce_binomial;        /* tree.c */
extern const struct rdti_coll_algorithm rdti_allreduce_doubling;     /* doubling.c */
extern const struct rdti_coll_algorithm rdti_allreduce_ring;         /* ring.c */
extern const struct rdti_coll_algorithm rdti_allreduce_halving;      /* halving.c */
extern const struct rdti_coll_algorithm rdti_allreduce_tree;         /* tree.c */
extern const struct rdti_coll_algorithm rdti_reduce_scatter_ring;    /* ring.c */
extern const struct rdti_coll_algorithm rdti_allreduce_ordered;      /* ordered.c */
extern const struct rdti_coll_algorithm rdti_reduce_ordered;         /* ordered.c */
extern const struct rdti_coll_algorithm rdti_reduce_scatter_ordered; /* ordered.c */
extern const struct rdti_coll_algorithm rdti_allgather_ring;         /* ring.c */
extern const struct rdti_coll_algorithm rdti_allgather_direct;       /* pairwise.c */
extern const struct rdti_coll_algorithm rdti_gather_direct;          /* pairwise.c */
extern const struct rdti_coll_algorithm rdti_scatter_direct;         /* pairwise.c */
extern const struct rdti_coll_algorithm rdti_alltoall_pairwise;      /* pairwise.c */
extern const struct rdti_coll_algorithm rdti_barrier_dissemination;  /* doubling.c */

/* The sum of such halves may be out of the dtype's range where their average is in it, and each
 * partial sum that is sent is rounded. */
static inline bool
rdti_coll_averages_halves(const struct rdti_coll *coll)
{
    return coll->divide != NULL && coll->fold != NULL;
}

/* dst = fold over this many operands, in their order. is_last: with them all ranks' values are in
 * dst, which is averaged if that is asked. dst may be an operand itself: in[0] or in[1], but none
 * after them, which the result would overwrite before its turn. */
void rdti_coll_fold(const struct rdti_coll *coll, void *dst, const uint8_t *const *in,
                    uint32_t operands, uint64_t count, bool is_last);

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

/* The group's rank of a member. */
static inline uint32_t
rdti_coll_member(const struct rdti_coll *coll, uint32_t member)
{
    return coll->members == NULL ? member : coll->members[member];
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

/* pairwise.c: the data that goes to a member in ALLTOALL, and that comes from it. */
const void *rdti_alltoall_source(const struct rdti_coll *coll, uint32_t member,
                                 uint64_t *count_out);
void *rdti_alltoall_target(const struct rdti_coll *coll, uint32_t member, uint64_t *count_out);

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
