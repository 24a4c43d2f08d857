/* SPDX-License-Identifier: Apache-2.0
 * Work requests of one lane: post.c, for tx.c. Lock is held throughout. */
#ifndef RDTI_VERBS_POST_H
#define RDTI_VERBS_POST_H

#include "transport/verbs/lane.h"

/* Whether a write's bytes are inline in the request. */
static inline bool
rdti_verbs_is_inline(const struct rdti_verbs_lane *lane, uint64_t len_bytes, bool has_flag)
{
    return len_bytes + (has_flag ? RDTI_VERBS_TAIL_BYTES : 0) <= lane->inline_bytes;
}

/* The first QP of an unbroken link; NULL: none is left, and the lane is about to end. */
static inline struct rdti_verbs_qp *
rdti_verbs_live_qp(const struct rdti_verbs_lane *lane)
{
    for (uint32_t i = 0; i < lane->qp_count; i++)
        if (!lane->qps[i]->link->is_tx_out)
            return lane->qps[i];
    return NULL;
}

static inline bool
rdti_verbs_has_room(const struct rdti_verbs_qp *qp, uint32_t reserve)
{
    return qp->tx_posted - qp->tx_done + reserve < qp->link->nic->sq_depth;
}

/* Post a request as its record describes; there is room. */
void rdti_verbs_post_record(struct rdti_verbs_qp *qp, const struct rdti_verbs_record *record);
/* Pass the chain to the device. */
void rdti_verbs_flush_chain(struct rdti_verbs_qp *qp);
void rdti_verbs_flush_chains(struct rdti_verbs_lane *lane);

#endif
