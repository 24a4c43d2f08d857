/* SPDX-License-Identifier: Apache-2.0
 * The life of a group: made, shared, split, broken, ended. */
#include "c10d/backend.hpp"

#include <mutex>

#include <torch/csrc/distributed/c10d/exception.h>
#include <torch/csrc/utils/pybind.h>

namespace rdmatensor
{
namespace
{

constexpr const char *backend_name = "rdmatensor";
constexpr const char *making = "rdmatensor:init_process_group";
/* The library tells groups apart by name and epoch; the rest of a long name says nothing new. */
constexpr size_t group_name_chars = 32;

/* The groups that live, for shutdown_all(), and the job that the next group joins. */
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

/* Of a group, from 1 on. */
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

/* A default group begins a job; later groups join the latest. */
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

/* Gives Python's lock up for a while where this thread has it and Python is not ending. */
class WithoutGil
{
  public:
    WithoutGil() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr)
    {
    }
    ~WithoutGil()
    {
        if (state_ != nullptr)
            PyEval_RestoreThread(state_);
    }
    WithoutGil(const WithoutGil &) = delete;
    WithoutGil &operator=(const WithoutGil &) = delete;

  private:
    PyThreadState *const state_;
};

} // namespace

Backend::Options::Options(Milliseconds limit) : c10d::Backend::Options(backend_name, limit) {}

Backend::Backend(c10::intrusive_ptr<Rendezvous> rendezvous, Setup setup)
    : c10d::Backend(rendezvous->rank(), rendezvous->size()), rendezvous_(std::move(rendezvous)),
      setup_(std::move(setup)), options_(c10::make_intrusive<Options>(setup_.timeout)),
      number_(next_number()), timeout_ms_(setup_.timeout.count())
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
    opts.blob = Rendezvous::fetch_blob;
    opts.blob_arg = rendezvous_.get();
    status = rdt_group_create(setup_.context, &opts, &group_, &error);
    if (status != RDT_OK)
        std::rethrow_exception(make_error(status, making, error));
    rendezvous_->watch(group_);
    /* Last: peers that find the address may come at once. Addresses that are known already outlive
     * the store. */
    try {
        rendezvous_->publish(setup_.context);
        rendezvous_->prefetch();
    } catch (...) {
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
        /* A destructor has nobody to tell; the peers see that this member left. */
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
    std::vector<c10::weak_intrusive_ptr<Backend>> groups;

    if (is_forked_child())
        return;
    {
        Process &p = process();
        const std::lock_guard lock(p.mutex);
        groups = p.groups;
    }
    for (const auto &weak : groups) {
        const c10::intrusive_ptr<Backend> group = weak.lock();
        if (group && (context == nullptr || group->setup_.context == context))
            group->shutdown();
    }
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

c10::intrusive_ptr<c10d::Backend>
Backend::split(const c10::intrusive_ptr<c10d::Store> &store, const std::vector<int> &ranks,
               const c10::intrusive_ptr<c10d::Backend::Options> &opts)
{
    const auto place = std::find(ranks.begin(), ranks.end(), rank_);
    if (place == ranks.end())
        return {};

    Setup setup = setup_;
    setup.is_default_group = false;
    setup.global_ranks.clear();
    for (const int rank : ranks)
        setup.global_ranks.push_back(global_rank(rank));
    if (opts) {
        setup.timeout = opts->timeout;
        setup.group_name = opts->group_name;
    }
    return make_backend(c10::make_intrusive<Rendezvous>(store,
                                                        static_cast<int>(place - ranks.begin()),
                                                        static_cast<int>(ranks.size()),
                                                        setup.timeout),
                        setup);
}

void
Backend::setTimeout(Milliseconds timeout)
{
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

c10d::ErrorType
Backend::getError()
{
    const std::shared_lock lock(group_mutex_);

    if (group_ == nullptr)
        return c10d::ErrorType::SUCCESS;
    switch (rdt_group_error(group_, nullptr)) {
    case RDT_OK:
        return c10d::ErrorType::SUCCESS;
    case RDT_ETIMEDOUT:
        return c10d::ErrorType::TIMEOUT;
    case RDT_EPEER:
        return c10d::ErrorType::REMOTE_ERROR;
    default:
        return c10d::ErrorType::COMM_ERROR;
    }
}

void
Backend::abort()
{
    const std::shared_lock lock(group_mutex_);

    if (group_ != nullptr)
        rdt_group_abort(group_, c10::str("rank ", global_rank(rank_), " called abort()").c_str());
}

void
Backend::shutdown()
{
    std::unique_lock lock(group_mutex_, std::try_to_lock);

    if (is_forked_child())
        return; /* the group is the parent's */
    if (!lock.owns_lock()) {
        /* A call is about to begin and may wait for a peer; ended, it lets go of the group. */
        {
            const std::shared_lock shared(group_mutex_);
            if (group_ != nullptr)
                rdt_group_abort(group_, "the group was shut down while an operation began");
        }
        lock.lock();
    }
    rendezvous_->watch(nullptr);
    rdt_group_destroy(std::exchange(group_, nullptr));
}

Milliseconds
Backend::timeout_or_own(Milliseconds timeout) const
{
    return timeout == c10d::kUnsetTimeout || timeout == kNoTimeout
               ? Milliseconds(timeout_ms_.load(std::memory_order_relaxed))
               : timeout;
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

WorkPtr
Backend::start(Operation operation, const std::vector<rdt_coll_args> &calls)
{
    const char *const title = operation.title;
    operation.timeout = timeout_or_own(operation.timeout);
    operation.has_own_deadline = true;
    operation.order = number_;
    operation.in_flight = in_flight_;
    const bool is_async = operation.is_async;
    operation.sequence = sequence_.fetch_add(calls.size(), std::memory_order_relaxed);
    auto work = c10::make_intrusive<Work>(rank_, std::move(operation));
    const std::shared_lock lock(group_mutex_);

    if (group_ == nullptr)
        C10_THROW_ERROR(DistBackendError, c10::str(title, ": the group was shut down"));
    for (const rdt_coll_args &args : calls) {
        rdt_transfer *transfer = nullptr;
        rdt_error error = {};
        const rdt_status status = rdt_coll_start(group_, &args, &transfer, &error);
        if (status != RDT_OK) {
            rethrow_kept_exception();
            std::rethrow_exception(make_error(status, title, error));
        }
        work->add(transfer);
    }
    if (is_async)
        in_flight_->add(work);
    return work;
}

} // namespace rdmatensor
