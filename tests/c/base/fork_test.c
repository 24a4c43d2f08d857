/* SPDX-License-Identifier: Apache-2.0
 * After a fork: the child is known as one, and has none of our descriptors. */
#include "base/system/fork.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>

#include "base/limits.h"
#include "harness.h"

static bool
is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static int
open_null(void)
{
    const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    CHECK(fd >= 0);
    return fd;
}

/* Runs check(arg) in a forked child. */
static void
in_child(void (*check)(void *), void *arg)
{
    int status;
    const pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0) {
        check(arg);
        _exit(0);
    }
    CHECK_INT_EQ(waitpid(child, &status, 0), child);
    CHECK_INT_EQ(status, 0);
}

static void
check_flag_is_set(void *arg)
{
    CHECK(rdti_in_forked_child());
    if (arg != NULL)
        in_child(check_flag_is_set, NULL); /* a grandchild */
}

static void
check_flag_is_clear(void *arg)
{
    (void)arg;
    CHECK(!rdti_in_forked_child());
}

TEST(only_children_after_the_guard_are_marked)
{
    int any;

    in_child(check_flag_is_clear, NULL);
    rdti_fork_guard();
    rdti_fork_guard();
    CHECK(!rdti_in_forked_child());
    in_child(check_flag_is_set, &any);
    CHECK(!rdti_in_forked_child());
}

struct fds {
    int closed[2];
    int kept;
};

static void
check_fds(void *arg)
{
    const struct fds *fds = arg;

    CHECK(!is_open(fds->closed[0]));
    CHECK(!is_open(fds->closed[1]));
    CHECK(is_open(fds->kept));
}

TEST(registered_descriptors_are_closed_in_children_only)
{
    struct fds fds = {{open_null(), open_null()}, open_null()};

    rdti_fork_guard();
    CHECK(rdti_fork_close_add(fds.closed[0]));
    CHECK(rdti_fork_close_add(fds.closed[1]));
    CHECK(rdti_fork_close_add(fds.kept));
    rdti_fork_close_remove(fds.kept);
    in_child(check_fds, &fds);
    in_child(check_fds, &fds); /* the second child's table is as full as the first one's */
    CHECK(is_open(fds.closed[0]));
    CHECK(is_open(fds.closed[1]));
}

static void
check_reused_number_lives(void *arg)
{
    const int fd = *(const int *)arg;

    CHECK(is_open(fd));
}

/* In the child the number belongs to the child: its own child must not lose that file. */
static void
check_reuse(void *arg)
{
    const int *fd = arg;
    const int other = open_null();

    if (other != *fd)
        CHECK_INT_EQ(dup2(other, *fd), *fd);
    in_child(check_reused_number_lives, arg);
}

TEST(a_child_that_reuses_the_number_keeps_its_file)
{
    int fd = open_null();

    rdti_fork_guard();
    CHECK(rdti_fork_close_add(fd));
    in_child(check_reuse, &fd);
}

static void
check_closed(void *arg)
{
    CHECK(!is_open(*(const int *)arg));
}

TEST(numbers_out_of_range_are_refused_and_the_highest_works)
{
    struct rlimit limit;

    CHECK(!rdti_fork_close_add(-1));
    CHECK(!rdti_fork_close_add(RDTI_FORK_FDS_MAX));
    CHECK(!rdti_fork_close_add(INT32_MAX));
    rdti_fork_close_remove(-1);
    rdti_fork_close_remove(RDTI_FORK_FDS_MAX);
    CHECK(rdti_fork_close_add(RDTI_FORK_FDS_MAX - 1)); /* not open: closing it is harmless */

    CHECK_INT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    const int highest =
        limit.rlim_cur < RDTI_FORK_FDS_MAX ? (int)limit.rlim_cur - 1 : RDTI_FORK_FDS_MAX - 1;
    int fd = fcntl(open_null(), F_DUPFD_CLOEXEC, highest);
    CHECK(fd >= 0);
    rdti_fork_guard();
    CHECK(rdti_fork_close_add(fd));
    in_child(check_closed, &fd);
}

enum { STORM_ROUNDS = 200, STORM_FDS = 256, STORM_FIRST_FD = 512 };
static _Atomic uint32_t storm_arrived;

/* Both threads go on within nanoseconds of each other; seq_cst, since speed is no matter here. */
static void
meet(uint32_t meetings)
{
    (void)atomic_fetch_add(&storm_arrived, 1);
    for (unsigned spins = 1; atomic_load(&storm_arrived) < 2 * meetings; spins++)
        if (spins % 4096 == 0)
            (void)sched_yield();
}

/* The two threads share words, not bits. */
static void
add_every_second(int first)
{
    for (int i = first; i < STORM_FDS; i += 2)
        CHECK(rdti_fork_close_add(STORM_FIRST_FD + i));
}

static void *
storm(void *arg)
{
    for (uint32_t round = 0; round < STORM_ROUNDS; round++) {
        meet(2 * round + 1);
        add_every_second(1);
        meet(2 * round + 2);
    }
    meet(2 * STORM_ROUNDS + 1); /* a thread that ended before the last fork looks leaked there */
    return arg;
}

static void
check_all_closed(void *arg)
{
    (void)arg;
    for (int i = 0; i < STORM_FDS; i++)
        CHECK_MSG(!is_open(STORM_FIRST_FD + i), "descriptor %d of the storm is open", i);
}

TEST(threads_do_not_lose_each_others_bits)
{
    pthread_t thread;
    const int null_fd = open_null();

    for (int i = 0; i < STORM_FDS; i++)
        CHECK_INT_EQ(dup2(null_fd, STORM_FIRST_FD + i), STORM_FIRST_FD + i);
    rdti_fork_guard();
    CHECK_INT_EQ(pthread_create(&thread, NULL, storm, NULL), 0);
    for (uint32_t round = 0; round < STORM_ROUNDS; round++) {
        meet(2 * round + 1);
        add_every_second(0);
        meet(2 * round + 2);
        in_child(check_all_closed, NULL);
        for (int i = 0; i < STORM_FDS; i++)
            rdti_fork_close_remove(STORM_FIRST_FD + i);
    }
    meet(2 * STORM_ROUNDS + 1);
    CHECK_INT_EQ(pthread_join(thread, NULL), 0);
}

TEST_MAIN()
