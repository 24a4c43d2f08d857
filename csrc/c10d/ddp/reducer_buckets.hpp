/* SPDX-License-Identifier: Apache-2.0
 *
 * reducer_buckets.hpp - the buckets inside DistributedDataParallel's reducer.
 *
 * torch does not expose them, and reference counts alone could mistake other references for the
 * reducer's. One thread at a time: the thread of a backward pass, outside of the reducer's own
 * hooks, with the GIL.
 */
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include <c10/core/TensorImpl.h>
#include <torch/csrc/utils/pybind.h>

namespace c10d
{
class Reducer; /* its header includes all of torch's RPC */
}

namespace rdmatensor
{

/* The reducer that a Python object wraps. Throws pybind11's cast_error for any other object. */
std::shared_ptr<c10d::Reducer> reducer_of(const pybind11::handle &object);

/* The index of the bucket whose tensor is `flat`. */
std::optional<size_t> number_of_bucket(const c10d::Reducer &reducer, const c10::TensorImpl *flat);

/* Whether bucket `number` is `flat`, has `gradients` gradients, and its last sum was returned in
 * that very tensor: a communication hook may return another one. If so, the reducer has of `flat`
 * two views for each gradient, to write and to read the sum, and the sum's future. */
bool is_summed_in(const c10d::Reducer &reducer, size_t number, const c10::TensorImpl *flat,
                  size_t gradients);

/* Whether only the reducer has that future, which references `flat`. */
bool is_sum_alone(const c10d::Reducer &reducer, size_t number);

/* Whether all buckets are complete and their sums have started, since the last forward pass that
 * sums. */
bool has_all_buckets(const c10d::Reducer &reducer);

} // namespace rdmatensor
