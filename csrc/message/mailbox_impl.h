/* SPDX-License-Identifier: Apache-2.0
 * The mailbox's body, shared by the files of message/ and by those of group/ that match and end
 * messages. All of it is under the engine's lock.
 *
 * Rings are counted in units of RDTI_MESSAGE_ALIGN bytes. A message is announced by exactly one
 * notification; a PAD, by none. Message numbers belong to the sender of the message; `tag` of FIN
 * and NACK says whose number it is.
 */
#ifndef RDTI_MESSAGE_MAILBOX_IMPL_H
#define RDTI_MESSAGE_MAILBOX_IMPL_H

#include <sys/types.h>

#include "base/list.h"
#include "message/mailbox.h"
#include "message/mailboxes.h"

/* `tag` of FIN and NACK: the id is of a message that the receiver, or that the sender, of this FIN
 * or NACK once sent. */
#define RDTI_ID_IS_YOURS UINT64_C(0)
#define RDTI_ID_IS_MINE UINT64_C(1)

#define RDTI_RING_SMALL_UNITS (RDTI_RING_SMALL_BYTES / RDTI_MESSAGE_ALIGN)
#define RDTI_RING_LARGE_UNITS (RDTI_RING_LARGE_BYTES / RDTI_MESSAGE_ALIGN)
#define RDTI_RING_RESERVE_UNITS (RDTI_RING_RESERVE_BYTES / RDTI_MESSAGE_ALIGN)

/* RTS of one peer that wait for receives: 200 MiB of local memory at most. More is a flood. */
#define RDTI_OFFERS_MAX (UINT32_C(1) << 19)

/* Answers to SUMS_GET and STAND that wait for room in the peer's ring: 80 MiB of local memory at
 * most. A peer that asks takes them as they come. More is a flood. */
#define RDTI_ANSWERS_MAX (UINT32_C(1) << 16)

struct rdti_request;

enum rdti_reach { RDTI_REACH_UNKNOWN, RDTI_REACH_YES, RDTI_REACH_NO };

/* A local number: generation << 32 | index, so that a late answer meets no later message. */
struct rdti_id {
    struct rdti_request *request; /* NULL: free */
    uint32_t generation;
    uint32_t next_free;
};

/* A path that the peer's half of a group uses; the group does not exist here yet. */
struct rdti_interest {
    uint64_t group_id; /* 0: none */
    uint32_t source;
};
#define RDTI_INTERESTS 16

struct rdti_mailbox {
    struct rdti_list link; /* mailboxes->all */
    rdt_endpoint *ep;
    rdt_context *ctx;
    struct rdti_mailboxes *mailboxes;
    bool is_ready;
    bool has_ended;
    bool is_destroyed; /* the task that still runs frees it */
    bool is_async;     /* the engine knows that something waits for the peer */

    /* Outbound: the peer's ring. */
    struct rdt_remote_region ring;
    uint32_t tx_units;
    uint32_t tx_pos;
    uint32_t tx_sent;     /* of all time, modulo 2^32, like the next */
    uint32_t tx_consumed; /* as the peer reported last */
    uint32_t tx_urged;    /* tx_sent when the peer was woken for a ring that fills */
    uint32_t eager_sent;  /* bytes of ring taken by eager messages */
    uint32_t eager_delivered;
    bool has_asked_growth;
    bool has_next_ring;
    struct rdt_remote_region next_ring;
    struct rdti_list control; /* struct rdti_parcel: wait for space, before all sends */
    uint32_t answer_count;    /* SUMS_READ and STOOD among them */
    struct rdti_list sends;   /* QUEUED */

    /* Inbound: the local ring. */
    const uint8_t *rx;
    uint32_t rx_units;
    uint32_t rx_pos;
    uint32_t rx_consumed;
    uint32_t rx_reported;
    uint32_t eager_received; /* bytes of ring taken by eager messages from the peer */
    uint32_t delivered;
    uint32_t delivered_reported;
    rdt_region *large; /* the ring that was given when the peer asked */
    bool is_large;     /* the peer has switched to it */

    /* Rendezvous. */
    struct rdti_list offered; /* OFFERED and LANE */
    struct rdti_id *ids;
    uint32_t id_cap;
    uint32_t free_id;         /* 1 + index of the first free entry; 0: none */
    struct rdti_list pulls;   /* PULL: the first is being read */
    struct rdti_list granted; /* GRANTED */
    struct rdti_list staging; /* STAGING */
    rdt_region *bounce;       /* where the peer can write only into the arena */
    bool is_bounce_busy;
    bool has_task;
    struct rdti_list arrivals; /* by mailbox_link */
    struct rdti_list orphans;  /* those of them without a group */
    struct rdti_list asked;    /* reads that wait for sums (checksum.h) */
    uint64_t next_asked;       /* number of the next */
    uint32_t *offered_sums;    /* of the message whose RTS comes next, so far */
    uint64_t offered_id;
    uint64_t offered_bytes;
    uintptr_t compared_from; /* written by the peer, in one piece, since the last notification */
    uint64_t compared_bytes;
    uint32_t offer_count; /* RTS among them */

    struct rdti_list rx_streams; /* persistent.h */
    struct rdti_list tx_streams;
    uint32_t rx_stream_count;
    uint32_t tx_stream_count;
    uint32_t keep_count;  /* of rx_streams, those that keep messages */
    uint64_t next_stream; /* the last local number */

    struct rdti_interest interests[RDTI_INTERESTS]; /* circular */
    uint32_t interest_count;
    uint32_t gone_told; /* aborts sent for groups that are gone */

    uint64_t canary; /* the peer reads it to identify this process */
    enum rdti_reach process_reach;
    uint32_t peer_pid;
    uint64_t peer_canary_addr;
    uint64_t peer_canary;
};

/* mailbox.c */

/*
 * Sends an eager message at once: true if it was sent, or if it failed (*status_out; the transfer
 * is then the caller's as before). False: it has to be queued.
 */
bool rdti_mailbox_send_now(struct rdti_mailbox *m, const struct rdti_message *head, const void *src,
                           struct rdt_transfer *t, rdt_status *status_out, struct rdt_error *err);
/* Queues a send, and starts it as soon as the path and the ring allow. */
void rdti_mailbox_send(struct rdti_mailbox *m, struct rdti_request *request);
void rdti_mailbox_flush(struct rdti_mailbox *m);
/* The messages that wait for the peer have changed: while no thread waits here, the engine listens
 * for the peer. */
void rdti_mailbox_update_async(struct rdti_mailbox *m);
/* A message of the core, not of a user: goes before all sends. `body` is copied. */
void rdti_mailbox_control(struct rdti_mailbox *m, enum rdti_message_kind kind, uint64_t id,
                          uint64_t tag, uint64_t len_bytes, const void *body, uint32_t body_bytes);
/* The same without a flush. */
void rdti_mailbox_queue(struct rdti_mailbox *m, const struct rdti_message *head, const void *body,
                        uint32_t body_bytes);
/* The same for a head alone, without waking the peer's progress thread: only a thread that polls
 * anyway needs its content. */
void rdti_mailbox_queue_quietly(struct rdti_mailbox *m, const struct rdti_message *head);
/* Asks for a larger ring of the peer; once. */
void rdti_mailbox_ask_growth(struct rdti_mailbox *m);
/* Notifies the peer that the local group uses this path, so that the peer keeps it as long as its
 * own half of the group lives: a CREDIT that names the group and the local rank in it. */
void rdti_mailbox_show_interest(struct rdti_mailbox *m, uint64_t group_id, uint32_t rank);
/* `count` carries the rank at fault, so that both sides name it. */
void rdti_mailbox_nack(struct rdti_mailbox *m, uint64_t id, uint64_t whose,
                       const struct rdt_error *why);
/* A refusal can bring the news of a third process's death before that process's own end or the
 * abort of the group is seen here: that process is to be blamed, not the one that meets the
 * refusal. For want of a better cause, so is the member whose own half of the group is over. */
void rdti_mailbox_note_cause(const struct rdti_mailbox *m, struct rdti_scope *scope,
                             const struct rdt_error *why);
/* This many bytes of the ring, taken by eager messages, reached a receive or were thrown away. */
void rdti_mailbox_delivered(struct rdti_mailbox *m, uint64_t bytes);

/* ring.c */

/* Space for a message of this many units; false: none now. *off_out in bytes of the ring. */
bool rdti_ring_reserve(struct rdti_mailbox *m, uint32_t units, uint32_t keep_units,
                       uint64_t *off_out);
/* More than half of the ring is taken, as far as this side knows. */
static inline bool
rdti_ring_is_filling(const struct rdti_mailbox *m)
{
    return (m->tx_sent - m->tx_consumed) * 2 > m->tx_units;
}
/* Sends a message that has its place: the head, then the body of the parcel, which is used up. */
void rdti_ring_place(struct rdti_mailbox *m, struct rdti_parcel *parcel, uint64_t off);
/* The same for an eager message, ending `t`. On an error nothing happened. */
rdt_status rdti_ring_place_eager(struct rdti_mailbox *m, struct rdti_parcel *parcel, uint64_t off,
                                 const void *src, struct rdt_transfer *t, struct rdt_error *err);
/* Largest eager payload with a ring of this many units. */
uint64_t rdti_ring_eager_max(const struct rdti_mailbox *m, uint32_t units);

/* rendezvous_send.c: the sender of a rendezvous */

/* Offers a send, or ends it with an error; false: no space in the ring. */
bool rdti_offer_send(struct rdti_mailbox *m, struct rdti_request *send);
rdt_status rdti_offer_on_cts(struct rdti_mailbox *m, const struct rdti_message *head,
                             const uint8_t *body, struct rdt_error *err);
/* Writes all of a send into a place of the receiver, with the notification. False: the send has
 * ended, unsent. May end the path. */
bool rdti_offer_write(struct rdti_mailbox *m, struct rdti_request *send,
                      const struct rdti_place *place, uint32_t notification);
/* The receiver answered: it has read all, or it cannot. */
rdt_status rdti_offer_on_fin(struct rdti_mailbox *m, uint64_t id, struct rdt_error *err);
void rdti_offer_on_nack(struct rdti_mailbox *m, uint64_t id, const struct rdt_error *why);

/* rendezvous_receive.c: the receiver of a rendezvous */

/* The message has matched and fits. */
void rdti_receive_begin(struct rdti_mailbox *m, struct rdti_request *receive,
                        const struct rdti_message *head, const struct rdti_rts *rts);
/* The sender has written into the granted place. */
void rdti_receive_on_fin(struct rdti_mailbox *m, uint64_t id);
/* The sender will not write any more, and withdraws its offer. */
void rdti_receive_on_nack(struct rdti_mailbox *m, uint64_t id, const struct rdt_error *why);
void rdti_receive_on_ended(struct rdti_mailbox *m, const struct rdt_error *err);

/* process_read.c */
/* Returns how many bytes came, or less than 0. The canary comes by the same call, so that it is of
 * the process that the bytes are of: the peer may have ended, and another process have its
 * number. */
ssize_t rdti_process_read(struct rdti_request *receive, uint64_t len_bytes, bool *is_other_out);
/* The read has failed: the process is gone, or the kernel returned an error. */
void rdti_process_fail(struct rdti_request *receive, ssize_t got, int sys_errno, bool is_other);

#endif
