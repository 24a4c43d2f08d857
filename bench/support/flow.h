/* SPDX-License-Identifier: Apache-2.0
 * Messages of one size over plain sockets, each answered by one of another size, at most `depth` of
 * them unanswered: the floor under many writes, whose answers are small, and under many reads,
 * whose questions are. What fails ends the program. */
#ifndef RDT_BENCH_FLOW_H
#define RDT_BENCH_FLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The end of one that is too small to say anything: an acknowledgement, or a question. */
#define FLOW_WORD_BYTES 8
#define FLOWS_MAX 2

/* Memory that the bytes of one direction go round in: all messages lie in the same place. */
struct flow_place {
    char *addr;
    size_t len_bytes;
};

/* One connection, as one side sees it. The place of a direction has whole messages of it. */
struct flow {
    int fd;
    bool is_asking;
    uint64_t depth; /* of who asks */
    uint64_t in_message_bytes;
    uint64_t out_message_bytes;
    struct flow_place in;
    struct flow_place out;
    uint64_t in_bytes; /* so far: flow_run() begins at 0 */
    uint64_t out_bytes;
};

/* For messages of FLOW_WORD_BYTES, which nobody looks at: many go at once. */
struct flow_place flow_words(void);

/* Move `count` messages of each flow and their answers, in turns; who does not sleep spins. */
void flow_run(struct flow *flows, size_t n, uint64_t count, bool sleeps);

#endif
