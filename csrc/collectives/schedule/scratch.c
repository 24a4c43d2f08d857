/* SPDX-License-Identifier: Apache-2.0
 * Landing memory that is kept between collectives. */
#include "collectives/schedule/scratch.h"

#include <stddef.h>

enum { EMPTY = 0, FREE, TAKEN };

static bool
scratch_take_slot(struct rdti_temp *temp, unsigned from)
{
    /* acquire: sees what its last holder did; pairs with the releases below */
    return atomic_compare_exchange_strong_explicit(&temp->state, &from, TAKEN, memory_order_acquire,
                                                   memory_order_relaxed);
}

static void
scratch_leave_slot(struct rdti_temp *temp)
{
    const unsigned state = temp->region != NULL ? FREE : EMPTY;

    atomic_store_explicit(&temp->state, state, memory_order_release);
}

/* Call with the slot taken. */
static void
scratch_drop_memory(struct rdti_temp *temp)
{
    if (temp->region == NULL)
        return;
    rdt_region_free(temp->region, NULL, NULL);
    temp->region = NULL;
    (void)atomic_fetch_sub_explicit(&temp->temps->kept_bytes, temp->len_bytes,
                                    memory_order_relaxed);
    (void)atomic_fetch_sub_explicit(&temp->temps->used, 1, memory_order_relaxed);
}

void
rdti_temps_init(struct rdti_temps *temps, uint64_t most_bytes, bool is_repeating)
{
    temps->most_bytes = most_bytes;
    temps->is_repeating = is_repeating;
    for (unsigned i = 0; i < RDTI_TEMPS_MAX; i++)
        temps->slots[i].temps = temps;
}

/* A request. */
struct scratch_wish {
    const void *tensor;
    uint64_t len_bytes;
};

static bool
scratch_is_own(const struct rdti_temp *temp, const struct scratch_wish *wish)
{
    return temp->wanted_bytes == wish->len_bytes && temp->tensor == wish->tensor;
}

/* As many bytes as last time, so that the source knows its place. */
static bool
scratch_is_same(const struct rdti_temp *temp, const struct scratch_wish *wish)
{
    return temp->wanted_bytes == wish->len_bytes;
}

/* Not so large that most of it would lie idle. */
static bool
scratch_fits(const struct rdti_temp *temp, const struct scratch_wish *wish)
{
    return temp->len_bytes >= wish->len_bytes && temp->len_bytes / 2 <= wish->len_bytes;
}

static struct rdti_temp *
scratch_find_free(struct rdti_temps *temps, const struct scratch_wish *wish,
                  bool (*suits)(const struct rdti_temp *temp, const struct scratch_wish *wish))
{
    for (unsigned i = 0; i < RDTI_TEMPS_MAX; i++) {
        struct rdti_temp *temp = &temps->slots[i];
        if (!scratch_take_slot(temp, FREE))
            continue;
        if (suits(temp, wish))
            return temp;
        scratch_leave_slot(temp);
    }
    return NULL;
}

static uint64_t
scratch_kept_bytes(struct rdti_temps *temps)
{
    return atomic_load_explicit(&temps->kept_bytes, memory_order_relaxed);
}

/* Call with the slot taken: whether its memory may make room. */
static bool
scratch_is_over(const struct rdti_temp *temp)
{
    const uint64_t now = atomic_load_explicit(&temp->temps->takes, memory_order_relaxed);

    return !temp->temps->is_repeating || now - temp->taken_at > RDTI_TEMPS_STALE;
}

/* Frees memory until this many bytes more may be kept. False: they may not. */
static bool
scratch_make_room(struct rdti_temps *temps, uint64_t len_bytes)
{
    for (unsigned i = 0; i < RDTI_TEMPS_MAX; i++) {
        struct rdti_temp *temp = &temps->slots[i];
        if (scratch_kept_bytes(temps) + len_bytes <= temps->most_bytes)
            break;
        if (!scratch_take_slot(temp, FREE))
            continue;
        if (scratch_is_over(temp))
            scratch_drop_memory(temp);
        scratch_leave_slot(temp);
    }
    return scratch_kept_bytes(temps) + len_bytes <= temps->most_bytes;
}

static struct rdti_temp *
scratch_find_empty(struct rdti_temps *temps)
{
    for (unsigned i = 0; i < RDTI_TEMPS_MAX; i++)
        if (scratch_take_slot(&temps->slots[i], EMPTY))
            return &temps->slots[i];
    return NULL;
}

/* An empty slot, else one whose memory is not needed. */
static struct rdti_temp *
scratch_find_any(struct rdti_temps *temps)
{
    struct rdti_temp *temp = scratch_find_empty(temps);

    for (unsigned i = 0; i < RDTI_TEMPS_MAX && temp == NULL; i++) {
        if (!scratch_take_slot(&temps->slots[i], FREE))
            continue;
        if (scratch_is_over(&temps->slots[i]))
            temp = &temps->slots[i];
        else
            scratch_leave_slot(&temps->slots[i]);
    }
    return temp;
}

/* Remembers a tensor, or, without one, a length. True: it was requested before. */
static bool
scratch_has_come_again(struct rdti_temps *temps, const void *tensor, uint64_t len_bytes)
{
    /* The multiplier of a well-known hash: lengths and addresses are round numbers. */
    const uint64_t digest =
        (uint64_t)(uintptr_t)tensor ^ (len_bytes * UINT64_C(0x9e3779b97f4a7c15) | 1);

    for (unsigned i = 0; i < RDTI_TEMPS_SEEN; i++)
        if (atomic_load_explicit(&temps->seen[i], memory_order_relaxed) == digest)
            return true;
    const unsigned at = atomic_fetch_add_explicit(&temps->seen_count, 1, memory_order_relaxed);
    atomic_store_explicit(&temps->seen[at % RDTI_TEMPS_SEEN], digest, memory_order_relaxed);
    return false;
}

/* Allocates memory in a slot that the caller holds, or NULL. NULL: no memory; the slot is left. */
static struct rdti_temp *
scratch_make_memory(struct rdti_temp *temp, rdt_context *ctx, uint64_t len_bytes)
{
    if (temp == NULL)
        return NULL;
    scratch_drop_memory(temp);
    if (rdt_region_alloc(ctx, len_bytes, 0, &temp->region, NULL) != RDT_OK) {
        temp->region = NULL;
        scratch_leave_slot(temp);
        return NULL;
    }
    temp->len_bytes = len_bytes;
    (void)atomic_fetch_add_explicit(&temp->temps->kept_bytes, len_bytes, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&temp->temps->used, 1, memory_order_relaxed);
    return temp;
}

/* For a tensor that came again; NULL: single tensors may have no further memory. */
static struct rdti_temp *
scratch_make_own(struct rdti_temps *temps, rdt_context *ctx, uint64_t len_bytes)
{
    const unsigned used = atomic_load_explicit(&temps->used, memory_order_relaxed);

    if (scratch_kept_bytes(temps) + len_bytes > RDTI_TEMPS_OWN_BYTES ||
        used + RDTI_TEMPS_SPARE >= RDTI_TEMPS_MAX)
        return NULL;
    return scratch_make_memory(scratch_find_empty(temps), ctx, len_bytes);
}

/* The memory of some tensor, or new memory. */
static struct rdti_temp *
scratch_find_or_make(struct rdti_temps *temps, rdt_context *ctx, const struct scratch_wish *wish)
{
    const bool is_known =
        wish->tensor != NULL && scratch_has_come_again(temps, wish->tensor, wish->len_bytes);
    struct rdti_temp *temp = NULL;

    if (temps->is_repeating && !scratch_has_come_again(temps, NULL, wish->len_bytes))
        return NULL;
    if (is_known)
        temp = scratch_make_own(temps, ctx, wish->len_bytes);
    if (temp == NULL)
        temp = scratch_find_free(temps, wish, scratch_is_same);
    if (temp == NULL)
        temp = scratch_find_free(temps, wish, scratch_fits);
    if (temp == NULL && scratch_make_room(temps, wish->len_bytes))
        temp = scratch_make_memory(scratch_find_any(temps), ctx, wish->len_bytes);
    return temp;
}

struct rdti_temp *
rdti_temps_take(struct rdti_temps *temps, rdt_context *ctx, const void *tensor, uint64_t len_bytes)
{
    const struct scratch_wish wish = {tensor, len_bytes};

    if (len_bytes <= RDTI_TEMPS_MIN_BYTES || len_bytes > RDTI_TEMPS_MOST_BYTES)
        return NULL;
    const uint64_t now = atomic_fetch_add_explicit(&temps->takes, 1, memory_order_relaxed);
    struct rdti_temp *temp = scratch_find_free(temps, &wish, scratch_is_own);
    if (temp == NULL)
        temp = scratch_find_or_make(temps, ctx, &wish);
    if (temp == NULL)
        return NULL;
    temp->wanted_bytes = len_bytes;
    temp->tensor = tensor;
    temp->taken_at = now;
    return temp;
}

void *
rdti_temp_addr(const struct rdti_temp *temp)
{
    return rdt_region_addr(temp->region);
}

void
rdti_temps_give(struct rdti_temp *temp)
{
    scratch_leave_slot(temp);
}

void
rdti_temps_fini(struct rdti_temps *temps)
{
    for (unsigned i = 0; i < RDTI_TEMPS_MAX; i++)
        scratch_drop_memory(&temps->slots[i]);
}
