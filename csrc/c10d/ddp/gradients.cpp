/* SPDX-License-Identifier: Apache-2.0
 * Maps allocations to gradients, and checks each gradient before the reducer writes. */
#include "c10d/ddp/gradients.hpp"

#include <algorithm>
#include <utility>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "c10d/works/completion_thread.hpp"

namespace rdmatensor
{
namespace
{

namespace autograd = torch::autograd;

/* Nodes of one input between the node that writes a gradient and its accumulator: a transposition,
 * a view, one or two changes of type. */
constexpr int kMostSteps = 4;
/* Ways in which a gradient may be allocated: two batches, or the two steps of adversarial
 * training. */
constexpr size_t kMostOrigins = 4;

/* relaxed: it orders nothing */
std::atomic<uint64_t> the_living{0};

/* With grad mode on, the pass either computes gradients to be differentiated again, which the
 * accumulators copy, or is a forward pass that runs within a backward pass. */
bool
is_plain_backward()
{
    return is_whole_backward() && !c10::GradMode::is_enabled();
}

const char *
address_of(const c10::TensorImpl &view)
{
    return static_cast<const char *>(view.storage().data()) +
           static_cast<uint64_t>(view.storage_offset()) * view.itemsize();
}

} // namespace

bool
is_whole_backward()
{
    const auto *const chosen = autograd::get_current_graph_task_exec_info();

    return chosen != nullptr && chosen->empty();
}

/* Runs before the reducer's hook on the same node. */
struct GradientPlacer::ArrivalHook final : autograd::FunctionPostHook {
    ArrivalHook(Weakly<GradientPlacer> placer, uint32_t number)
        : placer_(std::move(placer)), number_(number)
    {
    }
    ~ArrivalHook() override /* destroyed with its node */
    {
        if (const auto placer = placer_.lock()) {
            Gradient &gradient = placer->gradients_[number_];
            placer->accumulators_.erase(gradient.accumulator);
            gradient.accumulator = nullptr;
        }
    }
    autograd::variable_list operator()(const autograd::variable_list &outputs,
                                       const autograd::variable_list &inputs) override
    {
        static const at::Tensor nothing;
        if (const auto placer = placer_.lock())
            placer->arrive(number_, inputs.empty() ? nothing : inputs.front());
        return outputs;
    }
    Weakly<GradientPlacer> placer_;
    uint32_t number_;
};

/* On the node that made an output. */
struct GradientPlacer::BeginHook final : autograd::FunctionPreHook {
    explicit BeginHook(Weakly<GradientPlacer> placer) : placer_(std::move(placer)) {}
    autograd::variable_list operator()(const autograd::variable_list &grads) override
    {
        if (const auto placer = placer_.lock())
            placer->begin();
        return grads;
    }

    Weakly<GradientPlacer> placer_;
};

/* Whether the node has no hooks but those of this class and the reducer's one. A later hook would
 * see the reducer's write in the gradient. */
bool
GradientPlacer::has_known_hooks(autograd::AccumulateGrad &node)
{
    const auto &after = node.post_hooks();
    const auto is_ours = [](const auto &hook) {
        return dynamic_cast<const ArrivalHook *>(hook.get()) != nullptr;
    };
    const auto others = std::find_if_not(after.begin(), after.end(), is_ours);

    return node.pre_hooks().empty() && node.tensor_pre_hooks().empty() &&
           !node.tensor_post_acc_grad_hooks() && after.end() - others == 1 &&
           dynamic_cast<const autograd::utils::LambdaPostHook *>(others->get()) != nullptr;
}

GradientPlacer::GradientPlacer(size_t parameters, std::weak_ptr<c10d::Reducer> reducer,
                               uint64_t least_bytes)
    : reducer_(std::move(reducer)), least_bytes_(least_bytes), gradients_(parameters)
{
    the_living.fetch_add(1, std::memory_order_relaxed);
}

GradientPlacer::~GradientPlacer()
{
    the_living.fetch_sub(1, std::memory_order_relaxed);
}

uint64_t
GradientPlacer::living()
{
    return the_living.load(std::memory_order_relaxed);
}

c10::intrusive_ptr<GradientPlacer>
GradientPlacer::make(const std::vector<at::Tensor> &parameters,
                     std::weak_ptr<c10d::Reducer> reducer, uint64_t least_bytes)
{
    auto placer =
        c10::make_intrusive<GradientPlacer>(parameters.size(), std::move(reducer), least_bytes);

    for (uint32_t number = 0; number < parameters.size(); number++)
        placer->follow(number, parameters[number]);
    return placer;
}

void
GradientPlacer::follow(uint32_t number, const at::Tensor &parameter)
{
    const auto node = autograd::impl::grad_accumulator(parameter); /* the reducer keeps it alive */
    if (!node || !accumulators_.emplace(node.get(), number).second)
        return;
    gradients_[number].accumulator = static_cast<autograd::AccumulateGrad *>(node.get());
    auto &hooks = node->post_hooks();
    hooks.insert(hooks.begin(), std::make_unique<ArrivalHook>(weakly(this), number));
}

void
GradientPlacer::watch(const std::vector<at::Tensor> &outputs, rdt_context *context, bool is_syncing)
{
    if (is_traced_ && autograd::get_current_graph_task_id() < 0)
        end(); /* that pass ended with an exception */
    context_ = context;
    is_syncing_ = is_syncing;
    forwards_++;
    if (is_off_.load(std::memory_order_relaxed))
        return;
    for (const at::Tensor &output : outputs) {
        const auto &node = output.grad_fn();
        if (!node)
            continue;
        auto &hooks = node->pre_hooks();
        const auto is_ours = [this](const auto &hook) {
            const auto *const known = dynamic_cast<BeginHook *>(hook.get());
            return known != nullptr && known->placer_._unsafe_get_target() == this;
        };
        if (std::none_of(hooks.begin(), hooks.end(), is_ours))
            node->add_pre_hook(std::make_unique<BeginHook>(weakly(this)));
    }
}

void
GradientPlacer::stop()
{
    end();
}

GradientPlacer::Told
GradientPlacer::told() const
{
    Told found;

    found.in_place = in_place_.load(std::memory_order_relaxed);
    found.copied = copied_.load(std::memory_order_relaxed);
    found.copied_bytes = copied_bytes_.load(std::memory_order_relaxed);
    for (uint32_t number = 0; number < gradients_.size(); number++)
        if (is_off_.load(std::memory_order_relaxed) ||
            gradients_[number].is_copied.load(std::memory_order_relaxed))
            found.last_copied.push_back(number);
    if (!is_forked_child()) { /* where another thread of the parent may hold the mutex forever */
        const std::lock_guard lock(mutex_);
        found.why_off = why_;
    }
    return found;
}

void
GradientPlacer::note(const std::string &why)
{
    const std::lock_guard lock(mutex_);
    why_ = why;
}

void
GradientPlacer::give_up(const std::string &why)
{
    is_off_.store(true, std::memory_order_relaxed);
    is_active_.store(false, std::memory_order_relaxed);
    is_counted_ = false;
    note(why);
}

// ---- a pass -------------------------------------------------------------------------------------

/* Only for a pass in which the reducer sums. Gradients of other passes stay where they were
 * allocated, and the program may keep them. */
void
GradientPlacer::begin()
{
    if (is_traced_ || is_off_.load(std::memory_order_relaxed) || is_forked_child() ||
        !is_plain_backward())
        return;
    of_forwards_ = std::exchange(forwards_, 0);
    is_counted_ = is_syncing_ && of_forwards_ > 0 && is_bare();
    if (!is_counted_)
        return;
    if (!is_settled_) /* before the reducer's own callback, which waits for the sums */
        autograd::Engine::get_default_engine().queue_callback([weak = weakly(this)] {
            if (const auto placer = weak.lock())
                placer->settle();
        });
    else if (open())
        trace();
}

bool
GradientPlacer::is_bare() const
{
    return std::any_of(gradients_.begin(), gradients_.end(), [](const Gradient &gradient) {
        return gradient.accumulator != nullptr && !gradient.accumulator->variable.grad().defined();
    });
}

void
GradientPlacer::trace()
{
    try {
        trace_allocations(c10::intrusive_ptr<AllocationTrace>::unsafe_reclaim_from_nonowning(this));
    } catch (const c10::Error &error) { /* another library has replaced torch's allocator */
        give_up(error.what_without_backtrace());
        return;
    }
    evaluations_.clear();
    records_.clear();
    asked_.reset();
    is_traced_ = true;
    thread_ = std::this_thread::get_id();
    task_ = autograd::get_current_graph_task_id();
    is_active_.store(true, std::memory_order_relaxed);
    autograd::Engine::get_default_engine().queue_callback([weak = weakly(this)] {
        if (const auto placer = weak.lock())
            placer->end_pass();
    });
}

void
GradientPlacer::end()
{
    if (!is_traced_)
        return;
    is_active_.store(false, std::memory_order_relaxed);
    if (std::this_thread::get_id() != thread_) { /* which may access this at any time */
        forsake();
        give_up("a backward pass ended on another thread than it began on");
        return;
    }
    end_trace(this);
    for (Gradient &gradient : gradients_)
        gradient.is_open = false;
    is_traced_ = false;
}

/* For a pass that did not raise. If it was not the last pass of its forward pass, the next one
 * brings the other gradients, which the reducer copies. */
void
GradientPlacer::end_pass()
{
    const auto reducer = reducer_.lock();

    end();
    if (is_off_.load(std::memory_order_relaxed) || !reducer || has_all_buckets(*reducer))
        return;
    note(kParted);
    for (Gradient &gradient : gradients_)
        if (gradient.accumulator != nullptr && !gradient.accumulator->variable.grad().defined())
            gradient.is_copied.store(true, std::memory_order_relaxed);
}

// ---- allocations of a pass ----------------------------------------------------------------------

c10::DataPtr
GradientPlacer::serve(size_t bytes)
{
    asked_.reset();
    /* Another task is nested in this pass, or follows after this pass raised. */
    if (!is_active_.load(std::memory_order_relaxed) ||
        autograd::get_current_graph_task_id() != task_ || c10::GradMode::is_enabled())
        return {};
    const auto node = autograd::get_current_node();
    if (!node)
        return {};
    Evaluation &now = enter(*node);
    const uint32_t ordinal = now.allocations++;
    if (sizes_.count(bytes) == 0)
        return {};
    if (!std::exchange(now.is_known, true))
        look_at(*node, now);
    asked_ = Record{nullptr, true, static_cast<uint32_t>(evaluations_.size() - 1), ordinal};
    return serve_one(bytes, now, ordinal);
}

c10::DataPtr
GradientPlacer::serve_one(size_t bytes, Evaluation &now, uint32_t ordinal)
{
    for (Target &target : now.targets) {
        Gradient &gradient = gradients_[target.gradient];
        if (gradient.bytes != bytes)
            continue;
        if (target.visit == 0)
            target.visit = ++gradient.visits;
        const Origin origin = {of_forwards_, target.visit, now.edges, ordinal};
        const std::vector<Origin> &origins = gradient.origins;
        if (!gradient.is_open || std::find(origins.begin(), origins.end(), origin) == origins.end())
            continue;
        c10::DataPtr data = lend(gradient);
        if (data)
            return data;
    }
    return {};
}

/* Also records allocations that become no gradient: addresses recur within a pass, and the last
 * record of an address counts. */
void
GradientPlacer::allocated(const void *address, size_t)
{
    if (!is_learning_ || !is_active_.load(std::memory_order_relaxed) ||
        autograd::get_current_graph_task_id() < 0) /* the pass has raised */
        return;
    records_.push_back(asked_ ? *asked_ : Record{});
    records_.back().address = address;
}

/* Returns the run of the node, which is the last of evaluations_. */
GradientPlacer::Evaluation &
GradientPlacer::enter(const autograd::Node &node)
{
    const uint64_t sequence = node.sequence_nr();

    if (!evaluations_.empty() && evaluations_.back().node == &node &&
        evaluations_.back().sequence == sequence)
        return evaluations_.back();
    Evaluation &now = evaluations_.emplace_back();
    now.node = &node;
    now.sequence = sequence;
    return now;
}

void
GradientPlacer::look_at(const autograd::Node &node, Evaluation &now)
{
    for (const autograd::Edge &edge : node.next_edges())
        now.edges += edge.is_valid() ? 1 : 0;
    find_targets(node, 0, now.targets);
}

void
GradientPlacer::find_targets(const autograd::Node &node, int depth, std::vector<Target> &targets)
{
    if (node.num_outputs() == 0) { /* accumulators have no outputs */
        const auto found = accumulators_.find(&node);
        if (found != accumulators_.end() && gradients_[found->second].bytes > 0)
            targets.push_back({found->second, 0});
        return;
    }
    if (depth > kMostSteps || (depth > 0 && node.num_outputs() != 1))
        return;
    for (const autograd::Edge &edge : node.next_edges())
        if (edge.function)
            find_targets(*edge.function, depth + 1, targets);
}

// ---- a gradient comes ---------------------------------------------------------------------------

/* In any pass: places that were given before in-place gradients were disabled may still be
 * occupied. */
void
GradientPlacer::arrive(uint32_t number, const at::Tensor &incoming)
{
    Gradient &gradient = gradients_[number];
    if ((!is_counted_ && gradient.tenant.expired()) || is_forked_child())
        return;
    const at::Tensor &grad = gradient.accumulator->variable.grad(); /* undefined: zero is sent */
    const bool lies_there = look_at_place(gradient, grad, incoming);
    const bool is_in_place = lies_there && gradient.is_served;

    gradient.is_open = false;
    gradient.is_served = false;
    if (!is_counted_ || gradient.view.use_count() == 0)
        return;
    const bool is_copied = !lies_there && grad.defined() &&
                           grad.unsafeGetTensorImpl() != gradient.view._unsafe_get_target();
    gradient.is_copied.store(is_copied, std::memory_order_relaxed);
    if (is_in_place) {
        in_place_.fetch_add(1, std::memory_order_relaxed);
        gradient.misses = 0;
    } else if (is_copied)
        note_copy(number, grad, incoming);
}

void
GradientPlacer::note_copy(uint32_t number, const at::Tensor &grad, const at::Tensor &incoming)
{
    Gradient &gradient = gradients_[number];

    copied_.fetch_add(1, std::memory_order_relaxed);
    copied_bytes_.fetch_add(grad.nbytes(), std::memory_order_relaxed);
    if (is_active_.load(std::memory_order_relaxed) && gradient.bytes > 0) {
        gradient.misses++;
        learn(number, grad, incoming);
    }
}

/* Afterwards the gradient alone is in the place (true), or nothing is (false). */
bool
GradientPlacer::look_at_place(Gradient &gradient, const at::Tensor &grad,
                              const at::Tensor &incoming)
{
    const auto place = gradient.tenant.lock();
    if (!place || gradient.view.use_count() == 0)
        return false;
    c10::TensorImpl *const view = gradient.view._unsafe_get_target(); /* which is not counted */
    if (address_of(*view) != place->address)
        return false;
    if (grad.defined() && grad.has_storage() && grad.storage().data() == place->address &&
        grad.unsafeGetTensorImpl() != view && has_layout_of(grad, *view) &&
        is_place(grad.storage().data_ptr()) && rdmatensor::is_alone(grad, incoming))
        return true;
    make_way(gradient, place);
    return false;
}

/* The node's allocations vary: this ordinal may belong to another tensor. */
bool
GradientPlacer::is_ambiguous(const Gradient &gradient, const Origin &origin)
{
    return std::any_of(gradient.origins.begin(), gradient.origins.end(),
                       [&origin](const Origin &known) {
                           return known.forwards == origin.forwards &&
                                  known.visit == origin.visit && known.edges == origin.edges &&
                                  known.ordinal != origin.ordinal;
                       });
}

void
GradientPlacer::learn(uint32_t number, const at::Tensor &grad, const at::Tensor &incoming)
{
    Gradient &gradient = gradients_[number];
    const auto view = gradient.view.lock();

    if (!view || !has_layout_of(grad, *view) || grad.storage().nbytes() != gradient.bytes ||
        !rdmatensor::is_alone(grad, incoming))
        return;
    const void *const address = grad.storage().data();
    const auto record =
        std::find_if(records_.rbegin(), records_.rend(),
                     [address](const Record &one) { return one.address == address; });
    if (record == records_.rend() || !record->is_known)
        return;
    const Evaluation &then = evaluations_[record->evaluation];
    for (const Target &target : then.targets) {
        if (target.gradient != number || target.visit == 0)
            continue;
        const Origin origin = {of_forwards_, target.visit, then.edges, record->ordinal};
        if (is_ambiguous(gradient, origin)) {
            gradient.misses = kMostMisses;
            return;
        }
        if (gradient.origins.size() == kMostOrigins)
            gradient.origins.erase(gradient.origins.begin());
        gradient.origins.push_back(origin);
        return;
    }
}

} // namespace rdmatensor
