/* SPDX-License-Identifier: Apache-2.0
 * Registered memory of this process. A segment of the arena is registered at its first use: as a
 * source by an op, as a target by a peer's request for its key. A key for writes does not permit
 * reads, nor the reverse. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/range.h"
#include "transport/verbs/memory/registrar.h"
#include "transport/verbs/memory/memory.h"

rdt_status
rdti_verbs_register(struct rdti_verbs_nic *nic, void *addr, uint64_t len_bytes, unsigned int access,
                    struct ibv_mr **out, struct rdt_error *err)
{
    if (len_bytes > nic->max_mr_bytes)
        return rdti_error_set(err, RDT_ENOTSUP, 0,
                              "%s registers at most %llu bytes at a time, not %llu: set a smaller "
                              "arena_chunk_bytes",
                              nic->name, (unsigned long long)nic->max_mr_bytes,
                              (unsigned long long)len_bytes);
    struct rdti_counters_ref *counters = nic->verbs->host->counters;
    const uint64_t begin_ns = rdti_now_ns();
    struct ibv_mr *mr =
        nic->verbs->ops->reg_mr_iova2(nic->pd, addr, len_bytes, (uintptr_t)addr, access);
    const int sys_errno = errno;
    rdti_count(&counters->registration_ns, rdti_now_ns() - begin_ns);
    if (mr != NULL) {
        *out = mr;
        return RDT_OK;
    }
    if (rdti_verbs_is_memlock_short(sys_errno))
        return rdti_verbs_memlock_error(len_bytes, sys_errno, err);
    return rdti_error_set(err, sys_errno == ENOMEM ? RDT_ENOMEM : RDT_EDEVICE, sys_errno,
                          "ibv_reg_mr of %llu bytes on %s", (unsigned long long)len_bytes,
                          nic->name);
}

/* ---- The table ------------------------------------------------------------------------------ */

void
rdti_verbs_free_memory(struct rdti_verbs *verbs, struct rdti_verbs_memory *memory)
{
    rdti_list_remove(&memory->link);
    for (uint32_t kind = 0; kind < RDTI_VERBS_KINDS; kind++)
        for (uint32_t i = 0; i < verbs->nic_count; i++)
            rdti_verbs_deregister(&verbs->nics[i], memory->mrs[kind][i]);
    free(memory);
}

/* Payloads may overtake each other on the bus: completions, which may not, announce them. The bit
 * is in the optional range: a device without it ignores it. A flag must not overtake the bytes that
 * it announces, so both use a separate, strict registration. */
static unsigned int
verbs_memory_access_of(uint32_t kind)
{
    const unsigned int remote =
        kind == RDTI_VERBS_KIND_READ ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;

    return IBV_ACCESS_LOCAL_WRITE | remote |
           (kind == RDTI_VERBS_KIND_STRICT ? 0U : (unsigned int)IBV_ACCESS_RELAXED_ORDERING);
}

static uint32_t
verbs_memory_kind_of(uint8_t access)
{
    return access == RDTI_VERBS_MAY_READ           ? RDTI_VERBS_KIND_READ
           : access == RDTI_VERBS_MAY_WRITE_STRICT ? RDTI_VERBS_KIND_STRICT
                                                   : RDTI_VERBS_KIND_WRITE;
}

uint32_t
rdti_verbs_nics_left(const struct rdti_verbs *verbs)
{
    uint32_t left = 0;

    for (uint32_t i = 0; i < verbs->nic_count; i++)
        left |= verbs->nics[i].is_gone ? 0 : 1u << i;
    return left;
}

rdt_status
rdti_verbs_register_on(struct rdti_verbs *verbs, uint32_t nics, void *addr, uint64_t len_bytes,
                       unsigned int access, struct ibv_mr *mrs[RDTI_VERBS_PORTS_MAX],
                       struct rdt_error *err)
{
    rdt_status status = RDT_OK;

    for (uint32_t i = 0; status == RDT_OK && i < verbs->nic_count; i++)
        if ((nics >> i & 1) != 0)
            status = rdti_verbs_register(&verbs->nics[i], addr, len_bytes, access, &mrs[i], err);
    for (uint32_t i = 0; status != RDT_OK && i < verbs->nic_count; i++) {
        rdti_verbs_deregister(&verbs->nics[i], mrs[i]);
        mrs[i] = NULL;
    }
    if (status == RDT_OK) /* registrations that were undone do not count */
        rdti_count(&verbs->host->counters->registered_bytes,
                   len_bytes * (uint64_t)__builtin_popcount(nics));
    return status;
}

rdt_status
rdti_verbs_register_kind(struct rdti_verbs *verbs, const struct rdti_verbs_memory *memory,
                         uint32_t kind, uint32_t nics, struct ibv_mr *mrs[RDTI_VERBS_PORTS_MAX],
                         struct rdt_error *err)
{
    const struct rdti_host *host = verbs->host;
    rdt_status status = RDT_OK;

    if (memory->segment != RDT_SEGMENT_NONE)
        status = host->memory_keep(host->core, memory->segment, err);
    return status == RDT_OK ? rdti_verbs_register_on(verbs, nics, memory->addr, memory->len_bytes,
                                                     verbs_memory_access_of(kind), mrs, err)
                            : status;
}

static struct rdti_verbs_memory *
verbs_memory_find(struct rdti_verbs *verbs, uint32_t segment, uint32_t index, uint32_t generation)
{
    for (struct rdti_list *at = verbs->memories.next; at != &verbs->memories; at = at->next) {
        struct rdti_verbs_memory *memory = RDTI_CONTAINER(at, struct rdti_verbs_memory, link);

        if (memory->segment == segment && memory->index == index &&
            memory->generation == generation)
            return memory;
    }
    return NULL;
}

/* The entry, registered for the kind; RDT_EAGAIN: the registrar does it. An entry without any
 * registration is not kept. mr_lock is held. */
static rdt_status
verbs_memory_want(struct rdti_verbs *verbs, const struct rdti_verbs_memory *like, uint32_t kind,
                  struct rdti_verbs_memory **out, struct rdt_error *err)
{
    struct rdti_verbs_memory *memory =
        verbs_memory_find(verbs, like->segment, like->index, like->generation);
    rdt_status status = RDT_OK;

    if (memory == NULL) {
        memory = calloc(1, sizeof(*memory));
        if (memory == NULL)
            return rdti_error_set(err, RDT_ENOMEM, 0, "a registration of %zu bytes",
                                  sizeof(*memory));
        *memory = *like;
        rdti_list_init(&memory->job);
        rdti_list_append(&verbs->memories, &memory->link);
    }
    if (((memory->wanted | memory->failed) >> kind & 1) != 0) { /* the result is not reported yet */
        status = RDT_EAGAIN;
    } else if ((memory->made >> kind & 1) == 0 &&
               memory->len_bytes > RDTI_VERBS_REGISTER_NOW_BYTES) {
        status = rdti_verbs_register_later(verbs, memory, kind, err);
    } else if ((memory->made >> kind & 1) == 0) {
        status = rdti_verbs_register_kind(verbs, memory, kind, rdti_verbs_nics_left(verbs),
                                          memory->mrs[kind], err);
        memory->made |= status == RDT_OK ? 1u << kind : 0;
    }
    if ((memory->made | memory->wanted | memory->failed) == 0)
        rdti_verbs_free_memory(verbs, memory);
    else
        *out = memory;
    return status;
}

/* mr_lock is held. Only segments of the arena: they stay while the transport is open, regions of
 * other memory may end. */
static struct rdti_verbs_memory *
verbs_memory_find_holder(struct rdti_verbs *verbs, const void *addr, uint64_t len_bytes)
{
    for (struct rdti_list *at = verbs->memories.next; at != &verbs->memories; at = at->next) {
        struct rdti_verbs_memory *memory = RDTI_CONTAINER(at, struct rdti_verbs_memory, link);
        const uintptr_t begin = (uintptr_t)memory->addr;

        if (memory->segment != RDT_SEGMENT_NONE && memory->made != 0 && (uintptr_t)addr >= begin &&
            rdti_range_ok((uintptr_t)addr - begin, len_bytes, memory->len_bytes))
            return memory;
    }
    return NULL;
}

/* Every kind can be a source. NULL: the device was removed before any was registered. */
static const struct ibv_mr *
verbs_memory_any_mr(const struct rdti_verbs_memory *memory, uint32_t nic)
{
    for (uint32_t kind = 0; kind < RDTI_VERBS_KINDS; kind++)
        if (memory->mrs[kind][nic] != NULL)
            return memory->mrs[kind][nic];
    return NULL;
}

void
rdti_verbs_note_unregistered(struct rdti_verbs *verbs, const struct rdt_error *why)
{
    if (verbs->own_retry_ns == 0)
        rdti_log(RDT_LOG_WARN,
                 "verbs: what this process sends is copied first, which is slow, because it cannot "
                 "be registered: %s",
                 why->message);
    verbs->own_retry_ns = rdti_deadline_after(RDTI_VERBS_OWN_RETRY_NS);
    verbs->own_failure = *why;
}

/* Adds the segment of the arena that holds the bytes and has no entry. RDT_EINVAL: there is none,
 * or it cannot be registered. mr_lock is held. */
static rdt_status
verbs_memory_add_own(struct rdti_verbs *verbs, const void *addr, uint64_t len_bytes,
                     struct rdti_verbs_memory **out)
{
    const struct rdti_host *host = verbs->host;
    struct rdti_memory piece;
    struct rdt_error why;

    if (host->memory_find(host->core, addr, len_bytes, &piece, NULL) != RDT_OK)
        return RDT_EINVAL;
    /* Checked first: a peer's requests meanwhile may be repeated, and fail each time. */
    if (rdti_now_ns() >= verbs->own_retry_ns) {
        struct rdti_verbs_memory *for_peer = verbs_memory_find(verbs, piece.segment, 0, 0);
        if (for_peer != NULL) { /* every kind serves; its failure also applies to this op */
            for_peer->is_source = true;
            return RDT_EAGAIN;
        }
        const struct rdti_verbs_memory like = {.addr = piece.addr,
                                               .len_bytes = piece.len_bytes,
                                               .segment = piece.segment};
        const rdt_status status = verbs_memory_want(verbs, &like, RDTI_VERBS_KIND_WRITE, out, &why);
        if (status == RDT_EAGAIN)
            (*out)->is_source = true;
        if (status == RDT_OK || status == RDT_EAGAIN)
            return status;
        rdti_verbs_note_unregistered(verbs, &why);
    }
    rdti_count(&verbs->staged_ops, 1);
    return RDT_EINVAL;
}

rdt_status
rdti_verbs_own_key(struct rdti_verbs *verbs, const void *addr, uint64_t len_bytes, uint32_t nic,
                   uint32_t *lkey_out)
{
    rdt_status status = RDT_OK;

    (void)pthread_mutex_lock(&verbs->mr_lock);
    struct rdti_verbs_memory *memory = verbs_memory_find_holder(verbs, addr, len_bytes);
    if (memory == NULL)
        status = verbs_memory_add_own(verbs, addr, len_bytes, &memory);
    if (status == RDT_OK) {
        const struct ibv_mr *mr = verbs_memory_any_mr(memory, nic);
        *lkey_out = mr != NULL ? mr->lkey : 0; /* a removed device has none, and needs none */
    }
    (void)pthread_mutex_unlock(&verbs->mr_lock);
    return status;
}

void
rdti_verbs_explain_stage(struct rdti_verbs *verbs, char *buf, size_t cap)
{
    /* relaxed: a statistic */
    const uint64_t count = atomic_load_explicit(&verbs->staged_ops, memory_order_relaxed);

    buf[0] = '\0';
    if (count == 0)
        return;
    (void)pthread_mutex_lock(&verbs->mr_lock);
    (void)snprintf(buf, cap, "%llu sends copied: %s", (unsigned long long)count,
                   verbs->own_failure.message);
    (void)pthread_mutex_unlock(&verbs->mr_lock);
}

/* ---- Keys for peers ------------------------------------------------------------------------- */

/* Resolves a request to an exported region, and the memory that holds it. It trusts nothing that
 * the peer states about the memory. */
static rdt_status
verbs_memory_resolve(struct rdti_verbs *verbs, const struct rdti_verbs_words *get,
                     struct rdti_verbs_memory *like, struct rdt_error *err)
{
    const struct rdti_host *host = verbs->host;
    struct rdti_memory piece;
    struct rdti_target target;

    rdt_status status =
        host->target_acquire(host->core, get->index, get->generation, 0, 0, &target, err);
    if (status != RDT_OK)
        return status;
    if (get->segment == RDT_SEGMENT_NONE) {
        *like = (struct rdti_verbs_memory){.addr = target.addr,
                                           .len_bytes = target.region_bytes,
                                           .segment = RDT_SEGMENT_NONE,
                                           .index = get->index,
                                           .generation = get->generation};
    } else {
        status = host->memory_segment(host->core, get->segment, &piece, err);
        if (status == RDT_EINVAL ||
            (status == RDT_OK && ((uintptr_t)target.addr < (uintptr_t)piece.addr ||
                                  !rdti_range_ok((uintptr_t)target.addr - (uintptr_t)piece.addr,
                                                 target.region_bytes, piece.len_bytes))))
            status = rdti_error_set(err, RDT_EPROTO, 0, "region %u is not in piece %u of the arena",
                                    get->index, get->segment);
        if (status == RDT_OK)
            *like = (struct rdti_verbs_memory){.addr = piece.addr,
                                               .len_bytes = piece.len_bytes,
                                               .segment = get->segment};
    }
    /* Not pinned: forget_region() is called before the memory may be reused. */
    host->target_release(host->core, &target);
    return status;
}

static rdt_status
verbs_memory_grant(struct rdti_verbs *verbs, const struct rdti_verbs_memory *like, uint32_t kind,
                   struct rdti_verbs_words *out, struct rdt_error *err)
{
    struct rdti_verbs_memory *memory;

    (void)pthread_mutex_lock(&verbs->mr_lock);
    const rdt_status status = verbs_memory_want(verbs, like, kind, &memory, err);
    if (status == RDT_OK) {
        out->kind = RDTI_VERBS_KEY;
        out->base = (uintptr_t)memory->addr;
        out->len_bytes = memory->len_bytes;
        out->rkey_count = (uint8_t)verbs->nic_count;
        for (uint32_t i = 0; i < verbs->nic_count; i++) /* a removed device has no key */
            out->rkeys[i] = memory->mrs[kind][i] != NULL ? memory->mrs[kind][i]->rkey : 0;
    }
    (void)pthread_mutex_unlock(&verbs->mr_lock);
    return status;
}

static void
verbs_memory_begin_answer(const struct rdti_verbs_words *get, struct rdti_verbs_words *out)
{
    *out = (struct rdti_verbs_words){.access = get->access,
                                     .segment = get->segment,
                                     .index = get->index,
                                     .generation = get->generation};
}

bool
rdti_verbs_is_requested(const struct rdti_verbs_memory *memory, const struct rdti_verbs_words *get,
                        uint32_t kinds)
{
    return memory->segment == get->segment &&
           (kinds >> verbs_memory_kind_of(get->access) & 1) != 0 &&
           (get->segment != RDT_SEGMENT_NONE ||
            (memory->index == get->index && memory->generation == get->generation));
}

/* Fills in the reason, which the peer reports in its own error. */
static void
verbs_memory_explain_refusal(uint64_t len_bytes, const struct rdt_error *err,
                             struct rdti_verbs_words *out)
{
    out->kind = RDTI_VERBS_KEY_REFUSED;
    if (err->status == RDT_ESTALE) {
        out->refusal = RDTI_VERBS_REGION_OVER;
        return;
    }
    const bool is_memlock = rdti_verbs_is_memlock_short(err->sys_errno);
    out->refusal = is_memlock ? RDTI_VERBS_MEMLOCK : RDTI_VERBS_NOT_REGISTERED;
    out->base = is_memlock ? rdti_verbs_memlock_limit()
                           : (uint64_t)(err->sys_errno > 0 ? err->sys_errno : 0);
    out->len_bytes = len_bytes;
}

void
rdti_verbs_refuse_key(const struct rdti_verbs_words *get, uint64_t len_bytes,
                      const struct rdt_error *err, struct rdti_verbs_words *out)
{
    verbs_memory_begin_answer(get, out);
    verbs_memory_explain_refusal(len_bytes, err, out);
}

rdt_status
rdti_verbs_grant(struct rdti_verbs *verbs, const struct rdti_verbs_words *get,
                 struct rdti_verbs_words *out, struct rdt_error *err)
{
    struct rdti_verbs_memory like = {0};
    rdt_status status = verbs_memory_resolve(verbs, get, &like, err);

    verbs_memory_begin_answer(get, out);
    if (status == RDT_OK)
        status = verbs_memory_grant(verbs, &like, verbs_memory_kind_of(get->access), out, err);
    if (status != RDT_OK && status != RDT_EAGAIN)
        verbs_memory_explain_refusal(like.len_bytes, err, out);
    return status;
}

bool
rdti_verbs_forget_region(void *state, uint32_t index, uint32_t generation, void (*then)(void *arg),
                         void *arg)
{
    struct rdti_verbs *verbs = state;

    (void)pthread_mutex_lock(&verbs->mr_lock);
    struct rdti_verbs_memory *memory =
        verbs_memory_find(verbs, RDT_SEGMENT_NONE, index, generation);
    const bool is_slow = memory != NULL && memory->len_bytes > RDTI_VERBS_REGISTER_NOW_BYTES;
    if (is_slow)
        rdti_verbs_end_later(verbs, memory, then, arg);
    else if (memory != NULL)
        rdti_verbs_free_memory(verbs, memory);
    (void)pthread_mutex_unlock(&verbs->mr_lock);
    return !is_slow;
}

void
rdti_verbs_free_memories(struct rdti_verbs *verbs)
{
    while (!rdti_list_is_empty(&verbs->memories))
        rdti_verbs_free_memory(verbs, RDTI_CONTAINER(verbs->memories.next, struct rdti_verbs_memory,
                                                     link));
}
