/* SPDX-License-Identifier: Apache-2.0
 * Which places of the buckets may be given to allocations, and moving a bucket to other memory. */
#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include <c10/core/CPUAllocator.h>
#include <torch/csrc/utils/pybind.h>

#include "c10d/ddp/gradients.hpp"
#include "c10d/memory/allocator.hpp"

namespace rdmatensor
{
namespace
{

/* A scheduling turn of a thread on a busy machine. A holder that keeps a bucket for longer keeps it
 * in the next pass too, which then does not wait for it. */
constexpr std::chrono::milliseconds kPatience{10};
constexpr const char *kOtherMemory = "a bucket has other memory than it had";
constexpr const char *kShown =
    "the program has, or shows, gradients of the step before; or its communication hook keeps "
    "buckets";
constexpr const char *kOtherSum =
    "the last sum is not in its bucket: a communication hook gave another tensor back, or that "
    "pass raised";

void
let_go(void *storage)
{
    delete static_cast<c10::Storage *>(storage);
}

} // namespace

/* Called after the reducer has made each gradient its view of a bucket. */
void
GradientPlacer::settle()
{
    const auto reducer = reducer_.lock();

    if (!reducer)
        return;
    if (!has_all_buckets(*reducer)) { /* some are in no bucket yet; another pass may bring all */
        note(kParted);
        return;
    }
    note("");
    is_settled_ = true;
    buckets_.clear();
    sizes_.clear();
    for (uint32_t number = 0; number < gradients_.size(); number++)
        settle_one(*reducer, number);
    const auto is_partial = [this](const Bucket &bucket) {
        uint64_t bytes = 0;
        for (const uint32_t number : bucket.gradients)
            bytes += gradients_[number].accumulator->variable.grad().nbytes();
        return bytes != bucket.storage._unsafe_get_target()->nbytes();
    };
    for (const Bucket &bucket : buckets_)
        if (is_partial(bucket))
            forget(bucket);
    buckets_.erase(std::remove_if(buckets_.begin(), buckets_.end(), is_partial), buckets_.end());
    for (const Gradient &gradient : gradients_)
        if (gradient.bytes > 0)
            sizes_.insert(gradient.bytes);
    if (sizes_.empty())
        give_up("no gradient has " + std::to_string(least_bytes_) +
                " bytes, in a bucket of the arena whose gradients all come");
}

void
GradientPlacer::settle_one(const c10d::Reducer &reducer, uint32_t number)
{
    Gradient &gradient = gradients_[number];

    gradient.bytes = 0;
    gradient.origins.clear();
    gradient.misses = 0;
    if (gradient.accumulator == nullptr)
        return;
    const at::Tensor &grad = gradient.accumulator->variable.grad();
    if (!grad.defined() || grad.layout() != at::kStrided || !grad.is_cpu() || !grad.is_view() ||
        !is_arena_storage(grad.storage().data()))
        return;
    c10::StorageImpl *const storage = grad.storage().unsafeGetStorageImpl();
    Bucket *bucket = find_bucket(storage);
    if (bucket == nullptr) {
        c10::TensorImpl *const flat = grad._base().unsafeGetTensorImpl();
        const auto theirs = number_of_bucket(reducer, flat);
        if (!theirs)
            return;
        buckets_.push_back({weakly(storage), weakly(flat), *theirs, storage->data(), {}});
        bucket = &buckets_.back();
    }
    bucket->gradients.push_back(number);
    gradient.view = weakly(grad.unsafeGetTensorImpl());
    gradient.bucket = weakly(storage);
    gradient.off = static_cast<uint64_t>(grad.storage_offset()) * grad.element_size();
    if (grad.is_non_overlapping_and_dense() && grad.nbytes() >= least_bytes_)
        gradient.bytes = grad.nbytes();
}

void
GradientPlacer::forget(const Bucket &bucket)
{
    for (const uint32_t number : bucket.gradients)
        gradients_[number].bytes = 0;
}

GradientPlacer::Bucket *
GradientPlacer::find_bucket(const c10::StorageImpl *storage)
{
    const auto found = std::find_if(buckets_.begin(), buckets_.end(), [storage](const Bucket &one) {
        return one.storage._unsafe_get_target() == storage;
    });
    return found == buckets_.end() ? nullptr : &*found;
}

/* Decides which places may be given to allocations of this pass. Returns whether there are any. */
bool
GradientPlacer::open()
{
    const pybind11::gil_scoped_acquire gil; /* Python's objects count among the holders */
    const auto reducer = reducer_.lock();
    std::string why;
    bool is_any = false;

    is_learning_ = false;
    if (!reducer) /* gone with its module: nothing is summed */
        return false;
    for (Bucket &bucket : buckets_) {
        std::string closed = why_closed(*reducer, bucket);
        if (closed.empty() && !keep_memory(bucket))
            closed = kOtherMemory;
        for (const uint32_t number : bucket.gradients) {
            Gradient &gradient = gradients_[number];
            gradient.visits = 0;
            gradient.is_served = false;
            gradient.memory = bucket.memory;
            gradient.is_open =
                closed.empty() && gradient.bytes > 0 && gradient.misses < kMostMisses;
            is_any |= gradient.is_open;
            is_learning_ |= gradient.is_open && (gradient.origins.empty() || gradient.misses > 0);
        }
        if (!closed.empty())
            why = std::move(closed);
    }
    note(why);
    return is_any;
}

std::string
GradientPlacer::why_closed(const c10d::Reducer &reducer, Bucket &bucket)
{
    if (bucket.storage.use_count() == 0 || bucket.flat.use_count() == 0 ||
        bucket.storage._unsafe_get_target()->data() != bucket.address)
        return kOtherMemory;
    for (const uint32_t number : bucket.gradients) {
        const Gradient &gradient = gradients_[number];
        if (gradient.accumulator == nullptr || gradient.accumulator->variable.grad().defined())
            return "a bucket has gradients that were not set to None, and are added to";
        if (!gradient.tenant.expired())
            return "the program keeps a gradient of a pass before";
        if (!has_known_hooks(*gradient.accumulator))
            return "the program has, or had, hooks on parameters of the bucket";
    }
    if (!has_own_sum(reducer, bucket))
        return kOtherSum;
    return is_alone(bucket) && is_let_go(reducer, bucket) ? "" : kShown;
}

/* Moves the memory of a bucket that only the reducer has to a second storage. The bucket and each
 * tensor in one of its places hold that storage: a program may give the bucket other memory, as
 * with share_memory_() of a gradient, while a tensor is in a place. */
bool
GradientPlacer::keep_memory(Bucket &bucket)
{
    c10::StorageImpl *const storage = bucket.storage._unsafe_get_target();
    void *const address = storage->mutable_data(); /* unshares it from a lazy clone */

    if (address != bucket.address)
        return false;
    if (bucket.memory.use_count() > 0)
        return true;
    const auto memory =
        c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                              storage->nbytes(), c10::DataPtr(),
                                              /*allocator=*/nullptr, /*resizable=*/false);
    memory->set_data_ptr_noswap(
        storage->set_data_ptr(c10::DataPtr(address, new c10::Storage(memory), &let_go, at::kCPU)));
    bucket.memory = weakly(memory.get());
    return true;
}

/* Whether the last sum is the bucket itself. Then the reducer has the references that the two
 * functions below count. */
bool
GradientPlacer::has_own_sum(const c10d::Reducer &reducer, const Bucket &bucket)
{
    return bucket.flat.use_count() > 0 &&
           is_summed_in(reducer, bucket.number, bucket.flat._unsafe_get_target(),
                        bucket.gradients.size());
}

/* Whether only the reducer has references to the bucket. It has the bucket as a tensor and two
 * views of each gradient: the view that it writes, which the parameter may have too, and the view
 * of the sum. */
bool
GradientPlacer::is_alone(const Bucket &bucket) const
{
    const auto views = 2 * static_cast<uint32_t>(bucket.gradients.size());

    for (const uint32_t number : bucket.gradients) {
        const Gradient &gradient = gradients_[number];
        if (gradient.accumulator == nullptr || gradient.view.use_count() == 0)
            return false;
        c10::TensorImpl *const view = gradient.view._unsafe_get_target();
        const at::Tensor &grad = gradient.accumulator->variable.grad();
        const uint32_t own = grad.defined() && grad.unsafeGetTensorImpl() == view ? 2 : 1;
        if (holders(view) != own)
            return false;
    }
    return holders(bucket.storage._unsafe_get_target()) == 1 + views;
}

/* The same for the bucket as a tensor: the base of each view, and held by the last sum's future. */
bool
GradientPlacer::is_flat_alone(const c10d::Reducer &reducer, const Bucket &bucket)
{
    const auto views = 2 * static_cast<uint32_t>(bucket.gradients.size());

    return is_sum_alone(reducer, bucket.number) &&
           holders(bucket.flat._unsafe_get_target()) == 1 + views + 1;
}

/* Waits a moment: the threads that ended the last sum release the bucket only afterwards. */
bool
GradientPlacer::is_let_go(const c10d::Reducer &reducer, Bucket &bucket)
{
    const auto until = std::chrono::steady_clock::now() + kPatience;

    while (!is_flat_alone(reducer, bucket)) {
        if (bucket.is_hopeless || std::chrono::steady_clock::now() > until) {
            bucket.is_hopeless = true;
            return false;
        }
        const pybind11::gil_scoped_release unlocked; /* they may be Python threads */
        std::this_thread::yield();
    }
    bucket.is_hopeless = false;
    return true;
}

c10::DataPtr
GradientPlacer::lend(Gradient &gradient)
{
    const auto bucket = gradient.bucket.lock();
    const auto memory = gradient.memory.lock();
    if (!bucket || !memory || bucket->data() != memory->data())
        return {};
    const auto place = std::make_shared<Place>();
    place->memory = c10::Storage(memory);
    place->address = static_cast<char *>(memory->mutable_data()) + gradient.off;
    place->bytes = gradient.bytes;
    c10::DataPtr data = occupy(place);
    if (data) {
        gradient.tenant = place;
        gradient.is_open = false;
        gradient.is_served = true;
    }
    return data;
}

/* Gives the bucket other memory. No other code notices: only the reducer has the bucket, and it
 * keeps tensors, not addresses. No sum of the bucket is in flight, since this gradient has not
 * arrived. */
void
GradientPlacer::make_way(const Gradient &gradient, const std::shared_ptr<Place> &place)
{
    const c10::StorageImpl *const memory = place->memory.unsafeGetStorageImpl();
    c10::StorageImpl *const bucket = gradient.bucket._unsafe_get_target(); /* its view has it */

    give_up("a backward pass made a gradient, or kept it, otherwise than in the passes before");
    {
        const pybind11::gil_scoped_acquire gil;
        const Bucket *const known = find_bucket(bucket);
        const auto reducer = reducer_.lock();
        TORCH_CHECK(known != nullptr && reducer && has_own_sum(*reducer, *known) &&
                        is_alone(*known) && is_flat_alone(*reducer, *known),
                    "rdmatensor: this backward pass made a gradient, or kept it, otherwise than "
                    "those before, so that a tensor lies where DistributedDataParallel writes; and "
                    "the program has other gradients of this pass, so that the bucket cannot be "
                    "moved. RDMATENSOR_ADOPT=0 leaves all to torch");
    }
    const size_t bytes = bucket->nbytes();
    c10::DataPtr fresh;
    try {
        if (context_ != nullptr)
            fresh = arena_allocator(context_)->allocate(bytes);
    } catch (const c10::Error &) { /* as for buckets that do not fit into the arena */
    }
    if (!fresh)
        fresh = c10::GetCPUAllocator()->allocate(bytes);
    std::memcpy(fresh.get(), bucket->data(), bytes);
    bucket->set_data_ptr_noswap(std::move(fresh));
    for (Gradient &one : gradients_) {
        const auto tenant = one.tenant.lock();
        if (tenant && tenant->memory.unsafeGetStorageImpl() == memory)
            one.tenant.reset(); /* the tensor is in no place of the reducer any more */
    }
}

} // namespace rdmatensor
