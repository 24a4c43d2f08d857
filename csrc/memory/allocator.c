/* SPDX-License-Identifier: Apache-2.0
 * Two-level segregated fit over addresses. Spans are split into blocks. A block points to its
 * neighbours in address order; a free block is in the list of its size class, a taken block in a
 * hash table by base. */
#include "memory/allocator.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* 32 classes for each power of two: at most 1/32 of a block is lost to rounding up to a class. */
#define SECOND_LOG2 5
#define SECOND_COUNT (1 << SECOND_LOG2)
/* Sizes are counted in units of at least one byte: 64 bits of units, minus those of the first
 * (linear) row. */
#define FIRST_COUNT (64 - SECOND_LOG2 + 1)

/* Descriptors are allocated this many at a time: 28 KiB, below malloc's threshold for mmap. */
#define SLAB_BLOCKS 512

#define BUCKETS_AT_FIRST 64

struct block {
    uint64_t base;
    uint64_t len_bytes;
    struct block *lower; /* neighbours in the span; NULL at its ends */
    struct block *upper;
    struct block *next; /* free: list of the class; taken: hash chain; spare: list of spares */
    struct block *prev; /* free only */
    bool is_free;
};

struct slab {
    struct slab *next;
    struct block blocks[SLAB_BLOCKS];
};

struct span {
    struct span *next;
    uint64_t base;
    uint64_t len_bytes;
    struct block *first; /* never replaced: a merge keeps the lower block */
};

struct rdti_alloc {
    uint64_t align_bytes;
    uint32_t align_log2;
    uint64_t first_map;               /* bit f: second_map[f] is not 0 */
    uint32_t second_map[FIRST_COUNT]; /* bit s: heads[f][s] is not NULL */
    struct block *heads[FIRST_COUNT][SECOND_COUNT];
    struct block **buckets;
    uint64_t bucket_count; /* a power of two */
    uint64_t taken_count;
    uint64_t taken_bytes;
    struct span *spans;
    struct slab *slabs;
    struct block *spares;
};

struct class {
    uint32_t first;
    uint32_t second;
};

/* The class of a block of this many units; units > 0. */
static struct class
allocator_class_of(uint64_t units)
{
    if (units < SECOND_COUNT)
        return (struct class){0, (uint32_t)units};
    const uint32_t top = 63 - (uint32_t)__builtin_clzll(units);

    return (struct class){top - SECOND_LOG2 + 1,
                          (uint32_t)(units >> (top - SECOND_LOG2)) & (SECOND_COUNT - 1)};
}

/* The smallest class in which every block has at least this many units; false if there is none. */
static bool
allocator_class_above(uint64_t units, struct class *out)
{
    if (units >= SECOND_COUNT) {
        const uint32_t top = 63 - (uint32_t)__builtin_clzll(units);
        const uint64_t slack = (UINT64_C(1) << (top - SECOND_LOG2)) - 1;

        if (units > UINT64_MAX - slack)
            return false;
        units += slack;
    }
    *out = allocator_class_of(units);
    return true;
}

static uint64_t
allocator_units_of(const struct rdti_alloc *alloc, uint64_t len_bytes)
{
    return len_bytes >> alloc->align_log2;
}

/* ---- Descriptors ---------------------------------------------------------------------------- */

/* Ensures that the next allocator_block_new() cannot fail. */
static bool
allocator_ensure_spare(struct rdti_alloc *alloc)
{
    if (alloc->spares != NULL)
        return true;
    struct slab *slab = calloc(1, sizeof(*slab));

    if (slab == NULL)
        return false;
    slab->next = alloc->slabs;
    alloc->slabs = slab;
    for (uint32_t i = 0; i < SLAB_BLOCKS; i++) {
        slab->blocks[i].next = alloc->spares;
        alloc->spares = &slab->blocks[i];
    }
    return true;
}

static struct block *
allocator_block_new(struct rdti_alloc *alloc, uint64_t base, uint64_t len_bytes)
{
    struct block *block = alloc->spares;

    alloc->spares = block->next;
    *block = (struct block){.base = base, .len_bytes = len_bytes};
    return block;
}

static void
allocator_block_drop(struct rdti_alloc *alloc, struct block *block)
{
    *block = (struct block){.next = alloc->spares};
    alloc->spares = block;
}

/* ---- Free lists ----------------------------------------------------------------------------- */

static void
allocator_list_push(struct rdti_alloc *alloc, struct block *block)
{
    const struct class c = allocator_class_of(allocator_units_of(alloc, block->len_bytes));
    struct block **head = &alloc->heads[c.first][c.second];

    block->is_free = true;
    block->prev = NULL;
    block->next = *head;
    if (*head != NULL)
        (*head)->prev = block;
    *head = block;
    alloc->second_map[c.first] |= UINT32_C(1) << c.second;
    alloc->first_map |= UINT64_C(1) << c.first;
}

static void
allocator_list_remove(struct rdti_alloc *alloc, struct block *block)
{
    const struct class c = allocator_class_of(allocator_units_of(alloc, block->len_bytes));

    if (block->next != NULL)
        block->next->prev = block->prev;
    if (block->prev != NULL)
        block->prev->next = block->next;
    else
        alloc->heads[c.first][c.second] = block->next;
    if (alloc->heads[c.first][c.second] == NULL)
        alloc->second_map[c.first] &= ~(UINT32_C(1) << c.second);
    if (alloc->second_map[c.first] == 0)
        alloc->first_map &= ~(UINT64_C(1) << c.first);
    block->is_free = false;
    block->next = NULL;
    block->prev = NULL;
}

/* A free block of at least len_bytes, still in its list, or NULL. */
static struct block *
allocator_find_free(const struct rdti_alloc *alloc, uint64_t len_bytes)
{
    const uint64_t units = allocator_units_of(alloc, len_bytes);
    struct class c;

    if (allocator_class_above(units, &c)) {
        const uint32_t row = alloc->second_map[c.first] & (UINT32_MAX << c.second);

        if (row != 0)
            return alloc->heads[c.first][__builtin_ctz(row)];
        /* c.first is at most 59, so the shift is below the width. */
        const uint64_t rows = alloc->first_map & (UINT64_MAX << (c.first + 1));

        if (rows != 0) {
            const int first = __builtin_ctzll(rows);

            return alloc->heads[first][__builtin_ctz(alloc->second_map[first])];
        }
    }
    /* Blocks of the request's own class may be too small, so walk its list. Failing would cost the
     * caller a new segment, which is much more expensive. */
    c = allocator_class_of(units);
    for (struct block *block = alloc->heads[c.first][c.second]; block != NULL;
         block = block->next) {
        if (block->len_bytes >= len_bytes)
            return block;
    }
    return NULL;
}

/* ---- Taken blocks by base ------------------------------------------------------------------- */

static struct block **
allocator_bucket_of(const struct rdti_alloc *alloc, uint64_t base)
{
    /* Fibonacci hashing: spreads neighbours in address order over the buckets. */
    const uint64_t hash = (base >> alloc->align_log2) * UINT64_C(0x9e3779b97f4a7c15);

    return &alloc->buckets[(hash >> 32) & (alloc->bucket_count - 1)];
}

/* Without memory for it the chains grow longer, which is slower but correct. */
static void
allocator_grow_buckets(struct rdti_alloc *alloc)
{
    struct block **old = alloc->buckets;
    const uint64_t old_count = alloc->bucket_count;
    struct block **buckets = calloc(old_count * 2, sizeof(struct block *));

    if (buckets == NULL)
        return;
    alloc->buckets = buckets;
    alloc->bucket_count = old_count * 2;
    for (uint64_t i = 0; i < old_count; i++) {
        struct block *next;

        for (struct block *block = old[i]; block != NULL; block = next) {
            struct block **bucket = allocator_bucket_of(alloc, block->base);

            next = block->next;
            block->next = *bucket;
            *bucket = block;
        }
    }
    free(old);
}

static void
allocator_taken_insert(struct rdti_alloc *alloc, struct block *block)
{
    if (alloc->taken_count >= alloc->bucket_count)
        allocator_grow_buckets(alloc);
    struct block **bucket = allocator_bucket_of(alloc, block->base);

    block->next = *bucket;
    *bucket = block;
    alloc->taken_count++;
    alloc->taken_bytes += block->len_bytes;
}

/* The link that points to the taken block at base; *link is NULL if there is none. */
static struct block **
allocator_taken_link(const struct rdti_alloc *alloc, uint64_t base)
{
    struct block **link = allocator_bucket_of(alloc, base);

    while (*link != NULL && (*link)->base != base)
        link = &(*link)->next;
    return link;
}

static struct block *
allocator_taken_remove(struct rdti_alloc *alloc, uint64_t base)
{
    struct block **link = allocator_taken_link(alloc, base);
    struct block *block = *link;

    if (block == NULL)
        return NULL;
    *link = block->next;
    block->next = NULL;
    alloc->taken_count--;
    alloc->taken_bytes -= block->len_bytes;
    return block;
}

/* ---- Interface ------------------------------------------------------------------------------ */

rdt_status
rdti_alloc_create(uint64_t align_bytes, struct rdti_alloc **out, struct rdt_error *err)
{
    if (align_bytes == 0 || (align_bytes & (align_bytes - 1)) != 0)
        return rdti_error_set(err, RDT_EINVAL, 0, "alloc_create: alignment %llu",
                              (unsigned long long)align_bytes);
    struct rdti_alloc *alloc = calloc(1, sizeof(*alloc));

    if (alloc == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "alloc_create: %zu bytes", sizeof(*alloc));
    alloc->buckets = calloc(BUCKETS_AT_FIRST, sizeof(struct block *));
    if (alloc->buckets == NULL) {
        free(alloc);
        return rdti_error_set(err, RDT_ENOMEM, 0, "alloc_create: %zu bytes",
                              BUCKETS_AT_FIRST * sizeof(struct block *));
    }
    alloc->bucket_count = BUCKETS_AT_FIRST;
    alloc->align_bytes = align_bytes;
    alloc->align_log2 = (uint32_t)__builtin_ctzll(align_bytes);
    *out = alloc;
    return RDT_OK;
}

void
rdti_alloc_destroy(struct rdti_alloc *alloc)
{
    if (alloc == NULL)
        return;
    while (alloc->slabs != NULL) {
        struct slab *slab = alloc->slabs;

        alloc->slabs = slab->next;
        free(slab);
    }
    while (alloc->spans != NULL) {
        struct span *span = alloc->spans;

        alloc->spans = span->next;
        free(span);
    }
    free(alloc->buckets);
    free(alloc);
}

rdt_status
rdti_alloc_add(struct rdti_alloc *alloc, uint64_t base, uint64_t len_bytes, struct rdt_error *err)
{
    const unsigned long long shown_base = base;
    const unsigned long long shown_len = len_bytes;

    if (len_bytes == 0 || ((base | len_bytes) & (alloc->align_bytes - 1)) != 0 ||
        base > UINT64_MAX - len_bytes)
        return rdti_error_set(err, RDT_EINVAL, 0, "alloc_add: 0x%llx, %llu bytes", shown_base,
                              shown_len);
    for (const struct span *old = alloc->spans; old != NULL; old = old->next) {
        if (base < old->base + old->len_bytes && old->base < base + len_bytes)
            return rdti_error_set(err, RDT_EINVAL, 0,
                                  "alloc_add: 0x%llx, %llu bytes overlaps an earlier span",
                                  shown_base, shown_len);
    }
    struct span *span = calloc(1, sizeof(*span));

    if (span == NULL || !allocator_ensure_spare(alloc)) {
        free(span);
        return rdti_error_set(err, RDT_ENOMEM, 0, "alloc_add: no memory for descriptors");
    }
    span->base = base;
    span->len_bytes = len_bytes;
    span->first = allocator_block_new(alloc, base, len_bytes);
    span->next = alloc->spans;
    alloc->spans = span;
    allocator_list_push(alloc, span->first);
    return RDT_OK;
}

rdt_status
rdti_alloc_take(struct rdti_alloc *alloc, uint64_t len_bytes, uint64_t *base_out)
{
    const uint64_t mask = alloc->align_bytes - 1;

    if (len_bytes > UINT64_MAX - mask)
        return RDT_ENOMEM;
    len_bytes = len_bytes == 0 ? alloc->align_bytes : (len_bytes + mask) & ~mask;
    struct block *block = allocator_find_free(alloc, len_bytes);

    if (block == NULL || !allocator_ensure_spare(alloc))
        return RDT_ENOMEM;
    allocator_list_remove(alloc, block);
    if (block->len_bytes > len_bytes) {
        struct block *rest =
            allocator_block_new(alloc, block->base + len_bytes, block->len_bytes - len_bytes);

        rest->lower = block;
        rest->upper = block->upper;
        if (rest->upper != NULL)
            rest->upper->lower = rest;
        block->upper = rest;
        block->len_bytes = len_bytes;
        allocator_list_push(alloc, rest);
    }
    allocator_taken_insert(alloc, block);
    *base_out = block->base;
    return RDT_OK;
}

/* Merges a block with its upper neighbour; neither is in a list or table. */
static void
allocator_merge_upper(struct rdti_alloc *alloc, struct block *block)
{
    struct block *upper = block->upper;

    block->len_bytes += upper->len_bytes;
    block->upper = upper->upper;
    if (block->upper != NULL)
        block->upper->lower = block;
    allocator_block_drop(alloc, upper);
}

/* Takes the block at base out of the table and merges it with its free neighbours; NULL: no such
 * block. */
static struct block *
allocator_take_out_merged(struct rdti_alloc *alloc, uint64_t base)
{
    struct block *block = allocator_taken_remove(alloc, base);

    if (block == NULL)
        return NULL;
    if (block->upper != NULL && block->upper->is_free) {
        allocator_list_remove(alloc, block->upper);
        allocator_merge_upper(alloc, block);
    }
    if (block->lower != NULL && block->lower->is_free) {
        block = block->lower;
        allocator_list_remove(alloc, block);
        allocator_merge_upper(alloc, block);
    }
    return block;
}

bool
rdti_alloc_give(struct rdti_alloc *alloc, uint64_t base)
{
    struct block *block = allocator_take_out_merged(alloc, base);

    if (block == NULL)
        return false;
    allocator_list_push(alloc, block);
    return true;
}

bool
rdti_alloc_absorb(struct rdti_alloc *alloc, uint64_t base, uint64_t *base_out,
                  uint64_t *len_bytes_out)
{
    struct block *block = allocator_take_out_merged(alloc, base);

    if (block == NULL)
        return false;
    allocator_taken_insert(alloc, block);
    *base_out = block->base;
    *len_bytes_out = block->len_bytes;
    return true;
}

uint64_t
rdti_alloc_len_bytes(const struct rdti_alloc *alloc, uint64_t base)
{
    const struct block *block = *allocator_taken_link(alloc, base);

    return block == NULL ? 0 : block->len_bytes;
}

uint64_t
rdti_alloc_taken_bytes(const struct rdti_alloc *alloc)
{
    return alloc->taken_bytes;
}

uint64_t
rdti_alloc_largest_free(const struct rdti_alloc *alloc)
{
    uint64_t most = 0;

    if (alloc->first_map == 0)
        return 0;
    const int first = 63 - __builtin_clzll(alloc->first_map);
    const int second = 31 - __builtin_clz(alloc->second_map[first]);

    for (const struct block *b = alloc->heads[first][second]; b != NULL; b = b->next)
        most = b->len_bytes > most ? b->len_bytes : most;
    return most;
}

/* ---- Check ---------------------------------------------------------------------------------- */

struct tally {
    uint64_t free_count;
    uint64_t taken_count;
    uint64_t taken_bytes;
};

static bool
allocator_block_is_listed(const struct rdti_alloc *alloc, const struct block *block)
{
    const struct class c = allocator_class_of(allocator_units_of(alloc, block->len_bytes));
    const struct block *b = alloc->heads[c.first][c.second];

    if (!block->is_free)
        return *allocator_taken_link(alloc, block->base) == block;
    while (b != NULL && b != block)
        b = b->next;
    return b == block;
}

/* The blocks cover the span without a gap, agree on their neighbours, and are each in the right
 * list or table. */
static bool
allocator_span_is_sound(const struct rdti_alloc *alloc, const struct span *span,
                        struct tally *tally)
{
    const struct block *lower = NULL;
    uint64_t base = span->base;

    for (const struct block *block = span->first; block != NULL; block = block->upper) {
        if (block->base != base || block->lower != lower || block->len_bytes == 0 ||
            (block->len_bytes & (alloc->align_bytes - 1)) != 0)
            return false;
        if (lower != NULL && lower->is_free && block->is_free)
            return false;
        if (!allocator_block_is_listed(alloc, block))
            return false;
        tally->free_count += block->is_free;
        tally->taken_count += !block->is_free;
        tally->taken_bytes += block->is_free ? 0 : block->len_bytes;
        base += block->len_bytes;
        lower = block;
    }
    return base == span->base + span->len_bytes;
}

/* The bitmaps match the lists, and the lists hold `want` blocks, each in its class. */
static bool
allocator_lists_are_sound(const struct rdti_alloc *alloc, uint64_t want)
{
    uint64_t count = 0;

    for (uint32_t f = 0; f < FIRST_COUNT; f++) {
        if (((alloc->first_map >> f) & 1) != (alloc->second_map[f] != 0))
            return false;
        for (uint32_t s = 0; s < SECOND_COUNT; s++) {
            const struct block *prev = NULL;

            if (((alloc->second_map[f] >> s) & 1) != (alloc->heads[f][s] != NULL))
                return false;
            for (const struct block *b = alloc->heads[f][s]; b != NULL; b = b->next) {
                const struct class c = allocator_class_of(allocator_units_of(alloc, b->len_bytes));

                if (!b->is_free || b->prev != prev || c.first != f || c.second != s)
                    return false;
                prev = b;
                count++;
            }
        }
    }
    return count == want;
}

bool
rdti_alloc_check(const struct rdti_alloc *alloc)
{
    struct tally tally = {0};

    for (const struct span *span = alloc->spans; span != NULL; span = span->next) {
        for (const struct span *other = span->next; other != NULL; other = other->next) {
            if (span->base < other->base + other->len_bytes &&
                other->base < span->base + span->len_bytes)
                return false;
        }
        if (!allocator_span_is_sound(alloc, span, &tally))
            return false;
    }
    return allocator_lists_are_sound(alloc, tally.free_count) &&
           tally.taken_count == alloc->taken_count && tally.taken_bytes == alloc->taken_bytes;
}
