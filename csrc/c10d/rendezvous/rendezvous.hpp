/* SPDX-License-Identifier: Apache-2.0
 *
 * rendezvous.hpp - what the members of one group tell each other through torch's store.
 *
 * Keys, below the prefix that torch gave the group:
 *   rdmatensor/<size>/arrivals/<rank>  how often this rank has made a group here: the *incarnation*
 *   rdmatensor/<size>/<incarnation>/...
 *     job          by rank 0: job, epoch, secret (if it is not given from outside), whether rank 0
 *                  hosts the store, a random id, and the settings that all ranks need alike
 *     blob/<rank>  the address of each member
 *     <what>/<rank>  of everyone()
 *     read/...     how many members have read one of these; the last one deletes them
 * What a group leaves in the store are the counts of arrivals, and addresses that some member never
 * needed. At its end it asks nothing of the store, which is often gone by then, unless it is rank 0
 * that hosts it.
 *
 * Counting by rank makes a store serve the same group again, also with other processes as its
 * ranks, as long as all members make it equally often.
 *
 * Any thread. Every wait polls, so that it holds up nobody else, here or at the store's connection;
 * it has a deadline, hears Ctrl-C and the end of the group, and after ten seconds says once who is
 * missing. A store that does not answer holds up nobody longer either (store_client.hpp).
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

/* The processes that trust each other: one for all groups that grow from one default group. */
struct Job {
    std::string id;
    std::string secret; /* bytes */
    uint32_t epoch = 0;
    bool is_store_at_rank_0 = false; /* its end is then the end of the store */
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

    /* Every member's value, in rank order. Waits for all members. Once for each `what`. */
    std::vector<std::string> everyone(const std::string &what, const std::string &mine);
    /*
     * The job that rank 0 proposes, and the group's random id. `secret` is the one given from
     * outside or empty; the members must agree on which of the two it is, and on the settings that
     * collectives go by.
     */
    struct Agreement {
        Job job;
        std::string group_id;
    };
    Agreement agree(const Job &proposal, const std::string &secret);
    void publish(rdt_context *context);
    /* The addresses that are there already. The others are fetched on the store client's thread as
     * they come: members that meet later find no store if its host has left. */
    void prefetch();
    /* Of the member that hosts the store, which ends with it: returns once all have read what is
     * there for them, after a second at most, or when the group has ended. */
    void linger(const std::function<bool()> &has_failed);
    /* The group whose error ends waits for addresses; NULL before it is destroyed. */
    void watch(rdt_group *group)
    {
        group_.store(group, std::memory_order_release); /* partner: the acquire in check_group() */
        if (group == nullptr)
            client_.stop_polling();
    }
    /* An rdt_blob_fn; `arg` is the Rendezvous. */
    static rdt_status fetch_blob(void *arg, uint32_t rank, uint64_t timeout_ns, uint8_t *buf,
                                 size_t cap, size_t *len_out, rdt_error *error);

  private:
    struct Blobs;
    struct Batch;
    struct Patience;
    /* What a request to the store found, if all of it is there. */
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
    std::string blob_of(int rank, std::chrono::milliseconds timeout);

    StoreClient client_;
    const int rank_;
    const int size_;
    const std::chrono::milliseconds timeout_;
    uint32_t incarnation_ = 0;
    bool is_store_at_rank_0_ = false; /* of the job; set by agree() */
    std::atomic<rdt_group *> group_{nullptr};
    const std::shared_ptr<Blobs> blobs_; /* shared with requests for them */
};

/* `bytes` random bytes of the operating system. */
std::string random_bytes(size_t bytes);
std::string to_hex(const std::string &bytes);

/*
 * What a callback below C code raised, to be thrown again once that code has returned: exceptions
 * must not cross C. Of this thread only; rethrow forgets it.
 */
void keep_exception(std::exception_ptr error);
void rethrow_kept_exception();

} // namespace rdmatensor
