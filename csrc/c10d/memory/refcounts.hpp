/* SPDX-License-Identifier: Apache-2.0
 *
 * refcounts.hpp - counts the holders of a tensor, or of its memory.
 */
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

namespace rdmatensor
{

/* A reference that keeps nothing alive. */
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

/* References to it from C++ and Python. A Python object without references in Python does not
 * count. Takes the GIL if there is such an object. */
uint32_t holders(c10::TensorImpl *tensor);
uint32_t holders(c10::StorageImpl *storage);

/*
 * Whether a gradient that an accumulator has just made has no other holder, nor its memory.
 * `incoming` is the input of the accumulator: the engine holds it, the gradient may have taken over
 * its memory, and it may be a view of what a kernel wrote.
 */
bool is_alone(const at::Tensor &grad, const at::Tensor &incoming);

/* Whether the tensor begins where its storage does, with the dtype, sizes and strides of `view`. */
bool has_layout_of(const at::Tensor &tensor, const c10::TensorImpl &view);

} // namespace rdmatensor
