/* SPDX-License-Identifier: Apache-2.0
 *
 * direct.h - a collective over the boards of a team (team.h): one or more ticks, each of which
 * fills a stage and uses those of the peers.
 *
 * An operation says what its ticks do. All members compute the same number of ticks and the same
 * pieces, out of what they agree on; what they should agree on stands in the line of the first
 * tick, and whoever uses a peer's stage compares it before.
 */
#ifndef RDTI_COLLECTIVES_BOARD_BOARD_H
#define RDTI_COLLECTIVES_BOARD_BOARD_H

#include <stdbool.h>
#include <stdint.h>

#include "rdmatensor.h"

struct rdti_coll;
struct rdti_line;

/* Whose stages a member uses in each tick. */
enum rdti_direct_needs { RDTI_NEEDS_NONE, RDTI_NEEDS_ROOT, RDTI_NEEDS_ALL };

/* Where the payload of a tick lies; the same on all members. */
enum rdti_direct_room {
    RDTI_ROOM_STAGE, /* all of one */
    RDTI_ROOM_SLOT,
    RDTI_ROOM_LINE, /* or there is none */
};

struct rdti_direct_op {
    /* Sets coll->direct.piece_bytes and .steps, and .room where a line is enough. */
    void (*plan)(struct rdti_coll *coll);
    /* Fill the own stage; NULL: nothing to fill. RDT_EAGAIN: call again. */
    rdt_status (*fill)(struct rdti_coll *coll, uint64_t step, struct rdt_error *err);
    /* Use the stages of those that this member needs; NULL: none carries anything. RDT_EMISMATCH
     * where a peer's counts do not fit. */
    rdt_status (*use)(struct rdti_coll *coll, uint64_t step, struct rdt_error *err);
};

struct rdti_placed;

struct rdti_direct {
    const struct rdti_direct_op *op;
    enum rdti_direct_needs needs;
    enum rdti_direct_room room;
    uint64_t ticket;
    uint64_t piece_bytes; /* of each member's payload in one tick, at most */
    uint64_t steps;       /* ticks; of an uneven all_to_all known after the first */
    uint64_t step;
    uint64_t first;             /* the step in which the first chunk travels */
    struct rdti_placed *placed; /* placed.c: peers' buffers in use, or NULL */
    uint64_t ticket_after;      /* whose turn it is when this is over */
    uint64_t received_bytes;    /* that come to lie here; 0 of sums */
    bool is_source;             /* somebody waits for nobody but us */
    bool is_past_caches;        /* so much moves that nothing of it is found in a cache later */
    bool is_begun;              /* the turn came; base is known */
    bool is_filled;             /* of this step */
    uint64_t base;              /* step 0 is the tick base + 1 */
    uint64_t stopped_ns;        /* placed.c: when it failed; 0: it has not */
    struct rdt_counters done;   /* what it did; the context is told at its end */
};

/* direct.c: the same as the algorithm's prepare() for an operation and needs of one's own. */
void rdti_direct_plan(struct rdti_coll *coll, const struct rdti_direct_op *op,
                      enum rdti_direct_needs needs);

/* direct_ops.c */
const struct rdti_direct_op *rdti_direct_op_of(const struct rdti_coll *coll);

/* placed.c: all_reduce of large tensors, in place where all of them were born in the arena. */
extern const struct rdti_direct_op rdti_direct_placed;
/* Nobody writes our buffer any more, or says so for too long; asked after a failure only. */
bool rdti_placed_is_quiet(struct rdti_coll *coll);
void rdti_placed_release(struct rdti_coll *coll);

/* direct_ops.c: all_reduce in two shots, from step `first` on. */
void rdti_shares_plan(struct rdti_coll *coll);
rdt_status rdti_shares_fill(struct rdti_coll *coll, uint64_t step, struct rdt_error *err);
rdt_status rdti_shares_use(struct rdti_coll *coll, uint64_t step, struct rdt_error *err);
/* src into the own stage: a pass over payload beside the one into its place. */
void rdti_direct_put(struct rdti_coll *coll, void *stage, const void *src, uint64_t len_bytes);
/* What does not leave this rank; dst may overlap src. */
void rdti_direct_keep(struct rdti_coll *coll, void *dst, const void *src, uint64_t len_bytes);
/* Both piece by piece, of what goes to all and stays as well: where the whole is large and does not
 * overlap. In one pass where both are stored past the caches. */
bool rdti_direct_keeps_as_it_goes(const struct rdti_coll *coll, const void *dst, const void *src);
void rdti_direct_put_and_keep(struct rdti_coll *coll, void *stage, void *dst, const void *src,
                              uint64_t len_bytes);
/* Out of a peer's stage into its place. */
void rdti_direct_take(struct rdti_coll *coll, void *dst, const void *stage, uint64_t len_bytes);

/* direct_ops.c: what hierarchical.c is made of. A total in pieces; pieces of a stage; the fold of
 * the members' parts at `stage_off` of their stages. */
uint64_t rdti_direct_steps(uint64_t total_bytes, uint64_t piece_bytes);
uint64_t rdti_direct_piece_len(uint64_t total_bytes, uint64_t piece_bytes, uint64_t step);
uint64_t rdti_direct_share_bytes(uint64_t stage_bytes, uint32_t shares);
void rdti_direct_fold_stages(struct rdti_coll *coll, uint64_t step, uint64_t stage_off, void *dst,
                             const void *own, uint64_t len_bytes);

/* Of a stage, or of a slot where a collective has one, or a line. */
uint64_t rdti_direct_stage_bytes(const struct rdti_coll *coll);
/* Where a member's payload of a step lies. */
uint8_t *rdti_direct_stage(const struct rdti_coll *coll, uint32_t member, uint64_t step);
/* Of the first step. */
struct rdti_line *rdti_direct_line(const struct rdti_coll *coll, uint32_t member);

#endif
