/* SPDX-License-Identifier: Apache-2.0
 * A forked child shares our mappings and descriptors but none of our threads: in it the library is
 * switched off, and our sockets are closed there at once, so that a worker that outlives its parent
 * does not hide the parent's death from the peers. */
#ifndef RDTI_BASE_FORK_H
#define RDTI_BASE_FORK_H

#include <stdbool.h>

/* Register the fork handlers once per process; safe to call again, any thread. */
void rdti_fork_guard(void);

/* True in a child forked after rdti_fork_guard(), or after any later fork. Cheap: one load. */
bool rdti_in_forked_child(void);

/* Descriptors to close in every forked child. Any thread; at most RDTI_FORK_FDS_MAX at a time, then
 * false. */
bool rdti_fork_close_add(int fd);
void rdti_fork_close_remove(int fd);

#endif
