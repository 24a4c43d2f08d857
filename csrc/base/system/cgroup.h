/* SPDX-License-Identifier: Apache-2.0
 * CPU time and memory that the control groups (v1 or v2) leave to this process. A file that is
 * missing or unreadable sets no bound: a controller is absent where no limit is set. */
#ifndef RDTI_BASE_SYSTEM_CGROUP_H
#define RDTI_BASE_SYSTEM_CGROUP_H

#include <stddef.h>
#include <stdint.h>

/*
 * `root` is prefixed to every path that is read (/proc/self/cgroup, /proc/self/mountinfo and the
 * files that these name): "" for the system, a directory of fake files in tests.
 */

/* CPU quota in thousandths of a CPU, the minimum over all ancestors; UINT64_MAX: no quota. */
uint64_t rdti_cgroup_cpu_millis(const char *root);

/*
 * Bytes that the memory cgroups leave, the minimum over all ancestors; UINT64_MAX: no limit. Clean
 * page cache counts as free. limit_out (cap > 0) then names the group that leaves the least.
 */
uint64_t rdti_cgroup_memory_left(const char *root, char *limit_out, size_t cap);

#endif
