/* SPDX-License-Identifier: Apache-2.0
 * What messages between two members cost, measured by sending some.
 *
 * Rank 0 leads; its partner answers. Both run the same steps: small messages there and back, large
 * ones there and back, large ones both ways at once.
 */
#ifndef RDTI_COLLECTIVES_SELECT_MEASURE_H
#define RDTI_COLLECTIVES_SELECT_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#include "collectives/select/cost.h"
#include "rdmatensor.h"

struct rdti_coll;

enum {
    RDTI_MEASURE_SMALL = 15, /* steps; the least counts */
    RDTI_MEASURE_LARGE = 7,
    RDTI_MEASURE_DUPLEX = 7,
    RDTI_MEASURE_STEPS = RDTI_MEASURE_SMALL + RDTI_MEASURE_LARGE + RDTI_MEASURE_DUPLEX,
};

struct rdti_measure {
    uint32_t peer;
    bool leads;
    bool is_posted; /* of the step */
    bool has_replied;
    unsigned step;
    rdt_transfer *send; /* NULL: over, or not begun */
    rdt_transfer *recv;
    uint8_t *memory; /* what is sent, then what is received */
    uint64_t began_ns;
    uint64_t taken_ns[RDTI_MEASURE_STEPS];
};

/* RDT_ENOMEM. */
rdt_status rdti_measure_init(struct rdti_measure *m, uint32_t peer, bool leads,
                             struct rdt_error *err);
/* RDT_OK: over. RDT_EAGAIN: in flight. Errors name no peer: the caller knows it. */
rdt_status rdti_measure_advance(struct rdti_measure *m, struct rdti_coll *coll,
                                struct rdt_error *err);
bool rdti_measure_is_quiet(struct rdti_measure *m);
/* Quiet or over; a zeroed one is allowed. */
void rdti_measure_fini(struct rdti_measure *m);
/* The result of a measurement that is over and was led here. */
struct rdti_path_cost rdti_measure_result(const struct rdti_measure *m);
/* Measured without a peer: a pass over memory by non-temporal stores, as a path without alpha; a
 * sum. */
uint64_t rdti_measure_copy_ps(const struct rdti_measure *m);
uint64_t rdti_measure_sum_ps(const struct rdti_measure *m);

#endif
