/* SPDX-License-Identifier: Apache-2.0
 * Registers large memory in a thread and without a lock: see registrar.c. */
#ifndef RDTI_VERBS_REGISTRAR_H
#define RDTI_VERBS_REGISTRAR_H

#include "transport/verbs/verbs.h"

/* A peer's request for a key that waits for the registrar. */
struct rdti_verbs_wish {
    struct rdti_list link;
    struct rdti_verbs_lane *lane;
    struct rdti_verbs_words get;
    uint64_t failed_bytes; /* registering this many failed with `error`; 0: no failure */
    struct rdt_error error;
};

/* Finishes the current work, drops waiting registrations, and ends the regions that are to end. */
void rdti_verbs_close_registrar(struct rdti_verbs *verbs);
/* mr_lock is held. RDT_EAGAIN: it will be made, or fail; RDT_EDEVICE: the thread did not start. */
rdt_status rdti_verbs_register_later(struct rdti_verbs *verbs, struct rdti_verbs_memory *memory,
                                     uint32_t kind, struct rdt_error *err);
/* mr_lock is held. Removes the entry, whose registrations may be in progress, from the table. */
void rdti_verbs_end_later(struct rdti_verbs *verbs, struct rdti_verbs_memory *memory,
                          void (*then)(void *arg), void *arg);
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
