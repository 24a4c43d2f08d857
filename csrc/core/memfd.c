/* SPDX-License-Identifier: Apache-2.0
 * Sealed memfds. */
#include "core/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/error.h"

/* Newer than the C library's headers may be; the values are the kernel's ABI. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif

/* Beyond RLIMIT_FSIZE ftruncate() does not only fail: it raises SIGXFSZ, which ends the process. */
static rdt_status
check_file_limit(uint64_t len_bytes, struct rdt_error *err)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_FSIZE, &limit) != 0)
        return rdti_error_set(err, RDT_EDEVICE, errno, "getrlimit(RLIMIT_FSIZE)");
    if (limit.rlim_cur == RLIM_INFINITY || len_bytes <= limit.rlim_cur)
        return RDT_OK;
    return rdti_error_set(
        err, RDT_ENOMEM, 0,
        "shared memory of %llu bytes: the bound that is the least is RLIMIT_FSIZE, "
        "%llu bytes; raise it (ulimit -f unlimited)",
        (unsigned long long)len_bytes, (unsigned long long)limit.rlim_cur);
}

rdt_status
rdti_memfd_create(const char *name, uint64_t len_bytes, unsigned mfd_flags, int *fd_out,
                  struct rdt_error *err)
{
    rdt_status status = check_file_limit(len_bytes, err);

    if (status != RDT_OK)
        return status;
    const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | mfd_flags);

    if (fd < 0) {
        const int sys_errno = errno;
        const char *hint = sys_errno == EMFILE ? "; raise RLIMIT_NOFILE (ulimit -n)" : "";

        return rdti_error_set(err, RDT_EDEVICE, sys_errno, "memfd_create(\"%s\", 0x%x)%s", name,
                              MFD_CLOEXEC | MFD_ALLOW_SEALING | mfd_flags, hint);
    }
    if (ftruncate(fd, (off_t)len_bytes) != 0) {
        status = rdti_error_set(err, RDT_EDEVICE, errno, "ftruncate(memfd \"%s\", %llu)", name,
                                (unsigned long long)len_bytes);
        (void)close(fd);
        return status;
    }
    *fd_out = fd;
    return RDT_OK;
}

rdt_status
rdti_memfd_seal(int fd, bool is_private_write, struct rdt_error *err)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW;

    if (is_private_write && fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0 && errno != EINVAL)
        return rdti_error_set(err, RDT_EDEVICE, errno, "fcntl(F_ADD_SEALS, F_SEAL_FUTURE_WRITE)");
    if (fcntl(fd, F_ADD_SEALS, seals | F_SEAL_SEAL) != 0)
        return rdti_error_set(err, RDT_EDEVICE, errno, "fcntl(F_ADD_SEALS, 0x%x)",
                              seals | F_SEAL_SEAL);
    return RDT_OK;
}

/*
 * For kernels before 5.14: fallocate() gets the pages, with an errno where there are none; the
 * touch then only fills our page table (a read: the mapping is shared and writable, so it maps for
 * both). Other threads may be writing the same bytes, whose value does not matter here.
 */
__attribute__((no_sanitize("thread"))) static int
populate_by_hand(int fd, uint64_t off_bytes, const void *addr, uint64_t len_bytes)
{
    const volatile unsigned char *bytes = addr;
    const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);

    while (fallocate(fd, 0, (off_t)off_bytes, (off_t)len_bytes) != 0) {
        if (errno != EINTR)
            return errno;
    }
    for (uint64_t off = 0; off < len_bytes; off += page_bytes)
        (void)bytes[off];
    return 0;
}

int
rdti_memfd_populate(int fd, uint64_t off_bytes, void *addr, uint64_t len_bytes)
{
    while (madvise(addr, len_bytes, MADV_POPULATE_WRITE) != 0) {
        if (errno == EINVAL)
            return populate_by_hand(fd, off_bytes, addr, len_bytes);
        if (errno != EINTR)
            return errno;
    }
    return 0;
}
