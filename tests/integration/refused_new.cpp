/* SPDX-License-Identifier: Apache-2.0
 *
 * Preloaded before every other library: refuses one request for memory that the process group's own
 * code makes, on whatever thread; or torch's, on a thread that calls a hook for us. What else torch
 * and Python do then is not for us to test. Built by test_memory.py.
 */
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

namespace
{

constexpr const char *ours = "/_c10d";
constexpr const char *torchs = "/libtorch_python";

/* Written before `left`, by which they are published. */
const char *library = ours;
std::size_t least_bytes = 0;
pthread_t spared;
bool is_anybody_spared = false;

std::atomic<long> left{0}; /* until the one that is refused; 0: none is */
std::atomic<bool> was_refused{false};

bool
is_meant(const void *caller, std::size_t len_bytes)
{
    Dl_info found = {};

    return len_bytes >= least_bytes &&
           !(is_anybody_spared && pthread_equal(spared, pthread_self()) != 0) &&
           dladdr(caller, &found) != 0 && std::strstr(found.dli_fname, library) != nullptr;
}

int
refuse(long n, const char *whose, std::size_t bytes, bool is_caller_spared)
{
    left.store(0);
    library = whose;
    least_bytes = bytes;
    spared = pthread_self();
    is_anybody_spared = is_caller_spared;
    left.store(n);
    return was_refused.exchange(false) ? 1 : 0;
}

} // namespace

/* Each: from now on the n-th request; 0: none. Returns whether one was refused since the call
 * before. */
extern "C" int
refuse_new(long n)
{
    return refuse(n, ours, 0, false);
}

/* Of those of so many bytes or more. */
extern "C" int
refuse_large(long n, std::size_t bytes)
{
    return refuse(n, ours, bytes, false);
}

/* Of those that torch makes on threads other than this one. */
extern "C" int
refuse_torch_elsewhere(long n)
{
    return refuse(n, torchs, 0, true);
}

void *
operator new(std::size_t len_bytes)
{
    if (left.load() > 0 && is_meant(__builtin_return_address(0), len_bytes) &&
        left.fetch_sub(1) == 1) {
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
