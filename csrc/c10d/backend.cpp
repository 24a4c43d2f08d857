/* SPDX-License-Identifier: Apache-2.0
 * Life cycle of a group: creation, options, split, abort and shutdown; starting its operations. */
#include "c10d/backend.hpp"

#include <chrono>
#include <mutex>
#include <thread>
#include <tuple>

#include <ATen/EmptyTensor.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include "c10d/memory/allocator.hpp"
#include "c10d/works/gil.hpp"
#include "rdmatensor_ext.h"

namespace rdmatensor
{
namespace
{

using Clock = std::chrono::steady_clock;

constexpr const char *backend_name = "rdmatensor";
/* The library identifies groups by name and epoch; the rest of a long name adds nothing. */
constexpr size_t group_name_chars = 32;
/* Several times what reading the counters takes when other processes occupy the cores. */
constexpr std::chrono::milliseconds look_limit{100};
/* A longer wait continues in a Work, so that shutdown() need not wait for it. */
constexpr uint64_t wait_at_once_ns = UINT64_C(20000000);
/* Upper bound of the library's description of a group: a number for each of 64 members, some twenty
 * values, and the lengths at which each operation changes its algorithm. */
constexpr size_t collectives_max_bytes = 8192;

/* The live groups, for shutdown_all(), and the job that the next group joins. */
struct Process {
    std::mutex mutex;
    std::vector<c10::weak_intrusive_ptr<Backend>> groups;
    Job job;
};

/* Never destroyed: groups may outlive static objects. */
Process &
process()
{
    static Process *const the_process = new Process;
    return *the_process;
}

/* Called without the lock held: releasing the last reference destroys a group. */
std::vector<c10::intrusive_ptr<Backend>>
live_groups()
{
    std::vector<c10::intrusive_ptr<Backend>> groups;
    Process &p = process();
    const std::lock_guard lock(p.mutex);

    for (const auto &weak : p.groups)
        if (c10::intrusive_ptr<Backend> group = weak.lock())
            groups.push_back(std::move(group));
    return groups;
}

/* Number of a new group, from 1. */
uint64_t
next_number()
{
    static std::atomic<uint64_t> count{0};

    return count.fetch_add(1, std::memory_order_relaxed) + 1; /* only that they differ */
}

Job
current_job()
{
    Process &p = process();
    const std::lock_guard lock(p.mutex);

    return p.job;
}

/* A default group starts a job; later groups join the latest job. */
Job
agree_on_job(Rendezvous &rendezvous, const Backend::Setup &setup, std::string &group_id)
{
    const Job proposal = setup.is_default_group ? Job{} : current_job();
    const Rendezvous::Agreement agreed = rendezvous.agree(proposal, setup.secret);

    group_id = agreed.group_id;
    Process &p = process();
    const std::lock_guard lock(p.mutex);
    if (setup.is_default_group || p.job.id.empty())
        p.job = agreed.job;
    return agreed.job;
}

std::vector<int32_t>
ranks_for_messages(const std::vector<int64_t> &global_ranks, int size)
{
    std::vector<int32_t> ranks;

    TORCH_CHECK(global_ranks.empty() || global_ranks.size() == static_cast<size_t>(size),
                global_ranks.size(), " global ranks for a group of ", size);
    for (int rank = 0; rank < size; rank++)
        ranks.push_back(global_ranks.empty()
                            ? rank
                            : static_cast<int32_t>(global_ranks[static_cast<size_t>(rank)]));
    return ranks;
}

uint64_t
to_ns(Milliseconds timeout)
{
    constexpr int64_t most_ms = INT64_C(1000) * 3600 * 24 * 365;

    return static_cast<uint64_t>(std::clamp<int64_t>(timeout.count(), 1, most_ms)) *
           UINT64_C(1000000);
}

} // namespace

Backend::Options::Options(Milliseconds limit) : c10d::Backend::Options(backend_name, limit) {}

Backend::Backend(c10::intrusive_ptr<Rendezvous> rendezvous, Setup setup)
    : c10d::Backend(rendezvous->rank(), rendezvous->size()), rendezvous_(std::move(rendezvous)),
      setup_(std::move(setup)), options_(c10::make_intrusive<Options>(setup_.timeout)),
      number_(next_number()), flight_(std::make_shared<Flight>(setup_.group_name)),
      recorder_(setup_.context, setup_.is_recorded), timeout_ms_(setup_.timeout.count())
{
    init();
    options_->group_name = setup_.group_name;
    options_->global_ranks_in_group.assign(setup_.global_ranks.begin(), setup_.global_ranks.end());

    const std::vector<int32_t> ranks = ranks_for_messages(setup_.global_ranks, size_);
    std::string group_id;
    const Job job = agree_on_job(*rendezvous_, setup_, group_id);
    rdt_error error = {};
    rdt_status status = rdt_context_add_job(setup_.context, job.id.c_str(),
                                            reinterpret_cast<const uint8_t *>(job.secret.data()),
                                            static_cast<uint32_t>(job.secret.size()), job.epoch,
                                            ranks[static_cast<size_t>(rank_)], &error);
    if (status != RDT_OK)
        std::rethrow_exception(make_error(status, making, error));

    const std::string name = c10::str(setup_.group_name.substr(0, group_name_chars), ":", group_id);
    rdt_group_opts opts = {};
    opts.struct_size = sizeof(opts);
    opts.rank = static_cast<uint32_t>(rank_);
    opts.size = static_cast<uint32_t>(size_);
    opts.name = name.c_str();
    opts.job_id = job.id.c_str();
    opts.global_ranks = ranks.data();
    opts.timeout_ns = to_ns(setup_.timeout);
    opts.address = Rendezvous::fetch_address;
    opts.address_arg = rendezvous_.get();
    status = rdt_group_create(setup_.context, &opts, &group_, &error);
    if (status != RDT_OK)
        std::rethrow_exception(make_error(status, making, error));
    rendezvous_->watch(group_);
    in_flight_->watch(group_);
    /* Publish last: peers that find the address may connect at once. Addresses fetched now stay
     * usable after the store is gone. */
    try {
        rendezvous_->publish(setup_.context);
        rendezvous_->prefetch();
    } catch (...) {
        in_flight_->watch(nullptr);
        rendezvous_->watch(nullptr);
        rdt_group_destroy(group_);
        throw;
    }
}

Backend::~Backend()
{
    try {
        const WithoutGil without_gil;
        shutdown();
    } catch (const std::exception &error) {
        /* A destructor cannot report an error; the peers see that this member left. */
        TORCH_WARN("rdmatensor: closing a group: ", error.what());
    }
}

c10::intrusive_ptr<Backend>
make_backend(c10::intrusive_ptr<Rendezvous> rendezvous, Backend::Setup setup)
{
    Finisher::start();
    auto backend = c10::make_intrusive<Backend>(std::move(rendezvous), std::move(setup));
    Process &p = process();
    const std::lock_guard lock(p.mutex);

    std::erase_if(p.groups, [](const auto &group) { return group.expired(); });
    p.groups.emplace_back(backend);
    return backend;
}

void
Backend::shutdown_all(const rdt_context *context)
{
    if (is_forked_child())
        return;
    for (const c10::intrusive_ptr<Backend> &group : live_groups())
        if (context == nullptr || group->setup_.context == context)
            group->shutdown();
}

void
Backend::mark_step()
{
    if (is_forked_child()) /* the groups belong to the parent */
        return;
    for (const c10::intrusive_ptr<Backend> &group : live_groups())
        group->recorder_.mark();
}

rdt_counters
Backend::spent()
{
    const std::shared_lock lock(group_mutex_);
    rdt_counters found = {};

    found.struct_size = sizeof(found);
    if (group_ != nullptr) /* otherwise the context may be closed */
        rdt_context_counters(setup_.context, &found);
    return found;
}

c10::intrusive_ptr<Backend>
Backend::find(const std::string &group_name)
{
    std::vector<c10::weak_intrusive_ptr<Backend>> groups;
    {
        Process &p = process();
        const std::lock_guard lock(p.mutex);
        groups = p.groups;
    }
    for (const auto &weak : groups) {
        const c10::intrusive_ptr<Backend> group = weak.lock();
        if (!group || group->setup_.group_name != group_name)
            continue;
        const std::shared_lock lock(group->group_mutex_);
        if (group->group_ != nullptr)
            return group;
    }
    return {};
}

const std::string
Backend::getBackendName() const
{
    return backend_name;
}

c10::intrusive_ptr<c10d::Backend::Options>
Backend::getBackendOptions()
{
    return options_;
}

void
Backend::setTimeout(Milliseconds given)
{
    const Milliseconds timeout = bounded(given);
    const std::shared_lock lock(group_mutex_);

    timeout_ms_.store(timeout.count(), std::memory_order_relaxed);
    options_->timeout = timeout;
    if (group_ != nullptr)
        rdt_group_set_timeout(group_, to_ns(timeout));
}

uint64_t
Backend::getSequenceNumberForGroup()
{
    return sequence_.load(std::memory_order_relaxed);
}

rdt_coll_counters
Backend::counters()
{
    const std::shared_lock lock(group_mutex_);
    rdt_coll_counters counters = {};

    counters.struct_size = sizeof(counters);
    if (group_ != nullptr)
        rdt_group_coll_counters(group_, &counters);
    return counters;
}

std::string
Backend::collectives()
{
    const std::shared_lock lock(group_mutex_);
    std::string text(collectives_max_bytes, '\0');
    rdt_error err = {};
    size_t needed = 0;

    if (group_ == nullptr)
        return "{}";
    const rdt_status status =
        rdt_group_coll_describe(group_, text.data(), text.size(), &needed, &err);
    if (status != RDT_OK)
        std::rethrow_exception(make_error(status, "rdmatensor:describe", err));
    text.resize(needed);
    return text;
}

c10d::ErrorType
Backend::getError()
{
    if (is_forked_child())
        return c10d::ErrorType::COMM_ERROR;
    const std::shared_lock lock(group_mutex_);
    if (group_ == nullptr)
        return c10d::ErrorType::SUCCESS;
    switch (rdt_group_broken_by(group_)) {
    case RDT_BROKEN_NOT:
        return c10d::ErrorType::SUCCESS;
    case RDT_BROKEN_BY_DEADLINE:
        return c10d::ErrorType::TIMEOUT;
    case RDT_BROKEN_BY_MEMBER:
        return c10d::ErrorType::REMOTE_ERROR;
    default:
        return c10d::ErrorType::COMM_ERROR;
    }
}

void
Backend::break_group(const std::string &reason)
{
    if (is_forked_child())
        return; /* the group belongs to the parent */
    const std::shared_lock lock(group_mutex_);
    if (group_ != nullptr)
        rdt_group_abort(group_, c10::str("rank ", global_rank(rank_), " ", reason).c_str());
}

void
Backend::abort()
{
    if (is_forked_child())
        return; /* the group belongs to the parent */
    /* Peers get the reason: this rank may be the only one that noticed a rank that never joined. */
    const std::string failure = flight_->failure();

    break_group(failure.empty() ? "called abort()" : "called abort() after " + failure);
}

void
Backend::shutdown()
{
    if (is_forked_child())
        return; /* the group belongs to the parent */
    std::exception_ptr interrupted;
    try {
        if (setup_.lingers)
            rendezvous_->linger([this] { return in_flight_->cause().status != RDT_OK; });
    } catch (...) { /* Ctrl-C: shut the group down anyway */
        interrupted = std::current_exception();
    }
    const std::lock_guard only_one(shutdown_mutex_);
    std::unique_lock lock(group_mutex_, std::defer_lock);
    /* A thread that only reads the group's state releases the lock soon. Do not abort for it: the
     * peers see an abort. */
    for (const auto until = Clock::now() + look_limit; !lock.try_lock() && Clock::now() < until;)
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    if (!lock.owns_lock()) {
        /* A call is about to start and may wait for a peer. The abort makes it release the
         * group. */
        {
            const std::shared_lock shared(group_mutex_);
            if (group_ != nullptr)
                rdt_group_abort(group_, "the group was shut down while an operation began");
        }
        lock.lock();
    }
    recorder_.stop("the group was shut down");
    in_flight_->watch(nullptr);
    rendezvous_->watch(nullptr);
    rdt_group *const group = std::exchange(group_, nullptr);
    lock.unlock(); /* a start holds its persistent collective's lock and waits for this one */
    close_persistents();
    rdt_group_destroy(group);
    if (interrupted)
        std::rethrow_exception(interrupted);
}

Milliseconds
Backend::timeout_or_own(Milliseconds timeout) const
{
    return timeout == c10d::kUnsetTimeout || timeout == kNoTimeout
               ? Milliseconds(timeout_ms_.load(std::memory_order_relaxed))
               : bounded(timeout);
}

int
Backend::global_rank(int rank) const
{
    return setup_.global_ranks.empty()
               ? rank
               : static_cast<int>(setup_.global_ranks.at(static_cast<size_t>(rank)));
}

rdt_coll_args
Backend::args_for(uint32_t op, const Elements &elements, Milliseconds timeout) const
{
    rdt_coll_args args = {};

    args.struct_size = sizeof(args);
    args.op = op;
    args.dtype = elements.dtype;
    args.count = elements.count;
    args.timeout_ns = to_ns(timeout_or_own(timeout));
    return args;
}

/*
 * Run the collective while the caller waits, without a Work. torch's synchronous calls need none,
 * and a Work with its tensors costs more than the exchange of a small tensor. Returns the transfer
 * if it is not over.
 */
rdt_transfer *
Backend::run_at_once(Operation &operation, const Call &call)
{
    const char *const title = operation.title;
    const std::shared_lock lock(group_mutex_);
    rdt_transfer *transfer = nullptr;
    rdt_error error = {};

    if (group_ == nullptr)
        C10_THROW_ERROR(DistBackendError, c10::str(title, ": the group was shut down"));
    take_off(operation, 1);
    /* Until the wait is over no thread is woken to drive the transfer. Not in the first collective:
     * it may wait for members at the store, and drives nothing meanwhile. */
    const bool is_attended = sequence_.load(std::memory_order_relaxed) > 1;
    if (is_attended)
        rdt_context_attend(setup_.context);
    const rdt_status status = begin_call(group_, call, RDT_COLL_SPIN, &transfer, &error);
    if (status == RDT_OK && rdt_transfer_test(transfer, nullptr) == RDT_EAGAIN)
        /* An error is stored in the transfer, which is tested again below. */
        std::ignore = rdt_transfer_wait(transfer, wait_at_once_ns, nullptr);
    if (is_attended)
        rdt_context_unattend(setup_.context);
    if (status != RDT_OK)
        take_back({title, operation.number, 1}, status, error);
    if (rdt_transfer_test(transfer, nullptr) != RDT_OK)
        return transfer;
    rdt_transfer_free(transfer);
    return nullptr;
}

/* A Work for the transfer that run_at_once() did not finish. */
WorkPtr
Backend::work_of(Operation &operation, rdt_transfer *transfer)
{
    operation.timeout = timeout_or_own(operation.timeout);
    operation.has_own_deadline = true;
    operation.order = number_;
    operation.in_flight = in_flight_;
    try {
        auto work = c10::make_intrusive<Work>(rank_, std::move(operation), 1);
        work->add(transfer);
        return work;
    } catch (const std::exception &) {
        end_without_work(operation, transfer, std::current_exception());
        throw;
    }
}

WorkPtr
Backend::start(Operation operation, const std::vector<Call> &calls)
{
    refuse_forked_child(operation.title);
    if (CallbacksOf::are_run(number_)) {
        TORCH_WARN_ONCE(operation.title,
                        " was called in a callback of a Future of the same group. "
                        "Ranks run callbacks at different times: if another thread calls "
                        "collectives of this group meanwhile, as DDP does with several buckets, "
                        "their order differs between ranks, and results can be wrong. Call it in a "
                        "second group, or wait in the hook itself.");
    }
    record(operation, calls);
    if (!operation.is_async && calls.size() == 1 && !at::hasCallbacks()) {
        rdt_transfer *const transfer = run_at_once(operation, calls[0]);
        if (transfer != nullptr)
            return work_of(operation, transfer);
        const std::exception_ptr failure = deliver(operation.arrivals);
        note_end(operation, failure);
        if (failure)
            std::rethrow_exception(failure);
        return {};
    }
    const bool is_async = operation.is_async;
    const std::shared_lock lock(group_mutex_);

    if (group_ == nullptr)
        C10_THROW_ERROR(DistBackendError, c10::str(operation.title, ": the group was shut down"));
    operation.timeout = timeout_or_own(operation.timeout);
    operation.has_own_deadline = true;
    operation.order = number_;
    operation.in_flight = in_flight_;
    take_off(operation, calls.size());
    Refused rest = {operation.title, operation.number, calls.size()};
    c10::intrusive_ptr<Work> work;
    try {
        work = c10::make_intrusive<Work>(rank_, std::move(operation), calls.size());
    } catch (const std::exception &) {
        take_back(rest, std::current_exception());
        throw;
    }
    for (const Call &call : calls) {
        rdt_transfer *transfer = nullptr;
        rdt_error error = {};
        const rdt_status status = begin_call(group_, call, 0, &transfer, &error);
        if (status != RDT_OK)
            take_back(rest, status, error);
        work->add(transfer);
        rest.left--;
    }
    if (is_async)
        in_flight_->add(work);
    attend_if_hooked(work);
    return noted(std::move(work));
}

/* ---- Memory ---- */

bool
Backend::supportsTensorAlloc(c10::DeviceIndex)
{
    return true;
}

/* torch selects the backend of a device type by device index only, which has no meaning on the
 * CPU. */
at::Tensor
Backend::allocateTensor(long elems, at::TensorOptions options)
{
    constexpr const char *call = "allocate_tensor";
    const c10::Device device = options.device_opt().value_or(c10::Device(c10::kCPU));
    const std::shared_lock lock(group_mutex_);

    if (elems < 0)
        throw_value_error(call, c10::str(elems, " elements"));
    if (!device.is_cpu())
        throw_device_error(device, call);
    if (group_ == nullptr)
        C10_THROW_ERROR(DistBackendError, "rdmatensor:allocate_tensor: the group was shut down");
    return at::Tensor(at::detail::empty_generic({elems}, slab_allocator(setup_.context),
                                                c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                c10::typeMetaToScalarType(options.dtype()),
                                                std::nullopt));
}

/* The allocator is never destroyed, so the pointer owns nothing. */
std::shared_ptr<c10::Allocator>
Backend::getMemAllocator()
{
    return {std::shared_ptr<c10::Allocator>(), slab_allocator(setup_.context)};
}

std::unordered_map<std::string, uint64_t>
Backend::getMemoryStats()
{
    const SlabStats stats = slab_stats(setup_.context);

    return {{"slabs_live_bytes", stats.live_bytes},
            {"slabs_cached_bytes", stats.cached_bytes},
            {"slabs_allocated", stats.allocated},
            {"slabs_reused", stats.reused}};
}

} // namespace rdmatensor
