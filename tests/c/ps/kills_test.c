/* SPDX-License-Identifier: Apache-2.0
 * A worker or a server is killed at a step of the protocol. The others end the job with the right
 * numbers, or with an error that names the dead one. */
#include "ps/kills_rig.h"

enum { POINTS = 20 };

/* The worker has ended with the right numbers, or has the error; whether it has the error. */
static bool
check_worker(uint32_t worker, const char *words)
{
    if (shared->statuses[worker] == RDT_OK) {
        check_values(worker);
        return false;
    }
    CHECK_MSG(shared->statuses[worker] == RDT_EPEER, "worker %u: %d: %s", worker,
              shared->statuses[worker], shared->messages[worker]);
    CHECK_STR_CONTAINS(shared->messages[worker], words);
    return true;
}

static void
sweep(uint32_t transport, uint32_t mode, uint32_t goes_on, int32_t victim)
{
    const char *words = victim < WORKERS ? "worker 1 is gone" : victim == 2 ? "rank 2" : "rank 3";
    uint32_t killed = 0;
    uint32_t errors = 0;

    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    plan.mode = mode;
    plan.goes_on = goes_on;
    plan.signal = SIGKILL;
    CHECK(!run(transport, -1, 0));
    check_values(0);
    const uint64_t steps = atomic_load(&shared->steps[victim]);
    CHECK_MSG(steps > POINTS, "%llu steps", (unsigned long long)steps);
    for (uint64_t point = 0; point < POINTS; point++) {
        if (!run(transport, victim, 1 + point * (steps - 1) / POINTS))
            continue;
        killed++;
        const bool has_error = check_worker(0, words);
        errors += has_error;
        if (victim >= WORKERS)
            (void)check_worker(1, words);
        CHECK_MSG(victim >= WORKERS || goes_on == 0 || !has_error, "%s", shared->messages[0]);
    }
    printf("     %u of %d died within %llu steps, %u errors\n", killed, POINTS,
           (unsigned long long)steps, errors);
    CHECK(killed >= POINTS / 2);
    CHECK((errors >= killed / 2) == (victim >= WORKERS || goes_on == 0));
}

#define SWEEP(name, transport, mode, goes_on, victim)            \
    TEST_TIMEOUT(name, 120)                                      \
    {                                                            \
        sweep(RDT_TRANSPORT_##transport, mode, goes_on, victim); \
    }

SWEEP(a_worker_dies_in_sync_over_shm, SHM, RDT_PS_SYNC, 1, 1)
SWEEP(a_worker_dies_in_async_over_shm, SHM, RDT_PS_ASYNC, 1, 1)
SWEEP(a_worker_dies_in_ssp_over_shm, SHM, RDT_PS_SSP, 1, 1)
SWEEP(a_worker_dies_in_sync_over_tcp, TCP, RDT_PS_SYNC, 1, 1)
SWEEP(a_worker_dies_in_ssp_over_tcp, TCP, RDT_PS_SSP, 1, 1)
SWEEP(all_end_when_a_worker_dies, SHM, RDT_PS_SYNC, 0, 1)
SWEEP(the_first_server_dies_over_shm, SHM, RDT_PS_SSP, 1, 2)
SWEEP(the_last_server_dies_over_tcp, TCP, RDT_PS_SYNC, 1, 3)

TEST_MAIN()
