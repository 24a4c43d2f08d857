/* SPDX-License-Identifier: Apache-2.0
 * Encodes and decodes offers and words of verbs lanes. */
#include "wire/endpoint/verbs.h"

#include "base/error.h"
#include "base/range.h"
#include "wire/fields.h"

#define QPN_MAX UINT32_C(0xffffff)
#define WINDOW_MAX UINT32_C(0xffff) /* receives that one RESTOCKED message can return */

_Static_assert(RDTI_VERBS_WORDS_FIXED_BYTES + 4 * RDTI_VERBS_PORTS_MAX <= RDTI_LANE_WORDS_MAX_BYTES,
               "a key fits");
_Static_assert(RDTI_VERBS_WORDS_FIXED_BYTES + 8 * RDTI_VERBS_QPS_MAX <= RDTI_LANE_WORDS_MAX_BYTES,
               "the last word on a link fits");
_Static_assert(RDTI_VERBS_OFFER_FIXED_BYTES +
                       RDTI_VERBS_PORTS_MAX * (RDTI_VERBS_PORT_FIXED_BYTES +
                                               RDTI_VERBS_GID_BYTES * RDTI_VERBS_GIDS_MAX +
                                               RDTI_VERBS_QP_BYTES * RDTI_VERBS_QPS_MAX) <=
                   RDTI_OFFER_MAX_BYTES,
               "the longest offer fits");

/* ---- Offers --------------------------------------------------------------------------------- */

static void
wire_verbs_write_port(struct rdti_writer *w, const struct rdti_verbs_port_offer *port,
                      uint32_t qp_count)
{
    rdti_write_text(w, port->device, sizeof(port->device));
    rdti_write_u8(w, port->port);
    rdti_write_u8(w, port->is_infiniband);
    rdti_write_u8(w, port->mtu);
    rdti_write_u8(w, port->gid_count);
    rdti_write_u16(w, port->lid);
    rdti_write_u8(w, port->reads_in);
    rdti_write_u8(w, port->reads_out);
    rdti_write_u64(w, port->max_msg_bytes);
    for (uint32_t i = 0; i < port->gid_count; i++) {
        (void)rdti_write_bytes(w, port->gids[i].raw, sizeof(port->gids[i].raw));
        rdti_write_u8(w, port->gids[i].kind);
        rdti_write_u8(w, port->gids[i].index);
    }
    for (uint32_t i = 0; i < qp_count; i++) {
        rdti_write_u32(w, port->qps[i].qpn);
        rdti_write_u32(w, port->qps[i].psn);
    }
}

size_t
rdti_verbs_offer_encode(const struct rdti_verbs_offer *in, uint8_t *out)
{
    struct rdti_writer w = {.p = out, .left = RDTI_OFFER_MAX_BYTES, .is_ok = true};

    rdti_write_u16(&w, RDTI_VERBS_VERSION);
    rdti_write_u8(&w, in->port_count);
    rdti_write_u8(&w, in->qp_count);
    rdti_write_u8(&w, in->timeout);
    rdti_write_u8(&w, in->retry);
    rdti_write_u8(&w, in->service_level);
    rdti_write_u8(&w, in->traffic_class);
    rdti_write_u32(&w, in->window);
    rdti_write_u16(&w, in->pkey);
    rdti_write_zeros(&w, 2);
    for (uint32_t i = 0; i < in->port_count; i++)
        wire_verbs_write_port(&w, &in->ports[i], in->qp_count);
    return (size_t)(w.p - out);
}

static void
wire_verbs_read_gid(struct rdti_fields *f, struct rdti_verbs_gid *gid)
{
    rdti_fields_copy(f, gid->raw, sizeof(gid->raw));
    gid->kind = rdti_read_u8(&f->r);
    gid->index = rdti_read_u8(&f->r);
    rdti_fields_require(f, gid->kind <= RDTI_VERBS_GID_ROCE_V2, "unknown kind of GID");
}

static void
wire_verbs_read_port(struct rdti_fields *f, struct rdti_verbs_port_offer *port, uint32_t qp_count)
{
    rdti_fields_text(f, port->device, sizeof(port->device), "bad device name");
    port->port = rdti_read_u8(&f->r);
    port->is_infiniband = rdti_read_u8(&f->r);
    port->mtu = rdti_read_u8(&f->r);
    port->gid_count = rdti_read_u8(&f->r);
    port->lid = rdti_read_u16(&f->r);
    port->reads_in = rdti_read_u8(&f->r);
    port->reads_out = rdti_read_u8(&f->r);
    port->max_msg_bytes = rdti_read_u64(&f->r);
    rdti_fields_require(f, port->is_infiniband <= 1, "unknown link layer");
    rdti_fields_require(f, port->mtu >= 1 && port->mtu <= 5, "unknown MTU");
    rdti_fields_require(f, port->reads_in >= 1 && port->reads_out >= 1, "no reads in flight");
    rdti_fields_require(f, port->gid_count <= RDTI_VERBS_GIDS_MAX, "too many GIDs");
    rdti_fields_require(f, port->gid_count > 0 || port->is_infiniband == 1, "no GID");
    rdti_fields_require(f, port->max_msg_bytes >= 4096, "messages too small");
    for (uint32_t i = 0; f->fault == NULL && i < port->gid_count; i++)
        wire_verbs_read_gid(f, &port->gids[i]);
    for (uint32_t i = 0; f->fault == NULL && i < qp_count; i++) {
        port->qps[i].qpn = rdti_read_u32(&f->r);
        port->qps[i].psn = rdti_read_u32(&f->r);
        rdti_fields_require(f, port->qps[i].qpn <= QPN_MAX && port->qps[i].psn <= QPN_MAX,
                            "a QPN or PSN of more than 24 bits");
    }
}

static void
wire_verbs_check_head(struct rdti_fields *f, const struct rdti_verbs_offer *offer)
{
    rdti_fields_require(f, offer->port_count >= 1 && offer->port_count <= RDTI_VERBS_PORTS_MAX,
                        "no ports, or too many");
    rdti_fields_require(f, offer->qp_count >= 1 && offer->qp_count <= RDTI_VERBS_QPS_MAX,
                        "no QPs, or too many");
    rdti_fields_require(f,
                        (offer->timeout >= 1 && offer->timeout <= 31) ||
                            offer->timeout == RDTI_VERBS_UNSET,
                        "bad timeout");
    rdti_fields_require(f, offer->retry <= 6 || offer->retry == RDTI_VERBS_UNSET, "bad retry");
    rdti_fields_require(f, offer->service_level <= 15 || offer->service_level == RDTI_VERBS_UNSET,
                        "bad service level");
    rdti_fields_require(f, offer->window >= 2 && offer->window <= WINDOW_MAX, "bad window");
}

rdt_status
rdti_verbs_offer_decode(const uint8_t *buf, size_t len_bytes, struct rdti_verbs_offer *out,
                        struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_verbs_offer offer = {0};

    rdt_status status = rdti_fields_begin(&f, "verbs offer", buf, len_bytes, len_bytes, err);
    if (status != RDT_OK)
        return status;
    const uint16_t version = rdti_read_u16(&f.r);
    if (f.r.is_ok && version != RDTI_VERBS_VERSION)
        return rdti_error_set(err, RDT_EVERSION, 0,
                              "verbs lanes: the peer speaks version %u, this process %d", version,
                              RDTI_VERBS_VERSION);
    offer.port_count = rdti_read_u8(&f.r);
    offer.qp_count = rdti_read_u8(&f.r);
    offer.timeout = rdti_read_u8(&f.r);
    offer.retry = rdti_read_u8(&f.r);
    offer.service_level = rdti_read_u8(&f.r);
    offer.traffic_class = rdti_read_u8(&f.r);
    offer.window = rdti_read_u32(&f.r);
    offer.pkey = rdti_read_u16(&f.r);
    rdti_fields_zeros(&f, 2, "filler");
    wire_verbs_check_head(&f, &offer);
    for (uint32_t i = 0; f.fault == NULL && i < offer.port_count; i++)
        wire_verbs_read_port(&f, &offer.ports[i], offer.qp_count);
    status = rdti_fields_end(&f, "verbs offer", err);
    if (status == RDT_OK)
        *out = offer;
    return status;
}

/* ---- Words ---------------------------------------------------------------------------------- */

size_t
rdti_verbs_words_encode(const struct rdti_verbs_words *in, uint8_t *out)
{
    struct rdti_writer w = {.p = out, .left = RDTI_LANE_WORDS_MAX_BYTES, .is_ok = true};

    rdti_write_u8(&w, in->kind);
    rdti_write_u8(&w, in->link);
    rdti_write_u8(&w, in->round);
    rdti_write_u8(&w, in->access);
    rdti_write_u8(&w, in->rkey_count);
    rdti_write_u8(&w, in->qp_count);
    rdti_write_u8(&w, in->refusal);
    rdti_write_zeros(&w, 1);
    rdti_write_u32(&w, in->segment);
    rdti_write_u32(&w, in->index);
    rdti_write_u32(&w, in->generation);
    rdti_write_u64(&w, in->base);
    rdti_write_u64(&w, in->len_bytes);
    for (uint32_t i = 0; i < in->rkey_count; i++)
        rdti_write_u32(&w, in->rkeys[i]);
    for (uint32_t i = 0; i < in->qp_count; i++)
        rdti_write_u64(&w, in->received[i]);
    return (size_t)(w.p - out);
}

static void
wire_verbs_check_link_words(struct rdti_fields *f, const struct rdti_verbs_words *w)
{
    rdti_fields_require(f, w->link < RDTI_VERBS_PORTS_MAX, "no such link");
    rdti_fields_require(f, (w->access | w->segment | w->index | w->generation) == 0,
                        "a region in a verdict");
    rdti_fields_require(f, w->len_bytes == 0, "a length in a verdict");
    rdti_fields_require(f, w->kind != RDTI_VERBS_LINK_DOWN || w->round == 0,
                        "a round in LINK_DOWN");
}

static void
wire_verbs_check_key_words(struct rdti_fields *f, const struct rdti_verbs_words *w)
{
    const bool is_over = w->refusal == RDTI_VERBS_REGION_OVER;

    rdti_fields_require(f, (w->link | w->round) == 0, "a link in a key");
    rdti_fields_require(f,
                        w->access >= RDTI_VERBS_MAY_WRITE &&
                            w->access <= RDTI_VERBS_MAY_WRITE_STRICT,
                        "bad access");
    rdti_fields_require(f, w->index != 0, "a key without a region");
    rdti_fields_require(f, w->kind != RDTI_VERBS_KEY_GET || w->len_bytes == 0,
                        "a length without a key");
    rdti_fields_require(f, !is_over || (w->base | w->len_bytes) == 0, "the limit of what is over");
}

static void
wire_verbs_check_flag_words(struct rdti_fields *f, const struct rdti_verbs_words *w)
{
    rdti_fields_require(f, w->access == RDTI_VERBS_FLAGS_WHOLE || w->access == RDTI_VERBS_FLAGS_128,
                        "an unknown order");
    rdti_fields_require(f, (w->link | w->round) == 0, "a link in a promise");
    rdti_fields_require(f, (w->segment | w->index | w->generation) == 0 && w->len_bytes == 0,
                        "a region in a promise");
}

static void
wire_verbs_check_words(struct rdti_fields *f, const struct rdti_verbs_words *w)
{
    const bool is_key = w->kind == RDTI_VERBS_KEY;
    const bool is_down = w->kind == RDTI_VERBS_LINK_DOWN;
    const bool is_refused = w->kind == RDTI_VERBS_KEY_REFUSED;

    rdti_fields_require(f, w->kind >= RDTI_VERBS_LINK_READY && w->kind <= RDTI_VERBS_FLAGS,
                        "unknown kind");
    if (w->kind <= RDTI_VERBS_LINK_FAILED || is_down)
        wire_verbs_check_link_words(f, w);
    else if (w->kind == RDTI_VERBS_FLAGS)
        wire_verbs_check_flag_words(f, w);
    else
        wire_verbs_check_key_words(f, w);
    rdti_fields_require(f, is_key == (w->rkey_count > 0) && w->rkey_count <= RDTI_VERBS_PORTS_MAX,
                        "bad number of keys");
    rdti_fields_require(f, is_down == (w->qp_count > 0) && w->qp_count <= RDTI_VERBS_QPS_MAX,
                        "bad number of QPs");
    rdti_fields_require(f,
                        is_refused == (w->refusal != 0) && w->refusal <= RDTI_VERBS_NOT_REGISTERED,
                        "bad reason of a refusal");
    rdti_fields_require(f, is_key || is_refused || w->base == 0, "an address without a key");
    rdti_fields_require(f, is_refused || rdti_range_ok(w->base, w->len_bytes, UINT64_MAX),
                        "it leaves 64 bits");
}

rdt_status
rdti_verbs_words_decode(const uint8_t *buf, size_t len_bytes, struct rdti_verbs_words *out,
                        struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_verbs_words words = {0};

    rdt_status status = rdti_fields_begin(&f, "verbs words", buf, len_bytes, len_bytes, err);
    if (status != RDT_OK)
        return status;
    words.kind = rdti_read_u8(&f.r);
    words.link = rdti_read_u8(&f.r);
    words.round = rdti_read_u8(&f.r);
    words.access = rdti_read_u8(&f.r);
    words.rkey_count = rdti_read_u8(&f.r);
    words.qp_count = rdti_read_u8(&f.r);
    words.refusal = rdti_read_u8(&f.r);
    rdti_fields_zeros(&f, 1, "filler");
    words.segment = rdti_read_u32(&f.r);
    words.index = rdti_read_u32(&f.r);
    words.generation = rdti_read_u32(&f.r);
    words.base = rdti_read_u64(&f.r);
    words.len_bytes = rdti_read_u64(&f.r);
    wire_verbs_check_words(&f, &words);
    for (uint32_t i = 0; f.fault == NULL && i < words.rkey_count; i++)
        words.rkeys[i] = rdti_read_u32(&f.r);
    for (uint32_t i = 0; f.fault == NULL && i < words.qp_count; i++)
        words.received[i] = rdti_read_u64(&f.r);
    status = rdti_fields_end(&f, "verbs words", err);
    if (status == RDT_OK)
        *out = words;
    return status;
}
