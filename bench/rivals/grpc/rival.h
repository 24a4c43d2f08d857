// SPDX-License-Identifier: Apache-2.0
//
// What grpc_rival's server and client share: tensors, where they are placed, clocks.
#ifndef RIVAL_H
#define RIVAL_H

#include <cstddef>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "transfer.grpc.pb.h"

using rival::Busy;
using rival::Tensor;
using rival::Transfer;
using rival::Wish;

constexpr size_t MAX_BYTES = size_t{256} << 20;
constexpr int FRAME_BYTES = (1 << 24) - 1; // the most that HTTP/2 has

[[noreturn]] void fail(const std::string &why);

// Seconds that the whole machine was busy, and those of this process with all its threads: what the
// kernel does for a network's packets is charged to no process.
double busy_s();
double process_s();

// Rows of two floats where the bytes allow that; the same bytes for the same size.
Tensor tensor_of(size_t bytes);

// Whether the bytes are those of a tensor of this dtype and shape.
bool is_whole(const Tensor &tensor);

// Where an application needs what it receives. gRPC's threads come and go, and borrow it.
class Places
{
  public:
    // Whether dtype, shape and bytes agree, and, unless WANTED is nullptr, whether the bytes are
    // its, too, where they were placed.
    bool place(const Tensor &tensor, const Tensor *wanted = nullptr)
    {
        if (!is_whole(tensor))
            return false;
        const std::string &data = tensor.data();
        std::vector<char> place = borrow(data.size());
        std::memcpy(place.data(), data.data(), data.size());
        const bool is_same = wanted == nullptr ||
                             (wanted->data().size() == data.size() &&
                              std::memcmp(place.data(), wanted->data().data(), data.size()) == 0);
        const std::lock_guard<std::mutex> hold(mutex_);
        free_.push_back(std::move(place));
        return is_same;
    }

  private:
    std::vector<char> borrow(size_t bytes)
    {
        const std::lock_guard<std::mutex> hold(mutex_);
        if (!free_.empty() && free_.back().size() != bytes)
            free_.clear(); // sizes come one after another
        if (free_.empty())
            return std::vector<char>(bytes);
        std::vector<char> place = std::move(free_.back());
        free_.pop_back();
        return place;
    }

    std::mutex mutex_;
    std::vector<std::vector<char>> free_;
};

// Until killed; 0.
int serve(const std::string &address);

#endif
