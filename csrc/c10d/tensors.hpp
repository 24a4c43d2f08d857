/* SPDX-License-Identifier: Apache-2.0
 *
 * tensors.hpp - what a tensor must be before its bytes may leave, and how failures are told.
 *
 * Immutable; any thread. Wrong arguments are ValueErrors on the rank that gave them; everything
 * that the library reports later is a DistBackendError, or a TimeoutError where a deadline passed.
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

/* Strided, on the CPU; a ValueError that names `call` and says what to do otherwise. */
void check_tensor(const at::Tensor &tensor, const char *call);
/* And row-major, for what has no stand-ins (rows.hpp). */
void check_row_major(const at::Tensor &tensor, const char *call);

/* Says how a group is opened that has a backend for such devices. */
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

/* How the library sees the elements of a tensor. */
struct Elements {
    uint32_t dtype;
    uint64_t count;
};
/*
 * For operations that only move: a dtype that the library does not know goes as bytes. With
 * `is_reduced` it is a ValueError.
 */
Elements elements_of(const at::Tensor &tensor, bool is_reduced, const char *call);
/* PREMUL_SUM is RDT_SUM of premultiplied() tensors. */
uint32_t reduce_op_of(const c10d::ReduceOp &op, const char *call);

/*
 * What is reduced: with PREMUL_SUM a new tensor, the product with the factor; else `tensor`. A
 * factor that the tensor's dtype cannot hold is a TypeError.
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

/* Throws DistBackendError in a forked child, where a lock may be held for ever by a thread that is
 * not there, and the store's connection is the parent's. Call it before any of them is needed;
 * `call`: as above. */
void refuse_forked_child(const char *call);

/*
 * Takes the GIL and raises what a signal handler raised, on the main thread only: elsewhere Python
 * runs no handlers. Call it between slices of a wait.
 */
void check_signals();

} // namespace rdmatensor
