/* SPDX-License-Identifier: Apache-2.0
 * Storages in the arena: each keeps its region and its context until torch frees it. */
#include "c10d/memory/allocator.hpp"

#include <algorithm>
#include <bit>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <c10/util/Exception.h>

#include "c10d/works/completion_thread.hpp"

namespace rdmatensor
{
namespace
{

/* A slab shares no page with its neighbours, which a peer that maps it therefore does not touch. */
constexpr size_t slab_unit_bytes = 4096;
/* Sizes are rounded up to eighths of a power of two: at most an eighth is wasted. */
constexpr size_t slab_steps = 8;
/* The gathered parameters and gradients of the layers that a large model has in flight. More would
 * take memory from the rest of the process. The oldest slabs are freed first. */
constexpr size_t cached_bytes_max = size_t{1} << 30;

/* A region of a storage, or kept for the next storage. */
struct Entry {
    rdt_region *region;
    rdt_context *context;
    size_t slab_bytes; /* 0: not from a slab allocator */
};

struct Slabs {
    std::list<Entry> kept; /* the newest first */
    bool is_open = true;   /* otherwise nothing is kept */
    SlabStats stats = {};
};

/* torch passes only the address to a deleter, so the regions are looked up here. */
struct Table {
    std::mutex mutex;
    std::unordered_map<void *, Entry> entries;
    std::unordered_map<const rdt_context *, uint64_t> live;
    std::unordered_map<const rdt_context *, Slabs> slabs;
};

/* Never destroyed: storages may be freed while the process exits. */
Table &
table()
{
    static Table *const the_table = new Table;
    return *the_table;
}

void
free_regions(const std::vector<Entry> &entries)
{
    for (const Entry &entry : entries)
        rdt_region_free(entry.region, nullptr, nullptr);
}

/* The caller holds the mutex. Returns the entries beyond `bytes_max`, to be freed without it. */
std::vector<Entry>
take_oldest(Slabs &slabs, size_t bytes_max)
{
    std::vector<Entry> taken;

    while (slabs.stats.cached_bytes > bytes_max) {
        taken.push_back(slabs.kept.back());
        slabs.stats.cached_bytes -= slabs.kept.back().slab_bytes;
        slabs.kept.pop_back();
    }
    return taken;
}

/* The caller holds the mutex. Returns the entries to free instead of keeping them. */
std::vector<Entry>
keep(Table &t, const Entry &entry)
{
    if (entry.slab_bytes == 0)
        return {entry};
    Slabs &slabs = t.slabs[entry.context];
    slabs.stats.live_bytes -= entry.slab_bytes;
    if (!slabs.is_open)
        return {entry};
    slabs.stats.cached_bytes += entry.slab_bytes;
    slabs.kept.push_front(entry);
    return take_oldest(slabs, cached_bytes_max);
}

void
release(void *address)
{
    if (address != nullptr)
        (void)release_arena_storage(address);
}

c10::DataPtr
no_bytes()
{
    return {nullptr, nullptr, &release, at::kCPU};
}

/* Hands a region over to torch. */
c10::DataPtr
enter(const Entry &entry)
{
    void *const address = rdt_region_addr(entry.region);
    Table &t = table();
    const std::lock_guard lock(t.mutex);

    t.entries.emplace(address, entry);
    t.live[entry.context]++;
    return {address, address, &release, at::kCPU};
}

rdt_region *
allocate_region(rdt_context *context, size_t bytes)
{
    rdt_region *region = nullptr;
    rdt_error error = {};
    rdt_status status = rdt_region_alloc(context, bytes, 0, &region, &error);

    if (status == RDT_ENOMEM) { /* the kept slabs may be what is missing */
        Table &t = table();
        std::vector<Entry> kept;
        {
            const std::lock_guard lock(t.mutex);
            const auto slabs = t.slabs.find(context);
            if (slabs != t.slabs.end())
                kept = take_oldest(slabs->second, 0);
        }
        free_regions(kept);
        if (!kept.empty())
            status = rdt_region_alloc(context, bytes, 0, &region, &error);
    }
    if (status == RDT_ENOMEM)
        C10_THROW_ERROR(OutOfMemoryError, c10::str("rdmatensor: ", error.message));
    TORCH_CHECK(status == RDT_OK, "rdmatensor: ", error.message, " [", rdt_status_name(status),
                "]");
    return region;
}

class ArenaAllocator : public c10::Allocator
{
  public:
    explicit ArenaAllocator(rdt_context *context) : context_(context) {}

    c10::DataPtr allocate(size_t bytes) override
    {
        return bytes == 0 ? no_bytes() : enter({allocate_region(context_, bytes), context_, 0});
    }

    c10::DeleterFnPtr raw_deleter() const override
    {
        return &release;
    }

    void copy_data(void *dest, const void *src, size_t count) const override
    {
        default_copy_data(dest, src, count);
    }

  protected:
    rdt_context *const context_;
};

size_t
slab_bytes_for(size_t bytes)
{
    const size_t step = std::max(slab_unit_bytes, std::bit_floor(bytes) / slab_steps);

    return (bytes + step - 1) / step * step;
}

class SlabAllocator final : public ArenaAllocator
{
  public:
    using ArenaAllocator::ArenaAllocator;

    c10::DataPtr allocate(size_t bytes) override
    {
        if (bytes == 0)
            return no_bytes();
        Entry entry = {nullptr, context_, slab_bytes_for(bytes)};
        entry.region = take_kept(entry.slab_bytes);
        if (entry.region == nullptr) {
            try {
                entry.region = allocate_region(context_, entry.slab_bytes);
            } catch (...) {
                Table &t = table();
                const std::lock_guard lock(t.mutex);
                t.slabs[context_].stats.live_bytes -= entry.slab_bytes;
                throw;
            }
        }
        return enter(entry);
    }

  private:
    /* Counts the slab as live in any case. NULL if no slab of this size is kept. */
    rdt_region *take_kept(size_t bytes)
    {
        Table &t = table();
        const std::lock_guard lock(t.mutex);
        Slabs &slabs = t.slabs[context_];
        const auto fits = [bytes](const Entry &entry) { return entry.slab_bytes == bytes; };
        const auto found = std::find_if(slabs.kept.begin(), slabs.kept.end(), fits);

        slabs.is_open = true;
        slabs.stats.allocated++;
        slabs.stats.live_bytes += bytes;
        if (found == slabs.kept.end())
            return nullptr;
        rdt_region *const region = found->region;
        slabs.kept.erase(found);
        slabs.stats.cached_bytes -= bytes;
        slabs.stats.reused++;
        return region;
    }
};

/* Allocators are never destroyed: storages keep pointers to them. */
template <typename Kind>
c10::Allocator *
allocator_of(rdt_context *context)
{
    static std::mutex mutex;
    static auto *const allocators = new std::map<rdt_context *, std::unique_ptr<Kind>>;
    const std::lock_guard lock(mutex);
    std::unique_ptr<Kind> &allocator = (*allocators)[context];

    if (!allocator)
        allocator = std::make_unique<Kind>(context);
    return allocator.get();
}

} // namespace

c10::Allocator *
arena_allocator(rdt_context *context)
{
    return allocator_of<ArenaAllocator>(context);
}

c10::Allocator *
slab_allocator(rdt_context *context)
{
    return allocator_of<SlabAllocator>(context);
}

SlabStats
slab_stats(const rdt_context *context)
{
    Table &t = table();
    const std::lock_guard lock(t.mutex);
    const auto found = t.slabs.find(context);

    return found == t.slabs.end() ? SlabStats{} : found->second.stats;
}

void
drop_slabs(const rdt_context *context)
{
    Table &t = table();
    std::vector<Entry> kept;

    if (is_forked_child())
        return;
    {
        const std::lock_guard lock(t.mutex);
        for (auto &[owner, slabs] : t.slabs) {
            if (context != nullptr && owner != context)
                continue;
            slabs.is_open = false;
            const std::vector<Entry> all = take_oldest(slabs, 0);
            kept.insert(kept.end(), all.begin(), all.end());
        }
    }
    free_regions(kept);
}

bool
release_arena_storage(void *address)
{
    Table &t = table();
    rdt_context *context = nullptr;
    std::vector<Entry> unwanted;

    if (is_forked_child()) {
        /* The memory is the parent's, and one of its threads may hold the mutex forever. The
         * address is then taken for the arena's; the memory is freed when the child exits. */
        const std::unique_lock lock(t.mutex, std::try_to_lock);
        return !lock.owns_lock() || t.entries.count(address) > 0;
    }
    {
        const std::lock_guard lock(t.mutex);
        const auto node = t.entries.extract(address);
        if (node.empty())
            return false;
        context = node.mapped().context;
        unwanted = keep(t, node.mapped());
    }
    free_regions(unwanted);
    /* Last: a thread that sees no live storage closes the context, which the call above still
     * uses. */
    const std::lock_guard lock(t.mutex);
    if (--t.live[context] == 0)
        t.live.erase(context);
    return true;
}

bool
is_arena_storage(const void *address)
{
    Table &t = table();
    const std::lock_guard lock(t.mutex);

    return t.entries.count(const_cast<void *>(address)) > 0;
}

uint64_t
live_storages(const rdt_context *context)
{
    Table &t = table();
    const std::lock_guard lock(t.mutex);
    const auto found = t.live.find(context);

    return found == t.live.end() ? 0 : found->second;
}

} // namespace rdmatensor
