/* SPDX-License-Identifier: Apache-2.0
 * The progress engine; the header says who drives and who is woken. */
#include "core/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/doorbell.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/futex.h"
#include "base/log.h"

/* One sleep never lasts longer: signals, deaths seen by the progress thread and clock ticks are looked at in between. */
#define SLICE_NS UINT64_C(100000000)
/* How long a waiter spins before it sleeps. A futex hop costs about 3 us each way, a wake-up through epoll up to 30 us:
 * spinning for twice the sum loses little when the wait is long. */
#define SPIN_NS UINT64_C(60000)
/* The progress thread looks again this often whether a waiter is still active. */
#define PARK_NS UINT64_C(1000000)
/* A spinning waiter looks at sockets once in this many passes: an epoll_wait costs about as much as eight empty passes. */
#define PASSES_PER_EPOLL 64
#define EVENTS_PER_PASS 32
#define POLLERS_MAX 4

struct rdti_watch {
    struct rdti_list link; /* engine->watches, or engine->graveyard once dead */
    int fd;
    uint32_t events;
    rdti_watch_fn fn;
    void *arg;
    bool is_dead;
};

struct poller {
    uint32_t (*poll)(void *state);
    bool (*needs_epoll)(void *state);
    void *state;
};

struct task {
    struct rdti_list link;
    rdt_task_fn step;
    void *arg;
};

struct tick {
    struct rdti_list link;
    uint64_t period_ns;
    uint64_t due_ns;
    void (*fn)(void *arg);
    void *arg;
};

struct rdti_engine {
    pthread_mutex_t lock;
    _Atomic uintptr_t owner; /* thread mark of the driver, 0 if none */
    uint32_t depth;          /* of enter(); driver only */
    bool wake_at_leave;      /* driver only */
    struct rdti_list deferred;

    struct poller pollers[POLLERS_MAX];
    uint32_t poller_count;
    struct rdti_list tasks;
    struct rdti_list ticks;
    uint64_t next_tick_ns;
    struct rdti_list watches;
    struct rdti_list graveyard;

    int epoll_fd;
    int event_fd;
    int bell_fd;
    struct rdti_doorbell *bell; /* one page of bell_fd */

    _Atomic int32_t active_waiters;
    _Atomic int32_t async_count; /* tasks and callbacks outstanding */
    _Atomic uint32_t has_proxy;  /* bell->epoll_sleepers was raised in the progress thread's name */
    _Atomic uint32_t can_spin;
    uint32_t usable_cpus;

    pthread_t thread;
    bool has_thread;
    _Atomic uint32_t is_stopping;
    _Atomic uint32_t park_word; /* private futex of the progress thread */
};

/* Its address tells threads apart. */
static _Thread_local char thread_mark;

static uintptr_t
self_mark(void)
{
    return (uintptr_t)&thread_mark;
}

bool
rdti_engine_is_driver(const struct rdti_engine *engine)
{
    /* relaxed: only this thread ever stores its own mark, so it reads what it wrote itself. */
    return atomic_load_explicit(&engine->owner, memory_order_relaxed) == self_mark();
}

static void
take_ownership(struct rdti_engine *engine)
{
    atomic_store_explicit(&engine->owner, self_mark(), memory_order_relaxed);
    engine->depth = 1;
}

void
rdti_engine_enter(struct rdti_engine *engine)
{
    if (rdti_engine_is_driver(engine)) {
        engine->depth++;
        return;
    }
    /* A pass is short: try before paying for a sleep in the kernel. */
    for (int i = 0; i < 200; i++) {
        if (pthread_mutex_trylock(&engine->lock) == 0) {
            take_ownership(engine);
            return;
        }
        rdti_cpu_relax();
    }
    (void)pthread_mutex_lock(&engine->lock);
    take_ownership(engine);
}

static bool
try_enter(struct rdti_engine *engine)
{
    if (pthread_mutex_trylock(&engine->lock) != 0)
        return false;
    take_ownership(engine);
    return true;
}

static void
bury_watches(struct rdti_engine *engine)
{
    struct rdti_list *node;

    while ((node = rdti_list_take_first(&engine->graveyard)) != NULL)
        free(RDTI_CONTAINER(node, struct rdti_watch, link));
}

void
rdti_engine_leave(struct rdti_engine *engine)
{
    struct rdti_list todo;
    struct rdti_list *node;

    if (engine->depth > 1) {
        engine->depth--;
        return;
    }
    const bool wake = engine->wake_at_leave;
    engine->wake_at_leave = false;
    rdti_list_init(&todo);
    rdti_list_splice(&todo, &engine->deferred);
    engine->depth = 0;
    atomic_store_explicit(&engine->owner, 0, memory_order_relaxed);
    (void)pthread_mutex_unlock(&engine->lock);

    if (wake)
        (void)rdti_doorbell_ring(engine->bell, engine->event_fd, false);
    while ((node = rdti_list_take_first(&todo)) != NULL) {
        struct rdti_deferred *deferred = RDTI_CONTAINER(node, struct rdti_deferred, link);
        deferred->run(deferred);
    }
}

void
rdti_engine_defer(struct rdti_engine *engine, struct rdti_deferred *node)
{
    if (!rdti_engine_is_driver(engine)) {
        node->run(node);
        return;
    }
    rdti_list_append(&engine->deferred, &node->link);
}

void
rdti_engine_wake(struct rdti_engine *engine)
{
    if (rdti_engine_is_driver(engine))
        engine->wake_at_leave = true; /* no system call under the lock */
    else
        (void)rdti_doorbell_ring(engine->bell, engine->event_fd, false);
}

void
rdti_engine_poke(struct rdti_engine *engine)
{
    const uint64_t one = 1;

    (void)!write(engine->event_fd, &one, sizeof(one)); /* EAGAIN: it is readable already */
}

/* ---- What is driven ---------------------------------------------------------------------- */

rdt_status
rdti_engine_add_poller(struct rdti_engine *engine, uint32_t (*poll)(void *state),
                       bool (*needs_epoll)(void *state), void *state, struct rdt_error *err)
{
    if (engine->poller_count == POLLERS_MAX)
        return rdti_error_set(err, RDT_EINTERNAL, 0, "more than %d transports", POLLERS_MAX);
    engine->pollers[engine->poller_count++] = (struct poller){poll, needs_epoll, state};
    return RDT_OK;
}

rdt_status
rdti_engine_add_task(struct rdti_engine *engine, rdt_task_fn step, void *arg, struct rdt_error *err)
{
    struct task *task = calloc(1, sizeof(*task));

    if (task == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a task of %zu bytes", sizeof(*task));
    task->step = step;
    task->arg = arg;
    rdti_list_append(&engine->tasks, &task->link);
    rdti_engine_async_add(engine, 1);
    return RDT_OK;
}

rdt_status
rdti_engine_every(struct rdti_engine *engine, uint64_t period_ns, void (*fn)(void *arg), void *arg,
                  struct rdt_error *err)
{
    struct tick *tick = calloc(1, sizeof(*tick));

    if (tick == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a timer of %zu bytes", sizeof(*tick));
    tick->period_ns = period_ns;
    tick->due_ns = rdti_now_ns() + period_ns;
    tick->fn = fn;
    tick->arg = arg;
    rdti_list_append(&engine->ticks, &tick->link);
    if (tick->due_ns < engine->next_tick_ns)
        engine->next_tick_ns = tick->due_ns;
    return RDT_OK;
}

rdt_status
rdti_engine_watch(struct rdti_engine *engine, int fd, uint32_t epoll_events, rdti_watch_fn fn,
                  void *arg, struct rdti_watch **out, struct rdt_error *err)
{
    struct rdti_watch *watch = calloc(1, sizeof(*watch));

    if (watch == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a watch of %zu bytes", sizeof(*watch));
    watch->fd = fd;
    watch->events = epoll_events;
    watch->fn = fn;
    watch->arg = arg;
    struct epoll_event event = {.events = epoll_events, .data = {.ptr = watch}};
    if (epoll_ctl(engine->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        const int sys_errno = errno;
        free(watch);
        return rdti_error_set(err, RDT_EDEVICE, sys_errno, "epoll_ctl(ADD, %d): %s", fd,
                              strerror(sys_errno));
    }
    rdti_list_append(&engine->watches, &watch->link);
    *out = watch;
    return RDT_OK;
}

void
rdti_engine_rewatch(struct rdti_engine *engine, struct rdti_watch *watch, uint32_t epoll_events)
{
    struct epoll_event event = {.events = epoll_events, .data = {.ptr = watch}};

    watch->events = epoll_events;
    if (epoll_ctl(engine->epoll_fd, EPOLL_CTL_MOD, watch->fd, &event) != 0)
        rdti_log(RDT_LOG_ERROR, "epoll_ctl(MOD, %d): %s", watch->fd, strerror(errno));
}

void
rdti_engine_unwatch(struct rdti_engine *engine, struct rdti_watch *watch)
{
    if (watch == NULL)
        return;
    (void)epoll_ctl(engine->epoll_fd, EPOLL_CTL_DEL, watch->fd, NULL);
    watch->is_dead = true; /* an event of this pass may still name it: buried after dispatch */
    rdti_list_remove(&watch->link);
    rdti_list_append(&engine->graveyard, &watch->link);
}

static uint32_t
run_tasks(struct rdti_engine *engine)
{
    struct rdti_list batch;
    struct rdti_list *node;
    uint32_t done = 0;

    if (rdti_list_is_empty(&engine->tasks))
        return 0;
    /* A task may add tasks: they join the next pass. */
    rdti_list_init(&batch);
    rdti_list_splice(&batch, &engine->tasks);
    while ((node = rdti_list_take_first(&batch)) != NULL) {
        struct task *task = RDTI_CONTAINER(node, struct task, link);
        if (task->step(task->arg) == RDT_EAGAIN) {
            rdti_list_append(&engine->tasks, node);
            continue;
        }
        free(task);
        rdti_engine_async_add(engine, -1);
        done++;
    }
    return done;
}

static void
run_ticks(struct rdti_engine *engine, uint64_t now_ns)
{
    uint64_t next_ns = UINT64_MAX;

    for (struct rdti_list *node = engine->ticks.next; node != &engine->ticks; node = node->next) {
        struct tick *tick = RDTI_CONTAINER(node, struct tick, link);
        if (tick->due_ns <= now_ns) {
            tick->due_ns = now_ns + tick->period_ns;
            tick->fn(tick->arg);
        }
        if (tick->due_ns < next_ns)
            next_ns = tick->due_ns;
    }
    engine->next_tick_ns = next_ns;
}

static uint32_t
dispatch_sockets(struct rdti_engine *engine)
{
    struct epoll_event events[EVENTS_PER_PASS];
    const int count = epoll_wait(engine->epoll_fd, events, EVENTS_PER_PASS, 0);

    for (int i = 0; i < count; i++) {
        struct rdti_watch *watch = events[i].data.ptr;
        if (watch != NULL && !watch->is_dead)
            watch->fn(watch->arg, events[i].events);
    }
    bury_watches(engine);
    return count > 0 ? (uint32_t)count : 0;
}

/* [driver] */
static uint32_t
pass(struct rdti_engine *engine, bool with_sockets)
{
    uint32_t work = 0;

    for (uint32_t i = 0; i < engine->poller_count; i++)
        work += engine->pollers[i].poll(engine->pollers[i].state);
    if (with_sockets)
        work += dispatch_sockets(engine);
    work += run_tasks(engine);
    if (with_sockets) {
        const uint64_t now_ns = rdti_now_ns();
        if (now_ns >= engine->next_tick_ns)
            run_ticks(engine, now_ns);
    }
    return work;
}

bool
rdti_engine_progress(struct rdti_engine *engine)
{
    if (rdti_engine_is_driver(engine) || !try_enter(engine))
        return false;
    (void)pass(engine, true);
    rdti_engine_leave(engine);
    return true;
}

static bool
try_pass(struct rdti_engine *engine, bool with_sockets)
{
    if (!try_enter(engine))
        return false;
    (void)pass(engine, with_sockets);
    rdti_engine_leave(engine);
    return true;
}

/* ---- Waiting ----------------------------------------------------------------------------- */

/* Raise or lower the sleeper count that stands for the progress thread. The caller makes a pass after a raise. */
static bool
set_proxy(struct rdti_engine *engine, bool wanted)
{
    /* acq_rel: the two counters move together with the flag; peers pair with bell->epoll_sleepers (seq_cst). */
    const uint32_t had = atomic_exchange_explicit(&engine->has_proxy, wanted, memory_order_acq_rel);

    if (wanted && had == 0)
        (void)atomic_fetch_add_explicit(&engine->bell->epoll_sleepers, 1, memory_order_seq_cst);
    else if (!wanted && had != 0)
        (void)atomic_fetch_sub_explicit(&engine->bell->epoll_sleepers, 1, memory_order_seq_cst);
    return wanted && had == 0;
}

void
rdti_engine_async_add(struct rdti_engine *engine, int32_t delta)
{
    /* seq_cst: set against active_waiters in end_wait(), so that one of the two raises the proxy. */
    const int32_t count =
        atomic_fetch_add_explicit(&engine->async_count, delta, memory_order_seq_cst) + delta;

    if (atomic_load_explicit(&engine->active_waiters, memory_order_seq_cst) > 0)
        return;
    if (set_proxy(engine, count > 0) && !rdti_engine_is_driver(engine))
        (void)try_pass(engine, false); /* what was published before the raise rang for nobody */
}

static void
begin_wait(struct rdti_engine *engine)
{
    (void)atomic_fetch_add_explicit(&engine->active_waiters, 1, memory_order_seq_cst);
    (void)set_proxy(engine, false);
}

static void
end_wait(struct rdti_engine *engine)
{
    /* seq_cst: see rdti_engine_async_add(). */
    if (atomic_fetch_sub_explicit(&engine->active_waiters, 1, memory_order_seq_cst) > 1)
        return;
    if (atomic_load_explicit(&engine->async_count, memory_order_seq_cst) > 0 &&
        set_proxy(engine, true))
        (void)try_pass(engine, false);
}

static bool
needs_epoll(const struct rdti_engine *engine)
{
    for (uint32_t i = 0; i < engine->poller_count; i++)
        if (engine->pollers[i].needs_epoll(engine->pollers[i].state))
            return true;
    return false;
}

static void
drain_event_fd(struct rdti_engine *engine)
{
    uint64_t count;

    /* Others who sleep in epoll want the descriptor readable until the last of them is up. seq_cst: as the raise. */
    if (atomic_load_explicit(&engine->bell->epoll_sleepers, memory_order_seq_cst) > 0)
        return;
    (void)!read(engine->event_fd, &count, sizeof(count)); /* EAGAIN: somebody else drained it */
}

static void
sleep_in_epoll(struct rdti_engine *engine, rdti_done_fn done, void *arg, uint64_t sleep_ns)
{
    struct epoll_event event;

    (void)atomic_fetch_add_explicit(&engine->bell->epoll_sleepers, 1, memory_order_seq_cst);
    (void)try_pass(engine, true);
    if (!done(arg)) {
        const int timeout_ms = (int)((sleep_ns + 999999) / 1000000);
        (void)epoll_wait(engine->epoll_fd, &event, 1, timeout_ms);
    }
    (void)atomic_fetch_sub_explicit(&engine->bell->epoll_sleepers, 1, memory_order_seq_cst);
    drain_event_fd(engine);
}

static void
sleep_on_futex(struct rdti_engine *engine, rdti_done_fn done, void *arg, uint64_t sleep_ns)
{
    const uint32_t sequence = rdti_doorbell_begin_sleep(engine->bell);

    (void)try_pass(engine, false);
    if (!done(arg))
        rdti_doorbell_sleep(engine->bell, sequence, sleep_ns);
    rdti_doorbell_end_sleep(engine->bell);
}

/* Spin for SPIN_NS, or look a few times where the cores do not allow it. True: done. */
static bool
spin(struct rdti_engine *engine, rdti_done_fn done, void *arg)
{
    /* relaxed: a hint that changes with the number of local peers */
    const bool can_spin = atomic_load_explicit(&engine->can_spin, memory_order_relaxed) != 0;
    const uint64_t until_ns = rdti_now_ns() + (can_spin ? SPIN_NS : 0);

    for (uint32_t i = 1;; i++) {
        if (!try_pass(engine, i % PASSES_PER_EPOLL == 0))
            rdti_cpu_relax();
        if (done(arg))
            return true;
        if (i % 16 == 0 && rdti_now_ns() >= until_ns)
            return false;
    }
}

rdt_status
rdti_engine_wait(struct rdti_engine *engine, rdti_done_fn done, void *arg, uint64_t deadline_ns)
{
    rdt_status status = RDT_OK;

    if (done(arg))
        return RDT_OK;
    if (rdti_engine_is_driver(engine))
        return RDT_EINVAL;
    begin_wait(engine);
    while (!spin(engine, done, arg)) {
        uint64_t sleep_ns = rdti_remaining_ns(deadline_ns);
        if (sleep_ns == 0) {
            (void)try_pass(engine, true);
            status = done(arg) ? RDT_OK : RDT_ETIMEDOUT;
            break;
        }
        if (sleep_ns > SLICE_NS)
            sleep_ns = SLICE_NS;
        if (needs_epoll(engine))
            sleep_in_epoll(engine, done, arg, sleep_ns);
        else
            sleep_on_futex(engine, done, arg, sleep_ns);
    }
    end_wait(engine);
    return status;
}

/* ---- The progress thread ----------------------------------------------------------------- */

static uint64_t
background_sleep_ns(struct rdti_engine *engine)
{
    uint64_t next_ns = UINT64_MAX;

    rdti_engine_enter(engine);
    next_ns = engine->next_tick_ns;
    rdti_engine_leave(engine);
    const uint64_t left_ns = rdti_remaining_ns(next_ns);
    return left_ns < SLICE_NS ? left_ns : SLICE_NS;
}

static void *
progress_main(void *arg)
{
    struct rdti_engine *engine = arg;
    struct epoll_event event;

    (void)pthread_setname_np(pthread_self(), "rdmatensor");
    /* acquire: pairs with the release in rdti_engine_stop() */
    while (atomic_load_explicit(&engine->is_stopping, memory_order_acquire) == 0) {
        const bool is_contended =
            atomic_load_explicit(&engine->active_waiters, memory_order_relaxed) > 0;
        if (is_contended && needs_epoll(engine)) {
            rdti_futex_wait(&engine->park_word, 0, PARK_NS);
            if (atomic_load_explicit(&engine->active_waiters, memory_order_relaxed) > 0)
                continue;
        }
        /* seq_cst: raised before the last look, as the doorbell asks */
        atomic_store_explicit(&engine->bell->background, 1, memory_order_seq_cst);
        (void)try_pass(engine, true);
        const uint64_t sleep_ns = background_sleep_ns(engine);
        (void)epoll_wait(engine->epoll_fd, &event, 1, (int)((sleep_ns + 999999) / 1000000));
        atomic_store_explicit(&engine->bell->background, 0, memory_order_seq_cst);
        /* The proxy count stands for this thread, so it does not keep the descriptor readable. */
        uint64_t count;
        if (atomic_load_explicit(&engine->bell->epoll_sleepers, memory_order_seq_cst) <=
            atomic_load_explicit(&engine->has_proxy, memory_order_acquire))
            (void)!read(engine->event_fd, &count, sizeof(count));
        (void)try_pass(engine, true);
    }
    return NULL;
}

static void
on_event_fd(void *arg, uint32_t epoll_events)
{
    /* Drained by whoever slept on it; here it only ends the sleep. */
    (void)arg;
    (void)epoll_events;
}

/* ---- Life -------------------------------------------------------------------------------- */

void
rdti_engine_set_local_ranks(struct rdti_engine *engine, uint32_t count)
{
    /* relaxed: a hint */
    atomic_store_explicit(&engine->can_spin, count <= engine->usable_cpus, memory_order_relaxed);
}

static rdt_status
open_bell(struct rdti_engine *engine, struct rdt_error *err)
{
    const long page_bytes = sysconf(_SC_PAGESIZE);

    engine->bell_fd = memfd_create("rdmatensor-bell", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (engine->bell_fd < 0)
        return rdti_error_set(err, RDT_EDEVICE, errno, "memfd_create: %s", strerror(errno));
    if (ftruncate(engine->bell_fd, page_bytes) != 0 ||
        fcntl(engine->bell_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return rdti_error_set(err, RDT_EDEVICE, errno, "sealing the doorbell page: %s",
                              strerror(errno));
    void *page = mmap(NULL, (size_t)page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                      engine->bell_fd, 0);
    if (page == MAP_FAILED)
        return rdti_error_set(err, RDT_EDEVICE, errno, "mmap of the doorbell page: %s",
                              strerror(errno));
    engine->bell = page;
    return RDT_OK;
}

static rdt_status
open_descriptors(struct rdti_engine *engine, struct rdt_error *err)
{
    struct rdti_watch *watch;

    engine->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (engine->epoll_fd < 0)
        return rdti_error_set(err, RDT_EDEVICE, errno, "epoll_create1: %s", strerror(errno));
    engine->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (engine->event_fd < 0)
        return rdti_error_set(err, RDT_EDEVICE, errno, "eventfd: %s", strerror(errno));
    const rdt_status status = open_bell(engine, err);
    if (status != RDT_OK)
        return status;
    return rdti_engine_watch(engine, engine->event_fd, EPOLLIN, on_event_fd, engine, &watch, err);
}

rdt_status
rdti_engine_create(uint32_t local_ranks, struct rdti_engine **out, struct rdt_error *err)
{
    struct rdti_engine *engine = calloc(1, sizeof(*engine));

    if (engine == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "an engine of %zu bytes", sizeof(*engine));
    (void)pthread_mutex_init(&engine->lock, NULL);
    rdti_list_init(&engine->deferred);
    rdti_list_init(&engine->tasks);
    rdti_list_init(&engine->ticks);
    rdti_list_init(&engine->watches);
    rdti_list_init(&engine->graveyard);
    engine->next_tick_ns = UINT64_MAX;
    engine->epoll_fd = -1;
    engine->event_fd = -1;
    engine->bell_fd = -1;
    engine->usable_cpus = rdti_cpu_usable();
    rdti_engine_set_local_ranks(engine, local_ranks > 0 ? local_ranks : 1);
    const rdt_status status = open_descriptors(engine, err);
    if (status != RDT_OK) {
        rdti_engine_destroy(engine);
        return status;
    }
    *out = engine;
    return RDT_OK;
}

rdt_status
rdti_engine_start(struct rdti_engine *engine, struct rdt_error *err)
{
    sigset_t all;
    sigset_t before;

    /* Signals belong to the user's threads. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    const int code = pthread_create(&engine->thread, NULL, progress_main, engine);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0)
        return rdti_error_set(err, RDT_EDEVICE, code, "pthread_create of the progress thread: %s",
                              strerror(code));
    engine->has_thread = true;
    return RDT_OK;
}

void
rdti_engine_stop(struct rdti_engine *engine)
{
    const uint64_t one = 1;

    if (!engine->has_thread)
        return;
    /* release: pairs with the acquire in progress_main() */
    atomic_store_explicit(&engine->is_stopping, 1, memory_order_release);
    (void)!write(engine->event_fd, &one, sizeof(one));
    rdti_futex_wake(&engine->park_word, 1);
    (void)pthread_join(engine->thread, NULL);
    engine->has_thread = false;
}

static void
free_all(struct rdti_list *list, size_t link_offset)
{
    struct rdti_list *node;

    while ((node = rdti_list_take_first(list)) != NULL)
        free((char *)node - link_offset);
}

void
rdti_engine_destroy(struct rdti_engine *engine)
{
    if (engine == NULL)
        return;
    rdti_engine_stop(engine);
    free_all(&engine->tasks, offsetof(struct task, link));
    free_all(&engine->ticks, offsetof(struct tick, link));
    free_all(&engine->watches, offsetof(struct rdti_watch, link));
    free_all(&engine->graveyard, offsetof(struct rdti_watch, link));
    if (engine->bell != NULL)
        (void)munmap(engine->bell, (size_t)sysconf(_SC_PAGESIZE));
    if (engine->bell_fd >= 0)
        (void)close(engine->bell_fd);
    if (engine->event_fd >= 0)
        (void)close(engine->event_fd);
    if (engine->epoll_fd >= 0)
        (void)close(engine->epoll_fd);
    (void)pthread_mutex_destroy(&engine->lock);
    free(engine);
}

int
rdti_engine_doorbell_fd(const struct rdti_engine *engine)
{
    return engine->bell_fd;
}

int
rdti_engine_event_fd(const struct rdti_engine *engine)
{
    return engine->event_fd;
}

int
rdti_engine_epoll_fd(const struct rdti_engine *engine)
{
    return engine->epoll_fd;
}
