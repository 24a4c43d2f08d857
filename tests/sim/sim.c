/* SPDX-License-Identifier: Apache-2.0
 * The sim's devices: what is asked of them, their events, and the table of all calls. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"
#include "sim/sim_impl.h"

struct sim sim = {.lock = PTHREAD_MUTEX_INITIALIZER,
                  .work = PTHREAD_COND_INITIALIZER,
                  .placed = PTHREAD_COND_INITIALIZER,
                  .released = PTHREAD_COND_INITIALIZER};

uint64_t
sim_random(uint64_t below)
{
    uint64_t z = sim.random += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return below == 0 ? 0 : (z ^ z >> 31) % below;
}

const struct sim_gid *
sim_entry_of(uint32_t device, uint32_t port, uint32_t index)
{
    const struct sim_device_config *config = &sim.config.devices[device];

    CHECK_UINT_LE(port, config->more_ports + 1);
    return port == 1 ? &config->gids[index] : &config->more[port - 2].gids[index];
}

bool
sim_gid_of(uint32_t device, uint32_t port, uint32_t index, union ibv_gid *out)
{
    const char *text = index < SIM_GIDS_MAX ? sim_entry_of(device, port, index)->text : NULL;

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
    if (sim.config.devices[dev->index].is_refused || dev->is_removed) {
        errno = dev->is_removed ? ENODEV : EACCES;
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

/* The kernel ends what is left of a context. A call that fails has closed it all the same. */
static int
close_device(struct ibv_context *base)
{
    struct sim_context *context = context_of(base);
    struct sim_context **at = &sim.contexts;

    sim_lock_still();
    const int failed = sim_is_failing("close_device") ? -1 : 0;
    const int sys_errno = errno;
    CHECK_MSG(sim_reap(base) == 0 || sim.failed_call != NULL, "a device is closed with objects");
    while (*at != context)
        at = &(*at)->next;
    *at = context->next;
    sim.live_objects--;
    const bool is_last = --sim.context_count == 0;
    sim_unlock();
    if (is_last)
        sim_stop_wire();
    CHECK_INT_EQ(close(context->context.async_fd), 0);
    CHECK_INT_EQ(close(context->context.cmd_fd), 0);
    if (context->event_write_fd >= 0)
        CHECK_INT_EQ(close(context->event_write_fd), 0);
    free(context);
    errno = sys_errno;
    return failed;
}

static int
query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    const uint32_t index = context_of(context)->device->index;
    int result = 0;

    sim_lock();
    memset(attr, 0, sizeof(*attr));
    attr->phys_port_cnt = (uint8_t)(sim.config.devices[index].more_ports + 1);
    attr->max_qp_wr = sim.config.queue_depth != 0 ? (int)sim.config.queue_depth : 4096;
    attr->max_qp_rd_atom = 16;
    attr->max_sge = sim.config.segments != 0 ? (int)sim.config.segments : 32;
    attr->max_qp_init_rd_atom = 16;
    attr->max_mr_size = sim.config.max_mr_bytes != 0 ? sim.config.max_mr_bytes : UINT64_MAX;
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
    struct sim_port_config at = {.is_down = config->is_down};
    int result = 0;

    sim_lock();
    memset(attr, 0, sizeof(*attr));
    if (port == 0 || port > config->more_ports + 1)
        at.query_errno = EINVAL;
    else if (port > 1)
        at = config->more[port - 2];
    attr->state = at.is_down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
    attr->active_mtu = config->mtu != 0 ? (enum ibv_mtu)config->mtu : IBV_MTU_4096;
    attr->max_msg_sz = sim.config.max_msg_bytes != 0 ? sim.config.max_msg_bytes : 8u << 20;
    attr->gid_tbl_len = SIM_GIDS_MAX;
    attr->pkey_tbl_len = SIM_PKEYS_MAX;
    attr->lid = config->lid;
    attr->link_layer = config->lid != 0 ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
    if (at.query_errno != 0)
        result = at.query_errno;
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
    const struct sim_gid *gid = sim_entry_of(device, port, index);

    int result = 0;

    (void)flags;
    CHECK_INT_EQ(entry_bytes, sizeof(*entry));
    sim_lock();
    if (sim_is_failing("query_gid_ex"))
        result = errno;
    else if (!sim_gid_of(device, port, index, &entry->gid))
        result = index % 2 == 0 ? EINVAL : ENODATA; /* both are seen */
    entry->gid_type = sim.config.devices[device].lid != 0 ? IBV_GID_TYPE_IB
                      : gid->is_v1                        ? IBV_GID_TYPE_ROCE_V1
                                                          : IBV_GID_TYPE_ROCE_V2;
    entry->ndev_ifindex = gid->is_unbound ? 0 : 2;
    sim_unlock();
    return result;
}

static int
query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey)
{
    const struct sim_device *device = context_of(context)->device;
    int result = -1;

    (void)port;
    sim_lock();
    if (index >= SIM_PKEYS_MAX)
        errno = EINVAL;
    else if (!sim_is_failing("query_pkey"))
        result = 0;
    if (result == 0)
        *pkey = htobe16(sim.config.devices[device->index].pkeys[index]);
    sim_unlock();
    return result;
}

/* As the kernel has it: what was raised before the device went is read still, then EIO. */
static int
get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    sim_lock();
    const bool is_failing = sim_is_failing_by_name("get_async_event");
    sim_unlock();
    if (is_failing)
        return -1;
    const ssize_t got = read(context->async_fd, event, sizeof(*event));

    if (got == 0)
        errno = EIO;
    return got == (ssize_t)sizeof(*event) ? 0 : -1;
}

static void
ack_async_event(struct ibv_async_event *event)
{
    (void)event;
}

static const char *
event_type_str(enum ibv_event_type event)
{
    return event == IBV_EVENT_PORT_ERR        ? "port error"
           : event == IBV_EVENT_DEVICE_FATAL  ? "local catastrophic error"
           : event == IBV_EVENT_GID_CHANGE    ? "GID table change"
           : event == IBV_EVENT_LID_CHANGE    ? "LID change"
           : event == IBV_EVENT_PKEY_CHANGE   ? "P_Key table change"
           : event == IBV_EVENT_QP_FATAL      ? "local work queue catastrophic error"
           : event == IBV_EVENT_QP_REQ_ERR    ? "invalid request local work queue error"
           : event == IBV_EVENT_QP_ACCESS_ERR ? "local access violation work queue error"
           : event == IBV_EVENT_PATH_MIG_ERR  ? "path migration request error"
           : event == IBV_EVENT_CQ_ERR        ? "CQ error"
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
    .is_fork_initialized = sim_is_fork_initialized,
    .fork_init = sim_fork_init,
    .alloc_pd = sim_alloc_pd,
    .dealloc_pd = sim_dealloc_pd,
    .reg_mr_iova2 = sim_reg_mr_iova2,
    .dereg_mr = sim_dereg_mr,
    .create_comp_channel = sim_create_comp_channel,
    .destroy_comp_channel = sim_destroy_comp_channel,
    .create_cq = sim_create_cq,
    .destroy_cq = sim_destroy_cq,
    .get_cq_event = sim_get_cq_event,
    .ack_cq_events = sim_ack_cq_events,
    .create_qp = sim_create_qp,
    .modify_qp = sim_modify_qp,
    .destroy_qp = sim_destroy_qp,
    .query_qp_data_in_order = sim_query_qp_data_in_order,
    .poll_cq = sim_poll_cq,
    .req_notify_cq = sim_req_notify_cq,
    .post_send = sim_post_send,
    .post_recv = sim_post_recv,
    .read_counter = sim_read_counter,
};
