/* SPDX-License-Identifier: Apache-2.0
 * The bodies of persistent streams, for persistent*.c, and for checksum.c, which names receives.
 * Everything here is [driver]. */
#ifndef RDTI_MESSAGE_PERSISTENT_IMPL_H
#define RDTI_MESSAGE_PERSISTENT_IMPL_H

#include "message/persistent.h"

enum rdti_rx_state { RDTI_RX_WATCHING, RDTI_RX_ASKED, RDTI_RX_STANDING, RDTI_RX_LEAVING };

/* Where a receive was posted; in a STANDING stream, where its sender may write. */
struct rdti_watched {
    const void *addr;
    uint64_t len_bytes;
    uint32_t index; /* of the region, as it was announced */
    uint32_t generation;
};

struct rdti_rx_stream {
    struct rdti_list link; /* m->rx_streams, the oldest first */
    struct rdti_mailbox *m;
    enum rdti_rx_state state;
    bool is_keyed;   /* of all messages under tags that are used once; `tag` is not used */
    bool is_orphan;  /* its group has ended: the stream goes with its last receive */
    bool is_keeping; /* LEAVING: see rdti_stand_keep() */
    bool is_shut;    /* any source was asked for: which receive gets what is open */
    uint64_t id;     /* another one each time it is asked for, at most RDTI_STREAM_ID_MAX */
    uint64_t group_id;
    uint64_t tag;
    uint32_t source;
    uint32_t ends;
    uint64_t least_bytes; /* keyed: of a receive that is announced; set at its start */
    int64_t next; /* number of the next receive; negative: its message is here. Keyed: none */
    struct rdti_list told; /* receives, by their link, in order */
    uint32_t told_count;
    struct rdti_watched *places;
    uint32_t place_count;
    uint32_t place_cap;
    uint32_t hint;   /* where the last was found: most come in order */
    uint32_t oldest; /* keyed: the place that is to be announced again next */
};

/* A receive as the peer announced it. */
struct rdti_announced_receive {
    uint64_t number; /* keyed: the tag */
    uint64_t place;
    struct rdt_message_desc desc; /* keyed only */
};

struct rdti_stand_place {
    struct rdti_place at;
    uint64_t len_bytes;
};

struct rdti_tx_stream {
    struct rdti_list link; /* m->tx_streams */
    struct rdti_mailbox *m;
    bool is_keyed;
    uint64_t id;
    uint64_t group_id;
    uint64_t tag;
    uint64_t least_bytes;     /* keyed: of a message that waits until its receive was announced */
    bool is_refused;          /* a write did not land: the stream ends outside of the lane's call */
    bool has_ordinary;        /* a message may wait for the ring: no write may overtake it */
    uint64_t sent;            /* number of the next message */
    uint32_t beats;           /* keyed: heartbeats so far */
    struct rdti_list waiting; /* sends, by their link, in order; they have no numbers yet */
    struct rdti_announced_receive *told; /* circular, in order of their numbers; keyed: neither */
    uint32_t told_cap;
    uint32_t told_head;
    uint32_t told_count;
    uint64_t told_next; /* no number below this may be announced any more */
    struct rdti_stand_place *places;
    uint32_t place_count;
    uint32_t place_cap;
};

/* persistent.c */

struct rdti_rx_stream *rdti_rx_stream_find(struct rdti_mailbox *m, uint64_t group_id, uint64_t tag);
struct rdti_rx_stream *rdti_rx_stream_find_keyed(struct rdti_mailbox *m, uint64_t group_id);
/* Searches those that the sender knows. */
struct rdti_rx_stream *rdti_rx_stream_find_id(struct rdti_mailbox *m, uint64_t id);
/* Size of the smallest message that no ring of the path takes: one that waits for its receive is at
 * least as long. */
uint64_t rdti_keyed_least_bytes(const struct rdti_mailbox *m);
/* Replaces the oldest that only watches. NULL: no room is left. */
struct rdti_rx_stream *rdti_rx_stream_new(struct rdti_mailbox *m, const struct rdti_scope *scope,
                                          uint32_t source, uint64_t tag, bool is_keyed);
/* WATCHING -> ASKED. May end the endpoint, and so the stream, as every queued message may. */
void rdti_rx_stream_ask(struct rdti_rx_stream *stream);
/* Keyed: whether the receive under this tag was announced and waits. */
bool rdti_rx_stream_has(const struct rdti_rx_stream *stream, uint64_t tag);
/* Announcements stay valid until the sender answers. */
void rdti_rx_stream_leave(struct rdti_rx_stream *stream);
/* From now on no tag of the group is persistent; a keyed stream has no order that could change. */
void rdti_rx_stream_shut_all(const struct rdti_scope *scope);

/* persistent_receive.c */

/* The announced region was not freed meanwhile. Others may cover the same memory. */
bool rdti_place_is_there(const struct rdti_rx_stream *stream, const struct rdti_request *receive);
rdt_status rdti_place_freed_early(struct rdt_error *err);
/* Keyed: sends the sender of a stream that becomes STANDING the places of the receives that were
 * posted while it was asked for. */
void rdti_stand_tell_remembered(struct rdti_rx_stream *stream);
/* Announces a receive that waits to the sender of its stream. */
void rdti_stand_tell(struct rdti_rx_stream *stream, struct rdti_request *receive);

/* persistent_send.c */

struct rdti_tx_stream *rdti_tx_stream_find_id(struct rdti_mailbox *m, uint64_t id);
/* The messages that wait take the default path, and the receiver is notified. */
void rdti_tx_stream_end(struct rdti_tx_stream *stream);
/* Room for one more; false: no memory, and the stream has ended. */
bool rdti_tx_stream_grow_told(struct rdti_tx_stream *stream);
/* Writes a message into its place. False: the stream has ended, perhaps more. */
bool rdti_tx_stream_write(struct rdti_tx_stream *stream, struct rdti_request *send, uint64_t place);
/* RDT_EPROTO, naming the peer. */
rdt_status rdti_stand_broken(const struct rdti_mailbox *m, struct rdt_error *err, const char *how);

/* persistent_once.c: the sender of messages under tags that are used once */

struct rdti_tx_stream *rdti_keyed_find(struct rdti_mailbox *m, uint64_t group_id);
/* Sends that are not in the ring yet wait for their receives to be announced. */
void rdti_keyed_begin(struct rdti_tx_stream *stream);
void rdti_keyed_send(struct rdti_tx_stream *stream, struct rdti_request *send);
/* Whether a receive that waits for its message was announced with this place. */
bool rdti_keyed_is_used(const struct rdti_tx_stream *stream, uint64_t place);
rdt_status rdti_keyed_on_posted(struct rdti_tx_stream *stream, const struct rdti_message *head,
                                struct rdt_error *err);

#endif
