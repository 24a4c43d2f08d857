/* SPDX-License-Identifier: Apache-2.0
 * The path over RDMA is lost for good while everything is in flight, at any moment: the pair goes
 * on over tcp, every byte and every notification is there once and in order, nothing is written to
 * what was delivered, and it is said once. Where that is forbidden, or the peer is gone too, it is
 * an error in time. On the sim. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "core/context.h"
#include "group_rig.h"

enum { STEPS = 24, GUARD = 16, TAKEN = 0xee, MESSAGE_MAX = 200000, ROWS = 300, TAG = 7 };

static const uint64_t sizes[] = {8, 0, 70000, 1, 3000, 64, 4096, 65, 100001, 100, 20000, 63};

/* What rank `from` sends to the other. */
struct stream {
    uint32_t from;
    rdt_endpoint *tx; /* at the sender */
    rdt_endpoint *rx;
    rdt_region *region; /* the receiver's: writes land there */
    rdt_region *source; /* the sender's, known to devices */
    rdt_region *shelf;  /* the receiver's: reads come from there */
    struct rdt_remote_region remote;
    struct rdt_remote_region shelf_remote;
    uint8_t *other; /* the sender's, that devices do not know */
    uint8_t *read_into;
    uint64_t off[STEPS];
    uint64_t len[STEPS];
    rdt_transfer *writes[STEPS];
    rdt_transfer *reads[STEPS];
    rdt_transfer *puts[STEPS];
    rdt_transfer *sends[STEPS];
    rdt_transfer *receives[STEPS];
    uint8_t *sent;     /* STEPS messages */
    uint8_t *received; /* and where they go */
    float *tensors;    /* STEPS of them */
    rdt_slot *slot;
    rdt_slot_tx *slot_tx;
    uint32_t next; /* the first write that was not seen */
    uint32_t got;  /* tensors */
};

static struct rig rig;
static struct stream streams[2];
static uint32_t verify = RDT_VERIFY_OFF;

static uint64_t
message_bytes(uint32_t step)
{
    return step % 5 == 4 ? MESSAGE_MAX : sizes[(step * 7) % 12] % 5000;
}

static bool
is_notified(uint32_t step)
{
    return step % 3 != 1 || step + 1 == STEPS;
}

static const uint8_t *
source_of(const struct stream *s, uint32_t step)
{
    return (step % 2 == 0 ? (uint8_t *)rdt_region_addr(s->source) : s->other) + s->off[step];
}

static rdt_region *
region_of(uint32_t rank, uint64_t len_bytes, struct rdt_remote_region *remote)
{
    struct rdt_error err = {0};
    rdt_region *region = NULL;

    CHECK_OK(rdt_region_alloc(rig.ctx[rank], len_bytes, RDT_REGION_ZERO, &region, &err), &err);
    CHECK_OK(rdt_region_export(region, remote, &err), &err);
    return region;
}

static void
open_stream(struct stream *s, uint32_t from, uint64_t seed)
{
    const struct rdt_tensor_desc desc = {.struct_size = sizeof(desc),
                                         .kind = RDT_SLOT_STATIC,
                                         .dtype = RDT_F32,
                                         .ndim = 1,
                                         .dims = {ROWS}};
    struct rdt_remote_region none;
    struct rdt_error err = {0};
    uint64_t total = GUARD;

    *s = (struct stream){.from = from};
    s->tx = rig_ready(rig.group[from], 1 - from);
    s->rx = rig_ready(rig.group[1 - from], from);
    for (uint32_t i = 0; i < STEPS; i++) {
        s->len[i] = sizes[(i * 5 + seed) % 12];
        s->off[i] = total;
        total += s->len[i] + GUARD;
    }
    s->region = region_of(1 - from, total, &s->remote);
    s->shelf = region_of(1 - from, total, &s->shelf_remote);
    s->source = region_of(from, total, &none);
    s->other = malloc(total);
    s->read_into = calloc(1, total);
    s->sent = malloc((size_t)STEPS * MESSAGE_MAX);
    s->received = calloc(STEPS, MESSAGE_MAX);
    s->tensors = malloc(sizeof(float) * STEPS * ROWS);
    CHECK(s->other != NULL && s->read_into != NULL && s->sent != NULL && s->received != NULL &&
          s->tensors != NULL);
    rig_fill(rdt_region_addr(s->source), total, 11 + from);
    rig_fill(rdt_region_addr(s->shelf), total, 17 + from);
    rig_fill(s->other, total, 23 + from);
    rig_fill(s->sent, (uint64_t)STEPS * MESSAGE_MAX, 31 + from);
    for (uint32_t i = 0; i < STEPS * ROWS; i++)
        s->tensors[i] = (float)(i + from);
    CHECK_OK(rdt_slot_create(s->rx, from == 0 ? "there" : "back", &desc, &s->slot, &err), &err);
    CHECK_OK(rdt_slot_tx_open(s->tx, from == 0 ? "there" : "back", &desc, rig_patience_ns(),
                              &s->slot_tx, &err),
             &err);
}

/* Every write is checked when its notification comes, with those before it; then its place is the
 * receiver's, and written to. */
static void
on_notification(struct stream *s, uint32_t value)
{
    CHECK(value < STEPS);
    for (; s->next <= value; s->next++) {
        uint8_t *at = (uint8_t *)rdt_region_addr(s->region) + s->off[s->next];

        CHECK(s->next == value || !is_notified(s->next));
        CHECK_MEM_EQ(at, source_of(s, s->next), s->len[s->next]);
        memset(at, TAKEN, s->len[s->next]);
    }
}

static void
take_notifications(struct stream *s)
{
    struct rdt_error err = {0};
    uint32_t value = 0;

    while (rdt_endpoint_wait_notify(s->rx, RDT_NO_WAIT, &value, &err) == RDT_OK)
        on_notification(s, value);
}

static void
take_tensor(struct stream *s)
{
    struct rdt_error err = {0};
    struct rdt_slot_view view;

    CHECK_OK(rdt_slot_get(s->slot, rig_patience_ns(), &view, &err), &err);
    CHECK_UINT_EQ(view.epoch, s->got);
    CHECK_MEM_EQ(view.addr, s->tensors + (size_t)s->got * ROWS, ROWS * sizeof(float));
    CHECK_OK(rdt_slot_release(s->slot, &err), &err);
    s->got++;
}

static void
begin_step(struct stream *s, uint32_t i)
{
    struct rdt_error err = {0};
    const uint8_t *src = source_of(s, i);
    const uint64_t bytes = message_bytes(i);

    CHECK_OK(rdt_endpoint_write(s->tx, src, s->len[i], &s->remote, s->off[i],
                                is_notified(i) ? i : RDT_NOTIFY_NONE, &s->writes[i], &err),
             &err);
    CHECK_OK(rdt_endpoint_read(s->tx, s->read_into + s->off[i], s->len[i], &s->shelf_remote,
                               s->off[i], &s->reads[i], &err),
             &err);
    s->receives[i] = rig_recv(&rig, 1 - s->from, s->from, TAG,
                              s->received + (size_t)i * MESSAGE_MAX, MESSAGE_MAX);
    s->sends[i] =
        rig_send(&rig, s->from, 1 - s->from, TAG, s->sent + (size_t)i * MESSAGE_MAX, bytes);
    if (i >= 2) /* it has two buffers */
        take_tensor(s);
    CHECK_OK(rdt_slot_tx_put(s->slot_tx, s->tensors + (size_t)i * ROWS, NULL, rig_patience_ns(),
                             &s->puts[i], &err),
             &err);
    take_notifications(s);
}

static void
end_op(rdt_transfer *t, const char *what, uint32_t step)
{
    struct rdt_error err = {0};
    const rdt_status status = rig_end(t, &err);

    CHECK_MSG(status == RDT_OK, "%s %u: %s", what, step, err.message);
}

/* All of it has come, once, and nothing has come to a place that was delivered, nor between two. */
static void
end_stream(struct stream *s)
{
    const uint8_t *region = rdt_region_addr(s->region);
    const uint64_t deadline_ns = test_now_ns() + rig_patience_ns();
    struct rdt_error err = {0};
    uint32_t value = 0;

    for (uint32_t i = 0; i < STEPS; i++) {
        end_op(s->writes[i], "write", i);
        end_op(s->reads[i], "read", i);
        end_op(s->sends[i], "send", i);
        end_op(s->receives[i], "receive", i);
    }
    while (s->got < STEPS)
        take_tensor(s);
    for (uint32_t i = 0; i < STEPS; i++)
        end_op(s->puts[i], "put", i);
    while (s->next < STEPS) {
        CHECK(test_now_ns() < deadline_ns);
        CHECK_OK(rdt_endpoint_wait_notify(s->rx, rig_patience_ns(), &value, &err), &err);
        on_notification(s, value);
    }
    /* A message more, behind all of it: what would come twice is here before it. */
    const uint8_t last = 99;
    uint8_t seen = 0;
    rdt_transfer *receive = rig_recv(&rig, 1 - s->from, s->from, TAG, &seen, 1);
    end_op(rig_send(&rig, s->from, 1 - s->from, TAG, &last, 1), "last send", 0);
    end_op(receive, "last receive", 0);
    CHECK_UINT_EQ(seen, last);
    CHECK_STATUS(rdt_endpoint_wait_notify(s->rx, RDT_NO_WAIT, &value, &err), RDT_EAGAIN);
    for (uint32_t i = 0; i < STEPS; i++) {
        const uint8_t *shelf = (const uint8_t *)rdt_region_addr(s->shelf) + s->off[i];

        for (uint64_t b = 0; b < s->len[i]; b++)
            CHECK_MSG(region[s->off[i] + b] == TAKEN, "write %u came twice, byte %" PRIu64, i, b);
        for (uint64_t b = 1; b <= GUARD; b++)
            CHECK(region[s->off[i] - b] == 0);
        CHECK_MEM_EQ(s->read_into + s->off[i], shelf, s->len[i]);
        CHECK_MEM_EQ(s->received + (size_t)i * MESSAGE_MAX, s->sent + (size_t)i * MESSAGE_MAX,
                     message_bytes(i));
    }
}

static void
close_stream(struct stream *s)
{
    rdt_slot_tx_destroy(s->slot_tx);
    rdt_slot_destroy(s->slot);
    rdt_region_free(s->region, NULL, NULL);
    rdt_region_free(s->shelf, NULL, NULL);
    rdt_region_free(s->source, NULL, NULL);
    free(s->other);
    free(s->read_into);
    free(s->sent);
    free(s->received);
    free(s->tensors);
}

static void
open_rig(const struct sim_config *config, uint32_t require_of_one)
{
    const struct rdt_context_opts opts = {.struct_size = sizeof(opts),
                                          .loopback_only = 1,
                                          .timeout_ns = rig_patience_ns(),
                                          .arena_chunk_bytes = 1 << 20,
                                          .verify = verify};

    sim_begin(config);
    rig = (struct rig){.size = 2};
    for (uint32_t i = 0; i < 2; i++) {
        struct rdt_error err = {0};

        CHECK_OK(rdt_context_open(&opts, &rig.ctx[i], &err), &err);
        CHECK_OK(rdt_context_add_job(rig.ctx[i], "job", (const uint8_t *)"secret", 6, 1, (int32_t)i,
                                     &err),
                 &err);
        rig.ctx[i]->found[RDT_TRANSPORT_SHM].is_viable = false; /* as between hosts */
    }
    rig.ctx[1]->opts.require_transport = require_of_one;
    for (uint32_t i = 0; i < 2; i++)
        rig.group[i] = rig_group(&rig, i, "world");
}

static void
close_rig(void)
{
    for (uint32_t i = 0; i < 2; i++)
        rig.ctx[i]->found[RDT_TRANSPORT_SHM].is_viable = true; /* it is open all the same */
    rig_close(&rig);
    sim_end();
}

static struct sim_config
config_of(uint32_t devices, uint64_t seed)
{
    struct sim_config config = sim_default();

    rdt_log_set_level(RDT_LOG_ERROR);
    config.device_count = devices;
    config.seed = seed;
    config.queue_depth = 40;
    config.delay_us = 10;
    config.duplicates = 10;
    config.is_scattering = true;
    config.retry_ns = 500000;
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_QPS", seed % 3 == 0 ? "1" : "2", 1), 0);
    return config;
}

static uint64_t
failovers_of(uint32_t rank)
{
    struct rdt_counters counters = {.struct_size = sizeof(counters)};

    rdt_context_counters(rig.ctx[rank], &counters);
    return counters.failovers;
}

static void
check_described(uint32_t rank)
{
    static char text[65536];
    struct rdt_error err = {0};
    size_t needed = 0;

    CHECK_OK(rdt_context_describe(rig.ctx[rank], text, sizeof(text), &needed, &err), &err);
    CHECK_STR_CONTAINS(text, "\"path\":\"tcp\"");
    CHECK_STR_CONTAINS(text, "verbs failed at 2");
    CHECK_STR_CONTAINS(text, "\"failovers\":1");
}

/* Everything both ways, once, with the devices cut as `cut` says; requests executed. */
static uint64_t
run(const struct sim_config *config, void (*cut)(uint64_t n), uint64_t n, bool *has_moved)
{
    open_rig(config, RDT_TRANSPORT_AUTO);
    for (uint32_t d = 0; d < 2; d++)
        open_stream(&streams[d], d, config->seed);
    CHECK_UINT_EQ(rdt_endpoint_transport(streams[0].tx), RDT_TRANSPORT_VERBS);
    const uint64_t before = sim_executed();
    if (cut != NULL)
        cut(n);
    for (uint32_t i = 0; i < STEPS; i++)
        for (uint32_t d = 0; d < 2; d++)
            begin_step(&streams[d], i);
    for (uint32_t d = 0; d < 2; d++)
        end_stream(&streams[d]);
    const uint64_t count = sim_executed() - before;
    const uint32_t transport = rdt_endpoint_transport(streams[0].tx);
    *has_moved = transport == RDT_TRANSPORT_TCP;
    for (uint32_t d = 0; *has_moved && d < 2; d++) {
        CHECK_UINT_EQ(rdt_endpoint_transport(streams[d].tx), RDT_TRANSPORT_TCP);
        CHECK_UINT_EQ(failovers_of(d), 1);
        check_described(d);
    }
    for (uint32_t d = 0; d < 2; d++)
        close_stream(&streams[d]);
    close_rig();
    return count;
}

/* Sanitizers see the same paths in few runs. */
#define STRIDE (test_timeout_scale() > 1 ? (TEST_TSAN_STRIDE > 1 ? 31u : 11u) : 1u)

static void
sweep(uint32_t devices, void (*cut)(uint64_t n), uint32_t step)
{
    struct sim_config config = config_of(devices, 1);
    uint32_t moves = 0, runs = 0;
    bool has_moved = false;
    const uint64_t count = run(&config, NULL, 0, &has_moved);

    CHECK(!has_moved);
    for (uint64_t n = 0; n < count; n += step * STRIDE) {
        config = config_of(devices, n + 1);
        (void)run(&config, cut, n, &has_moved);
        moves += has_moved;
        runs++;
    }
    printf("  lost before %u of %" PRIu64 " requests, %u times seen\n", runs, count, moves);
    CHECK_UINT_GE(moves, runs / 2);
}

static void
cut_only(uint64_t n)
{
    sim_cut_after(0, n, (uint32_t)(n % 11));
}

TEST_TIMEOUT(the_only_link_is_lost_at_any_step, 240)
{
    sweep(1, cut_only, 13);
}

/* Sums travel as messages, before or behind what they are of. */
TEST_TIMEOUT(the_only_link_is_lost_at_any_step_and_payload_is_summed, 240)
{
    verify = RDT_VERIFY_CRC32C;
    sweep(1, cut_only, 53);
}

/* The second while the first is drained, settled, or long over. */
static void
cut_both(uint64_t n)
{
    sim_cut_after((uint32_t)(n % 2), n, (uint32_t)(n % 11));
    sim_cut_after((uint32_t)(1 - n % 2), n + n % 17, (uint32_t)(n % 7));
}

TEST_TIMEOUT(both_links_are_lost_at_any_step, 240)
{
    sweep(2, cut_both, 29);
}

/* ---- Others inside the lane ------------------------------------------------------------------ */

enum { WRITERS = 3, WRITES = 400 };

struct writer {
    pthread_t thread;
    struct stream *stream;
    uint32_t number;
};

/* Each has a word of its own in the peer's region, and numbers its writes. */
static void *
write_on(void *arg)
{
    const struct writer *w = arg;
    rdt_transfer *writes[WRITES];
    uint64_t words[WRITES];

    for (uint32_t i = 0; i < WRITES; i++) {
        struct rdt_error err = {0};

        words[i] = i + 1;
        CHECK_OK(rdt_endpoint_write(w->stream->tx, &words[i], 8, &w->stream->remote,
                                    8 * (uint64_t)w->number, w->number * WRITES + i, &writes[i],
                                    &err),
                 &err);
        if (i % 16 == 15)
            test_sleep_ns(20000);
    }
    for (uint32_t i = 0; i < WRITES; i++)
        end_op(writes[i], "a thread's write", i);
    return NULL;
}

/* Every notification of each, in its order. */
static void
take_all_of(struct stream *s)
{
    uint32_t next[WRITERS] = {0};

    for (uint32_t left = WRITERS * WRITES; left > 0; left--) {
        struct rdt_error err = {0};
        uint32_t value = 0;

        CHECK_OK(rdt_endpoint_wait_notify(s->rx, rig_patience_ns(), &value, &err), &err);
        CHECK(value < WRITERS * WRITES);
        CHECK_UINT_EQ(value % WRITES, next[value / WRITES]);
        next[value / WRITES]++;
    }
}

static bool
run_writers(uint64_t n)
{
    const struct sim_config config = config_of(1, n);
    struct writer writers[2 * WRITERS];
    struct rdt_error err = {0};
    uint32_t value = 0;

    open_rig(&config, RDT_TRANSPORT_AUTO);
    for (uint32_t d = 0; d < 2; d++)
        open_stream(&streams[d], d, config.seed);
    cut_only(n);
    for (uint32_t i = 0; i < 2 * WRITERS; i++) {
        writers[i] = (struct writer){.stream = &streams[i % 2], .number = i / 2};
        CHECK_INT_EQ(pthread_create(&writers[i].thread, NULL, write_on, &writers[i]), 0);
    }
    for (uint32_t d = 0; d < 2; d++)
        take_all_of(&streams[d]);
    for (uint32_t i = 0; i < 2 * WRITERS; i++)
        CHECK_INT_EQ(pthread_join(writers[i].thread, NULL), 0);
    const bool has_moved = rdt_endpoint_transport(streams[0].tx) == RDT_TRANSPORT_TCP;
    for (uint32_t d = 0; d < 2; d++) {
        CHECK_STATUS(rdt_endpoint_wait_notify(streams[d].rx, RDT_NO_WAIT, &value, &err),
                     RDT_EAGAIN);
        CHECK_UINT_EQ(failovers_of(d), has_moved);
    }
    for (uint32_t d = 0; d < 2; d++)
        close_stream(&streams[d]);
    close_rig();
    return has_moved;
}

TEST_TIMEOUT(threads_write_while_the_path_is_lost, 120)
{
    uint32_t moves = 0, runs = 0;

    for (uint64_t n = 1; n < 2000; n += 97 * STRIDE) {
        moves += run_writers(n);
        runs++;
    }
    printf("  %u times lost in %u\n", moves, runs);
    CHECK_UINT_GE(moves, runs / 2);
}

/* ---- Where it is forbidden ------------------------------------------------------------------ */

static rdt_status
write_until_error(struct rdt_error *err)
{
    const uint64_t deadline_ns = test_now_ns() + rig_patience_ns();
    rdt_status status = RDT_OK;

    while (status == RDT_OK && test_now_ns() < deadline_ns) {
        rdt_transfer *t = NULL;

        status = rdt_endpoint_write(streams[0].tx, streams[0].other, 8, &streams[0].remote, 0,
                                    RDT_NOTIFY_NONE, &t, err);
        if (status == RDT_OK)
            status = rig_end(t, err);
    }
    return status;
}

static void
check_strict(uint32_t require, uint32_t force)
{
    const struct sim_config config = config_of(1, 3);
    struct rdt_error err = {0};

    open_rig(&config, require);
    rig.ctx[1]->opts.force_transport = force;
    open_stream(&streams[0], 0, 3);
    CHECK_UINT_EQ(rdt_endpoint_transport(streams[0].tx), RDT_TRANSPORT_VERBS);
    cut_only(0);
    const rdt_status status = write_until_error(&err);
    CHECK_MSG(status == RDT_EPEER, "%s: %s", rdt_status_name(status), err.message);
    CHECK_STR_CONTAINS(err.message, "rank 1");
    CHECK_STR_CONTAINS(err.message, "verbs");
    CHECK_UINT_EQ(failovers_of(0) + failovers_of(1), 0);
    close_stream(&streams[0]);
    close_rig();
}

TEST(a_side_that_requires_verbs_gets_the_error)
{
    check_strict(RDT_TRANSPORT_VERBS, RDT_TRANSPORT_AUTO);
}

TEST(a_side_that_forces_verbs_gets_the_error)
{
    check_strict(RDT_TRANSPORT_AUTO, RDT_TRANSPORT_VERBS);
}

/* ---- The peer is gone as well --------------------------------------------------------------- */

/* As if its process had been stopped, and killed if `is_killed`: it does nothing any more, and the
 * kernel ends its sockets. */
static void
check_gone(bool is_killed, uint64_t n)
{
    const struct sim_config config = config_of(1, n);
    struct rdt_error err = {0};

    open_rig(&config, RDT_TRANSPORT_AUTO);
    for (uint32_t i = 0; i < 2; i++)
        rig.ctx[i]->opts.peer_timeout_ns = 1500000000;
    open_stream(&streams[0], 0, n);
    cut_only(n);
    rdti_engine_enter(rig.ctx[1]->engine);
    for (int fd = 3; is_killed && fd < 256; fd++) {
        struct sockaddr_storage addr;
        socklen_t addr_bytes = sizeof(addr);

        if (getpeername(fd, (struct sockaddr *)&addr, &addr_bytes) == 0 &&
            (addr.ss_family == AF_INET || addr.ss_family == AF_INET6))
            (void)shutdown(fd, SHUT_RDWR);
    }
    const uint64_t before_ns = test_now_ns();
    const rdt_status status = write_until_error(&err);
    const uint64_t took_ns = test_now_ns() - before_ns;
    rdti_engine_leave(rig.ctx[1]->engine);
    CHECK_MSG(status == RDT_EPEER, "%s: %s", rdt_status_name(status), err.message);
    CHECK_STR_CONTAINS(err.message, "rank 1");
    CHECK_STR_CONTAINS(err.message, is_killed ? "died" : "is silent");
    CHECK_UINT_GE(UINT64_C(4000000000) * (uint64_t)test_timeout_scale(), took_ns);
    close_stream(&streams[0]);
    close_rig();
}

TEST(a_peer_that_is_killed_at_the_same_time_is_named)
{
    for (uint64_t n = 0; n < 6; n += 2)
        check_gone(true, n);
}

TEST(a_peer_that_is_stopped_at_the_same_time_is_named)
{
    check_gone(false, 0);
}

TEST_MAIN()
