/* SPDX-License-Identifier: Apache-2.0
 *
 * subgroups.cpp - groups of some members of a group: split(), and shrink() after others were lost.
 */
#include "c10d/backend.hpp"

#include <algorithm>
#include <set>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace rdmatensor
{
namespace
{

constexpr int shrink_abort = 1; /* torch.distributed.distributed_c10d.SHRINK_ABORT */

/* The same on all members that are left, and another after each loss. */
std::string
prefix_without(const std::set<int64_t> &excluded)
{
    std::string prefix = "shrunk";

    for (const int64_t rank : excluded)
        prefix.append("/").append(std::to_string(rank));
    return prefix;
}

} // namespace

c10::intrusive_ptr<c10d::Backend>
Backend::subgroup(const c10::intrusive_ptr<c10d::Store> &store, const std::vector<int> &ranks,
                  const c10::intrusive_ptr<c10d::Backend::Options> &opts, bool lingers)
{
    const auto place = std::find(ranks.begin(), ranks.end(), rank_);
    if (place == ranks.end())
        return {};

    Setup setup = setup_;
    setup.is_default_group = false;
    setup.lingers = lingers;
    setup.global_ranks.clear();
    for (const int rank : ranks)
        setup.global_ranks.push_back(global_rank(rank));
    if (opts) {
        setup.timeout = bounded(opts->timeout);
        setup.group_name = opts->group_name;
    }
    return make_backend(c10::make_intrusive<Rendezvous>(store,
                                                        static_cast<int>(place - ranks.begin()),
                                                        static_cast<int>(ranks.size()),
                                                        setup.timeout),
                        setup);
}

c10::intrusive_ptr<c10d::Backend>
Backend::split(const c10::intrusive_ptr<c10d::Store> &store, const std::vector<int> &ranks,
               const c10::intrusive_ptr<c10d::Backend::Options> &opts)
{
    return subgroup(store, ranks, opts, false);
}

c10::intrusive_ptr<c10d::Backend>
Backend::shrink(const std::vector<int64_t> &ranks_to_exclude, int flags,
                const c10::intrusive_ptr<c10d::Backend::Options> &opts)
{
    const std::set<int64_t> excluded(ranks_to_exclude.begin(), ranks_to_exclude.end());
    std::vector<int> ranks;

    for (int rank = 0; rank < size_; rank++)
        if (excluded.count(rank) == 0)
            ranks.push_back(rank);
    TORCH_CHECK_VALUE(excluded.count(rank_) == 0, "shrink: rank ", rank_,
                      " calls it and is excluded");
    TORCH_CHECK_VALUE(ranks.size() + excluded.size() == static_cast<size_t>(size_),
                      "shrink: the group has ranks 0 to ", size_ - 1, " only");
    if (flags == shrink_abort)
        abort();
    return subgroup(c10::make_intrusive<c10d::PrefixStore>(prefix_without(excluded),
                                                           rendezvous_->store()),
                    ranks, opts, setup_.lingers);
}

} // namespace rdmatensor
