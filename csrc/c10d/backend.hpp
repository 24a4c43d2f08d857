/* SPDX-License-Identifier: Apache-2.0
 *
 * backend.hpp - torch's process group over the library's group and collectives.
 *
 * Each method checks its tensors, states the operation in the library's words and returns a Work.
 * What cannot begin throws at once; what fails later throws from Work::wait().
 *
 * Threads: any, also shutdown() beside operations. The library's context is shared by all groups of
 * the process and outlives them; whoever made it closes it.
 */
#pragma once

#include <atomic>
#include <shared_mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "c10d/rendezvous.hpp"
#include "c10d/tensors.hpp"
#include "c10d/work.hpp"
#include "rdmatensor.h"

namespace rdmatensor
{

using Milliseconds = std::chrono::milliseconds;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

class Backend final : public c10d::Backend
{
  public:
    struct Options : c10d::Backend::Options {
        explicit Options(Milliseconds limit);
    };
    struct Setup {
        rdt_context *context;
        std::string group_name;
        std::vector<int64_t> global_ranks; /* empty: those of the group */
        Milliseconds timeout;
        std::string secret; /* given from outside, or empty */
        bool is_default_group;
    };

    /* Waits for rank 0 of the group, up to the time-out. */
    Backend(c10::intrusive_ptr<Rendezvous> rendezvous, Setup setup);
    ~Backend() override;
    Backend(const Backend &) = delete;
    Backend &operator=(const Backend &) = delete;

    /* Shuts down the groups of a context, or of all with NULL; before it closes or Python ends. */
    static void shutdown_all(const rdt_context *context);

    const std::string getBackendName() const override;
    c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
    bool supportsSplitting() const override
    {
        return true;
    }
    c10::intrusive_ptr<c10d::Backend>
    split(const c10::intrusive_ptr<c10d::Store> &store, const std::vector<int> &ranks,
          const c10::intrusive_ptr<c10d::Backend::Options> &opts) override;
    void setTimeout(Milliseconds timeout) override;
    void setSequenceNumberForGroup() override {} /* the library counts, in step on all members */
    uint64_t getSequenceNumberForGroup() override;
    c10d::ErrorType getError() override;
    void abort() override;
    void shutdown() override;

    WorkPtr broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts) override;
    WorkPtr allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts) override;
    WorkPtr allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &opts) override;
    WorkPtr allreduce_coalesced(Tensors &tensors,
                                const c10d::AllreduceCoalescedOptions &opts) override;
    WorkPtr reduce(Tensors &tensors, const c10d::ReduceOptions &opts) override;
    WorkPtr allgather(std::vector<Tensors> &outputs, Tensors &inputs,
                      const c10d::AllgatherOptions &opts) override;
    WorkPtr _allgather_base(at::Tensor &output, at::Tensor &input,
                            const c10d::AllgatherOptions &opts) override;
    WorkPtr allgather_coalesced(std::vector<Tensors> &output_lists, Tensors &inputs,
                                const c10d::AllgatherOptions &opts) override;
    WorkPtr allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::AllgatherOptions &opts) override;
    WorkPtr gather(std::vector<Tensors> &outputs, Tensors &inputs,
                   const c10d::GatherOptions &opts) override;
    WorkPtr scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                    const c10d::ScatterOptions &opts) override;
    WorkPtr reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                           const c10d::ReduceScatterOptions &opts) override;
    WorkPtr _reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                 const c10d::ReduceScatterOptions &opts) override;
    WorkPtr reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::ReduceScatterOptions &opts) override;
    WorkPtr alltoall_base(at::Tensor &output, at::Tensor &input,
                          std::vector<int64_t> &output_splits, std::vector<int64_t> &input_splits,
                          const c10d::AllToAllOptions &opts) override;
    WorkPtr alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &opts) override;
    WorkPtr barrier(const c10d::BarrierOptions &opts) override;
    void monitoredBarrier(const c10d::BarrierOptions &opts, bool waits_for_all) override;

    WorkPtr send(Tensors &tensors, int dst, int tag) override;
    WorkPtr recv(Tensors &tensors, int src, int tag) override;
    WorkPtr recvAnysource(Tensors &tensors, int tag) override;

  private:
    struct Message;

    rdt_coll_args args_for(uint32_t op, const Elements &elements, Milliseconds timeout) const;
    WorkPtr start(Operation operation, const std::vector<rdt_coll_args> &calls);
    at::Tensor gather_all(const at::Tensor &tensor, Milliseconds timeout);
    WorkPtr start_message(const Message &message, at::Tensor tensor);
    Message message_with(int peer, int tag, bool is_send, const char *call) const;
    Milliseconds timeout_or_own(Milliseconds timeout) const;
    c10::intrusive_ptr<Work> exchange_token(int peer, uint64_t tag, bool is_send,
                                            Milliseconds timeout);
    void collect_tokens(uint64_t tag, Milliseconds timeout, bool waits_for_all);
    void deliver_token(uint64_t tag, Milliseconds timeout);
    int global_rank(int rank) const;
    void check_root(int64_t root, const char *call) const;

    const c10::intrusive_ptr<Rendezvous> rendezvous_; /* the group calls it for addresses */
    const Setup setup_;
    const c10::intrusive_ptr<Options> options_;
    const uint64_t number_; /* among the groups that this process has made, from 1 on */
    const std::shared_ptr<InFlight> in_flight_ = std::make_shared<InFlight>();
    std::atomic<int64_t> timeout_ms_;
    std::atomic<uint64_t> sequence_{0};
    std::atomic<uint64_t> monitored_count_{0};
    std::shared_mutex group_mutex_; /* shared by calls on group_, taken by shutdown() */
    rdt_group *group_ = nullptr;    /* NULL once shut down */
};

/* The way to make one: shutdown_all() knows it then. */
c10::intrusive_ptr<Backend> make_backend(c10::intrusive_ptr<Rendezvous> rendezvous,
                                         Backend::Setup setup);

} // namespace rdmatensor
