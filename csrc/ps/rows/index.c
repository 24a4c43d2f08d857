/* SPDX-License-Identifier: Apache-2.0
 * Open addressing: from keys to entries. */
#include "ps/rows/index.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "ps/model/map.h"

enum { BUCKETS_LEAST = 8 };
#define BUCKETS_MAX (UINT64_C(1) << 31)

static uint32_t
index_tag(uint64_t hash)
{
    return (uint32_t)(hash >> 32);
}

struct rdti_ps_keys_part *
rdti_ps_index_part(const struct rdti_ps_keys *keys, uint64_t hash)
{
    return &keys->parts[hash % RDTI_PS_PARTITIONS];
}

/* The bucket of a key, or the empty one where it would be. The part has buckets. */
static uint32_t
index_bucket(const struct rdti_ps_keys *keys, const struct rdti_ps_keys_part *part, uint64_t key,
             uint32_t tag)
{
    uint32_t at = tag & part->mask;

    while (part->buckets[at].entry != RDTI_PS_NO_ENTRY &&
           (part->buckets[at].tag != tag || keys->entries[part->buckets[at].entry].key != key))
        at = (at + 1) & part->mask;
    return at;
}

uint32_t
rdti_ps_index_find(const struct rdti_ps_keys *keys, uint64_t key)
{
    const uint64_t hash = rdti_ps_map_hash(key);
    const struct rdti_ps_keys_part *part = rdti_ps_index_part(keys, hash);

    if (part->buckets == NULL)
        return RDTI_PS_NO_ENTRY;
    return part->buckets[index_bucket(keys, part, key, index_tag(hash))].entry;
}

void
rdti_ps_index_put(struct rdti_ps_keys *keys, uint32_t entry)
{
    const uint64_t hash = rdti_ps_map_hash(keys->entries[entry].key);
    struct rdti_ps_keys_part *part = rdti_ps_index_part(keys, hash);
    const uint32_t at = index_bucket(keys, part, keys->entries[entry].key, index_tag(hash));

    part->buckets[at] = (struct rdti_ps_keys_bucket){.tag = index_tag(hash), .entry = entry};
    part->count++;
}

/* Moves the buckets behind the gap to where they would be without the removed one. */
void
rdti_ps_index_remove(struct rdti_ps_keys *keys, uint32_t entry)
{
    const uint64_t hash = rdti_ps_map_hash(keys->entries[entry].key);
    struct rdti_ps_keys_part *part = rdti_ps_index_part(keys, hash);
    uint32_t gap = index_bucket(keys, part, keys->entries[entry].key, index_tag(hash));
    uint32_t at = gap;

    while (part->buckets[at = (at + 1) & part->mask].entry != RDTI_PS_NO_ENTRY) {
        const uint32_t home = part->buckets[at].tag & part->mask;
        if (((at - home) & part->mask) >= ((at - gap) & part->mask)) {
            part->buckets[gap] = part->buckets[at];
            gap = at;
        }
    }
    part->buckets[gap].entry = RDTI_PS_NO_ENTRY;
    part->count--;
}

rdt_status
rdti_ps_index_grow(struct rdti_ps_keys *keys, struct rdti_ps_keys_part *part, struct rdt_error *err)
{
    const uint64_t wanted = (uint64_t)part->count + part->reserved + 1;
    const uint64_t had = part->buckets != NULL ? (uint64_t)part->mask + 1 : 0;
    uint64_t room = had > 0 ? had : BUCKETS_LEAST;

    while (wanted * 4 > room * 3)
        room *= 2;
    if (room == had)
        return RDT_OK;
    struct rdti_ps_keys_bucket *buckets =
        room <= BUCKETS_MAX ? malloc(room * sizeof(*buckets)) : NULL;
    if (buckets == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "no memory for an index of %llu keys",
                              (unsigned long long)room);
    memset(buckets, 0xff, room * sizeof(*buckets));
    for (uint64_t i = 0; i < had; i++) {
        const struct rdti_ps_keys_bucket bucket = part->buckets[i];
        uint64_t at = bucket.tag & (room - 1);
        if (bucket.entry == RDTI_PS_NO_ENTRY)
            continue;
        while (buckets[at].entry != RDTI_PS_NO_ENTRY)
            at = (at + 1) & (room - 1);
        buckets[at] = bucket;
    }
    free(part->buckets);
    part->buckets = buckets;
    part->mask = (uint32_t)(room - 1);
    keys->index_bytes += (room - had) * sizeof(*buckets);
    return RDT_OK;
}
