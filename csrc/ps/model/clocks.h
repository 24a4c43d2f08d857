/* SPDX-License-Identifier: Apache-2.0
 * The clocks of the workers as one server sees them, and what they permit. Pure: no threads, no
 * time.
 *
 *   RDT_PS_SYNC   a round ends when every member has ticked; its pushes are applied together
 *   RDT_PS_ASYNC  a worker's pushes are applied when it ticks; no worker waits
 *   RDT_PS_SSP    the same, and no worker is more than `staleness` clocks ahead of the slowest */
#ifndef RDTI_PS_MODEL_CLOCKS_H
#define RDTI_PS_MODEL_CLOCKS_H

#include <stdbool.h>
#include <stdint.h>

#include "rdmatensor_ps.h"

/* A member that has not ticked yet holds the others, also before it has connected. One that waits
 * for a lease (RDTI_PS_PARKED) holds no other. */
enum { RDTI_PS_IN = 0, RDTI_PS_PARKED, RDTI_PS_OUT };

enum { RDTI_PS_AGES = 64 }; /* rows pulled so many ticks ago or earlier count as that old */

struct rdti_ps_clock {
    uint64_t ticks;
    uint64_t seen[RDTI_PS_AGES]; /* ticks applied, of all, after its own of number i, mod AGES */
    uint32_t state;
};

struct rdti_ps_clocks {
    uint32_t mode;
    uint32_t staleness;
    uint32_t workers;
    uint64_t applied; /* ticks applied, of all workers */
    /* Ticks of others that were applied between a worker's pull of rows, or its tick before, and
     * its tick with their gradients: the number of updates that those could not know. The last
     * bucket counts all larger ones. */
    uint64_t stale[RDT_PS_STALENESS_BUCKETS];
    struct rdti_ps_clock *of;
};

rdt_status rdti_ps_clocks_init(struct rdti_ps_clocks *clocks, uint32_t mode, uint32_t staleness,
                               uint32_t workers, struct rdt_error *err);
void rdti_ps_clocks_free(struct rdti_ps_clocks *clocks);
/* A worker ends a step. RDT_EPROTO: its clock would not be `clock`, or it has left. */
rdt_status rdti_ps_clocks_tick(struct rdti_ps_clocks *clocks, uint32_t worker, uint64_t clock,
                               struct rdt_error *err);
/* The worker's pushes of its last tick were applied. age: of its ticks before that one, those that
 * came after it pulled the step's oldest rows. */
void rdti_ps_clocks_applied(struct rdti_ps_clocks *clocks, uint32_t worker, uint32_t age);
/* The worker waits for a lease, or has one. */
void rdti_ps_clocks_park(struct rdti_ps_clocks *clocks, uint32_t worker, bool is_parked);
/* The worker left or died: the others do not wait for it any more. */
void rdti_ps_clocks_out(struct rdti_ps_clocks *clocks, uint32_t worker);
/* The least clock of the members, or UINT64_MAX if there are none. */
uint64_t rdti_ps_clocks_least(const struct rdti_ps_clocks *clocks);
/* The clock that a worker must know others to have reached before it goes on after its own tick. */
uint64_t rdti_ps_clocks_needed(uint32_t mode, uint32_t staleness, uint64_t own);

#endif
