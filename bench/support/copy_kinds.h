/* SPDX-License-Identifier: Apache-2.0
 * The kinds of store that compete to be the floor under a write into shared memory. Nothing of the
 * library. */
#ifndef RDT_BENCH_COPY_KINDS_H
#define RDT_BENCH_COPY_KINDS_H

#include <stddef.h>

typedef void (*copy_fn)(char *dst, const char *src, size_t len_bytes);

struct copy_kind {
    const char *name;
    copy_fn copy; /* dst is aligned to 64 bytes */
};

#define COPY_KINDS_MAX 4
/* Those that this processor has; returns how many. */
size_t copy_kinds_find(struct copy_kind out[COPY_KINDS_MAX]);

#endif
