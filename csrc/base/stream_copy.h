/* SPDX-License-Identifier: Apache-2.0
 * Copies into memory that another core has read since it was written last. */
#ifndef RDTI_BASE_STREAM_COPY_H
#define RDTI_BASE_STREAM_COPY_H

#include <stdint.h>

/* dst and src do not overlap; dst's lines are in another core's cache, if in any. Where it pays on
 * this processor for `of_bytes` that are rewritten in all, of which this is a part, they are stored
 * past the caches, and ordered before a later release store of this thread as others are. */
void rdti_stream_copy(void *dst, const void *src, uint64_t len_bytes, uint64_t of_bytes);

/* The same of a piece that goes to its last place, by stores of its own: a memcpy() of the C
 * library's would be one copy more to whoever counts those (tests/integration/copies_witness.c). */
void rdti_stream_write(void *dst, const void *src, uint64_t len_bytes);

/* As rdti_stream_copy(), to two places, which do not overlap either, in one pass over src where
 * both are stored past the caches. `other` is this core's own, of which more is rewritten than
 * caches hold. */
void rdti_stream_copy_twice(void *dst, void *other, const void *src, uint64_t len_bytes,
                            uint64_t of_bytes);

#endif
