/* SPDX-License-Identifier: Apache-2.0
 * Requests, which are sends and receives that have not finished, and messages that wait. All of it
 * is under the engine's lock.
 */
#ifndef RDTI_MESSAGE_REQUEST_IMPL_H
#define RDTI_MESSAGE_REQUEST_IMPL_H

#include <stdbool.h>
#include <stdint.h>

#include "message/mailboxes.h"
#include "message/match/scope.h"
#include "progress/transfer.h"
#include "wire/endpoint/message.h"

struct rdti_mailbox;
struct rdti_rx_stream; /* message/persistent_impl.h */

/*
 * A send or a receive that has not finished.
 *
 *   state     of    may others touch the buffers?          leaves by
 *   POSTED    recv  no; written, by the peer, if it was    a message matches -> PULL, STAGING or
 *                   announced with a place                 GRANTED; has landed, cancel -> finished
 *   LOCAL     send  no (to this process, waits for its     a receive matches; cancel -> finished
 *                   receive)
 *   QUEUED    send  no (waits for the path or for space    space -> LANE or OFFERED; cancel ->
 *                   in the ring)                           finished
 *   OFFERED   send  read, by the peer, until it answers    FIN, NACK -> finished; CTS: written,
 *                                                          and once all is granted -> LANE
 *   LANE      send  read, by the lane                      the lane's completion -> finished
 *   PULL      recv  written, by local reads                all read, error -> finished; the
 *                                                          kernel permits it no more -> STAGING or
 *                                                          GRANTED
 *   STAGING   recv  no (waits for the bounce buffer)       its turn -> GRANTED; cancel -> finished
 *   GRANTED   recv  written, by the peer                   FIN, NACK -> DRAINING or finished
 *   DRAINING  recv  perhaps written (quarantine)           drained -> finished
 *
 * Cancel (the group broke or was destroyed) of OFFERED, PULL, GRANTED, and of POSTED if it was
 * announced, asks the peer, or the read under way, to stop. The request finishes when nothing can
 * be touched any more.
 */
enum rdti_request_state {
    RDTI_REQUEST_POSTED,
    RDTI_REQUEST_LOCAL,
    RDTI_REQUEST_QUEUED,
    RDTI_REQUEST_OFFERED,
    RDTI_REQUEST_LANE,
    RDTI_REQUEST_PULL,
    RDTI_REQUEST_STAGING,
    RDTI_REQUEST_GRANTED,
    RDTI_REQUEST_DRAINING
};

struct rdti_arrival;

struct rdti_request {
    struct rdti_list link; /* of the mailbox, by state */
    struct rdti_list scope_link;
    struct rdti_match_posted posted;
    struct rdt_transfer *transfer;
    struct rdti_scope *scope;
    struct rdti_mailbox *mailbox; /* from QUEUED, or from the match on */
    struct rdti_arrival *arrival; /* LOCAL */
    /* Ends it as the table of states says, where that is more than rdti_request_finish(); or
     * NULL. */
    void (*cancel)(struct rdti_request *request, const struct rdt_error *err);
    /* Takes back its number or its announcement; NULL: it has neither. */
    void (*forget)(struct rdti_request *request);
    enum rdti_request_state state;
    bool is_send;
    bool has_desc;
    bool is_cancelled; /* `error` is its end */
    bool owns_region;
    bool is_bounced;
    bool is_process; /* PULL: by process_vm_readv, else by READ */
    bool is_nacked;  /* PULL: its sender has cancelled it */
    uint32_t peer;   /* group rank; RDT_SOURCE_ANY until it matched */
    uint64_t tag;
    void *buf;          /* of a send: only read */
    uint64_t len_bytes; /* of the message; of a receive before the match: its room */
    struct rdt_message_desc desc;
    struct rdti_rx_stream *told; /* POSTED: announced in this stream; NULL: it was not */
    uint64_t place;              /* announced: where the sender may write, or RDTI_PLACE_NONE */
    uint32_t waits_since;        /* QUEUED until its receive is announced: the beat at its start */
    uint64_t id;      /* the sender's number of the rendezvous; is_in_place: of the stream */
    bool has_id;      /* a local number: OFFERED */
    bool is_in_place; /* LANE: written where a persistent receive waits for it */
    uint64_t done_bytes;
    uint64_t checked_bytes; /* of a receive: compared with their sums */
    uint32_t *sums;         /* of the whole message, or NULL; freed with the request */
    uint32_t ops;           /* given to the lane and not completed */
    rdt_status op_status;   /* of the first that failed */
    rdt_region *region;     /* GRANTED */
    struct rdti_rts rts;    /* PULL */
    struct rdt_error error; /* if is_cancelled, or op_status is not RDT_OK; else undefined */
};

/* A message that has not met a receive yet. */
struct rdti_arrival {
    struct rdti_match_arrival match;
    bool is_kept; /* until its sender answers that it writes no more (rdti_stand_keep()) */
    struct rdti_list scope_link; /* scope->arrivals, or mailbox->orphans */
    struct rdti_list mailbox_link;
    struct rdti_scope *scope;     /* NULL: none of that id exists here yet */
    struct rdti_mailbox *mailbox; /* NULL: from this process, or the endpoint has ended */
    struct rdti_request *self;    /* from this process */
    struct rdti_message head;
    struct rdti_parcel *parcel; /* eager payload that is not inlined */
    uint32_t *sums;             /* of what an RTS offers, or NULL */
    struct rdti_rts rts;
};

/* request.c; [driver] all */

/* A request of the scope's list, its transfer's owner. NULL: no memory. */
struct rdti_request *rdti_request_new(struct rdti_scope *scope, struct rdt_transfer *t,
                                      uint32_t peer, uint64_t tag, void *buf, uint64_t len_bytes,
                                      const struct rdt_message_desc *desc);
/* Ends the request: its buffers are not touched any more. It is gone afterwards, perhaps its
 * scope too. */
void rdti_request_finish(struct rdti_request *request, rdt_status status,
                         const struct rdt_error *err);
/* The group broke: ends the request as the table of states says. */
void rdti_request_cancel(struct rdti_request *request, const struct rdt_error *err);
/* [driver] Only transitions of the table of states. */
void rdti_request_become(struct rdti_request *request, enum rdti_request_state state);
/* Frees the request without ending its transfer, which has another owner now. */
void rdti_request_release(struct rdti_request *request);

/* arrival.c; [driver] all */

/* A message that waits for its receive; m is NULL for one from this process. The payload is copied.
 * NULL: no memory. */
struct rdti_arrival *rdti_arrival_new(struct rdti_mailboxes *mailboxes, struct rdti_mailbox *m,
                                      const struct rdti_message *head, const uint8_t *payload,
                                      const struct rdti_rts *rts);
/* The message waits in this scope for its receive. RDT_ENOMEM */
rdt_status rdti_arrival_store(struct rdti_scope *scope, struct rdti_arrival *arrival,
                              struct rdt_error *err);
void rdti_arrival_free(struct rdti_arrival *arrival, struct rdti_mailboxes *mailboxes);
/* Drops a message; the sender of an RTS gets the reason. */
void rdti_arrival_drop(struct rdti_arrival *arrival, const struct rdt_error *why);
/* The same for a message that did not become an arrival, or has been one. */
void rdti_arrival_refuse(struct rdti_mailbox *m, const struct rdti_message *head,
                         const struct rdt_error *why);

#endif
