/* SPDX-License-Identifier: Apache-2.0
 * How a receiver sees a tensor that has arrived in a slot: the sizes of the header, and the bytes
 * of a dynamic tensor, which are read at this point. */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "endpoint/endpoint.h"
#include "slot/slot.h"
#include "slot/slot_impl.h"
#include "wire/endpoint/slot_header.h"

/* The header of a bounded or dynamic tensor, checked against the slot's description. */
static rdt_status
slot_fetch_read_header(const rdt_slot *slot, const uint8_t *at, struct rdti_slot_header *out,
                       struct rdt_error *err)
{
    const rdt_status status = rdti_slot_header_decode(at, RDTI_SLOT_HEADER_BYTES, out, err);

    if (status != RDT_OK)
        return status;
    bool fits =
        out->ndim == slot->desc.ndim && out->dtype == slot->desc.dtype && out->epoch == slot->got;
    for (uint32_t i = 0; fits && slot->desc.kind == RDT_SLOT_BOUNDED && i < out->ndim; i++)
        fits = out->dims[i] <= slot->desc.dims[i];
    if (!fits)
        return rdti_error_set_rank(err, RDT_EPROTO, rdti_endpoint_rank(slot->ep),
                                   "rank %d wrote a header into slot '%s' that does not fit it",
                                   (int)rdti_endpoint_rank(slot->ep), slot->name);
    return RDT_OK;
}

static rdt_status
slot_fetch_begin_pull(rdt_slot *slot, const struct rdti_slot_header *header, uint64_t len_bytes,
                      rdt_region **region_out, struct rdt_error *err)
{
    rdt_region *region = NULL;
    rdt_status status =
        rdti_regions_alloc(rdti_endpoint_context(slot->ep)->regions, len_bytes, 0, &region, err);

    if (status != RDT_OK)
        return status;
    status = rdti_endpoint_read(slot->ep, rdt_region_addr(region), len_bytes, &header->place.region,
                                header->place.off_bytes, RDTI_TRAFFIC_DYNAMIC, &slot->pulling, err);
    if (status != RDT_OK) {
        rdt_region_free(region, NULL, NULL);
        return status;
    }
    *region_out = region;
    return RDT_OK;
}

/* A read that outlasts the deadline of a get goes on; the next get continues the same read. */
static rdt_status
slot_fetch_pull(rdt_slot *slot, const struct rdti_slot_header *header, uint64_t deadline_ns,
                struct rdt_slot_view *view, struct rdt_error *err)
{
    rdt_region **region = &slot->pulled[slot->got % RDTI_SLOT_BUFFERS];
    rdt_status status = RDT_OK;

    if (slot->pulling == NULL)
        status = slot_fetch_begin_pull(slot, header, view->len_bytes, region, err);
    if (status != RDT_OK)
        return status;
    if (rdt_region_len_bytes(*region) !=
        view->len_bytes) /* the peer can write the header at any time */
        return rdti_error_set_rank(err, RDT_EPROTO, rdti_endpoint_rank(slot->ep),
                                   "rank %d changed the header of slot '%s' while it was read",
                                   (int)rdti_endpoint_rank(slot->ep), slot->name);
    struct rdt_error why = {.peer_rank = RDT_RANK_UNKNOWN};
    status = rdt_transfer_wait(slot->pulling, rdti_remaining_ns(deadline_ns), &why);
    if (status == RDT_ECORRUPT) /* the read does not know the slot's name */
        (void)rdti_error_set_rank(err, status, why.peer_rank, "slot '%s': %s", slot->name,
                                  why.message);
    else if (status != RDT_OK)
        (void)rdti_error_copy(err, &why);
    if (status != RDT_OK && rdt_transfer_test(slot->pulling, NULL) == RDT_EAGAIN)
        return status; /* the read goes on; the next get continues it */
    rdt_transfer_free(slot->pulling);
    slot->pulling = NULL;
    if (status != RDT_OK) {
        rdt_region_free(*region, NULL, NULL);
        *region = NULL;
        return status;
    }
    view->addr = rdt_region_addr(*region);
    return RDT_OK;
}

rdt_status
rdti_slot_view(rdt_slot *slot, uint64_t deadline_ns, struct rdt_slot_view *view,
               struct rdt_error *err)
{
    uint8_t *base = (uint8_t *)rdt_region_addr(slot->region) +
                    slot->got % RDTI_SLOT_BUFFERS * slot->stride_bytes;
    struct rdti_slot_header header;
    rdt_status status;

    *view = (struct rdt_slot_view){.addr = base,
                                   .len_bytes = slot->payload_bytes,
                                   .ndim = slot->desc.ndim,
                                   .epoch = slot->got};
    memcpy(view->dims, slot->desc.dims, sizeof(view->dims));
    if (slot->desc.kind == RDT_SLOT_STATIC)
        return RDT_OK;
    status = slot_fetch_read_header(slot, base + slot->header_off, &header, err);
    if (status != RDT_OK)
        return status;
    memcpy(view->dims, header.dims, sizeof(view->dims));
    status = rdti_tensor_bytes(header.dtype, header.ndim, header.dims, &view->len_bytes, err);
    if (status != RDT_OK || slot->desc.kind == RDT_SLOT_BOUNDED)
        return status;
    return slot_fetch_pull(slot, &header, deadline_ns, view, err);
}
