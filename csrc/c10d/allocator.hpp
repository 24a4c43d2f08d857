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

/* Storages of the context that live. */
uint64_t live_storages(const rdt_context *context);

} // namespace rdmatensor
