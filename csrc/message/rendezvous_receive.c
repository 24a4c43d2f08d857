/* SPDX-License-Identifier: Apache-2.0
 * The receiver of a rendezvous. In this order: read the source where it is mapped; read it
 * through the kernel where that is permitted; grant a place in the destination, or, where the
 * sender can write only into the arena, in a bounce buffer. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "base/memory/copy.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memory/pages.h"
#include "base/system/permit.h"
#include "message/checksum.h"
#include "message/mailbox_impl.h"
#include "message/request_impl.h"
#include "wire/notify.h"

/* One read under the engine's lock: about a millisecond. */
#define READ_SLICE_BYTES (UINT64_C(16) << 20)
/* The same through the kernel, which takes 135 us for it. */
#define PROCESS_SLICE_BYTES (UINT64_C(1) << 20)
/* Fits a level-two cache: one core writes it and another one reads it, over and over. */
#define BOUNCE_BYTES (UINT64_C(1) << 20)
/* Smaller ones are more often in memory that was used before. */
#define READ_POPULATE_FROM_BYTES (UINT64_C(16) << 20)

static void
rndv_receive_copy_error(struct rdti_request *receive, rdt_status status,
                        const struct rdt_error *err)
{
    if (err != NULL)
        receive->error = *err;
    else
        (void)rdti_error_set(&receive->error, status, 0, "the path broke");
    receive->error.status = status;
}

/* Ends a receive that the sender waits for. */
static void
rndv_receive_refuse(struct rdti_request *receive, const struct rdt_error *err)
{
    rdti_mailbox_nack(receive->mailbox, receive->id, RDTI_ID_IS_YOURS, err);
    rdti_request_finish(receive, (rdt_status)err->status, err);
}

/* Called before a part of its buffer is written here: faults the pages of a large receive in at
 * once. */
static void
rndv_receive_populate(struct rdti_request *receive, uint64_t off_bytes, uint64_t len_bytes)
{
    if (receive->len_bytes >= READ_POPULATE_FROM_BYTES)
        rdti_pages_populate((char *)receive->buf + off_bytes, len_bytes);
}

static void rndv_receive_begin_grant(struct rdti_mailbox *m, struct rdti_request *receive);

/* ---- Reading ----------------------------------------------------------------------------- */

static void
rndv_receive_on_read(struct rdti_op *op, rdt_status status, const struct rdt_error *err)
{
    struct rdt_transfer *t = RDTI_CONTAINER(op, struct rdt_transfer, op);
    struct rdti_request *receive = t->owner;
    struct rdti_engine *engine = receive->scope->ctx->engine;

    rdti_engine_enter(engine); /* a lane may complete in any thread */
    receive->ops--;
    if (status == RDT_OK) {
        receive->done_bytes += op->len_bytes;
    } else {
        receive->op_status = status;
        rndv_receive_copy_error(receive, status, err);
        if (status == RDT_EPEER)
            rdti_endpoint_on_lane_error(receive->mailbox->ep, &receive->error);
    }
    rdti_engine_leave(engine); /* the task goes on with it */
}

static void
rndv_receive_read_region(struct rdti_request *receive)
{
    const uint64_t left = receive->len_bytes - receive->done_bytes;
    struct rdt_transfer *t = receive->transfer;
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};

    t->op.kind = RDTI_OP_READ;
    t->op.traffic = RDTI_TRAFFIC_DYNAMIC;
    t->op.notify = RDTI_NOTIFY_NONE;
    t->op.remote = receive->rts.place.region;
    t->op.block = (struct rdt_block){.src = (char *)receive->buf + receive->done_bytes,
                                     .len_bytes = left < READ_SLICE_BYTES ? left : READ_SLICE_BYTES,
                                     .dst_off = receive->rts.place.off_bytes + receive->done_bytes};
    t->op.blocks = &t->op.block;
    t->op.block_count = 1;
    t->op.len_bytes = t->op.block.len_bytes;
    t->op.complete = rndv_receive_on_read;
    receive->ops++;
    rndv_receive_populate(receive, receive->done_bytes, t->op.len_bytes);
    const rdt_status status = rdti_endpoint_post(receive->mailbox->ep, t, &err);
    if (status != RDT_OK) {
        receive->ops--;
        receive->op_status = status;
        rndv_receive_copy_error(receive, status, &err);
    }
}

static void
rndv_receive_forbid_process(struct rdti_mailbox *m, uint32_t pid, const char *why)
{
    m->process_reach = RDTI_REACH_NO;
    rdti_log(RDT_LOG_INFO,
             "messages of rank %d from private memory take a second copy: process_vm_readv(%u): %s",
             (int)rdti_endpoint_rank(m->ep), pid, why);
}

/* Refused late: the sender made itself undumpable, or yama was raised. All of the message takes the
 * next path; its sender still waits for an answer to the RTS. */
static void
rndv_receive_leave_process(struct rdti_request *receive, const char *why)
{
    struct rdti_mailbox *m = receive->mailbox;

    rndv_receive_forbid_process(m, receive->rts.pid, why);
    rdti_list_remove(&receive->link);
    receive->done_bytes = receive->checked_bytes = 0;
    if (receive->is_nacked) { /* the sender answers no grant any more */
        struct rdt_error gone = {0};
        (void)rdti_error_set_rank(&gone, RDT_EPEER, rdti_endpoint_rank(m->ep),
                                  "the sender has cancelled the message");
        rndv_receive_refuse(receive, &gone);
        return;
    }
    rndv_receive_begin_grant(m, receive);
}

static void
rndv_receive_read_process(struct rdti_request *receive)
{
    const uint64_t left = receive->len_bytes - receive->done_bytes;
    const uint64_t len_bytes = left < PROCESS_SLICE_BYTES ? left : PROCESS_SLICE_BYTES;
    bool is_other = false;

    rndv_receive_populate(receive, receive->done_bytes, len_bytes);
    const ssize_t got = rdti_process_read(receive, len_bytes, &is_other);
    const int sys_errno = got < 0 ? errno : 0;

    if (got > 0 && !is_other) {
        receive->done_bytes += (uint64_t)got;
        rdti_count(&receive->scope->ctx->moved.moved_bytes[RDT_TRANSPORT_SHM][RDTI_TRAFFIC_DYNAMIC],
                   (uint64_t)got);
        return;
    }
    if (got < 0 && rdti_is_forbidden(sys_errno)) {
        rndv_receive_leave_process(receive, strerror(sys_errno));
        return;
    }
    rdti_process_fail(receive, got, sys_errno, is_other);
}

static bool
rndv_receive_wants_slice(const struct rdti_request *receive)
{
    return receive->ops == 0 && receive->op_status == RDT_OK && !receive->is_cancelled &&
           receive->done_bytes < receive->len_bytes;
}

static void
rndv_receive_end_read(struct rdti_request *receive)
{
    struct rdti_mailbox *m = receive->mailbox;

    if (receive->op_status != RDT_OK || receive->is_cancelled) {
        const struct rdt_error err = receive->error;
        rndv_receive_refuse(receive, &err);
        if (err.status == RDT_ECORRUPT)
            rdti_endpoint_fail(m->ep, &err, false);
        return;
    }
    rdti_mailbox_control(m, RDTI_MESSAGE_FIN, receive->id, RDTI_ID_IS_YOURS, 0, NULL, 0);
    rdti_request_finish(receive, RDT_OK, NULL);
}

/* A mismatch with the sums ends the receive, and the endpoint once the sender is notified. */
static void
rndv_receive_check_pulled(struct rdti_request *receive)
{
    receive->op_status = rdti_sums_check_receive(receive, &receive->error);
}

/* Advances the reads, the first one first, as far as `slices` and the lane allow. */
static void
rndv_receive_run_reads(struct rdti_mailbox *m, uint32_t slices)
{
    while (!rdti_list_is_empty(&m->pulls)) {
        struct rdti_request *receive = RDTI_CONTAINER(m->pulls.next, struct rdti_request, link);
        if (receive->ops > 0)
            return;
        if (receive->op_status == RDT_OK && !receive->is_cancelled)
            rndv_receive_check_pulled(receive);
        if (!rndv_receive_wants_slice(receive)) {
            rndv_receive_end_read(receive);
            continue;
        }
        if (slices-- == 0)
            return;
        if (receive->is_process)
            rndv_receive_read_process(receive);
        else
            rndv_receive_read_region(receive);
    }
}

static rdt_status
rndv_receive_step(void *arg)
{
    struct rdti_mailbox *m = arg;

    if (!m->is_destroyed) {
        rndv_receive_run_reads(m, 1);
        if (!rdti_list_is_empty(&m->pulls)) {
            const struct rdti_request *first =
                RDTI_CONTAINER(m->pulls.next, struct rdti_request, link);
            if (first->ops == 0)
                rdti_engine_go_on(m->ctx->engine);
            return RDT_EAGAIN;
        }
    }
    m->has_task = false;
    if (m->is_destroyed)
        rdti_mailbox_destroy(m);
    return RDT_OK;
}

static void
rndv_receive_begin_read(struct rdti_mailbox *m, struct rdti_request *receive, bool is_process)
{
    const bool is_first = rdti_list_is_empty(&m->pulls);
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};

    rdti_request_become(receive, RDTI_REQUEST_PULL);
    receive->is_process = is_process;
    receive->transfer->owner = receive;
    rdti_list_append(&m->pulls, &receive->link);
    if (is_first) /* most are done at once */
        rndv_receive_run_reads(m, 1);
    if (rdti_list_is_empty(&m->pulls) || m->has_task)
        return;
    if (rdti_engine_add_task(m->ctx->engine, rndv_receive_step, m, &err) != RDT_OK) {
        rdti_endpoint_fail(m->ep, &err, false); /* its end finishes those on the list */
        return;
    }
    m->has_task = true;
    rdti_engine_poke(m->ctx->engine);
}

/* Whether the kernel permits reading the process that the RTS names, and that it is the peer. */
static bool
rndv_receive_is_readable(struct rdti_mailbox *m, const struct rdti_rts *rts)
{
    uint64_t seen = 0;
    const struct iovec local = {&seen, sizeof(seen)};
    const struct iovec remote = {(void *)(uintptr_t)rts->canary_addr, sizeof(seen)};
    const bool is_known = m->peer_pid == rts->pid && m->peer_canary_addr == rts->canary_addr &&
                          m->peer_canary == rts->canary;

    if (m->process_reach == RDTI_REACH_NO || (m->process_reach == RDTI_REACH_YES && is_known))
        return m->process_reach == RDTI_REACH_YES;
    const ssize_t got = process_vm_readv((pid_t)rts->pid, &local, 1, &remote, 1, 0);
    const int sys_errno = errno;
    if (got == (ssize_t)sizeof(seen) && seen == rts->canary) {
        m->process_reach = RDTI_REACH_YES;
        m->peer_pid = rts->pid;
        m->peer_canary_addr = rts->canary_addr;
        m->peer_canary = rts->canary;
        return true;
    }
    rndv_receive_forbid_process(m, rts->pid,
                                got < 0 ? strerror(sys_errno)
                                        : "another process has this number here");
    return false;
}

/* ---- Granting ---------------------------------------------------------------------------- */

static rdt_status
rndv_receive_grant(struct rdti_request *receive, rdt_region *region, uint64_t off,
                   struct rdt_error *err)
{
    struct rdti_mailbox *m = receive->mailbox;
    struct rdti_place place = {.off_bytes = off};
    uint8_t body[RDTI_PLACE_BYTES];
    const rdt_status status = rdt_region_export(region, &place.region, err);

    if (status != RDT_OK)
        return status;
    rdti_place_encode(&place, body);
    rdti_list_remove(&receive->link);
    rdti_list_append(&m->granted, &receive->link);
    rdti_request_become(receive, RDTI_REQUEST_GRANTED);
    receive->region = region;
    rdti_mailbox_control(m, RDTI_MESSAGE_CTS, receive->id, 0, 0, body, sizeof(body));
    return RDT_OK;
}

/* The bounce buffer's next user, if it is free. */
static void
rndv_receive_grant_bounce(struct rdti_mailbox *m)
{
    while (!m->is_bounce_busy && !rdti_list_is_empty(&m->staging)) {
        struct rdti_request *receive = RDTI_CONTAINER(m->staging.next, struct rdti_request, link);
        struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
        rdt_status status = RDT_OK;
        if (m->bounce == NULL)
            status = rdti_regions_alloc(m->ctx->regions, BOUNCE_BYTES, 0, &m->bounce, &err);
        if (status == RDT_OK) {
            m->is_bounce_busy = true;
            receive->is_bounced = true;
            status = rndv_receive_grant(receive, m->bounce, 0, &err);
        }
        if (status == RDT_OK)
            return;
        m->is_bounce_busy = false;
        rndv_receive_refuse(receive, &err);
    }
}

static void
rndv_receive_on_drained(void *arg)
{
    struct rdti_request *receive = arg;
    struct rdti_engine *engine = receive->scope->ctx->engine;

    rdti_engine_enter(engine);
    rdti_request_finish(receive, receive->is_cancelled ? (rdt_status)receive->error.status : RDT_OK,
                        &receive->error);
    rdti_engine_leave(engine);
}

/* Nothing more comes, or may come. A cancelled receive ends with receive->error. */
static void
rndv_receive_end_grant(struct rdti_request *receive)
{
    struct rdti_mailbox *m = receive->mailbox;

    if (receive->is_bounced)
        m->is_bounce_busy = false;
    rdti_list_remove(&receive->link);
    if (receive->owns_region) {
        rdti_request_become(receive, RDTI_REQUEST_DRAINING);
        rdt_region_free(receive->region, rndv_receive_on_drained, receive);
    } else {
        rdti_request_finish(receive,
                            receive->is_cancelled ? (rdt_status)receive->error.status : RDT_OK,
                            &receive->error);
    }
    if (!m->has_ended)
        rndv_receive_grant_bounce(m);
}

static void
rndv_receive_cancel_grant(struct rdti_request *receive, const struct rdt_error *err)
{
    if (!receive->is_cancelled) {
        receive->is_cancelled = true;
        receive->error = *err;
    }
    rndv_receive_end_grant(receive);
}

static void
rndv_receive_begin_grant(struct rdti_mailbox *m, struct rdti_request *receive)
{
    const bool is_same_host = rdti_endpoint_caps(m->ep).is_same_host;
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    rdt_region *region = rdti_regions_find(m->ctx->regions, receive->buf, receive->len_bytes);
    rdt_status status = RDT_OK;
    uint32_t segment;
    uint64_t segment_off;

    if (is_same_host &&
        (region == NULL || rdti_arena_locate(m->ctx->arena, receive->buf, receive->len_bytes,
                                             &segment, &segment_off) != RDT_OK)) {
        rdti_request_become(receive, RDTI_REQUEST_STAGING);
        rdti_list_append(&m->staging, &receive->link);
        rndv_receive_grant_bounce(m);
        return;
    }
    if (region == NULL) {
        status =
            rdti_regions_lend(m->ctx->regions, receive->buf, receive->len_bytes, &region, &err);
        receive->owns_region = status == RDT_OK;
    }
    if (status == RDT_OK)
        status =
            rndv_receive_grant(receive, region,
                               (uint64_t)((char *)receive->buf - (char *)rdt_region_addr(region)),
                               &err);
    if (status == RDT_OK)
        return;
    if (receive->owns_region)
        rdt_region_free(region, NULL, NULL); /* it was not exported */
    rndv_receive_refuse(receive, &err);
}

/* ---- Events ------------------------------------------------------------------------------ */

static void
rndv_receive_cancel(struct rdti_request *receive, const struct rdt_error *err)
{
    struct rdti_mailbox *m = receive->mailbox;

    if (receive->is_cancelled || receive->state == RDTI_REQUEST_DRAINING)
        return;
    if (receive->state == RDTI_REQUEST_STAGING) {
        rndv_receive_refuse(receive, err);
        return;
    }
    receive->is_cancelled = true;
    receive->error = *err;
    if (receive->state == RDTI_REQUEST_PULL)
        return; /* the task sees it at the next slice */
    rdti_mailbox_nack(m, receive->id, RDTI_ID_IS_YOURS, err);
    if (receive->owns_region)
        rndv_receive_end_grant(receive); /* later writes of the peer are refused */
}

void
rdti_receive_begin(struct rdti_mailbox *m, struct rdti_request *receive,
                   const struct rdti_message *head, const struct rdti_rts *rts)
{
    const struct rdti_transport_caps caps = rdti_endpoint_caps(m->ep);

    receive->mailbox = m;
    receive->cancel = rndv_receive_cancel;
    receive->id = head->id;
    receive->len_bytes = head->len_bytes;
    if (head->len_bytes == 0) {
        rdti_mailbox_control(m, RDTI_MESSAGE_FIN, receive->id, RDTI_ID_IS_YOURS, 0, NULL, 0);
        rdti_request_finish(receive, RDT_OK, NULL);
        return;
    }
    if (receive->sums == NULL) { /* else it waited with them */
        receive->sums = m->offered_sums;
        m->offered_sums = NULL;
    }
    receive->rts = *rts;
    if (caps.can_map && rts->has_region && rts->place.region.segment != RDT_SEGMENT_NONE)
        rndv_receive_begin_read(m, receive, false);
    else if (caps.is_same_host && rts->has_process && rndv_receive_is_readable(m, rts))
        rndv_receive_begin_read(m, receive, true);
    else
        rndv_receive_begin_grant(m, receive);
}

/* Numbers and grants follow the same order: it is nearly always the first. */
static struct rdti_request *
rndv_receive_find(struct rdti_list *list, uint64_t id)
{
    for (struct rdti_list *node = list->next; node != list; node = node->next) {
        struct rdti_request *receive = RDTI_CONTAINER(node, struct rdti_request, link);
        if (receive->id == id)
            return receive;
    }
    return NULL;
}

/* All was written into the granted place. Except on one host, its sums came after each write. */
static bool
rndv_receive_check_granted(struct rdti_request *receive, struct rdt_error *err)
{
    const rdt_endpoint *ep = receive->mailbox->ep;

    if (!rdti_context_verifies(receive->scope->ctx))
        return true;
    receive->done_bytes = receive->len_bytes;
    if (rdti_sums_check_receive(receive, err) != RDT_OK)
        return false;
    if (receive->checked_bytes >= receive->len_bytes)
        return true;
    (void)rdti_error_set_rank(err, RDT_EPROTO, rdti_endpoint_rank(ep),
                              "rank %d ended a message of %llu bytes and summed %llu of them",
                              (int)rdti_endpoint_rank(ep), (unsigned long long)receive->len_bytes,
                              (unsigned long long)receive->checked_bytes);
    return false;
}

static void
rndv_receive_corrupted(struct rdti_request *receive, const struct rdt_error *err)
{
    rdt_endpoint *ep = receive->mailbox->ep;

    rdti_mailbox_nack(receive->mailbox, receive->id, RDTI_ID_IS_YOURS, err);
    rndv_receive_cancel_grant(receive, err);
    rdti_endpoint_fail(ep, err, false);
}

void
rdti_receive_on_fin(struct rdti_mailbox *m, uint64_t id)
{
    struct rdti_request *receive = rndv_receive_find(&m->granted, id);
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};

    if (receive == NULL)
        return;
    if (!receive->is_bounced && !receive->is_cancelled &&
        !rndv_receive_check_granted(receive, &err)) {
        rndv_receive_corrupted(receive, &err);
        return;
    }
    if (receive->is_bounced && !receive->is_cancelled) {
        const uint64_t left = receive->len_bytes - receive->done_bytes;
        const uint64_t len_bytes = left < BOUNCE_BYTES ? left : BOUNCE_BYTES;
        rndv_receive_populate(receive, receive->done_bytes, len_bytes);
        rdti_copy((char *)receive->buf + receive->done_bytes, rdt_region_addr(m->bounce), len_bytes,
                  RDTI_COPY_TO_OWN);
        rdti_count(&m->ctx->counters.copied_bytes[RDTI_TRAFFIC_DYNAMIC], len_bytes);
        receive->done_bytes += len_bytes;
        if (rdti_sums_check_receive(receive, &err) != RDT_OK) {
            rndv_receive_corrupted(receive, &err);
            return;
        }
        if (receive->done_bytes < receive->len_bytes) {
            if (rndv_receive_grant(receive, m->bounce, 0, &err) != RDT_OK) {
                rdti_mailbox_nack(m, id, RDTI_ID_IS_YOURS, &err);
                rndv_receive_cancel_grant(receive, &err);
            }
            return;
        }
    }
    rndv_receive_end_grant(receive);
}

static void
rndv_receive_drop_offer(struct rdti_mailbox *m, uint64_t id, const struct rdt_error *why)
{
    for (struct rdti_list *node = m->arrivals.next; node != &m->arrivals; node = node->next) {
        struct rdti_arrival *arrival = RDTI_CONTAINER(node, struct rdti_arrival, mailbox_link);
        if (arrival->head.kind != RDTI_MESSAGE_RTS || arrival->head.id != id)
            continue;
        rdti_arrival_drop(arrival, why);
        return;
    }
}

void
rdti_receive_on_nack(struct rdti_mailbox *m, uint64_t id, const struct rdt_error *why)
{
    struct rdti_request *receive = rndv_receive_find(&m->granted, id);

    if (receive == NULL)
        receive = rndv_receive_find(&m->staging, id);
    if (receive != NULL) {
        const bool is_staged = receive->state == RDTI_REQUEST_STAGING;
        rdti_mailbox_nack(m, id, RDTI_ID_IS_YOURS, why);
        rdti_mailbox_note_cause(m, receive->scope, why);
        if (is_staged)
            rdti_request_finish(receive, (rdt_status)why->status, why);
        else
            rndv_receive_cancel_grant(receive, why);
        return;
    }
    receive = rndv_receive_find(&m->pulls, id);
    if (receive == NULL)
        rndv_receive_drop_offer(m, id, why);
    else /* it ends by itself, and answers then, unless it must take another path */
        receive->is_nacked = true;
}

static void
rndv_receive_end_all(struct rdti_list *receives, const struct rdt_error *err)
{
    while (!rdti_list_is_empty(receives)) {
        struct rdti_request *receive = RDTI_CONTAINER(receives->next, struct rdti_request, link);
        const struct rdt_error *why = receive->is_cancelled ? &receive->error : err;
        rdti_request_finish(receive, (rdt_status)why->status, why);
    }
}

void
rdti_receive_on_ended(struct rdti_mailbox *m, const struct rdt_error *err)
{
    rndv_receive_end_all(&m->staging, err);
    rndv_receive_end_all(&m->pulls, err);
    while (!rdti_list_is_empty(&m->granted))
        rndv_receive_cancel_grant(RDTI_CONTAINER(m->granted.next, struct rdti_request, link), err);
}
