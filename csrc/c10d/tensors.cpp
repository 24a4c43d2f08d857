/* SPDX-License-Identifier: Apache-2.0
 * Checks of tensors, and the library's errors as torch's exceptions. */
#include "c10d/tensors.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/exception.h>
#include <torch/csrc/utils/pybind.h>

#include "c10d/works/completion_thread.hpp"

namespace rdmatensor
{

void
throw_value_error(const char *call, const std::string &what)
{
    C10_THROW_ERROR(ValueError, c10::str("rdmatensor:", call, ": ", what));
}

void
throw_type_error(const char *call, const std::string &what)
{
    C10_THROW_ERROR(TypeError, c10::str("rdmatensor:", call, ": ", what));
}

void
throw_device_error(const c10::Device &device, const char *call)
{
    throw_value_error(call, c10::str("the tensor is on ", device,
                                     ", this backend moves CPU tensors; for tensors on CUDA "
                                     "devices open the group with the backend "
                                     "\"cpu:rdmatensor,cuda:nccl\""));
}

void
check_tensor(const at::Tensor &tensor, const char *call)
{
    if (!tensor.defined())
        throw_value_error(call, "a tensor is undefined");
    if (tensor.layout() != c10::kStrided)
        throw_value_error(call, c10::str("the tensor's layout is ", tensor.layout(),
                                         ", only dense tensors are moved; use to_dense()"));
    if (!tensor.device().is_cpu())
        throw_device_error(tensor.device(), call);
    if (tensor.is_conj() || tensor.is_neg())
        throw_value_error(call, "the tensor is a lazy conjugate or negative; pass "
                                "tensor.resolve_conj().resolve_neg()");
}

void
check_row_major(const at::Tensor &tensor, const char *call)
{
    check_tensor(tensor, call);
    if (!tensor.is_contiguous())
        throw_value_error(call, c10::str("the tensor of shape ", tensor.sizes(), " and strides ",
                                         tensor.strides(),
                                         " is not contiguous; pass tensor.contiguous()"));
}

at::Tensor &
only_tensor(std::vector<at::Tensor> &tensors, const char *call)
{
    if (tensors.size() != 1)
        throw_value_error(call, c10::str("got ", tensors.size(), " tensors instead of one"));
    check_tensor(tensors[0], call);
    return tensors[0];
}

std::vector<at::Tensor> &
only_list(std::vector<std::vector<at::Tensor>> &lists, const char *call)
{
    if (lists.size() != 1)
        throw_value_error(call, c10::str("got ", lists.size(), " lists of tensors instead of one"));
    return lists[0];
}

void
check_same_dtype(const at::Tensor &a, const at::Tensor &b, const char *call)
{
    if (a.scalar_type() != b.scalar_type())
        throw_value_error(call, c10::str("the tensors differ in dtype: ", a.scalar_type(), " and ",
                                         b.scalar_type()));
}

void
check_members(const std::vector<at::Tensor> &list, const at::Tensor &model, int size,
              const char *call)
{
    if (list.size() != static_cast<size_t>(size))
        throw_value_error(call, c10::str("the list has ", list.size(), " tensors for a group of ",
                                         size, " ranks"));
    for (const at::Tensor &tensor : list) {
        check_tensor(tensor, call);
        check_same_dtype(model, tensor, call);
        if (tensor.numel() != model.numel())
            throw_value_error(call, c10::str("the tensors differ in size: ", model.sizes(), " and ",
                                             tensor.sizes()));
    }
}

void
check_whole(const at::Tensor &whole, const at::Tensor &block, int size, const char *call)
{
    check_tensor(whole, call);
    check_tensor(block, call);
    check_same_dtype(whole, block, call);
    if (whole.numel() != block.numel() * size)
        throw_value_error(call, c10::str("a tensor of ", whole.numel(), " elements does not fit ",
                                         size, " ranks with ", block.numel(), " elements each"));
}

namespace
{

constexpr std::pair<c10::ScalarType, uint32_t> dtypes[] = {
    {c10::ScalarType::Bool, RDT_BOOL},
    {c10::ScalarType::Byte, RDT_U8},
    {c10::ScalarType::Char, RDT_I8},
    {c10::ScalarType::Short, RDT_I16},
    {c10::ScalarType::UInt16, RDT_U16},
    {c10::ScalarType::Int, RDT_I32},
    {c10::ScalarType::UInt32, RDT_U32},
    {c10::ScalarType::Long, RDT_I64},
    {c10::ScalarType::UInt64, RDT_U64},
    {c10::ScalarType::Half, RDT_F16},
    {c10::ScalarType::BFloat16, RDT_BF16},
    {c10::ScalarType::Float, RDT_F32},
    {c10::ScalarType::Double, RDT_F64},
    {c10::ScalarType::ComplexFloat, RDT_C64},
    {c10::ScalarType::ComplexDouble, RDT_C128},
};

/* 0 for a dtype that the library does not know. */
uint32_t
dtype_of(c10::ScalarType type)
{
    for (const auto &[scalar_type, dtype] : dtypes)
        if (scalar_type == type)
            return dtype;
    return 0;
}

} // namespace

Elements
elements_of(const at::Tensor &tensor, bool is_reduced, const char *call)
{
    const uint32_t dtype = dtype_of(tensor.scalar_type());

    if (dtype != 0)
        return {dtype, static_cast<uint64_t>(tensor.numel())};
    if (is_reduced)
        throw_value_error(call,
                          c10::str("tensors of ", tensor.scalar_type(), " cannot be reduced"));
    return {RDT_U8, static_cast<uint64_t>(tensor.nbytes())};
}

uint32_t
reduce_op_of(const c10d::ReduceOp &op, const char *call)
{
    switch (op.op_) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::PREMUL_SUM:
        return RDT_SUM;
    case c10d::ReduceOp::AVG:
        return RDT_AVG;
    case c10d::ReduceOp::PRODUCT:
        return RDT_PRODUCT;
    case c10d::ReduceOp::MIN:
        return RDT_MIN;
    case c10d::ReduceOp::MAX:
        return RDT_MAX;
    case c10d::ReduceOp::BAND:
        return RDT_BAND;
    case c10d::ReduceOp::BOR:
        return RDT_BOR;
    case c10d::ReduceOp::BXOR:
        return RDT_BXOR;
    default:
        throw_value_error(call,
                          c10::str("the reduction ", static_cast<int>(op.op_), " is not offered"));
    }
}

namespace
{

/*
 * The factor in the tensor's dtype. A float may round, as in any float arithmetic. An integer dtype
 * would turn 0.5 into 0, and a real dtype would drop the imaginary part, without a warning.
 */
at::Scalar
factor_for(c10::ScalarType dtype, const c10d::PreMulSumSupplement &supplement, const char *call)
{
    const at::Tensor &tensor = supplement.tensor_factor; /* one element, as torch checks */
    const at::Scalar given = tensor.defined() ? tensor.item() : supplement.double_factor;
    const bool is_integral = c10::isIntegralType(dtype, true);
    if (!tensor.defined() && !is_integral)
        return given; /* in full precision: a product of halves is rounded once */
    const at::Scalar kept =
        at::scalar_tensor(given, at::TensorOptions(given.type())).to(dtype).item();
    const bool loses_a_part = given.isComplex() && !c10::isComplexType(dtype);
    if ((is_integral || loses_a_part) && kept.toComplexDouble() != given.toComplexDouble())
        throw_type_error(call, c10::str("tensors of ", dtype, " cannot be multiplied with ", given,
                                        ", the factor of PREMUL_SUM"));
    return kept;
}

} // namespace

at::Tensor
premultiplied(const at::Tensor &tensor, const c10d::ReduceOp &op, const char *call)
{
    if (op.op_ != c10d::ReduceOp::PREMUL_SUM)
        return tensor;
    const auto *const supplement =
        dynamic_cast<const c10d::PreMulSumSupplement *>(op.supplement_.get());
    if (supplement == nullptr)
        throw_value_error(call, "the reduction PREMUL_SUM came without its factor");
    /* mul_ keeps the dtype, as the other reductions do */
    return tensor.clone().mul_(factor_for(tensor.scalar_type(), *supplement, call));
}

std::vector<at::Tensor>
premultiplied(const std::vector<at::Tensor> &tensors, const c10d::ReduceOp &op, const char *call)
{
    std::vector<at::Tensor> products;

    if (op.op_ != c10d::ReduceOp::PREMUL_SUM)
        return tensors;
    products.reserve(tensors.size());
    for (const at::Tensor &tensor : tensors)
        products.push_back(premultiplied(tensor, op, call));
    return products;
}

std::vector<void *>
addresses_of(const std::vector<at::Tensor> &tensors)
{
    std::vector<void *> addresses;

    addresses.reserve(tensors.size());
    for (const at::Tensor &tensor : tensors)
        addresses.push_back(tensor.data_ptr());
    return addresses;
}

std::exception_ptr
make_error(rdt_status status, const std::string &message)
{
    const c10::SourceLocation here = {__func__, __FILE__, __LINE__};

    switch (status) {
    case RDT_EINVAL:
        return std::make_exception_ptr(c10::ValueError(here, message));
    case RDT_ENOMEM:
        return std::make_exception_ptr(c10::OutOfMemoryError(here, message));
    case RDT_ETIMEDOUT:
        return std::make_exception_ptr(c10d::TimeoutError(here, message));
    default:
        return std::make_exception_ptr(c10::DistBackendError(here, message));
    }
}

std::exception_ptr
make_error(rdt_status status, const std::string &call, const rdt_error &error)
{
    return make_error(status,
                      c10::str(call, status == RDT_ETIMEDOUT ? ": the timeout passed: " : ": ",
                               error.message, " [", rdt_status_name(status), "]"));
}

void
refuse_forked_child(const char *call)
{
    if (is_forked_child())
        std::rethrow_exception(
            make_error(RDT_EFORKED, c10::str(call, ": this is a forked child; only its parent may "
                                                   "use the group: spawn the process instead "
                                                   "[RDT_EFORKED]")));
}

void
check_signals()
{
    /* The thread that started the process runs Python's signal handlers. */
    if (syscall(SYS_gettid) != getpid())
        return;
    const pybind11::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0)
        throw pybind11::error_already_set();
}

} // namespace rdmatensor
