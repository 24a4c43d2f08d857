/* SPDX-License-Identifier: Apache-2.0
 *
 * gradient_births.hpp - gradients of DistributedDataParallel that are born in their buckets.
 *
 * With torch's default zero_grad() autograd makes each gradient anew, and the division by the ranks
 * moves it into its bucket. Here one backward pass shows which allocation becomes which gradient;
 * in later ones that allocation is given the gradient's place in the bucket, so that the division
 * works in place: the two tensors have one address and different storages.
 *
 * An allocation is known by where the graph leads from the node that makes it: to the parameter's
 * accumulator, itself or by nodes of one input, such as a transposition. So neither the batch nor
 * the loss nor what else runs in the pass matters.
 *
 * Two rules keep it right. Before a pass: nothing of a bucket is served unless nobody but the
 * reducer has a reference to it, to a view of it, or a hook on a node that would see other values;
 * torch's counts say so, and the reducer's own buckets tell which of these references are its own.
 * In the pass: a hook of each accumulator, before the reducer's, looks at the place before the
 * reducer writes there. Where anything but the gradient alone lies there, as a program's own
 * backward function may allocate otherwise than before, or keep what it made, the bucket is given
 * other memory and births are given up. What lies in the old memory stays there.
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

/* The gradients of one module. It keeps neither the parameters nor the buckets nor the reducer.
 * told() is any thread's; all else, and the module's passes, are one thread's at a time. */
class GradientBirths final : public AllocationTrace
{
  public:
    struct Told {
        uint64_t born = 0;
        uint64_t copied = 0; /* by the reducer, from elsewhere */
        uint64_t copied_bytes = 0;
        std::vector<uint32_t> last_copied; /* the parameters' numbers */
        std::string why_off;               /* for good, or in the last pass; empty: births go on */
    };

    GradientBirths(size_t parameters, std::weak_ptr<c10d::Reducer> reducer, uint64_t least_bytes);
    /* Of a module whose reducer is this one: its hooks run after ours. Smaller gradients are left
     * to the reducer. */
    static c10::intrusive_ptr<GradientBirths> make(const std::vector<at::Tensor> &parameters,
                                                   std::weak_ptr<c10d::Reducer> reducer,
                                                   uint64_t least_bytes);
    ~GradientBirths() override;

    /* A forward pass gave these; the first one of which a gradient comes begins the backward pass.
     * A bucket that moves is made in the context's arena; NULL: in torch's own memory. */
    void watch(const std::vector<at::Tensor> &outputs, rdt_context *context, bool is_syncing);
    /* The module is gone, perhaps after a pass that raised. */
    void stop();
    [[nodiscard]] Told told() const;
    /* How many there are in this process. */
    static uint64_t living();

  private:
    static constexpr const char *kParted =
        "the last backward pass brought some gradients only, as of one output of several: what "
        "comes in another pass of the same forward pass is not born in its bucket";
    /* Passes in a row in which a gradient came elsewhere; then it is left to the reducer. */
    static constexpr uint32_t kMostMisses = 8;
    /* After how many forward passes, at the how-manieth node that leads to the accumulator and
     * allocates the gradient's size, of how many edges, and the how-manieth of its allocations. */
    struct Birth {
        uint32_t forwards;
        uint32_t visit;
        uint32_t edges;
        uint32_t ordinal;
        bool operator==(const Birth &) const = default;
    };
    struct Gradient {
        torch::autograd::AccumulateGrad *accumulator = nullptr;
        Weakly<c10::TensorImpl> view = to_nothing<c10::TensorImpl>(); /* which the reducer writes */
        Weakly<c10::StorageImpl> bucket = to_nothing<c10::StorageImpl>();
        Weakly<c10::StorageImpl> memory = to_nothing<c10::StorageImpl>(); /* as of the bucket */
        uint64_t off = 0;
        uint64_t bytes = 0;        /* 0: it is not to be born in its bucket */
        std::vector<Birth> births; /* one for each kind of pass */
        uint32_t misses = 0;       /* passes in a row in which it came elsewhere */
        std::weak_ptr<Place> tenant;
        /* relaxed: told() looks at any time */
        std::atomic<bool> is_copied{true};
        /* Of the pass. */
        bool is_open = false; /* its place may be given away */
        bool is_served = false;
        uint32_t visits = 0;
    };
    /* One whose gradients all come. */
    struct Bucket {
        Weakly<c10::StorageImpl> storage;
        Weakly<c10::TensorImpl> flat; /* the reducer's tensor of all of it */
        size_t number;                /* the reducer's */
        const void *address;
        std::vector<uint32_t> gradients;
        /* What its memory is kept by, once a place of it may be given away. */
        Weakly<c10::StorageImpl> memory = to_nothing<c10::StorageImpl>();
        bool is_hopeless = false; /* somebody has had it for long */
    };
    struct Target {
        uint32_t gradient;
        uint32_t visit; /* 0: not known yet */
    };
    /* One node's run. */
    struct Evaluation {
        const torch::autograd::Node *node = nullptr;
        uint64_t sequence = 0;
        uint32_t allocations = 0;
        bool is_known = false; /* the rest is */
        uint32_t edges = 0;
        std::vector<Target> targets;
    };
    struct Record {
        const void *address = nullptr;
        bool is_known = false; /* the rest is */
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
    void born(const void *address, size_t bytes) override;
    c10::DataPtr serve_one(size_t bytes, Evaluation &now, uint32_t ordinal);
    Evaluation &enter(const torch::autograd::Node &node);
    void look_at(const torch::autograd::Node &node, Evaluation &now);
    void find_targets(const torch::autograd::Node &node, int depth, std::vector<Target> &targets);
    c10::DataPtr lend(Gradient &gradient);

    void arrive(uint32_t number, const at::Tensor &incoming);
    bool look_at_place(Gradient &gradient, const at::Tensor &grad, const at::Tensor &incoming);
    void make_way(const Gradient &gradient, const std::shared_ptr<Place> &place);
    void note_copy(uint32_t number, const at::Tensor &grad, const at::Tensor &incoming);
    static bool is_ambiguous(const Gradient &gradient, const Birth &birth);
    void learn(uint32_t number, const at::Tensor &grad, const at::Tensor &incoming);

    const std::weak_ptr<c10d::Reducer> reducer_;
    const uint64_t least_bytes_;
    std::vector<Gradient> gradients_;
    std::unordered_map<const torch::autograd::Node *, uint32_t> accumulators_;
    std::vector<Bucket> buckets_;
    std::unordered_set<uint64_t> sizes_; /* of the gradients that may be born */
    bool is_settled_ = false;            /* the three above are known */
    rdt_context *context_ = nullptr;
    bool is_syncing_ = false;
    uint32_t forwards_ = 0; /* since the last backward pass began */

    /* Of the pass. */
    /* Allocations of thread_ come here; it stays set where another thread ended that. */
    bool is_traced_ = false;
    std::thread::id thread_;
    int task_ = -1;
    /* relaxed: as Birthplaces::is_active_ */
    std::atomic<bool> is_active_{false};
    bool is_counted_ = false;
    bool is_learning_ = false;
    uint32_t of_forwards_ = 0;
    std::vector<Evaluation> evaluations_;
    std::vector<Record> records_;
    std::optional<Record> asked_;

    /* relaxed: told() looks at any time */
    std::atomic<uint64_t> born_{0};
    std::atomic<uint64_t> copied_{0};
    std::atomic<uint64_t> copied_bytes_{0};
    std::atomic<bool> is_off_{false};
    mutable std::mutex mutex_; /* of why_ alone: no call of torch's or Python's under it */
    std::string why_;
};

/* Whether the backward pass that this thread is in writes gradients of all leaves: not one for
 * chosen inputs, as torch.autograd.grad(). False outside of one. */
bool is_whole_backward();

} // namespace rdmatensor
