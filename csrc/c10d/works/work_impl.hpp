/* SPDX-License-Identifier: Apache-2.0
 *
 * work_impl.hpp - shared by work.cpp and abandoned.cpp: waiting for an operation's transfers, and
 * ending them. Any thread.
 */
#pragma once

#include <chrono>
#include <exception>
#include <vector>

#include "c10d/works/work.hpp"

namespace rdmatensor
{

/* Counts a started transfer; free_transfers() subtracts it. */
void count_transfer() noexcept;
void free_transfers(const std::vector<rdt_transfer *> &transfers);
/* The first failure of transfers that are all over. */
std::exception_ptr failure_of(const Operation &operation,
                              const std::vector<rdt_transfer *> &transfers) noexcept;
/* The same. Without a failure, delivers what arrived, and returns a failure of that. */
std::exception_ptr outcome_of(const Operation &operation,
                              const std::vector<rdt_transfer *> &transfers) noexcept;
/* Drives the library for one slice, or until the transfer is over. Throws what prevented it. */
void drive(const Operation &operation, rdt_transfer *transfer,
           std::chrono::steady_clock::time_point deadline);
/* A deadline passed. `why`, if it has a message, names the missing peer. */
std::exception_ptr late_error(const Operation &operation, std::chrono::milliseconds waited,
                              const rdt_error &why);
/* How long a wait lasts if the caller gives no timeout. */
std::chrono::milliseconds own_patience(const Operation &operation);

/* Keeps the tensors permanently: peers may still write them, and memory to track them is
 * lacking. */
void keep_for_good(Operation &operation) noexcept;

/* Keeps the tensors of a Work that was dropped while PENDING. Deletes itself after the last
 * transfer. */
class Orphan final : public Ending
{
  public:
    explicit Orphan(const Operation &operation) : operation_(operation) {}

    /*
     * Takes the transfers over. With `is_canceled`, receives that have not matched end now; what a
     * peer has written into the memory of one by then is lost. The caller must not use the object
     * afterwards, and could not report an error.
     */
    void adopt(std::vector<rdt_transfer *> transfers, bool is_canceled) noexcept;
    void end() noexcept override;

  private:
    static void on_done(void *arg);

    std::vector<rdt_transfer *> transfers_;
    const Operation operation_; /* for its tensors */
    InFlight::Dropped room_ = InFlight::room_for_one();
    InFlight::Dropped::iterator place_; /* valid if the operation has an in_flight */
    std::atomic<size_t> left_{0};
};

} // namespace rdmatensor
