/* SPDX-License-Identifier: Apache-2.0
 * Symmetric memory: allocations, and the handles by which members access them. */
#include "c10d/memory/symmetric.hpp"

#include <algorithm>
#include <map>
#include <mutex>

#include <torch/csrc/distributed/c10d/exception.h>

#include "c10d/memory/allocator.hpp"
#include "c10d/rendezvous/wire.hpp"
#include "c10d/works/gil.hpp"
#include "rdmatensor_ext.h"

namespace rdmatensor
{

/* A buffer, followed by the signal pad. */
struct Allocation {
    c10::DataPtr memory;
    rdt_context *context;
    uint64_t buffer_bytes;
    uint64_t pad_off; /* bytes */
    uint64_t pad_bytes;
    /* By the group's name. Emptied when the tensor is freed, since handles own the allocation. */
    std::map<std::string, c10::intrusive_ptr<SymmetricMemory>> handles;
};

namespace
{

constexpr const char *symmetric_call = "symmetric_memory";
constexpr uint64_t pad_alignment_bytes = 64; /* a cache line */
/* Tags of signals have bit 61: torch's are non-negative ints, those of collectives have bit 63. */
constexpr uint64_t tag_signal = UINT64_C(1) << 61;
constexpr uint64_t tag_barrier = UINT64_C(1) << 60;
constexpr unsigned channel_bits = 20;

at::Tensor
as_bytes(const rdti_card &card)
{
    at::Tensor tensor = at::empty({RDTI_CARD_BYTES}, at::kByte);

    rdti_card_encode(&card, tensor.data_ptr<uint8_t>());
    return tensor;
}

class Allocator final : public c10d::symmetric_memory::SymmetricMemoryAllocator
{
  public:
    void *alloc(size_t size, int, const std::optional<std::string> &) override
    {
        const uint64_t pad_bytes = c10d::symmetric_memory::get_signal_pad_size();
        const uint64_t pad_off =
            (size + pad_alignment_bytes - 1) / pad_alignment_bytes * pad_alignment_bytes;
        const std::lock_guard lock(mutex_);

        TORCH_CHECK(context_ != nullptr,
                    "rdmatensor:symmetric_memory: no group of rdmatensor lives; call "
                    "init_process_group(\"rdmatensor\") first");
        auto made = std::make_shared<Allocation>();
        made->memory = arena_allocator(context_)->allocate(pad_off + pad_bytes + 1);
        made->context = context_;
        made->buffer_bytes = size;
        made->pad_off = pad_off;
        made->pad_bytes = pad_bytes;
        void *const address = made->memory.get();
        std::memset(static_cast<uint8_t *>(address) + pad_off, 0, pad_bytes);
        allocations_.emplace(address, std::move(made));
        return address;
    }

    void free(void *address) override
    {
        std::shared_ptr<Allocation> unwanted;
        std::map<std::string, c10::intrusive_ptr<SymmetricMemory>> handles;

        if (is_forked_child())
            return; /* it is the parent's, and the mutex may be held forever */
        {
            const std::lock_guard lock(mutex_);
            const auto node = allocations_.extract(address);
            if (node.empty())
                return;
            unwanted = node.mapped();
            handles.swap(unwanted->handles);
        }
        /* Released without the mutex: the destructor of a handle takes the library's locks. */
    }

    size_t get_alloc_size(void *address) override
    {
        return find(address)->buffer_bytes;
    }

    c10::intrusive_ptr<TorchSymmetricMemory>
    rendezvous(void *address, const std::optional<std::string> &group_name) override
    {
        const WithoutGil without_gil;
        const std::shared_ptr<Allocation> own = find(address);

        if (!group_name.has_value())
            throw_value_error(symmetric_call, "rendezvous() needs a group");
        const c10::intrusive_ptr<Backend> group = Backend::find(*group_name);
        if (!group)
            throw_value_error(symmetric_call,
                              c10::str("no group ", *group_name,
                                       " lives whose CPU tensors are rdmatensor's"));
        {
            const std::lock_guard lock(mutex_);
            const auto known = own->handles.find(*group_name);
            /* A group that was made again may have the name of one that ended. */
            if (known != own->handles.end() && known->second->group() == group)
                return known->second;
        }
        auto handle = c10::make_intrusive<SymmetricMemory>(own, group);
        c10::intrusive_ptr<SymmetricMemory> before = handle; /* released without the mutex */
        const std::lock_guard lock(mutex_);
        if (allocations_.count(address) > 0)
            std::swap(own->handles[*group_name], before);
        return handle;
    }

    bool has_multicast_support(int) override
    {
        return false;
    }

    c10::DeviceType supported_device_type() override
    {
        return c10::kCPU;
    }

    std::string name() override
    {
        return "rdmatensor";
    }

    bool has_allocation(void *address) override
    {
        const std::lock_guard lock(mutex_);

        return allocations_.count(address) > 0;
    }

    void offer(rdt_context *context)
    {
        const std::lock_guard lock(mutex_);

        context_ = context;
    }

    void withdraw(const rdt_context *context)
    {
        const std::lock_guard lock(mutex_);

        if (context == nullptr || context == context_)
            context_ = nullptr;
    }

  private:
    std::shared_ptr<Allocation> find(void *address)
    {
        const std::lock_guard lock(mutex_);
        const auto found = allocations_.find(address);

        if (found == allocations_.end())
            throw_value_error(symmetric_call,
                              "the tensor was not made by symm_mem.empty(), or is a part of "
                              "another");
        return found->second;
    }

    std::mutex mutex_; /* guards all below, and `handles` of allocations */
    rdt_context *context_ = nullptr;
    std::map<void *, std::shared_ptr<Allocation>> allocations_;
};

/* Never destroyed: tensors may be freed while the process exits. */
Allocator &
the_allocator()
{
    static auto *const allocator =
        new c10::intrusive_ptr<Allocator>(c10::make_intrusive<Allocator>());

    return **allocator;
}

} // namespace

void
offer_symmetric_memory(rdt_context *context)
{
    static std::once_flag is_registered;

    the_allocator().offer(context);
    std::call_once(is_registered, [] {
        c10d::symmetric_memory::register_availability(
            "rdmatensor",
            c10::intrusive_ptr<Allocator>::unsafe_reclaim_from_nonowning(&the_allocator()));
    });
}

void
withdraw_symmetric_memory(const rdt_context *context)
{
    if (!is_forked_child())
        the_allocator().withdraw(context);
}

/* ---- The handle ---- */

SymmetricMemory::SymmetricMemory(std::shared_ptr<Allocation> own, c10::intrusive_ptr<Backend> group)
    : own_(std::move(own)), group_(std::move(group)), number_(group_->next_symmetric_number())
{
    for (int rank = 0; rank < group_->getSize(); rank++)
        global_ranks_.push_back(group_->global_rank(rank));
    try {
        exchange();
        map_peers();
    } catch (...) {
        release();
        throw;
    }
}

SymmetricMemory::~SymmetricMemory()
{
    release();
}

/* own_ keeps the context open. */
void
SymmetricMemory::release() noexcept
{
    for (Peer &peer : peers_)
        if (peer.endpoint != nullptr)
            rdt_endpoint_unhold(std::exchange(peer.endpoint, nullptr), &peer.remote);
}

/* Fills peers_ except for what map_peers() finds. All members see the same cards, and fail
 * together. */
void
SymmetricMemory::exchange()
{
    void *const address = own_->memory.get();
    rdt_region *const region =
        rdt_region_find(own_->context, address, own_->pad_off + own_->pad_bytes);
    rdt_error error = {};
    rdti_card card = {.number = number_,
                      .buffer_bytes = own_->buffer_bytes,
                      .pad_bytes = own_->pad_bytes,
                      .buffer = {}};

    TORCH_INTERNAL_ASSERT(region != nullptr);
    const rdt_status status = rdt_region_export(region, &card.buffer.region, &error);
    if (status != RDT_OK) {
        card.number = RDTI_CARD_NOBODYS; /* the others wait for a card, and then fail too */
        (void)group_->gather_bytes(as_bytes(card));
        std::rethrow_exception(make_error(status, "rdmatensor:rendezvous", error));
    }
    card.buffer.off_bytes = static_cast<uint64_t>(static_cast<uint8_t *>(address) -
                                                  static_cast<uint8_t *>(rdt_region_addr(region)));
    const at::Tensor all = group_->gather_bytes(as_bytes(card));
    for (int rank = 0; rank < group_->getSize(); rank++) {
        const at::Tensor bytes = all[rank];
        rdti_card theirs = {};
        if (rdti_card_decode(bytes.data_ptr<uint8_t>(), bytes.nbytes(), &theirs, &error) != RDT_OK)
            C10_THROW_ERROR(DistBackendError,
                            c10::str("rdmatensor:rendezvous: rank ",
                                     global_ranks_[static_cast<size_t>(rank)],
                                     " said where its memory lies in bytes that mean nothing: ",
                                     static_cast<const char *>(error.message)));
        if (theirs.number != card.number || theirs.buffer_bytes != card.buffer_bytes ||
            theirs.pad_bytes != card.pad_bytes)
            C10_THROW_ERROR(DistBackendError,
                            c10::str("rdmatensor:rendezvous: rank ",
                                     global_ranks_[static_cast<size_t>(rank)], " came with ",
                                     theirs.buffer_bytes, " bytes and a signal pad of ",
                                     theirs.pad_bytes, " to its rendezvous #", theirs.number,
                                     ", we with ", card.buffer_bytes, " and ", card.pad_bytes,
                                     " to #", card.number));
        /* An allocation begins where its region does, here and on the peers. */
        if (theirs.buffer.off_bytes != card.buffer.off_bytes ||
            theirs.buffer.region.len_bytes <
                theirs.buffer.off_bytes + own_->pad_off + own_->pad_bytes)
            C10_THROW_ERROR(DistBackendError,
                            c10::str("rdmatensor:rendezvous: rank ",
                                     global_ranks_[static_cast<size_t>(rank)],
                                     " said that its memory lies where it does not fit"));
        peers_.push_back({.remote = theirs.buffer.region, .endpoint = nullptr, .base = nullptr});
    }
    peers_[static_cast<size_t>(group_->getRank())].base = static_cast<uint8_t *>(address);
}

/* No member continues before all hold the memory: a tensor may be freed right afterwards. */
void
SymmetricMemory::map_peers()
{
    std::exception_ptr first_error;

    for (int rank = 0; rank < group_->getSize() && !first_error; rank++) {
        Peer &peer = peers_[static_cast<size_t>(rank)];
        if (rank == group_->getRank())
            continue;
        try {
            void *base = nullptr;
            peer.endpoint = group_->hold(rank, peer.remote, &base);
            peer.base = static_cast<uint8_t *>(base);
        } catch (...) { /* whatever it is, the others wait for a vote */
            first_error = std::current_exception();
        }
    }
    const at::Tensor votes =
        group_->gather_bytes(at::full({1}, first_error ? 0 : 1, at::TensorOptions(at::kByte)));
    if (first_error)
        std::rethrow_exception(first_error);
    for (int rank = 0; rank < group_->getSize(); rank++)
        if (votes[rank].item<uint8_t>() != 1)
            C10_THROW_ERROR(DistBackendError,
                            c10::str("rdmatensor:rendezvous: rank ",
                                     global_ranks_[static_cast<size_t>(rank)],
                                     " cannot reach the memory of a member; its error says why"));
}

void
SymmetricMemory::check_rank(int rank, const char *what) const
{
    if (rank < 0 || static_cast<size_t>(rank) >= peers_.size())
        throw_value_error(what, c10::str("rank ", rank, " of a group of ", peers_.size()));
}

std::vector<void *>
SymmetricMemory::addresses(uint64_t off_bytes) const
{
    std::vector<void *> found;

    for (size_t rank = 0; rank < peers_.size(); rank++) {
        TORCH_CHECK(peers_[rank].base != nullptr,
                    "rdmatensor:symmetric_memory: the memory of rank ", global_ranks_[rank],
                    " has no address here, since the path to it shares no memory; use "
                    "rdmatensor.symmetric.put() and get(), which go over every path");
        found.push_back(peers_[rank].base + off_bytes);
    }
    return found;
}

std::vector<void *>
SymmetricMemory::get_buffer_ptrs()
{
    return addresses(0);
}

std::vector<void *>
SymmetricMemory::get_signal_pad_ptrs()
{
    return addresses(own_->pad_off);
}

void **
SymmetricMemory::get_buffer_ptrs_dev()
{
    C10_THROW_ERROR(NotImplementedError,
                    "rdmatensor:symmetric_memory: CPU tensors are on no device "
                    "with pointers of its own; use buffer_ptrs");
}

void **
SymmetricMemory::get_signal_pad_ptrs_dev()
{
    C10_THROW_ERROR(NotImplementedError,
                    "rdmatensor:symmetric_memory: CPU tensors are on no device "
                    "with pointers of its own; use signal_pad_ptrs");
}

size_t
SymmetricMemory::get_buffer_size()
{
    return own_->buffer_bytes;
}

int
SymmetricMemory::get_rank()
{
    return group_->getRank();
}

int
SymmetricMemory::get_world_size()
{
    return group_->getSize();
}

bool
SymmetricMemory::is_mapped(int rank) const
{
    check_rank(rank, "is_mapped");
    return peers_[static_cast<size_t>(rank)].base != nullptr;
}

bool
SymmetricMemory::world_within_direct_access()
{
    return std::all_of(peers_.begin(), peers_.end(),
                       [](const Peer &peer) { return peer.base != nullptr; });
}

/* ---- Signals ---- */

uint64_t
SymmetricMemory::tag(int channel, bool is_barrier) const
{
    if (channel < 0 || channel >= 1 << channel_bits)
        throw_value_error(symmetric_call, c10::str("channel ", channel, " is not from 0 to ",
                                                   (1 << channel_bits) - 1));
    return tag_signal | (is_barrier ? tag_barrier : 0) | number_ << channel_bits |
           static_cast<uint64_t>(channel);
}

void
SymmetricMemory::put_signal(int dst_rank, int channel, size_t timeout_ms)
{
    const WithoutGil without_gil;

    (void)group_->signal(dst_rank, tag(channel, false), true, "rdmatensor:put_signal", timeout_ms)
        ->wait();
}

void
SymmetricMemory::wait_signal(int src_rank, int channel, size_t timeout_ms)
{
    const WithoutGil without_gil;

    (void)group_->signal(src_rank, tag(channel, false), false, "rdmatensor:wait_signal", timeout_ms)
        ->wait();
}

void
SymmetricMemory::barrier(int channel, size_t timeout_ms)
{
    const WithoutGil without_gil;
    const uint64_t of_channel = tag(channel, true);
    std::vector<WorkPtr> signals;

    for (const bool is_send : {false, true})
        for (int rank = 0; rank < get_world_size(); rank++)
            if (rank != get_rank())
                signals.push_back(
                    group_->signal(rank, of_channel, is_send, "rdmatensor:barrier", timeout_ms));
    for (const WorkPtr &signal : signals)
        (void)signal->wait();
}

/* ---- Put and get ---- */

WorkPtr
SymmetricMemory::move(const at::Tensor &tensor, int rank, uint64_t off_bytes, bool is_put)
{
    const char *const name = is_put ? "put" : "get";

    check_row_major(tensor, name);
    check_rank(rank, name);
    const uint64_t len_bytes = tensor.nbytes();
    if (off_bytes > own_->buffer_bytes || len_bytes > own_->buffer_bytes - off_bytes)
        throw_value_error(name, c10::str(len_bytes, " bytes at offset ", off_bytes,
                                         " leave a buffer of ", own_->buffer_bytes, " bytes"));
    return group_->move(rank, peers_[static_cast<size_t>(rank)].remote, off_bytes, tensor, is_put);
}

WorkPtr
SymmetricMemory::put(const at::Tensor &src, int rank, uint64_t off_bytes)
{
    return move(src, rank, off_bytes, true);
}

WorkPtr
SymmetricMemory::get(const at::Tensor &dst, int rank, uint64_t off_bytes)
{
    return move(dst, rank, off_bytes, false);
}

} // namespace rdmatensor
