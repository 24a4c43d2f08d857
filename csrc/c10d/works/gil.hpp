/* SPDX-License-Identifier: Apache-2.0
 *
 * gil.hpp - waiting where torch calls us with Python's lock, or perhaps without.
 */
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace rdmatensor
{

/* Gives Python's lock up for a while where this thread has it and Python is not ending. */
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
