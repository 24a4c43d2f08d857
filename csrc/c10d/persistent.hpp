/* SPDX-License-Identifier: Apache-2.0
 *
 * persistent.hpp - an average over one tensor that is initialised once and started often.
 *
 * Made by Backend::average_init(), on all members in the order of their collectives. Members start
 * the same ones in the same order.
 *
 * Ownership: it keeps the tensor, and the library's part, until close() or the group's
 * shutdown.
 * Threads: any, one start at a time.
 */
#pragma once

#include <mutex>
#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "rdmatensor.h"

namespace rdmatensor
{

class Backend;

struct PersistentStart {
    rdt_persistent *handle;
    bool is_aside; /* it averages other memory than the bound tensor */
    bool is_async; /* else it has ended, where no Work is returned */
    uint32_t label;
};

class Persistent
{
  public:
    Persistent(c10::intrusive_ptr<Backend> backend, at::Tensor tensor, rdt_persistent *handle);
    ~Persistent();
    Persistent(const Persistent &) = delete;
    Persistent &operator=(const Persistent &) = delete;

    /* Members that pass different labels fail with RDT_EMISMATCH. `aside`, if defined, is averaged
     * in place of the tensor. */
    c10::intrusive_ptr<c10d::Work> start(uint32_t label, const at::Tensor &aside);
    /* The same, and waits for the end. */
    void run();
    void close() noexcept;
    void bind(); /* once the exchange is over */
    /* How its starts work, and the bytes of its tensor; none after close(). */
    std::optional<std::pair<rdt_coll_binding, size_t>> binding();

  private:
    c10::intrusive_ptr<c10d::Work> start(uint32_t label, const at::Tensor &aside, bool is_async);

    const c10::intrusive_ptr<Backend> backend_;
    std::mutex mutex_;
    at::Tensor tensor_;      /* until close() */
    rdt_persistent *handle_; /* null from then on */
};

} // namespace rdmatensor
