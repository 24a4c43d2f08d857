/* SPDX-License-Identifier: Apache-2.0
 * A hash table of bins by (source, tag). The bin of (any, tag) has the receives from any source
 * and, a second time, every message of the tag in the order of arrival. A bin lives while something
 * is in it.
 */
#include "message/match/match.h"

#include <stdlib.h>

#include "base/error.h"

#define MATCH_BUCKETS_AT_FIRST 16
/* Idle bins kept: a collective of a large group has about as many tags in flight. */
#define BINS_KEEP 1024

struct rdti_bin {
    struct rdti_list idle; /* of the pool; first, and free for use while the bin lives */
    struct rdti_bin *next;
    uint32_t source;
    uint64_t tag;
    struct rdti_list posted;
    struct rdti_list arrivals;
};

rdt_status
rdti_matcher_init(struct rdti_matcher *m, struct rdt_error *err)
{
    struct rdti_bin **buckets = calloc(MATCH_BUCKETS_AT_FIRST, sizeof(struct rdti_bin *));

    if (buckets == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a table of %d entries", MATCH_BUCKETS_AT_FIRST);
    *m = (struct rdti_matcher){.buckets = buckets, .bucket_count = MATCH_BUCKETS_AT_FIRST};
    rdti_pool_init(&m->bins, sizeof(struct rdti_bin), BINS_KEEP);
    return RDT_OK;
}

void
rdti_matcher_clear(struct rdti_matcher *m)
{
    rdti_pool_clear(&m->bins);
    free(m->buckets);
    m->buckets = NULL;
}

/* splitmix64's finish: peers choose tags, often in steps of a power of two. */
static uint32_t
match_bucket_of(const struct rdti_matcher *m, uint32_t source, uint64_t tag)
{
    uint64_t x = tag + (uint64_t)source * UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)(x ^ x >> 31) & (m->bucket_count - 1);
}

static struct rdti_bin *
match_find_bin(const struct rdti_matcher *m, uint32_t source, uint64_t tag)
{
    struct rdti_bin *bin = m->buckets[match_bucket_of(m, source, tag)];

    while (bin != NULL && (bin->source != source || bin->tag != tag))
        bin = bin->next;
    return bin;
}

/* Doubles the table. Without memory it stays as it is, and is slower. */
static void
match_grow(struct rdti_matcher *m)
{
    const uint32_t old_count = m->bucket_count;
    struct rdti_bin **old = m->buckets;
    struct rdti_bin **buckets = calloc((size_t)old_count * 2, sizeof(struct rdti_bin *));

    if (buckets == NULL)
        return;
    m->buckets = buckets;
    m->bucket_count = old_count * 2;
    for (uint32_t i = 0; i < old_count; i++) {
        for (struct rdti_bin *bin = old[i], *next; bin != NULL; bin = next) {
            struct rdti_bin **head = &buckets[match_bucket_of(m, bin->source, bin->tag)];
            next = bin->next;
            bin->next = *head;
            *head = bin;
        }
    }
    free(old);
}

static struct rdti_bin *
match_need_bin(struct rdti_matcher *m, uint32_t source, uint64_t tag, struct rdt_error *err)
{
    struct rdti_bin *bin = match_find_bin(m, source, tag);

    if (bin != NULL)
        return bin;
    bin = rdti_pool_take(&m->bins);
    if (bin == NULL) {
        (void)rdti_error_set(err, RDT_ENOMEM, 0, "an entry of %zu bytes", sizeof(*bin));
        return NULL;
    }
    if (m->bin_count >= m->bucket_count && m->bucket_count < UINT32_C(1) << 30)
        match_grow(m);
    struct rdti_bin **head = &m->buckets[match_bucket_of(m, source, tag)];
    bin->source = source;
    bin->tag = tag;
    rdti_list_init(&bin->posted);
    rdti_list_init(&bin->arrivals);
    bin->next = *head;
    *head = bin;
    m->bin_count++;
    return bin;
}

static void
match_drop_if_empty(struct rdti_matcher *m, struct rdti_bin *bin)
{
    struct rdti_bin **at = &m->buckets[match_bucket_of(m, bin->source, bin->tag)];

    if (!rdti_list_is_empty(&bin->posted) || !rdti_list_is_empty(&bin->arrivals))
        return;
    while (*at != bin)
        at = &(*at)->next;
    *at = bin->next;
    m->bin_count--;
    rdti_pool_give(&m->bins, bin);
}

rdt_status
rdti_match_post(struct rdti_matcher *m, uint32_t source, uint64_t tag,
                struct rdti_match_posted *posted, struct rdt_error *err)
{
    struct rdti_bin *bin = match_need_bin(m, source, tag, err);

    if (bin == NULL)
        return RDT_ENOMEM;
    posted->bin = bin;
    posted->stamp = m->next_stamp++;
    rdti_list_append(&bin->posted, &posted->link);
    m->any_count += source == RDT_SOURCE_ANY ? 1 : 0;
    return RDT_OK;
}

rdt_status
rdti_match_store(struct rdti_matcher *m, uint32_t source, uint64_t tag,
                 struct rdti_match_arrival *arrival, struct rdt_error *err)
{
    struct rdti_bin *source_bin = match_need_bin(m, source, tag, err);

    if (source_bin == NULL)
        return RDT_ENOMEM;
    struct rdti_bin *tag_bin = match_need_bin(m, RDT_SOURCE_ANY, tag, err);
    if (tag_bin == NULL) {
        match_drop_if_empty(m, source_bin);
        return RDT_ENOMEM;
    }
    arrival->source_bin = source_bin;
    arrival->tag_bin = tag_bin;
    rdti_list_append(&source_bin->arrivals, &arrival->by_source);
    rdti_list_append(&tag_bin->arrivals, &arrival->by_tag);
    return RDT_OK;
}

static struct rdti_match_posted *
match_first_posted(const struct rdti_matcher *m, uint32_t source, uint64_t tag)
{
    struct rdti_bin *bin = match_find_bin(m, source, tag);

    if (bin == NULL || rdti_list_is_empty(&bin->posted))
        return NULL;
    return RDTI_CONTAINER(bin->posted.next, struct rdti_match_posted, link);
}

struct rdti_match_posted *
rdti_match_take_posted(struct rdti_matcher *m, uint32_t source, uint64_t tag)
{
    struct rdti_match_posted *posted = match_first_posted(m, source, tag);

    if (m->any_count > 0) {
        struct rdti_match_posted *any = match_first_posted(m, RDT_SOURCE_ANY, tag);
        if (any != NULL && (posted == NULL || any->stamp < posted->stamp))
            posted = any;
    }
    if (posted != NULL)
        rdti_match_cancel(m, posted);
    return posted;
}

struct rdti_match_arrival *
rdti_match_take_arrival(struct rdti_matcher *m, uint32_t source, uint64_t tag)
{
    struct rdti_bin *bin = match_find_bin(m, source, tag);
    struct rdti_match_arrival *arrival;

    if (bin == NULL || rdti_list_is_empty(&bin->arrivals))
        return NULL;
    if (source == RDT_SOURCE_ANY)
        arrival = RDTI_CONTAINER(bin->arrivals.next, struct rdti_match_arrival, by_tag);
    else
        arrival = RDTI_CONTAINER(bin->arrivals.next, struct rdti_match_arrival, by_source);
    rdti_match_remove(m, arrival);
    return arrival;
}

void
rdti_match_cancel(struct rdti_matcher *m, struct rdti_match_posted *posted)
{
    struct rdti_bin *bin = posted->bin;

    if (bin == NULL)
        return;
    posted->bin = NULL;
    rdti_list_remove(&posted->link);
    m->any_count -= bin->source == RDT_SOURCE_ANY ? 1 : 0;
    match_drop_if_empty(m, bin);
}

void
rdti_match_remove(struct rdti_matcher *m, struct rdti_match_arrival *arrival)
{
    struct rdti_bin *source_bin = arrival->source_bin;
    struct rdti_bin *tag_bin = arrival->tag_bin;

    if (source_bin == NULL)
        return;
    arrival->source_bin = NULL;
    arrival->tag_bin = NULL;
    rdti_list_remove(&arrival->by_source);
    rdti_list_remove(&arrival->by_tag);
    match_drop_if_empty(m, source_bin);
    match_drop_if_empty(m, tag_bin);
}
