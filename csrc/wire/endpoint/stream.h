/* SPDX-License-Identifier: Apache-2.0
 * The protocol on the data sockets ("streams") of a tcp lane, after the JOIN of each.
 *
 * A lane has N streams (both sides offer a number, the smaller one applies). Both directions use
 * the same format and are independent. A stream carries *parts*: a head of 32 bytes and the bytes
 * that it announces. All integers are little endian:
 *
 *   0 op u8 | 1 flags u8 | 2 aux u16 | 4 ack u32 | 8 value u32 | 12 index u32 |
 *   16 generation u32 | 20 length u32 | 24 offset u64
 *
 *   op            fields used                                        then follow
 *   READY         -                                                  nothing
 *   WRITE         flags, value, index, generation, length, offset    the bytes
 *   WRITE_LIST    flags, aux (entries), value, index, generation,    the entries, 12 bytes each:
 *                 length (sum of the entries')                       offset u64, length u32 (> 0);
 *                                                                    then the bytes of all
 *   WRITE_INLINE  flags, aux (length, 1 to 8), value, index,         nothing: the bytes lie in the
 *                 generation                                         head's bytes 20 to 27, padded
 *                                                                    with zeros, and the offset is
 *                                                                    a u32 in bytes 28 to 31
 *   ACK           -                                                  nothing
 *   REFUSED       aux (status, negated)                              nothing
 *   READ_REQUEST  value (id), index, generation, length, offset      nothing
 *   READ_DATA     flags, value (id), length                          the bytes
 *   READ_REFUSED  aux (status, negated), value (id)                  nothing
 *
 * A field that an op does not use MUST be zero. Every op uses ack on stream 0; it is zero
 * elsewhere.
 *
 * Messages. One write operation is a *message*: parts on stream 0 of which all but the last have
 * MORE. Messages count from 1 in each direction, modulo 2^32. value is the notification where
 * NOTIFY is set (on the last part only), which MUST NOT be delivered before the bytes of this and
 * of all earlier messages are in place.
 *
 * Stripes. A WRITE or READ_DATA with STRIPED is sent on every stream, in the same order on each;
 * stream i carries the bytes [i * c, (i + 1) * c) of the part, where c is length / N rounded up to
 * a multiple of 4096. Its heads MUST agree in index, generation, length and offset. On streams
 * other than 0 the head of a WRITE has only the flag STRIPED and no value. These streams carry only
 * striped parts. A part without STRIPED is at most RDTI_STREAM_PART_MAX_BYTES long, one with it N
 * times that.
 *
 * Acknowledgements. ack is the number of the last message of the other direction that is in place,
 * with all before it. It MUST NOT decrease, nor exceed the number of messages sent. REFUSED has the
 * same ack, and reports that message `ack` itself was refused with that status (ESTALE, ERANGE,
 * EPROTO ...): its bytes that had not yet been stored were discarded, and its notification was not
 * delivered. ACK_NOW requests an acknowledgement without delay; otherwise a receiver MAY wait, for
 * less than a millisecond, until data of its own carries the number.
 *
 * Reads. At most RDTI_STREAM_READS_MAX requests of one direction are unanswered; ids count from 0
 * modulo 2^32. The answer has the requested length. Answers may come in any order.
 *
 * Set-up. The side that accepted the streams sends READY, as the first head on stream 0, when it
 * has all N. The side that connected MUST NOT send anything but JOINs before that. READY is sent
 * once.
 *
 * A violation of a MUST ends the lane with RDT_EPROTO.
 */
#ifndef RDTI_WIRE_ENDPOINT_STREAM_H
#define RDTI_WIRE_ENDPOINT_STREAM_H

#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"

#define RDTI_STREAM_VERSION 1
#define RDTI_STREAM_HEAD_BYTES 32
#define RDTI_STREAM_ENTRY_BYTES 12
/* A few hundred entries amortize the head and the system call. Both sides keep lists in buffers of
 * a fixed size. */
#define RDTI_STREAM_LIST_MAX 240
/* Bounds the time for which payload on the same stream delays an acknowledgement or a request: 3 ms
 * at 10 Gbit/s. */
#define RDTI_STREAM_PART_MAX_BYTES (UINT32_C(4) << 20)
#define RDTI_STREAM_STREAMS_MAX 16
/* The room in the head. It saves the receiver's second system call, a sixth of the latency. */
#define RDTI_STREAM_INLINE_BYTES 8
#define RDTI_STREAM_READS_MAX 64

enum rdti_stream_op {
    RDTI_STREAM_READY = 1,
    RDTI_STREAM_WRITE = 2,
    RDTI_STREAM_WRITE_LIST = 3,
    RDTI_STREAM_ACK = 4,
    RDTI_STREAM_REFUSED = 5,
    RDTI_STREAM_READ_REQUEST = 6,
    RDTI_STREAM_READ_DATA = 7,
    RDTI_STREAM_READ_REFUSED = 8,
    RDTI_STREAM_WRITE_INLINE = 9
};

enum {
    RDTI_STREAM_NOTIFY = 1,
    RDTI_STREAM_MORE = 2,
    RDTI_STREAM_STRIPED = 4,
    RDTI_STREAM_ACK_NOW = 8
};

struct rdti_stream_head {
    uint8_t op;
    uint8_t flags;
    uint16_t aux;
    uint32_t ack;
    uint32_t value;
    uint32_t index;
    uint32_t generation;
    uint32_t len_bytes;
    uint64_t off_bytes;                        /* WRITE_INLINE: below 2^32 */
    uint8_t inlined[RDTI_STREAM_INLINE_BYTES]; /* WRITE_INLINE: len_bytes of them; else ignored */
};

struct rdti_stream_entry {
    uint64_t off_bytes;
    uint32_t len_bytes; /* not 0 */
};

void rdti_stream_head_encode(const struct rdti_stream_head *in,
                             uint8_t out[RDTI_STREAM_HEAD_BYTES]);
/* Decode a head on stream `stream` of `streams`, with all checks that need only the head. *out is
 * untouched on failure. RDT_EPROTO with the field and its value. */
rdt_status rdti_stream_head_decode(const uint8_t *buf, size_t len_bytes, uint32_t stream,
                                   uint32_t streams, struct rdti_stream_head *out,
                                   struct rdt_error *err);

void rdti_stream_entry_encode(const struct rdti_stream_entry *in,
                              uint8_t out[RDTI_STREAM_ENTRY_BYTES]);
/* Decode `count` entries (at most RDTI_STREAM_LIST_MAX). Their lengths must sum to total_bytes, and
 * none may wrap around. *lo_out and *hi_out bound them. RDT_EPROTO. */
rdt_status rdti_stream_list_decode(const uint8_t *buf, size_t len_bytes, uint32_t count,
                                   uint32_t total_bytes, struct rdti_stream_entry *out,
                                   uint64_t *lo_out, uint64_t *hi_out, struct rdt_error *err);

/* The bytes of a striped part that stream `stream` of `streams` carries. */
void rdti_stream_stripe(uint32_t len_bytes, uint32_t stream, uint32_t streams, uint32_t *off_out,
                        uint32_t *len_out);

/* One side's offer for its half of a lane: u16 version, u16 streams. */
#define RDTI_STREAM_OFFER_BYTES 4
void rdti_stream_offer_encode(uint16_t streams, uint8_t out[RDTI_STREAM_OFFER_BYTES]);
/* RDT_EPROTO (length, number of streams), RDT_EVERSION (naming both). */
rdt_status rdti_stream_offer_decode(const uint8_t *buf, size_t len_bytes, uint16_t *streams_out,
                                    struct rdt_error *err);

#endif
