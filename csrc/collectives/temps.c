/* SPDX-License-Identifier: Apache-2.0
 * Landing memory that is kept. */
#include "collectives/temps.h"

#include <stdbool.h>
#include <stddef.h>

enum { EMPTY = 0, FREE, TAKEN };

static bool
take_slot(struct rdti_temp *temp, unsigned from)
{
    /* acquire: what its last holder did; partner: the releases below */
    return atomic_compare_exchange_strong_explicit(&temp->state, &from, TAKEN, memory_order_acquire,
                                                   memory_order_relaxed);
}

static void
leave_slot(struct rdti_temp *temp)
{
    const unsigned state = temp->region != NULL ? FREE : EMPTY;

    atomic_store_explicit(&temp->state, state, memory_order_release);
}

/* Not so large that most of it would lie idle. */
static bool
fits(const struct rdti_temp *temp, uint64_t len_bytes)
{
    return temp->len_bytes >= len_bytes && temp->len_bytes / 2 <= len_bytes;
}

static struct rdti_temp *
find_free(struct rdti_temps *temps, uint64_t len_bytes)
{
    for (unsigned i = 0; i < RDTI_TEMPS_MAX; i++) {
        struct rdti_temp *temp = &temps->slots[i];
        if (!take_slot(temp, FREE))
            continue;
        if (fits(temp, len_bytes))
            return temp;
        leave_slot(temp);
    }
    return NULL;
}

/* An empty slot, else one whose memory is of no use here. */
static struct rdti_temp *
find_any(struct rdti_temps *temps)
{
    for (unsigned i = 0; i < RDTI_TEMPS_MAX; i++)
        if (take_slot(&temps->slots[i], EMPTY))
            return &temps->slots[i];
    for (unsigned i = 0; i < RDTI_TEMPS_MAX; i++)
        if (take_slot(&temps->slots[i], FREE))
            return &temps->slots[i];
    return NULL;
}

struct rdti_temp *
rdti_temps_take(struct rdti_temps *temps, rdt_context *ctx, uint64_t len_bytes)
{
    if (len_bytes <= RDTI_TEMPS_MIN_BYTES || len_bytes > RDTI_TEMPS_MOST_BYTES)
        return NULL;
    struct rdti_temp *temp = find_free(temps, len_bytes);
    if (temp != NULL)
        return temp;
    temp = find_any(temps);
    if (temp == NULL)
        return NULL;
    rdt_region_free(temp->region, NULL, NULL);
    temp->region = NULL;
    temp->len_bytes = len_bytes;
    if (rdt_region_alloc(ctx, len_bytes, 0, &temp->region, NULL) == RDT_OK)
        return temp;
    leave_slot(temp);
    return NULL;
}

void *
rdti_temp_addr(const struct rdti_temp *temp)
{
    return rdt_region_addr(temp->region);
}

void
rdti_temps_give(struct rdti_temp *temp)
{
    leave_slot(temp);
}

void
rdti_temps_fini(struct rdti_temps *temps)
{
    for (unsigned i = 0; i < RDTI_TEMPS_MAX; i++) {
        rdt_region_free(temps->slots[i].region, NULL, NULL);
        temps->slots[i].region = NULL;
    }
}
