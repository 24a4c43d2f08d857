/* SPDX-License-Identifier: Apache-2.0
 *
 * symmetric.hpp - torch's SymmetricMemory on CPU tensors: arena memory that the members of a group
 * access in each other.
 *
 *   allocation  made by symm_mem.empty(); lives until the tensor is freed and no handle is left
 *   handle      made by symm_mem.rendezvous(), one for each (allocation, group); holds the peers'
 *               allocations: memory that a peer freed stays in place while a handle to it lives
 *
 * Members on this host are mapped: get_buffer() of them is their memory. The others have no address
 * here; put() and get() reach all members. Signals and barriers are messages of the group, so that
 * they have deadlines, notice deaths and use every path. They order earlier stores and puts. Signal
 * pads are provided, zeroed, and belong to the user.
 *
 * Threads: any.
 */
#pragma once

#include <memory>
#include <vector>

#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include "c10d/backend.hpp"

namespace rdmatensor
{

using TorchSymmetricMemory = c10d::symmetric_memory::SymmetricMemory;

struct Allocation;

/* Afterwards symm_mem.set_backend("rdmatensor") works, and symm_mem.empty() allocates in this
 * context. withdraw_symmetric_memory() of that context, or of NULL for any, ends this. */
void offer_symmetric_memory(rdt_context *context);
void withdraw_symmetric_memory(const rdt_context *context);

class SymmetricMemory final : public TorchSymmetricMemory
{
  public:
    /* Collective over the group: succeeds on all members or on none. */
    SymmetricMemory(std::shared_ptr<Allocation> own, c10::intrusive_ptr<Backend> group);
    ~SymmetricMemory() override;
    SymmetricMemory(const SymmetricMemory &) = delete;
    SymmetricMemory &operator=(const SymmetricMemory &) = delete;

    /* Throw RuntimeErrors that name the first member that is not mapped. */
    std::vector<void *> get_buffer_ptrs() override;
    std::vector<void *> get_signal_pad_ptrs() override;
    void **get_buffer_ptrs_dev() override;
    void **get_signal_pad_ptrs_dev() override;
    size_t get_buffer_size() override;
    size_t get_offset() override
    {
        return 0;
    }
    bool has_multicast_support() override
    {
        return false;
    }
    void *get_multicast_ptr() override
    {
        return nullptr;
    }
    /* timeout_ms 0: the group's timeout. A signal may be put before the previous one was waited
     * for. */
    void barrier(int channel, size_t timeout_ms) override;
    void put_signal(int dst_rank, int channel, size_t timeout_ms) override;
    void wait_signal(int src_rank, int channel, size_t timeout_ms) override;
    int get_rank() override;
    int get_world_size() override;
    c10::Device get_device() override
    {
        return c10::kCPU;
    }
    const std::vector<int> &get_rank_to_global_rank() override
    {
        return global_ranks_;
    }
    bool world_within_direct_access() override;

    bool is_mapped(int rank) const;
    /* Bytes of a whole tensor to or from a member's buffer; the tensor is kept until it is done. */
    WorkPtr put(const at::Tensor &src, int rank, uint64_t off_bytes);
    WorkPtr get(const at::Tensor &dst, int rank, uint64_t off_bytes);
    const c10::intrusive_ptr<Backend> &group() const
    {
        return group_;
    }

  private:
    struct Peer {
        rdt_remote_region remote;
        rdt_endpoint *endpoint; /* held; NULL: not mapped, or this rank */
        uint8_t *base;          /* of the buffer; NULL: not mapped */
    };
    void exchange();
    void map_peers();
    void check_rank(int rank, const char *call) const;
    std::vector<void *> addresses(uint64_t off_bytes) const;
    WorkPtr move(const at::Tensor &tensor, int rank, uint64_t off_bytes, bool is_put);
    uint64_t tag(int channel, bool is_barrier) const;
    void release() noexcept;

    const std::shared_ptr<Allocation> own_;
    const c10::intrusive_ptr<Backend> group_;
    const uint64_t number_; /* of the group's handles, identical on all members */
    std::vector<Peer> peers_;
    std::vector<int> global_ranks_;
};

} // namespace rdmatensor
