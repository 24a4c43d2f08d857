/* SPDX-License-Identifier: Apache-2.0
 * A ring of messages of tensors; see copy_ring.h. A message: how many parts it has, a description
 * of each, and their values, each part's at a multiple of COPY_RING_ALIGN bytes. */
#include "copy_ring.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define PARTS_MAX 128

/* A row of elements of a tensor, as it is described. */
struct part {
    uint64_t tensor;
    uint64_t off_bytes;
    uint64_t len_bytes;
    uint64_t ndim;
    uint64_t dims[RDT_MAX_NDIM];
    char dtype[8];
};

struct heads {
    uint64_t count;
    uint64_t padding[7];
    struct part parts[PARTS_MAX];
};

static const char dtype_name[8] = "float32";

_Static_assert(sizeof(struct heads) <= COPY_RING_HEADS_BYTES, "heads of a message");

static uint64_t
aligned(uint64_t len_bytes)
{
    return (len_bytes + COPY_RING_ALIGN - 1) / COPY_RING_ALIGN * COPY_RING_ALIGN;
}

/* Where the values of a message begin. */
static uint64_t
heads_bytes(uint64_t count)
{
    return aligned(offsetof(struct heads, parts) + count * sizeof(struct part));
}

static int
fail(struct copy_ring *ring, const char *what, uint64_t tensor)
{
    ring->err.status = RDT_EPROTO;
    (void)snprintf(ring->err.message, sizeof(ring->err.message), "%s: tensor %llu", what,
                   (unsigned long long)tensor);
    return -1;
}

/* ---- Sending ----------------------------------------------------------------------------- */

/* How far the tensors of a call have left. */
struct place {
    uint64_t at; /* of order */
    uint64_t off_bytes;
};

/* Describe what the next message takes with it; returns its bytes of values. */
static uint64_t
plan(struct heads *heads, struct place *place, const struct copy_ring *ring,
     const struct copy_ring_tensor *tensors, const uint64_t *order, uint64_t count)
{
    uint64_t used = 0;

    heads->count = 0;
    while (place->at < count && heads->count < PARTS_MAX && used < ring->piece_bytes) {
        const struct copy_ring_tensor *tensor = &tensors[order[place->at]];
        const uint64_t left = tensor->len_bytes - place->off_bytes;
        const uint64_t room = ring->piece_bytes - used;
        const uint64_t len_bytes = left < room ? left : room;

        if (len_bytes > 0) {
            struct part *part = &heads->parts[heads->count++];

            part->tensor = order[place->at];
            part->off_bytes = place->off_bytes;
            part->len_bytes = len_bytes;
            part->ndim = tensor->ndim;
            memcpy(part->dims, tensor->dims, sizeof(part->dims));
            memcpy(part->dtype, dtype_name, sizeof(part->dtype));
            used += aligned(len_bytes);
            place->off_bytes += len_bytes;
        }
        if (len_bytes == left)
            *place = (struct place){.at = place->at + 1};
    }
    return used;
}

int
copy_ring_send(struct copy_ring *ring, const struct copy_ring_tensor *tensors,
               const uint64_t *order, uint64_t count)
{
    struct place place = {0};
    struct heads heads;
    uint64_t used;

    memset(&heads, 0, sizeof(heads));
    while ((used = plan(&heads, &place, ring, tensors, order, count)) > 0) {
        rdt_slot_tx *tx = ring->slots[ring->number++ % ring->slots_count];
        const uint64_t begin = heads_bytes(heads.count);
        const uint64_t dims[RDT_MAX_NDIM] = {begin + used};
        rdt_transfer *transfer;
        void *message;

        if (ring->calls->buffer(tx, ring->timeout_ns, &message, &ring->err) != RDT_OK)
            return -1;
        memcpy(message, &heads, begin);
        char *at = (char *)message + begin;
        for (uint64_t i = 0; i < heads.count; i++) {
            const struct part *part = &heads.parts[i];

            memcpy(at, tensors[part->tensor].values + part->off_bytes, part->len_bytes);
            at += aligned(part->len_bytes);
        }
        if (ring->calls->post(tx, dims, &transfer, &ring->err) != RDT_OK)
            return -1;
        ring->calls->free(transfer);
    }
    return 0;
}

/* ---- Receiving --------------------------------------------------------------------------- */

/* Look whether a part is what the receiver has a place for. */
static int
check(struct copy_ring *ring, const struct part *part, const struct copy_ring_tensor *tensors,
      uint64_t count)
{
    if (part->tensor >= count)
        return fail(ring, "a message has a tensor that is not known", part->tensor);
    const struct copy_ring_tensor *mine = &tensors[part->tensor];
    if (memcmp(part->dtype, dtype_name, sizeof(part->dtype)) != 0)
        return fail(ring, "a message has another dtype", part->tensor);
    if (part->ndim != mine->ndim || memcmp(part->dims, mine->dims, sizeof(part->dims)) != 0)
        return fail(ring, "a message has another shape", part->tensor);
    if (part->len_bytes > mine->len_bytes || part->off_bytes > mine->len_bytes - part->len_bytes)
        return fail(ring, "a message has bytes behind the end", part->tensor);
    return 0;
}

/* Copy a message out; returns its bytes of values in *came. */
static int
take(struct copy_ring *ring, const struct rdt_slot_view *view,
     const struct copy_ring_tensor *tensors, uint64_t count, uint64_t *came)
{
    const struct heads *heads = view->addr;
    const char *end = (const char *)view->addr + view->len_bytes;

    if (view->len_bytes % COPY_RING_ALIGN != 0 || view->len_bytes < offsetof(struct heads, parts) ||
        heads->count > PARTS_MAX || heads_bytes(heads->count) > view->len_bytes)
        return fail(ring, "a message ends in its descriptions, before", heads->count);
    const char *at = (const char *)view->addr + heads_bytes(heads->count);
    for (uint64_t i = 0; i < heads->count; i++) {
        const struct part *part = &heads->parts[i];

        if (check(ring, part, tensors, count) < 0)
            return -1;
        if (part->len_bytes > (uint64_t)(end - at))
            return fail(ring, "a message ends in its values", part->tensor);
        memcpy(tensors[part->tensor].values + part->off_bytes, at, part->len_bytes);
        at += aligned(part->len_bytes);
        *came += part->len_bytes;
    }
    return 0;
}

int
copy_ring_receive(struct copy_ring *ring, const struct copy_ring_tensor *tensors, uint64_t count,
                  uint64_t due_bytes)
{
    uint64_t came = 0;

    while (came < due_bytes) {
        rdt_slot *slot = ring->slots[ring->number++ % ring->slots_count];
        struct rdt_slot_view view;

        if (ring->calls->get(slot, ring->timeout_ns, &view, &ring->err) != RDT_OK)
            return -1;
        if (take(ring, &view, tensors, count, &came) < 0)
            return -1;
        if (ring->calls->release(slot, &ring->err) != RDT_OK)
            return -1;
    }
    return 0;
}
