/* SPDX-License-Identifier: Apache-2.0
 * Turns of writing and reading; see turns.h. */
#include "turns.h"

#include <stdio.h>

/* From the reader's "ready" to the act: it has to be inside its wait by then. */
#define SETTLE_NS UINT64_C(3000)
#define MIN_ROUNDS 3
#define MAX_SAMPLES 20000

static void
take_turn(struct turns *t, struct contestant *c, size_t len_bytes, bool is_timed)
{
    struct pair_board *board = t->pair->board;
    const uint64_t number = ++t->number;

    board->act = (uint64_t)c->wait | (uint64_t)c->buffer << 8;
    board->len_bytes = len_bytes;
    /* release: pairs with turns_serve()'s acquire */
    atomic_store_explicit(&board->request, number, memory_order_release);
    bench_await(&board->ready, number, "the reader");
    bench_spin_ns(SETTLE_NS);

    const uint64_t start_ns = bench_now_ns();
    c->act(c->arg, len_bytes);
    const uint64_t took_ns = bench_now_ns() - start_ns;

    /* release: pairs with the reader's acquire in bench_await() */
    atomic_store_explicit(&board->published, number, memory_order_release);
    bench_await(&board->answer, number, "the reader");
    if (!is_timed)
        return;
    bench_series_add(&c->series, took_ns);
    bench_series_add(&c->seen, board->seen_ns - start_ns);
    bench_series_add(&c->read, board->read_ns);
}

void
turns_verify(struct turns *t, const struct contestant *list, size_t count, char *src,
             size_t len_bytes)
{
    for (size_t i = 0; i < count; i++) {
        struct contestant unmeasured = list[i];

        if (unmeasured.fill != NULL)
            unmeasured.fill(unmeasured.arg, src, len_bytes, 1 + i);
        else
            bench_fill(src, len_bytes, 1 + i);
        t->pair->board->seed = 1 + i;
        take_turn(t, &unmeasured, len_bytes, false);
    }
    t->pair->board->seed = 0;
}

void
turns_measure(struct turns *t, struct contestant *list, size_t count, size_t len_bytes,
              double seconds, size_t timed)
{
    for (size_t i = 0; i < count; i++) {
        bench_series_init(&list[i].series, list[i].name, MAX_SAMPLES);
        bench_series_init(&list[i].seen, list[i].name, MAX_SAMPLES);
        bench_series_init(&list[i].read, list[i].name, MAX_SAMPLES);
    }
    for (size_t i = 0; i < count; i++) /* first touch, code pages, lazy mappings */
        take_turn(t, &list[i], len_bytes, false);
    const uint64_t end_ns = bench_now_ns() + (uint64_t)(seconds * 1e9);
    for (size_t round = 0; round < MIN_ROUNDS || bench_now_ns() < end_ns; round++)
        for (size_t i = 0; i < count; i++)
            for (size_t k = 0; k <= timed; k++)
                take_turn(t, &list[i], len_bytes, k > 0);
}

void
turns_report(struct contestant *list, size_t count, const char *fields)
{
    for (size_t i = 0; i < count; i++) {
        char more[512];

        (void)snprintf(more, sizeof(more),
                       "%s, \"is_floor\": %s, \"seen_ns\": %llu, \"read_ns\": %llu", fields,
                       list[i].wait == TURN_BOARD ? "true" : "false",
                       (unsigned long long)bench_series_quantile(&list[i].seen, 0.5),
                       (unsigned long long)bench_series_quantile(&list[i].read, 0.5));
        bench_series_print(&list[i].series, more);
        bench_series_free(&list[i].series);
        bench_series_free(&list[i].seen);
        bench_series_free(&list[i].read);
    }
}

void
turns_end(struct turns *t)
{
    t->pair->board->act = TURN_END;
    /* release: pairs with turns_serve()'s acquire */
    atomic_store_explicit(&t->pair->board->request, ++t->number, memory_order_release);
}

void
turns_serve(struct pair *p, const void *region, const void *own)
{
    struct pair_board *board = p->board;

    for (uint64_t number = 1;; number++) {
        bench_await(&board->request, number, "the writer");
        const enum turn_wait wait = (enum turn_wait)(board->act & 0xff);
        const void *buffer = board->act >> 8 == TURN_REGION ? region : own;

        if (wait == TURN_END)
            return;
        /* release: pairs with take_turn()'s acquire in bench_await() */
        atomic_store_explicit(&board->ready, number, memory_order_release);
        if (wait == TURN_NOTIFY)
            (void)pair_wait_notify(p);
        else
            bench_await(&board->published, number, "the writer");
        board->seen_ns = bench_now_ns();
        if (board->seed != 0) {
            char whose[64];

            (void)snprintf(whose, sizeof(whose), "what arrived of contestant %llu",
                           (unsigned long long)board->seed);
            bench_verify(buffer, board->len_bytes, board->seed, whose);
        }
        board->checksum = bench_sum(buffer, board->len_bytes);
        board->read_ns = bench_now_ns() - board->seen_ns;
        /* release: pairs with take_turn()'s acquire in bench_await() */
        atomic_store_explicit(&board->answer, number, memory_order_release);
    }
}
