/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_write - write + notify over shared memory, beside its floor: the best of memcpy, rep movsb
 * and non-temporal stores into memory that the other process has read since it was written last.
 * The floor's copies go into the mapping that the library uses ("region") and into one of our own
 * ("own"), so that neither a good nor a bad mapping flatters the ratio.
 *
 * What arrives is compared in a pass of its own, first.
 *
 *   rdtperf shm_write [--size N] [--seconds S]                    default 1 MiB, 2 s
 *
 * Two lines for each copy and for the library. "seen": from the start until the other process
 * knows, by the library's notification or a flag stored after a copy. "call": until the call
 * returns; a copy with non-temporal stores returns some 400 ns before its last bytes are in place.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "copy_kinds.h"
#include "rdtperf.h"
#include "turns.h"

#define MAX_BYTES ((size_t)64 << 20)
#define TIMED_PER_ROUND 3

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
    const struct contest *settings = p->arg;
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
    const size_t count = line_up(list, copies, &ours, region, settings->shared);
    char fields[64];
    (void)snprintf(fields, sizeof(fields), "\"timed\": \"call\", \"size\": %zu",
                   settings->len_bytes);
    turns_verify(&turns, list, count, src, settings->len_bytes);
    turns_measure(&turns, list, count, settings->len_bytes, settings->seconds, TIMED_PER_ROUND);
    report_seen(list, count, settings->len_bytes);
    turns_report(list, count, fields);
    turns_end(&turns);
    (void)munmap(src, MAX_BYTES);
}

static void
read_side(struct pair *p)
{
    const struct contest *settings = p->arg;
    rdt_region *region = pair_offer(p, MAX_BYTES);

    /* An inherited mapping has no page table entries in a child: bring them in before the first
     * turn. */
    p->board->checksum = bench_sum(settings->shared, MAX_BYTES);
    turns_serve(p, rdt_region_addr(region), settings->shared);
    rdt_region_free(region, NULL, NULL);
}

void
perf_shm_write(const struct contest *options)
{
    struct contest settings = *options;

    settings.shared = bench_map(MAX_BYTES, MAP_SHARED);
    contest_run(&settings, write_side, read_side);
}
