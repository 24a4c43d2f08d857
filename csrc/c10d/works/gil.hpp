/* SPDX-License-Identifier: Apache-2.0
 *
 * gil.hpp - releases the GIL while waiting, in calls that torch makes with or without it.
 */
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace rdmatensor
{

/* Releases the GIL for its lifetime, if this thread holds it and Python is initialized. */
class WithoutGil
{
  public:
    WithoutGil() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr)
    {
    }
    ~WithoutGil()
    {
        if (state_ != nullptr)
            PyEval_RestoreThread(state_);
    }
    WithoutGil(const WithoutGil &) = delete;
    WithoutGil &operator=(const WithoutGil &) = delete;

  private:
    PyThreadState *const state_;
};

} // namespace rdmatensor
