/* SPDX-License-Identifier: Apache-2.0
 * Running a schedule: messages posted round by round, and the report of what it waits for. */
#include "base/error.h"
#include "collectives/collective.h"
#include "collectives/schedule/schedule.h"
#include "collectives/schedule/step.h"
#include "collectives/team/team.h"
#include "rdmatensor_ext.h"

#include <stdio.h>
#include <string.h>

/* 40 bits of sequence do not wrap in a job's life. */
#define TAG_COLLECTIVE RDT_TAG_ONCE
#define TAG_SEQUENCE_MASK ((UINT64_C(1) << 40) - 1)
#define TAG_SEQUENCE_SHIFT 16

enum {
    LATE_RANKS_MAX = 16 /* more than a message names; the others are counted */
};

/* The order in which a round's steps begin: schedule_begin_round(). */
enum pass { PASS_OFFERS, PASS_RECEIVES, PASS_WRITES, PASS_CALLS };

/* Puts "all_reduce #12, round 2 of 6, receive from rank 3: " before the mailbox's message. */
static rdt_status
schedule_with_context(const struct rdti_coll *coll, const struct rdti_step *step, rdt_status status,
                      struct rdt_error *err)
{
    char said[RDT_ERROR_MESSAGE_BYTES];
    const bool is_send = step->kind == RDTI_STEP_SEND;

    if (err == NULL)
        return status;
    memcpy(said, err->message, sizeof(said));
    said[sizeof(said) - 1] = '\0';
    /* A message that would not fit loses its end. */
    const int written =
        snprintf(err->message, sizeof(err->message), "%s #%llu, round %u of %u, %s %s: %s",
                 rdti_coll_name(coll->args.op), (unsigned long long)coll->sequence, step->round + 1,
                 coll->schedule.round_count, is_send ? "send to" : "receive from",
                 rdti_coll_rank_name(coll, step->peer).text, said);
    if (written < 0)
        memcpy(err->message, said, sizeof(said));
    err->status = status;
    return status;
}

/* A message's; those of a lossy collective count bytes. */
static uint64_t
schedule_bytes_of(const struct rdti_coll *coll, const struct rdti_step *step)
{
    return step->count * (coll->lossy.code != 0 ? 1 : coll->elem_bytes);
}

/* Where a receive lands: memory that its source knows, and can write, is better than the user's if
 * that is neither. */
static void *
schedule_room_of(struct rdti_coll *coll, struct rdti_step *step, uint32_t peer, uint64_t len_bytes)
{
    if (step->kind == RDTI_STEP_RECV && len_bytes > RDTI_TEMPS_MIN_BYTES &&
        len_bytes <= RDTI_TEMPS_COPY_BYTES &&
        rdt_group_stands(coll->group, peer, step->landing, len_bytes) == RDT_STANDS_ELSEWHERE)
        step->kept = rdti_temps_take(&coll->team->landings, rdt_group_context(coll->group),
                                     step->landing, len_bytes);
    return step->kept != NULL ? rdti_temp_addr(step->kept) : step->landing;
}

static uint64_t
schedule_tag_of(const struct rdti_coll *coll, const struct rdti_step *step)
{
    return TAG_COLLECTIVE | (coll->sequence & TAG_SEQUENCE_MASK) << TAG_SEQUENCE_SHIFT |
           step->ordinal;
}

static rdt_status
schedule_post_message(struct rdti_coll *coll, struct rdti_step *step, struct rdt_error *err)
{
    struct rdt_message_desc desc = rdti_coll_desc(coll);
    const uint64_t tag = schedule_tag_of(coll, step);
    const uint64_t len_bytes = schedule_bytes_of(coll, step);
    const uint32_t peer = rdti_coll_member(coll, step->peer);
    rdt_status status;

    if (coll->args.op == RDT_COLL_ALLTOALL)
        desc.count = step->count;
    if (step->kind == RDTI_STEP_SEND)
        status = rdt_group_send(coll->group, peer, tag, step->lhs, len_bytes, &desc,
                                &step->transfer, err);
    else
        status =
            rdt_group_recv(coll->group, peer, tag, schedule_room_of(coll, step, peer, len_bytes),
                           len_bytes, &desc, &step->transfer, err);
    if (status != RDT_OK)
        return schedule_with_context(coll, step, status, err);
    if (step->kind == RDTI_STEP_SEND)
        rdti_team_count_write(coll->team);
    step->is_pending = true;
    coll->schedule.pending++;
    return RDT_OK;
}

static void
schedule_reduce(struct rdti_coll *coll, const struct rdti_step *step)
{
    const uint64_t began_ns = rdti_pass_begin(step->count * coll->elem_bytes);
    const uint8_t *const in[2] = {step->lhs, step->rhs};

    if (step->kind == RDTI_STEP_FOLD)
        rdti_coll_fold(coll, step->dst, step->lhs, coll->size, step->count, true);
    else if (step->kind == RDTI_STEP_DIVIDE)
        rdti_coll_fold(coll, step->dst, in, 1, step->count, true);
    else
        rdti_coll_fold(coll, step->dst, in, 2, step->count, step->is_last);
    rdti_team_count_pass(coll->team, RDTI_PASS_SUM, began_ns);
}

static rdt_status
schedule_begin_step(struct rdti_coll *coll, struct rdti_step *step, struct rdt_error *err)
{
    const uint64_t len_bytes = step->count * coll->elem_bytes;
    uint64_t began_ns;

    switch (step->kind) {
    case RDTI_STEP_REDUCE:
    case RDTI_STEP_FOLD:
    case RDTI_STEP_DIVIDE:
        schedule_reduce(coll, step);
        return RDT_OK;
    case RDTI_STEP_COPY:
        began_ns = rdti_pass_begin(len_bytes);
        memmove(step->dst, step->lhs, len_bytes);
        rdti_team_count_pass(coll->team, RDTI_PASS_COPY, began_ns);
        return RDT_OK;
    case RDTI_STEP_CALL:
        step->run(coll, &(struct rdti_call){step->peer, step->count, step->dst, step->landing});
        return RDT_OK;
    default:
        return schedule_post_message(coll, step, err);
    }
}

static bool
schedule_is_receive(const struct rdti_step *step)
{
    return step->kind == RDTI_STEP_RECV || step->kind == RDTI_STEP_RECV_REDUCE;
}

/* Its receive was announced: all of it would be on the link before any message posted later. */
static bool
schedule_is_sent_at_once(const struct rdti_coll *coll, const struct rdti_step *step)
{
    return step->kind == RDTI_STEP_SEND &&
           rdt_group_is_told(coll->group, rdti_coll_member(coll, step->peer),
                             schedule_tag_of(coll, step), schedule_bytes_of(coll, step)) != 0;
}

static bool
schedule_is_of_pass(const struct rdti_coll *coll, const struct rdti_step *step, enum pass pass)
{
    switch (pass) {
    case PASS_OFFERS:
        return !schedule_is_receive(step) && step->kind != RDTI_STEP_CALL &&
               !schedule_is_sent_at_once(coll, step);
    case PASS_RECEIVES:
        return schedule_is_receive(step);
    case PASS_CALLS:
        return step->kind == RDTI_STEP_CALL;
    default:
        return step->kind == RDTI_STEP_SEND && step->transfer == NULL; /* those that were left */
    }
}

static rdt_status
schedule_begin_pass(struct rdti_coll *coll, uint32_t from, enum pass pass, struct rdt_error *err)
{
    struct rdti_schedule *s = &coll->schedule;
    rdt_status status = RDT_OK;

    for (uint32_t i = from; i < s->next && status == RDT_OK; i++)
        if (schedule_is_of_pass(coll, &s->steps[i], pass))
            status = schedule_begin_step(coll, &s->steps[i], err);
    return status;
}

/*
 * Neither direction of a link may wait for the other, so short messages go before long ones. First
 * offers: a receive that finds its message offered already is answered at once, and the peer writes
 * when it has that answer. An offer posted later would be found after it, and the peer's answer to
 * the offer would queue after all it writes. Then receives: each is announced to the peer. Last the
 * messages that are written at once: after them the peer would learn of a receive only when all of
 * their bytes are there. What is computed meanwhile comes after all of them.
 *
 * The handles of the round before are freed only here, so that a running collective always holds
 * one of its group.
 */
static rdt_status
schedule_begin_round(struct rdti_coll *coll, struct rdt_error *err)
{
    struct rdti_schedule *s = &coll->schedule;
    const uint32_t round = s->steps[s->next].round;
    const uint32_t begin = s->next;

    while (s->next < s->step_count && s->steps[s->next].round == round)
        s->next++;
    rdt_status status = RDT_OK;
    for (uint32_t pass = PASS_OFFERS; pass <= PASS_CALLS && status == RDT_OK; pass++)
        status = schedule_begin_pass(coll, begin, (enum pass)pass, err);
    for (uint32_t i = s->previous; i < begin; i++) {
        rdt_transfer_free(s->steps[i].transfer);
        s->steps[i].transfer = NULL;
    }
    s->previous = begin;
    s->first = begin;
    return status;
}

static void
schedule_hand_over(struct rdti_coll *coll, struct rdti_step *step, uint64_t len_bytes)
{
    const struct rdt_counters done = {.struct_size = sizeof(done), .copied_bytes = len_bytes};
    const uint64_t began_ns = rdti_pass_begin(len_bytes);

    memcpy(step->landing, rdti_temp_addr(step->kept), len_bytes);
    rdti_team_count_pass(coll->team, RDTI_PASS_COPY, began_ns);
    rdti_temps_give(step->kept);
    step->kept = NULL;
    rdt_context_count(rdt_group_context(coll->group), &done);
}

/* A message of the current round has ended well. */
static rdt_status
schedule_end_message(struct rdti_coll *coll, struct rdti_step *step, struct rdt_error *err)
{
    const uint64_t want_bytes = schedule_bytes_of(coll, step);

    if (step->kind == RDTI_STEP_SEND)
        return RDT_OK;
    const uint64_t got_bytes = rdt_transfer_len_bytes(step->transfer);
    if (got_bytes != want_bytes) {
        const rdt_status status =
            rdti_error_set(err, RDT_EMISMATCH, 0, "it sent %llu bytes where %llu were expected",
                           (unsigned long long)got_bytes, (unsigned long long)want_bytes);
        return schedule_with_context(coll, step, status, err);
    }
    if (step->kind == RDTI_STEP_RECV_REDUCE)
        schedule_reduce(coll, step);
    else if (step->kept != NULL)
        schedule_hand_over(coll, step, want_bytes);
    return RDT_OK;
}

/* Tests everything in flight. RDT_OK: the round is over. */
static rdt_status
schedule_test_round(struct rdti_coll *coll, struct rdt_error *err)
{
    struct rdti_schedule *s = &coll->schedule;

    for (uint32_t i = s->first; i < s->next && s->pending > 0; i++) {
        struct rdti_step *step = &s->steps[i];
        if (!step->is_pending)
            continue;
        rdt_status status = rdt_transfer_test(step->transfer, err);
        if (status == RDT_EAGAIN)
            continue;
        step->is_pending = false;
        s->pending--;
        status = status == RDT_OK ? schedule_end_message(coll, step, err)
                                  : schedule_with_context(coll, step, status, err);
        if (status != RDT_OK)
            return status;
    }
    return s->pending == 0 ? RDT_OK : RDT_EAGAIN;
}

rdt_status
rdti_schedule_advance(struct rdti_coll *coll, struct rdt_error *err)
{
    struct rdti_schedule *s = &coll->schedule;

    for (;;) {
        rdt_status status = schedule_test_round(coll, err);
        if (status != RDT_OK)
            return status;
        if (s->next == s->step_count)
            return RDT_OK;
        status = schedule_begin_round(coll, err);
        if (status != RDT_OK)
            return status;
    }
}

bool
rdti_schedule_is_quiet(struct rdti_coll *coll)
{
    struct rdti_schedule *s = &coll->schedule;

    for (uint32_t i = s->first; i < s->next; i++) {
        struct rdti_step *step = &s->steps[i];
        if (!step->is_pending || rdt_transfer_test(step->transfer, NULL) == RDT_EAGAIN)
            continue;
        step->is_pending = false;
        s->pending--;
    }
    return s->pending == 0;
}

/* The peers that have to do something, as far as they are named. */
struct late {
    uint32_t ranks[LATE_RANKS_MAX];
    uint32_t count; /* of all */
    bool is_receiving;
};

/* A peer with several missing pieces is late once. */
static bool
schedule_is_named(const struct late *late, uint32_t rank)
{
    for (uint32_t i = 0; i < late->count && i < LATE_RANKS_MAX; i++)
        if (late->ranks[i] == rank)
            return true;
    return false;
}

static struct late
schedule_find_late(const struct rdti_schedule *s)
{
    struct late late = {0};

    for (uint32_t i = s->first; i < s->next; i++)
        late.is_receiving |= s->steps[i].is_pending && s->steps[i].kind != RDTI_STEP_SEND;
    for (uint32_t i = s->first; i < s->next; i++) {
        const struct rdti_step *step = &s->steps[i];
        if (!step->is_pending || (step->kind != RDTI_STEP_SEND) != late.is_receiving ||
            schedule_is_named(&late, step->peer))
            continue;
        if (late.count < LATE_RANKS_MAX)
            late.ranks[late.count] = step->peer;
        late.count++;
    }
    return late;
}

uint32_t
rdti_schedule_describe(const struct rdti_coll *coll, char *text, size_t cap)
{
    const struct rdti_schedule *s = &coll->schedule;
    const struct late late = schedule_find_late(s);
    char ranks[RDTI_COLL_RANKS_BYTES];

    rdti_coll_name_ranks(coll, late.ranks, late.count, ranks, sizeof(ranks));
    (void)snprintf(text, cap, "%s %s (round %u of %u)",
                   late.is_receiving ? "nothing from" : "a message is not taken by", ranks,
                   s->first < s->step_count ? s->steps[s->first].round + 1 : s->round_count,
                   s->round_count);
    return late.count <= LATE_RANKS_MAX ? rdti_coll_only_one(coll, late.ranks, late.count)
                                        : RDT_SOURCE_ANY;
}
