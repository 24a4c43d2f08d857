/* SPDX-License-Identifier: Apache-2.0
 *
 * completion_thread.hpp - the threads that end operations without a waiting caller.
 *
 * Ending an operation may need the GIL: callbacks of its Future are Python functions, and the last
 * reference to a tensor may be Python's. The thread that notices the end is often the library's
 * progress thread. Its heartbeats show the peers that this process is alive, so that it must never
 * wait for Python, which may compute for minutes. It only hands the operation over to these
 * threads.
 *
 * Callbacks may start collectives and wait for them (communication hooks of DDP do). All members
 * must start them in the same order, so that the order of callbacks must not depend on what arrived
 * first:
 *   - collectives of one group end in the order in which they were expected;
 *   - endings run one at a time in each *lane*. What a callback starts belongs to the next lane, so
 *     that it can end while the callback waits for it.
 * A callback that waits for something else, such as an older operation, would wait forever. When
 * its lane has made no progress for a second, another thread runs the lane's next ending.
 *
 * Any thread.
 */
#pragma once

#include <cstdint>

namespace rdmatensor
{

class Ending
{
  public:
    virtual ~Ending() = default;
    /* Called once, on a completion thread. May delete this. */
    virtual void end() noexcept = 0;

  private:
    friend class Finisher;
    Ending *next_ = nullptr;
    uint64_t order_ = 0;
    unsigned lane_ = 0;
    bool is_ready_ = false;
};

class Finisher
{
  public:
    /*
     * Starts the threads of the first lane before there is an operation: when one is dropped later,
     * a failure to start a thread could not be reported. Throws c10::Error on such a failure.
     * Calling it again is harmless.
     */
    static void start();
    /* The lane of the operations that this thread starts. */
    static unsigned lane_of_thread() noexcept;
    /*
     * Announces an ending, before it can be enqueued. Endings with the same `order` and lane run in
     * the order of these calls; with order 0, when they are enqueued. Throws c10::Error if a lane
     * needs a thread and none can be started, but never for the first lane after start().
     */
    static void expect(Ending *ending, uint64_t order, unsigned lane);
    /* The operation is over. Allocates nothing and does not block. After stop() the ending never
     * runs. */
    static void enqueue(Ending *ending) noexcept;
    /*
     * Runs the queued endings, then ends the threads. The caller must not hold the GIL. Called
     * before Python ends: Python terminates a thread that takes the GIL later. Waits at most a few
     * seconds for callbacks that hang.
     */
    static void stop();

  private:
    struct Lane;
    struct Queue;
    static Queue &queue();
    static Lane &lane_at(Queue &queue, unsigned number);
    static void add_worker(Queue &queue, unsigned number);
    static Ending *take(Queue &queue, unsigned number, bool is_helper);
    static void work(unsigned number, bool is_helper) noexcept;
    static void watch() noexcept;
};

/* Whether this is a child forked from a process that had made a group: the parent's locks and
 * threads mean nothing there. A child of a process that had not, such as a fork server, may make
 * its own groups. */
bool is_forked_child() noexcept;
/* Called before a group is made. */
void note_use() noexcept;

} // namespace rdmatensor
