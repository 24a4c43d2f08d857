/* SPDX-License-Identifier: Apache-2.0
 * Calls of a completion hook, on the completion threads. */
#include "c10d/works/hook.hpp"

#include <exception>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/csrc/utils/pybind.h>

#include "c10d/tensors.hpp"
#include "c10d/works/completion_thread.hpp"

namespace rdmatensor
{
namespace
{

/* The last lane, after those of callbacks: a slow hook delays no Future. */
constexpr unsigned hook_lane = ~0U;

/*
 * The Python object of a record, with the GIL held. torch's conversion finds it for as long as it
 * lives. If pybind11 made the object itself, it would own the record before entering it in its
 * table. If memory for the entry ran out, it would free the record, which this code frees again. So
 * the record is entered as a plain reference first. After that nothing fails, and the object may
 * share the record.
 */
pybind11::object
object_of(const std::shared_ptr<c10d::WorkInfo> &info)
{
    using Holder = std::shared_ptr<c10d::WorkInfo>;
    namespace pd = pybind11::detail;
    const auto *const type = pd::get_type_info(typeid(c10d::WorkInfo));

    TORCH_CHECK(type != nullptr && type->holder_enum_v == pd::holder_enum_t::std_shared_ptr,
                "this torch keeps the records of operations in another way");
    pybind11::object object = pybind11::cast(info.get(), pybind11::return_value_policy::reference);
    pd::value_and_holder place =
        reinterpret_cast<pd::instance *>(object.ptr())->get_value_and_holder(type);
    if (!place.holder_constructed()) {
        new (std::addressof(place.holder<Holder>())) Holder(info);
        place.set_holder_constructed();
    }
    return object;
}

} // namespace

/* Deletes itself. */
class CompletionHook::Call final : public Ending
{
  public:
    explicit Call(std::shared_ptr<CompletionHook> hook) : hook_(std::move(hook)) {}

    void end() noexcept override
    {
        hook_->run();
        delete this;
    }

  private:
    const std::shared_ptr<CompletionHook> hook_;
};

void
CompletionHook::tell(const c10d::WorkInfo &info) noexcept
{
    try {
        auto call = std::make_unique<Call>(shared_from_this());
        std::list record = {std::make_shared<c10d::WorkInfo>(info)};
        Finisher::expect(call.get(), 0, hook_lane); /* nothing fails after it */
        {
            const std::lock_guard lock(mutex_);
            due_.splice(due_.end(), record);
            told_++;
        }
        Finisher::enqueue(call.release());
    } catch (const std::exception &error) {
        TORCH_WARN("rdmatensor: a completion hook does not hear of an operation: ", error.what());
    }
}

void
CompletionHook::run() noexcept
{
    const std::lock_guard turn(turn_);

    try {
        std::shared_ptr<c10d::WorkInfo> info;
        {
            /* Whatever fails from here on, the next call gets the next record. */
            const std::lock_guard lock(mutex_);
            info = std::move(due_.front());
            due_.pop_front();
        }
        const pybind11::gil_scoped_acquire gil;
        const pybind11::object object = object_of(info);
        const pybind11::gil_scoped_release unlocked;
        function_(info);
    } catch (const std::exception &error) {
        TORCH_WARN("rdmatensor: a completion hook failed: ", error.what());
    }
    const std::lock_guard lock(mutex_);
    run_++;
    over_.notify_all();
}

void
CompletionHook::wait(std::chrono::steady_clock::time_point deadline)
{
    std::unique_lock lock(mutex_);
    const uint64_t due = told_;

    while (run_ < due) {
        (void)over_.wait_for(lock, work_slice);
        if (run_ < due && std::chrono::steady_clock::now() >= deadline)
            std::rethrow_exception(
                make_error(RDT_ETIMEDOUT, "rdmatensor:wait_for_pending_works: the timeout passed: "
                                          "the completion hook is not done [RDT_ETIMEDOUT]"));
        lock.unlock();
        check_signals();
        lock.lock();
    }
}

/* 0: none. */
static thread_local uint64_t group_of_callbacks = 0;

CallbacksOf::CallbacksOf(uint64_t group) noexcept
    : before_(std::exchange(group_of_callbacks, group))
{
}

CallbacksOf::~CallbacksOf()
{
    group_of_callbacks = before_;
}

bool
CallbacksOf::are_run(uint64_t group) noexcept
{
    return group_of_callbacks == group;
}

} // namespace rdmatensor
