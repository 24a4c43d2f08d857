/* SPDX-License-Identifier: Apache-2.0
 *
 * thread.hpp - detached threads.
 */
#pragma once

#include <pthread.h>

#include <csignal>
#include <system_error>
#include <thread>

#include <c10/util/Exception.h>

namespace rdmatensor
{

/* During its lifetime this thread takes no signals. Threads that it starts meanwhile never take
 * any. */
class SignalsBlocked
{
  public:
    SignalsBlocked()
    {
        sigset_t all;

        (void)sigfillset(&all);
        (void)pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked()
    {
        (void)pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
    SignalsBlocked(const SignalsBlocked &) = delete;
    SignalsBlocked &operator=(const SignalsBlocked &) = delete;

  private:
    sigset_t before_;
};

/* Starts a detached thread that takes no signals. Throws c10::Error if none can be started;
 * `purpose` names it in the message. */
template <typename Function>
void
start_thread(const char *purpose, Function function)
{
    const SignalsBlocked blocked;

    try {
        std::thread(std::move(function)).detach();
    } catch (const std::system_error &error) {
        TORCH_CHECK(false, "rdmatensor: no thread for ", purpose, ": ", error.what(),
                    "; raise the limit of processes (ulimit -u, the cgroup's pids.max) or of "
                    "memory");
    }
}

} // namespace rdmatensor
