/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_floor - the latency of a device between two processes of this host with plain libibverbs:
 * the baseline of the verbs path, with one RC QP on each side. perftest has its rates.
 *
 * A ping-pong, of which half a round trip counts: "write" is polled for in the memory that it ends
 * in (its last byte), "imm" is a write with an immediate and "send" a send, both of which take a
 * receive and a completion there; "read" has one side alone, and its whole trip counts, as
 * ib_read_lat has it. Each side takes its own message's completion before it polls for the answer,
 * as the library and ib_write_lat do (ib_send_lat: of each hundredth). A waiting side spins, on its
 * completion queue or on the byte. What arrives is compared in a pass of its own, first.
 *
 *   verbs_floor --device NAME --gid N [--ops write,imm,read,send] [--sizes N,N,...]
 *               [--count N] [--pause NS]
 *
 * --pause: a side spins for so long before it posts, as a program's or a library's own code would;
 * that is in the time. The rest beyond it comes of the device's being idle again by then.
 *
 * Defaults: 8 B to 1 MiB, 200 messages. One JSON object a line. Exit status: 0, 1 failed, 77 fewer
 * than two cores.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "raw_verbs.h"

#define MAX_BYTES ((size_t)64 << 20)
#define DEPTH 16
#define MAX_COUNT 100000
#define MAX_PAUSE_NS 1000000
#define RESTOCK 32 /* receives that are posted at a time, as ours are */
/* An emulated machine moves 80 MiB a second, and has a pass of other sizes yet to end. */
#define MEET_S 100

enum op { OP_WRITE, OP_IMM, OP_READ, OP_SEND, OPS };

static const struct {
    const char *name;
    const char *contestant;
    enum ibv_wr_opcode opcode;
} ops[OPS] = {{"write", "raw write", IBV_WR_RDMA_WRITE},
              {"imm", "raw write with immediate", IBV_WR_RDMA_WRITE_WITH_IMM},
              {"read", "raw read", IBV_WR_RDMA_READ},
              {"send", "raw send", IBV_WR_SEND}};

struct config {
    enum op op;
    size_t len_bytes;
    struct bench_series series; /* of the first process */
};

#define MAX_CONFIGS (OPS * BENCH_MAX_SIZES)

struct settings {
    struct raw_verbs_port port;
    uint64_t pause_ns;
    size_t count;
    size_t most_bytes; /* of all messages */
    struct config *configs;
    size_t config_count;
};

struct side {
    int index; /* 0 began the other */
    int socket;
    uint64_t pause_ns; /* before each post of a ping-pong */
    size_t count;
    size_t most_bytes;
    struct raw_verbs v;
    char *src;
    char *dst;         /* behind src, in the memory that is registered */
    size_t to_post;    /* receives that this run will need yet */
    uint32_t in_stock; /* receives that are posted */
};

/* ---- Between the processes ------------------------------------------------------------------ */

static void
swap(const struct side *s, const void *mine, void *theirs, size_t len_bytes)
{
    if (send(s->socket, mine, len_bytes, MSG_NOSIGNAL) != (ssize_t)len_bytes)
        bench_die("the other process is gone");
    const ssize_t got = recv(s->socket, theirs, len_bytes, MSG_WAITALL);
    if (got < 0)
        bench_die("the other process does not answer");
    if (got != (ssize_t)len_bytes)
        bench_fail("the other process is gone");
}

/* Both are here; who is first sleeps. */
static void
meet(const struct side *s)
{
    const char mine = 1;
    char theirs;

    swap(s, &mine, &theirs, sizeof(mine));
}

/* ---- Messages ------------------------------------------------------------------------------- */

static bool
takes_receives(const struct config *c)
{
    return c->op == OP_IMM || c->op == OP_SEND;
}

static void
restock(struct side *s, const struct config *c)
{
    const uint32_t room = s->v.recv_depth - s->in_stock;

    if (s->to_post == 0 || (room < RESTOCK && s->in_stock > 0))
        return;
    const uint32_t count = s->to_post < room ? (uint32_t)s->to_post : room;
    raw_verbs_post_recvs(&s->v, s->dst, c->op == OP_SEND ? c->len_bytes : 0, count);
    s->in_stock += count;
    s->to_post -= count;
}

/* Have receives for `count` messages, as far as they find room; the peer begins after a meeting. */
static void
expect(struct side *s, const struct config *c, size_t count)
{
    s->to_post = takes_receives(c) ? count : 0;
    restock(s, c);
}

static void
post(struct side *s, const struct config *c)
{
    if (c->op == OP_READ)
        raw_verbs_post(&s->v, ops[c->op].opcode, s->dst, c->len_bytes, 0);
    else
        raw_verbs_post(&s->v, ops[c->op].opcode, s->src, c->len_bytes, s->most_bytes);
}

/* What the last byte of a written message says, never what that of the one before it said. */
static unsigned char
mark_of(size_t number)
{
    return (unsigned char)(number % 255 + 1);
}

static void
give(struct side *s, const struct config *c, size_t number)
{
    if (c->op == OP_WRITE)
        s->src[c->len_bytes - 1] = (char)mark_of(number);
    post(s, c);
    (void)raw_verbs_take(s->v.send_cq, 1, 1);
}

static void
await_mark(const _Atomic unsigned char *last, unsigned char mark)
{
    uint64_t deadline_ns = 0;

    /* acquire: what is read of the message is read later. That its bytes arrive in order is for the
     * device to say; here nobody reads them. No pause between looks: ib_write_lat makes none. */
    for (uint32_t spins = 1; atomic_load_explicit(last, memory_order_acquire) != mark; spins++) {
        if (spins % 4096 != 0)
            continue;
        if (deadline_ns == 0)
            deadline_ns = bench_now_ns() + BENCH_PATIENCE_NS;
        if (bench_now_ns() > deadline_ns)
            bench_fail("no write comes");
    }
}

static uint32_t
take(struct side *s, const struct config *c, uint32_t most)
{
    const uint32_t taken = raw_verbs_take(s->v.recv_cq, 1, most);

    s->in_stock -= taken;
    restock(s, c);
    return taken;
}

static void
take_one(struct side *s, const struct config *c, size_t number)
{
    if (c->op == OP_WRITE)
        await_mark((const _Atomic unsigned char *)(s->dst + c->len_bytes - 1), mark_of(number));
    else
        (void)take(s, c, 1);
}

/* ---- Passes --------------------------------------------------------------------------------- */

static void
pause_for(uint64_t pause_ns)
{
    const uint64_t until_ns = pause_ns > 0 ? bench_now_ns() + pause_ns : 0;

    while (until_ns > 0 && bench_now_ns() < until_ns)
        ;
}

static void
ping(struct side *s, struct config *c)
{
    const size_t warm_up = bench_warm_up(s->count);

    expect(s, c, warm_up + s->count);
    s->dst[c->len_bytes - 1] = 0;
    meet(s);
    for (size_t i = 0; i < warm_up + s->count; i++) {
        const uint64_t start_ns = bench_now_ns();

        if (c->op == OP_READ && s->index == 1)
            break;
        if (s->index == 1)
            take_one(s, c, i);
        pause_for(s->pause_ns);
        give(s, c, i);
        if (s->index == 0 && c->op != OP_READ)
            take_one(s, c, i);
        if (s->index == 0 && i >= warm_up)
            bench_series_add(&c->series, (bench_now_ns() - start_ns) / (c->op == OP_READ ? 1 : 2));
    }
    meet(s);
}

/* A message each way, compared: what came into dst is what the other side has in src. */
static void
verify(struct side *s, const struct config *c)
{
    const uint64_t seed = 2 * (uint64_t)c->op;

    bench_fill(s->src, c->len_bytes, seed + (uint64_t)s->index);
    memset(s->dst, 0, c->len_bytes);
    expect(s, c, 1);
    meet(s);
    post(s, c);
    (void)raw_verbs_take(s->v.send_cq, 1, 1);
    if (takes_receives(c))
        (void)take(s, c, 1);
    meet(s); /* with its completion a write is where it belongs */
    bench_verify(s->dst, c->len_bytes, seed + 1 - (uint64_t)s->index, ops[c->op].contestant);
    meet(s);
}

static void
run_side(struct side *s, const struct settings *settings)
{
    struct raw_verbs_address own;
    struct raw_verbs_address peer;

    if (!bench_pin(s->index))
        bench_die("sched_setaffinity");
    s->count = settings->count;
    s->pause_ns = settings->pause_ns;
    s->most_bytes = settings->most_bytes;
    s->src = bench_map(2 * s->most_bytes, MAP_PRIVATE);
    s->dst = s->src + s->most_bytes;
    raw_verbs_open(&s->v, &settings->port, DEPTH, s->src, 2 * s->most_bytes, &own);
    swap(s, &own, &peer, sizeof(own));
    raw_verbs_connect(&s->v, &peer);
    meet(s);
    for (size_t i = 0; i < settings->config_count; i++)
        verify(s, &settings->configs[i]);
    for (size_t i = 0; i < settings->config_count; i++)
        ping(s, &settings->configs[i]);
}

static void
close_side(struct side *s)
{
    raw_verbs_close(&s->v);
    (void)munmap(s->src, 2 * s->most_bytes);
    (void)close(s->socket);
}

/* ---- What was found ------------------------------------------------------------------------- */

static void
report(struct config *c, const struct side *s)
{
    const bool is_inline = c->op != OP_READ && c->len_bytes <= s->v.inline_bytes;
    char fields[512];

    (void)snprintf(fields, sizeof(fields),
                   "\"op\": \"%s\", \"timed\": \"%s\", \"wait\": \"%s\", \"device\": \"%s\", "
                   "\"mtu\": %d, \"inline\": %s, \"size\": %zu, \"pause_ns\": %" PRIu64,
                   ops[c->op].name, c->op == OP_READ ? "a round trip" : "half a round trip",
                   c->op == OP_WRITE ? "spins on memory" : "spins on the CQ", s->v.port.device,
                   128 << s->v.port.mtu, is_inline ? "true" : "false", c->len_bytes, s->pause_ns);
    bench_series_print(&c->series, fields);
    bench_series_free(&c->series);
}

static void
open_sockets(int sockets[2])
{
    const struct timeval patience = {.tv_sec = MEET_S};

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
        bench_die("socketpair");
    for (int i = 0; i < 2; i++)
        if (setsockopt(sockets[i], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) != 0)
            bench_die("setsockopt");
}

/* The second process, from its first moment to its last. */
_Noreturn static void
be_second(const struct settings *settings, int fd, pid_t parent)
{
    struct side s = {.index = 1, .socket = fd};

    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(1);
    run_side(&s, settings);
    close_side(&s);
    _exit(0);
}

static void
run(const struct settings *settings)
{
    int sockets[2];
    int status;

    open_sockets(sockets);
    (void)fflush(NULL);
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child < 0)
        bench_die("fork");
    (void)close(sockets[child == 0 ? 0 : 1]);
    if (child == 0)
        be_second(settings, sockets[1], parent);
    struct side s = {.index = 0, .socket = sockets[0]};
    run_side(&s, settings);
    for (size_t i = 0; i < settings->config_count; i++)
        report(&settings->configs[i], &s);
    close_side(&s);
    if (waitpid(child, &status, 0) != child || status != 0)
        bench_fail("the second process failed");
}

/* ---- Arguments ------------------------------------------------------------------------------ */

static void
parse_ops(const char *text, bool chosen[OPS])
{
    for (;;) {
        const size_t len = strcspn(text, ",");
        size_t op = 0;

        while (op < OPS && (strlen(ops[op].name) != len || strncmp(ops[op].name, text, len) != 0))
            op++;
        if (op == OPS)
            bench_fail("--ops are some of write,imm,read,send, not \"%.*s\"", (int)len, text);
        chosen[op] = true;
        if (text[len] == '\0')
            return;
        text += len + 1;
    }
}

static size_t
build_configs(struct config *configs, int argc, char **argv)
{
    const char *op_names = bench_arg(argc, argv, "--ops");
    const char *size_text = bench_arg(argc, argv, "--sizes");
    bool chosen[OPS] = {false};
    size_t sizes[BENCH_MAX_SIZES];
    size_t n = 0;

    parse_ops(op_names != NULL ? op_names : "write,imm,read,send", chosen);
    const size_t size_count =
        bench_parse_sizes(size_text != NULL ? size_text : "8,4096,65536,1048576", MAX_BYTES, sizes);
    for (size_t i = 0; i < size_count * OPS; i++)
        if (chosen[i % OPS])
            configs[n++] = (struct config){.op = (enum op)(i % OPS), .len_bytes = sizes[i / OPS]};
    return n;
}

static uint64_t
given_pause_ns(int argc, char **argv)
{
    const double given = bench_arg_number(argc, argv, "--pause", 0);

    if (given > MAX_PAUSE_NS)
        bench_fail("--pause is at most %d ns", MAX_PAUSE_NS);
    return (uint64_t)given;
}

static int
given_gid(int argc, char **argv)
{
    const char *gid = bench_arg(argc, argv, "--gid");

    if (gid == NULL)
        bench_fail("--device and --gid say which");
    if (strspn(gid, "0123456789") != strlen(gid) || strlen(gid) > 3 || gid[0] == '\0')
        bench_fail("--gid is an index from 0 to 999, not \"%s\"", gid);
    return atoi(gid);
}

static void
check_sizes(struct settings *settings)
{
    for (size_t i = 0; i < settings->config_count; i++) {
        struct config *c = &settings->configs[i];

        if (c->len_bytes > settings->port.max_msg_size)
            bench_fail("%s takes messages of up to %u bytes, not %zu", settings->port.device,
                       settings->port.max_msg_size, c->len_bytes);
        if (c->len_bytes > settings->most_bytes)
            settings->most_bytes = c->len_bytes;
        bench_series_init(&c->series, ops[c->op].contestant, settings->count);
    }
}

int
main(int argc, char **argv)
{
    static const char *const known[] = {"--device=", "--gid=",   "--ops=", "--sizes=",
                                        "--count=",  "--pause=", NULL};
    static struct config configs[MAX_CONFIGS];

    bench_name = "verbs_floor";
    bench_check_args(argc, argv, known);
    const char *device = bench_arg(argc, argv, "--device");
    struct settings settings = {.pause_ns = given_pause_ns(argc, argv),
                                .count = (size_t)bench_arg_number(argc, argv, "--count", 200),
                                .configs = configs,
                                .config_count = build_configs(configs, argc, argv)};
    if (settings.count == 0 || settings.count > MAX_COUNT)
        bench_fail("--count is from 1 to %d", MAX_COUNT);
    const int gid = given_gid(argc, argv);
    if (device == NULL)
        bench_fail("--device and --gid say which");
    raw_verbs_find(device, gid, &settings.port);
    if (bench_cores() < 2) {
        (void)fprintf(stderr, "verbs_floor: needs two cores\n");
        return BENCH_EXIT_SKIP;
    }
    check_sizes(&settings);
    run(&settings);
    return 0;
}
