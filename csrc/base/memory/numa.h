/* SPDX-License-Identifier: Apache-2.0
 * The NUMA nodes of this process's memory and CPUs, as the kernel reports them. For describe(), not
 * for the data path: the kernel walks the page tables of the whole process. */
#ifndef RDTI_BASE_MEMORY_NUMA_H
#define RDTI_BASE_MEMORY_NUMA_H

#include <stdbool.h>
#include <stdint.h>

/* One more than the highest node number: CONFIG_NODES_SHIFT is at most 10. */
#define RDTI_NUMA_NODES 1024

/*
 * `root` is prefixed to every path that is read (/proc/self/numa_maps, /proc/self/status,
 * /sys/devices/system/node): "" for the system, a directory of fake files in tests.
 *
 * Both return 0 or an errno, and do not change their outputs on failure. The errno is that of a
 * file that cannot be read (a kernel without NUMA has none), or EBADMSG for unknown contents.
 */

/* Bytes in memory by node, of all mappings whose first address is_ours() accepts. */
int rdti_numa_bytes(const char *root, bool (*is_ours)(void *user, uintptr_t addr), void *user,
                    uint64_t bytes_out[RDTI_NUMA_NODES]);

/* The nodes that have CPUs on which this process may run. */
int rdti_numa_cpu_nodes(const char *root, bool nodes_out[RDTI_NUMA_NODES]);

#endif
