/* SPDX-License-Identifier: Apache-2.0
 * What two halves of a verbs lane exchange over the authenticated side channel: the offer with
 * every port, GID and QP, then "words": verdicts on links, memory keys, broken links. */
#ifndef RDTI_WIRE_ENDPOINT_VERBS_H
#define RDTI_WIRE_ENDPOINT_VERBS_H

#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"
#include "wire/limits.h"

#define RDTI_VERBS_VERSION 2
#define RDTI_VERBS_PORTS_MAX 4 /* lanes of one endpoint; four fit an offer */
#define RDTI_VERBS_GIDS_MAX 6
#define RDTI_VERBS_QPS_MAX 8 /* per port */
#define RDTI_VERBS_DEVICE_BYTES 24
#define RDTI_VERBS_GID_BYTES 18
#define RDTI_VERBS_QP_BYTES 8
#define RDTI_VERBS_PORT_FIXED_BYTES (RDTI_VERBS_DEVICE_BYTES + 16)
#define RDTI_VERBS_OFFER_FIXED_BYTES 16
#define RDTI_VERBS_WORDS_FIXED_BYTES 36
/* A setting that this side leaves to the peer. */
#define RDTI_VERBS_UNSET UINT8_C(0xff)

enum rdti_verbs_gid_kind {
    RDTI_VERBS_GID_IB = 0,
    RDTI_VERBS_GID_ROCE_V1 = 1,
    RDTI_VERBS_GID_ROCE_V2 = 2
};

struct rdti_verbs_gid {
    uint8_t raw[16];
    uint8_t kind;  /* enum rdti_verbs_gid_kind */
    uint8_t index; /* in the port's table */
};

struct rdti_verbs_qp_offer {
    uint32_t qpn; /* 24 bits */
    uint32_t psn; /* 24 bits */
};

struct rdti_verbs_port_offer {
    char device[RDTI_VERBS_DEVICE_BYTES];
    uint8_t port;
    uint8_t is_infiniband; /* addressed by its LID; else by a GID */
    uint8_t mtu;           /* enum ibv_mtu: 1 to 5 */
    uint8_t gid_count;
    uint16_t lid;
    uint8_t reads_in;  /* RDMA reads that it answers at a time */
    uint8_t reads_out; /* RDMA reads that it may have outstanding */
    uint64_t max_msg_bytes;
    struct rdti_verbs_gid gids[RDTI_VERBS_GIDS_MAX];
    struct rdti_verbs_qp_offer qps[RDTI_VERBS_QPS_MAX];
};

struct rdti_verbs_offer {
    uint8_t port_count;
    uint8_t qp_count; /* of each port */
    uint8_t timeout;  /* these four: RDTI_VERBS_UNSET, or the value for both sides */
    uint8_t retry;
    uint8_t service_level;
    uint8_t traffic_class;
    uint32_t window; /* messages with a notification that this side accepts before it reposts */
    uint16_t pkey;   /* 0, or the partition for both sides */
    struct rdti_verbs_port_offer ports[RDTI_VERBS_PORTS_MAX];
};

enum rdti_verbs_word {
    RDTI_VERBS_LINK_READY = 1,  /* the sender's QPs of the link can receive; round */
    RDTI_VERBS_LINK_PROVED = 2, /* a write of the sender crossed it */
    RDTI_VERBS_LINK_FAILED = 3, /* none did */
    RDTI_VERBS_KEY_GET = 4,
    RDTI_VERBS_KEY = 5,
    RDTI_VERBS_KEY_REFUSED = 6,
    RDTI_VERBS_LINK_DOWN = 7, /* the sender takes no more from it; counts received on each QP */
    RDTI_VERBS_FLAGS = 8      /* the sender polls for flags (wire/notify.h) from now on */
};

/* Access rights of a key. STRICT: for writes, with the bytes of one request placed in order if the
 * device guarantees an order at all. */
enum { RDTI_VERBS_MAY_WRITE = 1, RDTI_VERBS_MAY_READ = 2, RDTI_VERBS_MAY_WRITE_STRICT = 3 };

/* FLAGS: in which order the device places the bytes of one request, lowest address first. */
enum {
    RDTI_VERBS_FLAGS_WHOLE = 1, /* all bytes */
    RDTI_VERBS_FLAGS_128 = 2    /* the bytes within a block of 128 bytes, aligned to 128 */
};

/* Why a key was refused. */
enum rdti_verbs_refusal {
    RDTI_VERBS_REGION_OVER = 1,   /* the region's generation has ended */
    RDTI_VERBS_MEMLOCK = 2,       /* its owner may not lock so much memory */
    RDTI_VERBS_NOT_REGISTERED = 3 /* its owner's device refused to register it */
};

/* One word; its kind determines the fields in use, the others are zero. */
struct rdti_verbs_words {
    uint8_t kind;        /* enum rdti_verbs_word */
    uint8_t link;        /* LINK_* */
    uint8_t round;       /* LINK_* except DOWN: number of the pair of GIDs on trial */
    uint8_t access;      /* KEY*: one of RDTI_VERBS_MAY_*; FLAGS: one of RDTI_VERBS_FLAGS_* */
    uint8_t rkey_count;  /* KEY: one for each of the sender's ports, in the offer's order */
    uint8_t qp_count;    /* LINK_DOWN: of the link */
    uint8_t refusal;     /* KEY_REFUSED: enum rdti_verbs_refusal */
    uint32_t segment;    /* KEY*: of the owner's arena, or RDT_SEGMENT_NONE */
    uint32_t index;      /* KEY*: the region to access */
    uint32_t generation; /* as index */
    uint64_t base;       /* KEY: where the memory begins in the owner's address space; KEY_REFUSED:
                            RLIMIT_MEMLOCK in bytes, or the device's errno */
    uint64_t len_bytes;  /* KEY: of the memory; KEY_REFUSED: bytes to be registered, or 0 */
    uint32_t rkeys[RDTI_VERBS_PORTS_MAX];
    uint64_t received[RDTI_VERBS_QPS_MAX]; /* LINK_DOWN: immediates, by QP */
};

/* Returns the bytes written; RDTI_OFFER_MAX_BYTES and RDTI_LANE_WORDS_MAX_BYTES are enough. */
size_t rdti_verbs_offer_encode(const struct rdti_verbs_offer *in, uint8_t *out);
/* RDT_EVERSION, RDT_EPROTO (length, an impossible count or value). */
rdt_status rdti_verbs_offer_decode(const uint8_t *buf, size_t len_bytes,
                                   struct rdti_verbs_offer *out, struct rdt_error *err);
size_t rdti_verbs_words_encode(const struct rdti_verbs_words *in, uint8_t *out);
rdt_status rdti_verbs_words_decode(const uint8_t *buf, size_t len_bytes,
                                   struct rdti_verbs_words *out, struct rdt_error *err);

#endif
