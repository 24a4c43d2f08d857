/* SPDX-License-Identifier: Apache-2.0
 * The keys of a table on one server: which row each has, and how long. Keys are any 64 bits.
 *
 * An entry is a key that was pushed. It gets a row when it was pushed in admit_after steps; until
 * then it is only counted. An entry that was not pushed in expire_after steps is forgotten. With a
 * capacity, the entry of the least score makes room for a new row.
 *
 *   RDT_PS_EVICT_LRU    least: the oldest step of its last push
 *   RDT_PS_EVICT_LFU    least: pushed in the fewest steps; of them, the oldest
 *   RDT_PS_EVICT_EPOCH  least: the oldest epoch of its last push; of them, the fewest steps
 *
 * Equal scores: RDT_PS_EVICT_LRU takes the one that was pushed first, the others the least key.
 * Each partition has an index of its own, so that growing one takes no longer than the partition.
 * Pure: no threads, no time. */
#ifndef RDTI_PS_ROWS_KEYS_H
#define RDTI_PS_ROWS_KEYS_H

#include <stdbool.h>
#include <stdint.h>

#include "rdmatensor_ps.h"

#define RDTI_PS_NO_ROW UINT32_MAX

struct rdti_ps_key {
    uint64_t key;
    uint64_t last;  /* step in which it was pushed last */
    uint64_t order; /* of that push among all: 1, 2, ... */
    uint32_t row;   /* RDTI_PS_NO_ROW: it has none yet */
    uint32_t count; /* of the steps in which it was pushed; stays at its largest number */
    uint32_t epoch; /* of its last push */
    /* Private. */
    uint32_t older;
    uint32_t newer;
    uint32_t heap_at;
};

struct rdti_ps_keys_opts {
    uint64_t capacity;     /* rows; 0: no limit. As many entries without a row */
    uint64_t expire_after; /* 0: never */
    uint32_t admit_after;  /* from 1 on */
    uint32_t evict;        /* RDT_PS_EVICT_* */
};

struct rdti_ps_keys_list { /* by last push */
    uint32_t oldest;
    uint32_t newest;
    uint64_t count;
};

struct rdti_ps_keys {
    struct rdti_ps_keys_opts opts;
    struct rdti_ps_keys_list admitted;
    struct rdti_ps_keys_list filtered; /* without a row */
    uint64_t step;                     /* of the last push */
    uint32_t epoch;
    uint64_t admissions;
    uint64_t evictions;
    uint64_t expirations;
    uint64_t forgotten; /* entries without a row that made room for others */
    uint64_t order;     /* of the last push */
    /* Before an entry is forgotten; NULL: nothing is called. */
    void (*forgets)(void *arg, const struct rdti_ps_key *one);
    void *arg;
    uint64_t reserved;      /* entries */
    uint64_t reserved_rows; /* of entries that may get one */
    uint64_t rows_ever;     /* rows are numbers below */
    /* Private. */
    struct rdti_ps_keys_part *parts; /* RDTI_PS_PARTITIONS */
    struct rdti_ps_key *entries;
    uint64_t entries_room;
    uint64_t entries_ever;
    uint32_t free_entry; /* the first of a list, linked by `newer` */
    uint32_t *free_rows; /* entries_room */
    uint64_t free_rows_count;
    struct rdti_ps_keys_node *heap; /* entries_room; not for RDT_PS_EVICT_LRU */
    uint64_t index_bytes;
    bool is_unsorted; /* entries were restored since the last step */
};

/* RDT_EINVAL: an option is out of range; RDT_ENOMEM. */
rdt_status rdti_ps_keys_init(struct rdti_ps_keys *keys, const struct rdti_ps_keys_opts *opts,
                             struct rdt_error *err);
void rdti_ps_keys_free(struct rdti_ps_keys *keys); /* zeroed memory is legal */
/* NULL: it was never pushed, or is forgotten. */
const struct rdti_ps_key *rdti_ps_keys_find(const struct rdti_ps_keys *keys, uint64_t key);
/* Memory for pushes of these keys; marks[i] says what was reserved for each. RDT_ENOMEM: nothing
 * is. */
rdt_status rdti_ps_keys_reserve(struct rdti_ps_keys *keys, const uint64_t *ids, uint64_t count,
                                uint8_t *marks, struct rdt_error *err);
/* The pushes are about to be made, or are dropped. */
void rdti_ps_keys_unreserve(struct rdti_ps_keys *keys, const uint64_t *ids, uint64_t count,
                            const uint8_t *marks);
/* Rows that may be in use after the pushes that memory is reserved for. */
uint64_t rdti_ps_keys_rows_most(const struct rdti_ps_keys *keys);
/* Forgets a key, if it is there. */
void rdti_ps_keys_remove(struct rdti_ps_keys *keys, uint64_t key);
/* The entry whose last push is the oldest of those with rows, or NULL. */
const struct rdti_ps_key *rdti_ps_keys_oldest(const struct rdti_ps_keys *keys);
/* A step begins: forgets what is too old for it. */
void rdti_ps_keys_begin_step(struct rdti_ps_keys *keys, uint64_t step);
/* A key is pushed in this step, for which memory was reserved; each key once. Its entry, until the
 * next call; *is_new: it has got its row now. */
const struct rdti_ps_key *rdti_ps_keys_push(struct rdti_ps_keys *keys, uint64_t key, bool *is_new);
/* The entries of a partition, in any order: *at is 0 at first. NULL: there are no more. */
const struct rdti_ps_key *rdti_ps_keys_next(const struct rdti_ps_keys *keys, uint32_t partition,
                                            uint64_t *at);
/*
 * Put an entry back whose key is not there: key, last, order, count and epoch, and a row if it has
 * one, whose number is in the returned entry. Also beyond the capacity: the next step evicts what
 * is too much. NULL: RDT_ENOMEM, and nothing was changed.
 */
const struct rdti_ps_key *rdti_ps_keys_restore(struct rdti_ps_keys *keys,
                                               const struct rdti_ps_key *saved, bool has_row,
                                               struct rdt_error *err);
/* Bytes of entries and indices. */
uint64_t rdti_ps_keys_bytes(const struct rdti_ps_keys *keys);

#endif
