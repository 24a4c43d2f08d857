/* SPDX-License-Identifier: Apache-2.0
 *
 * allocator.hpp - torch's storages in the arena: tensors in memory that peers can reach.
 *
 * Such a storage is an ordinary, resizable one. It keeps the context open: its bytes stay valid
 * until it is freed, also after the user closed the handle of the context. Any thread.
 */
#pragma once

#include <c10/core/Allocator.h>

#include "rdmatensor.h"

namespace rdmatensor
{

/* The allocator of a context's arena. Never destroyed, since storages keep a pointer to it. */
c10::Allocator *arena_allocator(rdt_context *context);

/*
 * The same, for buffers that are allocated and freed in every step. A freed slab is kept for the
 * next request of its size, so that addresses repeat and nothing is mapped or registered again.
 * Kept slabs do not keep the context open; drop_slabs() frees them.
 */
c10::Allocator *slab_allocator(rdt_context *context);

struct SlabStats {
    uint64_t live_bytes;
    uint64_t cached_bytes;
    uint64_t allocated; /* number of requests */
    uint64_t reused;    /* of those, served by a kept slab */
};
SlabStats slab_stats(const rdt_context *context);

/* Called before the context closes. Slabs freed afterwards are not kept. NULL: of all contexts. */
void drop_slabs(const rdt_context *context);

/* Frees the storage at this address. False, without effect, if no arena has a storage there. In a
 * forked child nothing is freed. */
bool release_arena_storage(void *address);
/* Whether a storage of an arena begins at this address. */
bool is_arena_storage(const void *address);

/* Number of live storages of the context. */
uint64_t live_storages(const rdt_context *context);

} // namespace rdmatensor
