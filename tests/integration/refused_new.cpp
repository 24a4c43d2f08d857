/* SPDX-License-Identifier: Apache-2.0
 *
 * Preloaded before every other library: refuses one request for memory that the process group's own
 * code makes, on whatever thread. What torch and Python do then is not for us to test. Built by
 * test_memory.py.
 */
#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

namespace
{

std::atomic<long> left{0}; /* until the one that is refused; 0: none is */
std::atomic<bool> was_refused{false};

bool
is_ours(const void *caller)
{
    Dl_info found = {};

    return dladdr(caller, &found) != 0 && std::strstr(found.dli_fname, "/_c10d") != nullptr;
}

} // namespace

/* From now on the n-th request; 0: none. Returns whether one was refused since the call before. */
extern "C" int
refuse_new(long n)
{
    left.store(n);
    return was_refused.exchange(false) ? 1 : 0;
}

void *
operator new(std::size_t len_bytes)
{
    if (left.load() > 0 && is_ours(__builtin_return_address(0)) && left.fetch_sub(1) == 1) {
        was_refused.store(true);
        throw std::bad_alloc();
    }
    void *const memory = std::malloc(len_bytes > 0 ? len_bytes : 1);
    if (memory == nullptr)
        throw std::bad_alloc();
    return memory;
}

void
operator delete(void *memory) noexcept
{
    std::free(memory);
}

void
operator delete(void *memory, std::size_t) noexcept
{
    std::free(memory);
}
