/* SPDX-License-Identifier: Apache-2.0
 * What a process has open: file descriptors, threads, mappings of our shared memory, files in
 * /dev/shm, children. Counted before and after, to see whether anything stayed behind. */
#ifndef RDTI_TESTS_LEFTOVERS_H
#define RDTI_TESTS_LEFTOVERS_H

#include <dirent.h>

#include "harness.h"

/* ThreadSanitizer has a thread of its own from the first that a process makes on. */
#ifdef __SANITIZE_THREAD__
#define LEFTOVERS_OTHERS 1
#else
#define LEFTOVERS_OTHERS 0
#endif

struct leftovers {
    uint32_t fds;
    uint32_t threads;
    uint32_t mappings; /* of memory that this library makes */
};

/* Entries of a directory with that in their names; 0 where there is none. */
static inline uint32_t
leftovers_entries(const char *path, const char *part)
{
    DIR *dir = opendir(path);
    uint32_t count = 0;

    if (dir == NULL)
        return 0;
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;)
        count += entry->d_name[0] != '.' && strstr(entry->d_name, part) != NULL;
    (void)closedir(dir);
    return count;
}

static inline uint32_t
leftovers_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[4352];
    uint32_t count = 0;

    CHECK(maps != NULL);
    while (fgets(line, sizeof(line), maps) != NULL)
        count += strstr(line, "/memfd:rdmatensor") != NULL;
    (void)fclose(maps);
    return count;
}

static inline struct leftovers
leftovers_now(void)
{
    return (struct leftovers){.fds = leftovers_entries("/proc/self/fd", ""),
                              .threads = leftovers_entries("/proc/self/task", ""),
                              .mappings = leftovers_mappings()};
}

static inline bool
leftovers_none(const struct leftovers *before)
{
    const struct leftovers now = leftovers_now();

    return now.fds <= before->fds && now.threads <= before->threads + LEFTOVERS_OTHERS &&
           now.mappings <= before->mappings;
}

/* A thread that was joined is listed for a moment more. */
static inline void
leftovers_check(const struct leftovers *before, const char *who)
{
    const uint64_t deadline_ns = test_now_ns() + (uint64_t)(5e9 * test_timeout_scale());

    while (!leftovers_none(before) && test_now_ns() < deadline_ns)
        test_sleep_ns(UINT64_C(1000000));
    const struct leftovers now = leftovers_now();
    CHECK_INT_EQ(leftovers_entries("/dev/shm", "rdmatensor"), 0);
    CHECK_MSG(leftovers_none(before),
              "%s: left behind: %u descriptors (%u before), %u threads (%u), %u mappings (%u)", who,
              now.fds, before->fds, now.threads, before->threads, now.mappings, before->mappings);
}

#endif
