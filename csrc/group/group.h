/* SPDX-License-Identifier: Apache-2.0
 * Groups: ranks mapped to peers, and the receives that wait for them. Everything is under the
 * engine's lock.
 *
 *   state      operations                    leaves by
 *   LIVE       work                          a member died, or an abort (local or a member's)
 *                                            -> BROKEN; destroy -> DESTROYED
 *   BROKEN     end with the reason           destroy -> DESTROYED
 *   DESTROYED  end with that reason, or      the last of them that lets go of its buffers, and
 *              as cancelled                  rdt_group_release() -> gone
 *
 * An eager message that had come whole before its sender died is still received in a BROKEN group,
 * unless it is of a collective. A member that left by itself (goodbye) ends only receives from it
 * and sends to it.
 */
#ifndef RDTI_GROUP_GROUP_H
#define RDTI_GROUP_GROUP_H

#include <stdint.h>

#include "endpoint/endpoint.h"
#include "endpoint/protocol.h"
#include "process/process.h"
#include "rdmatensor.h"
#include "wire/endpoint/message.h"

struct rdti_groups;
struct rdti_json;         /* base/json.h */
struct rdti_message_sink; /* message/mailboxes.h */

extern const struct rdti_membership rdti_group_membership; /* membership.c */
extern const struct rdti_message_sink rdti_group_sink;     /* membership.c */

rdt_status rdti_groups_create(rdt_context *ctx, struct rdti_groups **out, struct rdt_error *err);
/* RDT_EBUSY while a group lives. */
rdt_status rdti_groups_check_empty(struct rdti_groups *groups, struct rdt_error *err);
/* As above, and frees the table. */
rdt_status rdti_groups_destroy(struct rdti_groups *groups, struct rdt_error *err);

/* [driver] A process died: every group that has it as a member, by endpoint or address, breaks. */
void rdti_groups_on_death(struct rdti_groups *groups, const struct rdti_obituary *news);
/* [driver] A process left: receives that wait for it end, and receives from any source if no other
 * member is left. */
void rdti_groups_on_left(struct rdti_groups *groups, rdt_endpoint *ep, const struct rdt_error *err);
/* [driver] An ABORT frame. */
void rdti_groups_on_abort(struct rdti_groups *groups, const struct rdti_abort *abort,
                          rdt_endpoint *source);
/* [driver] Ranks of all groups together. */
uint64_t rdti_groups_rank_count(const struct rdti_groups *groups);
/* [driver] A JSON array of the live groups, for describe(). */
void rdti_groups_describe(const struct rdti_groups *groups, struct rdti_json *json);

#endif
