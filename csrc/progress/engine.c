/* SPDX-License-Identifier: Apache-2.0
 * The progress engine; the header defines which thread drives and which threads are woken. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/system/cpu.h"
#include "base/error.h"
#include "base/system/fork.h"
#include "base/system/futex.h"
#include "base/log.h"
#include "base/memory/memfd.h"
#include "progress/engine_impl.h"
#include "rdmatensor_ext.h"

/* Number of attempts to take the lock before the thread sleeps in the kernel. */
#ifdef __SANITIZE_THREAD__
#define TRIES 0 /* ThreadSanitizer learns no lock order from trylock */
#else
#define TRIES 200
#endif

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

/* Its address identifies the thread. initial-exec: each pass reads it without a call. It takes one
 * byte of the TLS that glibc reserves for libraries that are loaded late. musl reserves none, and
 * would refuse to load the library. */
#if defined(__GLIBC__)
static _Thread_local char thread_mark __attribute__((tls_model("initial-exec")));
#else
static _Thread_local char thread_mark;
#endif

static uintptr_t
engine_self_mark(void)
{
    return (uintptr_t)&thread_mark;
}

bool
rdti_engine_is_driver(const struct rdti_engine *engine)
{
    /* relaxed: only this thread stores its own mark, so it reads its own store. */
    return atomic_load_explicit(&engine->owner, memory_order_relaxed) == engine_self_mark();
}

static void
engine_take_ownership(struct rdti_engine *engine)
{
    atomic_store_explicit(&engine->owner, engine_self_mark(), memory_order_relaxed);
    engine->depth = 1;
}

void
rdti_engine_enter(struct rdti_engine *engine)
{
    if (rdti_engine_is_driver(engine)) {
        engine->depth++;
        return;
    }
    /* A pass is short: try before a sleep in the kernel. */
    for (int i = 0; i < TRIES; i++) {
        if (pthread_mutex_trylock(&engine->lock) == 0) {
            engine_take_ownership(engine);
            return;
        }
        rdti_cpu_relax();
    }
    (void)pthread_mutex_lock(&engine->lock);
    engine_take_ownership(engine);
}

bool
rdti_engine_try_enter(struct rdti_engine *engine)
{
    if (pthread_mutex_trylock(&engine->lock) != 0)
        return false;
    engine_take_ownership(engine);
    return true;
}

static void
engine_write_one(int fd)
{
    const uint64_t one = 1;

    (void)!write(fd, &one, sizeof(one)); /* EAGAIN: it is readable already */
}

/* A waiter's condition may have become true: wake a poll loop of the program's own. */
static void
engine_signal_user(struct rdti_engine *engine)
{
    /* seq_cst: after the publication; pairs with rdti_engine_arm_fd(), after which the program
     * checks its conditions. */
    if (atomic_load_explicit(&engine->is_fd_armed, memory_order_seq_cst) != 0 &&
        atomic_exchange_explicit(&engine->is_fd_armed, 0, memory_order_seq_cst) != 0)
        engine_write_one(engine->user_fd);
}

int
rdti_engine_arm_fd(struct rdti_engine *engine)
{
    uint64_t count;

    (void)!read(engine->user_fd, &count, sizeof(count)); /* EAGAIN: nothing was signalled */
    atomic_store_explicit(&engine->is_fd_armed, 1,
                          memory_order_seq_cst); /* see engine_signal_user() */
    return engine->user_fd;
}

static void
engine_give_up(struct rdti_engine *engine)
{
    engine->depth = 0;
    atomic_store_explicit(&engine->owner, 0, memory_order_relaxed);
    (void)pthread_mutex_unlock(&engine->lock);
}

/* Called after the lock was released. */
static void
engine_tell(struct rdti_engine *engine, bool has_news)
{
    /* acq_rel, after the unlock: pairs with the exchange in rdti_engine_pass_or_ask(). */
    const bool is_asked =
        atomic_exchange_explicit(&engine->is_pass_wanted, 0, memory_order_acq_rel) != 0;

    if ((has_news || is_asked) && rdti_doorbell_is_wanted(engine->bell, is_asked))
        (void)rdti_doorbell_ring(engine->bell, engine->event_fd, is_asked);
    if (has_news)
        engine_signal_user(engine);
}

/* A separate function, as most passes leave nothing to run. */
__attribute__((noinline)) static void
engine_leave_and_run(struct rdti_engine *engine)
{
    const bool has_news = engine->wake_at_leave;
    struct rdti_list todo;
    struct rdti_list *node;

    engine->wake_at_leave = false;
    rdti_list_init(&todo);
    rdti_list_splice(&todo, &engine->deferred);
    engine_give_up(engine);
    engine_tell(engine, has_news);
    while ((node = rdti_list_take_first(&todo)) != NULL) {
        struct rdti_deferred *deferred = RDTI_CONTAINER(node, struct rdti_deferred, link);
        deferred->run(deferred);
        /* release: a thread that finds none left sees what it did */
        (void)atomic_fetch_sub_explicit(&engine->deferred_count, 1, memory_order_release);
    }
}

void
rdti_engine_leave(struct rdti_engine *engine)
{
    if (engine->depth > 1) {
        engine->depth--;
        return;
    }
    if (!rdti_list_is_empty(&engine->deferred)) {
        engine_leave_and_run(engine);
        return;
    }
    const bool has_news = engine->wake_at_leave;
    engine->wake_at_leave = false;
    engine_give_up(engine);
    engine_tell(engine, has_news);
}

void
rdti_engine_defer(struct rdti_engine *engine, struct rdti_deferred *node)
{
    if (!rdti_engine_is_driver(engine)) {
        node->run(node);
        return;
    }
    (void)atomic_fetch_add_explicit(&engine->deferred_count, 1, memory_order_relaxed);
    rdti_list_append(&engine->deferred, &node->link);
}

bool
rdti_engine_has_deferred(const struct rdti_engine *engine)
{
    return atomic_load_explicit(&engine->deferred_count, memory_order_acquire) > 0;
}

void
rdti_engine_wake(struct rdti_engine *engine)
{
    if (rdti_engine_is_driver(engine)) {
        engine->wake_at_leave = true; /* no system call under the lock */
        return;
    }
    (void)rdti_doorbell_ring(engine->bell, engine->event_fd, false);
    engine_signal_user(engine);
}

void
rdti_engine_poke(struct rdti_engine *engine)
{
    engine_write_one(engine->event_fd);
}

/* ---- Pollers, tasks, ticks and passes ---------------------------------------------------- */

rdt_status
rdti_engine_add_poller(struct rdti_engine *engine, uint32_t (*poll)(void *state),
                       bool (*needs_epoll)(void *state), void *state, struct rdt_error *err)
{
    if (engine->poller_count == RDTI_POLLERS_MAX)
        return rdti_error_set(err, RDT_EINTERNAL, 0, "more than %d transports", RDTI_POLLERS_MAX);
    engine->pollers[engine->poller_count++] =
        (struct rdti_poller){.poll = poll, .needs_epoll = needs_epoll, .state = state};
    return RDT_OK;
}

void
rdti_engine_set_arm(struct rdti_engine *engine, const void *state, void (*arm)(void *state))
{
    for (uint32_t i = 0; i < engine->poller_count; i++)
        if (engine->pollers[i].state == state)
            engine->pollers[i].arm = arm;
}

rdt_status
rdti_engine_add_task(struct rdti_engine *engine, rdt_task_fn step, void *arg, struct rdt_error *err)
{
    struct task *task = calloc(1, sizeof(*task));

    if (task == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a task of %zu bytes", sizeof(*task));
    task->step = step;
    task->arg = arg;
    rdti_engine_enter(engine);
    rdti_list_append(&engine->tasks, &task->link);
    rdti_engine_async_add(engine, 1);
    if (engine->depth ==
        1) { /* its first step, in the caller's thread: other threads may all sleep */
        atomic_store_explicit(&engine->is_pass_wanted, 0, memory_order_relaxed);
        (void)rdti_engine_pass(engine, false);
    } else { /* inside a pass: one more is needed; relaxed: for this thread's leave() */
        atomic_store_explicit(&engine->is_pass_wanted, 1, memory_order_relaxed);
    }
    rdti_engine_leave(engine);
    return RDT_OK;
}

void
rdti_engine_go_on(struct rdti_engine *engine)
{
    atomic_store_explicit(&engine->goes_on, 1, memory_order_relaxed); /* as is_busy */
}

bool
rdti_engine_has_tasks(const struct rdti_engine *engine)
{
    return !rdti_list_is_empty(&engine->tasks);
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
    if (tick->due_ns < rdti_engine_next_tick_ns(engine))
        atomic_store_explicit(&engine->next_tick_ns, tick->due_ns, memory_order_relaxed);
    return RDT_OK;
}

void
rdti_engine_hurry(struct rdti_engine *engine, void (*fn)(void *arg), void *arg, uint64_t due_ns)
{
    for (struct rdti_list *node = engine->ticks.next; node != &engine->ticks; node = node->next) {
        struct tick *tick = RDTI_CONTAINER(node, struct tick, link);
        if (tick->fn == fn && tick->arg == arg && tick->due_ns > due_ns)
            tick->due_ns = due_ns;
    }
    if (rdti_engine_next_tick_ns(engine) <= due_ns)
        return;
    atomic_store_explicit(&engine->next_tick_ns, due_ns, memory_order_relaxed);
    rdti_engine_poke(engine); /* the progress thread may sleep for longer */
}

static uint32_t
engine_run_tasks(struct rdti_engine *engine)
{
    struct rdti_list batch;
    struct rdti_list *node;
    uint32_t done = 0;

    if (rdti_list_is_empty(&engine->tasks))
        return 0;
    /* A task may add tasks: they run in the next pass. */
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
engine_run_ticks(struct rdti_engine *engine, uint64_t now_ns)
{
    uint64_t next_ns = UINT64_MAX;

    atomic_store_explicit(&engine->next_tick_ns, 0,
                          memory_order_relaxed); /* a tick that is hurried now needs no poke */
    for (struct rdti_list *node = engine->ticks.next; node != &engine->ticks; node = node->next) {
        struct tick *tick = RDTI_CONTAINER(node, struct tick, link);
        if (tick->due_ns <= now_ns) {
            tick->due_ns = now_ns + tick->period_ns;
            tick->fn(tick->arg);
        }
        if (tick->due_ns < next_ns)
            next_ns = tick->due_ns;
    }
    atomic_store_explicit(&engine->next_tick_ns, next_ns, memory_order_relaxed);
}

/* Only drivers count: no need for a locked instruction. */
static void
engine_count_up(_Atomic uint32_t *counter)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

/* A thread sleeps in epoll, or is about to: it makes a pass with sockets before it sleeps. */
static bool
engine_has_epoll_sleeper(const struct rdti_engine *engine)
{
    /* seq_cst: after the raise in wait_sleep_in_epoll(), wait_update_proxy() and
     * thread_drive_in_background() */
    return atomic_load_explicit(&engine->bell->epoll_sleepers, memory_order_seq_cst) > 0 ||
           atomic_load_explicit(&engine->bell->background, memory_order_seq_cst) != 0;
}

/* While all waiters spin, an armed device only costs: for each message an event, a read of it and
 * another arming. */
static void
engine_arm_pollers(struct rdti_engine *engine)
{
    for (uint32_t i = 0; i < engine->poller_count; i++)
        if (engine->pollers[i].arm != NULL)
            engine->pollers[i].arm(engine->pollers[i].state);
}

static uint32_t
engine_look_at_sockets(struct rdti_engine *engine)
{
    engine_count_up(&engine->socket_passes);
    rdti_engine_plan_look(engine);
    const uint32_t work = rdti_engine_dispatch(engine);
    const uint64_t now_ns = rdti_now_ns();
    if (now_ns >= rdti_engine_next_tick_ns(engine))
        engine_run_ticks(engine, now_ns);
    if (engine_has_epoll_sleeper(engine))
        engine_arm_pollers(engine);
    return work;
}

uint32_t
rdti_engine_pass(struct rdti_engine *engine, bool with_sockets)
{
    uint32_t work = 0;

    engine_count_up(&engine->passes);
    /* Sockets and ticks first: the pollers then handle in the same pass what they leave. */
    if (with_sockets)
        work += engine_look_at_sockets(engine);
    uint32_t moved = 0;
    for (uint32_t i = 0; i < engine->poller_count; i++)
        moved += engine->pollers[i].poll(engine->pollers[i].state);
    atomic_store_explicit(&engine->goes_on, 0, memory_order_relaxed); /* as is_busy */
    moved += engine_run_tasks(engine);
    /* relaxed: read by this thread, or by one that lets this one drive. Sockets do not count: one
     * may stay readable for others. */
    const uint32_t goes_on = atomic_load_explicit(&engine->goes_on, memory_order_relaxed);
    atomic_store_explicit(&engine->is_busy, moved > 0 || goes_on != 0, memory_order_relaxed);
    return work + moved;
}

static void
engine_on_event_fd(void *arg, uint32_t epoll_events)
{
    /* The thread that slept on it drains it; here it only ends the sleep. */
    (void)arg;
    (void)epoll_events;
}

/* ---- Life -------------------------------------------------------------------------------- */

void
rdti_engine_set_local_ranks(struct rdti_engine *engine, uint32_t count)
{
    /* relaxed: a hint */
    atomic_store_explicit(&engine->can_spin, count <= engine->usable_cpus, memory_order_relaxed);
    /* Under a quota no other thread may be runnable, and the yielding uses up the common quota. */
    atomic_store_explicit(&engine->can_yield,
                          count > engine->usable_cpus && count != RDT_LOCAL_RANKS_SLEEP &&
                              engine->usable_cpus == engine->affinity_cpus,
                          memory_order_relaxed);
}

static rdt_status
engine_open_bell(struct rdti_engine *engine, struct rdt_error *err)
{
    const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    void *page = NULL;

    rdt_status status =
        rdti_memfd_create_sealed("rdmatensor-bell", page_bytes, 0, &engine->bell_fd, err);
    if (status != RDT_OK)
        return status;
    status = rdti_memfd_map(engine->bell_fd, "the doorbell", page_bytes, PROT_READ | PROT_WRITE,
                            &page, err);
    if (status != RDT_OK)
        return status;
    engine->bell = page;
    const int sys_errno = rdti_memfd_populate(engine->bell_fd, 0, page, page_bytes);
    if (sys_errno != 0)
        return rdti_error_set(err, RDT_ENOMEM, sys_errno, "populating the doorbell's page");
    return RDT_OK;
}

static rdt_status
engine_open_descriptors(struct rdti_engine *engine, struct rdt_error *err)
{
    struct rdti_watch *watch;

    engine->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (engine->epoll_fd < 0)
        return rdti_error_set(err, RDT_EDEVICE, errno, "epoll_create1");
    engine->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (engine->event_fd < 0)
        return rdti_error_set(err, RDT_EDEVICE, errno, "eventfd");
    engine->user_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (engine->user_fd < 0)
        return rdti_error_set(err, RDT_EDEVICE, errno, "eventfd");
    const rdt_status status = engine_open_bell(engine, err);
    if (status != RDT_OK)
        return status;
    /* A forked child does not use them. */
    (void)rdti_fork_close_add(engine->epoll_fd);
    (void)rdti_fork_close_add(engine->event_fd);
    (void)rdti_fork_close_add(engine->user_fd);
    (void)rdti_fork_close_add(engine->bell_fd);
    return rdti_engine_watch(engine, engine->event_fd, EPOLLIN, engine_on_event_fd, engine, &watch,
                             err);
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
    atomic_store_explicit(&engine->next_tick_ns, UINT64_MAX, memory_order_relaxed);
    engine->epoll_fd = -1;
    engine->event_fd = -1;
    engine->bell_fd = -1;
    engine->user_fd = -1;
    engine->usable_cpus = rdti_cpu_usable();
    engine->affinity_cpus = rdti_cpu_affinity();
    atomic_store_explicit(&engine->spin_ns, RDTI_SPIN_LEAST_NS, memory_order_relaxed);
    atomic_store_explicit(&engine->brief_ns, RDTI_SPIN_LEAST_NS, memory_order_relaxed);
    rdti_engine_set_local_ranks(engine, local_ranks > 0 ? local_ranks : 1);
    const rdt_status status = engine_open_descriptors(engine, err);
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
    const int code = pthread_create(&engine->thread, NULL, rdti_engine_progress_main, engine);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0)
        return rdti_error_set(err, RDT_EDEVICE, code, "pthread_create of the progress thread");
    engine->has_thread = true;
    return RDT_OK;
}

void
rdti_engine_stop(struct rdti_engine *engine)
{
    if (!engine->has_thread)
        return;
    /* release: pairs with the acquire in progress_main() */
    atomic_store_explicit(&engine->is_stopping, 1, memory_order_release);
    rdti_engine_poke(engine);
    /* relaxed: the system call orders it; a park that has already read the word does not begin */
    (void)atomic_fetch_add_explicit(&engine->park_word, 1, memory_order_relaxed);
    rdti_futex_wake(&engine->park_word, 1);
    (void)pthread_join(engine->thread, NULL);
    engine->has_thread = false;
}

static void
engine_free_all(struct rdti_list *list, size_t link_offset)
{
    struct rdti_list *node;

    while ((node = rdti_list_take_first(list)) != NULL)
        free((char *)node - link_offset);
}

static void
engine_close_fd(int fd)
{
    if (fd < 0)
        return;
    rdti_fork_close_remove(fd);
    (void)close(fd);
}

void
rdti_engine_destroy(struct rdti_engine *engine)
{
    if (engine == NULL)
        return;
    rdti_engine_stop(engine);
    engine_free_all(&engine->tasks, offsetof(struct task, link));
    engine_free_all(&engine->ticks, offsetof(struct tick, link));
    rdti_engine_free_watches(engine);
    if (engine->bell != NULL)
        (void)munmap(engine->bell, (size_t)sysconf(_SC_PAGESIZE));
    engine_close_fd(engine->bell_fd);
    engine_close_fd(engine->user_fd);
    engine_close_fd(engine->event_fd);
    engine_close_fd(engine->epoll_fd);
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
