/* SPDX-License-Identifier: Apache-2.0
 * Encodes and decodes the offer's bytes. */
#include "transport/shm/offer.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "wire/bytes.h"

static_assert(SHM_OFFER_BYTES <= RDTI_OFFER_MAX_BYTES, "the offer's bytes");
static_assert(SHM_FD_COUNT <= RDTI_OFFER_MAX_FDS, "the offer's descriptors");

void
rdti_shm_offer_encode(const struct shm_offer *in, struct rdti_offer *out)
{
    struct rdti_writer w = {.p = out->bytes, .left = sizeof(out->bytes), .is_ok = true};

    rdti_write_u16(&w, SHM_VERSION);
    rdti_write_u16(&w, SHM_RING_ENTRIES);
    rdti_write_u32(&w, SHM_RING_BYTES);
    rdti_write_u32(&w, in->pid);
    rdti_write_u64(&w, in->nonce_addr);
    (void)rdti_write_bytes(&w, in->nonce, sizeof(in->nonce));
    assert(w.is_ok);
    out->len_bytes = SHM_OFFER_BYTES;
}

rdt_status
rdti_shm_offer_decode(const struct rdti_offer *offer, int32_t peer_rank, struct shm_offer *out,
                      struct rdt_error *err)
{
    struct shm_offer in;

    if (offer->len_bytes != SHM_OFFER_BYTES || offer->fd_count != SHM_FD_COUNT)
        return rdti_error_set_rank(err, RDT_EPROTO, peer_rank,
                                   "shm offer: %u bytes and %u descriptors, want %d and %d",
                                   offer->len_bytes, offer->fd_count, SHM_OFFER_BYTES,
                                   SHM_FD_COUNT);
    struct rdti_reader r = {.p = offer->bytes, .left = offer->len_bytes, .is_ok = true};
    const uint16_t version = rdti_read_u16(&r);
    const uint16_t entries = rdti_read_u16(&r);
    const uint32_t ring_bytes = rdti_read_u32(&r);
    in.pid = rdti_read_u32(&r);
    in.nonce_addr = rdti_read_u64(&r);
    const uint8_t *nonce = rdti_read_bytes(&r, sizeof(in.nonce));
    if (nonce == NULL)
        return rdti_error_set_rank(err, RDT_EPROTO, peer_rank, "shm offer is cut off");
    memcpy(in.nonce, nonce, sizeof(in.nonce));
    if (version != SHM_VERSION)
        return rdti_error_set_rank(err, RDT_EVERSION, peer_rank,
                                   "shm offer has version %u, this library has %d", version,
                                   SHM_VERSION);
    if (entries != SHM_RING_ENTRIES || ring_bytes != SHM_RING_BYTES)
        return rdti_error_set_rank(err, RDT_EPROTO, peer_rank,
                                   "shm offer: ring of %u entries in %u bytes, want %d in %d",
                                   entries, ring_bytes, SHM_RING_ENTRIES, SHM_RING_BYTES);
    *out = in;
    return RDT_OK;
}
