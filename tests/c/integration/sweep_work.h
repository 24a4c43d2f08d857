/* SPDX-License-Identifier: Apache-2.0
 * The life of one rank of a sweep (sweep_rig.h): set-up, every operation in turn, teardown. In the
 * point's phase it goes round and round until somebody is gone; then the survivors make a group of
 * those that are left, and use it. */
#ifndef RDTI_TESTS_SWEEP_WORK_H
#define RDTI_TESTS_SWEEP_WORK_H

#include "sweep_rig.h"
#include "rdmatensor_ext.h"

#define SWEEP_ROUNDS 2 /* of each phase that is not the point's: both buffers of a slot */
#define SWEEP_COUNT_ELSEWHERE UINT64_C(100)
#define SWEEP_SLICE_NS (20 * SWEEP_MS) /* between two checks whether the group stands */

struct sweep {
    struct sweep_board *board;
    const struct sweep_point *point;
    struct sweep_rank *self;
    uint32_t rank;
    uint32_t size;
    rdt_context *ctx;
    rdt_group *group;
    /* members of a group by their place on the board, for its addresses */
    uint32_t members[SWEEP_RANKS_MAX];
    int64_t *send; /* size * count elements each */
    int64_t *recv;
    uint64_t count;
    /* to and from the neighbours */
    rdt_endpoint *next;
    rdt_endpoint *prev;
    rdt_region *region;
    struct rdt_remote_region remote; /* the next's */
    rdt_slot *slot;
    rdt_slot_tx *slot_tx;
    uint64_t rounds;
    /* the call that failed */
    const char *call;
    struct rdt_error err;
};

static inline uint32_t
sweep_next(const struct sweep *s)
{
    return (s->rank + 1) % s->size;
}

static inline uint32_t
sweep_prev(const struct sweep *s)
{
    return (s->rank + s->size - 1) % s->size;
}

static inline uint64_t
sweep_count_max(const struct sweep_point *point)
{
    return point->count > SWEEP_COUNT_ELSEWHERE ? point->count : SWEEP_COUNT_ELSEWHERE;
}

/* Keeps the name of the first call that failed. */
static inline rdt_status
sweep_note(struct sweep *s, const char *call, rdt_status status)
{
    if (status != RDT_OK)
        s->call = call;
    return status;
}

/* ---- Groups ---------------------------------------------------------------------------------- */

static inline rdt_status
sweep_address(void *arg, uint32_t rank, uint64_t timeout_ns, uint8_t *buf, size_t cap,
              size_t *len_out, struct rdt_error *err)
{
    const struct sweep *s = arg;
    struct sweep_rank *other = &s->board->ranks[s->members[rank]];
    const uint64_t deadline_ns = test_now_ns() + sweep_wait_out_ns(SWEEP_ADDRESS_S);

    (void)timeout_ns;
    /* acquire: pairs with the release in sweep_open() */
    while (atomic_load_explicit(&other->address.is_there, memory_order_acquire) == 0) {
        if (test_now_ns() > deadline_ns) {
            if (err != NULL) {
                err->status = RDT_ETIMEDOUT;
                err->peer_rank = (int32_t)s->members[rank];
                (void)snprintf(err->message, sizeof(err->message),
                               "rank %u has not said where it listens", s->members[rank]);
            }
            return RDT_ETIMEDOUT;
        }
        test_sleep_ns(SWEEP_MS / 10);
    }
    CHECK(other->address.len_bytes <= cap);
    memcpy(buf, other->address.bytes, other->address.len_bytes);
    *len_out = other->address.len_bytes;
    return RDT_OK;
}

static inline rdt_status
sweep_make_group(struct sweep *s, const char *name)
{
    int32_t global[SWEEP_RANKS_MAX];

    for (uint32_t i = 0; i < s->size; i++)
        global[i] = (int32_t)s->members[i];
    const struct rdt_group_opts opts = {.struct_size = sizeof(opts),
                                        .rank = s->rank,
                                        .size = s->size,
                                        .name = name,
                                        .job_id = "job",
                                        .global_ranks = global,
                                        .timeout_ns = sweep_patience_ns(SWEEP_OPERATION_S),
                                        .address = sweep_address,
                                        .address_arg = s};
    return sweep_note(s, "group_create", rdt_group_create(s->ctx, &opts, &s->group, &s->err));
}

static inline rdt_status
sweep_open(struct sweep *s)
{
    const struct rdt_context_opts opts = {
        .struct_size = sizeof(opts),
        .force_transport = s->point->transport,
        .loopback_only = 1,
        .local_ranks = s->size,
        .timeout_ns = sweep_patience_ns(SWEEP_SETUP_S),
        .peer_timeout_ns = sweep_wait_out_ns(SWEEP_SILENCE_S),
        .arena_chunk_bytes = 1 << 20,
    };
    size_t len_bytes = 0;

    rdt_status status = sweep_note(s, "context_open", rdt_context_open(&opts, &s->ctx, &s->err));
    if (status == RDT_OK)
        status = sweep_note(s, "add_job",
                            rdt_context_add_job(s->ctx, "job", (const uint8_t *)"key", 3, 0,
                                                (int32_t)s->rank, &s->err));
    if (status == RDT_OK)
        status = sweep_note(s, "context_address",
                            rdt_context_address(s->ctx, s->self->address.bytes,
                                                RDT_ADDRESS_MAX_BYTES, &len_bytes, &s->err));
    s->self->address.len_bytes = (uint32_t)len_bytes;
    if (status == RDT_OK)
        atomic_store_explicit(&s->self->address.is_there, 1, memory_order_release);
    return status;
}

/* ---- Operations ------------------------------------------------------------------------------ */

static inline rdt_status
sweep_wait(struct sweep *s, const char *call, rdt_transfer *t)
{
    const rdt_status status =
        rdt_transfer_wait(t, sweep_patience_ns(2 * SWEEP_OPERATION_S), &s->err);

    rdt_transfer_free(t);
    return sweep_note(s, call, status);
}

static inline struct rdt_coll_args
sweep_coll_args(const struct sweep *s, uint32_t op)
{
    return (struct rdt_coll_args){.struct_size = sizeof(struct rdt_coll_args),
                                  .op = op,
                                  .dtype = RDT_I64,
                                  .reduce_op = RDT_SUM,
                                  .root = (uint32_t)(s->rounds % s->size),
                                  .count = op == RDT_COLL_BARRIER ? 0 : s->count,
                                  .send = op == RDT_COLL_BARRIER ? NULL : s->send,
                                  .recv = op == RDT_COLL_BARRIER ? NULL : s->recv};
}

static inline rdt_status
sweep_coll(struct sweep *s, uint32_t op)
{
    const struct rdt_coll_args args = sweep_coll_args(s, op);
    rdt_transfer *t = NULL;
    const rdt_status status = rdt_coll_post(s->group, &args, &t, &s->err);

    return status == RDT_OK ? sweep_wait(s, "collective", t) : sweep_note(s, "coll_start", status);
}

static inline rdt_status
sweep_send(struct sweep *s)
{
    rdt_transfer *sent = NULL;
    rdt_transfer *received = NULL;
    const uint64_t bytes = sizeof(int64_t) * s->count;
    rdt_status status =
        rdt_group_recv(s->group, sweep_prev(s), 5, s->recv, bytes, NULL, &received, &s->err);

    if (status != RDT_OK)
        return sweep_note(s, "group_recv", status);
    status = sweep_note(s, "group_send",
                        rdt_group_send(s->group, sweep_next(s), 5, s->send, bytes, NULL, &sent,
                                       &s->err));
    if (status == RDT_OK)
        status = sweep_wait(s, "send", sent);
    if (status == RDT_OK)
        return sweep_wait(s, "receive", received);
    /* What the send said stands; the receive's buffer may not go before it has ended. */
    struct rdt_error err;
    const rdt_status end =
        rdt_transfer_wait(received, sweep_patience_ns(2 * SWEEP_OPERATION_S), &err);
    CHECK_MSG(end != RDT_ETIMEDOUT, "a receive outlives its group: %s", err.message);
    rdt_transfer_free(received);
    return status;
}

/* A path to one neighbour stands although another member is gone, which the group knows. A
 * neighbour that heard of it and left may be faster than the news. */
static inline rdt_status
sweep_by_group(struct sweep *s, const char *call, rdt_status status)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    const uint64_t deadline_ns = test_now_ns() + sweep_patience_ns(1);

    if (status == RDT_OK || s->err.peer_rank == (int32_t)s->point->victim)
        return sweep_note(s, call, status);
    while (rdt_group_error(s->group, &err) == RDT_OK && test_now_ns() < deadline_ns)
        test_sleep_ns(SWEEP_MS);
    if (err.status != RDT_OK) {
        s->err = err;
        status = (rdt_status)err.status;
    }
    return sweep_note(s, call, status);
}

/* A notification of the previous rank, unless the group ends. */
static inline rdt_status
sweep_hear(struct sweep *s, rdt_endpoint *from)
{
    const uint64_t deadline_ns = test_now_ns() + sweep_patience_ns(SWEEP_OPERATION_S);
    uint32_t value;
    rdt_status status;

    do {
        status = rdt_endpoint_wait_notify(from, SWEEP_SLICE_NS, &value, &s->err);
        if (status == RDT_ETIMEDOUT && rdt_group_error(s->group, &s->err) != RDT_OK)
            return sweep_note(s, "wait_notify", (rdt_status)s->err.status);
    } while (status == RDT_ETIMEDOUT && test_now_ns() < deadline_ns);
    return status;
}

static inline rdt_status
sweep_write(struct sweep *s)
{
    const uint64_t bytes = sizeof(int64_t) * s->count;
    rdt_transfer *t = NULL;
    rdt_status status = rdt_endpoint_write(s->next, s->send, bytes, &s->remote, 0, 7, &t, &s->err);

    if (status == RDT_OK)
        status = sweep_wait(s, "write", t);
    if (status == RDT_OK)
        status = sweep_hear(s, s->prev);
    return sweep_by_group(s, "write", status);
}

static inline rdt_status
sweep_read(struct sweep *s)
{
    rdt_transfer *t = NULL;
    rdt_status status =
        rdt_endpoint_read(s->next, s->recv, sizeof(int64_t) * s->count, &s->remote, 0, &t, &s->err);

    if (status == RDT_OK)
        status = sweep_wait(s, "read", t);
    if (status != RDT_OK)
        return sweep_by_group(s, "read", status);
    return rdt_group_error(s->group, &s->err) == RDT_OK
               ? RDT_OK
               : sweep_note(s, "read", (rdt_status)s->err.status);
}

/* Waits in slices, as sweep_hear(). */
static inline rdt_status
sweep_take(struct sweep *s)
{
    const uint64_t deadline_ns = test_now_ns() + sweep_patience_ns(SWEEP_OPERATION_S);
    struct rdt_slot_view view;
    rdt_status status;

    do {
        status = rdt_slot_get(s->slot, SWEEP_SLICE_NS, &view, &s->err);
        if (status == RDT_ETIMEDOUT && rdt_group_error(s->group, &s->err) != RDT_OK)
            return (rdt_status)s->err.status;
    } while (status == RDT_ETIMEDOUT && test_now_ns() < deadline_ns);
    return status == RDT_OK ? rdt_slot_release(s->slot, &s->err) : status;
}

static inline rdt_status
sweep_slot(struct sweep *s)
{
    const uint64_t deadline_ns = test_now_ns() + sweep_patience_ns(SWEEP_OPERATION_S);
    rdt_transfer *t = NULL;
    rdt_status status;

    do {
        status = rdt_slot_tx_put(s->slot_tx, s->send, NULL, SWEEP_SLICE_NS, &t, &s->err);
        if (status == RDT_ETIMEDOUT && rdt_group_error(s->group, &s->err) != RDT_OK)
            return sweep_note(s, "slot", (rdt_status)s->err.status);
    } while (status == RDT_ETIMEDOUT && test_now_ns() < deadline_ns);
    if (status == RDT_OK)
        status = sweep_wait(s, "slot_tx_put", t);
    if (status == RDT_OK)
        status = sweep_take(s);
    return sweep_by_group(s, "slot", status);
}

/* ---- Set-up and teardown --------------------------------------------------------------------- */

static inline rdt_status
sweep_exchange(struct sweep *s)
{
    uint8_t own[RDT_REMOTE_REGION_BYTES];
    uint8_t all[RDT_REMOTE_REGION_BYTES * SWEEP_RANKS_MAX];
    struct rdt_remote_region remote;
    struct rdt_coll_args args = sweep_coll_args(s, RDT_COLL_ALLGATHER);
    rdt_transfer *t = NULL;

    /* Room for what is written in the point's phase and in the others. */
    rdt_status status = rdt_region_alloc(s->ctx, sizeof(int64_t) * sweep_count_max(s->point), 0,
                                         &s->region, &s->err);
    if (status == RDT_OK)
        status = rdt_region_export(s->region, &remote, &s->err);
    if (status != RDT_OK)
        return sweep_note(s, "region", status);
    rdt_remote_region_encode(&remote, own);
    args.dtype = RDT_U8;
    args.count = sizeof(own);
    args.send = own;
    args.recv = all;
    status = sweep_note(s, "coll_start", rdt_coll_post(s->group, &args, &t, &s->err));
    if (status == RDT_OK)
        status = sweep_wait(s, "collective", t);
    if (status == RDT_OK)
        status = sweep_note(s, "remote_region_decode",
                            rdt_remote_region_decode(all + sizeof(own) * sweep_next(s), sizeof(own),
                                                     &s->remote, &s->err));
    return status;
}

static inline rdt_status
sweep_prepare(struct sweep *s)
{
    const struct rdt_tensor_desc desc = {.struct_size = sizeof(desc),
                                         .kind = RDT_SLOT_STATIC,
                                         .dtype = RDT_I64,
                                         .ndim = 1,
                                         .dims = {SWEEP_COUNT_ELSEWHERE}};
    rdt_status status = rdt_group_endpoint(s->group, sweep_next(s), &s->next, &s->err);

    if (status == RDT_OK)
        status = rdt_group_endpoint(s->group, sweep_prev(s), &s->prev, &s->err);
    if (status != RDT_OK)
        return sweep_note(s, "group_endpoint", status);
    status = sweep_exchange(s);
    if (status == RDT_OK)
        status = sweep_by_group(s, "slot_create",
                                rdt_slot_create(s->prev, "sweep", &desc, &s->slot, &s->err));
    if (status == RDT_OK)
        status = sweep_by_group(s, "slot_tx_open",
                                rdt_slot_tx_open(s->next, "sweep", &desc,
                                                 sweep_patience_ns(SWEEP_OPERATION_S), &s->slot_tx,
                                                 &s->err));
    return status;
}

static inline void
sweep_drop_group(struct sweep *s)
{
    rdt_slot_tx_destroy(s->slot_tx);
    rdt_slot_destroy(s->slot);
    rdt_region_free(s->region, NULL, NULL);
    s->slot_tx = NULL;
    s->slot = NULL;
    s->region = NULL;
    if (s->group != NULL)
        rdt_group_destroy(s->group);
    s->group = NULL;
}

static inline void
sweep_close(struct sweep *s)
{
    struct rdt_error err = {0};

    CHECK_OK(rdt_context_close(s->ctx, &err), &err);
    free(s->send);
    free(s->recv);
    atomic_store(&s->self->life, SWEEP_CLOSED);
}

/* ---- A life ---------------------------------------------------------------------------------- */

/* RDT_COLL_*, or 0. */
static inline uint32_t
sweep_op(enum sweep_phase phase)
{
    static const uint32_t ops[SWEEP_PHASES] = {
        [SWEEP_CONNECT] = RDT_COLL_BARRIER,     [SWEEP_BROADCAST] = RDT_COLL_BROADCAST,
        [SWEEP_ALLREDUCE] = RDT_COLL_ALLREDUCE, [SWEEP_REDUCE] = RDT_COLL_REDUCE,
        [SWEEP_ALLGATHER] = RDT_COLL_ALLGATHER, [SWEEP_REDUCE_SCATTER] = RDT_COLL_REDUCE_SCATTER,
        [SWEEP_GATHER] = RDT_COLL_GATHER,       [SWEEP_SCATTER] = RDT_COLL_SCATTER,
        [SWEEP_ALLTOALL] = RDT_COLL_ALLTOALL,   [SWEEP_BARRIER] = RDT_COLL_BARRIER};

    return ops[phase];
}

/* One round of a phase. */
static inline rdt_status
sweep_step(struct sweep *s, enum sweep_phase phase)
{
    switch (phase) {
    case SWEEP_CONTEXT:
        return sweep_open(s);
    case SWEEP_PREPARE:
        return sweep_prepare(s);
    case SWEEP_SEND:
        return sweep_send(s);
    case SWEEP_WRITE:
        return sweep_write(s);
    case SWEEP_READ:
        return sweep_read(s);
    case SWEEP_SLOT:
        return sweep_slot(s);
    default:
        return sweep_coll(s, sweep_op(phase));
    }
}

/* In the middle of a collective, every other time: what is begun ends with the group. */
static inline void
sweep_leave(struct sweep *s, enum sweep_phase phase)
{
    rdt_transfer *t = NULL;

    if (s->rounds % 2 == 1 && sweep_op(phase) != 0) {
        const struct rdt_coll_args args = sweep_coll_args(s, sweep_op(phase));
        if (rdt_coll_post(s->group, &args, &t, NULL) != RDT_OK)
            t = NULL;
    }
    sweep_drop_group(s);
    if (t != NULL) {
        CHECK_INT_NE(rdt_transfer_wait(t, sweep_patience_ns(SWEEP_OPERATION_S), NULL),
                     RDT_ETIMEDOUT);
        rdt_transfer_free(t);
    }
    sweep_close(s);
    _exit(0);
}

static inline bool
must_go_round(const struct sweep *s, enum sweep_phase phase, uint64_t round)
{
    if (phase <= SWEEP_PREPARE)
        return round == 0;
    return phase == s->point->phase || round < SWEEP_ROUNDS;
}

static inline rdt_status
sweep_work(struct sweep *s)
{
    rdt_status status = RDT_OK;

    for (enum sweep_phase phase = SWEEP_CONTEXT; phase < SWEEP_TEARDOWN; phase++) {
        atomic_store(&s->self->phase, phase);
        if (phase == SWEEP_CONNECT)
            status = sweep_make_group(s, "world");
        /* A slot has the shape that was told before; regions are as large as the point's. */
        s->count = phase == s->point->phase && phase != SWEEP_SLOT ? s->point->count
                                                                   : SWEEP_COUNT_ELSEWHERE;
        for (uint64_t i = 0; status == RDT_OK && must_go_round(s, phase, i); i++) {
            if (s->rank == s->point->victim && atomic_load(&s->board->must_leave) != 0 &&
                phase != SWEEP_CONTEXT)
                sweep_leave(s, phase);
            status = sweep_step(s, phase);
            s->rounds++;
            atomic_store(&s->self->steps, s->rounds);
        }
        if (status != RDT_OK)
            return status;
    }
    atomic_store(&s->self->phase, SWEEP_TEARDOWN);
    return RDT_OK;
}

/* Nobody reaches out to a member that still has to let the first group go, and would take the new
 * connection along: who sets up through a store finds there only who has come so far. */
static inline void
sweep_wait_for_survivors(struct sweep *s)
{
    const uint64_t deadline_ns = test_now_ns() + sweep_patience_ns(SWEEP_POINT_S / 2);

    atomic_store(&s->self->life, SWEEP_APART);
    for (uint32_t i = 0; i < s->point->size; i++)
        while (i != s->point->victim && atomic_load(&s->board->ranks[i].life) < SWEEP_APART) {
            CHECK(test_now_ns() < deadline_ns);
            test_sleep_ns(SWEEP_MS / 10);
        }
}

/* The survivors alone: a group of the rest, which works. */
static inline void
sweep_regroup(struct sweep *s)
{
    int64_t sum = 0;
    uint32_t count = 0;

    for (uint32_t i = 0; i < s->point->size; i++) {
        if (i == s->point->victim)
            continue;
        if (&s->board->ranks[i] == s->self)
            s->rank = count;
        s->members[count++] = i;
        sum += i + 1;
    }
    s->size = count;
    s->count = SWEEP_COUNT_ELSEWHERE;
    CHECK_OK(sweep_make_group(s, "rest"), &s->err);
    for (uint64_t i = 0; i < s->count; i++)
        s->send[i] = s->members[s->rank] + 1;
    for (int round = 0; round < 3; round++)
        CHECK_OK(sweep_coll(s, RDT_COLL_ALLREDUCE), &s->err);
    for (uint64_t i = 0; i < s->count; i++)
        CHECK_INT_EQ(s->recv[i], sum);
    CHECK_OK(sweep_coll(s, RDT_COLL_BARRIER), &s->err);
    atomic_store(&s->self->life, SWEEP_REGROUPED);
    rdt_group_destroy(s->group);
}

static inline void
sweep_tell_end(struct sweep *s, rdt_status status)
{
    struct sweep_rank *self = s->self;

    self->end.at_ns = test_now_ns();
    self->end.status = status;
    self->end.phase = atomic_load(&self->phase);
    self->end.call = s->call != NULL ? s->call : "nothing";
    self->end.peer_rank = status == RDT_OK ? RDT_RANK_UNKNOWN : s->err.peer_rank;
    if (status != RDT_OK)
        memcpy(self->end.message, s->err.message, sizeof(self->end.message));
    atomic_store(&self->life, SWEEP_HAS_ENDED);
}

/* A member that left ends what needs it, and the rest goes on: who cannot, because of it or of a
 * member that nobody finds, tells the others, and the one that left first stays to blame. */
static inline void
sweep_give_up(struct sweep *s, rdt_status status)
{
    const uint64_t deadline_ns = test_now_ns() + sweep_patience_ns(1);

    if (s->group == NULL)
        return;
    /* Of a peer that leaves, slots and regions go first: its goodbye follows. */
    while ((status == RDT_ECLOSED || status == RDT_ESTALE) && test_now_ns() < deadline_ns &&
           rdt_endpoint_error(s->next, NULL) == RDT_OK &&
           rdt_endpoint_error(s->prev, NULL) == RDT_OK)
        test_sleep_ns(SWEEP_MS / 10);
    rdt_group_abort(s->group, s->err.message);
}

static inline void
sweep_live(struct sweep_board *board, uint32_t rank)
{
    const uint64_t count =
        board->point.count > SWEEP_COUNT_ELSEWHERE ? board->point.count : SWEEP_COUNT_ELSEWHERE;
    struct sweep s = {.board = board,
                      .point = &board->point,
                      .self = &board->ranks[rank],
                      .rank = rank,
                      .size = board->point.size};

    const struct leftovers before = leftovers_now();

    s.send = calloc(count * s.size, sizeof(int64_t));
    s.recv = calloc(count * s.size, sizeof(int64_t));
    CHECK(s.send != NULL && s.recv != NULL);
    for (uint32_t i = 0; i < s.size; i++)
        s.members[i] = i;
    const rdt_status status = sweep_work(&s);
    if (rank == board->point.victim) { /* the end is yet to come, or came too late */
        sweep_drop_group(&s);
        sweep_close(&s);
        return;
    }
    sweep_tell_end(&s, status);
    if (status != RDT_OK)
        sweep_give_up(&s, status);
    sweep_drop_group(&s);
    sweep_wait_for_survivors(&s);
    sweep_regroup(&s);
    sweep_close(&s);
    leftovers_check(&before, "a survivor");
}

#endif
