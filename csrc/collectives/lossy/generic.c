/* SPDX-License-Identifier: Apache-2.0
 * The lossy formats compiled for any processor. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3") /* gcc 12 vectorises loops of unknown length only there */
#endif

#define TABLE rdti_lossy_generic
#define ENCODE_VALUES encode_values

#include "collectives/lossy/loops.h"
