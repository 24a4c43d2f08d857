/* SPDX-License-Identifier: Apache-2.0
 *
 * rdmatensor.h - the C interface of rdmatensor.
 * It includes rdmatensor_group.h: messages and collectives. rdmatensor_ext.h adds the calls for
 * code that composes operations of its own.
 *
 * Objects, from the bottom up:
 *   rdt_context   one per process: the arena, the detected transports, the progress engine
 *   rdt_region    a span of registered memory in which a tensor can be allocated
 *   rdt_endpoint  the connection to one peer over the best path that a probe verified
 *   rdt_transfer  one operation in flight
 *   rdt_slot      the receive buffers of one fixed-shape tensor, matched by name (receiver)
 *   rdt_slot_tx   its counterpart on the sender
 *   rdt_group     ranks mapped to peers: mailbox (tagged send and receive) and collectives
 *
 * Rules that hold for every call:
 *   - Handles are opaque. A parent with live children refuses to close (RDT_EBUSY).
 *   - A call that fails leaves its outputs untouched and undoes what it began. `err` may be NULL.
 *   - Every wait takes a timeout in nanoseconds; RDT_NO_WAIT polls once. No wait is unbounded.
 *   - Threads: any thread may call anything, except that only one thread at a time may use one
 *     endpoint's notifications, one slot or one transfer. No callback runs with a lock held.
 *   - Public structs begin with struct_size, the size that the caller compiled; zero in any other
 *     field means "default". They grow at the end only.
 *   - In a forked child every call that can fail returns RDT_EFORKED, except calls that only read
 *     finished state, such as rdt_transfer_test(). Freeing a handle there does nothing.
 *   - The lists of errors below omit those of every call: RDT_EINVAL for NULL, RDT_ENOMEM for a
 *     handle, RDT_EFORKED, and on an object that has ended the error that ended it.
 */
#ifndef RDMATENSOR_H
#define RDMATENSOR_H

#ifdef RDT_FFI
#define RDT_API
#define RDT_NODISCARD
#else
#include <stddef.h>
#include <stdint.h>

#define RDT_API __attribute__((visibility("default")))
#define RDT_NODISCARD __attribute__((warn_unused_result))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status and errors ------------------------------------------------------------------- */

/* Append-only. The function that detects an error fills struct rdt_error. */
typedef enum rdt_status {
    RDT_OK = 0,
    RDT_EINVAL = -1, /* an argument is wrong: the message names it and its value */
    RDT_ENOMEM = -2, /* memory, cgroup or memlock limit: the message has the line that fixes it */
    RDT_EAGAIN = -3, /* not now: poll and retry */
    RDT_ETIMEDOUT = -4,   /* the deadline passed */
    RDT_ECLOSED = -5,     /* the object was closed on this side */
    RDT_EPEER = -6,       /* a peer died, left or cannot be reached */
    RDT_EPROTO = -7,      /* a peer sent bytes that break the protocol */
    RDT_EAUTH = -8,       /* a peer could not prove that it knows the secret */
    RDT_EVERSION = -9,    /* protocol or library versions differ between peers */
    RDT_EDEVICE = -10,    /* operating system or device: see sys_errno, wc_status, vendor_err */
    RDT_ESTALE = -11,     /* the remote region was freed: its generation has ended */
    RDT_ERANGE = -12,     /* offset + length exceeds the region */
    RDT_EBUSY = -13,      /* live children or operations in flight */
    RDT_EFORKED = -14,    /* called in a forked child */
    RDT_EMISMATCH = -15,  /* both sides disagree on a slot's or a collective's description */
    RDT_ENOTSUP = -16,    /* this path or build cannot do it */
    RDT_ECANCELED = -17,  /* cancelled on this side before it was done */
    RDT_ENOTVIABLE = -18, /* a transport cannot be used here, because ... */
    RDT_EINTERNAL = -19,  /* a bug in rdmatensor: please report it */
    RDT_ECORRUPT = -20    /* received bytes differ from those sent (rdt_context_opts, verify) */
} rdt_status;

#define RDT_ERROR_MESSAGE_BYTES 768
#define RDT_RANK_UNKNOWN (-1)

/* Filled by the call that failed; owned by the caller. Valid only after a failure. */
struct rdt_error {
    int32_t status;    /* rdt_status */
    int32_t sys_errno; /* errno of the system call that failed, else 0 */
    int32_t wc_status; /* ibv_wc_status if verbs reported it, else 0 */
    uint32_t vendor_err;
    int32_t peer_rank; /* global rank at fault, or RDT_RANK_UNKNOWN */
    uint32_t reserved;
    char message[RDT_ERROR_MESSAGE_BYTES]; /* problem, values and remedy; UTF-8 */
};

/* Name of a status, e.g. "RDT_EPEER"; never NULL. */
RDT_API const char *rdt_status_name(int32_t status);

#define RDT_ABI_MAJOR 1
#define RDT_ABI_MINOR 1
/* (major << 16) | minor of the loaded library. */
RDT_API uint32_t rdt_abi_version(void);
/* "1.2.3", the version of the library. Static storage. */
RDT_API const char *rdt_version(void);

enum { RDT_LOG_ERROR = 0, RDT_LOG_WARN = 1, RDT_LOG_INFO = 2, RDT_LOG_DEBUG = 3 };
/* Lines at or below `level` go to stderr; the default is RDT_LOG_WARN. Any thread. */
RDT_API void rdt_log_set_level(int32_t level);

#define RDT_NO_WAIT UINT64_C(0)
/* Stands for the context's timeout wherever a timeout is expected. */
#define RDT_TIMEOUT_DEFAULT UINT64_MAX

/* ---- Context ----------------------------------------------------------------------------- */

typedef struct rdt_context rdt_context;
typedef struct rdt_region rdt_region;
typedef struct rdt_endpoint rdt_endpoint;
typedef struct rdt_transfer rdt_transfer;
typedef struct rdt_slot rdt_slot;
typedef struct rdt_slot_tx rdt_slot_tx;

#define RDT_UUID_BYTES 16

enum {
    RDT_TRANSPORT_AUTO = 0,
    RDT_TRANSPORT_SHM = 1,
    RDT_TRANSPORT_TCP = 2,
    RDT_TRANSPORT_VERBS = 3
};

enum { RDT_VERIFY_OFF = 0, RDT_VERIFY_CRC32C = 1 };
/* Bytes per checksum: the precision with which an error is located. Several chunks are summed at
 * once, so that 64 KiB keep four streams busy. A checksum takes 4 bytes per 16384. */
#define RDT_SUM_CHUNK_BYTES 16384

/* As local_ranks: no thread spins or yields its core; waiters sleep until they are woken. */
#define RDT_LOCAL_RANKS_SLEEP UINT32_MAX

struct rdt_context_opts {
    uint32_t struct_size;
    uint32_t force_transport; /* RDT_TRANSPORT_*: this path for every pair; AUTO chooses by probe */
    uint32_t require_transport; /* minimum between hosts: fail instead of falling back */
    uint32_t tcp_streams;       /* sockets per peer for large payloads; default: limits.h */
    uint32_t port_from;         /* listening ports, inclusive; 0: any port */
    uint32_t port_to;
    uint32_t loopback_only; /* 1: listen on 127.0.0.1 and ::1 only */
    uint32_t local_ranks;   /* processes of the job that share these cores; 0: counted from peers */
    uint64_t timeout_ns;    /* default timeout of every wait */
    uint64_t peer_timeout_ns;   /* silence of a peer's progress thread that means death */
    uint64_t arena_chunk_bytes; /* the arena grows in segments of at least this */
    uint64_t arena_max_bytes;   /* 0: limited only by RAM and the memory cgroup */
    const char *ifname;         /* listen on this interface's addresses; NULL: all */
    const char *addr;           /* listen on and advertise this numeric address; NULL: by ifname */
    /* RDT_VERIFY_CRC32C: senders checksum their payload, and the receiving library compares before
     * it delivers; see rdt_context_verifies(). Peers with different settings refuse each other. */
    uint32_t verify;
    uint32_t reserved;
};

/*
 * Open the process's context: transports, listeners, arena, progress thread.
 *   RDT_EINVAL a field is out of range, no such interface or address   RDT_EDEVICE a system call
 *   failed, or no port is free   RDT_ENOTVIABLE the forced transport cannot be used here
 * One process may hold several contexts (tests do); they share nothing.
 */
RDT_API RDT_NODISCARD rdt_status rdt_context_open(const struct rdt_context_opts *opts,
                                                  rdt_context **out, struct rdt_error *err);
/* RDT_EBUSY, and no effect, while regions, endpoints, groups or transfers live. Waits up to three
 * seconds until peers have received the goodbye, and without limit for a device that still accesses
 * memory of this process. NULL is legal. */
RDT_API RDT_NODISCARD rdt_status rdt_context_close(rdt_context *ctx, struct rdt_error *err);

/* 128 random bits that identify the process to its peers. */
RDT_API void rdt_context_uuid(const rdt_context *ctx, uint8_t uuid_out[RDT_UUID_BYTES]);

/*
 * Admit peers of `job_id` (at most 63 bytes of text): both sides must know `secret`
 * (1 to 64 bytes, copied). Adding the same job again replaces its secret. `epoch` is the job's
 * membership epoch: peers of the same job with another epoch are refused with an error that names
 * it. `rank` is this process's rank in the job, for messages, or RDT_RANK_UNKNOWN.
 *   RDT_EINVAL the text or the secret is too long or empty
 */
RDT_API RDT_NODISCARD rdt_status rdt_context_add_job(rdt_context *ctx, const char *job_id,
                                                     const uint8_t *secret, uint32_t secret_bytes,
                                                     uint32_t epoch, int32_t rank,
                                                     struct rdt_error *err);

#define RDT_ADDRESS_MAX_BYTES 1024
/* The address that a peer needs for rdt_endpoint_open(); at most RDT_ADDRESS_MAX_BYTES, carries
 * no secret. Publish it in a key-value store. RDT_EINVAL if cap is too small. */
RDT_API RDT_NODISCARD rdt_status rdt_context_address(rdt_context *ctx, uint8_t *buf, size_t cap,
                                                     size_t *len_out, struct rdt_error *err);

/* A JSON object that describes the live state: settings, arena, every endpoint with its path, the
 * reason for that path and against a better one, counters. `needed_out` gets the bytes without the
 * final NUL; RDT_EINVAL with needed_out set if cap is too small (call again). */
RDT_API RDT_NODISCARD rdt_status rdt_context_describe(rdt_context *ctx, char *buf, size_t cap,
                                                      size_t *needed_out, struct rdt_error *err);

/*
 * A JSON object with the NUMA nodes of the arena's pages and of the CPUs that the process may use:
 * node_bytes, cpu_nodes, far_bytes (on nodes without such a CPU), all null if the kernel does not
 * report them, and the reason. buf, cap and needed_out as in rdt_context_describe(); 64 KiB hold
 * it. The kernel visits each page of the process, which may take a second in a large process, and
 * the other threads cannot map memory meanwhile: do not call it periodically.
 */
RDT_API RDT_NODISCARD rdt_status rdt_context_placement(rdt_context *ctx, char *buf, size_t cap,
                                                       size_t *needed_out, struct rdt_error *err);

/* Totals since the context was opened: moves by transports, copies by the library, messages. */
struct rdt_counters {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t writes;           /* one-sided writes posted by this process */
    uint64_t reads;            /* one-sided reads posted by this process */
    uint64_t notifications;    /* notifications received */
    uint64_t moved_bytes;      /* payload that transports moved into its final place */
    uint64_t copied_bytes;     /* any other pass over payload bytes by the library */
    uint64_t control_messages; /* messages sent with an address, a shape or a request */
    uint64_t credits_alone;    /* credits sent without data */
    uint64_t registrations;    /* regions registered or allocated */
    uint64_t wakeups_sent;     /* system calls made only to wake a sleeping peer */
    uint64_t wire_bytes;       /* handed to sockets, with headers, and to devices */
    uint64_t mailbox_eager;    /* messages sent through an eager ring */
    uint64_t mailbox_rendezvous;
    uint64_t verified_bytes;   /* received bytes compared with their sender's checksums */
    uint64_t mismatches;       /* comparisons that failed */
    uint64_t registered_bytes; /* with RDMA devices: for each device and kind of access */
    uint64_t registration_ns;  /* in the devices' calls to register and deregister */
    uint64_t wait_ns;   /* in rdt_transfer_wait() and the other calls that wait for an action of a
                           peer, sum of all threads, to within some polls; without set-up */
    uint64_t failovers; /* endpoints that moved to tcp because verbs was lost */
    uint64_t mailbox_placed; /* messages written directly into their persistent receive */
    /* Parts of moved_bytes, by path; the rest stayed within this process. */
    uint64_t shm_bytes;
    uint64_t tcp_bytes;
    uint64_t verbs_bytes;
    /* And by class: to or from a place that was known before (static and bounded slots, persistent
     * receives, writes and reads by address, sums in place); with a place or size that was sent for
     * this transfer, including heads; and bytes that carry no payload. */
    uint64_t planned_bytes;
    uint64_t dynamic_bytes;
    uint64_t control_bytes;
    uint64_t fallback_bytes; /* payload over a worse path than this pair of processes should have
                                had, and messages that could not be written into their persistent
                                receive */
    uint64_t reconnections;  /* paths to a process that another path had reached before: failovers,
                                and connections after an earlier one had ended */
    uint64_t side_channel_bytes; /* frames and their heads on the side channels to peers, which no
                                    transport moves: set-up, revocations, deaths, heartbeats */
    /* Parts of copied_bytes and control_messages, by the class of the transfers that they served;
     * the rest was for the paths themselves: segments, keys, failovers. Copies of collectives are
     * dynamic: over boards, and out of memory that the group keeps; sums in place copy nothing. */
    uint64_t planned_copied_bytes;
    uint64_t dynamic_copied_bytes;
    uint64_t planned_control_messages;
    uint64_t dynamic_control_messages;
};
/* The caller sets out->struct_size; of a shorter struct only its fields are filled. */
RDT_API void rdt_context_counters(rdt_context *ctx, struct rdt_counters *out);

/* One transfer in the trace. */
struct rdt_trace_event {
    uint32_t struct_size;
    int32_t status;     /* result; RDT_EAGAIN: in flight */
    uint64_t sequence;  /* from 1 on, in the order of their starts */
    uint64_t start_ns;  /* CLOCK_REALTIME */
    uint64_t end_ns;    /* 0: in flight */
    uint64_t len_bytes; /* requested; after the end those that moved, if known */
    int32_t peer_rank;  /* or RDT_RANK_UNKNOWN: of a collective, or if any source may answer */
    uint32_t reserved;
    char name[32]; /* "write", "all_reduce" */
};
/*
 * From now on keep the last `capacity` transfers, at about 100 bytes and 0.1 us each. Once per
 * context: RDT_EINVAL if it is already on, or for a capacity of 0 or over 2^24.
 */
RDT_API RDT_NODISCARD rdt_status rdt_context_trace_start(rdt_context *ctx, uint32_t capacity,
                                                         struct rdt_error *err);
/*
 * Copies up to `cap` events whose sequence is `first` or later, oldest first, and returns their
 * number; `next_out` gets the sequence to continue with. Events that newer ones have replaced are
 * left out. The caller's events have this header's size. 0 if no trace was started.
 */
RDT_API uint32_t rdt_context_trace_read(rdt_context *ctx, uint64_t first,
                                        struct rdt_trace_event *events, uint32_t cap,
                                        uint64_t *next_out);

/* Bucket i counts transfers of at most 2^i us that exceed the bucket before; the last has no upper
 * bound. */
#define RDT_TRACE_BUCKETS 28
/* All transfers of one name that ended since the trace was started, except those that were still in
 * flight when newer ones took their entry. */
struct rdt_trace_histogram {
    uint32_t struct_size;
    uint32_t reserved;
    char name[32]; /* "other": all names after the first 31 */
    uint64_t count;
    uint64_t sum_ns;
    uint64_t sum_bytes;
    uint64_t buckets[RDT_TRACE_BUCKETS];
};
/* The histogram of the index-th name, from 0 on; its numbers may be from slightly different times.
 * RDT_ERANGE: there are not that many names. Without a trace there are none. */
RDT_API RDT_NODISCARD rdt_status rdt_context_trace_histogram(rdt_context *ctx, uint32_t index,
                                                             struct rdt_trace_histogram *out);

/* Drive the engine once without waiting, unless another thread is driving it: for callers with a
 * loop of their own. Any thread. */
RDT_API RDT_NODISCARD rdt_status rdt_context_progress(rdt_context *ctx);

/* A file descriptor for callers with a poll loop of their own. It becomes readable when something
 * arrived, ended or changed; then call rdt_context_progress(), which makes it unreadable again, and
 * after that check your transfers, slots and notifications. The context owns it; do not read from
 * it. -1 in a forked child. */
RDT_API int rdt_context_fd(rdt_context *ctx);

/* ---- Regions ----------------------------------------------------------------------------- */

/* The bytes are zero, else undefined. They are, and over shm other processes only read them. */
enum { RDT_REGION_ZERO = 1, RDT_REGION_READ_ONLY = 2 };

/*
 * Allocate len_bytes (0 is legal) in the arena, aligned to 64 bytes. The caller frees it.
 *   RDT_ENOMEM the message names the limit and the line that raises it   RDT_EINVAL unknown flags
 */
RDT_API RDT_NODISCARD rdt_status rdt_region_alloc(rdt_context *ctx, uint64_t len_bytes,
                                                  uint32_t flags, rdt_region **out,
                                                  struct rdt_error *err);
/*
 * Make memory of the caller a target of peers' writes and reads. The caller keeps it alive and in
 * place until rdt_region_free() has returned and the drain callback has run. Peers on this host
 * access it over tcp or, if permitted, through the kernel, never by mapping.
 */
RDT_API RDT_NODISCARD rdt_status rdt_region_register(rdt_context *ctx, void *addr,
                                                     uint64_t len_bytes, rdt_region **out,
                                                     struct rdt_error *err);
RDT_API void *rdt_region_addr(const rdt_region *region);
RDT_API uint64_t rdt_region_len_bytes(const rdt_region *region);
/*
 * Free the region. The handle becomes invalid at once. Exported bytes stay in quarantine until no
 * peer can write them any more: then an arena span is reused, and for registered memory
 * `drained(arg)` is called (may be NULL). The thread that registers large memory with RDMA devices
 * may call it, so it must not wait for an operation that needs such a registration. NULL region is
 * legal.
 */
RDT_API void rdt_region_free(rdt_region *region, void (*drained)(void *arg), void *arg);

/* What a peer needs to access a region: a value that can be copied, and encoded to be sent. */
struct rdt_remote_region {
    uint8_t owner[RDT_UUID_BYTES];
    uint64_t addr; /* in the owner's address space */
    uint64_t len_bytes;
    uint64_t segment_off; /* bytes from the start of the segment */
    uint32_t segment;     /* of the arena, or RDT_SEGMENT_NONE for registered memory */
    uint32_t index;       /* entry of the owner's region table */
    uint32_t generation;  /* of that entry; it ends when the region is freed */
    uint32_t rkey;        /* verbs only, else 0 */
};
#define RDT_SEGMENT_NONE UINT32_C(0xffffffff)
#define RDT_REMOTE_REGION_BYTES 64

/* From now on the region's bytes go through quarantine when it is freed. Exporting the same region
 * again gives the same result. RDT_ENOMEM: a million regions are exported or in quarantine. */
RDT_API RDT_NODISCARD rdt_status rdt_region_export(rdt_region *region,
                                                   struct rdt_remote_region *out,
                                                   struct rdt_error *err);
RDT_API void rdt_remote_region_encode(const struct rdt_remote_region *remote,
                                      uint8_t out[RDT_REMOTE_REGION_BYTES]);
/* RDT_EPROTO (length, checksum, an impossible field), RDT_EVERSION. */
RDT_API RDT_NODISCARD rdt_status rdt_remote_region_decode(const uint8_t *buf, size_t len_bytes,
                                                          struct rdt_remote_region *out,
                                                          struct rdt_error *err);
/* The region that holds all of [addr, addr + len_bytes), or NULL. Its owner keeps it. */
RDT_API rdt_region *rdt_region_find(rdt_context *ctx, const void *addr, uint64_t len_bytes);

/* ---- Endpoints --------------------------------------------------------------------------- */

struct rdt_endpoint_opts {
    uint32_t struct_size;
    int32_t peer_rank;   /* global rank for messages, or RDT_RANK_UNKNOWN */
    uint64_t timeout_ns; /* of the whole set-up; RDT_TIMEOUT_DEFAULT or 0: the context's */
    const char *job_id;  /* a job added by rdt_context_add_job() */
};

/*
 * The endpoint to the process that published `address`; returns at once, and set-up continues in
 * the background. Opening the same peer again returns the same endpoint and counts: each open needs
 * its rdt_endpoint_close().
 *   RDT_EINVAL an unknown job, or this process's own   RDT_EPROTO, RDT_EVERSION of the address
 *   RDT_EPEER that process is known to be dead   RDT_EMISMATCH only one of the two verifies,
 *   or that process connected before as another rank of this job
 */
RDT_API RDT_NODISCARD rdt_status rdt_endpoint_open(rdt_context *ctx, const uint8_t *address,
                                                   size_t address_bytes,
                                                   const struct rdt_endpoint_opts *opts,
                                                   rdt_endpoint **out, struct rdt_error *err);
/*
 * Wait until both sides have verified the path.
 *   RDT_ETIMEDOUT of this wait, or of the whole set-up   RDT_EPEER   RDT_EAUTH   RDT_EVERSION
 *   RDT_EMISMATCH another epoch or rank, no path as good as one side requires, or only one side
 *   verifies
 */
RDT_API RDT_NODISCARD rdt_status rdt_endpoint_wait_ready(rdt_endpoint *ep, uint64_t timeout_ns,
                                                         struct rdt_error *err);
/* Drop one count. The last one closes after flushing; the peer sees "left", not "died". */
RDT_API void rdt_endpoint_close(rdt_endpoint *ep);
/* RDT_TRANSPORT_* of the path in use, or RDT_TRANSPORT_AUTO while there is none. */
RDT_API uint32_t rdt_endpoint_transport(const rdt_endpoint *ep);
/* Any thread, also from tasks, without waiting. RDT_OK during set-up and while it works; else the
 * reason for its end: RDT_EPEER the peer left or died, RDT_ECLOSED closed here, or the error that
 * broke it. All stores of a peer that left, into memory that is held, happened before. */
RDT_API RDT_NODISCARD rdt_status rdt_endpoint_error(const rdt_endpoint *ep, struct rdt_error *err);

/* User notifications carry 18 bits. */
#define RDT_NOTIFY_NONE UINT32_C(0xffffffff)
#define RDT_NOTIFY_MAX UINT32_C(0x3ffff)

/*
 * Write len_bytes from src to dst_off of the remote region. If `notify` is not RDT_NOTIFY_NONE, it
 * is delivered to the peer after the bytes are in place. Writes and notifications to one peer
 * arrive in order. src must stay unchanged until the transfer is done, or, with `out` NULL, until a
 * later transfer on this endpoint is done.
 *   RDT_ERANGE  RDT_ESTALE  RDT_ECLOSED  RDT_EPEER  RDT_EINVAL
 */
RDT_API RDT_NODISCARD rdt_status rdt_endpoint_write(rdt_endpoint *ep, const void *src,
                                                    uint64_t len_bytes,
                                                    const struct rdt_remote_region *dst,
                                                    uint64_t dst_off, uint32_t notify,
                                                    rdt_transfer **out, struct rdt_error *err);
struct rdt_block {
    const void *src;
    uint64_t len_bytes;
    uint64_t dst_off;
};
/* Writes all blocks to one remote region, with one notification after the last. `blocks` is copied,
 * the bytes are not. Without blocks it is a write of no bytes. Errors as above. */
RDT_API RDT_NODISCARD rdt_status rdt_endpoint_write_many(rdt_endpoint *ep,
                                                         const struct rdt_block *blocks,
                                                         uint32_t count,
                                                         const struct rdt_remote_region *dst,
                                                         uint32_t notify, rdt_transfer **out,
                                                         struct rdt_error *err);
/* Read len_bytes from src_off of the remote region into dst, which must stay valid until it is
 * done. Errors as rdt_endpoint_write(). */
RDT_API RDT_NODISCARD rdt_status rdt_endpoint_read(rdt_endpoint *ep, void *dst, uint64_t len_bytes,
                                                   const struct rdt_remote_region *src,
                                                   uint64_t src_off, rdt_transfer **out,
                                                   struct rdt_error *err);
/* Takes the oldest user notification from this peer. RDT_EAGAIN with RDT_NO_WAIT, else
 * RDT_ETIMEDOUT; the endpoint's error after all notifications before its end were taken.
 * RDT_ESTALE: replaces a notification whose bytes could not be compared, because their region was
 * freed. */
RDT_API RDT_NODISCARD rdt_status rdt_endpoint_wait_notify(rdt_endpoint *ep, uint64_t timeout_ns,
                                                          uint32_t *out, struct rdt_error *err);
/*
 * The address of the remote region in this process, if the path is shm. It stays valid while the
 * endpoint lives; the caller must not unmap it. May wait until the peer sends a segment of its
 * arena, up to the context's timeout.
 *   RDT_ENOTSUP another path, or registered memory   RDT_ESTALE   RDT_ERANGE   RDT_ETIMEDOUT
 */
RDT_API RDT_NODISCARD rdt_status rdt_endpoint_map(rdt_endpoint *ep,
                                                  const struct rdt_remote_region *remote,
                                                  void **out, struct rdt_error *err);

/* ---- Transfers --------------------------------------------------------------------------- */

/* RDT_OK done, RDT_EAGAIN in flight, else the error that ended it. Does not drive the engine. */
RDT_API RDT_NODISCARD rdt_status rdt_transfer_test(rdt_transfer *t, struct rdt_error *err);
/* As above, but RDT_ETIMEDOUT if it is still in flight; it continues. RDT_EINVAL inside a task. */
RDT_API RDT_NODISCARD rdt_status rdt_transfer_wait(rdt_transfer *t, uint64_t timeout_ns,
                                                   struct rdt_error *err);
/*
 * `done(arg)` is called once, without a lock held, by the thread that sees the completion; at
 * once if it is already done. At most one per transfer. That thread may be the one that registers
 * large memory with RDMA devices: done() must not wait for an operation that needs such a
 * registration.
 */
RDT_API void rdt_transfer_on_done(rdt_transfer *t, void (*done)(void *arg), void *arg);
/* After a receive: bytes that arrived and the group rank of their sender. */
RDT_API uint64_t rdt_transfer_len_bytes(const rdt_transfer *t);
RDT_API int32_t rdt_transfer_source(const rdt_transfer *t);
/*
 * Free the handle. A transfer in flight continues; its buffers must stay valid until it ends. A
 * receive that has not matched is cancelled. A persistent receive whose place the sender knows
 * (rdt_group_recv) is in flight: it ends after the sender has answered, or its message has arrived.
 * A message written into its place until then is lost; one that arrived on another path goes to the
 * next receive.
 */
RDT_API void rdt_transfer_free(rdt_transfer *t);

/* ---- Slots ------------------------------------------------------------------------------- */

enum {
    RDT_BOOL = 1,
    RDT_U8,
    RDT_I8,
    RDT_I16,
    RDT_U16,
    RDT_I32,
    RDT_U32,
    RDT_I64,
    RDT_U64,
    RDT_F16,
    RDT_BF16,
    RDT_F32,
    RDT_F64,
    RDT_C64,
    RDT_C128
};
/* Bytes of one element, or 0 for an unknown dtype. */
RDT_API uint32_t rdt_dtype_bytes(uint32_t dtype);
/* "float32" and so on, "unknown" for an unknown dtype; never NULL. */
RDT_API const char *rdt_dtype_name(uint32_t dtype);

enum { RDT_SLOT_STATIC = 1, RDT_SLOT_BOUNDED = 2, RDT_SLOT_DYNAMIC = 3 };
#define RDT_MAX_NDIM 8
#define RDT_SLOT_NAME_BYTES 128

/* Both sides give it, and must agree. For RDT_SLOT_BOUNDED the dims are the maximum. For
 * RDT_SLOT_DYNAMIC only their number, ndim, counts. */
struct rdt_tensor_desc {
    uint32_t struct_size;
    uint32_t kind; /* RDT_SLOT_* */
    uint32_t dtype;
    uint32_t ndim;
    uint64_t dims[RDT_MAX_NDIM];
};

/*
 * Receiver: create the slot and announce it to the peer; returns at once. The slot counts as a user
 * of the endpoint until rdt_slot_destroy().
 *   RDT_EINVAL the name or the description   RDT_ENOMEM as rdt_region_alloc()
 */
RDT_API RDT_NODISCARD rdt_status rdt_slot_create(rdt_endpoint *ep, const char *name,
                                                 const struct rdt_tensor_desc *desc, rdt_slot **out,
                                                 struct rdt_error *err);
struct rdt_slot_view {
    void *addr; /* owned by the slot until rdt_slot_release() */
    uint64_t len_bytes;
    uint64_t dims[RDT_MAX_NDIM]; /* as the sender gave them */
    uint32_t ndim;
    uint32_t epoch;
};
/*
 * The next tensor, in the sender's order. Tensors that arrived whole are still returned after the
 * slot has ended.
 *   RDT_ETIMEDOUT   RDT_EBUSY both buffers are held: release one
 *   RDT_EMISMATCH the sender expects another shape
 *   RDT_ESTALE the sender of a dynamic slot took the tensor back before it was read: it is lost,
 *   and the next call waits for the following one
 *   RDT_ENOMEM no memory to read a dynamic tensor into, as rdt_region_alloc(): free some and call
 *   again, the tensor is still there
 *   RDT_EPEER the peer is gone, and all tensors that it wrote whole were returned
 *   RDT_EPROTO the peer wrote a header that does not fit the slot   RDT_EINVAL called from a task
 */
RDT_API RDT_NODISCARD rdt_status rdt_slot_get(rdt_slot *slot, uint64_t timeout_ns,
                                              struct rdt_slot_view *out, struct rdt_error *err);
/* Release the buffer of the oldest tensor that rdt_slot_get() returned: its credit goes back to the
 * sender. RDT_EINVAL: none is held. */
RDT_API RDT_NODISCARD rdt_status rdt_slot_release(rdt_slot *slot, struct rdt_error *err);
/* Views of its buffers become invalid; the sender's calls fail with RDT_ECLOSED. NULL is legal. */
RDT_API void rdt_slot_destroy(rdt_slot *slot);

/*
 * Sender: the peer's slot of that name; waits for its announcement. Counts as a user of the
 * endpoint until rdt_slot_tx_destroy().
 *   RDT_ETIMEDOUT   RDT_EMISMATCH the peer describes it differently   RDT_EBUSY already open
 *   RDT_ECLOSED the peer has just destroyed it
 */
RDT_API RDT_NODISCARD rdt_status rdt_slot_tx_open(rdt_endpoint *ep, const char *name,
                                                  const struct rdt_tensor_desc *desc,
                                                  uint64_t timeout_ns, rdt_slot_tx **out,
                                                  struct rdt_error *err);
/*
 * One-sided write of a tensor of the given dims (NULL: the slot's) into the slot. Waits for a
 * credit until the timeout. The caller keeps src valid and unchanged until *out is done; out may be
 * NULL on shm only.
 *   RDT_ETIMEDOUT no credit   RDT_EMISMATCH the dims   RDT_ECLOSED the peer destroyed the slot
 *   RDT_EBUSY a buffer was not posted   RDT_EINVAL out is NULL on another path
 */
RDT_API RDT_NODISCARD rdt_status rdt_slot_tx_put(rdt_slot_tx *tx, const void *src,
                                                 const uint64_t *dims, uint64_t timeout_ns,
                                                 rdt_transfer **out, struct rdt_error *err);
/*
 * The buffer in which the caller can allocate the next tensor: the receiver's buffer on shm, arena
 * memory of this process otherwise. Waits for a credit. Valid until rdt_slot_tx_post(). Static and
 * bounded slots only.
 *   RDT_ETIMEDOUT   RDT_ENOTSUP a dynamic slot   RDT_EBUSY the last buffer was not posted
 *   RDT_ECLOSED the peer destroyed the slot   RDT_ENOMEM
 */
RDT_API RDT_NODISCARD rdt_status rdt_slot_tx_buffer(rdt_slot_tx *tx, uint64_t timeout_ns,
                                                    void **out, struct rdt_error *err);
/* Send the buffer of rdt_slot_tx_buffer(). After RDT_EINVAL and RDT_EMISMATCH (the dims) the caller
 * still owns the buffer; after any other error it does not. */
RDT_API RDT_NODISCARD rdt_status rdt_slot_tx_post(rdt_slot_tx *tx, const uint64_t *dims,
                                                  rdt_transfer **out, struct rdt_error *err);
/* A buffer that was not posted becomes invalid; posted tensors are still sent. NULL is legal. */
RDT_API void rdt_slot_tx_destroy(rdt_slot_tx *tx);

#ifdef __cplusplus
}
#endif

#include "rdmatensor_group.h"

#endif
