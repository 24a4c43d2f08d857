/* SPDX-License-Identifier: Apache-2.0
 * Links that break, and lanes that have lost their last (down.c, lost.c). All [driver]. */
#ifndef RDTI_VERBS_DOWN_H
#define RDTI_VERBS_DOWN_H

#include "transport/verbs/verbs.h"

/* ---- down.c [driver] */
/* The link cannot be used any more; the lane goes on, or ends where it has no other: see the phase
 * afterwards. */
__attribute__((cold)) void rdti_verbs_break_link(struct rdti_verbs_link *link,
                                                 const struct rdt_error *err);
/* A completion of a link that drains, which did not succeed. */
__attribute__((cold)) void rdti_verbs_note_flush(struct rdti_verbs_link *link,
                                                 const struct ibv_wc *wc);
/* The first of a QP that it did not get from being stopped is kept, for describe(). */
void rdti_verbs_keep_error(struct rdti_verbs_qp *qp, const struct ibv_wc *wc);
/* Destroy QPs that did not go to ERR when their link broke. In a pass only: it may deliver, and end
 * the lane. */
void rdti_verbs_stop_rest(struct rdti_verbs_lane *lane);
/* Links that are drained are told of, those that both told of are settled; deadlines. */
void rdti_verbs_watch_links(struct rdti_verbs_lane *lane);
rdt_status rdti_verbs_take_down_word(struct rdti_verbs_lane *lane,
                                     const struct rdti_verbs_words *words, struct rdt_error *err);
/* The peer's SETTLED. */
rdt_status rdti_verbs_take_mark(struct rdti_verbs_lane *lane, uint32_t number,
                                struct rdt_error *err);
/* Links that break_link() stopped, or that posting failed on. */
void rdti_verbs_break_unposted(struct rdti_verbs_lane *lane);

/* Its QPs go to ERR. */
void rdti_verbs_stop_link(struct rdti_verbs_link *link);
/* They are there, and the device has given back all it had; past the deadline what its CQ holds is
 * taken and counts as all. Ops may complete by it, and the lane may end. Delivers nothing. */
bool rdti_verbs_is_over(struct rdti_verbs_link *link);

/* ---- lost.c [driver] */
/* Any thread, lock is held. A message begins. */
void rdti_verbs_number(struct rdti_verbs_lane *lane, struct rdti_op *op);
/* No link is left. False: no other lane may take this one's place. */
bool rdti_verbs_lose(struct rdti_verbs_lane *lane, const struct rdt_error *err);
/* A lane that is lost is fenced once its links are drained. */
void rdti_verbs_watch_loss(struct rdti_verbs_lane *lane);
/* The table's. */
bool rdti_verbs_fence(struct rdti_lane *base, const struct rdt_error *why);
rdt_status rdti_verbs_hand_over(struct rdti_lane *base, uint64_t delivered,
                                void (*take)(void *arg, struct rdti_op *op, uint32_t notify),
                                void *arg, struct rdt_error *err);

/* ---- ends.c */
/* A completion that may be of the kind that only follows an error. */
void rdti_verbs_count_flush(struct rdti_verbs_lane *lane, const struct ibv_wc *wc);

#endif
