/* SPDX-License-Identifier: Apache-2.0
 *
 * store_client.hpp - requests to torch's store, of which none holds up who asks.
 *
 * A store may never answer: torch's waits without a limit for a host that was stopped, and one that
 * is written in Python does what it likes. So requests run on a thread of the client's, begun for
 * the first of a burst and ended soon after the last, while their callers wait and look around. A
 * caller that gives up leaves its request behind, with all that it needs; the next request waits
 * for the end of that one, so that a client has one thread at most, and no request beside another.
 * What is polled for has that thread stay.
 *
 * A request is a function of the store. It may run when its caller has gone: what it refers to has
 * to be its own, or shared with it.
 *
 * Any thread, with Python's lock or without; it is not held while a request runs.
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
     * What the request returns or throws. `look` is called now and then, without a lock, until that
     * is there: what it throws ends the wait, though not the request. Also throws c10::Error where
     * no thread is to be had.
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
     * Has the thread call `poll` between requests, at pauses that grow, until it returns true or
     * throws, the store has gone, or stop_polling(). One at a time. Throws as ask() does.
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
