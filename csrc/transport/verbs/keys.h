/* SPDX-License-Identifier: Apache-2.0
 * Keys of the peer's memory. */
#ifndef RDTI_VERBS_KEYS_H
#define RDTI_VERBS_KEYS_H

#include "transport/verbs/lane.h"

enum rdti_verbs_key_state {
    RDTI_VERBS_KEY_ASKED = 1,
    RDTI_VERBS_KEY_HERE = 2,
    RDTI_VERBS_KEY_NONE = 3
};

/* Memory of the peer, for one kind of access. */
struct rdti_verbs_remote {
    struct rdti_list link;
    uint8_t state;   /* enum rdti_verbs_key_state */
    uint8_t access;  /* RDTI_VERBS_MAY_* */
    uint8_t refusal; /* KEY_NONE: enum rdti_verbs_refusal */
    uint32_t segment;
    uint32_t index; /* of the region of the request; a segment also serves others */
    uint32_t generation;
    uint64_t base; /* KEY_NONE: detail of the refusal */
    uint64_t len_bytes;
    uint32_t rkeys[RDTI_VERBS_PORTS_MAX]; /* by the peer's ports */
};

/* All under lock but words. */

/* The key that the op needs, and whether it uses a flag. RDT_OK with *out (NULL: wait for the
 * peer's answer), RDT_ESTALE, RDT_ERANGE. */
rdt_status rdti_verbs_find_key(struct rdti_verbs_lane *lane, const struct rdti_op *op,
                               bool *has_flag, struct rdti_verbs_remote **out,
                               struct rdt_error *err);
/* The key for a write if it is the key used last; NULL: call find_key(). */
const struct rdti_verbs_remote *rdti_verbs_known_key(const struct rdti_verbs_lane *lane,
                                                     const struct rdti_op *op);
rdt_status rdti_verbs_check_stale(const struct rdti_verbs_lane *lane, const struct rdti_op *op,
                                  struct rdt_error *err);
bool rdti_verbs_mark_stale(struct rdti_verbs_lane *lane, uint32_t index, uint32_t generation);
/* KEY and KEY_REFUSED. RDT_EPROTO. */
rdt_status rdti_verbs_take_key(struct rdti_verbs_lane *lane, const struct rdti_verbs_words *words,
                               struct rdt_error *err);
void rdti_verbs_free_remotes(struct rdti_verbs_lane *lane);
/* Send the requests in `asked`. Lock not held, any thread. */
void rdti_verbs_ask(struct rdti_verbs_lane *lane, const struct rdti_verbs_words *asked,
                    uint32_t count);

#endif
