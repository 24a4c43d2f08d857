/* SPDX-License-Identifier: Apache-2.0
 * Ranks as forked processes with a group over the real core; addresses go through a shared page. */
#ifndef RDTI_TESTS_RANKS_RIG_H
#define RDTI_TESTS_RANKS_RIG_H

#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "harness.h"
#include "rdmatensor.h"

#define RANKS_MAX 8
#define RANKS_S UINT64_C(1000000000)

struct ranks_board {
    struct {
        _Atomic uint32_t is_there;
        uint32_t len_bytes;
        uint8_t bytes[RDT_ADDRESS_MAX_BYTES];
    } addresses[RANKS_MAX];
    _Atomic uint32_t arrived;
    _Atomic uint64_t marks[RANKS_MAX]; /* free use of a test */
};

struct rank {
    struct ranks_board *board;
    uint32_t rank;
    uint32_t size;
    rdt_context *ctx;
    rdt_group *group;
};

static inline void
ranks_ok(const struct rank *r, rdt_status status, const struct rdt_error *err, const char *what)
{
    if (status != RDT_OK)
        fprintf(stderr, "rank %u: %s: %s: %s\n", r->rank, what, rdt_status_name(status),
                err->message);
    CHECK(status == RDT_OK);
}

static inline rdt_status
ranks_address(void *arg, uint32_t rank, uint64_t timeout_ns, uint8_t *buf, size_t cap,
              size_t *len_out, struct rdt_error *err)
{
    struct ranks_board *board = arg;

    (void)timeout_ns;
    (void)err;
    /* acquire: pairs with the release in ranks_join() */
    while (atomic_load_explicit(&board->addresses[rank].is_there, memory_order_acquire) == 0)
        (void)sched_yield();
    CHECK(board->addresses[rank].len_bytes <= cap);
    memcpy(buf, board->addresses[rank].bytes, board->addresses[rank].len_bytes);
    *len_out = board->addresses[rank].len_bytes;
    return RDT_OK;
}

static inline void
ranks_join(struct rank *r, uint32_t transport)
{
    struct rdt_error err = {0};
    size_t len_bytes = 0;
    const struct rdt_context_opts opts = {
        .struct_size = sizeof(opts),
        .force_transport = transport,
        .loopback_only = 1,
        .local_ranks = r->size,
        .timeout_ns = 20 * RANKS_S,
        .peer_timeout_ns = 3 * RANKS_S,
        .arena_chunk_bytes = 1 << 20,
    };
    const struct rdt_group_opts group = {
        .struct_size = sizeof(group),
        .rank = r->rank,
        .size = r->size,
        .name = "world",
        .job_id = "job",
        .timeout_ns = 20 * RANKS_S,
        .address = ranks_address,
        .address_arg = r->board,
    };

    ranks_ok(r, rdt_context_open(&opts, &r->ctx, &err), &err, "context_open");
    ranks_ok(r,
             rdt_context_add_job(r->ctx, "job", (const uint8_t *)"key", 3, 0, (int32_t)r->rank,
                                 &err),
             &err, "add_job");
    ranks_ok(r,
             rdt_context_address(r->ctx, r->board->addresses[r->rank].bytes, RDT_ADDRESS_MAX_BYTES,
                                 &len_bytes, &err),
             &err, "address");
    r->board->addresses[r->rank].len_bytes = (uint32_t)len_bytes;
    atomic_store_explicit(&r->board->addresses[r->rank].is_there, 1, memory_order_release);
    ranks_ok(r, rdt_group_create(r->ctx, &group, &r->group, &err), &err, "group_create");
}

static inline void
ranks_leave(struct rank *r)
{
    struct rdt_error err = {0};

    rdt_group_destroy(r->group);
    ranks_ok(r, rdt_context_close(r->ctx, &err), &err, "context_close");
}

/* Runs body(rank) in `size` forked processes and returns their exit statuses. */
static inline void
ranks_run(uint32_t size, uint32_t transport, void (*body)(struct rank *r), int statuses[RANKS_MAX])
{
    struct ranks_board *board =
        mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[RANKS_MAX];

    CHECK(board != MAP_FAILED);
    for (uint32_t i = 0; i < size; i++) {
        pids[i] = fork();
        CHECK(pids[i] >= 0);
        if (pids[i] == 0) {
            struct rank r = {.board = board, .rank = i, .size = size};
            (void)alarm(60);
            ranks_join(&r, transport);
            body(&r);
            _exit(0);
        }
    }
    for (uint32_t i = 0; i < size; i++)
        CHECK(waitpid(pids[i], &statuses[i], 0) == pids[i]);
    (void)munmap(board, sizeof(*board));
}

static inline void
ranks_run_ok(uint32_t size, uint32_t transport, void (*body)(struct rank *r))
{
    int statuses[RANKS_MAX];

    ranks_run(size, transport, body, statuses);
    for (uint32_t i = 0; i < size; i++)
        CHECK_INT_EQ(statuses[i], 0);
}

#endif
