/* SPDX-License-Identifier: Apache-2.0
 * Inside the tcp transport: one lane is N sockets to one peer, driven by wire/endpoint/stream.h.
 *
 *   tcp.c    the table of operations, the pass over all lanes
 *   ends.c   completion of ops, the end of a lane
 *   setup.c  sockets: creating, connecting, joining, closing
 *   batch.c  the next bytes to send on a stream
 *   tx.c     write() and read(), sendmsg
 *   rx.c     the receive state machine of one stream
 *   parts.c  messages in order, notifications, acknowledgements, answers to reads
 *   pool.c   memory of data in flight
 *   lane_state.c  what all files do to a lane
 *
 * Access rules. "driver": only with the engine's lock. "lock": only with lane->lock, which is never
 * held while the host or an op's complete() is called. A sending thread holds it through sendmsg(),
 * which does not block, because the order of write() is the order of the bytes. watch_lock is a
 * leaf: held during calls of the host's rewatch(), so that the last call has the latest state. A
 * pool's lock is a leaf, too.
 */
#ifndef RDTI_TRANSPORT_TCP_H
#define RDTI_TRANSPORT_TCP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/list.h"
#include "transport/transport.h"
#include "wire/handshake.h"
#include "wire/endpoint/stream.h"

/* One core saturates a loopback socket, and two sockets only add switches between them
 * (bench/floor: 1 stream 5.3 GB/s, 4 streams no more). A NIC of 25 Gbit/s or more needs several
 * flows. */
#define RDTI_TCP_STREAMS_LOOPBACK 1
#define RDTI_TCP_STREAMS_REMOTE 4

/* A part of at least this size uses all streams: below, the slowest of N heads costs more than N
 * flows gain. */
#define RDTI_TCP_STRIPE_MIN_BYTES (UINT64_C(512) << 10)
/* A block of at least this size is a separate part; smaller ones share a list, a head and a system
 * call. */
#define RDTI_TCP_LIST_BLOCK_MAX_BYTES (UINT64_C(64) << 10)

/* One sendmsg: enough vectors for a full list, heads for 127 small writes. 10 KiB. */
#define RDTI_TCP_BATCH_IOVS 256
#define RDTI_TCP_BATCH_HEAD_BYTES 4096
#define RDTI_TCP_BATCH_MARKS 128
/* A batch of this size takes no further part, so that controls can still precede the later
 * parts. */
#define RDTI_TCP_BATCH_BYTES (UINT64_C(256) << 10)

/* Work per lane and pass in each direction: 1 ms at 4 GB/s, the maximum by which a bulk lane delays
 * other lanes. */
#define RDTI_TCP_PASS_BYTES (UINT64_C(4) << 20)

/* Maximum of parts of messages that wait for stripes of earlier ones; maximum number of stripes by
 * which one stream may be ahead of another. */
#define RDTI_TCP_PARTS_MAX 256
#define RDTI_TCP_STRIPES_MAX 64
#define RDTI_TCP_REFUSALS_MAX 64

/* Acknowledgements wait this long, and for this many messages and bytes, for a head of this side
 * that carries them. A reply to an 8 B message is sent within 30 us, also after a sleep, so within
 * 200 us nearly all acks find one. The counts bound the sender's list. */
#define RDTI_TCP_ACK_HOLD_NS UINT64_C(200000)
/* After a pass with work there is mostly another one, which sets the timer to the end of the hold;
 * if a thread sleeps instead, this bounds the hold. It is set so rarely that a ping-pong pays
 * nothing. */
#define RDTI_TCP_ACK_BACKSTOP_NS UINT64_C(900000)
#define RDTI_TCP_ACK_MESSAGES 64
#define RDTI_TCP_ACK_BYTES (UINT64_C(1) << 20)
/* A hold in vain (no head carried the ack) disables holding. It is tried again after a number of
 * acks sent alone: FEW if earlier holds paid, as at a pause between two bursts, else twice as many
 * each time, from FIRST to MOST. Two sides that each wait for the peer's ack before they post again
 * stall for a hold if both hold acks; if only one does, its acks are carried by the sends that the
 * peer's acks release. So the connecting side tries first, the other one LATER times as late. */
#define RDTI_TCP_RIDES_PAY 2
#define RDTI_TCP_TRIAL_FEW 4
#define RDTI_TCP_TRIAL_FIRST 64
#define RDTI_TCP_TRIAL_LATER 16
#define RDTI_TCP_TRIAL_MOST 4096
/* A write of at least this size, or one without a notification (to which the peer will not reply),
 * requests its ack at once. */
#define RDTI_TCP_ACK_NOW_BYTES (UINT64_C(64) << 10)

/* Passes without arrivals after which only epoll watches a stream: some 100 us of a spinning
 * waiter. */
#define RDTI_TCP_HOT_PASSES 256
/* Once per this many passes one cold stream is polled, for an engine that spins without calling
 * epoll. */
#define RDTI_TCP_COLD_EVERY 32

/* An eager message costs a copy into the parcel and a copy out of the ring. A message that waits
 * for the address of its receive costs a round trip (30 us and more with sleeps), also with a
 * persistent receive: with one call after another, the next receive is posted after the last one
 * has ended. At 10 GB/s a copy of 64 KiB takes 7 us, of 256 KiB as long as the round trip. 64 KiB
 * itself, a usual size of a collective's pieces, is eager: a broadcast of it takes 0.7 of the
 * time. */
#define RDTI_TCP_EAGER_MAX_BYTES (UINT64_C(64) << 10)

/* Payloads below this size may be received by a separate call (rx.c). Above it, a further call has
 * no measurable cost. */
#define RDTI_TCP_LONE_MAX_BYTES 4096

/* Free items that a transport keeps of each kind of memory: as many as are commonly in use at the
 * same time. 230 KiB in all. */
#define RDTI_TCP_SPARES_MAX 8

/* Refused bytes are read into this. */
#define RDTI_TCP_DRAIN_BYTES 65536

enum rdti_tcp_phase { RDTI_TCP_SETUP = 0, RDTI_TCP_READY = 1, RDTI_TCP_FAILED = 2 };

struct rdti_tcp_lane;

/* Items of one size; any thread. */
struct rdti_tcp_pool {
    pthread_mutex_t lock; /* a leaf */
    size_t item_bytes;
    uint32_t spare_count;
    void *spares[RDTI_TCP_SPARES_MAX];
};

/* A point in a batch: when all vectors before iov_end are sent, `number` counts as sent. */
struct rdti_tcp_mark {
    uint32_t iov_end;
    bool is_response; /* else a write op */
    uint32_t number;
};

/* The bytes being sent on one stream: built whole, sent in as many pieces as the socket
 * requires. */
struct rdti_tcp_batch {
    uint32_t iov_at;
    uint32_t iov_count;
    uint32_t mark_at;
    uint32_t mark_count;
    uint32_t head_bytes;
    uint64_t bytes;
    struct iovec iov[RDTI_TCP_BATCH_IOVS];
    struct rdti_tcp_mark marks[RDTI_TCP_BATCH_MARKS];
    uint8_t heads[RDTI_TCP_BATCH_HEAD_BYTES];
};

enum rdti_tcp_rx_state {
    RDTI_TCP_RX_HEAD,
    RDTI_TCP_RX_LIST,
    RDTI_TCP_RX_PAYLOAD,
    RDTI_TCP_RX_DRAIN /* payload of a refused part */
};

/* A list of blocks that is being received, and the addresses of the blocks. */
struct rdti_tcp_rx_list {
    uint8_t bytes[RDTI_STREAM_LIST_MAX * RDTI_STREAM_ENTRY_BYTES];
    struct iovec iov[RDTI_STREAM_LIST_MAX + 1]; /* one more for the next head */
};

/* driver */
struct rdti_tcp_rx {
    enum rdti_tcp_rx_state state;
    uint32_t head_have;
    uint32_t list_have;
    uint32_t iov_at;
    uint32_t iov_count;
    bool was_busy; /* the last pass received bytes */
    bool is_run;   /* parts follow each other without a pause */
    uint64_t left; /* payload bytes that have not arrived */
    rdt_status refused;
    bool has_target;
    struct rdti_target target;
    struct rdti_stream_head head;
    uint8_t head_buf[RDTI_STREAM_HEAD_BYTES];
    struct rdti_tcp_rx_list *list; /* from the pool during a WRITE_LIST, else NULL */
    struct iovec *iov;             /* the list's, or lone */
    struct iovec lone[2];          /* one block and the next head */
};

struct rdti_tcp_stream {
    struct rdti_tcp_lane *lane;
    uint32_t index;
    int fd; /* driver closes it after the phase is FAILED; used for sending under lock */
    bool is_connecting;       /* driver */
    uint32_t hot_left;        /* driver: passes until only epoll watches it */
    uint32_t stripes_taken;   /* driver: striped writes whose part on this stream has ended */
    bool is_stalled;          /* driver: its head waits for room, do not read */
    struct rdti_watch *watch; /* watch_lock */
    uint32_t watched_events;  /* watch_lock */
    _Atomic bool wants_in;    /* relaxed: watch_lock orders it */
    _Atomic bool wants_out;   /* relaxed: lock and watch_lock order it; poll only peeks */
    /* lock: the next op and the position in it, the next answer to a read */
    struct rdti_op *cursor;
    uint32_t cursor_block;
    uint64_t cursor_off;
    uint32_t response_next;
    struct rdti_tcp_batch *batch; /* from the pool; NULL: none waits for the socket */
    struct rdti_tcp_rx rx;
};

/* A read request of this side in flight. lock; the driver writes into dst after it has claimed its
 * stripe. */
struct rdti_tcp_request {
    struct rdti_op *op; /* NULL: free */
    uint8_t *dst;
    uint32_t id;
    uint32_t len_bytes;
    uint32_t seen;       /* bit i: stream i has begun its part */
    uint32_t parts_left; /* 0 until the first head arrived */
    bool is_striped;
};

/* An answer to send. lock; the driver releases `target`. */
struct rdti_tcp_response {
    struct rdti_target target;
    uint32_t id;
    uint32_t len_bytes;
    uint32_t streams_left;
    bool is_striped;
};

struct rdti_tcp_refusal {
    bool is_read;
    uint16_t status; /* negated */
    uint32_t number; /* of the message, or the read's id */
};

/* A part that is in place except for stripes, in the order of stream 0. driver */
struct rdti_tcp_part {
    uint8_t flags;
    rdt_status refused;
    uint32_t notify;
    uint32_t len_bytes;
};

struct rdti_tcp_stripe {
    struct rdti_stream_head head; /* of the first that began */
    uint32_t begun;
    uint32_t done; /* streams whose part is in place */
    rdt_status refused;
};

/* The parts that wait for stripes. driver */
struct rdti_tcp_backlog {
    struct rdti_tcp_part parts[RDTI_TCP_PARTS_MAX];
    struct rdti_tcp_stripe stripes[RDTI_TCP_STRIPES_MAX];
};

/* Indices of op->scratch. Writes: NUMBER, IS_STRIPED, STATUS. Reads: NEXT_OFF, CHUNKS_LEFT,
 * STATUS. */
enum {
    RDTI_TCP_OP_NUMBER = 0,
    RDTI_TCP_OP_IS_STRIPED = 1,
    RDTI_TCP_OP_NEXT_OFF = 0,
    RDTI_TCP_OP_CHUNKS_LEFT = 1,
    RDTI_TCP_OP_STATUS = 2
};

/* What the timer is set for: nothing, the backstop, or the end of a hold. */
enum rdti_tcp_timer {
    RDTI_TCP_TIMER_OFF = 0,
    RDTI_TCP_TIMER_BACKSTOP = 1,
    RDTI_TCP_TIMER_HOLD = 2
};

struct rdti_tcp {
    const struct rdti_host *host;
    struct rdti_list lanes;     /* driver */
    struct rdti_list hot;       /* driver */
    struct rdti_list graveyard; /* driver: closed while a pass was running */
    bool is_polling;            /* driver */
    uint32_t pass;              /* driver */
    _Atomic uint32_t
        lane_count; /* relaxed: needs_epoll() is a hint that the engine's lock orders */
    int timer_fd;
    enum rdti_tcp_timer timer; /* driver */
    struct rdti_watch *timer_watch;
    pthread_mutex_t attention_lock;
    struct rdti_list attention; /* attention_lock */
    _Atomic bool has_attention; /* set under attention_lock; release, pairs with poll's acquire */

    struct rdti_tcp_pool batches;   /* struct rdti_tcp_batch */
    struct rdti_tcp_pool lists;     /* struct rdti_tcp_rx_list */
    struct rdti_tcp_pool backlogs;  /* struct rdti_tcp_backlog */
    struct rdti_tcp_pool requests;  /* struct rdti_tcp_request [RDTI_STREAM_READS_MAX] */
    struct rdti_tcp_pool responses; /* struct rdti_tcp_response [RDTI_STREAM_READS_MAX] */

    uint8_t drain[RDTI_TCP_DRAIN_BYTES]; /* driver */
};

struct rdti_tcp_lane {
    struct rdti_lane base; /* first */
    struct rdti_tcp *tcp;
    struct rdti_list all_link;       /* driver */
    struct rdti_list hot_link;       /* driver */
    struct rdti_list attention_link; /* attention_lock; also the graveyard's */
    struct rdti_lane_args args;
    struct sockaddr_storage peer_sockaddr;
    char peer_text[80];
    uint32_t streams_offered;
    uint32_t stream_count; /* agreed by connect(), 0 before */
    uint32_t streams_present;
    struct rdti_tcp_stream *streams[RDTI_STREAM_STREAMS_MAX];
    _Atomic uint32_t
        phase;      /* written under lock by the driver; release, pairs with acquire loads */
    bool is_closed; /* driver */
    uint64_t last_progress_ns; /* driver; 0: none yet */
    bool is_progress_new;      /* driver: progress since then; the clock is read when idle */
    uint64_t rx_messages;      /* driver: since the start, for error messages */
    _Atomic uint64_t ops_open; /* accepted and not completed; acq_rel, is_idle() acquires */

    _Atomic bool is_tx_broken; /* set under lock with tx_errno; relaxed, a hint for the driver */

    pthread_mutex_t watch_lock;
    pthread_mutex_t lock;
    /* lock */
    struct rdt_error error; /* the first, after FAILED */
    int tx_errno;           /* sending failed with it; the driver reports it */
    uint32_t tx_errno_stream;
    struct rdti_list ops;    /* writes that are not acknowledged, in order */
    uint32_t tx_number;      /* of the last write */
    _Atomic bool has_riders; /* ops wait for another op or a pass; set under lock, seq_cst */
    bool owes_ready;
    bool owes_ack;
    bool is_response_turn;
    uint32_t refusal_first;
    uint32_t refusal_count;
    struct rdti_tcp_refusal refusals[RDTI_TCP_REFUSALS_MAX];
    struct rdti_list reads;      /* not complete, in order */
    struct rdti_op *read_cursor; /* the next to request */
    uint32_t request_next;       /* id */
    uint32_t requests_open;
    struct rdti_tcp_request *requests; /* from the pool while any is open, else NULL */
    uint32_t response_in;              /* the ring is [response_out, response_in) */
    uint32_t response_out;
    struct rdti_tcp_response *responses; /* from the pool while the ring is not empty, else NULL */

    /* Acknowledgements. relaxed: a number of messages already in place; lock orders it against
     * refusals */
    _Atomic uint32_t rx_done;     /* messages of the peer that are in place */
    _Atomic uint32_t ack_built;   /* the last number that a head of this side carries */
    _Atomic uint32_t acks_ridden; /* since holding began; relaxed, a heuristic */
    /* driver */
    uint32_t tx_acked;
    bool is_patient;    /* acks are held */
    uint32_t trial_in;  /* acks to send alone until holding is tried again */
    uint32_t trial_gap; /* the last initial value of that */
    bool is_ack_now;
    uint32_t ack_seen; /* ack_built when ack_since_ns began */
    uint64_t ack_bytes;
    uint64_t ack_since_ns;      /* start of the hold; 0: none */
    rdt_status message_refused; /* by earlier parts of the message that parts_first belongs to */
    rdt_status refusing;        /* for the message that stream 0 is receiving */
    uint32_t parts_first;
    uint32_t parts_count;
    uint32_t stripes_first;           /* ordinal of the oldest unfinished striped write */
    struct rdti_tcp_backlog *backlog; /* from the pool while a stripe is in flight, else NULL */
    struct rdti_tcp_part lone_part;   /* without backlog: a part that waits to send its refusal */
    uint32_t kicks;                   /* bit i: stream i has something new to send */
};

/* ---- lane_state.c */
/* Make the driver poll the lane in its next pass. */
void rdti_tcp_make_hot(struct rdti_tcp_lane *lane);       /* driver */
void rdti_tcp_call_attention(struct rdti_tcp_lane *lane); /* any thread, lock not held */
/* Pass wants_in and wants_out to the host's watch. Any thread, lock not held. */
void rdti_tcp_update_watch(struct rdti_tcp_stream *stream);
void rdti_tcp_close_stream(struct rdti_tcp_stream *stream); /* driver, phase is FAILED */
/* Release the pin and memory of the part that is being received. driver */
void rdti_tcp_release_part(struct rdti_tcp_stream *stream);
/* Stop sending; the driver then ends the lane. lock */
void rdti_tcp_break_sending(struct rdti_tcp_stream *stream, int sys_errno);
static inline uint32_t
rdti_tcp_phase_of(const struct rdti_tcp_lane *lane)
{
    /* acquire: pairs with the release when the driver changes it */
    return atomic_load_explicit(&lane->phase, memory_order_acquire);
}

/* ---- pool.c */
void rdti_tcp_pool_open(struct rdti_tcp_pool *pool, size_t item_bytes);
void rdti_tcp_pool_close(struct rdti_tcp_pool *pool); /* every item was given back */
/* An item, not initialised; NULL: no memory. */
void *rdti_tcp_pool_take(struct rdti_tcp_pool *pool);
void rdti_tcp_pool_give(struct rdti_tcp_pool *pool, void *item); /* NULL: nothing */

/* ---- ends.c */
/* End the lane: its first error, all ops complete with it, sockets closed. Once; later calls do
 * nothing. driver */
void rdti_tcp_teardown(struct rdti_tcp_lane *lane, const struct rdt_error *err);
/* teardown, and host->on_error(). driver */
void rdti_tcp_fail(struct rdti_tcp_lane *lane, const struct rdt_error *err);
/* The peer is gone or the socket broken: EPEER with address, progress and a remedy; ENOMEM if
 * sys_errno is ENOMEM. driver */
void rdti_tcp_fail_socket(struct rdti_tcp_stream *stream, const char *what, int sys_errno);
/* Give the lane's pool memory back. lock, or no other thread can reach the lane */
void rdti_tcp_give_back(struct rdti_tcp_lane *lane);
/* Complete the ops of a list that only the caller uses: with their own status, or with *err. lock
 * not held */
void rdti_tcp_complete_all(struct rdti_tcp_lane *lane, struct rdti_list *ops,
                           const struct rdt_error *err);

/* ---- setup.c */
uint32_t rdti_tcp_streams_wanted(const struct rdti_host *host, const struct rdti_lane_args *args);
rdt_status rdti_tcp_connect_streams(struct rdti_tcp_lane *lane, struct rdt_error *err); /* driver */
rdt_status rdti_tcp_adopt_stream(struct rdti_tcp_lane *lane, int fd, uint32_t index,
                                 struct rdt_error *err);
/* Become ready if all streams have joined (listener). driver */
void rdti_tcp_check_ready(struct rdti_tcp_lane *lane);
void rdti_tcp_become_ready(struct rdti_tcp_lane *lane);
/* Connections in progress, deadline. Returns work done. driver */
uint32_t rdti_tcp_setup_step(struct rdti_tcp_lane *lane);

/* ---- batch.c: all under lock */
/* Set the cursor to `op`, or to the first op after it of which this stream carries a part; NULL:
 * none. */
void rdti_tcp_set_cursor(struct rdti_tcp_stream *stream, struct rdti_op *op);
/* Build the next batch in place of the last one, which is sent. False: there is nothing to send.
 * Calls rdti_tcp_break_sending() if memory is short. */
bool rdti_tcp_fill(struct rdti_tcp_stream *stream);
/* Maximum bytes of one READ_REQUEST: the maximum of a striped part. */
uint32_t rdti_tcp_read_chunk_bytes(const struct rdti_tcp_lane *lane);
bool rdti_tcp_is_striped(const struct rdti_tcp_lane *lane, uint64_t len_bytes);

/* ---- tx.c */
/* Add the stream to the lane; it sends its share of the ops that are already queued. Takes lock. */
void rdti_tcp_start_stream(struct rdti_tcp_stream *stream);
rdt_status rdti_tcp_write(struct rdti_lane *lane, struct rdti_op *op, struct rdt_error *err);
rdt_status rdti_tcp_read(struct rdti_lane *lane, struct rdti_op *op, struct rdt_error *err);
/* Send a stream's queue, at most budget_bytes. Takes lock. driver. Returns the bytes sent. */
uint64_t rdti_tcp_push(struct rdti_tcp_stream *stream, uint64_t budget_bytes);
/* The number of the last write whose bytes were all passed to a socket. lock */
uint32_t rdti_tcp_sent_number(const struct rdti_tcp_lane *lane);

/* ---- rx.c */
/* Receive on one stream until it is empty or the budget is used up. Returns the amount of work
 * done. driver */
uint32_t rdti_tcp_receive(struct rdti_tcp_stream *stream, uint64_t *budget_bytes);

/* ---- parts.c: all driver */
/* Takes a head's ack (and refusal). RDT_EPROTO if it decreases or exceeds the sent writes. */
rdt_status rdti_tcp_take_ack(struct rdti_tcp_lane *lane, uint32_t ack, rdt_status refused,
                             struct rdt_error *err);
bool rdti_tcp_part_has_room(const struct rdti_tcp_stream *stream);
/* Begins the stripe that stream->rx.head announces. RDT_EPROTO if the stripes of the other streams
 * belong to another part, RDT_ENOMEM. */
rdt_status rdti_tcp_stripe_begins(struct rdti_tcp_stream *stream, struct rdt_error *err);
/* The part that stream->rx.head announced has ended on this stream. */
void rdti_tcp_part_done(struct rdti_tcp_stream *stream);
/* Finish messages whose parts are all in place; deliver their notifications in order. */
void rdti_tcp_drain_parts(struct rdti_tcp_lane *lane);
/* Send or hold the pending acknowledgement; only an idle pass reads the clock. Returns the ns for
 * which it may still be held, 0: none is held. */
uint64_t rdti_tcp_settle_acks(struct rdti_tcp_lane *lane, bool is_idle);
/* A READ_REQUEST: pins and queues it, or refuses it; stalled: did nothing, retry later. RDT_EPROTO,
 * RDT_ENOMEM. */
rdt_status rdti_tcp_take_request(struct rdti_tcp_lane *lane, const struct rdti_stream_head *head,
                                 bool *is_stalled_out, struct rdt_error *err);
void rdti_tcp_release_responses(struct rdti_tcp_lane *lane);
/* The address for this stream's stripe of an answer. */
rdt_status rdti_tcp_claim_read(struct rdti_tcp_stream *stream, uint8_t **dst_out, uint32_t *len_out,
                               struct rdt_error *err);
void rdti_tcp_read_part_done(struct rdti_tcp_lane *lane, uint32_t id);
rdt_status rdti_tcp_read_refused(struct rdti_tcp_lane *lane, const struct rdti_stream_head *head,
                                 struct rdt_error *err);

#endif
