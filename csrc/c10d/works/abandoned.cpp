/* SPDX-License-Identifier: Apache-2.0
 * Operations that continue after their caller has given up. Their tensors are kept until the
 * end. */
#include <memory>
#include <utility>

#include "c10d/tensors.hpp"
#include "c10d/works/work_impl.hpp"

namespace rdmatensor
{
namespace
{

using Clock = std::chrono::steady_clock;

/* The caller does not wait for it any more. */
void
leave_behind(Operation &operation, rdt_transfer *transfer) noexcept
{
    count_transfer();
    try {
        std::vector<rdt_transfer *> transfers = {transfer};
        auto orphan = std::make_unique<Orphan>(operation);
        orphan.release()->adopt(std::move(transfers), false);
    } catch (const std::exception &) {
        keep_for_good(operation);
    }
}

} // namespace

void
keep_for_good(Operation &operation) noexcept
{
    for (auto *const tensors : {&operation.inputs, &operation.outputs, &operation.written})
        for (at::Tensor &tensor : *tensors)
            (void)tensor.unsafeReleaseTensorImpl();
    for (Arrival &arrival : operation.arrivals)
        (void)arrival.stand_in.unsafeReleaseTensorImpl();
}

void
Orphan::adopt(std::vector<rdt_transfer *> transfers, bool is_canceled) noexcept
{
    try {
        Finisher::expect(this, 0, 0);
    } catch (const c10::Error &error) {
        /* Never ended, so that the tensors stay where peers may still write into them. */
        TORCH_WARN("rdmatensor: a dropped operation keeps its tensors permanently: ",
                   error.what_without_backtrace());
        return;
    }
    transfers_ = std::move(transfers);
    if (operation_.in_flight)
        place_ = operation_.in_flight->drop(room_, transfers_);
    /* One more than there are transfers: the last callback deletes this. relaxed: before the
     * callbacks are registered. */
    left_.store(transfers_.size() + 1, std::memory_order_relaxed);
    for (rdt_transfer *const transfer : transfers_)
        rdt_transfer_on_done(transfer, on_done, this);
    if (is_canceled)
        free_transfers(std::exchange(transfers_, {}));
    on_done(this);
}

void
Orphan::end() noexcept
{
    if (!transfers_.empty()) /* otherwise its Work has reported the end */
        note_end(operation_, outcome_of(operation_, transfers_));
    if (operation_.in_flight)
        operation_.in_flight->hide_dropped(place_);
    free_transfers(transfers_);
    if (operation_.in_flight)
        operation_.in_flight->end_dropped(place_);
    delete this;
}

void
Orphan::on_done(void *arg)
{
    auto *const orphan = static_cast<Orphan *>(arg);

    /* acq_rel: the last callback must see what all others wrote */
    if (orphan->left_.fetch_sub(1, std::memory_order_acq_rel) == 1)
        Finisher::enqueue(orphan);
}

void
end_without_work(Operation &operation, rdt_transfer *transfer, const std::exception_ptr &why_none)
{
    const std::chrono::milliseconds patience = own_patience(operation);
    const auto deadline = Clock::now() + patience;

    try {
        const std::vector<rdt_transfer *> transfers = {transfer};
        while (rdt_transfer_test(transfer, nullptr) == RDT_EAGAIN) {
            if (Clock::now() >= deadline) {
                const rdt_error why = operation.in_flight->awaited_by(transfers);
                rdt_error said = why; /* first what needs no memory */
                operation.in_flight->give_up(said);
                std::rethrow_exception(late_error(operation, patience, why));
            }
            drive(operation, transfer, deadline);
            check_signals();
        }
    } catch (...) {
        leave_behind(operation, transfer);
        throw;
    }
    note_end(operation, why_none);
    rdt_transfer_free(transfer);
}

} // namespace rdmatensor
