/* SPDX-License-Identifier: Apache-2.0
 * Ports of devices: selection and capabilities. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/error.h"
#include "base/system/fork.h"
#include "base/log.h"
#include "base/text.h"
#include "transport/verbs/device/gid.h"
#include "transport/verbs/device/device.h"

/* Memory that a device locks at once, before the arena: QPs, CQs, the stage. */
#define LEAST_MEMLOCK_BYTES (UINT64_C(4) << 20)

/* Labels of the report, each with the names of its counter on known devices. */
static const struct {
    const char *label;
    const char *names[3]; /* the first that the device has */
} counters[RDTI_VERBS_COUNTERS] = {
    {"retries", {"completer_retry_err", "roce_adp_retrans", "tx_retransmits"}},
    {"out of sequence", {"out_of_seq_request", "out_of_sequence", "packet_seq_err"}},
    {"RNR", {"rcvd_rnr_err", "rnr_nak_retry_err", "send_rnr_err"}},
    {"timeouts", {"retry_exceeded_err", "local_ack_timeout_err", "req_transport_retries_exceeded"}},
    {"not sent", {"send_err"}}, /* its own host refused the packet */
};

static int64_t
nic_read_counter(const struct rdti_verbs_nic *nic, uint32_t which)
{
    int64_t value = -ENOENT;

    for (size_t i = 0; i < 3 && value < 0 && counters[which].names[i] != NULL; i++)
        value = nic->verbs->ops->read_counter(nic->name, nic->port, counters[which].names[i]);
    return value;
}

void
rdti_verbs_explain_counters(const struct rdti_verbs_nic *nic, char *buf, size_t cap)
{
    size_t used = 0;

    buf[0] = '\0';
    for (uint32_t i = 0; i < RDTI_VERBS_COUNTERS && used < cap; i++) {
        const int64_t now = nic->counters[i] < 0 ? -1 : nic_read_counter(nic, i);

        if (now < 0)
            continue;
        const int wrote = snprintf(buf + used, cap - used, "%s%s %lld", used > 0 ? ", " : "",
                                   counters[i].label, (long long)(now - nic->counters[i]));
        used += wrote > 0 ? (size_t)wrote : 0;
    }
}

/* ---- Opening -------------------------------------------------------------------------------- */

static uint32_t
nic_least(int64_t a, int64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

rdt_status
rdti_verbs_find_pkey(struct rdti_verbs_nic *nic, uint16_t pkey, uint16_t *index_out,
                     struct rdt_error *err)
{
    int32_t found = -1;
    bool is_exact = false;
    int sys_errno = 0;

    /* The top bit means full member: both values are the same partition, exact ones preferred. */
    for (uint32_t i = 0; !is_exact && i < nic->pkey_table_count; i++) {
        __be16 entry = 0;

        if (nic->verbs->ops->query_pkey(nic->context, nic->port, (int)i, &entry) != 0) {
            sys_errno = errno;
            continue;
        }
        is_exact = be16toh(entry) == pkey;
        if (is_exact || (found < 0 && ((be16toh(entry) ^ pkey) & 0x7fff) == 0))
            found = (int32_t)i;
    }
    if (found < 0)
        return rdti_error_set(err, RDT_ENOTVIABLE, sys_errno, "PKEY 0x%x is not in its table of %u",
                              pkey, nic->pkey_table_count);
    *index_out = (uint16_t)found;
    return RDT_OK;
}

/* Checks that the port is in the configured partition. An index refers to the first port's table;
 * its entry there applies to all ports and peers. */
static rdt_status
nic_check_pkey(struct rdti_verbs_nic *nic, struct rdt_error *err)
{
    struct rdti_verbs *verbs = nic->verbs;
    const int32_t wanted = verbs->settings.pkey_index;
    __be16 entry = 0;
    uint16_t index;

    if (wanted >= 0 && verbs->settings.pkey == 0) {
        if (verbs->ops->query_pkey(nic->context, nic->port, wanted, &entry) != 0 || entry == 0)
            return rdti_error_set(err, RDT_ENOTVIABLE, errno,
                                  "RDMATENSOR_VERBS_PKEY_INDEX asks for %d, which is empty in its "
                                  "table of %u",
                                  wanted, nic->pkey_table_count);
        verbs->settings.pkey = be16toh(entry);
    }
    if (verbs->settings.pkey == 0)
        return RDT_OK;
    return rdti_verbs_find_pkey(nic, verbs->settings.pkey, &index, err);
}

static rdt_status
nic_take_port(struct rdti_verbs_nic *nic, const struct ibv_device_attr *device,
              struct rdt_error *err)
{
    const struct rdti_verbs *verbs = nic->verbs;
    struct ibv_port_attr port;

    memset(&port, 0, sizeof(port)); /* the library's symbol fills only what its version knows */
    const int failed = verbs->ops->query_port(nic->context, nic->port, &port);
    if (failed != 0)
        return rdti_error_set(err, RDT_ENOTVIABLE, failed > 0 ? failed : errno, "ibv_query_port");
    if (port.state != IBV_PORT_ACTIVE)
        return rdti_error_set(err, RDT_ENOTVIABLE, 0,
                              "its state is %d, not active: is its link up?", (int)port.state);
    nic->is_infiniband = port.link_layer == IBV_LINK_LAYER_INFINIBAND;
    nic->lid = port.lid;
    nic->mtu = (uint8_t)port.active_mtu;
    nic->max_msg_bytes = port.max_msg_sz;
    nic->max_mr_bytes = device->max_mr_size;
    nic->sq_depth = nic_least(RDTI_VERBS_SQ_DEPTH, device->max_qp_wr);
    nic->rq_depth = nic_least(RDTI_VERBS_WINDOW + RDTI_VERBS_RQ_RESERVE, device->max_qp_wr);
    nic->reads_in = (uint8_t)nic_least(RDTI_VERBS_READS, device->max_qp_rd_atom);
    nic->reads_out = (uint8_t)nic_least(RDTI_VERBS_READS, device->max_qp_init_rd_atom);
    if (nic->reads_in == 0 || nic->reads_out == 0)
        return rdti_error_set(err, RDT_ENOTVIABLE, 0, "its queues have no reads in flight");
    if (nic->sq_depth < 2 * RDTI_VERBS_CHAIN || nic->rq_depth < 4 * RDTI_VERBS_RQ_RESERVE)
        return rdti_error_set(err, RDT_ENOTVIABLE, 0, "its queues hold %d work requests only",
                              device->max_qp_wr);
    /* One for the bytes, and one for a flag if there may be one. */
    nic->segments =
        (uint8_t)nic_least(verbs->settings.notify == RDTI_VERBS_IMM ? 1 : 2, device->max_sge);
    if (nic->max_msg_bytes < RDTI_VERBS_STAGE_BYTES)
        return rdti_error_set(err, RDT_ENOTVIABLE, 0, "its messages hold %llu bytes only",
                              (unsigned long long)nic->max_msg_bytes);
    nic->gid_table_count = (uint32_t)port.gid_tbl_len;
    nic->pkey_table_count = port.pkey_tbl_len;
    const rdt_status status = nic_check_pkey(nic, err);
    return status == RDT_OK ? rdti_verbs_find_gids(nic, err) : status;
}

static rdt_status
nic_make_nonblocking(int fd, struct rdt_error *err)
{
    const int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
        return rdti_error_set(err, RDT_EDEVICE, errno, "fcntl(O_NONBLOCK) on an event channel");
    return RDT_OK;
}

static void
nic_log_failed(const struct rdti_verbs_nic *nic, const char *call, int failed, int sys_errno)
{
    if (failed != 0)
        rdti_log(RDT_LOG_ERROR, "verbs: %s on device %s port %u: %s", call, nic->name, nic->port,
                 strerror(failed > 0 ? failed : sys_errno));
}

/* Failures here are logged and ignored: closing the device's descriptor, the last step, frees all
 * remaining objects in the kernel. */
static void
nic_close_context(struct rdti_verbs_nic *nic)
{
    rdti_fork_close_remove(nic->context->cmd_fd);
    rdti_fork_close_remove(nic->context->async_fd);
    const int failed = nic->verbs->ops->close_device(nic->context);
    nic_log_failed(nic, "ibv_close_device", failed, errno);
    memset(nic, 0, sizeof(*nic));
}

static void
nic_close(struct rdti_verbs_nic *nic)
{
    const struct rdti_verbs *verbs = nic->verbs;
    const struct rdti_host *host = verbs->host;

    if (nic->async_watch != NULL)
        host->unwatch(host->core, nic->async_watch);
    if (nic->channel_watch != NULL)
        host->unwatch(host->core, nic->channel_watch);
    rdti_verbs_free_leftovers(nic);
    if (nic->channel != NULL) {
        rdti_fork_close_remove(nic->channel->fd);
        const int failed = verbs->ops->destroy_comp_channel(nic->channel);
        nic_log_failed(nic, "ibv_destroy_comp_channel", failed, errno);
    }
    if (nic->pd != NULL) {
        const int failed = verbs->ops->dealloc_pd(nic->pd);
        nic_log_failed(nic, "ibv_dealloc_pd", failed, errno);
    }
    (void)pthread_mutex_destroy(&nic->left_lock);
    nic_close_context(nic);
}

/* PD, completion channel, and watches of both kinds of events, which hold the entry's address: from
 * here on it must not move, and nic_close() closes it, also if this fails. */
static rdt_status
nic_equip(struct rdti_verbs_nic *nic, struct rdt_error *err)
{
    struct rdti_verbs *verbs = nic->verbs;
    const struct rdti_host *host = verbs->host;
    rdt_status status;

    (void)pthread_mutex_init(&nic->left_lock, NULL);
    rdti_list_init(&nic->leftovers);
    nic->pd = verbs->ops->alloc_pd(nic->context);
    if (nic->pd == NULL)
        return rdti_error_set(err, RDT_ENOTVIABLE, errno, "ibv_alloc_pd");
    nic->channel = verbs->ops->create_comp_channel(nic->context);
    if (nic->channel == NULL)
        return rdti_error_set(err, RDT_ENOTVIABLE, errno, "ibv_create_comp_channel");
    (void)rdti_fork_close_add(nic->channel->fd);
    status = nic_make_nonblocking(nic->channel->fd, err);
    if (status == RDT_OK)
        status = nic_make_nonblocking(nic->context->async_fd, err);
    if (status == RDT_OK)
        status = host->watch(host->core, nic->channel->fd, EPOLLIN, verbs->on_channel, nic,
                             &nic->channel_watch, err);
    if (status == RDT_OK)
        status = host->watch(host->core, nic->context->async_fd, EPOLLIN, verbs->on_async, nic,
                             &nic->async_watch, err);
    for (uint32_t i = 0; status == RDT_OK && i < RDTI_VERBS_COUNTERS; i++)
        nic->counters[i] = nic_read_counter(nic, i);
    return status;
}

/* Queries a port and opens its context. On failure the entry is empty again. */
static rdt_status
nic_open_port(struct rdti_verbs *verbs, struct ibv_device *device, uint8_t port,
              const struct ibv_device_attr *attr, struct rdti_verbs_nic *nic, struct rdt_error *err)
{
    *nic = (struct rdti_verbs_nic){.verbs = verbs, .port = port};
    rdti_text_copy(nic->name, sizeof(nic->name), verbs->ops->get_device_name(device));
    nic->context = verbs->ops->open_device(device);
    if (nic->context == NULL) {
        const int sys_errno = errno;
        memset(nic, 0, sizeof(*nic));
        return rdti_error_set(err, RDT_ENOTVIABLE, sys_errno, "ibv_open_device");
    }
    (void)rdti_fork_close_add(nic->context->cmd_fd);
    (void)rdti_fork_close_add(nic->context->async_fd);
    const rdt_status status = nic_take_port(nic, attr, err);
    if (status != RDT_OK)
        nic_close_context(nic);
    return status;
}

static void
nic_note_skipped(struct rdti_verbs *verbs, const char *device, uint32_t port, const char *why)
{
    const size_t used = strlen(verbs->skipped);

    (void)snprintf(verbs->skipped + used, sizeof(verbs->skipped) - used, "%s%s port %u: %s",
                   used > 0 ? "; " : "", device, port, why);
}

/* Of equal scores the lower address is better: it begins with the network, which both sides know,
 * while names and order of devices may differ. */
static bool
nic_is_worse(const struct rdti_verbs_nic *a, const struct rdti_verbs_nic *b)
{
    if (a->score != b->score)
        return a->score < b->score;
    return a->gid_count > 0 && b->gid_count > 0 &&
           memcmp(a->gids[0].raw, b->gids[0].raw, sizeof(a->gids[0].raw)) > 0;
}

/* If the table is full, drops the port with the worst addresses, of equals the last one found.
 * Entries may move: only their context is open yet. */
static void
nic_keep_port(struct rdti_verbs *verbs, struct rdti_verbs_nic *fresh)
{
    struct rdti_verbs_nic *worst = fresh;

    if (verbs->nic_count == verbs->settings.max_links) {
        for (uint32_t i = verbs->nic_count; i-- > 0;)
            if (nic_is_worse(&verbs->nics[i], worst))
                worst = &verbs->nics[i];
        nic_note_skipped(verbs, worst->name, worst->port, "enough others (RDMATENSOR_VERBS_LINKS)");
        nic_close_context(worst);
        if (worst == fresh)
            return;
        verbs->nic_count--;
        for (; worst < &verbs->nics[verbs->nic_count]; worst++)
            *worst = worst[1];
    }
    verbs->nics[verbs->nic_count++] = *fresh;
}

static rdt_status
nic_query(struct rdti_verbs *verbs, struct ibv_device *device, struct ibv_device_attr *attr,
          struct rdt_error *err)
{
    struct ibv_context *context = verbs->ops->open_device(device);

    if (context == NULL)
        return rdti_error_set(err, RDT_ENOTVIABLE, errno,
                              "ibv_open_device (may this user open /dev/infiniband/uverbs*?)");
    memset(attr, 0, sizeof(*attr));
    const int failed = verbs->ops->query_device(context, attr);
    const int sys_errno = failed > 0 ? failed : errno;
    const int unclosed = verbs->ops->close_device(context);
    if (unclosed != 0)
        rdti_log(RDT_LOG_ERROR, "verbs: ibv_close_device: %s",
                 strerror(unclosed > 0 ? unclosed : errno));
    if (failed != 0)
        return rdti_error_set(err, RDT_ENOTVIABLE, sys_errno, "ibv_query_device");
    return RDT_OK;
}

/* An unusable port is noted; a port that is configured but missing is an error. */
static rdt_status
nic_open_ports(struct rdti_verbs *verbs, struct ibv_device *device, struct rdt_error *err)
{
    const char *name = verbs->ops->get_device_name(device);
    char unwanted[RDTI_VERBS_LIST_BYTES + 40];
    struct rdti_verbs_nic nic;
    struct ibv_device_attr attr;
    struct rdt_error why;

    (void)snprintf(unwanted, sizeof(unwanted), "not in RDMATENSOR_VERBS_DEVICES=%s",
                   verbs->settings.devices);
    if (nic_query(verbs, device, &attr, &why) != RDT_OK) {
        nic_note_skipped(verbs, name, 0, why.message);
        return RDT_OK;
    }
    const rdt_status status =
        rdti_verbs_check_ports(&verbs->settings, name, attr.phys_port_cnt, err);
    if (status != RDT_OK)
        return status;
    for (uint32_t port = 1; port <= attr.phys_port_cnt; port++) {
        if (!rdti_verbs_is_wanted(&verbs->settings, name, port))
            nic_note_skipped(verbs, name, port, unwanted);
        else if (nic_open_port(verbs, device, (uint8_t)port, &attr, &nic, &why) == RDT_OK)
            nic_keep_port(verbs, &nic);
        else
            nic_note_skipped(verbs, name, port, why.message);
    }
    return RDT_OK;
}

/* Ports that cannot be equipped are noted, and the others move up. */
static void
nic_equip_ports(struct rdti_verbs *verbs)
{
    const uint32_t count = verbs->nic_count;
    struct rdt_error why;

    verbs->nic_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct rdti_verbs_nic *nic = &verbs->nics[verbs->nic_count];

        if (nic != &verbs->nics[i]) {
            *nic = verbs->nics[i];
            memset(&verbs->nics[i], 0, sizeof(*nic));
        }
        if (nic_equip(nic, &why) == RDT_OK) {
            verbs->nic_count++;
            continue;
        }
        nic_note_skipped(verbs, nic->name, nic->port, why.message);
        nic_close(nic);
    }
}

static rdt_status
nic_init_fork(const struct rdti_verbs *verbs, struct rdt_error *err)
{
    /* Kernels since 5.12 copy pinned pages for the child; for older ones, registered pages must be
     * kept from it. Too late if another library has already registered memory. */
    if (verbs->ops->is_fork_initialized() != IBV_FORK_DISABLED)
        return RDT_OK;
    const int failed = verbs->ops->fork_init();
    if (failed != 0)
        return rdti_error_set(err, RDT_ENOTVIABLE, failed > 0 ? failed : errno,
                              "ibv_fork_init: memory was registered before; a forked child would "
                              "take pages away from the device");
    return RDT_OK;
}

rdt_status
rdti_verbs_open_nics(struct rdti_verbs *verbs, struct rdt_error *err)
{
    int count = 0;

    rdt_status status = nic_init_fork(verbs, err);
    if (status == RDT_OK)
        status = rdti_verbs_check_memlock(LEAST_MEMLOCK_BYTES, err);
    if (status != RDT_OK)
        return status;
    struct ibv_device **list = verbs->ops->get_device_list(&count);
    if (list == NULL)
        return rdti_error_set(err, RDT_ENOTVIABLE, errno,
                              "ibv_get_device_list: the kernel's RDMA support is not there");
    status = rdti_verbs_check_names(&verbs->settings, verbs->ops, list, count, err);
    for (int i = 0; status == RDT_OK && i < count; i++)
        status = nic_open_ports(verbs, list[i], err);
    verbs->ops->free_device_list(list);
    if (status == RDT_OK)
        nic_equip_ports(verbs);
    while (status != RDT_OK && verbs->nic_count > 0)
        nic_close_context(&verbs->nics[--verbs->nic_count]);
    if (status != RDT_OK || verbs->nic_count > 0)
        return status;
    return rdti_error_set(err, RDT_ENOTVIABLE, 0, "no RDMA port can be used: %s",
                          verbs->skipped[0] != '\0' ? verbs->skipped : "no device was found");
}

void
rdti_verbs_close_nics(struct rdti_verbs *verbs)
{
    while (verbs->nic_count > 0)
        nic_close(&verbs->nics[--verbs->nic_count]);
}
