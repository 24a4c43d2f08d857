/* SPDX-License-Identifier: Apache-2.0
 * A table of ids with open addressing. */
#include "ps/model/merge.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "ps/model/map.h"

enum { ENTRIES_LEAST = 256 };

struct rdti_ps_merge_entry {
    uint64_t id;
    uint32_t stamp;
    uint32_t index;
};

void
rdti_ps_merge_free(struct rdti_ps_merge *merge)
{
    free(merge->ids);
    free(merge->rows);
    free(merge->entries);
    memset(merge, 0, sizeof(*merge));
}

static rdt_status
merge_no_memory(uint64_t len_bytes, struct rdt_error *err)
{
    return rdti_error_set(err, RDT_ENOMEM, 0, "no memory of %llu B for the rows of one step",
                          (unsigned long long)len_bytes);
}

static rdt_status
merge_grow_entries(struct rdti_ps_merge *merge, uint64_t most, struct rdt_error *err)
{
    uint64_t room = ENTRIES_LEAST;

    if (most > UINT32_MAX / 2)
        return rdti_error_set(err, RDT_EINVAL, 0, "%llu ids in one step are too many",
                              (unsigned long long)most);
    while (room < 2 * most)
        room *= 2;
    if (room <= merge->entries_room)
        return RDT_OK;
    struct rdti_ps_merge_entry *entries = calloc(room, sizeof(*entries));
    if (entries == NULL)
        return merge_no_memory(room * sizeof(*entries), err);
    free(merge->entries);
    merge->entries = entries;
    merge->entries_room = room;
    merge->stamp = 0;
    return RDT_OK;
}

rdt_status
rdti_ps_merge_begin(struct rdti_ps_merge *merge, uint32_t dim, uint64_t most, struct rdt_error *err)
{
    merge->count = 0;
    merge->dim = dim;
    const rdt_status status = merge_grow_entries(merge, most, err);
    if (status != RDT_OK)
        return status;
    if (most > merge->ids_room) {
        uint64_t *ids = malloc(most * sizeof(*ids));
        if (ids == NULL)
            return merge_no_memory(most * sizeof(*ids), err);
        free(merge->ids);
        merge->ids = ids;
        merge->ids_room = most;
    }
    if (merge->stamp == UINT32_MAX) { /* stamps begin again */
        memset(merge->entries, 0, merge->entries_room * sizeof(*merge->entries));
        merge->stamp = 0;
    }
    merge->stamp++;
    return RDT_OK;
}

rdt_status
rdti_ps_merge_reserve_rows(struct rdti_ps_merge *merge, uint64_t most, struct rdt_error *err)
{
    const uint64_t floats = most * merge->dim;

    if (floats <= merge->rows_room)
        return RDT_OK;
    float *rows = malloc(floats * sizeof(*rows));
    if (rows == NULL)
        return merge_no_memory(floats * sizeof(*rows), err);
    free(merge->rows);
    merge->rows = rows;
    merge->rows_room = floats;
    return RDT_OK;
}

uint64_t
rdti_ps_merge_find(struct rdti_ps_merge *merge, uint64_t id, bool *is_new)
{
    uint64_t at = rdti_ps_map_hash(id) & (merge->entries_room - 1);

    while (merge->entries[at].stamp == merge->stamp) {
        if (merge->entries[at].id == id) {
            *is_new = false;
            return merge->entries[at].index;
        }
        at = (at + 1) & (merge->entries_room - 1);
    }
    *is_new = true;
    merge->entries[at] = (struct rdti_ps_merge_entry){.id = id,
                                                      .stamp = merge->stamp,
                                                      .index = (uint32_t)merge->count};
    merge->ids[merge->count] = id;
    return merge->count++;
}

void
rdti_ps_merge_row(struct rdti_ps_merge *merge, const struct rdti_ps_kernels *kernels, uint64_t id,
                  const float *row, bool is_last)
{
    bool is_new;
    float *goal = merge->rows + rdti_ps_merge_find(merge, id, &is_new) * merge->dim;

    if (is_new || is_last)
        memcpy(goal, row, merge->dim * sizeof(*goal));
    else
        kernels->add(goal, row, merge->dim);
}
