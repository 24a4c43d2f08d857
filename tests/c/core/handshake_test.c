/* SPDX-License-Identifier: Apache-2.0
 * Strangers at the door: garbage, silence, other versions, replays, false names, over TCP and the
 * Unix socket. */
#include <arpa/inet.h>
#include <sys/resource.h>

#include "base/crypto.h"
#include "connect/handshake.h"
#include "diversion.h"
#include "process/process.h"
#include "stranger_rig.h"
#include "wire/handshake.h"

/* Bytes until `want`, the end of the connection, or the time-out; returns how many. */
static size_t
hear(int fd, uint8_t *bytes, size_t want, int timeout_ms)
{
    struct pollfd pollfd = {.fd = fd, .events = POLLIN};
    size_t have = 0;

    while (have < want && poll(&pollfd, 1, timeout_ms) == 1) {
        const ssize_t got = recv(fd, bytes + have, want - have, 0);
        if (got <= 0)
            break;
        have += (size_t)got;
    }
    return have;
}

static struct rdti_hello
hello_to(const struct rdti_address *address, const char *job)
{
    struct rdti_hello hello = {.epoch = 1, .rank = 5, .transports = 6};

    (void)snprintf(hello.library_version, sizeof(hello.library_version), "%s", rdt_version());
    (void)snprintf(hello.job_id, sizeof(hello.job_id), "%s", job);
    memset(hello.connector, 0xab, sizeof(hello.connector));
    memcpy(hello.listener, address->uuid, sizeof(hello.listener));
    memset(hello.nonce, 0x11, sizeof(hello.nonce));
    return hello;
}

/* Whatever a stranger did: honest peers still get in, soon. */
static void
check_honest(rdt_context *ctx)
{
    struct rdt_error err = {0};
    rdt_context *other;
    rdt_endpoint *ep;

    context_make(&other, ctx->opts.force_transport, "secret", 1);
    endpoint_make(other, ctx, 0, &ep);
    check_ok(rdt_endpoint_wait_ready(ep, 5 * RIG_S, &err), &err, "an honest peer");
    rdt_endpoint_close(ep);
    check_ok(rdt_context_close(other, &err), &err, "context_close");
}

static void
finish(rdt_context *ctx)
{
    struct rdt_error err = {0};

    check_honest(ctx);
    check_ok(rdt_context_close(ctx, &err), &err, "context_close");
}

static rdt_context *
begin(bool is_unix, struct rdti_address *address)
{
    rdt_context *ctx;

    context_make(&ctx, is_unix ? RDT_TRANSPORT_SHM : RDT_TRANSPORT_TCP, "secret", 0);
    *address = address_of(ctx);
    return ctx;
}

static void
check_reject(int fd, rdt_status status, const char *part)
{
    struct rdt_error err = {0};
    uint8_t bytes[RDTI_REJECT_BYTES];
    struct rdti_reject reject;

    CHECK_UINT_EQ(hear(fd, bytes, sizeof(bytes), 5000), sizeof(bytes));
    CHECK_OK(rdti_reject_decode(bytes, sizeof(bytes), &reject, &err), &err);
    CHECK_INT_EQ(reject.status, status);
    CHECK_STR_CONTAINS(reject.text, part);
    CHECK(is_closed(fd, 5000));
    (void)close(fd);
}

/* ---- Bytes --------------------------------------------------------------------------------- */

TEST_TIMEOUT(garbage_is_shown_the_door, 60)
{
    unsigned seed = 1;

    for (int u = 0; u < 2; u++) {
        struct rdti_address address;
        rdt_context *ctx = begin(u == 1, &address);
        for (int round = 0; round < 200; round++) {
            uint8_t bytes[600];
            const int fd = knock(&address, u == 1);
            const size_t len = 8 + (size_t)rand_r(&seed) % (sizeof(bytes) - 8);
            for (size_t i = 0; i < len; i++)
                bytes[i] = (uint8_t)rand_r(&seed);
            say(fd, bytes, len);
            CHECK(is_closed(fd, 5000));
            (void)close(fd);
        }
        finish(ctx);
    }
}

/* A true HELLO with one byte changed is never more than a HELLO, and mostly less. */
TEST_TIMEOUT(a_hello_with_a_changed_byte_opens_nothing, 60)
{
    for (int u = 0; u < 2; u++) {
        struct rdti_address address;
        rdt_context *ctx = begin(u == 1, &address);
        const struct rdti_hello hello = hello_to(&address, "job");
        uint8_t good[RDTI_HELLO_BYTES];
        rdti_hello_encode(&hello, good);
        for (size_t at = 0; at < sizeof(good); at++) {
            uint8_t bytes[RDTI_HELLO_BYTES];
            uint8_t answer[RDTI_CHALLENGE_BYTES + RDTI_REJECT_BYTES];
            uint8_t forged[RDTI_AUTH_BYTES] = {0};
            const struct rdti_auth auth = {0};
            const int fd = knock(&address, u == 1);
            memcpy(bytes, good, sizeof(bytes));
            bytes[at] ^= 0xff;
            say(fd, bytes, sizeof(bytes));
            rdti_auth_encode(&auth, forged);
            say(fd, forged, sizeof(forged)); /* without knowing the secret */
            say(fd, bytes, 64);
            (void)shutdown(fd, SHUT_WR); /* one that waits for more hears that there is none */
            (void)hear(fd, answer, sizeof(answer), 2000);
            CHECK(is_closed(fd, 5000));
            (void)close(fd);
        }
        rdti_engine_enter(ctx->engine);
        CHECK(rdti_list_is_empty(&ctx->endpoints));
        rdti_engine_leave(ctx->engine);
        finish(ctx);
    }
}

/* Whose HELLO may have grown, or shrunk. */
TEST(another_version_is_an_error_that_names_both)
{
    static const uint16_t lengths[] = {32, RDTI_HELLO_BYTES, 441, RDTI_OPENING_MAX_BYTES};

    for (int u = 0; u < 2; u++) {
        struct rdti_address address;
        rdt_context *ctx = begin(u == 1, &address);
        const struct rdti_hello hello = hello_to(&address, "job");
        for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
            uint8_t bytes[RDTI_OPENING_MAX_BYTES] = {0};
            const int fd = knock(&address, u == 1);
            rdti_hello_encode(&hello, bytes);
            rdti_put_u16(bytes + 4, RDTI_WIRE_VERSION + 1);
            rdti_put_u16(bytes + 6, lengths[i]);
            memcpy(bytes + 8, "7.8.9", 6);
            say(fd, bytes, lengths[i]);
            check_reject(fd, RDT_EVERSION, "7.8.9");
        }
        finish(ctx);
    }
}

/* ---- Names --------------------------------------------------------------------------------- */

TEST(a_wrong_job_epoch_or_listener_is_refused_by_name)
{
    for (int u = 0; u < 2; u++) {
        struct rdti_address address;
        rdt_context *ctx = begin(u == 1, &address);
        for (int fault = 0; fault < 3; fault++) {
            static const rdt_status want[] = {RDT_EAUTH, RDT_EMISMATCH, RDT_EPEER};
            static const char *const words[] = {"job 'jab'", "epoch 9", "another process"};
            struct rdti_hello hello = hello_to(&address, fault == 0 ? "jab" : "job");
            uint8_t bytes[RDTI_HELLO_BYTES];
            const int fd = knock(&address, u == 1);
            hello.epoch = fault == 1 ? 9 : 1;
            hello.listener[3] ^= fault == 2 ? 1 : 0;
            rdti_hello_encode(&hello, bytes);
            say(fd, bytes, sizeof(bytes));
            check_reject(fd, want[fault], words[fault]);
        }
        finish(ctx);
    }
}

/* Who knows the secret gets in with it once; the same bytes again do not. */
TEST(a_replayed_conversation_is_refused)
{
    for (int u = 0; u < 2; u++) {
        struct rdti_address address;
        rdt_context *ctx = begin(u == 1, &address);
        const struct rdti_hello hello = hello_to(&address, "job");
        uint8_t hello_bytes[RDTI_HELLO_BYTES];
        uint8_t challenge[RDTI_CHALLENGE_BYTES];
        uint8_t auth_bytes[RDTI_AUTH_BYTES];
        uint8_t head[8];
        struct rdti_auth auth;
        rdti_hello_encode(&hello, hello_bytes);
        int fd = knock(&address, u == 1);
        say(fd, hello_bytes, sizeof(hello_bytes));
        CHECK_UINT_EQ(hear(fd, challenge, sizeof(challenge), 5000), sizeof(challenge));
        rdti_handshake_mac(RDTI_MAC_CONNECTOR, (const uint8_t *)"secret", 6, hello_bytes, challenge,
                           auth.mac);
        rdti_auth_encode(&auth, auth_bytes);
        say(fd, auth_bytes, sizeof(auth_bytes));
        CHECK_UINT_EQ(hear(fd, head, sizeof(head), 5000), sizeof(head)); /* its PATH */
        (void)close(fd);

        fd = knock(&address, u == 1);
        for (int attempt = 0;; attempt++) { /* the first connection's endpoint may be there still */
            say(fd, hello_bytes, sizeof(hello_bytes));
            if (hear(fd, challenge, 4, 5000) == 4 && memcmp(challenge, "RDTC", 4) == 0)
                break;
            CHECK(attempt < 100);
            (void)close(fd);
            test_sleep_ns(20000000);
            fd = knock(&address, u == 1);
        }
        CHECK_UINT_EQ(hear(fd, challenge + 4, sizeof(challenge) - 4, 5000), sizeof(challenge) - 4);
        say(fd, auth_bytes, sizeof(auth_bytes));
        check_reject(fd, RDT_EAUTH, "does not know the job's secret");
        finish(ctx);
    }
}

/* A socket that is listened at, and an address that leads there and nowhere else. */
static int
listen_silently(struct rdti_address *address)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t addr_bytes = sizeof(addr);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK(bind(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0);
    CHECK(listen(fd, 5) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&addr, &addr_bytes) == 0);
    address->unix_name[0] = '\0';
    address->addr_count = 1;
    address->addrs[0] =
        (struct rdti_address_ip){.family = 4, .is_loopback = true, .port = ntohs(addr.sin_port)};
    memcpy(address->addrs[0].addr, &addr.sin_addr, 4);
    return fd;
}

static rdt_status
open_as(rdt_context *ctx, const struct rdti_address *address, int32_t rank, rdt_endpoint **out,
        struct rdt_error *err)
{
    const struct rdt_endpoint_opts opts = {.struct_size = sizeof(opts),
                                           .peer_rank = rank,
                                           .job_id = "job"};
    uint8_t bytes[RDT_ADDRESS_MAX_BYTES];
    size_t len = 0;

    check_ok(rdti_address_encode(address, bytes, sizeof(bytes), &len, err), err, "address_encode");
    return rdt_endpoint_open(ctx, bytes, len, &opts, out, err);
}

static void
check_names_both(const struct rdt_error *err)
{
    CHECK_STR_CONTAINS(err->message, "rank 1 of job 'job'");
    CHECK_STR_CONTAINS(err->message, "opened as rank 4");
}

/* Rank 1 of the job, which knows the secret, where rank 0 looks for rank 4: as the one that is
 * called, as the one that calls, and where it called before it was looked for. */
TEST(a_true_member_with_another_rank_is_refused)
{
    for (int t = 1; t <= 2; t++) {
        struct rdt_error err = {0};
        rdt_context *ctx;
        rdt_context *member;
        rdt_endpoint *ep;
        rdt_endpoint *back;
        context_make(&ctx, RDT_TRANSPORT_AUTO, "secret", 0);
        context_make(&member, t == 1 ? RDT_TRANSPORT_SHM : RDT_TRANSPORT_TCP, "secret", 1);
        struct rdti_address address = address_of(member);

        check_ok(open_as(ctx, &address, 4, &ep, &err), &err, "endpoint_open");
        CHECK_STATUS(rdt_endpoint_wait_ready(ep, 5 * RIG_S, &err), RDT_EMISMATCH);
        check_names_both(&err);
        CHECK_INT_EQ(err.peer_rank, 1);
        rdt_endpoint_close(ep);

        const int silent = listen_silently(&address);
        check_ok(open_as(ctx, &address, 4, &ep, &err), &err, "endpoint_open");
        endpoint_make(member, ctx, 0, &back);
        CHECK_STATUS(rdt_endpoint_wait_ready(back, 5 * RIG_S, &err), RDT_EMISMATCH);
        check_names_both(&err);
        rdt_endpoint_close(back);
        rdt_endpoint_close(ep);
        (void)close(silent);

        endpoint_make(member, ctx, 0, &back);
        check_ok(rdt_endpoint_wait_ready(back, 5 * RIG_S, &err), &err, "as itself");
        address = address_of(member);
        CHECK_STATUS(open_as(ctx, &address, 4, &ep, &err), RDT_EMISMATCH);
        check_names_both(&err);
        check_ok(open_as(ctx, &address, 1, &ep, &err), &err, "endpoint_open"); /* no harm done */
        check_ok(rdt_endpoint_wait_ready(ep, 5 * RIG_S, &err), &err, "by its rank");
        rdt_endpoint_close(ep);
        rdt_endpoint_close(back);
        check_ok(rdt_context_close(member, &err), &err, "context_close");
        finish(ctx);
    }
}

/* A stranger in the name of a peer that is being connected to does not end that attempt. */
TEST(a_false_hello_does_not_disturb_the_true_peers_set_up)
{
    for (int smaller = 0; smaller < 2; smaller++) {
        struct rdt_error err = {0};
        const struct rdt_endpoint_opts opts = {.struct_size = sizeof(opts),
                                               .peer_rank = 5,
                                               .job_id = "job"};
        struct sockaddr_in addr = {.sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t addr_bytes = sizeof(addr);
        struct rdti_address own;
        uint8_t bytes[RDT_ADDRESS_MAX_BYTES];
        size_t len = 0;
        rdt_endpoint *ep;
        rdt_context *ctx = begin(false, &own);
        /* The true peer: it listens, and takes its time. */
        const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(bind(listener, (struct sockaddr *)&addr, sizeof(addr)) == 0);
        CHECK(listen(listener, 5) == 0);
        CHECK(getsockname(listener, (struct sockaddr *)&addr, &addr_bytes) == 0);
        struct rdti_address address = own;
        memset(address.uuid, smaller == 1 ? 0x00 : 0xff, sizeof(address.uuid));
        address.uuid[5] = 1;
        address.unix_name[0] = '\0';
        address.addr_count = 1;
        address.addrs[0] = (struct rdti_address_ip){.family = 4,
                                                    .is_loopback = true,
                                                    .port = ntohs(addr.sin_port)};
        memcpy(address.addrs[0].addr, &addr.sin_addr, 4);
        check_ok(rdti_address_encode(&address, bytes, sizeof(bytes), &len, &err), &err,
                 "address_encode");
        check_ok(rdt_endpoint_open(ctx, bytes, len, &opts, &ep, &err), &err, "endpoint_open");
        const int truth = accept(listener, NULL, NULL);
        uint8_t hello_bytes[RDTI_HELLO_BYTES];
        CHECK_UINT_EQ(hear(truth, hello_bytes, sizeof(hello_bytes), 5000), sizeof(hello_bytes));

        struct rdti_hello hello = hello_to(&own, "job");
        memcpy(hello.connector, address.uuid, sizeof(hello.connector));
        for (int i = 0; i < 5; i++) {
            uint8_t lie[RDTI_HELLO_BYTES];
            uint8_t answer[8];
            const int fd = knock(&own, false);
            rdti_hello_encode(&hello, lie);
            say(fd, lie, sizeof(lie));
            CHECK_UINT_EQ(hear(fd, answer, sizeof(answer), 5000), sizeof(answer));
            (void)close(fd);
        }
        CHECK(!is_closed(truth, 300)); /* the attempt goes on */
        (void)close(truth);
        (void)close(listener);
        rdt_endpoint_close(ep);
        finish(ctx);
    }
}

/* ---- Silence ------------------------------------------------------------------------------- */

/* As many strangers as there are descriptors for: their ends, and those that are kept of ours. */
static int
strangers_possible(int wanted)
{
    const rlim_t others = 400; /* RDTI_HANDSHAKES_MAX, an honest peer's, ours */
    struct rlimit limit;

    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    if (limit.rlim_cur < (rlim_t)wanted + others) {
        limit.rlim_cur = (rlim_t)wanted + others;
        if (limit.rlim_max < limit.rlim_cur)
            limit.rlim_cur = limit.rlim_max;
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    }
    if (limit.rlim_cur >= (rlim_t)wanted + others)
        return wanted;
    CHECK(limit.rlim_cur > others + RDTI_HANDSHAKES_MAX);
    printf("  %d strangers: RLIMIT_NOFILE is %u\n", (int)(limit.rlim_cur - others),
           (unsigned)limit.rlim_cur);
    return (int)(limit.rlim_cur - others);
}

/* A thousand at once, and each kind of them is worth two lines: the first, and how many more. */
TEST_TIMEOUT(silent_strangers_keep_nobody_out, 60)
{
    const int count = strangers_possible(1000);
    int *fds = calloc((size_t)count, sizeof(int));

    for (int u = 0; u < 2; u++) {
        struct rdti_address address;
        rdt_context *ctx = begin(u == 1, &address);
        FILE *log = tmpfile();
        CHECK_NOT_NULL(log);
        const int before = divert_stderr(log);
        const uint64_t began_ns = test_now_ns();
        for (int i = 0; i < count; i++) {
            fds[i] = knock(&address, u == 1);
            if (i % 2 == 0)
                say(fds[i], "RDTH", 4); /* slower than any network */
        }
        const uint64_t before_ns = test_now_ns();
        check_honest(ctx);
        const uint64_t took_ns = test_now_ns() - before_ns;
        const bool had_to_go = is_closed(fds[0], 5000) && is_closed(fds[1], 5000);
        for (int i = 0; i < count; i++)
            (void)close(fds[i]);
        finish(ctx);
        const unsigned lines = end_diversion(log, before);
        (void)fclose(log);
        CHECK_UINT_LE(took_ns, (uint64_t)(2e9 * test_timeout_scale()));
        CHECK(had_to_go); /* the oldest */
        const uint64_t windows = 1 + (test_now_ns() - began_ns) / RDTI_REFUSAL_QUIET_NS;
        CHECK_UINT_GE(lines, 1);
        CHECK_UINT_LE(lines, 1 + 2 * windows);
    }
    free(fds);
}

/* A flood of one kind does not hide the first of another. */
TEST_TIMEOUT(what_is_no_handshake_is_logged_once, 60)
{
    for (int u = 0; u < 2; u++) {
        struct rdti_address address;
        rdt_context *ctx = begin(u == 1, &address);
        struct rdti_hello hello = hello_to(&address, "jab");
        uint8_t bytes[RDTI_HELLO_BYTES];
        char line[1024];
        char all[4096] = {0};
        FILE *log = tmpfile();
        CHECK_NOT_NULL(log);
        const int before = divert_stderr(log);
        const uint64_t began_ns = test_now_ns();
        rdti_hello_encode(&hello, bytes);
        for (int i = 0; i < 101; i++) {
            const int fd = knock(&address, u == 1);
            say(fd, i < 100 ? (const void *)"GET / HTTP/1.0\r\n" : bytes,
                i < 100 ? 16 : sizeof(bytes));
            (void)shutdown(fd, SHUT_WR);
            while (recv(fd, line, sizeof(line), 0) > 0)
                ;
            (void)close(fd);
        }
        finish(ctx);
        const unsigned lines = end_diversion(log, before);
        rewind(log);
        (void)!fread(all, 1, sizeof(all) - 1, log);
        (void)fclose(log);
        CHECK_STR_CONTAINS(all, "something that is not a handshake");
        if (test_now_ns() - began_ns < RDTI_REFUSAL_QUIET_NS) {
            CHECK_UINT_EQ(lines, 3);
            CHECK_STR_CONTAINS(all,
                               "99 more connections were refused without an rdmatensor handshake");
        }
        CHECK_STR_CONTAINS(all, "job 'jab' is unknown here");
    }
}

TEST(a_stranger_that_says_nothing_is_put_out_in_time)
{
    struct rdti_address address;
    rdt_context *ctx = begin(false, &address);
    const int fd = knock(&address, false);

    say(fd, "RD", 2);
    CHECK(!is_closed(fd, 3000));
    CHECK(is_closed(fd, 4000)); /* after five seconds */
    (void)close(fd);
    finish(ctx);
}

/* A process without descriptors neither spins on its door nor loses who stands there. */
TEST(a_lack_of_descriptors_is_survived)
{
    struct rdt_error err = {0};
    struct rlimit limit;
    struct rdti_address address;
    rdt_context *ctx = begin(false, &address);
    int fillers[256];
    int count = 0;

    const int stranger = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_storage addr;
    const socklen_t addr_bytes = rdti_sockaddr_of_ip(&address.addrs[0], &addr);
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = 200;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    while (count < 256 && (fillers[count] = dup(stranger)) >= 0)
        count++;
    CHECK(count < 256);
    rdt_log_set_level(RDT_LOG_ERROR);
    CHECK(connect(stranger, (struct sockaddr *)&addr, addr_bytes) ==
          0); /* by the kernel's backlog */
    struct timespec begun;
    struct timespec ended;
    CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begun) == 0);
    test_sleep_ns(500000000);
    CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ended) == 0);
    const double cpu_s =
        (double)(ended.tv_sec - begun.tv_sec) + (double)(ended.tv_nsec - begun.tv_nsec) * 1e-9;
    CHECK_MSG(cpu_s < 0.2, "%.3f s of CPU in 0.5 s", cpu_s);
    while (count > 0)
        (void)close(fillers[--count]);
    say(stranger, "GET / HTTP/1.0\r\n", 16);
    CHECK(is_closed(stranger, 3000)); /* it was taken in, and put out */
    (void)close(stranger);
    check_honest(ctx);
    check_ok(rdt_context_close(ctx, &err), &err, "context_close");
}

TEST_MAIN()
