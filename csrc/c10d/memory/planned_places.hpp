/* SPDX-License-Identifier: Apache-2.0
 *
 * birthplace.hpp - gradients that are born where they are sent from.
 *
 * A step's backward pass makes the same allocations in the same order as the step's before it. A
 * trace tells which of them ends as which gradient; from then on those allocations are given the
 * place in the arena that the plan keeps for that gradient, so that autograd's last kernel writes
 * where the all-reduce reads. An allocation that does not come as traced is torch's own; the
 * gradient is then elsewhere, which the caller sees by its address.
 */
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

#include "c10d/memory/allocator_switch.hpp"

namespace rdmatensor
{

/* One allocation of a pass: its number, counted from 0, its address and its size. */
struct Birth {
    uint64_t number;
    uintptr_t address;
    uint64_t bytes;
};

/* Where one tensor may lie, within memory that it keeps. */
struct Place {
    c10::Storage memory;
    void *address;
    uint64_t bytes;
    /* Pairs with itself: what the last tensor's threads wrote is seen by who takes the place. */
    std::atomic<bool> is_taken{false};
};

/* Whether a tensor's memory is still that place alone: not shared with others by a wrapper, as a
 * lazy clone's is. */
bool is_place(const c10::DataPtr &data);

/* The place's memory for one tensor, which keeps the place; empty if one lies there. */
c10::DataPtr occupy(const std::shared_ptr<Place> &place);

/* The places of one plan, within one tensor of the arena. begin() and end() belong to one thread at
 * a time; tensors that lie in the places are freed on any. */
class Birthplaces final : public AllocationTrace
{
  public:
    using Spans = std::vector<std::pair<uint64_t, uint64_t>>; /* offset and size in bytes */
    using Served =
        std::vector<std::pair<uint64_t, uint32_t>>; /* number of a birth, and its place */

    /* Throws ValueError for spans that leave `memory`, are empty or begin where another does. Each
     * place keeps `memory` until this object, and the tensor that lies in the place, are gone. */
    Birthplaces(const at::Tensor &memory, const Spans &spans);

    /* From here on this thread's allocations are numbered, and some are served: a place in which a
     * tensor still lies, or of another size, is not given. */
    void begin(const Served &served);
    /* On the thread of begin(). On another one nothing is served from now on, for good: that thread
     * may look at this object at any time, and keeps it until it allocates or ends. */
    void end();
    /* Any thread. For good: whoever had them is gone, maybe in a pass that raised. */
    void stop();
    /* The number of the last birth since begin() at this address that was not served; -1: none. */
    [[nodiscard]] int64_t find(uintptr_t address) const;
    /* A tensor in a place, its content what stands there. RuntimeError if one lies there already,
     * ValueError if the place is not exactly as large. */
    at::Tensor take(uint32_t place, const std::vector<int64_t> &shape,
                    const std::vector<int64_t> &strides, c10::ScalarType type);
    /* Places given so far. */
    [[nodiscard]] uint64_t served_count() const;
    /* A tensor that was born there lies in the place. */
    [[nodiscard]] bool is_taken(uint32_t place) const;

  private:
    c10::DataPtr serve(size_t bytes) override;
    void born(const void *address, size_t bytes) override;

    std::vector<std::shared_ptr<Place>> places_;
    std::unordered_map<uint64_t, uint32_t> served_;
    std::vector<Birth> births_;
    uint64_t number_ = 0;
    uint64_t served_count_ = 0;
    /* Allocations of thread_ come here; it stays set where another thread ended that. */
    bool is_traced_ = false;
    std::thread::id thread_;
    /* relaxed: between begin() and end() of one thread; another's end() is seen soon enough */
    std::atomic<bool> is_active_{false};
};

/* Free the tensor that was born at this address; false: there is no such place. */
bool release_birthplace(void *address);

} // namespace rdmatensor
