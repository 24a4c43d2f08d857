/* SPDX-License-Identifier: Apache-2.0
 * Exchange of values through torch's store, with a deadline that names missing members. */
#include "c10d/rendezvous/rendezvous.hpp"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include <torch/csrc/distributed/c10d/exception.h>
#include <torch/csrc/utils/pybind.h>

#include "c10d/rendezvous/job_info.hpp"
#include "c10d/tensors.hpp"
#include "c10d/works/completion_thread.hpp"
#include "c10d/works/in_flight.hpp"

namespace rdmatensor
{
namespace
{

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/* Addresses fetched in one request: with 1 KiB each a request is about what a socket buffer
 * holds. */
constexpr int batch_ranks = 64;
/* The pause between polls is an eighth of the time waited so far, so that a value is seen at most
 * that much late. The first pause suits members that start together, each of which asks for the
 * keys of all. The longest is what a store with a thousand waiting members can serve. */
constexpr int pause_part = 8;
constexpr microseconds first_pause_a_member{25};
constexpr microseconds least_pause{200};
constexpr microseconds longest_pause{50000};
constexpr std::chrono::seconds progress_after{10};
/* After a deadline, to find the missing members. */
constexpr std::chrono::seconds ask_grace{1};
/* For members that are about to join and read. If a member never joins, rank 0 leaves after
 * this. */
constexpr milliseconds linger_limit{1000};

/* "rank 3" or "ranks 3, 5 and 12 more" for keys that end in "/<rank>"; other keys unchanged. */
std::string
ranks_of(const std::vector<std::string> &keys)
{
    constexpr size_t shown = 8;
    std::string text = keys.size() == 1 ? "rank " : "ranks ";

    for (size_t i = 0; i < std::min(keys.size(), shown); i++) {
        const std::string last = keys[i].substr(keys[i].rfind('/') + 1);
        text += (i > 0 ? ", " : "") + (last == "job" ? "0" : last);
    }
    return keys.size() > shown ? c10::str(text, " and ", keys.size() - shown, " more") : text;
}

rdt_status
fill_error(rdt_error *error, rdt_status status, const std::string &message, int32_t peer_rank)
{
    if (error == nullptr)
        return status;
    *error = {};
    error->status = status;
    error->peer_rank = peer_rank;
    (void)std::snprintf(error->message, sizeof(error->message), "%s", message.c_str());
    return status;
}

const char *
host_of_store(bool is_at_rank_0)
{
    return is_at_rank_0 ? "rank 0, which hosts the store," : "the store";
}

/* Ends a wait for a peer's address: the store did not answer, which is not the peer's fault. */
struct StoreSilent {
    std::string message;
};

/* ---- Requests: each runs on the store client's thread, perhaps after its caller has gone ---- */

std::vector<std::string>
missing(c10d::Store &store, const std::vector<std::string> &keys)
{
    std::vector<std::string> missing;

    for (const std::string &key : keys)
        if (!store.check({key}))
            missing.push_back(key);
    return missing;
}

/* The keys exist. */
std::vector<std::string>
read_all(c10d::Store &store, const std::vector<std::string> &keys)
{
    std::vector<std::string> values;

    if (store.hasExtendedApi()) {
        for (const std::vector<uint8_t> &value : store.multiGet(keys))
            values.push_back(to_text(value));
        TORCH_CHECK(values.size() == keys.size(), "the store gave ", values.size(), " values for ",
                    keys.size(), " keys");
        return values;
    }
    for (const std::string &key : keys)
        values.push_back(to_text(store.get(key)));
    return values;
}

/* Counts this member under `count`; the last of `readers` members deletes the keys. */
void
has_read(c10d::Store &store, const std::string &count, const std::vector<std::string> &keys,
         int readers)
{
    if (store.add(count, 1) < readers)
        return;
    for (const std::string &key : keys)
        (void)store.deleteKey(key); /* false: the store cannot delete */
    (void)store.deleteKey(count);
}

/* Ends a wait for a peer's address: the error that ended the group. */
struct GroupEnded {
    rdt_status status;
    rdt_error error;
};

thread_local std::exception_ptr kept_exception;

} // namespace

std::string
random_bytes(size_t bytes)
{
    std::string random(bytes, '\0');
    const ssize_t got = getrandom(random.data(), bytes, 0); /* up to 256 bytes never partial */

    TORCH_CHECK(got == static_cast<ssize_t>(bytes), "getrandom: ", std::strerror(errno));
    return random;
}

std::string
to_hex(const std::string &bytes)
{
    constexpr const char *digits = "0123456789abcdef";
    std::string hex;

    for (const char c : bytes) {
        const auto byte = static_cast<unsigned char>(c);
        hex += {digits[byte >> 4], digits[byte & 15]};
    }
    return hex;
}

void
keep_exception(std::exception_ptr error)
{
    kept_exception = std::move(error);
}

void
rethrow_kept_exception()
{
    if (const std::exception_ptr error = std::exchange(kept_exception, nullptr))
        std::rethrow_exception(error);
}

/* How long a call may wait for the store, and its name for errors. */
struct Rendezvous::Patience {
    std::string call; /* empty: a call of the library, which names itself and formats errors */
    milliseconds limit;
    Clock::time_point begin = Clock::now();
    milliseconds more{0}; /* added to the limit */
};

/* The members' addresses. */
struct Rendezvous::Addresses {
    std::mutex mutex;                 /* guards the fields below; not held during a request */
    std::vector<std::string> by_rank; /* empty where not fetched yet */
    std::vector<char> is_counted;     /* by batch: this member has read all of it */

    std::string of(int rank)
    {
        const std::lock_guard lock(mutex);

        return by_rank.at(static_cast<size_t>(rank));
    }
    bool has_all(int batch)
    {
        const std::lock_guard lock(mutex);

        return is_counted.at(static_cast<size_t>(batch)) != 0;
    }
    void note_all(int batch)
    {
        const std::lock_guard lock(mutex);

        is_counted.at(static_cast<size_t>(batch)) = 1;
    }
    void keep(int first, std::vector<std::string> fetched)
    {
        const std::lock_guard lock(mutex);

        std::move(fetched.begin(), fetched.end(), by_rank.begin() + first);
    }
};

/* Addresses that are fetched together, and counted once. */
struct Rendezvous::Batch {
    std::shared_ptr<Addresses> addresses;
    int first;
    std::vector<std::string> keys;
    std::string count;
    int readers;

    /* Whether the whole batch is here. Fetches the batch if all of it has been published. */
    bool fetch(c10d::Store &store) const
    {
        const int number = first / batch_ranks;

        if (addresses->has_all(number))
            return true;
        if (!store.check(keys))
            return false;
        addresses->keep(first, read_all(store, keys));
        has_read(store, count, keys, readers);
        addresses->note_all(number);
        return true;
    }
    Found fetch_one(c10d::Store &store, int rank) const
    {
        const std::string &key = keys[static_cast<size_t>(rank - first)];

        if (!fetch(store) && addresses->of(rank).empty() && store.check({key}))
            addresses->keep(rank, {to_text(store.get(key))});
        const std::string address = addresses->of(rank);
        return address.empty() ? Found() : Found({address});
    }
};

template <typename Request>
auto
Rendezvous::ask(const Patience &patience, Request request)
{
    return client_.ask(std::move(request), [this, &patience] { look(patience); });
}

Rendezvous::Rendezvous(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                       milliseconds timeout)
    : client_(std::move(store)), rank_(rank), size_(size), timeout_(bounded(timeout)),
      addresses_(std::make_shared<Addresses>())
{
    /* A request on the parent's connection would be answered to the process that reads first, and
     * counted as the parent's. */
    refuse_forked_child(making);
    note_use();
    TORCH_CHECK(client_.store(), "a group needs a store");
    TORCH_CHECK(rank >= 0 && rank < size, "rank ", rank, " of a group of ", size);
    check_own_settings();
    addresses_->by_rank.resize(static_cast<size_t>(size));
    addresses_->is_counted.resize(static_cast<size_t>((size - 1) / batch_ranks + 1));
    const std::string arrivals = c10::str("rdmatensor/", size, "/arrivals/", rank);
    incarnation_ = static_cast<uint32_t>(ask(patience_for(making), [arrivals](c10d::Store &asked) {
        return asked.add(arrivals, 1);
    }));
}

std::string
Rendezvous::key(const std::string &what) const
{
    return c10::str("rdmatensor/", size_, "/", incarnation_, "/", what);
}

std::string
Rendezvous::key(const std::string &what, int number) const
{
    return c10::str(key(what), "/", number);
}

std::vector<std::string>
Rendezvous::keys_of_all(const std::string &what) const
{
    std::vector<std::string> keys;

    for (int rank = 0; rank < size_; rank++)
        keys.push_back(key(what, rank));
    return keys;
}

Rendezvous::Patience
Rendezvous::patience_for(const std::string &call) const
{
    return {.call = call, .limit = timeout_};
}

/* Called while the store has not answered. Throws what ends the wait. */
void
Rendezvous::look(const Patience &patience) const
{
    check_signals();
    check_group(patience.call);
    if (Clock::now() < patience.begin + patience.limit + patience.more)
        return;
    const std::string message = c10::str(host_of_store(is_store_at_rank_0_),
                                         " did not answer within ", patience.limit.count(), " ms");
    if (patience.call.empty())
        throw StoreSilent{message};
    C10D_THROW_ERROR(TimeoutError, patience.call, ": ", message);
}

void
Rendezvous::set(const Patience &patience, const std::string &key, const std::vector<uint8_t> &value)
{
    (void)ask(patience, [key, value](c10d::Store &store) {
        store.set(key, value);
        return true;
    });
}

/* Names the members that have not set these keys. */
std::string
Rendezvous::late(const std::vector<std::string> &keys, const Patience &patience)
{
    return ranks_of(ask(patience, [keys](c10d::Store &store) { return missing(store, keys); }));
}

/* Waits until `poll` finds the values of all keys. */
std::vector<std::string>
Rendezvous::await(const std::vector<std::string> &keys, const Poll &poll, const Patience &patience)
{
    const auto timeout = patience.limit;
    bool has_told = false;

    const auto first_pause =
        std::clamp<microseconds>(first_pause_a_member * size_, least_pause, longest_pause);
    for (;;) {
        if (Found found = ask(patience, poll))
            return *std::move(found);
        const auto waited = std::chrono::duration_cast<microseconds>(Clock::now() - patience.begin);
        if (waited >= timeout) {
            Patience longer = patience;
            longer.more = std::chrono::duration_cast<milliseconds>(waited) - timeout + ask_grace;
            C10D_THROW_ERROR(TimeoutError, "rdmatensor: ", late(keys, longer), " of ", size_,
                             " did not join the group within ", timeout.count(), " ms");
        }
        if (waited >= progress_after && !has_told) {
            (void)std::fprintf(stderr, "rdmatensor: rank %d still waits for %s to join a group\n",
                               rank_, late(keys, patience).c_str());
            has_told = true;
        }
        const auto pause = std::clamp(waited / pause_part, first_pause, longest_pause);
        std::this_thread::sleep_for(std::min(pause, microseconds(timeout) - waited));
        check_signals();
        check_group(patience.call);
    }
}

void
Rendezvous::check_group(const std::string &call) const
{
    rdt_group *const group = group_.load(std::memory_order_acquire); /* pairs with watch() */
    GroupEnded ended = {};

    if (group == nullptr || (ended.status = rdt_group_error(group, &ended.error)) == RDT_OK)
        return;
    if (call.empty())
        throw ended;
    std::rethrow_exception(make_error(ended.status, call, ended.error));
}

std::vector<std::string>
Rendezvous::everyone(const std::string &what, const std::string &mine)
{
    const std::string call = "rdmatensor:" + what;
    refuse_forked_child(call.c_str());
    const Patience given = patience_for(call);
    const std::vector<std::string> keys = keys_of_all(what);

    set(given, keys[static_cast<size_t>(rank_)], to_bytes(mine));
    const auto read = [keys, count = key("read/" + what), size = size_](c10d::Store &store) {
        if (!store.check(keys))
            return Found();
        Found values = read_all(store, keys);
        has_read(store, count, keys, size);
        return values;
    };
    return await(keys, read, given);
}

Rendezvous::Agreement
Rendezvous::agree(const Job &proposal, const std::string &secret)
{
    Agreement agreed{proposal, to_hex(random_bytes(RDTI_TOLD_NAME_BYTES))};
    const std::string job = key("job");

    if (rank_ == 0) {
        if (agreed.job.id.empty())
            agreed.job = {to_hex(random_bytes(RDTI_TOLD_NAME_BYTES)), secret, incarnation_,
                          is_hosted_here(client_.store())};
        if (agreed.job.secret.empty())
            agreed.job.secret = random_bytes(RDTI_TOLD_SECRET_BYTES);
        is_store_at_rank_0_ = agreed.job.is_store_at_rank_0;
        if (size_ > 1)
            set(patience_for(making), job, written(agreed.job, agreed.group_id, secret.empty()));
        return agreed;
    }
    const auto read = [job, count = key("read/job"), readers = size_ - 1](c10d::Store &store) {
        if (!store.check({job}))
            return Found();
        Found told = read_all(store, {job});
        has_read(store, count, {job}, readers);
        return told;
    };
    const std::vector<std::string> found = await({job}, read, patience_for(making));
    const rdti_told told = read_told(to_bytes(found[0]), job);
    agreed = {{.id = to_hex(text_of(told.id)),
               .secret = secret,
               .epoch = told.epoch,
               .is_store_at_rank_0 = told.is_store_at_rank_0 != 0},
              to_hex(text_of(told.group_id))};
    is_store_at_rank_0_ = agreed.job.is_store_at_rank_0;
    if ((told.has_secret == 0) == secret.empty())
        C10D_THROW_ERROR(DistStoreError, "rdmatensor: rank ", secret.empty() ? 0 : rank_,
                         " has a secret from RDMATENSOR_SECRET or RDMATENSOR_SECRET_FILE, rank ",
                         secret.empty() ? rank_ : 0,
                         " has none; set one of them to the same on every rank");
    check_common_settings(told, rank_);
    if (told.has_secret != 0)
        agreed.job.secret = text_of(told.secret);
    return agreed;
}

void
Rendezvous::publish(rdt_context *context)
{
    std::vector<uint8_t> address(RDT_ADDRESS_MAX_BYTES);
    size_t len_bytes = 0;
    rdt_error error = {};
    const rdt_status status =
        rdt_context_address(context, address.data(), address.size(), &len_bytes, &error);

    if (status != RDT_OK)
        std::rethrow_exception(make_error(status, making, error));
    address.resize(len_bytes);
    set(patience_for(making), key("address", rank_), address);
}

Rendezvous::Batch
Rendezvous::batch_of(int rank) const
{
    const int number = rank / batch_ranks;
    Batch batch{.addresses = addresses_,
                .first = number * batch_ranks,
                .keys = {},
                .count = key(c10::str("read/address/", number)),
                .readers = size_};

    for (int other = batch.first; other < std::min(batch.first + batch_ranks, size_); other++)
        batch.keys.push_back(key("address", other));
    return batch;
}

/* A function that fetches all batches, and returns whether all are here. */
std::function<bool(c10d::Store &)>
Rendezvous::fetch_rest() const
{
    std::vector<Batch> batches;

    for (int rank = 0; rank < size_; rank += batch_ranks)
        batches.push_back(batch_of(rank));
    return [batches = std::move(batches)](c10d::Store &store) {
        return std::all_of(batches.begin(), batches.end(),
                           [&store](const Batch &batch) { return batch.fetch(store); });
    };
}

void
Rendezvous::prefetch()
{
    const auto rest = fetch_rest();

    if (!ask(patience_for(making), rest))
        client_.poll(rest);
}

void
Rendezvous::linger(const std::function<bool()> &has_failed)
{
    if (rank_ != 0 || !is_store_at_rank_0_ || size_ == 1)
        return;
    const Patience patience{.call = making, .limit = linger_limit};
    const auto is_read = [keys = keys_of_all("address"), rest = fetch_rest()](c10d::Store &store) {
        if (!rest(store))
            return false;
        for (size_t i = 0; i < keys.size(); i += batch_ranks)
            if (store.check({keys[i]})) /* the last reader deletes it */
                return false;
        return true;
    };
    try {
        while (group_.load(std::memory_order_acquire) != nullptr && /* pairs with the release in
                                                                     * watch() */
               !has_failed() && Clock::now() < patience.begin + linger_limit) {
            if (ask(patience, is_read))
                return;
            std::this_thread::sleep_for(milliseconds(1));
        }
    } catch (const c10::Error &) {
        return; /* the group or the store has ended: no member reads any more */
    }
}

std::string
Rendezvous::address_of(int rank, milliseconds timeout)
{
    const std::string known = addresses_->of(rank);
    if (!known.empty()) /* the store may be gone */
        return known;
    const auto fetch = [batch = batch_of(rank), rank](c10d::Store &store) {
        return batch.fetch_one(store, rank);
    };
    return await({key("address", rank)}, fetch, {.call = "", .limit = timeout})[0];
}

rdt_status
Rendezvous::fetch_address(void *arg, uint32_t rank, uint64_t timeout_ns, uint8_t *buf, size_t cap,
                          size_t *len_out, rdt_error *error)
{
    auto *const self = static_cast<Rendezvous *>(arg);
    const auto fail = [error](rdt_status status, const std::string &message) {
        return fill_error(error, status, message, RDT_RANK_UNKNOWN);
    };

    try {
        const auto timeout = timeout_ns == RDT_TIMEOUT_DEFAULT
                                 ? self->timeout_
                                 : milliseconds(timeout_ns / UINT64_C(1000000));
        const std::string address = self->address_of(static_cast<int>(rank), timeout);
        if (address.empty() || address.size() > cap)
            return fail(RDT_EPROTO, "the store has an address of a wrong size");
        std::memcpy(buf, address.data(), address.size());
        *len_out = address.size();
        return RDT_OK;
    } catch (const pybind11::error_already_set &) {
        keep_exception(std::current_exception());
        return fail(RDT_ECANCELED, "interrupted while waiting for a peer's address");
    } catch (const GroupEnded &ended) {
        if (error != nullptr)
            *error = ended.error;
        return ended.status;
    } catch (const StoreSilent &silent) {
        return fill_error(error, RDT_ETIMEDOUT, silent.message, self->rank_of_store());
    } catch (const c10d::TimeoutError &timeout_error) {
        return fail(RDT_ETIMEDOUT, timeout_error.what_without_backtrace());
    } catch (const c10d::DistNetworkError &network_error) {
        return fill_error(error, RDT_EPEER,
                          c10::str(host_of_store(self->is_store_at_rank_0_),
                                   " cannot be reached: ", network_error.what_without_backtrace()),
                          self->rank_of_store());
    } catch (const c10::Error &store_error) {
        return fail(RDT_EPEER, store_error.what_without_backtrace());
    } catch (const std::exception &other) {
        return fail(RDT_EPEER, other.what());
    }
}

} // namespace rdmatensor
