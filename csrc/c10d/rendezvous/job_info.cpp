/* SPDX-License-Identifier: Apache-2.0
 * The description of the job by rank 0: encoding, decoding and comparison. */
#include "c10d/rendezvous/job_info.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/exception.h>

#include "c10d/tensors.hpp"

extern "C" {
#include "collectives/select/choice.h"
}

namespace rdmatensor
{
namespace
{

/* Settings on which collectives depend and which all ranks must share, with the value of an unset
 * one. */
struct CommonSetting {
    const char *name;
    const char *unset;
    char (rdti_told::*told)[RDTI_TOLD_SETTING_BYTES];
    bool is_flag; /* RDMATENSOR_DETERMINISTIC, of which "1" and "true" are one value */
};
constexpr CommonSetting common_settings[] = {
    {"RDMATENSOR_ALGO", "auto", &rdti_told::algo, false},
    {"RDMATENSOR_DETERMINISTIC", "0", &rdti_told::deterministic, true},
};

/* The digits were written by to_hex(). */
std::string
from_hex(const std::string &hex)
{
    std::string bytes;

    for (size_t i = 0; i < hex.size(); i += 2)
        bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    return bytes;
}

std::string
value_of(const CommonSetting &setting)
{
    const char *const text = std::getenv(setting.name);
    const char *const value = text == nullptr || text[0] == '\0' ? setting.unset : text;
    rdt_error error = {};
    bool is_on = false;

    if (setting.is_flag && rdti_choice_is_ordered(CHOICE_AUTO, &is_on, &error) == RDT_OK)
        return is_on ? "1" : "0";
    if (!rdti_text_is_plain(value, RDTI_TOLD_SETTING_BYTES))
        throw_value_error("init_process_group",
                          c10::str(setting.name, " has control characters, or more than ",
                                   RDTI_TOLD_SETTING_BYTES - 1, " bytes"));
    return value;
}

/* Whether fd is a socket that listens on the port. */
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

} // namespace

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

rdti_told
read_told(const std::vector<uint8_t> &bytes, const std::string &key)
{
    rdti_told told = {};
    rdt_error error = {};

    if (rdti_told_decode(bytes.data(), bytes.size(), &told, &error) != RDT_OK)
        C10D_THROW_ERROR(DistStoreError, "rdmatensor: the store has no valid job under ", key,
                         ", which rank 0 writes: ", static_cast<const char *>(error.message),
                         "; does every rank run the same version, and does only rank 0 write "
                         "there?");
    return told;
}

void
check_own_settings()
{
    unsigned choice = 0;
    bool is_ordered = false;
    rdt_error error = {};

    for (const CommonSetting &setting : common_settings)
        (void)value_of(setting);
    rdt_status status = rdti_choice_from_environment(&choice, &error);
    if (status == RDT_OK)
        status = rdti_choice_is_ordered(choice, &is_ordered, &error);
    if (status != RDT_OK)
        std::rethrow_exception(make_error(status, "rdmatensor:init_process_group", error));
}

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

/*
 * torch has no call for this. For a TCPStore, checks whether this process listens on its port. The
 * store's repr() has the answer too, but asks the name server for the names of both ends, which
 * takes seconds if a datagram is lost. A store of another kind counts as remote. Any listener of
 * this process on that port counts: if another process hosts the store after all, rank 0 is blamed
 * for its loss.
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
    std::error_code none; /* without /proc it counts as remote */
    const std::filesystem::directory_iterator fds("/proc/self/fd", none);
    return std::any_of(begin(fds), end(fds), [&tcp](const auto &entry) {
        return listens_at(std::stoi(entry.path().filename()), tcp->getPort());
    });
}

} // namespace rdmatensor
