/* SPDX-License-Identifier: Apache-2.0
 * INDEPENDENT promises that no iteration of a loop depends on another, which holds also where the
 * result equals an operand; `restrict` would not, and without either the compiler adds a slow path
 * for it.
 */
#ifndef RDTI_COLLECTIVES_REDUCE_INDEPENDENT_H
#define RDTI_COLLECTIVES_REDUCE_INDEPENDENT_H

#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

#endif
