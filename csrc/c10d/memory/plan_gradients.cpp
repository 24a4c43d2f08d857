/* SPDX-License-Identifier: Apache-2.0
 * The last hook of accumulators, and the checks for other holders of a gradient. */
#include "c10d/memory/plan_gradients.hpp"

#include <algorithm>
#include <unordered_set>

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "c10d/memory/refcounts.hpp"

namespace rdmatensor
{

namespace autograd = torch::autograd;

struct PlanGradients::LastHook final : autograd::FunctionPostHook {
    LastHook(Weakly<PlanGradients> gradients, uint32_t number)
        : gradients_(std::move(gradients)), number_(number)
    {
    }
    autograd::variable_list operator()(const autograd::variable_list &outputs,
                                       const autograd::variable_list &inputs) override
    {
        static const at::Tensor nothing;
        if (const auto gradients = gradients_.lock())
            gradients->arrive(number_, inputs.empty() ? nothing : inputs.front());
        return outputs;
    }
    Weakly<PlanGradients> gradients_;
    uint32_t number_;
};

PlanGradients::PlanGradients(std::vector<Gradient> gradients, Arrived arrived)
    : gradients_(std::move(gradients)), arrived_(std::move(arrived))
{
    for (uint32_t number = 0; number < gradients_.size(); number++) {
        const uint32_t bucket = gradients_[number].bucket;
        if (bucket >= buckets_.size())
            buckets_.resize(bucket + 1);
        buckets_[bucket].push_back(number);
    }
    held_.resize(buckets_.size());
}

void
PlanGradients::be_last(uint32_t number)
{
    const auto node = autograd::impl::try_get_grad_accumulator(gradients_[number].parameter);
    if (is_closed_ || !node)
        return;
    auto &hooks = node->post_hooks();
    const auto is_own = [this](const auto &hook) {
        const auto *const known = dynamic_cast<const LastHook *>(hook.get());
        return known != nullptr && known->gradients_._unsafe_get_target() == this;
    };
    const auto own = std::find_if(hooks.begin(), hooks.end(), is_own);
    if (own == hooks.end())
        hooks.push_back(std::make_unique<LastHook>(weakly(this), number));
    else
        std::rotate(own, own + 1, hooks.end());
}

void
PlanGradients::close()
{
    is_closed_ = true;
    forget();
}

void
PlanGradients::arrive(uint32_t number, const at::Tensor &incoming)
{
    if (is_closed_)
        return;
    const auto before = std::make_pair(incoming_, arriving_);
    struct Reset {
        PlanGradients &gradients;
        const std::pair<const at::Tensor *, uint32_t> &before;
        ~Reset()
        {
            gradients.incoming_ = before.first;
            gradients.arriving_ = before.second;
        }
    } const reset{*this, before};
    incoming_ = &incoming;
    arriving_ = number;
    arrived_(number);
}

bool
PlanGradients::is_held_alone(uint32_t number, const at::Tensor &grad) const
{
    static const at::Tensor nothing;
    const bool is_arriving = incoming_ != nullptr && arriving_ == number;

    return !grad.requires_grad() && grad.has_storage() &&
           rdmatensor::is_alone(grad, is_arriving ? *incoming_ : nothing);
}

/* Whether grad has the layout in which all ranks send the gradient. */
static bool
has_planned_layout(const at::Tensor &grad, const PlanGradients::Gradient &gradient)
{
    if (grad.scalar_type() != gradient.parameter.scalar_type() ||
        grad.sizes() != gradient.parameter.sizes() || grad.is_conj() || grad.is_neg())
        return false;
    for (int64_t dim = 0; dim < grad.dim(); dim++)
        if (grad.size(dim) != 1 && grad.stride(dim) != gradient.strides[static_cast<size_t>(dim)])
            return false;
    return true;
}

/* Whether grad lies where, and as, all ranks send the gradient. */
static bool
is_in_place(const at::Tensor &grad, const PlanGradients::Gradient &gradient)
{
    return grad.layout() == at::kStrided && grad.is_cpu() && has_planned_layout(grad, gradient) &&
           (gradient.address == 0 ||
            reinterpret_cast<uintptr_t>(grad.const_data_ptr()) == gradient.address);
}

uint32_t
PlanGradients::look(uint32_t number) const
{
    const Gradient &gradient = gradients_.at(number);
    const at::Tensor &grad = gradient.parameter.grad();

    if (!grad.defined())
        return 0;
    if (grad.layout() != at::kStrided || !grad.is_cpu())
        return EXISTS;
    uint32_t found = EXISTS | STRIDED;
    if (is_held_alone(number, grad))
        found |= ALONE;
    if (is_in_place(grad, gradient))
        found |= IN_PLACE;
    return found;
}

bool
PlanGradients::can_leave(uint32_t bucket) const
{
    constexpr uint32_t needed = IN_PLACE | ALONE;
    const auto &numbers = buckets_.at(bucket);

    return std::all_of(numbers.begin(), numbers.end(), [this](uint32_t number) {
        return gradients_[number].address == 0 || (look(number) & needed) == needed;
    });
}

void
PlanGradients::hold(uint32_t bucket)
{
    std::vector<Held> &held = held_.at(bucket);

    held.clear();
    for (const uint32_t number : buckets_[bucket]) {
        const Gradient &gradient = gradients_[number];
        const at::Tensor &grad = gradient.parameter.grad();
        held.push_back({grad, gradient.address != 0 ? grad.storage() : c10::Storage(),
                        grad.defined() ? static_cast<uint32_t>(grad._version()) : 0});
    }
}

/* The sum, as a tensor that the program has not had. */
at::Tensor
PlanGradients::summed(uint32_t number, const Held &held) const
{
    const Gradient &gradient = gradients_[number];
    const auto first = reinterpret_cast<uintptr_t>(held.memory.data());
    const auto off_bytes = static_cast<int64_t>(gradient.address - first);
    const at::Tensor &like = gradient.parameter;

    return at::empty({0}, like.options())
        .set_(held.memory, off_bytes / like.element_size(), like.sizes(), gradient.strides);
}

std::vector<uint32_t>
PlanGradients::let_go(uint32_t bucket)
{
    const c10::AutoGradMode none(false);
    const std::vector<Held> held = std::exchange(held_.at(bucket), {});
    std::vector<uint32_t> written;

    for (size_t i = 0; i < held.size(); i++) {
        const uint32_t number = buckets_[bucket][i];
        const Gradient &gradient = gradients_[number];
        at::Tensor &grad = gradient.parameter.mutable_grad();
        /* One that was given other memory was not written where it is summed. */
        if (gradient.address != 0 && is_in_place(held[i].grad, gradient) &&
            static_cast<uint32_t>(held[i].grad._version()) != held[i].version)
            written.push_back(number);
        if (gradient.address == 0) { /* no bytes */
            if (!grad.defined())
                grad = held[i].grad;
        } else if (!grad.defined()) {
            grad = is_in_place(held[i].grad, gradient) ? held[i].grad : summed(number, held[i]);
        } else if (!is_in_place(grad, gradient)) {
            grad.copy_(summed(number, held[i]));
        }
    }
    return written;
}

void
PlanGradients::forget()
{
    for (auto &held : held_)
        held.clear();
}

/* torch.utils.checkpoint(use_reentrant=True): a backward pass of its own reaches what it used. */
static constexpr const char *REENTRANT = "CheckpointFunctionBackward";

std::vector<uint32_t>
PlanGradients::unreached(const std::vector<at::Tensor> &outputs) const
{
    std::unordered_set<const autograd::Node *> reached;
    std::vector<const autograd::Node *> waiting;
    const auto visit = [&](const autograd::Node *node) {
        if (node != nullptr && reached.insert(node).second)
            waiting.push_back(node);
    };

    for (const at::Tensor &output : outputs)
        if (output.requires_grad())
            visit(autograd::impl::gradient_edge(output).function.get());
    while (!waiting.empty()) {
        const autograd::Node *const node = waiting.back();
        waiting.pop_back();
        if (node->name() == REENTRANT)
            return {};
        for (const autograd::Edge &edge : node->next_edges())
            visit(edge.function.get());
    }
    std::vector<uint32_t> found;
    for (uint32_t number = 0; number < gradients_.size(); number++) {
        const auto node = autograd::impl::try_get_grad_accumulator(gradients_[number].parameter);
        if (!node || reached.count(node.get()) == 0)
            found.push_back(number);
    }
    return found;
}

} // namespace rdmatensor
