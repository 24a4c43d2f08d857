/* SPDX-License-Identifier: Apache-2.0
 *
 * finisher.hpp - the threads on which operations end that nobody waits for.
 *
 * Ending one may need Python's lock: callbacks of its Future are Python functions, and the last
 * reference to a tensor may be Python's. The thread that sees the end is often the library's
 * progress thread, whose heartbeats tell the peers that this process lives; it must never wait for
 * Python, which may compute for minutes. So it only hands the operation over to these threads.
 *
 * Callbacks may begin collectives themselves and wait for them (communication hooks of DDP do). All
 * members must begin them in the same order, so that the order of callbacks must not hang on what
 * happened to arrive first:
 *   - collectives of one group end in the order in which they were expected;
 *   - endings run one at a time in each *lane*. What a callback begins is of the next lane, so that
 *     it can end while the callback waits for it.
 * A callback that waits for something else, an older operation say, would wait for ever: after a
 * second in which its lane stood still, another thread takes the lane's next ending.
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
    /* Called once, on a finisher's thread. May delete this. */
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
     * The threads of the first lane, before there is an operation: later, where one is dropped,
     * nobody could be told that none is to be had. Throws c10::Error then. Again is harmless.
     */
    static void start();
    /* The lane of operations that this thread begins. */
    static unsigned lane_of_thread() noexcept;
    /*
     * Announces an ending, before anybody can enqueue it. Those with the same `order` and lane are
     * run in this order; 0: whenever it is enqueued. Throws c10::Error where a lane needs a thread
     * and none is to be had; for the first lane after start() it never does.
     */
    static void expect(Ending *ending, uint64_t order, unsigned lane);
    /* The operation is over; allocates nothing and does not block. After stop() it is kept unended. */
    static void enqueue(Ending *ending) noexcept;
    /*
     * Ends what is queued, then the threads; the caller must not hold Python's lock. To be called before
     * Python goes: a thread that asks for its lock later is ended by force. Callbacks that hang
     * are not waited for longer than a few seconds.
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

/* True in a child made by fork() of a process that had made a group: locks and threads of the parent
 * mean nothing there. A child of one that had not, as of a server of forks, may make its own. */
bool is_forked_child() noexcept;
/* A group is about to be made. */
void note_use() noexcept;

} // namespace rdmatensor
