/* SPDX-License-Identifier: Apache-2.0
 *
 * finisher.hpp - the thread on which operations end that nobody waits for.
 *
 * Ending one may need Python's lock: callbacks of its Future are Python functions, and the last
 * reference to a tensor may be Python's. The thread that sees the end is often the library's
 * progress thread, whose heartbeats tell the peers that this process lives; it must never wait for
 * Python, which may compute for minutes. So it only hands the operation over to this thread.
 *
 * Any thread. The thread is started by the first operation that may need it.
 */
#pragma once

namespace rdmatensor
{

class Ending
{
  public:
    virtual ~Ending() = default;
    /* Called once, on the finisher's thread. May delete this. */
    virtual void end() noexcept = 0;

  private:
    friend class Finisher;
    Ending *next_ = nullptr;
};

class Finisher
{
  public:
    /* Makes sure that the thread runs. Throws where none can be started. */
    static void start();
    /* Takes the ending over; allocates nothing and does not block. After stop() it is kept unended. */
    static void enqueue(Ending *ending) noexcept;
    /*
     * Ends what is queued, then the thread; the caller must not hold Python's lock. To be called before
     * Python goes: a thread that asks for its lock later is ended by force.
     */
    static void stop();
};

/* True in a child made by fork(): locks and threads of the parent mean nothing there. */
bool is_forked_child() noexcept;

} // namespace rdmatensor
