/* SPDX-License-Identifier: Apache-2.0
 * Requests of peers for keys of this process's memory. */
#ifndef RDTI_VERBS_WISH_H
#define RDTI_VERBS_WISH_H

#include "transport/verbs/lane.h"

/* A peer's request for a key that waits for the registrar. */
struct rdti_verbs_wish {
    struct rdti_list link;
    struct rdti_verbs_lane *lane;
    struct rdti_verbs_words get;
    uint64_t failed_bytes; /* registering this many failed with `error`; 0: no failure */
    struct rdt_error error;
};

/* [driver] The answer to KEY_GET: a key, or the reason why there is none. */
void rdti_verbs_send_key(struct rdti_verbs_lane *lane, struct rdti_verbs_words *key,
                         rdt_status status, const struct rdt_error *err);
/* [driver] A request that rdti_verbs_grant() did not answer yet. RDT_EPROTO: the same is
 * waiting. */
rdt_status rdti_verbs_await_grant(struct rdti_verbs_lane *lane, const struct rdti_verbs_words *get,
                                  struct rdt_error *err);
/* [driver] The lane ends. */
void rdti_verbs_drop_wishes(struct rdti_verbs_lane *lane);
/* [driver] Whether the registrar has finished something since the last call: then this has answered
 * peers, and the caller must push the lanes. */
bool rdti_verbs_take_news(struct rdti_verbs *verbs);

#endif
