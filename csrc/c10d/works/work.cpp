/* SPDX-License-Identifier: Apache-2.0
 * Life cycle of a Work: transfers that end, waits that notice signals, Futures that complete. */
#include "c10d/works/work.hpp"

#include <ATen/record_function.h>

#include "c10d/tensors.hpp"
#include "c10d/works/work_impl.hpp"

namespace rdmatensor
{
namespace
{

using Clock = std::chrono::steady_clock;

std::atomic<uint64_t> transfer_count{0};

/* The library ends a collective at its deadline and then waits until no peer accesses the buffers.
 * A peer that stopped just before is declared dead after ten seconds, unless the program set
 * another time. After this time the wait ends in any case. */
constexpr std::chrono::seconds grace{12};

/* The operation is over, but a callback still runs. */
std::exception_ptr
busy_error(const Operation &operation, std::chrono::milliseconds waited)
{
    return make_error(RDT_ETIMEDOUT, c10::str(words_of(operation),
                                              ": the timeout passed: done, but a callback of ",
                                              "its Future still ran after ",
                                              static_cast<double>(waited.count()) / 1000.0, " s",
                                              " [RDT_ETIMEDOUT]"));
}

/* torch's receive does not report how much arrived: a partly filled tensor would be taken for a
 * complete one. */
std::exception_ptr
shortfall_of(const Operation &operation, const rdt_transfer *transfer)
{
    if (operation.type != c10d::OpType::RECV && operation.type != c10d::OpType::RECVANYSOURCE)
        return nullptr;
    const uint64_t got = rdt_transfer_len_bytes(transfer);
    const uint64_t wanted = operation.outputs.front().nbytes();
    if (got == wanted)
        return nullptr;
    return make_error(RDT_EMISMATCH,
                      c10::str(words_of(operation), ": ", got, " bytes came for a tensor of ",
                               wanted, ", the rest of which is as it was [RDT_EMISMATCH]"));
}

/* The base class begins an event even if no profiler listens, which has a cost. */
const char *
title_if_profiled(const char *title)
{
    return at::hasCallbacks() ? title : nullptr;
}

/* Completes the Future even if memory for the result runs out: a caller may wait for it. An
 * exception from a callback is ignored: it must not end the process. */
void
complete(c10::ivalue::Future &future, const std::exception_ptr &error,
         const std::vector<at::Tensor> &outputs)
{
    try {
        if (error)
            future.setError(error);
        else
            future.markCompleted(c10::IValue(outputs));
    } catch (const std::exception &) {
        future.setErrorIfNeeded(std::current_exception());
    }
}

} // namespace

void
count_transfer() noexcept
{
    transfer_count.fetch_add(1, std::memory_order_relaxed); /* relaxed: a counter */
}

void
free_transfers(const std::vector<rdt_transfer *> &transfers)
{
    for (rdt_transfer *const transfer : transfers)
        rdt_transfer_free(transfer);
    transfer_count.fetch_sub(transfers.size(), std::memory_order_relaxed); /* relaxed: a counter */
}

std::exception_ptr
failure_of(const Operation &operation, const std::vector<rdt_transfer *> &transfers) noexcept
{
    try {
        for (rdt_transfer *const transfer : transfers) {
            rdt_error error = {};
            const rdt_status status = rdt_transfer_test(transfer, &error);
            if (status != RDT_OK)
                return make_error(status, words_of(operation), error);
            if (const std::exception_ptr shortfall = shortfall_of(operation, transfer))
                return shortfall;
        }
    } catch (const std::exception &) {
        return std::current_exception(); /* no memory for the message */
    }
    return nullptr;
}

std::exception_ptr
outcome_of(const Operation &operation, const std::vector<rdt_transfer *> &transfers) noexcept
{
    const std::exception_ptr failure = failure_of(operation, transfers);

    return failure ? failure : deliver(operation.arrivals);
}

void
drive(const Operation &operation, rdt_transfer *transfer, Clock::time_point deadline)
{
    const auto left = deadline - Clock::now();
    const auto wait = std::clamp<Clock::duration>(left, Clock::duration::zero(), work_slice);
    const auto wait_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(wait).count();
    rdt_error error = {};
    const rdt_status status = rdt_transfer_wait(transfer, static_cast<uint64_t>(wait_ns), &error);

    /* The transfer's own error is reported later. An error of the wait itself is thrown here. */
    if (status != RDT_OK && status != RDT_ETIMEDOUT &&
        rdt_transfer_test(transfer, nullptr) == RDT_EAGAIN)
        std::rethrow_exception(make_error(status, words_of(operation), error));
}

std::exception_ptr
late_error(const Operation &operation, std::chrono::milliseconds waited, const rdt_error &why)
{
    return make_error(RDT_ETIMEDOUT,
                      c10::str(words_of(operation), ": the timeout passed: not done after ",
                               static_cast<double>(waited.count()) / 1000.0, " s",
                               why.message[0] != '\0' ? "; " : "", why.message,
                               " [RDT_ETIMEDOUT]"));
}

std::chrono::milliseconds
own_patience(const Operation &operation)
{
    const auto own = operation.timeout + (operation.has_own_deadline ? grace : grace.zero());

    return std::min<std::chrono::milliseconds>(own, forever);
}

std::string
words_of(const Operation &operation)
{
    return operation.title + operation.target.words();
}

void
note_end(const Operation &operation, const std::exception_ptr &error) noexcept
{
    if (operation.flight)
        operation.flight->end(operation.number, error);
    if (!operation.hook)
        return;
    const auto now = std::chrono::steady_clock::now();
    operation.hook->tell({operation.type, operation.sequence, operation.begun, now,
                          std::chrono::duration<float>(now - operation.begun)});
}

c10::intrusive_ptr<c10::ivalue::Future>
new_future()
{
    return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
}

uint64_t
live_transfers() noexcept
{
    return transfer_count.load(std::memory_order_relaxed);
}

/* ---- Work ---- */

std::vector<rdt_transfer *>
Work::room_for(size_t transfers)
{
    std::vector<rdt_transfer *> room;

    room.reserve(transfers);
    return room;
}

Work::Work(int rank, Operation &&operation, size_t transfers)
    : c10d::Work(rank, operation.type, title_if_profiled(operation.title),
                 at::hasCallbacks() ? std::optional(operation.inputs) : std::nullopt),
      transfers_(room_for(transfers)), operation_(std::move(operation)),
      lane_(Finisher::lane_of_thread())
{
}

Work::~Work()
{
    release_resources();
}

void
Work::release_resources()
{
    /* Transfers belong to the parent. Tensors are copies, or their deleters check for a fork. */
    if (is_forked_child())
        return;
    /* This is the last reference. torch's reference counts order the accesses of other threads, but
     * a race detector does not see that, as torch is built without one. These locks order them
     * visibly. */
    const std::scoped_lock last(driver_mutex_, mutex_);
    if (is_settled() || transfers_.empty()) {
        /* nothing is in flight */
    } else if (is_over()) {
        note_end(operation_, outcome_of(operation_, transfers_));
        release_transfers();
    } else {
        try {
            auto orphan = std::make_unique<Orphan>(operation_);
            orphan.release()->adopt(std::move(transfers_), false);
        } catch (const std::exception &) {
            keep_for_good(operation_);
        }
    }
    transfers_.clear();
    operation_.inputs.clear();
    operation_.outputs.clear();
    operation_.arrivals.clear();
    /* Weak references in InFlight keep these members, which would keep InFlight: a cycle. */
    operation_.in_flight.reset();
    operation_.flight.reset();
    operation_.hook.reset();
    future_.reset();
}

void
Work::add(rdt_transfer *transfer)
{
    transfers_.push_back(transfer); /* has room: the transfer is in flight and has no other owner */
    count_transfer();
}

void
Work::release_transfers()
{
    free_transfers(transfers_);
    transfers_.clear();
}

/* The caller holds driver_mutex_, or the last reference to the Work. */
bool
Work::is_over()
{
    while (next_ < transfers_.size() && rdt_transfer_test(transfers_[next_], nullptr) != RDT_EAGAIN)
        next_++;
    return next_ == transfers_.size();
}

/* ---- States ---- */

/* The table of states in work.hpp; a test compares the two. "gone" is not a state. */
constexpr bool
Work::may_become(State from, State to)
{
    switch (from) {
    case State::Pending:
        return to == State::Armed || to == State::Settled;
    case State::Armed:
        return to == State::Settled;
    case State::Settled:
        return false;
    }
    return false;
}

/* The caller holds driver_mutex_. */
void
Work::become(State next)
{
    TORCH_INTERNAL_ASSERT(may_become(state_.load(std::memory_order_relaxed), next));
    /* release: pairs with the acquire of threads that read the result without a lock */
    state_.store(next, std::memory_order_release);
}

/* ---- The end ---- */

/* The caller holds driver_mutex_, and every transfer is over. */
void
Work::settle()
{
    const std::exception_ptr error = outcome_of(operation_, transfers_);

    if (!transfers_.empty())
        source_ = rdt_transfer_source(transfers_.back());
    release_transfers();
    settle_with(error);
}

/* The caller holds driver_mutex_. Callbacks of the Future may call this Work again, which must not
 * need that mutex. */
void
Work::settle_with(const std::exception_ptr &error)
{
    c10::intrusive_ptr<c10::ivalue::Future> future;
    {
        const std::lock_guard lock(mutex_);
        exception_ = error;
        if (operation_.begun != Clock::time_point{})
            ended_ = Clock::now();
        settler_ = std::this_thread::get_id();
        future = future_;
        become(State::Settled);
    }
    operation_.inputs.clear();
    operation_.arrivals.clear();
    note_end(operation_, error);
    if (future) {
        const CallbacksOf running(operation_.order);
        complete(*future, error, operation_.outputs);
    }
    finish(error);
}

/* Another thread has settled it, and may still run its callbacks. A callback that calls this must
 * not wait. Throws at the deadline: a callback may take long, or wait for what the caller does
 * next. */
void
Work::await_settler(Clock::time_point deadline, std::chrono::milliseconds patience)
{
    if (is_forked_child())
        return; /* the settling thread is not in the child */
    std::unique_lock lock(mutex_);
    if (settler_ == std::this_thread::get_id())
        return;
    while (!completed_) {
        if (Clock::now() >= deadline)
            std::rethrow_exception(busy_error(operation_, patience));
        if (cv_.wait_until(lock,
                           std::min<Clock::time_point>(deadline, Clock::now() + work_slice)) ==
            std::cv_status::timeout) {
            lock.unlock();
            check_signals();
            lock.lock();
        }
    }
}

/* ---- Without a waiting thread ---- */

void
Work::on_transfer_done(void *arg)
{
    auto *const work = static_cast<Work *>(arg);

    /* acq_rel: the last callback must see what all others wrote */
    if (work->armed_left_.fetch_sub(1, std::memory_order_acq_rel) == 1)
        Finisher::enqueue(work);
}

/* The caller holds driver_mutex_; not SETTLED. The callbacks own one reference to the Work. */
void
Work::arm()
{
    if (state_.load(std::memory_order_relaxed) == State::Armed) /* relaxed: under driver_mutex_ */
        return;
    Finisher::expect(this, operation_.order, lane_);
    become(State::Armed);
    /* One more than there are transfers, so that the reference exists before the last callback. */
    armed_left_.store(transfers_.size() + 1, std::memory_order_relaxed);
    c10::raw::intrusive_ptr::incref(this);
    for (rdt_transfer *const transfer : transfers_)
        rdt_transfer_on_done(transfer, on_transfer_done, this);
    on_transfer_done(this);
}

/* Called without driver_mutex_: a thread that holds it now calls this after it has unlocked. */
void
Work::arm_if_wanted()
{
    /* seq_cst: pairs with the store in attend() and isCompleted(). Either they find the mutex free,
     * or the holder finds the flag. */
    if (!is_arming_wanted_.load(std::memory_order_seq_cst) || !driver_mutex_.try_lock())
        return;
    const std::lock_guard lock(driver_mutex_, std::adopt_lock);
    if (!is_settled())
        arm();
}

void
Work::end() noexcept
{
    {
        const std::lock_guard lock(driver_mutex_);
        if (!is_settled())
            settle();
    }
    c10::raw::intrusive_ptr::decref(this); /* may be the last */
}

/* ---- What torch asks ---- */

bool
Work::isCompleted()
{
    if (is_settled())
        return true;
    if (is_forked_child())
        return false; /* and never will be: wait() reports it */
    std::unique_lock lock(driver_mutex_, std::try_to_lock);
    if (!lock.owns_lock())
        return false; /* a waiting thread will settle it */
    if (is_settled())
        return true;
    if (is_over()) {
        settle();
        return true;
    }
    /* A caller that polls does not drive the library: the progress thread attends to it now. */
    is_arming_wanted_.store(true, std::memory_order_seq_cst);
    arm();
    return false;
}

bool
Work::isSuccess() const
{
    return exception() == nullptr;
}

std::exception_ptr
Work::exception() const
{
    const std::lock_guard lock(mutex_);

    return exception_;
}

int
Work::sourceRank() const
{
    TORCH_CHECK(operation_.type == c10d::OpType::RECV ||
                    operation_.type == c10d::OpType::RECVANYSOURCE,
                operation_.title, " has no source rank; only receives have one");
    TORCH_CHECK(is_settled(), "the source rank of a receive is known after wait()");
    return source_;
}

std::vector<at::Tensor>
Work::result()
{
    TORCH_CHECK(isCompleted(), operation_.title, " is not complete; call wait() before result()");
    const std::lock_guard lock(mutex_);

    return operation_.outputs;
}

uint64_t
Work::getSequencenumber() const
{
    return operation_.sequence;
}

float
Work::getDuration() const
{
    TORCH_CHECK(operation_.begun != Clock::time_point{}, operation_.title,
                " was not timed: call _enable_collectives_timing() of the group before it begins");
    TORCH_CHECK(is_settled(), "how long an operation took is known after wait()");
    return std::chrono::duration<float, std::milli>(ended_ - operation_.begun).count();
}

void
Work::attend()
{
    is_arming_wanted_.store(true, std::memory_order_seq_cst);
    arm_if_wanted();
}

c10::intrusive_ptr<c10::ivalue::Future>
Work::getFuture()
{
    c10::intrusive_ptr<c10::ivalue::Future> future;

    refuse_in_child();
    {
        const std::lock_guard lock(mutex_);
        if (future_)
            return future_;
        future_ = future = new_future();
        if (is_settled()) { /* set under mutex_; the Future has no callbacks yet */
            complete(*future, exception_, operation_.outputs);
            return future;
        }
    }
    attend();
    return future;
}

/* ---- Waiting ---- */

/* In a forked child no thread ends it, and any of its locks may be held forever. */
void
Work::refuse_in_child() const
{
    if (is_forked_child() && !is_settled())
        refuse_forked_child(words_of(operation_).c_str());
}

/* Another thread may drive it slice after slice; asking_ makes that thread pause between slices. A
 * thread that runs a callback of its end is not waited for. */
rdt_error
Work::awaited()
{
    std::unique_lock driver(driver_mutex_, std::defer_lock);
    const auto until = Clock::now() + 2 * work_slice;

    asking_.fetch_add(1, std::memory_order_relaxed); /* relaxed: a hint */
    while (!driver.try_lock() && Clock::now() < until)
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    asking_.fetch_sub(1, std::memory_order_relaxed);
    if (!driver.owns_lock() || !operation_.in_flight)
        return {};
    return operation_.in_flight->awaited_by(transfers_);
}

/* The caller holds driver_mutex_, and the deadline passed. Throws. */
void
Work::give_up(std::chrono::milliseconds waited)
{
    const rdt_error why =
        operation_.in_flight ? operation_.in_flight->awaited_by(transfers_) : rdt_error{};
    const std::exception_ptr error = late_error(operation_, waited, why);

    /* A collective goes on: the members still count on this one. A receive would take the message
     * that the next receive waits for. */
    if (!operation_.has_own_deadline && state_.load(std::memory_order_relaxed) == State::Pending) {
        auto orphan = std::make_unique<Orphan>(operation_); /* an exception here changes nothing */
        orphan.release()->adopt(std::exchange(transfers_, {}), true);
        settle_with(error);
    }
    std::rethrow_exception(error);
}

/* Throws at the deadline, or what drive() throws. */
void
Work::wait_slice(Clock::time_point deadline, std::chrono::milliseconds patience)
{
    const std::unique_lock driver(driver_mutex_, std::try_to_lock);

    if (!driver.owns_lock()) {
        std::unique_lock lock(mutex_);
        if (!completed_)
            (void)cv_.wait_until(lock,
                                 std::min<Clock::time_point>(deadline, Clock::now() + work_slice));
        lock.unlock();
        if (!is_settled() && Clock::now() >= deadline) /* the driving thread has a later deadline */
            std::rethrow_exception(late_error(operation_, patience, awaited()));
        return;
    }
    if (is_settled())
        return;
    if (!is_over())
        drive(operation_, transfers_[next_], deadline);
    if (is_over())
        settle();
    else if (Clock::now() >= deadline)
        give_up(patience);
}

bool
Work::wait(std::chrono::milliseconds timeout)
{
    const bool has_timeout = timeout != kNoTimeout && timeout != c10d::kUnsetTimeout;
    const auto patience = has_timeout ? bounded(timeout) : own_patience(operation_);
    const auto deadline = Clock::now() + patience;

    refuse_in_child();
    while (!is_settled()) {
        try {
            wait_slice(deadline, patience);
        } catch (...) {
            arm_if_wanted();
            throw;
        }
        if (is_settled())
            break;
        arm_if_wanted();
        check_signals();
        if (asking_.load(std::memory_order_relaxed) != 0)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    await_settler(deadline, patience);
    if (const std::exception_ptr error = exception())
        std::rethrow_exception(error);
    return true;
}

} // namespace rdmatensor
