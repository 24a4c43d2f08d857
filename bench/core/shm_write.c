/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_write - write + notify over shared memory, beside its floor: the best of memcpy, rep movsb
 * and non-temporal stores into memory that the other process has read since it was written last.
 * The floor's copies go into the mapping that the library uses ("region") and into one of our own
 * ("own"), so that neither a good nor a bad mapping flatters the ratio.
 *
 * What arrives is compared in a pass of its own, first.
 *
 *   shm_write [--sizes N,N,...] [--seconds S] [--unpinned]       S per size, default 2
 *
 * Two ratios of the best floor's median to ours. "ratio": from the start until the other process
 * knows, told by our notification or, on the floor, by a flag stored after the copy. "ratio_call":
 * until the call returns; there the floor has an advantage that nobody can have who tells the peer:
 * a copy with non-temporal stores returns some 400 ns before its last bytes are in place, and
 * whatever has to look whether the peer sleeps waits for them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "copy_kinds.h"
#include "turns.h"

#define MAX_BYTES ((size_t)64 << 20)
#define TIMED_PER_ROUND 3

struct settings {
    size_t sizes[BENCH_MAX_SIZES];
    size_t size_count;
    double seconds;
    char *own; /* shared by both sides */
};

struct ours {
    struct pair *pair;
    struct rdt_remote_region remote;
    const char *src;
};

struct floor_copy {
    copy_fn copy;
    char *dst;
    const char *src;
};

static void
act_ours(void *arg, size_t len_bytes)
{
    struct ours *ours = arg;

    pair_write(ours->pair, ours->src, len_bytes, &ours->remote, 0, 7);
}

static void
act_floor(void *arg, size_t len_bytes)
{
    struct floor_copy *f = arg;

    f->copy(f->dst, f->src, len_bytes);
}

/* The floor's best median among `call` or `seen` series; *name_out: whose. */
static uint64_t
best_floor(const struct contestant *list, size_t count, bool is_call, double fraction,
           const char **name_out)
{
    uint64_t best_ns = UINT64_MAX;

    for (size_t i = 1; i < count; i++) {
        const uint64_t ns =
            bench_series_quantile(is_call ? &list[i].series : &list[i].seen, fraction);

        if (ns < best_ns) {
            best_ns = ns;
            *name_out = list[i].name;
        }
    }
    return best_ns;
}

static void
report_ratio(const struct contestant *list, size_t count, size_t len_bytes)
{
    const char *name = NULL;
    const char *other = NULL;
    const uint64_t floor_ns = best_floor(list, count, false, 0.5, &name);
    const uint64_t ours_ns = bench_series_quantile(&list[0].seen, 0.5);
    const double ratio_p10 = (double)best_floor(list, count, false, 0.1, &other) /
                             (double)bench_series_quantile(&list[0].seen, 0.1);
    const uint64_t floor_call_ns = best_floor(list, count, true, 0.5, &other);
    const uint64_t ours_call_ns = bench_series_quantile(&list[0].series, 0.5);

    (void)printf("{\"bench\": \"%s\", \"summary\": true, \"size\": %zu, \"ours_ns\": %llu, "
                 "\"floor_ns\": %llu, \"best_floor\": \"%s\", \"ours_gbps\": %.2f, "
                 "\"floor_gbps\": %.2f, \"ratio\": %.3f, \"ratio_p10\": %.3f, "
                 "\"ours_call_ns\": %llu, \"floor_call_ns\": %llu, \"ratio_call\": %.3f}\n",
                 bench_name, len_bytes, (unsigned long long)ours_ns, (unsigned long long)floor_ns,
                 name, (double)len_bytes / (double)ours_ns, (double)len_bytes / (double)floor_ns,
                 (double)floor_ns / (double)ours_ns, ratio_p10, (unsigned long long)ours_call_ns,
                 (unsigned long long)floor_call_ns, (double)floor_call_ns / (double)ours_call_ns);
    (void)fflush(stdout);
}

/* A line for each contestant: samples from the start until the other process knows. */
static void
report_seen(const struct contestant *list, size_t count, size_t len_bytes)
{
    char fields[64];

    (void)snprintf(fields, sizeof(fields), "\"timed\": \"seen\", \"size\": %zu", len_bytes);
    for (size_t i = 0; i < count; i++)
        bench_series_print(&list[i].seen, fields);
}

/* Ours first, then each kind into each mapping; returns how many. */
static size_t
line_up(struct contestant *list, struct floor_copy *copies, struct ours *ours, char *region,
        char *own)
{
    static const char *const names[2][COPY_KINDS_MAX] = {{"memcpy", "movsb", "stream",
                                                          "stream_lanes"},
                                                         {"memcpy (own)", "movsb (own)",
                                                          "stream (own)", "stream_lanes (own)"}};
    struct copy_kind kinds[COPY_KINDS_MAX];
    const size_t kind_count = copy_kinds_find(kinds);
    size_t n = 0;

    list[n++] = (struct contestant){
        .name = "ours", .wait = TURN_NOTIFY, .buffer = TURN_REGION, .act = act_ours, .arg = ours};
    for (size_t m = 0; m < 2; m++) {
        for (size_t k = 0; k < kind_count; k++) {
            copies[n] = (struct floor_copy){kinds[k].copy, m == 0 ? region : own, ours->src};
            list[n] = (struct contestant){.name = names[m][k],
                                          .wait = TURN_BOARD,
                                          .buffer = m == 0 ? TURN_REGION : TURN_OWN,
                                          .act = act_floor,
                                          .arg = &copies[n]};
            n++;
        }
    }
    return n;
}

static void
write_side(struct pair *p)
{
    const struct settings *settings = p->arg;
    struct ours ours = {.pair = p, .remote = pair_take_offer(p)};
    struct contestant list[1 + 2 * COPY_KINDS_MAX];
    struct floor_copy copies[1 + 2 * COPY_KINDS_MAX];
    struct turns turns = {.pair = p};
    struct rdt_error err;
    void *region;

    char *src = bench_map(MAX_BYTES, MAP_PRIVATE);
    memset(src, 0x5a, MAX_BYTES);
    ours.src = src;
    pair_check(rdt_endpoint_map(p->ep, &ours.remote, &region, &err), &err, "rdt_endpoint_map");
    for (size_t i = 0; i < settings->size_count; i++) {
        const size_t count = line_up(list, copies, &ours, region, settings->own);
        char fields[64];

        (void)snprintf(fields, sizeof(fields), "\"size\": %zu", settings->sizes[i]);
        turns_verify(&turns, list, count, src, settings->sizes[i]);
        turns_measure(&turns, list, count, settings->sizes[i], settings->seconds, TIMED_PER_ROUND);
        report_seen(list, count, settings->sizes[i]);
        report_ratio(list, count, settings->sizes[i]);
        turns_report(list, count, fields);
    }
    turns_end(&turns);
    (void)munmap(src, MAX_BYTES);
}

static void
read_side(struct pair *p)
{
    const struct settings *settings = p->arg;
    rdt_region *region = pair_offer(p, MAX_BYTES);

    /* An inherited mapping has no page table entries in a child: bring them in before the first
     * turn. */
    p->board->checksum = bench_sum(settings->own, MAX_BYTES);
    turns_serve(p, rdt_region_addr(region), settings->own);
    rdt_region_free(region, NULL, NULL);
}

int
main(int argc, char **argv)
{
    static const char *const known[] = {"--sizes=", "--seconds=", "--unpinned", NULL};
    struct settings settings = {.seconds = 2.0};

    bench_name = "shm_write";
    bench_check_args(argc, argv, known);
    const char *sizes = bench_arg(argc, argv, "--sizes");
    settings.size_count = bench_parse_sizes(sizes != NULL ? sizes : "65536,1048576,67108864",
                                            MAX_BYTES, settings.sizes);
    settings.seconds = bench_arg_number(argc, argv, "--seconds", settings.seconds);
    settings.own = bench_map(MAX_BYTES, MAP_SHARED);
    const struct pair_opts opts = {.transport = "shm",
                                   .is_unpinned = bench_has(argc, argv, "--unpinned")};
    pair_run(&opts, write_side, read_side, &settings);
    return 0;
}
