/* SPDX-License-Identifier: Apache-2.0
 *
 * backend.hpp - torch's process group on top of the library's group and collectives.
 *
 * Each method checks its tensors, translates the call into the library's operation and returns a
 * Work. An operation that cannot start throws at once; a later failure throws from Work::wait().
 *
 * Threads: any; shutdown() may run concurrently with operations. All groups of the process share
 * the library's context, which outlives them; its creator closes it.
 */
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "c10d/batch.hpp"
#include "c10d/coalesce.hpp"
#include "c10d/persistent.hpp"
#include "c10d/record/recorder.hpp"
#include "c10d/rendezvous/rendezvous.hpp"
#include "c10d/tensors.hpp"
#include "c10d/works/work.hpp"
#include "rdmatensor_ext.h"

namespace rdmatensor
{

using Milliseconds = std::chrono::milliseconds;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

/* How a tensor travels: RDT_WIRE_*, the block of RDT_WIRE_Q8, and what encoding lost. */
struct LossyWire {
    uint32_t wire;
    uint32_t block;
    std::optional<at::Tensor> residual;
    bool is_async;
    uint32_t label = 0; /* of all_reduce */
};

class Backend final : public c10d::Backend
{
  public:
    struct Options : c10d::Backend::Options {
        explicit Options(Milliseconds limit);
    };
    struct Setup {
        rdt_context *context;
        std::string group_name;
        std::vector<int64_t> global_ranks; /* empty: the ranks of the group */
        Milliseconds timeout;
        std::string secret; /* configured by the user, or empty */
        bool is_default_group;
        bool lingers;     /* the store may end with it: the default group, and what is left of it */
        bool is_recorded; /* whether its operations are recorded */
    };

    /* Waits for rank 0 of the group, up to the timeout. */
    Backend(c10::intrusive_ptr<Rendezvous> rendezvous, Setup setup);
    ~Backend() override;
    Backend(const Backend &) = delete;
    Backend &operator=(const Backend &) = delete;

    /* An optimizer has stepped: notifies the recorder of every group. */
    static void mark_step();
    /* Number among the groups of this process, counted from 1. */
    uint64_t number() const noexcept
    {
        return number_;
    }
    Recorder::Report recorded() const
    {
        return recorder_.report();
    }
    /* Calls Rendezvous::everyone(), whose wait fails when the group ends. */
    std::vector<std::string> everyone(const std::string &what, const std::string &mine);
    /* Counters of the context; all 0 after the group was shut down. */
    rdt_counters spent();
    /* abort() with a reason given by the caller. */
    void break_group(const std::string &reason);

    /* Shuts down the groups of a context, or all groups if NULL. Called before the context closes
     * or Python exits. */
    static void shutdown_all(const rdt_context *context);
    /* The group that torch knows by this name; null if there is none or it was shut down. */
    static c10::intrusive_ptr<Backend> find(const std::string &group_name);

    const std::string getBackendName() const override;
    c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
    bool supportsSplitting() const override
    {
        return true;
    }
    bool supportsCoalescing() const override
    {
        return true;
    }
    bool supportsTensorAlloc(c10::DeviceIndex index) override;
    at::Tensor allocateTensor(long elems, at::TensorOptions options) override;
    std::shared_ptr<c10::Allocator> getMemAllocator() override;
    std::unordered_map<std::string, uint64_t> getMemoryStats() override;
    c10::intrusive_ptr<c10d::Backend>
    split(const c10::intrusive_ptr<c10d::Store> &store, const std::vector<int> &ranks,
          const c10::intrusive_ptr<c10d::Backend::Options> &opts) override;
    bool supportsShrinking() const override
    {
        return true;
    }
    /* The group of the members that are left, which alone call this; it needs none of the others,
     * but the store. This group is aborted first if flags is 1 (torch's SHRINK_ABORT). */
    c10::intrusive_ptr<c10d::Backend>
    shrink(const std::vector<int64_t> &ranks_to_exclude, int flags,
           const c10::intrusive_ptr<c10d::Backend::Options> &opts) override;
    void setTimeout(Milliseconds timeout) override;
    void setSequenceNumberForGroup() override {} /* the library counts, identically on all
                                                  * members */
    uint64_t getSequenceNumberForGroup() override;
    c10d::ErrorType getError() override;
    void abort() override;
    void shutdown() override;
    /* Waits until the asynchronous collectives started so far, and the hook's calls for them, are
     * done. */
    void waitForPendingWorks() override;
    void registerOnCompletionHook(CompletionHook::Function &&hook) override;
    void enableCollectivesTiming() override;
    /* Counters of this rank's collectives; zeros after shutdown. */
    rdt_coll_counters counters();
    const StandInCounts &stand_ins() const noexcept
    {
        return stand_ins_;
    }
    /* Oldest first. */
    std::vector<Flight::Entry> last_operations() const
    {
        return flight_->last();
    }
    /* JSON of rdt_group_coll_describe(); "{}" after shutdown. */
    std::string collectives();

    /* Operations that the calling thread starts between the two calls form one Work. Each of them
     * still starts at once. */
    void startCoalescing() override;
    WorkPtr endCoalescing() override;

    WorkPtr broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts) override;
    WorkPtr allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts) override;
    /* Averages in place, asynchronously. Members that pass different labels fail with
     * RDT_EMISMATCH. */
    WorkPtr average_bucket(const at::Tensor &bucket, uint32_t label);
    /* persistent.cpp: initialises an average of the tensor in place; waits for all members, which
     * call it in the order of their collectives. */
    std::shared_ptr<Persistent> average_init(const at::Tensor &tensor);
    /* Those of open averages: how they work, and the bytes of their tensors. */
    std::vector<std::pair<rdt_coll_binding, size_t>> bindings();
    /* For Persistent. */
    void bind_persistent(rdt_persistent *handle);
    WorkPtr start_persistent(const at::Tensor &tensor, const PersistentStart &given);
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
    /* lossy.cpp: of row-major tensors; null if it is not asynchronous. Between calls the residual
     * is the caller's. */
    WorkPtr lossy_allreduce(const at::Tensor &tensor, const c10d::ReduceOp &op,
                            const LossyWire &wire);
    WorkPtr lossy_reduce_scatter(const at::Tensor &output, const at::Tensor &input,
                                 const c10d::ReduceOp &op, const LossyWire &wire);
    WorkPtr lossy_allgather(const at::Tensor &output, const at::Tensor &input,
                            const LossyWire &wire);
    WorkPtr barrier(const c10d::BarrierOptions &opts) override;
    void monitoredBarrier(const c10d::BarrierOptions &opts, bool waits_for_all) override;

    WorkPtr send(Tensors &tensors, int dst, int tag) override;
    WorkPtr recv(Tensors &tensors, int src, int tag) override;
    WorkPtr recvAnysource(Tensors &tensors, int tag) override;

    /* For symmetric memory (one_sided.cpp). Ranks are group ranks. */
    uint64_t next_symmetric_number();
    int global_rank(int rank) const;
    /* One row for each member; a collective. */
    at::Tensor gather_bytes(const at::Tensor &bytes);
    /* Maps the member's memory and holds it, waiting up to the group's timeout. The caller releases
     * it with rdt_endpoint_unhold(). NULL: the path shares no memory. */
    rdt_endpoint *hold(int rank, const rdt_remote_region &remote, void **out);
    /* Moves a whole tensor to or from a member's memory; `rank` may be this rank. */
    WorkPtr move(int rank, const rdt_remote_region &remote, uint64_t off_bytes,
                 const at::Tensor &tensor, bool is_put);
    /* A message without payload. `title` is static; timeout_ms 0: the group's timeout. */
    WorkPtr signal(int peer, uint64_t tag, bool is_send, const char *title, size_t timeout_ms);

  private:
    struct Message;
    /* A recorded operation that cannot start, or not with all of its collectives. */
    struct Refused {
        const char *title;
        uint64_t number; /* number in the Flight */
        uint64_t left;   /* its collectives that did not start */
    };

    c10::intrusive_ptr<c10d::Backend>
    subgroup(const c10::intrusive_ptr<c10d::Store> &store, const std::vector<int> &ranks,
             const c10::intrusive_ptr<c10d::Backend::Options> &opts, bool lingers);
    std::shared_lock<std::shared_mutex> held_for(const std::string &what);
    rdt_coll_args args_for(uint32_t op, const Elements &elements, Milliseconds timeout) const;
    void take_off(Operation &operation, uint64_t collectives);
    [[noreturn]] void take_back(const Refused &refused, rdt_status status, const rdt_error &error);
    void take_back(const Refused &refused, const std::exception_ptr &failure) noexcept;
    rdt_transfer *run_at_once(Operation &operation, const Call &call);
    WorkPtr work_of(Operation &operation, rdt_transfer *transfer);
    WorkPtr start(Operation operation, const std::vector<Call> &calls);
    WorkPtr start_lossy(rdt_coll_args args, const LossyWire &wire, const at::Tensor &input,
                        const at::Tensor &output);
    std::shared_ptr<Persistent> post_exchange(Operation &operation, const rdt_coll_args &args,
                                              const at::Tensor &tensor, WorkPtr &exchange);
    WorkPtr post_bind(rdt_persistent *handle);
    void close_persistents() noexcept;
    WorkPtr noted(WorkPtr work);
    void attend_if_hooked(const c10::intrusive_ptr<Work> &work) noexcept;
    void record(const Operation &operation, const std::vector<Call> &calls);
    void record(const Message &message, const at::Tensor &tensor);
    at::Tensor gather_all(const at::Tensor &tensor, Milliseconds timeout);
    WorkPtr start_message(const Message &message, at::Tensor tensor);
    Message message_with(int peer, int tag, bool is_send, const char *call) const;
    Milliseconds timeout_or_own(Milliseconds timeout) const;
    c10::intrusive_ptr<Work> exchange_token(int peer, uint64_t tag, bool is_send,
                                            Milliseconds timeout);
    void collect_tokens(uint64_t tag, Milliseconds timeout, bool waits_for_all);
    void deliver_token(uint64_t tag, Milliseconds timeout);
    rdt_endpoint *endpoint_of(int rank, const char *title);
    void check_root(int64_t root, const char *call) const;

    const c10::intrusive_ptr<Rendezvous> rendezvous_; /* the group fetches addresses through it */
    const Setup setup_;
    const c10::intrusive_ptr<Options> options_;
    const uint64_t number_; /* among the groups of this process, from 1 */
    const std::shared_ptr<InFlight> in_flight_ = std::make_shared<InFlight>();
    const std::shared_ptr<Flight> flight_;
    std::atomic<bool> is_timed_{false};
    std::atomic<bool> is_hooked_{false};   /* once set, hook_ may be read */
    std::shared_ptr<CompletionHook> hook_; /* set once */
    Recorder recorder_;
    std::atomic<int64_t> timeout_ms_;
    std::atomic<uint64_t> sequence_{0}; /* of the last collective; the library counts alike */
    StandInCounts stand_ins_;
    std::atomic<uint64_t> monitored_count_{0};
    std::atomic<uint64_t> symmetric_count_{0};
    std::mutex batches_mutex_;
    std::map<std::thread::id, Batch::Parts> batches_; /* by coalescing thread */
    std::atomic<unsigned> batch_count_{0};            /* size of batches_ */
    std::mutex shutdown_mutex_;                       /* before the others */
    std::mutex persistents_mutex_;
    std::vector<std::weak_ptr<Persistent>> persistents_; /* those that may be open */
    std::shared_mutex group_mutex_; /* shared by calls on group_, exclusive in shutdown() */
    rdt_group *group_ = nullptr;    /* NULL once shut down */
};

/* Creates a Backend and registers it for shutdown_all(). */
c10::intrusive_ptr<Backend> make_backend(c10::intrusive_ptr<Rendezvous> rendezvous,
                                         Backend::Setup setup);

} // namespace rdmatensor
