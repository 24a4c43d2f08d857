/* SPDX-License-Identifier: Apache-2.0
 * Storages of the arena: each keeps its region and its context until torch lets it go. */
#include "c10d/allocator.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include <c10/util/Exception.h>

#include "c10d/finisher.hpp"

namespace rdmatensor
{
namespace
{

/* torch hands a deleter the address alone, so the regions stand here. */
struct Table {
    struct Entry {
        rdt_region *region;
        rdt_context *context;
    };
    std::mutex mutex;
    std::unordered_map<void *, Entry> entries;
    std::unordered_map<const rdt_context *, uint64_t> live;
};

/* Never destroyed: storages may be freed while the process exits. */
Table &
table()
{
    static Table *const the_table = new Table;
    return *the_table;
}

void
release(void *address)
{
    /* In a forked child the memory is the parent's, and the mutex may be held for ever. */
    if (address == nullptr || is_forked_child())
        return;
    Table &t = table();
    Table::Entry entry;
    {
        const std::lock_guard lock(t.mutex);
        const auto node = t.entries.extract(address);
        if (node.empty())
            return;
        entry = node.mapped();
    }
    rdt_region_free(entry.region, nullptr, nullptr);
    /* Last: a thread that sees nothing live closes the context, which that call uses to its end. */
    const std::lock_guard lock(t.mutex);
    if (--t.live[entry.context] == 0)
        t.live.erase(entry.context);
}

class ArenaAllocator final : public c10::Allocator
{
  public:
    explicit ArenaAllocator(rdt_context *context) : context_(context) {}

    c10::DataPtr allocate(size_t bytes) override
    {
        rdt_region *region = nullptr;
        rdt_error error = {};

        if (bytes == 0)
            return {nullptr, nullptr, &release, at::kCPU};
        const rdt_status status = rdt_region_alloc(context_, bytes, 0, &region, &error);
        if (status == RDT_ENOMEM)
            C10_THROW_ERROR(OutOfMemoryError, c10::str("rdmatensor: ", error.message));
        TORCH_CHECK(status == RDT_OK, "rdmatensor: ", error.message, " [", rdt_status_name(status),
                    "]");
        void *const address = rdt_region_addr(region);
        Table &t = table();
        const std::lock_guard lock(t.mutex);
        t.entries.emplace(address, Table::Entry{region, context_});
        t.live[context_]++;
        return {address, address, &release, at::kCPU};
    }

    c10::DeleterFnPtr raw_deleter() const override
    {
        return &release;
    }

    void copy_data(void *dest, const void *src, size_t count) const override
    {
        default_copy_data(dest, src, count);
    }

  private:
    rdt_context *const context_;
};

} // namespace

c10::Allocator *
arena_allocator(rdt_context *context)
{
    static std::mutex mutex;
    static auto *const allocators = new std::map<rdt_context *, std::unique_ptr<ArenaAllocator>>;
    const std::lock_guard lock(mutex);
    std::unique_ptr<ArenaAllocator> &allocator = (*allocators)[context];

    if (!allocator)
        allocator = std::make_unique<ArenaAllocator>(context);
    return allocator.get();
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
