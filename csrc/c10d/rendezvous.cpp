/* SPDX-License-Identifier: Apache-2.0
 * Values of all members through torch's store, with a deadline that names who is missing, and what
 * rank 0 tells of the job. */
#include "c10d/rendezvous.hpp"

#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <thread>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/exception.h>
#include <torch/csrc/utils/pybind.h>

#include "c10d/finisher.hpp"
#include "c10d/tensors.hpp"
#include "c10d/wire.hpp"

namespace rdmatensor
{
namespace
{

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/* Blobs fetched in one request: with 1 KiB each a request stays near what a socket buffer holds. */
constexpr int batch_ranks = 64;
/* Of what was waited for already, so that a value is seen an eighth of its time late; from "soon",
 * for members that start together, each of which asks for the keys of all, to what a store of a
 * thousand waiting members bears. */
constexpr int pause_part = 8;
constexpr microseconds first_pause_a_member{25};
constexpr microseconds least_pause{200};
constexpr microseconds longest_pause{50000};
constexpr std::chrono::seconds progress_after{10};
/* What collectives go by, the same on all ranks, with what an unset one stands for. */
struct CommonSetting {
    const char *name;
    const char *unset;
    char (rdti_told::*told)[RDTI_TOLD_SETTING_BYTES];
};
constexpr CommonSetting common_settings[] = {
    {"RDMATENSOR_ALGO", "auto", &rdti_told::algo},
    {"RDMATENSOR_DETERMINISTIC", "0", &rdti_told::deterministic},
};

std::vector<uint8_t>
to_bytes(const std::string &text)
{
    return {text.begin(), text.end()};
}

std::string
to_text(const std::vector<uint8_t> &bytes)
{
    return {bytes.begin(), bytes.end()};
}

/* Of digits that to_hex() wrote. */
std::string
from_hex(const std::string &hex)
{
    std::string bytes;

    for (size_t i = 0; i < hex.size(); i += 2)
        bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    return bytes;
}

/* "rank 3" or "ranks 3, 5 and 12 more" of keys that end in "/<rank>"; other keys as they are. */
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

/* Before anybody waits for anybody: a value that is none has to end all ranks alike. */
std::string
value_of(const CommonSetting &setting)
{
    const char *const text = std::getenv(setting.name);
    const char *const value = text == nullptr || text[0] == '\0' ? setting.unset : text;

    if (!rdti_text_is_plain(value, RDTI_TOLD_SETTING_BYTES))
        throw_value_error("init_process_group",
                          c10::str(setting.name, " has control characters, or more than ",
                                   RDTI_TOLD_SETTING_BYTES - 1, " bytes"));
    return value;
}

/* What rank 0 tells. The secret stays at home where each rank has it from outside. */
std::vector<uint8_t>
written(const Job &job, const std::string &group_id, bool has_secret)
{
    const std::string id = from_hex(job.id);
    const std::string own = from_hex(group_id);
    std::vector<uint8_t> bytes(RDTI_TOLD_BYTES);
    rdti_told told = {};

    TORCH_INTERNAL_ASSERT(id.size() == sizeof(told.id) && own.size() == sizeof(told.group_id));
    std::copy(id.begin(), id.end(), told.id);
    std::copy(own.begin(), own.end(), told.group_id);
    told.epoch = job.epoch;
    told.has_secret = has_secret ? 1 : 0;
    told.is_store_at_rank_0 = job.is_store_at_rank_0 ? 1 : 0;
    if (has_secret) {
        TORCH_INTERNAL_ASSERT(job.secret.size() == sizeof(told.secret));
        std::copy(job.secret.begin(), job.secret.end(), told.secret);
    }
    for (const CommonSetting &setting : common_settings) {
        const std::string value = value_of(setting);
        std::copy(value.begin(), value.end(), told.*setting.told);
    }
    rdti_told_encode(&told, bytes.data());
    return bytes;
}

/* The counterpart of written(); DistStoreError for what that never gives. */
rdti_told
read_told(const std::vector<uint8_t> &bytes, const std::string &key)
{
    rdti_told told = {};
    rdt_error error = {};

    if (rdti_told_decode(bytes.data(), bytes.size(), &told, &error) != RDT_OK)
        C10D_THROW_ERROR(DistStoreError, "rdmatensor: the store has no valid job under ", key,
                         ", which rank 0 writes: ", static_cast<const char *>(error.message),
                         "; does every rank run the same version, and does nobody else write "
                         "there?");
    return told;
}

template <size_t Bytes>
std::string
text_of(const uint8_t (&bytes)[Bytes])
{
    return {std::begin(bytes), std::end(bytes)};
}

/* Before any message between them: ranks that go by different ones wait for different messages. */
void
check_common_settings(const rdti_told &told, int rank)
{
    for (const CommonSetting &setting : common_settings) {
        const std::string mine = value_of(setting);
        const std::string theirs = told.*setting.told;
        if (theirs != mine)
            C10_THROW_ERROR(DistBackendError,
                            c10::str("rdmatensor: ", setting.name, " is '", mine, "' on rank ",
                                     rank, " and '", theirs,
                                     "' on rank 0; set it to the same on every rank"));
    }
}

/* Whether fd is a socket that listens at the port. */
bool
listens_at(int fd, int port)
{
    sockaddr_storage addr = {};
    socklen_t addr_bytes = sizeof(addr);
    int is_listening = 0;
    socklen_t int_bytes = sizeof(is_listening);

    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &int_bytes) != 0 ||
        is_listening == 0 || getsockname(fd, reinterpret_cast<sockaddr *>(&addr), &addr_bytes) != 0)
        return false;
    if (addr.ss_family == AF_INET6)
        return ntohs(reinterpret_cast<const sockaddr_in6 *>(&addr)->sin6_port) == port;
    return addr.ss_family == AF_INET &&
           ntohs(reinterpret_cast<const sockaddr_in *>(&addr)->sin_port) == port;
}

/*
 * torch has no call for this: of a TCPStore, whether the port is this process's own. Its repr()
 * tells too, but asks the name server for the names of both ends, which takes seconds where a
 * datagram is lost. A store of another kind is taken to be elsewhere. Any listener of ours at that
 * number counts: where the store is another process's after all, its loss is blamed on rank 0.
 */
bool
is_hosted_here(const c10::intrusive_ptr<c10d::Store> &store)
{
    c10::intrusive_ptr<c10d::Store> inner = store;

    if (auto *const prefixed = dynamic_cast<c10d::PrefixStore *>(store.get()))
        inner = prefixed->getUnderlyingNonPrefixStore();
    const auto *const tcp = dynamic_cast<const c10d::TCPStore *>(inner.get());
    if (tcp == nullptr)
        return false;
    std::error_code none; /* without /proc it is taken to be elsewhere */
    const std::filesystem::directory_iterator fds("/proc/self/fd", none);
    return std::any_of(begin(fds), end(fds), [&tcp](const auto &entry) {
        return listens_at(std::stoi(entry.path().filename()), tcp->getPort());
    });
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

rdt_status
lost_store(bool is_at_rank_0, const c10::Error &why, rdt_error *error)
{
    const char *const host = is_at_rank_0 ? "rank 0, which hosts the store," : "the store";

    return fill_error(error, RDT_EPEER,
                      c10::str(host, " cannot be reached: ", why.what_without_backtrace()),
                      is_at_rank_0 ? 0 : RDT_RANK_UNKNOWN);
}

/* Ends a wait: what ended the group. */
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

Rendezvous::Rendezvous(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                       milliseconds timeout)
    : store_(std::move(store)), rank_(rank), size_(size), timeout_(timeout),
      blobs_(static_cast<size_t>(size))
{
    /* A request on the parent's connection would be answered to whoever reads first, and counted
     * as the parent's. */
    refuse_forked_child("rdmatensor:init_process_group");
    note_use();
    TORCH_CHECK(store_, "a group needs a store");
    TORCH_CHECK(rank >= 0 && rank < size, "rank ", rank, " of a group of ", size);
    incarnation_ =
        static_cast<uint32_t>(store_->add(c10::str("rdmatensor/", size, "/arrivals/", rank), 1));
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
Rendezvous::missing(const std::vector<std::string> &keys)
{
    std::vector<std::string> missing;

    for (const std::string &key : keys)
        if (!store_->check({key}))
            missing.push_back(key);
    return missing;
}

void
Rendezvous::await(const std::vector<std::string> &keys, const std::function<bool()> &is_there,
                  milliseconds timeout)
{
    const auto start = Clock::now();
    bool has_told = false;

    const auto first_pause =
        std::clamp<microseconds>(first_pause_a_member * size_, least_pause, longest_pause);
    while (!is_there()) {
        const auto waited = std::chrono::duration_cast<microseconds>(Clock::now() - start);
        if (waited >= timeout)
            C10D_THROW_ERROR(TimeoutError, "rdmatensor: ", ranks_of(missing(keys)), " of ", size_,
                             " did not join the group within ", timeout.count(), " ms");
        if (waited >= progress_after && !has_told) {
            (void)std::fprintf(stderr, "rdmatensor: rank %d still waits for %s to join a group\n",
                               rank_, ranks_of(missing(keys)).c_str());
            has_told = true;
        }
        const auto pause = std::clamp(waited / pause_part, first_pause, longest_pause);
        std::this_thread::sleep_for(std::min(pause, microseconds(timeout) - waited));
        check_signals();
        check_group();
    }
}

void
Rendezvous::check_group() const
{
    rdt_group *const group = group_.load(std::memory_order_acquire); /* partner: watch() */
    GroupEnded ended = {};

    if (group != nullptr && (ended.status = rdt_group_error(group, &ended.error)) != RDT_OK)
        throw ended;
}

/* Of keys that are there. */
std::vector<std::string>
Rendezvous::read_all(const std::vector<std::string> &keys)
{
    std::vector<std::string> values;

    if (store_->hasExtendedApi()) {
        for (const std::vector<uint8_t> &value : store_->multiGet(keys))
            values.push_back(to_text(value));
        TORCH_CHECK(values.size() == keys.size(), "the store gave ", values.size(), " values for ",
                    keys.size(), " keys");
        return values;
    }
    for (const std::string &key : keys)
        values.push_back(to_text(store_->get(key)));
    return values;
}

/* Counts this member; the last of `readers` deletes what nobody needs any more. */
void
Rendezvous::has_read(const std::string &what, const std::vector<std::string> &keys, int readers)
{
    const std::string count = key("read/" + what);

    if (store_->add(count, 1) < readers)
        return;
    for (const std::string &key : keys)
        (void)store_->deleteKey(key); /* false: a store that cannot */
    (void)store_->deleteKey(count);
}

std::vector<std::string>
Rendezvous::everyone(const std::string &what, const std::string &mine)
{
    std::vector<std::string> keys;

    refuse_forked_child(("rdmatensor:" + what).c_str());
    for (int rank = 0; rank < size_; rank++)
        keys.push_back(key(what, rank));
    store_->set(keys[static_cast<size_t>(rank_)], to_bytes(mine));
    try {
        await(keys, [&] { return store_->check(keys); }, timeout_);
    } catch (const GroupEnded &ended) {
        std::rethrow_exception(make_error(ended.status, "rdmatensor:" + what, ended.error));
    }
    std::vector<std::string> values = read_all(keys);
    has_read(what, keys, size_);
    return values;
}

void
Rendezvous::post(const std::string &what, const std::string &mine)
{
    refuse_forked_child(("rdmatensor:" + what).c_str());
    store_->set(key(what, rank_), to_bytes(mine));
}

std::vector<std::string>
Rendezvous::posted(const std::string &what)
{
    std::vector<std::string> keys;

    refuse_forked_child(("rdmatensor:" + what).c_str());
    for (int rank = 0; rank < size_; rank++)
        keys.push_back(key(what, rank));
    if (!store_->check(keys))
        return {};
    return read_all(keys);
}

Rendezvous::Agreement
Rendezvous::agree(const Job &proposal, const std::string &secret)
{
    Agreement agreed{proposal, to_hex(random_bytes(RDTI_TOLD_NAME_BYTES))};
    const std::string job = key("job");

    for (const CommonSetting &setting : common_settings)
        (void)value_of(setting);
    if (rank_ == 0) {
        if (agreed.job.id.empty())
            agreed.job = {to_hex(random_bytes(RDTI_TOLD_NAME_BYTES)), secret, incarnation_,
                          is_hosted_here(store_)};
        if (agreed.job.secret.empty())
            agreed.job.secret = random_bytes(RDTI_TOLD_SECRET_BYTES);
        is_store_at_rank_0_ = agreed.job.is_store_at_rank_0;
        if (size_ > 1)
            store_->set(job, written(agreed.job, agreed.group_id, secret.empty()));
        return agreed;
    }
    await({job}, [&] { return store_->check({job}); }, timeout_);
    const rdti_told told = read_told(store_->get(job), job);
    has_read("job", {job}, size_ - 1);
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
    std::vector<uint8_t> blob(RDT_BLOB_MAX_BYTES);
    size_t len_bytes = 0;
    rdt_error error = {};
    const rdt_status status =
        rdt_context_blob(context, blob.data(), blob.size(), &len_bytes, &error);

    if (status != RDT_OK)
        std::rethrow_exception(make_error(status, "rdmatensor:init_process_group", error));
    blob.resize(len_bytes);
    store_->set(key("blob", rank_), blob);
}

/* With mutex_: the whole batch of `rank`, if it is there. */
void
Rendezvous::fetch_batch(int rank)
{
    const int batch = rank / batch_ranks;
    const int first = batch * batch_ranks;
    std::vector<std::string> keys;

    for (int other = first; other < std::min(first + batch_ranks, size_); other++)
        keys.push_back(key("blob", other));
    if (!store_->check(keys))
        return;
    std::vector<std::string> blobs = read_all(keys);
    std::move(blobs.begin(), blobs.end(), blobs_.begin() + first);
    has_read(c10::str("blob/", batch), keys, size_);
}

void
Rendezvous::prefetch()
{
    const std::lock_guard lock(mutex_);

    fetch_batch(rank_);
}

/* Whether the address of `rank` is known now. */
bool
Rendezvous::fetch(int rank)
{
    const std::lock_guard lock(mutex_);
    std::string &blob = blobs_.at(static_cast<size_t>(rank));

    if (blob.empty())
        fetch_batch(rank);
    if (blob.empty() && store_->check({key("blob", rank)}))
        blob = to_text(store_->get(key("blob", rank)));
    return !blob.empty();
}

std::string
Rendezvous::blob_of(int rank, milliseconds timeout)
{
    await({key("blob", rank)}, [this, rank] { return fetch(rank); }, timeout);
    const std::lock_guard lock(mutex_);

    return blobs_[static_cast<size_t>(rank)];
}

rdt_status
Rendezvous::fetch_blob(void *arg, uint32_t rank, uint64_t timeout_ns, uint8_t *buf, size_t cap,
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
        const std::string blob = self->blob_of(static_cast<int>(rank), timeout);
        if (blob.empty() || blob.size() > cap)
            return fail(RDT_EPROTO, "the store has an address of a wrong size");
        std::memcpy(buf, blob.data(), blob.size());
        *len_out = blob.size();
        return RDT_OK;
    } catch (const pybind11::error_already_set &) {
        keep_exception(std::current_exception());
        return fail(RDT_ECANCELED, "interrupted while waiting for a peer's address");
    } catch (const GroupEnded &ended) {
        if (error != nullptr)
            *error = ended.error;
        return ended.status;
    } catch (const c10d::TimeoutError &timeout_error) {
        return fail(RDT_ETIMEDOUT, timeout_error.what_without_backtrace());
    } catch (const c10d::DistNetworkError &network_error) {
        return lost_store(self->is_store_at_rank_0_, network_error, error);
    } catch (const c10::Error &store_error) {
        return fail(RDT_EPEER, store_error.what_without_backtrace());
    } catch (const std::exception &other) {
        return fail(RDT_EPEER, other.what());
    }
}

} // namespace rdmatensor
