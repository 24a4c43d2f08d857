/* SPDX-License-Identifier: Apache-2.0
 * Values that the members of a group exchange through its store. */
#include <mutex>
#include <shared_mutex>

#include "c10d/backend.hpp"
#include "c10d/rendezvous/rendezvous.hpp"
#include "c10d/tensors.hpp"

namespace rdmatensor
{

/* shutdown() waits for the threads that hold this lock. It ends the group first, which ends waits
 * at the store. */
std::shared_lock<std::shared_mutex>
Backend::held_for(const std::string &what)
{
    refuse_forked_child(("rdmatensor:" + what).c_str());
    std::shared_lock lock(group_mutex_);

    TORCH_CHECK(group_ != nullptr, "rdmatensor:", what, ": the group has been destroyed");
    return lock;
}

std::vector<std::string>
Backend::everyone(const std::string &what, const std::string &mine)
{
    const auto lock = held_for(what);

    return rendezvous_->everyone(what, mine);
}

} // namespace rdmatensor
