/* SPDX-License-Identifier: Apache-2.0
 * The table by which endpoints call slots. */
#include "endpoint/protocol.h"
#include "slot/slot.h"

static rdt_status
slot_protocol_attach(rdt_endpoint *ep, void **state_out, struct rdt_error *err)
{
    struct rdti_slots *slots = NULL;
    const rdt_status status = rdti_slots_create(ep, &slots, err);

    *state_out = slots;
    return status;
}

static void
slot_protocol_detach(void *state)
{
    rdti_slots_destroy(state);
}

static void
slot_protocol_on_ready(void *state)
{
    rdti_slots_on_ready(state);
}

static void
slot_protocol_on_ended(void *state, const struct rdt_error *err)
{
    rdti_slots_on_ended(state, err);
}

static rdt_status
slot_protocol_on_notify(void *state, enum rdti_notify_kind kind, uint32_t value, uint32_t epoch,
                        struct rdt_error *err)
{
    return kind == RDTI_NOTIFY_IS_CREDIT ? rdti_slots_on_credit(state, value, err)
                                         : rdti_slots_on_data(state, value, epoch, err);
}

static rdt_status
slot_protocol_on_frame(void *state, enum rdti_frame_type type, const uint8_t *payload,
                       uint32_t payload_bytes, struct rdt_error *err)
{
    struct rdti_slot_announce announce;
    struct rdti_slot_gone gone;
    rdt_status status;

    if (type == RDTI_FRAME_SLOT) {
        status = rdti_slot_announce_decode(payload, payload_bytes, &announce, err);
        return status == RDT_OK ? rdti_slots_on_announce(state, &announce, err) : status;
    }
    status = rdti_slot_gone_decode(payload, payload_bytes, &gone, err);
    if (status != RDT_OK)
        return status;
    if (type == RDTI_FRAME_SLOT_GONE)
        return rdti_slots_on_gone(state, &gone, err);
    rdti_slots_on_refused(state, &gone);
    return RDT_OK;
}

static const char *
slot_protocol_name_at(const void *state, uint32_t index, uint64_t *off_bytes)
{
    return rdti_slots_name_at(state, index, off_bytes);
}

const struct rdti_protocol rdti_slot_protocol = {
    .attach = slot_protocol_attach,
    .detach = slot_protocol_detach,
    .on_ready = slot_protocol_on_ready,
    .on_ended = slot_protocol_on_ended,
    .on_notify = slot_protocol_on_notify,
    .on_frame = slot_protocol_on_frame,
    .name_at = slot_protocol_name_at,
};
