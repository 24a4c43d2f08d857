/* SPDX-License-Identifier: Apache-2.0
 * all_reduce of sparse tensors: each member gathers the entries of all members and adds them up. */
#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include "c10d/backend.hpp"
#include "c10d/rendezvous/wire.hpp"

namespace rdmatensor
{
namespace
{

constexpr const char *sparse_call = "all_reduce";

void
check_sparse(const at::Tensor &tensor, const c10d::ReduceOp &op)
{
    if (tensor.layout() != c10::kSparse || !tensor.device().is_cpu())
        throw_value_error(sparse_call,
                          c10::str("of sparse tensors only coordinate (COO) tensors on the CPU are "
                                   "reduced, this one has layout ",
                                   tensor.layout(), " on ", tensor.device()));
    if (op != c10d::ReduceOp::SUM)
        throw_value_error(sparse_call, "sparse tensors are reduced with SUM only");
}

/* sparse_dim, then the sizes. All members must agree on them; the library compares the lengths. */
at::Tensor
shape_of(const at::Tensor &tensor)
{
    std::vector<int64_t> shape = {tensor.sparse_dim()};

    shape.insert(shape.end(), tensor.sizes().begin(), tensor.sizes().end());
    return at::tensor(shape, at::kLong);
}

at::Tensor
padded(const at::Tensor &tensor, int64_t dim, int64_t to)
{
    std::vector<int64_t> sizes = tensor.sizes().vec();

    if (sizes[static_cast<size_t>(dim)] == to)
        return tensor.contiguous();
    sizes[static_cast<size_t>(dim)] = to - sizes[static_cast<size_t>(dim)];
    return at::cat({tensor, at::zeros(sizes, tensor.options())}, dim).contiguous();
}

[[noreturn]] void
refuse(int64_t global_rank, const char *what)
{
    C10_THROW_ERROR(DistBackendError, c10::str("rdmatensor:", sparse_call, ": rank ", global_rank,
                                               " sent a sparse tensor with ", what));
}

} // namespace

/* Every member's tensor, stacked along a new first dimension. Waits. */
at::Tensor
Backend::gather_all(const at::Tensor &tensor, Milliseconds timeout)
{
    std::vector<int64_t> sizes = tensor.sizes().vec();
    sizes.insert(sizes.begin(), size_);
    at::Tensor all = at::empty(sizes, tensor.options());
    at::Tensor mine = tensor;

    (void)_allgather_base(all, mine, {.timeout = timeout})->wait();
    return all;
}

/* Waits even if torch asked for an asynchronous operation: the sizes are needed in between. */
WorkPtr
Backend::allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &opts)
{
    if (tensors.size() != 1)
        throw_value_error(sparse_call, c10::str("got ", tensors.size(), " tensors instead of one"));
    at::Tensor &tensor = tensors[0];
    check_sparse(tensor, opts.reduceOp);

    const at::Tensor own = tensor.coalesce();
    const auto sparse_dims = static_cast<size_t>(own.sparse_dim());
    const at::Tensor shape = shape_of(own);
    const at::Tensor shapes = gather_all(shape, opts.timeout);
    for (int rank = 0; rank < size_; rank++)
        if (!shapes[rank].equal(shape))
            C10_THROW_ERROR(DistBackendError,
                            c10::str("rdmatensor:", sparse_call, ": rank ", global_rank(rank),
                                     " has a sparse tensor of another shape: sparse_dim and sizes ",
                                     shapes[rank], ", this rank has ", shape));
    const at::Tensor counts = gather_all(at::tensor({own._nnz()}, at::kLong), opts.timeout);
    for (int rank = 0; rank < size_; rank++) {
        const int64_t count = counts[rank].item<int64_t>();
        if (!rdti_sparse_count_fits(count, own.sizes().data(), sparse_dims))
            refuse(global_rank(rank), "more entries than its shape has, or fewer than none");
    }
    const int64_t most = counts.max().item<int64_t>();
    const at::Tensor indices = gather_all(padded(own.indices(), 1, most), opts.timeout);
    const at::Tensor values = gather_all(padded(own.values(), 0, most), opts.timeout);

    /* torch does not check the indices of a sparse tensor, and later accesses memory through
     * them. */
    at::Tensor sum;
    for (int rank = 0; rank < size_; rank++) {
        const int64_t count = counts[rank].item<int64_t>();
        const at::Tensor said = indices[rank];
        if (!rdti_sparse_indices_fit(said.data_ptr<int64_t>(), static_cast<size_t>(most),
                                     static_cast<size_t>(count), own.sizes().data(), sparse_dims))
            refuse(global_rank(rank), "indices that its shape has not");
        const at::Tensor theirs =
            at::sparse_coo_tensor(said.narrow(1, 0, count), values[rank].narrow(0, 0, count),
                                  own.sizes(), own.options());
        sum = rank == 0 ? theirs : sum + theirs; /* in rank order: the same bits on all ranks */
    }
    tensor.copy_(sum.coalesce());
    return start(collective(c10d::OpType::_ALLREDUCE_SPARSE, "rdmatensor:all_reduce", opts, {},
                            tensors),
                 {});
}

} // namespace rdmatensor
