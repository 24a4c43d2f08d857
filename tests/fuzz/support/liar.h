/* SPDX-License-Identifier: Apache-2.0
 * A peer that knows the secret and keeps to the protocol as far as it is asked to: a bare socket
 * that goes through the stages of set-up with a real context, so that what a fuzzer says next is
 * heard there. Everything runs in the fuzzer's thread, which drives the context while it waits. */
#ifndef RDT_TESTS_FUZZ_LIAR_H
#define RDT_TESTS_FUZZ_LIAR_H

#include "fuzz.h"

#include "process/process.h"
#include "wire/address.h"
#include "wire/endpoint/frame.h"
#include "wire/handshake.h"

enum liar_stage { LIAR_STRANGER, LIAR_AUTHENTICATED, LIAR_JOINED, LIAR_READY, LIAR_STAGES };

struct liar {
    rdt_context *ctx; /* the one that is lied to; not ours */
    struct rdti_address address;
    uint8_t uuid[RDT_UUID_BYTES];
    int fd;      /* the side channel */
    int data_fd; /* the tcp lane's stream, or -1 */
    uint8_t session_key[RDTI_SHA256_BYTES];
    struct rdti_path path; /* the context's */
    uint32_t ring_at;      /* where our next message lies in its ring */
};

/* A connection to ctx, over its Unix socket or over tcp; `number` makes a process of its own of
 * it. */
void liar_begin(struct liar *liar, rdt_context *ctx, bool is_unix, uint64_t number);
/* Up to the stage, each of whose steps must succeed. Over the Unix socket LIAR_AUTHENTICATED is the
 * last. */
void liar_reach(struct liar *liar, enum liar_stage stage);
/* Bytes on a socket, as far as it takes them; nothing where it is closed. */
void liar_say(int fd, const uint8_t *bytes, size_t len_bytes);
/* A frame of the side channel, with fd_count descriptors. */
void liar_frame(struct liar *liar, uint16_t type, const uint8_t *payload, size_t len_bytes,
                const int *fds, uint32_t fd_count);
/* A write into the context's mailbox ring, at its next place, with a notification. */
void liar_write_ring(struct liar *liar, uint32_t notification, const uint8_t *bytes,
                     size_t len_bytes);
/* Let the context hear what was said, and throw away what it answers. */
void liar_pump(struct liar *liar);
/* Closes, and waits until the context holds no connection of this peer: it must not take long. */
void liar_end(struct liar *liar);

#endif
