/* SPDX-License-Identifier: Apache-2.0
 * A directory of planted files, to stand for /proc and /sys; gone when its process ends. */
#ifndef RDT_TESTS_BASE_PLANTED_H
#define RDT_TESTS_BASE_PLANTED_H

#include <ftw.h>
#include <sys/stat.h>

#include "harness.h"

static char root[] = "/tmp/rdt_planted.XXXXXX";

static int
remove_one(const char *path, const struct stat *st, int type, struct FTW *walk)
{
    (void)st;
    (void)type;
    (void)walk;
    return remove(path);
}

static void
remove_root(void)
{
    (void)nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void
make_root(void)
{
    CHECK_NOT_NULL(mkdtemp(root));
    CHECK_INT_EQ(atexit(remove_root), 0);
}

/* Writes root/path, making its directories. */
static void
plant(const char *path, const char *text)
{
    char full[512];

    CHECK_INT_LT(snprintf(full, sizeof(full), "%s/%s", root, path), sizeof(full));
    for (char *p = full + strlen(root) + 1; *p != '\0'; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        CHECK(mkdir(full, 0700) == 0 || errno == EEXIST);
        *p = '/';
    }
    FILE *f = fopen(full, "we");
    CHECK_NOT_NULL(f);
    CHECK(fputs(text, f) >= 0);
    CHECK_INT_EQ(fclose(f), 0);
}

#endif
