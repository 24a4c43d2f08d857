/* SPDX-License-Identifier: Apache-2.0
 * Copies into row-major order and back. */
#include "c10d/rows.hpp"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "c10d/tensors.hpp"

namespace rdmatensor
{
namespace
{

/* Only bytes move: autograd must not record the copy, and no Python dispatch mode may run. */
struct Bare {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard without_python{
        c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
};

at::Tensor
row_major_like(const at::Tensor &tensor)
{
    return at::Tensor(
        at::detail::empty_cpu(tensor.sizes(), tensor.scalar_type(), /*pin_memory=*/false));
}

} // namespace

void
StandIns::check_writable(const at::Tensor &tensor) const
{
    if (!tensor.is_contiguous() && at::has_internal_overlap(tensor) == at::MemOverlap::Yes)
        throw_value_error(call_, c10::str("the tensor of shape ", tensor.sizes(), " and strides ",
                                          tensor.strides(),
                                          " has several elements in one place, so that nothing can "
                                          "be received in it; pass tensor.clone()"));
}

void
StandIns::count(const at::Tensor &tensor) noexcept
{
    counts_.tensors.fetch_add(1, std::memory_order_relaxed);
    counts_.bytes.fetch_add(tensor.nbytes(), std::memory_order_relaxed);
}

at::Tensor
StandIns::sent(const at::Tensor &tensor)
{
    if (tensor.is_contiguous())
        return tensor;
    const Bare bare;
    at::Tensor stand_in = row_major_like(tensor);

    stand_in.copy_(tensor);
    count(stand_in);
    return stand_in;
}

at::Tensor
StandIns::received(const at::Tensor &tensor)
{
    if (tensor.is_contiguous())
        return tensor;
    check_writable(tensor);
    at::Tensor stand_in = row_major_like(tensor);

    arrivals_.push_back({stand_in, tensor});
    count(stand_in);
    return stand_in;
}

at::Tensor
StandIns::exchanged(const at::Tensor &tensor)
{
    if (tensor.is_contiguous())
        return tensor;
    check_writable(tensor);
    at::Tensor stand_in = sent(tensor);

    arrivals_.push_back({stand_in, tensor});
    count(stand_in);
    return stand_in;
}

std::vector<at::Tensor>
StandIns::sent(const std::vector<at::Tensor> &tensors)
{
    std::vector<at::Tensor> found;

    found.reserve(tensors.size());
    for (const at::Tensor &tensor : tensors)
        found.push_back(sent(tensor));
    return found;
}

std::vector<at::Tensor>
StandIns::received(const std::vector<at::Tensor> &tensors)
{
    std::vector<at::Tensor> found;

    found.reserve(tensors.size());
    for (const at::Tensor &tensor : tensors)
        found.push_back(received(tensor));
    return found;
}

std::exception_ptr
deliver(const Arrivals &arrivals) noexcept
{
    try {
        const Bare bare;
        for (const Arrival &arrival : arrivals)
            (void)arrival.tensor.copy_(arrival.stand_in);
    } catch (const std::exception &) {
        return std::current_exception();
    }
    return nullptr;
}

} // namespace rdmatensor
