/* SPDX-License-Identifier: Apache-2.0
 * The offer of one side of an shm lane: the bytes that are sent with the four descriptors. */
#ifndef RDTI_SHM_OFFER_H
#define RDTI_SHM_OFFER_H

#include <stdint.h>

#include "rdmatensor.h"
#include "transport/shm/limits.h"
#include "transport/transport.h"

/* Places in rdti_offer.fds. */
enum shm_offer_fd {
    SHM_FD_RING = 0,
    SHM_FD_DOORBELL = 1,
    SHM_FD_EVENT = 2,
    SHM_FD_GENERATIONS = 3,
    SHM_FD_COUNT = 4
};

struct shm_offer {
    uint32_t pid;                   /* of the sender, in its own pid namespace */
    uint64_t nonce_addr;            /* in its private memory */
    uint8_t nonce[SHM_NONCE_BYTES]; /* the bytes there */
};

/* u16 version, u16 entries, u32 ring bytes, u32 pid, u64 nonce_addr, nonce; little endian. */
#define SHM_OFFER_BYTES (2 + 2 + 4 + 4 + 8 + SHM_NONCE_BYTES)

void rdti_shm_offer_encode(const struct shm_offer *in, struct rdti_offer *out);
/* RDT_EPROTO: length, number of descriptors, a ring of another shape. RDT_EVERSION. */
rdt_status rdti_shm_offer_decode(const struct rdti_offer *offer, int32_t peer_rank,
                                 struct shm_offer *out, struct rdt_error *err);

#endif
