/* SPDX-License-Identifier: Apache-2.0
 * The update rules compiled for any processor. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3") /* gcc 12 vectorises loops of unknown length only there */
#endif

#define TABLE rdti_ps_kernels_generic

#include "ps/rules/loops.h"
