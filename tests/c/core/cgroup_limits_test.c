/* SPDX-License-Identifier: Apache-2.0
 * Real control groups, where this machine lets a test make some: memory that a group does not have
 * is refused before anything is taken, who exceeds its group all the same is killed by the kernel
 * and named by its peers, and with half a CPU for all ranks everything arrives. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "base/system/cgroup.h"
#include "base/system/cpu.h"
#include "proc_rig.h"

#define MIB (UINT64_C(1) << 20)
#define GROUP_PREFIX "rdmatensor-test-"
#define NO_GROUPS "needs CAP_SYS_ADMIN for control groups of its own"

struct group {
    bool is_v2;
    char dir[700];
};

static bool
write_file(const struct group *group, const char *name, const char *text)
{
    char path[800];

    (void)snprintf(path, sizeof(path), "%s/%s", group->dir, name);
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    const bool is_written = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    return close(fd) == 0 && is_written;
}

/* Where the kernel has this process: of the controller's own hierarchy, or of the one for all. */
static bool
find_parent(const char *controller, struct group *out)
{
    FILE *f = fopen("/proc/self/cgroup", "re");
    char line[512];
    char wanted[32];
    bool is_found = false;

    (void)snprintf(wanted, sizeof(wanted), ":%s:", controller);
    while (f != NULL && !is_found && fgets(line, sizeof(line), f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        const char *v1 = strstr(line, wanted);
        out->is_v2 = v1 == NULL;
        if (v1 != NULL)
            (void)snprintf(out->dir, sizeof(out->dir), "/sys/fs/cgroup/%s%s", controller,
                           v1 + strlen(wanted));
        else if (strncmp(line, "0::", 3) == 0)
            (void)snprintf(out->dir, sizeof(out->dir), "/sys/fs/cgroup%s", line + 3);
        else
            continue;
        is_found = access(out->dir, W_OK) == 0;
    }
    if (f != NULL)
        (void)fclose(f);
    return is_found;
}

/* Of tests that failed: whatever is in use cannot be removed. */
static void
remove_stale(const char *parent)
{
    DIR *dir = opendir(parent);

    if (dir == NULL)
        return;
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;)
        if (strncmp(entry->d_name, GROUP_PREFIX, strlen(GROUP_PREFIX)) == 0)
            (void)unlinkat(dirfd(dir), entry->d_name, AT_REMOVEDIR);
    (void)closedir(dir);
}

static void
group_end(const struct group *group)
{
    const uint64_t deadline_ns = test_now_ns() + 10 * RIG_S;

    while (rmdir(group->dir) != 0 && errno == EBUSY && test_now_ns() < deadline_ns)
        test_sleep_ns(10000000);
}

/* False: this machine allows none with that file. */
static bool
group_begin(const char *controller, const char *v1_file, const char *v2_file, const char *v1_text,
            const char *v2_text, struct group *out)
{
    char parent[600];

    if (!find_parent(controller, out))
        return false;
    (void)snprintf(parent, sizeof(parent), "%.599s", out->dir);
    remove_stale(parent);
    (void)snprintf(out->dir, sizeof(out->dir), "%s/" GROUP_PREFIX "%d", parent, (int)getpid());
    if (mkdir(out->dir, 0755) != 0)
        return false;
    if (write_file(out, out->is_v2 ? v2_file : v1_file, out->is_v2 ? v2_text : v1_text))
        return true;
    group_end(out);
    return false;
}

static void
join(const struct group *group)
{
    char pid[16];

    (void)snprintf(pid, sizeof(pid), "%d", (int)getpid());
    CHECK(write_file(group, "cgroup.procs", pid));
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static struct group group; /* in processes too, which are forked */

#ifndef __SANITIZE_THREAD__ /* its shadow is many times what is asked for */
static bool
group_of_memory(uint64_t limit_bytes, struct group *out)
{
    char text[32];

    (void)snprintf(text, sizeof(text), "%llu", (unsigned long long)limit_bytes);
    if (!group_begin("memory", "memory.limit_in_bytes", "memory.max", text, text, out))
        return false;
    (void)write_file(out, out->is_v2 ? "memory.swap.max" : "memory.memsw.limit_in_bytes",
                     out->is_v2 ? "0" : text); /* where there is swap */
    return true;
}

static void
fill_the_group(void)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    rdt_region *regions[32] = {NULL};
    rdt_region *untouched = NULL;
    rdt_context *ctx;
    uint32_t count = 0;

    join(&group);
    context_make(&ctx, RDT_TRANSPORT_AUTO, "secret", 0);
    CHECK_STATUS(rdt_region_alloc(ctx, 192 * MIB, 0, &untouched, &err), RDT_ENOMEM);
    CHECK_STR_CONTAINS(err.message, "cgroup memory.");
    CHECK_STR_CONTAINS(err.message, GROUP_PREFIX);
    CHECK_STR_CONTAINS(err.message, "raise that limit");
    CHECK_NULL(untouched);
    while (rdt_region_alloc(ctx, 8 * MIB, 0, &regions[count], &err) == RDT_OK) {
        memset(rdt_region_addr(regions[count]), 1, 8 * MIB); /* no SIGBUS, and nobody is killed */
        CHECK(++count < 24);
    }
    CHECK_STATUS((rdt_status)err.status, RDT_ENOMEM);
    CHECK_STR_CONTAINS(err.message, "cgroup memory.");
    CHECK_UINT_GE(count, 4);
    for (uint32_t i = 0; i < count; i++)
        rdt_region_free(regions[i], NULL, NULL);
    check_ok(rdt_context_close(ctx, &err), &err, "context_close");
}

TEST_TIMEOUT(an_arena_stops_before_its_memory_cgroup_does, 60)
{
    int status = 0;

    if (!group_of_memory(192 * MIB, &group))
        SKIP(NO_GROUPS);
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        fill_the_group();
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    group_end(&group);
    CHECK_MSG(status == 0, "status 0x%x", (unsigned)status);
}

static bool
does_the_kernel_panic(void)
{
    FILE *f = fopen("/proc/sys/vm/panic_on_oom", "re");
    int value = 0;

    if (f != NULL) {
        (void)!fscanf(f, "%d", &value);
        (void)fclose(f);
    }
    return value == 2;
}

/* Rank 1 takes more than its group has, behind the library's back; rank 0 waits for it. */
static void
live_or_exceed(rdt_context *ctx, int32_t rank, int fd)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    uint32_t value;

    if (rank == 1)
        join(&group);
    rdt_endpoint *ep = proc_take_peer(ctx, fd);
    proc_say(fd);
    proc_hear(fd);
    if (rank == 1) {
        uint8_t *bytes = malloc(512 * MIB);
        for (uint64_t i = 0; bytes != NULL && i < 512 * MIB; i += 4096)
            ((volatile uint8_t *)bytes)[i] = 1;
        _exit(9); /* nobody stopped it */
    }
    proc_tell(fd, rdt_endpoint_wait_notify(ep, 15 * RIG_S, &value, &err), &err);
    rdt_endpoint_close(ep);
    check_ok(rdt_context_close(ctx, &err), &err, "context_close");
}

TEST_TIMEOUT(who_exceeds_its_memory_cgroup_is_named_by_its_peers, 60)
{
    static const uint32_t transports[] = {RDT_TRANSPORT_SHM, RDT_TRANSPORT_TCP};

    if (does_the_kernel_panic() || !group_of_memory(256 * MIB, &group))
        SKIP(NO_GROUPS);
    for (int t = 0; t < 2; t++) {
        const struct proc_opts opts = {.force = transports[t]};
        struct proc_report report;
        struct proc procs[2];
        for (int i = 0; i < 2; i++)
            proc_begin(&procs[i], &opts, i, live_or_exceed);
        for (int i = 0; i < 2; i++)
            proc_introduce(&procs[i], &procs[1 - i]);
        for (int i = 0; i < 2; i++)
            proc_hear(procs[i].fd);
        for (int i = 0; i < 2; i++)
            proc_say(procs[i].fd);
        proc_read(procs[0].fd, &report, sizeof(report));
        CHECK_INT_EQ(report.status, RDT_EPEER);
        CHECK_INT_EQ(report.rank, 1);
        CHECK_STR_CONTAINS(report.message, "rank 1 died");
        CHECK_INT_EQ(proc_end(&procs[1], 0), -SIGKILL);
        CHECK_INT_EQ(proc_end(&procs[0], 0), 0);
    }
    group_end(&group);
}
#endif

/* ---- CPU ------------------------------------------------------------------------------------- */

enum { TURNS = 300 };

/* Both in one group with half a CPU: each waits for the other, and neither may spin it away. */
static void
live_on_half_a_cpu(rdt_context *ctx, int32_t rank, int fd)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};

    struct rdt_remote_region remote;
    rdt_status status = RDT_OK;

    rdt_endpoint *ep = proc_take_peer(ctx, fd);
    rdt_region *region = proc_trade_region(ctx, fd, &remote);
    for (uint32_t i = 0; status == RDT_OK && i < TURNS; i++) {
        uint32_t value = 0;
        if (rank == (int32_t)(i % 2))
            status = rdt_endpoint_write(ep, NULL, 0, &remote, 0, i, NULL, &err);
        else
            status = rdt_endpoint_wait_notify(ep, 15 * RIG_S, &value, &err);
        CHECK(status != RDT_OK || rank == (int32_t)(i % 2) || value == i);
    }
    proc_tell(fd, status, &err);
    proc_hear(fd);
    rdt_endpoint_close(ep);
    rdt_region_free(region, NULL, NULL);
    check_ok(rdt_context_close(ctx, &err), &err, "context_close");
}

static void
ping_and_pong(uint32_t transport)
{
    const struct proc_opts opts = {.force = transport};
    struct proc_report report;
    struct proc procs[2];

    for (int i = 0; i < 2; i++)
        proc_begin(&procs[i], &opts, i, live_on_half_a_cpu);
    for (int i = 0; i < 2; i++)
        proc_introduce(&procs[i], &procs[1 - i]);
    proc_swap_regions(procs);
    for (int i = 0; i < 2; i++) {
        proc_read(procs[i].fd, &report, sizeof(report));
        CHECK_MSG(report.status == RDT_OK, "rank %d: %s", i, report.message);
    }
    for (int i = 0; i < 2; i++) {
        proc_say(procs[i].fd);
        CHECK_INT_EQ(proc_end(&procs[i], 0), 0);
    }
}

TEST_TIMEOUT(ranks_with_half_a_cpu_between_them_go_on, 60)
{
    static const uint32_t transports[] = {RDT_TRANSPORT_SHM, RDT_TRANSPORT_TCP};

    if (!group_begin("cpu", "cpu.cfs_quota_us", "cpu.max", "50000", "50000 100000", &group))
        SKIP(NO_GROUPS);
    fflush(NULL);
    const pid_t child = fork(); /* the quota is the whole family's */
    if (child == 0) {
        join(&group);
        CHECK_UINT_EQ(rdti_cgroup_cpu_millis(""), 500);
        CHECK_UINT_EQ(rdti_cpu_usable(), 1);
        for (int t = 0; t < 2; t++)
            ping_and_pong(transports[t]);
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    group_end(&group);
    CHECK_MSG(status == 0, "status 0x%x", (unsigned)status);
}

TEST_MAIN()
