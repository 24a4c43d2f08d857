/* SPDX-License-Identifier: Apache-2.0
 * A region descriptor, 64 bytes; rdt_remote_region_encode() and _decode() of rdmatensor.h. Users
 * store it and send it by their own means, so it carries a version and a checksum: a garbled copy
 * is refused, not written to. The checksum does not prevent forgery; the owner's own checks do. */
#ifndef RDTI_WIRE_REGION_DESC_H
#define RDTI_WIRE_REGION_DESC_H

/* After the fields of struct rdt_remote_region, in their order: u16 magic, u16 wire version, u32
 * checksum. */
#define RDTI_REGION_MAGIC 0x5252 /* "RR" */
#define RDTI_REGION_MAGIC_OFF 56
#define RDTI_REGION_VERSION_OFF 58
#define RDTI_REGION_SUM_OFF 60 /* FNV-1a, 64 bits, of the bytes before it, its halves xor-ed */

#endif
