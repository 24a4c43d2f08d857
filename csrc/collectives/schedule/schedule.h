/* SPDX-License-Identifier: Apache-2.0
 * A collective as rounds of steps over the mailbox.
 *
 * A round's local steps run in the order in which they were added, its receives after them, and its
 * sends after those local steps that were added before; calls come last. No step of a round may
 * write what the round sends. Arrivals come in any order; the next round begins when all of them
 * are in. So a buffer that is sent in one round may be written in the next, and a buffer received
 * in one round may be read in the next.
 *
 * Messages are matched by (collective, source, how many came from there before), never by round:
 * ranks that disagree on the operation then still match in their first message and learn how they
 * differ. Every step that the algorithm has is a message even when it is empty, for the same
 * reason.
 *
 * Building: errors stick to the schedule, so that builders need no check after each call; pointers
 * may be NULL from then on. One thread at a time.
 */
#ifndef RDTI_COLLECTIVES_SCHEDULE_SCHEDULE_H
#define RDTI_COLLECTIVES_SCHEDULE_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>

#include "rdmatensor.h"

struct rdti_coll;
struct rdti_temp;

enum {
    RDTI_TEMP_LIMIT = 4 /* temporaries of one schedule: as many as the algorithms need */
};

struct rdti_schedule {
    struct rdti_step *steps;
    uint32_t step_count;
    uint32_t step_cap;
    uint32_t round_count;
    uint16_t *ordinals;           /* messages so far: to each member, then from each member */
    void *temps[RDTI_TEMP_LIMIT]; /* its own, or NULL where kept[] has it */
    struct rdti_temp *kept[RDTI_TEMP_LIMIT]; /* scratch.h */
    rdt_region *owned[RDTI_TEMP_LIMIT];      /* the same, of a persistent collective */
    uint32_t temp_count;
    rdt_status status;          /* of building */
    uint64_t temp_bytes_wanted; /* for the message if memory is lacking */
    /* Running: steps [first, next) are the current round's, [previous, first) the one's before. */
    uint32_t previous;
    uint32_t first;
    uint32_t next;
    uint32_t pending; /* transfers of the current round that are in flight */
};

/* Memory that lives as long as the schedule, aligned to 64 bytes. */
void *rdti_schedule_temp(struct rdti_coll *coll, uint64_t len_bytes);
void rdti_schedule_end_round(struct rdti_coll *coll);

/* Counts are elements of the collective's dtype; of a lossy one, bytes. */
void rdti_schedule_send(struct rdti_coll *coll, uint32_t peer, const void *src, uint64_t count);
void rdti_schedule_recv(struct rdti_coll *coll, uint32_t peer, void *dst, uint64_t count);
/* On arrival: dst = lhs op rhs, one of which is usually `landing`. */
void rdti_schedule_recv_reduce(struct rdti_coll *coll, uint32_t peer, void *landing, void *dst,
                               const void *lhs, const void *rhs, uint64_t count);
/*
 * Rounds in which a long operand comes from one member (`in`) while one goes to a member (`out`):
 * in pieces, a few of them at once. So an arriving piece is summed while it lies in a cache, and
 * `landing` is short: rdti_schedule_landing_bytes(). Both ends of an operand call it alike. Either
 * may be NULL.
 */
struct rdti_operand_in {
    uint32_t peer;
    void *landing;
    void *dst; /* of each element: landing op own, or own op landing */
    const void *own;
    bool is_own_left;
    bool is_last; /* with it all ranks' values are in dst: averages are made piece by piece */
    uint64_t count;
};
struct rdti_operand_out {
    uint32_t peer;
    const void *src;
    uint64_t count;
};
void rdti_schedule_operands(struct rdti_coll *coll, const struct rdti_operand_in *in,
                            const struct rdti_operand_out *out);
uint64_t rdti_schedule_landing_bytes(const struct rdti_coll *coll, uint64_t count);
/* is_last: with it all ranks' values are in dst. */
void rdti_schedule_reduce(struct rdti_coll *coll, void *dst, const void *lhs, const void *rhs,
                          uint64_t count, bool is_last);
/* Folds one operand of each rank, in rank order; `in` lives as long as the schedule. */
void rdti_schedule_fold(struct rdti_coll *coll, void *dst, const uint8_t *const *in,
                        uint64_t count);
/* For averages of halves: dst = src / the divisor. */
void rdti_schedule_divide(struct rdti_coll *coll, void *dst, const void *src, uint64_t count);
void rdti_schedule_copy(struct rdti_coll *coll, void *dst, const void *src, uint64_t count);
/* What an algorithm computes by a function of its own, with values that it chooses. It runs after
 * all messages of the round have been posted, and may not write what they send or receive, nor read
 * what they receive. */
struct rdti_call {
    uint32_t member;
    uint64_t number;
    void *out;
    void *in;
};
typedef void (*rdti_call_fn)(struct rdti_coll *coll, const struct rdti_call *call);
void rdti_schedule_call(struct rdti_coll *coll, rdti_call_fn run, const struct rdti_call *call);

/* prepare() of an algorithm that is a schedule, but for the steps themselves, which `build`
 * adds. */
rdt_status rdti_schedule_prepare(struct rdti_coll *coll, void (*build)(struct rdti_coll *coll),
                                 struct rdt_error *err);
/* The rest of struct rdti_coll_algorithm. */
rdt_status rdti_schedule_advance(struct rdti_coll *coll, struct rdt_error *err);
bool rdti_schedule_is_quiet(struct rdti_coll *coll);
uint32_t rdti_schedule_describe(const struct rdti_coll *coll, char *text, size_t cap);
void rdti_schedule_rest(struct rdti_coll *coll);
void rdti_schedule_release(struct rdti_coll *coll);

/* Defines the algorithm `rdti_<id>` out of the function `build` of the same file. */
#define RDTI_SCHEDULE_ALGORITHM(id, text, build)                                  \
    static rdt_status prepare_##id(struct rdti_coll *coll, struct rdt_error *err) \
    {                                                                             \
        return rdti_schedule_prepare(coll, build, err);                           \
    }                                                                             \
    const struct rdti_coll_algorithm rdti_##id = {                                \
        .name = text,                                                             \
        .prepare = prepare_##id,                                                  \
        .advance = rdti_schedule_advance,                                         \
        .is_quiet = rdti_schedule_is_quiet,                                       \
        .describe = rdti_schedule_describe,                                       \
        .rest = rdti_schedule_rest,                                               \
        .release = rdti_schedule_release,                                         \
    }

#endif
