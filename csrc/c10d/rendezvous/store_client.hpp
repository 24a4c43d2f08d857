/* SPDX-License-Identifier: Apache-2.0
 *
 * store_client.hpp - requests to torch's store that cannot block their caller.
 *
 * A store may never answer: torch's waits without a limit for a stopped host, and a store written
 * in Python may do anything. Requests therefore run on a thread of the client. It starts at the
 * first request of a burst and ends soon after the last. Callers wait, and check for other events
 * meanwhile. A caller that gives up leaves its request running, with everything that it needs. The
 * next request waits for the end of that one, so that a client has at most one thread, and at most
 * one request at a time. Polling keeps the thread alive.
 *
 * A request is a function of the store. It may run when its caller has gone: it must own what it
 * refers to, or share it.
 *
 * Any thread, with or without the GIL, which is not held while a request runs.
 */
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace rdmatensor
{

class StoreClient
{
  public:
    using Store = c10::intrusive_ptr<c10d::Store>;
    using Look = std::function<void()>;

    explicit StoreClient(Store store);

    const Store &store() const
    {
        return store_;
    }
    /*
     * What the request returns or throws. Until then `look` is called periodically, without a lock;
     * an exception of `look` ends the wait, but not the request. Also throws c10::Error if no
     * thread can be started.
     */
    template <typename Request> auto ask(Request request, const Look &look)
    {
        using Answer = std::invoke_result_t<Request, c10d::Store &>;
        const auto answer = std::make_shared<std::optional<Answer>>();

        run([request = std::move(request),
             answer](c10d::Store &store) { answer->emplace(request(store)); },
            look);
        return *std::move(*answer);
    }

    /*
     * Makes the thread call `poll` between requests, at growing pauses, until `poll` returns true
     * or throws, the store has gone, or stop_polling(). One poll at a time. Throws as ask() does.
     */
    using Poll = std::function<bool(c10d::Store &)>;
    void poll(Poll poll);
    void stop_polling() noexcept;

  private:
    struct Line;
    struct Asked;
    void run(std::function<void(c10d::Store &)> request, const Look &look);
    static void answer(Asked &asked);
    static void serve(Line &line);
    static void poll_once(Line &line, std::unique_lock<std::mutex> &lock);

    const Store store_;
    const std::shared_ptr<Line> line_;
};

} // namespace rdmatensor
