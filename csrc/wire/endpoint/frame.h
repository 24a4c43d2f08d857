/* SPDX-License-Identifier: Apache-2.0
 * Frames of the side channel: u16 type, u16 zero, u32 payload length, payload. It carries all
 * set-up (addresses, descriptors), revocation, heartbeats and deaths, and no data of a step. */
#ifndef RDTI_WIRE_ENDPOINT_FRAME_H
#define RDTI_WIRE_ENDPOINT_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"
#include "wire/limits.h"

#define RDTI_FRAME_HEAD_BYTES 8
#define RDTI_FRAME_PAYLOAD_MAX 4096
#define RDTI_REASON_BYTES 384

/* Payload bytes of each type; of PATH without its offer. */
#define RDTI_PATH_FIXED_BYTES                                                       \
    (4 + RDTI_SESSION_ID_BYTES + RDTI_PROBE_NONCE_BYTES + RDT_REMOTE_REGION_BYTES + \
     RDTI_REASON_BYTES + 4)
#define RDTI_TEXT_BYTES RDTI_REASON_BYTES
#define RDTI_DEATH_BYTES (RDT_UUID_BYTES + 8 + RDTI_REASON_BYTES)
#define RDTI_REVOKE_BYTES 8
#define RDTI_SEGMENT_BYTES 12
#define RDTI_SLOT_ANNOUNCE_BYTES \
    (8 + RDT_SLOT_NAME_BYTES + 16 + 8 * RDT_MAX_NDIM + 8 + RDT_REMOTE_REGION_BYTES)
#define RDTI_SLOT_GONE_BYTES (8 + RDTI_REASON_BYTES)
#define RDTI_ABORT_BYTES (12 + RDTI_REASON_BYTES)
#define RDTI_MOVE_FIXED_BYTES (4 + 8 + RDTI_REASON_BYTES + 4) /* without its offer */

enum rdti_frame_type {
    RDTI_FRAME_PATH = 1,          /* rdti_path; fds: the offer's */
    RDTI_FRAME_PATH_FAILED = 2,   /* rdti_text: why this path fails; the connector tries the next */
    RDTI_FRAME_READY = 3,         /* empty: the receiver's probe arrived complete */
    RDTI_FRAME_HEARTBEAT = 4,     /* empty */
    RDTI_FRAME_DEATH = 5,         /* rdti_death: some process found that another is dead */
    RDTI_FRAME_GOODBYE = 6,       /* empty: no more ops; the peer acknowledged all that was sent */
    RDTI_FRAME_REVOKE = 7,        /* rdti_revoke: a region was freed */
    RDTI_FRAME_REVOKED = 8,       /* rdti_revoke: the sender has no more access in flight */
    RDTI_FRAME_SEGMENT_GET = 9,   /* rdti_segment (len 0) */
    RDTI_FRAME_SEGMENT = 10,      /* rdti_segment; fds: 1 */
    RDTI_FRAME_SLOT = 11,         /* rdti_slot_announce */
    RDTI_FRAME_SLOT_GONE = 12,    /* rdti_slot_gone */
    RDTI_FRAME_SLOT_REFUSED = 13, /* rdti_slot_gone: the slot's sender has another description */
    RDTI_FRAME_ABORT = 14,        /* rdti_abort: a group ends */
    RDTI_FRAME_LANE_WORDS = 15,   /* between two halves of a lane: the transport's own codec */
    RDTI_FRAME_MOVE = 16,         /* rdti_move: the lane is lost, another one replaces it */
    RDTI_FRAME_LAST = RDTI_FRAME_MOVE
};

/* One side's half of a lane, with the descriptor of its mailbox ring and its probe's nonce. */
struct rdti_path {
    uint32_t transport; /* RDT_TRANSPORT_* */
    uint8_t session_id[RDTI_SESSION_ID_BYTES];
    /* this side will write these bytes at the start of the peer's ring */
    uint8_t nonce[RDTI_PROBE_NONCE_BYTES];
    struct rdt_remote_region ring;  /* this side's inbound mailbox ring */
    char reason[RDTI_REASON_BYTES]; /* why no better path was chosen, for describe() */
    uint32_t offer_bytes;
    uint8_t offer[RDTI_OFFER_MAX_BYTES];
};

struct rdti_text {
    char text[RDTI_REASON_BYTES];
};

struct rdti_death {
    uint8_t uuid[RDT_UUID_BYTES];
    int32_t rank;     /* global rank as the first witness knew it */
    uint32_t is_left; /* 1: the process left on its own */
    char reason[RDTI_REASON_BYTES];
};

struct rdti_revoke {
    uint32_t index;
    uint32_t generation;
};

struct rdti_segment {
    uint32_t segment;
    uint64_t len_bytes;
};

struct rdti_slot_announce {
    uint32_t slot_id; /* assigned by the receiver */
    uint32_t buffers; /* 2 */
    char name[RDT_SLOT_NAME_BYTES];
    struct rdt_tensor_desc desc;
    uint64_t stride_bytes; /* from one buffer to the next in the region */
    struct rdt_remote_region region;
};

struct rdti_slot_gone {
    uint32_t slot_id;
    uint32_t released; /* tensors, modulo 2^32: this frame overtakes credits; 0 in a refusal */
    char text[RDTI_REASON_BYTES];
};

struct rdti_abort {
    uint64_t group_id;
    int32_t rank; /* global rank that started it */
    char reason[RDTI_REASON_BYTES];
};

/* The path of a lane is permanently lost. Reports the notifications that arrived over it, and this
 * side's half of its replacement. The sender sends nothing more over the old path and ignores all
 * that arrives there. */
struct rdti_move {
    uint32_t transport; /* RDT_TRANSPORT_TCP */
    uint64_t delivered; /* notifications of the lost lane */
    char reason[RDTI_REASON_BYTES];
    uint32_t offer_bytes;
    uint8_t offer[RDTI_OFFER_MAX_BYTES];
};

/* The head of a frame. RDT_EPROTO: an unknown type, a length that its payload cannot have, a
 * non-zero filler. */
void rdti_frame_head_encode(uint16_t type, uint32_t payload_bytes,
                            uint8_t out[RDTI_FRAME_HEAD_BYTES]);
rdt_status rdti_frame_head_decode(const uint8_t head[RDTI_FRAME_HEAD_BYTES], uint16_t *type_out,
                                  uint32_t *payload_bytes_out, struct rdt_error *err);

/*
 * Payloads. encode returns the bytes written into out (RDTI_FRAME_PAYLOAD_MAX is always enough).
 * decode requires the exact length. It refuses, with RDT_EPROTO and an untouched output, text that
 * is not plain (fields.h), more than RDT_MAX_NDIM dims, an unknown transport, dtype, kind or flag,
 * and a slot id that cannot be notified. The dims of a dynamic slot, and those beyond ndim, are
 * zero on the wire; struct_size is not sent.
 */
size_t rdti_path_encode(const struct rdti_path *in, uint8_t *out);
rdt_status rdti_path_decode(const uint8_t *buf, size_t len_bytes, struct rdti_path *out,
                            struct rdt_error *err);
size_t rdti_text_encode(const struct rdti_text *in, uint8_t *out);
rdt_status rdti_text_decode(const uint8_t *buf, size_t len_bytes, struct rdti_text *out,
                            struct rdt_error *err);
size_t rdti_death_encode(const struct rdti_death *in, uint8_t *out);
rdt_status rdti_death_decode(const uint8_t *buf, size_t len_bytes, struct rdti_death *out,
                             struct rdt_error *err);
size_t rdti_revoke_encode(const struct rdti_revoke *in, uint8_t *out);
rdt_status rdti_revoke_decode(const uint8_t *buf, size_t len_bytes, struct rdti_revoke *out,
                              struct rdt_error *err);
size_t rdti_segment_encode(const struct rdti_segment *in, uint8_t *out);
rdt_status rdti_segment_decode(const uint8_t *buf, size_t len_bytes, struct rdti_segment *out,
                               struct rdt_error *err);
size_t rdti_slot_announce_encode(const struct rdti_slot_announce *in, uint8_t *out);
rdt_status rdti_slot_announce_decode(const uint8_t *buf, size_t len_bytes,
                                     struct rdti_slot_announce *out, struct rdt_error *err);
size_t rdti_slot_gone_encode(const struct rdti_slot_gone *in, uint8_t *out);
rdt_status rdti_slot_gone_decode(const uint8_t *buf, size_t len_bytes, struct rdti_slot_gone *out,
                                 struct rdt_error *err);
size_t rdti_abort_encode(const struct rdti_abort *in, uint8_t *out);
rdt_status rdti_abort_decode(const uint8_t *buf, size_t len_bytes, struct rdti_abort *out,
                             struct rdt_error *err);
size_t rdti_move_encode(const struct rdti_move *in, uint8_t *out);
rdt_status rdti_move_decode(const uint8_t *buf, size_t len_bytes, struct rdti_move *out,
                            struct rdt_error *err);

#endif
