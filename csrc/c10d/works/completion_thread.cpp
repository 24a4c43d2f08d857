/* SPDX-License-Identifier: Apache-2.0
 * Queues and threads that end operations without a waiting caller, in the expected order. */
#include "c10d/works/completion_thread.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <c10/util/Exception.h>

#include "c10d/works/thread.hpp"

namespace rdmatensor
{
namespace
{

using Clock = std::chrono::steady_clock;

/* Nesting depth of callbacks; PowerSGD's are two deep. Deeper ones share the last lane. */
constexpr unsigned lanes_max = 64;
/* A lane gets a helper after this time without progress, unless something that its callback started
 * is in flight. */
constexpr std::chrono::seconds still_limit{1};
constexpr unsigned helpers_max = 64;
constexpr std::chrono::seconds patience_at_stop{5};

thread_local unsigned thread_lane = 0;

constexpr const char *purpose = "the ends of operations";

/* relaxed, both: a child has one thread, and the thread that makes a group also calls
 * note_use(). */
std::atomic<pid_t> user{0}; /* the process that made the first group; 0: none was made */
/* Set before fork() returns in the child. Read at every call, so that the check costs no system
 * call. */
std::atomic<bool> in_child{false};

void
enter_child()
{
    if (user.load(std::memory_order_relaxed) != 0)
        in_child.store(true, std::memory_order_relaxed);
}

/* This module is loaded before any fork that could matter to it. If there was no memory for the
 * handler, a child is recognized by its process id. */
const bool is_told_of_forks = pthread_atfork(nullptr, nullptr, enter_child) == 0;

} // namespace

bool
is_forked_child() noexcept
{
    if (is_told_of_forks)
        return in_child.load(std::memory_order_relaxed);
    const pid_t known = user.load(std::memory_order_relaxed);
    return known != 0 && getpid() != known;
}

void
note_use() noexcept
{
    pid_t none = 0;

    (void)user.compare_exchange_strong(none, getpid(), std::memory_order_relaxed);
}

struct Finisher::Lane {
    std::condition_variable arrived;
    Ending *first = nullptr; /* ready to run */
    Ending **tail = &first;
    unsigned workers = 0;
    unsigned busy = 0;
    uint64_t expected = 0; /* expected endings that have not run */
    Clock::time_point last_move;
};

struct Finisher::Queue {
    std::mutex mutex;
    std::condition_variable left;     /* a thread has ended */
    std::condition_variable stalling; /* endings wait for a callback of their lane */
    std::vector<std::unique_ptr<Lane>> lanes;
    std::map<std::pair<uint64_t, unsigned>, std::deque<Ending *>> lines; /* by order and lane */
    unsigned threads = 0;
    bool has_watcher = false;
    bool is_stopped = false;
};

/* Never destroyed: operations may still end while the process exits. */
Finisher::Queue &
Finisher::queue()
{
    static Queue *const the_queue = new Queue;
    return *the_queue;
}

unsigned
Finisher::lane_of_thread() noexcept
{
    return thread_lane;
}

/* The caller holds the mutex. */
void
Finisher::add_worker(Queue &q, unsigned number)
{
    Lane &lane = *q.lanes[number];
    const bool is_helper = lane.workers > 0;

    start_thread(purpose, [number, is_helper] { work(number, is_helper); });
    lane.workers++;
    q.threads++;
}

/* The caller holds the mutex. */
Finisher::Lane &
Finisher::lane_at(Queue &q, unsigned number)
{
    while (q.lanes.size() <= number)
        q.lanes.push_back(std::make_unique<Lane>());
    if (q.lanes[number]->workers == 0)
        add_worker(q, number);
    if (!q.has_watcher) {
        start_thread(purpose, watch);
        q.has_watcher = true;
        q.threads++;
    }
    return *q.lanes[number];
}

void
Finisher::start()
{
    Queue &q = queue();
    const std::lock_guard lock(q.mutex);

    if (!q.is_stopped)
        (void)lane_at(q, 0);
}

void
Finisher::expect(Ending *ending, uint64_t order, unsigned lane)
{
    Queue &q = queue();
    const std::lock_guard lock(q.mutex);

    ending->order_ = order;
    ending->lane_ = std::min(lane, lanes_max - 1);
    if (q.is_stopped)
        return;
    Lane &place = lane_at(q, ending->lane_);
    if (order != 0)
        q.lines[{order, ending->lane_}].push_back(ending);
    place.expected++;
}

void
Finisher::enqueue(Ending *ending) noexcept
{
    Queue &q = queue();
    const std::lock_guard lock(q.mutex);
    const auto line = q.lines.find({ending->order_, ending->lane_});
    const auto make_ready = [](Lane &lane, Ending *next) {
        next->next_ = nullptr;
        *lane.tail = next;
        lane.tail = &next->next_;
        lane.arrived.notify_one();
    };

    if (q.is_stopped || q.lanes.size() <= ending->lane_)
        return;
    Lane &lane = *q.lanes[ending->lane_];
    ending->is_ready_ = true;
    if (line == q.lines.end()) {
        make_ready(lane, ending);
    } else {
        std::deque<Ending *> &waiting = line->second;
        for (; !waiting.empty() && waiting.front()->is_ready_; waiting.pop_front())
            make_ready(lane, waiting.front());
        if (waiting.empty())
            q.lines.erase(line);
    }
    if (lane.first != nullptr && lane.busy == lane.workers)
        q.stalling.notify_one();
}

/* The next ending of a lane, or NULL if the thread is to end. */
Ending *
Finisher::take(Queue &q, unsigned number, bool is_helper)
{
    std::unique_lock lock(q.mutex);
    Lane &lane = *q.lanes[number];

    lane.arrived.wait(lock, [&] { return lane.first != nullptr || q.is_stopped || is_helper; });
    Ending *const ending = lane.first;
    if (ending == nullptr)
        return nullptr;
    lane.first = ending->next_;
    if (lane.first == nullptr)
        lane.tail = &lane.first;
    lane.busy++;
    lane.last_move = Clock::now();
    return ending;
}

void
Finisher::work(unsigned number, bool is_helper) noexcept
{
    Queue &q = queue();

    thread_lane = std::min(number + 1, lanes_max - 1);
    while (Ending *const ending = take(q, number, is_helper)) {
        ending->end(); /* may delete the object */
        const std::lock_guard lock(q.mutex);
        Lane &lane = *q.lanes[number];
        lane.busy--;
        lane.expected--;
        lane.last_move = Clock::now();
    }
    const std::lock_guard lock(q.mutex);
    q.lanes[number]->workers--;
    q.threads--;
    q.left.notify_all();
}

/* Adds helpers to lanes without progress. */
void
Finisher::watch() noexcept
{
    Queue &q = queue();
    std::unique_lock lock(q.mutex);
    const auto has_waiting = [](const std::unique_ptr<Lane> &lane) {
        return lane->first != nullptr && lane->busy == lane->workers;
    };
    const auto is_anything_waiting = [&] {
        return q.is_stopped || std::any_of(q.lanes.begin(), q.lanes.end(), has_waiting);
    };

    while (!q.is_stopped) {
        q.stalling.wait(lock, is_anything_waiting);
        (void)q.left.wait_for(lock, still_limit / 4, [&q] { return q.is_stopped; });
        for (unsigned number = 0; number < q.lanes.size(); number++) {
            const Lane &lane = *q.lanes[number];
            const bool has_nested =
                number + 1 < q.lanes.size() && q.lanes[number + 1]->expected > 0;
            if (!has_waiting(q.lanes[number]) || has_nested || lane.workers > helpers_max ||
                Clock::now() - lane.last_move < still_limit)
                continue;
            try {
                add_worker(q, number);
            } catch (const c10::Error &) {
                /* No thread can be started: retried in the next round. */
            }
        }
    }
    q.threads--;
    q.left.notify_all();
}

void
Finisher::stop()
{
    Queue &q = queue();

    if (is_forked_child())
        return;
    std::unique_lock lock(q.mutex);
    q.is_stopped = true;
    for (const std::unique_ptr<Lane> &lane : q.lanes)
        lane->arrived.notify_all();
    q.stalling.notify_all();
    q.left.notify_all();
    (void)q.left.wait_for(lock, patience_at_stop, [&q] { return q.threads == 0; });
}

} // namespace rdmatensor
