/* SPDX-License-Identifier: Apache-2.0
 *
 * tensors.hpp - checks of tensors before their bytes are sent, and conversion of errors.
 *
 * Immutable; any thread. A wrong argument raises ValueError on the rank that passed it. A later
 * error from the library raises DistBackendError, or TimeoutError if a deadline passed.
 */
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "rdmatensor.h"

namespace rdmatensor
{

/* Throws a ValueError that names `call` and the remedy unless the tensor is strided and on the
 * CPU. */
void check_tensor(const at::Tensor &tensor, const char *call);
/* Also requires row-major order, for calls without stand-ins (rows.hpp). */
void check_row_major(const at::Tensor &tensor, const char *call);

/* The error names the backend to use for such devices. */
[[noreturn]] void throw_device_error(const c10::Device &device, const char *call);

/* The only element of the list, checked. */
at::Tensor &only_tensor(std::vector<at::Tensor> &tensors, const char *call);
std::vector<at::Tensor> &only_list(std::vector<std::vector<at::Tensor>> &lists, const char *call);

/* `list` has one tensor for each of `size` members, each like `model` in dtype and count. */
void check_members(const std::vector<at::Tensor> &list, const at::Tensor &model, int size,
                   const char *call);
/* `whole` has the dtype of `block` and room for exactly one block of every member. */
void check_whole(const at::Tensor &whole, const at::Tensor &block, int size, const char *call);
void check_same_dtype(const at::Tensor &a, const at::Tensor &b, const char *call);

/* A tensor's elements as the library counts them. */
struct Elements {
    uint32_t dtype;
    uint64_t count;
};
/*
 * A dtype that the library does not know is moved as bytes. With `is_reduced` it raises ValueError.
 */
Elements elements_of(const at::Tensor &tensor, bool is_reduced, const char *call);
/* PREMUL_SUM is RDT_SUM of premultiplied() tensors. */
uint32_t reduce_op_of(const c10d::ReduceOp &op, const char *call);

/*
 * The tensor to reduce: with PREMUL_SUM a new tensor, the product with the factor; otherwise
 * `tensor`. A factor that the tensor's dtype cannot hold raises TypeError.
 */
at::Tensor premultiplied(const at::Tensor &tensor, const c10d::ReduceOp &op, const char *call);
std::vector<at::Tensor> premultiplied(const std::vector<at::Tensor> &tensors,
                                      const c10d::ReduceOp &op, const char *call);

/* Addresses of a list of tensors, in order. */
std::vector<void *> addresses_of(const std::vector<at::Tensor> &tensors);

std::exception_ptr make_error(rdt_status status, const std::string &message);
/* `call`: the operation with its prefix, "rdmatensor:recv from rank 3". */
std::exception_ptr make_error(rdt_status status, const std::string &call, const rdt_error &error);
[[noreturn]] void throw_value_error(const char *call, const std::string &what);
[[noreturn]] void throw_type_error(const char *call, const std::string &what);

/* Throws DistBackendError in a forked child: there a lock may be held forever by a thread that does
 * not exist in it, and the store's connection belongs to the parent. Call it before using either;
 * `call` as above. */
void refuse_forked_child(const char *call);

/*
 * Takes the GIL and raises what a signal handler raised. Only on the main thread: Python runs no
 * handlers on others. Call it between slices of a wait.
 */
void check_signals();

} // namespace rdmatensor
