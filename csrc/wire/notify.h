/* SPDX-License-Identifier: Apache-2.0
 * The 32 bits that are delivered with a write.
 *
 *   landing       20 bits: what was written, per endpoint and direction | 12 bits:
 *     0 sssssssssssssssssss   slot s, at most 0x7fffe, which fits a credit | epoch
 *     1 rrrrrrrrrrrrrrrrrrr   persistent receives r, at most 0x7feff | number of the place
 *   reserved      0xfff | 20 bits:
 *     1 sssssssssssssssssss   credit for one buffer of slot s (19 bits)
 *     01 uuuuuuuuuuuuuuuuuu   user notification u (18 bits)
 *     0000 ................   a message lies in the mailbox ring
 *     0001 ................   probe: the nonce has been written
 *     0010 nnnnnnnnnnnnnnnn   internal to verbs: n receives are reposted
 *     0011 nnnnnnnnnnnnnnnn   internal to verbs: everything that link n lost has been sent again
 * Everything else is a protocol error. An immediate of verbs has the same 32 bits.
 *
 * On verbs, a *flag* may notify the data of a slot instead: a 64-bit little-endian word in the
 * slot's buffer, written with the payload. Its upper half is the epoch's sequence, its lower half
 * the number of messages with an immediate sent before it.
 */
#ifndef RDTI_WIRE_NOTIFY_H
#define RDTI_WIRE_NOTIFY_H

#include <stdint.h>

/* No notification; never on the wire (it would be a credit for slot 0x7ffff, an id never used). */
#define RDTI_NOTIFY_NONE UINT32_C(0xffffffff)
#define RDTI_NOTIFY_MESSAGE UINT32_C(0xfff00000)
#define RDTI_NOTIFY_PROBE UINT32_C(0xfff10000)
#define RDTI_NOTIFY_RESTOCKED UINT32_C(0xfff20000) /* | receives, at most 0xffff */
#define RDTI_NOTIFY_SETTLED UINT32_C(0xfff30000)   /* | number of a link */
#define RDTI_SLOT_ID_MAX UINT32_C(0x7fffe)
#define RDTI_EPOCH_MASK UINT32_C(0xfff)
#define RDTI_STREAM_ID_MAX UINT32_C(0x7feff)

enum rdti_notify_kind {
    RDTI_NOTIFY_IS_SLOT,
    RDTI_NOTIFY_IS_STREAM,
    RDTI_NOTIFY_IS_CREDIT,
    RDTI_NOTIFY_IS_USER,
    RDTI_NOTIFY_IS_MESSAGE,
    RDTI_NOTIFY_IS_PROBE,
    RDTI_NOTIFY_IS_INVALID
};

static inline uint32_t
rdti_notify_slot(uint32_t slot_id, uint32_t epoch)
{
    return slot_id << 12 | (epoch & RDTI_EPOCH_MASK);
}

static inline uint32_t
rdti_notify_stream(uint32_t stream_id, uint32_t place)
{
    return UINT32_C(0x80000000) | stream_id << 12 | place;
}

static inline uint32_t
rdti_notify_credit(uint32_t slot_id)
{
    return UINT32_C(0xfff80000) | slot_id;
}

static inline uint32_t
rdti_notify_user(uint32_t value)
{
    return UINT32_C(0xfff40000) | value;
}

#define RDTI_FLAG_BYTES 8

/* Never 0 or 1, and different for each use of a buffer: its uses are at least two epochs apart. */
static inline uint32_t
rdti_flag_sequence(uint32_t epoch)
{
    return epoch % UINT32_C(0xfffffff0) + 2;
}

static inline uint64_t
rdti_flag_word(uint32_t sequence, uint32_t messages)
{
    return (uint64_t)sequence << 32 | messages;
}

/* Splits a notification: *value is the slot or stream id, the user's value or 0; *epoch is the
 * slot's epoch or the stream's place. */
static inline enum rdti_notify_kind
rdti_notify_parse(uint32_t notification, uint32_t *value, uint32_t *epoch)
{
    *value = 0;
    *epoch = 0;
    if (notification >> 20 != 0xfff) {
        *value = notification >> 12;
        *epoch = notification & RDTI_EPOCH_MASK;
        if (*value <= RDTI_SLOT_ID_MAX)
            return RDTI_NOTIFY_IS_SLOT;
        *value &= UINT32_C(0x7ffff);
        return notification >> 31 != 0 ? RDTI_NOTIFY_IS_STREAM : RDTI_NOTIFY_IS_INVALID;
    }
    if (notification >> 19 & 1) {
        *value = notification & UINT32_C(0x7ffff);
        return *value <= RDTI_SLOT_ID_MAX ? RDTI_NOTIFY_IS_CREDIT : RDTI_NOTIFY_IS_INVALID;
    }
    if (notification >> 18 & 1) {
        *value = notification & UINT32_C(0x3ffff);
        return RDTI_NOTIFY_IS_USER;
    }
    if (notification == RDTI_NOTIFY_MESSAGE)
        return RDTI_NOTIFY_IS_MESSAGE;
    if (notification == RDTI_NOTIFY_PROBE)
        return RDTI_NOTIFY_IS_PROBE;
    return RDTI_NOTIFY_IS_INVALID;
}

#endif
