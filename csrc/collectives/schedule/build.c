/* SPDX-License-Identifier: Apache-2.0
 * Building a schedule: steps and temporary memory, and the cleanup where memory is lacking. */
#include "base/error.h"
#include "collectives/collective.h"
#include "collectives/schedule/schedule.h"
#include "collectives/schedule/step.h"
#include "collectives/team/team.h"
#include "rdmatensor_ext.h"

#include <stdlib.h>

enum {
    TEMP_ALIGNMENT = 64,  /* a cache line, and the widest vector */
    FIRST_STEPS = 16,     /* a small collective of a few ranks allocates once */
    ORDINAL_MAX = 0xffff, /* 16 bits of the tag */
    /* A piece takes one message that its place is free and one that it is there, and a round waits
     * for both ends. All_reduce of 64 MiB, two ranks, tcp: 27 ms in one piece, 23 to 24 ms in 4 at
     * once of 1 MiB. */
    PIECE_BYTES = 1 << 20, /* at most */
    PIECE_ALIGNMENT = 64,  /* as chunks of rings */
    PIECES_AT_ONCE = 4,
    PIECES_MAX = ORDINAL_MAX / 4, /* to a member; with more bytes, pieces are longer */
};

/* NULL: no kept memory is to be had. */
static void *
builder_kept_temp(struct rdti_coll *coll, uint64_t len_bytes)
{
    struct rdti_schedule *s = &coll->schedule;
    /* An identifier, never read: each buffer of a collective is known by an address of its own. */
    const uint8_t *tensor = coll->args.recv != NULL ? coll->args.recv : coll->args.send;

    if (coll->team == NULL || s->temp_count == RDTI_TEMP_LIMIT)
        return NULL;
    s->kept[s->temp_count] =
        rdti_temps_take(&coll->team->temps, rdt_group_context(coll->group),
                        tensor == NULL ? NULL : tensor + s->temp_count, len_bytes);
    return s->kept[s->temp_count] == NULL ? NULL : rdti_temp_addr(s->kept[s->temp_count++]);
}

/* Memory of a persistent collective's own, so that its place never changes. NULL: it needs none, as
 * messages of this size are sent eagerly; or the schedule fails with RDT_EBUSY, as all such memory
 * has a limit. */
static void *
builder_owned_temp(struct rdti_coll *coll, uint64_t len_bytes)
{
    struct rdti_schedule *s = &coll->schedule;
    rdt_region *region = NULL;

    if (coll->team == NULL || len_bytes <= RDTI_TEMPS_MIN_BYTES || s->temp_count == RDTI_TEMP_LIMIT)
        return NULL;
    /* relaxed: a mere number */
    const uint64_t before =
        atomic_fetch_add_explicit(&coll->team->owned_bytes, len_bytes, memory_order_relaxed);
    if (before + len_bytes > RDTI_TEMPS_OWN_BYTES ||
        rdt_region_alloc(rdt_group_context(coll->group), len_bytes, 0, &region, NULL) != RDT_OK) {
        (void)atomic_fetch_sub_explicit(&coll->team->owned_bytes, len_bytes, memory_order_relaxed);
        s->status = RDT_EBUSY;
        return NULL;
    }
    s->owned[s->temp_count++] = region;
    return rdt_region_addr(region);
}

static void
builder_free_owned(struct rdti_coll *coll, rdt_region *region)
{
    if (region == NULL)
        return;
    (void)atomic_fetch_sub_explicit(&coll->team->owned_bytes, rdt_region_len_bytes(region),
                                    memory_order_relaxed);
    rdt_region_free(region, NULL, NULL);
}

void *
rdti_schedule_temp(struct rdti_coll *coll, uint64_t len_bytes)
{
    struct rdti_schedule *s = &coll->schedule;
    void *temp = NULL;

    if (s->status != RDT_OK)
        return NULL;
    temp = coll->is_start && !coll->is_fresh ? builder_owned_temp(coll, len_bytes)
                                             : builder_kept_temp(coll, len_bytes);
    if (temp != NULL || s->status != RDT_OK)
        return temp;
    /* The size is bounded by a buffer that the caller has, so rounding up cannot overflow. */
    const uint64_t rounded = (len_bytes / TEMP_ALIGNMENT + 1) * TEMP_ALIGNMENT;
    if (s->temp_count < RDTI_TEMP_LIMIT)
        temp = aligned_alloc(TEMP_ALIGNMENT, (size_t)rounded);
    if (temp == NULL) {
        s->status = RDT_ENOMEM;
        s->temp_bytes_wanted = rounded;
        return NULL;
    }
    s->temps[s->temp_count++] = temp;
    return temp;
}

void
rdti_schedule_end_round(struct rdti_coll *coll)
{
    coll->schedule.round_count++;
}

/* A zeroed step of the current round, or NULL when the schedule has failed. */
static struct rdti_step *
builder_add_step(struct rdti_coll *coll, uint32_t kind, uint64_t count)
{
    struct rdti_schedule *s = &coll->schedule;

    if (s->status != RDT_OK)
        return NULL;
    if (s->step_count == s->step_cap) {
        const uint32_t cap = s->step_cap == 0 ? FIRST_STEPS : 2 * s->step_cap;
        struct rdti_step *steps = realloc(s->steps, cap * sizeof(*steps));
        if (steps == NULL) {
            s->status = RDT_ENOMEM;
            s->temp_bytes_wanted = cap * sizeof(*steps);
            return NULL;
        }
        s->steps = steps;
        s->step_cap = cap;
    }
    struct rdti_step *step = &s->steps[s->step_count++];
    *step = (struct rdti_step){.kind = kind, .round = s->round_count, .count = count};
    return step;
}

static struct rdti_step *
builder_add_message(struct rdti_coll *coll, uint32_t kind, uint32_t peer, uint64_t count)
{
    struct rdti_schedule *s = &coll->schedule;
    struct rdti_step *step = builder_add_step(coll, kind, count);

    if (step == NULL)
        return NULL;
    uint16_t *ordinal = &s->ordinals[kind == RDTI_STEP_SEND ? peer : coll->size + (size_t)peer];
    if (*ordinal == ORDINAL_MAX) {
        s->status = RDT_ENOTSUP;
        return NULL;
    }
    step->peer = peer;
    step->ordinal = (*ordinal)++;
    return step;
}

void
rdti_schedule_send(struct rdti_coll *coll, uint32_t peer, const void *src, uint64_t count)
{
    struct rdti_step *step = builder_add_message(coll, RDTI_STEP_SEND, peer, count);

    if (step != NULL)
        step->lhs = src;
}

void
rdti_schedule_recv(struct rdti_coll *coll, uint32_t peer, void *dst, uint64_t count)
{
    struct rdti_step *step = builder_add_message(coll, RDTI_STEP_RECV, peer, count);

    if (step != NULL)
        step->landing = dst;
}

static struct rdti_step *
builder_add_recv_reduce(struct rdti_coll *coll, uint32_t peer, void *landing, void *dst,
                        const void *lhs, const void *rhs, uint64_t count)
{
    struct rdti_step *step = builder_add_message(coll, RDTI_STEP_RECV_REDUCE, peer, count);

    if (step == NULL)
        return NULL;
    step->landing = landing;
    step->dst = dst;
    step->lhs = lhs;
    step->rhs = rhs;
    return step;
}

void
rdti_schedule_recv_reduce(struct rdti_coll *coll, uint32_t peer, void *landing, void *dst,
                          const void *lhs, const void *rhs, uint64_t count)
{
    (void)builder_add_recv_reduce(coll, peer, landing, dst, lhs, rhs, count);
}

/* Most elements of a piece; the same at all members. */
static uint64_t
builder_most_of_piece(const struct rdti_coll *coll)
{
    /* A ring sends its neighbour a block for each other member. */
    const uint64_t blocks = coll->args.op == RDT_COLL_REDUCE_SCATTER ? coll->size : 1;
    const uint64_t times = coll->block_bytes / ((uint64_t)PIECES_MAX * PIECE_BYTES / blocks) + 1;

    return times * PIECE_BYTES / coll->elem_bytes;
}

uint64_t
rdti_schedule_landing_bytes(const struct rdti_coll *coll, uint64_t count)
{
    const uint64_t most = PIECES_AT_ONCE * builder_most_of_piece(coll);

    return (count < most ? count : most) * coll->elem_bytes;
}

/* An operand cut into pieces of one length, except for the last, which has the rest. */
struct cut {
    uint64_t pieces;
    uint64_t count; /* of a piece, in elements */
};

/* Pieces of equal length: a short rest after full ones would be sent eagerly, which is a copy. An
 * operand of no elements is a message as well. */
static struct cut
builder_cut_of(const struct rdti_coll *coll, uint64_t count)
{
    const uint64_t granule = PIECE_ALIGNMENT / coll->elem_bytes;
    const uint64_t most = builder_most_of_piece(coll);
    const uint64_t wanted = count == 0 ? 1 : (count - 1) / most + 1;
    const uint64_t share = count / wanted + (count % wanted != 0);
    const uint64_t piece = (share + granule - 1) / granule * granule;

    if (count == 0)
        return (struct cut){.pieces = 1};
    return (struct cut){.pieces = (count - 1) / piece + 1, .count = piece};
}

static uint64_t
builder_count_of_piece(const struct cut *cut, uint64_t count, uint64_t number)
{
    const uint64_t left = count - number * cut->count;

    return left < cut->count ? left : cut->count;
}

static void
builder_take_piece(struct rdti_coll *coll, const struct rdti_operand_in *in, const struct cut *cut,
                   uint64_t number)
{
    const uint64_t piece_bytes = cut->count * coll->elem_bytes;
    void *landing = rdti_coll_at(in->landing, number % PIECES_AT_ONCE * piece_bytes);
    void *dst = rdti_coll_at(in->dst, number * piece_bytes);
    const void *own = rdti_coll_at_const(in->own, number * piece_bytes);

    struct rdti_step *step =
        builder_add_recv_reduce(coll, in->peer, landing, dst, in->is_own_left ? own : landing,
                                in->is_own_left ? landing : own,
                                builder_count_of_piece(cut, in->count, number));
    if (step != NULL)
        step->is_last = in->is_last;
}

static void
builder_give_piece(struct rdti_coll *coll, const struct rdti_operand_out *out,
                   const struct cut *cut, uint64_t number)
{
    const void *src = rdti_coll_at_const(out->src, number * cut->count * coll->elem_bytes);

    rdti_schedule_send(coll, out->peer, src, builder_count_of_piece(cut, out->count, number));
}

void
rdti_schedule_operands(struct rdti_coll *coll, const struct rdti_operand_in *in,
                       const struct rdti_operand_out *out)
{
    const struct cut ins = in != NULL ? builder_cut_of(coll, in->count) : (struct cut){0};
    const struct cut outs = out != NULL ? builder_cut_of(coll, out->count) : (struct cut){0};

    if (coll->schedule.status != RDT_OK) /* its memory is not there */
        return;
    for (uint64_t first = 0; first < ins.pieces || first < outs.pieces; first += PIECES_AT_ONCE) {
        for (uint64_t i = first; i < first + PIECES_AT_ONCE && i < ins.pieces; i++)
            builder_take_piece(coll, in, &ins, i);
        for (uint64_t i = first; i < first + PIECES_AT_ONCE && i < outs.pieces; i++)
            builder_give_piece(coll, out, &outs, i);
        rdti_schedule_end_round(coll);
    }
}

void
rdti_schedule_reduce(struct rdti_coll *coll, void *dst, const void *lhs, const void *rhs,
                     uint64_t count, bool is_last)
{
    struct rdti_step *step = builder_add_step(coll, RDTI_STEP_REDUCE, count);

    if (step == NULL)
        return;
    step->dst = dst;
    step->lhs = lhs;
    step->rhs = rhs;
    step->is_last = is_last;
}

void
rdti_schedule_fold(struct rdti_coll *coll, void *dst, const uint8_t *const *in, uint64_t count)
{
    struct rdti_step *step = builder_add_step(coll, RDTI_STEP_FOLD, count);

    if (step == NULL)
        return;
    step->dst = dst;
    step->lhs = in;
}

void
rdti_schedule_divide(struct rdti_coll *coll, void *dst, const void *src, uint64_t count)
{
    struct rdti_step *step = builder_add_step(coll, RDTI_STEP_DIVIDE, count);

    if (step == NULL)
        return;
    step->dst = dst;
    step->lhs = src;
}

void
rdti_schedule_copy(struct rdti_coll *coll, void *dst, const void *src, uint64_t count)
{
    if (dst == src || count == 0)
        return;
    struct rdti_step *step = builder_add_step(coll, RDTI_STEP_COPY, count);
    if (step == NULL)
        return;
    step->dst = dst;
    step->lhs = src;
}

void
rdti_schedule_call(struct rdti_coll *coll, rdti_call_fn run, const struct rdti_call *call)
{
    struct rdti_step *step = builder_add_step(coll, RDTI_STEP_CALL, call->number);

    if (step == NULL)
        return;
    step->run = run;
    step->peer = call->member;
    step->dst = call->out;
    step->landing = call->in;
}

/*
 * Endpoints are opened here because the first use of a member may wait for its address, which the
 * task must not do.
 */
static rdt_status
builder_open_endpoints(struct rdti_coll *coll, struct rdt_error *err)
{
    const struct rdti_schedule *s = &coll->schedule;

    for (uint32_t i = 0; i < s->step_count; i++) {
        const struct rdti_step *step = &s->steps[i];
        rdt_endpoint *ignored;
        if (!rdti_step_is_message(step) || step->ordinal != 0)
            continue;
        const rdt_status status =
            rdt_group_endpoint(coll->group, rdti_coll_member(coll, step->peer), &ignored, err);
        if (status != RDT_OK)
            return status;
    }
    return RDT_OK;
}

rdt_status
rdti_schedule_prepare(struct rdti_coll *coll, void (*build)(struct rdti_coll *coll),
                      struct rdt_error *err)
{
    struct rdti_schedule *s = &coll->schedule;
    rdt_status status = RDT_OK;

    s->ordinals = calloc(2 * (size_t)coll->size, sizeof(*s->ordinals));
    if (s->ordinals == NULL) {
        s->status = RDT_ENOMEM;
        s->temp_bytes_wanted = 2 * (uint64_t)coll->size * sizeof(*s->ordinals);
    } else {
        build(coll);
        /* A builder may end rounds to which it then adds nothing. */
        s->round_count = s->step_count == 0 ? 0 : s->steps[s->step_count - 1].round + 1;
    }
    if (s->status == RDT_ENOMEM)
        status =
            rdti_error_set(err, RDT_ENOMEM, 0, "%s: no memory for %llu temporary bytes",
                           rdti_coll_name(coll->args.op), (unsigned long long)s->temp_bytes_wanted);
    else if (s->status != RDT_OK)
        status = rdti_error_set(err, s->status, 0, "%s: %u ranks exchange too many messages",
                                rdti_coll_name(coll->args.op), coll->size);
    else
        status = builder_open_endpoints(coll, err);
    if (status != RDT_OK) {
        rdti_schedule_release(coll);
        return status;
    }
    free(s->ordinals);
    s->ordinals = NULL;
    return RDT_OK;
}

void
rdti_schedule_rest(struct rdti_coll *coll)
{
    struct rdti_schedule *s = &coll->schedule;

    for (uint32_t i = s->previous; i < s->next; i++) {
        rdt_transfer_free(s->steps[i].transfer);
        s->steps[i].transfer = NULL;
        if (s->steps[i].kept != NULL)
            rdti_temps_give(s->steps[i].kept);
        s->steps[i].kept = NULL;
    }
}

void
rdti_schedule_release(struct rdti_coll *coll)
{
    struct rdti_schedule *s = &coll->schedule;

    rdti_schedule_rest(coll);
    for (uint32_t i = 0; i < s->temp_count; i++) {
        if (s->kept[i] != NULL)
            rdti_temps_give(s->kept[i]);
        builder_free_owned(coll, s->owned[i]);
        free(s->temps[i]);
    }
    free(s->ordinals);
    free(s->steps);
    *s = (struct rdti_schedule){0};
}
