/* SPDX-License-Identifier: Apache-2.0
 * A forked child shares the parent's mappings and descriptors but none of its threads, so the
 * library is disabled in the child. The child closes the library's sockets at once: a worker that
 * outlives its parent would otherwise hide the parent's death from the peers. */
#ifndef RDTI_BASE_SYSTEM_FORK_H
#define RDTI_BASE_SYSTEM_FORK_H

#include <stdbool.h>

/* Register the fork handlers once per process; safe to call again, any thread. */
void rdti_fork_guard(void);

/* True in a child forked after rdti_fork_guard(), or after any later fork. Cheap: one load. */
bool rdti_in_forked_child(void);

/* Descriptors to close in every forked child. False for a number of RDTI_FORK_FDS_MAX or more. Any
 * thread. */
bool rdti_fork_close_add(int fd);
void rdti_fork_close_remove(int fd);

#endif
