/* SPDX-License-Identifier: Apache-2.0
 * Sending: an op is cut into steps, steps become work requests, which are posted in chains. */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/range.h"
#include "transport/verbs/keys.h"
#include "transport/verbs/memory/memory.h"
#include "transport/verbs/down.h"
#include "transport/verbs/post.h"
#include "wire/notify.h"

/* ---- The stage ------------------------------------------------------------------------------ */

/* Lock is held. Create the staging buffer, registered on every port, for unregistered memory. */
static rdt_status
verbs_tx_make_stage(struct rdti_verbs_lane *lane, struct rdt_error *err)
{
    const size_t len = RDTI_VERBS_STAGE_PIECES * RDTI_VERBS_STAGE_BYTES;
    struct rdti_verbs *verbs = lane->verbs;

    /* Shared: a forked child gets no copy of its pages, and the device keeps this process's. */
    void *addr = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (addr == MAP_FAILED)
        return rdti_error_set(err, RDT_ENOMEM, errno, "verbs: a stage of %zu bytes", len);
    (void)pthread_mutex_lock(&verbs->mr_lock);
    const rdt_status status = rdti_verbs_register_on(verbs, rdti_verbs_nics_left(verbs), addr, len,
                                                     IBV_ACCESS_LOCAL_WRITE, lane->stage_mrs, err);
    (void)pthread_mutex_unlock(&verbs->mr_lock);
    if (status != RDT_OK) {
        (void)munmap(addr, len);
        return status;
    }
    lane->stage = addr;
    lane->stage_free = (1u << RDTI_VERBS_STAGE_PIECES) - 1;
    return RDT_OK;
}

/* Lock is held. Numbers a message that begins. */
static void
verbs_tx_number(struct rdti_verbs_lane *lane, struct rdti_op *op)
{
    lane->tx_notes[lane->tx_messages % RDTI_VERBS_IMMS] = op->notify;
    op->scratch[RDTI_VERBS_OP_MESSAGE] = ++lane->tx_messages;
}

/* ---- Cutting -------------------------------------------------------------------------------- */

static uint64_t
verbs_tx_chunk_bytes(const struct rdti_op *op)
{
    return op->scratch[RDTI_VERBS_OP_CHUNK] & ~(RDTI_VERBS_OP_STAGED | RDTI_VERBS_OP_FLAGGED);
}

static bool
verbs_tx_is_staged(const struct rdti_op *op)
{
    return (op->scratch[RDTI_VERBS_OP_CHUNK] & RDTI_VERBS_OP_STAGED) != 0;
}

static bool
verbs_tx_is_flagged(const struct rdti_op *op)
{
    return (op->scratch[RDTI_VERBS_OP_CHUNK] & RDTI_VERBS_OP_FLAGGED) != 0;
}

/* RDT_OK: every block is in registered memory, or is small enough to be sent inline. RDT_EAGAIN:
 * some memory is about to be registered. */
static rdt_status
verbs_tx_find_bytes(struct rdti_verbs_lane *lane, const struct rdti_op *op, bool has_flag)
{
    rdt_status status = RDT_OK;
    uint32_t lkey;

    for (uint32_t i = 0; status == RDT_OK && i < op->block_count; i++) {
        const struct rdt_block *b = &op->blocks[i];

        if (b->len_bytes == 0 ||
            (op->kind == RDTI_OP_WRITE && rdti_verbs_is_inline(lane, b->len_bytes, has_flag)))
            continue;
        status = rdti_verbs_own_key(lane->verbs, b->src, b->len_bytes, 0, &lkey);
    }
    return status;
}

static uint64_t
verbs_tx_count_steps(const struct rdti_op *op, uint64_t most)
{
    uint64_t steps = 0;

    for (uint32_t i = 0; i < op->block_count; i++) {
        const uint64_t len_bytes = op->blocks[i].len_bytes;

        steps += len_bytes <= most ? len_bytes > 0 : (len_bytes + most - 1) / most;
    }
    return steps;
}

/* Decides, when the op is next, how it is cut. The decision is final. */
static void
verbs_tx_cut(struct rdti_verbs_lane *lane, struct rdti_op *op, bool may_flag, bool is_reachable)
{
    const uint64_t qps = lane->tx_count;
    uint64_t most = lane->max_chunk_bytes;
    uint64_t marks = 0;

    if (qps > 1 && op->len_bytes >= qps * RDTI_VERBS_STRIPE_MIN_BYTES) {
        const uint64_t even = (op->len_bytes / qps + 4095) & ~UINT64_C(4095);
        most = even < most ? even : most;
    }
    if (!is_reachable) {
        marks = RDTI_VERBS_OP_STAGED;
        most = most < RDTI_VERBS_STAGE_BYTES ? most : RDTI_VERBS_STAGE_BYTES;
    }
    uint64_t steps = verbs_tx_count_steps(op, most);
    if (may_flag && steps == 1)
        marks |= RDTI_VERBS_OP_FLAGGED;
    if (op->kind == RDTI_OP_WRITE && op->notify != RDTI_NOTIFY_NONE && steps < qps)
        steps = qps;
    op->scratch[RDTI_VERBS_OP_STEPS] = steps > 0 ? steps : 1;
    op->scratch[RDTI_VERBS_OP_CHUNK] = most | marks;
}

/* The bytes of the next step; none if only an immediate is left. Advances. */
static struct rdt_block
verbs_tx_next_bytes(struct rdti_op *op)
{
    struct rdt_block bytes = {0};

    while (op->scratch[RDTI_VERBS_OP_BLOCK] < op->block_count) {
        const struct rdt_block *b = &op->blocks[op->scratch[RDTI_VERBS_OP_BLOCK]];
        const uint64_t off = op->scratch[RDTI_VERBS_OP_OFF];
        const uint64_t left = b->len_bytes - off;
        const uint64_t most = verbs_tx_chunk_bytes(op);

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

/* ---- Posting -------------------------------------------------------------------------------- */

/* Takes a piece of the stage for a step, and copies a write's bytes there. */
static void
verbs_tx_take_piece(struct rdti_verbs_lane *lane, struct rdti_verbs_record *record)
{
    record->piece = __builtin_ctz(lane->stage_free);
    lane->stage_free &= lane->stage_free - 1;
    if (!record->is_read)
        memcpy(lane->stage + (uint64_t)record->piece * RDTI_VERBS_STAGE_BYTES, record->local,
               record->len_bytes);
    rdti_count(&lane->verbs->host->counters->copied_bytes[record->op->traffic], record->len_bytes);
}

/* Sets how this step of a write notifies the peer, if at all: by a flag, or, on the last steps, by
 * an immediate. */
static void
verbs_tx_announce(struct rdti_verbs_lane *lane, const struct rdti_op *op,
                  const struct rdt_block *bytes, bool is_last, struct rdti_verbs_record *record)
{
    if (verbs_tx_is_flagged(op)) {
        record->imm = op->flag_sequence;
        record->tail_bytes =
            (uint8_t)(op->flag_off + RDTI_FLAG_BYTES - bytes->dst_off - bytes->len_bytes);
        return;
    }
    record->has_imm = op->notify != RDTI_NOTIFY_NONE && is_last;
    record->imm = record->has_imm ? op->notify : 0;
    lane->is_tx_plain = !record->has_imm;
}

/* Posts the next step, on its QP or on the QP that replaces it. */
static void
verbs_tx_post_step(struct rdti_verbs_lane *lane, struct rdti_verbs_qp *qp, bool is_stand_in,
                   struct rdti_op *op, const struct rdti_verbs_remote *remote)
{
    const uint64_t step = op->scratch[RDTI_VERBS_OP_STEP]++;
    const uint64_t steps = op->scratch[RDTI_VERBS_OP_STEPS];
    const struct rdt_block bytes = verbs_tx_next_bytes(op);
    struct rdti_verbs_record record = {
        .op = op,
        .local = (void *)(uintptr_t)bytes.src,
        .len_bytes = (uint32_t)bytes.len_bytes,
        .piece = -1,
        .is_read = op->kind == RDTI_OP_READ,
    };

    if (!record.is_read)
        verbs_tx_announce(lane, op, &bytes, !is_stand_in && step + lane->tx_count >= steps,
                          &record);
    op->scratch[RDTI_VERBS_OP_OPEN]++;
    if (record.len_bytes > 0) {
        const uint64_t off = op->remote.segment == RDT_SEGMENT_NONE ? 0 : op->remote.segment_off;
        record.remote_addr = remote->base + off + bytes.dst_off;
        memcpy(record.rkeys, remote->rkeys, sizeof(record.rkeys));
        if (verbs_tx_is_staged(op) &&
            (record.is_read ||
             !rdti_verbs_is_inline(lane, record.len_bytes, record.tail_bytes != 0)))
            verbs_tx_take_piece(lane, &record);
    }
    rdti_verbs_post_record(qp, &record);
}

/* ---- After a break -------------------------------------------------------------------------- */

/* Sends what a broken link lost again over the remaining links. False: more is left, without
 * room. */
static bool
verbs_tx_post_again(struct rdti_verbs_lane *lane, uint32_t *posted)
{
    struct rdti_verbs_qp *qp =
        lane->again_next < lane->again_count ? rdti_verbs_live_qp(lane) : NULL;

    while (lane->again_next < lane->again_count) {
        if (lane->is_held || !rdti_verbs_has_room(qp, RDTI_VERBS_SQ_RESERVE))
            return false;
        struct rdti_verbs_record *record = &lane->again[lane->again_next++];
        /* SETTLED replaces the immediates of messages; only the lane's own are sent again. */
        record->has_imm = record->has_imm && record->op == NULL;
        rdti_verbs_post_record(qp, record);
        (*posted)++;
    }
    return true;
}

/* Between two ops: posts SETTLED for broken links; the next op uses the remaining links. False: the
 * queue is full, or a device refused a request that was posted here. */
static bool
verbs_tx_post_marks(struct rdti_verbs_lane *lane, uint32_t *posted)
{
    for (uint32_t i = 0; lane->marks_owed > 0 && i < lane->link_count; i++) {
        struct rdti_verbs_link *link = &lane->links[i];
        struct rdti_verbs_qp *qp = rdti_verbs_live_qp(lane);

        if (!link->owes_mark)
            continue;
        if (lane->is_held || !rdti_verbs_has_room(qp, 0))
            return false;
        rdti_verbs_post_record(qp, &(struct rdti_verbs_record){.piece = -1,
                                                               .has_imm = true,
                                                               .imm = RDTI_NOTIFY_SETTLED |
                                                                      link->number});
        (*posted)++;
        link->owes_mark = false;
        lane->marks_owed--;
        lane->tx_count = 0;
        for (uint32_t q = 0; q < lane->qp_count; q++)
            if (!lane->qps[q]->link->is_tx_out)
                lane->tx_qps[lane->tx_count++] = lane->qps[q];
        if (lane->cursor != NULL)
            lane->cursor->scratch[RDTI_VERBS_OP_STEPS] = 0; /* it is cut again */
    }
    return !lane->is_held;
}

enum progress { WENT, WAITS, REFUSED };

/* Cut the op, unless it is cut, and create the stage if it needs one. */
static enum progress
verbs_tx_prepare(struct rdti_verbs_lane *lane, struct rdti_op *op, bool may_flag,
                 struct rdt_error *err)
{
    if (op->scratch[RDTI_VERBS_OP_STEPS] == 0) {
        const rdt_status found = verbs_tx_find_bytes(lane, op, may_flag);
        if (found == RDT_EAGAIN)
            return WAITS;
        verbs_tx_cut(lane, op, may_flag, found == RDT_OK);
    }
    if (!verbs_tx_is_staged(op) || lane->stage != NULL)
        return WENT;
    return verbs_tx_make_stage(lane, err) == RDT_OK ? WENT : REFUSED;
}

/* Prepare the cursor's op, when it is next. REFUSED: *err has the reason. */
static enum progress
verbs_tx_begin_op(struct rdti_verbs_lane *lane, struct rdti_op *op,
                  struct rdti_verbs_remote **remote, struct rdt_error *err)
{
    rdt_status status = RDT_OK;
    bool may_flag = false;

    *remote = NULL;
    /* Until its first step is posted: it may be cut and waiting when the region's end is
     * acknowledged. Posted after that, it would write into memory that its owner has reused. */
    if (op->scratch[RDTI_VERBS_OP_STEP] == 0 && op->remote.index != 0)
        status = rdti_verbs_check_stale(lane, op, err);
    if (status == RDT_OK && op->len_bytes > 0) {
        status = rdti_verbs_find_key(lane, op, &may_flag, remote, err);
        if (status == RDT_OK && *remote == NULL)
            return WAITS;
    }
    return status == RDT_OK ? verbs_tx_prepare(lane, op, may_flag, err) : REFUSED;
}

/* Whether the op needs a receive at the peer. */
static bool
verbs_tx_is_message(const struct rdti_op *op)
{
    return op->kind == RDTI_OP_WRITE && op->notify != RDTI_NOTIFY_NONE && !verbs_tx_is_flagged(op);
}

static void
verbs_tx_number_first(struct rdti_verbs_lane *lane, struct rdti_op *op)
{
    if (op->scratch[RDTI_VERBS_OP_STEP] == 0 && verbs_tx_is_message(op))
        verbs_tx_number(lane, op);
}

/* Posts as many steps of one op as there is room for. A message takes its place in the window
 * before its first step, so that no message stays half sent. */
static enum progress
verbs_tx_post_op(struct rdti_verbs_lane *lane, struct rdti_op *op, uint32_t *posted,
                 struct rdt_error *err)
{
    struct rdti_verbs_remote *remote;
    const enum progress begun = verbs_tx_begin_op(lane, op, &remote, err);

    if (begun != WENT)
        return begun;
    if (op->scratch[RDTI_VERBS_OP_STEP] == 0 && verbs_tx_is_message(op) &&
        lane->tx_messages >= lane->tx_window)
        return WAITS;
    while (op->scratch[RDTI_VERBS_OP_STEP] < op->scratch[RDTI_VERBS_OP_STEPS]) {
        const uint64_t step = op->scratch[RDTI_VERBS_OP_STEP];
        struct rdti_verbs_qp *own = lane->tx_qps[step > 0 ? step % lane->tx_count : 0];
        const bool is_out = own->link->is_tx_out;
        struct rdti_verbs_qp *qp = is_out ? rdti_verbs_live_qp(lane) : own;

        if (lane->is_held || !rdti_verbs_has_room(qp, RDTI_VERBS_SQ_RESERVE) ||
            (verbs_tx_is_staged(op) && lane->stage_free == 0))
            return WAITS;
        verbs_tx_number_first(lane, op);
        verbs_tx_post_step(lane, qp, is_out, op, remote);
        (*posted)++;
    }
    return WENT;
}

static struct rdti_op *
verbs_tx_op_after(struct rdti_verbs_lane *lane, struct rdti_op *op)
{
    return op->link.next == &lane->ops ? NULL : RDTI_CONTAINER(op->link.next, struct rdti_op, link);
}

/* Lock is held. Stops at a refused op, which goes to *refused with its reason in *why. */
static uint32_t
verbs_tx_pump(struct rdti_verbs_lane *lane, struct rdti_op **refused, struct rdt_error *why)
{
    uint32_t posted = 0;

    *refused = NULL;
    while (*refused == NULL && !lane->is_held && !lane->is_stopped &&
           verbs_tx_post_again(lane, &posted)) {
        struct rdti_op *op = lane->cursor;

        if ((op == NULL || op->scratch[RDTI_VERBS_OP_STEP] == 0) &&
            !verbs_tx_post_marks(lane, &posted))
            break;
        if (op == NULL)
            break;
        const enum progress progress = verbs_tx_post_op(lane, op, &posted, why);
        if (progress == WAITS)
            break;
        lane->cursor = verbs_tx_op_after(lane, op);
        if (progress == REFUSED) {
            rdti_list_remove(&op->link);
            *refused = op;
            lane->is_stopped = op->is_relied_on && why->status != RDT_ESTALE;
        }
    }
    rdti_verbs_flush_chains(lane);
    return posted;
}

/* Work that a pump leaves to be done without the lock. */
struct tx_leftover {
    struct rdti_op *refused;
    struct rdt_error why;
    struct rdti_verbs_words asked[4];
    uint32_t asked_count;
};

/* Lock is held. */
static uint32_t
verbs_tx_pump_ready(struct rdti_verbs_lane *lane, struct tx_leftover *left)
{
    left->refused = NULL;
    left->asked_count = 0;
    if (rdti_verbs_phase_of(lane) != RDTI_VERBS_READY)
        return 0;
    /* relaxed: under lock, as all stores */
    atomic_store_explicit(&lane->has_riders, false, memory_order_relaxed);
    const uint32_t posted = verbs_tx_pump(lane, &left->refused, &left->why);
    atomic_store_explicit(&lane->has_queued,
                          lane->cursor != NULL || lane->again_next < lane->again_count ||
                              lane->marks_owed > 0,
                          memory_order_relaxed);
    left->asked_count = lane->asked_count;
    if (lane->asked_count > 0)
        memcpy(left->asked, lane->asked, sizeof(left->asked));
    lane->asked_count = 0;
    return posted;
}

/* True: an op was refused, and the ops after it are not yet handled. */
static bool
verbs_tx_end_leftover(struct rdti_verbs_lane *lane, const struct tx_leftover *left)
{
    rdti_verbs_ask(lane, left->asked, left->asked_count);
    if (left->refused == NULL)
        return false;
    /* acq_rel: is_idle() sees all earlier stores */
    (void)atomic_fetch_sub_explicit(&lane->ops_open, 1, memory_order_acq_rel);
    left->refused->complete(left->refused, (rdt_status)left->why.status, &left->why);
    return true;
}

uint32_t
rdti_verbs_push(struct rdti_verbs_lane *lane)
{
    uint32_t posted = 0;
    struct tx_leftover left;

    do {
        (void)pthread_mutex_lock(&lane->lock);
        posted += verbs_tx_pump_ready(lane, &left);
        (void)pthread_mutex_unlock(&lane->lock);
    } while (verbs_tx_end_leftover(lane, &left));
    return posted;
}

void
rdti_verbs_send_restocked(struct rdti_verbs_lane *lane)
{
    bool is_owed = true;

    (void)pthread_mutex_lock(&lane->lock);
    struct rdti_verbs_qp *qp =
        rdti_verbs_phase_of(lane) == RDTI_VERBS_READY ? rdti_verbs_live_qp(lane) : NULL;
    if (qp != NULL && rdti_verbs_has_room(qp, 0)) {
        rdti_verbs_post_record(qp, &(struct rdti_verbs_record){.piece = -1,
                                                               .has_imm = true,
                                                               .imm = RDTI_NOTIFY_RESTOCKED |
                                                                      lane->rx_owed});
        lane->rx_owed = 0;
        rdti_verbs_flush_chains(lane);
        is_owed = false;
    }
    (void)pthread_mutex_unlock(&lane->lock);
    atomic_store_explicit(&lane->owes_restock, is_owed, memory_order_relaxed);
}

/* A write whose bytes fit inline in one request. */
static bool
verbs_tx_is_small(const struct rdti_verbs_lane *lane, const struct rdti_op *op)
{
    return op->kind == RDTI_OP_WRITE && op->block_count == 1 && op->len_bytes > 0 &&
           rdti_verbs_is_inline(lane, op->len_bytes, false);
}

/* A lane with one QP, no flags, no waiting ops, and room in the peer's window. */
static bool
verbs_tx_is_clear(const struct rdti_verbs_lane *lane)
{
    return rdti_verbs_phase_of(lane) == RDTI_VERBS_READY && lane->qp_count == 1 &&
           lane->tx_flags == 0 && lane->cursor == NULL && !lane->is_held && !lane->is_stopped &&
           lane->tx_messages < lane->tx_window;
}

/* Sends most small messages as verbs_tx_pump() would, without its other checks. False:
 * verbs_tx_pump() must send it. */
static bool
verbs_tx_post_at_once(struct rdti_verbs_lane *lane, struct rdti_op *op)
{
    const bool has_imm = op->notify != RDTI_NOTIFY_NONE;

    if (!verbs_tx_is_small(lane, op) || !verbs_tx_is_clear(lane))
        return false;
    struct rdti_verbs_qp *qp = lane->qps[0];
    const struct rdti_verbs_remote *remote = rdti_verbs_known_key(lane, op);
    if (remote == NULL || qp->link->is_tx_out || !rdti_verbs_has_room(qp, RDTI_VERBS_SQ_RESERVE))
        return false;
    const struct rdt_block *b = &op->blocks[0];
    const uint64_t off = op->remote.segment == RDT_SEGMENT_NONE ? 0 : op->remote.segment_off;
    struct rdti_verbs_record record = {
        .op = op,
        .local = (void *)(uintptr_t)b->src,
        .remote_addr = remote->base + off + b->dst_off,
        .len_bytes = (uint32_t)b->len_bytes,
        .imm = has_imm ? op->notify : 0,
        .piece = -1,
        .has_imm = has_imm,
    };
    memcpy(record.rkeys, remote->rkeys, sizeof(record.rkeys));
    op->scratch[RDTI_VERBS_OP_STEP] = 1;
    op->scratch[RDTI_VERBS_OP_STEPS] = 1;
    op->scratch[RDTI_VERBS_OP_OPEN] = 1;
    op->scratch[RDTI_VERBS_OP_CHUNK] = lane->max_chunk_bytes;
    if (has_imm)
        verbs_tx_number(lane, op);
    lane->is_tx_plain = !has_imm;
    rdti_verbs_post_record(qp, &record);
    rdti_verbs_flush_chain(qp);
    return true;
}

/* ---- The entry ------------------------------------------------------------------------------ */

/* Whether the op, which was just added, waits for another op or a pass. Else the waiting ops are
 * sent with it, in one chain: a post costs a system call on some devices, and a doorbell on all. */
static bool
verbs_tx_rides(struct rdti_verbs_lane *lane, struct rdti_op *op)
{
    if (rdti_verbs_phase_of(lane) != RDTI_VERBS_READY)
        return false;
    if (op->may_ride && op->len_bytes == 0) {
        if (lane->cursor == NULL)
            lane->cursor = op;
        /* seq_cst: pairs with the load of a pass, after the receives of that pass */
        atomic_store_explicit(&lane->has_riders, true, memory_order_seq_cst);
        return true;
    }
    if (!atomic_load_explicit(&lane->has_riders, memory_order_relaxed)) /* lock */
        return false;
    for (struct rdti_op *rider = lane->cursor; rider != NULL;
         rider = verbs_tx_op_after(lane, rider))
        rider->has_ridden = rider->may_ride;
    return false;
}

static rdt_status
verbs_tx_check_blocks(const struct rdti_op *op, struct rdt_error *err)
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

rdt_status
rdti_verbs_start(struct rdti_lane *base, struct rdti_op *op, struct rdt_error *err)
{
    struct rdti_verbs_lane *lane = (struct rdti_verbs_lane *)base;
    struct tx_leftover left;
    rdt_status status = verbs_tx_check_blocks(op, err);

    if (status != RDT_OK)
        return status;
    memset(op->scratch, 0, sizeof(op->scratch));
    left.refused = NULL;
    left.asked_count = 0;
    (void)pthread_mutex_lock(&lane->lock);
    if (rdti_verbs_phase_of(lane) == RDTI_VERBS_FAILED)
        status = rdti_error_copy(err, &lane->error);
    else if (!lane->is_connected)
        status = rdti_error_set(err, RDT_EINVAL, 0, "verbs: operation on a lane before connect()");
    else if (op->remote.index != 0)
        status = rdti_verbs_check_stale(lane, op, err);
    if (status == RDT_OK) {
        rdti_list_append(&lane->ops, &op->link);
        (void)atomic_fetch_add_explicit(&lane->ops_open, 1, memory_order_acq_rel);
        if (!verbs_tx_rides(lane, op) && !verbs_tx_post_at_once(lane, op)) {
            if (lane->cursor == NULL)
                lane->cursor = op;
            (void)verbs_tx_pump_ready(lane, &left);
        }
    }
    (void)pthread_mutex_unlock(&lane->lock);
    if (verbs_tx_end_leftover(lane, &left))
        (void)rdti_verbs_push(lane);
    return status;
}
