/* SPDX-License-Identifier: Apache-2.0
 * For tests of what is logged: stderr goes to a file for a while. */
#ifndef RDT_TESTS_DIVERSION_H
#define RDT_TESTS_DIVERSION_H

#include <stdio.h>
#include <unistd.h>

#include "harness.h"

/* What is logged from here on goes to a file; returns the stderr of before. */
static inline int
divert_stderr(FILE *into)
{
    const int before = dup(STDERR_FILENO);

    CHECK(before >= 0 && dup2(fileno(into), STDERR_FILENO) >= 0);
    return before;
}

/* Gives stderr back; how many lines were logged, each of which is shown. */
static inline unsigned
end_diversion(FILE *from, int before)
{
    char line[1024];
    unsigned count = 0;

    CHECK(dup2(before, STDERR_FILENO) >= 0);
    (void)close(before);
    rewind(from);
    for (; fgets(line, sizeof(line), from) != NULL; count++)
        fputs(line, stderr);
    return count;
}

#endif
