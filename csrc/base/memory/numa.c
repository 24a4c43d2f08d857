/* SPDX-License-Identifier: Apache-2.0
 * See numa.h. A line of numa_maps: "address policy [file=... mapped=... N<node>=<pages>...
 * kernelpagesize_kB=...]". Pages are counted in that size: 4 KiB also for those that the kernel
 * collapsed into a huge page, 2 MiB for those of hugetlbfs. A mapping without a page in memory has
 * neither. */
#include "base/memory/numa.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CPUS 8192 /* NR_CPUS is that at most on x86-64 */

/* Opens root/path; NULL with errno set. */
static FILE *
numa_open_below(const char *root, const char *path)
{
    char full[PATH_MAX];
    const int n = snprintf(full, sizeof(full), "%s/%s", root, path);

    if (n < 0 || (size_t)n >= sizeof(full)) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    return fopen(full, "re");
}

/* A decimal number below `end` at the start of *text; moves *text past it. */
static bool
numa_take_number(const char **text, int base, uint64_t end, uint64_t *out)
{
    static const char digits[] = "0123456789abcdef";
    const char *first = memchr(digits, **text, (size_t)base);
    char *rest;

    if (first == NULL) /* strtoull would take spaces and a sign */
        return false;
    errno = 0;
    const unsigned long long value = strtoull(*text, &rest, base);
    if (errno != 0 || value >= end)
        return false;
    *text = rest;
    *out = value;
    return true;
}

/* "5" or "0-3", followed by a comma if more follows. */
static bool
numa_take_range(const char **text, uint64_t end, uint64_t *first, uint64_t *last)
{
    if (!numa_take_number(text, 10, end, first))
        return false;
    *last = *first;
    if (**text == '-') {
        (*text)++;
        if (!numa_take_number(text, 10, end, last) || *last < *first)
            return false;
    }
    if (**text == ',')
        (*text)++;
    else if (**text != '\n' && **text != '\0')
        return false;
    return true;
}

/* Marks the numbers of a list in the kernel's format: "0-3,8", or nothing. */
static int
numa_read_list(const char *text, uint64_t end, bool *marks)
{
    uint64_t first;
    uint64_t last;

    text += strspn(text, " \t");
    while (*text != '\n' && *text != '\0') {
        if (!numa_take_range(&text, end, &first, &last))
            return EBADMSG;
        for (uint64_t i = first; i <= last; i++)
            marks[i] = true;
    }
    return 0;
}

/* The list after `key`, which begins a line of the file; the first line if `key` is "". */
static int
numa_read_list_of(const char *root, const char *path, const char *key, uint64_t end, bool *marks)
{
    FILE *f = numa_open_below(root, path);
    char *line = NULL;
    size_t cap = 0;
    int sys_errno = ENODATA; /* a file without that line */

    if (f == NULL)
        return errno;
    errno = 0;
    while (sys_errno == ENODATA && getline(&line, &cap, f) >= 0) {
        if (strncmp(line, key, strlen(key)) == 0)
            sys_errno = numa_read_list(line + strlen(key), end, marks);
    }
    if (sys_errno == ENODATA && !feof(f)) /* getline() ended on an error */
        sys_errno = errno;
    free(line);
    (void)fclose(f);
    return sys_errno;
}

/* A complete word "<node>=<pages>". */
static bool
numa_take_pages(const char *text, uint64_t pages[RDTI_NUMA_NODES])
{
    uint64_t node;

    if (!numa_take_number(&text, 10, RDTI_NUMA_NODES, &node) || *text != '=')
        return false;
    text++;
    return numa_take_number(&text, 10, UINT64_C(1) << 40, &pages[node]) && *text == '\0';
}

/* Adds one mapping's pages; rest: the line after its address. */
static int
numa_add_pages(char *rest, uint64_t *bytes)
{
    static const char size_key[] = "kernelpagesize_kB=";
    uint64_t pages[RDTI_NUMA_NODES] = {0};
    bool has_pages = false;
    uint64_t page_kib = 0;
    char *word;

    while ((word = strsep(&rest, " \n")) != NULL) {
        if (word[0] == 'N') {
            if (!numa_take_pages(word + 1, pages))
                return EBADMSG;
            has_pages = true;
        } else if (strncmp(word, size_key, strlen(size_key)) == 0) {
            const char *text = word + strlen(size_key);

            if (!numa_take_number(&text, 10, UINT64_C(1) << 32, &page_kib) || *text != '\0')
                return EBADMSG;
        }
    }
    if (has_pages && page_kib == 0)
        return EBADMSG;
    for (size_t i = 0; i < RDTI_NUMA_NODES; i++)
        bytes[i] += pages[i] * page_kib * 1024;
    return 0;
}

int
rdti_numa_bytes(const char *root, bool (*is_ours)(void *user, uintptr_t addr), void *user,
                uint64_t bytes_out[RDTI_NUMA_NODES])
{
    uint64_t bytes[RDTI_NUMA_NODES] = {0};
    FILE *f = numa_open_below(root, "proc/self/numa_maps");
    char *line = NULL;
    size_t cap = 0;
    int sys_errno = 0;

    if (f == NULL)
        return errno;
    errno = 0;
    while (sys_errno == 0 && getline(&line, &cap, f) >= 0) {
        const char *text = line;
        uint64_t addr;

        if (numa_take_number(&text, 16, UINT64_MAX, &addr) && is_ours(user, (uintptr_t)addr))
            sys_errno = *text == ' ' ? numa_add_pages(line + (text - line), bytes) : EBADMSG;
    }
    if (sys_errno == 0 && !feof(f))
        sys_errno = errno != 0 ? errno : EIO;
    free(line);
    (void)fclose(f);
    if (sys_errno == 0)
        memcpy(bytes_out, bytes, sizeof(bytes));
    return sys_errno;
}

int
rdti_numa_cpu_nodes(const char *root, bool nodes_out[RDTI_NUMA_NODES])
{
    bool usable[CPUS] = {false};
    bool online[RDTI_NUMA_NODES] = {false};
    bool nodes[RDTI_NUMA_NODES] = {false};
    int sys_errno = numa_read_list_of(root, "proc/self/status", "Cpus_allowed_list:", CPUS, usable);

    if (sys_errno == 0)
        sys_errno =
            numa_read_list_of(root, "sys/devices/system/node/online", "", RDTI_NUMA_NODES, online);
    for (uint32_t node = 0; sys_errno == 0 && node < RDTI_NUMA_NODES; node++) {
        bool cpus[CPUS] = {false};
        char path[64];

        if (!online[node])
            continue;
        (void)snprintf(path, sizeof(path), "sys/devices/system/node/node%u/cpulist", node);
        sys_errno = numa_read_list_of(root, path, "", CPUS, cpus);
        for (uint32_t cpu = 0; cpu < CPUS; cpu++)
            nodes[node] |= cpus[cpu] && usable[cpu];
    }
    if (sys_errno == 0)
        memcpy(nodes_out, nodes, sizeof(nodes));
    return sys_errno;
}
