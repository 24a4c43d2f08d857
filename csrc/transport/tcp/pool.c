/* SPDX-License-Identifier: Apache-2.0
 * Memory that a lane needs only while data is in flight: taken from the transport and given back
 * right after, so that an idle connection holds none. */
#include <stdlib.h>

#include "transport/tcp/tcp.h"

void
rdti_tcp_pool_open(struct rdti_tcp_pool *pool, size_t item_bytes)
{
    (void)pthread_mutex_init(&pool->lock, NULL);
    pool->item_bytes = item_bytes;
    pool->spare_count = 0;
}

void
rdti_tcp_pool_close(struct rdti_tcp_pool *pool)
{
    while (pool->spare_count > 0)
        free(pool->spares[--pool->spare_count]);
    (void)pthread_mutex_destroy(&pool->lock);
}

void *
rdti_tcp_pool_take(struct rdti_tcp_pool *pool)
{
    void *item = NULL;

    (void)pthread_mutex_lock(&pool->lock);
    if (pool->spare_count > 0)
        item = pool->spares[--pool->spare_count];
    (void)pthread_mutex_unlock(&pool->lock);
    return item != NULL ? item : malloc(pool->item_bytes);
}

void
rdti_tcp_pool_give(struct rdti_tcp_pool *pool, void *item)
{
    if (item == NULL)
        return;
    (void)pthread_mutex_lock(&pool->lock);
    if (pool->spare_count < RDTI_TCP_SPARES_MAX) {
        pool->spares[pool->spare_count++] = item;
        item = NULL;
    }
    (void)pthread_mutex_unlock(&pool->lock);
    free(item);
}
