/* SPDX-License-Identifier: Apache-2.0
 * The table of generations: a memfd of uint32_t by region index. Only its owner maps it writable,
 * once. */
#ifndef RDTI_MEMORY_GENERATIONS_H
#define RDTI_MEMORY_GENERATIONS_H

#include <stdatomic.h>
#include <stdint.h>

#include "rdmatensor.h"

/* The table is populated in steps of this many entries: 64 KiB, the largest page size of Linux (on
 * arm64). */
#define RDTI_GENERATIONS_STEP UINT32_C(16384)

/* Creates it with room for every region index; the first step is populated. */
rdt_status rdti_generations_open(int *fd_out, _Atomic uint32_t **table_out, struct rdt_error *err);
/* Populate the step that begins with `index`. Returns 0 or an errno. */
int rdti_generations_populate(int fd, _Atomic uint32_t *table, uint32_t index);
void rdti_generations_close(int fd, _Atomic uint32_t *table);

#endif
