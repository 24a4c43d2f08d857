/* SPDX-License-Identifier: Apache-2.0
 * The sim's PDs, MRs, completion channels and CQs, their lives, and what a closing device ends. */
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "harness.h"
#include "sim/sim_impl.h"

/* ---- What exists ---------------------------------------------------------------------------- */

void
sim_track(enum sim_kind kind, struct ibv_context *context, void *object)
{
    struct sim_object *entry = calloc(1, sizeof(*entry));

    CHECK_NOT_NULL(entry);
    *entry = (struct sim_object){.next = sim.objects,
                                 .kind = kind,
                                 .context = context,
                                 .object = object};
    sim.objects = entry;
    sim.live_objects++;
}

void
sim_untrack(void *object)
{
    struct sim_object **at = &sim.objects;

    while (*at != NULL && (*at)->object != object)
        at = &(*at)->next;
    CHECK_MSG(*at != NULL, "an object is destroyed that does not exist");
    struct sim_object *entry = *at;
    *at = entry->next;
    sim.live_objects--;
    free(entry);
}

bool
sim_refuses(struct ibv_context *context, const char *call)
{
    if (!sim_device_of(context)->is_removed)
        return sim_is_failing(call);
    errno = EIO;
    return true;
}

/* A parent is not destroyed before its children; that it is tried is our fault, unless destroying
 * one of them was made to fail. */
static int
check_children(uint32_t children, const char *what)
{
    CHECK_MSG(children == 0 || sim.failed_call != NULL, "a %s with %u children is destroyed", what,
              children);
    return children == 0 ? 0 : EBUSY;
}

static void
end_object(const struct sim_object *entry)
{
    void *object = entry->object;

    switch (entry->kind) {
    case SIM_QP:
        sim_free_qp(object);
        break;
    case SIM_MR:
        sim_free_mr(object);
        break;
    case SIM_CQ:
        sim_free_cq(object);
        break;
    case SIM_CHANNEL:
        sim_free_channel(object);
        break;
    case SIM_PD:
        sim_free_pd(object);
        break;
    }
}

uint32_t
sim_reap(struct ibv_context *context)
{
    uint32_t count = 0;

    for (enum sim_kind kind = SIM_QP; kind <= SIM_PD; kind++)
        for (struct sim_object *at = sim.objects, *next; at != NULL; at = next) {
            next = at->next;
            if (at->kind != kind || at->context != context)
                continue;
            end_object(at);
            count++;
        }
    return count;
}

/* ---- PDs and MRs ---------------------------------------------------------------------------- */

struct ibv_pd *
sim_alloc_pd(struct ibv_context *context)
{
    struct sim_pd *pd = NULL;

    sim_lock();
    if (!sim_refuses(context, "alloc_pd")) {
        pd = calloc(1, sizeof(*pd));
        CHECK_NOT_NULL(pd);
        pd->pd.context = context;
        sim_track(SIM_PD, context, pd);
    }
    sim_unlock();
    return pd != NULL ? &pd->pd : NULL;
}

void
sim_free_pd(struct sim_pd *pd)
{
    sim_untrack(pd);
    free(pd);
}

int
sim_dealloc_pd(struct ibv_pd *base)
{
    struct sim_pd *pd = (struct sim_pd *)base;

    sim_lock();
    int failed = sim_is_failing("dealloc_pd") ? errno : 0;
    if (failed == 0)
        failed = check_children(pd->children, "PD");
    if (failed == 0)
        sim_free_pd(pd);
    sim_unlock();
    return failed;
}

/* Pages are pinned to the end of the call: they must be there. mincore() looks for them without a
 * look at what they hold, which their owner may write meanwhile. */
static void
check_mapped(const void *addr, size_t len_bytes)
{
    const uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t first = (uintptr_t)addr / page_bytes * page_bytes;
    unsigned char is_in_memory;

    if (len_bytes == 0)
        return;
    const uintptr_t last = ((uintptr_t)addr + len_bytes - 1) / page_bytes * page_bytes;
    CHECK_INT_EQ(mincore((void *)first, page_bytes, &is_in_memory), 0);
    CHECK_INT_EQ(mincore((void *)last, page_bytes, &is_in_memory), 0);
}

struct ibv_mr *
sim_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t len_bytes, uint64_t iova,
                 unsigned int access)
{
    const uint64_t limit = sim.config.memlock_bytes;
    struct sim_mr *mr = NULL;
    uint32_t key = 0;

    CHECK_HEX_EQ(iova, (uintptr_t)addr);
    sim_lock();
    sim_wait_while_held(len_bytes);
    check_mapped(addr, len_bytes);
    if (limit != 0 && sim.locked_bytes + len_bytes > limit) {
        errno = ENOMEM;
    } else if (sim.config.max_mr_bytes != 0 && len_bytes > sim.config.max_mr_bytes) {
        errno = EINVAL;
    } else if (!sim_refuses(pd->context, "reg_mr")) {
        mr = calloc(1, sizeof(*mr));
        CHECK_NOT_NULL(mr);
        while (key < SIM_MRS_MAX && sim.mrs[key] != NULL)
            key++;
        CHECK_INT_LT(key, SIM_MRS_MAX);
        sim.mrs[key] = mr;
        sim.has_registered = true;
        mr->mr = (struct ibv_mr){.context = pd->context,
                                 .pd = pd,
                                 .addr = addr,
                                 .length = len_bytes,
                                 .lkey = key + 1,
                                 .rkey = SIM_RKEYS_FROM + key + 1};
        mr->access = access;
        sim.locked_bytes += len_bytes;
        ((struct sim_pd *)pd)->children++;
        sim_track(SIM_MR, pd->context, mr);
    }
    sim_unlock();
    return mr != NULL ? &mr->mr : NULL;
}

void
sim_free_mr(struct sim_mr *mr)
{
    sim.mrs[mr->mr.lkey - 1] = NULL;
    sim.locked_bytes -= mr->mr.length;
    ((struct sim_pd *)mr->mr.pd)->children--;
    sim_untrack(mr);
    free(mr);
}

int
sim_dereg_mr(struct ibv_mr *base)
{
    struct sim_mr *mr = (struct sim_mr *)base;

    sim_lock();
    sim_wait_while_held(base->length);
    sim_unlock();
    sim_lock_still();
    CHECK_PTR_EQ(sim.mrs[base->lkey - 1], mr);
    const int failed = sim_is_failing("dereg_mr") ? errno : 0;
    if (failed == 0)
        sim_free_mr(mr);
    sim_unlock();
    return failed;
}

/* ---- Completion channels and CQs ------------------------------------------------------------ */

struct ibv_comp_channel *
sim_create_comp_channel(struct ibv_context *context)
{
    struct sim_channel *channel = NULL;
    int ends[2];

    sim_lock();
    if (!sim_refuses(context, "create_comp_channel")) {
        channel = calloc(1, sizeof(*channel));
        CHECK_NOT_NULL(channel);
        CHECK_INT_EQ(pipe2(ends, O_CLOEXEC), 0);
        channel->channel.context = context;
        channel->channel.fd = ends[0];
        channel->write_fd = ends[1];
        sim_track(SIM_CHANNEL, context, channel);
    }
    sim_unlock();
    return channel != NULL ? &channel->channel : NULL;
}

void
sim_free_channel(struct sim_channel *channel)
{
    CHECK_INT_EQ(close(channel->channel.fd), 0);
    if (channel->write_fd >= 0)
        CHECK_INT_EQ(close(channel->write_fd), 0);
    sim_untrack(channel);
    free(channel);
}

int
sim_destroy_comp_channel(struct ibv_comp_channel *base)
{
    struct sim_channel *channel = (struct sim_channel *)base;

    sim_lock();
    int failed = sim_is_failing("destroy_comp_channel") ? errno : 0;
    if (failed == 0)
        failed = check_children(channel->children, "completion channel");
    if (failed == 0)
        sim_free_channel(channel);
    sim_unlock();
    return failed;
}

struct ibv_cq *
sim_create_cq(struct ibv_context *context, int entries, void *cq_context,
              struct ibv_comp_channel *channel, int vector)
{
    struct sim_cq *cq = NULL;

    CHECK_INT_EQ(vector, 0);
    sim_lock();
    if (!sim_refuses(context, "create_cq")) {
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
        sim_track(SIM_CQ, context, cq);
    }
    sim_unlock();
    return cq != NULL ? &cq->cq : NULL;
}

/* The kernel takes back events that nobody has read. */
void
sim_free_cq(struct sim_cq *cq)
{
    struct pollfd pollfd = {.fd = cq->channel->channel.fd, .events = POLLIN};
    struct ibv_cq *events[64];
    const bool has_events = poll(&pollfd, 1, 0) == 1 && (pollfd.revents & POLLIN) != 0;
    const ssize_t got = has_events ? read(pollfd.fd, events, sizeof(events)) : 0;

    for (ssize_t i = 0; i < got / (ssize_t)sizeof(events[0]); i++)
        if (events[i] != &cq->cq && cq->channel->write_fd >= 0)
            CHECK_INT_EQ(write(cq->channel->write_fd, &events[i], sizeof(events[i])),
                         sizeof(events[i]));
    cq->channel->children--;
    sim_untrack(cq);
    free(cq->ring);
    free(cq);
}

int
sim_destroy_cq(struct ibv_cq *base)
{
    struct sim_cq *cq = (struct sim_cq *)base;

    sim_lock();
    CHECK_MSG(cq->unacked == 0, "a CQ with %u unacknowledged events is destroyed", cq->unacked);
    int failed = sim_is_failing("destroy_cq") ? errno : 0;
    if (failed == 0)
        failed = check_children(cq->children, "CQ");
    if (failed == 0)
        sim_free_cq(cq);
    sim_unlock();
    return failed;
}

int
sim_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
    sim_lock();
    const bool is_failing = sim_is_failing_by_name("get_cq_event");
    sim_unlock();
    if (is_failing)
        return -1;
    const ssize_t got = read(channel->fd, cq, sizeof(*cq));

    if (got == 0)
        errno = EIO;
    if (got != (ssize_t)sizeof(*cq))
        return -1;
    sim_lock();
    ((struct sim_cq *)*cq)->unacked++;
    *cq_context = (*cq)->cq_context;
    sim_unlock();
    return 0;
}

void
sim_ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
    sim_lock();
    ((struct sim_cq *)cq)->unacked -= count;
    sim_unlock();
}

uint32_t
sim_live_pds(void)
{
    uint32_t count = 0;

    sim_lock();
    for (const struct sim_object *at = sim.objects; at != NULL; at = at->next)
        count += at->kind == SIM_PD;
    sim_unlock();
    return count;
}
