/* SPDX-License-Identifier: Apache-2.0
 *
 * reducer_buckets.hpp - what DistributedDataParallel's reducer has of its buckets.
 *
 * torch shows it to nobody, and by counts alone others' references could pass for the reducer's.
 * One thread at a time: the one of a backward pass, outside of the reducer's own hooks, with
 * Python's lock.
 */
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include <c10/core/TensorImpl.h>
#include <torch/csrc/utils/pybind.h>

namespace c10d
{
class Reducer; /* its header brings all of torch's RPC */
}

namespace rdmatensor
{

/* The one that a Python object is; throws pybind11's cast_error if it is none. */
std::shared_ptr<c10d::Reducer> reducer_of(const pybind11::handle &object);

/* The number of the bucket that is this tensor. */
std::optional<size_t> number_of_bucket(const c10d::Reducer &reducer, const c10::TensorImpl *flat);

/* Whether the bucket of that number is `flat`, of so many gradients, and its last sum came back in
 * that very tensor: a communication hook may give any other one back. If so, the reducer has of
 * `flat` two views for each gradient, to write and to read the sum, and the sum's future. */
bool is_summed_in(const c10d::Reducer &reducer, size_t number, const c10::TensorImpl *flat,
                  size_t gradients);

/* Whether nobody else has that future, which shows `flat`. */
bool is_sum_alone(const c10d::Reducer &reducer, size_t number);

/* Whether all buckets are complete, and their sums begun, since the last forward pass that sums. */
bool has_all_buckets(const c10d::Reducer &reducer);

} // namespace rdmatensor
