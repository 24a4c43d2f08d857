/* SPDX-License-Identifier: Apache-2.0
 *
 * gradients.hpp - gradients of DistributedDataParallel that are allocated in their buckets.
 *
 * With torch's default zero_grad(), autograd allocates each gradient again in every pass, and the
 * division by the number of ranks copies it into its bucket. Here one backward pass shows which
 * allocation becomes which gradient. In later passes that allocation gets the gradient's place in
 * the bucket, so that the division works in place: the gradient and the view of the bucket have one
 * address and different storages.
 *
 * An allocation is identified by where the graph leads from the node that makes it: to the
 * parameter's accumulator, directly or through nodes of one input, such as a transposition. The
 * batch, the loss and other work in the pass therefore do not matter.
 *
 * Two rules keep this correct. Before a pass, no place of a bucket is served if anything but the
 * reducer has a reference to the bucket or to a view of it, or a hook on a node that would see
 * other values. torch's counts show this, and the reducer's own buckets show which references are
 * its own. During the pass, a hook of each accumulator runs before the reducer's and checks the
 * place before the reducer writes there. If anything but the gradient alone is in the place, the
 * bucket gets other memory and in-place gradients are disabled. A program's own backward function
 * may cause this by allocating differently than before, or by keeping its result. The content of
 * the old memory stays there.
 */
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/custom_class.h>

#include "c10d/ddp/reducer_buckets.hpp"
#include "c10d/memory/allocator_switch.hpp"
#include "c10d/memory/planned_places.hpp"
#include "c10d/memory/refcounts.hpp"
#include "rdmatensor.h"

namespace rdmatensor
{

/* The gradients of one module. Keeps neither the parameters nor the buckets nor the reducer alive.
 * told() may be called on any thread; all else, and the module's passes, run on one thread at a
 * time. */
class GradientPlacer final : public AllocationTrace
{
  public:
    struct Told {
        uint64_t in_place = 0;
        uint64_t copied = 0; /* copied into the bucket by the reducer */
        uint64_t copied_bytes = 0;
        std::vector<uint32_t> last_copied; /* indices of the parameters */
        std::string why_off;               /* permanently, or in the last pass; empty: in-place
                                            * gradients are on */
    };

    GradientPlacer(size_t parameters, std::weak_ptr<c10d::Reducer> reducer, uint64_t least_bytes);
    /* For a module with this reducer, whose hooks run after the hooks set here. Gradients of fewer
     * than least_bytes bytes are left to the reducer. */
    static c10::intrusive_ptr<GradientPlacer> make(const std::vector<at::Tensor> &parameters,
                                                   std::weak_ptr<c10d::Reducer> reducer,
                                                   uint64_t least_bytes);
    ~GradientPlacer() override;

    /* The outputs of a forward pass; the first of them that receives a gradient starts the
     * backward pass. A bucket that moves is allocated in the context's arena; NULL: in torch's
     * own memory. */
    void watch(const std::vector<at::Tensor> &outputs, rdt_context *context, bool is_syncing);
    /* Called when the module is gone, perhaps after a pass that raised. */
    void stop();
    [[nodiscard]] Told told() const;
    /* Number of live objects in this process. */
    static uint64_t living();

  private:
    static constexpr const char *kParted =
        "the last backward pass brought some gradients only, as of one output of several: "
        "gradients of another pass of the same forward pass are copied into their buckets";
    /* Consecutive passes in which a gradient was allocated elsewhere; then it is left to the
     * reducer. */
    static constexpr uint32_t kMostMisses = 8;
    /* Identifies an allocation: the number of forward passes before it, the ordinal of the node
     * among those that lead to the accumulator and allocate the gradient's size, the node's number
     * of edges, and the ordinal among the node's allocations. */
    struct Origin {
        uint32_t forwards;
        uint32_t visit;
        uint32_t edges;
        uint32_t ordinal;
        bool operator==(const Origin &) const = default;
    };
    struct Gradient {
        torch::autograd::AccumulateGrad *accumulator = nullptr;
        Weakly<c10::TensorImpl> view = to_nothing<c10::TensorImpl>(); /* the reducer writes it */
        Weakly<c10::StorageImpl> bucket = to_nothing<c10::StorageImpl>();
        Weakly<c10::StorageImpl> memory = to_nothing<c10::StorageImpl>(); /* as in Bucket */
        uint64_t off = 0;
        uint64_t bytes = 0;          /* 0: not to be allocated in its bucket */
        std::vector<Origin> origins; /* one for each kind of pass */
        uint32_t misses = 0;         /* consecutive passes in which it was elsewhere */
        std::weak_ptr<Place> tenant;
        /* relaxed: told() may read at any time */
        std::atomic<bool> is_copied{true};
        /* State of the pass. */
        bool is_open = false; /* its place may be given to an allocation */
        bool is_served = false;
        uint32_t visits = 0;
    };
    /* A bucket whose gradients all arrive. */
    struct Bucket {
        Weakly<c10::StorageImpl> storage;
        Weakly<c10::TensorImpl> flat; /* the reducer's tensor of the whole bucket */
        size_t number;                /* in the reducer */
        const void *address;
        std::vector<uint32_t> gradients;
        /* The storage that keeps its memory, once a place of it may be given to an allocation. */
        Weakly<c10::StorageImpl> memory = to_nothing<c10::StorageImpl>();
        bool is_hopeless = false; /* another holder kept it for longer than kPatience */
    };
    struct Target {
        uint32_t gradient;
        uint32_t visit; /* 0: not determined */
    };
    /* One run of a node. */
    struct Evaluation {
        const torch::autograd::Node *node = nullptr;
        uint64_t sequence = 0;
        uint32_t allocations = 0;
        bool is_known = false; /* the fields below are set */
        uint32_t edges = 0;
        std::vector<Target> targets;
    };
    struct Record {
        const void *address = nullptr;
        bool is_known = false; /* the fields below are set */
        uint32_t evaluation = 0;
        uint32_t ordinal = 0;
    };
    struct ArrivalHook;
    struct BeginHook;

    void follow(uint32_t number, const at::Tensor &parameter);
    void give_up(const std::string &why);
    void note(const std::string &why);

    void begin();
    bool is_bare() const;
    bool open();
    std::string why_closed(const c10d::Reducer &reducer, Bucket &bucket);
    bool is_alone(const Bucket &bucket) const;
    static bool keep_memory(Bucket &bucket);
    static bool has_known_hooks(torch::autograd::AccumulateGrad &node);
    static bool has_own_sum(const c10d::Reducer &reducer, const Bucket &bucket);
    static bool is_flat_alone(const c10d::Reducer &reducer, const Bucket &bucket);
    static bool is_let_go(const c10d::Reducer &reducer, Bucket &bucket);
    void trace();
    void end();
    void end_pass();

    void settle();
    void settle_one(const c10d::Reducer &reducer, uint32_t number);
    void forget(const Bucket &bucket);
    Bucket *find_bucket(const c10::StorageImpl *storage);

    c10::DataPtr serve(size_t bytes) override;
    void allocated(const void *address, size_t bytes) override;
    c10::DataPtr serve_one(size_t bytes, Evaluation &now, uint32_t ordinal);
    Evaluation &enter(const torch::autograd::Node &node);
    void look_at(const torch::autograd::Node &node, Evaluation &now);
    void find_targets(const torch::autograd::Node &node, int depth, std::vector<Target> &targets);
    c10::DataPtr lend(Gradient &gradient);

    void arrive(uint32_t number, const at::Tensor &incoming);
    bool look_at_place(Gradient &gradient, const at::Tensor &grad, const at::Tensor &incoming);
    void make_way(const Gradient &gradient, const std::shared_ptr<Place> &place);
    void note_copy(uint32_t number, const at::Tensor &grad, const at::Tensor &incoming);
    static bool is_ambiguous(const Gradient &gradient, const Origin &origin);
    void learn(uint32_t number, const at::Tensor &grad, const at::Tensor &incoming);

    const std::weak_ptr<c10d::Reducer> reducer_;
    const uint64_t least_bytes_;
    std::vector<Gradient> gradients_;
    std::unordered_map<const torch::autograd::Node *, uint32_t> accumulators_;
    std::vector<Bucket> buckets_;
    std::unordered_set<uint64_t> sizes_; /* of the gradients that may be allocated in place */
    bool is_settled_ = false;            /* settle() has set the buckets and sizes */
    rdt_context *context_ = nullptr;
    bool is_syncing_ = false;
    uint32_t forwards_ = 0; /* since the last backward pass began */

    /* State of the pass. */
    /* Allocations of thread_ are reported here. Stays set if another thread ended the trace. */
    bool is_traced_ = false;
    std::thread::id thread_;
    int task_ = -1;
    /* relaxed: as in PlannedPlaces::is_active_ */
    std::atomic<bool> is_active_{false};
    bool is_counted_ = false;
    bool is_learning_ = false;
    uint32_t of_forwards_ = 0;
    std::vector<Evaluation> evaluations_;
    std::vector<Record> records_;
    std::optional<Record> asked_;

    /* relaxed: told() may read at any time */
    std::atomic<uint64_t> in_place_{0};
    std::atomic<uint64_t> copied_{0};
    std::atomic<uint64_t> copied_bytes_{0};
    std::atomic<bool> is_off_{false};
    mutable std::mutex mutex_; /* guards why_ only: no torch or Python call is made under it */
    std::string why_;
};

/* Whether the backward pass on this thread computes gradients of all leaves, and not of chosen
 * inputs as torch.autograd.grad() does. False outside of a backward pass. */
bool is_whole_backward();

} // namespace rdmatensor
