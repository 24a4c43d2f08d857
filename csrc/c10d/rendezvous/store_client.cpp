/* SPDX-License-Identifier: Apache-2.0
 * Requests to torch's store, one at a time, on a thread that lasts for a burst of them. */
#include "c10d/rendezvous/store_client.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>

#include "c10d/works/gil.hpp"
#include "c10d/works/thread.hpp"

namespace rdmatensor
{
namespace
{

/* Longest delay in noticing Ctrl-C, the end of the group or a deadline. */
constexpr std::chrono::milliseconds poll_slice{50};
/* Longer than the pause of a wait between two requests. While ranks spin, starting a thread for
 * each request takes several times as long as waking one. */
constexpr std::chrono::milliseconds idle_limit{100};
/* A pause is this fraction of the time since polling began: a store serves many members. */
constexpr int poll_part = 8;
constexpr std::chrono::milliseconds least_poll_pause{1};
constexpr std::chrono::milliseconds longest_poll_pause{500};

} // namespace

/* The queue of a client's requests. An abandoned request shares it until it ends. */
struct StoreClient::Line {
    using Clock = std::chrono::steady_clock;

    std::mutex mutex;
    std::condition_variable changed; /* a request has ended */
    std::condition_variable came;    /* a request is next */
    std::shared_ptr<Asked> next;
    bool is_taken = false; /* a request is next, or running */
    bool has_thread = false;
    Poll poll;                /* also empty while it runs */
    uint64_t poll_number = 0; /* a stopped or replaced poll has an older one */
    c10::weak_intrusive_ptr<c10d::Store> polled{c10::intrusive_ptr<c10d::Store>()};
    Clock::time_point poll_began;
    Clock::time_point poll_next;

    /* Returns with the mutex locked. */
    template <typename Condition>
    std::unique_lock<std::mutex> wait(const Condition &is_met, const Look &look)
    {
        std::unique_lock lock(mutex);

        while (!is_met()) {
            (void)changed.wait_for(lock, poll_slice);
            if (is_met())
                break;
            lock.unlock();
            look();
            lock.lock();
        }
        return lock;
    }
};

/* From when it is taken until it is over, only the thread accesses it. */
struct StoreClient::Asked {
    std::function<void(c10d::Store &)> request;
    Store store;
    std::exception_ptr error;
    bool is_over = false; /* guarded by the mutex of Line */
};

StoreClient::StoreClient(Store store) : store_(std::move(store)), line_(std::make_shared<Line>()) {}

/* Releases everything that the caller may share before the caller is notified, so that the caller
 * is the one that tears down the store, unless it has gone. */
void
StoreClient::answer(Asked &asked)
{
    try {
        asked.request(*asked.store);
    } catch (const abi::__forced_unwind &) {
        throw; /* Python has ended, and ends this thread */
    } catch (...) {
        asked.error = std::current_exception();
    }
    asked.request = nullptr;
    asked.store.reset();
}

/* The caller holds the lock, which is released meanwhile. An error of the store ends the polling;
 * the next request reports it. */
void
StoreClient::poll_once(Line &line, std::unique_lock<std::mutex> &lock)
{
    const uint64_t number = line.poll_number;
    Poll poll = std::exchange(line.poll, nullptr);
    Store store = line.polled.lock();
    bool is_done = !store;

    lock.unlock();
    try {
        is_done = is_done || poll(*store);
    } catch (const abi::__forced_unwind &) {
        throw; /* as in answer() */
    } catch (...) {
        is_done = true;
    }
    if (is_done)
        poll = nullptr;
    store.reset();
    lock.lock();
    if (is_done || number != line.poll_number)
        return;
    const auto now = Line::Clock::now();
    line.poll_next = now + std::clamp<Line::Clock::duration>((now - line.poll_began) / poll_part,
                                                             least_poll_pause, longest_poll_pause);
    line.poll = std::move(poll);
}

void
StoreClient::serve(Line &line)
{
    std::unique_lock lock(line.mutex);

    for (;;) {
        const auto until = line.poll ? line.poll_next : Line::Clock::now() + idle_limit;
        if (!line.came.wait_until(lock, until, [&line] { return line.next != nullptr; })) {
            if (line.poll)
                poll_once(line, lock);
            else if (Line::Clock::now() >= until)
                break;
            continue;
        }
        const std::shared_ptr<Asked> asked = std::exchange(line.next, nullptr);
        lock.unlock();
        answer(*asked);
        lock.lock();
        asked->is_over = true;
        line.is_taken = false;
        line.changed.notify_all();
    }
    line.has_thread = false;
}

void
StoreClient::poll(Poll poll)
{
    const std::shared_ptr<Line> line = line_;
    const std::lock_guard lock(line->mutex);

    if (!line->has_thread)
        start_thread("requests to the store", [line] { serve(*line); });
    line->has_thread = true;
    line->poll = std::move(poll);
    line->poll_number++;
    line->polled = c10::weak_intrusive_ptr<c10d::Store>(store_);
    line->poll_began = Line::Clock::now();
    line->poll_next = line->poll_began + least_poll_pause;
    line->came.notify_one();
}

void
StoreClient::stop_polling() noexcept
{
    Poll stopped; /* destroyed after the lock is released */
    const std::lock_guard lock(line_->mutex);

    line_->poll_number++;
    stopped = std::exchange(line_->poll, nullptr);
}

void
StoreClient::run(std::function<void(c10d::Store &)> request, const Look &look)
{
    const WithoutGil without_gil;
    /* A reference of this thread: in a child that is forked meanwhile, the thread is gone but its
     * reference is not, so that the child never destroys a condition variable that has waiters. */
    const std::shared_ptr<Line> line = line_;
    const auto asked = std::make_shared<Asked>(
        Asked{.request = std::move(request), .store = store_, .error = nullptr});

    {
        const auto lock = line->wait([&line] { return !line->is_taken; }, look);
        if (!line->has_thread)
            start_thread("requests to the store", [line] { serve(*line); });
        line->has_thread = true;
        line->is_taken = true;
        line->next = asked;
        line->came.notify_one();
    }
    std::exception_ptr error;
    {
        const auto lock = line->wait([&asked] { return asked->is_over; }, look);
        error = std::exchange(asked->error, nullptr);
    }
    if (error)
        std::rethrow_exception(std::move(error));
}

} // namespace rdmatensor
