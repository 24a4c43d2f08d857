/* SPDX-License-Identifier: Apache-2.0
 * Receives that stand where memory is refused, freed, covered twice or too large: none ends well
 * without its message, and none waits for ever. */
#include "base/error.h"

#include "core/stand_rig.h"

static void
let_stand_from(struct rig *rig, const struct field *field, const uint8_t *src)
{
    struct rdt_error err = {0};

    for (int i = 0; i < 4 * PLACES; i++) {
        rdt_transfer *recv = rig_recv(rig, 1, 0, TAG, field->piece[i % PLACES], LARGE);
        rdt_transfer *send = rig_send(rig, 0, 1, TAG, src, LARGE);
        CHECK_OK(rig_end(recv, &err), &err);
        CHECK_OK(rig_end(send, &err), &err);
    }
    CHECK(stands(rig, TAG));
}

/* ---- Memory that cannot be registered ---------------------------------------------------- */

/* The source is registered by now, so that it is the target that is refused. */
static void
is_refused(bool is_standing)
{
    struct rig rig;
    struct field from;
    struct field field;
    struct field next_field;
    struct rdt_error err = {0};

    if (sim_is_off())
        SKIP("needs the sim");
    rig_open(&rig, 2, RDT_TRANSPORT_VERBS);
    field_make(&from, rig.ctx[0], LARGE);
    field_make(&field, rig.ctx[1], LARGE);
    field_make(&next_field, rig.ctx[1], 4 * LARGE); /* in a segment of its own */
    uint8_t *own = malloc(LARGE);
    let_stand_from(&rig, &field, from.piece[0]);
    uint8_t *dst = is_standing ? next_field.piece[0] : own;
    const uint64_t tag = is_standing ? TAG : TAG + 1;
    memset(dst, 0x5a, LARGE);
    rig_fill(from.piece[0], LARGE, 9);
    sim_fail_named("reg_mr", 0, UINT32_MAX, EFAULT);
    rdt_transfer *recv = rig_recv(&rig, 1, 0, tag, dst, LARGE);
    rdt_transfer *send = rig_send(&rig, 0, 1, tag, from.piece[0], LARGE);
    CHECK(rig_end(recv, &err) != RDT_OK);
    CHECK_STATUS(rig_end(send, &err), RDT_EDEVICE);
    CHECK_STR_CONTAINS(err.message, "cannot register");
    for (uint64_t at = 0; at < LARGE; at++)
        CHECK(dst[at] == 0x5a);
    sim_fail_named("reg_mr", 0, 0, 0);
    rdt_region_free(from.region, NULL, NULL);
    rdt_region_free(field.region, NULL, NULL);
    rdt_region_free(next_field.region, NULL, NULL);
    rig_close(&rig);
    free(own);
}

TEST_TIMEOUT(a_place_that_cannot_be_registered_fails_its_receive, 60)
{
    is_refused(true);
}

TEST_TIMEOUT(a_grant_that_cannot_be_registered_fails_its_receive, 60)
{
    is_refused(false);
}

/* ---- Memory that goes, and memory with two regions --------------------------------------- */

/* Against the rules; the message is lost, and both are told. */
TEST_TIMEOUT(a_place_that_is_freed_under_its_receive_ends_both, 60)
{
    struct rig rig;
    struct field from;
    struct field field;
    struct rdt_error err = {0};

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    field_make(&from, rig.ctx[0], LARGE);
    field_make(&field, rig.ctx[1], LARGE);
    let_stand_from(&rig, &field, from.piece[0]);
    rdt_transfer *recv = rig_recv(&rig, 1, 0, TAG, field.piece[0], LARGE);
    rdt_region_free(field.region, NULL, NULL);
    rdt_transfer *send = rig_send(&rig, 0, 1, TAG, from.piece[0], LARGE);
    CHECK(rig_end(send, &err) != RDT_OK);
    CHECK_STATUS(rig_end(recv, &err), RDT_ESTALE);
    CHECK_STR_CONTAINS(err.message, "freed before its message came");
    field_make(&field, rig.ctx[1], LARGE); /* and the next ones meet each other */
    let_stand_from(&rig, &field, from.piece[0]);
    rdt_region_free(from.region, NULL, NULL);
    rdt_region_free(field.region, NULL, NULL);
    rig_close(&rig);
}

TEST_TIMEOUT(a_second_region_over_a_place_changes_nothing, 60)
{
    struct rig rig;
    struct rdt_error err = {0};
    rdt_region *region;
    rdt_region *cover;
    uint8_t *own = malloc(3 * LARGE);
    uint8_t *src = malloc(LARGE);

    rig_open(&rig, 2, RDT_TRANSPORT_TCP);
    CHECK_OK(rdt_region_register(rig.ctx[1], own + LARGE, LARGE, &region, &err), &err);
    for (uint64_t i = 0; i < 4; i++)
        exchange(&rig, own + LARGE, LARGE, i, false);
    CHECK(stands(&rig, TAG));
    rig_fill(src, LARGE, 21);
    rdt_transfer *recv = rig_recv(&rig, 1, 0, TAG, own + LARGE, LARGE);
    /* Now it is the first that holds the place. */
    CHECK_OK(rdt_region_register(rig.ctx[1], own, 3 * LARGE, &cover, &err), &err);
    rdt_transfer *send = rig_send(&rig, 0, 1, TAG, src, LARGE);
    CHECK_OK(rig_end(recv, &err), &err);
    CHECK_OK(rig_end(send, &err), &err);
    CHECK_MEM_EQ(own + LARGE, src, LARGE);
    for (uint64_t i = 0; i < 4; i++)
        exchange(&rig, own + LARGE, LARGE, 30 + i, false);
    rdt_region_free(cover, NULL, NULL);
    rdt_region_free(region, NULL, NULL);
    rig_close(&rig);
    free(src);
    free(own);
}

/* ---- Receives that are given up ---------------------------------------------------------- */

/* Messages that go the fallback path and come when their receive has just been given up, before
 * their sender knows: they are the next ones', in order. */
static void
meets_the_next(uint32_t transport, uint64_t len_bytes)
{
    struct rig rig;
    struct field from;
    struct field field;
    struct rdt_error err = {0};
    rdt_transfer *send[2];
    rdt_transfer *recv[2];

    rig_open(&rig, 2, transport);
    field_make(&from, rig.ctx[0], LARGE);
    field_make(&field, rig.ctx[1], LARGE);
    let_stand_from(&rig, &field, from.piece[0]);
    struct rdti_engine *engine = rig.ctx[1]->engine;
    rdt_transfer *given_up = rig_recv(&rig, 1, 0, TAG, field.piece[0], LARGE);
    recv[0] = rig_recv(&rig, 1, 0, TAG, field.piece[1], LARGE);
    const struct rdt_counters before = counters(&rig, 0);
    rdti_engine_enter(engine); /* it hears nothing of rank 0 */
    for (int i = 0; i < 2; i++) {
        rig_fill(from.piece[i], len_bytes, 70 + (uint64_t)i);
        send[i] = rig_send(&rig, 0, 1, TAG, from.piece[i], len_bytes);
    }
    CHECK_EVENTUALLY(counters(&rig, 0).mailbox_eager + counters(&rig, 0).mailbox_rendezvous ==
                         before.mailbox_eager + before.mailbox_rendezvous + 2,
                     10);
    memset(field.piece[0], 0x11, LARGE);
    rdt_transfer_free(given_up);
    rdti_engine_leave(engine);
    recv[1] = rig_recv(&rig, 1, 0, TAG, field.piece[2], LARGE);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(rig_end(recv[i], &err), &err);
        CHECK_OK(rig_end(send[i], &err), &err);
        CHECK_MEM_EQ(field.piece[1 + i], from.piece[i], len_bytes);
    }
    CHECK(field.piece[0][0] == 0x11);
    let_stand_from(&rig, &field, from.piece[0]);
    rdt_region_free(from.region, NULL, NULL);
    rdt_region_free(field.region, NULL, NULL);
    rig_close(&rig);
}

TEST_TIMEOUT(a_message_for_a_receive_that_was_given_up_meets_the_next, 120)
{
    const uint64_t lengths[] = {8, 2000, LARGE - 1};

    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        meets_the_next(RDT_TRANSPORT_SHM, lengths[i]);
        meets_the_next(RDT_TRANSPORT_TCP, lengths[i]);
    }
}

/* Kept, and then neither a receive nor a group is there for it. */
TEST_TIMEOUT(a_message_that_is_kept_ends_with_its_group, 60)
{
    struct rig rig;
    struct field from;
    struct field field;
    struct rdt_error err = {0};

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    field_make(&from, rig.ctx[0], LARGE);
    field_make(&field, rig.ctx[1], LARGE);
    let_stand_from(&rig, &field, from.piece[0]);
    struct rdti_engine *engine = rig.ctx[1]->engine;
    rdt_transfer *given_up = rig_recv(&rig, 1, 0, TAG, field.piece[0], LARGE);
    CHECK_EVENTUALLY(has_heard(&rig, TAG), 10);
    const struct rdt_counters before = counters(&rig, 0);
    rdti_engine_enter(rig.ctx[0]->engine); /* it hears nothing of rank 1 */
    rdti_engine_enter(engine);
    rdt_transfer *send = rig_send(&rig, 0, 1, TAG, from.piece[0], LARGE - 1);
    CHECK(counters(&rig, 0).mailbox_rendezvous > before.mailbox_rendezvous);
    rdt_transfer_free(given_up);
    rdti_engine_leave(engine);
    CHECK_EVENTUALLY(!has_requests(rig.group[1]), 10);
    rdt_group_destroy(rig.group[1]);
    rig.group[1] = NULL;
    rdti_engine_leave(rig.ctx[0]->engine);
    CHECK_STATUS(rig_end(send, &err), RDT_EPEER);
    rdt_region_free(from.region, NULL, NULL);
    rdt_region_free(field.region, NULL, NULL);
    rig_close(&rig);
}

/* Kept, and then its sender dies before it has answered: the next receive gets it. */
TEST_TIMEOUT(a_message_that_is_kept_outlives_its_sender, 60)
{
    struct rig rig;
    struct field from;
    struct field field;
    struct rdt_error err = {0};
    struct rdt_error death = {.peer_rank = 0, .status = RDT_EPEER};
    rdt_transfer *recv;

    rig_open(&rig, 3, RDT_TRANSPORT_SHM); /* rank 1 never opens the path to rank 2 */
    field_make(&from, rig.ctx[0], LARGE);
    field_make(&field, rig.ctx[1], LARGE);
    let_stand_from(&rig, &field, from.piece[0]);
    struct rdti_engine *engine = rig.ctx[1]->engine;
    rdt_transfer *given_up = rig_recv(&rig, 1, 0, TAG, field.piece[0], LARGE);
    CHECK_EVENTUALLY(has_heard(&rig, TAG), 10);
    rdti_engine_enter(rig.ctx[0]->engine); /* it hears nothing of rank 1 */
    rdti_engine_enter(engine);
    rig_fill(from.piece[0], LARGE, 90);
    rdt_transfer *send = rig_send(&rig, 0, 1, TAG, from.piece[0], 8);
    rdt_transfer_free(given_up);
    rdti_engine_leave(engine);
    CHECK_EVENTUALLY(!has_requests(rig.group[1]), 10);
    rdti_engine_enter(engine);
    rdti_endpoint_fail(rig.group[1]->scope.members[0].ep, &death, true);
    rdti_engine_leave(engine);
    CHECK_EVENTUALLY(rdt_group_error(rig.group[1], NULL) != RDT_OK, 10);
    CHECK_OK(rdt_group_recv(rig.group[1], RDT_SOURCE_ANY, TAG, field.piece[1], LARGE, NULL, &recv,
                            &err),
             &err);
    CHECK_OK(rig_end(recv, &err), &err);
    CHECK_MEM_EQ(field.piece[1], from.piece[0], 8);
    CHECK_STATUS(rdt_group_recv(rig.group[1], 0, TAG, field.piece[1], LARGE, NULL, &recv, &err),
                 RDT_EPEER);
    rdti_engine_leave(rig.ctx[0]->engine);
    CHECK_OK(rig_end(send, &err), &err);
    rdt_region_free(from.region, NULL, NULL);
    rdt_region_free(field.region, NULL, NULL);
    rig_close(&rig);
}

/* ---- A ring without room ----------------------------------------------------------------- */

/* A message that takes the default path, and waits there, is not overtaken by the next one, whose
 * receive is in the same place. */
static void
is_not_overtaken(uint32_t transport)
{
    enum { FLOOD = 4096 };
    static rdt_transfer *flood[FLOOD];
    struct rig rig;
    struct field from;
    struct field field;
    struct rdt_error err = {0};
    rdt_transfer *send[2];
    rdt_transfer *recv[2];
    uint64_t word = 0;

    rig_open(&rig, 2, transport);
    field_make(&from, rig.ctx[0], LARGE);
    field_make(&field, rig.ctx[1], LARGE);
    let_stand_from(&rig, &field, from.piece[0]);
    for (int i = 0; i < 2; i++) {
        rig_fill(from.piece[i], LARGE, 100 + (uint64_t)i);
        recv[i] = rig_recv(&rig, 1, 0, TAG, field.piece[0], LARGE);
    }
    CHECK_EVENTUALLY(has_heard_of(&rig, TAG, 2), 10);
    struct rdti_engine *engine = rig.ctx[1]->engine;
    rdti_engine_enter(engine); /* it takes nothing from its ring */
    for (int i = 0; i < FLOOD; i++)
        flood[i] = rig_send(&rig, 0, 1, TAG + 1, &word, sizeof(word));
    const uint64_t placed = counters(&rig, 0).mailbox_placed;
    send[0] = rig_send(&rig, 0, 1, TAG, from.piece[0], LARGE - 1);
    send[1] = rig_send(&rig, 0, 1, TAG, from.piece[1], LARGE);
    CHECK_UINT_EQ(counters(&rig, 0).mailbox_placed, placed);
    rdti_engine_leave(engine);
    for (uint64_t i = 0; i < 2; i++) {
        CHECK_OK(rdt_transfer_wait(recv[i], rig_patience_ns(), &err), &err);
        CHECK_UINT_EQ(rdt_transfer_len_bytes(recv[i]), LARGE - 1 + i);
        rdt_transfer_free(recv[i]);
        CHECK_OK(rig_end(send[i], &err), &err);
    }
    CHECK_MEM_EQ(field.piece[0], from.piece[1], LARGE);
    for (int i = 0; i < FLOOD; i++) {
        CHECK_OK(rig_end(rig_recv(&rig, 1, 0, TAG + 1, &word, sizeof(word)), &err), &err);
        CHECK_OK(rig_end(flood[i], &err), &err);
    }
    const uint64_t later = counters(&rig, 0).mailbox_placed;
    let_stand_from(&rig, &field, from.piece[0]);
    CHECK_UINT_GE(counters(&rig, 0).mailbox_placed, later + 1); /* places are used again */
    rdt_region_free(from.region, NULL, NULL);
    rdt_region_free(field.region, NULL, NULL);
    rig_close(&rig);
}

TEST_TIMEOUT(a_write_does_not_overtake_a_message_of_its_stream, 60)
{
    is_not_overtaken(RDT_TRANSPORT_SHM);
    is_not_overtaken(RDT_TRANSPORT_TCP);
}

/* ---- Bounds ------------------------------------------------------------------------------ */

static bool
does_stand(struct rig *rig, uint64_t tag, uint64_t len_bytes)
{
    struct rdt_error err = {0};
    rdt_region *region;

    CHECK_OK(rdt_region_alloc(rig->ctx[1], len_bytes, 0, &region, &err), &err);
    for (uint64_t i = 0; i < 3; i++)
        exchange_with(rig, tag, rdt_region_addr(region), len_bytes, i, false);
    rdt_region_free(region, NULL, NULL);
    return stands(rig, tag);
}

TEST_TIMEOUT(over_shm_what_takes_long_to_copy_does_not_stand, 60)
{
    struct rig rig;

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    CHECK(does_stand(&rig, TAG, RDTI_STAND_COPY_BYTES));
    CHECK(!does_stand(&rig, TAG + 1, RDTI_STAND_COPY_BYTES + 1));
    rig_close(&rig);
}

TEST_MAIN()
