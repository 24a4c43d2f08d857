/* SPDX-License-Identifier: Apache-2.0
 * Entries in an array, in the order of their last push, and by score. */
#include "ps/rows/keys.h"

#include <stdlib.h>

#include "base/error.h"
#include "ps/model/map.h"
#include "ps/rows/index.h"

#define NONE RDTI_PS_NO_ENTRY
#define ENTRIES_MAX (UINT64_C(1) << 32)
enum { ENTRIES_LEAST = 64 };
enum { MARK_ENTRY = 1, MARK_ROW = 2 }; /* that were reserved */

struct rdti_ps_keys_node {
    uint64_t score; /* at most the entry's: scores only grow, and are brought here when needed */
    uint32_t entry;
};

/* ---- Order of the last push -------------------------------------------------------------- */

static struct rdti_ps_keys_list *
keys_list(struct rdti_ps_keys *keys, uint32_t entry)
{
    return keys->entries[entry].row == RDTI_PS_NO_ROW ? &keys->filtered : &keys->admitted;
}

static void
keys_list_put(struct rdti_ps_keys *keys, uint32_t entry)
{
    struct rdti_ps_keys_list *list = keys_list(keys, entry);
    struct rdti_ps_key *one = &keys->entries[entry];

    one->older = list->newest;
    one->newer = NONE;
    if (list->newest != NONE)
        keys->entries[list->newest].newer = entry;
    else
        list->oldest = entry;
    list->newest = entry;
    list->count++;
}

static void
keys_list_remove(struct rdti_ps_keys *keys, uint32_t entry)
{
    struct rdti_ps_keys_list *list = keys_list(keys, entry);
    const struct rdti_ps_key *one = &keys->entries[entry];

    if (one->older != NONE)
        keys->entries[one->older].newer = one->newer;
    else
        list->oldest = one->newer;
    if (one->newer != NONE)
        keys->entries[one->newer].older = one->older;
    else
        list->newest = one->older;
    list->count--;
}

/* ---- Scores: a heap of the entries with rows, the least first ---------------------------- */

static bool
keys_has_heap(const struct rdti_ps_keys *keys)
{
    return keys->opts.capacity > 0 && keys->opts.evict != RDT_PS_EVICT_LRU;
}

static uint64_t
keys_score(const struct rdti_ps_keys *keys, uint32_t entry)
{
    const struct rdti_ps_key *one = &keys->entries[entry];

    if (keys->opts.evict == RDT_PS_EVICT_EPOCH)
        return (uint64_t)one->epoch << 32 | one->count;
    return (uint64_t)one->count << 32 | (one->last < UINT32_MAX ? one->last : UINT32_MAX);
}

static bool
keys_is_less(const struct rdti_ps_keys *keys, const struct rdti_ps_keys_node *one,
             const struct rdti_ps_keys_node *other)
{
    if (one->score != other->score)
        return one->score < other->score;
    return keys->entries[one->entry].key < keys->entries[other->entry].key;
}

static void
keys_heap_set(struct rdti_ps_keys *keys, uint64_t at, struct rdti_ps_keys_node node)
{
    keys->heap[at] = node;
    keys->entries[node.entry].heap_at = (uint32_t)at;
}

static void
keys_heap_rise(struct rdti_ps_keys *keys, uint64_t at)
{
    const struct rdti_ps_keys_node node = keys->heap[at];

    for (; at > 0 && keys_is_less(keys, &node, &keys->heap[(at - 1) / 2]); at = (at - 1) / 2)
        keys_heap_set(keys, at, keys->heap[(at - 1) / 2]);
    keys_heap_set(keys, at, node);
}

static void
keys_heap_sink(struct rdti_ps_keys *keys, uint64_t at, uint64_t count)
{
    const struct rdti_ps_keys_node node = keys->heap[at];

    for (uint64_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && keys_is_less(keys, &keys->heap[child + 1], &keys->heap[child]))
            child++;
        if (!keys_is_less(keys, &keys->heap[child], &node))
            break;
        keys_heap_set(keys, at, keys->heap[child]);
        at = child;
    }
    keys_heap_set(keys, at, node);
}

/* The entry is in no list yet, and the heap has one node for each that is. */
static void
keys_heap_put(struct rdti_ps_keys *keys, uint32_t entry)
{
    const uint64_t count = keys->admitted.count;

    keys->heap[count] =
        (struct rdti_ps_keys_node){.score = keys_score(keys, entry), .entry = entry};
    keys_heap_rise(keys, count);
}

static void
keys_heap_remove(struct rdti_ps_keys *keys, uint32_t entry)
{
    const uint64_t last = keys->admitted.count - 1;
    const uint64_t at = keys->entries[entry].heap_at;

    if (at == last)
        return;
    keys_heap_set(keys, at, keys->heap[last]);
    keys_heap_sink(keys, at, last);
    keys_heap_rise(keys, at);
}

static uint32_t
keys_least(struct rdti_ps_keys *keys)
{
    if (!keys_has_heap(keys))
        return keys->admitted.oldest;
    for (;;) {
        const uint64_t score = keys_score(keys, keys->heap[0].entry);
        if (keys->heap[0].score == score)
            return keys->heap[0].entry;
        keys->heap[0].score = score;
        keys_heap_sink(keys, 0, keys->admitted.count);
    }
}

/* ---- Entries ----------------------------------------------------------------------------- */

static void
keys_forget(struct rdti_ps_keys *keys, uint32_t entry)
{
    struct rdti_ps_key *one = &keys->entries[entry];

    if (keys->forgets != NULL)
        keys->forgets(keys->arg, one);
    rdti_ps_index_remove(keys, entry);
    if (one->row != RDTI_PS_NO_ROW) {
        if (keys_has_heap(keys))
            keys_heap_remove(keys, entry);
        keys->free_rows[keys->free_rows_count++] = one->row;
    }
    keys_list_remove(keys, entry);
    one->newer = keys->free_entry;
    keys->free_entry = entry;
}

static uint32_t
keys_new_entry(struct rdti_ps_keys *keys, uint64_t key)
{
    uint32_t entry = keys->free_entry;

    if (entry != NONE)
        keys->free_entry = keys->entries[entry].newer;
    else
        entry = (uint32_t)keys->entries_ever++;
    keys->entries[entry] = (struct rdti_ps_key){.key = key, .row = RDTI_PS_NO_ROW};
    rdti_ps_index_put(keys, entry);
    keys_list_put(keys, entry);
    return entry;
}

static void
keys_evict(struct rdti_ps_keys *keys)
{
    keys_forget(keys, keys_least(keys));
    keys->evictions++;
}

/* The entry is in no list. */
static void
keys_give_row(struct rdti_ps_keys *keys, uint32_t entry)
{
    keys->entries[entry].row = keys->free_rows_count > 0 ? keys->free_rows[--keys->free_rows_count]
                                                         : (uint32_t)keys->rows_ever++;
    if (keys_has_heap(keys))
        keys_heap_put(keys, entry);
    keys_list_put(keys, entry);
}

static void
keys_admit(struct rdti_ps_keys *keys, uint32_t entry)
{
    keys_list_remove(keys, entry);
    if (keys->opts.capacity > 0 && keys->admitted.count == keys->opts.capacity)
        keys_evict(keys);
    keys_give_row(keys, entry);
    keys->admissions++;
}

static rdt_status
keys_grow_array(void **array, uint64_t room, size_t item_bytes, struct rdt_error *err)
{
    void *grown = realloc(*array, room * item_bytes);

    if (grown == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "no memory for %llu keys",
                              (unsigned long long)room);
    *array = grown;
    return RDT_OK;
}

/* An array that grows before another one fails is only larger than it need be. */
static rdt_status
keys_grow_entries(struct rdti_ps_keys *keys, struct rdt_error *err)
{
    const uint64_t wanted = keys->admitted.count + keys->filtered.count + keys->reserved + 1;
    uint64_t room = keys->entries_room > 0 ? keys->entries_room : ENTRIES_LEAST;
    rdt_status status;

    if (wanted <= keys->entries_room)
        return RDT_OK;
    if (wanted >= ENTRIES_MAX)
        return rdti_error_set(err, RDT_ENOMEM, 0, "%llu keys exceed 2^32 on one server",
                              (unsigned long long)wanted);
    while (room < wanted)
        room *= 2;
    status = keys_grow_array((void **)&keys->entries, room, sizeof(*keys->entries), err);
    if (status == RDT_OK)
        status = keys_grow_array((void **)&keys->free_rows, room, sizeof(*keys->free_rows), err);
    if (status == RDT_OK && keys_has_heap(keys))
        status = keys_grow_array((void **)&keys->heap, room, sizeof(*keys->heap), err);
    if (status == RDT_OK)
        keys->entries_room = room;
    return status;
}

rdt_status
rdti_ps_keys_init(struct rdti_ps_keys *keys, const struct rdti_ps_keys_opts *opts,
                  struct rdt_error *err)
{
    *keys = (struct rdti_ps_keys){.opts = *opts, .free_entry = NONE};
    keys->admitted = keys->filtered = (struct rdti_ps_keys_list){.oldest = NONE, .newest = NONE};
    if (opts->admit_after == 0 || opts->evict > RDT_PS_EVICT_EPOCH || opts->capacity >= ENTRIES_MAX)
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "keys: admit_after %u is from 1 on, evict %u is not a policy, or a "
                              "capacity of %llu is not below 2^32",
                              opts->admit_after, opts->evict, (unsigned long long)opts->capacity);
    keys->parts = calloc(RDTI_PS_PARTITIONS, sizeof(*keys->parts));
    if (keys->parts == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "no memory for a table of keys");
    return RDT_OK;
}

void
rdti_ps_keys_free(struct rdti_ps_keys *keys)
{
    for (uint32_t i = 0; keys->parts != NULL && i < RDTI_PS_PARTITIONS; i++)
        free(keys->parts[i].buckets);
    free(keys->parts);
    free(keys->entries);
    free(keys->free_rows);
    free(keys->heap);
}

const struct rdti_ps_key *
rdti_ps_keys_find(const struct rdti_ps_keys *keys, uint64_t key)
{
    const uint32_t entry = rdti_ps_index_find(keys, key);

    return entry != NONE ? &keys->entries[entry] : NULL;
}

static uint8_t
keys_wants(const struct rdti_ps_keys *keys, uint64_t key)
{
    const uint32_t entry = rdti_ps_index_find(keys, key);

    if (entry == NONE)
        return MARK_ENTRY | MARK_ROW;
    return keys->entries[entry].row == RDTI_PS_NO_ROW ? MARK_ROW : 0;
}

rdt_status
rdti_ps_keys_reserve(struct rdti_ps_keys *keys, const uint64_t *ids, uint64_t count, uint8_t *marks,
                     struct rdt_error *err)
{
    for (uint64_t i = 0; i < count; i++) {
        struct rdti_ps_keys_part *part = rdti_ps_index_part(keys, rdti_ps_map_hash(ids[i]));
        rdt_status status = RDT_OK;
        marks[i] = keys_wants(keys, ids[i]);
        if ((marks[i] & MARK_ENTRY) != 0)
            status = rdti_ps_index_grow(keys, part, err);
        if (status == RDT_OK && (marks[i] & MARK_ENTRY) != 0)
            status = keys_grow_entries(keys, err);
        if (status != RDT_OK) {
            rdti_ps_keys_unreserve(keys, ids, i, marks);
            return status;
        }
        part->reserved += (marks[i] & MARK_ENTRY) != 0;
        keys->reserved += (marks[i] & MARK_ENTRY) != 0;
        keys->reserved_rows += (marks[i] & MARK_ROW) != 0;
    }
    return RDT_OK;
}

void
rdti_ps_keys_unreserve(struct rdti_ps_keys *keys, const uint64_t *ids, uint64_t count,
                       const uint8_t *marks)
{
    for (uint64_t i = 0; i < count; i++) {
        rdti_ps_index_part(keys, rdti_ps_map_hash(ids[i]))->reserved -=
            (marks[i] & MARK_ENTRY) != 0;
        keys->reserved -= (marks[i] & MARK_ENTRY) != 0;
        keys->reserved_rows -= (marks[i] & MARK_ROW) != 0;
    }
}

uint64_t
rdti_ps_keys_rows_most(const struct rdti_ps_keys *keys)
{
    const uint64_t most = keys->admitted.count + keys->reserved_rows;

    return keys->opts.capacity > 0 && keys->opts.capacity < most ? keys->opts.capacity : most;
}

void
rdti_ps_keys_remove(struct rdti_ps_keys *keys, uint64_t key)
{
    const uint32_t entry = rdti_ps_index_find(keys, key);

    if (entry != NONE)
        keys_forget(keys, entry);
}

const struct rdti_ps_key *
rdti_ps_keys_oldest(const struct rdti_ps_keys *keys)
{
    return keys->admitted.oldest != NONE ? &keys->entries[keys->admitted.oldest] : NULL;
}

/* ---- Restoring --------------------------------------------------------------------------- */

static bool
keys_is_older(const struct rdti_ps_keys *keys, uint32_t one, uint32_t other)
{
    const struct rdti_ps_key *a = &keys->entries[one];
    const struct rdti_ps_key *b = &keys->entries[other];

    return a->last != b->last ? a->last < b->last : a->order < b->order;
}

/* Takes `count` entries from the chain that begins at *first, sorted, as a chain of their own. */
static uint32_t
keys_sorted(struct rdti_ps_keys *keys, uint32_t *first, uint64_t count)
{
    uint32_t head = NONE;
    uint32_t *end = &head;

    if (count <= 1) {
        head = *first;
        if (count == 1) {
            *first = keys->entries[head].newer;
            keys->entries[head].newer = NONE;
        }
        return count == 1 ? head : NONE;
    }
    uint32_t a = keys_sorted(keys, first, count / 2);
    uint32_t b = keys_sorted(keys, first, count - count / 2);
    while (a != NONE || b != NONE) {
        uint32_t *from = b == NONE || (a != NONE && keys_is_older(keys, a, b)) ? &a : &b;
        *end = *from;
        end = &keys->entries[*from].newer;
        *from = keys->entries[*from].newer;
    }
    *end = NONE;
    return head;
}

static void
keys_sort_list(struct rdti_ps_keys *keys, struct rdti_ps_keys_list *list)
{
    uint32_t chain = list->oldest;
    uint32_t next = keys_sorted(keys, &chain, list->count);

    *list = (struct rdti_ps_keys_list){.oldest = NONE, .newest = NONE};
    while (next != NONE) {
        const uint32_t entry = next;
        next = keys->entries[entry].newer;
        keys_list_put(keys, entry);
    }
}

static void
keys_sort(struct rdti_ps_keys *keys)
{
    keys->is_unsorted = false;
    keys_sort_list(keys, &keys->admitted);
    keys_sort_list(keys, &keys->filtered);
    while (keys->opts.capacity > 0 && keys->admitted.count > keys->opts.capacity)
        keys_evict(keys);
    while (keys->opts.capacity > 0 && keys->filtered.count > keys->opts.capacity)
        keys_forget(keys, keys->filtered.oldest);
}

const struct rdti_ps_key *
rdti_ps_keys_restore(struct rdti_ps_keys *keys, const struct rdti_ps_key *saved, bool has_row,
                     struct rdt_error *err)
{
    uint8_t mark;

    if (rdti_ps_keys_reserve(keys, &saved->key, 1, &mark, err) != RDT_OK)
        return NULL;
    rdti_ps_keys_unreserve(keys, &saved->key, 1, &mark);
    const uint32_t entry = keys_new_entry(keys, saved->key);
    struct rdti_ps_key *one = &keys->entries[entry];
    one->last = saved->last;
    one->order = saved->order;
    one->count = saved->count;
    one->epoch = saved->epoch;
    if (keys->order < saved->order)
        keys->order = saved->order;
    if (keys->epoch < saved->epoch)
        keys->epoch = saved->epoch;
    if (has_row) {
        keys_list_remove(keys, entry);
        keys_give_row(keys, entry);
    }
    keys->is_unsorted = true;
    return one;
}

const struct rdti_ps_key *
rdti_ps_keys_next(const struct rdti_ps_keys *keys, uint32_t partition, uint64_t *at)
{
    const struct rdti_ps_keys_part *part = &keys->parts[partition];

    while (part->buckets != NULL && *at <= part->mask) {
        const uint32_t entry = part->buckets[(*at)++].entry;
        if (entry != NONE)
            return &keys->entries[entry];
    }
    return NULL;
}

/* ---- Steps ------------------------------------------------------------------------------- */

static void
keys_expire(struct rdti_ps_keys *keys, const struct rdti_ps_keys_list *list)
{
    while (list->oldest != NONE &&
           keys->step - keys->entries[list->oldest].last > keys->opts.expire_after) {
        keys->expirations++;
        keys_forget(keys, list->oldest);
    }
}

void
rdti_ps_keys_begin_step(struct rdti_ps_keys *keys, uint64_t step)
{
    keys->step = step;
    if (keys->is_unsorted)
        keys_sort(keys);
    if (keys->opts.expire_after == 0)
        return;
    keys_expire(keys, &keys->admitted);
    keys_expire(keys, &keys->filtered);
}

const struct rdti_ps_key *
rdti_ps_keys_push(struct rdti_ps_keys *keys, uint64_t key, bool *is_new)
{
    uint32_t entry = rdti_ps_index_find(keys, key);

    if (entry == NONE) {
        if (keys->opts.admit_after > 1 && keys->opts.capacity > 0 &&
            keys->filtered.count == keys->opts.capacity) {
            keys_forget(keys, keys->filtered.oldest);
            keys->forgotten++;
        }
        entry = keys_new_entry(keys, key);
    } else {
        keys_list_remove(keys, entry);
        keys_list_put(keys, entry);
    }
    struct rdti_ps_key *one = &keys->entries[entry];
    one->count += one->count < UINT32_MAX;
    one->last = keys->step;
    one->order = ++keys->order;
    one->epoch = keys->epoch;
    *is_new = one->row == RDTI_PS_NO_ROW && one->count >= keys->opts.admit_after;
    if (*is_new)
        keys_admit(keys, entry);
    return one;
}

uint64_t
rdti_ps_keys_bytes(const struct rdti_ps_keys *keys)
{
    return keys->index_bytes +
           (keys->parts != NULL ? RDTI_PS_PARTITIONS * sizeof(*keys->parts) : 0) +
           keys->entries_room * (sizeof(*keys->entries) + sizeof(*keys->free_rows) +
                                 (keys_has_heap(keys) ? sizeof(*keys->heap) : 0));
}
