/* SPDX-License-Identifier: Apache-2.0
 * A machine with two nodes, planted, and what its kernel may say besides. */
#include "base/memory/numa.h"

#include "harness.h"
#include "planted.h"

#define MIB (UINT64_C(1) << 20)
#define OURS UINT64_C(0x7f0000000000)
#define OURS_END UINT64_C(0x7f0010000000)
#define MAPS "proc/self/numa_maps"
#define STATUS "proc/self/status"
#define NODES "sys/devices/system/node/"

static bool
is_ours(void *user, uintptr_t addr)
{
    uint32_t *asked = user;

    (*asked)++;
    return addr >= OURS && addr < OURS_END;
}

static int
read_bytes(uint64_t bytes[RDTI_NUMA_NODES])
{
    uint32_t asked = 0;
    const int sys_errno = rdti_numa_bytes(root, is_ours, &asked, bytes);

    if (sys_errno == 0)
        CHECK_INT_GT(asked, 0);
    return sys_errno;
}

static void
plant_two_nodes(const char *allowed)
{
    char status[128];

    (void)snprintf(status, sizeof(status),
                   "Name:\ttest\nCpus_allowed:\tff\nCpus_allowed_list:\t%s\nMems_allowed:\t3\n",
                   allowed);
    plant(STATUS, status);
    plant(NODES "online", "0-1,5\n");
    plant(NODES "node0/cpulist", "0-1,4-5\n");
    plant(NODES "node1/cpulist", "2-3,6-7\n");
    plant(NODES "node5/cpulist", "\n"); /* memory alone */
}

TEST(pages_of_our_mappings_are_summed_by_node)
{
    uint64_t bytes[RDTI_NUMA_NODES];

    make_root();
    plant(MAPS,
          "5622bea6c000 default file=/usr/bin/x mapped=2 N0=2 kernelpagesize_kB=4\n"
          "7effffe00000 default anon=512 dirty=512 N1=512 kernelpagesize_kB=4\n"
          "7f0000000000 default file=/memfd:rdmatensor-arena\\040(deleted) dirty=1024 active=0"
          " N0=768 N1=256 kernelpagesize_kB=4\n"
          "7f0004000000 bind:0-1 file=/memfd:rdmatensor-arena\\040(deleted) dirty=9 N1=9"
          " kernelpagesize_kB=4\n"
          "7f0008000000 default file=/memfd:rdmatensor-arena\\040(deleted)\n" /* untouched */
          "7f0010000000 default file=/memfd:rdmatensor-arena\\040(deleted) N0=7"
          " kernelpagesize_kB=4\n");
    CHECK_INT_EQ(read_bytes(bytes), 0);
    CHECK_UINT_EQ(bytes[0], 768 * 4096);
    CHECK_UINT_EQ(bytes[1], (256 + 9) * 4096);
    for (uint32_t node = 2; node < RDTI_NUMA_NODES; node++)
        CHECK_UINT_EQ(bytes[node], 0);
}

TEST(huge_pages_count_with_their_size)
{
    uint64_t bytes[RDTI_NUMA_NODES];

    make_root();
    plant(MAPS, "7f0000000000 default file=/memfd:rdmatensor-arena\\040(deleted) huge dirty=4 N0=1"
                " N1023=3 kernelpagesize_kB=2048\n"
                "7f0002000000 default file=/memfd:rdmatensor-arena\\040(deleted) dirty=512 N0=512"
                " kernelpagesize_kB=4\n");
    CHECK_INT_EQ(read_bytes(bytes), 0);
    CHECK_UINT_EQ(bytes[0], 2 * MIB + 2 * MIB);
    CHECK_UINT_EQ(bytes[1023], 6 * MIB);
}

TEST(a_long_line_is_read_to_its_end)
{
    static char line[64 << 10];
    uint64_t bytes[RDTI_NUMA_NODES];
    size_t used = (size_t)snprintf(line, sizeof(line), "7f0000000000 default file=/");

    make_root();
    memset(line + used, 'x', 20000);
    used += 20000;
    for (uint32_t node = 0; node < RDTI_NUMA_NODES; node++)
        used += (size_t)snprintf(line + used, sizeof(line) - used, " N%u=%u", node, node + 1);
    (void)snprintf(line + used, sizeof(line) - used, " kernelpagesize_kB=4"); /* no newline */
    plant(MAPS, line);
    CHECK_INT_EQ(read_bytes(bytes), 0);
    for (uint32_t node = 0; node < RDTI_NUMA_NODES; node++)
        CHECK_UINT_EQ(bytes[node], (node + 1) * UINT64_C(4096));
}

TEST(lines_that_are_not_understood_are_no_zero)
{
    static const char *const lines[] = {
        "7f0000000000 default N0=5\n", /* of which size? */
        "7f0000000000 default N0= kernelpagesize_kB=4\n",
        "7f0000000000 default N=5 kernelpagesize_kB=4\n",
        "7f0000000000 default N0 kernelpagesize_kB=4\n",
        "7f0000000000 default N1024=5 kernelpagesize_kB=4\n",
        "7f0000000000 default N-1=5 kernelpagesize_kB=4\n",
        "7f0000000000 default N0=-5 kernelpagesize_kB=4\n",
        "7f0000000000 default N0=5x kernelpagesize_kB=4\n",
        "7f0000000000 default N0=99999999999999999999 kernelpagesize_kB=4\n",
        "7f0000000000 default N0=5 kernelpagesize_kB=\n",
        "7f0000000000 default N0=5 kernelpagesize_kB=4k\n",
        "7f0000000000\n",
    };
    uint64_t bytes[RDTI_NUMA_NODES] = {[3] = 17};

    make_root();
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        plant(MAPS, lines[i]);
        CHECK_MSG(read_bytes(bytes) == EBADMSG, "%s", lines[i]);
        CHECK_UINT_EQ(bytes[3], 17); /* left alone */
    }
}

TEST(lines_of_others_may_say_anything)
{
    uint64_t bytes[RDTI_NUMA_NODES];

    make_root();
    plant(MAPS, "\n"
                "rubbish\n"
                " 7f0000000000 default N0=1 kernelpagesize_kB=4\n"
                "10 default N0=x kernelpagesize_kB=\n"
                "7f0000000000 default new=word stack N0=3 N0x7 kernelpagesize_kB=4\n");
    CHECK_INT_EQ(read_bytes(bytes), EBADMSG); /* the last one is ours */
    plant(MAPS, "\n"
                "rubbish\n"
                "10 default N0=x kernelpagesize_kB=\n"
                "7f0000000000 default new=word stack=yes N0=3 kernelpagesize_kB=4\n");
    CHECK_INT_EQ(read_bytes(bytes), 0);
    CHECK_UINT_EQ(bytes[0], 3 * 4096);
}

TEST(a_kernel_that_tells_nothing)
{
    uint64_t bytes[RDTI_NUMA_NODES];
    bool nodes[RDTI_NUMA_NODES];

    make_root();
    CHECK_INT_EQ(read_bytes(bytes), ENOENT);
    CHECK_INT_EQ(rdti_numa_cpu_nodes(root, nodes), ENOENT);
    plant(MAPS "/folder", ""); /* it opens, and cannot be read */
    CHECK_INT_EQ(read_bytes(bytes), EISDIR);
}

TEST(nodes_of_the_cpus_that_may_be_used)
{
    static const struct {
        const char *allowed;
        bool is_in[2];
    } cases[] = {
        {"0-7", {true, true}}, {"0,4", {true, false}}, {"3", {false, true}},
        {"1-2", {true, true}}, {"9", {false, false}},
    };
    bool nodes[RDTI_NUMA_NODES];

    make_root();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        plant_two_nodes(cases[i].allowed);
        CHECK_INT_EQ(rdti_numa_cpu_nodes(root, nodes), 0);
        for (uint32_t node = 0; node < RDTI_NUMA_NODES; node++)
            CHECK_MSG(nodes[node] == (node < 2 && cases[i].is_in[node]), "%s: node %u",
                      cases[i].allowed, node);
    }
}

TEST(lists_that_are_not_understood)
{
    static const char *const lists[] = {"x\n",   "0-\n",     "3-1\n", "-1\n",
                                        "0;1\n", "0-9999\n", "0 1\n", "18446744073709551616\n"};
    bool nodes[RDTI_NUMA_NODES] = {[7] = true};

    make_root();
    plant_two_nodes("0-7");
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        plant(NODES "node1/cpulist", lists[i]);
        CHECK_MSG(rdti_numa_cpu_nodes(root, nodes) == EBADMSG, "%s", lists[i]);
    }
    plant_two_nodes("0-7");
    plant(STATUS, "Name:\ttest\n");
    CHECK_INT_EQ(rdti_numa_cpu_nodes(root, nodes), ENODATA);
    plant_two_nodes("0-7");
    plant(NODES "online", "0-2\n"); /* of which the third has no files */
    CHECK_INT_EQ(rdti_numa_cpu_nodes(root, nodes), ENOENT);
    CHECK(nodes[7]); /* left alone */
}

TEST_MAIN()
