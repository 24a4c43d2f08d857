/* SPDX-License-Identifier: Apache-2.0
 * Making, checking and mapping shared memory. */
#include "transport/shm/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/error.h"
#include "transport/shm/limits.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; older C libraries lack the name */
#endif

rdt_status
rdti_shm_memfd_create(const char *name, uint64_t len_bytes, int *fd_out, struct rdt_error *err)
{
    rdt_status status;

    const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return rdti_error_set(err, RDT_EDEVICE, errno, "memfd_create(%s)", name);
    if (ftruncate(fd, (off_t)len_bytes) != 0) {
        status = rdti_error_set(err, RDT_EDEVICE, errno, "ftruncate of memfd %s to %llu bytes",
                                name, (unsigned long long)len_bytes);
        goto err_close;
    }
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        status = rdti_error_set(err, RDT_EDEVICE, errno, "fcntl(F_ADD_SEALS) of memfd %s", name);
        goto err_close;
    }
    *fd_out = fd;
    return RDT_OK;

err_close:
    (void)close(fd);
    return status;
}

/* Seals and file system; the latter's block size. */
static rdt_status
check_kind(int fd, const char *what, int32_t peer_rank, bool may_be_huge, uint64_t *block_bytes_out,
           struct rdt_error *err)
{
    struct statfs fs;

    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0)
        return rdti_error_set_rank(err, RDT_EPROTO, peer_rank,
                                   "%s: descriptor is no memfd (F_GET_SEALS: errno %d)", what,
                                   errno);
    if ((seals & F_SEAL_SHRINK) == 0)
        return rdti_error_set_rank(err, RDT_EPROTO, peer_rank,
                                   "%s: memfd is not sealed against shrinking (seals 0x%x)", what,
                                   (unsigned)seals);
    if (fstatfs(fd, &fs) != 0)
        return rdti_error_set(err, RDT_EDEVICE, errno, "%s: fstatfs of the peer's memfd", what);
    if (fs.f_type != TMPFS_MAGIC && !(may_be_huge && fs.f_type == HUGETLBFS_MAGIC))
        return rdti_error_set_rank(err, RDT_EPROTO, peer_rank,
                                   "%s: memfd lies on file system 0x%lx, want tmpfs", what,
                                   (unsigned long)fs.f_type);
    *block_bytes_out = (uint64_t)fs.f_bsize;
    return RDT_OK;
}

static rdt_status
check_size(int fd, const char *what, int32_t peer_rank, uint64_t min_bytes, uint64_t max_bytes,
           uint64_t *size_out, struct rdt_error *err)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        return rdti_error_set(err, RDT_EDEVICE, errno, "%s: fstat of the peer's memfd", what);
    if (st.st_size < 0 || (uint64_t)st.st_size < min_bytes || (uint64_t)st.st_size > max_bytes)
        return rdti_error_set_rank(err, RDT_EPROTO, peer_rank,
                                   "%s: memfd has %lld bytes, want %llu to %llu", what,
                                   (long long)st.st_size, (unsigned long long)min_bytes,
                                   (unsigned long long)max_bytes);
    *size_out = (uint64_t)st.st_size;
    return RDT_OK;
}

rdt_status
rdti_shm_memfd_check(int fd, const char *what, int32_t peer_rank, uint64_t min_bytes,
                     uint64_t max_bytes, uint64_t *size_out, struct rdt_error *err)
{
    uint64_t block_bytes;

    const rdt_status status = check_kind(fd, what, peer_rank, false, &block_bytes, err);
    if (status != RDT_OK)
        return status;
    return check_size(fd, what, peer_rank, min_bytes, max_bytes, size_out, err);
}

rdt_status
rdti_shm_eventfd_check(int fd, int32_t peer_rank, struct rdt_error *err)
{
    static const char want[] = "anon_inode:[eventfd]";
    char path[64];
    char target[64];

    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    const ssize_t len = readlink(path, target, sizeof(target) - 1);
    if (len < 0)
        return rdti_error_set(err, RDT_ENOTVIABLE, errno,
                              "readlink(%s), to see what descriptor the peer gave", path);
    target[len] = '\0';
    const int flags = fcntl(fd, F_GETFL);
    if (strcmp(target, want) != 0 || flags < 0 || (flags & O_NONBLOCK) == 0)
        return rdti_error_set_rank(err, RDT_EPROTO, peer_rank,
                                   "offer: event descriptor is %s with flags 0x%x, want a "
                                   "non-blocking eventfd",
                                   target, (unsigned)flags);
    return RDT_OK;
}

rdt_status
rdti_shm_map(int fd, const char *what, uint64_t len_bytes, int prot, void **out,
             struct rdt_error *err)
{
    void *addr = mmap(NULL, len_bytes, prot, MAP_SHARED, fd, 0);

    /* EPERM: sealed against writing; nothing that our side could free would help. */
    if (addr == MAP_FAILED)
        return rdti_error_set(err, errno == EPERM ? RDT_EPROTO : RDT_ENOMEM, errno,
                              "%s: mmap of %llu bytes", what, (unsigned long long)len_bytes);
    *out = addr;
    return RDT_OK;
}

/* At a multiple of the huge page, so that the kernel may use one entry for each. */
static rdt_status
map_aligned(int fd, uint64_t len_bytes, void **out, struct rdt_error *err)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t whole = (len_bytes + page - 1) / page * page;

    if (len_bytes < SHM_HUGE_PAGE_BYTES)
        return rdti_shm_map(fd, "segment", len_bytes, PROT_READ | PROT_WRITE, out, err);
    const uint64_t span = whole + SHM_HUGE_PAGE_BYTES;
    char *base = mmap(NULL, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return rdti_error_set(err, RDT_ENOMEM, errno,
                              "segment: no address space for %llu bytes (ulimit -v)",
                              (unsigned long long)span);
    const uint64_t skip =
        (SHM_HUGE_PAGE_BYTES - (uintptr_t)base % SHM_HUGE_PAGE_BYTES) % SHM_HUGE_PAGE_BYTES;
    char *addr = base + skip;
    if (mmap(addr, len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
        MAP_FAILED) {
        const int saved = errno;
        (void)munmap(base, span);
        return rdti_error_set(err, saved == EPERM ? RDT_EPROTO : RDT_ENOMEM, saved,
                              "segment: mmap of %llu bytes", (unsigned long long)len_bytes);
    }
    if (skip > 0)
        (void)munmap(base, skip);
    (void)munmap(addr + whole, span - skip - whole); /* never empty: skip is below a huge page */
    *out = addr;
    return RDT_OK;
}

rdt_status
rdti_shm_map_segment(int fd, int32_t peer_rank, uint64_t len_bytes, void **out,
                     struct rdt_error *err)
{
    uint64_t block_bytes = 0;
    uint64_t size;
    void *addr = NULL;

    rdt_status status = check_kind(fd, "segment", peer_rank, true, &block_bytes, err);
    if (status == RDT_OK)
        status = check_size(fd, "segment", peer_rank, len_bytes, UINT64_MAX, &size, err);
    if (status != RDT_OK)
        return status;
    /* Of huge pages, mappings have whole ones only. */
    if (len_bytes == 0 || block_bytes > SHM_HUGE_PAGE_BYTES ||
        (block_bytes > (uint64_t)sysconf(_SC_PAGESIZE) && len_bytes % block_bytes != 0))
        return rdti_error_set_rank(err, RDT_EPROTO, peer_rank,
                                   "segment of %llu bytes in pages of %llu",
                                   (unsigned long long)len_bytes, (unsigned long long)block_bytes);
    status = map_aligned(fd, len_bytes, &addr, err);
    if (status != RDT_OK)
        return status;
    (void)madvise(addr, len_bytes, MADV_DONTDUMP); /* a smaller core file is all that it is for */
    *out = addr;
    return RDT_OK;
}

rdt_status
rdti_shm_populate(void *addr, uint64_t len_bytes, struct rdt_error *err)
{
    /* A signal ends the call in the middle; what is populated stays, so each try gets further. */
    for (int tries = 0; madvise(addr, len_bytes, MADV_POPULATE_WRITE) != 0; tries++) {
        if (errno == EINVAL) /* before Linux 5.14: the pages come by ordinary faults */
            return RDT_OK;
        if ((errno != EINTR && errno != EAGAIN) || tries == 1000)
            return rdti_error_set(err, RDT_ENOMEM, errno,
                                  "madvise(MADV_POPULATE_WRITE) of %llu shared bytes",
                                  (unsigned long long)len_bytes);
    }
    return RDT_OK;
}

rdt_status
rdti_shm_viable(struct rdt_error *err)
{
    struct rdt_error why;
    void *addr = NULL;
    int fd = -1;

    rdt_status status = rdti_shm_memfd_create("rdmatensor-probe", SHM_RING_BYTES, &fd, &why);
    if (status == RDT_OK) {
        status = rdti_shm_map(fd, "probe", SHM_RING_BYTES, PROT_READ | PROT_WRITE, &addr, &why);
        if (status == RDT_OK)
            (void)munmap(addr, SHM_RING_BYTES);
        (void)close(fd);
    }
    if (status == RDT_OK)
        return RDT_OK;
    return rdti_error_set(err, RDT_ENOTVIABLE, 0, "shm needs sealed memfds: %s", why.message);
}
