/* SPDX-License-Identifier: Apache-2.0
 *
 * job_info.hpp - the description of the job that rank 0 publishes through the store, and the
 * settings that all ranks must share.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "c10d/rendezvous/rendezvous.hpp"
#include "c10d/rendezvous/wire.hpp"

namespace rdmatensor
{

/* Conversion of a store's values. */
std::vector<uint8_t> to_bytes(const std::string &text);
std::string to_text(const std::vector<uint8_t> &bytes);

template <size_t Bytes>
std::string
text_of(const uint8_t (&bytes)[Bytes])
{
    return {std::begin(bytes), std::end(bytes)};
}

/* The description that rank 0 publishes. It contains the secret only if `has_secret`: otherwise
 * each rank has it from its configuration. */
std::vector<uint8_t> written(const Job &job, const std::string &group_id, bool has_secret);
/* The inverse of written(). Throws DistStoreError for bytes that written() never produces. */
rdti_told read_told(const std::vector<uint8_t> &bytes, const std::string &key);

/* Called before the first request to the store. Whether a peer has left by then is a race, and its
 * leaving must not hide an invalid value of this rank. */
void check_own_settings();
/* Called before the ranks exchange messages: with different settings they would wait for different
 * messages. */
void check_common_settings(const rdti_told &told, int rank);

/* Whether this process hosts a TCPStore; false for a store of another kind. */
bool is_hosted_here(const c10::intrusive_ptr<c10d::Store> &store);

} // namespace rdmatensor
