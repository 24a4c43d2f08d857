/* SPDX-License-Identifier: Apache-2.0
 *
 * Preloaded before every other library: once corrupt_next() was called, the next recv() or
 * recvmsg() of this process that takes many bytes gives one bit of them wrong, as a bad network
 * card would whose checksums match. Built by test_verify.py.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

/* Payload of the tests is far larger than any head. */
enum { FROM_BYTES = 20000 };

static _Atomic int is_armed;

void
corrupt_next(void)
{
    atomic_store(&is_armed, 1);
}

static void
corrupt(void *bytes, size_t len_bytes)
{
    if (len_bytes >= FROM_BYTES && atomic_exchange(&is_armed, 0) != 0)
        ((uint8_t *)bytes)[len_bytes / 2] ^= 0x04;
}

ssize_t
recv(int fd, void *buf, size_t len, int flags)
{
    ssize_t (*real)(int, void *, size_t, int) =
        (ssize_t (*)(int, void *, size_t, int))dlsym(RTLD_NEXT, "recv");
    const ssize_t got = real(fd, buf, len, flags);

    if (got > 0)
        corrupt(buf, (size_t)got);
    return got;
}

ssize_t
recvmsg(int fd, struct msghdr *msg, int flags)
{
    ssize_t (*real)(int, struct msghdr *, int) =
        (ssize_t (*)(int, struct msghdr *, int))dlsym(RTLD_NEXT, "recvmsg");
    const ssize_t got = real(fd, msg, flags);

    if (got > 0 && msg->msg_iovlen > 0) {
        const size_t first = msg->msg_iov[0].iov_len;
        corrupt(msg->msg_iov[0].iov_base, (size_t)got < first ? (size_t)got : first);
    }
    return got;
}
