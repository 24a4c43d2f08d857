/* SPDX-License-Identifier: Apache-2.0
 * However many operations: memory, descriptors, mappings and threads stay as they were. Two ranks
 * go through every kind of operation, small and large; RDT_TEST_STEADY=full has 10^6 small and 10^4
 * large ones of each transport. Processes over shm and tcp, threads over verbs, whose simulation is
 * one process's own. */
#include <pthread.h>

#include "integration/ranks_rig.h"
#include "integration/steady_rig.h"
#include "process/process.h"
#include "sim/sim.h"
#include "rdmatensor_ext.h"

#define RANKS 2
#define LIMIT_S 590 /* the full counts, on two busy cores */
#define SMALL_BYTES UINT64_C(8)
#define LARGE_BYTES UINT64_C(1048576)
#define LOST_BYTES 32 /* by the kind that loses some */
#define LOOKS 10
#define QUARANTINED 64 /* small regions that wait for the peer: a crowd of them is memory, too */
#define WARM_SHARE 5   /* of a span's operations, one in so many goes before it is measured */
#define WARM_LEAST 100

/* Ranks are threads of one process, of which rank 0 looks at what it holds: each would take what
 * the other opens for that. */
static bool are_threads;

struct steady {
    struct rank *rank;
    rdt_endpoint *peer;
    rdt_region *regions[2];          /* what the peer writes and reads, and ours to send */
    struct rdt_remote_region remote; /* the peer's first */
    uint8_t *private;                /* as large, and in no arena */
    uint8_t *received;
    rdt_slot *slots[2]; /* static and dynamic */
    rdt_slot_tx *txs[2];
    struct rdt_tensor_desc desc;
    uint64_t bytes;
    uint64_t rounds;
    struct rdt_error err;
};

static void
end(struct steady *s, rdt_transfer *t, const char *what)
{
    ranks_ok(s->rank, rdt_transfer_wait(t, 30 * RANKS_S, &s->err), &s->err, what);
    rdt_transfer_free(t);
}

static void
end_started(struct steady *s, rdt_status status, rdt_transfer **t, const char *what)
{
    ranks_ok(s->rank, status, &s->err, what);
    end(s, *t, what);
}

/* Arena memory and any other in turn: each has a way of its own. */
static uint8_t *
source(const struct steady *s)
{
    return s->rounds % 2 == 0 ? rdt_region_addr(s->regions[1]) : s->private;
}

/* ---- Kinds of operations ------------------------------------------------------------------- */

static void
message(struct steady *s)
{
    const uint32_t other = 1 - s->rank->rank;
    rdt_transfer *received = NULL;
    rdt_transfer *sent = NULL;
    rdt_status status =
        rdt_group_recv(s->rank->group, other, 3, s->received, s->bytes, NULL, &received, &s->err);

    ranks_ok(s->rank, status, &s->err, "recv");
    status = rdt_group_send(s->rank->group, other, 3, source(s), s->bytes, NULL, &sent, &s->err);
    end_started(s, status, &sent, "send");
    end(s, received, "recv");
}

static void
sum(struct steady *s)
{
    const struct rdt_coll_args args = {.struct_size = sizeof(args),
                                       .op = RDT_COLL_ALLREDUCE,
                                       .dtype = RDT_I64,
                                       .reduce_op = RDT_SUM,
                                       .count = s->bytes / sizeof(int64_t),
                                       .send = source(s),
                                       .recv = s->received};
    rdt_transfer *t = NULL;
    int64_t first;

    end_started(s, rdt_coll_post(s->rank->group, &args, &t, &s->err), &t, "all_reduce");
    memcpy(&first, s->received, sizeof(first));
    CHECK_INT_EQ(first, RANKS);
}

static void
barrier(struct steady *s)
{
    const struct rdt_coll_args args = {.struct_size = sizeof(args), .op = RDT_COLL_BARRIER};
    rdt_transfer *t = NULL;

    end_started(s, rdt_coll_post(s->rank->group, &args, &t, &s->err), &t, "barrier");
}

static void
write_and_tell(struct steady *s)
{
    rdt_transfer *t = NULL;
    uint32_t told;
    const rdt_status status =
        rdt_endpoint_write(s->peer, source(s), s->bytes, &s->remote, 0, 7, &t, &s->err);

    end_started(s, status, &t, "write");
    ranks_ok(s->rank, rdt_endpoint_wait_notify(s->peer, 30 * RANKS_S, &told, &s->err), &s->err,
             "wait_notify");
    CHECK_UINT_EQ(told, 7);
}

static void
read_back(struct steady *s)
{
    rdt_transfer *t = NULL;

    end_started(s, rdt_endpoint_read(s->peer, s->received, s->bytes, &s->remote, 0, &t, &s->err),
                &t, "read");
}

static void
pass(struct steady *s, int which)
{
    rdt_transfer *t = NULL;
    struct rdt_slot_view view;
    const rdt_status status =
        rdt_slot_tx_put(s->txs[which], source(s), s->desc.dims, 30 * RANKS_S, &t, &s->err);

    ranks_ok(s->rank, status, &s->err, "put");
    ranks_ok(s->rank, rdt_slot_get(s->slots[which], 30 * RANKS_S, &view, &s->err), &s->err, "get");
    CHECK_UINT_EQ(view.len_bytes, s->bytes);
    ranks_ok(s->rank, rdt_slot_release(s->slots[which], &s->err), &s->err, "release");
    end(s, t, "put");
}

static void
static_slot(struct steady *s)
{
    pass(s, 0);
}

static void
dynamic_slot(struct steady *s)
{
    pass(s, 1);
}

static bool
has_settled(const struct steady *s)
{
    struct rdti_region_stats stats;

    rdti_regions_get_stats(s->rank->ctx->regions, &stats);
    return stats.quarantine_count == 0 && !rdti_regions_are_ending(s->rank->ctx->regions);
}

/* A region that was freed stays until its peer has said that it will write there no more, and a
 * device has forgotten it. */
static void
settle(const struct steady *s)
{
    CHECK_EVENTUALLY(has_settled(s), 30);
}

static void
region(struct steady *s)
{
    struct rdt_remote_region remote;
    rdt_region *made = NULL;
    const rdt_status status = rdt_region_alloc(s->rank->ctx, s->bytes, 0, &made, &s->err);

    ranks_ok(s->rank, status, &s->err, "region_alloc");
    *(volatile uint8_t *)rdt_region_addr(made) = 1;
    ranks_ok(s->rank, rdt_region_export(made, &remote, &s->err), &s->err, "export");
    rdt_region_free(made, NULL, NULL);
    if (s->bytes == LARGE_BYTES || s->rounds % QUARANTINED == 0)
        settle(s);
}

static void
leaking_message(struct steady *s)
{
    void *volatile lost = malloc(LOST_BYTES);

    CHECK(lost != NULL);
    message(s);
}

struct kind {
    const char *name;
    void (*step)(struct steady *s);
};

static const struct kind kinds[] = {
    {"message", message},           {"all_reduce", sum}, {"barrier", barrier},
    {"write", write_and_tell},      {"read", read_back}, {"static slot", static_slot},
    {"dynamic slot", dynamic_slot}, {"region", region}};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

/* ---- Set-up -------------------------------------------------------------------------------- */

static void
exchange(struct steady *s)
{
    uint8_t own[RDT_REMOTE_REGION_BYTES];
    uint8_t all[RANKS * RDT_REMOTE_REGION_BYTES];
    struct rdt_remote_region remote;
    rdt_transfer *t = NULL;
    const struct rdt_coll_args args = {.struct_size = sizeof(args),
                                       .op = RDT_COLL_ALLGATHER,
                                       .dtype = RDT_U8,
                                       .count = sizeof(own),
                                       .send = own,
                                       .recv = all};

    ranks_ok(s->rank, rdt_region_export(s->regions[0], &remote, &s->err), &s->err, "export");
    rdt_remote_region_encode(&remote, own);
    end_started(s, rdt_coll_post(s->rank->group, &args, &t, &s->err), &t, "all_gather");
    ranks_ok(s->rank,
             rdt_remote_region_decode(all + sizeof(own) * (1 - s->rank->rank), sizeof(own),
                                      &s->remote, &s->err),
             &s->err, "decode");
}

static void
open_slot(struct steady *s, int which, uint32_t kind)
{
    char name[32];

    (void)snprintf(name, sizeof(name), "%d of %" PRIu64, which, s->bytes);
    s->desc = (struct rdt_tensor_desc){.struct_size = sizeof(s->desc),
                                       .kind = kind,
                                       .dtype = RDT_U8,
                                       .ndim = 1,
                                       .dims = {s->bytes}};
    ranks_ok(s->rank, rdt_slot_create(s->peer, name, &s->desc, &s->slots[which], &s->err), &s->err,
             "slot_create");
    ranks_ok(s->rank,
             rdt_slot_tx_open(s->peer, name, &s->desc, 30 * RANKS_S, &s->txs[which], &s->err),
             &s->err, "slot_tx_open");
}

static void
open_all(struct steady *s, struct rank *rank, uint64_t bytes)
{
    *s = (struct steady){.rank = rank, .bytes = bytes};
    ranks_ok(rank, rdt_group_endpoint(rank->group, 1 - rank->rank, &s->peer, &s->err), &s->err,
             "group_endpoint");
    for (int i = 0; i < 2; i++)
        ranks_ok(rank, rdt_region_alloc(rank->ctx, bytes, RDT_REGION_ZERO, &s->regions[i], &s->err),
                 &s->err, "region_alloc");
    s->private = calloc(1, bytes);
    s->received = calloc(1, bytes);
    CHECK(s->private != NULL && s->received != NULL);
    const int64_t one = 1;
    memcpy(s->private, &one, sizeof(one));
    memcpy(rdt_region_addr(s->regions[1]), &one, sizeof(one));
    exchange(s);
    open_slot(s, 0, RDT_SLOT_STATIC);
    open_slot(s, 1, RDT_SLOT_DYNAMIC);
}

static void
close_all(struct steady *s)
{
    barrier(s); /* nobody takes away what the other still writes */
    for (int i = 0; i < 2; i++) {
        rdt_slot_tx_destroy(s->txs[i]);
        rdt_slot_destroy(s->slots[i]);
        rdt_region_free(s->regions[i], NULL, NULL);
    }
    free(s->private);
    free(s->received);
}

/* ---- Spans --------------------------------------------------------------------------------- */

static bool
is_full(void)
{
    const char *text = getenv("RDT_TEST_STEADY");

    CHECK_MSG(text == NULL || strcmp(text, "full") == 0, "RDT_TEST_STEADY=%s: full, or nothing",
              text);
    return text != NULL;
}

/* Operations of one transport, over all kinds. */
static uint64_t
operations(uint64_t bytes)
{
    const uint64_t count = bytes == LARGE_BYTES ? 10000 : 1000000;

    return is_full() ? count : count / (STEADY_IS_SANITIZED ? 100 : 50);
}

static void
steps(struct steady *s, const struct kind *kind, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        kind->step(s);
        s->rounds++;
    }
}

/* What is held, or how much more that is than before: looked at several times where it is more than
 * it may be, as the library has a file open for a moment now and then. */
static struct steady_usage
look(struct steady *s, const struct steady_usage *before)
{
    const struct steady_usage nothing = {0};
    struct steady_usage more = nothing;

    settle(s);
    barrier(s);
    for (int i = 0; i < LOOKS && (!are_threads || s->rank->rank == 0); i++) {
        const struct steady_usage now = steady_now();
        more = steady_growth(before != NULL ? before : &nothing, &now);
        if (before == NULL || steady_grown(&more) == NULL)
            break;
        test_sleep_ns(RANKS_S / 20);
    }
    barrier(s);
    return more;
}

/* What many operations of a kind leave behind, once it is warm. */
static struct steady_usage
span(struct steady *s, const struct kind *kind, uint64_t count)
{
    char words[256];

    steps(s, kind, count / WARM_SHARE > WARM_LEAST ? count / WARM_SHARE : WARM_LEAST);
    const struct steady_usage before = look(s, NULL);
    const uint64_t began_ns = test_now_ns();
    steps(s, kind, count);
    const double took_s = (double)(test_now_ns() - began_ns) / 1e9;
    const struct steady_usage growth = look(s, &before);
    steady_describe(&growth, words, sizeof(words));
    if (s->rank->rank == 0)
        printf("    %s of %" PRIu64 " bytes, %" PRIu64 " times in %.2f s: %s\n", kind->name,
               s->bytes, count, took_s, words);
    fflush(stdout);
    return growth;
}

static void
all_kinds(struct rank *rank, uint64_t bytes, struct steady_usage *most)
{
    const uint64_t count = operations(bytes) / KINDS;
    char words[256];
    struct steady s;

    open_all(&s, rank, bytes);
    for (size_t i = 0; i < KINDS; i++) {
        const struct steady_usage growth = span(&s, &kinds[i], count);
        const char *grown = steady_grown(&growth);
        steady_describe(&growth, words, sizeof(words));
        CHECK_MSG(grown == NULL, "rank %u: %s of %" PRIu64 " bytes, %" PRIu64 " times: %s grew: %s",
                  rank->rank, kinds[i].name, bytes, count, grown, words);
        steady_keep_most(most, &growth);
    }
    close_all(&s);
}

static void
all_sizes(struct rank *rank)
{
    struct steady_usage most = {0};
    char words[256];

    const uint64_t began_ns = test_now_ns();
    all_kinds(rank, SMALL_BYTES, &most);
    all_kinds(rank, LARGE_BYTES, &most);
    steady_describe(&most, words, sizeof(words));
    if (rank->rank == 0)
        printf("  steady: %" PRIu64 " operations of 8 bytes and %" PRIu64
               " of 1 MiB in %.1f s; no kind left more than: %s\n",
               operations(SMALL_BYTES), operations(LARGE_BYTES),
               (double)(test_now_ns() - began_ns) / 1e9, words);
    fflush(stdout);
}

static void
flat_body(struct rank *rank)
{
    (void)alarm((unsigned)(LIMIT_S * test_timeout_scale()));
    all_sizes(rank);
    ranks_leave(rank);
}

TEST_TIMEOUT(nothing_grows_over_shm, LIMIT_S)
{
    ranks_run_ok(RANKS, RDT_TRANSPORT_SHM, flat_body);
}

TEST_TIMEOUT(nothing_grows_over_tcp, LIMIT_S)
{
    ranks_run_ok(RANKS, RDT_TRANSPORT_TCP, flat_body);
}

struct thread {
    pthread_t id;
    struct rank rank;
};

static void *
rank_in_thread(void *arg)
{
    struct thread *thread = arg;

    all_sizes(&thread->rank);
    return NULL;
}

TEST_TIMEOUT(nothing_grows_over_verbs, LIMIT_S)
{
    static struct ranks_board board;
    struct thread threads[RANKS];

    are_threads = true;
    sim_use();
    for (uint32_t i = 0; i < RANKS; i++) {
        threads[i].rank = (struct rank){.board = &board, .rank = i, .size = RANKS};
        ranks_join(&threads[i].rank, RDT_TRANSPORT_VERBS); /* the sim opens one at a time */
    }
    for (uint32_t i = 0; i < RANKS; i++)
        CHECK_INT_EQ(pthread_create(&threads[i].id, NULL, rank_in_thread, &threads[i]), 0);
    for (uint32_t i = 0; i < RANKS; i++)
        CHECK_INT_EQ(pthread_join(threads[i].id, NULL), 0);
    for (uint32_t i = 0; i < RANKS; i++)
        ranks_leave(&threads[i].rank);
}

/* ---- The measure itself -------------------------------------------------------------------- */

static void
leak_body(struct rank *rank)
{
    const struct kind leaking = {"message that loses 32 bytes", leaking_message};
    struct steady s;

    open_all(&s, rank, SMALL_BYTES);
    const struct steady_usage growth = span(&s, &leaking, operations(SMALL_BYTES) / KINDS);
    CHECK_STR_EQ(steady_grown(&growth), "heap");
    close_all(&s);
    ranks_leave(rank);
}

TEST_TIMEOUT(some_bytes_lost_in_each_message_are_seen, 120)
{
    ranks_run_ok(RANKS, RDT_TRANSPORT_SHM, leak_body);
}

TEST_MAIN()
