/* SPDX-License-Identifier: Apache-2.0
 * Notifications as words in memory (flag.c). */
#ifndef RDTI_VERBS_FLAG_H
#define RDTI_VERBS_FLAG_H

#include "transport/verbs/lane.h"

/* Open the timer for naps, if flags may be requested. */
rdt_status rdti_verbs_open_flags(struct rdti_verbs *verbs, struct rdt_error *err);
void rdti_verbs_close_flags(struct rdti_verbs *verbs);
/* [driver] The lane is READY: send FLAGS to the peer if this side polls for flags, or note why
 * not. */
void rdti_verbs_agree_flags(struct rdti_verbs_lane *lane);
/* [driver] The peer's FLAGS. RDT_EPROTO. */
rdt_status rdti_verbs_take_flags_word(struct rdti_verbs_lane *lane,
                                      const struct rdti_verbs_words *words, struct rdt_error *err);
/* [driver] The table's watch_flag(). */
void rdti_verbs_watch_flag(struct rdti_lane *base, struct rdti_flag *flag);
/* [driver] Takes a flag that has arrived and may be delivered now. */
bool rdti_verbs_take_flag(struct rdti_verbs_lane *lane, uint32_t *value_out);
/* [driver] If flags are expected, no sleep from here on is longer than a nap. */
void rdti_verbs_arm_flags(struct rdti_verbs *verbs);
/* Lock is held. Whether the op's notification may be a flag, or, after it is cut, is one. */
bool rdti_verbs_may_flag(const struct rdti_verbs_lane *lane, const struct rdti_op *op);
/* Lock is held. Adds the flag after the bytes of the QP's last request. */
void rdti_verbs_attach_flag(struct rdti_verbs_qp *qp, const struct rdti_verbs_record *record,
                            struct ibv_send_wr *wr);
/* [driver] At the lane's end: polls for no flags any more. */
void rdti_verbs_forget_flags(struct rdti_verbs_lane *lane);
void rdti_verbs_free_tails(struct rdti_verbs_lane *lane);
/* "flag", "imm (no flag: ...)", or one text for each direction. */
void rdti_verbs_explain_notify(const struct rdti_verbs_lane *lane, char *buf, size_t cap);

#endif
