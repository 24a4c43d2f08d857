/* SPDX-License-Identifier: Apache-2.0
 * How long a waiter spins, or yields its core, before it sleeps. */
#include <sched.h>

#include "base/clock.h"
#include "base/system/cpu.h"
#include "progress/engine_impl.h"

/* A sleep and a wake-up of each rank cost more than all the work of a small collective. The ranks
 * that a waiter waits for are mostly runnable, and a thread that computes keeps its slice. */
#define YIELD_NS UINT64_C(1000000)
/* A lingering thread reads the clock once in this many polls: a poll costs a few ns, the clock
 * thirty. */
#define LOOKS_PER_CLOCK 32
/* After this time it calls rdti_engine_wait(), which notices when others take the core. */
#define LINGER_MOST_NS UINT64_C(250000)

void
rdti_engine_learn_spin(struct rdti_engine *engine, uint64_t waited_ns)
{
    /* relaxed: a hint; the last of several waiters wins */
    const uint32_t before_ns = atomic_load_explicit(&engine->spin_ns, memory_order_relaxed);
    uint32_t spin_ns = before_ns / 2;

    if (waited_ns < RDTI_SPIN_MOST_NS / 2)
        spin_ns = 2 * (uint32_t)waited_ns;
    if (spin_ns < RDTI_SPIN_LEAST_NS)
        spin_ns = RDTI_SPIN_LEAST_NS;
    atomic_store_explicit(&engine->spin_ns, spin_ns, memory_order_relaxed);
}

void
rdti_engine_learn_brief(struct rdti_engine *engine, bool has_slept)
{
    /* relaxed: as above */
    const uint32_t before_ns = atomic_load_explicit(&engine->brief_ns, memory_order_relaxed);
    uint32_t brief_ns = has_slept ? before_ns / 2 : 2 * before_ns;

    if (brief_ns < RDTI_SPIN_BRIEF_NS)
        brief_ns = RDTI_SPIN_BRIEF_NS;
    if (brief_ns > RDTI_SPIN_LEAST_NS)
        brief_ns = RDTI_SPIN_LEAST_NS;
    atomic_store_explicit(&engine->brief_ns, brief_ns, memory_order_relaxed);
}

/* Spinning sufficed, but only just: a slightly longer wait would have slept. */
static bool
spin_is_nearly_late(const struct rdti_engine *engine, uint64_t waited_ns)
{
    /* relaxed: as above */
    return 2 * waited_ns > atomic_load_explicit(&engine->spin_ns, memory_order_relaxed);
}

void
rdti_engine_learn(struct rdti_engine *engine, uint64_t waited_ns, bool has_slept)
{
    if (has_slept || spin_is_nearly_late(engine, waited_ns))
        rdti_engine_learn_spin(engine, waited_ns);
    if (rdti_crowd_is_known(&engine->crowd))
        rdti_engine_learn_brief(engine, has_slept);
}

static bool
spin_is_crowded(struct rdti_engine *engine)
{
    return rdti_crowd_is_known(&engine->crowd) &&
           rdti_crowd_is_there(&engine->crowd, rdti_now_ns());
}

uint64_t
rdti_engine_spin_ns(struct rdti_engine *engine)
{
    /* relaxed: hints; one depends on the number of local peers, the other is learnt */
    const bool can_spin = atomic_load_explicit(&engine->can_spin, memory_order_relaxed) != 0;

    if (!can_spin)
        return 0;
    return atomic_load_explicit(spin_is_crowded(engine) ? &engine->brief_ns : &engine->spin_ns,
                                memory_order_relaxed);
}

uint64_t
rdti_engine_yield_ns(struct rdti_engine *engine)
{
    /* relaxed: a hint, as can_spin */
    const bool can_yield = atomic_load_explicit(&engine->can_yield, memory_order_relaxed) != 0;

    return can_yield && !spin_is_crowded(engine) ? YIELD_NS : 0;
}

bool
rdti_engine_offer_core(struct rdti_engine *engine, uint64_t *now_ns)
{
    const uint64_t begin_ns = rdti_now_ns();

    (void)sched_yield(); /* cannot fail on Linux */
    *now_ns = rdti_now_ns();
    return !rdti_crowd_judge(&engine->crowd, *now_ns - begin_ns, 0, *now_ns);
}

bool
rdti_engine_linger(struct rdti_engine *engine, uint64_t since_ns, uint32_t look)
{
    uint64_t now_ns = 0;

    /* relaxed: as above */
    if (atomic_load_explicit(&engine->can_spin, memory_order_relaxed) == 0)
        return rdti_engine_yield_ns(engine) > 0 && rdti_engine_offer_core(engine, &now_ns) &&
               now_ns - since_ns < YIELD_NS;
    rdti_cpu_relax();
    if (look % LOOKS_PER_CLOCK != 0)
        return true;
    const uint64_t spin_ns = rdti_engine_spin_ns(engine);
    return !rdti_crowd_is_known(&engine->crowd) &&
           rdti_now_ns() - since_ns < (spin_ns < LINGER_MOST_NS ? spin_ns : LINGER_MOST_NS);
}
