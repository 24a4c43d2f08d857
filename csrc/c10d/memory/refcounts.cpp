/* SPDX-License-Identifier: Apache-2.0
 * Counts of references, and which of them are torch's own. */
#include "c10d/memory/refcounts.hpp"

#include <torch/csrc/utils/pybind.h>

namespace rdmatensor
{
namespace
{

/* Whether there are weak references, by which Python finds an object that only its target keeps. */
bool
is_referred_to(PyObject *object)
{
    const pybind11::gil_scoped_acquire gil; /* the list is Python's */

    return PyType_SUPPORTS_WEAKREFS(Py_TYPE(object)) &&
           *PyObject_GET_WEAKREFS_LISTPTR(object) != nullptr;
}

/* Holders of the Python object, without the object's own target. torch 2.13 counts the object among
 * the target's holders for as long as it lives. Older versions count it while Python holds it, so
 * that several holders in Python are one. All weak references count as one holder. */
template <typename Slot>
uint32_t
holders_in_python(const Slot *slot, bool is_held_by_others)
{
    if constexpr (requires { slot->has_unique_reference(); }) {
        PyObject *const object = slot->load_pyobj();
        if (object == nullptr)
            return 0;
        const auto count = (*c10::impl::getGlobalPyInterpreter())->refcnt(object);
        return static_cast<uint32_t>(count) - (is_held_by_others ? 1 : 0) - 1 +
               (is_referred_to(object) ? 1 : 0);
    } else
        return 0;
}

/* By reference: for a pointer GCC 12 assumes that it may be null here, and warns of reading it. */
template <typename Impl>
uint32_t
count_holders(Impl &impl)
{
    const auto count = static_cast<uint32_t>(c10::raw::intrusive_ptr::use_count(&impl));

    return count + holders_in_python(impl.pyobj_slot(), count > 1);
}

} // namespace

uint32_t
holders(c10::TensorImpl *tensor)
{
    return count_holders(*tensor);
}

uint32_t
holders(c10::StorageImpl *storage)
{
    return count_holders(*storage);
}

bool
is_alone(const at::Tensor &grad, const at::Tensor &incoming)
{
    c10::StorageImpl *const storage = grad.storage().unsafeGetStorageImpl();
    const auto is_of_it = [storage](const at::TensorBase &tensor) {
        return tensor.defined() && tensor.has_storage() &&
               tensor.storage().unsafeGetStorageImpl() == storage;
    };
    uint32_t own = 1;

    if (holders(grad.unsafeGetTensorImpl()) > 1)
        return false;
    if (is_of_it(incoming)) {
        if (holders(incoming.unsafeGetTensorImpl()) > 1)
            return false;
        own++;
        if (incoming.is_view() && is_of_it(incoming._base())) {
            if (holders(incoming._base().unsafeGetTensorImpl()) > 1)
                return false;
            own++;
        }
    }
    return holders(storage) <= own;
}

bool
has_layout_of(const at::Tensor &tensor, const c10::TensorImpl &view)
{
    if (tensor.layout() != at::kStrided || tensor.dtype() != view.dtype() ||
        tensor.storage_offset() != 0 || tensor.sizes() != view.sizes())
        return false;
    for (int64_t dim = 0; dim < tensor.dim(); dim++)
        if (tensor.size(dim) != 1 && tensor.stride(dim) != view.stride(dim))
            return false;
    return true;
}

} // namespace rdmatensor
