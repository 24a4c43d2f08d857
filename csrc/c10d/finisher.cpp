/* SPDX-License-Identifier: Apache-2.0 */
#include "c10d/finisher.hpp"

#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <thread>

namespace rdmatensor
{
namespace
{

struct Queue {
    std::mutex mutex;
    std::condition_variable arrived;
    Ending *first = nullptr;
    Ending **tail = &first;
    std::thread thread;
    bool is_running = false;
    bool is_stopped = false;
};

/* Never destroyed: operations may still end while the process exits. */
Queue &
queue()
{
    static Queue *const the_queue = new Queue;
    return *the_queue;
}

/* This module is loaded before any fork that could matter to it. */
const pid_t owner = getpid();

/* The next in line, or NULL when there is none and none will be waited for. */
Ending *
take(Queue &q, Ending *&next)
{
    std::unique_lock lock(q.mutex);

    q.arrived.wait(lock, [&q] { return q.first != nullptr || q.is_stopped; });
    Ending *all = q.first;
    q.first = nullptr;
    q.tail = &q.first;
    next = all;
    return all;
}

} // namespace

bool
is_forked_child() noexcept
{
    return getpid() != owner;
}

void
Finisher::start()
{
    Queue &q = queue();
    const std::lock_guard lock(q.mutex);

    if (q.is_running || q.is_stopped)
        return;
    q.thread = std::thread([&q] {
        Ending *ending = nullptr;
        while (take(q, ending) != nullptr)
            while (ending != nullptr) {
                Ending *const following = ending->next_;
                ending->end(); /* may be gone afterwards */
                ending = following;
            }
    });
    q.is_running = true;
}

void
Finisher::enqueue(Ending *ending) noexcept
{
    Queue &q = queue();
    {
        const std::lock_guard lock(q.mutex);
        if (q.is_stopped)
            return;
        ending->next_ = nullptr;
        *q.tail = ending;
        q.tail = &ending->next_;
    }
    q.arrived.notify_one();
}

void
Finisher::stop()
{
    Queue &q = queue();

    if (is_forked_child())
        return;
    {
        const std::lock_guard lock(q.mutex);
        if (q.is_stopped)
            return;
        q.is_stopped = true;
        if (!q.is_running)
            return;
    }
    q.arrived.notify_one();
    q.thread.join();
}

} // namespace rdmatensor
