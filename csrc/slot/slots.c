/* SPDX-License-Identifier: Apache-2.0
 * The table of an endpoint's slots, and what arrives for them. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "slot/slot.h"
#include "slot/slot_impl.h"
#include "wire/notify.h"

/* ---- The table of an endpoint ------------------------------------------------------------ */

rdt_status
rdti_slots_create(rdt_endpoint *ep, struct rdti_slots **out, struct rdt_error *err)
{
    struct rdti_slots *slots = calloc(1, sizeof(*slots));

    if (slots == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a slot table of %zu bytes", sizeof(*slots));
    slots->ep = ep;
    rdti_list_init(&slots->announced);
    *out = slots;
    return RDT_OK;
}

void
rdti_slots_destroy(struct rdti_slots *slots)
{
    struct rdti_list *node;

    if (slots == NULL)
        return;
    while ((node = rdti_list_take_first(&slots->announced)) != NULL)
        free(RDTI_CONTAINER(node, struct rdti_announced, link));
    free(slots->table);
    free(slots);
}

/* NULL: the id was never given out, or its slot was destroyed since. */
static rdt_slot *
slots_find(const struct rdti_slots *slots, uint32_t slot_id)
{
    return slot_id < slots->next_id ? slots->table[slot_id] : NULL;
}

rdt_status
rdti_slots_add(struct rdti_slots *slots, rdt_slot *slot, struct rdt_error *err)
{
    for (uint32_t i = 0; i < slots->next_id; i++)
        if (slots->table[i] != NULL && strcmp(slots->table[i]->name, slot->name) == 0)
            return rdti_error_set(err, RDT_EINVAL, 0,
                                  "slot_create: a slot of the name '%s' lives already for rank %d",
                                  slot->name, (int)rdti_endpoint_rank(slots->ep));
    if (slots->next_id > RDTI_SLOT_ID_MAX)
        return rdti_error_set(err, RDT_ENOMEM, 0, "slot: all %u ids of this endpoint were used",
                              RDTI_SLOT_ID_MAX + 1);
    if (slots->next_id == slots->table_cap) {
        const uint32_t cap = slots->table_cap == 0 ? 16 : slots->table_cap * 2;
        rdt_slot **table = realloc(slots->table, sizeof(rdt_slot *) * cap);
        if (table == NULL)
            return rdti_error_set(err, RDT_ENOMEM, 0, "slot: a table of %u entries", cap);
        slots->table = table;
        slots->table_cap = cap;
    }
    /* Ids are not used twice: a late notification can then only mean the slot that is gone. */
    slot->id = slots->next_id++;
    slots->table[slot->id] = slot;
    return RDT_OK;
}

struct rdti_announced *
rdti_slots_find_announced(struct rdti_slots *slots, const char *name)
{
    for (struct rdti_list *node = slots->announced.next; node != &slots->announced;
         node = node->next) {
        struct rdti_announced *announced = RDTI_CONTAINER(node, struct rdti_announced, link);
        if (strcmp(announced->info.name, name) == 0)
            return announced;
    }
    return NULL;
}

static struct rdti_announced *
slots_find_announced_id(struct rdti_slots *slots, uint32_t slot_id)
{
    for (struct rdti_list *node = slots->announced.next; node != &slots->announced;
         node = node->next) {
        struct rdti_announced *announced = RDTI_CONTAINER(node, struct rdti_announced, link);
        if (announced->info.slot_id == slot_id)
            return announced;
    }
    return NULL;
}

void
rdti_slot_aim_flag(rdt_slot *slot, uint32_t epoch)
{
    uint8_t *buffer =
        (uint8_t *)rdt_region_addr(slot->region) + epoch % RDTI_SLOT_BUFFERS * slot->stride_bytes;

    slot->flag.word = (const _Atomic uint64_t *)(void *)(buffer + slot->flag_off);
    slot->flag.sequence = rdti_flag_sequence(epoch);
    slot->flag.notification = rdti_notify_slot(slot->id, epoch);
}

/* ---- Arrivals ---------------------------------------------------------------------------- */

rdt_status
rdti_slots_on_data(struct rdti_slots *slots, uint32_t slot_id, uint32_t epoch,
                   struct rdt_error *err)
{
    const int32_t rank = rdti_endpoint_rank(slots->ep);
    rdt_slot *slot = slots_find(slots, slot_id);

    if (slot == NULL && slot_id < slots->next_id)
        return RDT_OK; /* sent before the slot was destroyed */
    if (slot == NULL)
        return rdti_error_set_rank(err, RDT_EPROTO, rank,
                                   "rank %d wrote to slot %u, which was never announced", (int)rank,
                                   slot_id);
    const uint32_t arrived =
        atomic_load_explicit(&slot->arrived, memory_order_relaxed); /* only drivers store it */
    const uint32_t released = atomic_load_explicit(&slot->released, memory_order_acquire);
    if (arrived - released >= RDTI_SLOT_BUFFERS || (arrived & RDTI_EPOCH_MASK) != epoch)
        return rdti_error_set_rank(
            err, RDT_EPROTO, rank,
            "rank %d wrote epoch %u of slot '%s' without a credit or out of order (expected %u)",
            (int)rank, epoch, slot->name, arrived & RDTI_EPOCH_MASK);
    /* seq_cst: the bytes are in place; pairs with slot_has_arrived() before a sleep */
    atomic_store_explicit(&slot->arrived, arrived + 1, memory_order_seq_cst);
    rdti_slot_aim_flag(slot, arrived + 1);
    rdti_engine_wake(rdti_endpoint_context(slots->ep)->engine);
    return RDT_OK;
}

static rdt_status
slots_no_such_credit(int32_t rank, const char *name, struct rdt_error *err)
{
    return rdti_error_set_rank(err, RDT_EPROTO, rank,
                               "rank %d returned a credit of slot '%s' that it did not have",
                               (int)rank, name);
}

rdt_status
rdti_slots_on_credit(struct rdti_slots *slots, uint32_t slot_id, struct rdt_error *err)
{
    const int32_t rank = rdti_endpoint_rank(slots->ep);
    struct rdti_announced *announced = slots_find_announced_id(slots, slot_id);

    if (announced == NULL)
        return RDT_OK; /* the slot is gone */
    rdt_slot_tx *tx = announced->tx;
    if (tx == NULL && announced->returned != announced->sent) {
        announced->returned++; /* the local half was destroyed while the credit was on its way */
        return RDT_OK;
    }
    if (tx == NULL)
        return slots_no_such_credit(rank, announced->info.name, err);
    const uint32_t returned = atomic_load_explicit(&tx->returned, memory_order_relaxed);
    if (returned == atomic_load_explicit(&tx->sent, memory_order_acquire))
        return slots_no_such_credit(rank, announced->info.name, err);
    rdti_slot_tx_end_dynamic(tx, returned, RDT_OK, NULL);
    /* seq_cst: pairs with sender_has_credit() before a sleep */
    atomic_store_explicit(&tx->returned, returned + 1, memory_order_seq_cst);
    rdti_engine_wake(rdti_endpoint_context(slots->ep)->engine);
    return RDT_OK;
}

rdt_status
rdti_slots_on_announce(struct rdti_slots *slots, const struct rdti_slot_announce *info,
                       struct rdt_error *err)
{
    const int32_t rank = rdti_endpoint_rank(slots->ep);

    if (slots_find_announced_id(slots, info->slot_id) != NULL ||
        rdti_slots_find_announced(slots, info->name) != NULL)
        return rdti_error_set_rank(err, RDT_EPROTO, rank, "rank %d announced slot '%s' twice",
                                   (int)rank, info->name);
    if (info->slot_id > RDTI_SLOT_ID_MAX || info->buffers != RDTI_SLOT_BUFFERS ||
        memcmp(info->region.owner, rdti_endpoint_uuid(slots->ep), RDT_UUID_BYTES) != 0 ||
        info->stride_bytes > info->region.len_bytes / RDTI_SLOT_BUFFERS)
        return rdti_error_set_rank(err, RDT_EPROTO, rank,
                                   "rank %d announced slot '%s' with a place that cannot be",
                                   (int)rank, info->name);
    struct rdti_announced *announced = calloc(1, sizeof(*announced));
    if (announced == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "an announcement of %zu bytes",
                              sizeof(*announced));
    announced->info = *info;
    rdti_list_append(&slots->announced, &announced->link);
    /* seq_cst: pairs with sender_is_announced() before a sleep */
    (void)atomic_fetch_add_explicit(&slots->announce_count, 1, memory_order_seq_cst);
    rdti_engine_wake(rdti_endpoint_context(slots->ep)->engine);
    return RDT_OK;
}

rdt_status
rdti_slots_on_gone(struct rdti_slots *slots, const struct rdti_slot_gone *gone,
                   struct rdt_error *err)
{
    struct rdti_announced *announced = slots_find_announced_id(slots, gone->slot_id);
    struct rdt_error end;

    if (announced == NULL)
        return RDT_OK;
    if (announced->tx != NULL) {
        rdt_status status = RDT_OK;
        /* relaxed: only drivers store it */
        while (status == RDT_OK && atomic_load_explicit(&announced->tx->returned,
                                                        memory_order_relaxed) != gone->released)
            status = rdti_slots_on_credit(slots, gone->slot_id, err);
        if (status != RDT_OK) /* more credits than sends */
            return status;
        (void)rdti_error_set_rank(&end, RDT_ECLOSED, rdti_endpoint_rank(slots->ep),
                                  "rank %d destroyed slot '%s'", (int)rdti_endpoint_rank(slots->ep),
                                  announced->info.name);
        announced->tx->announced = NULL;
        rdti_slot_tx_end(announced->tx, &end);
    }
    rdti_list_remove(&announced->link);
    free(announced);
    return RDT_OK;
}

void
rdti_slots_on_refused(struct rdti_slots *slots, const struct rdti_slot_gone *refused)
{
    rdt_slot *slot = slots_find(slots, refused->slot_id);
    struct rdt_error err;

    if (slot == NULL)
        return;
    (void)rdti_error_set_rank(&err, RDT_EMISMATCH, rdti_endpoint_rank(slots->ep), "%s",
                              refused->text);
    rdti_slot_end(slot, &err);
}

void
rdti_slots_on_ended(struct rdti_slots *slots, const struct rdt_error *err)
{
    for (uint32_t i = 0; i < slots->next_id; i++)
        if (slots->table[i] != NULL) {
            const struct rdt_error named = rdti_slot_error(slots->table[i]->name, err);
            rdti_slot_end(slots->table[i], &named);
        }
    for (struct rdti_list *node = slots->announced.next; node != &slots->announced;
         node = node->next) {
        struct rdti_announced *announced = RDTI_CONTAINER(node, struct rdti_announced, link);
        if (announced->tx != NULL) {
            const struct rdt_error named = rdti_slot_error(announced->info.name, err);
            rdti_slot_tx_end(announced->tx, &named);
        }
    }
}

const char *
rdti_slots_name_at(const struct rdti_slots *slots, uint32_t index, uint64_t *off_bytes)
{
    for (uint32_t i = 0; i < slots->next_id; i++) {
        const rdt_slot *slot = slots->table[i];
        if (slot == NULL || slot->remote.index != index)
            continue;
        *off_bytes %= slot->stride_bytes;
        return slot->name;
    }
    return NULL;
}
