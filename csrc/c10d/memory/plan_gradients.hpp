/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_gradients.hpp - when a planned gradient is final, and whether peers may write its memory.
 *
 * A bucket leaves in place, and then peers write it. So no byte of it may be seen by anybody else:
 * autograd gives a parameter a view of what other nodes still read, and a program keeps views of
 * .grad. A bucket of which that holds leaves from a copy.
 *
 * The function is called after every hook that the program has on the parameter, whenever that was
 * registered: it is the last hook of the node that accumulates the gradient.
 */
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
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
    /* What look() found, as bits. */
    enum Found : uint32_t {
        EXISTS = 1,
        IN_PLACE = 2, /* with the layout that all ranks send */
        ALONE = 4,    /* nobody else holds it or its memory, and no graph leads through it */
        STRIDED = 8,
    };
    using Arrived = std::function<void(uint32_t)>;

    /* `arrived` gets the number of a gradient that is final; it keeps nothing that keeps this. */
    PlanGradients(std::vector<Gradient> gradients, Arrived arrived);

    /* From a hook of the parameter, within the node that accumulates, which is another one in each
     * pass: `arrived` is called when that node has no hook left to call. */
    void be_last(uint32_t number);
    /* No call comes any more. */
    void close();
    [[nodiscard]] uint32_t look(uint32_t number) const;
    /* Whether the bucket may leave in place: each gradient of it lies there, alone. */
    [[nodiscard]] bool can_leave(uint32_t bucket) const;
    /* Keep the bucket's gradients and their memory until let_go(), so that their places stay taken
     * whatever the program does to .grad. */
    void hold(uint32_t bucket);
    /* The bucket is summed. A program that has replaced or dropped a gradient meanwhile, or given
     * it other memory, gets the sum in what it has. */
    void let_go(uint32_t bucket);
    /* The sums are nobody's: the pass raised. */
    void forget();
    /* The numbers of the gradients that no backward pass from these tensors reaches; none where a
     * node hides what it uses. */
    [[nodiscard]] std::vector<uint32_t> unreached(const std::vector<at::Tensor> &outputs) const;

  private:
    struct LastHook;
    struct Held {
        at::Tensor grad;   /* the program's own, which it may give other memory */
        at::Tensor memory; /* what is summed */
    };

    void arrive(uint32_t number, const at::Tensor &incoming);
    [[nodiscard]] bool is_held_alone(uint32_t number, const at::Tensor &grad) const;

    std::vector<Gradient> gradients_;
    std::vector<std::vector<uint32_t>> buckets_;
    std::vector<std::vector<Held>> held_; /* by bucket */
    Arrived arrived_;
    /* What the accumulator that runs now was given; nullptr: none runs. */
    const at::Tensor *incoming_ = nullptr;
    uint32_t arriving_ = 0;
    bool is_closed_ = false;
};

} // namespace rdmatensor
