/* SPDX-License-Identifier: Apache-2.0
 * Persistent collectives: what does not change between two runs is done once. A first exchange, an
 * all_gather that the caller waits for, tells the members what each initialises and where its
 * tensor lies. Binding compares that, chooses the algorithm, builds its schedule and holds the
 * peers' memory. A second exchange tells whether each member has what it needs, so that all use the
 * tensors in place, or none does. wire/group/persistent.h has what they exchange.
 *
 *   state       leaves by
 *   EXCHANGING  the exchange ends -> IDLE, or FAILED after an error
 *   IDLE        a start -> RUNNING; the second exchange -> EXCHANGING
 *   RUNNING     the start ends -> IDLE
 *   FAILED      -
 *
 * Threads: starts of one come one after the other, from any thread. Its references are the user's,
 * the exchange's and the running start's.
 */
#ifndef RDTI_COLLECTIVES_PERSISTENT_H
#define RDTI_COLLECTIVES_PERSISTENT_H

#include "collectives/collective.h"

/* persistent.c: a run of it, a start or the exchange, begins. */
void rdti_persistent_ref(struct rdt_persistent *persistent);
/* persistent.c: the run is over and uses nothing of it. Called before the end of the transfer is
 * seen. Returns the run's status, which is an error, with run->error, if its exchange shows that a
 * member cannot do its part. */
rdt_status rdti_persistent_end(struct rdt_persistent *persistent, struct rdti_coll *run,
                               rdt_status status);

/* collective.c: begins a collective of persistent->. Takes coll over; *out is the caller's if
 * RDT_OK is returned. */
rdt_status rdti_coll_begin(struct rdti_coll *coll, rdt_transfer **out, struct rdt_error *err);
/* collective.c: what each run has of its own. On failure nothing is kept. */
rdt_status rdti_coll_make_transfer(struct rdti_coll *coll, struct rdt_error *err);
/* collective.c: an all_gather that ends by rdti_persistent_end(). */
rdt_status rdti_coll_post_exchange(rdt_group *group, const struct rdt_coll_args *args,
                                   struct rdt_persistent *persistent, rdt_transfer **out,
                                   struct rdt_error *err);
uint64_t rdti_coll_timeout(const struct rdti_coll *coll); /* collective.c: in ns */
/* collective.c: puts "all_reduce: " before an error, unless it has the name already. */
rdt_status rdti_coll_name_operation(const char *name, rdt_status status, struct rdt_error *err);

#endif
