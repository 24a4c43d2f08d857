/* SPDX-License-Identifier: Apache-2.0
 * Collectives that send float32 in a lossy format (kernels.h), in two halves:
 *
 *   sum      each member encodes the chunks of the others for their owners; the owner of a chunk
 *            decodes what it gets and adds it, in rank order, to its own values, which are exact
 *   result   the owner encodes the sum and sends it to all; each of them, the owner too, takes what
 *            decoding gives
 *
 * all_reduce has both, reduce_scatter the first, all_gather the second. Chunks are cut at whole
 * blocks, and pieces of chunks likewise, so that neither the way nor its pieces change a bit.
 *
 * A piece is encoded as its scales, padded to a cache line, and then its bytes.
 *
 * Threads: as the collective's.
 */
#ifndef RDTI_COLLECTIVES_LOSSY_LOSSY_H
#define RDTI_COLLECTIVES_LOSSY_LOSSY_H

#include <stdbool.h>
#include <stdint.h>

#include "collectives/lossy/kernels.h"
#include "rdmatensor.h"

struct rdti_coll;
struct rdti_coll_algorithm;
struct rdti_direct_op;

/* What a collective has of it; zero: it is exact. */
struct rdti_lossy {
    uint32_t code;  /* lossy_code.h */
    uint32_t block; /* chunks and pieces are cut at multiples of it */
    const struct rdti_lossy_loops *loops;
};

/* accept.c: checks the wire of coll->args and fills coll->lossy; RDT_EINVAL. Called once the dtype,
 * the reduction and the size are checked. */
rdt_status rdti_lossy_accept(struct rdti_coll *coll, struct rdt_error *err);

/* The part of the tensors that a member owns. NULL: this member has nothing there. */
struct rdti_lossy_chunk {
    const float *src;
    float *dst;
    float *residual;
    uint64_t count;
};
struct rdti_lossy_chunk rdti_lossy_chunk_of(const struct rdti_coll *coll, uint32_t member);
/* Its elements from `begin` on, `most` of them or as many as there are. */
struct rdti_lossy_chunk rdti_lossy_cut(const struct rdti_lossy_chunk *chunk, uint64_t begin,
                                       uint64_t most);
/* The longest of all chunks, in elements. */
uint64_t rdti_lossy_longest(const struct rdti_coll *coll);
bool rdti_lossy_has_sum(const struct rdti_coll *coll);
bool rdti_lossy_has_result(const struct rdti_coll *coll);

/* Bytes of an encoded piece. */
uint64_t rdti_lossy_bytes(const struct rdti_coll *coll, uint64_t count);
/* Elements, a multiple of a block, that fit this many bytes, of which there are at least 64. */
uint64_t rdti_lossy_count_within(const struct rdti_coll *coll, uint64_t len_bytes);

/* What is encoded lies at 64-byte boundaries. */
void rdti_lossy_encode(struct rdti_coll *coll, uint8_t *out, const struct rdti_lossy_chunk *piece);
void rdti_lossy_decode(struct rdti_coll *coll, float *dst, uint8_t *in, uint64_t count);
/* dst = the sum of the own values, piece->src, and what each other member sent, in[member]; divided
 * if that is asked. */
void rdti_lossy_sum(struct rdti_coll *coll, const struct rdti_lossy_chunk *piece,
                    uint8_t *const *in);
/* The same; then the sum is encoded, and dst becomes what decoding gives. */
void rdti_lossy_sum_and_encode(struct rdti_coll *coll, uint8_t *out,
                               const struct rdti_lossy_chunk *piece, uint8_t *const *in);
/* Adds to the team's counters what this member sends, in pieces of this many elements. */
void rdti_lossy_count_sent(const struct rdti_coll *coll, uint64_t piece);

extern const struct rdti_coll_algorithm rdti_lossy_messages; /* messages.c */
extern const struct rdti_direct_op rdti_lossy_boards;        /* boards.c */

#endif
