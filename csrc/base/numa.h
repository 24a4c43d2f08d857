/* SPDX-License-Identifier: Apache-2.0
 * On which NUMA nodes memory of this process lies, and of which its CPUs are, as the kernel tells.
 * For describe(), not for the data path: the kernel walks the page tables of the whole process. */
#ifndef RDTI_BASE_NUMA_H
#define RDTI_BASE_NUMA_H

#include <stdbool.h>
#include <stdint.h>

/* One more than the highest number of a node: CONFIG_NODES_SHIFT is 10 at most. */
#define RDTI_NUMA_NODES 1024

/*
 * `root` stands before every path that is read (/proc/self/numa_maps, /proc/self/status,
 * /sys/devices/system/node): "" for the system, a directory of planted files in tests.
 *
 * Both return 0 or an errno, and leave their outputs alone then: of a file that cannot be read (a
 * kernel without NUMA has none), EBADMSG for one that says what is not understood.
 */

/* Bytes in memory by node, of all mappings whose first address is_ours() takes. */
int rdti_numa_bytes(const char *root, bool (*is_ours)(void *user, uintptr_t addr), void *user,
                    uint64_t bytes_out[RDTI_NUMA_NODES]);

/* The nodes that have CPUs on which this process may run. */
int rdti_numa_cpu_nodes(const char *root, bool nodes_out[RDTI_NUMA_NODES]);

#endif
