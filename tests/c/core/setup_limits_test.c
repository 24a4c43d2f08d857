/* SPDX-License-Identifier: Apache-2.0
 * Set-up where something is short: descriptors, which it names and takes all of or none, and the
 * patience with strangers who send, but hardly. */
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "connect/netaddr.h"
#include "integration/leftovers.h"
#include "proc_rig.h"
#include "wire/address.h"
#include "wire/handshake.h"
#include "rdmatensor_ext.h"

/* Of each attempt, set-up included. */
static uint64_t
patience_ns(void)
{
    return (uint64_t)(10e9 * test_timeout_scale());
}

/* ---- Descriptors ----------------------------------------------------------------------------- */

/* So many more than are open now, which have the lowest numbers. */
static void
allow_descriptors(const struct rlimit *usual, uint32_t more)
{
    struct rlimit limit = *usual;
    const int next = dup(STDERR_FILENO);

    CHECK(next >= 0);
    (void)close(next);
    limit.rlim_cur = (rlim_t)next + more;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

static rdt_status
try_to_open(rdt_context **out, struct rdt_error *err)
{
    const struct rdt_context_opts opts = {.struct_size = sizeof(opts),
                                          .loopback_only = 1,
                                          .timeout_ns = 20 * RIG_S};

    return rdt_context_open(&opts, out, err);
}

TEST_TIMEOUT(a_context_without_descriptors_is_not_opened_and_says_so, 60)
{
    struct rdt_error err = {0};
    struct rlimit usual;
    rdt_context *ctx = NULL;
    uint32_t failed = 0;

    CHECK(getrlimit(RLIMIT_NOFILE, &usual) == 0);
    check_ok(try_to_open(&ctx, &err), &err, "what is loaded once is loaded");
    check_ok(rdt_context_close(ctx, &err), &err, "context_close");
    const struct leftovers before = leftovers_now();
    rdt_status status = RDT_EDEVICE;
    for (uint32_t more = 0; more < 64 && status != RDT_OK; more++) {
        ctx = NULL;
        allow_descriptors(&usual, more);
        status = try_to_open(&ctx, &err);
        CHECK(setrlimit(RLIMIT_NOFILE, &usual) == 0);
        if (status == RDT_OK)
            break;
        failed++;
        CHECK_NULL(ctx);
        CHECK_STR_CONTAINS(err.message, strerror(EMFILE));
        leftovers_check(&before, "a context that was not opened");
    }
    check_ok(status, &err, "with enough of them");
    check_ok(rdt_context_close(ctx, &err), &err, "context_close");
    leftovers_check(&before, "a context that was closed");
    printf("  refused with up to %u descriptors\n", failed - 1);
    CHECK_UINT_GE(failed, 4);
}

/* Waits until it is told to go. */
static void
live_as_a_peer(rdt_context *ctx, int32_t rank, int fd)
{
    struct rdt_error err = {0};

    (void)rank;
    proc_hear(fd);
    check_ok(rdt_context_close(ctx, &err), &err, "context_close");
}

static rdt_status
peers_address(void *arg, uint32_t rank, uint64_t timeout_ns, uint8_t *buf, size_t cap,
              size_t *len_out, struct rdt_error *err)
{
    const struct proc *peer = arg;

    (void)rank;
    (void)timeout_ns;
    (void)err;
    CHECK(peer->address_bytes <= cap);
    memcpy(buf, peer->address, peer->address_bytes);
    *len_out = peer->address_bytes;
    return RDT_OK;
}

/* A path of a group's, from the group's creation to its end. */
static rdt_status
try_a_group(rdt_context *ctx, struct proc *peer, struct rdt_error *err)
{
    const struct rdt_group_opts opts = {.struct_size = sizeof(opts),
                                        .size = 2,
                                        .name = "world",
                                        .job_id = "job",
                                        .timeout_ns = patience_ns(),
                                        .address = peers_address,
                                        .address_arg = peer};
    rdt_endpoint *ep = NULL;
    rdt_group *group = NULL;
    rdt_status status = rdt_group_create(ctx, &opts, &group, err);

    if (status == RDT_OK)
        status = rdt_group_endpoint(group, 1, &ep, err);
    if (status == RDT_OK)
        status = rdt_endpoint_wait_ready(ep, patience_ns(), err);
    rdt_group_destroy(group);
    return status;
}

static rdt_status
try_an_endpoint(rdt_context *ctx, struct proc *peer, struct rdt_error *err)
{
    rdt_endpoint *ep = NULL;
    rdt_status status = proc_open(ctx, peer->address, peer->address_bytes, peer->rank, &ep, err);

    if (status == RDT_OK)
        status = rdt_endpoint_wait_ready(ep, patience_ns(), err);
    rdt_endpoint_close(ep);
    return status;
}

typedef rdt_status (*try_fn)(rdt_context *ctx, struct proc *peer, struct rdt_error *err);

/* What is left over closes within the time that a close may take. */
static void
await_descriptors(const struct leftovers *before)
{
    const uint64_t deadline_ns = test_now_ns() + (uint64_t)(5e9 * test_timeout_scale());

    while (leftovers_now().fds > before->fds && test_now_ns() < deadline_ns)
        test_sleep_ns(1000000);
    CHECK_UINT_LE(leftovers_now().fds, before->fds);
}

/* The context is open, its peer is another process with descriptors enough. */
static void
run_short_of_descriptors(uint32_t transport, try_fn try_one)
{
    const struct proc_opts opts = {.force = transport};
    struct rdt_error err = {0};
    struct rlimit usual;
    struct proc peer;
    rdt_context *ctx;
    uint32_t failed = 0;
    rdt_status status = RDT_EDEVICE;

    CHECK(getrlimit(RLIMIT_NOFILE, &usual) == 0);
    proc_begin(&peer, &opts, 1, live_as_a_peer);
    proc_context(&ctx, &opts, 0);
    check_ok(try_one(ctx, &peer, &err), &err, "before");
    struct leftovers before = leftovers_now();
    do { /* what is closed is gone; a piece of the arena stays */
        before = leftovers_now();
        test_sleep_ns(100000000);
    } while (leftovers_now().fds < before.fds);
    for (uint32_t more = 0; more < 32; more++) {
        await_descriptors(&before);
        const uint64_t began_ns = test_now_ns();
        allow_descriptors(&usual, more);
        err = (struct rdt_error){.peer_rank = RDT_RANK_UNKNOWN};
        status = try_one(ctx, &peer, &err);
        CHECK(setrlimit(RLIMIT_NOFILE, &usual) == 0);
        if (status == RDT_OK)
            break;
        failed++;
        CHECK_MSG(status == RDT_EDEVICE && strstr(err.message, "RLIMIT_NOFILE") != NULL,
                  "%u descriptors: %s: %s", more, rdt_status_name(status), err.message);
        /* It is told, and tries on for none of the time that it has. */
        CHECK_UINT_LE(test_now_ns() - began_ns, patience_ns() / 10);
        await_descriptors(&before);
        check_ok(try_one(ctx, &peer, &err), &err, "with enough of them");
    }
    check_ok(status, &err, "with enough of them");
    CHECK_UINT_GE(failed, 2);
    printf("  refused with up to %u descriptors\n", failed - 1);
    proc_say(peer.fd);
    CHECK_INT_EQ(proc_end(&peer, 0), 0);
    check_ok(rdt_context_close(ctx, &err), &err, "context_close");
}

TEST_TIMEOUT(an_endpoint_over_shm_without_descriptors_says_so, 60)
{
    run_short_of_descriptors(RDT_TRANSPORT_SHM, try_an_endpoint);
}

TEST_TIMEOUT(an_endpoint_over_tcp_without_descriptors_says_so, 60)
{
    run_short_of_descriptors(RDT_TRANSPORT_TCP, try_an_endpoint);
}

TEST_TIMEOUT(a_group_over_shm_without_descriptors_says_so, 60)
{
    run_short_of_descriptors(RDT_TRANSPORT_SHM, try_a_group);
}

TEST_TIMEOUT(a_group_over_tcp_without_descriptors_says_so, 60)
{
    run_short_of_descriptors(RDT_TRANSPORT_TCP, try_a_group);
}

/* ---- Strangers ------------------------------------------------------------------------------- */

static bool
is_closed_now(int fd)
{
    struct pollfd pollfd = {.fd = fd, .events = POLLIN};
    char byte;

    return poll(&pollfd, 1, 0) == 1 && recv(fd, &byte, 1, MSG_DONTWAIT) <= 0;
}

/* A true greeting, a byte at a time: its deadline is that of the whole, and grows by no byte. */
TEST_TIMEOUT(who_dribbles_its_greeting_is_put_out_in_time, 60)
{
    struct rdti_hello hello = {.epoch = 1, .rank = 1, .transports = 2, .job_id = "job"};
    struct rdt_error err = {0};
    struct rdti_address address;
    struct sockaddr_storage addr;
    uint8_t bytes[RDTI_HELLO_BYTES];
    uint8_t address_bytes[RDT_ADDRESS_MAX_BYTES];
    size_t address_len = 0;
    struct pair pair;
    size_t sent = 0;

    pair_open(&pair, RDT_TRANSPORT_TCP);
    check_ok(rdt_context_address(pair.ctx[0], address_bytes, sizeof(address_bytes), &address_len,
                                 &err),
             &err, "address");
    check_ok(rdti_address_decode(address_bytes, address_len, &address, &err), &err,
             "address_decode");
    (void)snprintf(hello.library_version, sizeof(hello.library_version), "%s", rdt_version());
    memset(hello.connector, 0xab, sizeof(hello.connector));
    memcpy(hello.listener, address.uuid, sizeof(hello.listener));
    rdti_hello_encode(&hello, bytes);
    const socklen_t addr_bytes = rdti_sockaddr_of_ip(&address.addrs[0], &addr);
    const int fd = socket(addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&addr, addr_bytes) == 0);
    const uint64_t began_ns = test_now_ns();
    while (!is_closed_now(fd) && sent < sizeof(bytes)) {
        (void)send(fd, bytes + sent++, 1, MSG_NOSIGNAL);
        test_sleep_ns(200000000);
    }
    CHECK_UINT_LE(test_now_ns() - began_ns, (uint64_t)(9e9 * test_timeout_scale()));
    CHECK(sent >= 5 && sent < sizeof(bytes));
    (void)close(fd);
    for (int i = 0; i < 2; i++) /* and the job goes on */
        check_ok(rdt_endpoint_wait_ready(pair.ep[i], 0, &err), &err, "the job");
    pair_close(&pair);
}

TEST_MAIN()
