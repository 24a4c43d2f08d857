/* SPDX-License-Identifier: Apache-2.0
 * torch's allocator of CPU memory, after the requests of the calling thread. */
#include "c10d/memory/allocator_switch.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include "c10d/memory/allocator.hpp"
#include "c10d/memory/planned_places.hpp"
#include "c10d/works/completion_thread.hpp"

namespace rdmatensor
{
namespace
{

/* Above the priority of torch's own allocator: a lower one that is set later is ignored. */
constexpr uint8_t kPriority = 100;

struct Scope {
    rdt_context *context;
    size_t min_bytes;
};

struct PerThread {
    std::vector<Scope> scopes;
    std::vector<c10::intrusive_ptr<AllocationTrace>> traces;
    ArenaAllocations arena_allocations = {};
};

thread_local PerThread this_thread;

class ArenaSwitch final : public c10::Allocator
{
  public:
    explicit ArenaSwitch(c10::Allocator *before) : before_(before) {}

    c10::DataPtr allocate(size_t bytes) override
    {
        PerThread &thread = this_thread;

        if ((thread.traces.empty() && thread.scopes.empty()) || bytes == 0 || is_forked_child())
            return before_->allocate(bytes);
        AllocationTrace *const trace = trace_of(thread);
        if (trace != nullptr) {
            c10::DataPtr served = trace->serve(bytes);
            if (served)
                return served;
        }
        c10::DataPtr data = allocate_by_scope(thread, bytes);
        if (trace != nullptr)
            trace->allocated(data.get(), bytes);
        return data;
    }

    /* For raw_allocate(), whose memory is freed by its address alone and may be from either
     * allocator. */
    c10::DeleterFnPtr raw_deleter() const override
    {
        return &release_either;
    }

    void copy_data(void *dest, const void *src, size_t count) const override
    {
        before_->copy_data(dest, src, count);
    }

    /* Whether it is installed. Another library may have replaced it before or after. */
    static bool install()
    {
        static std::once_flag once;
        std::call_once(once, [] {
            /* Never destroyed: storages keep a pointer to their allocator. */
            the_switch = new ArenaSwitch(c10::GetCPUAllocator());
            c10::SetCPUAllocator(the_switch, kPriority);
        });
        return c10::GetCPUAllocator() == the_switch;
    }

    static void require()
    {
        TORCH_CHECK(install(),
                    "rdmatensor: another library has taken over torch's allocator of CPU memory");
    }

  private:
    static AllocationTrace *trace_of(PerThread &thread)
    {
        while (!thread.traces.empty() && thread.traces.back()->is_forsaken())
            thread.traces.pop_back();
        return thread.traces.empty() ? nullptr : thread.traces.back().get();
    }

    c10::DataPtr allocate_by_scope(PerThread &thread, size_t bytes)
    {
        if (thread.scopes.empty() || bytes < thread.scopes.back().min_bytes)
            return before_->allocate(bytes);
        try {
            c10::DataPtr data = arena_allocator(thread.scopes.back().context)->allocate(bytes);
            thread.arena_allocations.count++;
            thread.arena_allocations.bytes += bytes;
            return data;
        } catch (const c10::OutOfMemoryError &) {
            /* Without the arena the program would have got this memory. The miss is counted. */
            thread.arena_allocations.missed++;
            thread.arena_allocations.missed_bytes += bytes;
            return before_->allocate(bytes);
        }
    }

    static void release_either(void *address)
    {
        /* A place may begin where its memory does. Only the tensor in the place is freed by its
         * address. */
        if (!release_planned_place(address) && !release_arena_storage(address))
            the_switch->before_->raw_deleter()(address);
    }

    static inline ArenaSwitch *the_switch = nullptr;
    c10::Allocator *const before_;
};

} // namespace

void
AllocationTrace::forsake()
{
    is_forsaken_.store(true, std::memory_order_relaxed);
}

bool
AllocationTrace::is_forsaken() const
{
    return is_forsaken_.load(std::memory_order_relaxed);
}

bool
take_allocator()
{
    return ArenaSwitch::install();
}

void
enter_arena(rdt_context *context, size_t min_bytes)
{
    ArenaSwitch::require();
    this_thread.scopes.push_back({context, min_bytes});
}

void
leave_arena()
{
    TORCH_CHECK(!this_thread.scopes.empty(), "rdmatensor: the arena is left but was not entered");
    this_thread.scopes.pop_back();
}

void
trace_allocations(c10::intrusive_ptr<AllocationTrace> trace)
{
    ArenaSwitch::require();
    this_thread.traces.push_back(std::move(trace));
}

void
end_trace(const AllocationTrace *trace)
{
    auto &traces = this_thread.traces;
    const auto last = std::find_if(traces.rbegin(), traces.rend(),
                                   [trace](const auto &one) { return one.get() == trace; });

    if (last != traces.rend())
        traces.erase(std::next(last).base());
}

bool
is_traced()
{
    return !this_thread.traces.empty();
}

ArenaAllocations
arena_allocations()
{
    return this_thread.arena_allocations;
}

bool
is_in_arena(const at::Tensor &tensor)
{
    return tensor.has_storage() && tensor.device().is_cpu() &&
           is_arena_storage(tensor.storage().data());
}

void
adopt(rdt_context *context, const at::Tensor &tensor)
{
    TORCH_CHECK_VALUE(tensor.has_storage() && tensor.device().is_cpu(), "adopt: a tensor on ",
                      tensor.device(), ", not a dense one on the CPU");
    c10::StorageImpl *const storage = tensor.storage().unsafeGetStorageImpl();
    const size_t bytes = storage->nbytes();

    TORCH_CHECK_VALUE(bytes > 0, "adopt: the tensor has no memory");
    if (is_arena_storage(storage->data()))
        return;
    /* Memory of another owner (NumPy, another process, a file) must stay: the owner would not
     * notice. */
    TORCH_CHECK_VALUE(storage->resizable() && storage->data_ptr().get_deleter() ==
                                                  c10::GetDefaultCPUAllocator()->raw_deleter(),
                      "adopt: torch did not allocate the tensor's memory: it is shared with other "
                      "processes, with NumPy, or belongs to another library");
    c10::Allocator *const allocator = arena_allocator(context);
    c10::DataPtr data = allocator->allocate(bytes);
    std::memcpy(data.get(), storage->data(), bytes);
    storage->set_data_ptr_noswap(std::move(data));
    storage->set_allocator(allocator);
}

} // namespace rdmatensor
