/* SPDX-License-Identifier: Apache-2.0
 * futex(2) without FUTEX_PRIVATE_FLAG: the words lie in memory that processes share. */
#include "base/system/futex.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void
rdti_futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t timeout_ns)
{
    const int saved_errno = errno;
    const struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / UINT64_C(1000000000)),
                                     .tv_nsec = (long)(timeout_ns % UINT64_C(1000000000))};

    if (timeout_ns == 0)
        return;
    if (syscall(SYS_futex, word, FUTEX_WAIT, expected, &timeout, NULL, 0) != 0) {
        /* Anything else would be a word that is unmapped or misaligned. */
        assert(errno == EAGAIN || errno == EINTR || errno == ETIMEDOUT);
        errno = saved_errno;
    }
}

void
rdti_futex_wake(_Atomic uint32_t *word, uint32_t count)
{
    const int saved_errno = errno;
    const int at_most = count > (uint32_t)INT_MAX ? INT_MAX : (int)count;

    if (syscall(SYS_futex, word, FUTEX_WAKE, at_most, NULL, NULL, 0) < 0) {
        assert(errno == EAGAIN || errno == EINTR); /* see rdti_futex_wait() */
        errno = saved_errno;
    }
}
