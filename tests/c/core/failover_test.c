/* SPDX-License-Identifier: Apache-2.0
 * The path over RDMA is lost permanently while all is in flight, at any moment: the pair goes
 * on over tcp, every byte and every notification is there once and in order, nothing is written to
 * what was delivered, and it is said once. Where that is forbidden, or the peer is gone too, it is
 * an error in time. On the sim. */
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

#include "diversion.h"
#include "failover_rig.h"
#include "message/persistent.h"

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
    CHECK_STR_CONTAINS(text, "\"is_fallback\":true");
    CHECK_STR_CONTAINS(text, "\"reconnections\":1");
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

/* How often the log has it; it is read from its start. */
static unsigned
count_lines(FILE *log, const char *text)
{
    char line[1024];
    unsigned count = 0;

    rewind(log);
    while (fgets(line, sizeof(line), log) != NULL)
        count += strstr(line, text) != NULL;
    return count;
}

TEST_TIMEOUT(each_side_says_once_that_it_moved, 60)
{
    unsigned moves = 0;

    for (uint64_t n = 0; n < 100; n += 25) {
        const struct sim_config config = config_of(1, n + 1);
        FILE *log = tmpfile();
        bool has_moved = false;

        CHECK_NOT_NULL(log);
        const int before = divert_stderr(log);
        rdt_log_set_level(RDT_LOG_WARN);
        (void)run(&config, cut_only, n, &has_moved);
        (void)end_diversion(log, before);
        CHECK_UINT_EQ(count_lines(log, "rank 0 is reached over tcp from now on"), has_moved);
        CHECK_UINT_EQ(count_lines(log, "rank 1 is reached over tcp from now on"), has_moved);
        CHECK_UINT_EQ(count_lines(log, "is reached over tcp from now on"), 2 * has_moved);
        (void)fclose(log);
        moves += has_moved;
    }
    CHECK_UINT_GE(moves, 1);
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

/* ---- Back again ----------------------------------------------------------------------------- */

static void
check_path(uint32_t transport)
{
    for (uint32_t d = 0; d < 2; d++) {
        CHECK_UINT_EQ(rdt_endpoint_transport(streams[d].tx), transport);
        CHECK_UINT_EQ(failovers_of(d), 1);
    }
}

static void
run_steps(void)
{
    for (uint32_t i = 0; i < STEPS; i++)
        for (uint32_t d = 0; d < 2; d++)
            begin_step(&streams[d], i);
    for (uint32_t d = 0; d < 2; d++)
        end_stream(&streams[d]);
}

static void
write_until_moved(void)
{
    static const uint64_t zero; /* as the guard is that it goes to */
    const uint64_t deadline_ns = test_now_ns() + rig_patience_ns();

    for (uint32_t d = 0; d < 2; d++)
        while (rdt_endpoint_transport(streams[d].tx) != RDT_TRANSPORT_TCP) {
            struct rdt_error err = {0};
            rdt_transfer *t = NULL;

            CHECK(test_now_ns() < deadline_ns);
            CHECK_OK(rdt_endpoint_write(streams[0].tx, &zero, 8, &streams[0].remote, 0,
                                        RDT_NOTIFY_NONE, &t, &err),
                     &err);
            end_op(t, "a write while it moves", d);
        }
}

/* RDMA works again: what has moved stays where it is, whatever goes over it; a new endpoint tries
 * RDMA, and has it. */
TEST_TIMEOUT(only_a_new_endpoint_goes_back_to_rdma, 60)
{
    const struct sim_config config = config_of(1, 3);

    open_rig(&config, RDT_TRANSPORT_AUTO);
    for (uint32_t d = 0; d < 2; d++)
        open_stream(&streams[d], d, config.seed);
    sim_cut_device(0, true);
    write_until_moved();
    sim_cut_device(0, false);
    run_steps();
    check_path(RDT_TRANSPORT_TCP);
    for (uint32_t d = 0; d < 2; d++)
        close_stream(&streams[d]);
    for (uint32_t i = 0; i < 2; i++)
        rdt_group_destroy(rig.group[i]);
    for (uint32_t i = 0; i < 2; i++)
        rig.group[i] = rig_group(&rig, i, "again");
    const uint64_t before = sim_executed();
    for (uint32_t d = 0; d < 2; d++)
        open_stream(&streams[d], d, config.seed);
    run_steps();
    check_path(RDT_TRANSPORT_VERBS);
    CHECK_UINT_GE(sim_executed() - before, STEPS);
    for (uint32_t d = 0; d < 2; d++)
        close_stream(&streams[d]);
    close_rig();
}

/* ---- Messages of collectives ----------------------------------------------------------------- */

/* A message from rank 0 to rank 1, by that rank's part in it. */
static rdt_transfer *
post_sum(uint32_t rank, uint64_t tag, uint8_t *at, uint64_t len_bytes)
{
    const struct rdt_message_desc desc = {.op = RDT_COLL_ALLREDUCE,
                                          .dtype = RDT_U8,
                                          .reduce_op = RDT_SUM,
                                          .count = len_bytes,
                                          .sequence = 7};
    struct rdt_error err = {0};
    rdt_transfer *t = NULL;

    tag |= RDT_TAG_ONCE;
    if (rank == 0)
        CHECK_OK(rdt_group_send(rig.group[0], 1, tag, at, len_bytes, &desc, &t, &err), &err);
    else
        CHECK_OK(rdt_group_recv(rig.group[1], 0, tag, at, len_bytes, &desc, &t, &err), &err);
    return t;
}

/* In turns sent before and after its receive. */
static void
collect(uint64_t tag, uint8_t *dst, uint64_t len_bytes)
{
    const bool is_sent_first = tag % 2 == 0;
    rdt_transfer *ends[2] = {NULL, NULL};

    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t rank = is_sent_first ? i : 1 - i;
        ends[rank] = post_sum(rank, tag, rank == 0 ? streams[0].sent : dst, len_bytes);
    }
    end_op(ends[1], "a receive", 0);
    end_op(ends[0], "a send", 0);
    CHECK_MEM_EQ(dst, streams[0].sent, len_bytes);
    memset(dst, 0, len_bytes);
}

static struct rdt_counters
counters_of(uint32_t rank)
{
    struct rdt_counters now = {.struct_size = sizeof(now)};

    rdt_context_counters(rig.ctx[rank], &now);
    return now;
}

/* One whose receive is not posted before the sender has lost patience: it is offered, as the POSTED
 * that its offer crosses would stay at the sender behind an eager one. */
static void
offer_late(uint64_t tag, uint8_t *dst)
{
    const uint64_t len_bytes = RDTI_KEYED_MIN_BYTES;
    const uint64_t before = counters_of(0).mailbox_rendezvous;
    rdt_transfer *send = post_sum(0, tag, streams[0].sent, len_bytes);

    CHECK_EVENTUALLY(counters_of(0).mailbox_rendezvous > before, 10);
    rdt_transfer *recv = post_sum(1, tag, dst, len_bytes);
    end_op(recv, "a receive", 0);
    end_op(send, "a send", 0);
    CHECK_MEM_EQ(dst, streams[0].sent, len_bytes);
}

/* 64 KiB, which a ring takes over tcp and not over verbs. Their receives were asked for over verbs:
 * they are told as before, and none stays behind at the sender, where too many end the endpoint. */
TEST_TIMEOUT(what_was_written_into_its_place_still_is_after_the_move, 60)
{
    enum { COUNT = RDTI_TOLD_MAX + 100, FIRST = 8 };
    const struct sim_config config = config_of(1, 3);
    struct rdt_remote_region none;
    uint64_t tag = 0;

    open_rig(&config, RDT_TRANSPORT_AUTO);
    for (uint32_t d = 0; d < 2; d++)
        open_stream(&streams[d], d, config.seed);
    rdt_region *region = region_of(1, RDTI_KEYED_MIN_BYTES, &none);
    uint8_t *dst = rdt_region_addr(region);
    while (tag < FIRST) /* the ring grows */
        collect(tag++, dst, 20000);
    while (tag < 3 * FIRST)
        collect(tag++, dst, RDTI_KEYED_MIN_BYTES);
    CHECK_UINT_GE(counters_of(0).mailbox_placed, FIRST);
    sim_cut_device(0, true);
    write_until_moved();
    const uint64_t before = counters_of(0).mailbox_placed;
    while (tag < 3 * FIRST + COUNT)
        collect(tag++, dst, RDTI_KEYED_MIN_BYTES);
    CHECK_UINT_EQ(counters_of(0).mailbox_placed - before, COUNT);
    offer_late(tag++, dst);
    run_steps();
    for (uint32_t d = 0; d < 2; d++)
        close_stream(&streams[d]);
    rdt_region_free(region, NULL, NULL);
    close_rig();
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
