/* SPDX-License-Identifier: Apache-2.0
 * Persistent receives: a program that posts the same receives step after step sends their places to
 * the senders once. From then on each receive that is posted is a credit, and its sender writes
 * into the place at once: no offer, no answer, no copy.
 *
 * A *stream* is what one process receives from another within a group under one tag; its messages
 * and receives match in order. Once it is STANDING, both ends count its messages, also those that
 * take the default path (mailbox.h), from one agreed message on. A credit *announces* a receive by
 * its number and its place by another number, so that a write and its receive agree whatever else
 * goes through the stream.
 *
 *   receiver  state     is                                        leaves by
 *             WATCHING  addresses of receives are remembered      one repeats in memory that the
 *                                                                 peer can write: STAND -> ASKED
 *             ASKED     the sender does not count yet             STOOD -> STANDING
 *             STANDING  each receive is announced, with a place   one has no place, any source is
 *                       or without one                            asked, a receive or the group
 *                                                                 ends, or gets a message that was
 *                                                                 sent without a search for its
 *                                                                 receive (keyed): STAND of 0 ->
 *                                                                 LEAVING
 *             LEAVING   nothing more is announced; announced      STOOD of 0 -> WATCHING
 *                       places may yet be written
 *   Any state: the sender ends it: STOOD of 0 -> WATCHING.
 *
 * The sender counts from its STOOD on. A message goes
 *   into its place     if its receive was announced with a place of exactly its size
 *   the default path   if its receive was announced without a place, or with one of another size,
 *                      or was skipped (later ones were announced); or if it is small enough to be
 *                      sent eagerly; or while an earlier one waits for the ring, as it must not
 *                      be overtaken
 *   later              if it is larger, and its receive was not announced: the default path would
 *                      wait for that receive too
 * Writes need a receive that was announced and has not ended: a cancelled one ends when the message
 * is there, or when the sender has answered that it writes no more. A message that comes over the
 * default path for a cancelled receive is the next one's; it and those after it are kept until that
 * answer, as the next one may yet be written.
 *
 * Messages under tags that are used once (RDT_TAG_ONCE) have no order to be counted in: all that
 * are larger than what is sent eagerly are one stream for each source and group, a *keyed* one, in
 * which the tag is the number. It does not watch: the receiver asks for it from the first such
 * receive on. Every receive is announced, with a place or none, and each message waits until its
 * receive was announced; so the two need not match in any order. The place is announced again where
 * the receive lies elsewhere. A message that has waited for some seconds takes the default path all
 * the same: its receive may be for something else, and then reports so. A message that is smaller,
 * or has no description, is sent without a search for its receive, whose announcement would then
 * stay for ever: a receiver that gets it in such a receive ends the stream. Keyed streams are not
 * used over shared memory, where the receiver fetches a message by itself.
 *
 * Everything here is [driver].
 */
#ifndef RDTI_MESSAGE_PERSISTENT_H
#define RDTI_MESSAGE_PERSISTENT_H

#include "message/mailbox.h"
#include "message/match/scope.h"
#include "wire/endpoint/message.h"
#include "wire/notify.h"

struct rdti_mailbox;
struct rdti_request;
struct rdti_rx_stream;
struct rdti_tx_stream;

/* Below this size a stream is not worth a credit for each message. */
#define RDTI_STAND_MIN_BYTES UINT64_C(4096)
/* Larger messages wait for their receive anyway: they are above what a ring takes. */
#define RDTI_STAND_WAIT_BYTES UINT64_C(65536)
/* Over shared memory the sender copies, in one piece and with its locks held: not for longer than
 * one poll does. The default path reads larger ones in slices. */
#define RDTI_STAND_COPY_BYTES (UINT64_C(16) << 20)
/* All are searched for each message while any is STANDING; a pipeline's stage has two, and each
 * group of the two processes one. */
#define RDTI_STREAMS_MAX 32
/* Places of a stream: a schedule has one for each micro-batch and tensor. */
#define RDTI_STAND_PLACES_MAX 1024
_Static_assert(RDTI_STAND_PLACES_MAX <= RDTI_EPOCH_MASK + 1, "a notification names each");
/* The same for a keyed stream: collectives of a step are few, and a search through all for a new
 * address takes a microsecond. The oldest are replaced. */
#define RDTI_KEYED_PLACES_MAX 256
/* Smaller messages are sent eagerly over tcp and verbs once the ring has grown. The size from which
 * a stream announces receives is its path's (least_bytes), this or one more. */
#define RDTI_KEYED_MIN_BYTES ((uint64_t)RDTI_RING_LARGE_BYTES / 4)
/* Receives that were announced and wait: some thousand entries of 48 bytes at the sender. */
#define RDTI_TOLD_MAX 4096
/* A stream that ended this often has no pattern. */
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

/* persistent.c, persistent_receive.c: the receiver */

/* The stream of a receive that is about to be posted, or NULL: it cannot be persistent. May ask the
 * sender for the stream. Call before the receive is one of the group's, as the path may end by
 * that. */
struct rdti_rx_stream *rdti_stand_find(struct rdti_scope *scope, uint32_t source, uint64_t tag,
                                       const void *addr, uint64_t len_bytes, bool has_desc);
/* The receive found its message waiting. The stream may be NULL, as below. */
void rdti_stand_skip(struct rdti_rx_stream *stream);
/* The same for a receive from one source, under a tag that is used once: announces its place for
 * the next message. The path may end. */
void rdti_stand_missed(const struct rdti_scope *scope, uint32_t source, const void *addr,
                       uint64_t len_bytes);
/* The receive was posted, and waits. */
void rdti_stand_posted(struct rdti_rx_stream *stream, struct rdti_request *receive);
/* A message that came over the default path is for this receive. */
void rdti_stand_meet(struct rdti_request *receive, const struct rdti_message *head);
/* A message that came over the default path is for this receive, which is cancelled: the receive
 * ends. True: the caller keeps the message and those after it until they are handed
 * out. */
bool rdti_stand_keep(struct rdti_request *receive);
bool rdti_stand_keeps(struct rdti_mailbox *m, uint64_t group_id, uint64_t tag);
rdt_status rdti_stand_on_stood(struct rdti_mailbox *m, const struct rdti_message *head,
                               struct rdt_error *err);
/* The notification of a write into that place of the stream. */
rdt_status rdti_stand_on_landed(struct rdti_mailbox *m, uint32_t id, uint32_t place,
                                struct rdt_error *err);

/* persistent_send.c, persistent_once.c: the sender */

/* NULL: the stream is not persistent. */
struct rdti_tx_stream *rdti_stand_find_tx(struct rdti_mailbox *m, uint64_t group_id, uint64_t tag);
/* A message whose receive is announced, or will be: its receiver asked for that, perhaps over a
 * path whose ring took less. It never goes eagerly, as its announcement would stay for ever. */
bool rdti_stand_is_awaited(struct rdti_mailbox *m, uint64_t group_id, uint64_t tag, bool has_desc,
                           uint64_t len_bytes);
/* As rdti_mailbox_send_now() and rdti_mailbox_send(), for streams that may be persistent. */
bool rdti_stand_send_now(struct rdti_mailbox *m, const struct rdti_message *head, const void *src,
                         struct rdt_transfer *t, rdt_status *status_out, struct rdt_error *err);
void rdti_stand_send(struct rdti_mailbox *m, struct rdti_request *send);
/* A write of this stream did not land, as its place was freed: the stream ends soon. The lane may
 * have called, and the write's sums, which come before that end, may have yet to be queued. */
void rdti_stand_on_refused(struct rdti_mailbox *m, uint64_t id);
/* Ends such streams. Call outside of the lane. */
void rdti_stand_end_refused(struct rdti_mailbox *m);
/* A message that was counted was not sent: the ends no longer agree. */
void rdti_stand_not_sent(struct rdti_mailbox *m, const struct rdti_request *send);
rdt_status rdti_stand_on_stand(struct rdti_mailbox *m, const struct rdti_message *head,
                               struct rdt_error *err);
rdt_status rdti_stand_on_place(struct rdti_mailbox *m, const struct rdti_message *head,
                               const uint8_t *body, struct rdt_error *err);
rdt_status rdti_stand_on_posted(struct rdti_mailbox *m, const struct rdti_message *head,
                                struct rdt_error *err);

/* A heartbeat is due, about each second. */
void rdti_stand_on_beat(struct rdti_mailbox *m);

/* Questions of collectives. */

/* RDT_STANDS_*: whether the sender could write a keyed message of the scope there. */
uint32_t rdti_stand_reach(const struct rdti_scope *scope, uint32_t source, const void *addr,
                          uint64_t len_bytes);
/* Whether the receive of this keyed message was announced with a place of exactly its size. */
bool rdti_stand_is_told(const struct rdti_scope *scope, uint32_t dst, uint64_t tag,
                        uint64_t len_bytes);

/* Both halves. */

/* Nothing waits for the peer. */
bool rdti_stand_is_idle(const struct rdti_mailbox *m);
/* The group works no more: its streams end, and the peers are notified. */
void rdti_stand_end_group(const struct rdti_scope *scope);
/* The endpoint ended. */
void rdti_stand_on_ended(struct rdti_mailbox *m, const struct rdt_error *err);
void rdti_stand_end_tx(struct rdti_mailbox *m, uint64_t group_id);
void rdti_stand_on_ended_tx(struct rdti_mailbox *m, const struct rdt_error *err);
bool rdti_stand_is_idle_tx(const struct rdti_mailbox *m);
void rdti_stand_destroy(struct rdti_mailbox *m);

#endif
