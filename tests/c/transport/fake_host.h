/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_host.h - a small core for tests of any transport: regions, engine and side channel without
 * endpoints. Two hosts may live in one process, or in two that fork() made; the side channel is a
 * Unix socket pair in both cases, so that descriptors and bytes go the same way.
 *
 *     struct fake_host a, b;
 *     struct fake_link ab, ba;
 *     fake_host_open(&a, &rdti_transport_shm);
 *     fake_host_open(&b, &rdti_transport_shm);
 *     fake_connect(&a, &ab, &b, &ba, NULL);          (pumps until both lanes are ready)
 *     ... fake_region() on b, fake_write() on ab, FAKE_PUMP_UNTIL(&a, &b, ba.notify_count == 1, 5);
 *     fake_disconnect(&ab, &ba); fake_host_close(&a); fake_host_close(&b);
 *
 * A broken expectation ends the test at once (harness.h, FAIL). Threads: the pump takes the host's
 * engine lock, as do open, close and connect; everything else is for one thread unless it says so.
 */
#ifndef RDT_TESTS_FAKE_HOST_H
#define RDT_TESTS_FAKE_HOST_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "transport/transport.h"

#define FAKE_REGIONS_MAX 256
#define FAKE_SEGMENTS_MAX 64
/* As the core has it: 20 bits of region index, four bytes each, sparse. */
#define FAKE_GENERATION_TABLE_BYTES (UINT64_C(4) << 20)
#define FAKE_DOORBELL_BYTES 4096

struct fake_segment {
    int fd;
    uint8_t *addr;
    uint64_t len_bytes;
};

struct fake_region {
    uint8_t *addr;
    struct rdt_remote_region remote;
    bool is_live;
    uint32_t pins; /* target_acquire() less target_release() */
};

struct fake_link;

struct fake_host {
    struct rdti_host host; /* what open() gets */
    const struct rdti_transport *transport;
    void *state;
    pthread_mutex_t engine;
    struct rdti_counters_ref counters;
    struct rdti_doorbell *bell;
    _Atomic uint32_t *generations;
    int epoll_fd;
    struct rdti_watch *watches;
    struct rdti_watch *dead_watches; /* unwatched; freed after the batch that may still name them */
    uint32_t watch_count;            /* live ones, the host's own not counted */
    struct fake_region regions[FAKE_REGIONS_MAX]; /* index 0 is never used */
    uint32_t region_count;
    struct fake_segment segments[FAKE_SEGMENTS_MAX];
    uint32_t segment_count;
    struct rdti_list links;
};

/* One lane with everything that was reported about it. lane->owner is the link. */
struct fake_link {
    struct rdti_list node;
    struct fake_host *host;
    struct rdti_lane *lane; /* NULL after close */
    int side_fd;            /* our end of the side channel, owned; -1: none */
    bool is_offered;        /* the peer's offer came and connect() was called */
    rdt_status connect_status;
    struct rdt_error connect_error;
    uint32_t ready_count;
    uint32_t error_count;
    struct rdt_error error; /* of on_error() */
    bool is_peer_gone;      /* the side channel ended */
    uint32_t *notifications;
    uint32_t notify_count;
    uint32_t notify_cap;
    /* Instead of recording, if set. Under the engine lock, as the core's. */
    void (*on_notify)(struct fake_link *link, uint32_t notification, void *arg);
    void *on_notify_arg;
    /* Segments that the peer asked for while is_holding: answered by fake_link_answer(). */
    bool is_holding;
    uint32_t held[FAKE_SEGMENTS_MAX];
    uint32_t held_count;
    _Atomic uint32_t segment_requests; /* made by our lane; seq_cst, a statistic of tests */
};

/* An op that counts its completions; zero it by fake_write() or fake_read() only. */
struct fake_op {
    struct rdti_op op;
    _Atomic uint32_t completions; /* release by complete(), acquire by fake_op_is_done() */
    rdt_status status;
    struct rdt_error error;
};

/* ---- Hosts ------------------------------------------------------------------------------- */

void fake_host_open(struct fake_host *host, const struct rdti_transport *transport);
/* The same where open() may fail: then the host is closed again, and its status returned. */
rdt_status fake_host_try_open(struct fake_host *host, const struct rdti_transport *transport,
                              struct rdt_error *err);
/* All links must be closed. Checks that the transport left no watch and no pin behind. */
void fake_host_close(struct fake_host *host);

/* A piece of arena: a sealed memfd; its number. */
uint32_t fake_segment(struct fake_host *host, uint64_t len_bytes);
/* An exported region in a segment of its own, zeroed. Valid until fake_host_close(). */
struct fake_region *fake_region(struct fake_host *host, uint64_t len_bytes);
/* The same at a place of a segment. */
struct fake_region *fake_region_in(struct fake_host *host, uint32_t segment, uint64_t off_bytes,
                                   uint64_t len_bytes);
/* The same over memory of the caller's (RDT_SEGMENT_NONE). */
struct fake_region *fake_region_private(struct fake_host *host, void *addr, uint64_t len_bytes);
/* Ends the generation: target_acquire() and initiators see it as stale. */
void fake_region_revoke(struct fake_host *host, struct fake_region *region);

/* ---- Links ------------------------------------------------------------------------------- */

/* Arguments with a session, a deadline of 30 s (scaled) and loopback; fields may be changed. */
struct rdti_lane_args fake_lane_args(bool is_connector);
/* Both ends of a side channel (Unix, SOCK_SEQPACKET). */
void fake_side_channel(int out[2]);

/*
 * make_offer(), and the offer goes to the peer through side_fd (taken over). The peer's offer is
 * taken by the pump, which calls connect(): then is_offered, connect_status and ready_count say how
 * it went.
 */
void fake_link_open(struct fake_host *host, struct fake_link *link, int side_fd,
                    const struct rdti_lane_args *args);
/* The same where make_offer() may fail: then there is no link, and side_fd is closed. */
rdt_status fake_link_try_open(struct fake_host *host, struct fake_link *link, int side_fd,
                              const struct rdti_lane_args *args, struct rdt_error *err);
/* The two steps apart, for tests that tamper with offers; descriptors in *offer stay the lane's. */
void fake_link_offer(struct fake_host *host, struct fake_link *link, int side_fd,
                     const struct rdti_lane_args *args, struct rdti_offer *offer);
void fake_link_send_offer(struct fake_link *link, const struct rdti_offer *offer);
/* Answer what was held back. */
void fake_link_answer(struct fake_link *link);
/* close_lane() with `status`; the side channel is closed too. */
void fake_link_close(struct fake_link *link, rdt_status status);
/* Frees the record; the link must be closed. */
void fake_link_free(struct fake_link *link);

/* Both links of two hosts in this process, until both are ready. connector_args NULL: default. */
void fake_connect(struct fake_host *a, struct fake_link *ab, struct fake_host *b,
                  struct fake_link *ba, const struct rdti_lane_args *connector_args);
/* fake_link_close(RDT_ECLOSED) and fake_link_free() of both. */
void fake_disconnect(struct fake_link *ab, struct fake_link *ba);

/* ---- Engine ------------------------------------------------------------------------------ */

/* One pass: side channels, ready descriptors, transport->poll(). Returns how much was done. Any
 * thread. */
uint32_t fake_pump(struct fake_host *host);
/*
 * A pass, then, if nothing was done, one sleep of at most timeout_ns by the wake-up protocol: epoll
 * where needs_epoll(), else the futex (side channels are not heard then). Any thread. Returns the
 * pass's work.
 */
uint32_t fake_pump_or_sleep(struct fake_host *host, uint64_t timeout_ns);

/* Pump one or two hosts (b may be NULL) until the condition holds, at most timeout_s (scaled). */
#define FAKE_PUMP_UNTIL(a, b, condition, timeout_s)                              \
    do {                                                                         \
        struct fake_host *const fake_a_ = (a);                                   \
        struct fake_host *const fake_b_ = (b);                                   \
        const uint64_t fake_deadline_ = fake_deadline_ns(timeout_s);             \
        while (!(condition)) {                                                   \
            (void)fake_pump(fake_a_);                                            \
            if (fake_b_ != NULL)                                                 \
                (void)fake_pump(fake_b_);                                        \
            fake_check_deadline(fake_deadline_, __FILE__, __LINE__, #condition); \
        }                                                                        \
    } while (0)

uint64_t fake_deadline_ns(double timeout_s);
/* Ends the test, naming file, line and condition, once the deadline has passed. */
void fake_check_deadline(uint64_t deadline_ns, const char *file, int line, const char *condition);

/* ---- Operations -------------------------------------------------------------------------- */

/* Fill *op; then fake_start(). */
void fake_write(struct fake_op *op, const void *src, uint64_t len_bytes,
                const struct rdt_remote_region *dst, uint64_t dst_off, uint32_t notify);
void fake_write_many(struct fake_op *op, const struct rdt_block *blocks, uint32_t count,
                     const struct rdt_remote_region *dst, uint32_t notify);
void fake_read(struct fake_op *op, void *dst, uint64_t len_bytes,
               const struct rdt_remote_region *src, uint64_t src_off);
/* transport->write() or read(); any thread. */
rdt_status fake_start(struct fake_link *link, struct fake_op *op, struct rdt_error *err);
/* fake_start() that must be accepted. */
void fake_must_start(struct fake_link *link, struct fake_op *op);
/* Completed (exactly once, else the test ends). Any thread. */
bool fake_op_is_done(struct fake_op *op);

/* ---- Witnesses --------------------------------------------------------------------------- */

uint32_t fake_count_fds(void);
uint32_t fake_count_mappings(void); /* shared ones: those of sanitizers are private */
uint64_t fake_address_space_bytes(void);

#endif
