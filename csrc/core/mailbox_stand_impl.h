/* SPDX-License-Identifier: Apache-2.0
 * The body of a stream that stands at its receiver, for mailbox_stand.c and
 * mailbox_stand_receive.c only. Everything here is [driver]. */
#ifndef RDTI_CORE_MAILBOX_STAND_IMPL_H
#define RDTI_CORE_MAILBOX_STAND_IMPL_H

#include "core/mailbox_stand.h"

enum rdti_rx_state { RDTI_RX_WATCHING, RDTI_RX_ASKED, RDTI_RX_STANDING, RDTI_RX_LEAVING };

/* Where a receive was posted; of a stream that stands, where its sender may write. */
struct rdti_watched {
    const void *addr;
    uint64_t len_bytes;
    uint32_t index; /* of the region, as it was told */
    uint32_t generation;
};

struct rdti_rx_stream {
    struct rdti_list link; /* m->rx_streams, the oldest first */
    struct rdti_mailbox *m;
    enum rdti_rx_state state;
    bool is_orphan;  /* its group has ended: it goes with its last receive */
    bool is_keeping; /* LEAVING: see rdti_stand_keep() */
    bool is_shut;    /* any source was asked for: who gets what is open */
    uint64_t id;     /* of this time that it stands */
    uint64_t group_id;
    uint64_t tag;
    uint32_t source;
    uint32_t ends;
    int64_t next;          /* number of the next receive; negative: its message is here */
    struct rdti_list told; /* receives, by their link, in order */
    uint32_t told_count;
    struct rdti_watched *places;
    uint32_t place_count;
    uint32_t place_cap;
    uint32_t hint; /* where the last was found: most come in order */
};

/* mailbox_stand.c */

struct rdti_rx_stream *rdti_rx_stream_find(struct rdti_mailbox *m, uint64_t group_id, uint64_t tag);
/* Of those that its sender knows. */
struct rdti_rx_stream *rdti_rx_stream_find_id(struct rdti_mailbox *m, uint64_t id);
/* Takes the place of the oldest that only watches. NULL: there is no room. */
struct rdti_rx_stream *rdti_rx_stream_new(struct rdti_mailbox *m, const rdt_group *group,
                                          uint32_t source, uint64_t tag);
/* WATCHING -> ASKED. May end the endpoint, and with it the stream, as whatever queues a message. */
void rdti_rx_stream_ask(struct rdti_rx_stream *stream);
/* What was told stays so until the sender answers. */
void rdti_rx_stream_leave(struct rdti_rx_stream *stream);
/* From now on nothing of the group stands. */
void rdti_rx_stream_shut_all(const rdt_group *group);

/* mailbox_stand_receive.c */

/* Nobody has freed it meanwhile: the region that was told. Others may cover the same memory. */
bool rdti_place_is_there(const struct rdti_rx_stream *stream, const struct rdti_request *receive);
rdt_status rdti_place_freed_early(struct rdt_error *err);
/* The sender of a stream that stands learns of a receive that waits. */
void rdti_stand_tell(struct rdti_rx_stream *stream, struct rdti_request *receive);

#endif
