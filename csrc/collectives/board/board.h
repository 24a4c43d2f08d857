/* SPDX-License-Identifier: Apache-2.0
 * A collective over the boards of a team (team/team.h): one or more ticks, each of which fills a
 * stage and uses those of the peers.
 *
 * An operation defines what its ticks do. All members compute the same number of ticks and the same
 * pieces, from what they agree on. What they should agree on is written in the line of the first
 * tick, and a member compares it before it uses a peer's stage.
 */
#ifndef RDTI_COLLECTIVES_BOARD_BOARD_H
#define RDTI_COLLECTIVES_BOARD_BOARD_H

#include <stdbool.h>
#include <stdint.h>

#include "rdmatensor.h"

struct rdti_coll;
struct rdti_line;

/* The members whose stages a member uses in each tick. */
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
    /* Use the stages of the members that this one needs; NULL: they carry nothing. RDT_EMISMATCH
     * where a peer's counts do not fit. */
    rdt_status (*use)(struct rdti_coll *coll, uint64_t step, struct rdt_error *err);
};

struct rdti_placed; /* in_place.h */

struct rdti_direct {
    const struct rdti_direct_op *op;
    enum rdti_direct_needs needs;
    enum rdti_direct_room room;
    uint64_t ticket;
    uint64_t piece_bytes; /* of each member's payload in one tick, at most */
    uint64_t steps;       /* ticks; for an uneven all_to_all known after the first */
    uint64_t step;
    uint64_t first;             /* the step in which the first chunk is sent */
    struct rdti_placed *placed; /* peers' buffers in use, or NULL */
    uint64_t ticket_after;      /* the ticket served after this one */
    uint64_t received_bytes;    /* bytes that are stored here; 0 for sums */
    bool is_source;             /* other members wait for this one only */
    bool is_past_caches;        /* so much is moved that none of it is found in a cache later */
    bool is_begun;              /* its turn has come; base is known */
    bool is_filled;             /* of this step */
    uint64_t base;              /* step 0 is the tick base + 1 */
    uint64_t stopped_ns;        /* in_place.c: when it failed; 0: it has not */
    uint64_t number;            /* landing.c: of the persistent collective in its group */
    struct rdt_counters done;   /* its counters; added to the context's at its end */
};

/* board.c: as the algorithm's prepare(), for an operation and needs of the caller's choice. */
void rdti_direct_plan(struct rdti_coll *coll, const struct rdti_direct_op *op,
                      enum rdti_direct_needs needs);

/* operations.c */
const struct rdti_direct_op *rdti_direct_op_of(const struct rdti_coll *coll);

/* landing.c: it is a start of a persistent collective that uses the members' tensors. */
bool rdti_direct_is_landed(const struct rdti_coll *coll);

/* in_place.c: all_reduce of large tensors, in place where all of them lie in the arena. */
extern const struct rdti_direct_op rdti_direct_placed;

/* operations.c: all_reduce in two shots, from step `first` on. */
void rdti_shares_plan(struct rdti_coll *coll);
rdt_status rdti_shares_fill(struct rdti_coll *coll, uint64_t step, struct rdt_error *err);
rdt_status rdti_shares_use(struct rdti_coll *coll, uint64_t step, struct rdt_error *err);
/* Copies src into the own stage: a pass over the payload in addition to the one into its place. */
void rdti_direct_put(struct rdti_coll *coll, void *stage, const void *src, uint64_t len_bytes);
/* Copies data that does not leave this rank; dst may overlap src. */
void rdti_direct_keep(struct rdti_coll *coll, void *dst, const void *src, uint64_t len_bytes);
/* Whether to do both piece by piece, for data that goes to all and stays here as well: where the
 * whole is large and does not overlap. One pass where both use non-temporal stores. */
bool rdti_direct_keeps_as_it_goes(const struct rdti_coll *coll, const void *dst, const void *src);
void rdti_direct_put_and_keep(struct rdti_coll *coll, void *stage, void *dst, const void *src,
                              uint64_t len_bytes);
/* Copies out of a peer's stage into its place. */
void rdti_direct_take(struct rdti_coll *coll, void *dst, const void *stage, uint64_t len_bytes);

/* operations.c: parts that hierarchical.c uses too. A total in pieces; pieces of a stage; the fold
 * of the members' parts at `stage_off` of their stages. */
uint64_t rdti_direct_steps(uint64_t total_bytes, uint64_t piece_bytes);
uint64_t rdti_direct_piece_len(uint64_t total_bytes, uint64_t piece_bytes, uint64_t step);
uint64_t rdti_direct_share_bytes(uint64_t stage_bytes, uint32_t shares);
void rdti_direct_fold_stages(struct rdti_coll *coll, uint64_t step, uint64_t stage_off, void *dst,
                             const void *own, uint64_t len_bytes);

/* Size of a stage, or of a slot where the collective uses slots or lines. */
uint64_t rdti_direct_stage_bytes(const struct rdti_coll *coll);
/* Where a member's payload of a step lies. */
uint8_t *rdti_direct_stage(const struct rdti_coll *coll, uint32_t member, uint64_t step);
/* The line of the first step. */
struct rdti_line *rdti_direct_line(const struct rdti_coll *coll, uint32_t member);

#endif
