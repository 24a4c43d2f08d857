/* SPDX-License-Identifier: Apache-2.0
 * A process that may lock only so much memory, also where the tests run as root. */
#ifndef RDT_TESTS_MEMLOCK_H
#define RDT_TESTS_MEMLOCK_H

#include <linux/capability.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "harness.h"

/* For the rest of this process. */
static inline void
verbs_limit_memlock(uint64_t limit_bytes)
{
    const struct rlimit limit = {.rlim_cur = limit_bytes, .rlim_max = limit_bytes};
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[2];

    CHECK_INT_EQ(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    CHECK_INT_EQ(syscall(SYS_capget, &head, caps), 0);
    caps[CAP_TO_INDEX(CAP_IPC_LOCK)].effective &= ~CAP_TO_MASK(CAP_IPC_LOCK);
    CHECK_INT_EQ(syscall(SYS_capset, &head, caps), 0);
}

#endif
