/* SPDX-License-Identifier: Apache-2.0
 * The mailbox's body, shared by mailbox*.c only. All of it is under the engine's lock.
 *
 * Rings are counted in units of RDTI_MESSAGE_ALIGN bytes. A message is announced by exactly one
 * notification; a PAD, by none. Message numbers belong to the sender of the message; `tag` of
 * FIN and NACK says whose number it is.
 */
#ifndef RDTI_MESSAGE_MAILBOX_IMPL_H
#define RDTI_MESSAGE_MAILBOX_IMPL_H

#include <sys/types.h>

#include "group/group_impl.h"
#include "message/mailbox.h"

/* `tag` of FIN and NACK: the id is of a message that its receiver, or that its sender, once
 * sent. */
#define RDTI_ID_IS_YOURS UINT64_C(0)
#define RDTI_ID_IS_MINE UINT64_C(1)

#define RDTI_RING_SMALL_UNITS (RDTI_RING_SMALL_BYTES / RDTI_MESSAGE_ALIGN)
#define RDTI_RING_LARGE_UNITS (RDTI_RING_LARGE_BYTES / RDTI_MESSAGE_ALIGN)
#define RDTI_RING_RESERVE_UNITS (RDTI_RING_RESERVE_BYTES / RDTI_MESSAGE_ALIGN)

/* RTS that wait for their receives, of one peer: 200 MiB of ours at most. More is a flood. */
#define RDTI_OFFERS_MAX (UINT32_C(1) << 19)

/* Answers to SUMS_GET and STAND that wait for room in the peer's ring: 80 MiB of ours at most. Who
 * asks takes them as they come. More is a flood. */
#define RDTI_ANSWERS_MAX (UINT32_C(1) << 16)

enum rdti_reach { RDTI_REACH_UNKNOWN, RDTI_REACH_YES, RDTI_REACH_NO };

/* A number of ours: generation << 32 | index, so that a late answer meets no later message. */
struct rdti_id {
    struct rdti_request *request; /* NULL: free */
    uint32_t generation;
    uint32_t next_free;
};

/* The peer's half of a group that does not exist here yet uses this path. */
struct rdti_interest {
    uint64_t group_id; /* 0: none */
    uint32_t source;
};
#define RDTI_INTERESTS 16

struct rdti_mailbox {
    struct rdti_list link; /* groups->mailboxes */
    rdt_endpoint *ep;
    rdt_context *ctx;
    struct rdti_groups *groups;
    bool is_ready;
    bool has_ended;
    bool is_destroyed; /* the task that runs yet frees it */
    bool is_async;     /* the engine knows that something waits for the peer */

    /* Outbound: the peer's ring. */
    struct rdt_remote_region ring;
    uint32_t tx_units;
    uint32_t tx_pos;
    uint32_t tx_sent;     /* of all time, modulo 2^32, as the next */
    uint32_t tx_consumed; /* as the peer said last */
    uint32_t tx_urged;    /* tx_sent when the peer was woken for a ring that fills */
    uint32_t eager_sent;  /* bytes of ring taken by eager messages */
    uint32_t eager_delivered;
    bool has_asked_growth;
    bool has_next_ring;
    struct rdt_remote_region next_ring;
    struct rdti_list control; /* struct rdti_parcel: wait for space, before all sends */
    uint32_t answer_count;    /* SUMS_READ and STOOD among them */
    struct rdti_list sends;   /* QUEUED */

    /* Inbound: our ring. */
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
    struct rdti_list asked;    /* reads that wait for sums (sums.h) */
    uint64_t next_asked;       /* number of the next */
    uint32_t *offered_sums;    /* of the message whose RTS comes next, so far */
    uint64_t offered_id;
    uint64_t offered_bytes;
    uint32_t offer_count; /* RTS among them */

    struct rdti_list rx_streams; /* mailbox_stand.h */
    struct rdti_list tx_streams;
    uint32_t rx_stream_count;
    uint32_t tx_stream_count;
    uint32_t keep_count;  /* of rx_streams, those that keep messages */
    uint64_t next_stream; /* numbers of ours so far */

    struct rdti_interest interests[RDTI_INTERESTS]; /* circular */
    uint32_t interest_count;
    uint32_t gone_told; /* aborts sent for groups that are gone */

    uint64_t canary; /* what the peer reads to know us */
    enum rdti_reach process_reach;
    uint32_t peer_pid;
    uint64_t peer_canary_addr;
    uint64_t peer_canary;
};

/* mailbox.c */

/*
 * An eager message at once: true if it went, or if it failed (*status_out; the transfer is then the
 * caller's as before). False: it has to be queued.
 */
bool rdti_mailbox_send_now(struct rdti_mailbox *m, const struct rdti_message *head, const void *src,
                           struct rdt_transfer *t, rdt_status *status_out, struct rdt_error *err);
/* Queue a send, and start it as soon as the path and the ring allow. */
void rdti_mailbox_send(struct rdti_mailbox *m, struct rdti_request *request);
void rdti_mailbox_flush(struct rdti_mailbox *m);
/* What waits for the peer has changed: the engine listens for it while nobody waits here. */
void rdti_mailbox_update_async(struct rdti_mailbox *m);
/* A message that is no user's: goes before all sends. `body` is copied. */
void rdti_mailbox_control(struct rdti_mailbox *m, enum rdti_message_kind kind, uint64_t id,
                          uint64_t tag, uint64_t len_bytes, const void *body, uint32_t body_bytes);
/* The same without a flush. */
void rdti_mailbox_queue(struct rdti_mailbox *m, const struct rdti_message *head, const void *body,
                        uint32_t body_bytes);
/* The same of a head alone, for which the peer's progress thread is not woken: what it tells is
 * wanted only by who looks anyway. */
void rdti_mailbox_queue_quietly(struct rdti_mailbox *m, const struct rdti_message *head);
/* For a larger ring of the peer's; once. */
void rdti_mailbox_ask_growth(struct rdti_mailbox *m);
/* Tell the peer that our group uses this path, so that it keeps it as long as its own half of
 * the group lives: a CREDIT that names the group and our rank in it. */
void rdti_mailbox_show_interest(struct rdti_mailbox *m, uint64_t group_id, uint32_t rank);
/* `count` carries the rank at fault, so that it is named on both sides. */
void rdti_mailbox_nack(struct rdti_mailbox *m, uint64_t id, uint64_t whose,
                       const struct rdt_error *why);
/* A refusal can bring the news of a third process's death before that process's own end or the
 * abort of the group is seen here: it is to be blamed, not whoever meets the refusal. So is, for
 * want of a better, the member whose own half of the group is over. */
void rdti_mailbox_note_cause(const struct rdti_mailbox *m, rdt_group *group,
                             const struct rdt_error *why);
/* So many bytes of ring taken by eager messages reached a receive or were thrown away. */
void rdti_mailbox_delivered(struct rdti_mailbox *m, uint64_t bytes);

/* mailbox_ring.c */

/* Space for a message of so many units; false: none now. *off_out in bytes of the ring. */
bool rdti_ring_reserve(struct rdti_mailbox *m, uint32_t units, uint32_t keep_units,
                       uint64_t *off_out);
/* More than half of the ring is taken, as far as we know. */
static inline bool
rdti_ring_is_filling(const struct rdti_mailbox *m)
{
    return (m->tx_sent - m->tx_consumed) * 2 > m->tx_units;
}
/* Send a message that has its place: the head, then the body of the parcel, which is used up. */
void rdti_ring_place(struct rdti_mailbox *m, struct rdti_parcel *parcel, uint64_t off);
/* The same for an eager message, ending `t`. On an error nothing happened. */
rdt_status rdti_ring_place_eager(struct rdti_mailbox *m, struct rdti_parcel *parcel, uint64_t off,
                                 const void *src, struct rdt_transfer *t, struct rdt_error *err);
/* Largest eager payload with a ring of so many units. */
uint64_t rdti_ring_eager_max(const struct rdti_mailbox *m, uint32_t units);

/* mailbox_offer.c: the sender of a rendezvous */

/* Offer a send, or end it with an error; false: no space in the ring. */
bool rdti_offer_send(struct rdti_mailbox *m, struct rdti_request *send);
rdt_status rdti_offer_on_cts(struct rdti_mailbox *m, const struct rdti_message *head,
                             const uint8_t *body, struct rdt_error *err);
/* Write all of a send into a place of the receiver's. False: the send has ended, nothing went. */
bool rdti_offer_write(struct rdti_mailbox *m, struct rdti_request *send,
                      const struct rdti_cts *place);
/* The receiver answered: it has read all, or it cannot. */
rdt_status rdti_offer_on_fin(struct rdti_mailbox *m, uint64_t id, struct rdt_error *err);
void rdti_offer_on_nack(struct rdti_mailbox *m, uint64_t id, const struct rdt_error *why);
void rdti_offer_cancel(struct rdti_request *send, const struct rdt_error *err);
/* Give the number back, if the request has one. */
void rdti_offer_forget(struct rdti_request *request);

/* mailbox_receive.c: the receiver of a rendezvous */

/* The message has matched and fits. */
void rdti_receive_begin(struct rdti_mailbox *m, struct rdti_request *receive,
                        const struct rdti_message *head, const struct rdti_rts *rts);
/* The sender has written what was granted. */
void rdti_receive_on_fin(struct rdti_mailbox *m, uint64_t id);
/* The sender will not write any more, and takes its offer back. */
void rdti_receive_on_nack(struct rdti_mailbox *m, uint64_t id, const struct rdt_error *why);
void rdti_receive_cancel(struct rdti_request *receive, const struct rdt_error *err);
void rdti_receive_on_ended(struct rdti_mailbox *m, const struct rdt_error *err);

/* mailbox_process.c */
/* How many bytes came, or less than 0. The canary comes by the same call, so that it is of the
 * process that the bytes are of: the peer may have ended, and another process have its number. */
ssize_t rdti_process_read(struct rdti_request *receive, uint64_t len_bytes, bool *is_other_out);
/* The read is over in an error: the process is gone, or the kernel failed. */
void rdti_process_fail(struct rdti_request *receive, ssize_t got, int sys_errno, bool is_other);

#endif
