/* SPDX-License-Identifier: Apache-2.0
 * A two-level segregated fit allocator (Masmano et al., "TLSF: a new dynamic memory allocator for real-time systems",
 * ECRTS 2004) over spans of addresses that it never touches: block headers live in private memory. */
#ifndef RDTI_CORE_ALLOC_H
#define RDTI_CORE_ALLOC_H

#include <stdbool.h>
#include <stdint.h>

#include "rdmatensor.h"

struct rdti_alloc;

/* align_bytes: a power of two; every span begins at a multiple of it and its length is rounded up to it. */
rdt_status rdti_alloc_create(uint64_t align_bytes, struct rdti_alloc **out, struct rdt_error *err);
void rdti_alloc_destroy(struct rdti_alloc *alloc);
/* Add [base, base + len_bytes) to what may be given out; neighbours of another add are not merged with it. */
rdt_status rdti_alloc_add(struct rdti_alloc *alloc, uint64_t base, uint64_t len_bytes, struct rdt_error *err);
/* RDT_ENOMEM without a message if no free span is large enough: the caller grows and tries again. */
rdt_status rdti_alloc_take(struct rdti_alloc *alloc, uint64_t len_bytes, uint64_t *base_out);
/* False if base is not the start of a span that was taken: a double free is reported, not obeyed. */
bool rdti_alloc_give(struct rdti_alloc *alloc, uint64_t base);
uint64_t rdti_alloc_taken_bytes(const struct rdti_alloc *alloc);
uint64_t rdti_alloc_largest_free(const struct rdti_alloc *alloc);
/* Recomputes every invariant the slow way (no overlap, no two free neighbours, lists and bitmaps agree). For tests. */
bool rdti_alloc_check(const struct rdti_alloc *alloc);

#endif
