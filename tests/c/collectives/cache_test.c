/* SPDX-License-Identifier: Apache-2.0
 * The last cache's size, beside what the kernel says of it. */
#include "collectives/cache.h"

#include <stdio.h>
#include <stdlib.h>

#include "harness.h"

/* Bytes of the highest level that /sys has of the first core; 0: it has none. */
static uint64_t
kernels_last_bytes(void)
{
    uint64_t bytes = 0;
    int highest = 0;

    for (int i = 0; i < 16; i++) {
        char path[96];
        char size[32] = "";
        int level = 0;

        (void)snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu0/cache/index%d/level", i);
        FILE *file = fopen(path, "r");
        if (file == NULL)
            break;
        CHECK_INT_EQ(fscanf(file, "%d", &level), 1);
        (void)fclose(file);
        (void)snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        file = fopen(path, "r");
        CHECK_NOT_NULL(file);
        CHECK_INT_EQ(fscanf(file, "%31s", size), 1);
        (void)fclose(file);
        if (level <= highest)
            continue;
        highest = level;
        bytes = strtoull(size, NULL, 10) * 1024; /* "8192K" */
    }
    return bytes;
}

TEST(the_last_cache_is_as_large_as_the_kernel_says)
{
    const uint64_t wanted = kernels_last_bytes();

    CHECK(rdti_cache_last_bytes() >= 64 * 1024);
    CHECK(wanted == 0 || rdti_cache_last_bytes() == wanted);
    CHECK(rdti_cache_last_bytes() == rdti_cache_last_bytes());
}

TEST_MAIN()
