/* SPDX-License-Identifier: Apache-2.0
 * Messages in a mailbox ring: a head of 64 bytes, then the payload, padded to 64. */
#ifndef RDTI_WIRE_ENDPOINT_MESSAGE_H
#define RDTI_WIRE_ENDPOINT_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"
#include "wire/place.h"

#define RDTI_MESSAGE_HEAD_BYTES 64
#define RDTI_MESSAGE_INLINE_BYTES 8 /* the head holds a payload of up to this */
#define RDTI_MESSAGE_ALIGN 64

enum rdti_message_kind {
    RDTI_MESSAGE_EAGER = 1,  /* payload follows (or is inline) */
    RDTI_MESSAGE_RTS = 2,    /* rendezvous: rdti_rts follows; the payload stays at the sender */
    RDTI_MESSAGE_CTS = 3,    /* answer to `id`: rdti_place follows; write there, then send FIN */
    RDTI_MESSAGE_FIN = 4,    /* `id` is done: from the reader (RTS) or from the writer (CTS) */
    RDTI_MESSAGE_CREDIT = 5, /* consumed and delivered only */
    RDTI_MESSAGE_PAD = 6,    /* the rest of the ring up to its end is empty */
    RDTI_MESSAGE_GROW = 7,   /* requests a larger ring */
    RDTI_MESSAGE_RING = 8,   /* answer to GROW: a remote region follows */
    RDTI_MESSAGE_SWITCH = 9, /* the sender's next message lies at the start of the larger ring */
    RDTI_MESSAGE_NACK = 10,  /* `id` cannot be done: len_bytes is the status, rdti_nack follows */
    /* If both sides verify; rdti_sums with `count` sums follow, or rdti_sums_get: */
    RDTI_MESSAGE_SUMS = 11,    /* of the message `id`, whose RTS comes next */
    RDTI_MESSAGE_WRITTEN = 12, /* of bytes that were written before; then the notification is due */
    RDTI_MESSAGE_SUMS_GET = 13,  /* requests sums of these bytes; `id` is the requester's number */
    RDTI_MESSAGE_SUMS_READ = 14, /* answer; of no bytes: their region is gone */
    /* Persistent receives (message/persistent.h); `id` is the receiver's number of the stream: */
    RDTI_MESSAGE_STAND = 15, /* `count` 1: count the messages of `tag`; 2: messages of at least
                                len_bytes under tags that are used once have their tag as number;
                                0: stop */
    RDTI_MESSAGE_STOOD = 16, /* `count` 1: from the next message on; 0: stopped, and the sender
                                writes nothing more */
    RDTI_MESSAGE_PLACE = 17, /* place `count`, of len_bytes; rdti_place follows */
    RDTI_MESSAGE_POSTED = 18 /* the receive of message `count` is posted, in the place len_bytes or
                                none; if tags are the numbers, op to root are the receive's, and
                                `tag` is its number of elements */
};

/* On the wire in the order below without gaps: 4 u8, 2 u16, 5 u64, 2 u32, 8 bytes. */
struct rdti_message {
    uint8_t kind;
    uint8_t op; /* of rdt_message_desc, as all up to root */
    uint8_t dtype;
    uint8_t reduce_op;
    uint16_t source; /* group rank of the sender */
    uint16_t root;
    uint64_t group_id;
    uint64_t tag;
    uint64_t len_bytes; /* of the user's payload; NACK: rdt_status, sign-extended */
    uint64_t count;
    uint64_t id;        /* rendezvous: the sender's number of it, answered unchanged; EAGER: the
                           payload's CRC-32C if both sides verify, else 0 */
    uint32_t consumed;  /* units of 64 bytes taken from the inbound ring of this message's sender */
    uint32_t delivered; /* bytes of eager payload handed to receives; both modulo 2^32 */
    uint8_t inlined[RDTI_MESSAGE_INLINE_BYTES];
};

/* Follows an RTS: the source's address for each method that can reach it; there may be none. */
struct rdti_rts {
    uint8_t has_region;  /* 1: the source lies in `place` */
    uint8_t has_process; /* 1: process_vm_readv of pid at addr may work, if the reader may */
    uint32_t pid;
    uint64_t addr;
    uint64_t canary_addr;
    uint64_t canary; /* at canary_addr: proves that pid, in the reader's namespace, is the sender */
    struct rdti_place place;
};
/* 2 flags, 2 zero bytes, pid; three u64; place */
#define RDTI_RTS_BYTES (8 + 3 * 8 + RDTI_PLACE_BYTES)

#define RDTI_NACK_BYTES 192

/* Follows a NACK: the reason as human-readable text. */
struct rdti_nack {
    char text[RDTI_NACK_BYTES];
};

void rdti_message_encode(const struct rdti_message *in, uint8_t out[RDTI_MESSAGE_HEAD_BYTES]);
/* Reads the first RDTI_MESSAGE_HEAD_BYTES of buf. RDT_EPROTO: fewer bytes, unknown kind. The
 * mailbox, which knows the ring, checks the lengths in it. */
rdt_status rdti_message_decode(const uint8_t *buf, size_t len_bytes, struct rdti_message *out,
                               struct rdt_error *err);
/* RDT_EPROTO: wrong length, bad flags, descriptor or offset, text that is not plain. The output is
 * untouched on failure. */
void rdti_rts_encode(const struct rdti_rts *in, uint8_t out[RDTI_RTS_BYTES]);
rdt_status rdti_rts_decode(const uint8_t *buf, size_t len_bytes, struct rdti_rts *out,
                           struct rdt_error *err);
void rdti_nack_encode(const struct rdti_nack *in, uint8_t out[RDTI_NACK_BYTES]);
rdt_status rdti_nack_decode(const uint8_t *buf, size_t len_bytes, struct rdti_nack *out,
                            struct rdt_error *err);

/* Bytes that a message with this much payload takes in the ring. */
static inline uint64_t
rdti_message_footprint(uint64_t payload_bytes)
{
    if (payload_bytes <= RDTI_MESSAGE_INLINE_BYTES)
        return RDTI_MESSAGE_HEAD_BYTES;
    return RDTI_MESSAGE_HEAD_BYTES +
           (payload_bytes + RDTI_MESSAGE_ALIGN - 1) / RDTI_MESSAGE_ALIGN * RDTI_MESSAGE_ALIGN;
}

/* What the members agree on, in the head of a message. */
void rdti_message_set_desc(struct rdti_message *head, const struct rdt_message_desc *desc);

#endif
