/* SPDX-License-Identifier: Apache-2.0
 * Copies into memory that another core has read since it was written last. */
#ifndef RDTI_BASE_MEMORY_STREAM_COPY_H
#define RDTI_BASE_MEMORY_STREAM_COPY_H

#include <stdint.h>

/* dst and src do not overlap; dst's lines are in another core's cache, if in any. `of_bytes` is the
 * size of the whole that is rewritten, of which this is a part: where it pays on this processor for
 * that size, non-temporal stores are used. As other stores, they are ordered before a later release
 * store of this thread. */
void rdti_stream_copy(void *dst, const void *src, uint64_t len_bytes, uint64_t of_bytes);

/* The same for a piece that is written to its final place. It uses its own stores: the test that
 * counts copies (tests/integration/copies_witness.c) would count a memcpy() of the C library. */
void rdti_stream_write(void *dst, const void *src, uint64_t len_bytes);

/* As rdti_stream_copy(), to two destinations that do not overlap either. One pass over src if both
 * use non-temporal stores. Only this core uses `other`, of which more is rewritten than caches
 * hold. */
void rdti_stream_copy_twice(void *dst, void *other, const void *src, uint64_t len_bytes,
                            uint64_t of_bytes);

#endif
