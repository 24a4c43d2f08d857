/* SPDX-License-Identifier: Apache-2.0
 * Memory of the mailbox that is taken and returned once a message: recycled, so that the steady
 * state allocates nothing. Everything here is under the engine's lock.
 */
#ifndef RDTI_MESSAGE_MATCH_BUFFER_POOL_H
#define RDTI_MESSAGE_MATCH_BUFFER_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "rdmatensor.h"
#include "wire/endpoint/message.h"

/* Objects of one size. */
struct rdti_pool {
    struct rdti_list idle;
    uint32_t idle_count;
    uint32_t keep; /* idle objects beyond this many go back to the heap */
    size_t object_bytes;
};

/* object_bytes is at least that of a list node. */
void rdti_pool_init(struct rdti_pool *pool, size_t object_bytes, uint32_t keep);
void rdti_pool_clear(struct rdti_pool *pool);
/* Undefined bytes, or NULL. */
void *rdti_pool_take(struct rdti_pool *pool);
void rdti_pool_give(struct rdti_pool *pool, void *object);

/* Parcels: bytes of a message on its way, and the payload of one that waits for its receive.
 * Sizes from 256 bytes to 128 KiB (the largest eager message fits) in powers of two. */
#define RDTI_PARCEL_CLASSES 10

struct rdti_parcels {
    struct rdti_engine *engine;
    struct rdti_pool pools[RDTI_PARCEL_CLASSES];
};

struct rdti_parcel {
    struct rdti_list link;
    struct rdti_parcels *parcels;
    uint32_t size_class;
    uint32_t body_bytes;      /* after the head */
    bool is_quiet;            /* the peer need not act on it before its own next poll */
    struct rdti_message head; /* encoded when its turn comes: credits ride on it */
    uint8_t bytes[];          /* the encoded head, then the body */
};

void rdti_parcels_init(struct rdti_parcels *parcels, struct rdti_engine *engine);
void rdti_parcels_clear(struct rdti_parcels *parcels);
/* Room for `bytes` in parcel->bytes, or NULL: out of memory, or more than the largest class. */
struct rdti_parcel *rdti_parcel_new(struct rdti_parcels *parcels, uint64_t bytes);
void rdti_parcel_free(struct rdti_parcel *parcel);

#endif
