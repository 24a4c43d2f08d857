/* SPDX-License-Identifier: Apache-2.0
 * Errors by which the kernel forbids access to another process's memory: ptrace rights (EPERM,
 * EACCES) or a system call filter (ENOSYS, EPERM). The other process may still run. */
#ifndef RDTI_BASE_SYSTEM_PERMIT_H
#define RDTI_BASE_SYSTEM_PERMIT_H

#include <errno.h>
#include <stdbool.h>

static inline bool
rdti_is_forbidden(int sys_errno)
{
    return sys_errno == EPERM || sys_errno == EACCES || sys_errno == ENOSYS;
}

#endif
