/* SPDX-License-Identifier: Apache-2.0
 *
 * rdmatensor_group.h - groups of ranks: their mailbox and their collectives. It is a part of
 * rdmatensor.h, which includes it; the rules at its head hold here too.
 */
#ifndef RDMATENSOR_GROUP_H
#define RDMATENSOR_GROUP_H

#include "rdmatensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Groups and the mailbox -------------------------------------------------------------- */

typedef struct rdt_group rdt_group;
typedef struct rdt_persistent rdt_persistent;

/* Fetches the address of one member. Called without a lock, by the thread that needs the member
 * first; again after a failure, and twice if two threads need it at the same time. Returns RDT_OK
 * and fills buf, or an error. */
typedef rdt_status (*rdt_address_fn)(void *arg, uint32_t rank, uint64_t timeout_ns, uint8_t *buf,
                                     size_t cap, size_t *len_out, struct rdt_error *err);

struct rdt_group_opts {
    uint32_t struct_size;
    uint32_t rank; /* of this process in the group */
    uint32_t size;
    uint32_t reserved;
    const char *name; /* the same on all members and unique among the job's live groups;
                         a group that is created again needs another name */
    const char *job_id;
    const int32_t *global_ranks; /* size entries for messages; NULL: equal to group ranks */
    uint64_t timeout_ns;         /* default timeout of the group's operations */
    rdt_address_fn address;      /* must stay callable until the group is destroyed */
    void *address_arg;
};
/* Names and ranks are copied. RDT_EINVAL: a field, or a live group already has that name. */
RDT_API RDT_NODISCARD rdt_status rdt_group_create(rdt_context *ctx,
                                                  const struct rdt_group_opts *opts,
                                                  rdt_group **out, struct rdt_error *err);
/* Operations in flight end with RDT_ECANCELED. Members that still use the group see "left". */
RDT_API void rdt_group_destroy(rdt_group *group);
RDT_API uint32_t rdt_group_rank(const rdt_group *group);
RDT_API uint32_t rdt_group_size(const rdt_group *group);
/* The global rank of a member; RDT_RANK_UNKNOWN if no member has this rank. */
RDT_API int32_t rdt_group_global_rank(const rdt_group *group, uint32_t rank);
RDT_API void rdt_group_set_timeout(rdt_group *group, uint64_t timeout_ns);
RDT_API uint64_t rdt_group_timeout(const rdt_group *group);
/*
 * End every operation of the group on every member with an error that carries `reason`. The error
 * names the member that is the cause, if this rank knows one: the member that left or died first,
 * that ended a message of this rank, or whose address did not arrive in time; else this rank.
 */
RDT_API void rdt_group_abort(rdt_group *group, const char *reason);
/* RDT_OK, or the error that broke the group: that of the member that died first, or of an abort. */
RDT_API RDT_NODISCARD rdt_status rdt_group_error(rdt_group *group, struct rdt_error *err);

#define RDT_SOURCE_ANY UINT32_C(0xffffffff)
/* The upper two bits of tags that are used once, for messages with a desc: a source uses each such
 * tag for one message in the lifetime of a group, as collectives do. */
#define RDT_TAG_ONCE (UINT64_C(1) << 63)
#define RDT_TAG_ONCE_MASK (UINT64_C(3) << 62)

/* Describes the sender's operation, so that an error can name the difference if ranks disagree.
 * Zero for plain messages. */
/* In dtype and reduce_op, above so many bits: halves of a number that both sides must agree on. In
 * op: the lossy format, 0 for none. */
#define RDT_DESC_BITS 4
#define RDT_DESC_MASK 15u
struct rdt_message_desc {
    uint32_t op; /* RDT_COLL_* or 0 */
    uint32_t dtype;
    uint32_t reduce_op;
    uint32_t root;
    uint64_t count;    /* elements */
    uint64_t sequence; /* of the group's collectives: rdt_group_next_sequence() */
};

/*
 * Send and receive between two members, FIFO per (group, source, tag); self-send is legal. The
 * caller keeps buffers valid and unchanged until the transfer is done. A message longer than the
 * receive's buffer ends the receive with RDT_EMISMATCH, naming both sizes; a shorter one is legal,
 * see rdt_transfer_len_bytes(). `desc` NULL: a plain message. If both sides gave a desc and they
 * differ, the receive ends with RDT_EMISMATCH, which names the difference.
 *
 * The first use of a member waits for its address (RDT_SOURCE_ANY: for those of all members). A
 * task must not wait: it gets RDT_EAGAIN, so call rdt_group_endpoint() on a user's thread before.
 * `out` may be NULL for sends. Freeing the handle of a receive that has not matched cancels it.
 *
 * The end of a send says that its buffer is free, not that the message was received: one that is
 * small enough for the receiver's ring ends when it lies there (tcp: when the library has copied
 * it). A plain message of these that had come whole before its sender died is still received, also
 * after the group broke. Over tcp it may be lost if its sender ends before the kernel has taken it.
 *
 * Repeated receives become persistent. If a receive of at least 4 KiB is posted again at the
 * address of an earlier one from that source and tag, in memory that the source can write (shm: in
 * the arena; tcp, verbs: also registered), the place is sent to the source once. From then on each
 * receive is announced when it is posted, and the source writes its message there at once, without
 * an RTS and without a copy. A message that does not fit takes the default path, in the same order.
 * No receive is persistent in a group in which RDT_SOURCE_ANY was used. Under tags that are used
 * once (RDT_TAG_ONCE) receives over tcp and verbs are persistent from the first on, at any address,
 * if they are large enough: rdt_group_stands().
 *   RDT_EINVAL  RDT_EAGAIN  RDT_ENOMEM  RDT_EPEER the group broke, or the member left
 */
RDT_API RDT_NODISCARD rdt_status rdt_group_send(rdt_group *group, uint32_t dst, uint64_t tag,
                                                const void *src, uint64_t len_bytes,
                                                const struct rdt_message_desc *desc,
                                                rdt_transfer **out, struct rdt_error *err);
RDT_API RDT_NODISCARD rdt_status rdt_group_recv(rdt_group *group, uint32_t src, uint64_t tag,
                                                void *dst, uint64_t cap_bytes,
                                                const struct rdt_message_desc *desc,
                                                rdt_transfer **out, struct rdt_error *err);

/* ---- Collectives ------------------------------------------------------------------------- */

enum {
    RDT_COLL_BROADCAST = 1,
    RDT_COLL_ALLREDUCE,
    RDT_COLL_REDUCE,
    RDT_COLL_ALLGATHER,
    RDT_COLL_REDUCE_SCATTER,
    RDT_COLL_GATHER,
    RDT_COLL_SCATTER,
    RDT_COLL_ALLTOALL,
    RDT_COLL_BARRIER
};
enum {
    RDT_COLL_SPIN = 1 /* the caller waits at once: rdt_coll_post() may poll for the end as long as
                         a wait would spin, or yield the core, which costs less than a wait */
};
/* A number from 1 to 32767 in the upper half of `flags`, only for ALLREDUCE: members with different
 * labels disagree (RDT_EMISMATCH). It distinguishes operations of the same type and count. */
#define RDT_COLL_LABEL(label) ((uint32_t)(label) << 16)
enum { RDT_SUM = 1, RDT_AVG, RDT_PRODUCT, RDT_MIN, RDT_MAX, RDT_BAND, RDT_BOR, RDT_BXOR };

/* How float32 travels. Only the sums and the results of EXACT are those of float32. */
enum {
    RDT_WIRE_EXACT = 0,
    RDT_WIRE_BF16 = 1, /* 2 bytes an element: rounded to nearest even */
    RDT_WIRE_Q8 = 2    /* 1 byte an element, and 2 for each block: its largest magnitude / 127 */
};
#define RDT_WIRE_BLOCK 128 /* elements of a block, where none are given */

/*
 * One collective. Members call the same collectives of a group in the same order; several may be in
 * flight. Counts are in elements of dtype. The caller keeps buffers valid and unchanged until it is
 * done.
 *   BROADCAST       recv: count in and out (root: in)
 *   ALLREDUCE       send (may equal recv), recv: count
 *   REDUCE          send: count; recv: count on the root, may equal send; untouched elsewhere
 *   ALLGATHER       send: count; recv: size x count, in rank order
 *   REDUCE_SCATTER  send: size x count; recv: count
 *   GATHER          send: count; recv on the root: size x count
 *   SCATTER         send on the root: size x count; recv: count
 *   ALLTOALL        send_counts and recv_counts with offsets (elements), or NULL: count to each
 *   BARRIER         nothing
 * Members' blocks need not be contiguous: `blocks`, if not NULL, has one address per member in
 * place of recv (ALLGATHER, GATHER, ALLTOALL), or of send (SCATTER, REDUCE_SCATTER).
 *
 * A lossy `wire` is for ALLREDUCE and REDUCE_SCATTER by RDT_SUM or RDT_AVG, and for ALLGATHER, of
 * RDT_F32. Members must agree on wire and wire_block. Each element has an owner. The other members
 * send it encoded; the owner adds, in rank order and in float32, its own value and what they sent.
 * Of ALLREDUCE and ALLGATHER the owner encodes the result and itself takes what the others decode:
 * all members have the same bits. A block with an infinity or a NaN becomes NaN.
 *   residual  float32, NULL or as many as send has: what encoding lost. It is added before the next
 *             encoding, and is then what that lost; zero it at first. Each tensor needs its own,
 *             which overlaps nothing of the call. In ALLREDUCE the owner's part is of the result,
 *             elsewhere of send.
 * In a group of one member nothing is encoded, and the residual is not used.
 */
struct rdt_coll_args {
    uint32_t struct_size;
    uint32_t op;        /* RDT_COLL_* */
    uint32_t dtype;     /* RDT_BOOL ... */
    uint32_t reduce_op; /* RDT_SUM ... */
    uint32_t root;      /* group rank */
    uint32_t flags;     /* RDT_COLL_SPIN, RDT_COLL_LABEL() */
    uint64_t count;
    const void *send;
    void *recv;
    void *const *blocks;
    void *const *send_blocks; /* ALLTOALL only: one source address per member in place of send */
    const uint64_t *send_counts;
    const uint64_t *send_offs;
    const uint64_t *recv_counts;
    const uint64_t *recv_offs;
    uint64_t timeout_ns; /* RDT_TIMEOUT_DEFAULT or 0: the group's */
    /* Since ABI 1.1; a shorter struct has EXACT. */
    uint32_t wire;       /* RDT_WIRE_* */
    uint32_t wire_block; /* Q8: a power of two from 32 to 1024, or 0 for RDT_WIRE_BLOCK; else 0 */
    void *residual;
};
/* Start a collective; the arrays are copied. RDT_EINVAL, and the errors of rdt_group_endpoint(),
 * which may wait, for the members with which it communicates. If members disagree, the transfer
 * ends with RDT_EMISMATCH, naming the rank and the difference. A member that needs nothing from the
 * others may complete up to 15 collectives before it learns that a member disagrees or is
 * missing. */
RDT_API RDT_NODISCARD rdt_status rdt_coll_post(rdt_group *group, const struct rdt_coll_args *args,
                                               rdt_transfer **out, struct rdt_error *err);

/*
 * Persistent collectives, as MPI-4 has them: what repeats is initialised once and started often.
 *
 * rdt_coll_init() is called by all members in the order of their collectives, with arguments that
 * agree. It copies the arguments and begins an exchange; wait for the transfer, then call
 * rdt_coll_bind(), and wait for its transfer. That compares what the members initialised, chooses
 * the algorithm, builds its schedule and takes its temporary memory. From then on a start writes
 * and reads. Where all members are on one host, members use each other's large tensors in place, if
 * these are in arenas: all tensors of ALLREDUCE (send == recv), `send` of ALLGATHER and
 * REDUCE_SCATTER, the root's of BROADCAST. rdt_coll_get_binding() says whether they do.
 *
 * Members start the same ones in the same order; a start does not match rdt_coll_post(). A start
 * reads what is in the tensors then. Buffers and their regions stay valid until rdt_coll_free() and
 * the end of the last start. If an exchange fails, free it. args->flags is 0, the wire EXACT.
 *   RDT_EINVAL  RDT_ENOMEM, and the errors of rdt_coll_post()
 */
RDT_API RDT_NODISCARD rdt_status rdt_coll_init(rdt_group *group, const struct rdt_coll_args *args,
                                               rdt_persistent **out, rdt_transfer **exchange_out,
                                               struct rdt_error *err);
/* By all members, in the order of their collectives. RDT_EMISMATCH: members initialised different
 * ones; each of them gets that, and the group stays usable. RDT_EBUSY: the exchange has not ended.
 * RDT_EINVAL: it failed, or this was called before. The transfer ends with an error on all members
 * if one of them cannot do its part; the group stays usable then, too. */
RDT_API RDT_NODISCARD rdt_status rdt_coll_bind(rdt_persistent *persistent, rdt_transfer **out,
                                               struct rdt_error *err);
/*
 * Start it. flags: RDT_COLL_SPIN, and for ALLREDUCE RDT_COLL_LABEL().
 *   RDT_EBUSY      an exchange or the last start has not ended
 *   RDT_EINVAL     it is not bound
 *   (members that start different ones: their transfers end with RDT_EMISMATCH, and the group)
 *   RDT_EPEER      a member left or died, or the group broke; RDT_ECLOSED the group was destroyed
 */
RDT_API RDT_NODISCARD rdt_status rdt_coll_start(rdt_persistent *persistent, uint32_t flags,
                                                rdt_transfer **out, struct rdt_error *err);
/* Not collective. What is in flight goes on, with its memory. NULL is legal. Call it before
 * rdt_group_destroy(): one that is left keeps the connections to the members open, so that they do
 * not see this member leave. */
RDT_API void rdt_coll_free(rdt_persistent *persistent);

/* How the starts of a persistent collective work. */
enum {
    RDT_WAY_UNBOUND = 0,  /* its initialisation has not ended, or it failed */
    RDT_WAY_IN_PLACE = 1, /* members use each other's tensors */
    RDT_WAY_STAGES = 2,   /* by copies in memory that the members of a host share */
    RDT_WAY_MESSAGES = 3, /* between hosts, or where members share no memory */
    RDT_WAY_ALONE = 4     /* the group has one member */
};
/* Why a persistent collective does not work in place. Those up to NOT_IN_ARENA travel. */
enum {
    RDT_LANDING_OFFERED = 0,      /* nothing prevents it */
    RDT_LANDING_UNUSED = 1,       /* of a member: no other one reads its tensor */
    RDT_LANDING_OPERATION = 2,    /* the operation is never in place */
    RDT_LANDING_SMALL = 3,        /* copies take less time than another exchange */
    RDT_LANDING_BLOCKS = 4,       /* separate blocks were given */
    RDT_LANDING_APART = 5,        /* all_reduce into another tensor */
    RDT_LANDING_OVERLAPS = 6,     /* what is written overlaps what others read */
    RDT_LANDING_NOT_IN_ARENA = 7, /* the tensor is in no arena */
    RDT_LANDING_NOT_HELD = 8,     /* a member cannot hold the memory of another */
    RDT_LANDING_HOSTS = 9,        /* members are on several hosts, or share no memory */
    RDT_LANDING_GROUP_SIZE = 10,  /* a group of more than 64 members sends messages */
    RDT_LANDING_ALGORITHM = 11    /* RDMATENSOR_ALGO names an algorithm that sends messages */
};
struct rdt_coll_binding {
    uint32_t struct_size;
    uint32_t way;     /* RDT_WAY_* */
    uint32_t landing; /* why it is not in place: RDT_LANDING_* */
    uint32_t rank;    /* group rank of the member that `landing` is about, or RDT_SOURCE_ANY */
    uint64_t starts;
    const char *way_name;  /* static text, as the next: "in place" */
    const char *algorithm; /* NULL while it is unbound */
    const char *reason;    /* `landing` in words; "" if it is OFFERED */
};
/* What members agreed on. The caller sets out->struct_size; of a shorter struct only its fields are
 * filled. Any thread. */
RDT_API void rdt_coll_get_binding(const rdt_persistent *persistent, struct rdt_coll_binding *out);

#ifdef __cplusplus
}
#endif

#endif
