/* SPDX-License-Identifier: Apache-2.0
 *
 * work_impl.hpp - what work.cpp and orphan.cpp share: transfers of an operation, waited for and
 * ended. Any thread.
 */
#pragma once

#include <chrono>
#include <exception>
#include <vector>

#include "c10d/works/work.hpp"

namespace rdmatensor
{

/* One that was begun; free_transfers() counts it off. */
void count_transfer() noexcept;
void free_transfers(const std::vector<rdt_transfer *> &transfers);
/* The first failure of transfers that are all over. */
std::exception_ptr failure_of(const Operation &operation,
                              const std::vector<rdt_transfer *> &transfers) noexcept;
/* The same; without one, what arrived is delivered, and a failure of that is returned. */
std::exception_ptr outcome_of(const Operation &operation,
                              const std::vector<rdt_transfer *> &transfers) noexcept;
/* One slice of driving the library, or until the transfer is over. Throws what kept it. */
void drive(const Operation &operation, rdt_transfer *transfer,
           std::chrono::steady_clock::time_point deadline);
/* A deadline passed; `why`, if it has words, says who is missing. */
std::exception_ptr late_error(const Operation &operation, std::chrono::milliseconds waited,
                              const rdt_error &why);
/* How long a wait without a limit of the caller's lasts. */
std::chrono::milliseconds own_patience(const Operation &operation);

/* Peers may still write tensors that nobody can look after for want of memory: they stay. */
void keep_for_good(Operation &operation) noexcept;

/* Keeps the tensors of a Work that was dropped while PENDING. Deletes itself after the last
 * transfer. */
class Orphan final : public Ending
{
  public:
    explicit Orphan(const Operation &operation) : operation_(operation) {}

    /*
     * Takes the transfers over. With `is_canceled` receives that have not matched end now; what a
     * peer has written into the place of one by then is lost. Not to be touched afterwards.
     * Called where nobody can be told of an error.
     */
    void adopt(std::vector<rdt_transfer *> transfers, bool is_canceled) noexcept;
    void end() noexcept override;

  private:
    static void on_done(void *arg);

    std::vector<rdt_transfer *> transfers_;
    const Operation operation_; /* for its tensors */
    InFlight::Dropped room_ = InFlight::room_for_one();
    InFlight::Dropped::iterator place_; /* where the operation has an in_flight */
    std::atomic<size_t> left_{0};
};

} // namespace rdmatensor
