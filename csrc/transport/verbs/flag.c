/* SPDX-License-Identifier: Apache-2.0
 * Flags: the notification as a word in memory, written by the request that writes the bytes, and
 * found by polling. It saves the receive, the immediate and the completion of each tensor.
 *
 * Use. A device guarantees an order only within one request, and only the receiving side knows it
 * (ibv_query_qp_data_in_order). So the receiver sends a FLAGS word to its peer when it polls for
 * flags. The sender uses a flag for bytes that it writes in one request, if all bytes before them
 * were announced; everything else uses an immediate. Several QPs are not ordered with each other,
 * so lanes that have them use immediates.
 *
 * Order. A flag has the number of immediates sent before it, and waits for them. Later immediates
 * do not overtake it: when an immediate has arrived, all earlier writes are in place, and flags are
 * polled first. Two flags of two slots may be seen in either order.
 *
 * Sleep. A flag wakes no thread. While a flag is expected, arm() sets a timer, so that no sleep is
 * longer than RDTI_VERBS_FLAG_NAP_NS. Nothing can hang, whatever the peer assumes. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/error.h"
#include "base/system/fork.h"
#include "base/log.h"
#include "base/range.h"
#include "transport/verbs/flag.h"
#include "transport/verbs/memory/memory.h"
#include "transport/verbs/lane.h"
#include "wire/bytes.h"
#include "wire/notify.h"

#define FLAG_BLOCK_BYTES 128 /* of RDTI_VERBS_FLAGS_128 */

/* Newer libraries accept this; an older one answers only for the whole message, or not at all. */
#define ASK_FOR_CAPS 1u
#define CAP_WHOLE 1
#define CAP_128 2

/* ---- Naps ----------------------------------------------------------------------------------- */

static void
flag_on_timer(void *arg, uint32_t epoll_events)
{
    struct rdti_verbs *verbs = arg;
    uint64_t count;

    (void)epoll_events;
    if (read(verbs->flag_timer_fd, &count, sizeof(count)) == (ssize_t)sizeof(count))
        verbs->is_flag_timer_set = false;
}

rdt_status
rdti_verbs_open_flags(struct rdti_verbs *verbs, struct rdt_error *err)
{
    const struct rdti_host *host = verbs->host;

    if (verbs->settings.notify == RDTI_VERBS_IMM)
        return RDT_OK;
    verbs->flag_timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (verbs->flag_timer_fd < 0)
        return rdti_error_set(err, RDT_EDEVICE, errno, "timerfd_create");
    (void)rdti_fork_close_add(verbs->flag_timer_fd);
    const rdt_status status = host->watch(host->core, verbs->flag_timer_fd, EPOLLIN, flag_on_timer,
                                          verbs, &verbs->flag_watch, err);
    if (status != RDT_OK)
        rdti_verbs_close_flags(verbs);
    return status;
}

void
rdti_verbs_close_flags(struct rdti_verbs *verbs)
{
    const struct rdti_host *host = verbs->host;

    if (verbs->flag_watch != NULL)
        host->unwatch(host->core, verbs->flag_watch);
    verbs->flag_watch = NULL;
    if (verbs->flag_timer_fd < 0)
        return;
    rdti_fork_close_remove(verbs->flag_timer_fd);
    (void)close(verbs->flag_timer_fd);
    verbs->flag_timer_fd = -1;
}

void
rdti_verbs_arm_flags(struct rdti_verbs *verbs)
{
    const struct itimerspec nap = {.it_value.tv_nsec = RDTI_VERBS_FLAG_NAP_NS};
    bool is_wanted = false;

    if (verbs->flag_timer_fd < 0 || verbs->is_flag_timer_set)
        return;
    for (struct rdti_list *at = verbs->lanes.next; at != &verbs->lanes; at = at->next)
        is_wanted |= !rdti_list_is_empty(&RDTI_CONTAINER(at, struct rdti_verbs_lane, node)->flags);
    /* It cannot fail; if it did, the engine's own slices would still end the sleep. */
    if (is_wanted)
        verbs->is_flag_timer_set = timerfd_settime(verbs->flag_timer_fd, 0, &nap, NULL) == 0;
}

/* ---- Agreement ------------------------------------------------------------------------------ */

/* RDTI_VERBS_FLAGS_*, or 0. */
static uint8_t
flag_promised(const struct rdti_verbs_lane *lane)
{
    const struct rdti_verbs_ops *ops = lane->verbs->ops;
    struct ibv_qp *qp = lane->qps[0]->qp;

    if (ops->query_qp_data_in_order == NULL)
        return 0;
    if (ops->query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 0) > 0)
        return RDTI_VERBS_FLAGS_WHOLE;
    const int caps = ops->query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, ASK_FOR_CAPS);
    if (caps > 0 && (caps & CAP_WHOLE) != 0)
        return RDTI_VERBS_FLAGS_WHOLE;
    return caps > 0 && (caps & CAP_128) != 0 ? RDTI_VERBS_FLAGS_128 : 0;
}

static void
flag_use_peer_flags(struct rdti_verbs_lane *lane)
{
    const size_t len = (size_t)RDTI_VERBS_SQ_DEPTH * RDTI_VERBS_TAIL_BYTES;
    struct rdt_error why;

    if (lane->peer_flags == 0 || lane->verbs->settings.notify == RDTI_VERBS_IMM ||
        rdti_verbs_phase_of(lane) != RDTI_VERBS_READY || lane->qp_count != 1 ||
        lane->qps[0]->link->nic->segments < 2)
        return;
    /* Shared like the stage: a forked child gets no copy of its pages. */
    void *tails = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    rdt_status status = RDT_OK;
    if (tails == MAP_FAILED)
        status = rdti_error_set(&why, RDT_ENOMEM, errno, "mmap of %zu bytes", len);
    else
        status = rdti_verbs_register(lane->qps[0]->link->nic, tails, len, IBV_ACCESS_LOCAL_WRITE,
                                     &lane->tails_mr, &why);
    if (status != RDT_OK) {
        rdti_log(RDT_LOG_WARN, "verbs: rank %d is notified by immediates, not by flags: %s",
                 lane->args.peer_rank, why.message);
        if (tails != MAP_FAILED)
            (void)munmap(tails, len);
        return;
    }
    rdti_count(&lane->verbs->host->counters->registered_bytes, len);
    (void)pthread_mutex_lock(&lane->lock);
    lane->tails = tails;
    lane->tails_nic = lane->qps[0]->link->nic;
    lane->tx_flags = lane->peer_flags;
    (void)pthread_mutex_unlock(&lane->lock);
}

void
rdti_verbs_agree_flags(struct rdti_verbs_lane *lane)
{
    const struct rdti_verbs_settings *settings = &lane->verbs->settings;
    const char *device = lane->qps[0]->link->nic->name;

    uint8_t flags = flag_promised(lane);
    lane->is_in_order = flags != 0;
    if (settings->notify == RDTI_VERBS_IMM)
        return;
    if (lane->qp_count > 1) {
        lane->why_no_flag = "several QPs keep no order among each other";
    } else if (lane->qps[0]->link->nic->segments < 2) {
        lane->why_no_flag = "the device's requests have one segment, and a flag needs a second";
    } else if (flags == 0 && settings->is_flag_unsafe) {
        rdti_log(RDT_LOG_WARN,
                 "verbs: flags on %s, which does not promise to write in order: "
                 "RDMATENSOR_VERBS_FLAG_UNSAFE is set, and tensors may be read too early",
                 device);
        flags = RDTI_VERBS_FLAGS_WHOLE;
    } else if (flags == 0) {
        lane->why_no_flag = lane->verbs->ops->query_qp_data_in_order == NULL
                                ? "libibverbs is too old to say whether the device writes in order"
                                : "the device does not promise to write in order";
    }
    if (lane->why_no_flag != NULL) {
        rdti_log(settings->notify == RDTI_VERBS_FLAG ? RDT_LOG_WARN : RDT_LOG_INFO,
                 "verbs: rank %d notifies on %s by immediates, not by flags: %s",
                 lane->args.peer_rank, device, lane->why_no_flag);
    } else {
        lane->rx_flags = flags;
        rdti_verbs_send_words(lane, &(struct rdti_verbs_words){.kind = RDTI_VERBS_FLAGS,
                                                               .access = flags});
    }
    flag_use_peer_flags(lane);
}

rdt_status
rdti_verbs_take_flags_word(struct rdti_verbs_lane *lane, const struct rdti_verbs_words *words,
                           struct rdt_error *err)
{
    if (lane->peer_flags != 0)
        return rdti_error_set_rank(err, RDT_EPROTO, lane->args.peer_rank,
                                   "rank %d promises twice to look for flags",
                                   lane->args.peer_rank);
    lane->peer_flags = words->access;
    flag_use_peer_flags(lane);
    return RDT_OK;
}

void
rdti_verbs_explain_notify(const struct rdti_verbs_lane *lane, char *buf, size_t cap)
{
    const char *why = lane->why_no_flag;
    const bool is_out = lane->tails_mr != NULL;

    if (lane->rx_flags != 0 && is_out)
        (void)snprintf(buf, cap, "flag");
    else if (lane->rx_flags != 0)
        (void)snprintf(buf, cap, "imm to the peer, flag from it");
    else
        (void)snprintf(buf, cap, "%s%s%s%s", is_out ? "flag to the peer, imm from it" : "imm",
                       why != NULL ? " (no flag: " : "", why != NULL ? why : "",
                       why != NULL ? ")" : "");
}

/* ---- Receiving ------------------------------------------------------------------------------ */

void
rdti_verbs_watch_flag(struct rdti_lane *base, struct rdti_flag *flag)
{
    struct rdti_verbs_lane *lane = (struct rdti_verbs_lane *)base;

    if (lane->rx_flags != 0 && rdti_verbs_phase_of(lane) == RDTI_VERBS_READY)
        rdti_list_append(&lane->flags, &flag->link);
}

bool
rdti_verbs_take_flag(struct rdti_verbs_lane *lane, uint32_t *value_out)
{
    for (struct rdti_list *at = lane->flags.next; at != &lane->flags; at = at->next) {
        struct rdti_flag *flag = RDTI_CONTAINER(at, struct rdti_flag, link);
        /* acquire: pairs with the device's write of the word, which follows that of the bytes */
        const uint64_t word = le64toh(atomic_load_explicit(flag->word, memory_order_acquire));

        if (word >> 32 != flag->sequence ||
            (int32_t)((uint32_t)lane->rx_messages - (uint32_t)word) < 0)
            continue;
        rdti_list_remove(&flag->link); /* to the end of the list, for fairness */
        rdti_list_append(&lane->flags, &flag->link);
        lane->rx_flagged++;
        *value_out = flag->notification;
        return true;
    }
    return false;
}

void
rdti_verbs_forget_flags(struct rdti_verbs_lane *lane)
{
    while (rdti_list_take_first(&lane->flags) != NULL)
        continue; /* their owners find them unlinked */
}

/* ---- Sending -------------------------------------------------------------------------------- */

/* Whether one request can write the bytes and the flag after them, within a range that the peer's
 * device places in order. The range of the bytes is already checked. */
static bool
flag_has_place(const struct rdti_op *op, uint8_t flags)
{
    const uint64_t begin = op->blocks[0].dst_off;
    const uint64_t end = begin + op->len_bytes;
    const uint64_t last = op->flag_off + RDTI_FLAG_BYTES - 1;

    if (op->flag_off < end || op->flag_off - end >= RDTI_FLAG_BYTES ||
        (op->remote.addr + op->flag_off) % RDTI_FLAG_BYTES != 0 ||
        !rdti_range_ok(op->flag_off, RDTI_FLAG_BYTES, op->remote.len_bytes))
        return false;
    return flags == RDTI_VERBS_FLAGS_WHOLE || (op->remote.addr + begin) / FLAG_BLOCK_BYTES ==
                                                  (op->remote.addr + last) / FLAG_BLOCK_BYTES;
}

bool
rdti_verbs_may_flag(const struct rdti_verbs_lane *lane, const struct rdti_op *op)
{
    if (op->scratch[RDTI_VERBS_OP_STEPS] != 0)
        return (op->scratch[RDTI_VERBS_OP_CHUNK] & RDTI_VERBS_OP_FLAGGED) != 0;
    if (lane->tx_flags == 0 || lane->is_tx_plain || op->kind != RDTI_OP_WRITE ||
        op->notify == RDTI_NOTIFY_NONE || op->flag_sequence == 0 || op->block_count != 1)
        return false;
    return op->len_bytes > 0 && op->len_bytes <= lane->max_chunk_bytes - RDTI_VERBS_TAIL_BYTES &&
           flag_has_place(op, lane->tx_flags);
}

void
rdti_verbs_attach_flag(struct rdti_verbs_qp *qp, const struct rdti_verbs_record *record,
                       struct ibv_send_wr *wr)
{
    const struct rdti_verbs_lane *lane = qp->link->lane;
    const uint64_t place = (qp->tx_posted - 1) % RDTI_VERBS_SQ_DEPTH;
    uint8_t *tail = lane->tails + place * RDTI_VERBS_TAIL_BYTES;

    memset(tail, 0, RDTI_VERBS_TAIL_BYTES);
    rdti_put_u64(tail + record->tail_bytes - RDTI_FLAG_BYTES,
                 rdti_flag_word(record->imm, (uint32_t)lane->tx_messages));
    wr->sg_list[1] = (struct ibv_sge){.addr = (uintptr_t)tail,
                                      .length = record->tail_bytes,
                                      .lkey = lane->tails_mr->lkey};
    wr->num_sge = 2;
}

void
rdti_verbs_free_tails(struct rdti_verbs_lane *lane)
{
    if (lane->tails == NULL)
        return;
    rdti_verbs_deregister(lane->tails_nic, lane->tails_mr);
    (void)munmap(lane->tails, (size_t)RDTI_VERBS_SQ_DEPTH * RDTI_VERBS_TAIL_BYTES);
}
