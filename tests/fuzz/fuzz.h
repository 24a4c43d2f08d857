/* SPDX-License-Identifier: Apache-2.0
 * What the programs of this folder share. Each takes libFuzzer's arguments and
 *   --target=NAME   the one to fuzz, of a program that has several
 *   --list          prints the names of its targets
 *   --seeds=DIR     writes the target's seeds, made by our own encoders, into that folder
 */
#ifndef RDT_TESTS_FUZZ_H
#define RDT_TESTS_FUZZ_H

#include "harness.h"

/* libFuzzer's interface; it ignores arguments that begin with two dashes. */
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The value of --NAME=VALUE, "" of --NAME, or NULL. */
static inline const char *
fuzz_option(int argc, char **argv, const char *name)
{
    const size_t len = strlen(name);

    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) != 0 || strncmp(argv[i] + 2, name, len) != 0)
            continue;
        if (argv[i][2 + len] == '\0' || argv[i][2 + len] == '=')
            return argv[i] + 2 + len + (argv[i][2 + len] == '=');
    }
    return NULL;
}

static inline void
fuzz_write_seed(const char *dir, unsigned number, const uint8_t *bytes, size_t len_bytes)
{
    char path[4096];

    (void)snprintf(path, sizeof(path), "%s/seed-%03u", dir, number);
    FILE *file = fopen(path, "wb");
    CHECK_MSG(file != NULL, "%s: %s", path, strerror(errno));
    CHECK(fwrite(bytes, 1, len_bytes, file) == len_bytes);
    CHECK(fclose(file) == 0);
}

#endif
