/* SPDX-License-Identifier: Apache-2.0
 * Descriptors that the engine watches, and their callbacks. [driver] */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "progress/engine_impl.h"

/* A spinning thread polls sockets once in this many passes: an epoll_wait costs as much as eight
 * passes. If sockets carry no payload, polls may be rarer, but must come before those of the
 * progress thread, which polls every ms. So the passes between polls double while polls are less
 * than 125 us apart, and return to the minimum after a gap of more than 250. The minimum is for
 * slow (emulated) machines; the maximum costs 0.004 system calls per message of 8 B (target:
 * 0.02). */
#define PASSES_PER_LOOK 64
#define PASSES_PER_LATE_LOOK_LEAST 256
#define PASSES_PER_LATE_LOOK_MOST 2048
#define LATE_LOOK_NS UINT64_C(250000)
/* Passes that were short have become long, for example because they copy. */
#define OVERDUE_LOOK_NS UINT64_C(1000000)

#define EVENTS_PER_PASS 32

struct rdti_watch {
    struct rdti_list link; /* engine->watches, or engine->graveyard once dead */
    int fd;
    rdti_watch_fn fn;
    void *arg;
    bool is_dead;
};

rdt_status
rdti_engine_watch(struct rdti_engine *engine, int fd, uint32_t epoll_events, rdti_watch_fn fn,
                  void *arg, struct rdti_watch **out, struct rdt_error *err)
{
    struct rdti_watch *watch = calloc(1, sizeof(*watch));

    if (watch == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a watch of %zu bytes", sizeof(*watch));
    watch->fd = fd;
    watch->fn = fn;
    watch->arg = arg;
    struct epoll_event event = {.events = epoll_events, .data = {.ptr = watch}};
    if (epoll_ctl(engine->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        const int sys_errno = errno;
        free(watch);
        return rdti_error_set(err, RDT_EDEVICE, sys_errno, "epoll_ctl(ADD, %d)", fd);
    }
    rdti_list_append(&engine->watches, &watch->link);
    *out = watch;
    return RDT_OK;
}

void
rdti_engine_rewatch(struct rdti_engine *engine, struct rdti_watch *watch, uint32_t epoll_events)
{
    struct epoll_event event = {.events = epoll_events, .data = {.ptr = watch}};

    if (epoll_ctl(engine->epoll_fd, EPOLL_CTL_MOD, watch->fd, &event) != 0)
        rdti_log(RDT_LOG_ERROR, "epoll_ctl(MOD, %d): %s", watch->fd, strerror(errno));
}

void
rdti_engine_unwatch(struct rdti_engine *engine, struct rdti_watch *watch)
{
    if (watch == NULL)
        return;
    (void)epoll_ctl(engine->epoll_fd, EPOLL_CTL_DEL, watch->fd, NULL);
    watch->is_dead = true; /* an event of this pass may still name it: freed after dispatch */
    rdti_list_remove(&watch->link);
    rdti_list_append(&engine->graveyard, &watch->link);
}

static void
watch_free_list(struct rdti_list *watches)
{
    struct rdti_list *node;

    while ((node = rdti_list_take_first(watches)) != NULL)
        free(RDTI_CONTAINER(node, struct rdti_watch, link));
}

void
rdti_engine_free_watches(struct rdti_engine *engine)
{
    watch_free_list(&engine->watches);
    watch_free_list(&engine->graveyard);
}

/* A transport with arm() receives its payload by polling, not through sockets. */
bool
rdti_engine_do_sockets_carry(const struct rdti_engine *engine)
{
    for (uint32_t i = 0; i < engine->poller_count; i++)
        if (engine->pollers[i].arm == NULL &&
            engine->pollers[i].needs_epoll(engine->pollers[i].state))
            return true;
    return false;
}

void
rdti_engine_plan_look(struct rdti_engine *engine)
{
    const uint32_t passes = atomic_load_explicit(&engine->passes, memory_order_relaxed);
    const uint64_t now_ns = rdti_now_ns();
    const uint64_t since_ns =
        now_ns - atomic_load_explicit(&engine->looked_ns, memory_order_relaxed);

    if (since_ns > LATE_LOOK_NS || engine->late_passes == 0)
        engine->late_passes = PASSES_PER_LATE_LOOK_LEAST;
    else if (since_ns < LATE_LOOK_NS / 2 && engine->late_passes < PASSES_PER_LATE_LOOK_MOST &&
             passes - engine->looked_at >=
                 engine->late_passes) /* else the rate of passes is unknown */
        engine->late_passes *= 2;
    const uint32_t in =
        rdti_engine_do_sockets_carry(engine) ? PASSES_PER_LOOK : engine->late_passes;
    engine->looked_at = passes;
    atomic_store_explicit(&engine->look_at, passes + in, memory_order_relaxed);
    atomic_store_explicit(&engine->looked_ns, now_ns, memory_order_relaxed);
}

bool
rdti_engine_is_look_late(const struct rdti_engine *engine, uint64_t now_ns)
{
    /* relaxed: a hint; a concurrent poll may have stored a later time */
    const uint64_t looked_ns = atomic_load_explicit(&engine->looked_ns, memory_order_relaxed);

    return now_ns > looked_ns && now_ns - looked_ns > OVERDUE_LOOK_NS;
}

uint32_t
rdti_engine_dispatch(struct rdti_engine *engine)
{
    struct epoll_event events[EVENTS_PER_PASS];
    const int count = epoll_wait(engine->epoll_fd, events, EVENTS_PER_PASS, 0);

    for (int i = 0; i < count; i++) {
        struct rdti_watch *watch = events[i].data.ptr;
        if (watch != NULL && !watch->is_dead)
            watch->fn(watch->arg, events[i].events);
    }
    watch_free_list(&engine->graveyard);
    return count > 0 ? (uint32_t)count : 0;
}
