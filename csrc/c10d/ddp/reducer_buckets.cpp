/* SPDX-License-Identifier: Apache-2.0
 * Members of the reducer that torch protects, read as a class may that derives from it. */
#include "c10d/ddp/reducer_buckets.hpp"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

namespace rdmatensor
{
namespace
{

/* Of which none is ever made. */
class Opened : public c10d::Reducer
{
  public:
    static const auto &buckets(const c10d::Reducer &reducer)
    {
        return reducer.*(&Opened::buckets_);
    }
    /* Of those whose sums have begun, in their order. */
    static size_t next_bucket(const c10d::Reducer &reducer)
    {
        return reducer.*(&Opened::next_bucket_);
    }
};

bool
is_it(const at::TensorBase &tensor, const c10::TensorImpl *wanted)
{
    return tensor.unsafeGetTensorImpl() == wanted;
}

/* What a hook's future gave, in the three ways that the reducer takes: of C++ a tensor or a list,
 * of Python an object. */
bool
is_result(const c10::IValue &value, const c10::TensorImpl *wanted)
{
    if (value.isTensor())
        return is_it(value.toTensor(), wanted);
    if (value.isTensorList()) {
        const auto list = value.toTensorVector();
        return list.size() == 1 && is_it(list.front(), wanted);
    }
    if (!value.isPyObject())
        return false;
    PyObject *const object = value.toPyObject();
    return THPVariable_Check(object) && is_it(THPVariable_Unpack(object), wanted);
}

} // namespace

std::shared_ptr<c10d::Reducer>
reducer_of(const pybind11::handle &object)
{
    return object.cast<std::shared_ptr<c10d::Reducer>>();
}

std::optional<size_t>
number_of_bucket(const c10d::Reducer &reducer, const c10::TensorImpl *flat)
{
    const auto &buckets = Opened::buckets(reducer);

    for (size_t number = 0; number < buckets.size(); number++)
        if (is_it(buckets[number].gradients, flat))
            return number;
    return std::nullopt;
}

/* The views that it read are made all at once, of the result: one tells of all. Those of a pass
 * that raised are of the result before, so that both are looked at. */
bool
is_summed_in(const c10d::Reducer &reducer, size_t number, const c10::TensorImpl *flat,
             size_t gradients)
{
    const auto &buckets = Opened::buckets(reducer);

    if (number >= buckets.size() || !is_it(buckets[number].gradients, flat))
        return false;
    const auto &views = buckets[number].bucket_views_out;
    const auto &future = buckets[number].future_work;
    return views.size() == gradients && views.front().is_view() &&
           is_it(views.front()._base(), flat) && future && future->hasValue() &&
           is_result(future->constValue(), flat);
}

bool
is_sum_alone(const c10d::Reducer &reducer, size_t number)
{
    return Opened::buckets(reducer)[number].future_work.use_count() == 1;
}

bool
has_all_buckets(const c10d::Reducer &reducer)
{
    return Opened::next_bucket(reducer) == Opened::buckets(reducer).size();
}

} // namespace rdmatensor
