/* SPDX-License-Identifier: Apache-2.0
 * Places, and the tensors in them. */
#include "c10d/memory/planned_places.hpp"

#include <atomic>
#include <mutex>

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/graph_task.h>

#include "c10d/works/completion_thread.hpp"

namespace rdmatensor
{

namespace
{

/* torch passes only the address to a deleter, so the occupied places are looked up here. */
struct Taken {
    std::mutex mutex;
    std::unordered_map<void *, std::shared_ptr<Place>> places;
};

/* Never destroyed: tensors may be freed while the process exits. */
Taken &
taken()
{
    static Taken *const the_taken = new Taken;
    return *the_taken;
}

void
leave_place(void *address)
{
    if (address != nullptr)
        (void)release_planned_place(address);
}

} // namespace

bool
release_planned_place(void *address)
{
    Taken &t = taken();
    std::shared_ptr<Place> place;

    if (is_forked_child()) { /* as in release_arena_storage() */
        const std::unique_lock lock(t.mutex, std::try_to_lock);
        return !lock.owns_lock() || t.places.count(address) > 0;
    }
    {
        const std::lock_guard lock(t.mutex);
        const auto node = t.places.extract(address);
        if (node.empty())
            return false;
        place = node.mapped();
    }
    place->is_taken.store(false, std::memory_order_release);
    return true; /* `place` may be the last owner of the memory: released without the lock */
}

bool
is_place(const c10::DataPtr &data)
{
    return data.get_deleter() == &leave_place;
}

c10::DataPtr
occupy(const std::shared_ptr<Place> &place)
{
    if (place->is_taken.exchange(true, std::memory_order_acq_rel))
        return {};
    Taken &t = taken();
    const std::lock_guard lock(t.mutex);
    if (!t.places.emplace(place->address, place).second) { /* another place at this address */
        place->is_taken.store(false, std::memory_order_relaxed);
        return {};
    }
    return {place->address, place->address, &leave_place, at::kCPU};
}

PlannedPlaces::PlannedPlaces(const at::Tensor &memory, const Spans &spans)
{
    TORCH_CHECK_VALUE(memory.is_contiguous() && is_in_arena(memory),
                      "the places of a plan must be in contiguous memory of the arena");
    std::unordered_map<uint64_t, uint64_t> seen;
    for (const auto &[offset, bytes] : spans) {
        TORCH_CHECK_VALUE(bytes > 0 && offset <= memory.nbytes() &&
                              bytes <= memory.nbytes() - offset &&
                              seen.emplace(offset, bytes).second,
                          "a place of ", bytes, " bytes at offset ", offset, " of ",
                          memory.nbytes());
        auto place = std::make_shared<Place>();
        place->memory = memory.storage();
        place->address = static_cast<char *>(memory.mutable_data_ptr()) + offset;
        place->bytes = bytes;
        places_.push_back(std::move(place));
    }
}

void
PlannedPlaces::begin(const Served &served, bool in_passes)
{
    TORCH_CHECK(!is_forsaken(), "rdmatensor: a backward pass raised on another thread, which may "
                                "still look at these places: apply the plan again");
    TORCH_CHECK(!is_traced_, "rdmatensor: a backward pass is traced already");
    served_.clear();
    not_served_.clear();
    for (const auto &[number, place] : served) {
        TORCH_CHECK_INDEX(place < places_.size(), "no place has the number ", place);
        served_.emplace(number, place);
    }
    number_ = 0;
    in_passes_ = in_passes;
    task_ = -1;
    trace_allocations(c10::intrusive_ptr<AllocationTrace>::unsafe_reclaim_from_nonowning(this));
    is_traced_ = true;
    thread_ = std::this_thread::get_id();
    is_active_.store(true, std::memory_order_relaxed);
}

void
PlannedPlaces::end()
{
    TORCH_CHECK(is_traced_, "rdmatensor: no backward pass is traced");
    is_active_.store(false, std::memory_order_relaxed);
    if (std::this_thread::get_id() != thread_) {
        forsake();
        return;
    }
    end_trace(this);
    is_traced_ = false;
}

void
PlannedPlaces::stop()
{
    is_active_.store(false, std::memory_order_relaxed);
    forsake();
}

int64_t
PlannedPlaces::find(uintptr_t address) const
{
    for (auto span = not_served_.rbegin(); span != not_served_.rend(); ++span)
        if (span->address == address)
            return static_cast<int64_t>(span->number);
    return -1;
}

at::Tensor
PlannedPlaces::take(uint32_t place, const std::vector<int64_t> &shape,
                    const std::vector<int64_t> &strides, c10::ScalarType type)
{
    TORCH_CHECK_INDEX(place < places_.size(), "no place has the number ", place);
    const std::shared_ptr<Place> &chosen = places_[place];
    const size_t bytes = at::detail::computeStorageNbytes(shape, strides, c10::elementSize(type));

    TORCH_CHECK_VALUE(bytes == chosen->bytes, "a tensor of ", bytes, " bytes in a place of ",
                      chosen->bytes);
    c10::DataPtr data = occupy(chosen);
    TORCH_CHECK(data, "a tensor lies in place ", place, " already");
    const auto storage =
        c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                              std::move(data), c10::GetCPUAllocator(),
                                              /*resizable=*/true);
    at::Tensor tensor =
        at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage),
                                                 c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                 c10::scalarTypeToTypeMeta(type));
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(shape, strides);
    return tensor;
}

uint64_t
PlannedPlaces::served_count() const
{
    return served_count_;
}

bool
PlannedPlaces::is_taken(uint32_t place) const
{
    return places_.at(place)->is_taken.load(std::memory_order_acquire);
}

/* A pass that computes gradients to be differentiated again, or of chosen inputs, makes no gradient
 * of a place. */
bool
PlannedPlaces::is_counted()
{
    if (!is_active_.load(std::memory_order_relaxed))
        return false;
    if (!in_passes_)
        return true;
    const auto *const chosen = torch::autograd::get_current_graph_task_exec_info();
    if (chosen == nullptr || !chosen->empty() || c10::GradMode::is_enabled())
        return false;
    const int task = torch::autograd::get_current_graph_task_id();
    if (task != task_) {
        task_ = task;
        number_ = number_ - number_ % kPassNumbers + kPassNumbers;
    }
    return true;
}

c10::DataPtr
PlannedPlaces::serve(size_t bytes)
{
    has_number_ = is_counted();
    if (!has_number_)
        return {};
    const auto found = served_.find(number_++);

    if (found == served_.end() || places_[found->second]->bytes != bytes)
        return {};
    c10::DataPtr data = occupy(places_[found->second]);
    served_count_ += data ? 1 : 0;
    return data;
}

void
PlannedPlaces::allocated(const void *address, size_t bytes)
{
    if (has_number_ && is_active_.load(std::memory_order_relaxed))
        not_served_.push_back({number_ - 1, reinterpret_cast<uintptr_t>(address), bytes});
}

} // namespace rdmatensor
