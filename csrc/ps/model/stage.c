/* SPDX-License-Identifier: Apache-2.0
 * Staged pushes. */
#include "ps/model/stage.h"

#include <stdlib.h>

#include "base/error.h"

enum { ENTRIES_LEAST = 16, BYTES_LEAST = 65536 };

static rdt_status
stage_grow(struct rdti_ps_stage *stage, uint64_t bytes, struct rdt_error *err)
{
    uint64_t room = stage->room_bytes > 0 ? stage->room_bytes : BYTES_LEAST;

    if (stage->count == stage->room) {
        const uint32_t more = stage->room > 0 ? 2 * stage->room : ENTRIES_LEAST;
        struct rdti_ps_staged *entries = realloc(stage->entries, more * sizeof(*entries));
        if (entries == NULL)
            return rdti_error_set(err, RDT_ENOMEM, 0, "no memory for %u staged pushes", more);
        stage->entries = entries;
        stage->room = more;
    }
    if (bytes <= stage->room_bytes)
        return RDT_OK;
    while (room < bytes)
        room *= 2;
    uint8_t *grown = realloc(stage->bytes, room);
    if (grown == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "no memory for %llu B of staged pushes",
                              (unsigned long long)room);
    stage->bytes = grown;
    stage->room_bytes = room;
    return RDT_OK;
}

rdt_status
rdti_ps_stage_reserve(struct rdti_ps_stage *stage, const struct rdti_ps_staged *entry, uint32_t dim,
                      uint64_t max_bytes, uint64_t **ids, float **rows, struct rdt_error *err)
{
    struct rdti_ps_staged next = *entry;

    next.ids_off = (stage->used_bytes + 7) / 8 * 8;
    next.rows_off = next.ids_off + next.count * sizeof(uint64_t);
    next.marks_off = next.rows_off + next.count * dim * sizeof(float);
    const uint64_t end = next.marks_off + (next.has_marks ? next.count : 0);
    if (end > max_bytes)
        return rdti_error_set(err, RDT_ENOMEM, 0,
                              "%llu B were pushed since the last clock(), and at most %llu B are "
                              "staged: call clock() after each step",
                              (unsigned long long)end, (unsigned long long)max_bytes);
    const rdt_status status = stage_grow(stage, end, err);
    if (status != RDT_OK)
        return status;
    stage->entries[stage->count] = next;
    stage->reserved_bytes = end;
    *ids = rdti_ps_stage_ids(stage, &next);
    *rows = rdti_ps_stage_rows(stage, &next);
    return RDT_OK;
}

void
rdti_ps_stage_keep(struct rdti_ps_stage *stage)
{
    stage->used_bytes = stage->reserved_bytes;
    stage->count++;
}

void
rdti_ps_stage_clear(struct rdti_ps_stage *stage)
{
    stage->count = 0;
    stage->used_bytes = 0;
}

void
rdti_ps_stage_free(struct rdti_ps_stage *stage)
{
    free(stage->bytes);
    free(stage->entries);
}
