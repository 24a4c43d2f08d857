/* SPDX-License-Identifier: Apache-2.0
 * The reducer's protected members, read as a derived class may read them. */
#include "c10d/ddp/reducer_buckets.hpp"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

namespace rdmatensor
{
namespace
{

/* Never instantiated. */
class Opened : public c10d::Reducer
{
  public:
    static const auto &buckets(const c10d::Reducer &reducer)
    {
        return reducer.*(&Opened::buckets_);
    }
    /* Index of the next bucket to sum; the sums of all before it have started. */
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

/* The result of a hook's future, in the three forms that the reducer accepts: a tensor or a list
 * from C++, an object from Python. */
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

/* The views that the reducer read are all made at once from the result, so that checking one is
 * enough. After a pass that raised they are of the previous result, so the future is checked
 * too. */
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
