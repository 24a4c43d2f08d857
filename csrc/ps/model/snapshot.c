/* SPDX-License-Identifier: Apache-2.0
 * Copies of rows that change while a snapshot is read. */
#include "ps/model/snapshot.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { BLOCK_BYTES = 1 << 20, BLOCKS_LEAST = 64 };

rdt_status
rdti_ps_rows_init(struct rdti_ps_rows *set, uint64_t rows, struct rdt_error *err)
{
    set->rows = rows;
    set->words = calloc(rows / 64 + 1, sizeof(*set->words));
    if (set->words == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "no memory for a set of %llu rows",
                              (unsigned long long)rows);
    return RDT_OK;
}

void
rdti_ps_rows_free(struct rdti_ps_rows *set)
{
    free(set->words);
    set->words = NULL;
}

void
rdti_ps_rows_add_all(struct rdti_ps_rows *set)
{
    memset(set->words, 0xff, (set->rows / 64 + 1) * sizeof(*set->words));
}

void
rdti_ps_rows_unite(struct rdti_ps_rows *set, const struct rdti_ps_rows *other)
{
    for (uint64_t i = 0; i <= set->rows / 64; i++)
        set->words[i] |= other->words[i];
}

static uint64_t
snapshot_copy_floats(const struct rdti_ps_snapshot *snapshot)
{
    return snapshot->value_floats + snapshot->state_floats;
}

rdt_status
rdti_ps_snapshot_create(uint64_t rows, uint32_t value_floats, uint64_t state_floats,
                        struct rdti_ps_snapshot **out, struct rdt_error *err)
{
    struct rdti_ps_snapshot *snapshot = calloc(1, sizeof(*snapshot));

    if (snapshot != NULL)
        snapshot->copy_of = calloc(rows + 1, sizeof(*snapshot->copy_of));
    if (snapshot == NULL || snapshot->copy_of == NULL) {
        free(snapshot);
        return rdti_error_set(err, RDT_ENOMEM, 0, "no memory for a snapshot of %llu rows",
                              (unsigned long long)rows);
    }
    snapshot->rows = rows;
    snapshot->value_floats = value_floats;
    snapshot->state_floats = state_floats;
    const uint64_t copy_bytes = snapshot_copy_floats(snapshot) * sizeof(float);
    snapshot->block_copies = copy_bytes < BLOCK_BYTES ? (uint32_t)(BLOCK_BYTES / copy_bytes) : 1;
    *out = snapshot;
    return RDT_OK;
}

void
rdti_ps_snapshot_destroy(struct rdti_ps_snapshot *snapshot)
{
    if (snapshot == NULL)
        return;
    for (uint32_t i = 0; i < snapshot->block_room; i++)
        free(snapshot->blocks[i]);
    free(snapshot->blocks);
    free(snapshot->copy_of);
    free(snapshot);
}

/* Room for the next copy, or NULL. */
static float *
snapshot_grow(struct rdti_ps_snapshot *snapshot)
{
    const uint32_t block = snapshot->copies / snapshot->block_copies;
    const uint64_t floats = snapshot_copy_floats(snapshot);

    if (block == snapshot->block_room) {
        const uint32_t room = block > 0 ? 2 * block : BLOCKS_LEAST;
        float **blocks = realloc(snapshot->blocks, room * sizeof(*blocks));
        if (blocks == NULL)
            return NULL;
        memset(blocks + block, 0, (room - block) * sizeof(*blocks));
        snapshot->blocks = blocks;
        snapshot->block_room = room;
    }
    if (snapshot->blocks[block] == NULL)
        snapshot->blocks[block] = malloc(snapshot->block_copies * floats * sizeof(float));
    if (snapshot->blocks[block] == NULL)
        return NULL;
    return snapshot->blocks[block] + snapshot->copies % snapshot->block_copies * floats;
}

void
rdti_ps_snapshot_keep(struct rdti_ps_snapshot *snapshot, uint64_t row, const float *value,
                      const float *state)
{
    if (row < snapshot->read || snapshot->copy_of[row] != 0 || snapshot->has_failed)
        return;
    float *copy = snapshot->copies < UINT32_MAX ? snapshot_grow(snapshot) : NULL;
    if (copy == NULL) {
        snapshot->has_failed = true;
        return;
    }
    memcpy(copy, value, snapshot->value_floats * sizeof(float));
    memcpy(copy + snapshot->value_floats, state, snapshot->state_floats * sizeof(float));
    snapshot->copies++;
    snapshot->copy_of[row] = snapshot->copies;
}

const float *
rdti_ps_snapshot_find(const struct rdti_ps_snapshot *snapshot, uint64_t row)
{
    const uint32_t copy = snapshot->copy_of[row];

    if (copy == 0)
        return NULL;
    return snapshot->blocks[(copy - 1) / snapshot->block_copies] +
           (copy - 1) % snapshot->block_copies * snapshot_copy_floats(snapshot);
}
