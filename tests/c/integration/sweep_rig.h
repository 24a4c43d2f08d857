/* SPDX-License-Identifier: Apache-2.0
 * A job of a few processes, one of which is killed, stopped or leaves at a moment that a seed
 * chooses. The test's process has no context of its own: it forks the ranks of each point, ends one
 * of them, and reads what everybody saw on a board in shared memory. What a rank does between
 * set-up and teardown is sweep_work.h. */
#ifndef RDTI_TESTS_SWEEP_RIG_H
#define RDTI_TESTS_SWEEP_RIG_H

#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "harness.h"
#include "leftovers.h"
#include "rdmatensor.h"

#define SWEEP_RANKS_MAX 4
#define SWEEP_S UINT64_C(1000000000)
#define SWEEP_MS UINT64_C(1000000)
/* Silence that counts as death: well above what a loaded machine keeps a living rank waiting. This
 * and the next are waited out, so that sanitizers stretch them by half of what they stretch the
 * others by. */
#define SWEEP_SILENCE_S 2.0
/* Who died before it told where it listens is missed at this deadline only. */
#define SWEEP_ADDRESS_S 1.0
/* Of the set-up of a path, which a stopped rank keeps waiting for it. */
#define SWEEP_SETUP_S 5.0
/* Of an operation, far above what any survivor waits: what ends by it is a hang. */
#define SWEEP_OPERATION_S 15.0
/* Of a point: all survivors are gone by then. */
#define SWEEP_POINT_S 40.0

/* In the order in which a job goes through them. */
enum sweep_phase {
    SWEEP_CONTEXT = 0, /* not asked for by anybody yet */
    SWEEP_CONNECT,     /* the first barrier */
    SWEEP_PREPARE,     /* regions and slots are told */
    SWEEP_BROADCAST,
    SWEEP_ALLREDUCE,
    SWEEP_REDUCE,
    SWEEP_ALLGATHER,
    SWEEP_REDUCE_SCATTER,
    SWEEP_GATHER,
    SWEEP_SCATTER,
    SWEEP_ALLTOALL,
    SWEEP_BARRIER,
    SWEEP_SEND,
    SWEEP_WRITE,
    SWEEP_READ,
    SWEEP_SLOT,
    SWEEP_TEARDOWN,
    SWEEP_PHASES
};

#define SWEEP_COLL "coll_start collective"

/* The words that the error of a collective has for its operation; NULL: who makes any other call
 * has its error from that call, or from the transfer that it gave, and knows what it was: there the
 * call itself is the operation, and the error may well be the group's, which knows of none. It is
 * one of `calls` then. */
static const struct {
    const char *name;
    const char *words;
    const char *calls;
} sweep_phases[SWEEP_PHASES] = {{"context", NULL, "context_open add_job context_address"},
                                {"connect", "barrier", SWEEP_COLL},
                                {"prepare", NULL,
                                 "group_endpoint region " SWEEP_COLL
                                 " remote_region_decode slot_create slot_tx_open"},
                                {"broadcast", "broadcast", SWEEP_COLL},
                                {"all_reduce", "all_reduce", SWEEP_COLL},
                                {"reduce", "reduce", SWEEP_COLL},
                                {"all_gather", "all_gather", SWEEP_COLL},
                                {"reduce_scatter", "reduce_scatter", SWEEP_COLL},
                                {"gather", "gather", SWEEP_COLL},
                                {"scatter", "scatter", SWEEP_COLL},
                                {"all_to_all", "all_to_all", SWEEP_COLL},
                                {"barrier", "barrier", SWEEP_COLL},
                                {"send and receive", NULL, "group_recv group_send send receive"},
                                {"write", NULL, "write wait_notify"},
                                {"read", NULL, "read"},
                                {"slot", NULL, "slot slot_tx_put"},
                                {"teardown", NULL, "nothing"}};

/* Of a collective that another phase's set-up makes: sweep_exchange(). */
#define SWEEP_PREPARE_WORDS "all_gather"

enum sweep_how { SWEEP_KILLED, SWEEP_STOPPED, SWEEP_LEFT };

struct sweep_point {
    uint32_t number;
    uint32_t transport; /* RDT_TRANSPORT_* */
    uint32_t size;
    uint32_t victim;
    enum sweep_how how;
    enum sweep_phase phase; /* that the victim is to be in */
    uint64_t delay_ns;      /* from its beginning */
    uint64_t count;         /* elements of the phase's operation */
};

/* Where a rank is, for whoever waits for it. */
enum sweep_life {
    SWEEP_WORKING = 0,
    SWEEP_HAS_ENDED, /* `end` is filled in */
    SWEEP_APART,     /* nothing of the first group is left */
    SWEEP_REGROUPED, /* a collective of the survivors went well */
    SWEEP_CLOSED,
};

struct sweep_rank {
    _Atomic uint32_t life;
    _Atomic uint32_t phase;
    _Atomic uint64_t steps; /* of all phases */
    struct {
        int32_t status;
        int32_t peer_rank;
        uint32_t phase;
        uint64_t at_ns;
        const char *call; /* a literal: the same address in all of them */
        char message[RDT_ERROR_MESSAGE_BYTES];
    } end;
    struct {
        _Atomic uint32_t is_there;
        uint32_t len_bytes;
        uint8_t bytes[RDT_ADDRESS_MAX_BYTES];
    } address;
};

struct sweep_board {
    struct sweep_point point;
    _Atomic uint32_t must_leave; /* the victim, at its next step */
    struct sweep_rank ranks[SWEEP_RANKS_MAX];
};

static inline uint64_t
sweep_patience_ns(double seconds)
{
    return (uint64_t)(seconds * 1e9 * test_timeout_scale());
}

static inline uint64_t
sweep_wait_out_ns(double seconds)
{
    return (uint64_t)(seconds * 1e9 * (1 + test_timeout_scale()) / 2);
}

static const char *const sweep_transports[] = {"auto", "shm", "tcp", "verbs"};
static const char *const sweep_hows[] = {"killed", "stopped", "leaving"};

static inline void
sweep_describe(const struct sweep_point *p, char *out, size_t cap)
{
    (void)snprintf(out, cap, "point %u: %s, rank %u of %u %s %.2f ms into %s, %llu elements",
                   p->number, sweep_transports[p->transport], p->victim, p->size,
                   sweep_hows[p->how], (double)p->delay_ns / 1e6, sweep_phases[p->phase].name,
                   (unsigned long long)p->count);
}

/* What everybody was doing, for a point that went wrong. */
static inline void
sweep_print(struct sweep_board *board)
{
    static const char *const lives[] = {"working", "has ended", "apart", "regrouped", "closed"};
    char words[200];

    sweep_describe(&board->point, words, sizeof(words));
    printf("%s\n", words);
    for (uint32_t i = 0; i < board->point.size; i++) {
        struct sweep_rank *r = &board->ranks[i];
        printf("  rank %u: %s, step %llu, in %s", i, lives[atomic_load(&r->life)],
               (unsigned long long)atomic_load(&r->steps),
               sweep_phases[atomic_load(&r->phase)].name);
        if (atomic_load(&r->life) >= SWEEP_HAS_ENDED)
            printf(": %s in %s gave %s of rank %d: %s", r->end.call,
                   sweep_phases[r->end.phase].name, rdt_status_name(r->end.status),
                   (int)r->end.peer_rank, r->end.message);
        printf("\n");
    }
    fflush(stdout);
}

/* ---- The process that forks and ends them ---------------------------------------------------- */

/* The life of a rank; never returns. */
typedef void (*sweep_life_fn)(struct sweep_board *board, uint32_t rank);

struct sweep_outcome {
    uint32_t hit; /* the phase in which the victim was when it ended */
    uint64_t began_ns;
    uint64_t at_ns;    /* when the victim was ended */
    uint64_t floor_ns; /* what a bare end of a process took here at that time; killed only */
    bool is_hung;
    int statuses[SWEEP_RANKS_MAX];
};

static inline void
sweep_end_victim(struct sweep_board *board, const pid_t *pids, struct sweep_outcome *out)
{
    const struct sweep_point *p = &board->point;
    struct sweep_rank *victim = &board->ranks[p->victim];
    const uint64_t deadline_ns = test_now_ns() + sweep_patience_ns(SWEEP_POINT_S / 2);

    while (atomic_load(&victim->phase) < p->phase && test_now_ns() < deadline_ns)
        (void)sched_yield();
    test_sleep_ns(p->delay_ns);
    out->hit = atomic_load(&victim->phase);
    out->at_ns = test_now_ns();
    if (p->how == SWEEP_LEFT)
        atomic_store(&board->must_leave, 1);
    else
        CHECK_INT_EQ(kill(pids[p->victim], p->how == SWEEP_KILLED ? SIGKILL : SIGSTOP), 0);
    if (atomic_load(&victim->phase) > out->hit)
        out->hit = atomic_load(&victim->phase); /* it went on between the look and the signal */
}

/* How long it takes here and now to begin a process, kill it and hear of it, with nothing else to
 * do: whatever hears of an end waits for the machine as long as this does. */
static inline uint64_t
sweep_floor_ns(void)
{
    const uint64_t began_ns = test_now_ns();
    const pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            (void)pause();
    }
    CHECK_INT_EQ(kill(pid, SIGKILL), 0);
    while (waitpid(pid, NULL, 0) < 0)
        CHECK(errno == EINTR);
    return test_now_ns() - began_ns;
}

/* Waits for those that `which` names; false: some are still there at the deadline. */
static inline bool
sweep_reap(const pid_t *pids, uint32_t size, uint32_t which, uint64_t deadline_ns, int *statuses)
{
    for (;;) {
        for (uint32_t i = 0; i < size; i++) {
            if ((which >> i & 1) != 0 && waitpid(pids[i], &statuses[i], WNOHANG) == pids[i])
                which &= ~(1u << i);
        }
        if (which == 0)
            return true;
        if (test_now_ns() > deadline_ns)
            return false;
        test_sleep_ns(SWEEP_MS / 4);
    }
}

static inline void
sweep_run(struct sweep_board *board, sweep_life_fn life, struct sweep_outcome *out)
{
    const struct sweep_point *p = &board->point;
    const uint32_t all = (1u << p->size) - 1;
    const uint32_t victim = 1u << p->victim;
    const uint64_t deadline_ns = test_now_ns() + sweep_patience_ns(SWEEP_POINT_S);
    pid_t pids[SWEEP_RANKS_MAX];

    *out = (struct sweep_outcome){.began_ns = test_now_ns()};
    fflush(NULL);
    for (uint32_t i = 0; i < p->size; i++) {
        pids[i] = fork();
        CHECK(pids[i] >= 0);
        if (pids[i] == 0) {
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            life(board, i);
            _exit(0);
        }
    }
    sweep_end_victim(board, pids, out);
    if (p->how == SWEEP_KILLED) /* while the others find out */
        out->floor_ns = sweep_floor_ns();
    out->is_hung = !sweep_reap(pids, p->size, all & ~victim, deadline_ns, out->statuses);
    if (p->how == SWEEP_STOPPED)
        (void)kill(pids[p->victim], SIGKILL); /* survivors have closed without it */
    if (!sweep_reap(pids, p->size, victim, deadline_ns + sweep_patience_ns(5), out->statuses))
        out->is_hung = true;
    if (p->how == SWEEP_LEFT) /* at its next step, which may have been another phase's */
        out->hit = atomic_load(&board->ranks[p->victim].phase);
    if (!out->is_hung)
        return;
    sweep_print(board);
    for (uint32_t i = 0; i < p->size; i++) /* which are reaped: nobody has their numbers yet */
        (void)kill(pids[i], SIGKILL);
    (void)sweep_reap(pids, p->size, all, test_now_ns() + 5 * SWEEP_S, out->statuses);
}

#endif
