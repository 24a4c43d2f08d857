/* SPDX-License-Identifier: Apache-2.0
 * Another user of the host, who knows everything but the password: the secret, the socket's name,
 * our process id, descriptors and addresses. It neither gets an answer nor reaches our memory. */
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

#include "pair_rig.h"
#include "process/process.h"
#include "wire/address.h"
#include "wire/handshake.h"

#define STRANGER 65534 /* "nobody" */
#define MEMFDS_MAX 16

/* What it is told. */
struct prey {
    pid_t pid;
    char unix_name[RDTI_UNIX_NAME_BYTES];
    uint8_t hello[RDTI_HELLO_BYTES];
    uint64_t addr; /* of a word in an exported region */
    int memfds[MEMFDS_MAX];
    uint32_t memfd_count;
};

/* What came of it: errno, or 0 for a success. */
struct loot {
    int became_errno; /* nothing else was tried where it stayed who it was */
    uint32_t silent_heard_bytes;
    uint32_t hello_heard_bytes;
    bool was_closed; /* both times, before any time-out */
    int open_errno[MEMFDS_MAX];
    int read_errno;
};

/* Connects, says len_bytes and listens until the end; returns how many bytes came. */
static uint32_t
call(const struct prey *prey, const uint8_t *bytes, size_t len_bytes, bool *was_closed)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    const size_t name_bytes = strlen(prey->unix_name);
    const struct timeval limit = {.tv_sec = 3};
    uint8_t answer[1024];
    uint32_t heard_bytes = 0;
    ssize_t got;

    memcpy(addr.sun_path + 1, prey->unix_name, name_bytes);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
    CHECK_MSG(connect(fd, (struct sockaddr *)&addr,
                      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + name_bytes)) == 0,
              "connect: %s", strerror(errno));
    if (len_bytes > 0) { /* it may be closed by now; whoever is answered says no more */
        (void)!send(fd, bytes, len_bytes, MSG_NOSIGNAL);
        (void)shutdown(fd, SHUT_WR);
    }
    while ((got = recv(fd, answer, sizeof(answer), 0)) > 0)
        heard_bytes += (uint32_t)got;
    *was_closed = *was_closed && (got == 0 || errno == ECONNRESET);
    CHECK_INT_EQ(close(fd), 0);
    return heard_bytes;
}

static int
open_memfd(pid_t pid, int number)
{
    char path[64];

    (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, number);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return errno;
    CHECK_INT_EQ(close(fd), 0);
    return 0;
}

static int
read_word(pid_t pid, uint64_t addr)
{
    uint64_t word = 0;
    const struct iovec local = {.iov_base = &word, .iov_len = sizeof(word)};
    const struct iovec remote = {.iov_base = (void *)(uintptr_t)addr, .iov_len = sizeof(word)};

    return process_vm_readv(pid, &local, 1, &remote, 1, 0) == (ssize_t)sizeof(word) ? 0 : errno;
}

static void
plunder(const struct prey *prey, struct loot *loot)
{
    loot->was_closed = true;
    loot->silent_heard_bytes = call(prey, NULL, 0, &loot->was_closed);
    loot->hello_heard_bytes = call(prey, prey->hello, sizeof(prey->hello), &loot->was_closed);
    for (uint32_t i = 0; i < prey->memfd_count; i++)
        loot->open_errno[i] = open_memfd(prey->pid, prey->memfds[i]);
    loot->read_errno = read_word(prey->pid, prey->addr);
}

static int
become_stranger(void)
{
    return setgroups(0, NULL) == 0 && setresgid(STRANGER, STRANGER, STRANGER) == 0 &&
                   setresuid(STRANGER, STRANGER, STRANGER) == 0
               ? 0
               : errno;
}

/* Forked before there is anything to inherit. */
static pid_t
begin_stranger(int *fd_out)
{
    int ends[2];

    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    fflush(NULL);
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid != 0) {
        *fd_out = ends[0];
        return close(ends[1]) == 0 ? pid : -1;
    }
    struct prey prey;
    struct loot loot = {0};
    (void)close(ends[0]);
    loot.became_errno = become_stranger();
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a change of user clears it */
    CHECK(send(ends[1], &loot, sizeof(loot), MSG_NOSIGNAL) == (ssize_t)sizeof(loot));
    if (recv(ends[1], &prey, sizeof(prey), 0) != (ssize_t)sizeof(prey))
        _exit(0); /* it is not wanted */
    plunder(&prey, &loot);
    CHECK(send(ends[1], &loot, sizeof(loot), MSG_NOSIGNAL) == (ssize_t)sizeof(loot));
    _exit(0);
}

static void
hear_loot(int fd, struct loot *out)
{
    struct pollfd pollfd = {.fd = fd, .events = POLLIN};

    CHECK_MSG(poll(&pollfd, 1, (int)(10000 * test_timeout_scale())) == 1, "nothing came");
    CHECK(recv(fd, out, sizeof(*out), 0) == (ssize_t)sizeof(*out));
}

/* Every piece of shared memory that this process has open. */
static void
list_memfds(struct prey *prey)
{
    DIR *dir = opendir("/proc/self/fd");

    CHECK_NOT_NULL(dir);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char target[64] = {0};
        if (readlinkat(dirfd(dir), entry->d_name, target, sizeof(target) - 1) > 0 &&
            strncmp(target, "/memfd:", 7) == 0) {
            CHECK(prey->memfd_count < MEMFDS_MAX);
            prey->memfds[prey->memfd_count++] = (int)strtol(entry->d_name, NULL, 10);
        }
    }
    CHECK_INT_EQ(closedir(dir), 0);
}

static void
describe(rdt_context *ctx, const void *word, struct prey *out)
{
    struct rdt_error err = {0};
    struct rdti_hello hello = {.epoch = 1, .rank = 5, .transports = 2, .job_id = "job"};
    uint8_t bytes[RDT_ADDRESS_MAX_BYTES];
    size_t len_bytes = 0;
    struct rdti_address address;

    check_ok(rdt_context_address(ctx, bytes, sizeof(bytes), &len_bytes, &err), &err, "address");
    check_ok(rdti_address_decode(bytes, len_bytes, &address, &err), &err, "address_decode");
    *out = (struct prey){.pid = getpid(), .addr = (uintptr_t)word};
    (void)snprintf(out->unix_name, sizeof(out->unix_name), "%s", address.unix_name);
    (void)snprintf(hello.library_version, sizeof(hello.library_version), "%s", rdt_version());
    memset(hello.connector, 0xab, sizeof(hello.connector));
    memcpy(hello.listener, address.uuid, sizeof(hello.listener));
    rdti_hello_encode(&hello, out->hello);
    list_memfds(out);
}

/* A word from each to the other. */
static void
check_goes_on(const struct pair *pair)
{
    struct rdt_error err = {0};
    const uint64_t word = 0x600d;

    for (int i = 0; i < 2; i++) {
        struct rdt_remote_region remote;
        rdt_region *region;
        uint32_t got = 0;
        check_ok(rdt_region_alloc(pair->ctx[1 - i], 64, 0, &region, &err), &err, "alloc");
        check_ok(rdt_region_export(region, &remote, &err), &err, "export");
        check_ok(rdt_endpoint_write(pair->ep[i], &word, 8, &remote, 0, 7, NULL, &err), &err,
                 "write");
        check_ok(rdt_endpoint_wait_notify(pair->ep[1 - i], 10 * RIG_S, &got, &err), &err, "notify");
        CHECK_UINT_EQ(got, 7);
        CHECK_MEM_EQ(rdt_region_addr(region), &word, sizeof(word));
        rdt_region_free(region, NULL, NULL);
    }
}

TEST(another_user_gets_no_answer_and_no_memory)
{
    struct rdt_error err = {0};
    struct pair pair;
    struct prey prey;
    struct loot loot;
    rdt_region *region;
    int status = -1;
    int fd = -1;
    const pid_t stranger = begin_stranger(&fd);

    CHECK(stranger > 0);
    hear_loot(fd, &loot);
    if (loot.became_errno != 0) {
        (void)close(fd);
        (void)waitpid(stranger, NULL, 0);
        SKIP("needs CAP_SETUID to be another user");
    }
    pair_open(&pair, RDT_TRANSPORT_SHM);
    check_ok(rdt_region_alloc(pair.ctx[0], 4096, 0, &region, &err), &err, "alloc");
    describe(pair.ctx[0], rdt_region_addr(region), &prey);
    CHECK_UINT_GE(prey.memfd_count, 2); /* an arena each, at least */

    /* All of it leads somewhere, for us. */
    bool was_closed = true;
    CHECK_UINT_GE(call(&prey, prey.hello, sizeof(prey.hello), &was_closed), RDTI_CHALLENGE_BYTES);
    const int own_errno = read_word(prey.pid, prey.addr);
    CHECK(own_errno == 0 || own_errno == EPERM || own_errno == ENOSYS); /* seccomp: nobody may */
    for (uint32_t i = 0; i < prey.memfd_count; i++)
        CHECK_INT_EQ(open_memfd(prey.pid, prey.memfds[i]), 0);

    CHECK(send(fd, &prey, sizeof(prey), MSG_NOSIGNAL) == (ssize_t)sizeof(prey));
    hear_loot(fd, &loot);
    CHECK(waitpid(stranger, &status, 0) == stranger);
    CHECK_INT_EQ(status, 0);
    CHECK_INT_EQ(close(fd), 0);
    CHECK_UINT_EQ(loot.silent_heard_bytes, 0);
    CHECK_UINT_EQ(loot.hello_heard_bytes, 0);
    CHECK(loot.was_closed);
    for (uint32_t i = 0; i < prey.memfd_count; i++)
        CHECK_MSG(loot.open_errno[i] == EACCES || loot.open_errno[i] == EPERM, "memfd %d: %s",
                  prey.memfds[i], strerror(loot.open_errno[i]));
    CHECK_MSG(loot.read_errno == EPERM || loot.read_errno == EACCES, "process_vm_readv: %s",
              strerror(loot.read_errno));
    check_goes_on(&pair);
    rdt_region_free(region, NULL, NULL);
    pair_close(&pair);
}

TEST_MAIN()
