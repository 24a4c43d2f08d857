/* SPDX-License-Identifier: Apache-2.0
 * Ranks that are processes of their own, for tests in which some of them die. Fork before any
 * context of the test's own is open. */
#ifndef RDTI_TESTS_PROC_RIG_H
#define RDTI_TESTS_PROC_RIG_H

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "pair_rig.h"

#define PROC_MS UINT64_C(1000000)

struct proc {
    pid_t pid;
    int fd; /* to the process */
    int32_t rank;
    uint8_t address[RDT_ADDRESS_MAX_BYTES];
    size_t address_bytes;
};

/* What a process tells about an end that it saw. */
struct proc_report {
    int32_t status;
    int32_t rank;
    uint64_t at_ns; /* CLOCK_MONOTONIC, the same for all */
    char message[RDT_ERROR_MESSAGE_BYTES];
};

struct proc_opts {
    uint32_t force;
    uint64_t peer_timeout_ns;
};

/* In the process: its life. fd leads to the test; it ends when this returns. */
typedef void (*proc_fn)(rdt_context *ctx, int32_t rank, int fd);

static inline void
proc_write(int fd, const void *bytes, size_t len)
{
    CHECK(send(fd, bytes, len, MSG_NOSIGNAL) == (ssize_t)len);
}

static inline void
proc_read(int fd, void *bytes, size_t len)
{
    struct pollfd pollfd = {.fd = fd, .events = POLLIN};
    size_t have = 0;

    while (have < len) {
        CHECK_MSG(poll(&pollfd, 1, (int)(15000 * test_timeout_scale())) == 1, "nothing came");
        const ssize_t got = recv(fd, (char *)bytes + have, len - have, 0);
        CHECK_MSG(got > 0, "the other end is gone");
        have += (size_t)got;
    }
}

static inline void
proc_context(rdt_context **out, const struct proc_opts *wanted, int32_t rank)
{
    struct rdt_error err = {0};
    const struct rdt_context_opts opts = {
        .struct_size = sizeof(opts),
        .force_transport = wanted->force,
        .loopback_only = 1,
        .timeout_ns = 20 * RIG_S,
        .peer_timeout_ns = wanted->peer_timeout_ns,
        .arena_chunk_bytes = 1 << 20,
    };

    check_ok(rdt_context_open(&opts, out, &err), &err, "context_open");
    check_ok(rdt_context_add_job(*out, "job", (const uint8_t *)"secret", 6, 1, rank, &err), &err,
             "add_job");
}

static inline void
proc_begin(struct proc *proc, const struct proc_opts *opts, int32_t rank, proc_fn life)
{
    struct rdt_error err = {0};
    int ends[2];

    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    fflush(NULL);
    *proc = (struct proc){.fd = ends[0], .rank = rank, .pid = fork()};
    CHECK(proc->pid >= 0);
    if (proc->pid == 0) {
        rdt_context *ctx;
        uint8_t address[RDT_ADDRESS_MAX_BYTES] = {0};
        size_t address_bytes = 0;

        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
        (void)close(ends[0]);
        proc_context(&ctx, opts, rank);
        check_ok(rdt_context_address(ctx, address, sizeof(address), &address_bytes, &err), &err,
                 "address");
        proc_write(ends[1], &address_bytes, sizeof(address_bytes));
        proc_write(ends[1], address, address_bytes);
        life(ctx, rank, ends[1]);
        _exit(0);
    }
    (void)close(ends[1]);
    proc_read(proc->fd, &proc->address_bytes, sizeof(proc->address_bytes));
    CHECK(proc->address_bytes <= sizeof(proc->address));
    proc_read(proc->fd, proc->address, proc->address_bytes);
}

/* How the process ended: its exit status, or minus the signal. */
static inline int
proc_end(struct proc *proc, int signal)
{
    int status;

    if (signal != 0)
        CHECK(kill(proc->pid, signal) == 0);
    CHECK(waitpid(proc->pid, &status, 0) == proc->pid);
    (void)close(proc->fd);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

/* Tell `proc` where `other` listens; proc_take_peer() is the other side of it. */
static inline void
proc_introduce(const struct proc *proc, const struct proc *other)
{
    proc_write(proc->fd, &other->rank, sizeof(other->rank));
    proc_write(proc->fd, &other->address_bytes, sizeof(other->address_bytes));
    proc_write(proc->fd, other->address, other->address_bytes);
}

static inline rdt_status
proc_open(rdt_context *ctx, const uint8_t *address, size_t address_bytes, int32_t rank,
          rdt_endpoint **out, struct rdt_error *err)
{
    const struct rdt_endpoint_opts opts = {.struct_size = sizeof(opts),
                                           .peer_rank = rank,
                                           .job_id = "job"};

    return rdt_endpoint_open(ctx, address, address_bytes, &opts, out, err);
}

static inline rdt_endpoint *
proc_take_peer(rdt_context *ctx, int fd)
{
    struct rdt_error err = {0};
    uint8_t address[RDT_ADDRESS_MAX_BYTES];
    size_t address_bytes = 0;
    int32_t rank = 0;
    rdt_endpoint *ep;

    proc_read(fd, &rank, sizeof(rank));
    proc_read(fd, &address_bytes, sizeof(address_bytes));
    CHECK(address_bytes <= sizeof(address));
    proc_read(fd, address, address_bytes);
    check_ok(proc_open(ctx, address, address_bytes, rank, &ep, &err), &err, "endpoint_open");
    check_ok(rdt_endpoint_wait_ready(ep, 10 * RIG_S, &err), &err, "wait_ready");
    return ep;
}

/* Of each process the region that it exports, to the other; proc_trade_region() is their side. */
static inline void
proc_swap_regions(const struct proc procs[2])
{
    struct rdt_remote_region remotes[2];

    for (int i = 0; i < 2; i++)
        proc_read(procs[i].fd, &remotes[i], sizeof(remotes[i]));
    for (int i = 0; i < 2; i++)
        proc_write(procs[i].fd, &remotes[1 - i], sizeof(remotes[i]));
}

/* Some bytes of our own, and where the peer's are. */
static inline rdt_region *
proc_trade_region(rdt_context *ctx, int fd, struct rdt_remote_region *out)
{
    struct rdt_error err = {0};
    struct rdt_remote_region own;
    rdt_region *region;

    check_ok(rdt_region_alloc(ctx, 64, RDT_REGION_ZERO, &region, &err), &err, "alloc");
    check_ok(rdt_region_export(region, &own, &err), &err, "export");
    proc_write(fd, &own, sizeof(own));
    proc_read(fd, out, sizeof(*out));
    return region;
}

static inline void
proc_tell(int fd, rdt_status status, const struct rdt_error *err)
{
    struct proc_report report = {.status = status, .rank = err->peer_rank, .at_ns = test_now_ns()};

    memcpy(report.message, err->message, sizeof(report.message));
    proc_write(fd, &report, sizeof(report));
}

/* One byte each way: "I am there". */
static inline void
proc_say(int fd)
{
    proc_write(fd, "r", 1);
}

static inline void
proc_hear(int fd)
{
    char byte;

    proc_read(fd, &byte, 1);
}

#endif
