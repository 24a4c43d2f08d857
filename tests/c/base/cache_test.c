/* SPDX-License-Identifier: Apache-2.0
 * The last cache's size, next to what the kernel says of it. */
#include "base/memory/cache.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "harness.h"

enum { CACHES_MAX = 16, UNKNOWN_BYTES = 32 * 1024 * 1024 };

static int
read_word(int cache, const char *name, char word[32])
{
    char path[96];

    (void)snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/cache/index%d/%s",
                   sched_getcpu(), cache, name);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 0;
    const int found = fscanf(file, "%31s", word);
    (void)fclose(file);
    return found;
}

/* Bytes of the highest level that /sys has of this core; 0: it does not say. */
static uint64_t
kernels_last_bytes(void)
{
    uint64_t bytes = 0;
    unsigned long highest = 0;

    for (int i = 0; i < CACHES_MAX; i++) {
        char word[32];
        if (read_word(i, "level", word) != 1)
            break;
        const unsigned long level = strtoul(word, NULL, 10);
        if (level <= highest)
            continue;
        highest = level;
        bytes = read_word(i, "size", word) == 1 ? strtoull(word, NULL, 10) * 1024 : 0; /* "8192K" */
    }
    return bytes;
}

/* Or, where cpuid has no such leaf, what is assumed. */
TEST(the_last_cache_is_as_large_as_the_kernel_says)
{
    const uint64_t found = rdti_cache_last_bytes();
    const uint64_t wanted = kernels_last_bytes();

    CHECK(found > 0);
    CHECK(wanted == 0 || found == UNKNOWN_BYTES || found == wanted);
    CHECK(rdti_cache_last_bytes() == found);
}

TEST_MAIN()
