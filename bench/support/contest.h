/* SPDX-License-Identifier: Apache-2.0
 * What programs share in which ours and a floor move bytes of one size in turns, over shared memory
 * or TCP: their options, the floor's connection, and what each side's processor spends. */
#ifndef RDT_BENCH_CONTEST_H
#define RDT_BENCH_CONTEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench.h"
#include "pair.h"
#include "raw_tcp.h"

enum { CONTEST_OURS, CONTEST_FLOOR, CONTESTANTS };
extern const char *const contest_names[CONTESTANTS];

/* Words of board->ping[side]; COUNT is the program's own. */
enum { CONTEST_COUNT, CONTEST_START, CONTEST_END, CONTEST_CPU_NS };

struct contest {
    const char *transport; /* "shm" or "tcp" */
    bool is_tcp;
    bool sleeps;
    size_t len_bytes;
    uint64_t depth;
    uint64_t count; /* of what is moved, in a round */
    size_t rounds;
    struct raw_tcp_config raw; /* the floor over TCP */
};

/* At most so many of what moves are under way. */
#define CONTEST_MAX_DEPTH 256

/* --transport, --wait, --size (most_bytes at most), --depth, --count and --rounds: shm, spin, 65536
 * bytes, 1, 200 and 5 unless given. What is wrong ends the program. */
struct contest contest_of(int argc, char **argv, size_t most_bytes);

/* The floor's connection over TCP, between both sides; ends with a barrier. */
void contest_connect(struct pair *p, const struct raw_tcp_config *config, bool is_listening,
                     struct raw_tcp *out);

/* The end of a turn: meet the other side, and add to cpu[side] what each side's process has spent.
 * number: another one each time, as at CONTEST_START. */
void contest_end_turn(struct pair *p, uint64_t number, uint64_t spent_ns, uint64_t cpu[2]);

/* A line of JSON. more: fields besides, each with a comma behind it; cpu_ns: of the first and the
 * second side for so many bytes. */
void contest_print(const struct bench_series *ns, const struct contest *contest, const char *more,
                   uint64_t first_cpu_ns, uint64_t second_cpu_ns, double bytes);

#endif
