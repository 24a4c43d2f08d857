/* SPDX-License-Identifier: Apache-2.0
 * Receives that stand: what repeats is written into its place, and whatever breaks the pattern
 * arrives as it would have without one. */
#include "base/error.h"

#include "core/stand_rig.h"

static void
let_stand(struct rig *rig, struct field *field, uint64_t len_bytes)
{
    for (uint64_t step = 0; step < 3; step++)
        for (int i = 0; i < PLACES; i++)
            exchange(rig, field->piece[i], len_bytes, step * PLACES + (uint64_t)i, false);
    CHECK(stands(rig, TAG));
}

static void
costs_a_write_and_a_credit(uint32_t transport)
{
    enum { STEPS = 10 };
    struct rig rig;
    struct field field;

    rig_open(&rig, 2, transport);
    field_make(&field, rig.ctx[1], LARGE);
    let_stand(&rig, &field, LARGE);
    const struct rdt_counters sender = counters(&rig, 0);
    const struct rdt_counters receiver = counters(&rig, 1);
    for (uint64_t step = 0; step < STEPS; step++)
        for (int i = 0; i < PLACES; i++)
            exchange(&rig, field.piece[i], LARGE, 1000 + step * PLACES + (uint64_t)i,
                     step % 2 == 0);
    const struct rdt_counters sent = counters(&rig, 0);
    const struct rdt_counters received = counters(&rig, 1);
    for (int rank = 0; rank < 2; rank++) {
        const struct rdt_counters *before = rank == 0 ? &sender : &receiver;
        const struct rdt_counters *after = rank == 0 ? &sent : &received;
        CHECK_UINT_EQ(after->copied_bytes, before->copied_bytes);
        CHECK_UINT_EQ(after->control_messages, before->control_messages);
        CHECK_UINT_EQ(after->registrations, before->registrations);
        CHECK_UINT_EQ(after->mailbox_eager, before->mailbox_eager);
        CHECK_UINT_EQ(after->mailbox_rendezvous, before->mailbox_rendezvous);
        CHECK_UINT_EQ(after->reads, before->reads);
    }
    /* The payload with its notification; the credit, and now and then the credit for those. */
    const uint64_t returned = sent.credits_alone - sender.credits_alone;
    CHECK_UINT_EQ(sent.writes - sender.writes, STEPS * PLACES + returned);
    CHECK_UINT_LE(returned, STEPS * PLACES / 16 + 1);
    CHECK_UINT_EQ(received.writes - receiver.writes, STEPS * PLACES);
    CHECK_UINT_EQ(received.credits_alone - receiver.credits_alone, STEPS * PLACES);
    CHECK_UINT_EQ(sent.mailbox_placed - sender.mailbox_placed, STEPS * PLACES);
    CHECK_UINT_EQ(received.mailbox_placed, receiver.mailbox_placed);
    CHECK_UINT_EQ(sent.planned_bytes - sender.planned_bytes, STEPS * PLACES * LARGE);
    CHECK_UINT_EQ(sent.dynamic_bytes, sender.dynamic_bytes);
    CHECK_UINT_EQ(sent.fallback_bytes, 0);
    rdt_region_free(field.region, NULL, NULL);
    rig_close(&rig);
}

TEST_TIMEOUT(over_shm_a_message_is_a_write_and_a_credit, 60)
{
    costs_a_write_and_a_credit(RDT_TRANSPORT_SHM);
}

TEST_TIMEOUT(over_tcp_a_message_is_a_write_and_a_credit, 60)
{
    costs_a_write_and_a_credit(RDT_TRANSPORT_TCP);
}

TEST_TIMEOUT(over_verbs_a_message_arrives_in_its_place, 60)
{
    struct rig rig;
    struct field field;

    rig_open(&rig, 2, RDT_TRANSPORT_VERBS);
    field_make(&field, rig.ctx[1], LARGE);
    let_stand(&rig, &field, LARGE);
    const struct rdt_counters before = counters(&rig, 0);
    for (uint64_t step = 0; step < 20; step++)
        exchange(&rig, field.piece[step % PLACES], LARGE, 50 + step, step % 3 == 0);
    CHECK_UINT_EQ(counters(&rig, 0).mailbox_rendezvous, before.mailbox_rendezvous);
    CHECK_UINT_EQ(counters(&rig, 0).control_messages, before.control_messages);
    rdt_region_free(field.region, NULL, NULL);
    rig_close(&rig);
}

/* A receiver that is always late: what it posts repeats all the same. */
TEST_TIMEOUT(the_third_round_of_late_receives_stands_too, 60)
{
    struct rig rig;
    struct field field;

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    field_make(&field, rig.ctx[1], LARGE);
    for (uint64_t i = 0; i < 3 * PLACES; i++)
        exchange(&rig, field.piece[i % PLACES], LARGE, i, true);
    const struct rdt_counters before[2] = {counters(&rig, 0), counters(&rig, 1)};
    for (uint64_t i = 0; i < 3 * PLACES; i++)
        exchange(&rig, field.piece[i % PLACES], LARGE, i, true);
    for (uint32_t rank = 0; rank < 2; rank++)
        CHECK_UINT_EQ(counters(&rig, rank).control_messages, before[rank].control_messages);
    rdt_region_free(field.region, NULL, NULL);
    rig_close(&rig);
}

/* Calls to wake rank 0's progress thread, that sleeps, made by receives that are posted. */
static uint64_t
wakeups_of_receives(uint64_t len_bytes)
{
    enum { RECEIVES = 8 };
    struct rig rig;
    struct field field;
    uint8_t *src = calloc(1, len_bytes);
    uint64_t wakeups = 0;
    struct rdt_error err = {0};

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    field_make(&field, rig.ctx[1], len_bytes);
    let_stand(&rig, &field, len_bytes);
    for (int i = 0; i < RECEIVES; i++) {
        test_sleep_ns(UINT64_C(20000000)); /* far longer than a progress thread stays awake */
        const uint64_t before = counters(&rig, 1).wakeups_sent;
        rdt_transfer *recv = rig_recv(&rig, 1, 0, TAG, field.piece[i % PLACES], len_bytes);
        wakeups += counters(&rig, 1).wakeups_sent - before;
        rdt_transfer *send = rig_send(&rig, 0, 1, TAG, src, len_bytes);
        CHECK_OK(rig_end(recv, &err), &err);
        CHECK_OK(rig_end(send, &err), &err);
    }
    CHECK(stands(&rig, TAG));
    rdt_region_free(field.region, NULL, NULL);
    free(src);
    rig_close(&rig);
    return wakeups;
}

/* A message that is sent eagerly waits for no receive, a larger one may. */
TEST_TIMEOUT(a_short_receive_wakes_no_sender, 60)
{
    CHECK_UINT_EQ(wakeups_of_receives(RDTI_STAND_WAIT_BYTES), 0);
    CHECK_UINT_GE(wakeups_of_receives(LARGE), 1);
}

/* The message waits for this receive, nobody waits for the message, and nobody is woken. */
TEST_TIMEOUT(a_longer_message_learns_of_a_short_receive, 60)
{
    struct rig rig;
    struct field field;
    uint8_t *src = calloc(1, LARGE);
    struct rdt_error err = {0};

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    field_make(&field, rig.ctx[1], RDTI_STAND_WAIT_BYTES);
    let_stand(&rig, &field, RDTI_STAND_WAIT_BYTES);
    rdt_transfer *send = rig_send(&rig, 0, 1, TAG, src, LARGE);
    test_sleep_ns(UINT64_C(20000000)); /* far longer than a progress thread stays awake */
    rdt_transfer *recv = rig_recv(&rig, 1, 0, TAG, field.piece[0], RDTI_STAND_WAIT_BYTES);
    CHECK_STATUS(rig_end(recv, &err), RDT_EMISMATCH);
    CHECK_STATUS(rig_end(send, &err), RDT_EMISMATCH);
    rdt_region_free(field.region, NULL, NULL);
    free(src);
    rig_close(&rig);
}

TEST(memory_that_the_peer_cannot_write_does_not_stand)
{
    struct rig rig;
    uint8_t *own = malloc(LARGE);

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    for (uint64_t i = 0; i < 10; i++)
        exchange(&rig, own, LARGE, i, i % 2 == 0);
    CHECK(!stands(&rig, TAG));
    free(own);
    rig_close(&rig);
}

/* ---- Patterns that break ----------------------------------------------------------------- */

static void
breaks_and_stands_again(uint32_t transport)
{
    struct rig rig;
    struct field field;
    uint8_t *own = malloc(LARGE);

    rig_open(&rig, 2, transport);
    field_make(&field, rig.ctx[1], LARGE);
    for (int round = 0; round < 2 * RDTI_STREAM_ENDS_MAX; round++) {
        for (uint64_t i = 0; i < 3 * PLACES; i++) /* in another order each time */
            exchange(&rig, field.piece[i * (i / PLACES + 1) % PLACES], LARGE, 100 + i, i % 3 == 0);
        exchange(&rig, own, LARGE, 200, round % 2 == 0); /* it cannot be written there */
        exchange(&rig, field.piece[0], LARGE, 300, round % 2 == 0);
    }
    CHECK(!stands(&rig, TAG)); /* what ends for ever is no pattern */
    const struct rdt_counters before = counters(&rig, 1);
    for (uint64_t i = 0; i < 3 * PLACES; i++)
        exchange(&rig, field.piece[i % PLACES], LARGE, 400 + i, false);
    CHECK_UINT_EQ(counters(&rig, 1).credits_alone, before.credits_alone);
    rdt_region_free(field.region, NULL, NULL);
    free(own);
    rig_close(&rig);
}

TEST_TIMEOUT(another_address_goes_the_ordinary_way, 60)
{
    breaks_and_stands_again(RDT_TRANSPORT_SHM);
    breaks_and_stands_again(RDT_TRANSPORT_TCP);
}

TEST(other_sizes_go_the_ordinary_way)
{
    struct rig rig;
    struct field field;
    struct rdt_error err = {0};
    uint8_t *src = malloc(2 * LARGE);

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    field_make(&field, rig.ctx[1], LARGE);
    rig_fill(src, 2 * LARGE, 9);
    let_stand(&rig, &field, LARGE);
    CHECK_UINT_EQ(counters(&rig, 0).fallback_bytes, 0);
    for (int i = 0; i < 4; i++) { /* shorter, by much and by little: legal */
        const uint64_t len_bytes = i % 2 == 0 ? 100 : LARGE - 1;
        rdt_transfer *recv = rig_recv(&rig, 1, 0, TAG, field.piece[i], LARGE);
        rdt_transfer *send = rig_send(&rig, 0, 1, TAG, src, len_bytes);
        CHECK_OK(rdt_transfer_wait(recv, rig_patience_ns(), &err), &err);
        CHECK_UINT_EQ(rdt_transfer_len_bytes(recv), len_bytes);
        rdt_transfer_free(recv);
        CHECK_OK(rig_end(send, &err), &err);
        CHECK_MEM_EQ(field.piece[i], src, len_bytes);
        CHECK(stands(&rig, TAG));
        exchange(&rig, field.piece[i], LARGE, 77, false);
    }
    CHECK_UINT_GE(counters(&rig, 0).fallback_bytes, 2 * (LARGE - 1)); /* past their places */
    /* Longer: nothing is written, and both are told. */
    rig_fill(field.piece[0], LARGE, 1);
    uint8_t *before = malloc(LARGE);
    memcpy(before, field.piece[0], LARGE);
    rdt_transfer *recv = rig_recv(&rig, 1, 0, TAG, field.piece[0], LARGE);
    rdt_transfer *send = rig_send(&rig, 0, 1, TAG, src, 2 * LARGE);
    CHECK_STATUS(rig_end(recv, &err), RDT_EMISMATCH);
    CHECK_STATUS(rig_end(send, &err), RDT_EMISMATCH);
    CHECK_MEM_EQ(field.piece[0], before, LARGE);
    /* A small receive that a large message meets: the same, and no wait for ever. */
    recv = rig_recv(&rig, 1, 0, TAG, before, 64);
    send = rig_send(&rig, 0, 1, TAG, src, LARGE);
    CHECK_STATUS(rig_end(recv, &err), RDT_EMISMATCH);
    CHECK_STATUS(rig_end(send, &err), RDT_EMISMATCH);
    exchange(&rig, field.piece[0], LARGE, 78, false);
    CHECK(stands(&rig, TAG));
    free(before);
    free(src);
    rdt_region_free(field.region, NULL, NULL);
    rig_close(&rig);
}

TEST(a_receive_from_any_source_ends_it)
{
    struct rig rig;
    struct field field;
    struct rdt_error err = {0};
    uint8_t *src = malloc(LARGE);
    uint8_t *own = malloc(LARGE);

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    field_make(&field, rig.ctx[1], LARGE);
    let_stand(&rig, &field, LARGE);
    rdt_transfer *first = rig_recv(&rig, 1, 0, TAG, field.piece[0], LARGE);
    rdt_transfer *any = rig_recv(&rig, 1, RDT_SOURCE_ANY, TAG, own, LARGE);
    rdt_transfer *last = rig_recv(&rig, 1, 0, TAG, field.piece[1], LARGE);
    const uint8_t *const places[] = {field.piece[0], own, field.piece[1]};
    rdt_transfer *const receives[] = {first, any, last};
    for (uint64_t i = 0; i < 3; i++) {
        rig_fill(src, LARGE, 500 + i);
        rdt_transfer *send = rig_send(&rig, 0, 1, TAG, src, LARGE);
        CHECK_OK(rig_end(receives[i], &err), &err);
        CHECK_OK(rig_end(send, &err), &err);
        CHECK_MEM_EQ(places[i], src, LARGE);
    }
    for (uint64_t i = 0; i < 8; i++)
        exchange(&rig, field.piece[0], LARGE, i, false);
    CHECK(!stands(&rig, TAG));
    rdt_region_free(field.region, NULL, NULL);
    free(src);
    free(own);
    rig_close(&rig);
}

/* ---- Memory that goes -------------------------------------------------------------------- */

static uint64_t
in_quarantine(rdt_context *ctx)
{
    struct rdti_region_stats stats;

    rdti_regions_get_stats(ctx->regions, &stats);
    return stats.quarantine_count;
}

TEST_TIMEOUT(a_place_that_was_freed_is_told_anew, 60)
{
    struct rig rig;
    struct field field;
    bool has_moved_in = false;

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    field_make(&field, rig.ctx[1], LARGE);
    let_stand(&rig, &field, LARGE);
    for (int round = 0; round < 10; round++) {
        const uint8_t *const old = field.piece[0];
        const struct rdt_counters before = counters(&rig, 1);
        rdt_region_free(field.region, NULL, NULL);
        CHECK_EVENTUALLY(in_quarantine(rig.ctx[1]) == 0, 10);
        field_make(&field, rig.ctx[1], LARGE);
        has_moved_in |= field.piece[0] == old;
        for (int i = 0; i < PLACES; i++)
            exchange(&rig, field.piece[i], LARGE, 600 + (uint64_t)i, false);
        CHECK(stands(&rig, TAG));
        CHECK_UINT_GE(counters(&rig, 1).control_messages - before.control_messages, PLACES);
    }
    CHECK(has_moved_in); /* else the address alone would have told them apart */
    rdt_region_free(field.region, NULL, NULL);
    rig_close(&rig);
}

/* Against the rules, and yet no bytes of others change, nor is anything taken for received. */
TEST(a_place_that_is_freed_under_its_receive_is_not_written)
{
    struct rig rig;
    struct field field;
    struct field next_field;
    struct rdt_error err = {0};
    uint8_t *src = malloc(LARGE);

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    field_make(&field, rig.ctx[1], LARGE);
    let_stand(&rig, &field, LARGE);
    rdt_transfer *recv = rig_recv(&rig, 1, 0, TAG, field.piece[0], LARGE);
    rdt_region_free(field.region, NULL, NULL);
    test_sleep_ns(50000000); /* acknowledged by the peer, and the bytes free */
    field_make(&next_field, rig.ctx[1], LARGE);
    for (int i = 0; i < PLACES; i++)
        memset(next_field.piece[i], 0x5a, LARGE);
    rig_fill(src, LARGE, 3);
    rdt_transfer *send = rig_send(&rig, 0, 1, TAG, src, LARGE);
    CHECK(rig_end(send, &err) != RDT_OK);
    rdt_group_destroy(rig.group[0]);
    rdt_group_destroy(rig.group[1]);
    rig.group[0] = rig.group[1] = NULL;
    CHECK(rig_end(recv, &err) != RDT_OK);
    for (int i = 0; i < PLACES; i++)
        for (uint64_t at = 0; at < LARGE; at++)
            CHECK(next_field.piece[i][at] == 0x5a);
    rdt_region_free(next_field.region, NULL, NULL);
    free(src);
    rig_close(&rig);
}

static void
ends_if_its_place_is_freed(uint32_t transport)
{
    struct rig rig;
    struct field field;
    struct rdt_error err = {0};
    uint8_t *src = calloc(1, LARGE);

    rig_open(&rig, 2, transport);
    field_make(&field, rig.ctx[1], LARGE);
    let_stand(&rig, &field, LARGE);
    rdt_transfer *recv = rig_recv(&rig, 1, 0, TAG, field.piece[0], LARGE);
    rdt_region_free(field.region, NULL, NULL);
    test_sleep_ns(50000000); /* acknowledged by the peer */
    rdt_transfer *send = rig_send(&rig, 0, 1, TAG, src, LARGE);
    CHECK(rig_end(send, &err) != RDT_OK);
    CHECK_STATUS(rig_end(recv, &err), RDT_ESTALE);
    CHECK_EVENTUALLY(!stands(&rig, TAG), 10);
    free(src);
    rig_close(&rig);
}

/* Over tcp the write is refused after the sender has posted it. */
TEST_TIMEOUT(a_receive_whose_place_is_freed_ends, 60)
{
    ends_if_its_place_is_freed(RDT_TRANSPORT_SHM);
    ends_if_its_place_is_freed(RDT_TRANSPORT_TCP);
}

/* ---- Receives that are given up, and ends ------------------------------------------------ */

static void
gives_up(uint32_t transport)
{
    struct rig rig;
    struct field field;
    struct rdt_error err = {0};

    rig_open(&rig, 2, transport);
    field_make(&field, rig.ctx[1], LARGE);
    let_stand(&rig, &field, LARGE);
    rdt_transfer *kept = rig_recv(&rig, 1, 0, TAG, field.piece[0], LARGE);
    rdt_transfer_free(rig_recv(&rig, 1, 0, TAG, field.piece[1], LARGE));
    rdt_transfer *last = rig_recv(&rig, 1, 0, TAG, field.piece[2], LARGE);
    CHECK_EVENTUALLY(!stands(&rig, TAG), 10);
    memset(field.piece[1], 0x11, LARGE);
    uint8_t *src = malloc(LARGE);
    rdt_transfer *const receives[] = {kept, last};
    for (int i = 0; i < 2; i++) {
        rig_fill(src, LARGE, 700 + (uint64_t)i);
        rdt_transfer *send = rig_send(&rig, 0, 1, TAG, src, LARGE);
        CHECK_OK(rig_end(receives[i], &err), &err);
        CHECK_OK(rig_end(send, &err), &err);
        CHECK_MEM_EQ(field.piece[2 * i], src, LARGE);
    }
    CHECK(field.piece[1][0] == 0x11 && field.piece[1][LARGE - 1] == 0x11);
    CHECK(!has_requests(rig.group[1]));
    let_stand(&rig, &field, LARGE);
    free(src);
    rdt_region_free(field.region, NULL, NULL);
    rig_close(&rig);
}

TEST_TIMEOUT(a_receive_that_is_given_up_takes_nothing, 60)
{
    gives_up(RDT_TRANSPORT_SHM);
    gives_up(RDT_TRANSPORT_TCP);
}

static void
ends_with_its_group(uint32_t transport, bool is_abort)
{
    struct rig rig;
    struct field field;
    struct rdt_error err = {0};
    uint8_t *src = calloc(1, LARGE);

    rig_open(&rig, 2, transport);
    field_make(&field, rig.ctx[1], LARGE);
    let_stand(&rig, &field, LARGE);
    /* Rank 1 waits in a place that is told; then rank 0 for a receive that never comes. */
    rdt_transfer *recv = rig_recv(&rig, 1, 0, TAG, field.piece[0], LARGE);
    if (is_abort) {
        rdt_group_abort(rig.group[0], "enough");
        CHECK_STATUS(rig_end(recv, &err), RDT_EPEER);
    } else {
        rdt_transfer *first = rig_send(&rig, 0, 1, TAG, src, LARGE);
        CHECK_OK(rig_end(first, &err), &err);
        CHECK_OK(rig_end(recv, &err), &err);
        recv = rig_recv(&rig, 1, 0, TAG + 1, field.piece[1], LARGE);
        rdt_transfer *send = rig_send(&rig, 0, 1, TAG, src, LARGE);
        test_sleep_ns(20000000);
        CHECK_STATUS(rdt_transfer_test(send, &err), RDT_EAGAIN);
        rdt_group_destroy(rig.group[1]);
        rig.group[1] = NULL;
        CHECK_STATUS(rig_end(recv, &err), RDT_ECANCELED);
        CHECK_STATUS(rig_end(send, &err), RDT_EPEER);
    }
    free(src);
    rdt_region_free(field.region, NULL, NULL);
    rig_close(&rig);
}

TEST_TIMEOUT(the_end_of_a_group_ends_what_waits, 60)
{
    ends_with_its_group(RDT_TRANSPORT_SHM, false);
    ends_with_its_group(RDT_TRANSPORT_SHM, true);
    ends_with_its_group(RDT_TRANSPORT_TCP, false);
    ends_with_its_group(RDT_TRANSPORT_TCP, true);
}

/* A told receive and its group's end on both sides at once, many times. */
TEST_TIMEOUT(groups_come_and_go_over_one_path, 120)
{
    struct rig rig;
    struct field field;
    struct rdt_error err = {0};
    uint8_t *src = calloc(1, LARGE);

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    field_make(&field, rig.ctx[1], LARGE);
    rdt_group *const kept[] = {rig.group[0], rig.group[1]}; /* they keep the path */
    exchange(&rig, field.piece[0], LARGE, 1, false);
    for (int round = 0; round < 40; round++) {
        rig.group[0] = rig_group(&rig, 0, "again");
        rig.group[1] = rig_group(&rig, 1, "again");
        let_stand(&rig, &field, LARGE);
        rdt_transfer *recv = rig_recv(&rig, 1, 0, TAG, field.piece[0], LARGE);
        rdt_transfer *send = round % 2 == 0 ? rig_send(&rig, 0, 1, TAG, src, LARGE) : NULL;
        rdt_group_destroy(rig.group[round % 4 / 2]);
        rdt_group_destroy(rig.group[1 - round % 4 / 2]);
        (void)rig_end(recv, &err);
        if (send != NULL)
            (void)rig_end(send, &err);
    }
    rig.group[0] = kept[0];
    rig.group[1] = kept[1];
    exchange(&rig, field.piece[0], LARGE, 2, false);
    free(src);
    rdt_region_free(field.region, NULL, NULL);
    rig_close(&rig);
}

static void
break_path(struct rig *rig, uint32_t rank, uint32_t other)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    rdt_endpoint *ep = rig_ready(rig->group[rank], other);

    (void)rdti_error_set_rank(&err, RDT_EPEER, (int32_t)other, "rank %u died", other);
    rdti_engine_enter(rig->ctx[rank]->engine);
    rdti_endpoint_fail(ep, &err, true);
    rdti_engine_leave(rig->ctx[rank]->engine);
}

static void
dies(uint32_t transport, bool is_sender)
{
    struct rig rig;
    struct field field;
    struct rdt_error err = {0};
    uint8_t *src = calloc(1, LARGE);

    rig_open(&rig, 2, transport);
    field_make(&field, rig.ctx[1], LARGE);
    let_stand(&rig, &field, LARGE);
    if (is_sender) { /* the receiver sees the sender's end */
        rdt_transfer *recv = rig_recv(&rig, 1, 0, TAG, field.piece[0], LARGE);
        break_path(&rig, 1, 0);
        CHECK_STATUS(rig_end(recv, &err), RDT_EPEER);
        CHECK_INT_EQ(err.peer_rank, 0);
    } else {
        rdt_transfer *send = rig_send(&rig, 0, 1, TAG, src, LARGE);
        break_path(&rig, 0, 1);
        CHECK_STATUS(rig_end(send, &err), RDT_EPEER);
        CHECK_INT_EQ(err.peer_rank, 1);
    }
    CHECK_EVENTUALLY(!has_requests(rig.group[0]) && !has_requests(rig.group[1]), 10);
    free(src);
    rdt_region_free(field.region, NULL, NULL);
    rig_close(&rig);
}

TEST_TIMEOUT(the_death_of_either_end_ends_what_waits, 60)
{
    for (int is_sender = 0; is_sender < 2; is_sender++) {
        dies(RDT_TRANSPORT_SHM, is_sender != 0);
        dies(RDT_TRANSPORT_TCP, is_sender != 0);
    }
}

TEST_MAIN()
