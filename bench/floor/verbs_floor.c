/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_floor - the latency of a device between two processes of this host with plain libibverbs:
 * the baseline of the verbs path, with one RC QP on each side. perftest has the device's rates.
 *
 *   verbs_floor --device NAME --gid N [--op write|imm|read] [--size N] [--count N] [--pause NS]
 *
 * A ping-pong, of which half a round trip counts: "write" is polled for in the memory that it ends
 * in (its last byte), "imm" is a write with an immediate, which takes a receive and a completion
 * there; "read" has one side alone, and its whole trip counts, as in ib_read_lat. Each side takes
 * its own message's completion before it polls for the answer, as the library and ib_write_lat do.
 * A waiting side spins. What arrives is compared in a pass of its own, first.
 *
 * --pause: a side spins for so long before it posts, as a program's own code would; that is in the
 * time. Defaults: write, 8 B, 200 messages. One line of JSON. Exit status: 0, 1 failed, 77 fewer
 * than two cores.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
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

#define MAX_BYTES ((size_t)64 << 20)
#define MAX_PAUSE_NS 1000000
#define MEET_S 100 /* an emulated machine moves 80 MiB a second */
#define SEND_DEPTH 16
#define MAX_RECVS 512    /* as perftest has it; all are posted before the first message */
#define INLINE_BYTES 220 /* what ib_write_lat asks for */
#define PSN_MASK UINT32_C(0xffffff)
#define ACK_TIMEOUT 14    /* 67 ms a try, perftest's too */
#define RETRIES 7         /* the other side may have to wait for a core */
#define RNR_TIMER 12      /* 0.64 ms: perftest's too */
#define RNR_WITHOUT_END 7 /* what waits here has a deadline of its own */
#define HOP_LIMIT 64

enum op { OP_WRITE, OP_IMM, OP_READ, OPS };

static const struct {
    const char *name;
    enum ibv_wr_opcode opcode;
} ops[OPS] = {{"write", IBV_WR_RDMA_WRITE},
              {"imm", IBV_WR_RDMA_WRITE_WITH_IMM},
              {"read", IBV_WR_RDMA_READ}};

/* A port; values only, so that a fork may take it along. */
struct port {
    char device[64];
    uint8_t number;
    bool is_infiniband; /* LIDs; else GIDs */
    int gid_index;
    union ibv_gid gid;
    uint16_t lid;
    enum ibv_mtu mtu;
    uint32_t max_msg_size; /* rxe does not check it when a request is posted */
    uint32_t max_wrs;      /* of one queue */
    uint8_t reads;         /* under way, of one QP */
};

/* What the other side has to know; goes over a socket as it is. */
struct address {
    union ibv_gid gid;
    uint64_t addr;
    uint32_t rkey;
    uint32_t qpn;
    uint32_t psn;
    uint16_t lid;
};

struct settings {
    struct port port;
    enum op op;
    size_t len_bytes;
    size_t count;
    uint64_t pause_ns;
};

struct side {
    const struct settings *settings;
    int index; /* 0 began the other */
    int socket;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *send_cq;
    struct ibv_cq *recv_cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;     /* src and dst */
    uint32_t inline_bytes; /* what the device gave; 0: nothing goes inline */
    struct address peer;
    char *src;
    char *dst; /* behind src, in the memory that is registered */
};

/* ---- A port ------------------------------------------------------------------------------- */

static struct ibv_context *
open_named(const char *device)
{
    int count = 0;
    struct ibv_context *context = NULL;
    struct ibv_device **list = ibv_get_device_list(&count);

    for (int i = 0; list != NULL && i < count && context == NULL; i++) {
        if (strcmp(ibv_get_device_name(list[i]), device) != 0)
            continue;
        context = ibv_open_device(list[i]);
        if (context == NULL)
            bench_die(device);
    }
    if (list != NULL)
        ibv_free_device_list(list);
    if (context == NULL)
        bench_fail("there is no RDMA device %s", device);
    return context;
}

/* The first port that is active and has the GID, which InfiniBand does not need. */
static bool
choose_port(struct ibv_context *context, struct port *out)
{
    struct ibv_device_attr device;
    struct ibv_port_attr port;
    struct ibv_gid_entry entry;

    if (ibv_query_device(context, &device) != 0)
        bench_fail("ibv_query_device failed on %s", out->device);
    for (uint8_t i = 1; i <= device.phys_port_cnt; i++) {
        if (ibv_query_port(context, i, &port) != 0 || port.state != IBV_PORT_ACTIVE)
            continue;
        out->number = i;
        out->is_infiniband = port.link_layer == IBV_LINK_LAYER_INFINIBAND;
        out->lid = port.lid;
        out->mtu = port.active_mtu;
        out->max_msg_size = port.max_msg_sz;
        out->max_wrs = (uint32_t)device.max_qp_wr;
        out->reads = (uint8_t)(device.max_qp_rd_atom < 16 ? device.max_qp_rd_atom : 16);
        if (ibv_query_gid_ex(context, i, (uint32_t)out->gid_index, &entry, 0) == 0) {
            out->gid = entry.gid;
            return true;
        }
        if (out->is_infiniband)
            return true;
    }
    return false;
}

static void
find_port(const char *device, int gid_index, struct port *out)
{
    struct ibv_context *context = open_named(device);

    *out = (struct port){.gid_index = gid_index};
    (void)snprintf(out->device, sizeof(out->device), "%s", device);
    if (!choose_port(context, out))
        bench_fail("%s has no active port with an entry %d of GIDs", device, gid_index);
    (void)ibv_close_device(context);
}

/* ---- Two QPs ------------------------------------------------------------------------------ */

static void
open_qp(struct side *s, struct address *own)
{
    const struct port *port = &s->settings->port;
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = SEND_DEPTH,
                                            .max_recv_wr = MAX_RECVS,
                                            .max_send_sge = 1,
                                            .max_recv_sge = 1,
                                            .max_inline_data = INLINE_BYTES}};

    if (port->max_wrs < MAX_RECVS)
        attr.cap.max_recv_wr = port->max_wrs;
    s->context = open_named(port->device);
    s->pd = ibv_alloc_pd(s->context);
    if (s->pd == NULL)
        bench_die("ibv_alloc_pd");
    s->mr = ibv_reg_mr(s->pd, s->src, 2 * s->settings->len_bytes,
                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    s->send_cq = ibv_create_cq(s->context, SEND_DEPTH, NULL, NULL, 0);
    s->recv_cq = ibv_create_cq(s->context, (int)attr.cap.max_recv_wr, NULL, NULL, 0);
    if (s->mr == NULL || s->send_cq == NULL || s->recv_cq == NULL)
        bench_die("ibv_reg_mr or ibv_create_cq");
    attr.send_cq = s->send_cq;
    attr.recv_cq = s->recv_cq;
    s->qp = ibv_create_qp(s->pd, &attr);
    if (s->qp == NULL) { /* a device with less refuses; the output names what was given */
        attr.cap.max_inline_data = 0;
        s->qp = ibv_create_qp(s->pd, &attr);
    }
    if (s->qp == NULL)
        bench_die("ibv_create_qp");
    s->inline_bytes = attr.cap.max_inline_data;
    *own = (struct address){.gid = port->gid,
                            .addr = (uint64_t)(uintptr_t)s->dst,
                            .rkey = s->mr->rkey,
                            .qpn = s->qp->qp_num,
                            /* late packets of others do not have it */
                            .psn = (uint32_t)getpid() << 8 & PSN_MASK,
                            .lid = port->lid};
}

static void
modify(struct side *s, struct ibv_qp_attr *attr, int mask, const char *to)
{
    const int failed = ibv_modify_qp(s->qp, attr, mask);

    if (failed != 0)
        bench_fail("ibv_modify_qp to %s on %s: %s", to, s->settings->port.device,
                   strerror(failed > 0 ? failed : errno));
}

static void
connect_qp(struct side *s, const struct address *own, const struct address *peer)
{
    const struct port *port = &s->settings->port;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                               .path_mtu = port->mtu,
                               .port_num = port->number,
                               .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};

    s->peer = *peer;
    modify(s, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT");
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                                .path_mtu = port->mtu,
                                .dest_qp_num = peer->qpn,
                                .rq_psn = peer->psn,
                                .max_dest_rd_atomic = port->reads,
                                .min_rnr_timer = RNR_TIMER,
                                .ah_attr = {.dlid = peer->lid, .port_num = port->number}};
    if (!port->is_infiniband) {
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.dgid = peer->gid;
        attr.ah_attr.grh.sgid_index = (uint8_t)port->gid_index;
        attr.ah_attr.grh.hop_limit = HOP_LIMIT;
    }
    modify(s, &attr,
           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
           "RTR");
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                .path_mtu = port->mtu,
                                .timeout = ACK_TIMEOUT,
                                .retry_cnt = RETRIES,
                                .rnr_retry = RNR_WITHOUT_END,
                                .sq_psn = own->psn,
                                .max_rd_atomic = port->reads};
    modify(s, &attr,
           IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
               IBV_QP_MAX_QP_RD_ATOMIC,
           "RTS");
}

static void
close_side(struct side *s)
{
    if (ibv_destroy_qp(s->qp) != 0 || ibv_destroy_cq(s->send_cq) != 0 ||
        ibv_destroy_cq(s->recv_cq) != 0 || ibv_dereg_mr(s->mr) != 0 || ibv_dealloc_pd(s->pd) != 0 ||
        ibv_close_device(s->context) != 0)
        bench_fail("%s does not close", s->settings->port.device);
    (void)munmap(s->src, 2 * s->settings->len_bytes);
    (void)close(s->socket);
}

/* ---- Between the processes ------------------------------------------------------------------ */

static void
swap(const struct side *s, const void *mine, void *other, size_t len_bytes)
{
    if (send(s->socket, mine, len_bytes, MSG_NOSIGNAL) != (ssize_t)len_bytes)
        bench_die("the other process is gone");
    const ssize_t got = recv(s->socket, other, len_bytes, MSG_WAITALL);
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
    char other;

    swap(s, &mine, &other, sizeof(mine));
}

/* ---- Messages ------------------------------------------------------------------------------- */

static void
take_completion(struct ibv_cq *cq)
{
    uint64_t deadline_ns = 0; /* known once it has taken longer: what is quick reads no clock */
    struct ibv_wc wc;

    for (uint32_t spins = 1;; spins++) {
        const int got = ibv_poll_cq(cq, 1, &wc);

        if (got < 0)
            bench_fail("ibv_poll_cq: %d", got);
        if (got > 0 && wc.status != IBV_WC_SUCCESS)
            bench_fail("a request ended with \"%s\"", ibv_wc_status_str(wc.status));
        if (got > 0)
            return;
        if (spins % 4096 != 0)
            continue;
        if (deadline_ns == 0)
            deadline_ns = bench_now_ns() + BENCH_PATIENCE_NS;
        if (bench_now_ns() > deadline_ns)
            bench_fail("no completion comes");
    }
}

/* Have receives for `count` immediates; the peer begins after a meeting. */
static void
post_receives(struct side *s, size_t count)
{
    struct ibv_recv_wr wr = {0};
    struct ibv_recv_wr *bad = NULL;

    for (; count > 0 && s->settings->op == OP_IMM; count--) {
        const int failed = ibv_post_recv(s->qp, &wr, &bad);

        if (failed != 0)
            bench_fail("ibv_post_recv on %s: %s", s->settings->port.device,
                       strerror(failed > 0 ? failed : errno));
    }
}

/* Post, and take the completion. */
static void
give(struct side *s)
{
    const enum op op = s->settings->op;
    const size_t len_bytes = s->settings->len_bytes;
    const bool is_inline = op != OP_READ && len_bytes <= s->inline_bytes;
    struct ibv_sge sge = {.addr = (uint64_t)(uintptr_t)(op == OP_READ ? s->dst : s->src),
                          .length = (uint32_t)len_bytes,
                          .lkey = s->mr->lkey};
    struct ibv_send_wr wr = {
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = ops[op].opcode,
        .send_flags = IBV_SEND_SIGNALED | (is_inline ? (unsigned)IBV_SEND_INLINE : 0U),
        /* src lies before dst: what is read is what the other side would write */
        .wr.rdma = {.remote_addr = s->peer.addr - (op == OP_READ ? len_bytes : 0),
                    .rkey = s->peer.rkey}};
    struct ibv_send_wr *bad = NULL;
    const int failed = ibv_post_send(s->qp, &wr, &bad);

    if (failed != 0)
        bench_fail("ibv_post_send on %s: %s", s->settings->port.device,
                   strerror(failed > 0 ? failed : errno));
    take_completion(s->send_cq);
}

/* What the last byte of a written message says, never what that of the one before it said. */
static unsigned char
mark_of(size_t number)
{
    return (unsigned char)(number % 255 + 1);
}

static void
await_mark(const struct side *s, size_t number)
{
    const _Atomic unsigned char *last =
        (const _Atomic unsigned char *)(s->dst + s->settings->len_bytes - 1);
    const uint64_t deadline_ns = bench_now_ns() + BENCH_PATIENCE_NS;

    /* acquire: what is read of the message is read later. That its bytes arrive in order is for the
     * device to say; here nothing reads them. No pause between looks: ib_write_lat makes none. */
    for (uint32_t spins = 1; atomic_load_explicit(last, memory_order_acquire) != mark_of(number);
         spins++)
        if (spins % 4096 == 0 && bench_now_ns() > deadline_ns)
            bench_fail("no write comes");
}

/* ---- Passes --------------------------------------------------------------------------------- */

static void
give_numbered(struct side *s, size_t number)
{
    if (s->settings->pause_ns > 0)
        bench_spin_ns(s->settings->pause_ns);
    if (s->settings->op == OP_WRITE)
        s->src[s->settings->len_bytes - 1] = (char)mark_of(number);
    give(s);
}

static void
take_numbered(struct side *s, size_t number)
{
    if (s->settings->op == OP_WRITE)
        await_mark(s, number);
    else
        take_completion(s->recv_cq);
}

static void
ping(struct side *s, struct bench_series *ns)
{
    const bool is_read = s->settings->op == OP_READ;
    const size_t warm_up = bench_warm_up(s->settings->count);

    post_receives(s, warm_up + s->settings->count);
    s->dst[s->settings->len_bytes - 1] = 0;
    meet(s);
    for (size_t i = 0; i < warm_up + s->settings->count && !(is_read && s->index == 1); i++) {
        const uint64_t start_ns = bench_now_ns();

        if (s->index == 1)
            take_numbered(s, i);
        give_numbered(s, i);
        if (s->index == 0 && !is_read)
            take_numbered(s, i);
        if (s->index == 0 && i >= warm_up)
            bench_series_add(ns, (bench_now_ns() - start_ns) / (is_read ? 1 : 2));
    }
    meet(s);
}

/* A message each way, compared: what came into dst is what the other side has in src. */
static void
verify(struct side *s)
{
    const size_t len_bytes = s->settings->len_bytes;

    bench_fill(s->src, len_bytes, (uint64_t)s->index);
    post_receives(s, 1);
    meet(s);
    give(s);
    if (s->settings->op == OP_IMM)
        take_completion(s->recv_cq);
    meet(s); /* with its completion a write is where it belongs */
    bench_verify(s->dst, len_bytes, 1 - (uint64_t)s->index, ops[s->settings->op].name);
    meet(s);
}

static void
run_side(struct side *s, struct bench_series *ns)
{
    struct address own;
    struct address peer;

    if (!bench_pin(s->index))
        bench_die("sched_setaffinity");
    s->src = bench_map(2 * s->settings->len_bytes, MAP_PRIVATE);
    s->dst = s->src + s->settings->len_bytes;
    open_qp(s, &own);
    swap(s, &own, &peer, sizeof(own));
    connect_qp(s, &own, &peer);
    verify(s);
    ping(s, ns);
}

static void
report(const struct side *s, const struct bench_series *ns)
{
    const struct settings *settings = s->settings;
    const bool is_inline = settings->op != OP_READ && settings->len_bytes <= s->inline_bytes;
    char fields[512];

    (void)snprintf(fields, sizeof(fields),
                   "\"op\": \"%s\", \"device\": \"%s\", \"mtu\": %d, \"inline\": %s, "
                   "\"size\": %zu, \"pause_ns\": %" PRIu64,
                   ops[settings->op].name, settings->port.device, 128 << settings->port.mtu,
                   is_inline ? "true" : "false", settings->len_bytes, settings->pause_ns);
    bench_series_print(ns, fields);
}

static void
run(const struct settings *settings)
{
    const struct timeval patience = {.tv_sec = MEET_S};
    struct bench_series ns;
    int sockets[2];
    int status;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
        bench_die("socketpair");
    for (int i = 0; i < 2; i++)
        if (setsockopt(sockets[i], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) != 0)
            bench_die("setsockopt");
    bench_series_init(&ns, ops[settings->op].name, settings->count);
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child < 0)
        bench_die("fork");
    struct side s = {.settings = settings, .index = child == 0, .socket = sockets[child == 0]};
    (void)close(sockets[child != 0]);
    if (child == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent))
        _exit(1);
    run_side(&s, &ns);
    if (child == 0) {
        close_side(&s);
        _exit(0);
    }
    report(&s, &ns);
    close_side(&s);
    bench_series_free(&ns);
    if (waitpid(child, &status, 0) != child || status != 0)
        bench_fail("the second process failed");
}

/* ---- Arguments ------------------------------------------------------------------------------ */

static enum op
given_op(int argc, char **argv)
{
    const char *name = bench_arg(argc, argv, "--op");

    for (int op = 0; op < OPS; op++)
        if (strcmp(ops[op].name, name != NULL ? name : "write") == 0)
            return (enum op)op;
    bench_fail("--op is write, imm or read, not \"%s\"", name);
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

int
main(int argc, char **argv)
{
    static const char *const known[] = {"--device=", "--gid=",   "--op=", "--size=",
                                        "--count=",  "--pause=", NULL};

    bench_name = "verbs_floor";
    bench_check_args(argc, argv, known);
    const char *device = bench_arg(argc, argv, "--device");
    struct settings settings = {.op = given_op(argc, argv),
                                .len_bytes = (size_t)bench_arg_number(argc, argv, "--size", 8),
                                .count = (size_t)bench_arg_number(argc, argv, "--count", 200),
                                .pause_ns = (uint64_t)bench_arg_number(argc, argv, "--pause", 0)};
    const int gid = given_gid(argc, argv);
    if (device == NULL)
        bench_fail("--device and --gid say which");
    if (settings.len_bytes == 0 || settings.len_bytes > MAX_BYTES)
        bench_fail("--size is from 1 to %zu", MAX_BYTES);
    if (settings.count == 0 || settings.pause_ns > MAX_PAUSE_NS)
        bench_fail("--count is at least 1, --pause at most %d ns", MAX_PAUSE_NS);
    find_port(device, gid, &settings.port);
    if (settings.len_bytes > settings.port.max_msg_size)
        bench_fail("%s takes messages of up to %u bytes", device, settings.port.max_msg_size);
    if (settings.op == OP_IMM && settings.count + bench_warm_up(settings.count) > MAX_RECVS)
        bench_fail("--count is at most %d of imm", MAX_RECVS * 5 / 6);
    if (bench_cores() < 2) {
        (void)fprintf(stderr, "verbs_floor: needs 2 cores\n");
        return BENCH_EXIT_SKIP;
    }
    run(&settings);
    return 0;
}
