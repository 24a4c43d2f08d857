/* SPDX-License-Identifier: Apache-2.0
 * The table of generations: a memfd of uint32_t by region index, mapped writable once, by us
 * alone. */
#ifndef RDTI_MEMORY_GENERATIONS_H
#define RDTI_MEMORY_GENERATIONS_H

#include <stdatomic.h>
#include <stdint.h>

#include "rdmatensor.h"

/* The table comes into memory in steps of so many entries: 64 KiB, the largest page size that Linux
 * has (on arm64). */
#define RDTI_GENERATIONS_STEP UINT32_C(16384)

/* With room for every region index; the first step is in memory. */
rdt_status rdti_generations_open(int *fd_out, _Atomic uint32_t **table_out, struct rdt_error *err);
/* Bring the step that begins with `index` into memory. Returns 0 or an errno. */
int rdti_generations_populate(int fd, _Atomic uint32_t *table, uint32_t index);
void rdti_generations_close(int fd, _Atomic uint32_t *table);

#endif
