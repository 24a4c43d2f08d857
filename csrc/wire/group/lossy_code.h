/* SPDX-License-Identifier: Apache-2.0
 * The lossy format of a collective as a number, which members compare: in rdt_message_desc.op above
 * RDT_DESC_BITS.
 */
#ifndef RDTI_WIRE_GROUP_LOSSY_CODE_H
#define RDTI_WIRE_GROUP_LOSSY_CODE_H

#include "rdmatensor.h"

/* 0: RDT_WIRE_EXACT, or an unknown format. `block` is that of RDT_WIRE_Q8, else 0. */
uint32_t rdti_lossy_code(uint32_t wire, uint32_t block);
/* " as q8 in blocks of 128"; of the format in the op of a description. "" if it is exact. */
const char *rdti_lossy_words(uint32_t op);

#endif
