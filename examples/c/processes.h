/* SPDX-License-Identifier: Apache-2.0
 *
 * What the examples share: processes of one program, and a board on which they exchange addresses.
 * In a program of yours a key-value store, MPI or a file does what the board does here.
 */
#ifndef PROCESSES_H
#define PROCESSES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdmatensor.h>

#define RANKS_MAX 16
#define BOARD_BYTES RDT_ADDRESS_MAX_BYTES
#define TIMEOUT_NS (UINT64_C(10) * 1000000000)

struct notice {
    atomic_bool is_there;
    size_t len_bytes;
    uint8_t bytes[BOARD_BYTES];
};

/* Shared by the processes. Rank i writes addresses[i], and regions[i] where others write to it. */
struct board {
    struct notice addresses[RANKS_MAX];
    struct notice regions[RANKS_MAX];
};

static inline void
check(rdt_status status, const struct rdt_error *err, const char *call)
{
    if (status == RDT_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", call, rdt_status_name(status), err->message);
    exit(1);
}

static inline void
notice_post(struct notice *notice, size_t len_bytes)
{
    notice->len_bytes = len_bytes;
    atomic_store(&notice->is_there, true);
}

static inline const uint8_t *
notice_wait(struct notice *notice)
{
    const struct timespec pause = {.tv_nsec = 1000000};

    for (unsigned waited = 0; !atomic_load(&notice->is_there); waited++) {
        if (waited > 10000) {
            fprintf(stderr, "a process has posted nothing within 10 s\n");
            exit(1);
        }
        nanosleep(&pause, NULL);
    }
    return notice->bytes;
}

/* Open this process's context, admit the job, and post the address at which others find it. */
static inline rdt_context *
context_open(struct board *board, uint32_t rank)
{
    static const uint8_t secret[] = "not for production";
    const struct rdt_context_opts opts = {.struct_size = sizeof(opts), .timeout_ns = TIMEOUT_NS};
    struct notice *mine = &board->addresses[rank];
    rdt_context *ctx;
    struct rdt_error err;
    size_t len_bytes;

    check(rdt_context_open(&opts, &ctx, &err), &err, "rdt_context_open");
    check(rdt_context_add_job(ctx, "example", secret, sizeof(secret), 0, (int32_t)rank, &err), &err,
          "rdt_context_add_job");
    check(rdt_context_address(ctx, mine->bytes, sizeof(mine->bytes), &len_bytes, &err), &err,
          "rdt_context_address");
    notice_post(mine, len_bytes);
    return ctx;
}

/* Connect to another rank, and wait until both sides have verified a path. */
static inline rdt_endpoint *
endpoint_open(rdt_context *ctx, struct board *board, uint32_t peer)
{
    const struct rdt_endpoint_opts opts = {.struct_size = sizeof(opts),
                                           .peer_rank = (int32_t)peer,
                                           .job_id = "example"};
    const uint8_t *address = notice_wait(&board->addresses[peer]);
    rdt_endpoint *ep;
    struct rdt_error err;

    check(rdt_endpoint_open(ctx, address, board->addresses[peer].len_bytes, &opts, &ep, &err), &err,
          "rdt_endpoint_open");
    check(rdt_endpoint_wait_ready(ep, RDT_TIMEOUT_DEFAULT, &err), &err, "rdt_endpoint_wait_ready");
    return ep;
}

static inline void
transfer_finish(rdt_transfer *transfer)
{
    struct rdt_error err;

    check(rdt_transfer_wait(transfer, RDT_TIMEOUT_DEFAULT, &err), &err, "rdt_transfer_wait");
    rdt_transfer_free(transfer);
}

/* Run `work` in so many processes; the exit status is 0 if that of all of them is. A context is
 * opened after fork(), never before. */
static inline int
processes_run(uint32_t ranks, void (*work)(struct board *board, uint32_t rank, uint32_t ranks))
{
    struct board *board =
        mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int result = 0;

    if (board == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    for (uint32_t rank = 0; rank < ranks; rank++) {
        const pid_t pid = fork();
        if (pid < 0) {
            perror("fork");
            return 1;
        }
        if (pid == 0) {
            work(board, rank, ranks);
            exit(0);
        }
    }
    for (int status; wait(&status) > 0;)
        if (status != 0)
            result = 1;
    return result;
}

#endif
