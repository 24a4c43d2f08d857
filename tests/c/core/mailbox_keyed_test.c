/* SPDX-License-Identifier: Apache-2.0
 * Messages under tags that are used once: what repeats is written into its place without a control
 * message, in whatever order both ends come, and whatever does not fit arrives all the same. */
#include "base/error.h"

#include "core/stand_rig.h"
#include "message/persistent_impl.h"
#include "rdmatensor_ext.h"

/* Goes into its place over every path; 64 KiB itself do over verbs only. */
#define PLACED (RDTI_KEYED_MIN_BYTES + 1)

static uint64_t next_tag = RDT_TAG_ONCE;

static struct rdt_message_desc
desc_of(uint64_t count)
{
    return (struct rdt_message_desc){.op = RDT_COLL_ALLREDUCE,
                                     .dtype = RDT_U8,
                                     .reduce_op = RDT_SUM,
                                     .count = count,
                                     .sequence = 7};
}

static rdt_transfer *
post(struct rig *rig, uint64_t tag, uint8_t *dst, uint64_t len_bytes)
{
    const struct rdt_message_desc desc = desc_of(len_bytes);
    struct rdt_error err = {0};
    rdt_transfer *t = NULL;

    CHECK_OK(rdt_group_recv(rig->group[1], 0, tag, dst, len_bytes, &desc, &t, &err), &err);
    return t;
}

static rdt_transfer *
put_as(struct rig *rig, uint64_t tag, const uint8_t *src, uint64_t len_bytes,
       const struct rdt_message_desc *desc)
{
    struct rdt_error err = {0};
    rdt_transfer *t = NULL;

    CHECK_OK(rdt_group_send(rig->group[0], 1, tag, src, len_bytes, desc, &t, &err), &err);
    return t;
}

static rdt_transfer *
put(struct rig *rig, uint64_t tag, const uint8_t *src, uint64_t len_bytes)
{
    const struct rdt_message_desc desc = desc_of(len_bytes);

    return put_as(rig, tag, src, len_bytes, &desc);
}

static void
end_ok(rdt_transfer *t)
{
    struct rdt_error err = {0};

    CHECK_OK(rig_end(t, &err), &err);
}

/* One message of rank 0. */
static void
move(struct rig *rig, uint8_t *dst, uint64_t len_bytes, uint64_t seed, bool is_send_first)
{
    const uint64_t tag = next_tag++;
    uint8_t *src = malloc(len_bytes);
    rdt_transfer *recv = NULL;

    rig_fill(src, len_bytes, seed);
    if (!is_send_first)
        recv = post(rig, tag, dst, len_bytes);
    rdt_transfer *send = put(rig, tag, src, len_bytes);
    if (is_send_first) {
        CHECK_STATUS(rdt_context_progress(rig->ctx[1]), RDT_OK);
        recv = post(rig, tag, dst, len_bytes);
    }
    end_ok(recv);
    end_ok(send);
    CHECK_MEM_EQ(dst, src, len_bytes);
    free(src);
}

static void
warm(struct rig *rig, struct field *field, uint64_t len_bytes)
{
    for (uint64_t i = 0; i < 2 * PLACES; i++)
        move(rig, field->piece[i % PLACES], len_bytes, i, i % 2 == 0);
}

/* ---- What it costs ----------------------------------------------------------------------- */

static void
costs_a_write_and_a_credit(uint32_t transport, uint64_t len_bytes)
{
    enum { COUNT = 24 };
    struct rig rig;
    struct field field;
    struct rdt_counters before[2];

    rig_open(&rig, 2, transport);
    field_make(&field, rig.ctx[1], len_bytes);
    warm(&rig, &field, len_bytes);
    for (uint32_t rank = 0; rank < 2; rank++)
        before[rank] = counters(&rig, rank);
    for (uint64_t i = 0; i < COUNT; i++)
        move(&rig, field.piece[i * 3 % PLACES], len_bytes, 100 + i, i % 3 == 0);
    for (uint32_t rank = 0; rank < 2; rank++) {
        const struct rdt_counters after = counters(&rig, rank);
        CHECK_UINT_EQ(after.control_messages, before[rank].control_messages);
        CHECK_UINT_EQ(after.registrations, before[rank].registrations);
        CHECK_UINT_EQ(after.mailbox_rendezvous, before[rank].mailbox_rendezvous);
        CHECK_UINT_EQ(after.mailbox_placed - before[rank].mailbox_placed, rank == 0 ? COUNT : 0);
        CHECK_UINT_GE(COUNT, after.credits_alone - before[rank].credits_alone);
        if (transport == RDT_TRANSPORT_TCP) /* a device gets small private memory by a copy */
            CHECK_UINT_EQ(after.copied_bytes, before[rank].copied_bytes);
    }
    CHECK_UINT_EQ(counters(&rig, 0).fallback_bytes, 0);
    rdt_region_free(field.region, NULL, NULL);
    rig_close(&rig);
}

TEST_TIMEOUT(over_tcp_and_verbs_a_message_is_a_write_and_a_credit, 60)
{
    const struct rig_paths paths = rig_far_paths();

    for (uint32_t i = 0; i < paths.count; i++) {
        costs_a_write_and_a_credit(paths.transports[i], PLACED);
        costs_a_write_and_a_credit(paths.transports[i], LARGE + 3);
    }
}

/* Over tcp 64 KiB are copied: who waits to hear of a receive has a round trip more for each. */
TEST_TIMEOUT(what_a_ring_takes_does_not_wait_for_its_receive, 60)
{
    const struct rig_paths paths = rig_far_paths();

    for (uint32_t i = 0; i < paths.count; i++) {
        const bool is_tcp = paths.transports[i] == RDT_TRANSPORT_TCP;
        struct rig rig;
        struct field field;
        rig_open(&rig, 2, paths.transports[i]);
        field_make(&field, rig.ctx[1], RDTI_KEYED_MIN_BYTES);
        warm(&rig, &field, RDTI_KEYED_MIN_BYTES);
        const struct rdt_counters before = counters(&rig, 0);
        warm(&rig, &field, RDTI_KEYED_MIN_BYTES);
        const struct rdt_counters after = counters(&rig, 0);
        CHECK_UINT_EQ(after.mailbox_eager - before.mailbox_eager, is_tcp ? 2 * PLACES : 0);
        CHECK_UINT_EQ(after.mailbox_placed - before.mailbox_placed, is_tcp ? 0 : 2 * PLACES);
        CHECK_UINT_EQ(rdt_group_stands(rig.group[1], 0, field.piece[0], RDTI_KEYED_MIN_BYTES),
                      is_tcp ? RDT_STANDS_NOT : RDT_STANDS_HERE);
        rdt_region_free(field.region, NULL, NULL);
        rig_close(&rig);
    }
}

/* Until all that either has said has come. */
static void
settle(struct rig *rig)
{
    for (uint32_t i = 0; i < 200; i++) {
        for (uint32_t rank = 0; rank < 2; rank++)
            CHECK_STATUS(rdt_context_progress(rig->ctx[rank]), RDT_OK);
        test_sleep_ns(100000);
    }
}

/* What was sent before the first receive asked for places comes the fallback path; the next message
 * there has its place all the same. is_standing: the other receives are posted once it was
 * answered, when their messages are here. */
static void
tells_what_came_before_it_asked(uint32_t transport, bool is_standing)
{
    rdt_transfer *sends[PLACES];
    rdt_transfer *receives[PLACES];
    uint8_t *src = malloc(LARGE);
    struct rdt_counters before[2];
    struct field field;
    struct rig rig;

    rig_open(&rig, 2, transport);
    field_make(&field, rig.ctx[1], LARGE);
    rig_fill(src, LARGE, 5);
    move(&rig, field.piece[0], 8, 1, false); /* so that the mailbox is ready */
    const uint64_t first = next_tag;
    next_tag += PLACES;
    for (uint32_t i = 0; i < PLACES; i++)
        sends[i] = put(&rig, first + i, src, LARGE);
    for (uint32_t i = 0; i < PLACES; i++) {
        receives[i] = post(&rig, first + i, field.piece[i], LARGE);
        if (is_standing && i == 0)
            settle(&rig);
    }
    for (uint32_t i = 0; i < PLACES; i++) {
        end_ok(receives[i]);
        end_ok(sends[i]);
        CHECK_MEM_EQ(field.piece[i], src, LARGE);
    }
    CHECK_UINT_EQ(counters(&rig, 0).mailbox_placed, 0);
    settle(&rig);
    for (uint32_t rank = 0; rank < 2; rank++)
        before[rank] = counters(&rig, rank);
    for (uint32_t i = 0; i < PLACES; i++)
        move(&rig, field.piece[i], LARGE, 100 + i, i % 2 == 0);
    for (uint32_t rank = 0; rank < 2; rank++)
        CHECK_UINT_EQ(counters(&rig, rank).control_messages, before[rank].control_messages);
    CHECK_UINT_EQ(counters(&rig, 0).mailbox_placed, PLACES);
    free(src);
    rdt_region_free(field.region, NULL, NULL);
    rig_close(&rig);
}

TEST_TIMEOUT(the_places_of_messages_that_came_before_they_were_asked_for_are_told, 60)
{
    const struct rig_paths paths = rig_far_paths();

    for (uint32_t i = 0; i < paths.count; i++) {
        tells_what_came_before_it_asked(paths.transports[i], false);
        tells_what_came_before_it_asked(paths.transports[i], true);
    }
}

/* Its message waits; there is no path that it could be told over. */
TEST(a_receive_of_any_source_finds_its_message)
{
    const struct rdt_message_desc desc = desc_of(LARGE);
    const uint64_t tag = next_tag++;
    uint8_t *src = malloc(LARGE);
    struct rdt_error err = {0};
    rdt_transfer *recv = NULL;
    struct field field;
    struct rig rig;

    rig_open(&rig, 2, RDT_TRANSPORT_TCP);
    field_make(&field, rig.ctx[1], LARGE);
    rig_fill(src, LARGE, 5);
    move(&rig, field.piece[0], 8, 1, false);
    rdt_transfer *send = put(&rig, tag, src, LARGE);
    settle(&rig);
    CHECK_OK(rdt_group_recv(rig.group[1], RDT_SOURCE_ANY, tag, field.piece[1], LARGE, &desc, &recv,
                            &err),
             &err);
    end_ok(recv);
    end_ok(send);
    CHECK_MEM_EQ(field.piece[1], src, LARGE);
    free(src);
    rdt_region_free(field.region, NULL, NULL);
    rig_close(&rig);
}

TEST(over_shared_memory_nothing_is_told)
{
    struct rig rig;
    struct field field;

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    field_make(&field, rig.ctx[1], LARGE);
    warm(&rig, &field, LARGE);
    CHECK_UINT_EQ(counters(&rig, 0).mailbox_placed, 0);
    CHECK_UINT_EQ(rdt_group_stands(rig.group[1], 0, field.piece[0], LARGE), RDT_STANDS_NOT);
    rdt_region_free(field.region, NULL, NULL);
    rig_close(&rig);
}

TEST(a_group_says_what_would_stand)
{
    struct rig rig;
    struct field field;
    uint8_t *own = malloc(LARGE);

    rig_open(&rig, 2, RDT_TRANSPORT_TCP);
    field_make(&field, rig.ctx[1], LARGE);
    rdt_group *group = rig.group[1];
    CHECK_UINT_EQ(rdt_group_stands(group, 0, field.piece[0], LARGE), RDT_STANDS_NOT); /* no path */
    (void)rig_ready(group, 0);
    CHECK_UINT_EQ(rdt_group_stands(group, 0, field.piece[0], LARGE), RDT_STANDS_HERE);
    CHECK_UINT_EQ(rdt_group_stands(group, 0, own, LARGE), RDT_STANDS_ELSEWHERE);
    CHECK_UINT_EQ(rdt_group_stands(group, 0, field.piece[0], RDTI_KEYED_MIN_BYTES - 1),
                  RDT_STANDS_NOT);
    CHECK_UINT_EQ(rdt_group_stands(group, 1, own, LARGE), RDT_STANDS_NOT); /* ourselves */
    CHECK_UINT_EQ(rdt_group_stands(group, 2, own, LARGE), RDT_STANDS_NOT);
    CHECK_UINT_EQ(rdt_group_stands(NULL, 0, own, LARGE), RDT_STANDS_NOT);
    rdt_region_free(field.region, NULL, NULL);
    free(own);
    rig_close(&rig);
}

/* From the receive that is told on, until its message is sent; of that length, in that group. */
TEST(a_group_says_what_was_told)
{
    const uint64_t tag = next_tag++;
    uint8_t *src = malloc(LARGE);
    struct rig rig;
    struct field field;
    uint32_t tries = 0;

    rig_open(&rig, 2, RDT_TRANSPORT_TCP);
    field_make(&field, rig.ctx[1], LARGE);
    rdt_group *group = rig.group[0];
    CHECK_UINT_EQ(rdt_group_is_told(group, 1, tag, LARGE), 0); /* no path */
    warm(&rig, &field, LARGE);
    CHECK_UINT_EQ(rdt_group_is_told(group, 1, tag, LARGE), 0);
    rdt_transfer *recv = post(&rig, tag, field.piece[0], LARGE);
    while (rdt_group_is_told(group, 1, tag, LARGE) == 0 && tries++ < 100000)
        for (uint32_t rank = 0; rank < 2; rank++)
            CHECK_STATUS(rdt_context_progress(rig.ctx[rank]), RDT_OK);
    CHECK_UINT_EQ(rdt_group_is_told(group, 1, tag, LARGE), 1);
    CHECK_UINT_EQ(rdt_group_is_told(group, 1, tag, LARGE + 1), 0);
    CHECK_UINT_EQ(rdt_group_is_told(group, 1, tag, RDTI_KEYED_MIN_BYTES - 1), 0);
    CHECK_UINT_EQ(rdt_group_is_told(group, 1, tag + 1, LARGE), 0);
    CHECK_UINT_EQ(rdt_group_is_told(group, 1, 7, LARGE), 0);   /* a tag that is used again */
    CHECK_UINT_EQ(rdt_group_is_told(group, 0, tag, LARGE), 0); /* ourselves */
    CHECK_UINT_EQ(rdt_group_is_told(group, 2, tag, LARGE), 0);
    CHECK_UINT_EQ(rdt_group_is_told(NULL, 1, tag, LARGE), 0);
    rig_fill(src, LARGE, 1);
    rdt_transfer *send = put(&rig, tag, src, LARGE);
    CHECK_UINT_EQ(rdt_group_is_told(group, 1, tag, LARGE), 0);
    end_ok(recv);
    end_ok(send);
    rdt_region_free(field.region, NULL, NULL);
    free(src);
    rig_close(&rig);
}

/* ---- Order, places, sizes ---------------------------------------------------------------- */

/* Receives and sends of one row of tags in orders of their own, several in flight. */
TEST_TIMEOUT(the_order_of_sends_and_receives_is_free, 60)
{
    const struct rig_paths paths = rig_far_paths();
    enum { ROUNDS = 20 };
    static const uint8_t orders[][PLACES] = {{0, 1, 2, 3}, {3, 1, 0, 2}, {2, 3, 1, 0}};

    for (uint32_t p = 0; p < paths.count; p++) {
        struct rig rig;
        struct field field;
        uint8_t *src = malloc(PLACES * LARGE);
        rig_open(&rig, 2, paths.transports[p]);
        field_make(&field, rig.ctx[1], LARGE);
        for (uint32_t round = 0; round < ROUNDS; round++) {
            rdt_transfer *all[2 * PLACES];
            const uint64_t first = next_tag;
            next_tag += PLACES;
            rig_fill(src, PLACES * LARGE, round);
            for (uint32_t i = 0; i < PLACES; i++) {
                const uint32_t in = orders[round % 3][i];
                const uint32_t out = orders[round / 2 % 3][i];
                all[2 * i] = post(&rig, first + in, field.piece[in], LARGE);
                all[2 * i + 1] = put(&rig, first + out, src + out * LARGE, LARGE);
            }
            for (uint32_t i = 0; i < 2 * PLACES; i++)
                end_ok(all[i]);
            for (uint32_t i = 0; i < PLACES; i++)
                CHECK_MEM_EQ(field.piece[i], src + i * LARGE, LARGE);
        }
        rdt_region_free(field.region, NULL, NULL);
        free(src);
        rig_close(&rig);
    }
}

TEST_TIMEOUT(places_that_never_come_again_make_room, 60)
{
    enum { COUNT = 3 * RDTI_KEYED_PLACES_MAX };
    struct rig rig;
    struct rdt_error err = {0};
    rdt_region *region;

    rig_open(&rig, 2, RDT_TRANSPORT_TCP);
    CHECK_OK(rdt_region_alloc(rig.ctx[1], PLACED + COUNT, 0, &region, &err), &err);
    uint8_t *base = rdt_region_addr(region);
    for (uint64_t i = 0; i < COUNT; i++)
        move(&rig, base + i, PLACED, i, i % 2 == 0);
    CHECK_UINT_GE(counters(&rig, 0).mailbox_placed, COUNT - 8);
    const struct rdt_counters before = counters(&rig, 1);
    for (uint64_t i = 0; i < 8; i++)
        move(&rig, base + COUNT - 1, PLACED, i, false);
    CHECK_UINT_EQ(counters(&rig, 1).control_messages, before.control_messages);
    rdt_region_free(region, NULL, NULL);
    rig_close(&rig);
}

TEST_TIMEOUT(private_memory_and_other_sizes_arrive, 60)
{
    const struct rig_paths paths = rig_far_paths();
    static const uint64_t lengths[] = {
        8, 4096, RDTI_KEYED_MIN_BYTES - 1, RDTI_KEYED_MIN_BYTES, PLACED, 100001, LARGE};

    for (uint32_t p = 0; p < paths.count; p++) {
        struct rig rig;
        struct field field;
        uint8_t *own = malloc(LARGE);
        rig_open(&rig, 2, paths.transports[p]);
        field_make(&field, rig.ctx[1], LARGE);
        for (uint64_t i = 0; i < 60; i++)
            move(&rig, i % 4 == 1 ? own : field.piece[i % PLACES], lengths[i % 7], i, i % 5 == 0);
        rdt_region_free(field.region, NULL, NULL);
        free(own);
        rig_close(&rig);
    }
}

/* The region ends, and another comes to be at its address. */
TEST_TIMEOUT(a_place_that_was_freed_is_told_anew, 60)
{
    struct rig rig;
    struct field field;

    rig_open(&rig, 2, RDT_TRANSPORT_TCP);
    for (uint32_t round = 0; round < 6; round++) {
        field_make(&field, rig.ctx[1], LARGE);
        warm(&rig, &field, LARGE);
        rdt_region_free(field.region, NULL, NULL);
    }
    rig_close(&rig);
}

/* ---- Messages that do not look for their receives ---------------------------------------- */

/* Whether rank 0 has heard of rank 1's receive. */
static bool
is_told(struct rig *rig, uint64_t tag)
{
    rdt_group *group = rig->group[0];
    bool is_there = false;

    rdti_engine_enter(group->scope.ctx->engine);
    const struct rdti_tx_stream *stream =
        rdti_keyed_find(rdti_mailbox_of(group->scope.members[1].ep), group->scope.id);
    for (uint32_t i = 0; stream != NULL && i < stream->told_count; i++)
        is_there |= stream->told[i].number == tag;
    rdti_engine_leave(group->scope.ctx->engine);
    return is_there;
}

/* One under a tag that is used once, for a receive that was told, from before or from behind its
 * sender's hearing of that. */
static void
pass_by(struct rig *rig, uint8_t *dst, uint64_t len_bytes, bool has_desc, bool is_heard)
{
    const uint64_t room_bytes = PLACED;
    const struct rdt_message_desc desc = desc_of(room_bytes);
    const uint64_t tag = next_tag++;
    struct rdti_engine *engine = rig->ctx[0]->engine;
    uint8_t *src = malloc(len_bytes);

    rig_fill(src, len_bytes, tag);
    if (!is_heard)
        rdti_engine_enter(engine);
    rdt_transfer *recv = post(rig, tag, dst, room_bytes);
    if (is_heard)
        CHECK_EVENTUALLY(is_told(rig, tag), 10);
    rdt_transfer *send = put_as(rig, tag, src, len_bytes, has_desc ? &desc : NULL);
    if (!is_heard)
        rdti_engine_leave(engine);
    end_ok(recv);
    end_ok(send);
    CHECK_MEM_EQ(dst, src, len_bytes);
    CHECK_EVENTUALLY(!is_told(rig, tag), 10);
    free(src);
}

/* Behind them all places can be told again, one after the other. */
static void
passes_by(uint32_t transport, bool is_heard)
{
    enum { COUNT = 2 * RDTI_KEYED_PLACES_MAX };
    /* Eager at once, eager or offered, and offered, as it says not what it is. */
    static const uint64_t lengths[] = {100, 1000, PLACED};
    struct rig rig;
    struct rdt_error err = {0};
    rdt_region *region;

    rig_open(&rig, 2, transport);
    CHECK_OK(rdt_region_alloc(rig.ctx[1], PLACED + COUNT, 0, &region, &err), &err);
    uint8_t *base = rdt_region_addr(region);
    for (uint64_t i = 0; i < 8; i++)
        move(&rig, base, PLACED, i, false);
    for (uint64_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        pass_by(&rig, base, lengths[i], lengths[i] < PLACED, is_heard);
        move(&rig, base, PLACED, i, false);
    }
    const uint64_t before = counters(&rig, 0).mailbox_placed;
    for (uint64_t i = 0; i < COUNT; i++)
        move(&rig, base + i, PLACED, i, false);
    CHECK_UINT_GE(counters(&rig, 0).mailbox_placed - before, COUNT - 8);
    rdt_region_free(region, NULL, NULL);
    rig_close(&rig);
}

TEST_TIMEOUT(a_message_that_comes_after_its_receive_was_told_may_pass_it_by, 60)
{
    const struct rig_paths paths = rig_far_paths();

    for (uint32_t i = 0; i < paths.count; i++)
        passes_by(paths.transports[i], true);
}

TEST_TIMEOUT(a_message_that_goes_before_its_receive_was_told_may_pass_it_by, 60)
{
    const struct rig_paths paths = rig_far_paths();

    for (uint32_t i = 0; i < paths.count; i++)
        passes_by(paths.transports[i], false);
}

/* ---- Ranks that disagree ----------------------------------------------------------------- */

static void
disagree(uint64_t send_bytes, uint64_t recv_bytes, bool is_send_first)
{
    struct rig rig;
    struct field field;
    struct rdt_error err = {0};
    uint8_t *src = calloc(1, 2 * LARGE);

    rig_open(&rig, 2, RDT_TRANSPORT_TCP);
    field_make(&field, rig.ctx[1], 2 * LARGE);
    warm(&rig, &field, LARGE);
    const uint64_t tag = next_tag++;
    memset(field.piece[1], 0x5a, 2 * LARGE);
    rdt_transfer *send = is_send_first ? put(&rig, tag, src, send_bytes) : NULL;
    rdt_transfer *recv = post(&rig, tag, field.piece[1], recv_bytes);
    if (!is_send_first)
        send = put(&rig, tag, src, send_bytes);
    CHECK_STATUS(rig_end(recv, &err), RDT_EMISMATCH);
    CHECK_INT_EQ(err.peer_rank, 0);
    CHECK_STR_CONTAINS(err.message, "rank 0 called all_reduce (sum) of");
    const rdt_status status = rig_end(send, &err);
    CHECK(status == RDT_EMISMATCH || (status == RDT_OK && send_bytes < RDTI_KEYED_MIN_BYTES));
    for (uint64_t i = 0; i < 2 * LARGE; i++)
        CHECK(field.piece[1][i] == 0x5a);
    rdt_region_free(field.region, NULL, NULL);
    free(src);
    rig_close(&rig);
}

/* Also where the receive is so small that it is never told: the message does not wait for ever. */
TEST_TIMEOUT(ranks_that_disagree_learn_how, 60)
{
    for (int is_send_first = 0; is_send_first < 2; is_send_first++) {
        disagree(LARGE, 2 * LARGE, is_send_first != 0);
        disagree(2 * LARGE, LARGE, is_send_first != 0);
        disagree(100, LARGE, is_send_first != 0);
        disagree(LARGE, 100, is_send_first != 0);
    }
}

/* The receive is posted when its message has been offered for want of patience. */
TEST_TIMEOUT(who_comes_late_gets_its_message, 60)
{
    for (int gap = 0; gap < 2; gap++) {
        struct rig rig;
        struct field field;
        uint8_t *src = malloc(LARGE);
        rig_open(&rig, 2, RDT_TRANSPORT_TCP);
        field_make(&field, rig.ctx[1], LARGE);
        warm(&rig, &field, LARGE);
        rig_fill(src, LARGE, 5);
        const struct rdt_counters before = counters(&rig, 0);
        const uint64_t tag = next_tag++;
        struct rdti_engine *engine = rig.ctx[1]->engine;
        rdt_transfer *send = put(&rig, tag, src, LARGE);
        if (gap != 0) /* told, and not heard before the offer is on its way */
            rdti_engine_enter(engine);
        CHECK_EVENTUALLY(counters(&rig, 0).mailbox_rendezvous > before.mailbox_rendezvous, 10);
        rdt_transfer *recv = post(&rig, tag, field.piece[0], LARGE);
        if (gap != 0)
            rdti_engine_leave(engine);
        end_ok(recv);
        end_ok(send);
        CHECK_MEM_EQ(field.piece[0], src, LARGE);
        const struct rdt_counters after = counters(&rig, 0);
        warm(&rig, &field, LARGE);
        CHECK_UINT_EQ(counters(&rig, 0).mailbox_rendezvous, after.mailbox_rendezvous);
        rdt_region_free(field.region, NULL, NULL);
        free(src);
        rig_close(&rig);
    }
}

TEST_MAIN()
