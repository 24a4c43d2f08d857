/* SPDX-License-Identifier: Apache-2.0
 * Memfds; the header has the rules. */
#include "base/memory/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/error.h"

/* The C library's headers may be older; the values are the kernel's ABI. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif

/* Number of EAGAIN results after which the error is returned. */
#define POPULATE_TRIES 1000

/* Pages that one system call touches, 1 MiB of memory; it takes 4 KiB of iovecs on the stack. */
#define PAGES_AT_ONCE 256

/* ---- Own memfds ---------------------------------------------------------------------------- */

/* Checked first: beyond RLIMIT_FSIZE ftruncate() raises SIGXFSZ, which ends the process. */
static rdt_status
memfd_check_file_limit(uint64_t len_bytes, struct rdt_error *err)
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

/* With sysctl vm.memfd_noexec = 2 the kernel refuses a memfd that may become executable. Kernels
 * older than the flag refuse the flag as invalid. */
static int
memfd_create_noexec(const char *name, unsigned flags)
{
    const int fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);

    return fd < 0 && errno == EINVAL ? memfd_create(name, flags) : fd;
}

rdt_status
rdti_memfd_create(const char *name, uint64_t len_bytes, unsigned mfd_flags, int *fd_out,
                  struct rdt_error *err)
{
    const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | mfd_flags;
    rdt_status status = memfd_check_file_limit(len_bytes, err);

    if (status != RDT_OK)
        return status;
    const int fd = memfd_create_noexec(name, flags);
    if (fd < 0)
        return rdti_error_set(err, RDT_EDEVICE, errno, "memfd_create(\"%s\", 0x%x)", name, flags);
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
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

    if (is_private_write && fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0 && errno != EINVAL)
        return rdti_error_set(err, RDT_EDEVICE, errno, "fcntl(F_ADD_SEALS, F_SEAL_FUTURE_WRITE)");
    if (fcntl(fd, F_ADD_SEALS, seals) != 0)
        return rdti_error_set(err, RDT_EDEVICE, errno, "fcntl(F_ADD_SEALS, 0x%x)", (unsigned)seals);
    return RDT_OK;
}

rdt_status
rdti_memfd_create_sealed(const char *name, uint64_t len_bytes, unsigned mfd_flags, int *fd_out,
                         struct rdt_error *err)
{
    int fd = -1;
    rdt_status status = rdti_memfd_create(name, len_bytes, mfd_flags, &fd, err);

    if (status != RDT_OK)
        return status;
    status = rdti_memfd_seal(fd, false, err);
    if (status != RDT_OK) {
        (void)close(fd);
        return status;
    }
    *fd_out = fd;
    return RDT_OK;
}

/* ---- Memfds of another process ------------------------------------------------------------- */

/* Checks seals and file system; outputs what they say. */
static rdt_status
memfd_check_kind(int fd, const struct rdti_memfd_want *want, struct rdti_memfd_found *out,
                 struct rdt_error *err)
{
    struct statfs fs;

    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0)
        return rdti_error_set_rank(err, RDT_EPROTO, want->peer_rank,
                                   "%s: descriptor is not a memfd (F_GET_SEALS: errno %d)",
                                   want->what, errno);
    if ((seals & F_SEAL_SHRINK) == 0)
        return rdti_error_set_rank(err, RDT_EPROTO, want->peer_rank,
                                   "%s: memfd is not sealed against shrinking (seals 0x%x)",
                                   want->what, (unsigned)seals);
    if (fstatfs(fd, &fs) != 0)
        return rdti_error_set(err, RDT_EDEVICE, errno, "%s: fstatfs of the peer's memfd",
                              want->what);
    if (fs.f_type != TMPFS_MAGIC && !(want->may_be_huge && fs.f_type == HUGETLBFS_MAGIC))
        return rdti_error_set_rank(err, RDT_EPROTO, want->peer_rank,
                                   "%s: memfd lies on file system 0x%lx, want tmpfs", want->what,
                                   (unsigned long)fs.f_type);
    out->page_bytes = (uint64_t)fs.f_bsize;
    out->is_read_only = (seals & F_SEAL_FUTURE_WRITE) != 0;
    return RDT_OK;
}

rdt_status
rdti_memfd_check(int fd, const struct rdti_memfd_want *want, struct rdti_memfd_found *out,
                 struct rdt_error *err)
{
    struct rdti_memfd_found found = {0};
    struct stat st;

    const rdt_status status = memfd_check_kind(fd, want, &found, err);
    if (status != RDT_OK)
        return status;
    if (fstat(fd, &st) != 0)
        return rdti_error_set(err, RDT_EDEVICE, errno, "%s: fstat of the peer's memfd", want->what);
    if (st.st_size < 0 || (uint64_t)st.st_size < want->min_bytes ||
        (uint64_t)st.st_size > want->max_bytes)
        return rdti_error_set_rank(err, RDT_EPROTO, want->peer_rank,
                                   "%s: memfd has %lld bytes, want %llu to %llu", want->what,
                                   (long long)st.st_size, (unsigned long long)want->min_bytes,
                                   (unsigned long long)want->max_bytes);
    found.len_bytes = (uint64_t)st.st_size;
    *out = found;
    return RDT_OK;
}

/* ---- Mapping ------------------------------------------------------------------------------- */

/* EPERM: the peer sealed it against writing, so freeing memory would not help. */
static rdt_status
memfd_mmap_error(struct rdt_error *err, int sys_errno, const char *what, uint64_t len_bytes)
{
    return rdti_error_set(err, sys_errno == EPERM ? RDT_EPROTO : RDT_ENOMEM, sys_errno,
                          "%s: mmap of %llu bytes", what, (unsigned long long)len_bytes);
}

rdt_status
rdti_memfd_map(int fd, const char *what, uint64_t len_bytes, int prot, void **out,
               struct rdt_error *err)
{
    void *addr = mmap(NULL, len_bytes, prot, MAP_SHARED, fd, 0);

    if (addr == MAP_FAILED)
        return memfd_mmap_error(err, errno, what, len_bytes);
    *out = addr;
    return RDT_OK;
}

rdt_status
rdti_memfd_map_aligned(int fd, const char *what, uint64_t len_bytes, uint64_t align_bytes,
                       void **out, struct rdt_error *err)
{
    const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t whole_bytes = (len_bytes + page_bytes - 1) / page_bytes * page_bytes;
    const uint64_t span_bytes = whole_bytes + align_bytes;
    char *span =
        mmap(NULL, span_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (span == MAP_FAILED)
        return rdti_error_set(err, RDT_ENOMEM, errno,
                              "%s: no address space for %llu bytes: the bound that is the least is "
                              "RLIMIT_AS; raise it (ulimit -v unlimited)",
                              what, (unsigned long long)span_bytes);
    const uint64_t past_bytes = (uintptr_t)span % align_bytes;
    const uint64_t head_bytes = past_bytes == 0 ? 0 : align_bytes - past_bytes;
    char *addr =
        mmap(span + head_bytes, len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);

    if (addr == MAP_FAILED) {
        const int sys_errno = errno;

        (void)munmap(span, span_bytes);
        return memfd_mmap_error(err, sys_errno, what, len_bytes);
    }
    if (head_bytes > 0)
        (void)munmap(span, head_bytes);
    (void)munmap(addr + whole_bytes, align_bytes - head_bytes); /* never empty */
    *out = addr;
    return RDT_OK;
}

int
rdti_memfd_populate_mapped(void *addr, uint64_t len_bytes)
{
    int tries = 0;

    while (madvise(addr, len_bytes, MADV_POPULATE_WRITE) != 0) {
        if (errno == EINTR) /* populated pages stay, so each try makes progress */
            continue;
        if (errno != EAGAIN || ++tries == POPULATE_TRIES)
            return errno;
    }
    return 0;
}

/*
 * Fills the page table of this process. As the mapping is shared and writable, this serves reads
 * and writes. The kernel reads a byte of each page: a load in this process would race with threads
 * that write the same bytes. If the kernel refuses, as in some containers, each page faults at its
 * first use.
 */
static void
memfd_fill_page_table(uint8_t *addr, uint64_t len_bytes)
{
    const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    uint8_t sink[PAGES_AT_ONCE];
    struct iovec pages[PAGES_AT_ONCE];
    uint64_t off = 0;

    while (off < len_bytes) {
        unsigned long count = 0;
        for (; count < PAGES_AT_ONCE && off < len_bytes; off += page_bytes)
            pages[count++] = (struct iovec){.iov_base = addr + off, .iov_len = 1};
        const struct iovec all = {.iov_base = sink, .iov_len = count};
        if (process_vm_readv(getpid(), &all, 1, pages, count, 0) != (ssize_t)count)
            return;
    }
}

/* For kernels before 5.14: fallocate() allocates the pages, or fails with an errno. */
static int
memfd_populate_by_hand(int fd, uint64_t off_bytes, void *addr, uint64_t len_bytes)
{
    while (fallocate(fd, 0, (off_t)off_bytes, (off_t)len_bytes) != 0) {
        if (errno != EINTR)
            return errno;
    }
    memfd_fill_page_table(addr, len_bytes);
    return 0;
}

int
rdti_memfd_populate(int fd, uint64_t off_bytes, void *addr, uint64_t len_bytes)
{
    const int sys_errno = rdti_memfd_populate_mapped(addr, len_bytes);

    return sys_errno == EINVAL ? memfd_populate_by_hand(fd, off_bytes, addr, len_bytes) : sys_errno;
}
