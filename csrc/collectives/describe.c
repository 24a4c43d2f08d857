/* SPDX-License-Identifier: Apache-2.0
 * Which algorithms a group's collectives use, and why, as text. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "collectives/collective.h"
#include "collectives/select/choice.h"
#include "collectives/select/cost.h"
#include "collectives/team/team.h"
#include "rdmatensor_ext.h"

enum {
    COSTS_MAX_BYTES = 2048,
    CHOICE_BITS = 32, /* larger blocks are described as 2^32 bytes */
    NS_PER_S = 1000000000,
};

struct text {
    char *buf;
    size_t cap;
    size_t used; /* length of the full text, whether it fits or not */
};

static void __attribute__((format(printf, 2, 3)))
coll_describe_put(struct text *text, const char *format, ...)
{
    const bool fits = text->used < text->cap;
    va_list values;

    va_start(values, format);
    const int len = vsnprintf(fits ? text->buf + text->used : NULL,
                              fits ? text->cap - text->used : 0, format, values);
    va_end(values);
    text->used += len > 0 ? (size_t)len : 0;
}

static void
coll_describe_put_hosts(struct text *text, const struct rdti_team *team)
{
    coll_describe_put(text, ",\"hosts\":[");
    for (uint32_t i = 0; i < team->size; i++)
        coll_describe_put(text, "%s%u", i == 0 ? "" : ",", team->hosts.of[i]);
    coll_describe_put(text, "]");
}

static void
coll_describe_put_ran(struct text *text, const struct rdti_team *team)
{
    coll_describe_put(text, ",\"ran\":{");
    for (unsigned i = 0; team != NULL && i < RDTI_RAN_MAX; i++) {
        /* relaxed: partner in team.c */
        const char *name = atomic_load_explicit(&team->ran[i].name, memory_order_relaxed);
        if (name == NULL)
            break;
        coll_describe_put(text, "%s\"%s\":%llu", i == 0 ? "" : ",", name,
                          atomic_load_explicit(&team->ran[i].count, memory_order_relaxed));
    }
    coll_describe_put(text, "}");
}

/* A length up to `above` at which the algorithm changes, given that `above` has another one than
 * `below`. */
static uint64_t
coll_describe_find_change(struct rdti_team *team, uint32_t op, uint64_t below, uint64_t above)
{
    const char *name = rdti_choice_at(team, op, below);

    while (above - below > 1) {
        const uint64_t middle = below + (above - below) / 2;
        if (strcmp(rdti_choice_at(team, op, middle), name) == 0)
            below = middle;
        else
            above = middle;
    }
    return above;
}

/* The algorithms of an operation, each with the size of a block from which on it is used. */
static void
coll_describe_put_choice(struct text *text, struct rdti_team *team, uint32_t op)
{
    const char *name = rdti_choice_at(team, op, 0);
    uint64_t below = 0;

    coll_describe_put(text, "\"%s\":{\"0\":\"%s\"", rdti_coll_name(op), name);
    for (unsigned bit = 0; bit <= CHOICE_BITS; bit++) {
        const uint64_t above = UINT64_C(1) << bit;
        while (strcmp(rdti_choice_at(team, op, above), name) != 0) {
            below = coll_describe_find_change(team, op, below, above);
            name = rdti_choice_at(team, op, below);
            coll_describe_put(text, ",\"%llu\":\"%s\"", (unsigned long long)below, name);
        }
        below = above;
    }
    coll_describe_put(text, "}");
}

static void
coll_describe_put_choices(struct text *text, struct rdti_team *team)
{
    coll_describe_put(text, ",\"chosen\":{");
    for (uint32_t op = RDT_COLL_BROADCAST; op < RDT_COLL_BARRIER; op++) {
        coll_describe_put_choice(text, team, op);
        coll_describe_put(text, op + 1 < RDT_COLL_BARRIER ? "," : "}");
    }
}

static void
coll_describe_put_pass(struct text *text, const char *name, const struct rdti_team *team,
                       enum rdti_pass pass)
{
    const uint64_t spent_ns = team == NULL ? 0 : rdti_team_passes_ns(team, pass);

    coll_describe_put(text, ",\"%s\":%llu.%09llu", name, (unsigned long long)(spent_ns / NS_PER_S),
                      (unsigned long long)(spent_ns % NS_PER_S));
}

/* Of lossy collectives; nothing if there were none. */
static void
coll_describe_put_wire(struct text *text, const struct rdti_team *team)
{
    const struct rdti_lossy_counts *counts = team == NULL ? NULL : &team->lossy;

    /* relaxed: partner in lossy/piece.c */
    if (counts == NULL || atomic_load_explicit(&counts->exact_bytes, memory_order_relaxed) == 0)
        return;
    coll_describe_put(text,
                      ",\"wire\":{\"sent_bytes\":%llu,\"exact_bytes\":%llu,"
                      "\"not_finite_blocks\":%llu,\"saturated_blocks\":%llu",
                      atomic_load_explicit(&counts->sent_bytes, memory_order_relaxed),
                      atomic_load_explicit(&counts->exact_bytes, memory_order_relaxed),
                      atomic_load_explicit(&counts->not_finite, memory_order_relaxed),
                      atomic_load_explicit(&counts->saturated, memory_order_relaxed));
    coll_describe_put_pass(text, "coding_s", team, RDTI_PASS_LOSSY);
    coll_describe_put(text, "}");
}

/* The lines of a file of costs become members. */
static void
coll_describe_put_costs(struct text *text, const struct rdti_team *team)
{
    const struct rdti_costs *costs = team->costs;
    char lines[COSTS_MAX_BYTES];
    char name[32];
    char digits[24];
    int len;

    (void)rdti_costs_print(costs, lines, sizeof(lines));
    coll_describe_put(text, ",\"costs\":{\"source\":\"%s\",\"between\":\"%s\"",
                      rdti_costs_source(costs), rdti_path_name(costs->far));
    for (const char *at = lines; sscanf(at, "%31s %23s%n", name, digits, &len) == 2; at += len)
        coll_describe_put(text, ",\"%s\":%s", name, digits);
    coll_describe_put(text, "}");
}

rdt_status
rdt_group_coll_describe(const rdt_group *group, char *buf, size_t cap, size_t *needed_out,
                        struct rdt_error *err)
{
    static const char *const ways[] = {[RDTI_VERDICT_UNDECIDED] = "undecided",
                                       [RDTI_VERDICT_DIRECT] = "shared memory",
                                       [RDTI_VERDICT_MESSAGES] = "messages",
                                       [RDTI_VERDICT_HOSTS] = "hosts"};
    struct text text = {.buf = buf, .cap = cap};

    if (group == NULL || needed_out == NULL || (buf == NULL && cap > 0))
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "rdt_group_coll_describe: group, buf or needed_out is NULL");
    struct rdti_team *team = rdt_group_attached(group);
    const unsigned verdict = team == NULL ? RDTI_VERDICT_UNDECIDED : rdti_team_verdict(team);
    coll_describe_put(&text, "{\"way\":\"%s\"", ways[verdict]);
    if (team != NULL)
        coll_describe_put(&text, ",\"algorithm\":\"%s\",\"is_deterministic\":%s",
                          rdti_choice_name(team->choice), team->is_ordered ? "true" : "false");
    coll_describe_put_ran(&text, team);
    coll_describe_put_pass(&text, "summing_s", team, RDTI_PASS_SUM);
    coll_describe_put_pass(&text, "copying_s", team, RDTI_PASS_COPY);
    coll_describe_put_wire(&text, team);
    if (verdict == RDTI_VERDICT_HOSTS)
        coll_describe_put_hosts(&text, team);
    if (verdict == RDTI_VERDICT_HOSTS || verdict == RDTI_VERDICT_MESSAGES) {
        coll_describe_put_costs(&text, team);
        coll_describe_put_choices(&text, team);
    }
    coll_describe_put(&text, "}");
    *needed_out = text.used;
    return text.used < cap ? RDT_OK
                           : rdti_error_set(err, RDT_EINVAL, 0, "%zu bytes are needed, not %zu",
                                            text.used + 1, cap);
}
