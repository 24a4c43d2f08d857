/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_throughput - one large write + notify over loopback TCP until it is acknowledged, beside the
 * best that plain sockets reach in the same run: a message and an 8 B answer, from the same memory
 * into the same memory. First every sensible configuration of plain sockets (streams, chunks,
 * buffers, congestion control, waiting) has a heat, and the best of them two more, lest a noisy
 * moment decide; then the finalists and the library take turns.
 *
 *   rdtperf tcp_throughput [--size N] [--seconds S]               default 64 MiB, 5 s of finals
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rdtperf.h"

#define FINALISTS 3
#define SEMIFINALISTS 9
#define SEMIFINAL_ROUNDS 2
#define MOVES 3 /* of a heat */
#define ANSWER_BYTES 8
#define MAX_SAMPLES 5000

enum act { ACT_OURS = 1, ACT_OPEN, ACT_MOVE, ACT_CLOSE, ACT_END };

/* What the first side asks of the second, on the board's scratch. */
struct order {
    uint64_t act;
    uint64_t slot;
    uint64_t seed; /* of the payload, which is then compared; 0: it is not */
    struct raw_tcp_config config;
    struct sockaddr_in addr;
};

struct finals {
    struct pair *pair;
    const struct contest *settings;
    struct rdt_remote_region remote;
    char *src;
    uint64_t number;
    uint64_t seed; /* 0: what is sent next is not compared */
    struct raw_tcp_config configs[FINALISTS];
    struct raw_tcp raw[FINALISTS];
};

static struct order *
order_of(struct pair *p)
{
    return (struct order *)(void *)p->board->scratch;
}

static void
begin(struct finals *c, enum act act, size_t slot)
{
    order_of(c->pair)->act = act;
    order_of(c->pair)->slot = slot;
    order_of(c->pair)->seed = c->seed;
    /* release: pairs with second_side()'s acquire */
    atomic_store_explicit(&c->pair->board->request, ++c->number, memory_order_release);
}

static void
end(struct finals *c)
{
    bench_await(&c->pair->board->answer, c->number, "the receiver");
}

static void
open_raw(struct finals *c, size_t slot, const struct raw_tcp_config *config)
{
    struct sockaddr_in addr;
    const int listener = raw_tcp_listen(config, &addr);

    c->configs[slot] = *config;
    order_of(c->pair)->config = *config;
    order_of(c->pair)->addr = addr;
    begin(c, ACT_OPEN, slot);
    raw_tcp_accept(&c->raw[slot], &c->configs[slot], listener);
    (void)close(listener);
    end(c);
}

static void
close_raw(struct finals *c, size_t slot)
{
    begin(c, ACT_CLOSE, slot);
    raw_tcp_close(&c->raw[slot]);
    end(c);
}

static uint64_t
move_raw(struct finals *c, size_t slot)
{
    char answer[ANSWER_BYTES];

    begin(c, ACT_MOVE, slot);
    bench_await(&c->pair->board->ready, c->number, "the receiver");
    bench_spin_ns(3000);
    const uint64_t start_ns = bench_now_ns();
    raw_tcp_move(&c->raw[slot], true, c->src, c->settings->len_bytes, c->configs[slot].streams);
    raw_tcp_move(&c->raw[slot], false, answer, sizeof(answer), 1);
    const uint64_t took_ns = bench_now_ns() - start_ns;
    end(c);
    return took_ns;
}

static uint64_t
move_ours(struct finals *c)
{
    begin(c, ACT_OURS, 0);
    bench_await(&c->pair->board->ready, c->number, "the receiver");
    bench_spin_ns(3000);
    const uint64_t start_ns = bench_now_ns();
    pair_write(c->pair, c->src, c->settings->len_bytes, &c->remote, 0, 7);
    const uint64_t took_ns = bench_now_ns() - start_ns;
    end(c);
    return took_ns;
}

/* A pass of its own: every finalist and the library move a payload that the receiver compares. */
static void
verify(struct finals *c)
{
    for (size_t i = 0; i <= FINALISTS; i++) {
        c->seed = 1 + i;
        bench_fill(c->src, c->settings->len_bytes, c->seed);
        (void)(i == 0 ? move_ours(c) : move_raw(c, i - 1));
    }
    c->seed = 0;
}

struct heat {
    struct raw_tcp_config config;
    uint64_t best_ns;
};

static int
compare_heats(const void *a, const void *b)
{
    const struct heat *x = a;
    const struct heat *y = b;

    return (x->best_ns > y->best_ns) - (x->best_ns < y->best_ns);
}

/* A heat on a connection of its own; *best_ns is that of all configurations. */
static void
run_heat(struct finals *c, struct heat *heat, uint64_t *best_ns)
{
    open_raw(c, 0, &heat->config);
    for (size_t k = 0; k < MOVES; k++) {
        const uint64_t took_ns = move_raw(c, 0);

        if (took_ns < heat->best_ns)
            heat->best_ns = took_ns;
        if (took_ns / 4 > *best_ns)
            break; /* it will not come back from that */
    }
    close_raw(c, 0);
    if (heat->best_ns < *best_ns)
        *best_ns = heat->best_ns;
}

/* Sorts all configurations by their best message; returns how many there are. */
static size_t
run_heats(struct finals *c, struct heat heats[RAW_TCP_MAX_CANDIDATES])
{
    struct raw_tcp_config candidates[RAW_TCP_MAX_CANDIDATES];
    const size_t count = raw_tcp_candidates(candidates, c->settings->len_bytes);
    uint64_t best_ns = UINT64_MAX;

    for (size_t i = 0; i < count; i++) {
        heats[i] = (struct heat){.config = candidates[i], .best_ns = UINT64_MAX};
        run_heat(c, &heats[i], &best_ns);
    }
    qsort(heats, count, sizeof(heats[0]), compare_heats);
    const size_t semifinalists = count < SEMIFINALISTS ? count : SEMIFINALISTS;
    for (size_t round = 0; round < SEMIFINAL_ROUNDS; round++)
        for (size_t i = 0; i < semifinalists; i++)
            run_heat(c, &heats[i], &best_ns);
    qsort(heats, semifinalists, sizeof(heats[0]), compare_heats);
    return count;
}

static void
report(const struct finals *c, const struct bench_series series[1 + FINALISTS], size_t heats)
{
    char fields[256];

    (void)snprintf(fields, sizeof(fields), "\"size\": %zu, \"configurations\": %zu",
                   c->settings->len_bytes, heats);
    bench_series_print(&series[0], fields);
    for (size_t i = 1; i <= FINALISTS; i++) {
        const struct raw_tcp_config *config = &c->configs[i - 1];

        (void)snprintf(fields, sizeof(fields),
                       "\"size\": %zu, \"wait\": \"%s\", \"streams\": %u, \"chunk\": %zu, "
                       "\"sockbuf\": %d, \"congestion\": \"%s\"",
                       c->settings->len_bytes, config->is_spinning ? "spin" : "block",
                       config->streams, config->chunk_bytes, config->buffer_bytes,
                       config->congestion == NULL ? "system" : config->congestion);
        bench_series_print(&series[i], fields);
    }
}

static void
first_side(struct pair *p)
{
    const struct contest *settings = p->arg;
    struct finals c = {.pair = p, .settings = settings, .remote = pair_take_offer(p)};
    struct heat heats[RAW_TCP_MAX_CANDIDATES];
    struct bench_series series[1 + FINALISTS];

    c.src = bench_map(settings->len_bytes, MAP_PRIVATE);
    memset(c.src, 0x5a, settings->len_bytes);
    const size_t count = run_heats(&c, heats);
    bench_series_init(&series[0], "ours", MAX_SAMPLES);
    for (size_t i = 0; i < FINALISTS; i++) {
        bench_series_init(&series[1 + i], "floor", MAX_SAMPLES);
        open_raw(&c, i, &heats[i].config);
    }
    verify(&c);
    const uint64_t end_ns = bench_now_ns() + (uint64_t)(settings->seconds * 1e9);
    for (size_t round = 0; round < 4 || bench_now_ns() < end_ns; round++) {
        for (size_t i = 0; i <= FINALISTS; i++) {
            for (size_t k = 0; k < 3; k++) {
                const uint64_t took_ns = i == 0 ? move_ours(&c) : move_raw(&c, i - 1);
                if (k > 0 && round > 0)
                    bench_series_add(&series[i], took_ns);
            }
        }
    }
    report(&c, series, count);
    for (size_t i = 0; i < FINALISTS; i++)
        close_raw(&c, i);
    for (size_t i = 0; i <= FINALISTS; i++)
        bench_series_free(&series[i]);
    begin(&c, ACT_END, 0);
    (void)munmap(c.src, settings->len_bytes);
}

static void
receive_raw(struct pair *p, const struct raw_tcp *raw, char *dst, size_t len_bytes, uint64_t number)
{
    char answer[ANSWER_BYTES] = {0};

    /* release: pairs with move_raw()'s acquire in bench_await() */
    atomic_store_explicit(&p->board->ready, number, memory_order_release);
    raw_tcp_move(raw, false, dst, len_bytes, raw->config->streams);
    raw_tcp_move(raw, true, answer, sizeof(answer), 1);
}

static void
second_side(struct pair *p)
{
    const struct contest *settings = p->arg;
    rdt_region *region = pair_offer(p, settings->len_bytes);
    char *dst = rdt_region_addr(region);
    struct raw_tcp_config configs[FINALISTS];
    struct raw_tcp raw[FINALISTS];

    for (uint64_t number = 1;; number++) {
        bench_await(&p->board->request, number, "the sender");
        const struct order order = *order_of(p);

        if (order.act == ACT_END)
            break;
        if (order.act == ACT_OPEN) {
            configs[order.slot] = order.config;
            raw_tcp_connect(&raw[order.slot], &configs[order.slot], &order.addr);
        } else if (order.act == ACT_CLOSE) {
            raw_tcp_close(&raw[order.slot]);
        } else if (order.act == ACT_MOVE) {
            receive_raw(p, &raw[order.slot], dst, settings->len_bytes, number);
        } else {
            /* release: pairs with move_ours()'s acquire in bench_await() */
            atomic_store_explicit(&p->board->ready, number, memory_order_release);
            (void)pair_wait_notify(p);
        }
        if (order.seed != 0)
            bench_verify(dst, settings->len_bytes, order.seed, "what arrived");
        /* release: pairs with end()'s acquire in bench_await() */
        atomic_store_explicit(&p->board->answer, number, memory_order_release);
    }
    rdt_region_free(region, NULL, NULL);
}

void
perf_tcp_throughput(const struct contest *options)
{
    contest_run(options, first_side, second_side);
}
