/* SPDX-License-Identifier: Apache-2.0
 * The sim's data path: queues of QPs, the wire that empties them, completions. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"
#include "sim/sim_impl.h"

#define RETRY_NS UINT64_C(100000000)
#define RNR_NS UINT64_C(640000) /* min_rnr_timer 12 */
#define PIECE_BYTES 128         /* of a write that lands out of order, or slowly */

/* ---- Completions ---------------------------------------------------------------------------- */

static void
signal_channel(struct sim_cq *cq)
{
    struct ibv_cq *base = &cq->cq;

    if (!cq->is_armed || cq->channel->write_fd < 0)
        return;
    cq->is_armed = false;
    CHECK_INT_EQ(write(cq->channel->write_fd, &base, sizeof(base)), sizeof(base));
}

static void
push_completion(struct sim_cq *cq, const struct ibv_wc *wc)
{
    const uint32_t copies = sim_random(100) < sim.config.duplicates ? 2 : 1;

    for (uint32_t i = 0; i < copies && cq->count < 2 * cq->depth; i++)
        cq->ring[(cq->first + cq->count++) % (2 * cq->depth)] = *wc;
    CHECK_MSG(copies == 2 || sim.config.duplicates > 0 || cq->count <= cq->depth,
              "a CQ of %u entries overran", cq->depth);
    signal_channel(cq);
}

void
sim_drop_completions(struct sim_cq *cq, uint32_t qp_num)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < cq->count; i++) {
        const struct ibv_wc wc = cq->ring[(cq->first + i) % (2 * cq->depth)];
        if (wc.qp_num != qp_num)
            cq->ring[(cq->first + kept++) % (2 * cq->depth)] = wc;
    }
    cq->count = kept;
}

uint64_t
sim_untaken(const struct sim_cq *cq, uint32_t qp_num)
{
    uint64_t count = 0;

    for (uint32_t i = 0; i < cq->count; i++) {
        const struct ibv_wc *wc = &cq->ring[(cq->first + i) % (2 * cq->depth)];

        count += wc->qp_num == qp_num &&
                 (wc->opcode == IBV_WC_RDMA_WRITE || wc->opcode == IBV_WC_RDMA_READ);
    }
    return count;
}

static void
complete_send(struct sim_qp *qp, const struct ibv_send_wr *wr, enum ibv_wc_status status)
{
    const struct ibv_wc wc = {
        .wr_id = wr->wr_id,
        .status = status,
        .opcode = wr->opcode == IBV_WR_RDMA_READ ? IBV_WC_RDMA_READ : IBV_WC_RDMA_WRITE,
        .vendor_err = status == IBV_WC_SUCCESS ? 0 : 0x51,
        .qp_num = qp->qp.qp_num,
    };

    if (status != IBV_WC_SUCCESS || (wr->send_flags & IBV_SEND_SIGNALED) != 0 ||
        qp->init.sq_sig_all != 0)
        push_completion((struct sim_cq *)qp->init.send_cq, &wc);
}

void
sim_empty_qp(struct sim_qp *qp)
{
    qp->send_count = 0;
    qp->send_unanswered = 0;
    qp->receive_count = 0;
    sim_drop_completions((struct sim_cq *)qp->init.send_cq, qp->qp.qp_num);
}

void
sim_to_error(struct sim_qp *qp)
{
    const uint32_t send_cap = qp->init.cap.max_send_wr;
    const uint32_t receive_cap = qp->init.cap.max_recv_wr;

    if (qp->attr.qp_state == IBV_QPS_RESET)
        return;
    qp->attr.qp_state = IBV_QPS_ERR;
    qp->send_unanswered = 0;
    for (; qp->send_count > 0; qp->send_count--, qp->send_first = (qp->send_first + 1) % send_cap)
        complete_send(qp, &qp->sends[qp->send_first].wr, IBV_WC_WR_FLUSH_ERR);
    for (; qp->receive_count > 0;
         qp->receive_count--, qp->receive_first = (qp->receive_first + 1) % receive_cap) {
        const struct ibv_wc wc = {.wr_id = qp->receives[qp->receive_first].wr_id,
                                  .status = IBV_WC_WR_FLUSH_ERR,
                                  .opcode = IBV_WC_RECV,
                                  .qp_num = qp->qp.qp_num};
        push_completion((struct sim_cq *)qp->init.recv_cq, &wc);
    }
}

/* ---- The wire ------------------------------------------------------------------------------- */

/* The QP that a packet reaches where no cable is cut. */
static struct sim_qp *
reach(const struct sim_qp *qp)
{
    struct sim_qp *peer = sim_find_peer(qp);

    return peer == NULL || qp->device->is_cut || peer->device->is_cut ? NULL : peer;
}

static struct sim_mr *
find_mr(const struct sim_qp *qp, uint32_t key, uint64_t addr, uint64_t len_bytes,
        unsigned int access)
{
    struct sim_mr *mr = key >= 1 && key <= SIM_MRS_MAX ? sim.mrs[key - 1] : NULL;
    const uint64_t begin = mr != NULL ? (uintptr_t)mr->mr.addr : 0;

    if (mr == NULL || mr->mr.pd != qp->qp.pd || (mr->access & access) != access || addr < begin ||
        len_bytes > mr->mr.length || addr - begin > mr->mr.length - len_bytes)
        return NULL;
    return mr;
}

/* A device's stores, as a CPU that looks at the memory meanwhile sees them. In order: all bytes,
 * after them the last word, if it is aligned. Pieces that come in any order are looked at by
 * whoever must not, so that the stores are atomic to be no race: what is read is wrong all the
 * same. */
static void
place(uint8_t *to, const uint8_t *from, size_t len_bytes)
{
    const size_t word_bytes =
        len_bytes >= sizeof(uint64_t) && ((uintptr_t)to + len_bytes) % sizeof(uint64_t) == 0
            ? sizeof(uint64_t)
            : 0;
    const size_t head_bytes = len_bytes - word_bytes;
    uint64_t word;

    if (sim.config.is_scattering)
        for (size_t i = 0; i < head_bytes; i++) /* relaxed: the word's store orders them */
            atomic_store_explicit((_Atomic uint8_t *)to + i, from[i], memory_order_relaxed);
    else
        memcpy(to, from, head_bytes);
    if (word_bytes == 0)
        return;
    memcpy(&word, from + head_bytes, sizeof(word));
    /* release: pairs with the acquire of whoever looks for a flag */
    atomic_store_explicit((_Atomic uint64_t *)(void *)(to + head_bytes), word,
                          memory_order_release);
}

static void
pause_between_pieces(void)
{
    const struct timespec pause = {.tv_nsec = (long)sim_random(sim.config.piece_us * 1000)};

    if (sim.config.piece_us == 0)
        return;
    sim.is_placing = true;
    sim_unlock();
    (void)nanosleep(&pause, NULL);
    sim_lock();
    sim.is_placing = false;
    CHECK_INT_EQ(pthread_cond_broadcast(&sim.placed), 0);
}

/* Blocks of the target's memory; the first and the last may be shorter. */
static void
copy(uint8_t *to, const uint8_t *from, size_t len_bytes)
{
    const size_t lead = (uintptr_t)to % PIECE_BYTES;
    const size_t pieces = (lead + len_bytes + PIECE_BYTES - 1) / PIECE_BYTES;

    if ((!sim.config.is_scattering && sim.config.piece_us == 0) || pieces < 2) {
        place(to, from, len_bytes);
        return;
    }
    /* A walk by a random odd stride over a power of two meets every piece once. */
    size_t span = 1;
    while (span < pieces)
        span *= 2;
    const size_t stride = sim.config.is_scattering ? 2 * sim_random(span) + 1 : 1;
    const size_t first = sim.config.is_scattering ? sim_random(span) : 0;
    for (size_t i = 0, at = first; i < span; i++, at = (at + stride) % span) {
        const size_t begin = at == 0 ? 0 : at * PIECE_BYTES - lead;
        const size_t end = (at + 1) * PIECE_BYTES - lead;

        if (at >= pieces)
            continue;
        place(to + begin, from + begin, (end < len_bytes ? end : len_bytes) - begin);
        pause_between_pieces();
    }
}

uint32_t
sim_send_bytes(const struct sim_send *send)
{
    uint32_t len = 0;

    for (int i = 0; i < send->wr.num_sge; i++)
        len += send->sges[i].length;
    return len;
}

/* A write's bytes, in one piece: where they are, or gathered in *made, which the caller frees.
 * NULL: not registered. */
static const uint8_t *
gather(const struct sim_qp *qp, const struct sim_send *send, uint8_t **made)
{
    uint64_t at = 0;

    if ((send->wr.send_flags & IBV_SEND_INLINE) != 0)
        return send->inlined;
    for (int i = 0; i < send->wr.num_sge; i++)
        if (find_mr(qp, send->sges[i].lkey, send->sges[i].addr, send->sges[i].length, 0) == NULL)
            return NULL;
    if (send->wr.num_sge == 1)
        return (const uint8_t *)(uintptr_t)send->sges[0].addr;
    *made = malloc(sim_send_bytes(send));
    CHECK_NOT_NULL(*made);
    for (int i = 0; i < send->wr.num_sge; at += send->sges[i++].length)
        memcpy(*made + at, (const void *)(uintptr_t)send->sges[i].addr, send->sges[i].length);
    return *made;
}

static enum ibv_wc_status
read_remote(struct sim_qp *qp, struct sim_qp *peer, const struct sim_send *send)
{
    const struct ibv_sge *sge = &send->sges[0];
    const uint64_t remote = send->wr.wr.rdma.remote_addr;

    if (find_mr(qp, sge->lkey, sge->addr, sge->length, IBV_ACCESS_LOCAL_WRITE) == NULL)
        return IBV_WC_LOC_PROT_ERR;
    if (find_mr(peer, send->wr.wr.rdma.rkey - SIM_RKEYS_FROM, remote, sge->length,
                IBV_ACCESS_REMOTE_READ) == NULL)
        return IBV_WC_REM_ACCESS_ERR;
    copy((uint8_t *)(uintptr_t)sge->addr, (const uint8_t *)(uintptr_t)remote, sge->length);
    return IBV_WC_SUCCESS;
}

static enum ibv_wc_status
move(struct sim_qp *qp, struct sim_qp *peer, const struct sim_send *send)
{
    const uint64_t len = sim_send_bytes(send);
    const uint64_t remote = send->wr.wr.rdma.remote_addr;

    if (len == 0)
        return IBV_WC_SUCCESS;
    if (send->wr.opcode == IBV_WR_RDMA_READ)
        return read_remote(qp, peer, send);
    uint8_t *made = NULL;
    const uint8_t *bytes = gather(qp, send, &made);
    if (bytes == NULL)
        return IBV_WC_LOC_PROT_ERR;
    const bool is_allowed = find_mr(peer, send->wr.wr.rdma.rkey - SIM_RKEYS_FROM, remote, len,
                                    IBV_ACCESS_REMOTE_WRITE) != NULL;
    if (is_allowed)
        copy((uint8_t *)(uintptr_t)remote, bytes, len);
    free(made);
    return is_allowed ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR;
}

static void
notify(struct sim_qp *peer, const struct sim_send *send)
{
    const struct ibv_wc wc = {
        .wr_id = peer->receives[peer->receive_first].wr_id,
        .status = IBV_WC_SUCCESS,
        .opcode = IBV_WC_RECV_RDMA_WITH_IMM,
        .imm_data = send->wr.imm_data,
        .byte_len = sim_send_bytes(send),
        .wc_flags = IBV_WC_WITH_IMM,
        .qp_num = peer->qp.qp_num,
    };

    peer->receive_first = (peer->receive_first + 1) % peer->init.cap.max_recv_wr;
    peer->receive_count--;
    push_completion((struct sim_cq *)peer->init.recv_cq, &wc);
}

/* Whether a request that cannot go now has been tried long enough. */
static bool
is_given_up(const struct sim_qp *qp, struct sim_send *send, uint64_t limit_ns)
{
    const uint64_t now_ns = test_now_ns();

    if (qp->device->is_removed) { /* nobody is there to say so */
        send->not_before_ns = UINT64_MAX;
        return false;
    }

    if (send->failing_since_ns == 0)
        send->failing_since_ns = now_ns;
    send->not_before_ns = now_ns + limit_ns / 8;
    return now_ns - send->failing_since_ns >= limit_ns;
}

static void
end_head(struct sim_qp *qp, enum ibv_wc_status status)
{
    const struct ibv_send_wr wr = qp->sends[qp->send_first].wr;

    qp->send_first = (qp->send_first + 1) % qp->init.cap.max_send_wr;
    qp->send_count--;
    sim.executed++;
    for (uint32_t i = 0; i < SIM_DEVICES_MAX; i++)
        sim.devices[i].is_cut |=
            sim.devices[i].cut_at != 0 && sim.executed >= sim.devices[i].cut_at;
    complete_send(qp, &wr, status);
    if (status != IBV_WC_SUCCESS)
        sim_to_error(qp);
}

/* A request crosses just before the cable goes, and its answer does not. What a read brought is
 * lost with it. */
static bool
cross_unanswered(struct sim_qp *qp)
{
    struct sim_qp *peer = sim_find_peer(qp);

    if (!qp->device->is_cut || qp->device->unanswered == 0 || peer == NULL ||
        qp->send_unanswered == qp->send_count)
        return false;
    const struct sim_send *send =
        &qp->sends[(qp->send_first + qp->send_unanswered) % qp->init.cap.max_send_wr];
    const bool has_imm = send->wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    if (has_imm && peer->receive_count == 0)
        return false;
    if (send->wr.opcode != IBV_WR_RDMA_READ && move(qp, peer, send) != IBV_WC_SUCCESS)
        return false;
    if (has_imm)
        notify(peer, send);
    qp->send_unanswered++;
    qp->device->unanswered--;
    return true;
}

static uint64_t
retry_ns_of(const struct sim_qp *qp)
{
    if (sim.config.has_own_retry)
        return (UINT64_C(4096) << qp->attr.timeout) * (qp->attr.retry_cnt + 1u);
    return sim.config.retry_ns != 0 ? sim.config.retry_ns : RETRY_NS;
}

static void
execute(struct sim_qp *qp)
{
    struct sim_send *send = &qp->sends[qp->send_first];
    struct sim_qp *peer = reach(qp);
    enum ibv_wc_status status = IBV_WC_SUCCESS;

    if (sim.break_next != IBV_WC_SUCCESS) {
        status = sim.break_next;
        sim.break_next = IBV_WC_SUCCESS;
        end_head(qp, status);
        return;
    }
    if (peer == NULL) {
        /* As rxe has it: seven retries are for ever. */
        if (is_given_up(qp, send, retry_ns_of(qp)) && qp->attr.retry_cnt < 7)
            end_head(qp, IBV_WC_RETRY_EXC_ERR);
        return;
    }
    if (send->wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM && peer->receive_count == 0) {
        sim.counts.starved++;
        if (is_given_up(qp, send, RNR_NS * (qp->attr.rnr_retry + 1u)))
            end_head(qp, IBV_WC_RNR_RETRY_EXC_ERR);
        return;
    }
    status = move(qp, peer, send);
    if (status == IBV_WC_SUCCESS && send->wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
        notify(peer, send);
    if (status == IBV_WC_REM_ACCESS_ERR)
        sim_to_error(peer);
    end_head(qp, status);
}

/* One request of a random QP that has one due. Returns false if none has. */
static bool
turn(void)
{
    const uint32_t begin = (uint32_t)sim_random(SIM_QPS_MAX);
    const uint64_t now_ns = test_now_ns();

    for (uint32_t i = 0; i < SIM_QPS_MAX; i++) {
        struct sim_qp *qp = sim.qps[(begin + i) % SIM_QPS_MAX];

        if (qp == NULL || qp->attr.qp_state != IBV_QPS_RTS || qp->send_count == 0 ||
            qp->sends[qp->send_first].not_before_ns > now_ns)
            continue;
        if (!cross_unanswered(qp))
            execute(qp);
        return true;
    }
    return false;
}

static bool
has_requests(void)
{
    for (uint32_t i = 0; i < SIM_QPS_MAX; i++)
        if (sim.qps[i] != NULL && sim.qps[i]->send_count > 0)
            return true;
    return false;
}

static void *
run_wire(void *arg)
{
    const struct timespec pause = {.tv_nsec = 20000};

    (void)arg;
    sim_lock();
    while (!sim.is_stopping) {
        if (turn())
            continue;
        if (!has_requests()) {
            CHECK_INT_EQ(pthread_cond_wait(&sim.work, &sim.lock), 0);
            continue;
        }
        sim_unlock(); /* requests are there, but not due */
        (void)nanosleep(&pause, NULL);
        sim_lock();
    }
    sim_unlock();
    return NULL;
}

void
sim_start_wire(void)
{
    sim.is_stopping = false;
    CHECK_INT_EQ(pthread_create(&sim.wire, NULL, run_wire, NULL), 0);
    sim.is_wire_running = true;
}

void
sim_stop_wire(void)
{
    sim_lock();
    sim.is_stopping = true;
    CHECK_INT_EQ(pthread_cond_signal(&sim.work), 0);
    sim_unlock();
    CHECK_INT_EQ(pthread_join(sim.wire, NULL), 0);
    sim.is_wire_running = false;
}

/* ---- Calls of the data path ----------------------------------------------------------------- */

int
sim_poll_cq(struct ibv_cq *base, int count, struct ibv_wc *wc)
{
    struct sim_cq *cq = (struct sim_cq *)base;
    int taken = 0;

    sim_lock();
    if (sim_is_failing_by_name("poll_cq")) {
        sim_unlock();
        return -1;
    }
    for (; taken < count && cq->count > 0; taken++, cq->count--) {
        wc[taken] = cq->ring[cq->first];
        cq->first = (cq->first + 1) % (2 * cq->depth);
    }
    sim_unlock();
    return taken;
}

int
sim_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
    CHECK_INT_EQ(solicited_only, 0);
    sim_lock();
    const int failed = sim_refuses(cq->context, "req_notify_cq") ? errno : 0;
    ((struct sim_cq *)cq)->is_armed |= failed == 0;
    sim_unlock();
    return failed;
}

static int
queue_send(struct sim_qp *qp, const struct ibv_send_wr *wr)
{
    const uint32_t cap = qp->init.cap.max_send_wr;
    uint64_t at = 0;

    if (qp->attr.qp_state != IBV_QPS_RTS && qp->attr.qp_state != IBV_QPS_ERR)
        return EINVAL;
    if (qp->send_count == cap)
        return ENOMEM;
    CHECK_UINT_LE((uint32_t)wr->num_sge, qp->init.cap.max_send_sge);
    struct sim_send *send = &qp->sends[(qp->send_first + qp->send_count++) % cap];
    send->wr = *wr;
    send->wr.next = NULL;
    for (int i = 0; i < wr->num_sge; i++)
        send->sges[i] = wr->sg_list[i];
    const uint64_t len = sim_send_bytes(send);
    CHECK_UINT_LE(len, sim.config.max_msg_bytes != 0 ? sim.config.max_msg_bytes : 8u << 20);
    sim.counts.requests++;
    sim.counts.signalled += (wr->send_flags & IBV_SEND_SIGNALED) != 0;
    sim.counts.inlined += (wr->send_flags & IBV_SEND_INLINE) != 0 && len > 0;
    sim.counts.bare += len == 0;
    send->failing_since_ns = 0;
    send->not_before_ns =
        sim.config.delay_us == 0 ? 0 : test_now_ns() + sim_random(sim.config.delay_us * 1000);
    if ((wr->send_flags & IBV_SEND_INLINE) != 0 && len > 0) {
        CHECK_UINT_LE(len, qp->init.cap.max_inline_data);
        for (int i = 0; i < wr->num_sge; at += wr->sg_list[i++].length)
            memcpy(send->inlined + at, (const void *)(uintptr_t)wr->sg_list[i].addr,
                   wr->sg_list[i].length);
    }
    if (qp->attr.qp_state == IBV_QPS_ERR)
        sim_to_error(qp);
    return 0;
}

int
sim_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    int failed = 0;

    sim_lock();
    if (sim_refuses(qp->context, "post_send")) {
        failed = errno;
        *bad = wr;
    }
    for (; failed == 0 && wr != NULL; wr = wr->next) {
        failed = queue_send((struct sim_qp *)qp, wr);
        *bad = wr;
    }
    CHECK_INT_EQ(pthread_cond_signal(&sim.work), 0);
    sim_unlock();
    return failed;
}

int
sim_post_recv(struct ibv_qp *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct sim_qp *qp = (struct sim_qp *)base;
    const uint32_t cap = qp->init.cap.max_recv_wr;
    int failed = 0;

    sim_lock();
    if (sim_refuses(base->context, "post_recv")) {
        failed = errno;
        *bad = wr;
    }
    for (; failed == 0 && wr != NULL; wr = wr->next) {
        if (qp->receive_count == cap || qp->attr.qp_state == IBV_QPS_RESET) {
            failed = ENOMEM;
            *bad = wr;
            break;
        }
        qp->receives[(qp->receive_first + qp->receive_count++) % cap] = *wr;
        if (qp->attr.qp_state == IBV_QPS_ERR)
            sim_to_error(qp);
    }
    sim_unlock();
    return failed;
}
