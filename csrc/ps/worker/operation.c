/* SPDX-License-Identifier: Apache-2.0
 * Operations of a worker: each is begun, and goes on until all its answers are there. */
#include "base/clock.h"
#include "base/error.h"
#include "ps/worker/worker_impl.h"
#include "rdmatensor_ext.h"
#include "wire/bytes.h"

#include <string.h>

#define SLICE_NS UINT64_C(100000000)
#define ASK_NS UINT64_C(100000000) /* of a wait, until who holds it is asked again */

/* ---- Answers ----------------------------------------------------------------------------- */

static void
operation_note_error(struct rdt_error *into, uint32_t server, rdt_status status,
                     const uint8_t *text, uint32_t len_bytes)
{
    char shown[RDTI_PS_TEXT_BYTES];

    if (into->status != RDT_OK)
        return;
    rdti_ps_answer_text(text, len_bytes, shown);
    (void)rdti_error_set(into, status, 0, "server %u: %s", server, shown);
}

static void
operation_take_answer(struct rdti_ps_operation *op, const uint8_t *payload, uint32_t payload_bytes)
{
    if (payload_bytes > op->cap) {
        (void)rdti_error_set(&op->error, RDT_EINVAL, 0, "an answer of %u B exceeds %llu B",
                             payload_bytes, (unsigned long long)op->cap);
        return;
    }
    memcpy(op->answer, payload, payload_bytes);
    *op->len_out = payload_bytes;
}

void
rdti_ps_operation_answered(struct rdt_ps_worker *worker, uint32_t conn,
                           const struct rdti_ps_worker_slot *slot, rdt_status status,
                           const uint8_t *payload, uint32_t payload_bytes)
{
    struct rdti_ps_operation *op = &worker->op;
    const uint32_t server = conn % worker->opts.servers;

    if (slot->purpose == RDTI_PS_FOR_HOLDERS) {
        if (status == RDT_OK && op->asked_ns != 0) /* else an earlier operation asked */
            rdti_ps_answer_text(payload, payload_bytes, worker->holders);
        return;
    }
    if (status != RDT_OK) {
        operation_note_error(slot->purpose == RDTI_PS_FOR_PUSH ? &worker->push_error : &op->error,
                             server, status, payload, payload_bytes);
    } else if (slot->purpose == RDTI_PS_FOR_TICK) {
        rdti_ps_replicas_ticked(worker, conn);
    } else if (slot->purpose == RDTI_PS_FOR_PULL) {
        if (rdti_ps_rows_scatter(worker, slot, payload, payload_bytes) != RDT_OK &&
            op->error.status == RDT_OK)
            (void)rdti_error_set(&op->error, RDT_EPROTO, 0, "server %u sent %u B for %llu rows",
                                 server, payload_bytes, (unsigned long long)slot->count);
    } else if (slot->purpose == RDTI_PS_FOR_LEASE) {
        rdti_ps_leasing_answered(worker, conn, payload, payload_bytes);
    } else if (slot->purpose == RDTI_PS_FOR_CALL) {
        operation_take_answer(op, payload, payload_bytes);
    }
}

/* ---- Requests ---------------------------------------------------------------------------- */

static uint32_t
operation_put_tables(const struct rdt_ps_worker *worker, uint32_t server, uint8_t *payload)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < worker->view_count; i++)
        if (worker->views[i]->is_pushed) {
            rdti_put_u32(payload + count * sizeof(uint32_t), worker->views[i]->ids[server]);
            count++;
        }
    for (uint32_t i = 0; i < worker->dense_count; i++)
        if (worker->dense[i].is_pushed) {
            rdti_put_u32(payload + count * sizeof(uint32_t),
                         worker->dense[i].ids[server] | RDTI_PS_IS_DENSE);
            count++;
        }
    return count;
}

static void
operation_put_chunk(const struct rdt_ps_worker *worker, uint32_t server, uint8_t *payload,
                    struct rdti_ps_request *request)
{
    if (!worker->has_chunk)
        return;
    request->queue = worker->queues[server];
    request->chunk = worker->chunk;
    memcpy(payload + request->payload_bytes, worker->members, worker->members_bytes);
    request->payload_bytes += worker->members_bytes;
}

/* With SSP, server 0 alone holds workers. It gets the tick when the others have applied it: then
 * the clocks that it compares are those of steps that all servers have. */
static bool
operation_is_held_by_first(const struct rdt_ps_worker *worker)
{
    return worker->opts.mode == RDT_PS_SSP && worker->opts.servers > 1;
}

/* How many requests the operation has, a lease apart. The others send values of dense models after
 * server 0 has answered: before, they may be older than SSP permits. */
static uint32_t
operation_requests(const struct rdt_ps_worker *worker)
{
    const struct rdti_ps_operation *op = &worker->op;

    if (op->purpose == RDTI_PS_FOR_CALL)
        return 1;
    if (op->purpose == RDTI_PS_FOR_TICK && worker->dense_count > 0 &&
        operation_is_held_by_first(worker))
        return worker->conn_count + worker->opts.servers - 1;
    return worker->conn_count;
}

/* The connection of request `next`. */
static uint32_t
operation_conn(const struct rdt_ps_worker *worker)
{
    const struct rdti_ps_operation *op = &worker->op;
    const uint32_t servers = worker->opts.servers;
    const uint32_t replicas = 1 + worker->opts.replicas;

    if (op->purpose == RDTI_PS_FOR_CALL)
        return op->server;
    if (op->purpose != RDTI_PS_FOR_TICK || !operation_is_held_by_first(worker))
        return op->next;
    if (op->next >= worker->conn_count) /* for values */
        return worker->active[op->next - worker->conn_count + 1];
    return (op->next / replicas + 1) % servers + op->next % replicas * servers;
}

/* Whether request `next` of a tick waits for the answer of a server. A step whose push was refused
 * is dropped by all servers: with several of them, the answers to pushes come before the tick. */
static bool
operation_is_blocked(const struct rdt_ps_worker *worker, uint32_t *conn_out)
{
    const struct rdti_ps_operation *op = &worker->op;
    const uint32_t conns = worker->conn_count;

    if (op->purpose != RDTI_PS_FOR_TICK || conns == 1)
        return false;
    const bool is_after_others =
        operation_is_held_by_first(worker) &&
        (op->next == conns - 1 - worker->opts.replicas || op->next == conns);
    for (uint32_t conn = 0; conn < conns; conn++)
        if ((op->next == 0 && worker->conns[conn].pushes > 0) ||
            (is_after_others && worker->conns[conn].of_operation > 0)) {
            *conn_out = conn;
            return true;
        }
    return false;
}

static rdt_status
operation_send_one(struct rdt_ps_worker *worker, uint32_t server, struct rdt_error *err)
{
    const struct rdti_ps_operation *op = &worker->op;
    struct rdti_ps_request request = {.op = RDTI_PS_OP_LEAVE};
    uint32_t purpose = op->purpose;
    uint32_t slot;
    const rdt_status status = rdti_ps_conn_find_slot(worker, server, &slot);

    if (status != RDT_OK)
        return status;
    uint8_t *payload = rdti_ps_conn_payload(worker, server, slot);
    if (op->purpose == RDTI_PS_FOR_TICK && op->next >= worker->conn_count) {
        request.op = RDTI_PS_OP_VALUES;
        purpose = RDTI_PS_FOR_VALUES;
    } else if (op->purpose == RDTI_PS_FOR_TICK) {
        request.op = RDTI_PS_OP_TICK;
        request.flags = worker->push_error.status != RDT_OK ? RDTI_PS_FLAG_DROP : 0;
        request.clock = worker->clock + 1;
        request.lr_scale = op->lr_scale;
        request.age = worker->age < UINT32_MAX ? (uint32_t)worker->age : UINT32_MAX;
        request.count = operation_put_tables(worker, server, payload);
        request.payload_bytes = request.count * (uint32_t)sizeof(uint32_t);
        operation_put_chunk(worker, server, payload, &request);
    } else if (op->purpose == RDTI_PS_FOR_CALL) {
        request.op = RDTI_PS_OP_CALL;
        request.payload_bytes = (uint32_t)op->len_bytes;
        memcpy(payload, op->bytes, op->len_bytes);
    }
    return rdti_ps_conn_post(worker, server, slot, &request, purpose, err);
}

/* RDT_EAGAIN: the other replica goes on, which must learn of it before it is asked. */
static rdt_status
operation_lose(struct rdt_ps_worker *worker, uint32_t conn, rdt_status status,
               struct rdt_error *err)
{
    status = rdti_ps_replicas_lose(worker, conn, status, err);
    return status == RDT_OK ? RDT_EAGAIN : status;
}

/* Pushes go to all replicas, pulls to the active ones. */
static rdt_status
operation_send_rows(struct rdt_ps_worker *worker, uint32_t *blocked, struct rdt_error *err)
{
    const bool is_pull = worker->op.purpose == RDTI_PS_FOR_PULL;
    rdt_status answer = RDT_OK;

    for (uint32_t conn = 0; conn < worker->conn_count; conn++) {
        if (worker->conns[conn].is_lost ||
            (is_pull && worker->active[conn % worker->opts.servers] != conn))
            continue;
        const rdt_status status = rdti_ps_rows_send(worker, conn, err);
        if (status == RDT_EAGAIN) {
            *blocked = conn;
            answer = status;
        } else if (status != RDT_OK) {
            return operation_lose(worker, conn, status, err);
        }
    }
    return answer;
}

/* Posts what can be posted. RDT_EAGAIN, with *blocked: that connection has no free slot. */
static rdt_status
operation_send(struct rdt_ps_worker *worker, uint32_t *blocked, struct rdt_error *err)
{
    struct rdti_ps_operation *op = &worker->op;
    rdt_status status = rdti_ps_replicas_send(worker, blocked, err);

    if (status != RDT_OK)
        return status;
    if (op->purpose == RDTI_PS_FOR_PUSH || op->purpose == RDTI_PS_FOR_PULL)
        return operation_send_rows(worker, blocked, err);
    if (op->purpose == RDTI_PS_FOR_LEASE)
        return rdti_ps_leasing_send(worker, blocked, err);
    while (op->next < operation_requests(worker)) {
        if (operation_is_blocked(worker, blocked))
            return RDT_EAGAIN;
        const uint32_t conn = operation_conn(worker);
        if (!worker->conns[conn].is_lost) {
            *blocked = conn;
            status = operation_send_one(worker, conn, err);
            if (status != RDT_OK && status != RDT_EAGAIN)
                return operation_lose(worker, conn, status, err);
            if (status != RDT_OK)
                return status;
        }
        op->next++;
    }
    return RDT_OK;
}

/* A connection that has not answered all that the operation needs. */
static bool
operation_needs(const struct rdt_ps_worker *worker, uint32_t *conn_out)
{
    for (uint32_t conn = 0; conn < worker->conn_count; conn++)
        if (worker->conns[conn].of_operation > 0) {
            *conn_out = conn;
            return true;
        }
    return false;
}

/* Takes what a connection has sent. RDT_OK also if it is lost, and the other replica goes on. */
static rdt_status
operation_hear(struct rdt_ps_worker *worker, uint32_t conn, uint64_t wait_ns, struct rdt_error *err)
{
    const rdt_status status = rdti_ps_conn_receive(worker, conn, wait_ns, err);

    if (status == RDT_OK || status == RDT_ETIMEDOUT)
        return status;
    return rdti_ps_replicas_lose(worker, conn, status, err);
}

static rdt_status
operation_receive(struct rdt_ps_worker *worker, struct rdt_error *err)
{
    for (uint32_t conn = 0; conn < worker->conn_count; conn++) {
        if (worker->conns[conn].in_flight == 0)
            continue;
        const rdt_status status = operation_hear(worker, conn, RDT_NO_WAIT, err);
        if (status != RDT_OK)
            return status;
    }
    return RDT_OK;
}

/* A tick or a lease waits for other workers: asks the server for which, for the error. */
static rdt_status
operation_ask(struct rdt_ps_worker *worker, uint32_t server, struct rdt_error *err)
{
    struct rdti_ps_operation *op = &worker->op;
    struct rdti_ps_request request = {.op = RDTI_PS_OP_HOLDERS};
    const uint64_t now_ns = rdti_now_ns();
    uint32_t slot;

    if (op->purpose != RDTI_PS_FOR_TICK && op->purpose != RDTI_PS_FOR_LEASE)
        return RDT_OK;
    if (op->asked_ns == 0)
        op->asked_ns = now_ns;
    if (now_ns - op->asked_ns < ASK_NS || rdti_ps_conn_find_slot(worker, server, &slot) != RDT_OK)
        return RDT_OK;
    op->asked_ns = now_ns;
    return rdti_ps_conn_post(worker, server, slot, &request, RDTI_PS_FOR_HOLDERS, err);
}

static rdt_status
operation_wait(struct rdt_ps_worker *worker, uint32_t conn, uint64_t deadline_ns,
               struct rdt_error *err)
{
    uint64_t wait_ns = rdti_remaining_ns(deadline_ns);
    rdt_status status;

    if (wait_ns == 0)
        return rdti_error_set(err, RDT_ETIMEDOUT, 0, "server %u has not answered%s%s",
                              conn % worker->opts.servers, worker->holders[0] != '\0' ? ": " : "",
                              worker->holders);
    if (wait_ns > SLICE_NS) /* to look at the other servers */
        wait_ns = SLICE_NS;
    status = operation_ask(worker, conn, err);
    if (status != RDT_OK)
        return rdti_ps_replicas_lose(worker, conn, status, err);
    status = operation_hear(worker, conn, wait_ns, err);
    if (status == RDT_ETIMEDOUT)
        status = operation_receive(worker, err);
    return status;
}

static void
operation_end_tick(struct rdt_ps_worker *worker)
{
    rdti_ps_replicas_end_tick(worker);
    worker->clock++;
    worker->age = 0;
    worker->has_chunk = false;
    for (uint32_t i = 0; i < worker->view_count; i++)
        worker->views[i]->is_pushed = false;
    for (uint32_t i = 0; i < worker->dense_count; i++)
        worker->dense[i].is_pushed = false;
}

static rdt_status
operation_end(struct rdt_ps_worker *worker, struct rdt_error *err)
{
    struct rdti_ps_operation *op = &worker->op;
    const bool is_tick = op->purpose == RDTI_PS_FOR_TICK;
    /* One replica has given the chunk, and the other one does not know of it. */
    const bool is_half = op->purpose == RDTI_PS_FOR_LEASE && op->leasing.is_decided;

    worker->has_left = worker->has_left || op->purpose == RDTI_PS_FOR_LEAVE;
    if (op->purpose == RDTI_PS_FOR_LEASE && op->error.status == RDT_OK)
        rdti_ps_leasing_end(worker);
    rdti_ps_operation_finish(worker, (rdt_status)op->error.status);
    if ((is_tick || is_half) && op->error.status != RDT_OK) /* other servers may have counted it */
        (void)rdti_error_copy(&worker->failure, &op->error);
    if (is_tick)
        operation_end_tick(worker);
    if (op->error.status != RDT_OK)
        return rdti_error_copy(err, &op->error);
    if (is_tick && worker->push_error.status != RDT_OK) {
        (void)rdti_error_copy(err, &worker->push_error);
        const rdt_status status = (rdt_status)worker->push_error.status;
        rdti_error_init(&worker->push_error, RDT_RANK_UNKNOWN);
        return status;
    }
    return RDT_OK;
}

/* RDT_OK: all answers are there. RDT_EAGAIN: go on. */
static rdt_status
operation_go_on(struct rdt_ps_worker *worker, uint64_t deadline_ns, struct rdt_error *err)
{
    const uint32_t losses = worker->losses;
    uint32_t conn = 0;
    rdt_status status = rdti_ps_operation_check(worker, worker->op.purpose, err);

    if (status == RDT_OK)
        status = operation_receive(worker, err);
    if (status == RDT_OK)
        status = operation_send(worker, &conn, err);
    if ((status == RDT_OK || status == RDT_EAGAIN) && worker->losses != losses)
        return RDT_EAGAIN; /* the other replica may need more */
    if (status == RDT_OK && !operation_needs(worker, &conn))
        return RDT_OK;
    if (status == RDT_OK || status == RDT_EAGAIN)
        status = operation_wait(worker, conn, deadline_ns, err);
    return status == RDT_OK ? RDT_EAGAIN : status;
}

/* A worker that notices a lost server leaves, and so makes the others end the job: the loss is the
 * cause. A server that has said that it ends is not lost, nor is one that has let this worker go:
 * it closes its connections when the last worker has left. */
static void
operation_find_cause(rdt_ps_worker *worker, struct rdt_error *why)
{
    struct rdt_error other;

    for (uint32_t i = 0; i < worker->conn_count; i++) {
        const struct rdti_ps_conn *conn = &worker->conns[i];
        rdti_error_init(&other, RDT_RANK_UNKNOWN);
        if (conn->has_failed || conn->has_let_go || conn->is_lost ||
            rdti_ps_conn_receive(worker, i, RDT_NO_WAIT, &other) == RDT_OK || conn->has_failed)
            continue;
        (void)rdti_error_copy(why, &other);
        return;
    }
    if (worker->ended.status != RDT_OK) /* a write to it failed before its reason was read */
        (void)rdti_error_copy(why, &worker->ended);
}

static void
operation_fail(rdt_ps_worker *worker, struct rdt_error *why)
{
    if (why->status == RDT_EPEER || why->status == RDT_ESTALE) /* it frees its memory as it ends */
        operation_find_cause(worker, why);
    (void)rdti_error_copy(&worker->failure, why);
    worker->is_given_up = false;
    rdt_ps_worker_abandon(worker);
}

rdt_status
rdt_ps_worker_resume(rdt_ps_worker *worker, uint64_t timeout_ns, struct rdt_error *err)
{
    struct rdt_error *into = err != NULL ? err : &worker->scrap;
    const uint64_t deadline_ns = rdti_deadline_after(timeout_ns);
    rdt_status status;

    if (worker->op.purpose == RDTI_PS_FREE)
        return rdti_error_set(err, RDT_EINVAL, 0, "no operation is in flight");
    do
        status = operation_go_on(worker, deadline_ns, into);
    while (status == RDT_EAGAIN);
    if (status == RDT_OK)
        return operation_end(worker, into);
    if (status == RDT_ETIMEDOUT)
        return status;
    operation_fail(worker, into);
    return (rdt_status)into->status;
}

/* A pull or a call has changed nothing that this worker must know. */
static void
operation_give_up(rdt_ps_worker *worker)
{
    const uint32_t purpose = worker->op.purpose;

    if (worker->failure.status != RDT_OK || purpose == RDTI_PS_FOR_PULL ||
        purpose == RDTI_PS_FOR_CALL)
        return;
    worker->is_given_up = true;
    (void)rdti_error_set(&worker->failure, RDT_ECANCELED, 0,
                         "a %s of this worker was interrupted or timed out, and servers may have "
                         "carried it out: only leave() and close() are possible",
                         purpose == RDTI_PS_FOR_TICK    ? "clock()"
                         : purpose == RDTI_PS_FOR_LEASE ? "lease of a chunk"
                         : purpose == RDTI_PS_FOR_PUSH  ? "push"
                                                        : "leave()");
}

void
rdt_ps_worker_abandon(rdt_ps_worker *worker)
{
    if (worker->op.purpose == RDTI_PS_FREE)
        return;
    operation_give_up(worker);
    rdti_ps_operation_finish(worker, RDT_ECANCELED);
    for (uint32_t number = 0; number < worker->conn_count; number++) {
        struct rdti_ps_conn *conn = &worker->conns[number];
        for (uint32_t i = 0; i < worker->opts.slots; i++) {
            struct rdti_ps_worker_slot *slot = &conn->slots[i];
            if (slot->purpose != RDTI_PS_FREE && slot->purpose != RDTI_PS_FOR_PUSH)
                slot->is_given_up = true;
        }
        conn->of_operation = 0;
    }
}

/* ---- Beginnings -------------------------------------------------------------------------- */

rdt_status
rdti_ps_operation_check(const struct rdt_ps_worker *worker, uint32_t purpose, struct rdt_error *err)
{
    if (worker->has_left)
        return rdti_error_set(err, RDT_ECLOSED, 0, "this worker has left");
    if (worker->failure.status != RDT_OK && !(worker->is_given_up && purpose == RDTI_PS_FOR_LEAVE))
        return rdti_error_copy(err, &worker->failure);
    return RDT_OK;
}

rdt_status
rdti_ps_operation_poll(struct rdt_ps_worker *worker, struct rdt_error *err)
{
    struct rdt_error *into = err != NULL ? err : &worker->scrap;
    rdt_status status = RDT_OK;

    for (uint32_t conn = 0; conn < worker->conn_count && status == RDT_OK; conn++) {
        if (worker->conns[conn].is_lost)
            continue;
        status = rdti_ps_conn_receive(worker, conn, RDT_NO_WAIT, into);
        if (status == RDT_OK)
            status = rdt_endpoint_error(worker->conns[conn].ep, into);
        if (status != RDT_OK)
            status = rdti_ps_replicas_lose(worker, conn, status, into);
    }
    if (status == RDT_OK)
        return RDT_OK;
    operation_fail(worker, into);
    return (rdt_status)into->status;
}

static void
operation_trace(struct rdt_ps_worker *worker, uint64_t len_bytes)
{
    static const char *const names[] = {
        [RDTI_PS_FOR_PULL] = "ps pull",   [RDTI_PS_FOR_PUSH] = "ps push",
        [RDTI_PS_FOR_TICK] = "ps clock",  [RDTI_PS_FOR_CALL] = "ps call",
        [RDTI_PS_FOR_LEASE] = "ps lease", [RDTI_PS_FOR_LEAVE] = "ps leave",
    };

    if (rdt_transfer_create(worker->ctx, &worker->op.span, NULL) == RDT_OK)
        rdt_transfer_trace(worker->op.span, names[worker->op.purpose], RDT_RANK_UNKNOWN, len_bytes);
}

void
rdti_ps_operation_finish(struct rdt_ps_worker *worker, rdt_status status)
{
    rdt_transfer *span = worker->op.span;
    struct rdt_error err;

    worker->op.purpose = RDTI_PS_FREE;
    worker->op.span = NULL;
    if (span == NULL)
        return;
    rdti_error_init(&err, RDT_RANK_UNKNOWN);
    if (status != RDT_OK)
        (void)rdti_error_set(&err, status, 0, "the operation has failed");
    rdt_transfer_finish(span, status, &err);
    rdt_transfer_free(span);
}

rdt_status
rdti_ps_operation_begin(struct rdt_ps_worker *worker, uint32_t purpose, uint64_t len_bytes,
                        struct rdt_error *err)
{
    if (worker->op.purpose != RDTI_PS_FREE)
        return rdti_error_set(err, RDT_EBUSY, 0, "another operation of this worker is in flight");
    const rdt_status status = rdti_ps_operation_check(worker, purpose, err);
    if (status != RDT_OK)
        return status;
    for (uint32_t conn = 0; conn < worker->conn_count; conn++)
        if (worker->conns[conn].ep == NULL)
            return rdti_error_set(err, RDT_EINVAL, 0, "server %u is not attached",
                                  conn % worker->opts.servers);
    worker->op = (struct rdti_ps_operation){.purpose = purpose};
    worker->holders[0] = '\0';
    rdti_error_init(&worker->op.error, RDT_RANK_UNKNOWN);
    operation_trace(worker, len_bytes);
    return RDT_OK;
}

rdt_status
rdt_ps_worker_tick(rdt_ps_worker *worker, double lr_scale, uint64_t timeout_ns,
                   struct rdt_error *err)
{
    rdt_status status;

    if (!(lr_scale >= 0.0) || lr_scale > 1e30)
        return rdti_error_set(err, RDT_EINVAL, 0, "lr_scale %g is not a number from 0 on",
                              lr_scale);
    if ((worker->view_count + RDTI_PS_DENSE_MAX) * sizeof(uint32_t) + RDTI_PS_MEMBERS_BYTES >
        worker->opts.slot_bytes)
        return rdti_error_set(err, RDT_EINVAL, 0, "%u tables do not fit a slot of %u B",
                              worker->view_count, worker->opts.slot_bytes);
    status = rdti_ps_operation_begin(worker, RDTI_PS_FOR_TICK, 0, err);
    if (status != RDT_OK)
        return status;
    worker->op.lr_scale = lr_scale;
    return rdt_ps_worker_resume(worker, timeout_ns, err);
}

rdt_status
rdt_ps_worker_leave(rdt_ps_worker *worker, uint64_t timeout_ns, struct rdt_error *err)
{
    const rdt_status status = rdti_ps_operation_begin(worker, RDTI_PS_FOR_LEAVE, 0, err);

    return status == RDT_OK ? rdt_ps_worker_resume(worker, timeout_ns, err) : status;
}
