/* SPDX-License-Identifier: Apache-2.0
 * A region descriptor, 64 bytes; rdt_remote_region_encode() and _decode() of rdmatensor.h. Users
 * keep it and pass it on by ways of their own, so it carries a version and a check sum: a garbled
 * copy is refused, not written to. The sum keeps nobody from forging one; that is what the owner's
 * own checks are for. */
#ifndef RDTI_WIRE_REGION_DESC_H
#define RDTI_WIRE_REGION_DESC_H

/* Behind the fields of struct rdt_remote_region, in their order: u16 magic, u16 wire version, u32
 * sum. */
#define RDTI_REGION_MAGIC 0x5252 /* "RR" */
#define RDTI_REGION_MAGIC_OFF 56
#define RDTI_REGION_VERSION_OFF 58
#define RDTI_REGION_SUM_OFF 60 /* FNV-1a, 64 bits, of the bytes before it, its halves xor-ed */

#endif
