/* SPDX-License-Identifier: Apache-2.0
 * Turns: the first side writes into the second's region, in one way or another, and the second then
 * reads all of it. Every contestant so finds lines that the other core has read since they were
 * written last, and each takes its turn in the same run. The reader waits in the way that belongs
 * to the act, before the writer begins. */
#ifndef RDT_BENCH_TURNS_H
#define RDT_BENCH_TURNS_H

#include "bench.h"
#include "pair.h"

enum turn_wait {
    TURN_BOARD = 1,  /* the reader spins on the board: what no library has a hand in */
    TURN_NOTIFY = 2, /* the reader is in rdt_endpoint_wait_notify() */
    TURN_END = 3
};

enum turn_buffer {
    TURN_REGION = 1, /* the region that the reader offered, or its mapping */
    TURN_OWN = 2     /* memory that the benchmark mapped itself, before it forked */
};

struct turns {
    struct pair *pair;
    uint64_t number;
};

struct contestant {
    const char *name;
    enum turn_wait wait;
    enum turn_buffer buffer;
    void (*act)(void *arg, size_t len_bytes); /* all that is timed */
    /* src for turns_verify() so that bench_fill()'s bytes of the seed arrive; NULL: those */
    void (*fill)(void *arg, void *src, size_t len_bytes, uint64_t seed);
    void *arg;
    struct bench_series series; /* the act */
    struct bench_series seen;   /* from its begin until the reader knows */
    struct bench_series read;   /* the reader's pass over the bytes */
};

/*
 * Rounds of one untimed and `timed` timed turns for each contestant, until `seconds` are over and
 * at least 3 rounds are done; the first turn finds the state that the contestant before it left.
 */
void turns_measure(struct turns *t, struct contestant *list, size_t count, size_t len_bytes,
                   double seconds, size_t timed);
/* A turn each, untimed, with another payload in src each time, of which the reader compares each
 * byte. */
void turns_verify(struct turns *t, const struct contestant *list, size_t count, char *src,
                  size_t len_bytes);
/* Print all and free the series; `fields` as bench_series_print() wants it. */
void turns_report(struct contestant *list, size_t count, const char *fields);

/* Let the reader go. */
void turns_end(struct turns *t);
/* The second side: until turns_end(). */
void turns_serve(struct pair *p, const void *region, const void *own);

#endif
