/* SPDX-License-Identifier: Apache-2.0
 * Recycled memory of the mailbox. */
#include "message/match/buffer_pool.h"

#include <stdlib.h>

/* The smallest parcel: holds a head followed by an RTS. */
#define PARCEL_BYTES_MIN 256
/* Idle parcels kept of each class, in bytes; at least a few of the large ones. */
#define PARCEL_KEEP_BYTES (1 << 20)
#define PARCEL_KEEP_LEAST 4

void
rdti_pool_init(struct rdti_pool *pool, size_t object_bytes, uint32_t keep)
{
    rdti_list_init(&pool->idle);
    pool->idle_count = 0;
    pool->keep = keep;
    pool->object_bytes = object_bytes;
}

void
rdti_pool_clear(struct rdti_pool *pool)
{
    struct rdti_list *node;

    while ((node = rdti_list_take_first(&pool->idle)) != NULL)
        free(node);
    pool->idle_count = 0;
}

void *
rdti_pool_take(struct rdti_pool *pool)
{
    struct rdti_list *node = rdti_list_take_first(&pool->idle);

    if (node == NULL)
        return malloc(pool->object_bytes);
    pool->idle_count--;
    return node;
}

void
rdti_pool_give(struct rdti_pool *pool, void *object)
{
    struct rdti_list *node = object;

    if (pool->idle_count == pool->keep) {
        free(object);
        return;
    }
    /* At the front: the object used last is in a cache. */
    rdti_list_init(node);
    rdti_list_append(pool->idle.next, node);
    pool->idle_count++;
}

void
rdti_parcels_init(struct rdti_parcels *parcels, struct rdti_engine *engine)
{
    parcels->engine = engine;
    for (uint32_t i = 0; i < RDTI_PARCEL_CLASSES; i++) {
        const size_t bytes = (size_t)PARCEL_BYTES_MIN << i;
        const size_t keep = PARCEL_KEEP_BYTES / bytes;
        rdti_pool_init(&parcels->pools[i], sizeof(struct rdti_parcel) + bytes,
                       (uint32_t)(keep < PARCEL_KEEP_LEAST ? PARCEL_KEEP_LEAST : keep));
    }
}

void
rdti_parcels_clear(struct rdti_parcels *parcels)
{
    for (uint32_t i = 0; i < RDTI_PARCEL_CLASSES; i++)
        rdti_pool_clear(&parcels->pools[i]);
}

struct rdti_parcel *
rdti_parcel_new(struct rdti_parcels *parcels, uint64_t bytes)
{
    uint32_t size_class = 0;

    while (size_class < RDTI_PARCEL_CLASSES && ((uint64_t)PARCEL_BYTES_MIN << size_class) < bytes)
        size_class++;
    if (size_class == RDTI_PARCEL_CLASSES)
        return NULL;
    struct rdti_parcel *parcel = rdti_pool_take(&parcels->pools[size_class]);
    if (parcel == NULL)
        return NULL;
    rdti_list_init(&parcel->link);
    parcel->parcels = parcels;
    parcel->size_class = size_class;
    parcel->body_bytes = 0;
    parcel->is_quiet = false;
    return parcel;
}

void
rdti_parcel_free(struct rdti_parcel *parcel)
{
    if (parcel != NULL)
        rdti_pool_give(&parcel->parcels->pools[parcel->size_class], parcel);
}
