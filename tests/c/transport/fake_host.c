/* SPDX-License-Identifier: Apache-2.0
 * The host of transports' tests: regions, watches, the pump and the records. */
#include "fake_host.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "../harness.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/range.h"
#include "fake_side.h"

#define FAKE_EVENTS_PER_PUMP 64

struct rdti_watch {
    struct rdti_watch *next;
    int fd;
    rdti_watch_fn fn;
    void *arg;
    bool is_dead;
};

static void
on_notify(void *core, struct rdti_lane *lane, uint32_t notification)
{
    struct fake_link *link = lane->owner;

    (void)core;
    if (link->on_notify != NULL) {
        link->on_notify(link, notification, link->on_notify_arg);
        return;
    }
    if (link->notify_count == link->notify_cap) {
        link->notify_cap = link->notify_cap == 0 ? 64 : 2 * link->notify_cap;
        link->notifications =
            realloc(link->notifications, link->notify_cap * sizeof(*link->notifications));
        CHECK_NOT_NULL(link->notifications);
    }
    link->notifications[link->notify_count++] = notification;
}

static void
on_error(void *core, struct rdti_lane *lane, const struct rdt_error *err)
{
    struct fake_link *link = lane->owner;

    (void)core;
    link->error_count++;
    link->error = *err;
    CHECK_MSG(link->error_count == 1, "on_error twice, now: %s", err->message);
}

static void
on_ready(void *core, struct rdti_lane *lane)
{
    struct fake_link *link = lane->owner;

    (void)core;
    link->ready_count++;
    CHECK_INT_EQ(link->ready_count, 1);
}

static rdt_status
target_acquire(void *core, uint32_t index, uint32_t generation, uint64_t off_bytes,
               uint64_t len_bytes, struct rdti_target *out, struct rdt_error *err)
{
    struct fake_host *host = core;

    if (index == 0 || index > host->region_count)
        return rdti_error_set(err, RDT_EPROTO, 0, "no region %u", index);
    struct fake_region *region = &host->regions[index];
    if (!region->is_live || region->remote.generation != generation)
        return rdti_error_set(err, RDT_ESTALE, 0, "region %u, generation %u is over", index,
                              generation);
    if (!rdti_range_ok(off_bytes, len_bytes, region->remote.len_bytes))
        return rdti_error_set(err, RDT_ERANGE, 0, "region %u: range leaves it", index);
    region->pins++;
    out->addr = region->addr + off_bytes;
    out->pin = region;
    out->region_bytes = region->remote.len_bytes;
    return RDT_OK;
}

static void
target_release(void *core, struct rdti_target *target)
{
    struct fake_region *region = target->pin;

    (void)core;
    CHECK_INT_GT(region->pins, 0);
    region->pins--;
}

static void
request_segment(void *core, struct rdti_lane *lane, uint32_t segment)
{
    struct fake_link *link = lane->owner;
    struct fake_frame frame = {.type = FAKE_FRAME_GET, .segment = segment};

    (void)core;
    (void)atomic_fetch_add_explicit(&link->segment_requests, 1, memory_order_seq_cst);
    (void)fake_side_send(link->side_fd, &frame, NULL, 0);
}

static void
send_words(void *core, struct rdti_lane *lane, const uint8_t *bytes, uint32_t len_bytes)
{
    struct fake_link *link = lane->owner;
    struct fake_frame frame = {.type = FAKE_FRAME_WORDS, .offer_bytes = len_bytes};

    (void)core;
    CHECK_UINT_LE(len_bytes, RDTI_LANE_WORDS_MAX_BYTES);
    memcpy(frame.offer, bytes, len_bytes);
    (void)fake_side_send(link->side_fd, &frame, NULL, 0);
}

static rdt_status
memory_segment(void *core, uint32_t segment, struct rdti_memory *out, struct rdt_error *err)
{
    const struct fake_host *host = core;

    if (segment >= host->segment_count)
        return rdti_error_set(err, RDT_EINVAL, 0, "no segment %u", segment);
    *out = (struct rdti_memory){.addr = host->segments[segment].addr,
                                .len_bytes = host->segments[segment].len_bytes,
                                .segment = segment};
    return RDT_OK;
}

/* All of it was populated when it was made. */
static rdt_status
memory_keep(void *core, uint32_t segment, struct rdt_error *err)
{
    struct rdti_memory memory;

    return memory_segment(core, segment, &memory, err);
}

static rdt_status
memory_find(void *core, const void *addr, uint64_t len_bytes, struct rdti_memory *out,
            struct rdt_error *err)
{
    const struct fake_host *host = core;

    for (uint32_t i = 0; i < host->segment_count; i++) {
        const uintptr_t begin = (uintptr_t)host->segments[i].addr;
        if ((uintptr_t)addr >= begin &&
            rdti_range_ok((uintptr_t)addr - begin, len_bytes, host->segments[i].len_bytes))
            return memory_segment(core, i, out, err);
    }
    return rdti_error_set(err, RDT_EINVAL, 0, "no segment holds %p", addr);
}

static rdt_status
watch(void *core, int fd, uint32_t epoll_events, rdti_watch_fn fn, void *arg,
      struct rdti_watch **out, struct rdt_error *err)
{
    struct fake_host *host = core;
    struct rdti_watch *w = calloc(1, sizeof(*w));

    CHECK_NOT_NULL(w);
    *w = (struct rdti_watch){.next = host->watches, .fd = fd, .fn = fn, .arg = arg};
    struct epoll_event event = {.events = epoll_events, .data.ptr = w};
    if (epoll_ctl(host->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        const int saved = errno;
        free(w);
        return rdti_error_set(err, RDT_EDEVICE, saved, "epoll_ctl(ADD, %d)", fd);
    }
    host->watches = w;
    host->watch_count++;
    *out = w;
    return RDT_OK;
}

static void
rewatch(void *core, struct rdti_watch *w, uint32_t epoll_events)
{
    struct fake_host *host = core;
    struct epoll_event event = {.events = epoll_events, .data.ptr = w};

    CHECK_INT_EQ(epoll_ctl(host->epoll_fd, EPOLL_CTL_MOD, w->fd, &event), 0);
}

static void
unwatch(void *core, struct rdti_watch *w)
{
    struct fake_host *host = core;
    struct rdti_watch **at = &host->watches;

    CHECK_INT_EQ(epoll_ctl(host->epoll_fd, EPOLL_CTL_DEL, w->fd, NULL), 0);
    while (*at != NULL && *at != w)
        at = &(*at)->next;
    CHECK_PTR_EQ(*at, w);
    *at = w->next;
    w->is_dead = true;
    w->next = host->dead_watches;
    host->dead_watches = w;
    host->watch_count--;
}

static void
free_dead_watches(struct fake_host *host)
{
    while (host->dead_watches != NULL) {
        struct rdti_watch *w = host->dead_watches;

        host->dead_watches = w->next;
        free(w);
    }
}

static int
sealed_memfd(const char *name, uint64_t len_bytes)
{
    const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

    CHECK_INT_GE(fd, 0);
    CHECK_INT_EQ(ftruncate(fd, (off_t)len_bytes), 0);
    CHECK_INT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    return fd;
}

static void *
map_shared(int fd, uint64_t len_bytes)
{
    void *addr = mmap(NULL, len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    CHECK_MSG(addr != MAP_FAILED, "mmap of %" PRIu64 " bytes: %s", len_bytes, strerror(errno));
    return addr;
}

static void
prepare(struct fake_host *host, const struct rdti_transport *transport)
{
    pthread_mutexattr_t attr;

    memset(host, 0, sizeof(*host));
    host->transport = transport;
    rdti_list_init(&host->links);
    CHECK_INT_EQ(pthread_mutexattr_init(&attr), 0);
    CHECK_INT_EQ(pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE), 0);
    CHECK_INT_EQ(pthread_mutex_init(&host->engine, &attr), 0);
    host->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    CHECK_INT_GE(host->epoll_fd, 0);
    host->host = (struct rdti_host){
        .core = host,
        .on_notify = on_notify,
        .on_error = on_error,
        .on_ready = on_ready,
        .target_acquire = target_acquire,
        .target_release = target_release,
        .request_segment = request_segment,
        .send_words = send_words,
        .memory_find = memory_find,
        .memory_segment = memory_segment,
        .memory_keep = memory_keep,
        .watch = watch,
        .rewatch = rewatch,
        .unwatch = unwatch,
        .doorbell_fd = sealed_memfd("fake-doorbell", FAKE_DOORBELL_BYTES),
        .event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
        .generation_fd = sealed_memfd("fake-generations", FAKE_GENERATION_TABLE_BYTES),
        .counters = &host->counters,
        .tcp_streams = 2,
    };
    CHECK_INT_GE(host->host.event_fd, 0);
    host->bell = map_shared(host->host.doorbell_fd, FAKE_DOORBELL_BYTES);
    host->generations = map_shared(host->host.generation_fd, FAKE_GENERATION_TABLE_BYTES);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    CHECK_INT_EQ(epoll_ctl(host->epoll_fd, EPOLL_CTL_ADD, host->host.event_fd, &event), 0);
}

static void
release(struct fake_host *host)
{
    CHECK_INT_EQ(host->watch_count, 0);
    free_dead_watches(host);
    for (uint32_t i = 1; i <= host->region_count; i++)
        CHECK_INT_EQ(host->regions[i].pins, 0);
    for (uint32_t i = 0; i < host->segment_count; i++) {
        CHECK_INT_EQ(munmap(host->segments[i].addr, host->segments[i].len_bytes), 0);
        CHECK_INT_EQ(close(host->segments[i].fd), 0);
    }
    CHECK_INT_EQ(munmap(host->bell, FAKE_DOORBELL_BYTES), 0);
    CHECK_INT_EQ(munmap(host->generations, FAKE_GENERATION_TABLE_BYTES), 0);
    CHECK_INT_EQ(close(host->host.doorbell_fd), 0);
    CHECK_INT_EQ(close(host->host.event_fd), 0);
    CHECK_INT_EQ(close(host->host.generation_fd), 0);
    CHECK_INT_EQ(close(host->epoll_fd), 0);
    CHECK_INT_EQ(pthread_mutex_destroy(&host->engine), 0);
}

rdt_status
fake_host_try_open(struct fake_host *host, const struct rdti_transport *transport,
                   struct rdt_error *err)
{
    prepare(host, transport);
    const rdt_status status = transport->open(&host->host, &host->state, err);
    if (status != RDT_OK)
        release(host);
    return status;
}

void
fake_host_open(struct fake_host *host, const struct rdti_transport *transport)
{
    struct rdt_error err;

    CHECK_OK(fake_host_try_open(host, transport, &err), &err);
}

void
fake_host_close(struct fake_host *host)
{
    CHECK(rdti_list_is_empty(&host->links));
    host->transport->close(host->state);
    release(host);
}

uint32_t
fake_segment(struct fake_host *host, uint64_t len_bytes)
{
    CHECK_INT_LT(host->segment_count, FAKE_SEGMENTS_MAX);
    const uint32_t number = host->segment_count++;
    struct fake_segment *segment = &host->segments[number];

    segment->fd = sealed_memfd("fake-segment", len_bytes);
    segment->addr = map_shared(segment->fd, len_bytes);
    segment->len_bytes = len_bytes;
    return number;
}

static struct fake_region *
add_region(struct fake_host *host, uint8_t *addr, uint64_t len_bytes)
{
    CHECK_INT_LT(host->region_count + 1, FAKE_REGIONS_MAX);
    const uint32_t index = ++host->region_count;
    struct fake_region *region = &host->regions[index];

    *region = (struct fake_region){
        .addr = addr,
        .is_live = true,
        .remote = {.addr = (uint64_t)(uintptr_t)addr,
                   .len_bytes = len_bytes,
                   .segment = RDT_SEGMENT_NONE,
                   .index = index,
                   .generation = 100 + index},
    };
    /* release: peers that read the table see a region that is complete. */
    atomic_store_explicit(&host->generations[index], region->remote.generation,
                          memory_order_release);
    return region;
}

struct fake_region *
fake_region_in(struct fake_host *host, uint32_t segment, uint64_t off_bytes, uint64_t len_bytes)
{
    CHECK_INT_LT(segment, host->segment_count);
    CHECK(rdti_range_ok(off_bytes, len_bytes, host->segments[segment].len_bytes));
    struct fake_region *region =
        add_region(host, host->segments[segment].addr + off_bytes, len_bytes);

    region->remote.segment = segment;
    region->remote.segment_off = off_bytes;
    return region;
}

struct fake_region *
fake_region(struct fake_host *host, uint64_t len_bytes)
{
    const uint64_t page = 4096;

    return fake_region_in(host, fake_segment(host, (len_bytes / page + 1) * page), 0, len_bytes);
}

struct fake_region *
fake_region_private(struct fake_host *host, void *addr, uint64_t len_bytes)
{
    return add_region(host, addr, len_bytes);
}

void
fake_region_revoke(struct fake_host *host, struct fake_region *region)
{
    region->is_live = false;
    /* seq_cst: pairs with initiators' loads before they write. */
    atomic_store_explicit(&host->generations[region->remote.index], region->remote.generation + 1,
                          memory_order_seq_cst);
}

static uint32_t
dispatch(struct fake_host *host, const struct epoll_event *events, int count)
{
    uint32_t work = 0;

    for (int i = 0; i < count; i++) {
        struct rdti_watch *w = events[i].data.ptr;
        uint64_t rings;

        if (w == NULL) {
            (void)!read(host->host.event_fd, &rings, sizeof(rings)); /* EAGAIN: emptied before */
            continue;
        }
        if (w->is_dead)
            continue;
        w->fn(w->arg, events[i].events);
        work++;
    }
    free_dead_watches(host);
    return work;
}

static uint32_t
pump_locked(struct fake_host *host, int timeout_ms)
{
    struct epoll_event events[FAKE_EVENTS_PER_PUMP];
    uint32_t work = 0;

    const int count = epoll_wait(host->epoll_fd, events, FAKE_EVENTS_PER_PUMP, timeout_ms);
    CHECK(count >= 0 || errno == EINTR);
    work += dispatch(host, events, count);
    for (struct rdti_list *at = host->links.next; at != &host->links;) {
        struct fake_link *link = RDTI_CONTAINER(at, struct fake_link, node);

        at = at->next;
        work += fake_side_serve(link);
    }
    if (host->transport->arm != NULL)
        host->transport->arm(host->state);
    return work + host->transport->poll(host->state);
}

uint32_t
fake_pump(struct fake_host *host)
{
    CHECK_INT_EQ(pthread_mutex_lock(&host->engine), 0);
    const uint32_t work = pump_locked(host, 0);
    CHECK_INT_EQ(pthread_mutex_unlock(&host->engine), 0);
    return work;
}

uint32_t
fake_pump_or_sleep(struct fake_host *host, uint64_t timeout_ns)
{
    struct rdti_doorbell *bell = host->bell;
    uint32_t work = fake_pump(host);

    if (work > 0)
        return work;
    if (!host->transport->needs_epoll(host->state)) {
        const uint32_t sequence = rdti_doorbell_begin_sleep(bell);
        work = fake_pump(host);
        if (work == 0)
            rdti_doorbell_sleep(bell, sequence, timeout_ns);
        rdti_doorbell_end_sleep(bell);
        return work;
    }
    /* seq_cst: pairs with the load in rdti_doorbell_ring(). */
    (void)atomic_fetch_add_explicit(&bell->epoll_sleepers, 1, memory_order_seq_cst);
    work = fake_pump(host);
    if (work == 0) {
        struct epoll_event event;
        const int timeout_ms = (int)(timeout_ns / UINT64_C(1000000)) + 1;
        CHECK(epoll_wait(host->epoll_fd, &event, 1, timeout_ms) >= 0 || errno == EINTR);
    }
    (void)atomic_fetch_sub_explicit(&bell->epoll_sleepers, 1, memory_order_seq_cst);
    return work;
}

uint64_t
fake_deadline_ns(double timeout_s)
{
    return test_now_ns() + (uint64_t)(timeout_s * 1e9 * test_timeout_scale());
}

void
fake_check_deadline(uint64_t deadline_ns, const char *file, int line, const char *condition)
{
    if (test_now_ns() <= deadline_ns)
        return;
    fprintf(stderr, "%s:%d: ", file, line);
    FAIL("still not: %s", condition);
}
