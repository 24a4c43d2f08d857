/* SPDX-License-Identifier: Apache-2.0
 * Several operations that are waited for together. */
#include "c10d/batch.hpp"

#include <algorithm>
#include <atomic>
#include <memory>

#include "c10d/works/work.hpp"

namespace rdmatensor
{
namespace
{

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

bool
is_receive(const c10::intrusive_ptr<c10d::Work> &part)
{
    const c10d::OpType type = part->retrieveOpType();

    return type == c10d::OpType::RECV || type == c10d::OpType::RECVANYSOURCE;
}

/* Completes a Future once the Futures of all parts are complete. */
struct Collector {
    c10::intrusive_ptr<c10::ivalue::Future> future = new_future();
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> of_parts;
    std::atomic<size_t> left{0};

    /* Completes the Future with an error if memory for the result runs out: a caller may be
     * waiting. */
    void finish()
    {
        try {
            complete();
        } catch (const std::exception &) {
            future->setErrorIfNeeded(std::current_exception());
        }
    }

  private:
    void complete()
    {
        std::vector<at::Tensor> outputs;

        for (const auto &part : of_parts) {
            if (part->hasError()) {
                future->setError(part->exception_ptr());
                return;
            }
            const std::vector<at::Tensor> tensors = part->constValue().toTensorVector();
            outputs.insert(outputs.end(), tensors.begin(), tensors.end());
        }
        future->markCompleted(c10::IValue(outputs));
    }
};

} // namespace

Batch::Batch(int rank, Parts parts, milliseconds timeout)
    : c10d::Work(rank, c10d::OpType::COALESCED), parts_(std::move(parts)), timeout_(timeout)
{
}

bool
Batch::isCompleted()
{
    /* Poll all of them: polling makes the progress thread attend to a part. */
    return std::count_if(parts_.begin(), parts_.end(),
                         [](const auto &part) { return !part->isCompleted(); }) == 0;
}

bool
Batch::isSuccess() const
{
    return exception() == nullptr;
}

std::exception_ptr
Batch::exception() const
{
    for (const auto &part : parts_)
        if (const std::exception_ptr error = part->exception())
            return error;
    return nullptr;
}

int
Batch::sourceRank() const
{
    const auto first = std::find_if(parts_.begin(), parts_.end(), is_receive);

    TORCH_CHECK(first != parts_.end() && std::none_of(first + 1, parts_.end(), is_receive),
                "a batch has a source rank only where exactly one of its operations receives");
    return (*first)->sourceRank();
}

std::vector<at::Tensor>
Batch::result()
{
    std::vector<at::Tensor> all;

    for (const auto &part : parts_) {
        const std::vector<at::Tensor> tensors = part->result();
        all.insert(all.end(), tensors.begin(), tensors.end());
    }
    return all;
}

bool
Batch::wait(milliseconds timeout)
{
    const bool has_timeout = timeout != kNoTimeout && timeout != c10d::kUnsetTimeout;
    const auto patience = bounded(has_timeout ? timeout : timeout_);
    const auto deadline = Clock::now() + patience;

    for (const auto &part : parts_) {
        const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
        /* Without a timeout from the caller, a collective ends at its own deadline, slightly after
         * it. */
        (void)part->wait(has_timeout || is_receive(part) ? std::max(left, milliseconds(1))
                                                         : kNoTimeout);
    }
    return true;
}

c10::intrusive_ptr<c10::ivalue::Future>
Batch::getFuture()
{
    const std::lock_guard lock(future_mutex_);

    if (future_)
        return future_;
    const auto collector = std::make_shared<Collector>();
    for (const auto &part : parts_)
        collector->of_parts.push_back(part->getFuture());
    /* One more than there are parts, so that the last callback runs after all are registered. */
    collector->left.store(parts_.size() + 1, std::memory_order_relaxed);
    const auto one_less = [collector] {
        /* acq_rel: the last callback must see what all others wrote */
        if (collector->left.fetch_sub(1, std::memory_order_acq_rel) == 1)
            collector->finish();
    };
    for (const auto &part : collector->of_parts)
        part->addCallback([one_less](c10::ivalue::Future &) { one_less(); });
    one_less();
    future_ = collector->future;
    return future_;
}

} // namespace rdmatensor
