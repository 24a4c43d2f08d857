/* SPDX-License-Identifier: Apache-2.0
 * Clocks of workers. */
#include "ps/model/clocks.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "wire/ps/request.h"

rdt_status
rdti_ps_clocks_init(struct rdti_ps_clocks *clocks, uint32_t mode, uint32_t staleness,
                    uint32_t workers, struct rdt_error *err)
{
    memset(clocks, 0, sizeof(*clocks));
    if (mode < RDT_PS_SYNC || mode > RDT_PS_SSP)
        return rdti_error_set(err, RDT_EINVAL, 0, "mode %u is not RDT_PS_SYNC, ASYNC or SSP", mode);
    if (workers == 0 || workers > RDTI_PS_WORKERS_MAX)
        return rdti_error_set(err, RDT_EINVAL, 0, "%u workers: 1 to %d are possible", workers,
                              RDTI_PS_WORKERS_MAX);
    clocks->of = calloc(workers, sizeof(*clocks->of));
    if (clocks->of == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "clocks of %u workers", workers);
    clocks->mode = mode;
    clocks->staleness = staleness;
    clocks->workers = workers;
    return RDT_OK;
}

void
rdti_ps_clocks_free(struct rdti_ps_clocks *clocks)
{
    free(clocks->of);
    clocks->of = NULL;
}

rdt_status
rdti_ps_clocks_tick(struct rdti_ps_clocks *clocks, uint32_t worker, uint64_t clock,
                    struct rdt_error *err)
{
    struct rdti_ps_clock *own = &clocks->of[worker];

    if (own->state == RDTI_PS_OUT)
        return rdti_error_set(err, RDT_EPROTO, 0, "worker %u ticked after it had left", worker);
    if (clock != own->ticks + 1)
        return rdti_error_set(err, RDT_EPROTO, 0, "worker %u ticked to %llu after %llu", worker,
                              (unsigned long long)clock, (unsigned long long)own->ticks);
    own->ticks = clock;
    return RDT_OK;
}

void
rdti_ps_clocks_applied(struct rdti_ps_clocks *clocks, uint32_t worker, uint32_t age)
{
    struct rdti_ps_clock *own = &clocks->of[worker];
    const uint64_t back = 1 + (uint64_t)(age < RDTI_PS_AGES - 1 ? age : RDTI_PS_AGES - 2);
    const uint64_t since =
        own->ticks > back ? own->ticks - back : 0;     /* of its own before the pull */
    const uint64_t own_ticks = own->ticks - since - 1; /* which it knows of */
    const uint64_t unknown = clocks->applied - own->seen[since % RDTI_PS_AGES] - own_ticks;

    clocks->stale[unknown < RDT_PS_STALENESS_BUCKETS ? unknown : RDT_PS_STALENESS_BUCKETS - 1]++;
    clocks->applied++;
    own->seen[own->ticks % RDTI_PS_AGES] = clocks->applied;
}

void
rdti_ps_clocks_park(struct rdti_ps_clocks *clocks, uint32_t worker, bool is_parked)
{
    if (clocks->of[worker].state != RDTI_PS_OUT)
        clocks->of[worker].state = is_parked ? RDTI_PS_PARKED : RDTI_PS_IN;
}

void
rdti_ps_clocks_out(struct rdti_ps_clocks *clocks, uint32_t worker)
{
    clocks->of[worker].state = RDTI_PS_OUT;
}

uint64_t
rdti_ps_clocks_least(const struct rdti_ps_clocks *clocks)
{
    uint64_t least = UINT64_MAX;

    for (uint32_t worker = 0; worker < clocks->workers; worker++)
        if (clocks->of[worker].state == RDTI_PS_IN && clocks->of[worker].ticks < least)
            least = clocks->of[worker].ticks;
    return least;
}

uint64_t
rdti_ps_clocks_needed(uint32_t mode, uint32_t staleness, uint64_t own)
{
    if (mode == RDT_PS_SYNC)
        return own;
    if (mode == RDT_PS_ASYNC || own <= staleness)
        return 0;
    return own - staleness;
}
