/* SPDX-License-Identifier: Apache-2.0
 * Set-up where something is short: descriptors, which it names and takes all of or none, and the
 * patience with strangers who send, but hardly. */
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "core/netaddr.h"
#include "integration/leftovers.h"
#include "pair_rig.h"
#include "wire/blob.h"
#include "wire/handshake.h"

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
    struct rdti_blob blob;
    struct sockaddr_storage addr;
    uint8_t bytes[RDTI_HELLO_BYTES];
    uint8_t blob_bytes[RDT_BLOB_MAX_BYTES];
    size_t blob_len = 0;
    struct pair pair;
    size_t sent = 0;

    pair_open(&pair, RDT_TRANSPORT_TCP);
    check_ok(rdt_context_blob(pair.ctx[0], blob_bytes, sizeof(blob_bytes), &blob_len, &err), &err,
             "blob");
    check_ok(rdti_blob_decode(blob_bytes, blob_len, &blob, &err), &err, "blob_decode");
    (void)snprintf(hello.library_version, sizeof(hello.library_version), "%s", rdt_version());
    memset(hello.connector, 0xab, sizeof(hello.connector));
    memcpy(hello.listener, blob.uuid, sizeof(hello.listener));
    rdti_hello_encode(&hello, bytes);
    const socklen_t addr_bytes = rdti_sockaddr_from_blob(&blob.addrs[0], &addr);
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
