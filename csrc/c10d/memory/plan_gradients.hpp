/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_gradients.hpp - when a planned gradient is final, and whether peers may write its memory.
 *
 * A bucket is sent in place, and then peers write into it. No other holder may therefore see a byte
 * of it: autograd may give a parameter a view of memory that other nodes still read, and a program
 * may keep views of .grad. A bucket with such a holder is sent from a copy.
 *
 * The callback runs after every hook that the program has on the parameter, whenever that hook was
 * registered: it is the last hook of the node that accumulates the gradient.
 */
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/custom_class.h>

namespace rdmatensor
{

/* One thread at a time: the one that runs the backward pass. */
class PlanGradients final : public torch::CustomClassHolder
{
  public:
    struct Gradient {
        at::Tensor parameter;
        uint32_t bucket;
        uintptr_t address; /* of its place; 0: it has no bytes */
        std::vector<int64_t> strides;
    };
    /* The result of look(), as bits. */
    enum Found : uint32_t {
        EXISTS = 1,
        IN_PLACE = 2, /* with the layout that all ranks send */
        ALONE = 4,    /* no other holder of it or its memory, and no graph leads through it */
        STRIDED = 8,
    };
    using Arrived = std::function<void(uint32_t)>;

    /* `arrived` receives the number of a gradient that is final. It must not keep this object
     * alive. */
    PlanGradients(std::vector<Gradient> gradients, Arrived arrived);

    /* Called from a hook of the parameter while the accumulating node runs, which is another node
     * in each pass. `arrived` is called when that node has no hook left to call. */
    void be_last(uint32_t number);
    /* `arrived` is not called any more. */
    void close();
    [[nodiscard]] uint32_t look(uint32_t number) const;
    /* Whether the bucket may be sent in place: each of its gradients is in its place, without
     * another holder. */
    [[nodiscard]] bool can_leave(uint32_t bucket) const;
    /* Keeps the bucket's gradients and their memory until let_go(), so that their places stay
     * occupied whatever the program does to .grad. */
    void hold(uint32_t bucket);
    /* The bucket is summed. If the program has replaced a gradient meanwhile, or given it other
     * memory, the sum is copied into it; a gradient that was dropped is set again. Returns the
     * numbers of those that were written meanwhile, whose sums are wrong. */
    [[nodiscard]] std::vector<uint32_t> let_go(uint32_t bucket);
    /* Discards the sums: the pass raised. */
    void forget();
    /* The numbers of the gradients that no backward pass from these tensors reaches. Empty if a
     * node hides what it uses. */
    [[nodiscard]] std::vector<uint32_t> unreached(const std::vector<at::Tensor> &outputs) const;

  private:
    struct LastHook;
    struct Held {
        at::Tensor grad;     /* the program's own, which it may give other memory */
        c10::Storage memory; /* that is summed */
        uint32_t version;    /* of the gradient, which each write by torch raises */
    };

    void arrive(uint32_t number, const at::Tensor &incoming);
    [[nodiscard]] at::Tensor summed(uint32_t number, const Held &held) const;
    [[nodiscard]] bool is_held_alone(uint32_t number, const at::Tensor &grad) const;

    std::vector<Gradient> gradients_;
    std::vector<std::vector<uint32_t>> buckets_;
    std::vector<std::vector<Held>> held_; /* by bucket */
    Arrived arrived_;
    /* The input of the accumulator that runs now; nullptr: none runs. */
    const at::Tensor *incoming_ = nullptr;
    uint32_t arriving_ = 0;
    bool is_closed_ = false;
};

} // namespace rdmatensor
