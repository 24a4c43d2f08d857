/* SPDX-License-Identifier: Apache-2.0
 * Collectives that work in the members' tensors, where these lie in arenas: in_place.c for one
 * all_reduce, landing.c for persistent collectives.
 */
#ifndef RDTI_COLLECTIVES_BOARD_IN_PLACE_H
#define RDTI_COLLECTIVES_BOARD_IN_PLACE_H

#include "collectives/board/board.h"
#include "collectives/team/team.h"
#include "wire/group/persistent.h"
#include "wire/place.h"

struct rdti_placed {
    struct rdti_place places[RDTI_TEAM_MAX]; /* a region of no bytes: the tensor is not used here */
    uint8_t *tensors[RDTI_TEAM_MAX];         /* NULL: not held */
};

/* in_place.c: the place of a tensor that lies in the arena; false: it does not. */
bool rdti_placed_find(const struct rdti_coll *coll, const void *tensor, uint64_t len_bytes,
                      struct rdti_place *out);
/* Holds the peers' tensors, of coll->direct.placed. Tasks may call it: RDT_EAGAIN where
 * a path is not ready. */
rdt_status rdti_placed_hold(struct rdti_coll *coll, struct rdt_error *err);
/* Runs `work` on held tensors. RDT_EAGAIN: a member has stopped, which ends the group. */
rdt_status rdti_placed_work(struct rdti_coll *coll, void (*work)(struct rdti_coll *coll));
/* all_reduce: sums the local share, block by block, and writes it to all. */
void rdti_placed_sum_share(struct rdti_coll *coll);
/* No member uses the local tensor any more, or one claims to for too long; called after a failure
 * only. */
bool rdti_placed_is_quiet(struct rdti_coll *coll);
void rdti_placed_release(struct rdti_coll *coll);

/* landing.c: the operations of persistent collectives over held tensors. */
extern const struct rdti_direct_op rdti_direct_landed;
/* Fills landing and place: whether peers may use the local tensor, and where it is. */
void rdti_landing_offer(const struct rdti_coll *coll, struct rdti_persistent_record *out);
/* Whether each tensor that others use is offered; `records` of all members, in rank order. Else the
 * first that is not: *landing_out says why, *rank_out whose it is. The same on all members. */
bool rdti_landing_is_offered(const struct rdti_coll *coll,
                             const struct rdti_persistent_record *records, uint32_t *landing_out,
                             uint32_t *rank_out);
/* Holds the tensors that this member uses, which are offered. On failure the collective stays as it
 * is. RDT_EPROTO, RDT_ENOMEM, errors of rdt_endpoint_hold(). */
rdt_status rdti_landing_bind(struct rdti_coll *coll, const struct rdti_persistent_record *records,
                             struct rdt_error *err);

#endif
