/* SPDX-License-Identifier: Apache-2.0
 * Planted files in a directory of our own stand for /proc and /sys/fs/cgroup, laid out as systemd,
 * docker and kubernetes do it. */
#include "base/system/cgroup.h"

#include "harness.h"
#include "planted.h"

#define MIB (UINT64_C(1) << 20)

static uint64_t
memory_left(char limit[128])
{
    limit[0] = '\0';
    return rdti_cgroup_memory_left(root, limit, 128);
}

static void
plant_v2(const char *group, const char *shown)
{
    char text[512];

    (void)snprintf(text, sizeof(text), "0::%s\n", group);
    plant("proc/self/cgroup", text);
    (void)snprintf(
        text, sizeof(text),
        "22 1 0:5 / /proc rw - proc proc rw\n"
        "31 23 0:26 %s /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
        shown);
    plant("proc/self/mountinfo", text);
}

static void
plant_v1(const char *memory_group, const char *cpu_group, const char *memory_shown)
{
    char text[512];

    (void)snprintf(text, sizeof(text),
                   "12:pids:/\n5:memory:%s\n4:cpu,cpuacct:%s\n1:name=systemd:/\n", memory_group,
                   cpu_group);
    plant("proc/self/cgroup", text);
    (void)snprintf(text, sizeof(text),
                   "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
                   "35 31 0:32 %s /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
                   memory_shown);
    plant("proc/self/mountinfo", text);
}

TEST(nothing_planted_means_no_bound)
{
    char limit[128];

    make_root();
    CHECK_UINT_EQ(rdti_cgroup_cpu_millis(root), UINT64_MAX);
    CHECK_UINT_EQ(memory_left(limit), UINT64_MAX);
    CHECK_STR_EQ(limit, "");
}

TEST(v2_quota_of_the_group_itself)
{
    make_root();
    plant_v2("/a/b", "/");
    plant("sys/fs/cgroup/a/b/cpu.max", "150000 100000\n");
    CHECK_UINT_EQ(rdti_cgroup_cpu_millis(root), 1500);
    plant("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    CHECK_UINT_EQ(rdti_cgroup_cpu_millis(root), UINT64_MAX);
}

TEST(v2_quota_of_an_ancestor_binds)
{
    make_root();
    plant_v2("/a/b/c", "/");
    plant("sys/fs/cgroup/a/b/c/cpu.max", "400000 100000\n");
    plant("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    plant("sys/fs/cgroup/a/cpu.max", "250000 100000\n");
    CHECK_UINT_EQ(rdti_cgroup_cpu_millis(root), 2500);
}

TEST(v2_rubbish_sets_no_bound)
{
    static const char *const texts[] = {"",
                                        "\n",
                                        "100000\n",
                                        "100000 0\n",
                                        "-1 100000\n",
                                        "x 100000\n",
                                        "99999999999999999999999 100000\n"};

    make_root();
    plant_v2("/a", "/");
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        plant("sys/fs/cgroup/a/cpu.max", texts[i]);
        CHECK_UINT_EQ(rdti_cgroup_cpu_millis(root), UINT64_MAX);
    }
}

TEST(v2_memory_counts_cache_as_free_and_names_the_group)
{
    char limit[128];

    make_root();
    plant_v2("/job", "/");
    plant("sys/fs/cgroup/job/memory.max", "1073741824\n");
    plant("sys/fs/cgroup/job/memory.current", "524288000\n");
    plant("sys/fs/cgroup/job/memory.stat",
          "anon 100\nfile 900\nshmem 800\ninactive_file 104857600\nactive_file 4194304\n");
    CHECK_UINT_EQ(memory_left(limit), 1024 * MIB - 524288000 + 100 * MIB + 4 * MIB);
    CHECK_STR_CONTAINS(limit, "memory.max 1073741824 ");
    CHECK_STR_CONTAINS(limit, "/job");
}

TEST(v2_least_of_high_max_and_ancestors)
{
    char limit[128];

    make_root();
    plant_v2("/a/b", "/");
    plant("sys/fs/cgroup/a/b/memory.max", "max\n");
    plant("sys/fs/cgroup/a/b/memory.current", "1048576\n");
    plant("sys/fs/cgroup/a/memory.max", "10485760\n");
    plant("sys/fs/cgroup/a/memory.current", "2097152\n");
    CHECK_UINT_EQ(memory_left(limit), 8 * MIB);
    plant("sys/fs/cgroup/a/b/memory.high", "4194304\n");
    CHECK_UINT_EQ(memory_left(limit), 3 * MIB);
    CHECK_STR_CONTAINS(limit, "memory.high 4194304 ");
}

TEST(a_full_group_leaves_nothing)
{
    char limit[128];

    make_root();
    plant_v2("/a", "/");
    plant("sys/fs/cgroup/a/memory.max", "1048576\n");
    plant("sys/fs/cgroup/a/memory.current",
          "2097152\n"); /* it may be above after a lowered limit */
    CHECK_UINT_EQ(memory_left(limit), 0);
}

TEST(v1_quota_and_memory)
{
    char limit[128];

    make_root();
    plant_v1("/m", "/c/d", "/");
    plant("sys/fs/cgroup/cpu,cpuacct/c/d/cpu.cfs_quota_us", "-1\n");
    plant("sys/fs/cgroup/cpu,cpuacct/c/d/cpu.cfs_period_us", "100000\n");
    plant("sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us", "50000\n");
    plant("sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_period_us", "25000\n");
    CHECK_UINT_EQ(rdti_cgroup_cpu_millis(root), 2000);
    plant("sys/fs/cgroup/memory/m/memory.limit_in_bytes", "9223372036854771712\n");
    plant("sys/fs/cgroup/memory/m/memory.usage_in_bytes", "1048576\n");
    CHECK_UINT_EQ(memory_left(limit), UINT64_MAX);
    plant("sys/fs/cgroup/memory/memory.limit_in_bytes", "8388608\n");
    plant("sys/fs/cgroup/memory/memory.usage_in_bytes", "4194304\n");
    plant("sys/fs/cgroup/memory/memory.stat",
          "inactive_file 7\ntotal_inactive_file 1048576\ntotal_active_file 0\n");
    CHECK_UINT_EQ(memory_left(limit), 5 * MIB);
    CHECK_STR_CONTAINS(limit, "memory.limit_in_bytes 8388608 ");
}

/* docker without a cgroup namespace: the mount shows the container's group as its root, while the
 * group's name counts from the host's root. */
TEST(a_mount_that_shows_a_part_is_cut_off_the_path)
{
    char limit[128];

    make_root();
    plant_v1("/docker/0123/inner", "/", "/docker/0123");
    plant("sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "4194304\n");
    plant("sys/fs/cgroup/memory/inner/memory.usage_in_bytes", "1048576\n");
    CHECK_UINT_EQ(memory_left(limit), 3 * MIB);
    plant_v1("/docker/0123", "/", "/docker/0123");
    plant("sys/fs/cgroup/memory/memory.limit_in_bytes", "2097152\n");
    plant("sys/fs/cgroup/memory/memory.usage_in_bytes", "1048576\n");
    CHECK_UINT_EQ(memory_left(limit), 1 * MIB);
}

/* A path that the mount does not show, a sibling with the same beginning, a path out of the
 * namespace: the mount point itself is all that can be asked. */
TEST(a_path_that_is_not_shown_falls_back_to_the_mount_point)
{
    static const char *const paths[] = {"/docker/01234", "/other", "/../elsewhere"};
    char limit[128];

    make_root();
    plant("sys/fs/cgroup/elsewhere/memory.limit_in_bytes", "4096\n"); /* another hierarchy's */
    plant("sys/fs/cgroup/elsewhere/memory.usage_in_bytes", "0\n");
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        plant_v1(paths[i], "/", i < 2 ? "/docker/0123" : "/");
        plant("sys/fs/cgroup/memory/memory.limit_in_bytes", "2097152\n");
        plant("sys/fs/cgroup/memory/memory.usage_in_bytes", "1048576\n");
        CHECK_UINT_EQ(memory_left(limit), 1 * MIB);
    }
}

TEST(damaged_proc_files_set_no_bound)
{
    char limit[128];

    make_root();
    plant("proc/self/cgroup", "\n:\n::\n5:memory\n0:\n0::/a");
    plant(
        "proc/self/mountinfo",
        "\n1 2 3\n1 2 0:3 / /sys/fs/cgroup rw\n1 2 0:3 / /x rw - cgroup2\n1 2 0:3 / /y rw - x y\n");
    CHECK_UINT_EQ(memory_left(limit), UINT64_MAX);
    CHECK_UINT_EQ(rdti_cgroup_cpu_millis(root), UINT64_MAX);
}

TEST(a_long_group_name_keeps_the_numbers)
{
    char group[300] = "/";
    char path[400];
    char limit[128];

    make_root();
    memset(group + 1, 'g', 200);
    plant_v2(group, "/");
    (void)snprintf(path, sizeof(path), "sys/fs/cgroup%s/memory.max", group);
    plant(path, "1073741824\n");
    (void)snprintf(path, sizeof(path), "sys/fs/cgroup%s/memory.current", group);
    plant(path, "0\n");
    CHECK_UINT_EQ(memory_left(limit), 1024 * MIB);
    CHECK_STR_CONTAINS(limit, "memory.max 1073741824 (1073741824 left) in g");
    CHECK_INT_LT(strlen(limit), 128);
}

TEST_MAIN()
