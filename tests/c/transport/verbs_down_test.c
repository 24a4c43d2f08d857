/* SPDX-License-Identifier: Apache-2.0
 * One of several links of a lane breaks, at any moment: the lane goes on, every byte and every
 * notification is there once and in order, and nothing is written to what was delivered. On the
 * sim. */
#include "../harness.h"

#include "base/error.h"
#include "transport/verbs/down.h"
#include "verbs_rig.h"
#include "wire/notify.h"

enum { OPS = 48, GUARD = 16, TAKEN = 0xee };

static const uint64_t sizes[] = {8, 0, 70000, 1, 300000, 64, 4096, 65, 700001, 100, 20000, 63};

/* One direction: writes with and without notifications and reads, from memory that devices know and
 * from other, each to a place of its own. */
struct stream {
    struct fake_link *from;
    struct fake_op ops[OPS];
    const uint8_t *src[OPS];
    uint64_t off[OPS];
    uint64_t len[OPS];
    bool is_message[OPS];
    struct fake_region *region; /* the receiver's */
    struct fake_region *source; /* ours, for a half of the ops and for reads */
    uint8_t *other;             /* ours, for the rest */
    uint32_t next;              /* the first op that is not delivered */
    uint32_t left;              /* messages to come */
    uint64_t pause_ns;          /* between every few ops */
};

static struct stream streams[2];
static struct verbs_pair p;
static uint32_t midst_seen;

static bool
is_read(uint32_t op)
{
    return op % 7 == 3;
}

/* Every message is checked when it is delivered, with the writes before it; then its place is the
 * receiver's, and written to. */
static void
on_message(struct fake_link *link, uint32_t value, void *arg)
{
    struct stream *s = arg;

    (void)link;
    for (; s->next < OPS; s->next++) {
        uint8_t *at = s->region->addr + s->off[s->next];
        const bool is_message = s->is_message[s->next];

        if (is_read(s->next))
            continue;
        CHECK_MEM_EQ(at, s->src[s->next], s->len[s->next]);
        memset(at, TAKEN, s->len[s->next]);
        if (!is_message)
            continue;
        CHECK_HEX_EQ(value, rdti_notify_user(s->next));
        s->next++;
        s->left--;
        return;
    }
    FAIL("a message after the last: 0x%x", value);
}

/* Keys, registrations and the stage are there before anything is cut or fails. */
static void
warm(struct stream *s)
{
    static const uint8_t zero;
    void *locals[] = {s->source->addr, s->other};
    struct fake_op op;

    for (uint32_t i = 0; i < 3; i++) {
        if (i < 2)
            fake_read(&op, locals[i], 100, &s->region->remote, 0);
        else
            fake_write(&op, &zero, 1, &s->region->remote, 0, RDTI_NOTIFY_NONE);
        fake_must_start(s->from, &op);
        VERBS_PUMP(&p, fake_op_is_done(&op));
        CHECK_INT_EQ(op.status, RDT_OK);
    }
}

static void
prepare_stream(struct stream *s, struct fake_host *to, struct fake_link *from, struct fake_link *at,
               uint64_t seed)
{
    uint64_t total = GUARD;

    memset(s, 0, sizeof(*s));
    s->from = from;
    for (uint32_t i = 0; i < OPS; i++) {
        s->len[i] = sizes[(i * 5 + seed) % (sizeof(sizes) / sizeof(sizes[0]))];
        s->off[i] = total;
        s->is_message[i] = i + 1 == OPS || (!is_read(i) && i % 5 != 2);
        s->left += s->is_message[i];
        total += s->len[i] + GUARD;
    }
    s->region = fake_region(to, total);
    s->source = fake_region(from->host, total);
    s->other = malloc(total);
    CHECK_NOT_NULL(s->other);
    warm(s);
    verbs_pattern(s->source->addr, total, 11);
    verbs_pattern(s->other, total, 23);
    at->on_notify = on_message;
    at->on_notify_arg = s;
}

static void
fill_stream(struct stream *s)
{
    for (uint32_t i = 0; i < OPS; i++) {
        uint8_t *local = (i % 2 == 0 ? s->source->addr : s->other) + s->off[i];

        s->src[i] = local;
        if (is_read(i)) {
            verbs_pattern(s->region->addr + s->off[i], s->len[i], i);
            fake_read(&s->ops[i], local, s->len[i], &s->region->remote, s->off[i]);
        } else {
            fake_write(&s->ops[i], local, s->len[i], &s->region->remote, s->off[i],
                       s->is_message[i] ? rdti_notify_user(i) : RDTI_NOTIFY_NONE);
        }
    }
}

/* Any thread. */
static void *
start_stream(void *arg)
{
    struct stream *s = arg;
    struct rdt_error err;

    for (uint32_t i = 0; i < OPS; i++) {
        /* It may have ended before: then the op is refused, and as good as done. */
        if (fake_start(s->from, &s->ops[i], &err) != RDT_OK)
            atomic_store_explicit(&s->ops[i].completions, 1, memory_order_relaxed);
        if (i % 8 == 7)
            test_sleep_ns(s->pause_ns);
    }
    return NULL;
}

static bool
is_done(struct stream *s)
{
    if (s->from == NULL)
        return true;
    for (uint32_t i = 0; i < OPS; i++)
        if (!fake_op_is_done(&s->ops[i]))
            return false;
    return s->left == 0;
}

static bool
is_broken(void)
{
    return p.ab.error_count + p.ba.error_count > 0;
}

/* Nothing has come to a place that was delivered, nor between two. */
static void
check_stream(const struct stream *s)
{
    for (uint32_t i = 0; s->from != NULL && i < OPS; i++) {
        const uint8_t *at = s->region->addr + s->off[i];

        CHECK_INT_EQ(s->ops[i].status, RDT_OK);
        for (uint64_t b = 0; b < GUARD; b++)
            CHECK(at[-1 - (int)b] == 0);
        if (is_read(i))
            CHECK_MEM_EQ(s->src[i], at, s->len[i]);
        for (uint64_t b = 0; !is_read(i) && b < s->len[i]; b++)
            CHECK_MSG(at[b] == TAKEN, "op %u, byte %" PRIu64 " is written again", i, b);
    }
}

enum { A_TO_B = 1, B_TO_A = 2 };

static void
begin(const struct sim_config *config, uint32_t directions)
{
    verbs_pair_open(&p, config);
    memset(streams, 0, sizeof(streams));
    if ((directions & A_TO_B) != 0)
        prepare_stream(&streams[0], &p.b, &p.ab, &p.ba, config->seed);
    if ((directions & B_TO_A) != 0)
        prepare_stream(&streams[1], &p.a, &p.ba, &p.ab, config->seed);
}

static void
start(void)
{
    for (uint32_t i = 0; i < 2; i++)
        if (streams[i].from != NULL) {
            fill_stream(&streams[i]);
            (void)start_stream(&streams[i]);
        }
}

/* The next op of a lane whose link is broken has gone in part. */
static bool
is_in_the_midst(struct fake_link *link)
{
    struct rdti_verbs_lane *lane = (struct rdti_verbs_lane *)link->lane;

    (void)pthread_mutex_lock(&lane->lock);
    const bool is =
        lane->is_held && lane->cursor != NULL && lane->cursor->scratch[RDTI_VERBS_OP_STEP] > 0;
    (void)pthread_mutex_unlock(&lane->lock);
    return is;
}

/* Until all is done, and right, or, where it may, the lane has ended; passes in any order. */
static void
run(uint64_t seed, bool may_break)
{
    const uint64_t deadline_ns = fake_deadline_ns(10);

    while (!(is_done(&streams[0]) && is_done(&streams[1])) && !(may_break && is_broken())) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
        (void)fake_pump(seed >> 33 & 1 ? &p.a : &p.b);
        midst_seen += is_in_the_midst(&p.ab) || is_in_the_midst(&p.ba);
        CHECK_MSG(may_break || !is_broken(), "%s",
                  p.ab.error_count > 0 ? p.ab.error.message : p.ba.error.message);
        fake_check_deadline(deadline_ns, __FILE__, __LINE__, "done");
    }
    for (uint32_t i = 0; !is_broken() && i < 2; i++)
        check_stream(&streams[i]);
}

static void
end(void)
{
    verbs_pair_close(&p);
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t op = 0; streams[i].from != NULL && op < OPS; op++)
            CHECK(fake_op_is_done(&streams[i].ops[op]));
        free(streams[i].other);
    }
}

/* Queues so short that windows turn, ops are posted in parts, and the stage runs out. */
static struct sim_config
short_config(uint32_t devices, uint64_t seed)
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
count_requests(uint32_t directions)
{
    const struct sim_config config = short_config(2, 1);

    begin(&config, directions);
    const uint64_t before = sim_executed();
    start();
    run(1, false);
    const uint64_t count = sim_executed() - before;
    end();
    return count;
}

static uint32_t
stride(void)
{
    const uint32_t thinned = TEST_TSAN_STRIDE > 1 ? 50 : 9;

    return test_timeout_scale() > 1 ? thinned
                                    : 1; /* sanitizers see the same paths in few of them */
}

static void
sweep(uint32_t directions, uint32_t step)
{
    const uint64_t count = count_requests(directions);
    uint32_t broken = 0;

    for (uint64_t n = 1; n <= count; n += step * stride()) {
        const struct sim_config config = short_config(2, n);

        begin(&config, directions);
        sim_cut_after(n % 2, n, (uint32_t)(n % 11));
        start();
        run(n, false);
        const struct rdti_verbs_lane *lane = (struct rdti_verbs_lane *)p.ab.lane;
        broken += lane->links[0].state > RDTI_VERBS_LINK_DROPPED ||
                  lane->links[1].state > RDTI_VERBS_LINK_DROPPED;
        end();
    }
    printf("  cut before each of %" PRIu64
           " requests, %u times seen, %u passes in the midst of an op\n",
           count, broken, midst_seen);
    CHECK_INT_GT(broken, count / step / stride() / 2);
    CHECK_INT_GT(midst_seen, 0);
}

TEST_TIMEOUT(a_link_is_cut_at_every_step, 120)
{
    sweep(A_TO_B, 1);
}

TEST_TIMEOUT(a_link_is_cut_at_every_step_of_the_other_direction, 120)
{
    sweep(B_TO_A, 1);
}

TEST_TIMEOUT(a_link_is_cut_at_every_other_step_of_both_directions, 120)
{
    sweep(A_TO_B | B_TO_A, 2);
}

/* Other threads write while the driver finds out, drains and settles. */
TEST_TIMEOUT(threads_write_while_a_link_is_cut, 120)
{
    for (uint32_t n = 1; n < 300; n += 5 * stride()) {
        const struct sim_config config = short_config(2, n);
        pthread_t writers[2];

        begin(&config, A_TO_B | B_TO_A);
        sim_cut_after(n % 2, n, n % 11);
        for (uint32_t i = 0; i < 2; i++) {
            streams[i].pause_ns = 300000;
            fill_stream(&streams[i]);
            CHECK_INT_EQ(pthread_create(&writers[i], NULL, start_stream, &streams[i]), 0);
        }
        run(n, false);
        for (uint32_t i = 0; i < 2; i++)
            CHECK_INT_EQ(pthread_join(writers[i], NULL), 0);
        end();
    }
}

/* ---- More than one -------------------------------------------------------------------------- */

/* Two of three links break, the second in the midst of settling the first. */
TEST_TIMEOUT(two_of_three_links_may_break, 120)
{
    for (uint32_t n = 1; n < 200; n += 7 * stride())
        for (uint32_t gap = 0; gap < 24; gap += 7) {
            const struct sim_config config = short_config(3, n + gap);

            begin(&config, A_TO_B | B_TO_A);
            sim_cut_after(n % 3, n, n % 7);
            sim_cut_after((n + 1) % 3, n + gap, gap % 7);
            start();
            run(n, false);
            end();
        }
}

/* The last one ends the lane, whatever the first was at; what was delivered until then was right,
 * and every op is completed. */
TEST_TIMEOUT(the_last_link_ends_the_lane, 120)
{
    uint32_t ended = 0;

    for (uint32_t n = 1; n < 200; n += 7 * stride())
        for (uint32_t gap = 0; gap < 24; gap += 7) {
            const struct sim_config config = short_config(2, n + gap);

            begin(&config, A_TO_B | B_TO_A);
            sim_cut_after(n % 2, n, n % 7);
            sim_cut_after((n + 1) % 2, n + gap, gap % 7);
            start();
            run(n, true);
            ended += is_broken();
            const struct rdt_error *err = p.ab.error_count > 0 ? &p.ab.error : &p.ba.error;
            if (is_broken())
                CHECK_STR_CONTAINS(err->message, "verbs lane to rank");
            end();
        }
    printf("  ended %u times\n", ended);
    CHECK_INT_GT(ended, 40 / stride());
}

/* ---- Calls that fail meanwhile -------------------------------------------------------------- */

/* Returns false once n is past the last call. */
static bool
recover_with_fault(uint32_t devices, uint32_t n, bool may_break)
{
    const struct sim_config config = short_config(devices, n);
    const uint64_t deadline_ns = fake_deadline_ns(10);

    begin(&config, A_TO_B | B_TO_A);
    const struct rdti_verbs_lane *ab = (struct rdti_verbs_lane *)p.ab.lane;
    const struct rdti_verbs_lane *ba = (struct rdti_verbs_lane *)p.ba.lane;
    sim_cut_after(0, 40, 5);
    start();
    while (ab->links[0].state <= RDTI_VERBS_LINK_GOOD &&
           ba->links[0].state <= RDTI_VERBS_LINK_GOOD) {
        (void)fake_pump(&p.a);
        (void)fake_pump(&p.b);
        fake_check_deadline(deadline_ns, __FILE__, __LINE__, "broken");
    }
    sim_fail_call(n, EIO);
    run(n, may_break);
    const bool is_hit = sim_failed_call() != NULL;
    CHECK(is_hit || !is_broken());
    if (p.ab.error_count > 0 && p.ab.error.sys_errno != 0)
        CHECK_INT_EQ(p.ab.error.sys_errno, EIO);
    end();
    return is_hit;
}

/* Where a third link is left even that is no end. */
TEST_TIMEOUT(every_call_may_fail_while_a_link_is_settled, 120)
{
    uint32_t n = 1;

    while (recover_with_fault(3, n, false))
        n += stride();
    CHECK_INT_GT(n, 10);
    n = 1;
    while (recover_with_fault(2, n, true))
        n += stride();
    CHECK_INT_GT(n, 10);
}

/* Whichever side it is on, and whether that found out itself or was told. */
TEST_TIMEOUT(a_qp_that_does_not_go_to_error_is_destroyed, 120)
{
    const struct sim_config config = short_config(2, 1);
    bool is_hit = true;
    uint32_t n = 0;

    for (; is_hit; n++) {
        begin(&config, A_TO_B | B_TO_A);
        sim_cut_after(0, 40, 5);
        sim_fail_named("modify_qp to ERR", n, 1, EIO);
        start();
        run(n, false);
        is_hit = sim_failed_call() != NULL;
        end();
    }
    CHECK_INT_EQ(n, 5); /* two of each side fail in turn, then none */
}

TEST(a_qp_that_cannot_be_stopped_ends_the_lane_unless_its_device_is_gone)
{
    const struct sim_config config = short_config(2, 1);
    const struct rdt_error why = {.status = RDT_EDEVICE, .message = "broken by hand"};

    for (int is_gone = 0; is_gone < 2; is_gone++) {
        begin(&config, A_TO_B);
        sim_fail_call(1, EIO); /* modify_qp to ERR */
        sim_fail_named("destroy_qp", 0, 1, EBUSY);
        rdti_verbs_break_link(&((struct rdti_verbs_lane *)p.ab.lane)->links[0], &why);
        if (is_gone)
            sim_raise_event(0, IBV_EVENT_DEVICE_FATAL);
        start();
        run(1, !is_gone);
        CHECK_STR_CONTAINS(sim_failed_call(), "destroy_qp");
        CHECK_INT_EQ(p.ab.error_count, !is_gone);
        CHECK_INT_EQ(p.ab.error.sys_errno, is_gone ? 0 : EIO);
        CHECK_STR_CONTAINS(p.ab.error.message, is_gone ? "" : strerror(EBUSY));
        end();
    }
}

/* ---- What is told --------------------------------------------------------------------------- */

TEST(a_device_that_is_gone_leaves_the_others)
{
    const struct sim_config config = short_config(2, 5);
    char text[1024];

    begin(&config, A_TO_B);
    sim_raise_event(0, IBV_EVENT_DEVICE_FATAL);
    start();
    run(1, false);
    p.a.transport->explain(p.ab.lane, text, sizeof(text));
    CHECK_STR_CONTAINS(text, "sim0:1 is down: ");
    CHECK_STR_CONTAINS(text, "local catastrophic error");
    CHECK_STR_CONTAINS(text, "sim1:1 GID 1");
    end();
}

/* The side that sends nothing hears of it from the other; both name it. */
TEST(both_sides_name_the_link_that_is_down)
{
    const struct sim_config config = short_config(2, 5);
    char text[1024];

    begin(&config, A_TO_B);
    sim_cut_after(1, 20, 0);
    start();
    run(1, false);
    p.a.transport->explain(p.ab.lane, text, sizeof(text));
    CHECK_STR_CONTAINS(text, "sim0:1 GID 1");
    CHECK_STR_CONTAINS(text, "sim1:1 is down: ");
    CHECK_STR_CONTAINS(text, "::ffff:10.0.1.1 to ::ffff:10.0.1.1");
    CHECK_STR_CONTAINS(text, "transport retry counter exceeded");
    CHECK_STR_CONTAINS(text, "requests of broken links were flushed");
    p.b.transport->explain(p.ba.lane, text, sizeof(text));
    CHECK_STR_CONTAINS(text, "sim1:1 is down: ");
    end();
}

/* A request that is wrong in itself is no link's fault. */
TEST(a_refused_key_ends_the_lane_at_once)
{
    const struct sim_config config = short_config(2, 5);

    begin(&config, A_TO_B);
    sim_break_next(IBV_WC_REM_ACCESS_ERR);
    start();
    run(1, true);
    CHECK_INT_EQ(p.ab.error_count, 1);
    CHECK_INT_EQ(p.ab.error.wc_status, IBV_WC_REM_ACCESS_ERR);
    end();
}

TEST(a_peer_that_does_not_answer_ends_the_lane)
{
    const struct sim_config config = short_config(2, 5);

    begin(&config, A_TO_B);
    struct rdti_verbs_lane *lane = (struct rdti_verbs_lane *)p.ab.lane;
    sim_raise_event(0, IBV_EVENT_DEVICE_FATAL);
    FAKE_PUMP_UNTIL(&p.a, NULL, lane->links[0].state == RDTI_VERBS_LINK_TOLD, 5);
    CHECK_UINT_GE(lane->links[0].down_deadline_ns, test_now_ns());
    for (int pass = 0; pass < 2; pass++) { /* its answer may have come while we stood still */
        lane->links[0].down_deadline_ns = test_now_ns();
        (void)fake_pump(&p.a);
        CHECK_INT_EQ(p.ab.error_count, pass);
    }
    CHECK_STR_CONTAINS(p.ab.error.message, "does not say what it received over sim0 port 1");
    start();
    end();
}

/* ---- Lies ----------------------------------------------------------------------------------- */

static rdt_status
say(const struct rdti_verbs_words *words, struct rdt_error *err)
{
    uint8_t bytes[RDTI_LANE_WORDS_MAX_BYTES];
    const size_t len = rdti_verbs_words_encode(words, bytes);

    return p.a.transport->words_arrived(p.ab.lane, bytes, (uint32_t)len, err);
}

TEST(words_of_links_that_make_no_sense_are_refused)
{
    const struct sim_config config = short_config(2, 4);
    struct rdti_verbs_words words = {.kind = RDTI_VERBS_LINK_DOWN, .link = 3, .qp_count = 2};
    struct rdt_error err;

    begin(&config, A_TO_B);
    CHECK_INT_EQ(say(&words, &err), RDT_EPROTO);
    words.link = 1;
    words.qp_count = 1;
    CHECK_INT_EQ(say(&words, &err), RDT_EPROTO);
    CHECK_STR_CONTAINS(err.message, "out of turn: link 1 is down");
    words.qp_count = 2;
    words.received[1] = 1; /* of none */
    CHECK_OK(say(&words, &err), &err);
    VERBS_PUMP(&p, p.ab.error_count == 1);
    CHECK_INT_EQ(p.ab.error.status, RDT_EPROTO);
    CHECK_STR_CONTAINS(p.ab.error.message, "counts 1 notifications");
    start();
    end();
}

TEST(a_link_that_is_not_down_is_not_settled)
{
    const struct sim_config config = short_config(2, 4);
    struct rdt_error err;

    begin(&config, A_TO_B);
    struct rdti_verbs_lane *lane = (struct rdti_verbs_lane *)p.ab.lane;
    CHECK_INT_EQ(rdti_verbs_take_mark(lane, 1, &err), RDT_EPROTO);
    CHECK_INT_EQ(rdti_verbs_take_mark(lane, 9, &err), RDT_EPROTO);
    CHECK_STR_CONTAINS(err.message, "settled link 9, which is not down");
    start();
    run(1, false);
    end();
}

TEST_MAIN()
