/* SPDX-License-Identifier: Apache-2.0
 * What the control groups of this process, version 1 or 2, leave to it. A file that is missing or
 * cannot be read sets no bound: controllers are absent where nobody limits anything. */
#ifndef RDTI_BASE_CGROUP_H
#define RDTI_BASE_CGROUP_H

#include <stddef.h>
#include <stdint.h>

/*
 * `root` stands before every path that is read (/proc/self/cgroup, /proc/self/mountinfo and the
 * files that these name): "" for the system, a directory of planted files in tests.
 */

/* CPU time per wall time in thousandths of a CPU, the least of all ancestors; UINT64_MAX: no quota.
 */
uint64_t rdti_cgroup_cpu_millis(const char *root);

/*
 * Bytes that the memory cgroups leave, clean page cache counted as free, the least of all
 * ancestors; UINT64_MAX: no limit. limit_out (cap > 0) then names the group that leaves the least.
 */
uint64_t rdti_cgroup_memory_left(const char *root, char *limit_out, size_t cap);

#endif
