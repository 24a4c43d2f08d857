/* SPDX-License-Identifier: Apache-2.0
 * Matching of receives with messages within one group: FIFO per (source, tag), with receives
 * from any source in the order in which they were posted among all others. Every operation takes
 * constant time, however much is outstanding. One thread at a time (the engine's lock).
 */
#ifndef RDTI_MESSAGE_MATCH_MATCH_H
#define RDTI_MESSAGE_MATCH_MATCH_H

#include <stdint.h>

#include "base/list.h"
#include "message/match/buffer_pool.h"
#include "rdmatensor.h"

struct rdti_bin;

/* A receive that waits; part of its owner. */
struct rdti_match_posted {
    struct rdti_list link;
    struct rdti_bin *bin; /* NULL: it does not wait */
    uint64_t stamp;
};

/* A message that waits; part of its owner. */
struct rdti_match_arrival {
    struct rdti_list by_source;
    struct rdti_list by_tag;
    struct rdti_bin *source_bin; /* NULL: it does not wait */
    struct rdti_bin *tag_bin;
};

struct rdti_matcher {
    struct rdti_bin **buckets;
    uint32_t bucket_count; /* a power of two */
    uint32_t bin_count;
    uint32_t any_count; /* receives from any source that wait */
    uint64_t next_stamp;
    struct rdti_pool bins;
};

rdt_status rdti_matcher_init(struct rdti_matcher *m, struct rdt_error *err);
/* Everything was taken out before. */
void rdti_matcher_clear(struct rdti_matcher *m);

/* `source` may be RDT_SOURCE_ANY. RDT_ENOMEM */
rdt_status rdti_match_post(struct rdti_matcher *m, uint32_t source, uint64_t tag,
                           struct rdti_match_posted *posted, struct rdt_error *err);
/* RDT_ENOMEM */
rdt_status rdti_match_store(struct rdti_matcher *m, uint32_t source, uint64_t tag,
                            struct rdti_match_arrival *arrival, struct rdt_error *err);
/* The receive that a message of this source and tag belongs to, taken out; or NULL. */
struct rdti_match_posted *rdti_match_take_posted(struct rdti_matcher *m, uint32_t source,
                                                 uint64_t tag);
/* The message that a receive from `source` (or RDT_SOURCE_ANY) gets, taken out; or NULL. */
struct rdti_match_arrival *rdti_match_take_arrival(struct rdti_matcher *m, uint32_t source,
                                                   uint64_t tag);
/* Takes out an entry that waits; harmless for one that does not. */
void rdti_match_cancel(struct rdti_matcher *m, struct rdti_match_posted *posted);
void rdti_match_remove(struct rdti_matcher *m, struct rdti_match_arrival *arrival);

#endif
