/* SPDX-License-Identifier: Apache-2.0
 * What a worker pushed since its last tick. Memory is kept from step to step. */
#ifndef RDTI_PS_MODEL_STAGE_H
#define RDTI_PS_MODEL_STAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "rdmatensor_ps.h"

struct rdti_ps_staged {
    uint32_t table;
    bool is_unique; /* each id once */
    bool has_marks; /* a byte for each id */
    uint64_t count;
    uint64_t ids_off; /* in bytes from the start of the stage */
    uint64_t rows_off;
    uint64_t marks_off;
};

struct rdti_ps_stage {
    uint8_t *bytes;
    uint64_t used_bytes;
    uint64_t reserved_bytes; /* used_bytes once the reserved entry is kept */
    uint64_t room_bytes;
    struct rdti_ps_staged *entries;
    uint32_t count;
    uint32_t room;
};

/* A new entry with room for its ids and rows; it is the stage's when rdti_ps_stage_keep() follows.
 * RDT_ENOMEM: no memory, or more than max_bytes are staged. */
rdt_status rdti_ps_stage_reserve(struct rdti_ps_stage *stage, const struct rdti_ps_staged *entry,
                                 uint32_t dim, uint64_t max_bytes, uint64_t **ids, float **rows,
                                 struct rdt_error *err);
void rdti_ps_stage_keep(struct rdti_ps_stage *stage);
void rdti_ps_stage_clear(struct rdti_ps_stage *stage);
void rdti_ps_stage_free(struct rdti_ps_stage *stage);

static inline uint64_t *
rdti_ps_stage_ids(const struct rdti_ps_stage *stage, const struct rdti_ps_staged *entry)
{
    return (uint64_t *)(void *)(stage->bytes + entry->ids_off);
}

static inline uint8_t *
rdti_ps_stage_marks(const struct rdti_ps_stage *stage, const struct rdti_ps_staged *entry)
{
    return stage->bytes + entry->marks_off;
}

static inline float *
rdti_ps_stage_rows(const struct rdti_ps_stage *stage, const struct rdti_ps_staged *entry)
{
    return (float *)(void *)(stage->bytes + entry->rows_off);
}

#endif
