/* SPDX-License-Identifier: Apache-2.0
 * Memfds: made with their seals, checked when they come from a peer, mapped with room around. */
#include "base/memory/memfd.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "harness.h"
#include "seccomp_errno.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#ifndef F_SEAL_EXEC
#define F_SEAL_EXEC 0x0020
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define KIB UINT64_C(1024)
#define MIB (UINT64_C(1024) * KIB)
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* In place of the C library's, for what the kernel of the machine does not do. */
static enum { KERNEL_OWN, KERNEL_BEFORE_6_3, KERNEL_NOEXEC_2 } kernel;

int
memfd_create(const char *name, unsigned flags)
{
    const bool is_noexec = (flags & MFD_NOEXEC_SEAL) != 0;

    if ((kernel == KERNEL_BEFORE_6_3 && is_noexec) || (kernel == KERNEL_NOEXEC_2 && !is_noexec)) {
        errno = is_noexec ? EINVAL : EACCES;
        return -1;
    }
    const int fd = (int)syscall(SYS_memfd_create, name, flags);
    if (fd < 0 && errno == EINVAL && kernel == KERNEL_NOEXEC_2)
        return (int)syscall(SYS_memfd_create, name, flags & ~MFD_NOEXEC_SEAL);
    return fd;
}

/* Without the one that says that the kernel knows files that can never be executed. */
static int
seals_of(int fd)
{
    const int seals = fcntl(fd, F_GET_SEALS);

    return seals < 0 ? seals : seals & ~F_SEAL_EXEC;
}

static int
sealed(uint64_t len_bytes)
{
    struct rdt_error err;
    int fd = -1;

    CHECK_OK(rdti_memfd_create_sealed("test", len_bytes, 0, &fd, &err), &err);
    return fd;
}

/* ---- Ours ---------------------------------------------------------------------------------- */

TEST(a_sealed_memfd_keeps_its_size)
{
    struct stat st;
    const int fd = sealed(12 * KIB);

    CHECK_INT_EQ(seals_of(fd), SEALS);
    CHECK_INT_EQ(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    CHECK_INT_EQ(fstat(fd, &st), 0);
    CHECK_INT_EQ(st.st_size, 12 * KIB);
    CHECK_INT_EQ(st.st_blocks, 0); /* nothing in memory yet */
    CHECK_INT_EQ(ftruncate(fd, 8 * KIB), -1);
    CHECK_INT_EQ(errno, EPERM);
    CHECK_INT_EQ(ftruncate(fd, 16 * KIB), -1);
    CHECK_INT_EQ(errno, EPERM);
    CHECK_INT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    CHECK_INT_EQ(errno, EPERM);
    (void)close(fd);
}

TEST(a_memfd_is_made_where_executable_ones_are_refused_and_on_old_kernels)
{
    struct rdt_error err;
    int fd = -1;

    kernel = KERNEL_NOEXEC_2;
    CHECK_OK(rdti_memfd_create_sealed("test", 4 * KIB, 0, &fd, &err), &err);
    (void)close(fd);
    kernel = KERNEL_BEFORE_6_3;
    CHECK_OK(rdti_memfd_create_sealed("test", 4 * KIB, 0, &fd, &err), &err);
    CHECK_INT_EQ(fcntl(fd, F_GET_SEALS), SEALS);
    (void)close(fd);
    kernel = KERNEL_OWN;
}

TEST(a_private_memfd_takes_no_other_writer)
{
    struct rdt_error err;
    void *ours = NULL;
    void *theirs = NULL;
    int fd = -1;

    CHECK_OK(rdti_memfd_create("test", 4 * KIB, 0, &fd, &err), &err);
    CHECK_INT_EQ(seals_of(fd), 0);
    CHECK_OK(rdti_memfd_map(fd, "ours", 4 * KIB, PROT_READ | PROT_WRITE, &ours, &err), &err);
    CHECK_OK(rdti_memfd_seal(fd, true, &err), &err);
    CHECK_INT_EQ(seals_of(fd), SEALS | F_SEAL_FUTURE_WRITE);
    CHECK_STATUS(rdti_memfd_map(fd, "theirs", 4 * KIB, PROT_READ | PROT_WRITE, &theirs, &err),
                 RDT_EPROTO);
    CHECK_INT_EQ(err.sys_errno, EPERM);
    CHECK_STR_CONTAINS(err.message, "theirs: mmap of 4096 bytes");
    CHECK_NULL(theirs);
    CHECK_OK(rdti_memfd_map(fd, "theirs", 4 * KIB, PROT_READ, &theirs, &err), &err);
    *(volatile char *)ours = 7; /* what was there stays */
    CHECK_INT_EQ(*(volatile char *)theirs, 7);
    (void)munmap(ours, 4 * KIB);
    (void)munmap(theirs, 4 * KIB);
    (void)close(fd);
}

TEST(a_failure_names_the_call_and_leaves_nothing)
{
    static const char too_long[300] = {[0 ... 298] = 'n'}; /* memfd_create(2): 249 at most */
    struct rlimit limit;
    struct rdt_error err;
    int fd = -5;
    const int free_fd = dup(0);

    CHECK_INT_GE(free_fd, 0);
    (void)close(free_fd);
    CHECK_STATUS(rdti_memfd_create(too_long, 4 * KIB, 0, &fd, &err), RDT_EDEVICE);
    CHECK_INT_EQ(err.sys_errno, EINVAL);
    CHECK_STR_CONTAINS(err.message, "memfd_create(\"nnn");
    CHECK_STATUS(rdti_memfd_create_sealed("test", UINT64_MAX, 0, &fd, &err), RDT_EDEVICE);
    CHECK_STR_CONTAINS(err.message, "ftruncate(memfd \"test\", 18446744073709551615)");
    CHECK_STATUS(rdti_memfd_seal(-1, false, &err), RDT_EDEVICE);
    CHECK_INT_EQ(err.sys_errno, EBADF);
    CHECK_STR_CONTAINS(err.message, "fcntl(F_ADD_SEALS");

    CHECK_INT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = 4 * KIB;
    CHECK_INT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0); /* beyond it, the kernel would end us */
    CHECK_STATUS(rdti_memfd_create("test", 8 * KIB, 0, &fd, &err), RDT_ENOMEM);
    CHECK_STR_CONTAINS(err.message, "RLIMIT_FSIZE");
    CHECK_INT_EQ(fd, -5);
    const int next_fd = dup(0);
    CHECK_INT_EQ(next_fd, free_fd); /* none was leaked */
    (void)close(next_fd);
}

TEST(too_many_descriptors_come_with_a_hint)
{
    struct rlimit limit;
    struct rdt_error err;
    int fd = -5;

    CHECK_INT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    const struct rlimit low = {.rlim_cur = 0, .rlim_max = limit.rlim_max};
    CHECK_INT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    const rdt_status status = rdti_memfd_create("test", 4 * KIB, 0, &fd, &err);
    CHECK_INT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    CHECK_STATUS(status, RDT_EDEVICE);
    CHECK_INT_EQ(err.sys_errno, EMFILE);
    CHECK_STR_CONTAINS(err.message, "RLIMIT_NOFILE");
}

/* ---- Another process's --------------------------------------------------------------------- */

static const struct rdti_memfd_want want_page = {.what = "thing",
                                                 .peer_rank = 3,
                                                 .min_bytes = 4096,
                                                 .max_bytes = 8192};

/* Closes fd. */
static void
expect_refused(int fd, const struct rdti_memfd_want *want, const char *why)
{
    const struct rdti_memfd_found untouched = {1, 2, true};
    struct rdti_memfd_found found = untouched;
    struct rdt_error err;

    CHECK_STATUS(rdti_memfd_check(fd, want, &found, &err), RDT_EPROTO);
    CHECK_STR_CONTAINS(err.message, "thing: ");
    CHECK_STR_CONTAINS(err.message, why);
    CHECK_INT_EQ(err.peer_rank, 3);
    CHECK_MEM_EQ(&found, &untouched, sizeof(found));
    if (fd >= 0)
        (void)close(fd);
}

static int
memfd_with(uint64_t len_bytes, int seals)
{
    struct rdt_error err;
    int fd = -1;

    CHECK_OK(rdti_memfd_create("test", len_bytes, 0, &fd, &err), &err);
    CHECK_INT_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

TEST(check_takes_what_cannot_shrink_and_has_the_size)
{
    static const uint64_t lens_bytes[] = {4096, 4097, 8192};

    for (size_t i = 0; i < sizeof(lens_bytes) / sizeof(lens_bytes[0]); i++) {
        struct rdti_memfd_found found = {0};
        struct rdt_error err;
        const int fd = memfd_with(lens_bytes[i], F_SEAL_SHRINK);

        CHECK_OK(rdti_memfd_check(fd, &want_page, &found, &err), &err);
        CHECK_UINT_EQ(found.len_bytes, lens_bytes[i]);
        CHECK_UINT_EQ(found.page_bytes, (uint64_t)sysconf(_SC_PAGESIZE));
        (void)close(fd);
    }
}

TEST(check_refuses_everything_else)
{
    int ends[2];

    CHECK_INT_EQ(pipe(ends), 0);
    (void)close(ends[1]);
    expect_refused(-1, &want_page, "not a memfd");
    expect_refused(ends[0], &want_page, "not a memfd");
    expect_refused(eventfd(0, EFD_CLOEXEC), &want_page, "not a memfd");
    expect_refused(open("/proc/self/exe", O_RDONLY | O_CLOEXEC), &want_page, "not a memfd");
    expect_refused(memfd_with(4096, 0), &want_page, "not sealed against shrinking");
    expect_refused(memfd_with(4096, F_SEAL_GROW | F_SEAL_SEAL), &want_page,
                   "not sealed against shrinking");
    expect_refused(memfd_with(4095, F_SEAL_SHRINK), &want_page, "4095 bytes, want 4096 to 8192");
    expect_refused(memfd_with(8193, F_SEAL_SHRINK), &want_page, "8193 bytes, want 4096 to 8192");
    expect_refused(memfd_with(0, F_SEAL_SHRINK), &want_page, "0 bytes");
}

TEST(check_takes_huge_pages_only_where_they_may_be)
{
    struct rdti_memfd_want want = {.what = "thing",
                                   .peer_rank = 3,
                                   .min_bytes = 2 * MIB,
                                   .max_bytes = 2 * MIB};
    struct rdti_memfd_found found;
    struct rdt_error err;
    int fd = -1;

    /* Making one takes no huge page, only touching does; a kernel may still be without them. */
    if (rdti_memfd_create_sealed("test", 2 * MIB, MFD_HUGETLB | 21U << 26, &fd, &err) != RDT_OK)
        SKIP("no huge pages in this kernel");
    want.may_be_huge = true;
    CHECK_OK(rdti_memfd_check(fd, &want, &found, &err), &err);
    CHECK_UINT_EQ(found.page_bytes, 2 * MIB);
    want.may_be_huge = false;
    expect_refused(fd, &want, "want tmpfs");
}

/* ---- Mapping ------------------------------------------------------------------------------- */

static bool
is_mapped(const void *addr)
{
    unsigned char in_core;

    return mincore((void *)(uintptr_t)addr, 1, &in_core) == 0;
}

TEST(an_aligned_mapping_holds_its_bytes_and_nothing_else)
{
    static const uint64_t lens_bytes[] = {1, 4096, 5000, 2 << 20, (2 << 20) + 1, 5 << 20};
    static const uint64_t aligns_bytes[] = {4096, 64 << 10, 2 << 20};

    for (size_t i = 0; i < sizeof(lens_bytes) / sizeof(lens_bytes[0]); i++)
        for (size_t k = 0; k < sizeof(aligns_bytes) / sizeof(aligns_bytes[0]); k++) {
            const uint64_t len_bytes = lens_bytes[i];
            const uint64_t align_bytes = aligns_bytes[k];
            const int fd = sealed(len_bytes);
            struct rdt_error err;
            void *addr = NULL;
            void *again = NULL;

            CHECK_OK(rdti_memfd_map_aligned(fd, "thing", len_bytes, align_bytes, &addr, &err),
                     &err);
            CHECK_UINT_EQ((uintptr_t)addr % align_bytes, 0);
            volatile char *bytes = addr;
            bytes[0] = 1;
            bytes[len_bytes - 1] = 2;
            CHECK_OK(rdti_memfd_map(fd, "thing", len_bytes, PROT_READ, &again, &err), &err);
            CHECK_INT_EQ(((volatile char *)again)[len_bytes - 1], 2); /* shared */
            (void)munmap(again, len_bytes);
            (void)munmap(addr, len_bytes);
            CHECK(!is_mapped(addr));
            (void)close(fd);
        }
}

static uint64_t
address_space_bytes(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");

    CHECK_NOT_NULL(f);
    CHECK_INT_EQ(fscanf(f, "%lu", &pages), 1);
    (void)fclose(f);
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

TEST(an_aligned_mapping_leaves_no_address_space_behind)
{
    const int fd = sealed(4 * MIB);
    const uint64_t before_bytes = address_space_bytes();
    struct rdt_error err;
    void *addr = NULL;

    for (int i = 0; i < 100; i++) { /* each reserves 2 MiB more than it needs */
        CHECK_OK(rdti_memfd_map_aligned(fd, "thing", 4 * MIB, 2 * MIB, &addr, &err), &err);
        CHECK_INT_EQ(munmap(addr, 4 * MIB), 0);
    }
    CHECK_UINT_LE(address_space_bytes(), before_bytes + 32 * MIB);
    (void)close(fd);
}

TEST(a_mapping_that_fails_says_why)
{
    const int read_only = memfd_with(4 * MIB, F_SEAL_SHRINK | F_SEAL_WRITE);
    struct rdt_error err;
    void *addr = NULL;

    CHECK_STATUS(rdti_memfd_map_aligned(read_only, "thing", 4 * MIB, 2 * MIB, &addr, &err),
                 RDT_EPROTO);
    CHECK_INT_EQ(err.sys_errno, EPERM);
    CHECK_STATUS(rdti_memfd_map_aligned(read_only, "thing", UINT64_C(1) << 62, 2 * MIB, &addr,
                                        &err),
                 RDT_ENOMEM);
    CHECK_STR_CONTAINS(err.message, "RLIMIT_AS");
    CHECK_STATUS(rdti_memfd_map(-1, "thing", 4096, PROT_READ, &addr, &err), RDT_ENOMEM);
    CHECK_INT_EQ(err.sys_errno, EBADF);
    CHECK_STR_CONTAINS(err.message, "thing: mmap of 4096 bytes");
    CHECK_NULL(addr);
    (void)close(read_only);
}

/* ---- Populating ---------------------------------------------------------------------------- */

/* Bytes of the file that are in memory. */
static uint64_t
resident_bytes(int fd)
{
    struct stat st;

    CHECK_INT_EQ(fstat(fd, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

static void
check_populate(void)
{
    const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    const int fd = sealed(16 * page_bytes);
    struct rdt_error err;
    void *addr = NULL;

    CHECK_OK(rdti_memfd_map(fd, "thing", 16 * page_bytes, PROT_READ | PROT_WRITE, &addr, &err),
             &err);
    char *bytes = addr;
    bytes[4 * page_bytes] = 9;
    CHECK_INT_EQ(rdti_memfd_populate(fd, 4 * page_bytes, bytes + 4 * page_bytes, 8 * page_bytes),
                 0);
    CHECK_UINT_GE(resident_bytes(fd), 8 * page_bytes);
    CHECK_INT_EQ(bytes[4 * page_bytes], 9); /* contents untouched */
    (void)munmap(addr, 16 * page_bytes);
    (void)close(fd);
}

TEST(populate_brings_pages_into_memory)
{
    check_populate();
}

TEST(populate_works_on_kernels_without_the_call)
{
    test_fail_syscall(SYS_madvise, 2, MADV_POPULATE_WRITE, EINVAL);
    check_populate();
}

TEST(populate_of_a_peers_memory_tells_that_nothing_happened)
{
    const int fd = sealed(64 * KIB);
    struct rdt_error err;
    void *addr = NULL;

    CHECK_OK(rdti_memfd_map(fd, "thing", 64 * KIB, PROT_READ | PROT_WRITE, &addr, &err), &err);
    test_fail_syscall(SYS_madvise, 2, MADV_POPULATE_WRITE, EINVAL);
    CHECK_INT_EQ(rdti_memfd_populate_mapped(addr, 64 * KIB), EINVAL);
    CHECK_UINT_EQ(resident_bytes(fd), 0);
}

TEST(populate_gives_up_in_the_end)
{
    const int fd = sealed(64 * KIB);
    struct rdt_error err;
    void *addr = NULL;

    CHECK_OK(rdti_memfd_map(fd, "thing", 64 * KIB, PROT_READ | PROT_WRITE, &addr, &err), &err);
    test_fail_syscall(SYS_madvise, 2, MADV_POPULATE_WRITE, EAGAIN);
    CHECK_INT_EQ(rdti_memfd_populate_mapped(addr, 64 * KIB), EAGAIN);
    CHECK_INT_EQ(rdti_memfd_populate(fd, 0, addr, 64 * KIB), EAGAIN);
}

TEST_MAIN()
