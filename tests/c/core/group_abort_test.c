/* SPDX-License-Identifier: Apache-2.0
 * Groups that a member aborts or leaves: who hears of it, over which path, and how it is named. */
#include "base/error.h"
#include "core/group_rig.h"
#include "endpoint/endpoint_impl.h"
#include "process/process.h"

#define MEGABYTE (UINT64_C(1) << 20)

/* ---- Aborts -------------------------------------------------------------------------------- */

/* 0 - 1 - 2: ranks 0 and 2 are not connected, and learn of each other's abort all the same. */
static void
abort_in_a_chain(bool is_reason_given)
{
    struct rig rig;
    struct rdt_error err = {0};
    uint32_t byte[2] = {0};
    uint8_t *buf = malloc(MEGABYTE);

    rig_open(&rig, 3, RDT_TRANSPORT_SHM);
    rdt_transfer *waits = rig_recv(&rig, 2, 1, 1, &byte[0], 4);
    rdt_transfer *offered = rig_send(&rig, 1, 0, 2, buf, MEGABYTE);
    rdt_transfer *own = rig_recv(&rig, 0, 1, 3, &byte[1], 4);
    (void)rig_ready(rig.group[2], 1);
    (void)rig_ready(rig.group[0], 1);
    CHECK_EVENTUALLY(rig_holds(rig.group[1], 2), 10);
    const uint64_t begun_ns = test_now_ns();
    rdt_group_abort(rig.group[0], is_reason_given ? "its loss is not a number" : NULL);
    CHECK_STATUS(rig_end(own, &err), RDT_ECANCELED);
    CHECK_STR_CONTAINS(err.message, "rank 0 aborted the group 'world'");
    CHECK_STATUS(rig_end(waits, &err), RDT_EPEER);
    CHECK_MSG(test_now_ns() - begun_ns < rig_patience_ns() / 2, "it took too long");
    CHECK_STR_CONTAINS(err.message,
                       is_reason_given ? "its loss is not a number" : "no reason was given");
    CHECK_INT_EQ(err.peer_rank, 0);
    CHECK_STATUS(rig_end(offered, &err), RDT_EPEER);
    for (uint32_t i = 0; i < 3; i++) {
        rdt_transfer *t;
        CHECK_EVENTUALLY(rdt_group_error(rig.group[i], &err) != RDT_OK, 10);
        CHECK_STR_CONTAINS(err.message, "rank 0 aborted");
        CHECK(rdt_group_recv(rig.group[i], (i + 1) % 3, 1, buf, 1, NULL, &t, NULL) != RDT_OK);
        CHECK(rdt_group_send(rig.group[i], (i + 1) % 3, 1, buf, 1, NULL, &t, NULL) != RDT_OK);
    }
    rig_close(&rig);
    free(buf);
}

TEST(an_abort_reaches_ranks_that_are_not_connected)
{
    abort_in_a_chain(true);
    abort_in_a_chain(false);
}

/* A send is over once its message lies at the receiver: no abort after it overtakes it. */
static void
abort_behind_a_message(uint32_t path)
{
    struct rig rig;
    struct rdt_error err = {0};

    rig_open(&rig, 2, path);
    rdt_group *world = rig_group(&rig, 0, "steady");
    (void)rig_ready(world, 1);
    for (uint32_t round = 0; round < 200; round++) {
        char name[32];
        rdt_group *group[2];
        uint32_t sent = round + 1, got = 0;

        (void)snprintf(name, sizeof(name), "round %u", round);
        for (uint32_t i = 0; i < 2; i++)
            group[i] = rig_group(&rig, i, name);
        rdt_transfer *receive, *send;
        CHECK_OK(rdt_group_recv(group[1], 0, 1, &got, 4, NULL, &receive, &err), &err);
        CHECK_OK(rdt_group_send(group[0], 1, 1, &sent, 4, NULL, &send, &err), &err);
        CHECK_STATUS(rig_end(send, &err), RDT_OK);
        rdt_group_abort(group[0], "it was the last");
        CHECK_MSG(rig_end(receive, &err) == RDT_OK, "round %u: %s", round, err.message);
        CHECK_UINT_EQ(got, sent);
        for (uint32_t i = 0; i < 2; i++)
            rdt_group_destroy(group[i]);
    }
    rdt_group_destroy(world);
    rig_close(&rig);
}

TEST(an_abort_does_not_overtake_a_message)
{
    abort_behind_a_message(RDT_TRANSPORT_SHM);
    abort_behind_a_message(RDT_TRANSPORT_TCP);
}

TEST(an_abort_waits_for_a_group_that_comes_later)
{
    struct rig rig;
    struct rdt_error err = {0};

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    rdt_group *early = rig_group(&rig, 0, "doomed");
    (void)rig_ready(early, 1);
    rdt_group_abort(early, "too early");
    test_sleep_ns(50000000);
    rdt_group *late = rig_group(&rig, 1, "doomed");
    CHECK_EVENTUALLY(rdt_group_error(late, &err) == RDT_EPEER, 10);
    CHECK_STR_CONTAINS(err.message, "too early");
    rdt_group_destroy(early);
    rdt_group_destroy(late);
    rig_close(&rig);
}

/* Rank 0 gives up before anybody has a path to it: whoever comes later is told, and tells on. */
TEST(an_abort_reaches_who_connects_later)
{
    struct rig rig;
    struct rdt_error err = {0};
    uint32_t got[2];

    rig_open(&rig, 3, RDT_TRANSPORT_SHM);
    rdt_transfer *waits = rig_recv(&rig, 2, 1, 1, &got[0], 4);
    (void)rig_ready(rig.group[2], 1);
    CHECK_EVENTUALLY(rig_holds(rig.group[1], 2), 10);
    rdt_group_abort(rig.group[0], "out of memory");
    CHECK_STATUS(rdt_group_error(rig.group[1], &err), RDT_OK);
    rdt_transfer *late = rig_recv(&rig, 1, 0, 1, &got[1], 4);
    CHECK_STATUS(rig_end(late, &err), RDT_EPEER);
    CHECK_STR_CONTAINS(err.message, "rank 0 aborted the group 'world': out of memory");
    CHECK_INT_EQ(err.peer_rank, 0);
    CHECK_STATUS(rig_end(waits, &err), RDT_EPEER);
    CHECK_STR_CONTAINS(err.message, "out of memory");
    rig_close(&rig);
}

TEST(an_abort_waits_for_a_path_that_is_being_proved)
{
    static const uint32_t transports[] = {RDT_TRANSPORT_SHM, RDT_TRANSPORT_TCP};

    for (uint64_t round = 0; round < 16; round++) {
        struct rig rig;
        struct rdt_error err = {0};
        uint32_t got;
        rdt_endpoint *ep;
        rig_open(&rig, 2, transports[round % 2]);
        CHECK_OK(rdt_group_endpoint(rig.group[0], 1, &ep, &err), &err);
        test_sleep_ns(round * 200000);
        rdt_group_abort(rig.group[0], "changed its mind");
        rdt_transfer *t = NULL;
        rdt_status status = rdt_group_recv(rig.group[1], 0, 1, &got, 4, NULL, &t, &err);
        if (status == RDT_OK)
            status = rig_end(t, &err);
        CHECK_STATUS(status, RDT_EPEER);
        CHECK_STR_CONTAINS(err.message, "changed its mind");
        rig_close(&rig);
    }
}

/* The path is another group's, and neither side has used it for this one. */
TEST(an_abort_goes_over_the_path_of_another_group)
{
    struct rig rig;
    struct rdt_error err = {0};
    rdt_group *sub[2];

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    (void)rig_ready(rig.group[0], 1);
    for (uint32_t i = 0; i < 2; i++)
        sub[i] = rig_group(&rig, i, "sub");
    rdt_group_abort(sub[0], "no use");
    CHECK_EVENTUALLY(rdt_group_error(sub[1], &err) == RDT_EPEER, 10);
    CHECK_STR_CONTAINS(err.message, "rank 0 aborted the group 'sub': no use");
    CHECK_STATUS(rdt_group_error(rig.group[1], &err), RDT_OK);
    for (uint32_t i = 0; i < 2; i++)
        rdt_group_destroy(sub[i]);
    rig_close(&rig);
}

/* What the store says of a rank that has not come. */
static rdt_status
address_but_of_two(void *arg, uint32_t rank, uint64_t timeout_ns, uint8_t *buf, size_t cap,
                   size_t *len_out, struct rdt_error *err)
{
    if (rank != 2)
        return rig_address(arg, rank, timeout_ns, buf, cap, len_out, err);
    (void)snprintf(err->message, sizeof(err->message), "no address in the store");
    return RDT_ETIMEDOUT;
}

/* Rank 0 has waited for rank 2 in vain. */
static void
open_without_two(struct rig *rig)
{
    struct rdt_error err = {0};
    rdt_endpoint *ep;

    rig_open(rig, 3, RDT_TRANSPORT_SHM);
    rig->group[0]->address = address_but_of_two;
    CHECK_STATUS(rdt_group_endpoint(rig->group[0], 2, &ep, NULL), RDT_ETIMEDOUT);
    CHECK_STATUS(rdt_group_endpoint(rig->group[0], 2, &ep, &err), RDT_ETIMEDOUT);
    CHECK_INT_EQ(err.peer_rank, 2);
}

TEST(an_abort_names_the_rank_whose_address_did_not_come)
{
    struct rig rig;
    struct rdt_error err = {0};

    open_without_two(&rig);
    (void)rig_ready(rig.group[0], 1);
    rdt_group_abort(rig.group[0], "gave up");
    for (uint32_t i = 0; i < 2; i++) {
        CHECK_EVENTUALLY(rdt_group_error(rig.group[i], &err) != RDT_OK, 10);
        CHECK_STR_CONTAINS(err.message, "rank 0 aborted the group 'world': gave up; it had waited "
                                        "in vain: no address in the store");
        CHECK_INT_EQ(err.peer_rank, 2);
    }
    rig_close(&rig);
}

/* It has come after all, and who aborts later does so for another reason. */
TEST(an_abort_names_no_rank_that_came_late)
{
    struct rig rig;
    struct rdt_error err = {0};

    open_without_two(&rig);
    rig.group[0]->address = rig_address;
    (void)rig_ready(rig.group[0], 2);
    rdt_group_abort(rig.group[0], "gave up");
    CHECK_EVENTUALLY(rdt_group_error(rig.group[2], &err) != RDT_OK, 10);
    CHECK_STR_EQ(err.message, "rank 0 aborted the group 'world': gave up");
    CHECK_INT_EQ(err.peer_rank, 0);
    rig_close(&rig);
}

/* What rank 0 has heard of the others, with its engine: nothing of rank 2 for longer than between
 * two heartbeats, of rank 1 lately. A machine that stands still for a moment delays both. */
static bool
is_only_rank_2_silent(const struct rig *rig)
{
    const struct rdti_member *members = rig->group[0]->scope.members;

    return rdti_endpoint_silence_ns(members[2].ep) > 2 * RDTI_HEARTBEAT_NS + RDTI_TICK_NS &&
           rdti_endpoint_silence_ns(members[1].ep) < 3 * RDTI_HEARTBEAT_NS / 2;
}

/* With rank 0's engine, which is let go in between. */
static void
await_silence_of_rank_2(const struct rig *rig)
{
    const uint64_t deadline_ns = test_now_ns() + rig_patience_ns();

    while (!is_only_rank_2_silent(rig)) {
        CHECK_MSG(test_now_ns() < deadline_ns, "rank 2 alone is never silent");
        rdti_engine_leave(rig->ctx[0]->engine);
        test_sleep_ns(RDTI_TICK_NS / 5);
        rdti_engine_enter(rig->ctx[0]->engine);
    }
}

/* With rank 0's engine, rank 2 is silent: the same words, and the group goes on. */
static void
blame(rdt_group *group)
{
    struct rdt_error why = {.peer_rank = 1, .message = "after 0.3 s"};

    rdt_group_blame(group, &why);
    CHECK_INT_EQ(why.peer_rank, 2);
    CHECK_STR_CONTAINS(why.message, "after 0.3 s; rank 2 is silent for ");
    why = (struct rdt_error){.peer_rank = RDT_RANK_UNKNOWN};
    rdt_group_blame(group, &why);
    CHECK_INT_EQ(strncmp(why.message, "rank 2 is silent for ", 21), 0);
    CHECK_STATUS(rdt_group_error(group, NULL), RDT_OK);
}

/* Rank 0 gives up what it waits for `awaited` with: all have spoken, or rank 2 is silent. */
static void
give_up(int32_t awaited, bool is_silent, int32_t want)
{
    struct rig rig;
    struct rdt_error err = {0};
    struct rdt_error why = {.status = RDT_ETIMEDOUT,
                            .peer_rank = awaited,
                            .message = "barrier #1: after 9.0 s"};

    rig_open(&rig, 3, RDT_TRANSPORT_TCP);
    for (uint32_t i = 1; i < 3; i++)
        (void)rig_ready(rig.group[0], i);
    rdti_engine_enter(rig.ctx[2]->engine); /* as if it was stopped */
    rdti_engine_enter(rig.ctx[0]->engine); /* what was seen holds until it has given up */
    if (is_silent) {
        await_silence_of_rank_2(&rig);
        blame(rig.group[0]);
    }
    rdt_group_give_up(rig.group[0], &why);
    rdti_engine_leave(rig.ctx[0]->engine);
    rdti_engine_leave(rig.ctx[2]->engine);
    for (uint32_t i = 0; i < 3; i++) {
        CHECK_EVENTUALLY(rdt_group_error(rig.group[i], &err) != RDT_OK, 10);
        CHECK_STR_CONTAINS(err.message, "rank 0 aborted the group 'world': barrier #1: after 9.0");
        CHECK_INT_EQ(err.peer_rank, want);
    }
    if (is_silent)
        CHECK_STR_CONTAINS(err.message, "; rank 2 is silent for ");
    CHECK_INT_EQ(why.peer_rank, awaited == RDT_RANK_UNKNOWN ? RDT_RANK_UNKNOWN : want);
    rig_close(&rig);
}

TEST(a_deadline_names_whom_it_waited_for)
{
    give_up(1, false, 1);
    give_up(RDT_RANK_UNKNOWN, false, 0); /* several: then who gave up */
}

/* Rank 1 is waited for because it waits itself: its heartbeats are heard. */
TEST(a_deadline_names_the_rank_that_is_silent)
{
    give_up(1, true, 2);
}

/* This process had no time to read: what lies in its sockets was said all the same. */
TEST(a_deadline_hears_what_nobody_has_read_yet)
{
    struct rig rig;
    struct rdt_error why = {.status = RDT_ETIMEDOUT, .peer_rank = 1, .message = "too late"};

    rig_open(&rig, 3, RDT_TRANSPORT_TCP);
    for (uint32_t i = 1; i < 3; i++)
        (void)rig_ready(rig.group[0], i);
    rdti_engine_enter(rig.ctx[2]->engine); /* as if it was stopped */
    rdti_engine_enter(rig.ctx[0]->engine);
    rdti_endpoint_hear(rig.group[0]->scope.members[2].ep); /* its last words before */
    test_sleep_ns(2 * RDTI_HEARTBEAT_NS + RDTI_HEARTBEAT_NS / 4);
    rdt_group_give_up(rig.group[0], &why);
    rdti_engine_leave(rig.ctx[0]->engine);
    rdti_engine_leave(rig.ctx[2]->engine);
    CHECK_STR_CONTAINS(why.message, "too late; rank 2 is silent for ");
    CHECK_INT_EQ(why.peer_rank, 2);
    rig_close(&rig);
}

/* What lies there unread may say why nobody came: an abort of rank 2, which names rank 1. */
static void
check_unread_abort(void (*ask)(rdt_group *group, struct rdt_error *err))
{
    struct rig rig;
    struct rdt_error err = {0};
    struct rdt_error why = {.status = RDT_ETIMEDOUT, .peer_rank = 2, .message = "too late"};
    struct rdt_error said = {.status = RDT_ETIMEDOUT, .peer_rank = 1, .message = "not even then"};

    rig_open(&rig, 3, RDT_TRANSPORT_TCP);
    for (uint32_t i = 1; i < 3; i++)
        (void)rig_ready(rig.group[0], i);
    rdti_engine_enter(rig.ctx[0]->engine);
    rdt_group_give_up(rig.group[2], &said);
    test_sleep_ns(2 * RDTI_HEARTBEAT_NS + RDTI_HEARTBEAT_NS / 4);
    ask(rig.group[0], &why);
    rdti_engine_leave(rig.ctx[0]->engine);
    CHECK_INT_EQ(why.peer_rank, 1);
    CHECK_STATUS(rdt_group_error(rig.group[0], &err), RDT_EPEER);
    CHECK_INT_EQ(err.peer_rank, 1);
    if (ask == rdt_group_blame)
        CHECK_STR_CONTAINS(why.message,
                           "too late; rank 2 aborted the group 'world': not even then");
    rig_close(&rig);
}

TEST(a_deadline_is_told_by_what_broke_the_group_unread)
{
    check_unread_abort(rdt_group_give_up);
    check_unread_abort(rdt_group_blame);
}

TEST(a_deadline_names_the_rank_that_has_left)
{
    struct rig rig;
    struct rdt_error err = {0};
    struct rdt_error why = {.status = RDT_ETIMEDOUT, .peer_rank = 1, .message = "too late"};

    rig_open(&rig, 3, RDT_TRANSPORT_SHM);
    for (uint32_t i = 1; i < 3; i++) {
        (void)rig_ready(rig.group[0], i);
        CHECK_EVENTUALLY(rig_holds(rig.group[i], 0), 10); /* and gives it up as it leaves */
    }
    rdt_group_destroy(rig.group[2]);
    rig.group[2] = NULL;
    CHECK_EVENTUALLY(rdt_endpoint_error(rig.group[0]->scope.members[2].ep, NULL) != RDT_OK, 10);
    rdt_group_give_up(rig.group[0], &why);
    CHECK_INT_EQ(why.peer_rank, 2);
    CHECK_EVENTUALLY(rdt_group_error(rig.group[1], &err) != RDT_OK, 10);
    CHECK_INT_EQ(err.peer_rank, 2);
    CHECK_STR_CONTAINS(err.message, "rank 2 left");
    rig_close(&rig);
}

/* Rank 0 takes rank 1 for dead. */
static void
bury(struct rig *rig)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    rdt_endpoint *ep = rig_ready(rig->group[0], 1);

    (void)rdti_error_set_rank(&err, RDT_EPEER, 1, "rank 1 died: it was buried");
    rdti_engine_enter(rig->ctx[0]->engine);
    rdti_endpoint_fail(ep, &err, true);
    rdti_engine_leave(rig->ctx[0]->engine);
}

TEST(a_group_says_in_a_word_what_broke_it)
{
    static const uint32_t own[] = {RDT_BROKEN_BY_ABORT, RDT_BROKEN_BY_DEADLINE, RDT_BROKEN_BY_LOSS};

    for (int how = 0; how < 3; how++) {
        const uint32_t others = how == 2 ? RDT_BROKEN_BY_LOSS : RDT_BROKEN_BY_MEMBER;
        struct rdt_error why = {.peer_rank = RDT_RANK_UNKNOWN, .message = "too late"};
        struct rig rig;
        rig_open(&rig, 3, RDT_TRANSPORT_SHM);
        for (uint32_t i = 1; i < 3; i++)
            (void)rig_ready(rig.group[0], i);
        (void)rig_ready(rig.group[2], 1); /* it knows who dies */
        for (uint32_t i = 0; i < 3; i++)
            CHECK_UINT_EQ(rdt_group_broken_by(rig.group[i]), RDT_BROKEN_NOT);
        if (how == 0)
            rdt_group_abort(rig.group[0], "enough");
        else if (how == 1)
            rdt_group_give_up(rig.group[0], &why);
        else
            bury(&rig);
        CHECK_EVENTUALLY(rdt_group_broken_by(rig.group[0]) == own[how], 10);
        CHECK_EVENTUALLY(rdt_group_broken_by(rig.group[2]) == others, 10);
        rig_close(&rig);
    }
}

TEST(an_abort_outlives_its_group)
{
    struct rig rig;
    struct rdt_error err = {0};
    uint32_t got;

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    rdt_group_abort(rig.group[0], "gave up");
    rdt_group_destroy(rig.group[0]);
    rig.group[0] = NULL;
    CHECK_STATUS(rig_end(rig_recv(&rig, 1, 0, 1, &got, 4), &err), RDT_EPEER);
    CHECK_STR_CONTAINS(err.message, "rank 0 aborted the group 'world': gave up");
    rig_close(&rig);
}

TEST(a_departure_ends_only_what_needs_it_and_is_named_by_the_abort)
{
    struct rig rig;
    struct rdt_error err = {0};
    uint32_t got[4] = {0};
    const uint32_t value = 6;

    rig_open(&rig, 3, RDT_TRANSPORT_SHM);
    rdt_transfer *from1 = rig_recv(&rig, 0, 1, 1, &got[0], 4);
    rdt_transfer *from2 = rig_recv(&rig, 0, 2, 1, &got[1], 4);
    rdt_transfer *any = rig_recv(&rig, 0, RDT_SOURCE_ANY, 2, &got[2], 4);
    rdt_transfer *at2 = rig_recv(&rig, 2, 0, 5, &got[3], 4);
    for (uint32_t i = 1; i < 3; i++) {
        (void)rig_ready(rig.group[0], i);
        CHECK_EVENTUALLY(rig_holds(rig.group[i], 0), 10);
    }
    rdt_group_destroy(rig.group[1]);
    rig.group[1] = NULL;
    CHECK_STATUS(rig_end(from1, &err), RDT_EPEER);
    CHECK_STR_CONTAINS(err.message, "rank 1 left");
    CHECK_STATUS(rdt_group_error(rig.group[0], &err), RDT_OK);
    CHECK_OK(rig_end(rig_send(&rig, 2, 0, 1, &value, 4), &err), &err);
    CHECK_OK(rig_end(from2, &err), &err);
    CHECK_STATUS(rdt_transfer_test(any, &err), RDT_EAGAIN);
    rdt_group_abort(rig.group[0], "what it needed has gone");
    CHECK_STATUS(rig_end(any, &err), RDT_EPEER);
    CHECK_STATUS(rig_end(at2, &err), RDT_EPEER);
    CHECK_STR_CONTAINS(err.message, "rank 1 left");
    CHECK_INT_EQ(err.peer_rank, 1);
    rig_close(&rig);
}

/* Its leaving is known, and told to the group as soon as nobody is inside the path any more. */
TEST(an_abort_is_of_the_rank_whose_leaving_the_group_has_not_heard_of)
{
    struct rig rig;
    struct rdt_error err = {0};

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    rdt_endpoint *ep = rig_ready(rig.group[0], 1);
    CHECK_EVENTUALLY(rig_holds(rig.group[1], 0), 10);
    (void)atomic_fetch_add(&ep->lane_users, 1); /* as a thread that writes */
    rdt_group_destroy(rig.group[1]);
    rig.group[1] = NULL;
    CHECK_EVENTUALLY(rdti_endpoint_get_state(ep) == RDTI_EP_LEFT, 10);
    rdt_group_abort(rig.group[0], "its write failed");
    CHECK_STATUS(rdt_group_error(rig.group[0], &err), RDT_EPEER);
    CHECK_STR_CONTAINS(err.message, "rank 1 left");
    CHECK_INT_EQ(err.peer_rank, 1);
    (void)atomic_fetch_sub(&ep->lane_users, 1);
    rdti_engine_poke(rig.ctx[0]->engine);
    rig_close(&rig);
}

/* Its refusal comes over another path than the news of its leaving, which here never comes: the two
 * processes have another group. */
TEST(an_abort_blames_the_member_that_refused_a_message)
{
    struct rig rig;
    struct rdt_error err = {0};
    uint32_t got;
    uint8_t *buf = calloc(1, MEGABYTE);

    CHECK(buf != NULL);
    rig_open(&rig, 3, RDT_TRANSPORT_SHM);
    rdt_group *kept[2] = {rig_group(&rig, 0, "kept"), rig_group(&rig, 1, "kept")};
    (void)rig_ready(kept[0], 1);
    (void)rig_ready(kept[1], 0);
    rdt_transfer *waits = rig_recv(&rig, 2, 0, 1, &got, 4);
    (void)rig_ready(rig.group[2], 0);
    rdt_transfer *offered = rig_send(&rig, 0, 1, 2, buf, MEGABYTE);
    CHECK_EVENTUALLY(rig_holds(rig.group[1], 0), 10);
    rdt_group_destroy(rig.group[1]);
    rig.group[1] = NULL;
    CHECK_STATUS(rig_end(offered, &err), RDT_EPEER);
    CHECK_INT_EQ(err.peer_rank, 1);
    rdt_group_abort(rig.group[0], err.message);
    CHECK_STATUS(rig_end(waits, &err), RDT_EPEER);
    CHECK_STR_CONTAINS(err.message, "rank 1");
    CHECK_INT_EQ(err.peer_rank, 1);
    for (int i = 0; i < 2; i++)
        rdt_group_destroy(kept[i]);
    rig_close(&rig);
    free(buf);
}

/* The refusal may be faster than the abort, which comes over the side channel: this one is as if it
 * had not come. */
TEST(the_refusal_of_a_group_that_is_gone_says_what_broke_it)
{
    struct rig rig;
    struct rdt_error err = {0};
    uint8_t *buf = calloc(1, MEGABYTE);

    CHECK(buf != NULL);
    rig_open(&rig, 3, RDT_TRANSPORT_SHM);
    rdt_group *kept[2] = {rig_group(&rig, 0, "kept"), rig_group(&rig, 1, "kept")};
    (void)rig_ready(kept[0], 1);
    (void)rig_ready(rig.group[0], 1);
    (void)rig_ready(rig.group[1], 2);
    rdt_group_abort(rig.group[2], "its loss is not a number");
    for (int i = 0; i < 2; i++)
        CHECK_EVENTUALLY(rdt_group_error(rig.group[i], NULL) != RDT_OK, 10);
    rdt_group_destroy(rig.group[1]);
    rig.group[1] = NULL;
    rdti_engine_enter(rig.ctx[0]->engine);
    rig.group[0]->state = RDTI_GROUP_LIVE; /* as if it had not heard of it */
    rig.group[0]->error = (struct rdt_error){0};
    rdti_engine_leave(rig.ctx[0]->engine);
    CHECK_STATUS(rig_end(rig_send(&rig, 0, 1, 2, buf, MEGABYTE), &err), RDT_EPEER);
    CHECK_STR_CONTAINS(err.message, "rank 2 aborted the group 'world'");
    CHECK_INT_EQ(err.peer_rank, 2);
    for (int i = 0; i < 2; i++)
        rdt_group_destroy(kept[i]);
    rig_close(&rig);
    free(buf);
}

/* ---- Names --------------------------------------------------------------------------------- */

/* Group ranks first, as the calls take them; the job's where they are others. */
TEST(messages_of_a_group_name_both_ranks)
{
    static const int32_t global_ranks[] = {5, 1, 7};
    const struct rdt_message_desc barrier = {.op = RDT_COLL_BARRIER};
    const struct rdt_message_desc reduce = {.op = RDT_COLL_ALLREDUCE, .dtype = RDT_F32};
    struct rig rig;
    struct rdt_error err = {0};
    uint32_t word = 0;
    rdt_transfer *t;

    rig_open_as(&rig, 3, RDT_TRANSPORT_SHM, global_ranks);
    CHECK_INT_EQ(rdt_group_global_rank(rig.group[0], 2), 7);
    CHECK_INT_EQ(rdt_group_global_rank(rig.group[0], 3), RDT_RANK_UNKNOWN);
    t = rig_recv(&rig, 0, 2, 1, &word, 1);
    CHECK_OK(rig_end(rig_send(&rig, 2, 0, 1, &word, 4), &err), &err);
    CHECK_STATUS(rig_end(t, &err), RDT_EMISMATCH);
    CHECK_STR_CONTAINS(err.message, "rank 2 (global rank 7) sent 4 bytes");
    CHECK_STR_CONTAINS(err.message, "the receive of rank 0 (global rank 5) has room for 1 bytes");
    CHECK_INT_EQ(err.peer_rank, 7);
    CHECK_OK(rdt_group_recv(rig.group[1], 0, 2, &word, 4, &reduce, &t, &err), &err);
    CHECK_OK(rdt_group_send(rig.group[0], 1, 2, &word, 4, &barrier, NULL, &err), &err);
    CHECK_STATUS(rig_end(t, &err), RDT_EMISMATCH);
    CHECK_STR_CONTAINS(err.message, "rank 0 (global rank 5) called barrier");
    CHECK_STR_CONTAINS(err.message, ", rank 1 (this one) all_reduce"); /* the same in both */
    rdt_group_abort(rig.group[2], "enough");
    CHECK_EVENTUALLY(rdt_group_error(rig.group[0], &err) == RDT_EPEER, 10);
    CHECK_STR_CONTAINS(err.message, "rank 2 (global rank 7) aborted the group 'world': enough");
    CHECK_INT_EQ(err.peer_rank, 7);
    rig_close(&rig);
}

TEST_MAIN()
