/* SPDX-License-Identifier: Apache-2.0
 * What tests turn: configurations, faults, cut cables. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"
#include "sim/sim_impl.h"

static _Thread_local bool is_inside;

bool
sim_is_inside(void)
{
    return is_inside;
}

void
sim_lock(void)
{
    CHECK_INT_EQ(pthread_mutex_lock(&sim.lock), 0);
    is_inside = true;
}

void
sim_lock_still(void)
{
    sim_lock();
    while (sim.is_placing)
        CHECK_INT_EQ(pthread_cond_wait(&sim.placed, &sim.lock), 0);
}

void
sim_unlock(void)
{
    is_inside = false;
    CHECK_INT_EQ(pthread_mutex_unlock(&sim.lock), 0);
}

void
sim_hold_mrs(uint64_t from_bytes)
{
    sim_lock();
    sim.hold_from_bytes = from_bytes;
    sim.let_mrs = 0;
    CHECK_INT_EQ(pthread_cond_broadcast(&sim.released), 0);
    sim_unlock();
}

void
sim_let_mr(void)
{
    sim_lock();
    sim.let_mrs++;
    CHECK_INT_EQ(pthread_cond_broadcast(&sim.released), 0);
    sim_unlock();
}

uint32_t
sim_held_mrs(void)
{
    sim_lock();
    const uint32_t count = sim.held_mrs;
    sim_unlock();
    return count;
}

void
sim_wait_while_held(uint64_t len_bytes)
{
    sim.held_mrs++;
    while (sim.hold_from_bytes != 0 && len_bytes >= sim.hold_from_bytes && sim.let_mrs == 0)
        CHECK_INT_EQ(pthread_cond_wait(&sim.released, &sim.lock), 0);
    if (sim.hold_from_bytes != 0 && len_bytes >= sim.hold_from_bytes)
        sim.let_mrs--;
    sim.held_mrs--;
}

int
sim_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
{
    (void)qp;
    CHECK_INT_EQ(op, IBV_WR_RDMA_WRITE);
    CHECK_UINT_LE(flags, 1);
    return flags == 0 ? sim.config.in_order == SIM_WHOLE : sim.config.in_order;
}

/* ---- Fork, counters ------------------------------------------------------------------------- */

enum ibv_fork_status
sim_is_fork_initialized(void)
{
    sim_lock();
    const enum ibv_fork_status status = sim.config.fork_status;
    sim_unlock();
    return status;
}

/* As the library has it: too late once memory is registered. */
int
sim_fork_init(void)
{
    int failed = 0;

    sim_lock();
    CHECK_INT_EQ(sim.config.fork_status, IBV_FORK_DISABLED);
    sim.fork_inits++;
    if (sim_is_failing("fork_init"))
        failed = errno;
    else if (sim.has_registered)
        failed = EINVAL;
    else
        sim.config.fork_status = IBV_FORK_ENABLED;
    sim_unlock();
    return failed;
}

void
sim_forget_fork_init(void)
{
    sim_lock();
    sim.config.fork_status = IBV_FORK_DISABLED;
    sim_unlock();
}

uint32_t
sim_fork_inits(void)
{
    sim_lock();
    const uint32_t count = sim.fork_inits;
    sim_unlock();
    return count;
}

int64_t
sim_read_counter(const char *device, uint32_t port, const char *name)
{
    int64_t value = -ENOENT;

    (void)device;
    (void)port;
    sim_lock();
    for (uint32_t i = 0; i < SIM_COUNTERS_MAX && value < 0; i++)
        if (sim.counters[i].name != NULL && strcmp(sim.counters[i].name, name) == 0)
            value = sim.counters[i].value;
    sim_unlock();
    return value;
}

void
sim_set_counter(const char *name, int64_t value)
{
    uint32_t at = 0;

    sim_lock();
    while (at < SIM_COUNTERS_MAX && sim.counters[at].name != NULL &&
           strcmp(sim.counters[at].name, name) != 0)
        at++;
    CHECK_UINT_LE(at + 1, SIM_COUNTERS_MAX);
    sim.counters[at] = (struct sim_counter){.name = name, .value = value};
    sim_unlock();
}

/* ---- Beginning and end ---------------------------------------------------------------------- */

struct sim_config
sim_default(void)
{
    /* What rxe on a network device with an IPv4 address has, and a hole. */
    static const struct sim_gid gids[SIM_DEVICES_MAX][3] = {
        {{.text = "fe80::5054:ff:fe00:1"}, {.text = "::ffff:10.0.0.1"}, {.text = NULL}},
        {{.text = "fe80::5054:ff:fe00:2"}, {.text = "::ffff:10.0.1.1"}, {.text = NULL}},
        {{.text = "fe80::5054:ff:fe00:3"}, {.text = "::ffff:10.0.2.1"}, {.text = NULL}},
        {{.text = "fe80::5054:ff:fe00:4"}, {.text = "::ffff:10.0.3.1"}, {.text = NULL}},
    };
    struct sim_config config = {.seed = 1,
                                .device_count = 1,
                                .inline_bytes = 64,
                                .fork_status = IBV_FORK_UNNEEDED};

    for (uint32_t i = 0; i < SIM_DEVICES_MAX; i++)
        memcpy(config.devices[i].gids, gids[i], sizeof(gids[i]));
    for (uint32_t i = 0; i < SIM_DEVICES_MAX; i++)
        config.devices[i].pkeys[0] = 0xffff;
    return config;
}

void
sim_begin(const struct sim_config *config)
{
    sim_lock();
    CHECK_INT_EQ(sim.live_objects, 0);
    sim.config = *config;
    sim.random = config->seed;
    sim.blocked[0] = '\0';
    sim.break_next = IBV_WC_SUCCESS;
    sim.executed = 0;
    sim.counts = (struct sim_counts){0};
    memset(sim.counters, 0, sizeof(sim.counters));
    sim.counters[0] = (struct sim_counter){.name = "out_of_sequence"};
    sim.has_registered = false;
    sim.fork_inits = 0;
    sim.calls = 0;
    sim.fail_at = 0;
    sim.failed_call = NULL;
    sim.named = NULL;
    sim.hold_from_bytes = 0;
    for (uint32_t i = 0; i < SIM_DEVICES_MAX; i++) {
        sim.devices[i] = (struct sim_device){.index = i};
        (void)snprintf(sim.devices[i].device.name, sizeof(sim.devices[i].device.name), "sim%u", i);
    }
    sim_unlock();
    rdti_verbs_use_ops(&sim_table);
}

bool
sim_is_off(void)
{
    const char *which = getenv("RDT_TEST_VERBS");

    return which != NULL && strcmp(which, "device") == 0;
}

void
sim_use(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool is_begun;
    const struct sim_config config = sim_default();

    CHECK_INT_EQ(pthread_mutex_lock(&lock), 0);
    if (!is_begun && !sim_is_off())
        sim_begin(&config);
    is_begun = true;
    CHECK_INT_EQ(pthread_mutex_unlock(&lock), 0);
}

void
sim_end(void)
{
    CHECK_INT_EQ(sim_live_objects(), 0);
    rdti_verbs_use_ops(NULL);
}

static bool
is_named(const char *call)
{
    if (sim.named == NULL || strcmp(sim.named, call) != 0)
        return false;
    if (sim.named_skip > 0) {
        sim.named_skip--;
        return false;
    }
    return sim.named_count > 0 && sim.named_count-- > 0;
}

bool
sim_is_failing(const char *call)
{
    const bool is_named_call = is_named(call);

    sim.calls++;
    if (!is_named_call && (sim.fail_at == 0 || --sim.fail_at > 0))
        return false;
    sim.failed_call = call;
    errno = is_named_call ? sim.named_errno : sim.fail_errno;
    return true;
}

bool
sim_is_failing_by_name(const char *call)
{
    if (!is_named(call))
        return false;
    sim.failed_call = call;
    errno = sim.named_errno;
    return true;
}

void
sim_fail_call(uint32_t n, int sys_errno)
{
    sim_lock();
    sim.fail_at = n;
    sim.fail_errno = sys_errno;
    sim.failed_call = NULL;
    sim_unlock();
}

void
sim_fail_named(const char *call, uint32_t skip, uint32_t count, int sys_errno)
{
    sim_lock();
    sim.named = call;
    sim.named_skip = skip;
    sim.named_count = count;
    sim.named_errno = sys_errno;
    sim.failed_call = NULL;
    sim_unlock();
}

uint32_t
sim_call_count(void)
{
    sim_lock();
    const uint32_t calls = sim.calls;
    sim_unlock();
    return calls;
}

const char *
sim_failed_call(void)
{
    sim_lock();
    const char *call = sim.failed_call;
    sim_unlock();
    return call;
}

uint32_t
sim_live_objects(void)
{
    sim_lock();
    const uint32_t count = sim.live_objects;
    sim_unlock();
    return count;
}

uint32_t
sim_accesses_of(const void *addr, unsigned int *out, uint32_t cap)
{
    const uintptr_t at = (uintptr_t)addr;
    uint32_t count = 0;

    sim_lock();
    for (uint32_t i = 0; i < SIM_MRS_MAX; i++) {
        const struct sim_mr *mr = sim.mrs[i];

        if (mr != NULL && at >= (uintptr_t)mr->mr.addr &&
            at - (uintptr_t)mr->mr.addr < mr->mr.length) {
            CHECK_UINT_LE(count + 1, cap);
            out[count++] = mr->access;
        }
    }
    sim_unlock();
    return count;
}

void
sim_block_gid(const char *text)
{
    sim_lock();
    (void)snprintf(sim.blocked, sizeof(sim.blocked), "%s", text != NULL ? text : "");
    sim_unlock();
}

void
sim_cut_device(uint32_t device, bool is_cut)
{
    sim_lock();
    sim.devices[device].is_cut = is_cut;
    sim_unlock();
}

void
sim_cut_after(uint32_t device, uint64_t n, uint32_t unanswered)
{
    sim_lock();
    sim.devices[device].cut_at = sim.executed + n;
    sim.devices[device].unanswered = unanswered;
    sim.devices[device].is_cut = n == 0;
    sim_unlock();
}

void
sim_break_next(enum ibv_wc_status status)
{
    sim_lock();
    sim.break_next = status;
    sim_unlock();
}

void
sim_raise_event(uint32_t device, enum ibv_event_type type)
{
    struct ibv_async_event event;

    memset(&event, 0, sizeof(event));
    event.event_type = type;
    event.element.port_num = 1;
    sim_lock();
    for (struct sim_context *at = sim.contexts; at != NULL; at = at->next)
        if (at->device->index == device && at->event_write_fd >= 0)
            CHECK_INT_EQ(write(at->event_write_fd, &event, sizeof(event)), sizeof(event));
    sim_unlock();
}

void
sim_change_gid(uint32_t device, uint32_t index, const char *text)
{
    sim_lock();
    sim.config.devices[device].gids[index].text = text;
    sim_unlock();
    sim_raise_event(device, IBV_EVENT_GID_CHANGE);
}

void
sim_change_lid(uint32_t device, uint16_t lid)
{
    sim_lock();
    sim.config.devices[device].lid = lid;
    sim_unlock();
    sim_raise_event(device, IBV_EVENT_LID_CHANGE);
}

void
sim_change_pkey(uint32_t device, uint32_t index, uint16_t pkey)
{
    sim_lock();
    sim.config.devices[device].pkeys[index] = pkey;
    sim_unlock();
    sim_raise_event(device, IBV_EVENT_PKEY_CHANGE);
}

static void
raise_in(const struct ibv_context *base, const struct ibv_async_event *event)
{
    const struct sim_context *context = (const struct sim_context *)base;

    sim_lock();
    if (context->event_write_fd >= 0)
        CHECK_INT_EQ(write(context->event_write_fd, event, sizeof(*event)), sizeof(*event));
    sim_unlock();
}

void
sim_raise_qp_event(struct ibv_qp *qp, enum ibv_event_type type)
{
    struct ibv_async_event event;

    memset(&event, 0, sizeof(event));
    event.event_type = type;
    event.element.qp = qp;
    raise_in(qp->context, &event);
}

void
sim_raise_cq_event(struct ibv_cq *cq, enum ibv_event_type type)
{
    struct ibv_async_event event;

    memset(&event, 0, sizeof(event));
    event.event_type = type;
    event.element.cq = cq;
    raise_in(cq->context, &event);
}

static void
close_end(int *fd)
{
    if (*fd >= 0)
        CHECK_INT_EQ(close(*fd), 0);
    *fd = -1;
}

void
sim_remove_device(uint32_t device)
{
    sim_lock();
    sim.devices[device].is_cut = true;
    sim.devices[device].is_removed = true;
    for (struct sim_context *at = sim.contexts; at != NULL; at = at->next)
        if (at->device->index == device)
            close_end(&at->event_write_fd);
    for (struct sim_object *at = sim.objects; at != NULL; at = at->next)
        if (at->kind == SIM_CHANNEL && sim_device_of(at->context)->index == device)
            close_end(&((struct sim_channel *)at->object)->write_fd);
    sim_unlock();
}

struct ibv_qp_attr
sim_attr_of(const struct ibv_qp *qp)
{
    sim_lock();
    const struct ibv_qp_attr attr = ((const struct sim_qp *)qp)->attr;
    sim_unlock();
    return attr;
}

enum ibv_mtu
sim_path_mtu(const struct ibv_qp *qp)
{
    sim_lock();
    const enum ibv_mtu mtu = ((const struct sim_qp *)qp)->attr.path_mtu;
    sim_unlock();
    return mtu;
}

uint64_t
sim_executed(void)
{
    sim_lock();
    const uint64_t count = sim.executed;
    sim_unlock();
    return count;
}

struct sim_counts
sim_counts(void)
{
    sim_lock();
    const struct sim_counts counts = sim.counts;
    sim_unlock();
    return counts;
}
