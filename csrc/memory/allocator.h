/* SPDX-License-Identifier: Apache-2.0
 * A two-level segregated fit allocator (Masmano et al., "TLSF: a new dynamic memory allocator for
 * real-time systems", ECRTS 2004) over spans of addresses that it never accesses: block headers are
 * in private memory. */
#ifndef RDTI_MEMORY_ALLOCATOR_H
#define RDTI_MEMORY_ALLOCATOR_H

#include <stdbool.h>
#include <stdint.h>

#include "rdmatensor.h"

struct rdti_alloc;

/* One thread at a time. A take or give costs O(1), amortized over the growth of its tables; only a
 * take that no larger size class can serve walks the list of its own class before it fails.
 * align_bytes: a power of two; every span begins at a multiple of it, and its length is rounded up
 * to it. */
rdt_status rdti_alloc_create(uint64_t align_bytes, struct rdti_alloc **out, struct rdt_error *err);
void rdti_alloc_destroy(struct rdti_alloc *alloc);
/* Add [base, base + len_bytes) to the free space; it is not merged with adjacent spans of other
 * adds. */
rdt_status rdti_alloc_add(struct rdti_alloc *alloc, uint64_t base, uint64_t len_bytes,
                          struct rdt_error *err);
/* RDT_ENOMEM without a message if no free span is large enough: the caller grows and retries. */
rdt_status rdti_alloc_take(struct rdti_alloc *alloc, uint64_t len_bytes, uint64_t *base_out);
/* False, and no effect, if base is not the start of a taken span, e.g. a double free. */
bool rdti_alloc_give(struct rdti_alloc *alloc, uint64_t base);
/* Length of the taken span that starts at base, as rounded; 0 if there is none. */
uint64_t rdti_alloc_len_bytes(const struct rdti_alloc *alloc, uint64_t base);
/*
 * Merges the taken span at base with its free neighbours. The result stays taken, so that its owner
 * has exclusive use of all that space; the owner gives it back as *base_out. False: as
 * rdti_alloc_give().
 */
bool rdti_alloc_absorb(struct rdti_alloc *alloc, uint64_t base, uint64_t *base_out,
                       uint64_t *len_bytes_out);
uint64_t rdti_alloc_taken_bytes(const struct rdti_alloc *alloc);
uint64_t rdti_alloc_largest_free(const struct rdti_alloc *alloc);
/* Checks every invariant by brute force (no overlap, no two free neighbours, lists and bitmaps
 * agree). For tests. */
bool rdti_alloc_check(const struct rdti_alloc *alloc);

#endif
