/* SPDX-License-Identifier: Apache-2.0
 * Registers large memory in a thread and without a lock: see registrar.c. */
#ifndef RDTI_VERBS_MEMORY_REGISTRAR_H
#define RDTI_VERBS_MEMORY_REGISTRAR_H

#include "transport/verbs/memory/memory.h"

/* Finishes the current work, drops waiting registrations, and ends the regions that are to end. */
void rdti_verbs_close_registrar(struct rdti_verbs *verbs);
/* mr_lock is held. RDT_EAGAIN: it will be made, or fail; RDT_EDEVICE: the thread did not start. */
rdt_status rdti_verbs_register_later(struct rdti_verbs *verbs, struct rdti_verbs_memory *memory,
                                     uint32_t kind, struct rdt_error *err);
/* mr_lock is held. Removes the entry, whose registrations may be in progress, from the table. */
void rdti_verbs_end_later(struct rdti_verbs *verbs, struct rdti_verbs_memory *memory,
                          void (*then)(void *arg), void *arg);
#endif
