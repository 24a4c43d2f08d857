/* SPDX-License-Identifier: Apache-2.0
 * Registered memory of this process.
 *
 *   memory.c    the table, own keys, keys for peers   registrar.c  registering large memory in a
 *                                                                  thread
 */
#ifndef RDTI_VERBS_MEMORY_MEMORY_H
#define RDTI_VERBS_MEMORY_MEMORY_H

#include "transport/verbs/device/device.h"

/* The purpose of a registration: the access of peers, and whether it is ordered. */
enum {
    RDTI_VERBS_KIND_WRITE = 0,
    RDTI_VERBS_KIND_READ = 1,
    RDTI_VERBS_KIND_STRICT = 2, /* to write bytes followed by a flag */
    RDTI_VERBS_KINDS = 3
};

/* Memory of this process that is registered, or about to be. The registrar handles large memory
 * without a lock, and ops wait for it (registrar.c). Kinds are sets: bit `kind`. */
struct rdti_verbs_memory {
    struct rdti_list link;
    uint8_t *addr;
    uint64_t len_bytes;
    uint32_t segment; /* RDT_SEGMENT_NONE: a region, by index and generation */
    uint32_t index;
    uint32_t generation;
    uint32_t made;                                              /* kinds that are registered */
    uint32_t wanted;                                            /* kinds for the registrar */
    uint32_t failed;                                            /* kinds that failed: `error` */
    struct ibv_mr *mrs[RDTI_VERBS_KINDS][RDTI_VERBS_PORTS_MAX]; /* by nic */
    bool is_source;                                             /* an op waits for it as a source */
    bool is_busy; /* the registrar works on it, and only the registrar may free it */
    bool is_over; /* out of the table: the registrar ends it, and calls then() */
    void (*then)(void *arg);
    void *then_arg;
    struct rdti_list job; /* in verbs->jobs, or ends */
    struct rdt_error error;
};

/* ---- memory.c */
/* The lkey of a port for bytes of this process. RDT_EAGAIN: the registrar is registering them, and
 * lanes are pushed then; RDT_EINVAL: they are not in the arena, or cannot be registered. */
rdt_status rdti_verbs_own_key(struct rdti_verbs *verbs, const void *addr, uint64_t len_bytes,
                              uint32_t nic, uint32_t *lkey_out);
/* Text for describe() about sources that could not be registered; "": none. */
void rdti_verbs_explain_stage(struct rdti_verbs *verbs, char *buf, size_t cap);
/* Answer a peer's KEY_GET: *out is KEY, or KEY_REFUSED with an error that has the reason. [driver]
 * RDT_EAGAIN (not answered yet), RDT_EPROTO (no answer: the region never existed), RDT_ESTALE,
 * RDT_ENOMEM (with memlock's lines), RDT_EDEVICE. */
rdt_status rdti_verbs_grant(struct rdti_verbs *verbs, const struct rdti_verbs_words *get,
                            struct rdti_verbs_words *out, struct rdt_error *err);
/* The answer to KEY_GET if registering len_bytes failed. */
void rdti_verbs_refuse_key(const struct rdti_verbs_words *get, uint64_t len_bytes,
                           const struct rdt_error *err, struct rdti_verbs_words *out);
bool rdti_verbs_forget_region(void *state, uint32_t index, uint32_t generation,
                              void (*then)(void *arg), void *arg);
/* Whether a peer's request refers to the entry, for one of these kinds. */
bool rdti_verbs_is_requested(const struct rdti_verbs_memory *memory,
                             const struct rdti_verbs_words *get, uint32_t kinds);
/* Register for one kind, on `nics` (a set), in mrs that are NULL: all or nothing. mr_lock is held,
 * except by the registrar. */
rdt_status rdti_verbs_register_kind(struct rdti_verbs *verbs,
                                    const struct rdti_verbs_memory *memory, uint32_t kind,
                                    uint32_t nics, struct ibv_mr *mrs[RDTI_VERBS_PORTS_MAX],
                                    struct rdt_error *err);
/* Registers on each device of the set, in mrs that are NULL; all or nothing. */
rdt_status rdti_verbs_register_on(struct rdti_verbs *verbs, uint32_t nics, void *addr,
                                  uint64_t len_bytes, unsigned int access,
                                  struct ibv_mr *mrs[RDTI_VERBS_PORTS_MAX], struct rdt_error *err);
/* The nics that are present, as a set. mr_lock is held. */
uint32_t rdti_verbs_nics_left(const struct rdti_verbs *verbs);
/* Remove from the table, deregister and free. The registrar is not working on it. */
void rdti_verbs_free_memory(struct rdti_verbs *verbs, struct rdti_verbs_memory *memory);
/* The last attempt to register a source failed. mr_lock is held. */
void rdti_verbs_note_unregistered(struct rdti_verbs *verbs, const struct rdt_error *why);
void rdti_verbs_free_memories(struct rdti_verbs *verbs);
/* The caller counts registered_bytes. */
rdt_status rdti_verbs_register(struct rdti_verbs_nic *nic, void *addr, uint64_t len_bytes,
                               unsigned int access, struct ibv_mr **out, struct rdt_error *err);

#endif
