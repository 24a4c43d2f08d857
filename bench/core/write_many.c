/* SPDX-License-Identifier: Apache-2.0
 *
 * write_many - a list of blocks with one notification against one write of their sum, over shared
 * memory or TCP. "in order": block i goes where a single write would put it; "shuffled": the blocks
 * lie in another order on both sides. "one by one": a write for each block, the last with the
 * notification, which is what a program without write_many would do. What arrives is compared in a
 * pass of its own, first.
 *
 *   rdtperf write_many [--transport shm|tcp] [--count N] [--size N] [--seconds S]
 *
 * Defaults: shm, 4096 blocks of 16384 bytes, 3 s.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "rdtperf.h"
#include "turns.h"

#define WAYS 4

struct many {
    struct pair *pair;
    struct rdt_remote_region remote;
    const char *src;
    struct rdt_block *in_order;
    struct rdt_block *shuffled;
    uint32_t block_count;
};

static void
finish(rdt_transfer *transfer)
{
    struct rdt_error err;

    pair_check(rdt_transfer_wait(transfer, PAIR_TIMEOUT_NS, &err), &err, "rdt_transfer_wait");
    rdt_transfer_free(transfer);
}

static void
write_list(struct many *m, const struct rdt_block *blocks)
{
    rdt_transfer *transfer;
    struct rdt_error err;

    pair_check(rdt_endpoint_write_many(m->pair->ep, blocks, m->block_count, &m->remote, 7,
                                       &transfer, &err),
               &err, "rdt_endpoint_write_many");
    finish(transfer);
}

static void
act_one_write(void *arg, size_t len_bytes)
{
    struct many *m = arg;

    pair_write(m->pair, m->src, len_bytes, &m->remote, 0, 7);
}

static void
act_in_order(void *arg, size_t len_bytes)
{
    struct many *m = arg;

    (void)len_bytes;
    write_list(m, m->in_order);
}

static void
act_shuffled(void *arg, size_t len_bytes)
{
    struct many *m = arg;

    (void)len_bytes;
    write_list(m, m->shuffled);
}

/* Block i at the place from which the shuffled list brings it to where block i belongs. */
static void
fill_mirrored(void *arg, void *src, size_t len_bytes, uint64_t seed)
{
    const struct many *m = arg;
    const size_t block_bytes = len_bytes / m->block_count;
    char *plain = bench_map(len_bytes, MAP_PRIVATE);

    bench_fill(plain, len_bytes, seed);
    for (size_t i = 0; i < m->block_count; i++)
        memcpy((char *)src + (m->block_count - 1 - i) * block_bytes, plain + i * block_bytes,
               block_bytes);
    (void)munmap(plain, len_bytes);
}

static void
act_one_by_one(void *arg, size_t len_bytes)
{
    struct many *m = arg;
    rdt_transfer *last = NULL;
    struct rdt_error err;

    (void)len_bytes;
    for (uint32_t i = 0; i < m->block_count; i++) {
        const struct rdt_block *block = &m->in_order[i];
        const bool is_last = i + 1 == m->block_count;

        pair_check(rdt_endpoint_write(m->pair->ep, block->src, block->len_bytes, &m->remote,
                                      block->dst_off, is_last ? 7 : RDT_NOTIFY_NONE,
                                      is_last ? &last : NULL, &err),
                   &err, "rdt_endpoint_write");
    }
    finish(last);
}

static void
build_lists(struct many *m, const struct contest *settings)
{
    uint64_t random = 88172645463325252u; /* xorshift64: any seed but zero */

    m->block_count = (uint32_t)settings->count;
    m->in_order = calloc(m->block_count, sizeof(*m->in_order));
    m->shuffled = calloc(m->block_count, sizeof(*m->shuffled));
    if (m->in_order == NULL || m->shuffled == NULL)
        bench_die("calloc");
    for (uint32_t i = 0; i < m->block_count; i++) {
        const uint64_t off = (uint64_t)i * settings->len_bytes;

        m->in_order[i] = (struct rdt_block){m->src + off, settings->len_bytes, off};
        m->shuffled[i] = m->in_order[i];
    }
    for (uint32_t i = m->block_count - 1; i > 0; i--) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        const uint32_t j = (uint32_t)(random % (i + 1));
        const struct rdt_block swapped = m->shuffled[i];

        m->shuffled[i] = m->shuffled[j];
        m->shuffled[j] = swapped;
    }
    /* Scattered on the other side too: mirrored, so that neither side's order is the other's. */
    for (uint32_t i = 0; i < m->block_count; i++)
        m->shuffled[i].dst_off =
            (uint64_t)(m->block_count - 1) * settings->len_bytes - m->shuffled[i].dst_off;
}

static void
write_side(struct pair *p)
{
    const struct contest *settings = p->arg;
    const size_t total = settings->count * settings->len_bytes;
    struct many m = {.pair = p, .remote = pair_take_offer(p)};
    struct turns turns = {.pair = p};
    struct contestant list[WAYS] = {
        {.name = "one write", .act = act_one_write},
        {.name = "write_many in order", .act = act_in_order},
        {.name = "write_many shuffled", .act = act_shuffled, .fill = fill_mirrored},
        {.name = "one by one", .act = act_one_by_one},
    };
    char fields[160];

    char *src = bench_map(total, MAP_PRIVATE);
    m.src = src;
    build_lists(&m, settings);
    for (size_t i = 0; i < WAYS; i++) {
        list[i].wait = TURN_NOTIFY;
        list[i].buffer = TURN_REGION;
        list[i].arg = &m;
    }
    turns_verify(&turns, list, WAYS, src, total);
    turns_measure(&turns, list, WAYS, total, settings->seconds, 3);
    (void)snprintf(fields, sizeof(fields),
                   "\"transport\": \"%s\", \"blocks\": %llu, \"block_bytes\": %zu",
                   settings->transport, (unsigned long long)settings->count, settings->len_bytes);
    turns_report(list, WAYS, fields);
    turns_end(&turns);
    free(m.in_order);
    free(m.shuffled);
    (void)munmap(src, total);
}

static void
read_side(struct pair *p)
{
    const struct contest *settings = p->arg;
    rdt_region *region = pair_offer(p, settings->count * settings->len_bytes);

    turns_serve(p, rdt_region_addr(region), NULL);
    rdt_region_free(region, NULL, NULL);
}

void
perf_write_many(const struct contest *options)
{
    contest_run(options, write_side, read_side);
}
