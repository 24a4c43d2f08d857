/* SPDX-License-Identifier: Apache-2.0
 *
 * allocator_switch.hpp - redirects a thread's torch allocations to the arena while the thread
 * requests it.
 *
 * torch uses one allocator for the memory of every CPU tensor. On first use rdmatensor replaces it
 * permanently, and forwards the allocations that no thread redirects. A forwarded allocation costs
 * one load of a thread-local variable. Redirected tensors are ordinary ones: resizable (the new
 * memory is torch's own, unless the thread still redirects), and freed on any thread.
 */
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <torch/custom_class.h>

#include "rdmatensor.h"

namespace rdmatensor
{

/* Redirected allocations of a thread since the process started. */
struct ArenaAllocations {
    uint64_t count;
    uint64_t bytes;
    /* Requested from the arena, which had no room: they are in torch's own memory. */
    uint64_t missed;
    uint64_t missed_bytes;
};

/* Replaces torch's allocator. False: another library has replaced it; enter_arena() and
 * trace_allocations() then throw. */
bool take_allocator();
/* This thread's allocations of at least `min_bytes` go to the context's arena, until the matching
 * leave_arena(). Calls nest; the innermost one applies. The caller keeps the context open
 * meanwhile. */
void enter_arena(rdt_context *context, size_t min_bytes);
void leave_arena();
ArenaAllocations arena_allocations();

/* Observes each allocation of a thread, and may serve it. The thread may access the trace at any
 * time and therefore keeps it alive: until the trace is ended on that thread, until another thread
 * has forsaken it and this thread allocates, or until this thread exits. */
class AllocationTrace : public torch::CustomClassHolder
{
  public:
    /* Memory for an allocation of `bytes` > 0; empty: another allocator serves it. */
    virtual c10::DataPtr serve(size_t bytes) = 0;
    /* Memory from another allocator for the last request that serve() did not serve. */
    virtual void allocated(const void *address, size_t bytes) = 0;
    /* Any thread. Permanent: the trace is never used again. */
    void forsake();
    [[nodiscard]] bool is_forsaken() const;

  private:
    /* relaxed: the thread that has the trace may see it late */
    std::atomic<bool> is_forsaken_{false};
};

/* From now on this thread's allocations go to the trace, until it is ended on this thread. Of
 * several traces the last one receives them; traces end in any order. */
void trace_allocations(c10::intrusive_ptr<AllocationTrace> trace);
/* The caller has a reference of its own. */
void end_trace(const AllocationTrace *trace);
/* Whether this thread's allocations go to a trace. */
bool is_traced();

/* Whether the tensor's whole storage is in an arena of this process, by allocation or by
 * adopt(). */
bool is_in_arena(const at::Tensor &tensor);

/*
 * Moves a tensor's storage, with all its views, into the arena. The old memory is freed: the caller
 * guarantees that the old address is not used any more (by a NumPy view, a pointer in C). Throws
 * ValueError for a storage that cannot be replaced, naming why: not on the CPU, shared with other
 * processes, memory that torch did not allocate, empty.
 */
void adopt(rdt_context *context, const at::Tensor &tensor);

} // namespace rdmatensor
