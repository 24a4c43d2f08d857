/* SPDX-License-Identifier: Apache-2.0
 * Where the entries of keys are: for each partition a table of its own, so that growing one takes
 * no longer than the partition. For keys.c. */
#ifndef RDTI_PS_ROWS_INDEX_H
#define RDTI_PS_ROWS_INDEX_H

#include "ps/rows/keys.h"

#define RDTI_PS_NO_ENTRY UINT32_MAX

struct rdti_ps_keys_bucket {
    uint32_t tag;   /* the upper half of the key's hash */
    uint32_t entry; /* RDTI_PS_NO_ENTRY: empty */
};

struct rdti_ps_keys_part {
    struct rdti_ps_keys_bucket *buckets; /* mask + 1, a power of two; NULL until the first key */
    uint32_t mask;
    uint32_t count;
    uint32_t reserved;
};

struct rdti_ps_keys_part *rdti_ps_index_part(const struct rdti_ps_keys *keys, uint64_t hash);
/* RDTI_PS_NO_ENTRY: the key is not there. */
uint32_t rdti_ps_index_find(const struct rdti_ps_keys *keys, uint64_t key);
/* The key of this entry is not there, and the index has room for it. */
void rdti_ps_index_put(struct rdti_ps_keys *keys, uint32_t entry);
void rdti_ps_index_remove(struct rdti_ps_keys *keys, uint32_t entry);
/* Room for one more reserved key, at a load of at most 3/4. RDT_ENOMEM. */
rdt_status rdti_ps_index_grow(struct rdti_ps_keys *keys, struct rdti_ps_keys_part *part,
                              struct rdt_error *err);

#endif
