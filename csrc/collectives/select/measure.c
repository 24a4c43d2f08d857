/* SPDX-License-Identifier: Apache-2.0
 * Messages that are sent to measure their cost. */
#include "base/error.h"
#include "collectives/select/measure.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory/stream_copy.h"
#include "collectives/collective.h"
#include "collectives/team/team.h"

/* In addition to the tags of the set-up, whose lowest bits give their kind. */
#define TAG_MEASURE (UINT64_C(3) << 62 | UINT64_C(1) << 8)

enum {
    SMALL_BYTES = 8,
    LARGE_BYTES = 128 * 1024, /* far above the eager limit, and a short wait */
    REPEATS = 8,
    SUM_BYTES = 32 * 1024, /* as sums are made: in the cache */
};

rdt_status
rdti_measure_init(struct rdti_measure *m, uint32_t peer, bool leads, struct rdt_error *err)
{
    uint8_t *memory = aligned_alloc(64, 2 * (size_t)LARGE_BYTES);

    if (memory == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "no memory for %d bytes to measure with",
                              2 * LARGE_BYTES);
    memset(memory, 0, 2 * (size_t)LARGE_BYTES);
    *m = (struct rdti_measure){.peer = peer, .leads = leads, .memory = memory};
    return RDT_OK;
}

static bool
measure_is_duplex(const struct rdti_measure *m)
{
    return m->step >= RDTI_MEASURE_SMALL + RDTI_MEASURE_LARGE;
}

static uint64_t
measure_len_of(const struct rdti_measure *m)
{
    return m->step < RDTI_MEASURE_SMALL ? SMALL_BYTES : LARGE_BYTES;
}

static rdt_status
measure_send_one(struct rdti_measure *m, struct rdti_coll *coll, struct rdt_error *err)
{
    const struct rdt_message_desc desc = rdti_coll_desc(coll);

    m->has_replied = true;
    return rdt_group_send(coll->group, m->peer, TAG_MEASURE | m->step, m->memory, measure_len_of(m),
                          &desc, &m->send, err);
}

static rdt_status
measure_post(struct rdti_measure *m, struct rdti_coll *coll, struct rdt_error *err)
{
    const struct rdt_message_desc desc = rdti_coll_desc(coll);
    const rdt_status status =
        rdt_group_recv(coll->group, m->peer, TAG_MEASURE | m->step, m->memory + LARGE_BYTES,
                       measure_len_of(m), &desc, &m->recv, err);

    m->is_posted = true;
    m->has_replied = false;
    m->began_ns = rdti_now_ns();
    return status == RDT_OK && (m->leads || measure_is_duplex(m)) ? measure_send_one(m, coll, err)
                                                                  : status;
}

/* Both are tested: a peer that waits for a message that could not be sent sends nothing. */
static rdt_status
measure_exchange(struct rdti_measure *m, struct rdti_coll *coll, struct rdt_error *err)
{
    rdt_status status = rdti_coll_end_message(&m->recv, measure_len_of(m), "a measurement", err);

    if (status == RDT_OK && !m->has_replied)
        status = measure_send_one(m, coll, err);
    if (status != RDT_OK && status != RDT_EAGAIN)
        return status;
    const rdt_status sent = rdti_coll_end_message(&m->send, 0, "a measurement", err);
    return sent != RDT_OK ? sent : status;
}

rdt_status
rdti_measure_advance(struct rdti_measure *m, struct rdti_coll *coll, struct rdt_error *err)
{
    for (; m->step < RDTI_MEASURE_STEPS; m->step++) {
        rdt_status status = m->is_posted ? RDT_OK : measure_post(m, coll, err);
        if (status == RDT_OK)
            status = measure_exchange(m, coll, err);
        if (status != RDT_OK)
            return status;
        m->taken_ns[m->step] = rdti_now_ns() - m->began_ns;
        m->is_posted = false;
    }
    return RDT_OK;
}

bool
rdti_measure_is_quiet(struct rdti_measure *m)
{
    const bool has_received =
        rdti_coll_end_message(&m->recv, 0, "a measurement", NULL) != RDT_EAGAIN;

    return rdti_coll_end_message(&m->send, 0, "a measurement", NULL) != RDT_EAGAIN && has_received;
}

void
rdti_measure_fini(struct rdti_measure *m)
{
    rdt_transfer_free(m->recv);
    rdt_transfer_free(m->send);
    free(m->memory);
    *m = (struct rdti_measure){0};
}

/* Other load on the cores and the wire only adds to a sample: the least is nearest to the path's
 * own cost, also where most of them were disturbed. */
static uint64_t
measure_least_of(const uint64_t *values, unsigned count)
{
    uint64_t least = values[0];

    for (unsigned i = 1; i < count; i++)
        if (values[i] < least)
            least = values[i];
    return least;
}

struct rdti_path_cost
rdti_measure_result(const struct rdti_measure *m)
{
    const uint64_t large =
        measure_least_of(m->taken_ns + RDTI_MEASURE_SMALL, RDTI_MEASURE_LARGE) / 2;
    uint64_t small = measure_least_of(m->taken_ns, RDTI_MEASURE_SMALL) / 2;
    const uint64_t both = measure_least_of(m->taken_ns + RDTI_MEASURE_SMALL + RDTI_MEASURE_LARGE,
                                           RDTI_MEASURE_DUPLEX);
    /* So disturbed that bytes seem to cost nothing, which would favour moving any number of them.
     * Which part of a large message's cost is due to bytes is unknown, so half of it. */
    if (small >= large)
        small = large / 2;
    const uint64_t bytes_ns = large > small ? large - small : 1;
    const uint64_t both_ns = both > small + bytes_ns ? both - small : bytes_ns;

    return (struct rdti_path_cost){.alpha_ns = small,
                                   .beta_ps = bytes_ns * 1000 / LARGE_BYTES,
                                   .duplex_permille = 1000 * both_ns / bytes_ns};
}

uint64_t
rdti_measure_copy_ps(const struct rdti_measure *m)
{
    uint64_t taken_ns[REPEATS];

    for (unsigned i = 0; i < REPEATS; i++) {
        const uint64_t began_ns = rdti_now_ns();
        rdti_stream_copy(m->memory, m->memory + LARGE_BYTES, LARGE_BYTES, UINT64_MAX);
        taken_ns[i] = rdti_now_ns() - began_ns;
    }
    return measure_least_of(taken_ns, REPEATS) * 1000 / LARGE_BYTES;
}

uint64_t
rdti_measure_sum_ps(const struct rdti_measure *m)
{
    const rdti_reduce_fn sum = rdti_reduce_best()->reduce[RDT_F32][RDT_SUM];
    uint64_t taken_ns[REPEATS];

    for (unsigned i = 0; i < REPEATS; i++) {
        const uint64_t began_ns = rdti_now_ns();
        sum(m->memory, m->memory, m->memory + SUM_BYTES, SUM_BYTES / sizeof(float));
        taken_ns[i] = rdti_now_ns() - began_ns;
    }
    return measure_least_of(taken_ns, REPEATS) * 1000 / SUM_BYTES;
}
