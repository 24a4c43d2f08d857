/* SPDX-License-Identifier: Apache-2.0
 * Litmus test of the wake-up protocol (base/system/doorbell.h): two processes hand a number back
 * and forth, and each waits for it by a mixture of spinning and sleeping that brings publication
 * and sleep close together. A sleep that lasts to its end although the number was there is a lost
 * wake-up.
 *
 * It fails on x86-64 within a second if the publication is a release store instead of a seq_cst
 * one.
 */
#include "harness.h"

#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "base/system/cpu.h"
#include "base/system/doorbell.h"

/* One hop is one publication and one wait for it. The order that loses a wake-up is rare, and the
 * plain build's to find; a sanitizer finds what it looks for in the first hops of each kind. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FUTEX_HOPS UINT64_C(200000)
#define EPOLL_HOPS UINT64_C(100000)
#define BACKGROUND_HOPS UINT64_C(100000)
#define LEAST_SLEEPS 100
#else
#define FUTEX_HOPS UINT64_C(10000000)
#define EPOLL_HOPS UINT64_C(1000000)
#define BACKGROUND_HOPS UINT64_C(1000000)
#define LEAST_SLEEPS 1000
#endif

/* A machine whose cores others use too gets less done in its time; at least this much must be. */
#define RUN_NS (UINT64_C(40) * 1000000000)
#define LEAST_SHARE 50

/* Far longer than a wake-up takes on a loaded machine. */
#define SLEEP_NS (UINT64_C(2) * 1000000000)
#define LATE_NS (UINT64_C(1) * 1000000000)

enum way { BY_FUTEX, BY_EPOLL, BY_BACKGROUND };

struct side {
    _Alignas(64) struct rdti_doorbell bell;
    _Alignas(64) _Atomic uint64_t word; /* the hop that this side was handed last */
    _Atomic uint64_t published_ns;      /* when */
};

struct shared {
    struct side side[2];
};

struct player {
    struct shared *shared;
    enum way way;
    uint32_t me;
    int event_fd[2];
    int epoll_fd;
    uint64_t random;
    uint64_t sleeps;
};

static uint32_t
draw(struct player *p)
{
    p->random ^= p->random << 13;
    p->random ^= p->random >> 7;
    p->random ^= p->random << 17;
    return (uint32_t)(p->random >> 16);
}

static bool
has_come(const struct player *p, uint64_t hop)
{
    /* seq_cst: the sleeper's second look; pairs with publish(). */
    return atomic_load_explicit(&p->shared->side[p->me].word, memory_order_seq_cst) >= hop;
}

static void
publish(struct player *p, uint64_t hop)
{
    struct side *to = &p->shared->side[1 - p->me];

    /* relaxed: ordered by the store below. */
    atomic_store_explicit(&to->published_ns, test_now_ns(), memory_order_relaxed);
    /* seq_cst: step (1) of the writer; pairs with has_come(). */
    atomic_store_explicit(&to->word, hop, memory_order_seq_cst);
    (void)rdti_doorbell_ring(&to->bell, p->event_fd[1 - p->me], p->way == BY_BACKGROUND);
}

static void
sleep_by_futex(struct player *p, uint64_t hop)
{
    struct rdti_doorbell *bell = &p->shared->side[p->me].bell;
    const uint32_t sequence = rdti_doorbell_begin_sleep(bell);

    if (!has_come(p, hop)) {
        p->sleeps++;
        rdti_doorbell_sleep(bell, sequence, SLEEP_NS);
    }
    rdti_doorbell_end_sleep(bell);
}

static void
sleep_by_epoll(struct player *p, uint64_t hop)
{
    struct rdti_doorbell *bell = &p->shared->side[p->me].bell;
    _Atomic uint32_t *sleepers = p->way == BY_EPOLL ? &bell->epoll_sleepers : &bell->background;
    struct epoll_event event;
    uint64_t rings;

    /* seq_cst: pairs with the loads in rdti_doorbell_ring(). */
    (void)atomic_fetch_add_explicit(sleepers, 1, memory_order_seq_cst);
    if (!has_come(p, hop)) {
        p->sleeps++;
        CHECK(epoll_wait(p->epoll_fd, &event, 1, (int)(SLEEP_NS / 1000000)) >= 0 || errno == EINTR);
    }
    (void)atomic_fetch_sub_explicit(sleepers, 1, memory_order_seq_cst);
    CHECK(read(p->event_fd[p->me], &rings, sizeof(rings)) == sizeof(rings) || errno == EAGAIN);
}

static void
wait_for(struct player *p, uint64_t hop)
{
    /* Now and then hardly any spinning, so that the sleep meets the publication; else long enough
     * that a hop on two free cores does not sleep. */
    uint32_t spins = draw(p) % 8 == 0 ? draw(p) % 8 : 2000;

    for (; spins > 0; spins--) {
        if (has_come(p, hop))
            return;
        rdti_cpu_relax();
    }
    while (!has_come(p, hop)) {
        const uint64_t start_ns = test_now_ns();

        if (p->way == BY_FUTEX)
            sleep_by_futex(p, hop);
        else
            sleep_by_epoll(p, hop);
        const uint64_t end_ns = test_now_ns();
        if (!has_come(p, hop))
            continue;
        const uint64_t published_ns =
            atomic_load_explicit(&p->shared->side[p->me].published_ns, memory_order_relaxed);
        CHECK_MSG(end_ns - start_ns < LATE_NS || end_ns < published_ns + LATE_NS,
                  "lost wake-up at hop %" PRIu64 ": slept %.3f s, published %.3f s before", hop,
                  (double)(end_ns - start_ns) * 1e-9, (double)(end_ns - published_ns) * 1e-9);
    }
}

static void
dawdle(struct player *p)
{
    uint32_t pauses = draw(p) % 4 == 0 ? draw(p) % 64 : 0;

    for (; pauses > 0; pauses--)
        rdti_cpu_relax();
}

/* Side 0 publishes odd hops, side 1 even ones. The last one published is UINT64_MAX. */
static uint64_t
play(struct player *p, uint64_t hops)
{
    const uint64_t end_ns = test_now_ns() + RUN_NS;
    uint64_t hop = 0;

    if (p->me == 0)
        publish(p, 1);
    for (hop = p->me == 0 ? 2 : 1; hop <= hops; hop += 2) {
        wait_for(p, hop);
        if (has_come(p, UINT64_MAX))
            return hop;
        dawdle(p);
        if (p->me == 0 && hop % 1000 == 0 && test_now_ns() > end_ns)
            break;
        publish(p, hop + 1);
    }
    publish(p, UINT64_MAX);
    return hop;
}

static void
open_player(struct player *p, struct shared *shared, enum way way, const int event_fd[2])
{
    for (int i = 0; i < 2; i++)
        p->event_fd[i] = event_fd[i];
    p->shared = shared;
    p->way = way;
    p->random = 88172645463325252u;
    p->sleeps = 0;
    p->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    CHECK_INT_GE(p->epoll_fd, 0);
}

static void
watch_own_event(struct player *p)
{
    struct epoll_event event = {.events = EPOLLIN};

    CHECK_INT_EQ(epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, p->event_fd[p->me], &event), 0);
}

static void
run(enum way way, uint64_t hops)
{
    struct shared *shared =
        mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct player p;
    int event_fd[2];
    int status;

    CHECK(shared != MAP_FAILED);
    for (int i = 0; i < 2; i++) {
        event_fd[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        CHECK_INT_GE(event_fd[i], 0);
    }
    fflush(NULL);
    const pid_t child = fork();
    CHECK_INT_GE(child, 0);
    open_player(&p, shared, way, event_fd);
    p.me = child == 0 ? 1 : 0;
    p.random += p.me;
    watch_own_event(&p);
    const uint64_t done = play(&p, hops);
    if (child == 0)
        _exit(p.sleeps < LEAST_SLEEPS ? TEST_EXIT_FAIL : 0);
    CHECK_INT_EQ(waitpid(child, &status, 0), child);
    printf("  %" PRIu64 " hops, %" PRIu64 " sleeps on this side\n", done, p.sleeps);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the other side: status 0x%x", status);
    CHECK_UINT_GE(done, hops / LEAST_SHARE);
    CHECK_UINT_GE(p.sleeps, LEAST_SLEEPS);
}

TEST_TIMEOUT(futex_sleeper_is_always_woken, 90)
{
    run(BY_FUTEX, FUTEX_HOPS);
}

TEST_TIMEOUT(epoll_sleeper_is_always_woken, 90)
{
    run(BY_EPOLL, EPOLL_HOPS);
}

TEST_TIMEOUT(background_sleeper_is_always_woken_by_urgent_rings, 90)
{
    run(BY_BACKGROUND, BACKGROUND_HOPS);
}

TEST(ring_makes_no_system_call_while_everybody_is_awake)
{
    struct rdti_doorbell bell = {0};

    CHECK_INT_EQ(rdti_doorbell_ring(&bell, -1, false), 0);
    CHECK_INT_EQ(rdti_doorbell_ring(&bell, -1, true), 0);
}

TEST_MAIN()
