/* SPDX-License-Identifier: Apache-2.0
 *
 * work.hpp - an operation that torch was promised, over one or more of the library's transfers.
 *
 *   state    settled by          may peers use the tensors?   leaves by
 *   PENDING  the waiting thread  yes                          a Future or polling asks for the end
 *                                                             -> ARMED; every transfer is over, or
 *                                                             the deadline of a send or receive
 *                                                             -> SETTLED
 *   ARMED    a completion        yes                          every transfer is over -> SETTLED
 *            thread, called by
 *            the library, or the
 *            waiting thread
 *   SETTLED  -                   no (after a deadline: by     the last reference -> gone
 *                                its Orphan)
 *
 * The waiting thread drives the library itself. A Work that is dropped before it is SETTLED leaves
 * its tensors to an Orphan that ends with the transfers.
 *
 * Threads: any. `driver_mutex_` guards the transfers, the base class's `mutex_` the result.
 */
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "c10d/record/flight_recorder.hpp"
#include "c10d/rows.hpp"
#include "c10d/works/completion_thread.hpp"
#include "c10d/works/hook.hpp"
#include "c10d/works/in_flight.hpp"
#include "c10d/works/target.hpp"
#include "rdmatensor.h"

namespace rdmatensor
{

/* An operation's description, for messages, the profiler and the result. */
struct Operation {
    c10d::OpType type;
    const char *title; /* "rdmatensor:all_reduce", static */
    Target target;
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outputs; /* the result; kept with the Work */
    std::chrono::milliseconds timeout;
    uint64_t sequence; /* number of its last collective in the group, from 1; 0: none */
    uint64_t order;    /* for the Finisher: collectives of one group end in order; 0 for messages */
    std::shared_ptr<InFlight> in_flight;       /* of the group; NULL for messages */
    bool has_own_deadline;                     /* the library ends it in time; otherwise wait()
                                                * does */
    bool is_async;                             /* the caller may continue before it is done */
    std::shared_ptr<Flight> flight = {};       /* of the group; NULL: it is not recorded */
    uint64_t number = 0;                       /* in `flight` */
    std::shared_ptr<CompletionHook> hook = {}; /* of the group, or NULL */
    std::chrono::steady_clock::time_point begun = {}; /* zero: not timed */
    Arrivals arrivals = {};                           /* delivered at its end */
    std::vector<at::Tensor> written = {};             /* other than the results */
};

std::string words_of(const Operation &operation); /* its title and target */
/* Reports the end of the operation to the flight recorder and the hook. Called once. */
void note_end(const Operation &operation, const std::exception_ptr &error) noexcept;

/* An operation that the library ends in time, with the options that torch gave it. */
template <typename Options>
Operation
collective(c10d::OpType type, const char *title, const Options &options,
           std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs,
           StandIns *stand_ins = nullptr)
{
    return {.type = type,
            .title = title,
            .target = {},
            .inputs = std::move(inputs),
            .outputs = std::move(outputs),
            .timeout = options.timeout,
            .sequence = 0,
            .order = 0,
            .in_flight = nullptr,
            .has_own_deadline = true,
            .is_async = options.asyncOp,
            .arrivals = stand_ins != nullptr ? stand_ins->arrivals() : Arrivals()};
}

/*
 * For when a Work cannot be allocated. Waits until the transfer, whose peers use the tensors, is
 * over, and frees it. At the deadline that a Work would have, the group is given up. Throws then,
 * or on a signal; the tensors are kept as those of a dropped Work are.
 */
void end_without_work(Operation &operation, rdt_transfer *transfer,
                      const std::exception_ptr &why_none);

/* The Future of Work::getFuture(): of a list of tensors, not complete yet. */
c10::intrusive_ptr<c10::ivalue::Future> new_future();

/* Transfers that Works hold. While there are any, the context cannot be closed. */
uint64_t live_transfers() noexcept;

class Work final : public c10d::Work, public Ending
{
  public:
    /* Has room for `transfers` transfers. If it throws, the operation is the caller's,
     * unchanged. */
    Work(int rank, Operation &&operation, size_t transfers);
    ~Work() override;
    Work(const Work &) = delete;
    Work &operator=(const Work &) = delete;

    /* Called before other threads see the Work, as often as there is room. Takes the transfer
     * over. */
    void add(rdt_transfer *transfer);

    bool isCompleted() override;
    bool isSuccess() const override;
    std::exception_ptr exception() const override;
    int sourceRank() const override;
    std::vector<at::Tensor> result() override;
    bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
    uint64_t getSequencenumber() const override;
    /* In ms, from the call until the end was noticed. Only for operations started after
     * enableCollectivesTiming(). */
    float getDuration() const override;
    /* The peer that it waits for: InFlight::awaited_by(). */
    rdt_error awaited();
    /* Makes the library's thread notice the end, even if no thread waits for it. */
    void attend();
    bool is_settled() const noexcept
    {
        return state_.load(std::memory_order_acquire) == State::Settled;
    }

    void end() noexcept override; /* of Ending */

    void release_resources() override; /* the last strong reference is gone */

  private:
    using Clock = std::chrono::steady_clock;

    enum class State { Pending, Armed, Settled };

    static constexpr bool may_become(State from, State to);
    void become(State next);
    static std::vector<rdt_transfer *> room_for(size_t transfers);
    static void on_transfer_done(void *arg);
    bool is_over();
    void arm();
    void arm_if_wanted();
    void settle();
    void settle_with(const std::exception_ptr &error);
    void await_settler(Clock::time_point deadline, std::chrono::milliseconds patience);
    void refuse_in_child() const;
    void wait_slice(Clock::time_point deadline, std::chrono::milliseconds patience);
    void give_up(std::chrono::milliseconds waited);
    void release_transfers();

    std::vector<rdt_transfer *> transfers_; /* before operation_, which is moved in last */
    Operation operation_;                   /* its inputs are released at the end */
    const unsigned lane_;                   /* of the Finisher */
    std::mutex driver_mutex_;
    size_t next_ = 0; /* the transfers before it are over */
    std::atomic<size_t> armed_left_{0};
    std::atomic<bool> is_arming_wanted_{false};
    std::atomic<int> asking_{0};               /* threads in awaited() */
    std::atomic<State> state_{State::Pending}; /* changed with driver_mutex_ */
    std::thread::id settler_;                  /* written before SETTLED, under mutex_ */
    int source_ = -1;
    Clock::time_point ended_; /* written before SETTLED */
    c10::intrusive_ptr<c10::ivalue::Future> future_;
};

} // namespace rdmatensor
