/* SPDX-License-Identifier: Apache-2.0
 * Two processes with a context each, connected over one path, the main thread of each pinned to a
 * core of its own once the context is open (a context that is opened on one core would take it for
 * all there is). They meet at a board in shared memory, outside of what is measured. */
#ifndef RDT_BENCH_PAIR_H
#define RDT_BENCH_PAIR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "rdmatensor.h"

#define PAIR_BOARD_BYTES ((size_t)64 << 10)
#define PAIR_TIMEOUT_NS UINT64_C(20000000000)

struct pair_board {
    _Alignas(256) _Atomic uint32_t arrived[2];  /* at barriers: how many each side has passed */
    _Alignas(256) _Atomic uint64_t ping[2][32]; /* [side]: words of the command, see perf.h */
    size_t address_bytes[2];
    uint8_t address[2][RDT_ADDRESS_MAX_BYTES];
    uint8_t remote[2][RDT_REMOTE_REGION_BYTES];
    unsigned char scratch[256]; /* the command's own */
};

struct pair_opts {
    const char *transport; /* "shm", "tcp" or "verbs": nothing else will do */
    bool sleeps;           /* the library neither spins nor offers its core */
};

struct pair {
    int side; /* 0 began the other */
    struct pair_board *board;
    rdt_context *ctx;
    rdt_endpoint *ep;
    uint32_t barriers;
    uint64_t turns;      /* of the loop of perf.h */
    uint64_t open_ns;    /* what opening the context took */
    uint64_t connect_ns; /* from the peer's address until the path was proved */
    const void *arg;
};

typedef void (*pair_side_fn)(struct pair *p);

/* Run both sides to their end; what fails ends the program. `arg` reaches both as p->arg. */
void pair_run(const struct pair_opts *opts, pair_side_fn first, pair_side_fn second,
              const void *arg);

/* RDT_* to its end: the message with the call's name. */
void pair_check(rdt_status status, const struct rdt_error *err, const char *call);
/* Wait until the other side is here too, asleep: it may be in the middle of its measurement. */
void pair_barrier(struct pair *p);
/* The same, spinning, so that both go on at once: at word `word` of board->ping[side], which has to
 * be another value each time. */
void pair_meet(struct pair *p, size_t word, uint64_t value);
/* Allocate in this side's arena and tell the other where; a barrier on both sides. */
rdt_region *pair_offer(struct pair *p, uint64_t len_bytes);
struct rdt_remote_region pair_take_offer(struct pair *p);

/* Wait until a transfer is done, and free it. */
void pair_finish(rdt_transfer *transfer);
/* Write and finish. */
void pair_write(struct pair *p, const void *src, uint64_t len_bytes,
                const struct rdt_remote_region *dst, uint64_t dst_off, uint32_t notify);
uint32_t pair_wait_notify(struct pair *p);
struct rdt_counters pair_counters(struct pair *p);

/* For commands that open contexts themselves. */
rdt_context *pair_open_context(const struct pair_opts *opts, int rank);

#endif
