/* SPDX-License-Identifier: Apache-2.0
 * One chunk of the arena: a sealed memfd, mapped shared and never moved, whose pages are populated
 * and given back in granules.
 *
 *   granule       pages          bytes of a span that is taken from it
 *   fresh         none           read as zero once populated
 *   POPULATED     in memory      zero unless USED
 *   USED          in memory      anything
 *   PUNCHED       given back     read as zero once populated
 *
 * The owner of a taken span owns the granules that lie wholly in it. The two granules at its ends
 * may be shared, so flags are atomic. Relaxed everywhere: the kernel's own locks make pages
 * visible, and the arena's lock synchronizes the thread that takes a span with the one that gave it
 * back.
 */
#ifndef RDTI_MEMORY_SEGMENT_H
#define RDTI_MEMORY_SEGMENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "rdmatensor.h"

/* A huge page of x86-64 and of arm64 with 4 KiB pages. */
#define RDTI_GRANULE_BYTES (UINT64_C(2) << 20)

enum { RDTI_GRANULE_POPULATED = 1, RDTI_GRANULE_USED = 2, RDTI_GRANULE_PUNCHED = 4 };

struct rdti_arena_segment {
    uint8_t *addr; /* a multiple of RDTI_GRANULE_BYTES */
    uint64_t len_bytes;
    int fd;
    bool is_huge;        /* on reserved huge pages: populated at once and kept */
    bool keeps_pages;    /* guarded by the arena's lock */
    bool is_read_only;   /* for other processes; no page of it is given back */
    uint64_t used_bytes; /* of one that is, from its start; guarded by the arena's pages_lock */
    uint32_t granule_count;
    _Atomic uint8_t flags[];
};

/* len_bytes: a multiple of the page size. RDT_ENOMEM, RDT_EDEVICE. */
rdt_status rdti_segment_create(uint64_t len_bytes, bool is_read_only,
                               struct rdti_arena_segment **out, struct rdt_error *err);
void rdti_segment_destroy(struct rdti_arena_segment *segment); /* unmaps; NULL is legal */

/* Bytes of the granules of [off, off + len_bytes) that a call populated. */
struct rdti_populated {
    uint64_t bytes;
    uint64_t again_bytes; /* those that had been given back before */
};

/*
 * Populate the granules of a taken span, with several threads if there is much work. Checks the
 * free memory before and meanwhile, and keeps a reserve free.
 *   RDT_ENOMEM  the message names the smallest bound; some pages may be populated, see below
 */
rdt_status rdti_segment_populate(struct rdti_arena_segment *segment, uint64_t off_bytes,
                                 uint64_t len_bytes, struct rdti_populated *out,
                                 struct rdt_error *err);
/* Give back the pages that a failed call populated for this taken span only. */
void rdti_segment_unpopulate(struct rdti_arena_segment *segment, uint64_t off_bytes,
                             uint64_t len_bytes);
bool rdti_segment_is_populated(const struct rdti_arena_segment *segment, uint64_t off_bytes,
                               uint64_t len_bytes);
/* Checks that `need_bytes` more can be populated, for a request of `asked_bytes`. RDT_ENOMEM as
 * above. */
rdt_status rdti_segment_check_memory(uint64_t asked_bytes, uint64_t need_bytes,
                                     struct rdt_error *err);

/* Mark a taken span's granules USED; `is_zero`: and set its bytes to zero where they may not be. */
void rdti_segment_use(struct rdti_arena_segment *segment, uint64_t off_bytes, uint64_t len_bytes,
                      bool is_zero);

/*
 * Give back pages of granules wholly inside a taken span, from its end, until at least `want_bytes`
 * or all of them are given back. Returns the bytes given back.
 */
uint64_t rdti_segment_punch(struct rdti_arena_segment *segment, uint64_t off_bytes,
                            uint64_t len_bytes, uint64_t want_bytes);

#endif
