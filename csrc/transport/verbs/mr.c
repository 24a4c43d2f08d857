/* SPDX-License-Identifier: Apache-2.0
 * Our memory as devices know it. A piece of the arena is registered when it is first named: as a
 * source by our own ops, as a target by a peer's request for its key. A key to write cannot read,
 * one to read cannot write. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/error.h"
#include "base/range.h"
#include "transport/verbs/verbs.h"

#define CAP_IPC_LOCK_BIT 14

/* ---- The limit on locked memory ------------------------------------------------------------- */

static bool
has_ipc_lock(void)
{
    FILE *status = fopen("/proc/self/status", "re");
    char line[256];
    uint64_t caps = 0;

    if (status == NULL)
        return false;
    while (fgets(line, sizeof(line), status) != NULL)
        if (strncmp(line, "CapEff:", 7) == 0) {
            caps = strtoull(line + 7, NULL, 16);
            break;
        }
    (void)fclose(status);
    return (caps >> CAP_IPC_LOCK_BIT & 1) != 0;
}

static rdt_status
memlock_error(uint64_t len_bytes, uint64_t limit_bytes, int sys_errno, struct rdt_error *err)
{
    return rdti_error_set(
        err, RDT_ENOMEM, sys_errno,
        "%llu bytes cannot be locked for the device: RLIMIT_MEMLOCK is %llu. docker: --ulimit "
        "memlock=-1 --cap-add IPC_LOCK; systemd: LimitMEMLOCK=infinity; "
        "/etc/security/limits.conf: * - memlock unlimited",
        (unsigned long long)len_bytes, (unsigned long long)limit_bytes);
}

static uint64_t
memlock_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    return limit.rlim_cur;
}

rdt_status
rdti_verbs_check_memlock(uint64_t len_bytes, struct rdt_error *err)
{
    const uint64_t limit = memlock_limit();

    return limit >= len_bytes || has_ipc_lock() ? RDT_OK : memlock_error(len_bytes, limit, 0, err);
}

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
    struct ibv_mr *mr =
        nic->verbs->ops->reg_mr_iova2(nic->pd, addr, len_bytes, (uintptr_t)addr, access);
    if (mr != NULL) {
        *out = mr;
        return RDT_OK;
    }
    const int sys_errno = errno;
    const uint64_t limit = memlock_limit();
    if (sys_errno == ENOMEM && limit != UINT64_MAX && !has_ipc_lock())
        return memlock_error(len_bytes, limit, sys_errno, err);
    return rdti_error_set(err, sys_errno == ENOMEM ? RDT_ENOMEM : RDT_EDEVICE, sys_errno,
                          "ibv_reg_mr of %llu bytes on %s", (unsigned long long)len_bytes,
                          nic->name);
}

/* ---- The table ------------------------------------------------------------------------------ */

static void
free_memory(struct rdti_verbs *verbs, struct rdti_verbs_memory *memory)
{
    rdti_list_remove(&memory->link);
    for (uint32_t i = 0; i < RDTI_VERBS_PORTS_MAX; i++)
        for (uint32_t kind = 0; kind < 2; kind++)
            if (memory->mrs[i][kind] != NULL)
                (void)verbs->ops->dereg_mr(memory->mrs[i][kind]);
    free(memory);
}

/* Payloads may overtake each other on the bus: they are announced by completions, which may not.
 * The bit is of the optional range: a device without it ignores it. */
static unsigned int
access_of(uint32_t kind)
{
    return IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING |
           (unsigned int)(kind == 1 ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE);
}

/* On every port, for a kind of access. mr_lock is held. */
static rdt_status
register_on_all(struct rdti_verbs *verbs, struct rdti_verbs_memory *memory, uint32_t kind,
                struct rdt_error *err)
{
    for (uint32_t i = 0; i < verbs->nic_count; i++) {
        if (memory->mrs[i][kind] != NULL)
            continue;
        const rdt_status status =
            rdti_verbs_register(&verbs->nics[i], memory->addr, memory->len_bytes, access_of(kind),
                                &memory->mrs[i][kind], err);
        if (status != RDT_OK)
            return status;
    }
    return RDT_OK;
}

/* A new entry, registered; on failure there is none. mr_lock is held. */
static rdt_status
add_memory(struct rdti_verbs *verbs, const struct rdti_verbs_memory *like, uint32_t kind,
           struct rdti_verbs_memory **out, struct rdt_error *err)
{
    struct rdti_verbs_memory *memory = calloc(1, sizeof(*memory));

    if (memory == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a registration of %zu bytes", sizeof(*memory));
    *memory = *like;
    memset(memory->mrs, 0, sizeof(memory->mrs));
    rdti_list_init(&memory->link);
    const rdt_status status = register_on_all(verbs, memory, kind, err);
    if (status != RDT_OK) {
        free_memory(verbs, memory);
        return status;
    }
    rdti_list_append(&verbs->memories, &memory->link);
    *out = memory;
    return RDT_OK;
}

static struct rdti_verbs_memory *
find_memory(struct rdti_verbs *verbs, uint32_t segment, uint32_t index, uint32_t generation)
{
    for (struct rdti_list *at = verbs->memories.next; at != &verbs->memories; at = at->next) {
        struct rdti_verbs_memory *memory = RDTI_CONTAINER(at, struct rdti_verbs_memory, link);

        if (memory->segment == segment && memory->index == index &&
            memory->generation == generation)
            return memory;
    }
    return NULL;
}

/* mr_lock is held. Only the arena's pieces: they never go while the transport is open, regions over
 * other memory may. */
static struct rdti_verbs_memory *
find_holder(struct rdti_verbs *verbs, const void *addr, uint64_t len_bytes)
{
    for (struct rdti_list *at = verbs->memories.next; at != &verbs->memories; at = at->next) {
        struct rdti_verbs_memory *memory = RDTI_CONTAINER(at, struct rdti_verbs_memory, link);
        const uintptr_t begin = (uintptr_t)memory->addr;

        if (memory->segment != RDT_SEGMENT_NONE && (uintptr_t)addr >= begin &&
            rdti_range_ok((uintptr_t)addr - begin, len_bytes, memory->len_bytes))
            return memory;
    }
    return NULL;
}

bool
rdti_verbs_own_key(struct rdti_verbs *verbs, const void *addr, uint64_t len_bytes, uint32_t nic,
                   uint32_t *lkey_out)
{
    const struct rdti_host *host = verbs->host;
    struct rdti_memory piece;

    (void)pthread_mutex_lock(&verbs->mr_lock);
    struct rdti_verbs_memory *memory = find_holder(verbs, addr, len_bytes);
    if (memory == NULL && host->memory_find(host->core, addr, len_bytes, &piece, NULL) == RDT_OK) {
        const struct rdti_verbs_memory like = {.addr = piece.addr,
                                               .len_bytes = piece.len_bytes,
                                               .segment = piece.segment};
        /* Where this fails the bytes go through the stage, and a peer that asks for the key hears
         * why. */
        if (add_memory(verbs, &like, 0, &memory, NULL) != RDT_OK)
            memory = NULL;
    }
    if (memory != NULL)
        *lkey_out = memory->mrs[nic][memory->mrs[nic][0] != NULL ? 0 : 1]->lkey;
    (void)pthread_mutex_unlock(&verbs->mr_lock);
    return memory != NULL;
}

/* What a request means: a piece of the arena, or a region over other memory. */
static rdt_status
resolve(struct rdti_verbs *verbs, const struct rdti_verbs_words *get,
        struct rdti_verbs_memory *like, struct rdt_error *err)
{
    const struct rdti_host *host = verbs->host;
    struct rdti_memory piece;
    struct rdti_target target;
    rdt_status status;

    *like = (struct rdti_verbs_memory){.segment = get->segment,
                                       .index = get->index,
                                       .generation = get->generation};
    if (get->segment != RDT_SEGMENT_NONE) {
        status = host->memory_segment(host->core, get->segment, &piece, err);
        if (status != RDT_OK)
            return status;
        like->addr = piece.addr;
        like->len_bytes = piece.len_bytes;
        return RDT_OK;
    }
    status = host->target_acquire(host->core, get->index, get->generation, 0, get->len_bytes,
                                  &target, err);
    if (status != RDT_OK)
        return status;
    like->addr = target.addr;
    like->len_bytes = get->len_bytes;
    /* Not pinned: forget_region() comes before the memory may go. */
    host->target_release(host->core, &target);
    return RDT_OK;
}

rdt_status
rdti_verbs_grant(struct rdti_verbs *verbs, const struct rdti_verbs_words *get,
                 struct rdti_verbs_words *out, struct rdt_error *err)
{
    const uint32_t kind = get->access == RDTI_VERBS_MAY_READ ? 1 : 0;
    struct rdti_verbs_memory like;
    rdt_status status = resolve(verbs, get, &like, err);

    if (status != RDT_OK)
        return status;
    (void)pthread_mutex_lock(&verbs->mr_lock);
    struct rdti_verbs_memory *memory =
        find_memory(verbs, get->segment, get->index, get->generation);
    if (memory == NULL)
        status = add_memory(verbs, &like, kind, &memory, err);
    else
        status = register_on_all(verbs, memory, kind, err);
    if (status == RDT_OK) {
        *out = (struct rdti_verbs_words){
            .kind = RDTI_VERBS_KEY,
            .access = get->access,
            .segment = get->segment,
            .index = get->index,
            .generation = get->generation,
            .base = (uintptr_t)memory->addr,
            .len_bytes = memory->len_bytes,
            .rkey_count = (uint8_t)verbs->nic_count,
        };
        for (uint32_t i = 0; i < verbs->nic_count; i++)
            out->rkeys[i] = memory->mrs[i][kind]->rkey;
    }
    (void)pthread_mutex_unlock(&verbs->mr_lock);
    return status;
}

void
rdti_verbs_forget_region(void *state, uint32_t index, uint32_t generation)
{
    struct rdti_verbs *verbs = state;

    (void)pthread_mutex_lock(&verbs->mr_lock);
    struct rdti_verbs_memory *memory = find_memory(verbs, RDT_SEGMENT_NONE, index, generation);
    if (memory != NULL)
        free_memory(verbs, memory);
    (void)pthread_mutex_unlock(&verbs->mr_lock);
}

void
rdti_verbs_free_memories(struct rdti_verbs *verbs)
{
    while (!rdti_list_is_empty(&verbs->memories))
        free_memory(verbs, RDTI_CONTAINER(verbs->memories.next, struct rdti_verbs_memory, link));
}
