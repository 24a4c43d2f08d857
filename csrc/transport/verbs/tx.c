/* SPDX-License-Identifier: Apache-2.0
 * Sending: an op is cut into steps, steps become work requests, chains of them go to the QPs. */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/range.h"
#include "transport/verbs/verbs.h"
#include "wire/notify.h"

/* ---- Cutting -------------------------------------------------------------------------------- */

static uint64_t
chunk_bytes(const struct rdti_op *op)
{
    return op->scratch[RDTI_VERBS_OP_CHUNK] & ~RDTI_VERBS_OP_STAGED;
}

static bool
is_staged(const struct rdti_op *op)
{
    return (op->scratch[RDTI_VERBS_OP_CHUNK] & RDTI_VERBS_OP_STAGED) != 0;
}

/* Whether every byte lies in memory that the devices know, or is so few that they take a copy. */
static bool
is_reachable(struct rdti_verbs_lane *lane, const struct rdti_op *op)
{
    uint32_t lkey;

    for (uint32_t i = 0; i < op->block_count; i++) {
        const struct rdt_block *b = &op->blocks[i];

        if (b->len_bytes == 0 || (op->kind == RDTI_OP_WRITE && b->len_bytes <= lane->inline_bytes))
            continue;
        if (!rdti_verbs_own_key(lane->verbs, b->src, b->len_bytes, 0, &lkey))
            return false;
    }
    return true;
}

/* How an op is cut is decided when its turn comes, and then stands. */
static void
cut(struct rdti_verbs_lane *lane, struct rdti_op *op)
{
    const uint64_t qps = lane->qp_count;
    uint64_t most = lane->max_chunk_bytes;
    uint64_t staged = 0;
    uint64_t steps = 0;

    if (qps > 1 && op->len_bytes >= qps * RDTI_VERBS_STRIPE_MIN_BYTES) {
        const uint64_t even = (op->len_bytes / qps + 4095) & ~UINT64_C(4095);
        most = even < most ? even : most;
    }
    if (!is_reachable(lane, op)) {
        staged = RDTI_VERBS_OP_STAGED;
        most = most < RDTI_VERBS_STAGE_BYTES ? most : RDTI_VERBS_STAGE_BYTES;
    }
    for (uint32_t i = 0; i < op->block_count; i++)
        steps += (op->blocks[i].len_bytes + most - 1) / most;
    if (op->kind == RDTI_OP_WRITE && op->notify != RDTI_NOTIFY_NONE && steps < qps)
        steps = qps;
    op->scratch[RDTI_VERBS_OP_STEPS] = steps > 0 ? steps : 1;
    op->scratch[RDTI_VERBS_OP_CHUNK] = most | staged;
}

/* The bytes of the next step; none where only an immediate is left. Advances. */
static struct rdt_block
next_bytes(struct rdti_op *op)
{
    struct rdt_block bytes = {0};

    while (op->scratch[RDTI_VERBS_OP_BLOCK] < op->block_count) {
        const struct rdt_block *b = &op->blocks[op->scratch[RDTI_VERBS_OP_BLOCK]];
        const uint64_t off = op->scratch[RDTI_VERBS_OP_OFF];
        const uint64_t left = b->len_bytes - off;
        const uint64_t most = chunk_bytes(op);

        if (left == 0) {
            op->scratch[RDTI_VERBS_OP_BLOCK]++;
            op->scratch[RDTI_VERBS_OP_OFF] = 0;
            continue;
        }
        bytes.src = (const char *)b->src + off;
        bytes.len_bytes = left < most ? left : most;
        bytes.dst_off = b->dst_off + off;
        op->scratch[RDTI_VERBS_OP_OFF] += bytes.len_bytes;
        break;
    }
    return bytes;
}

/* ---- The stage ------------------------------------------------------------------------------ */

static rdt_status
make_stage(struct rdti_verbs_lane *lane, struct rdt_error *err)
{
    const size_t len = RDTI_VERBS_STAGE_PIECES * RDTI_VERBS_STAGE_BYTES;
    struct rdti_verbs *verbs = lane->verbs;

    /* Shared: a forked child gets no copy of its pages, and the device keeps ours. */
    void *addr = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (addr == MAP_FAILED)
        return rdti_error_set(err, RDT_ENOMEM, errno, "verbs: a stage of %zu bytes", len);
    for (uint32_t i = 0; i < verbs->nic_count; i++) {
        const rdt_status status =
            rdti_verbs_register(&verbs->nics[i], addr, len, IBV_ACCESS_LOCAL_WRITE,
                                &lane->stage_mrs[i], err);
        if (status == RDT_OK)
            continue;
        while (i-- > 0) {
            (void)verbs->ops->dereg_mr(lane->stage_mrs[i]);
            lane->stage_mrs[i] = NULL;
        }
        (void)munmap(addr, len);
        return status;
    }
    lane->stage = addr;
    lane->stage_free = (1u << RDTI_VERBS_STAGE_PIECES) - 1;
    return RDT_OK;
}

/* ---- Posting -------------------------------------------------------------------------------- */

static int
flush_chain(struct rdti_verbs_qp *qp)
{
    const struct rdti_verbs *verbs = qp->link->lane->verbs;
    struct ibv_send_wr *bad = NULL;

    if (qp->chain_count == 0)
        return 0;
    if (qp->link->lane->tx_errno != 0) { /* nothing goes behind a hole, least of all its notice */
        qp->chain_count = 0;
        return qp->link->lane->tx_errno;
    }
    for (uint32_t i = 0; i + 1 < qp->chain_count; i++)
        qp->chain[i].next = &qp->chain[i + 1];
    struct ibv_send_wr *last = &qp->chain[qp->chain_count - 1];
    last->next = NULL;
    /* RC completes in order: what stands before it is done as well. */
    last->send_flags |= IBV_SEND_SIGNALED;
    qp->chain_count = 0;
    const int failed = verbs->ops->post_send(qp->qp, qp->chain, &bad);
    return failed < 0 ? errno : failed;
}

static void
flush_chains(struct rdti_verbs_lane *lane)
{
    for (uint32_t i = 0; i < lane->qp_count; i++) {
        const int failed = flush_chain(lane->qps[i]);

        if (failed == 0 || lane->tx_errno != 0)
            continue;
        lane->tx_errno = failed;
        /* relaxed: a hint; the lock orders tx_errno */
        atomic_store_explicit(&lane->is_tx_broken, true, memory_order_relaxed);
    }
}

static bool
has_room(const struct rdti_verbs_qp *qp, uint32_t reserve)
{
    return qp->tx_posted - qp->tx_done + reserve < qp->link->nic->sq_depth;
}

/* A place in the QP's chain, numbered and recorded; there is room. */
static struct ibv_send_wr *
add_request(struct rdti_verbs_qp *qp, struct rdti_verbs_record record)
{
    uint32_t index = 0;

    while (qp->link->qps[index] != qp)
        index++;
    if (qp->chain_count == RDTI_VERBS_CHAIN) {
        const int failed = flush_chain(qp);
        if (failed != 0 && qp->link->lane->tx_errno == 0) {
            qp->link->lane->tx_errno = failed;
            atomic_store_explicit(&qp->link->lane->is_tx_broken, true, memory_order_relaxed);
        }
    }
    struct ibv_send_wr *wr = &qp->chain[qp->chain_count];
    struct ibv_sge *sge = &qp->sges[qp->chain_count++];
    qp->records[qp->tx_posted % RDTI_VERBS_SQ_DEPTH] = record;
    *sge = (struct ibv_sge){0};
    *wr = (struct ibv_send_wr){
        .wr_id = rdti_verbs_wr_id(RDTI_VERBS_WR_TX, index, qp->tx_posted),
        .sg_list = sge,
    };
    qp->tx_posted++;
    return wr;
}

static int32_t
take_piece(struct rdti_verbs_lane *lane)
{
    const int32_t piece = __builtin_ctz(lane->stage_free);

    lane->stage_free &= lane->stage_free - 1;
    return piece;
}

/* Where the device finds the bytes: in the request itself, in registered memory, or on the stage.
 * Fills sge, flags and the record's piece. */
static void
attach_bytes(struct rdti_verbs_qp *qp, const struct rdti_op *op, const struct rdt_block *bytes,
             struct ibv_send_wr *wr, struct rdti_verbs_record *record)
{
    struct rdti_verbs_lane *lane = qp->link->lane;
    const bool is_read = op->kind == RDTI_OP_READ;

    wr->num_sge = 1;
    wr->sg_list->length = (uint32_t)bytes->len_bytes;
    wr->sg_list->addr = (uintptr_t)bytes->src;
    if (!is_read && bytes->len_bytes <= lane->inline_bytes) {
        wr->send_flags |= IBV_SEND_INLINE;
        return;
    }
    if (!is_staged(op)) {
        const bool is_own = rdti_verbs_own_key(lane->verbs, bytes->src, bytes->len_bytes,
                                               qp->link->nic_index, &wr->sg_list->lkey);
        assert(is_own); /* cut() found it, and the arena's pieces stay */
        (void)is_own;
        return;
    }
    record->piece = take_piece(lane);
    uint8_t *at = lane->stage + (uint64_t)record->piece * RDTI_VERBS_STAGE_BYTES;
    if (is_read) {
        record->copy_to = (void *)(uintptr_t)bytes->src;
        record->copy_bytes = (uint32_t)bytes->len_bytes;
    } else {
        memcpy(at, bytes->src, bytes->len_bytes);
    }
    rdti_count(&lane->verbs->host->counters->copied_bytes, bytes->len_bytes);
    wr->sg_list->addr = (uintptr_t)at;
    wr->sg_list->lkey = lane->stage_mrs[qp->link->nic_index]->lkey;
}

static void
post_step(struct rdti_verbs_lane *lane, struct rdti_verbs_qp *qp, struct rdti_op *op,
          const struct rdti_verbs_remote *remote)
{
    const uint64_t step = op->scratch[RDTI_VERBS_OP_STEP]++;
    const uint64_t steps = op->scratch[RDTI_VERBS_OP_STEPS];
    const struct rdt_block bytes = next_bytes(op);
    const bool has_imm = op->kind == RDTI_OP_WRITE && op->notify != RDTI_NOTIFY_NONE &&
                         step + lane->qp_count >= steps;
    struct ibv_send_wr *wr = add_request(qp, (struct rdti_verbs_record){.op = op, .piece = -1});
    struct rdti_verbs_record *record = &qp->records[(qp->tx_posted - 1) % RDTI_VERBS_SQ_DEPTH];

    op->scratch[RDTI_VERBS_OP_OPEN]++;
    wr->opcode = op->kind == RDTI_OP_READ ? IBV_WR_RDMA_READ
                 : has_imm                ? IBV_WR_RDMA_WRITE_WITH_IMM
                                          : IBV_WR_RDMA_WRITE;
    if (has_imm)
        wr->imm_data = htobe32(op->notify);
    if (bytes.len_bytes == 0)
        return;
    const uint64_t off = op->remote.segment == RDT_SEGMENT_NONE ? 0 : op->remote.segment_off;
    wr->wr.rdma.remote_addr = remote->base + off + bytes.dst_off;
    wr->wr.rdma.rkey = remote->rkeys[qp->link->peer_port];
    attach_bytes(qp, op, &bytes, wr, record);
    rdti_count(&lane->verbs->host->counters->wire_bytes, bytes.len_bytes);
}

enum progress { WENT, WAITS, REFUSED };

/* Decide how the cursor's op goes, when its turn comes. REFUSED: *err says why. */
static enum progress
begin_op(struct rdti_verbs_lane *lane, struct rdti_op *op, struct rdti_verbs_remote **remote,
         struct rdt_error *err)
{
    rdt_status status = RDT_OK;

    *remote = NULL;
    /* Until its first step is posted: it may be cut and wait when the region's end is acknowledged,
     * and whether it is posted then is what the owner's next user would see. */
    if (op->scratch[RDTI_VERBS_OP_STEP] == 0 && op->remote.index != 0)
        status = rdti_verbs_check_stale(lane, op, err);
    if (status == RDT_OK && op->len_bytes > 0) {
        status = rdti_verbs_find_remote(lane, op, remote, err);
        if (status == RDT_OK && *remote == NULL)
            return WAITS;
    }
    if (status != RDT_OK)
        return REFUSED;
    if (op->scratch[RDTI_VERBS_OP_STEPS] == 0)
        cut(lane, op);
    if (!is_staged(op) || lane->stage != NULL)
        return WENT;
    return make_stage(lane, err) == RDT_OK ? WENT : REFUSED;
}

static bool
has_window(const struct rdti_verbs_lane *lane, const struct rdti_op *op)
{
    return op->kind != RDTI_OP_WRITE || op->notify == RDTI_NOTIFY_NONE ||
           lane->tx_messages < lane->tx_window;
}

/* As many steps of one op as there is room for. A message has its window before its first step, so
 * that none is left half. */
static enum progress
post_op(struct rdti_verbs_lane *lane, struct rdti_op *op, uint32_t *posted, struct rdt_error *err)
{
    struct rdti_verbs_remote *remote;
    const enum progress begun = begin_op(lane, op, &remote, err);

    if (begun != WENT)
        return begun;
    if (op->scratch[RDTI_VERBS_OP_STEP] == 0) {
        if (!has_window(lane, op))
            return WAITS;
    }
    while (op->scratch[RDTI_VERBS_OP_STEP] < op->scratch[RDTI_VERBS_OP_STEPS]) {
        if (lane->tx_errno != 0) /* the driver ends the lane */
            return WAITS;
        struct rdti_verbs_qp *qp = lane->qps[op->scratch[RDTI_VERBS_OP_STEP] % lane->qp_count];

        if (!has_room(qp, RDTI_VERBS_SQ_RESERVE) || (is_staged(op) && lane->stage_free == 0))
            return WAITS;
        if (op->scratch[RDTI_VERBS_OP_STEP] == 0 && op->kind == RDTI_OP_WRITE &&
            op->notify != RDTI_NOTIFY_NONE)
            lane->tx_messages++;
        post_step(lane, qp, op, remote);
        (*posted)++;
    }
    return WENT;
}

static struct rdti_op *
op_after(struct rdti_verbs_lane *lane, struct rdti_op *op)
{
    return op->link.next == &lane->ops ? NULL : RDTI_CONTAINER(op->link.next, struct rdti_op, link);
}

/* Lock is held. Refused ops are moved to *refused, with the last one's reason in *why. */
static uint32_t
pump(struct rdti_verbs_lane *lane, struct rdti_op **refused, struct rdt_error *why)
{
    uint32_t posted = 0;

    *refused = NULL;
    while (lane->cursor != NULL && *refused == NULL && lane->tx_errno == 0) {
        struct rdti_op *op = lane->cursor;
        const enum progress progress = post_op(lane, op, &posted, why);

        if (progress == WAITS)
            break;
        lane->cursor = op_after(lane, op);
        if (progress == REFUSED) {
            rdti_list_remove(&op->link);
            *refused = op;
        }
    }
    flush_chains(lane);
    return posted;
}

uint32_t
rdti_verbs_push(struct rdti_verbs_lane *lane)
{
    uint32_t posted = 0;
    struct rdti_op *refused;

    do {
        struct rdti_verbs_words asked[4];
        struct rdt_error why;
        uint32_t asked_count = 0;

        refused = NULL;
        (void)pthread_mutex_lock(&lane->lock);
        if (rdti_verbs_phase_of(lane) == RDTI_VERBS_READY && lane->cursor != NULL) {
            posted += pump(lane, &refused, &why);
            asked_count = lane->asked_count;
            memcpy(asked, lane->asked, sizeof(asked));
            lane->asked_count = 0;
        }
        (void)pthread_mutex_unlock(&lane->lock);
        rdti_verbs_ask(lane, asked, asked_count);
        if (refused != NULL) {
            /* acq_rel: is_idle() sees what was done before */
            (void)atomic_fetch_sub_explicit(&lane->ops_open, 1, memory_order_acq_rel);
            refused->complete(refused, (rdt_status)why.status, &why);
        }
    } while (refused != NULL);
    return posted;
}

void
rdti_verbs_send_restocked(struct rdti_verbs_lane *lane)
{
    struct rdti_verbs_qp *qp = lane->qps[0];
    bool is_owed = true;

    (void)pthread_mutex_lock(&lane->lock);
    if (rdti_verbs_phase_of(lane) == RDTI_VERBS_READY && lane->tx_errno == 0 && has_room(qp, 0)) {
        struct ibv_send_wr *wr = add_request(qp, (struct rdti_verbs_record){.piece = -1});

        wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        wr->imm_data = htobe32(RDTI_NOTIFY_RESTOCKED | lane->rx_owed);
        lane->rx_owed = 0;
        flush_chains(lane);
        is_owed = false;
    }
    (void)pthread_mutex_unlock(&lane->lock);
    atomic_store_explicit(&lane->owes_restock, is_owed, memory_order_relaxed);
}

/* ---- Entries -------------------------------------------------------------------------------- */

static rdt_status
check_blocks(const struct rdti_op *op, struct rdt_error *err)
{
    for (uint32_t i = 0; i < op->block_count; i++) {
        const struct rdt_block *b = &op->blocks[i];

        if (!rdti_range_ok(b->dst_off, b->len_bytes, op->remote.len_bytes))
            return rdti_error_set(err, RDT_ERANGE, 0,
                                  "%s of %llu bytes at offset %llu: the remote region has %llu",
                                  op->kind == RDTI_OP_READ ? "read" : "write",
                                  (unsigned long long)b->len_bytes, (unsigned long long)b->dst_off,
                                  (unsigned long long)op->remote.len_bytes);
    }
    return RDT_OK;
}

static rdt_status
start(struct rdti_verbs_lane *lane, struct rdti_op *op, struct rdt_error *err)
{
    rdt_status status = check_blocks(op, err);

    if (status != RDT_OK)
        return status;
    memset(op->scratch, 0, sizeof(op->scratch));
    (void)pthread_mutex_lock(&lane->lock);
    if (rdti_verbs_phase_of(lane) == RDTI_VERBS_FAILED)
        status = rdti_error_copy(err, &lane->error);
    else if (!lane->is_connected)
        status = rdti_error_set(err, RDT_EINVAL, 0, "verbs: operation on a lane before connect()");
    else if (op->remote.index != 0)
        status = rdti_verbs_check_stale(lane, op, err);
    if (status == RDT_OK) {
        rdti_list_append(&lane->ops, &op->link);
        if (lane->cursor == NULL)
            lane->cursor = op;
        (void)atomic_fetch_add_explicit(&lane->ops_open, 1, memory_order_acq_rel);
    }
    (void)pthread_mutex_unlock(&lane->lock);
    if (status == RDT_OK)
        (void)rdti_verbs_push(lane);
    return status;
}

rdt_status
rdti_verbs_write(struct rdti_lane *base, struct rdti_op *op, struct rdt_error *err)
{
    return start((struct rdti_verbs_lane *)base, op, err);
}

rdt_status
rdti_verbs_read(struct rdti_lane *base, struct rdti_op *op, struct rdt_error *err)
{
    return start((struct rdti_verbs_lane *)base, op, err);
}
