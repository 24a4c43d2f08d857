/* SPDX-License-Identifier: Apache-2.0
 * The n-th request to the system is refused, for every n: memory first, then descriptors, mappings,
 * files and threads. Two contexts open, connect, move bytes each way that there is, and close.
 * Every call ends with RDT_OK or with an error that a caller can act on; nothing hangs and nothing
 * is left; and the same goes well once the system gives again.
 *
 *   RDT_TEST_REFUSED=full   every n; else some of each
 *
 * The calls are wrapped by the linker (cmake/CTests.cmake), in the library's code alone.
 */
#include <ifaddrs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include "leftovers.h"
#include "rdmatensor.h"
#include "sim/sim.h"

#ifdef __SANITIZE_ADDRESS__
size_t __sanitizer_get_current_allocated_bytes(void);
#endif

#define S UINT64_C(1000000000)
/* Of every wait; who was refused what it needs is told, so that nobody waits for so long. */
#define PATIENCE_S 4.0
/* What a life in which a call was refused takes more than another, at most: a peer that was told
 * nothing is waited for in a grace (2 s) and a linger (2 s), and in a close for a second. */
#define WAITS_S 5.0
#define BYTES 131072
#define POINTS_QUICK 24 /* of each kind and transport */

/* ---- Refusals -------------------------------------------------------------------------------- */

enum kind { KIND_NONE, KIND_MEMORY, KIND_SYSTEM };

static _Atomic int armed; /* enum kind */
static _Atomic uint32_t asked;
static _Atomic uint32_t refused_at; /* from 1 */
static const char *_Atomic refused_call;
static _Atomic uintptr_t refused_from; /* in the program's file, for addr2line */
extern const char __executable_start;

static void
arm(enum kind kind, uint32_t at)
{
    atomic_store(&asked, 0);
    atomic_store(&refused_at, at);
    atomic_store(&refused_call, NULL);
    atomic_store(&armed, kind);
}

static void
disarm(void)
{
    atomic_store(&armed, KIND_NONE);
}

static bool
refuses(enum kind kind, const char *call, int sys_errno, void *from)
{
    if ((enum kind)atomic_load(&armed) != kind || sim_is_inside() ||
        atomic_fetch_add(&asked, 1) + 1 != atomic_load(&refused_at))
        return false;
    atomic_store(&refused_call, call);
    atomic_store(&refused_from, (uintptr_t)from - (uintptr_t)&__executable_start);
    errno = sys_errno;
    return true;
}

/* A call that returns `failed` when it is refused. */
#define REFUSABLE(kind, sys_errno, failed, type, name, params, args)                              \
    type __real_##name params;                                                                    \
    type __wrap_##name params;                                                                    \
    type __wrap_##name params                                                                     \
    {                                                                                             \
        return refuses(kind, #name, sys_errno, __builtin_return_address(0)) ? (failed)            \
                                                                            : __real_##name args; \
    }

REFUSABLE(KIND_MEMORY, ENOMEM, NULL, void *, malloc, (size_t n), (n))
REFUSABLE(KIND_MEMORY, ENOMEM, NULL, void *, calloc, (size_t n, size_t each), (n, each))
REFUSABLE(KIND_MEMORY, ENOMEM, NULL, void *, realloc, (void *old, size_t n), (old, n))
REFUSABLE(KIND_MEMORY, ENOMEM, NULL, void *, aligned_alloc, (size_t by, size_t n), (by, n))
REFUSABLE(KIND_MEMORY, ENOMEM, NULL, char *, strdup, (const char *text), (text))
REFUSABLE(KIND_SYSTEM, ENOMEM, MAP_FAILED, void *, mmap,
          (void *at, size_t n, int prot, int flags, int fd, off_t off),
          (at, n, prot, flags, fd, off))
REFUSABLE(KIND_SYSTEM, EMFILE, -1, int, memfd_create, (const char *name, unsigned flags),
          (name, flags))
REFUSABLE(KIND_SYSTEM, ENOSPC, -1, int, ftruncate, (int fd, off_t n), (fd, n))
REFUSABLE(KIND_SYSTEM, ENOSPC, -1, int, fallocate, (int fd, int mode, off_t off, off_t n),
          (fd, mode, off, n))
REFUSABLE(KIND_SYSTEM, EMFILE, -1, int, socket, (int domain, int type, int protocol),
          (domain, type, protocol))
REFUSABLE(KIND_SYSTEM, ENOMEM, -1, int, bind, (int fd, const struct sockaddr *addr, socklen_t n),
          (fd, addr, n))
REFUSABLE(KIND_SYSTEM, ENOMEM, -1, int, listen, (int fd, int backlog), (fd, backlog))
REFUSABLE(KIND_SYSTEM, ENOMEM, -1, int, connect, (int fd, const struct sockaddr *addr, socklen_t n),
          (fd, addr, n))
REFUSABLE(KIND_SYSTEM, EMFILE, -1, int, accept4,
          (int fd, struct sockaddr *addr, socklen_t *n, int flags), (fd, addr, n, flags))
REFUSABLE(KIND_SYSTEM, EMFILE, -1, int, eventfd, (unsigned value, int flags), (value, flags))
REFUSABLE(KIND_SYSTEM, EMFILE, -1, int, epoll_create1, (int flags), (flags))
REFUSABLE(KIND_SYSTEM, EMFILE, -1, int, timerfd_create, (int clock, int flags), (clock, flags))
REFUSABLE(KIND_SYSTEM, ENOMEM, -1, int, getifaddrs, (struct ifaddrs * *out), (out))
REFUSABLE(KIND_SYSTEM, EAGAIN, EAGAIN, int, pthread_create,
          (pthread_t * out, const pthread_attr_t *attr, void *(*run)(void *), void *arg),
          (out, attr, run, arg))

int __real_epoll_ctl(int fd, int op, int of, struct epoll_event *event);
int __wrap_epoll_ctl(int fd, int op, int of, struct epoll_event *event);

/* Only to add takes memory. */
int
__wrap_epoll_ctl(int fd, int op, int of, struct epoll_event *event)
{
    if (op == EPOLL_CTL_ADD &&
        refuses(KIND_SYSTEM, "epoll_ctl", ENOSPC, __builtin_return_address(0)))
        return -1;
    return __real_epoll_ctl(fd, op, of, event);
}

/* ---- A life ---------------------------------------------------------------------------------- */

struct life {
    uint32_t transport;
    rdt_context *ctx[2];
    rdt_region *region; /* of 1 */
    rdt_endpoint *ep[2];
    rdt_group *group[2];
    rdt_slot *slot;       /* of 1 */
    rdt_slot_tx *slot_tx; /* of 0 */
    uint8_t addresses[2][RDT_ADDRESS_MAX_BYTES];
    size_t address_bytes[2];
    uint8_t *src;
    uint8_t *dst;
    const char *step; /* the last one */
    struct rdt_error err;
};

static uint64_t
patience_ns(double seconds)
{
    return (uint64_t)(seconds * 1e9 * test_timeout_scale());
}

static rdt_status
end(rdt_transfer *t, rdt_status status, struct rdt_error *err)
{
    if (status != RDT_OK)
        return status;
    status = rdt_transfer_wait(t, patience_ns(2 * PATIENCE_S), err);
    rdt_transfer_free(t);
    return status;
}

static rdt_status
open_context(struct life *l, uint32_t i)
{
    const struct rdt_context_opts opts = {
        .struct_size = sizeof(opts),
        .force_transport = l->transport,
        .loopback_only = 1,
        .timeout_ns = patience_ns(PATIENCE_S),
        .arena_chunk_bytes = 1 << 20,
    };

    l->step = "context_open";
    rdt_status status = rdt_context_open(&opts, &l->ctx[i], &l->err);
    if (status != RDT_OK)
        return status;
    l->step = "add_job";
    status =
        rdt_context_add_job(l->ctx[i], "job", (const uint8_t *)"key", 3, 0, (int32_t)i, &l->err);
    if (status != RDT_OK)
        return status;
    l->step = "address";
    return rdt_context_address(l->ctx[i], l->addresses[i], sizeof(l->addresses[i]),
                               &l->address_bytes[i], &l->err);
}

static rdt_status
connect_both(struct life *l)
{
    rdt_status status = RDT_OK;

    for (uint32_t i = 0; status == RDT_OK && i < 2; i++) {
        const struct rdt_endpoint_opts opts = {.struct_size = sizeof(opts),
                                               .peer_rank = 1 - (int32_t)i,
                                               .job_id = "job"};
        l->step = "endpoint_open";
        status = rdt_endpoint_open(l->ctx[i], l->addresses[1 - i], l->address_bytes[1 - i], &opts,
                                   &l->ep[i], &l->err);
    }
    for (uint32_t i = 0; status == RDT_OK && i < 2; i++) {
        l->step = "wait_ready";
        status = rdt_endpoint_wait_ready(l->ep[i], patience_ns(2 * PATIENCE_S), &l->err);
    }
    return status;
}

static rdt_status
move_region(struct life *l)
{
    struct rdt_remote_region told;
    struct rdt_remote_region remote;
    uint8_t wire[RDT_REMOTE_REGION_BYTES];
    rdt_transfer *t = NULL;
    uint32_t value;

    l->step = "region";
    rdt_status status = rdt_region_alloc(l->ctx[1], BYTES, 0, &l->region, &l->err);
    if (status == RDT_OK)
        status = rdt_region_export(l->region, &told, &l->err);
    if (status != RDT_OK)
        return status;
    rdt_remote_region_encode(&told, wire);
    CHECK_OK(rdt_remote_region_decode(wire, sizeof(wire), &remote, &l->err), &l->err);
    l->step = "write";
    status = rdt_endpoint_write(l->ep[0], l->src, BYTES, &remote, 0, 7, &t, &l->err);
    status = end(t, status, &l->err);
    if (status == RDT_OK)
        status = rdt_endpoint_wait_notify(l->ep[1], patience_ns(2 * PATIENCE_S), &value, &l->err);
    if (status != RDT_OK)
        return status;
    CHECK_MEM_EQ(rdt_region_addr(l->region), l->src, BYTES);
    l->step = "read";
    memset(l->dst, 0, BYTES);
    status = rdt_endpoint_read(l->ep[0], l->dst, BYTES, &remote, 0, &t, &l->err);
    status = end(t, status, &l->err);
    if (status == RDT_OK)
        CHECK_MEM_EQ(l->dst, l->src, BYTES);
    return status;
}

static rdt_status
move_slot(struct life *l)
{
    const struct rdt_tensor_desc desc = {.struct_size = sizeof(desc),
                                         .kind = RDT_SLOT_STATIC,
                                         .dtype = RDT_U8,
                                         .ndim = 1,
                                         .dims = {BYTES}};
    struct rdt_slot_view view;
    rdt_transfer *t = NULL;

    l->step = "slot_create";
    rdt_status status = rdt_slot_create(l->ep[1], "slot", &desc, &l->slot, &l->err);
    if (status != RDT_OK)
        return status;
    l->step = "slot_tx_open";
    status = rdt_slot_tx_open(l->ep[0], "slot", &desc, patience_ns(2 * PATIENCE_S), &l->slot_tx,
                              &l->err);
    if (status != RDT_OK)
        return status;
    l->step = "slot";
    status = rdt_slot_tx_put(l->slot_tx, l->src, NULL, patience_ns(2 * PATIENCE_S), &t, &l->err);
    status = end(t, status, &l->err);
    if (status == RDT_OK)
        status = rdt_slot_get(l->slot, patience_ns(2 * PATIENCE_S), &view, &l->err);
    if (status != RDT_OK)
        return status;
    CHECK_MEM_EQ(view.addr, l->src, BYTES);
    return rdt_slot_release(l->slot, &l->err);
}

static rdt_status
give_address(void *arg, uint32_t rank, uint64_t timeout_ns, uint8_t *buf, size_t cap,
             size_t *len_out, struct rdt_error *err)
{
    const struct life *l = arg;

    (void)timeout_ns;
    (void)err;
    CHECK(l->address_bytes[rank] <= cap);
    memcpy(buf, l->addresses[rank], l->address_bytes[rank]);
    *len_out = l->address_bytes[rank];
    return RDT_OK;
}

static rdt_status
start_collective(struct life *l, uint32_t op, rdt_transfer *t[2])
{
    rdt_status status = RDT_OK;

    l->step = op == RDT_COLL_BARRIER ? "barrier" : "all_reduce";
    for (uint32_t i = 0; status == RDT_OK && i < 2; i++) {
        const struct rdt_coll_args args = {.struct_size = sizeof(args),
                                           .op = op,
                                           .dtype = RDT_U8,
                                           .reduce_op = RDT_MAX,
                                           .count = BYTES,
                                           .send = l->src,
                                           .recv = l->dst + (uint64_t)i * BYTES};
        status = rdt_coll_post(l->group[i], &args, &t[i], &l->err);
    }
    if (status != RDT_OK && t[0] != NULL) /* or its member would wait for the other */
        rdt_group_abort(l->group[0], "the other member could not begin");
    return status;
}

/* Both members' transfers end, also if one of them does so badly. */
static rdt_status
run_collective(struct life *l, uint32_t op)
{
    rdt_transfer *t[2] = {NULL, NULL};
    rdt_status status = start_collective(l, op, t);

    for (uint32_t i = 0; i < 2; i++) {
        struct rdt_error err = {0};
        const rdt_status one = t[i] != NULL ? end(t[i], RDT_OK, &err) : RDT_OK;
        if (one == RDT_OK)
            continue;
        CHECK_MSG(err.message[0] != '\0', "an error without words");
        l->err = status == RDT_OK ? err : l->err;
        status = status == RDT_OK ? one : status;
    }
    return status;
}

static rdt_status
use_group(struct life *l)
{
    static const uint32_t ops[] = {RDT_COLL_BARRIER, RDT_COLL_ALLREDUCE, RDT_COLL_ALLREDUCE};
    rdt_status status = RDT_OK;

    for (uint32_t i = 0; status == RDT_OK && i < 2; i++) {
        const struct rdt_group_opts opts = {.struct_size = sizeof(opts),
                                            .rank = i,
                                            .size = 2,
                                            .name = "world",
                                            .job_id = "job",
                                            .timeout_ns = patience_ns(PATIENCE_S),
                                            .address = give_address,
                                            .address_arg = l};
        l->step = "group_create";
        status = rdt_group_create(l->ctx[i], &opts, &l->group[i], &l->err);
    }
    for (size_t i = 0; status == RDT_OK && i < sizeof(ops) / sizeof(ops[0]); i++)
        status = run_collective(l, ops[i]);
    if (status == RDT_OK)
        CHECK_MEM_EQ(l->dst + BYTES, l->src, BYTES);
    return status;
}

static rdt_status
live(struct life *l)
{
    rdt_status status = open_context(l, 0);

    if (status == RDT_OK)
        status = open_context(l, 1);
    if (status == RDT_OK)
        status = connect_both(l);
    if (status == RDT_OK)
        status = move_region(l);
    if (status == RDT_OK)
        status = move_slot(l);
    if (status == RDT_OK)
        status = use_group(l);
    return status;
}

/* What there is of it; while calls are refused, too. */
static void
die(struct life *l)
{
    rdt_slot_tx_destroy(l->slot_tx);
    rdt_slot_destroy(l->slot);
    for (uint32_t i = 0; i < 2; i++)
        rdt_group_destroy(l->group[i]);
    rdt_region_free(l->region, NULL, NULL);
    for (uint32_t i = 0; i < 2; i++)
        rdt_endpoint_close(l->ep[i]);
    for (uint32_t i = 0; i < 2; i++) {
        struct rdt_error err = {0};
        const uint64_t deadline_ns = test_now_ns() + patience_ns(PATIENCE_S);
        rdt_status status;
        while ((status = rdt_context_close(l->ctx[i], &err)) == RDT_EBUSY &&
               test_now_ns() < deadline_ns)
            test_sleep_ns(1000000);
        CHECK_MSG(status == RDT_OK, "close after %s at 0x%" PRIxPTR " was refused, and %s: %s",
                  atomic_load(&refused_call) != NULL ? atomic_load(&refused_call) : "nothing",
                  atomic_load(&refused_from), l->step, err.message);
    }
}

/* ---- The sweep ------------------------------------------------------------------------------- */

static uint8_t bytes[3][BYTES];

static rdt_status
run_life(uint32_t transport, enum kind kind, uint32_t at, struct life *l)
{
    *l = (struct life){.transport = transport,
                       .src = bytes[0],
                       .dst = bytes[1],
                       .err = {.peer_rank = RDT_RANK_UNKNOWN}};
    for (uint32_t i = 0; i < BYTES; i++)
        bytes[0][i] = (uint8_t)(i * 31 + at);
    arm(kind, at);
    const rdt_status status = live(l);
    die(l);
    disarm();
    return status;
}

/* What a caller can act on: the refusal itself, or, on the other side, a peer that cannot go on. */
static bool
is_clean(rdt_status status)
{
    switch (status) {
    case RDT_OK:
    case RDT_ENOMEM:
    case RDT_EDEVICE:
    case RDT_EPEER:
    case RDT_ECANCELED:
    case RDT_ENOTVIABLE:
        return true;
    default:
        return false;
    }
}

static size_t
heap_bytes(void)
{
#ifdef __SANITIZE_ADDRESS__
    return __sanitizer_get_current_allocated_bytes();
#else
    return 0; /* malloc's own count has what threads keep back */
#endif
}

struct sweep {
    uint32_t points;
    uint32_t errors;
    uint64_t usual_ns; /* of a life in which nothing is refused */
    uint64_t longest_ns;
};

/* False: there is no n-th call. */
static bool
refuse_one(uint32_t transport, enum kind kind, uint32_t at, struct sweep *sweep)
{
    const struct leftovers before = leftovers_now();
    const size_t heap_before = heap_bytes();
    const uint64_t began_ns = test_now_ns();
    struct life l;
    char where[160];

    const rdt_status status = run_life(transport, kind, at, &l);
    const uint64_t took_ns = test_now_ns() - began_ns;
    const char *call = atomic_load(&refused_call);
    if (call == NULL && status == RDT_OK)
        return false;
    CHECK_MSG(call != NULL, "nothing was refused, and %s: %s", l.step, l.err.message);
    (void)snprintf(where, sizeof(where), "call %u, %s at 0x%" PRIxPTR ": %s gave %s", at, call,
                   atomic_load(&refused_from), l.step, rdt_status_name(status));
    CHECK_MSG(is_clean(status), "%s: %s", where, l.err.message);
    CHECK_MSG(status == RDT_OK || l.err.message[0] != '\0', "%s without words", where);
    CHECK_MSG(strstr(l.err.message, "died") == NULL, "%s: %s", where, l.err.message);
    if (getenv("RDT_TEST_REFUSED_SHOW") != NULL)
        printf("  %s, %.2f s: %s\n", where, (double)took_ns / 1e9,
               status == RDT_OK ? "" : l.err.message);
    CHECK_MSG(took_ns < sweep->usual_ns + patience_ns(WAITS_S),
              "%s: %s: it took %.1f s, and usually %.1f s", where, l.err.message,
              (double)took_ns / 1e9, (double)sweep->usual_ns / 1e9);
    leftovers_check(&before, where);
    CHECK_MSG(heap_bytes() <= heap_before, "%s: %zu bytes of the heap are lost", where,
              heap_bytes() - heap_before);
    CHECK_MSG(run_life(transport, KIND_NONE, 0, &l) == RDT_OK, "%s, and later %s: %s", where,
              l.step, l.err.message);
    sweep->points++;
    sweep->errors += status != RDT_OK ? 1 : 0;
    sweep->longest_ns = took_ns > sweep->longest_ns ? took_ns : sweep->longest_ns;
    return true;
}

static void
refuse_all(uint32_t transport, enum kind kind)
{
    const char *form = getenv("RDT_TEST_REFUSED");
    const bool is_full = form != NULL && strcmp(form, "full") == 0;
    struct sweep sweep = {0};
    struct life l;

    if (transport == RDT_TRANSPORT_VERBS)
        sim_use();
    const uint64_t began_ns = test_now_ns();
    CHECK_MSG(run_life(transport, KIND_NONE, 0, &l) == RDT_OK, "%s: %s", l.step, l.err.message);
    sweep.usual_ns = test_now_ns() - began_ns;
    CHECK_MSG(run_life(transport, kind, UINT32_MAX, &l) == RDT_OK, "%s: %s", l.step, l.err.message);
    const uint32_t count = atomic_load(&asked);
    const uint32_t stride = is_full || count < POINTS_QUICK ? 1 : count / POINTS_QUICK;
    for (uint32_t at = 1; refuse_one(transport, kind, at, &sweep); at += stride)
        ;
    printf("  refused: %u of about %u calls, %u ended with an error; the longest life %.2f s\n",
           sweep.points, count, sweep.errors, (double)sweep.longest_ns / 1e9);
    CHECK_UINT_LE(count < 10 ? 1 : 10, sweep.points);
    CHECK_UINT_LE(5, sweep.errors);
}

TEST_TIMEOUT(memory_that_is_refused_ends_nothing_but_the_call_shm, 500)
{
    refuse_all(RDT_TRANSPORT_SHM, KIND_MEMORY);
}

TEST_TIMEOUT(memory_that_is_refused_ends_nothing_but_the_call_tcp, 500)
{
    refuse_all(RDT_TRANSPORT_TCP, KIND_MEMORY);
}

TEST_TIMEOUT(memory_that_is_refused_ends_nothing_but_the_call_verbs, 500)
{
    refuse_all(RDT_TRANSPORT_VERBS, KIND_MEMORY);
}

TEST_TIMEOUT(what_the_system_refuses_ends_nothing_but_the_call_shm, 500)
{
    refuse_all(RDT_TRANSPORT_SHM, KIND_SYSTEM);
}

TEST_TIMEOUT(what_the_system_refuses_ends_nothing_but_the_call_tcp, 500)
{
    refuse_all(RDT_TRANSPORT_TCP, KIND_SYSTEM);
}

TEST_TIMEOUT(what_the_system_refuses_ends_nothing_but_the_call_verbs, 500)
{
    refuse_all(RDT_TRANSPORT_VERBS, KIND_SYSTEM);
}

TEST_MAIN()
