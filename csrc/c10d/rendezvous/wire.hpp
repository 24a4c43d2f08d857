/* SPDX-License-Identifier: Apache-2.0
 * The C formats of csrc/wire, which decode the bytes that members send. */
#pragma once

extern "C" {
#include "wire/fields.h"
#include "wire/group/sparse.h"
#include "wire/group/symmetric.h"
#include "wire/group/told.h"
}
