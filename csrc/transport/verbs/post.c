/* SPDX-License-Identifier: Apache-2.0
 * Work requests: chained on their QP with a record of their purpose, and posted to the device. */
#include <assert.h>
#include <errno.h>

#include "transport/verbs/flag.h"
#include "transport/verbs/memory/memory.h"
#include "transport/verbs/post.h"

/* After a refusal the device gets no more requests: accepted and refused ones must stay
 * separate. */
void
rdti_verbs_flush_chain(struct rdti_verbs_qp *qp)
{
    struct rdti_verbs_link *link = qp->link;
    struct rdti_verbs_lane *lane = link->lane;
    struct ibv_send_wr *bad = NULL;
    const uint32_t count = qp->chain_count;

    qp->chain_count = 0;
    if (count == 0 || link->is_tx_out)
        return;
    for (uint32_t i = 0; i + 1 < count; i++)
        qp->chain[i].next = &qp->chain[i + 1];
    struct ibv_send_wr *last = &qp->chain[count - 1];
    last->next = NULL;
    /* RC completes in order: all requests before it are done, too. */
    last->send_flags |= IBV_SEND_SIGNALED;
    const int failed = lane->verbs->ops->post_send(qp->qp, qp->chain, &bad);
    if (failed == 0) {
        qp->tx_given += count;
        return;
    }
    link->tx_errno = failed > 0 ? failed : errno;
    qp->tx_given += bad > qp->chain && bad <= last ? (uint64_t)(bad - qp->chain) : 0;
    link->is_tx_out = true;
    lane->is_held = true;
    /* relaxed: a hint; the lock orders tx_errno */
    atomic_store_explicit(&lane->is_tx_broken, true, memory_order_relaxed);
}

void
rdti_verbs_flush_chains(struct rdti_verbs_lane *lane)
{
    for (uint32_t i = 0; i < lane->qp_count; i++)
        rdti_verbs_flush_chain(lane->qps[i]);
}

/* Adds a request to the QP's chain, numbered and recorded; there is room. */
static struct ibv_send_wr *
post_add_request(struct rdti_verbs_qp *qp, const struct rdti_verbs_record *record)
{
    if (qp->chain_count == RDTI_VERBS_CHAIN)
        rdti_verbs_flush_chain(qp);
    struct ibv_send_wr *wr = &qp->chain[qp->chain_count];
    struct ibv_sge *sge = qp->sges[qp->chain_count++];
    struct rdti_verbs_record *place = &qp->records[qp->tx_posted % RDTI_VERBS_SQ_DEPTH];
    *place = *record;
    place->imms = qp->tx_imms;
    qp->tx_imms += record->has_imm;
    /* Field by field: fields that are not set here or for bytes are initialized to zero. */
    wr->wr_id = rdti_verbs_wr_id(RDTI_VERBS_WR_TX, qp->index, qp->tx_posted);
    wr->sg_list = sge;
    wr->num_sge = 0;
    wr->send_flags = 0;
    wr->opcode = IBV_WR_RDMA_WRITE;
    if (record->is_read)
        wr->opcode = IBV_WR_RDMA_READ;
    else if (record->has_imm)
        wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    wr->imm_data = record->has_imm ? htobe32(record->imm) : 0;
    wr->wr.rdma.remote_addr = 0;
    wr->wr.rdma.rkey = 0;
    qp->tx_posted++;
    return wr;
}

/* Sets where the device finds the bytes: in the request, in registered memory, or on the stage. */
static void
post_attach_bytes(const struct rdti_verbs_qp *qp, const struct rdti_verbs_record *record,
                  struct ibv_send_wr *wr)
{
    const struct rdti_verbs_lane *lane = qp->link->lane;
    const uint32_t nic_index = qp->link->nic_index;

    wr->num_sge = 1;
    wr->sg_list->length = record->len_bytes;
    wr->sg_list->addr = (uintptr_t)record->local;
    wr->sg_list->lkey = 0;
    if (record->piece >= 0) {
        wr->sg_list->addr =
            (uintptr_t)(lane->stage + (uint64_t)record->piece * RDTI_VERBS_STAGE_BYTES);
        wr->sg_list->lkey = /* a removed device has none, and needs none */
            lane->stage_mrs[nic_index] != NULL ? lane->stage_mrs[nic_index]->lkey : 0;
        return;
    }
    if (!record->is_read &&
        rdti_verbs_is_inline(lane, record->len_bytes, record->tail_bytes != 0)) {
        wr->send_flags |= IBV_SEND_INLINE;
        return;
    }
    const rdt_status status = rdti_verbs_own_key(lane->verbs, record->local, record->len_bytes,
                                                 nic_index, &wr->sg_list->lkey);
    assert(status == RDT_OK); /* verbs_tx_cut() found it, and the arena's segments stay */
    (void)status;
}

/* Posts a request as its record describes. */
void
rdti_verbs_post_record(struct rdti_verbs_qp *qp, const struct rdti_verbs_record *record)
{
    struct ibv_send_wr *wr = post_add_request(qp, record);

    if (record->len_bytes == 0)
        return;
    wr->wr.rdma.remote_addr = record->remote_addr;
    wr->wr.rdma.rkey = record->rkeys[qp->link->peer_port];
    post_attach_bytes(qp, record, wr);
    if (record->tail_bytes != 0)
        rdti_verbs_attach_flag(qp, record, wr);
    rdti_count(&qp->link->lane->verbs->host->counters->wire_bytes, record->len_bytes);
}
