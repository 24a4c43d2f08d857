/* SPDX-License-Identifier: Apache-2.0
 * With replicas, a server or a worker ends at a step of the protocol, and the job goes on. In
 * RDT_PS_SYNC all numbers are those of a run that was not disturbed. */
#include "ps/kills_rig.h"

enum { PRIMARY_0 = 2, PRIMARY_1, BACKUP_0, BACKUP_1 };

/* Of the run that was not disturbed. */
static float values[ROWS];
static float params[FLOATS];

static void
check_worker(uint32_t worker, bool is_exact)
{
    CHECK_MSG(shared->statuses[worker] == RDT_OK, "worker %u: %d: %s", worker,
              shared->statuses[worker], shared->messages[worker]);
    check_values(worker);
    if (!is_exact)
        return;
    CHECK_MEM_EQ(shared->values[worker], values, sizeof(values));
    CHECK_MEM_EQ(shared->model[worker], params, sizeof(params));
}

static void
begin(uint32_t transport, uint32_t mode, int signal)
{
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    plan.mode = mode;
    plan.goes_on = 1;
    plan.replicas = 1;
    plan.signal = signal;
    CHECK(!run(transport, -1, 0));
    memcpy(values, shared->values[0], sizeof(values));
    memcpy(params, shared->model[0], sizeof(params));
    for (uint32_t i = 0; i < FLOATS; i++)
        CHECK(params[i] < 0.0f);
    check_worker(0, true);
    check_worker(1, mode == RDT_PS_SYNC);
}

static void
sweep(uint32_t transport, uint32_t mode, int32_t victim, uint32_t points)
{
    uint32_t killed = 0;

    const uint64_t steps = atomic_load(&shared->steps[victim]);
    CHECK_MSG(steps > points, "%llu steps", (unsigned long long)steps);
    for (uint64_t point = 0; point < points; point++) {
        killed += run(transport, victim, 1 + point * (steps - 1) / points);
        for (uint32_t worker = 0; worker < WORKERS; worker++)
            if ((int32_t)worker != victim)
                check_worker(worker, mode == RDT_PS_SYNC && victim >= WORKERS);
    }
    printf("     %u of %u ended within %llu steps\n", killed, points, (unsigned long long)steps);
    CHECK(killed >= points / 2);
}

#define SWEEP(name, transport, mode, victim, points)            \
    TEST_TIMEOUT(name, 120)                                     \
    {                                                           \
        begin(RDT_TRANSPORT_##transport, mode, SIGKILL);        \
        sweep(RDT_TRANSPORT_##transport, mode, victim, points); \
    }

SWEEP(the_first_primary_dies_in_sync_over_shm, SHM, RDT_PS_SYNC, PRIMARY_0, 20)
SWEEP(the_second_primary_dies_in_sync_over_shm, SHM, RDT_PS_SYNC, PRIMARY_1, 20)
SWEEP(the_first_primary_dies_in_sync_over_tcp, TCP, RDT_PS_SYNC, PRIMARY_0, 20)
SWEEP(the_second_primary_dies_in_ssp_over_tcp, TCP, RDT_PS_SSP, PRIMARY_1, 10)
SWEEP(the_first_primary_dies_in_ssp_over_shm, SHM, RDT_PS_SSP, PRIMARY_0, 20)
SWEEP(the_first_primary_dies_in_async_over_shm, SHM, RDT_PS_ASYNC, PRIMARY_0, 10)
SWEEP(a_backup_dies_in_sync_over_shm, SHM, RDT_PS_SYNC, BACKUP_0, 10)
SWEEP(a_backup_dies_in_ssp_over_tcp, TCP, RDT_PS_SSP, BACKUP_1, 10)
SWEEP(a_worker_dies_in_sync_over_shm, SHM, RDT_PS_SYNC, 1, 10)
SWEEP(a_worker_dies_in_async_over_tcp, TCP, RDT_PS_ASYNC, 1, 10)

/* It is noticed by its silence. */
TEST_TIMEOUT(a_primary_stops_in_sync, 120)
{
    begin(RDT_TRANSPORT_TCP, RDT_PS_SYNC, SIGSTOP);
    sweep(RDT_TRANSPORT_TCP, RDT_PS_SYNC, PRIMARY_0, 3);
}

TEST_MAIN()
