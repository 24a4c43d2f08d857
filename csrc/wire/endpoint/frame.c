/* SPDX-License-Identifier: Apache-2.0
 * Encodes and decodes frames of the side channel. */
#include "wire/endpoint/frame.h"

#include <assert.h>

#include "base/error.h"
#include "wire/fields.h"
#include "wire/notify.h"
#include "wire/endpoint/slot_header.h"
#include "wire/endpoint/verbs.h"

static const char bad_text[] = "text is not plain";
static const char bad_region[] = "bad region descriptor";

/* The bounds of each type's payload, so that a receiver refuses an impossible length before it
 * waits for the payload. */
static const struct {
    uint16_t least_bytes;
    uint16_t most_bytes;
} frame_bytes[] = {
    [RDTI_FRAME_PATH] = {RDTI_PATH_FIXED_BYTES, RDTI_PATH_FIXED_BYTES + RDTI_OFFER_MAX_BYTES},
    [RDTI_FRAME_PATH_FAILED] = {RDTI_TEXT_BYTES, RDTI_TEXT_BYTES},
    [RDTI_FRAME_READY] = {0, 0},
    [RDTI_FRAME_HEARTBEAT] = {0, 0},
    [RDTI_FRAME_DEATH] = {RDTI_DEATH_BYTES, RDTI_DEATH_BYTES},
    [RDTI_FRAME_GOODBYE] = {0, 0},
    [RDTI_FRAME_REVOKE] = {RDTI_REVOKE_BYTES, RDTI_REVOKE_BYTES},
    [RDTI_FRAME_REVOKED] = {RDTI_REVOKE_BYTES, RDTI_REVOKE_BYTES},
    [RDTI_FRAME_SEGMENT_GET] = {RDTI_SEGMENT_BYTES, RDTI_SEGMENT_BYTES},
    [RDTI_FRAME_SEGMENT] = {RDTI_SEGMENT_BYTES, RDTI_SEGMENT_BYTES},
    [RDTI_FRAME_SLOT] = {RDTI_SLOT_ANNOUNCE_BYTES, RDTI_SLOT_ANNOUNCE_BYTES},
    [RDTI_FRAME_SLOT_GONE] = {RDTI_SLOT_GONE_BYTES, RDTI_SLOT_GONE_BYTES},
    [RDTI_FRAME_SLOT_REFUSED] = {RDTI_SLOT_GONE_BYTES, RDTI_SLOT_GONE_BYTES},
    [RDTI_FRAME_ABORT] = {RDTI_ABORT_BYTES, RDTI_ABORT_BYTES},
    [RDTI_FRAME_LANE_WORDS] = {RDTI_VERBS_WORDS_FIXED_BYTES, RDTI_LANE_WORDS_MAX_BYTES},
    [RDTI_FRAME_MOVE] = {RDTI_MOVE_FIXED_BYTES, RDTI_MOVE_FIXED_BYTES + RDTI_OFFER_MAX_BYTES},
};

#define FRAME_TYPES (sizeof(frame_bytes) / sizeof(frame_bytes[0]))

_Static_assert(FRAME_TYPES == RDTI_FRAME_LAST + 1, "RDTI_FRAME_LAST is the last frame");
_Static_assert(RDTI_PATH_FIXED_BYTES + RDTI_OFFER_MAX_BYTES <= RDTI_FRAME_PAYLOAD_MAX,
               "the longest payload fits");

void
rdti_frame_head_encode(uint16_t type, uint32_t payload_bytes, uint8_t out[RDTI_FRAME_HEAD_BYTES])
{
    rdti_put_u16(out, type);
    rdti_put_u16(out + 2, 0);
    rdti_put_u32(out + 4, payload_bytes);
}

rdt_status
rdti_frame_head_decode(const uint8_t head[RDTI_FRAME_HEAD_BYTES], uint16_t *type_out,
                       uint32_t *payload_bytes_out, struct rdt_error *err)
{
    const uint16_t type = rdti_get_u16(head);
    const uint32_t payload_bytes = rdti_get_u32(head + 4);

    if (type == 0 || type >= FRAME_TYPES)
        return rdti_error_set(err, RDT_EPROTO, 0, "frame: unknown type %u", type);
    if (rdti_get_u16(head + 2) != 0)
        return rdti_error_set(err, RDT_EPROTO, 0, "frame of type %u: filler 0x%x", type,
                              rdti_get_u16(head + 2));
    if (payload_bytes < frame_bytes[type].least_bytes ||
        payload_bytes > frame_bytes[type].most_bytes)
        return rdti_error_set(err, RDT_EPROTO, 0, "frame of type %u: %u bytes, want %u to %u", type,
                              payload_bytes, frame_bytes[type].least_bytes,
                              frame_bytes[type].most_bytes);
    *type_out = type;
    *payload_bytes_out = payload_bytes;
    return RDT_OK;
}

static struct rdti_writer
frame_begin_payload(uint8_t *out)
{
    return (struct rdti_writer){.p = out, .left = RDTI_FRAME_PAYLOAD_MAX, .is_ok = true};
}

static size_t
frame_end_payload(const struct rdti_writer *w)
{
    assert(w->is_ok); /* the static assertion above covers the longest payload */
    return RDTI_FRAME_PAYLOAD_MAX - w->left;
}

size_t
rdti_path_encode(const struct rdti_path *in, uint8_t *out)
{
    struct rdti_writer w = frame_begin_payload(out);

    assert(in->offer_bytes <= RDTI_OFFER_MAX_BYTES);
    rdti_write_u32(&w, in->transport);
    (void)rdti_write_bytes(&w, in->session_id, sizeof(in->session_id));
    (void)rdti_write_bytes(&w, in->nonce, sizeof(in->nonce));
    rdti_write_region(&w, true, &in->ring);
    rdti_write_text(&w, in->reason, sizeof(in->reason));
    rdti_write_u32(&w, in->offer_bytes);
    (void)rdti_write_bytes(&w, in->offer, in->offer_bytes);
    return frame_end_payload(&w);
}

rdt_status
rdti_path_decode(const uint8_t *buf, size_t len_bytes, struct rdti_path *out, struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_path path = {0};

    rdt_status status = rdti_fields_begin(&f, "PATH", buf, len_bytes, len_bytes, err);
    if (status != RDT_OK)
        return status;
    path.transport = rdti_read_u32(&f.r);
    rdti_fields_require(&f,
                        path.transport > RDT_TRANSPORT_AUTO &&
                            path.transport <= RDT_TRANSPORT_VERBS,
                        "unknown transport");
    rdti_fields_copy(&f, path.session_id, sizeof(path.session_id));
    rdti_fields_copy(&f, path.nonce, sizeof(path.nonce));
    rdti_fields_region(&f, true, &path.ring, bad_region);
    rdti_fields_text(&f, path.reason, sizeof(path.reason), bad_text);
    path.offer_bytes = rdti_read_u32(&f.r);
    rdti_fields_require(&f, path.offer_bytes <= RDTI_OFFER_MAX_BYTES, "the offer is too long");
    if (f.fault == NULL)
        rdti_fields_copy(&f, path.offer, path.offer_bytes);
    status = rdti_fields_end(&f, "PATH", err);
    if (status == RDT_OK)
        *out = path;
    return status;
}

size_t
rdti_text_encode(const struct rdti_text *in, uint8_t *out)
{
    struct rdti_writer w = frame_begin_payload(out);

    rdti_write_text(&w, in->text, sizeof(in->text));
    return frame_end_payload(&w);
}

rdt_status
rdti_text_decode(const uint8_t *buf, size_t len_bytes, struct rdti_text *out, struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_text text = {0};

    rdt_status status = rdti_fields_begin(&f, "PATH_FAILED", buf, len_bytes, RDTI_TEXT_BYTES, err);
    if (status != RDT_OK)
        return status;
    rdti_fields_text(&f, text.text, sizeof(text.text), bad_text);
    status = rdti_fields_end(&f, "PATH_FAILED", err);
    if (status == RDT_OK)
        *out = text;
    return status;
}

size_t
rdti_death_encode(const struct rdti_death *in, uint8_t *out)
{
    struct rdti_writer w = frame_begin_payload(out);

    (void)rdti_write_bytes(&w, in->uuid, sizeof(in->uuid));
    rdti_write_u32(&w, (uint32_t)in->rank);
    rdti_write_u32(&w, in->is_left);
    rdti_write_text(&w, in->reason, sizeof(in->reason));
    return frame_end_payload(&w);
}

rdt_status
rdti_death_decode(const uint8_t *buf, size_t len_bytes, struct rdti_death *out,
                  struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_death death = {0};

    rdt_status status = rdti_fields_begin(&f, "DEATH", buf, len_bytes, RDTI_DEATH_BYTES, err);
    if (status != RDT_OK)
        return status;
    rdti_fields_copy(&f, death.uuid, sizeof(death.uuid));
    death.rank = (int32_t)rdti_read_u32(&f.r);
    rdti_fields_require(&f, death.rank >= RDT_RANK_UNKNOWN, "negative rank");
    death.is_left = rdti_read_u32(&f.r);
    rdti_fields_require(&f, death.is_left <= 1, "is_left is not 0 or 1");
    rdti_fields_text(&f, death.reason, sizeof(death.reason), bad_text);
    status = rdti_fields_end(&f, "DEATH", err);
    if (status == RDT_OK)
        *out = death;
    return status;
}

size_t
rdti_revoke_encode(const struct rdti_revoke *in, uint8_t *out)
{
    struct rdti_writer w = frame_begin_payload(out);

    rdti_write_u32(&w, in->index);
    rdti_write_u32(&w, in->generation);
    return frame_end_payload(&w);
}

rdt_status
rdti_revoke_decode(const uint8_t *buf, size_t len_bytes, struct rdti_revoke *out,
                   struct rdt_error *err)
{
    struct rdti_fields f;

    rdt_status status = rdti_fields_begin(&f, "REVOKE", buf, len_bytes, RDTI_REVOKE_BYTES, err);
    if (status != RDT_OK)
        return status;
    out->index = rdti_read_u32(&f.r);
    out->generation = rdti_read_u32(&f.r);
    return RDT_OK;
}

size_t
rdti_segment_encode(const struct rdti_segment *in, uint8_t *out)
{
    struct rdti_writer w = frame_begin_payload(out);

    rdti_write_u32(&w, in->segment);
    rdti_write_u64(&w, in->len_bytes);
    return frame_end_payload(&w);
}

rdt_status
rdti_segment_decode(const uint8_t *buf, size_t len_bytes, struct rdti_segment *out,
                    struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_segment segment = {0};

    rdt_status status = rdti_fields_begin(&f, "SEGMENT", buf, len_bytes, RDTI_SEGMENT_BYTES, err);
    if (status != RDT_OK)
        return status;
    segment.segment = rdti_read_u32(&f.r);
    rdti_fields_require(&f, segment.segment != RDT_SEGMENT_NONE, "no segment");
    segment.len_bytes = rdti_read_u64(&f.r);
    rdti_fields_require(&f, segment.len_bytes <= INT64_MAX, "a length that no file has");
    status = rdti_fields_end(&f, "SEGMENT", err);
    if (status == RDT_OK)
        *out = segment;
    return status;
}

size_t
rdti_slot_announce_encode(const struct rdti_slot_announce *in, uint8_t *out)
{
    struct rdti_writer w = frame_begin_payload(out);
    const uint32_t dims_stated = in->desc.kind == RDT_SLOT_DYNAMIC ? 0 : in->desc.ndim;

    rdti_write_u32(&w, in->slot_id);
    rdti_write_u32(&w, in->buffers);
    rdti_write_text(&w, in->name, sizeof(in->name));
    rdti_write_u32(&w, in->desc.kind);
    rdti_write_u32(&w, in->desc.dtype);
    rdti_write_u32(&w, in->desc.ndim);
    rdti_write_u32(&w, 0);
    for (uint32_t i = 0; i < RDT_MAX_NDIM; i++)
        rdti_write_u64(&w, i < dims_stated ? in->desc.dims[i] : 0);
    rdti_write_u64(&w, in->stride_bytes);
    rdti_write_region(&w, true, &in->region);
    return frame_end_payload(&w);
}

static void
frame_read_tensor_desc(struct rdti_fields *f, struct rdt_tensor_desc *out)
{
    uint64_t tensor_bytes;

    out->struct_size = sizeof(*out);
    out->kind = rdti_read_u32(&f->r);
    rdti_fields_require(f, out->kind >= RDT_SLOT_STATIC && out->kind <= RDT_SLOT_DYNAMIC,
                        "unknown kind of slot");
    out->dtype = rdti_read_u32(&f->r);
    out->ndim = rdti_read_u32(&f->r);
    rdti_fields_zeros(f, 4, "the filler is not zero");
    const uint32_t dims_stated = out->kind == RDT_SLOT_DYNAMIC ? 0 : out->ndim;
    for (uint32_t i = 0; i < RDT_MAX_NDIM; i++) {
        out->dims[i] = rdti_read_u64(&f->r);
        rdti_fields_require(f, i < dims_stated || out->dims[i] == 0, "dims beyond ndim");
    }
    rdti_fields_require(f,
                        rdti_tensor_bytes(out->dtype, out->ndim, out->dims, &tensor_bytes, NULL) ==
                            RDT_OK,
                        "unknown dtype, too many dims, or a product over 63 bits");
}

rdt_status
rdti_slot_announce_decode(const uint8_t *buf, size_t len_bytes, struct rdti_slot_announce *out,
                          struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_slot_announce slot = {0};

    rdt_status status =
        rdti_fields_begin(&f, "SLOT", buf, len_bytes, RDTI_SLOT_ANNOUNCE_BYTES, err);
    if (status != RDT_OK)
        return status;
    slot.slot_id = rdti_read_u32(&f.r);
    rdti_fields_require(&f, slot.slot_id <= RDTI_SLOT_ID_MAX, "slot id out of range");
    slot.buffers = rdti_read_u32(&f.r);
    rdti_fields_require(&f, slot.buffers != 0, "a slot without buffers");
    rdti_fields_text(&f, slot.name, sizeof(slot.name), "the name is not plain text");
    frame_read_tensor_desc(&f, &slot.desc);
    slot.stride_bytes = rdti_read_u64(&f.r);
    rdti_fields_region(&f, true, &slot.region, bad_region);
    status = rdti_fields_end(&f, "SLOT", err);
    if (status == RDT_OK)
        *out = slot;
    return status;
}

size_t
rdti_slot_gone_encode(const struct rdti_slot_gone *in, uint8_t *out)
{
    struct rdti_writer w = frame_begin_payload(out);

    rdti_write_u32(&w, in->slot_id);
    rdti_write_u32(&w, in->released);
    rdti_write_text(&w, in->text, sizeof(in->text));
    return frame_end_payload(&w);
}

rdt_status
rdti_slot_gone_decode(const uint8_t *buf, size_t len_bytes, struct rdti_slot_gone *out,
                      struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_slot_gone gone = {0};

    rdt_status status =
        rdti_fields_begin(&f, "SLOT_GONE", buf, len_bytes, RDTI_SLOT_GONE_BYTES, err);
    if (status != RDT_OK)
        return status;
    gone.slot_id = rdti_read_u32(&f.r);
    rdti_fields_require(&f, gone.slot_id <= RDTI_SLOT_ID_MAX, "slot id out of range");
    gone.released = rdti_read_u32(&f.r);
    rdti_fields_text(&f, gone.text, sizeof(gone.text), bad_text);
    status = rdti_fields_end(&f, "SLOT_GONE", err);
    if (status == RDT_OK)
        *out = gone;
    return status;
}

size_t
rdti_abort_encode(const struct rdti_abort *in, uint8_t *out)
{
    struct rdti_writer w = frame_begin_payload(out);

    rdti_write_u64(&w, in->group_id);
    rdti_write_u32(&w, (uint32_t)in->rank);
    rdti_write_text(&w, in->reason, sizeof(in->reason));
    return frame_end_payload(&w);
}

rdt_status
rdti_abort_decode(const uint8_t *buf, size_t len_bytes, struct rdti_abort *out,
                  struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_abort abort_frame = {0};

    rdt_status status = rdti_fields_begin(&f, "ABORT", buf, len_bytes, RDTI_ABORT_BYTES, err);
    if (status != RDT_OK)
        return status;
    abort_frame.group_id = rdti_read_u64(&f.r);
    abort_frame.rank = (int32_t)rdti_read_u32(&f.r);
    rdti_fields_require(&f, abort_frame.rank >= RDT_RANK_UNKNOWN, "negative rank");
    rdti_fields_text(&f, abort_frame.reason, sizeof(abort_frame.reason), bad_text);
    status = rdti_fields_end(&f, "ABORT", err);
    if (status == RDT_OK)
        *out = abort_frame;
    return status;
}

size_t
rdti_move_encode(const struct rdti_move *in, uint8_t *out)
{
    struct rdti_writer w = frame_begin_payload(out);

    assert(in->offer_bytes <= RDTI_OFFER_MAX_BYTES);
    rdti_write_u32(&w, in->transport);
    rdti_write_u64(&w, in->delivered);
    rdti_write_text(&w, in->reason, sizeof(in->reason));
    rdti_write_u32(&w, in->offer_bytes);
    (void)rdti_write_bytes(&w, in->offer, in->offer_bytes);
    return frame_end_payload(&w);
}

rdt_status
rdti_move_decode(const uint8_t *buf, size_t len_bytes, struct rdti_move *out, struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_move move = {0};

    rdt_status status = rdti_fields_begin(&f, "MOVE", buf, len_bytes, len_bytes, err);
    if (status != RDT_OK)
        return status;
    move.transport = rdti_read_u32(&f.r);
    rdti_fields_require(&f, move.transport == RDT_TRANSPORT_TCP, "nothing moves to this transport");
    move.delivered = rdti_read_u64(&f.r);
    rdti_fields_text(&f, move.reason, sizeof(move.reason), bad_text);
    move.offer_bytes = rdti_read_u32(&f.r);
    rdti_fields_require(&f, move.offer_bytes <= RDTI_OFFER_MAX_BYTES, "the offer is too long");
    if (f.fault == NULL)
        rdti_fields_copy(&f, move.offer, move.offer_bytes);
    status = rdti_fields_end(&f, "MOVE", err);
    if (status == RDT_OK)
        *out = move;
    return status;
}
