/* SPDX-License-Identifier: Apache-2.0
 * What the sub-commands of rdtperf share: their options, turns of the library and a baseline over
 * one path, the baseline's connection, and the processor time of each side. */
#ifndef RDT_BENCH_CONTEST_H
#define RDT_BENCH_CONTEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench.h"
#include "pair.h"
#include "raw_tcp.h"

/* There is no baseline over verbs: perftest and verbs_floor are programs of their own. */
enum { CONTEST_OURS, CONTEST_FLOOR, CONTESTANTS };
extern const char *const contest_names[CONTESTANTS];

/* Words of board->ping[side]; COUNT is the command's own. */
enum { CONTEST_COUNT, CONTEST_START, CONTEST_END, CONTEST_CPU_NS };

struct contest {
    const char *transport; /* "shm" unless given */
    bool is_tcp;
    bool sleeps; /* --wait sleep: the library is opened as if many ranks shared the cores */
    bool is_both;
    bool is_silent;
    size_t len_bytes; /* --size */
    uint64_t depth;
    uint64_t count; /* of what is moved, in a round */
    size_t rounds;
    double seconds;
    size_t chunk_bytes;
    size_t contestants;        /* CONTESTANTS, or only the library */
    struct raw_tcp_config raw; /* the baseline over TCP */
    char *shared;              /* the command's own memory, which both sides have */
};

/* At most so many of what moves are under way. */
#define CONTEST_MAX_DEPTH 256

/* The options of a command line; what is not given is as in `defaults`, what is wrong ends the
 * program. most_bytes: of --size; 0: the command has none. */
struct contest contest_of(int argc, char **argv, const struct contest *defaults, size_t most_bytes);

/* Run both sides over the contest's path; they have it as p->arg. */
void contest_run(const struct contest *contest, pair_side_fn first, pair_side_fn second);

/* The baseline's connection over TCP, between both sides; ends with a barrier. */
void contest_connect(struct pair *p, const struct raw_tcp_config *config, bool is_listening,
                     struct raw_tcp *out);

/* The end of a turn: meet the other side, and add to cpu[side] the processor time of each side's
 * process. number: another one each time, as at CONTEST_START. */
void contest_end_turn(struct pair *p, uint64_t number, uint64_t spent_ns, uint64_t cpu[2]);

/* A line of JSON. more: other fields, each with a comma at its end; cpu_ns: of the first and the
 * second side for so many bytes. */
void contest_print(const struct bench_series *ns, const struct contest *contest, const char *more,
                   uint64_t first_cpu_ns, uint64_t second_cpu_ns, double bytes);

#endif
