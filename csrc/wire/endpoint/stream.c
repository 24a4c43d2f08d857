/* SPDX-License-Identifier: Apache-2.0
 * Heads of tcp streams: see stream.h. */
#include "wire/endpoint/stream.h"

#include <stdbool.h>
#include <string.h>

#include "base/error.h"
#include "wire/bytes.h"
#include "wire/notify.h"

#define STRIPE_ALIGN 4096

/* Which fields an op uses; the others must be zero. */
struct shape {
    uint8_t flags;
    bool has_aux;
    bool has_value;
    bool has_region; /* index, generation */
    bool has_len;
    bool has_off;
    const char *name;
};

static const struct shape shapes[] = {
    [RDTI_STREAM_READY] = {.name = "READY"},
    [RDTI_STREAM_WRITE] = {.flags = RDTI_STREAM_NOTIFY | RDTI_STREAM_MORE | RDTI_STREAM_STRIPED |
                                    RDTI_STREAM_ACK_NOW,
                           .has_value = true,
                           .has_region = true,
                           .has_len = true,
                           .has_off = true,
                           .name = "WRITE"},
    [RDTI_STREAM_WRITE_LIST] = {.flags =
                                    RDTI_STREAM_NOTIFY | RDTI_STREAM_MORE | RDTI_STREAM_ACK_NOW,
                                .has_aux = true,
                                .has_value = true,
                                .has_region = true,
                                .has_len = true,
                                .name = "WRITE_LIST"},
    [RDTI_STREAM_ACK] = {.name = "ACK"},
    [RDTI_STREAM_REFUSED] = {.has_aux = true, .name = "REFUSED"},
    [RDTI_STREAM_READ_REQUEST] = {.has_value = true,
                                  .has_region = true,
                                  .has_len = true,
                                  .has_off = true,
                                  .name = "READ_REQUEST"},
    [RDTI_STREAM_READ_DATA] = {.flags = RDTI_STREAM_STRIPED,
                               .has_value = true,
                               .has_len = true,
                               .name = "READ_DATA"},
    [RDTI_STREAM_WRITE_INLINE] = {.flags =
                                      RDTI_STREAM_NOTIFY | RDTI_STREAM_MORE | RDTI_STREAM_ACK_NOW,
                                  .has_aux = true,
                                  .has_value = true,
                                  .has_region = true,
                                  .has_len = true,
                                  .has_off = true,
                                  .name = "WRITE_INLINE"},
    [RDTI_STREAM_READ_REFUSED] = {.has_aux = true, .has_value = true, .name = "READ_REFUSED"},
};

#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

void
rdti_stream_head_encode(const struct rdti_stream_head *in, uint8_t out[RDTI_STREAM_HEAD_BYTES])
{
    out[0] = in->op;
    out[1] = in->flags;
    rdti_put_u16(out + 2, in->aux);
    rdti_put_u32(out + 4, in->ack);
    rdti_put_u32(out + 8, in->value);
    rdti_put_u32(out + 12, in->index);
    rdti_put_u32(out + 16, in->generation);
    if (in->op == RDTI_STREAM_WRITE_INLINE) {
        rdti_put_u16(out + 2, (uint16_t)in->len_bytes);
        memset(out + 20, 0, RDTI_STREAM_INLINE_BYTES);
        memcpy(out + 20, in->inlined, in->len_bytes);
        rdti_put_u32(out + 28, (uint32_t)in->off_bytes);
        return;
    }
    rdti_put_u32(out + 20, in->len_bytes);
    rdti_put_u64(out + 24, in->off_bytes);
}

/* The bytes from 20 on; aux has been read. */
static bool
wire_stream_decode_inline(const uint8_t *buf, struct rdti_stream_head *h)
{
    const uint32_t len = h->aux;

    if (len == 0 || len > RDTI_STREAM_INLINE_BYTES)
        return false;
    for (uint32_t i = len; i < RDTI_STREAM_INLINE_BYTES; i++)
        if (buf[20 + i] != 0)
            return false;
    h->len_bytes = len;
    h->off_bytes = rdti_get_u32(buf + 28);
    memcpy(h->inlined, buf + 20, RDTI_STREAM_INLINE_BYTES);
    return true;
}

static rdt_status
wire_stream_refuse(struct rdt_error *err, const struct shape *shape, const char *what,
                   uint64_t value)
{
    return rdti_error_set(err, RDT_EPROTO, 0, "tcp stream: %s with %s %llu", shape->name, what,
                          (unsigned long long)value);
}

static rdt_status
wire_stream_check_unused(const struct rdti_stream_head *h, const struct shape *shape,
                         struct rdt_error *err)
{
    if ((h->flags & ~shape->flags) != 0)
        return wire_stream_refuse(err, shape, "flags", h->flags);
    if (!shape->has_aux && h->aux != 0)
        return wire_stream_refuse(err, shape, "aux", h->aux);
    if (!shape->has_value && h->value != 0)
        return wire_stream_refuse(err, shape, "value", h->value);
    if (!shape->has_region && (h->index | h->generation) != 0)
        return wire_stream_refuse(err, shape, "region", h->index);
    if (!shape->has_len && h->len_bytes != 0)
        return wire_stream_refuse(err, shape, "length", h->len_bytes);
    if (!shape->has_off && h->off_bytes != 0)
        return wire_stream_refuse(err, shape, "offset", h->off_bytes);
    return RDT_OK;
}

static rdt_status
wire_stream_check_notification(const struct rdti_stream_head *h, const struct shape *shape,
                               struct rdt_error *err)
{
    if ((h->flags & RDTI_STREAM_NOTIFY) == 0)
        return h->value == 0 ? RDT_OK
                             : wire_stream_refuse(err, shape, "unannounced notification", h->value);
    if ((h->flags & RDTI_STREAM_MORE) != 0)
        return wire_stream_refuse(err, shape, "notification before the last part", h->value);
    if (h->value == RDTI_NOTIFY_NONE)
        return wire_stream_refuse(err, shape, "notification", h->value);
    return RDT_OK;
}

static rdt_status
wire_stream_check_refusal(const struct rdti_stream_head *h, const struct shape *shape,
                          struct rdt_error *err)
{
    if (h->aux == 0 || h->aux > -RDT_ECORRUPT)
        return wire_stream_refuse(err, shape, "status", h->aux);
    return RDT_OK;
}

static rdt_status
wire_stream_check_values(const struct rdti_stream_head *h, const struct shape *shape,
                         uint32_t streams, struct rdt_error *err)
{
    const bool is_striped = (h->flags & RDTI_STREAM_STRIPED) != 0;
    const bool may_span = is_striped || h->op == RDTI_STREAM_READ_REQUEST;
    const uint64_t max_bytes = (uint64_t)RDTI_STREAM_PART_MAX_BYTES * (may_span ? streams : 1);

    if (h->len_bytes > max_bytes)
        return wire_stream_refuse(err, shape, "length", h->len_bytes);
    switch (h->op) {
    case RDTI_STREAM_WRITE_LIST:
        if (h->aux == 0 || h->aux > RDTI_STREAM_LIST_MAX)
            return wire_stream_refuse(err, shape, "entries", h->aux);
        return wire_stream_check_notification(h, shape, err);
    case RDTI_STREAM_WRITE:
    case RDTI_STREAM_WRITE_INLINE:
        return wire_stream_check_notification(h, shape, err);
    case RDTI_STREAM_REFUSED:
    case RDTI_STREAM_READ_REFUSED:
        return wire_stream_check_refusal(h, shape, err);
    default:
        return RDT_OK;
    }
}

/* Streams other than 0 carry only stripes. */
static rdt_status
wire_stream_check_stripe(const struct rdti_stream_head *h, const struct shape *shape,
                         struct rdt_error *err)
{
    if (h->flags != RDTI_STREAM_STRIPED)
        return wire_stream_refuse(err, shape, "flags outside stream 0:", h->flags);
    if (h->ack != 0)
        return wire_stream_refuse(err, shape, "ack outside stream 0:", h->ack);
    return RDT_OK;
}

rdt_status
rdti_stream_head_decode(const uint8_t *buf, size_t len_bytes, uint32_t stream, uint32_t streams,
                        struct rdti_stream_head *out, struct rdt_error *err)
{
    if (len_bytes != RDTI_STREAM_HEAD_BYTES)
        return rdti_error_set(err, RDT_EPROTO, 0, "tcp stream: a head of %zu bytes", len_bytes);

    struct rdti_stream_head h = {
        .op = buf[0],
        .flags = buf[1],
        .aux = rdti_get_u16(buf + 2),
        .ack = rdti_get_u32(buf + 4),
        .value = rdti_get_u32(buf + 8),
        .index = rdti_get_u32(buf + 12),
        .generation = rdti_get_u32(buf + 16),
        .len_bytes = rdti_get_u32(buf + 20),
        .off_bytes = rdti_get_u64(buf + 24),
    };
    if (h.op >= SHAPES || shapes[h.op].name == NULL)
        return rdti_error_set(err, RDT_EPROTO, 0, "tcp stream: unknown op %u", h.op);

    const struct shape *shape = &shapes[h.op];
    if (h.op == RDTI_STREAM_WRITE_INLINE && !wire_stream_decode_inline(buf, &h))
        return wire_stream_refuse(err, shape, "padding or length", h.aux);
    rdt_status status = wire_stream_check_unused(&h, shape, err);
    if (status == RDT_OK)
        status = wire_stream_check_values(&h, shape, streams, err);
    if (status == RDT_OK && stream != 0)
        status = wire_stream_check_stripe(&h, shape, err);
    if (status == RDT_OK)
        *out = h;
    return status;
}

void
rdti_stream_entry_encode(const struct rdti_stream_entry *in, uint8_t out[RDTI_STREAM_ENTRY_BYTES])
{
    rdti_put_u64(out, in->off_bytes);
    rdti_put_u32(out + 8, in->len_bytes);
}

rdt_status
rdti_stream_list_decode(const uint8_t *buf, size_t len_bytes, uint32_t count, uint32_t total_bytes,
                        struct rdti_stream_entry *out, uint64_t *lo_out, uint64_t *hi_out,
                        struct rdt_error *err)
{
    uint64_t lo = UINT64_MAX;
    uint64_t hi = 0;
    uint64_t sum = 0;

    if (count == 0 || count > RDTI_STREAM_LIST_MAX ||
        len_bytes != (size_t)count * RDTI_STREAM_ENTRY_BYTES)
        return rdti_error_set(err, RDT_EPROTO, 0, "tcp stream: a list of %u entries in %zu bytes",
                              count, len_bytes);
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t off = rdti_get_u64(buf + (size_t)i * RDTI_STREAM_ENTRY_BYTES);
        const uint32_t len = rdti_get_u32(buf + (size_t)i * RDTI_STREAM_ENTRY_BYTES + 8);

        if (len == 0 || off > UINT64_MAX - len)
            return rdti_error_set(err, RDT_EPROTO, 0,
                                  "tcp stream: entry %u of a list has offset %llu, length %u", i,
                                  (unsigned long long)off, len);
        out[i] = (struct rdti_stream_entry){.off_bytes = off, .len_bytes = len};
        sum += len;
        lo = off < lo ? off : lo;
        hi = off + len > hi ? off + len : hi;
    }
    if (sum != total_bytes)
        return rdti_error_set(err, RDT_EPROTO, 0,
                              "tcp stream: a list's entries are %llu bytes, its head says %u",
                              (unsigned long long)sum, total_bytes);
    *lo_out = lo;
    *hi_out = hi;
    return RDT_OK;
}

void
rdti_stream_stripe(uint32_t len_bytes, uint32_t stream, uint32_t streams, uint32_t *off_out,
                   uint32_t *len_out)
{
    const uint64_t even = ((uint64_t)len_bytes + streams - 1) / streams;
    const uint64_t chunk = (even + STRIPE_ALIGN - 1) / STRIPE_ALIGN * STRIPE_ALIGN;
    const uint64_t begin = chunk * stream < len_bytes ? chunk * stream : len_bytes;
    const uint64_t end = begin + chunk < len_bytes ? begin + chunk : len_bytes;

    *off_out = (uint32_t)begin;
    *len_out = (uint32_t)(end - begin);
}

void
rdti_stream_offer_encode(uint16_t streams, uint8_t out[RDTI_STREAM_OFFER_BYTES])
{
    rdti_put_u16(out, RDTI_STREAM_VERSION);
    rdti_put_u16(out + 2, streams);
}

rdt_status
rdti_stream_offer_decode(const uint8_t *buf, size_t len_bytes, uint16_t *streams_out,
                         struct rdt_error *err)
{
    if (len_bytes < 2)
        return rdti_error_set(err, RDT_EPROTO, 0, "tcp offer of %zu bytes", len_bytes);
    const uint16_t version = rdti_get_u16(buf);
    if (version != RDTI_STREAM_VERSION)
        return rdti_error_set(err, RDT_EVERSION, 0,
                              "tcp stream protocol: the peer has version %u, we have %u", version,
                              RDTI_STREAM_VERSION);
    if (len_bytes != RDTI_STREAM_OFFER_BYTES)
        return rdti_error_set(err, RDT_EPROTO, 0, "tcp offer of %zu bytes, not %d", len_bytes,
                              RDTI_STREAM_OFFER_BYTES);
    const uint16_t streams = rdti_get_u16(buf + 2);
    if (streams == 0 || streams > RDTI_STREAM_STREAMS_MAX)
        return rdti_error_set(err, RDT_EPROTO, 0, "tcp offer of %u streams", streams);
    *streams_out = streams;
    return RDT_OK;
}
