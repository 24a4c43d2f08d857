/* SPDX-License-Identifier: Apache-2.0
 *
 * planned_places.hpp - gradients that are allocated where they are sent from.
 *
 * The backward pass of a step makes the same allocations in the same order as that of the step
 * before. A trace shows which of them becomes which gradient. In later passes those allocations get
 * the place in the arena that the plan keeps for the gradient, so that autograd's last kernel
 * writes where the all-reduce reads. torch serves an allocation that does not match the trace. The
 * gradient is then elsewhere, which the caller notices by its address.
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
struct NumberedSpan {
    uint64_t number;
    uintptr_t address;
    uint64_t bytes;
};

/* The place of one tensor, within memory that it keeps alive. */
struct Place {
    c10::Storage memory;
    void *address;
    uint64_t bytes;
    /* Pairs with itself: the thread that takes the place sees what the last tensor's threads
     * wrote. */
    std::atomic<bool> is_taken{false};
};

/* Whether a tensor's memory is still that place alone, and not shared through a wrapper, as a lazy
 * clone's is. */
bool is_place(const c10::DataPtr &data);

/* The place's memory for one tensor, which keeps the place alive. Empty if it is occupied. */
c10::DataPtr occupy(const std::shared_ptr<Place> &place);

/* The places of one plan, within one tensor of the arena. begin() and end() run on one thread at a
 * time; tensors in the places are freed on any thread. */
class PlannedPlaces final : public AllocationTrace
{
  public:
    using Spans = std::vector<std::pair<uint64_t, uint64_t>>; /* offset and size in bytes */
    using Served =
        std::vector<std::pair<uint64_t, uint32_t>>; /* number of an allocation, and its place */

    /* Throws ValueError for spans that exceed `memory`, are empty or begin where another does. Each
     * place keeps `memory` alive until this object and the tensor in the place are gone. */
    PlannedPlaces(const at::Tensor &memory, const Spans &spans);

    /* From now on this thread's allocations are numbered, and some are served. A place that is
     * occupied, or of another size, is not given. `in_passes`: only those of whole backward passes,
     * with kPassNumbers more for each pass. */
    void begin(const Served &served, bool in_passes = false);
    /* Called on the thread of begin(). On another thread, it ends serving permanently: the thread
     * of begin() may access this object at any time, and keeps it alive until it allocates or
     * exits. */
    void end();
    /* Any thread. Permanent: the owner of the places is gone, perhaps in a pass that raised. */
    void stop();
    /* The number of the last allocation since begin() at this address that was not served; -1:
     * none. */
    [[nodiscard]] int64_t find(uintptr_t address) const;
    /* A tensor in a place, with the content of the place. RuntimeError if the place is occupied,
     * ValueError if its size differs. */
    at::Tensor take(uint32_t place, const std::vector<int64_t> &shape,
                    const std::vector<int64_t> &strides, c10::ScalarType type);
    /* Places given so far. */
    [[nodiscard]] uint64_t served_count() const;
    /* Whether a tensor is in the place. */
    [[nodiscard]] bool is_taken(uint32_t place) const;

  private:
    static constexpr uint64_t kPassNumbers = uint64_t{1} << 32;

    c10::DataPtr serve(size_t bytes) override;
    void allocated(const void *address, size_t bytes) override;
    bool is_counted();

    std::vector<std::shared_ptr<Place>> places_;
    std::unordered_map<uint64_t, uint32_t> served_;
    std::vector<NumberedSpan> not_served_;
    uint64_t number_ = 0;
    uint64_t served_count_ = 0;
    bool in_passes_ = false;
    int task_ = -1;           /* of autograd, whose allocations were counted last */
    bool has_number_ = false; /* the allocation that is being served */
    /* Allocations of thread_ are reported here. Stays set if another thread ended the trace. */
    bool is_traced_ = false;
    std::thread::id thread_;
    /* relaxed: between begin() and end() of one thread; another thread's end() is seen soon
     * enough */
    std::atomic<bool> is_active_{false};
};

/* Frees the tensor in the place at this address. False if the address is not a place's. */
bool release_planned_place(void *address);

} // namespace rdmatensor
