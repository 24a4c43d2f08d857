/* SPDX-License-Identifier: Apache-2.0
 *
 * arena_switch.hpp - what torch allocates on a thread goes to the arena while that thread says so.
 *
 * torch asks one allocator for the memory of every CPU tensor. Ours takes that place at the first
 * use, for good, and hands on what no thread asked for: one load of a thread's own variable each.
 * Tensors that are born so are ordinary ones: resizable (the new memory is torch's own, unless the
 * thread still says so), and freed on any thread.
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

/* What a thread's allocations came to since the process began. */
struct Births {
    uint64_t count;
    uint64_t bytes;
    /* Wanted in the arena, and refused by it: they are in torch's own memory. */
    uint64_t missed;
    uint64_t missed_bytes;
};

/* Take the place at torch's allocator. False: another library has it, and the two below throw. */
bool take_allocator();
/* This thread's allocations of at least `min_bytes` go to the context's arena, until the matching
 * leave_arena(). Nests; the innermost counts. The caller keeps the context open in between. */
void enter_arena(rdt_context *context, size_t min_bytes);
void leave_arena();
Births births();

/* Sees each allocation of a thread, and may serve it. The thread may look at it at any time, and so
 * it keeps it: until it is ended there, or another thread has forsaken it and this one allocates,
 * or this thread ends. */
class AllocationTrace : public torch::CustomClassHolder
{
  public:
    /* Memory for an allocation of `bytes`, more than 0; empty: the others shall give it. */
    virtual c10::DataPtr serve(size_t bytes) = 0;
    /* What the others gave for the one that serve() was asked for last. */
    virtual void born(const void *address, size_t bytes) = 0;
    /* Any thread. For good: it is never traced with again. */
    void forsake();
    [[nodiscard]] bool is_forsaken() const;

  private:
    /* relaxed: the thread that has it may see it late */
    std::atomic<bool> is_forsaken_{false};
};

/* From here on this thread's allocations go to the trace, until it is ended on this thread. Of
 * several the last one has them; they end in any order. */
void trace_allocations(c10::intrusive_ptr<AllocationTrace> trace);
/* The caller has a reference of its own. */
void end_trace(const AllocationTrace *trace);
/* Whether this thread's allocations go to one. */
bool is_traced();

/* The tensor's whole storage lies in an arena of this process, where it was born or adopted. */
bool is_in_arena(const at::Tensor &tensor);

/*
 * Move a tensor's storage, with all its views, into the arena. Who keeps the old address (a NumPy
 * view, a pointer in C) keeps the old memory only until now: the caller says that nobody does.
 * Throws ValueError for a storage that cannot be replaced, naming why: not on the CPU, shared with
 * other processes, memory that torch did not allocate, empty.
 */
void adopt(rdt_context *context, const at::Tensor &tensor);

} // namespace rdmatensor
