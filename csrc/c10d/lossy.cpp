/* SPDX-License-Identifier: Apache-2.0
 * Collectives of float32 that travel in a lossy format. torch has no such calls. */
#include <torch/csrc/distributed/c10d/exception.h>

#include "c10d/backend.hpp"

namespace rdmatensor
{
namespace
{

bool
overlap(const at::Tensor &a, const at::Tensor &b)
{
    const auto begin = reinterpret_cast<uintptr_t>(a.data_ptr());
    const auto other = reinterpret_cast<uintptr_t>(b.data_ptr());

    return begin < other + b.nbytes() && other < begin + a.nbytes();
}

/* `input` is what this member encodes. */
void
check_residual(const at::Tensor &residual, const at::Tensor &input, const at::Tensor &output,
               const char *call)
{
    check_row_major(residual, call);
    if (residual.scalar_type() != at::kFloat || residual.numel() != input.numel())
        throw_value_error(call, c10::str("the residual has ", residual.numel(), " elements of ",
                                         residual.scalar_type(), ", expected ", input.numel(),
                                         " of Float, as many as the tensor"));
    if (residual.numel() > 0 && (overlap(residual, input) || overlap(residual, output)))
        throw_value_error(call, "the residual overlaps the tensor");
}

/* torch's options have the same fields under several names. */
struct Async {
    Milliseconds timeout = c10d::kUnsetTimeout;
    bool asyncOp;
};

} // namespace

WorkPtr
Backend::start_lossy(rdt_coll_args args, const LossyWire &wire, const at::Tensor &input,
                     const at::Tensor &output)
{
    const char *const name = args.op == RDT_COLL_ALLREDUCE        ? "all_reduce"
                             : args.op == RDT_COLL_REDUCE_SCATTER ? "reduce_scatter"
                                                                  : "all_gather";
    const char *const title = args.op == RDT_COLL_ALLREDUCE        ? "rdmatensor:all_reduce"
                              : args.op == RDT_COLL_REDUCE_SCATTER ? "rdmatensor:reduce_scatter"
                                                                   : "rdmatensor:all_gather";
    const c10d::OpType type = args.op == RDT_COLL_ALLREDUCE ? c10d::OpType::ALLREDUCE
                              : args.op == RDT_COLL_REDUCE_SCATTER
                                  ? c10d::OpType::_REDUCE_SCATTER_BASE
                                  : c10d::OpType::_ALLGATHER_BASE;

    if (wire.residual)
        check_residual(*wire.residual, input, output, name);
    args.send = input.data_ptr();
    args.recv = output.data_ptr();
    args.flags = RDT_COLL_LABEL(wire.label);
    args.wire = wire.wire;
    args.wire_block = wire.block;
    args.residual = wire.residual ? wire.residual->data_ptr() : nullptr;
    Operation operation =
        collective(type, title, Async{.asyncOp = wire.is_async}, Tensors{input}, Tensors{output});
    if (wire.residual)
        operation.written = {*wire.residual};
    return start(std::move(operation), {args});
}

WorkPtr
Backend::lossy_allreduce(const at::Tensor &tensor, const c10d::ReduceOp &op, const LossyWire &wire)
{
    constexpr const char *call = "all_reduce";

    check_row_major(tensor, call);
    rdt_coll_args args =
        args_for(RDT_COLL_ALLREDUCE, elements_of(tensor, true, call), c10d::kUnsetTimeout);
    args.reduce_op = reduce_op_of(op, call);
    return start_lossy(args, wire, tensor, tensor);
}

WorkPtr
Backend::lossy_reduce_scatter(const at::Tensor &output, const at::Tensor &input,
                              const c10d::ReduceOp &op, const LossyWire &wire)
{
    constexpr const char *call = "reduce_scatter";

    check_row_major(output, call);
    check_row_major(input, call);
    check_whole(input, output, size_, call);
    rdt_coll_args args =
        args_for(RDT_COLL_REDUCE_SCATTER, elements_of(output, true, call), c10d::kUnsetTimeout);
    args.reduce_op = reduce_op_of(op, call);
    return start_lossy(args, wire, input, output);
}

WorkPtr
Backend::lossy_allgather(const at::Tensor &output, const at::Tensor &input, const LossyWire &wire)
{
    constexpr const char *call = "all_gather";

    check_row_major(output, call);
    check_row_major(input, call);
    check_whole(output, input, size_, call);
    return start_lossy(args_for(RDT_COLL_ALLGATHER, elements_of(input, true, call),
                                c10d::kUnsetTimeout),
                       wire, input, output);
}

} // namespace rdmatensor
