/* SPDX-License-Identifier: Apache-2.0
 * The bodies of both halves of a slot, for slots.c (the table), slot.c (receiver), slot_fetch.c
 * (its view of an arrived tensor), slot_open.c and slot_sender.c (sender) only. */
#ifndef RDTI_SLOT_SLOT_IMPL_H
#define RDTI_SLOT_SLOT_IMPL_H

#include <assert.h>
#include <stdio.h>

#include "progress/transfer.h"
#include "slot/slot.h"
#include "wire/notify.h"
#include "wire/endpoint/slot_header.h"

struct rdt_slot {
    rdt_endpoint *ep; /* counted */
    uint32_t id;
    char name[RDT_SLOT_NAME_BYTES];
    struct rdt_tensor_desc desc;
    uint64_t payload_bytes; /* of one buffer; 0 for dynamic */
    uint64_t header_off;    /* of the header in a buffer */
    uint64_t flag_off;      /* the same */
    uint64_t stride_bytes;
    rdt_region *region;
    struct rdt_remote_region remote;
    struct rdti_flag flag;                 /* driver: of the epoch that comes next */
    rdt_region *pulled[RDTI_SLOT_BUFFERS]; /* dynamic: the payload that was read, while held */
    rdt_transfer *pulling; /* dynamic: the read of the next payload, if a get began it */
    bool is_announced;
    bool has_skipped;          /* the newest that arrived could not be read; its credit is owed */
    uint32_t got;              /* by the thread that uses the slot */
    uint64_t posts_seen;       /* the same: of the endpoint, at the last release */
    _Atomic uint32_t arrived;  /* stored by drivers */
    _Atomic uint32_t released; /* stored by the thread that uses the slot */
    _Atomic uint32_t is_ended;
    struct rdt_error error;
};

/* A slot of the peer, as it was announced. */
struct rdti_announced {
    struct rdti_list link;
    struct rdti_slot_announce info;
    rdt_slot_tx *tx; /* the local half, if open */
    /* Of the halves that were open before: the epochs of a slot go on. */
    uint32_t sent;
    uint32_t returned;
};

/* A dynamic tensor on its way: the receiver reads it and returns a credit afterwards. */
struct rdti_dynamic {
    struct rdt_transfer *transfer;
    struct rdti_lent *lent; /* NULL: a region of the user's */
};

struct rdt_slot_tx {
    rdt_endpoint *ep;                 /* counted */
    struct rdti_announced *announced; /* NULL once the peer's half is gone */
    struct rdti_slot_announce info;
    uint64_t payload_bytes;
    uint64_t header_off;
    uint8_t headers[RDTI_SLOT_BUFFERS]
                   [RDTI_SLOT_HEADER_BYTES]; /* one is free again when its credit is back */
    struct rdti_dynamic dynamic[RDTI_SLOT_BUFFERS];
    rdt_region
        *staging;    /* where tensors are built when the path shares no memory; made at first use */
    void *filling;   /* the result of buffer() */
    bool is_filling; /* between buffer() and post() */
    bool is_mapped;  /* the buffer in the user's hands is the receiver's own */
    _Atomic uint32_t sent;
    _Atomic uint32_t returned;
    _Atomic uint32_t is_ended;
    _Atomic uint32_t
        users; /* the handle, and each write in flight: they read headers and staging */
    struct rdt_error error;
};

struct rdti_slots {
    rdt_endpoint *ep;
    rdt_slot **table; /* by id */
    uint32_t table_cap;
    uint32_t next_id;
    struct rdti_list announced;
    _Atomic uint32_t announce_count; /* only grows: a waiter sees that there is something new */
};

/* [the thread that uses the slot] Checks the states of its buffers, as in slot.h. */
static inline void
rdti_slot_check_buffers(const rdt_slot *slot)
{
    const uint32_t released = atomic_load_explicit(&slot->released, memory_order_relaxed);
    const uint32_t arrived = atomic_load_explicit(&slot->arrived, memory_order_relaxed);
    const uint32_t held = slot->got - released;
    const uint32_t full = arrived - slot->got;

    assert(held <= RDTI_SLOT_BUFFERS && full <= RDTI_SLOT_BUFFERS - held);
    (void)held;
    (void)full;
}

static inline uint64_t
rdti_slot_header_off(uint64_t payload_bytes)
{
    return (payload_bytes + RDTI_SLOT_ALIGN - 1) / RDTI_SLOT_ALIGN * RDTI_SLOT_ALIGN;
}

/* The flag comes directly after the block that is written last, so that one request writes both. */
static inline uint64_t
rdti_slot_flag_off(uint32_t kind, uint64_t payload_bytes)
{
    if (kind != RDT_SLOT_STATIC)
        return rdti_slot_header_off(payload_bytes) + RDTI_SLOT_HEADER_BYTES;
    return (payload_bytes + RDTI_FLAG_BYTES - 1) / RDTI_FLAG_BYTES * RDTI_FLAG_BYTES;
}

static inline uint64_t
rdti_slot_buffer_bytes(uint32_t kind, uint64_t payload_bytes)
{
    return rdti_slot_flag_off(kind, payload_bytes) + RDTI_FLAG_BYTES;
}

/* Sets the kind of traffic: a dynamic tensor's write carries a header alone. */
static inline void
rdti_slot_mark(struct rdti_op *op, uint32_t kind, uint32_t epoch)
{
    op->traffic = kind == RDT_SLOT_DYNAMIC ? RDTI_TRAFFIC_CONTROL : RDTI_TRAFFIC_PLANNED;
    op->flag_sequence = rdti_flag_sequence(epoch);
}

rdt_status rdti_slot_check_desc(const char *call, const char *name,
                                const struct rdt_tensor_desc *desc, uint64_t *payload_bytes_out,
                                struct rdt_error *err);
/* slots.c */

struct rdti_announced *rdti_slots_find_announced(struct rdti_slots *slots, const char *name);
/* Gives the slot its id. */
rdt_status rdti_slots_add(struct rdti_slots *slots, rdt_slot *slot, struct rdt_error *err);
/* Points the flag at the next buffer and epoch, by whatever path they come. */
void rdti_slot_aim_flag(rdt_slot *slot, uint32_t epoch);

/* The error that ended a path, with the name of one of its slots, which the path does not know. */
static inline struct rdt_error
rdti_slot_error(const char *name, const struct rdt_error *err)
{
    struct rdt_error named = *err;

    /* A message that does not fit is cut at its end. */
    if (snprintf(named.message, sizeof(named.message), "slot '%s': %s", name, err->message) < 0)
        named = *err;
    return named;
}

/* At on_release: adds the slot's name to the error of a write, if it has one. */
static inline void
rdti_slot_name_end(struct rdt_transfer *t, const char *name)
{
    if (t->error != NULL)
        *t->error = rdti_slot_error(name, t->error);
}

/* [driver] Every later call returns err. */
void rdti_slot_end(rdt_slot *slot, const struct rdt_error *err);
void rdti_slot_tx_end(rdt_slot_tx *tx, const struct rdt_error *err);
/* [driver] The dynamic tensor of this epoch is over. */
void rdti_slot_tx_end_dynamic(rdt_slot_tx *tx, uint32_t epoch, rdt_status status,
                              const struct rdt_error *err);

/* slot_fetch.c: the tensor at slot->got, which has arrived. A dynamic one is read until the
 * deadline; if the read takes longer, the next call continues it. RDT_ESTALE: its sender took it
 * back. */
rdt_status rdti_slot_view(rdt_slot *slot, uint64_t deadline_ns, struct rdt_slot_view *view,
                          struct rdt_error *err);

#endif
