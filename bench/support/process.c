/* SPDX-License-Identifier: Apache-2.0
 * Memory and descriptors; see process.h. System calls are counted in calls.c. */
#include "process.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

/* KiB of a line such as "Pss:   12 kB", or 0 if it is another line. */
static uint64_t
kib_of(const char *line, const char *key)
{
    const size_t key_len = strlen(key);

    if (strncmp(line, key, key_len) != 0 || line[key_len] != ':')
        return 0;
    return strtoull(line + key_len + 1, NULL, 10);
}

static uint64_t
count_descriptors(void)
{
    uint64_t count = 0;
    DIR *dir = opendir("/proc/self/fd");

    if (dir == NULL)
        bench_die("/proc/self/fd");
    while (readdir(dir) != NULL)
        count++;
    (void)closedir(dir);
    return count - 3; /* ".", ".." and the directory itself */
}

struct process_memory
process_memory_now(void)
{
    struct process_memory m = {0};
    char line[256];
    FILE *f = fopen("/proc/self/smaps_rollup", "re");

    if (f == NULL)
        bench_die("/proc/self/smaps_rollup");
    while (fgets(line, sizeof(line), f) != NULL) {
        m.rss_bytes += 1024 * kib_of(line, "Rss");
        m.pss_bytes += 1024 * kib_of(line, "Pss");
        m.private_bytes += 1024 * (kib_of(line, "Private_Clean") + kib_of(line, "Private_Dirty"));
    }
    (void)fclose(f);
    m.descriptors = count_descriptors();
    return m;
}

static char *
describe(rdt_context *ctx)
{
    struct rdt_error err;
    size_t needed = 0;
    size_t cap = 1 << 16;

    for (;;) {
        char *text = malloc(cap);

        if (text == NULL)
            bench_die("malloc");
        const rdt_status status = rdt_context_describe(ctx, text, cap, &needed, &err);
        if (status == RDT_OK)
            return text;
        free(text);
        if (status != RDT_EINVAL || needed < cap)
            bench_fail("rdt_context_describe: %s", err.message);
        cap = 2 * needed;
    }
}

uint64_t
process_described(rdt_context *ctx, const char *object, const char *key)
{
    char *text = describe(ctx);
    char quoted[128];

    (void)snprintf(quoted, sizeof(quoted), "\"%s\":", object);
    const char *at = strstr(text, quoted);
    (void)snprintf(quoted, sizeof(quoted), "\"%s\":", key);
    if (at != NULL)
        at = strstr(at, quoted);
    if (at == NULL)
        bench_fail("the description has no \"%s\" under \"%s\": %s", key, object, text);
    const uint64_t value = strtoull(at + strlen(quoted), NULL, 10);
    free(text);
    return value;
}
