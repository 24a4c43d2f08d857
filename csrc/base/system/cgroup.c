/* SPDX-License-Identifier: Apache-2.0
 * Walks from the group of this process up to the mount point, since a limit of any ancestor
 * applies. In a container the group's path is often relative to the host's root: the walk removes
 * the part that the mount hides, and skips directories that do not exist. */
#include "base/system/cgroup.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A limit above this means "no limit" (v1 prints LONG_MAX rounded down to a page). */
#define NO_LIMIT_BYTES (UINT64_C(1) << 62)

/* A test's root, a mount point and a cgroup path, each at most PATH_MAX. */
#define DIR_BYTES (3 * PATH_MAX)

struct hierarchy {
    bool is_v2;
    char top_dir[DIR_BYTES]; /* mount point, with root before it */
    char dir[DIR_BYTES];     /* the group of this process below it */
};

static FILE *
cgroup_open_at(const char *dir, const char *name)
{
    char path[DIR_BYTES + 64];
    const int n = snprintf(path, sizeof(path), "%s/%s", dir, name);

    return n < 0 || (size_t)n >= sizeof(path) ? NULL : fopen(path, "re");
}

/* Parses the unsigned number at the start of *text and moves *text past it. False for "max" and for
 * malformed text. */
static bool
cgroup_take_number(char **text, uint64_t *out)
{
    char *end;

    while (**text == ' ')
        (*text)++;
    if (**text < '0' || **text > '9') /* strtoull would take "-1" (v1: no quota) as a huge number */
        return false;
    errno = 0;
    const unsigned long long value = strtoull(*text, &end, 10);
    if (errno != 0)
        return false;
    *text = end;
    *out = value;
    return true;
}

static bool
cgroup_read_line(const char *dir, const char *name, char *line, size_t cap)
{
    FILE *f = cgroup_open_at(dir, name);

    if (f == NULL)
        return false;
    const bool is_read = fgets(line, (int)cap, f) != NULL;
    (void)fclose(f);
    return is_read;
}

static bool
cgroup_read_number(const char *dir, const char *name, uint64_t *out)
{
    char line[64];
    char *text = line;

    return cgroup_read_line(dir, name, line, sizeof(line)) && cgroup_take_number(&text, out);
}

/* Whether `word` is one of the comma-separated words of `list`. */
static bool
cgroup_has_word(const char *list, const char *word)
{
    const size_t word_bytes = strlen(word);

    while (*list != '\0') {
        const size_t n = strcspn(list, ",");

        if (n == word_bytes && strncmp(list, word, n) == 0)
            return true;
        list += n;
        if (*list == ',')
            list++;
    }
    return false;
}

/*
 * The path in a line "id:controllers:path" of /proc/self/cgroup: of the named controller (v1), or
 * of the line "0::path" (v2).
 */
static bool
cgroup_find_path(const char *root, const char *controller, bool is_v2, char path[PATH_MAX])
{
    char line[PATH_MAX + 128];
    bool is_found = false;
    FILE *f = cgroup_open_at(root, "proc/self/cgroup");

    if (f == NULL)
        return false;
    while (!is_found && fgets(line, sizeof(line), f) != NULL) {
        char *save = line;
        const char *id = strsep(&save, ":");
        const char *controllers = strsep(&save, ":");

        if (controllers == NULL || save == NULL)
            continue;
        save[strcspn(save, "\n")] = '\0';
        is_found = is_v2 ? strcmp(id, "0") == 0 && *controllers == '\0'
                         : cgroup_has_word(controllers, controller);
        if (is_found) {
            const int n = snprintf(path, PATH_MAX, "%s", save);
            is_found = n >= 0 && n < PATH_MAX;
        }
    }
    (void)fclose(f);
    return is_found;
}

/*
 * Mount point and the part of the hierarchy that it shows, from a line of /proc/self/mountinfo:
 * "id parent dev mounted-root mount-point options [optional fields] - type source super-options".
 */
static bool
cgroup_parse_mount(char *line, const char *controller, bool is_v2, const char **shown,
                   const char **point)
{
    char *save = line;
    const char *fields[5];

    for (size_t i = 0; i < 5; i++)
        fields[i] = strsep(&save, " ");
    if (fields[4] == NULL || save == NULL)
        return false;

    char *dash = strstr(save, " - ");
    if (dash == NULL)
        return false;
    save = dash + 3;
    const char *type = strsep(&save, " ");
    (void)strsep(&save, " "); /* source */
    if (save == NULL)
        return false;
    save[strcspn(save, "\n")] = '\0';

    *shown = fields[3];
    *point = fields[4];
    return is_v2 ? strcmp(type, "cgroup2") == 0
                 : strcmp(type, "cgroup") == 0 && cgroup_has_word(save, controller);
}

/* The group's path relative to the mounted root; "" (the mount point itself) if the mount does not
 * show the group. */
static const char *
cgroup_path_below(const char *path, const char *shown)
{
    size_t n = strlen(shown);

    if (n == 1) /* "/": the mount shows the whole hierarchy */
        n = 0;
    if (strncmp(path, shown, n) != 0 || (path[n] != '/' && path[n] != '\0'))
        return "";
    if (strstr(path, "/..") != NULL) /* a group outside of this cgroup namespace */
        return "";
    return strcmp(path + n, "/") == 0 ? "" : path + n;
}

static bool
cgroup_find_hierarchy(const char *root, const char *controller, bool is_v2, struct hierarchy *out)
{
    char path[PATH_MAX];
    char line[4 * PATH_MAX];
    bool is_found = false;

    if (!cgroup_find_path(root, controller, is_v2, path))
        return false;
    FILE *f = cgroup_open_at(root, "proc/self/mountinfo");
    if (f == NULL)
        return false;
    while (!is_found && fgets(line, sizeof(line), f) != NULL) {
        const char *shown;
        const char *point;

        if (!cgroup_parse_mount(line, controller, is_v2, &shown, &point))
            continue;
        const int top = snprintf(out->top_dir, sizeof(out->top_dir), "%s%s", root, point);
        const int dir = snprintf(out->dir, sizeof(out->dir), "%s%s%s", root, point,
                                 cgroup_path_below(path, shown));
        is_found = top > 0 && (size_t)top < sizeof(out->top_dir) && dir > 0 &&
                   (size_t)dir < sizeof(out->dir);
    }
    (void)fclose(f);
    out->is_v2 = is_v2;
    return is_found;
}

/* Moves h->dir to its parent; false at the top. */
static bool
cgroup_go_up(struct hierarchy *h)
{
    char *slash = strrchr(h->dir, '/');

    if (slash == NULL || strlen(h->dir) <= strlen(h->top_dir))
        return false;
    *slash = '\0';
    return true;
}

static uint64_t
cgroup_cpu_millis(const struct hierarchy *h)
{
    char line[64];
    char *text = line;
    uint64_t quota_us = 0;
    uint64_t period_us = 0;
    bool is_limited;

    if (h->is_v2)
        is_limited = cgroup_read_line(h->dir, "cpu.max", line, sizeof(line)) &&
                     cgroup_take_number(&text, &quota_us) && cgroup_take_number(&text, &period_us);
    else
        is_limited = cgroup_read_number(h->dir, "cpu.cfs_quota_us", &quota_us) &&
                     cgroup_read_number(h->dir, "cpu.cfs_period_us", &period_us);
    if (!is_limited || period_us == 0 || quota_us > UINT64_MAX / 1000)
        return UINT64_MAX;
    return quota_us * 1000 / period_us;
}

uint64_t
rdti_cgroup_cpu_millis(const char *root)
{
    struct hierarchy h;
    uint64_t least = UINT64_MAX;

    for (int is_v2 = 0; is_v2 <= 1; is_v2++) {
        if (!cgroup_find_hierarchy(root, "cpu", is_v2, &h))
            continue;
        do {
            const uint64_t millis = cgroup_cpu_millis(&h);
            least = millis < least ? millis : least;
        } while (cgroup_go_up(&h));
    }
    return least;
}

/* Page cache that the kernel drops under memory pressure. It excludes memfd pages, which count as
 * anonymous. */
static uint64_t
cgroup_cache_bytes(const struct hierarchy *h)
{
    static const char *const keys[2][2] = {{"total_inactive_file ", "total_active_file "},
                                           {"inactive_file ", "active_file "}};
    char line[128];
    uint64_t sum = 0;
    FILE *f = cgroup_open_at(h->dir, "memory.stat");

    if (f == NULL)
        return 0;
    while (fgets(line, sizeof(line), f) != NULL) {
        for (size_t i = 0; i < 2; i++) {
            const char *key = keys[h->is_v2][i];
            char *text = line + strlen(key);
            uint64_t value;

            if (strncmp(line, key, strlen(key)) == 0 && cgroup_take_number(&text, &value))
                sum += value;
        }
    }
    (void)fclose(f);
    return sum;
}

/* Bytes left below the limit in one file of the group; UINT64_MAX without a limit. */
static uint64_t
cgroup_memory_left(const struct hierarchy *h, const char *limit_name, char *limit_out, size_t cap)
{
    uint64_t limit;
    uint64_t used;

    if (!cgroup_read_number(h->dir, limit_name, &limit) || limit >= NO_LIMIT_BYTES ||
        !cgroup_read_number(h->dir, h->is_v2 ? "memory.current" : "memory.usage_in_bytes", &used))
        return UINT64_MAX;

    const uint64_t cache = cgroup_cache_bytes(h);
    const uint64_t pinned = used > cache ? used - cache : 0;
    const uint64_t left = limit > pinned ? limit - pinned : 0;

    /* The end of the path distinguishes groups. */
    const size_t dir_bytes = strlen(h->dir);
    const char *tail = dir_bytes > 60 ? h->dir + dir_bytes - 60 : h->dir;

    (void)snprintf(limit_out, cap, "cgroup %s %" PRIu64 " (%" PRIu64 " left) in %.60s", limit_name,
                   limit, left, tail);
    return left;
}

uint64_t
rdti_cgroup_memory_left(const char *root, char *limit_out, size_t cap)
{
    /* memory.high kills no process, but arena pages cannot be reclaimed, so a process that reaches
     * it stalls permanently. */
    static const char *const limit_names[2][2] = {{"memory.limit_in_bytes", NULL},
                                                  {"memory.max", "memory.high"}};
    struct hierarchy h;
    uint64_t least = UINT64_MAX;
    char text[128];

    for (int is_v2 = 0; is_v2 <= 1; is_v2++) {
        if (!cgroup_find_hierarchy(root, "memory", is_v2, &h))
            continue;
        do {
            for (size_t i = 0; i < 2 && limit_names[is_v2][i] != NULL; i++) {
                const uint64_t left =
                    cgroup_memory_left(&h, limit_names[is_v2][i], text, sizeof(text));

                if (left < least) {
                    least = left;
                    (void)snprintf(limit_out, cap, "%s", text);
                }
            }
        } while (cgroup_go_up(&h));
    }
    return least;
}
