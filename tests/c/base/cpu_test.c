/* SPDX-License-Identifier: Apache-2.0
 * The quotas are cgroup_test.c's matter; here is what comes from this machine. */
#include "base/system/cpu.h"

#include <sched.h>

#include "base/system/cgroup.h"
#include "harness.h"

/* What affinity and quota give, computed afresh. */
static uint64_t
expected_cpus(uint64_t affinity)
{
    const uint64_t quota = rdti_cgroup_cpu_millis("") / 1000;
    const uint64_t least = quota < affinity ? quota : affinity;

    return least < 1 ? 1 : least;
}

TEST(affinity_bounds_the_cpus)
{
    cpu_set_t all;
    cpu_set_t one;

    CHECK_INT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
    CHECK_UINT_EQ(rdti_cpu_usable(), expected_cpus((uint64_t)CPU_COUNT(&all)));
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all))
            continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        CHECK_INT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
        CHECK_UINT_EQ(rdti_cpu_usable(), 1); /* read afresh, not remembered */
        return;
    }
    FAIL("no CPU in the affinity mask");
}

TEST(memory_is_bounded_by_the_machine_and_says_by_what)
{
    char limit[128] = "";
    const uint64_t bytes = rdti_memory_available(limit, sizeof(limit));
    const uint64_t ram = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

    CHECK_UINT_GE(bytes, 1);
    CHECK_UINT_LE(bytes, ram);
    CHECK_MSG(strstr(limit, "MemAvailable ") != NULL || strstr(limit, "cgroup ") != NULL,
              "limit is \"%s\"", limit);
}

TEST_MAIN()
