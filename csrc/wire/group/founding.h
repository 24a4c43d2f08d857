/* SPDX-License-Identifier: Apache-2.0
 * What the members of a group exchange before its first collective: the address of each board,
 * votes on which boards are usable, and rank 0's table of costs. Each is the payload of a message
 * with its own tag. */
#ifndef RDTI_WIRE_GROUP_FOUNDING_H
#define RDTI_WIRE_GROUP_FOUNDING_H

#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"

/* ---- Addresses and votes ---- */

struct rdti_founding_address {
    uint32_t has_board; /* 0: no memory for a board */
    struct rdt_remote_region board;
};
#define RDTI_FOUNDING_ADDRESS_BYTES (1 + RDT_REMOTE_REGION_BYTES)

struct rdti_founding_vote {
    uint64_t members;      /* bit r: the voter can use the board of group rank r */
    uint32_t must_measure; /* of rank 0: 1 if it has no table of costs */
};
#define RDTI_FOUNDING_VOTE_BYTES 9

/* RDT_EPROTO: wrong length, a flag that is not 0 or 1, a bad descriptor. The caller checks that the
 * group has that many members. Outputs are untouched on failure. */
void rdti_founding_address_encode(const struct rdti_founding_address *in,
                                  uint8_t out[RDTI_FOUNDING_ADDRESS_BYTES]);
rdt_status rdti_founding_address_decode(const uint8_t *buf, size_t len_bytes,
                                        struct rdti_founding_address *out, struct rdt_error *err);
void rdti_founding_vote_encode(const struct rdti_founding_vote *in,
                               uint8_t out[RDTI_FOUNDING_VOTE_BYTES]);
rdt_status rdti_founding_vote_decode(const uint8_t *buf, size_t len_bytes,
                                     struct rdti_founding_vote *out, struct rdt_error *err);

/* ---- The table of costs ---- */

/* Costs of a message between two ranks; RDTI_PATH_BOARD: of a round, and of each byte that passes
 * through the board once. */
enum {
    RDTI_PATH_BOARD = 0,
    RDTI_PATH_SHM = 1,
    RDTI_PATH_TCP = 2,
    RDTI_PATH_VERBS = 3,
};
#define RDTI_PATHS 4

enum {
    RDTI_COSTS_BUILT_IN = 0,
    RDTI_COSTS_MEASURED = 1,
    RDTI_COSTS_FILE = 2,
};
#define RDTI_COSTS_SOURCES 3

/* Largest values, so that no sum of costs overflows: one second, one microsecond per byte, and
 * twice the cost for two directions. The minimum of alpha, beta and gamma is 1. */
#define RDTI_COSTS_ALPHA_MAX_NS 1000000000
#define RDTI_COSTS_BETA_MAX_PS 1000000
#define RDTI_COSTS_DUPLEX_MIN_PERMILLE 1000
#define RDTI_COSTS_DUPLEX_MAX_PERMILLE 2000

struct rdti_path_cost {
    uint64_t alpha_ns;        /* latency of an empty message */
    uint64_t beta_ps;         /* per byte */
    uint64_t duplex_permille; /* 1000: both directions at once cost as much as one; 2000: twice */
};
#define RDTI_PATH_COST_BYTES 24

struct rdti_costs {
    uint64_t source; /* RDTI_COSTS_* */
    uint64_t far;    /* the path between hosts; RDTI_PATH_SHM: there is only one host */
    struct rdti_path_cost paths[RDTI_PATHS];
    uint64_t gamma_ps; /* of a sum, per byte of the result, for float32 in the cache */
};
#define RDTI_COSTS_BYTES (8 + 8 + RDTI_PATHS * RDTI_PATH_COST_BYTES + 8)

void rdti_costs_encode(const struct rdti_costs *in, uint8_t out[RDTI_COSTS_BYTES]);
/* RDT_EPROTO: wrong length, or a value is out of range. *out is untouched on failure. */
rdt_status rdti_costs_decode(const uint8_t *buf, size_t len_bytes, struct rdti_costs *out,
                             struct rdt_error *err);

#endif
