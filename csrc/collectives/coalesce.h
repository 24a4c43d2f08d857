/* SPDX-License-Identifier: Apache-2.0
 * A collective over many small tensors, which are sent together.
 *
 * Tensors are summed as each would be alone, in the same order: how many of them go together
 * changes no bit. So the algorithm is chosen by the largest of them (rdti_pack_unit_bytes()), and
 * where the order depends on an element's place in its tensor, the pack is cut in the same places.
 *
 * Threads: as the collective's.
 */
#ifndef RDTI_COLLECTIVES_COALESCE_H
#define RDTI_COLLECTIVES_COALESCE_H

#include <stdint.h>

#include "rdmatensor_ext.h"

struct rdti_coll;

/* After rdti_coll_accept(), with the team: copies the parts' data together and sets coll->args to
 * the copy. RDT_EINVAL, RDT_ENOMEM. */
rdt_status rdti_pack_make(struct rdti_coll *coll, const struct rdt_coll_part *parts,
                          uint32_t part_count, struct rdt_error *err);
/* On success: copies the results to where the caller wants them. Does nothing without a pack. */
void rdti_pack_hand_out(struct rdti_coll *coll);
void rdti_pack_free(struct rdti_coll *coll); /* does nothing without a pack */
/* Bytes of the largest part; of the whole block without a pack. */
uint64_t rdti_pack_unit_bytes(const struct rdti_coll *coll);
/* Digest of the parts' sizes, 16 bits and not 0, so that ranks that cut differently notice; 0
 * without a pack. */
uint32_t rdti_pack_digest(const struct rdti_coll *coll);
uint32_t rdti_pack_part_count(const struct rdti_coll *coll);

#endif
