/* SPDX-License-Identifier: Apache-2.0
 * The baseline over TCP: plain sockets with the options of rdmatensor's (no delay, reno, which
 * does not pace, buffers of 512 KiB). What fails ends the program. */
#ifndef RDT_BENCH_SOCKETS_H
#define RDT_BENCH_SOCKETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pair.h"

/* A connection between both sides; ends with a barrier. */
int sockets_connect(struct pair *p, bool is_listening);

/* Send or receive all of it; `sleeps`: the calls block, else they are repeated. */
void sockets_move(int fd, bool is_sending, bool sleeps, char *buf, size_t len_bytes);

/* An acknowledgement, or a question: too small for its bytes to cost anything. */
#define FLOW_WORD_BYTES 8
#define FLOWS_MAX 2

/* Memory that the bytes of one direction go round in: all messages lie in the same place. */
struct flow_place {
    char *addr;
    size_t len_bytes;
};

/* Messages of one size, each answered by one of another size, at most `depth` of them unanswered:
 * the baseline of writes, whose answers are small, and of reads, whose questions are. */
struct flow {
    int fd;
    bool is_asking;
    uint64_t depth;
    uint64_t in_message_bytes;
    uint64_t out_message_bytes;
    struct flow_place in;
    struct flow_place out;
    uint64_t in_bytes; /* so far: flow_run() begins at 0 */
    uint64_t out_bytes;
};

/* For messages of FLOW_WORD_BYTES, whose content does not matter: many go at once. */
struct flow_place flow_words(void);

/* Move `count` messages of each flow and their answers. */
void flow_run(struct flow *flows, size_t n, uint64_t count, bool sleeps);

#endif
