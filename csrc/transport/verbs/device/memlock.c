/* SPDX-License-Identifier: Apache-2.0
 * The limit on memory that a process may lock, as devices need. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/error.h"
#include "transport/verbs/device/device.h"

#define CAP_IPC_LOCK_BIT 14

static bool
memlock_has_capability(void)
{
    FILE *status = fopen("/proc/self/status", "re");
    char line[256];
    uint64_t caps = 0;

    if (status == NULL)
        return false;
    while (fgets(line, sizeof(line), status) != NULL)
        if (strncmp(line, "CapEff:", 7) == 0) {
            caps = strtoull(line + 7, NULL, 16);
            break;
        }
    (void)fclose(status);
    return (caps >> CAP_IPC_LOCK_BIT & 1) != 0;
}

rdt_status
rdti_verbs_memlock_error(uint64_t len_bytes, int sys_errno, struct rdt_error *err)
{
    return rdti_error_set(err, RDT_ENOMEM, sys_errno,
                          "%llu bytes cannot be locked for the device: RLIMIT_MEMLOCK is "
                          "%llu. " RDTI_VERBS_MEMLOCK_CURE,
                          (unsigned long long)len_bytes,
                          (unsigned long long)rdti_verbs_memlock_limit());
}

uint64_t
rdti_verbs_memlock_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    return limit.rlim_cur;
}

bool
rdti_verbs_is_memlock_short(int sys_errno)
{
    return sys_errno == ENOMEM && rdti_verbs_memlock_limit() != UINT64_MAX &&
           !memlock_has_capability();
}

rdt_status
rdti_verbs_check_memlock(uint64_t len_bytes, struct rdt_error *err)
{
    const uint64_t limit = rdti_verbs_memlock_limit();

    return limit >= len_bytes || memlock_has_capability()
               ? RDT_OK
               : rdti_verbs_memlock_error(len_bytes, 0, err);
}
