/* SPDX-License-Identifier: Apache-2.0
 * Leases of chunks. */
#include "ps/model/queue.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { CHUNKS_LEAST = 64 };
#define CHUNKS_MAX (UINT64_C(1) << 28)

rdt_status
rdti_ps_queue_init(struct rdti_ps_queue *queue, uint64_t chunks, struct rdt_error *err)
{
    if (chunks == RDT_PS_CHUNKS_OPEN) {
        *queue = (struct rdti_ps_queue){.is_open = true};
        return RDT_OK;
    }
    if (chunks > CHUNKS_MAX)
        return rdti_error_set(err, RDT_EINVAL, 0, "a queue of %llu chunks: at most 2^28",
                              (unsigned long long)chunks);
    *queue = (struct rdti_ps_queue){.chunks = chunks, .room = chunks};
    queue->holders = malloc((chunks + 1) * sizeof(*queue->holders));
    queue->is_applied = calloc(chunks + 1, 1);
    if (queue->holders == NULL || queue->is_applied == NULL) {
        rdti_ps_queue_free(queue);
        return rdti_error_set(err, RDT_ENOMEM, 0, "a queue of %llu chunks",
                              (unsigned long long)chunks);
    }
    for (uint64_t i = 0; i < chunks; i++)
        queue->holders[i] = RDTI_PS_CHUNK_FREE;
    return RDT_OK;
}

static rdt_status
queue_grow(struct rdti_ps_queue *queue, uint64_t chunks, struct rdt_error *err)
{
    uint64_t room = queue->room > 0 ? queue->room : CHUNKS_LEAST;

    while (room < chunks)
        room *= 2;
    uint32_t *holders = realloc(queue->holders, room * sizeof(*holders));
    if (holders != NULL)
        queue->holders = holders;
    uint8_t *is_applied = realloc(queue->is_applied, room);
    if (is_applied != NULL)
        queue->is_applied = is_applied;
    if (holders == NULL || is_applied == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a queue of %llu chunks",
                              (unsigned long long)chunks);
    queue->room = room;
    return RDT_OK;
}

rdt_status
rdti_ps_queue_extend(struct rdti_ps_queue *queue, uint64_t chunks, bool is_last,
                     struct rdt_error *err)
{
    rdt_status status = RDT_OK;

    if (!queue->is_open || chunks < queue->chunks || chunks > CHUNKS_MAX)
        return rdti_error_set(err, RDT_EINVAL, 0, "a queue, %s, of %llu chunks becomes one of %llu",
                              queue->is_open ? "open" : "not open",
                              (unsigned long long)queue->chunks, (unsigned long long)chunks);
    if (chunks > queue->room)
        status = queue_grow(queue, chunks, err);
    if (status != RDT_OK)
        return status;
    for (uint64_t i = queue->chunks; i < chunks; i++) {
        queue->holders[i] = RDTI_PS_CHUNK_FREE;
        queue->is_applied[i] = 0;
    }
    queue->chunks = chunks;
    queue->is_open = !is_last;
    return RDT_OK;
}

void
rdti_ps_queue_free(struct rdti_ps_queue *queue)
{
    free(queue->holders);
    free(queue->is_applied);
    free(queue->saved);
    queue->holders = NULL;
    queue->is_applied = NULL;
    queue->saved = NULL;
}

uint64_t
rdti_ps_queue_lease(struct rdti_ps_queue *queue, uint32_t worker)
{
    uint64_t chunk = RDT_PS_CHUNK_NONE;

    if (queue->holders == NULL)
        return RDT_PS_CHUNK_NONE;
    for (uint64_t i = 0; i < queue->next && queue->returned > 0; i++)
        if (queue->holders[i] == RDTI_PS_CHUNK_FREE) {
            queue->returned--;
            chunk = i;
            break;
        }
    if (chunk == RDT_PS_CHUNK_NONE) {
        if (queue->next == queue->chunks)
            return RDT_PS_CHUNK_NONE;
        chunk = queue->next++;
    }
    queue->holders[chunk] = worker;
    return chunk;
}

void
rdti_ps_queue_take(struct rdti_ps_queue *queue, uint64_t chunk, uint32_t worker)
{
    if (queue->holders == NULL || chunk >= queue->chunks ||
        queue->holders[chunk] == RDTI_PS_CHUNK_DONE)
        return;
    for (; queue->next <= chunk; queue->next++)
        queue->returned++;
    if (queue->holders[chunk] == RDTI_PS_CHUNK_FREE)
        queue->returned--;
    queue->holders[chunk] = worker;
}

bool
rdti_ps_queue_apply(struct rdti_ps_queue *queue, uint64_t chunk)
{
    if (queue->is_applied == NULL || queue->is_applied[chunk] != 0)
        return false;
    queue->is_applied[chunk] = 1;
    queue->applied++;
    if (queue->applied == queue->chunks && !queue->is_open) {
        free(queue->is_applied);
        queue->is_applied = NULL;
    }
    return true;
}

void
rdti_ps_queue_confirm(struct rdti_ps_queue *queue, uint64_t chunk, uint32_t worker)
{
    if (queue->holders == NULL || queue->holders[chunk] != worker)
        return;
    queue->holders[chunk] = RDTI_PS_CHUNK_DONE;
    queue->done++;
    if (queue->done == queue->chunks && !queue->is_open) {
        free(queue->holders);
        queue->holders = NULL;
    }
}

void
rdti_ps_queue_give_back(struct rdti_ps_queue *queue, uint64_t chunk, uint32_t worker)
{
    if (!rdti_ps_queue_is_held(queue, chunk, worker))
        return;
    queue->holders[chunk] = RDTI_PS_CHUNK_FREE;
    queue->returned++;
}

void
rdti_ps_queue_return(struct rdti_ps_queue *queue, uint32_t worker)
{
    for (uint64_t i = 0; queue->holders != NULL && i < queue->next; i++)
        rdti_ps_queue_give_back(queue, i, worker);
}

void
rdti_ps_queue_save(const struct rdti_ps_queue *queue, uint8_t *is_applied)
{
    if (queue->is_applied == NULL)
        memset(is_applied, 1, queue->chunks);
    else
        memcpy(is_applied, queue->is_applied, queue->chunks);
}

void
rdti_ps_queue_restore(struct rdti_ps_queue *queue, const uint8_t *is_applied)
{
    for (uint64_t i = 0; i < queue->chunks; i++) {
        if (is_applied[i] == 0 || !rdti_ps_queue_apply(queue, i))
            continue;
        queue->holders[i] = RDTI_PS_CHUNK_DONE;
        queue->done++;
        queue->next = i + 1;
    }
    queue->returned = queue->next - queue->done;
    if (queue->done == queue->chunks && !queue->is_open) {
        free(queue->holders);
        queue->holders = NULL;
    }
}
