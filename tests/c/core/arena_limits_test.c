/* SPDX-License-Identifier: Apache-2.0
 * What the arena does at each limit: an error that names the limit, never a signal, and nothing
 * left behind. */
#include "memory/arena.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "arena_rig.h"
#include "seccomp_errno.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

TEST(arena_stops_at_max_bytes)
{
    struct rdti_arena *arena = open_arena(4 * MIB, 9 * MIB);
    void *untouched = &err;
    uint64_t got = 0;

    CHECK_STATUS(rdti_arena_alloc(arena, 9 * MIB + 1, &untouched, &err), RDT_ENOMEM);
    CHECK_STR_CONTAINS(err.message, "arena_max_bytes");
    CHECK_STR_CONTAINS(err.message, "9437185");
    CHECK_PTR_EQ(untouched, &err);
    CHECK_UINT_EQ(stats_of(arena).segment_count, 0);
    while (rdti_arena_alloc(arena, MIB, &untouched, &err) == RDT_OK)
        got += MIB;
    CHECK_STATUS(err.status, RDT_ENOMEM);
    CHECK_UINT_EQ(got, 9 * MIB); /* all that is allowed can be had */
    CHECK_UINT_EQ(stats_of(arena).mapped_bytes, 9 * MIB);
    rdti_arena_destroy(arena);

    arena = open_arena(4 * MIB, 100000); /* less than a granule: whole pages of it */
    CHECK_STATUS(rdti_arena_alloc(arena, 98305, &untouched, &err), RDT_ENOMEM);
    memset(take(arena, 98304), 1, 98304);
    rdti_arena_destroy(arena);
}

TEST(arena_refuses_more_than_the_machine_has)
{
    const uint64_t lens[] = {UINT64_C(1) << 50, UINT64_C(1) << 62, UINT64_MAX / 2, UINT64_MAX - 63,
                             UINT64_MAX};
    struct rdti_arena *arena = open_arena(CHUNK, 0);
    const int fds = count_fds();
    void *untouched = &err;

    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        CHECK_STATUS(rdti_arena_alloc(arena, lens[i], &untouched, &err), RDT_ENOMEM);
        if (i == 0)
            CHECK(strstr(err.message, "MemAvailable") != NULL ||
                  strstr(err.message, "cgroup") != NULL);
    }
    CHECK_PTR_EQ(untouched, &err);
    CHECK_UINT_EQ(stats_of(arena).segment_count, 0);
    CHECK_INT_EQ(count_fds(), fds);
    (void)take(arena, 100);
    rdti_arena_destroy(arena);
}

TEST(arena_names_the_file_size_limit)
{
    struct rdti_arena *arena = open_arena(CHUNK, 0);
    const struct rlimit limit = {3 * MIB, 3 * MIB};
    void *untouched = &err;

    CHECK_INT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    CHECK_STATUS(rdti_arena_alloc(arena, 8 * MIB, &untouched, &err), RDT_ENOMEM); /* no SIGXFSZ */
    CHECK_STR_CONTAINS(err.message, "RLIMIT_FSIZE");
    CHECK_STR_CONTAINS(err.message, "ulimit -f");
    CHECK_PTR_EQ(untouched, &err);
    (void)take(arena, MIB); /* a smaller segment than usual fits */
    rdti_arena_destroy(arena);
}

TEST(arena_names_the_descriptor_limit)
{
    struct rdti_arena *arena = open_arena(CHUNK, 0);
    struct rlimit limit;
    void *untouched = &err;

    CHECK_INT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    const struct rlimit none = {0, limit.rlim_max};

    CHECK_INT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    CHECK_STATUS(rdti_arena_alloc(arena, 100, &untouched, &err), RDT_EDEVICE);
    CHECK_INT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0); /* the leak checker opens files too */
    CHECK_INT_EQ(err.sys_errno, EMFILE);
    CHECK_STR_CONTAINS(err.message, "RLIMIT_NOFILE");
    rdti_arena_destroy(arena);
}

#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__) /* they need addresses for themselves */
TEST(arena_names_the_address_space_limit)
{
    struct rdti_arena *arena = open_arena(64 * MIB, 0);
    unsigned long pages = 0;
    void *untouched = &err;
    FILE *f = fopen("/proc/self/statm", "re");

    CHECK_NOT_NULL(f);
    CHECK_INT_EQ(fscanf(f, "%lu", &pages), 1);
    (void)fclose(f);
    (void)take(arena, 4 * MIB);
    const struct rlimit limit = {pages * 4096 + 16 * MIB, pages * 4096 + 16 * MIB};

    CHECK_INT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    CHECK_STATUS(rdti_arena_alloc(arena, 32 * MIB, &untouched, &err), RDT_ENOMEM);
    CHECK_STR_CONTAINS(err.message, "RLIMIT_AS");
    CHECK_PTR_EQ(untouched, &err);
    (void)take(arena, 4 * MIB); /* the usual 8 MiB may not fit; what is asked for does */
    rdti_arena_destroy(arena);
}
#endif

/* A file of this text over `path`, seen by this process alone. */
static void
plant_file(const char *path, const char *text)
{
    char source[] = "/tmp/rdmatensor-test-XXXXXX";
    const int fd = mkstemp(source);

    CHECK_INT_GE(fd, 0);
    CHECK_INT_EQ(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    const int rc = mount(source, path, NULL, MS_BIND, NULL);
    const int sys_errno = errno;

    CHECK_INT_EQ(unlink(source), 0); /* the mount keeps it */
    (void)close(fd);
    CHECK_MSG(rc == 0, "mount over %s: %s", path, strerror(sys_errno));
}

/* The limit file of this process's own memory cgroup, version 1 or 2; false if there is none. */
static bool
find_memory_limit(char *out, size_t cap)
{
    char line[1024];
    bool is_found = false;
    FILE *f = fopen("/proc/self/cgroup", "re");

    while (f != NULL && !is_found && fgets(line, sizeof(line), f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        const char *v1 = strstr(line, ":memory:");
        const char *v2 = strncmp(line, "0::", 3) == 0 ? line + 3 : NULL;

        if (v1 != NULL)
            (void)snprintf(out, cap, "/sys/fs/cgroup/memory%s/memory.limit_in_bytes", v1 + 8);
        else if (v2 != NULL)
            (void)snprintf(out, cap, "/sys/fs/cgroup%s/memory.max", v2);
        else
            continue;
        is_found = access(out, R_OK) == 0;
    }
    if (f != NULL)
        (void)fclose(f);
    return is_found;
}

TEST(arena_stops_before_memory_does)
{
    char limit[1200];
    void *untouched = &err;

    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        SKIP("needs CAP_SYS_ADMIN for mounts of its own");
    const bool has_group = find_memory_limit(limit, sizeof(limit));
    struct rdti_arena *arena = open_arena(CHUNK, 0);

    plant_file("/proc/meminfo", "MemTotal: 9999999 kB\nMemAvailable: 163840 kB\n"); /* 160 MiB */
    CHECK_STATUS(rdti_arena_alloc(arena, 97 * MIB, &untouched, &err), RDT_ENOMEM);
    CHECK_STR_CONTAINS(err.message, "MemAvailable 167772160; free RAM");
    CHECK_UINT_EQ(stats_of(arena).segment_count, 0);
    (void)take(arena, 4 * MIB);

    if (has_group) {
        plant_file(limit, "1048576\n"); /* this process alone has more */
        CHECK_STATUS(rdti_arena_alloc(arena, 1, &untouched, &err), RDT_ENOMEM);
        CHECK_STR_CONTAINS(err.message, "cgroup memory.");
        CHECK_STR_CONTAINS(err.message, "raise that limit");
    }
    CHECK_PTR_EQ(untouched, &err);
    rdti_arena_destroy(arena);
}

/* A kernel that runs out in the middle: an error, no signal, and the pages that came in go. */
TEST(arena_survives_a_kernel_without_pages)
{
    struct rdti_arena *arena = open_arena(CHUNK, 0);
    void *untouched = &err;

    memset(take(arena, MIB), 1, MIB);
    test_fail_syscall(SYS_madvise, 2, MADV_POPULATE_WRITE, EFAULT);
    CHECK_STATUS(rdti_arena_alloc(arena, 8 * MIB, &untouched, &err), RDT_ENOMEM);
    CHECK_INT_EQ(err.sys_errno, EFAULT);
    CHECK_STR_CONTAINS(err.message, "8388608 bytes asked for");
    CHECK_PTR_EQ(untouched, &err);
    CHECK_UINT_EQ(stats_of(arena).allocated_bytes, MIB);
    CHECK_UINT_EQ(resident_bytes(arena, 1), 0);
    (void)take(arena, MIB - 64); /* from the granule that is populated */
    rdti_arena_destroy(arena);
}

/* The same after some of it came in: 32 MiB are one piece of work, the 8 after them the next. */
TEST(arena_gives_back_what_came_in_before_a_failure)
{
    struct rdti_arena *arena = open_arena(CHUNK, 0);
    void *untouched = &err;

    test_fail_syscall(SYS_madvise, 1, 8 * MIB, EFAULT); /* by its length */
    CHECK_STATUS(rdti_arena_alloc(arena, 40 * MIB, &untouched, &err), RDT_ENOMEM);
    CHECK_PTR_EQ(untouched, &err);
    CHECK_UINT_EQ(stats_of(arena).segment_count, 1);
    CHECK_UINT_EQ(stats_of(arena).allocated_bytes, 0);
    CHECK_UINT_EQ(stats_of(arena).populated_bytes, 0);
    CHECK_UINT_EQ(resident_bytes(arena, 0), 0);
    memset(take(arena, 30 * MIB), 1, 30 * MIB);
    rdti_arena_destroy(arena);
}

TEST(arena_populates_on_a_kernel_without_populate)
{
    struct rdti_arena *arena = open_arena(CHUNK, 0);

    test_fail_syscall(SYS_madvise, 2, MADV_POPULATE_WRITE, EINVAL);
    uint8_t *addr = take(arena, 8 * MIB);
    struct rusage before;
    struct rusage after;

    CHECK_UINT_EQ(resident_bytes(arena, 0), 8 * MIB);
    CHECK_INT_EQ(getrusage(RUSAGE_SELF, &before), 0);
    memset(addr, 7, 8 * MIB);
    CHECK_INT_EQ(getrusage(RUSAGE_SELF, &after), 0);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) /* their shadow faults */
    CHECK_INT_LT(after.ru_minflt - before.ru_minflt, 100); /* of 2048 pages: they were mapped */
#endif
    rdti_arena_destroy(arena);
}

TEST(arena_uses_huge_pages_that_are_reserved)
{
    unsigned long long left = 0;
    FILE *f = fopen("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "re");

    if (f == NULL || fscanf(f, "%llu", &left) != 1 || left < 2)
        SKIP("no huge pages are free");
    (void)fclose(f);
    struct rdti_arena *arena = open_arena(CHUNK, 0);

    memset(take(arena, 3 * MIB), 1, 3 * MIB);
    CHECK_UINT_EQ(stats_of(arena).huge_bytes, 4 * MIB);
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    CHECK_INT_EQ(fcntl(fd_of(arena, 0), F_GET_SEALS) & seals, seals);
    rdti_arena_destroy(arena);
}

TEST_MAIN()
