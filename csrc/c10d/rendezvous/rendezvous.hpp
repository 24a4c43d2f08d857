/* SPDX-License-Identifier: Apache-2.0
 *
 * rendezvous.hpp - what the members of one group exchange through torch's store.
 *
 * Keys, below the prefix that torch gave the group:
 *   rdmatensor/<size>/arrivals/<rank>  how often this rank has made a group here: the *incarnation*
 *   rdmatensor/<size>/<incarnation>/...
 *     job          by rank 0: job, epoch, secret (unless configured), whether rank 0 hosts the
 *                  store, a random id, and the settings that all ranks must share
 *     address/<rank>  the address of each member
 *     <what>/<rank>  the values of everyone()
 *     read/...     how many members have read one of these; the last one deletes them
 * A group leaves behind the counts of arrivals, and addresses that some member never needed. At its
 * end only a rank 0 that hosts the store sends requests to it: for other members the store is often
 * gone by then.
 *
 * Because ranks are counted separately, a store can serve the same group again, also with other
 * processes as its ranks, as long as all members make it equally often.
 *
 * Any thread. Every wait polls, so that it blocks no other thread, here or at the store's
 * connection. A wait has a deadline, notices Ctrl-C and the end of the group, and after ten seconds
 * prints once which members are missing. A store that does not answer blocks no caller for longer
 * (store_client.hpp).
 */
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "c10d/rendezvous/store_client.hpp"
#include "rdmatensor.h"

namespace rdmatensor
{

/* The call that creates a group, in messages. */
constexpr const char *making = "rdmatensor:init_process_group";

/* The processes that trust each other: one job for all groups that grow from one default group. */
struct Job {
    std::string id;
    std::string secret; /* bytes */
    uint32_t epoch = 0;
    bool is_store_at_rank_0 = false; /* when rank 0 ends, so does the store */
};

class Rendezvous final : public torch::CustomClassHolder
{
  public:
    Rendezvous(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
               std::chrono::milliseconds timeout);

    int rank() const
    {
        return rank_;
    }
    int size() const
    {
        return size_;
    }

    const c10::intrusive_ptr<c10d::Store> &store() const
    {
        return client_.store();
    }

    /* Every member's value, in rank order. Waits for all members. Called once for each `what`. */
    std::vector<std::string> everyone(const std::string &what, const std::string &mine);
    /*
     * The job that rank 0 proposes, and the group's random id. `secret` is the configured one, or
     * empty. The members must agree on whether it is configured, and on the settings on which
     * collectives depend.
     */
    struct Agreement {
        Job job;
        std::string group_id;
    };
    Agreement agree(const Job &proposal, const std::string &secret);
    void publish(rdt_context *context);
    /* Fetches the addresses that are available. The store client's thread fetches the others as
     * they arrive: members that connect later find no store if its host has left. */
    void prefetch();
    /* For the member that hosts the store, which ends with it. Returns once all members have read
     * what is there for them, after a second at most, or when the group has ended. */
    void linger(const std::function<bool()> &has_failed);
    /* The group whose error ends waits for addresses; NULL before it is destroyed. */
    void watch(rdt_group *group)
    {
        group_.store(group, std::memory_order_release); /* pairs with check_group() */
        if (group == nullptr)
            client_.stop_polling();
    }
    /* An rdt_address_fn; `arg` is the Rendezvous. */
    static rdt_status fetch_address(void *arg, uint32_t rank, uint64_t timeout_ns, uint8_t *buf,
                                    size_t cap, size_t *len_out, rdt_error *error);

  private:
    struct Addresses;
    struct Batch;
    struct Patience;
    /* The result of a request to the store, if all of it is there. */
    using Found = std::optional<std::vector<std::string>>;
    using Poll = std::function<Found(c10d::Store &)>;

    std::string key(const std::string &what) const;
    std::string key(const std::string &what, int number) const;
    std::vector<std::string> keys_of_all(const std::string &what) const;
    Patience patience_for(const std::string &call) const;
    void look(const Patience &patience) const;
    template <typename Request> auto ask(const Patience &patience, Request request);
    void set(const Patience &patience, const std::string &key, const std::vector<uint8_t> &value);
    std::string late(const std::vector<std::string> &keys, const Patience &patience);
    std::vector<std::string> await(const std::vector<std::string> &keys, const Poll &poll,
                                   const Patience &patience);
    Batch batch_of(int rank) const;
    std::function<bool(c10d::Store &)> fetch_rest() const;
    void check_group(const std::string &call) const;
    int32_t rank_of_store() const
    {
        return is_store_at_rank_0_ ? 0 : RDT_RANK_UNKNOWN;
    }
    std::string address_of(int rank, std::chrono::milliseconds timeout);

    StoreClient client_;
    const int rank_;
    const int size_;
    const std::chrono::milliseconds timeout_;
    uint32_t incarnation_ = 0;
    bool is_store_at_rank_0_ = false; /* of the job; set by agree() */
    std::atomic<rdt_group *> group_{nullptr};
    const std::shared_ptr<Addresses> addresses_; /* shared with the requests that fetch them */
};

/* `bytes` random bytes of the operating system. */
std::string random_bytes(size_t bytes);
std::string to_hex(const std::string &bytes);

/*
 * An exception raised in a callback below C code, to be rethrown once that code has returned:
 * exceptions must not cross C. Thread-local; rethrowing clears it.
 */
void keep_exception(std::exception_ptr error);
void rethrow_kept_exception();

} // namespace rdmatensor
