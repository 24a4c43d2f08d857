/* SPDX-License-Identifier: Apache-2.0 Port events: events of their device, ports that stay down,
 * addresses that change, devices that are removed. All [driver]. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "transport/verbs/device/gid.h"
#include "transport/verbs/down.h"
#include "transport/verbs/lane.h"

/* ---- Breaking the links of a port ----------------------------------------------------------- */

static void
events_break_link(struct rdti_verbs_link *link, const char *what, const char *advice)
{
    const struct rdti_verbs_lane *lane = link->lane;
    struct rdt_error err;

    (void)rdti_error_set_rank(&err, RDT_EDEVICE, lane->args.peer_rank,
                              "verbs lane to rank %d: device %s port %u %s; %s",
                              lane->args.peer_rank, link->nic->name, link->nic->port, what, advice);
    rdti_verbs_break_link(link, &err);
}

/* The lane's link on the port, if it is not yet broken. */
static struct rdti_verbs_link *
events_link_on(struct rdti_verbs_lane *lane, const struct rdti_verbs_nic *nic)
{
    for (uint32_t i = 0; i < lane->link_count; i++) /* at most one is on the port */
        if (lane->links[i].nic == nic && lane->links[i].state <= RDTI_VERBS_LINK_GOOD)
            return &lane->links[i];
    return NULL;
}

/* Breaks the links on the port for which is_meant(link, arg) holds. That may end a lane, and a
 * callback may close it; it stays in the list until the sweep. */
static void
events_break_links(struct rdti_verbs_nic *nic,
                   bool (*is_meant)(struct rdti_verbs_link *, const void *), const void *arg,
                   const char *what, const char *advice)
{
    struct rdti_verbs *verbs = nic->verbs;
    const bool was_polling = verbs->is_polling;

    verbs->is_polling = true;
    for (struct rdti_list *node = verbs->lanes.next; node != &verbs->lanes; node = node->next) {
        struct rdti_verbs_link *link =
            events_link_on(RDTI_CONTAINER(node, struct rdti_verbs_lane, node), nic);

        if (link != NULL && is_meant(link, arg))
            events_break_link(link, what, advice);
    }
    verbs->is_polling = was_polling;
    if (!was_polling)
        rdti_verbs_sweep(verbs);
}

static bool
events_is_any(struct rdti_verbs_link *link, const void *arg)
{
    (void)link;
    (void)arg;
    return true;
}

/* ---- The device is gone --------------------------------------------------------------------- */

/* From here on no memory is registered there, and no offer has the port. */
static void
events_mark_gone(struct rdti_verbs_nic *nic)
{
    (void)pthread_mutex_lock(&nic->verbs->mr_lock);
    nic->is_gone = true;
    (void)pthread_mutex_unlock(&nic->verbs->mr_lock);
}

/* Its descriptors stay ready: a thread that watched them would never sleep again. */
static void
events_lose(struct rdti_verbs_nic *nic)
{
    const struct rdti_host *host = nic->verbs->host;

    if (nic->async_watch != NULL)
        host->unwatch(host->core, nic->async_watch);
    if (nic->channel_watch != NULL)
        host->unwatch(host->core, nic->channel_watch);
    nic->async_watch = NULL;
    nic->channel_watch = NULL;
    events_mark_gone(nic);
    rdti_text_copy(nic->event, sizeof(nic->event), "the device was removed");
    rdti_log(RDT_LOG_WARN, "verbs: device %s port %u was removed", nic->name, nic->port);
    events_break_links(nic, events_is_any, NULL, "was removed",
                       "was its driver unloaded, or the device hot-unplugged? look at dmesg");
}

static bool
events_is_lost(int sys_errno, uint32_t epoll_events)
{
    return (epoll_events & (uint32_t)(EPOLLERR | EPOLLHUP)) != 0 || sys_errno == EIO ||
           sys_errno == ENODEV;
}

void
rdti_verbs_on_channel(void *arg, uint32_t epoll_events)
{
    struct rdti_verbs_nic *nic = arg;
    const struct rdti_verbs_ops *ops = nic->verbs->ops;
    struct ibv_cq *cq;
    void *cq_context;

    errno = 0;
    while (ops->get_cq_event(nic->channel, &cq, &cq_context) == 0) {
        ops->ack_cq_events(cq, 1); /* at once: destroying the CQ waits for it */
        rdti_verbs_disarm(nic->verbs, cq);
        errno = 0;
    }
    if (events_is_lost(errno, epoll_events))
        events_lose(nic);
}

/* ---- Paths that change ---------------------------------------------------------------------- */

static bool
events_has_other_gid(struct rdti_verbs_link *link, const void *arg)
{
    struct rdti_verbs_nic *nic = link->nic;
    const struct rdti_verbs_gid *gid =
        &link->lane->own.ports[link->port_index].gids[link->pairs[link->round].own];
    struct ibv_gid_entry entry;

    (void)arg;
    if (nic->is_infiniband || !link->lane->is_connected)
        return false;
    memset(&entry, 0, sizeof(entry));
    return nic->verbs->ops->query_gid_ex(nic->context, nic->port, gid->index, &entry, 0,
                                         sizeof(entry)) != 0 ||
           memcmp(entry.gid.raw, gid->raw, sizeof(gid->raw)) != 0;
}

static bool
events_has_other_lid(struct rdti_verbs_link *link, const void *lid)
{
    return link->nic->is_infiniband &&
           link->lane->own.ports[link->port_index].lid != *(const uint16_t *)lid;
}

static bool
events_has_other_pkey(struct rdti_verbs_link *link, const void *arg)
{
    const struct rdti_verbs_nic *nic = link->nic;
    __be16 entry = 0;

    (void)arg;
    return link->pkey != 0 &&
           (nic->verbs->ops->query_pkey(nic->context, nic->port, link->pkey_index, &entry) != 0 ||
            ((be16toh(entry) ^ link->pkey) & 0x7fff) != 0);
}

/* A link keeps the addresses with which it was verified; later lanes offer the new ones. */
static void
events_follow_path(struct rdti_verbs_nic *nic, const char *what)
{
    const uint16_t old_lid = nic->lid;
    struct ibv_port_attr port;
    struct rdt_error err;
    char why[128];

    (void)snprintf(why, sizeof(why), "reports \"%s\": the address of this path is gone", what);
    events_break_links(nic, events_has_other_gid, NULL, why, "look at ip addr, and connect again");
    memset(&port, 0, sizeof(port));
    if (nic->verbs->ops->query_port(nic->context, nic->port, &port) == 0)
        nic->lid = port.lid;
    if (nic->lid != old_lid)
        events_break_links(nic, events_has_other_lid, &nic->lid, why,
                           "the subnet manager moved it; connect again");
    if (rdti_verbs_find_gids(nic, &err) != RDT_OK)
        rdti_log(RDT_LOG_WARN, "verbs: device %s port %u: %s", nic->name, nic->port, err.message);
}

/* ---- Events --------------------------------------------------------------------------------- */

static bool
events_is_of_event(struct rdti_verbs_link *link, const void *arg)
{
    const struct ibv_async_event *event = arg;

    for (uint32_t i = 0; i < link->qp_count; i++)
        if (link->qps[i]->qp == event->element.qp)
            return true;
    return event->event_type == IBV_EVENT_CQ_ERR && link->cq == event->element.cq;
}

static bool
events_is_of_port(const struct rdti_verbs_nic *nic, const struct ibv_async_event *event)
{
    switch (event->event_type) {
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
        return event->element.port_num == nic->port;
    default:
        return true;
    }
}

/* Harmless in itself; its effect on a path is checked separately. */
static bool
events_is_harmless(enum ibv_event_type type)
{
    return type == IBV_EVENT_COMM_EST || type == IBV_EVENT_GID_CHANGE ||
           type == IBV_EVENT_LID_CHANGE || type == IBV_EVENT_PKEY_CHANGE ||
           type == IBV_EVENT_SM_CHANGE || type == IBV_EVENT_CLIENT_REREGISTER ||
           type == IBV_EVENT_SRQ_LIMIT_REACHED || type == IBV_EVENT_PATH_MIG;
}

/* Errors do not mention events that are over or harmless. */
static void
events_note_event(struct rdti_verbs_nic *nic, enum ibv_event_type type, const char *text)
{
    rdti_log(type == IBV_EVENT_COMM_EST ? RDT_LOG_DEBUG : RDT_LOG_WARN,
             "verbs: device %s port %u reports \"%s\"", nic->name, nic->port, text);
    if (type == IBV_EVENT_PORT_ACTIVE)
        nic->event[0] = '\0';
    else if (!events_is_harmless(type))
        rdti_text_copy(nic->event, sizeof(nic->event), text);
    if (type == IBV_EVENT_PORT_ACTIVE)
        nic->down_since_ns = 0;
    else if (type == IBV_EVENT_PORT_ERR && nic->down_since_ns == 0)
        nic->down_since_ns = rdti_now_ns();
}

static void
events_act_on(struct rdti_verbs_nic *nic, const struct ibv_async_event *event, const char *text)
{
    const char *advice = "look at dmesg and at the device's state";
    char what[128];

    (void)snprintf(what, sizeof(what), "reports \"%s\"", text);
    switch (event->event_type) {
    case IBV_EVENT_DEVICE_FATAL:
        events_mark_gone(nic);
        events_break_links(nic, events_is_any, NULL, what, advice);
        break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_CQ_ERR:
        events_break_links(nic, events_is_of_event, event, what, advice);
        break;
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_LID_CHANGE:
        events_follow_path(nic, text);
        break;
    case IBV_EVENT_PKEY_CHANGE:
        events_break_links(nic, events_has_other_pkey, NULL, what,
                           "its PKEY stands elsewhere in the table now, or nowhere; connect again");
        break;
    default: /* a port that goes down is not yet an error: rdti_verbs_watch_ports() */
        break;
    }
}

void
rdti_verbs_on_async(void *arg, uint32_t epoll_events)
{
    struct rdti_verbs_nic *nic = arg;
    const struct rdti_verbs_ops *ops = nic->verbs->ops;
    struct ibv_async_event event;

    errno = 0;
    while (ops->get_async_event(nic->context, &event) == 0) {
        const struct ibv_async_event copy = event;
        const char *text = ops->event_type_str(copy.event_type);

        ops->ack_async_event(&event); /* before a QP is destroyed, as that waits for it */
        if (events_is_of_port(nic, &copy)) {
            events_note_event(nic, copy.event_type, text);
            events_act_on(nic, &copy, text);
        }
        errno = 0;
    }
    if (events_is_lost(errno, epoll_events))
        events_lose(nic);
}

void
rdti_verbs_watch_ports(struct rdti_verbs_lane *lane)
{
    for (uint32_t i = 0; i < lane->link_count; i++) {
        struct rdti_verbs_link *link = &lane->links[i];
        const struct rdti_verbs_nic *nic = link->nic;
        char what[192];

        if (link->state != RDTI_VERBS_LINK_GOOD || nic->down_since_ns == 0)
            continue;
        const uint64_t down_ns = rdti_now_ns() - nic->down_since_ns;
        if (down_ns < rdti_verbs_retry_window_ns(lane))
            continue;
        (void)snprintf(what, sizeof(what), "reports \"%s\" and has been down for %.2f s",
                       nic->event, (double)down_ns / 1e9);
        events_break_link(link, what, "is its cable in, its switch up, and ip link too?");
        if (rdti_verbs_phase_of(lane) == RDTI_VERBS_FAILED)
            return;
    }
}
