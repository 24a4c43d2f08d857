/* SPDX-License-Identifier: Apache-2.0
 * See cpu.h; the cgroups are read by cgroup.c. */
#include "base/system/cpu.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/system/cgroup.h"

/* Bits of the affinity mask: the kernel refuses a mask shorter than its own, and NR_CPUS is at most
 * 8192 on x86-64. */
#define MASK_CPUS 8192

uint32_t
rdti_cpu_affinity(void)
{
    cpu_set_t mask[MASK_CPUS / CPU_SETSIZE];

    if (sched_getaffinity(0, sizeof(mask), mask) == 0)
        return (uint32_t)CPU_COUNT_S(sizeof(mask), mask);
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}

uint32_t
rdti_cpu_usable(void)
{
    const uint32_t cpus = rdti_cpu_affinity();
    const uint64_t quota = rdti_cgroup_cpu_millis("") / 1000;

    if (quota < 1 || cpus < 1)
        return 1;
    return quota < cpus ? (uint32_t)quota : cpus;
}

/* MemAvailable in bytes; UINT64_MAX if the kernel does not report it. */
static uint64_t
cpu_system_memory_available(void)
{
    static const char key[] = "MemAvailable:"; /* in KiB, printed as "kB" */
    char line[128];
    uint64_t bytes = UINT64_MAX;
    FILE *f = fopen("/proc/meminfo", "re");

    if (f == NULL)
        return UINT64_MAX;
    while (bytes == UINT64_MAX && fgets(line, sizeof(line), f) != NULL) {
        if (strncmp(line, key, sizeof(key) - 1) == 0)
            bytes = strtoull(line + sizeof(key) - 1, NULL, 10) * 1024;
    }
    (void)fclose(f);
    return bytes;
}

uint64_t
rdti_memory_available(char *limit_out, size_t cap)
{
    const uint64_t system = cpu_system_memory_available();
    const uint64_t group = rdti_cgroup_memory_left("", limit_out, cap);

    if (group < system)
        return group;
    if (system == UINT64_MAX)
        (void)snprintf(limit_out, cap, "no bound known: /proc/meminfo has no MemAvailable");
    else
        (void)snprintf(limit_out, cap, "MemAvailable %" PRIu64, system);
    return system;
}
