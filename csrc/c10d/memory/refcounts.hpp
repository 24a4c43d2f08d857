/* SPDX-License-Identifier: Apache-2.0
 *
 * holders.hpp - who else holds a tensor, or its memory.
 */
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

namespace rdmatensor
{

/* A reference that keeps nothing. */
template <typename T> using Weakly = c10::weak_intrusive_ptr<T>;

template <typename T>
Weakly<T>
to_nothing()
{
    return Weakly<T>(c10::intrusive_ptr<T>());
}

template <typename T>
Weakly<T>
weakly(T *target)
{
    return Weakly<T>(c10::intrusive_ptr<T>::unsafe_reclaim_from_nonowning(target));
}

/* References to it, by C++ and by Python: an object that nobody there holds is none. Takes Python's
 * lock where there is such an object. */
uint32_t holders(c10::TensorImpl *tensor);
uint32_t holders(c10::StorageImpl *storage);

/*
 * Whether the gradient that an accumulator has just made, its memory included, is held by nobody
 * else. `incoming` is what the accumulator was given: the engine holds it, the gradient may have
 * taken over its memory, and it may be a view of what a kernel wrote.
 */
bool is_alone(const at::Tensor &grad, const at::Tensor &incoming);

/* Whether the tensor, which begins where its storage does, looks as `view` does. */
bool has_layout_of(const at::Tensor &tensor, const c10::TensorImpl &view);

} // namespace rdmatensor
