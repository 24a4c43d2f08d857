/* SPDX-License-Identifier: Apache-2.0
 *
 * growth - that nothing grows: memory, arena and descriptors of both processes after a warm-up and
 * again after many more transfers of mixed kinds (writes with and without notification, lists of
 * blocks, reads, regions that come and go).
 *
 *   rdtperf growth [--transport shm|tcp] [--count N]             default shm, 100000 transfers
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "process.h"
#include "rdtperf.h"

#define REGION_BYTES ((size_t)1 << 20)
#define BLOCKS 8
#define BURST 32 /* transfers from one notification to the next */

struct look {
    struct process_memory memory;
    uint64_t arena_bytes;
};

static struct look
take_look(struct pair *p)
{
    struct look look;

    look.arena_bytes = process_described(p->ctx, "arena", "allocated_bytes");
    look.memory = process_memory_now();
    return look;
}

static void
move_burst(struct pair *p, char *local, const struct rdt_remote_region *remote, uint64_t number)
{
    struct rdt_block blocks[BLOCKS];
    rdt_transfer *t[BURST];
    struct rdt_error err;
    rdt_region *passing;

    pair_check(rdt_region_alloc(p->ctx, 1000 + number % 5000, 0, &passing, &err), &err,
               "rdt_region_alloc");
    for (uint32_t i = 0; i < BLOCKS; i++)
        blocks[i] = (struct rdt_block){local + i * 512, 256 + i, i * 8192};
    for (uint32_t i = 0; i < BURST; i++) {
        const uint64_t len_bytes = (number * BURST + i) * 977 % 16384;
        rdt_status status;

        if (i % 8 == 5)
            status = rdt_endpoint_write_many(p->ep, blocks, BLOCKS, remote, RDT_NOTIFY_NONE, &t[i],
                                             &err);
        else if (i % 8 == 6)
            status =
                rdt_endpoint_read(p->ep, rdt_region_addr(passing), 512, remote, 64, &t[i], &err);
        else
            status = rdt_endpoint_write(p->ep, local, len_bytes, remote, 0,
                                        i + 1 == BURST ? 7 : RDT_NOTIFY_NONE, &t[i], &err);
        pair_check(status, &err, "a transfer");
    }
    for (uint32_t i = 0; i < BURST; i++) {
        pair_check(rdt_transfer_wait(t[i], PAIR_TIMEOUT_NS, &err), &err, "rdt_transfer_wait");
        rdt_transfer_free(t[i]);
    }
    rdt_region_free(passing, NULL, NULL);
}

static void
report(const struct pair *p, const struct contest *settings, const struct look *before,
       const struct look *after)
{
    (void)printf("{\"bench\": \"%s\", \"summary\": true, \"transport\": \"%s\", \"side\": \"%s\", "
                 "\"transfers\": %llu, \"private_bytes\": %lld, \"rss_bytes\": %lld, "
                 "\"arena_bytes\": %lld, \"descriptors\": %lld}\n",
                 bench_name, settings->transport, p->side == 0 ? "initiator" : "target",
                 (unsigned long long)settings->count,
                 (long long)(after->memory.private_bytes - before->memory.private_bytes),
                 (long long)(after->memory.rss_bytes - before->memory.rss_bytes),
                 (long long)(after->arena_bytes - before->arena_bytes),
                 (long long)(after->memory.descriptors - before->memory.descriptors));
    (void)fflush(stdout);
}

/* Both sides: `step` for a tenth of the transfers, a look, all of them, a look. */
static void
run(struct pair *p, void (*step)(struct pair *p, void *arg, uint64_t number), void *arg)
{
    const struct contest *settings = p->arg;
    const uint64_t bursts = settings->count / BURST;
    const uint64_t warm_up = bursts / 10 + 1;
    struct look before = {0};

    (void)take_look(p); /* its own buffers */
    for (uint64_t i = 0; i < warm_up + bursts; i++) {
        if (i == warm_up)
            before = take_look(p);
        step(p, arg, i);
    }
    const struct look after = take_look(p);
    report(p, settings, &before, &after);
}

struct initiator {
    char *local;
    struct rdt_remote_region remote;
};

static void
initiate(struct pair *p, void *arg, uint64_t number)
{
    struct initiator *initiator = arg;

    move_burst(p, initiator->local, &initiator->remote, number);
    (void)pair_wait_notify(p);
}

struct target {
    struct rdt_remote_region remote;
    uint64_t word;
};

/* Answers each burst by a write, so that neither side runs ahead. */
static void
answer(struct pair *p, void *arg, uint64_t number)
{
    struct target *target = arg;

    (void)pair_wait_notify(p);
    target->word = number;
    pair_write(p, &target->word, sizeof(target->word), &target->remote, 0, 7);
}

static void
initiator_side(struct pair *p)
{
    struct initiator initiator = {.local = bench_map(REGION_BYTES, MAP_PRIVATE)};

    rdt_region *region = pair_offer(p, REGION_BYTES);
    pair_barrier(p);
    initiator.remote = pair_take_offer(p);
    run(p, initiate, &initiator);
    rdt_region_free(region, NULL, NULL);
    (void)munmap(initiator.local, REGION_BYTES);
}

static void
target_side(struct pair *p)
{
    struct target target = {.remote = pair_take_offer(p)};

    pair_barrier(p);
    rdt_region *region = pair_offer(p, REGION_BYTES);
    run(p, answer, &target);
    rdt_region_free(region, NULL, NULL);
}

void
perf_growth(const struct contest *options)
{
    contest_run(options, initiator_side, target_side);
}
