/* SPDX-License-Identifier: Apache-2.0
 *
 * allocator.hpp - torch's storages in the arena: tensors that are born where peers can reach them.
 *
 * Such a storage is an ordinary, resizable one. It keeps the context open: its bytes stay valid
 * until it is freed, also after the user's handle of the context was closed. Any thread.
 */
#pragma once

#include <c10/core/Allocator.h>

#include "rdmatensor.h"

namespace rdmatensor
{

/* The allocator over a context's arena; never destroyed, since storages keep a pointer to it. */
c10::Allocator *arena_allocator(rdt_context *context);

/*
 * The same, for buffers that come and go in every step: what is freed is kept for the next of its
 * size, so that addresses repeat and nothing is mapped or registered anew. What is kept
 * does not keep the context open; drop_slabs() gives it back.
 */
c10::Allocator *slab_allocator(rdt_context *context);

struct SlabStats {
    uint64_t live_bytes;
    uint64_t cached_bytes;
    uint64_t allocated; /* times that memory was asked for */
    uint64_t reused;    /* of those, out of what was kept */
};
SlabStats slab_stats(const rdt_context *context);

/* Before the context closes. What is freed later is not kept. NULL: of all contexts. */
void drop_slabs(const rdt_context *context);

/* Free the storage at this address; false, and nothing done, if it is none of an arena's. In a
 * forked child nothing is freed. */
bool release_arena_storage(void *address);
/* A storage of an arena begins at this address. */
bool is_arena_storage(const void *address);

/* Storages of the context that live. */
uint64_t live_storages(const rdt_context *context);

} // namespace rdmatensor
