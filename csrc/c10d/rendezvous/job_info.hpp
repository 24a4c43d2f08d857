/* SPDX-License-Identifier: Apache-2.0
 *
 * told.hpp - what rank 0 tells the others of the job through the store, and what all have to have
 * alike.
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

/* Of a store's values. */
std::vector<uint8_t> to_bytes(const std::string &text);
std::string to_text(const std::vector<uint8_t> &bytes);

template <size_t Bytes>
std::string
text_of(const uint8_t (&bytes)[Bytes])
{
    return {std::begin(bytes), std::end(bytes)};
}

/* What rank 0 tells. The secret stays at home where each rank has it from outside. */
std::vector<uint8_t> written(const Job &job, const std::string &group_id, bool has_secret);
/* The counterpart of written(); DistStoreError for what that never gives. */
rdti_told read_told(const std::vector<uint8_t> &bytes, const std::string &key);

/* Before anybody waits for anybody: a value that is none has to end all ranks alike. */
void check_own_settings();
/* Before any message between them: ranks that go by different ones wait for different messages. */
void check_common_settings(const rdti_told &told, int rank);

/* Whether this process is the host of a TCPStore; false for a store of another kind. */
bool is_hosted_here(const c10::intrusive_ptr<c10d::Store> &store);

} // namespace rdmatensor
