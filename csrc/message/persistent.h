/* SPDX-License-Identifier: Apache-2.0
 * Receives that stand: a program that posts the same receives step after step tells its senders
 * the places once. From then on each receive that is posted is a credit, and its sender writes into
 * the place at once: no offer, no answer, no copy.
 *
 * A *stream* is what one process receives from another within a group under one tag; its messages
 * and receives meet in order. Once it stands both ends count its messages, the others too, from one
 * agreed message on. A credit names a receive by its number and the place by another, so that a
 * write and its receive agree whatever else goes through the stream.
 *
 *   receiver  state     is                                        leaves by
 *             WATCHING  addresses of receives are remembered      one repeats in memory that the
 *                                                                 peer can write: STAND -> ASKED
 *             ASKED     the sender does not count yet             STOOD -> STANDING
 *             STANDING  each receive is told: a place, or none    one has no place, any source is
 *                                                                 asked, a receive or the group
 *                                                                 ends, or gets what its sender
 *                                                                 did not look for (keyed): STAND
 *                                                                 of 0 -> LEAVING
 *             LEAVING   nothing more is told; what was told may   STOOD of 0 -> WATCHING
 *                       yet be written
 *   Any state: the sender ends it: STOOD of 0 -> WATCHING.
 *
 * The sender counts from its STOOD on. A message goes
 *   into its place     if its receive was told with a place of exactly its size
 *   the ordinary way   if its receive was told without one, or with one of another size, or was
 *                      skipped (later ones were told); or if it is small enough to be sent eagerly
 *   later              if it is larger, and its receive was not told: the ordinary way would wait
 *                      for that receive too
 * Nothing is written but for a receive that was told and has not ended: one that is cancelled ends
 * when the message is there, or the sender has answered that it writes no more. A message that
 * comes the ordinary way for a cancelled receive is the next one's; it and those behind it are kept
 * until that answer, as the next one may yet be written.
 *
 * Messages under tags that are used once (RDT_TAG_ONCE) have no order to be counted in: all that
 * are larger than what is sent eagerly are one stream for each source and group, a *keyed* one, in
 * which the tag is the number. It does not watch: such receives are asked for from the first on.
 * Every one is told, with a place or none, and each message waits until its receive was told; so
 * the two need not meet in any order. The place is told anew where the receive lies elsewhere. A
 * message that has waited for some seconds goes the ordinary way all the same: its receive may be
 * for something else, and then says so. One that is no such message, for it is smaller or says not
 * what it is, goes without a look at what was told, which so would count as told for good: who
 * receives it in such a receive ends the stream. Not over shared memory, where the receiver fetches
 * a message by itself.
 *
 * Everything here is [driver].
 */
#ifndef RDTI_MESSAGE_PERSISTENT_H
#define RDTI_MESSAGE_PERSISTENT_H

#include "group/group_impl.h"
#include "message/mailbox.h"
#include "wire/message.h"

struct rdti_mailbox;
struct rdti_rx_stream;
struct rdti_tx_stream;

/* A stream is not worth a credit for each message below this. */
#define RDTI_STAND_MIN_BYTES UINT64_C(4096)
/* Larger ones wait for their receive anyway: they are above what a ring takes. */
#define RDTI_STAND_WAIT_BYTES UINT64_C(65536)
/* Over shared memory the sender copies, in one piece and with its locks held: not for longer than
 * one poll does. The ordinary way reads larger ones in slices. */
#define RDTI_STAND_COPY_BYTES (UINT64_C(16) << 20)
/* Each is looked at for each message while any stands; a pipeline's stage has two, and each group
 * of the two processes one. */
#define RDTI_STREAMS_MAX 32
/* Places of a stream: a schedule has one for each micro-batch and tensor. */
#define RDTI_PLACES_MAX 1024
/* The same of a keyed one: collectives of a step are few, and a look through all for an address
 * that is new takes a microsecond. The oldest make room. */
#define RDTI_KEYED_PLACES_MAX 256
/* What is smaller is sent eagerly over tcp and verbs once the ring has grown; from where on a
 * stream has receives told is its path's (least_bytes), this or one more. */
#define RDTI_KEYED_MIN_BYTES ((uint64_t)RDTI_RING_LARGE_BYTES / 4)
/* Receives that were told and wait: some thousand entries of 48 bytes at the sender. */
#define RDTI_TOLD_MAX 4096
/* A stream that ended so often has no pattern. */
#define RDTI_STREAM_ENDS_MAX 8

#define RDTI_PLACE_NONE UINT64_MAX

/* `count` of STAND. */
#define RDTI_STAND_NO_MORE UINT64_C(0)
#define RDTI_STAND_COUNTED UINT64_C(1)
#define RDTI_STAND_KEYED UINT64_C(2)

static inline bool
rdti_tag_is_once(uint64_t tag)
{
    return (tag & RDT_TAG_ONCE_MASK) == RDT_TAG_ONCE;
}

/* mailbox_stand.c, mailbox_stand_receive.c: the receiver */

/* The stream of a receive that is about to be posted, or NULL: it cannot stand. Asks for a stream
 * to stand; before the receive is one of the group's, as the path may end by that. */
struct rdti_rx_stream *rdti_stand_find(rdt_group *group, uint32_t source, uint64_t tag,
                                       const void *addr, uint64_t len_bytes, bool has_desc);
/* The receive found its message waiting. The stream may be NULL, as below. */
void rdti_stand_skip(struct rdti_rx_stream *stream);
/* The same of one source, under a tag that is used once: the next message there has its place. The
 * path may end by it. */
void rdti_stand_missed(const rdt_group *group, uint32_t source, const void *addr,
                       uint64_t len_bytes);
/* It waits. */
void rdti_stand_posted(struct rdti_rx_stream *stream, struct rdti_request *receive);
/* A message that came the ordinary way is for this receive. */
void rdti_stand_meet(struct rdti_request *receive, const struct rdti_message *head);
/* The receive ends, or waits for no place any more. */
void rdti_stand_untell(struct rdti_request *receive);
/* A receive that was told is given up, or its group broke. */
void rdti_stand_cancel(struct rdti_request *receive, const struct rdt_error *err);
/* An ordinary message is for this receive, which is cancelled: the receive ends. True: the message
 * and those behind it are the caller's to keep, until rdti_group_hand_out() is called. */
bool rdti_stand_keep(struct rdti_request *receive);
bool rdti_stand_keeps(struct rdti_mailbox *m, uint64_t group_id, uint64_t tag);
rdt_status rdti_stand_on_stood(struct rdti_mailbox *m, const struct rdti_message *head,
                               struct rdt_error *err);
rdt_status rdti_stand_on_landed(struct rdti_mailbox *m, const struct rdti_message *head,
                                struct rdt_error *err);

/* mailbox_stand_tx.c, mailbox_stand_keyed.c: the sender */

/* NULL: the stream does not stand. */
struct rdti_tx_stream *rdti_stand_find_tx(struct rdti_mailbox *m, uint64_t group_id, uint64_t tag);
/* A message whose receive is told, or will be: so its receiver asked, perhaps over a path whose
 * ring took less. It never goes eagerly, as what was told meanwhile would stay so for ever. */
bool rdti_stand_is_awaited(struct rdti_mailbox *m, uint64_t group_id, uint64_t tag, bool has_desc,
                           uint64_t len_bytes);
/* As rdti_mailbox_send_now() and rdti_mailbox_send(), for messages whose stream may stand. */
bool rdti_stand_send_now(struct rdti_mailbox *m, const struct rdti_message *head, const void *src,
                         struct rdt_transfer *t, rdt_status *status_out, struct rdt_error *err);
void rdti_stand_send(struct rdti_mailbox *m, struct rdti_request *send);
/* A message that was counted did not go: the ends no longer agree. */
void rdti_stand_not_sent(struct rdti_mailbox *m, const struct rdti_request *send);
rdt_status rdti_stand_on_stand(struct rdti_mailbox *m, const struct rdti_message *head,
                               struct rdt_error *err);
rdt_status rdti_stand_on_place(struct rdti_mailbox *m, const struct rdti_message *head,
                               const uint8_t *body, struct rdt_error *err);
rdt_status rdti_stand_on_posted(struct rdti_mailbox *m, const struct rdti_message *head,
                                struct rdt_error *err);

/* A heartbeat is due, about each second. */
void rdti_stand_on_beat(struct rdti_mailbox *m);

/* Both halves. */

/* Nothing waits for the peer. */
bool rdti_stand_is_idle(const struct rdti_mailbox *m);
/* The group works no more: its streams end, and the peers are told. */
void rdti_stand_end_group(const rdt_group *group);
/* The endpoint ended. */
void rdti_stand_on_ended(struct rdti_mailbox *m, const struct rdt_error *err);
void rdti_stand_end_tx(struct rdti_mailbox *m, uint64_t group_id);
void rdti_stand_on_ended_tx(struct rdti_mailbox *m, const struct rdt_error *err);
bool rdti_stand_is_idle_tx(const struct rdti_mailbox *m);
void rdti_stand_destroy(struct rdti_mailbox *m);

#endif
