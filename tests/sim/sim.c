/* SPDX-License-Identifier: Apache-2.0
 * The sim's control calls: devices, objects and their lives, faults. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"
#include "sim/sim_impl.h"

struct sim sim = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER};

void
sim_lock(void)
{
    CHECK_INT_EQ(pthread_mutex_lock(&sim.lock), 0);
}

void
sim_unlock(void)
{
    CHECK_INT_EQ(pthread_mutex_unlock(&sim.lock), 0);
}

uint64_t
sim_random(uint64_t below)
{
    uint64_t z = sim.random += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return below == 0 ? 0 : (z ^ z >> 31) % below;
}

bool
sim_is_failing(const char *call)
{
    sim.calls++;
    if (sim.fail_at == 0 || --sim.fail_at > 0)
        return false;
    sim.failed_call = call;
    errno = sim.fail_errno;
    return true;
}

bool
sim_gid_of(uint32_t device, uint32_t index, union ibv_gid *out)
{
    const char *text = index < SIM_GIDS_MAX ? sim.config.devices[device].gids[index].text : NULL;

    memset(out, 0, sizeof(*out));
    return text != NULL && inet_pton(AF_INET6, text, out->raw) == 1;
}

static struct sim_context *
context_of(struct ibv_context *context)
{
    return (struct sim_context *)context;
}

/* ---- Devices -------------------------------------------------------------------------------- */

static struct ibv_device **
get_device_list(int *count)
{
    struct ibv_device **list = NULL;

    sim_lock();
    if (sim.config.list_errno != 0) {
        errno = sim.config.list_errno;
    } else if (!sim_is_failing("get_device_list")) {
        list = calloc(sim.config.device_count + 1, sizeof(*list));
        CHECK_NOT_NULL(list);
        for (uint32_t i = 0; i < sim.config.device_count; i++)
            list[i] = &sim.devices[i].device;
        *count = (int)sim.config.device_count;
    }
    sim_unlock();
    return list;
}

static void
free_device_list(struct ibv_device **list)
{
    free(list);
}

static const char *
get_device_name(struct ibv_device *device)
{
    return device->name;
}

static struct ibv_context *
open_device(struct ibv_device *device)
{
    struct sim_device *dev = (struct sim_device *)device;
    struct sim_context *context = NULL;
    int events[2];

    sim_lock();
    if (sim.config.devices[dev->index].is_refused) {
        errno = EACCES;
    } else if (!sim_is_failing("open_device")) {
        context = calloc(1, sizeof(*context));
        CHECK_NOT_NULL(context);
        CHECK_INT_EQ(pipe2(events, O_CLOEXEC), 0);
        context->device = dev;
        context->context.device = device;
        context->context.async_fd = events[0];
        context->context.cmd_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        CHECK_INT_GE(context->context.cmd_fd, 0);
        context->event_write_fd = events[1];
        context->next = sim.contexts;
        sim.contexts = context;
        sim.live_objects++;
        if (sim.context_count++ == 0)
            sim_start_wire();
    }
    sim_unlock();
    return context != NULL ? &context->context : NULL;
}

static int
close_device(struct ibv_context *base)
{
    struct sim_context *context = context_of(base);
    struct sim_context **at = &sim.contexts;
    bool is_last;

    sim_lock();
    CHECK_INT_EQ(context->children, 0);
    while (*at != context)
        at = &(*at)->next;
    *at = context->next;
    sim.live_objects--;
    is_last = --sim.context_count == 0;
    sim_unlock();
    if (is_last)
        sim_stop_wire();
    CHECK_INT_EQ(close(context->context.async_fd), 0);
    CHECK_INT_EQ(close(context->context.cmd_fd), 0);
    CHECK_INT_EQ(close(context->event_write_fd), 0);
    free(context);
    return 0;
}

static int
query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    int result = 0;

    (void)context;
    sim_lock();
    memset(attr, 0, sizeof(*attr));
    attr->phys_port_cnt = 1;
    attr->max_qp_wr = sim.config.queue_depth != 0 ? (int)sim.config.queue_depth : 4096;
    attr->max_qp_rd_atom = 16;
    attr->max_qp_init_rd_atom = 16;
    attr->max_mr_size = UINT64_MAX;
    if (sim_is_failing("query_device"))
        result = errno;
    sim_unlock();
    return result;
}

static int
query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
    const uint32_t index = context_of(context)->device->index;
    const struct sim_device_config *config = &sim.config.devices[index];
    int result = 0;

    sim_lock();
    memset(attr, 0, sizeof(*attr));
    attr->state = config->is_down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
    attr->active_mtu = config->mtu != 0 ? (enum ibv_mtu)config->mtu : IBV_MTU_4096;
    attr->max_msg_sz = sim.config.max_msg_bytes != 0 ? sim.config.max_msg_bytes : 8u << 20;
    attr->gid_tbl_len = SIM_GIDS_MAX;
    attr->pkey_tbl_len = 1;
    attr->link_layer = IBV_LINK_LAYER_ETHERNET;
    if (port != 1)
        result = EINVAL;
    else if (sim_is_failing("query_port"))
        result = errno;
    sim_unlock();
    return result;
}

static int
query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
             struct ibv_gid_entry *entry, uint32_t flags, size_t entry_bytes)
{
    const uint32_t device = context_of(context)->device->index;
    const struct sim_gid *gid = &sim.config.devices[device].gids[index];

    (void)flags;
    CHECK_INT_EQ(port, 1);
    CHECK_INT_EQ(entry_bytes, sizeof(*entry));
    if (!sim_gid_of(device, index, &entry->gid))
        return index % 2 == 0 ? EINVAL : ENODATA; /* both are seen */
    entry->gid_type = gid->is_v1 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2;
    entry->ndev_ifindex = gid->is_unbound ? 0 : 2;
    return 0;
}

static int
query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey)
{
    (void)context;
    (void)port;
    *pkey = htobe16(0xffff);
    return index == 0 ? 0 : -1;
}

static int
get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    return read(context->async_fd, event, sizeof(*event)) == (ssize_t)sizeof(*event) ? 0 : -1;
}

static void
ack_async_event(struct ibv_async_event *event)
{
    (void)event;
}

static const char *
event_type_str(enum ibv_event_type event)
{
    return event == IBV_EVENT_PORT_ERR       ? "port error"
           : event == IBV_EVENT_DEVICE_FATAL ? "local catastrophic error"
                                             : "another event";
}

static const char *
wc_status_str(enum ibv_wc_status status)
{
    return status == IBV_WC_RETRY_EXC_ERR       ? "transport retry counter exceeded"
           : status == IBV_WC_RNR_RETRY_EXC_ERR ? "RNR retry counter exceeded"
           : status == IBV_WC_REM_ACCESS_ERR    ? "remote access error"
           : status == IBV_WC_WR_FLUSH_ERR      ? "Work Request Flushed Error"
                                                : "another status";
}

static enum ibv_fork_status
is_fork_initialized(void)
{
    return IBV_FORK_UNNEEDED;
}

static int
fork_init(void)
{
    FAIL("ibv_fork_init where it is not needed");
}

/* ---- PDs, MRs, channels, CQs ---------------------------------------------------------------- */

static struct ibv_pd *
alloc_pd(struct ibv_context *context)
{
    struct sim_pd *pd = NULL;

    sim_lock();
    if (!sim_is_failing("alloc_pd")) {
        pd = calloc(1, sizeof(*pd));
        CHECK_NOT_NULL(pd);
        pd->pd.context = context;
        context_of(context)->children++;
        sim.live_objects++;
    }
    sim_unlock();
    return pd != NULL ? &pd->pd : NULL;
}

static int
dealloc_pd(struct ibv_pd *base)
{
    struct sim_pd *pd = (struct sim_pd *)base;

    sim_lock();
    CHECK_MSG(pd->children == 0, "a PD with %u MRs and QPs is freed", pd->children);
    context_of(base->context)->children--;
    sim.live_objects--;
    sim_unlock();
    free(pd);
    return 0;
}

static struct ibv_mr *
reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t len_bytes, uint64_t iova, unsigned int access)
{
    struct sim_mr *mr = NULL;
    uint32_t key = 0;

    CHECK_HEX_EQ(iova, (uintptr_t)addr);
    sim_lock();
    if (!sim_is_failing("reg_mr")) {
        mr = calloc(1, sizeof(*mr));
        CHECK_NOT_NULL(mr);
        while (key < SIM_MRS_MAX && sim.mrs[key] != NULL)
            key++;
        CHECK_INT_LT(key, SIM_MRS_MAX);
        sim.mrs[key] = mr;
        mr->mr = (struct ibv_mr){.context = pd->context,
                                 .pd = pd,
                                 .addr = addr,
                                 .length = len_bytes,
                                 .lkey = key + 1,
                                 .rkey = key + 1};
        mr->access = access;
        ((struct sim_pd *)pd)->children++;
        sim.live_objects++;
    }
    sim_unlock();
    return mr != NULL ? &mr->mr : NULL;
}

static int
dereg_mr(struct ibv_mr *base)
{
    struct sim_mr *mr = (struct sim_mr *)base;

    sim_lock();
    CHECK_PTR_EQ(sim.mrs[base->lkey - 1], mr);
    sim.mrs[base->lkey - 1] = NULL;
    ((struct sim_pd *)base->pd)->children--;
    sim.live_objects--;
    sim_unlock();
    free(mr);
    return 0;
}

static struct ibv_comp_channel *
create_comp_channel(struct ibv_context *context)
{
    struct sim_channel *channel = NULL;
    int ends[2];

    sim_lock();
    if (!sim_is_failing("create_comp_channel")) {
        channel = calloc(1, sizeof(*channel));
        CHECK_NOT_NULL(channel);
        CHECK_INT_EQ(pipe2(ends, O_CLOEXEC), 0);
        channel->channel.context = context;
        channel->channel.fd = ends[0];
        channel->write_fd = ends[1];
        context_of(context)->children++;
        sim.live_objects++;
    }
    sim_unlock();
    return channel != NULL ? &channel->channel : NULL;
}

static int
destroy_comp_channel(struct ibv_comp_channel *base)
{
    struct sim_channel *channel = (struct sim_channel *)base;

    sim_lock();
    CHECK_INT_EQ(channel->children, 0);
    context_of(base->context)->children--;
    sim.live_objects--;
    sim_unlock();
    CHECK_INT_EQ(close(base->fd), 0);
    CHECK_INT_EQ(close(channel->write_fd), 0);
    free(channel);
    return 0;
}

static struct ibv_cq *
create_cq(struct ibv_context *context, int entries, void *cq_context,
          struct ibv_comp_channel *channel, int vector)
{
    struct sim_cq *cq = NULL;

    CHECK_INT_EQ(vector, 0);
    sim_lock();
    if (!sim_is_failing("create_cq")) {
        cq = calloc(1, sizeof(*cq));
        CHECK_NOT_NULL(cq);
        cq->cq.context = context;
        cq->cq.cq_context = cq_context;
        cq->cq.channel = channel;
        cq->channel = (struct sim_channel *)channel;
        cq->channel->children++;
        cq->depth = (uint32_t)entries;
        cq->ring = calloc(2 * cq->depth, sizeof(*cq->ring)); /* room for duplicates */
        CHECK_NOT_NULL(cq->ring);
        context_of(context)->children++;
        sim.live_objects++;
    }
    sim_unlock();
    return cq != NULL ? &cq->cq : NULL;
}

static int
destroy_cq(struct ibv_cq *base)
{
    struct sim_cq *cq = (struct sim_cq *)base;
    struct ibv_cq *events[64];

    sim_lock();
    CHECK_MSG(cq->children == 0, "a CQ with %u QPs is destroyed", cq->children);
    CHECK_MSG(cq->unacked == 0, "a CQ with %u unacknowledged events is destroyed", cq->unacked);
    /* The kernel takes back events that nobody has read. */
    struct pollfd pollfd = {.fd = cq->channel->channel.fd, .events = POLLIN};
    const ssize_t got = poll(&pollfd, 1, 0) == 1 ? read(pollfd.fd, events, sizeof(events)) : 0;
    for (ssize_t i = 0; i < got / (ssize_t)sizeof(events[0]); i++)
        if (events[i] != base)
            CHECK_INT_EQ(write(cq->channel->write_fd, &events[i], sizeof(events[i])),
                         sizeof(events[i]));
    cq->channel->children--;
    context_of(base->context)->children--;
    sim.live_objects--;
    sim_unlock();
    free(cq->ring);
    free(cq);
    return 0;
}

static int
get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
    if (read(channel->fd, cq, sizeof(*cq)) != (ssize_t)sizeof(*cq))
        return -1;
    sim_lock();
    ((struct sim_cq *)*cq)->unacked++;
    *cq_context = (*cq)->cq_context;
    sim_unlock();
    return 0;
}

static void
ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
    sim_lock();
    ((struct sim_cq *)cq)->unacked -= count;
    sim_unlock();
}

/* ---- QPs ------------------------------------------------------------------------------------ */

static struct ibv_qp *
create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
    struct sim_qp *qp = NULL;
    uint32_t at = 0;

    CHECK_INT_EQ(init->qp_type, IBV_QPT_RC);
    sim_lock();
    if (!sim_is_failing("create_qp")) {
        while (at < SIM_QPS_MAX && sim.qps[at] != NULL)
            at++;
        CHECK_INT_LT(at, SIM_QPS_MAX);
        qp = calloc(1, sizeof(*qp));
        CHECK_NOT_NULL(qp);
        if (init->cap.max_inline_data > sim.config.inline_bytes)
            init->cap.max_inline_data = sim.config.inline_bytes;
        qp->init = *init;
        qp->device = context_of(pd->context)->device;
        qp->qp = (struct ibv_qp){.context = pd->context, .pd = pd, .qp_num = at + 1};
        qp->attr.qp_state = IBV_QPS_RESET;
        qp->sends = calloc(init->cap.max_send_wr, sizeof(*qp->sends));
        qp->receives = calloc(init->cap.max_recv_wr, sizeof(*qp->receives));
        CHECK(qp->sends != NULL && qp->receives != NULL);
        sim.qps[at] = qp;
        ((struct sim_pd *)pd)->children++;
        ((struct sim_cq *)init->send_cq)->children++;
        sim.live_objects++;
    }
    sim_unlock();
    return qp != NULL ? &qp->qp : NULL;
}

static int
destroy_qp(struct ibv_qp *base)
{
    struct sim_qp *qp = (struct sim_qp *)base;

    sim_lock();
    CHECK_PTR_EQ(sim.qps[base->qp_num - 1], qp);
    sim.qps[base->qp_num - 1] = NULL;
    sim_drop_completions((struct sim_cq *)qp->init.send_cq, base->qp_num);
    ((struct sim_pd *)base->pd)->children--;
    ((struct sim_cq *)qp->init.send_cq)->children--;
    sim.live_objects--;
    sim_unlock();
    free(qp->sends);
    free(qp->receives);
    free(qp);
    return 0;
}

/* What a real device asks for on each transition, and where from. */
static bool
is_legal(enum ibv_qp_state from, enum ibv_qp_state to, int mask)
{
    switch (to) {
    case IBV_QPS_RESET:
    case IBV_QPS_ERR:
        return mask == IBV_QP_STATE;
    case IBV_QPS_INIT:
        return from == IBV_QPS_RESET &&
               mask == (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    case IBV_QPS_RTR:
        return from == IBV_QPS_INIT &&
               mask == (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                        IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    case IBV_QPS_RTS:
        return from == IBV_QPS_RTR &&
               mask == (IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                        IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    default:
        return false;
    }
}

static int
modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask)
{
    struct sim_qp *qp = (struct sim_qp *)base;
    const enum ibv_qp_state to = attr->qp_state;
    int result = 0;

    sim_lock();
    if (!is_legal(qp->attr.qp_state, to, mask)) {
        result = EINVAL;
    } else if (to != IBV_QPS_ERR && sim_is_failing("modify_qp")) {
        result = errno;
    } else if (to == IBV_QPS_RESET) {
        sim_empty_qp(qp);
        qp->attr = *attr;
    } else if (to == IBV_QPS_ERR) {
        sim_to_error(qp);
    } else if (to == IBV_QPS_RTR) {
        CHECK_INT_EQ(attr->ah_attr.is_global, 1);
        qp->attr = *attr;
    } else if (to == IBV_QPS_RTS) {
        CHECK_INT_LT(attr->rnr_retry, 7);
        qp->attr.qp_state = to;
        qp->attr.rnr_retry = attr->rnr_retry;
        qp->attr.retry_cnt = attr->retry_cnt;
        qp->attr.timeout = attr->timeout;
        qp->attr.sq_psn = attr->sq_psn;
        qp->attr.max_rd_atomic = attr->max_rd_atomic;
    } else {
        qp->attr.qp_state = to;
    }
    sim_unlock();
    return result;
}

static int64_t
read_counter(const char *device, uint32_t port, const char *name)
{
    (void)device;
    (void)port;
    return strcmp(name, "out_of_sequence") == 0 ? 0 : -ENOENT;
}

const struct rdti_verbs_ops sim_table = {
    .get_device_list = get_device_list,
    .free_device_list = free_device_list,
    .get_device_name = get_device_name,
    .open_device = open_device,
    .close_device = close_device,
    .query_device = query_device,
    .query_port = query_port,
    .query_gid_ex = query_gid_ex,
    .query_pkey = query_pkey,
    .get_async_event = get_async_event,
    .ack_async_event = ack_async_event,
    .event_type_str = event_type_str,
    .wc_status_str = wc_status_str,
    .is_fork_initialized = is_fork_initialized,
    .fork_init = fork_init,
    .alloc_pd = alloc_pd,
    .dealloc_pd = dealloc_pd,
    .reg_mr_iova2 = reg_mr_iova2,
    .dereg_mr = dereg_mr,
    .create_comp_channel = create_comp_channel,
    .destroy_comp_channel = destroy_comp_channel,
    .create_cq = create_cq,
    .destroy_cq = destroy_cq,
    .get_cq_event = get_cq_event,
    .ack_cq_events = ack_cq_events,
    .create_qp = create_qp,
    .modify_qp = modify_qp,
    .destroy_qp = destroy_qp,
    .poll_cq = sim_poll_cq,
    .req_notify_cq = sim_req_notify_cq,
    .post_send = sim_post_send,
    .post_recv = sim_post_recv,
    .read_counter = read_counter,
};
