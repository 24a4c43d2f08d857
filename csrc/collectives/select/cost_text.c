/* SPDX-License-Identifier: Apache-2.0
 * Tables of costs as text. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "collectives/collective.h"
#include "collectives/select/cost.h"

enum { TEXT_MAX_BYTES = 2048 };

static const char *const paths[RDTI_PATHS] = {
    [RDTI_PATH_BOARD] = "board",
    [RDTI_PATH_SHM] = "shm",
    [RDTI_PATH_TCP] = "tcp",
    [RDTI_PATH_VERBS] = "verbs",
};

static const char *const sources[RDTI_COSTS_SOURCES] = {
    [RDTI_COSTS_BUILT_IN] = "built in",
    [RDTI_COSTS_MEASURED] = "measured",
    [RDTI_COSTS_FILE] = "file",
};

const char *
rdti_path_name(uint64_t path)
{
    return path < RDTI_PATHS ? paths[path] : "unknown";
}

const char *
rdti_costs_source(const struct rdti_costs *costs)
{
    return costs->source < RDTI_COSTS_SOURCES ? sources[costs->source] : "unknown";
}

static rdt_status
cost_text_accept(const struct rdti_costs *costs, struct rdt_error *err)
{
    struct rdti_costs clamped = *costs;

    rdti_costs_clamp(&clamped);
    if (memcmp(&clamped, costs, sizeof(clamped)) == 0)
        return RDT_OK;
    return rdti_error_set(err, RDT_EINVAL, 0, "a value of the table of costs is out of range");
}

/* The values of a file: all but where the table is from and which path leads to other hosts. */
static uint64_t *
cost_text_value_of(struct rdti_costs *costs, unsigned number, char *name, size_t cap)
{
    static const char *const kinds[] = {"alpha_ns", "beta_ps", "duplex_permille"};
    enum { KINDS = 3 };
    uint64_t *const of_path[] = {&costs->paths[number / KINDS % RDTI_PATHS].alpha_ns,
                                 &costs->paths[number / KINDS % RDTI_PATHS].beta_ps,
                                 &costs->paths[number / KINDS % RDTI_PATHS].duplex_permille};

    if (number > RDTI_PATHS * KINDS)
        return NULL;
    if (number == RDTI_PATHS * KINDS) {
        (void)snprintf(name, cap, "gamma_ps");
        return &costs->gamma_ps;
    }
    (void)snprintf(name, cap, "%s.%s", paths[number / KINDS], kinds[number % KINDS]);
    return of_path[number % KINDS];
}

int
rdti_costs_print(const struct rdti_costs *costs, char *text, size_t cap)
{
    struct rdti_costs copy = *costs;
    const uint64_t *value;
    char name[32];
    int used = 0;

    for (unsigned i = 0; (value = cost_text_value_of(&copy, i, name, sizeof(name))) != NULL; i++)
        used +=
            snprintf((size_t)used < cap ? text + used : NULL,
                     (size_t)used < cap ? cap - (size_t)used : 0, "%s %" PRIu64 "\n", name, *value);
    return used;
}

/* One line; *seen gets the bit of its value. */
static bool
cost_text_read_line(const char *line, struct rdti_costs *costs, uint64_t *seen)
{
    char given[32];
    char name[32];
    char digits[24];
    char rest;
    uint64_t *value;

    if (sscanf(line, "%31s %23s %c", given, digits, &rest) != 2 ||
        strspn(digits, "0123456789") != strlen(digits))
        return false;
    const uint64_t number = strtoull(digits, NULL, 10); /* too large: the largest, out of range */
    for (unsigned i = 0; (value = cost_text_value_of(costs, i, name, sizeof(name))) != NULL; i++) {
        if (strcmp(given, name) != 0)
            continue;
        const bool is_new = (*seen >> i & 1) == 0;
        *value = number;
        *seen |= UINT64_C(1) << i;
        return is_new;
    }
    return false;
}

rdt_status
rdti_costs_load(const char *path, struct rdti_costs *out, bool *is_there_out, struct rdt_error *err)
{
    struct rdti_costs costs = {.source = RDTI_COSTS_FILE, .far = RDTI_PATH_TCP};
    char line[128];
    char name[32];
    uint64_t seen = 0;
    uint64_t all = 0;
    unsigned number = 0;
    rdt_status status = RDT_OK;

    FILE *file = fopen(path, "re");
    *is_there_out = file != NULL;
    if (file == NULL && errno == ENOENT)
        return RDT_OK;
    if (file == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "RDMATENSOR_COST_TABLE=%.200s: %s", path,
                              strerror(errno));
    for (unsigned i = 0; cost_text_value_of(&costs, i, name, sizeof(name)) != NULL; i++)
        all |= UINT64_C(1) << i;
    while (status == RDT_OK && fgets(line, sizeof(line), file) != NULL) {
        number++;
        if (!cost_text_read_line(line, &costs, &seen))
            status = rdti_error_set(err, RDT_EINVAL, 0,
                                    "RDMATENSOR_COST_TABLE=%.200s: line %u is not a name and "
                                    "value of a table of costs, or comes twice",
                                    path, number);
    }
    (void)fclose(file);
    if (status == RDT_OK && seen != all)
        status = rdti_error_set(err, RDT_EINVAL, 0,
                                "RDMATENSOR_COST_TABLE=%.200s: values are missing", path);
    if (status == RDT_OK)
        status = cost_text_accept(&costs, err);
    if (status == RDT_OK)
        *out = costs;
    return status;
}

rdt_status
rdti_costs_save(const char *path, const struct rdti_costs *costs, struct rdt_error *err)
{
    char text[TEXT_MAX_BYTES];
    char beside[1024];

    (void)rdti_costs_print(costs, text, sizeof(text));
    const int len = snprintf(beside, sizeof(beside), "%s.%ld", path, (long)getpid());
    if (len < 0 || (size_t)len >= sizeof(beside))
        return rdti_error_set(err, RDT_EINVAL, 0, "RDMATENSOR_COST_TABLE is too long");
    FILE *file = fopen(beside, "we");
    bool is_written = file != NULL && fputs(text, file) >= 0;
    if (file != NULL)
        is_written &= fclose(file) == 0;
    if (is_written && rename(beside, path) == 0)
        return RDT_OK;
    const int why = errno;
    (void)unlink(beside);
    return rdti_error_set(err, RDT_EDEVICE, 0, "RDMATENSOR_COST_TABLE=%.200s: %s", path,
                          strerror(why));
}
