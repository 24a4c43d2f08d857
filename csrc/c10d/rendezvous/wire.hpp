/* SPDX-License-Identifier: Apache-2.0
 * Formats of csrc/wire, which are C: what comes from members is decoded there. */
#pragma once

extern "C" {
#include "wire/fields.h"
#include "wire/sparse.h"
#include "wire/symmetric.h"
#include "wire/told.h"
}
