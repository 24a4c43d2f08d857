/* SPDX-License-Identifier: Apache-2.0
 * Links that break, and lanes that lost their last link (down.c, lost.c). All [driver]. */
#ifndef RDTI_VERBS_DOWN_H
#define RDTI_VERBS_DOWN_H

#include "transport/verbs/lane.h"

/* ---- down.c [driver] */
/* The link becomes unusable; the lane continues, or ends if it has no other link: check the phase
 * afterwards. */
__attribute__((cold)) void rdti_verbs_break_link(struct rdti_verbs_link *link,
                                                 const struct rdt_error *err);
/* Destroy QPs that did not go to ERR when their link broke. Only in a pass: it may deliver, and end
 * the lane. */
void rdti_verbs_stop_rest(struct rdti_verbs_lane *lane);
/* Sends DOWN for drained links, settles links for which both sides sent it, checks deadlines. */
void rdti_verbs_watch_links(struct rdti_verbs_lane *lane);
rdt_status rdti_verbs_take_down_word(struct rdti_verbs_lane *lane,
                                     const struct rdti_verbs_words *words, struct rdt_error *err);
/* The peer's SETTLED. */
rdt_status rdti_verbs_take_mark(struct rdti_verbs_lane *lane, uint32_t number,
                                struct rdt_error *err);
/* Breaks the links on which posting failed. */
void rdti_verbs_break_unposted(struct rdti_verbs_lane *lane);

/* Moves its QPs to ERR. */
void rdti_verbs_stop_link(struct rdti_verbs_link *link);
/* Whether they are in ERR and the device has returned all requests; after the deadline takes what
 * the CQ holds, as the last. Ops may complete, and the lane may end. Delivers nothing. */
bool rdti_verbs_is_over(struct rdti_verbs_link *link);

/* ---- lost.c [driver] */
/* No link is left. False: no other lane may replace this one. */
bool rdti_verbs_lose(struct rdti_verbs_lane *lane, const struct rdt_error *err);
/* Fences a lost lane when its links are drained. */
void rdti_verbs_watch_loss(struct rdti_verbs_lane *lane);
/* Entries of struct rdti_transport. */
bool rdti_verbs_fence(struct rdti_lane *base, const struct rdt_error *why);
rdt_status rdti_verbs_hand_over(struct rdti_lane *base, uint64_t delivered,
                                void (*take)(void *arg, struct rdti_op *op, uint32_t notify),
                                void *arg, struct rdt_error *err);

#endif
