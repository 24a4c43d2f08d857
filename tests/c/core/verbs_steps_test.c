/* SPDX-License-Identifier: Apache-2.0
 * What a small message costs over verbs: instructions of our own, locked ones among them, system
 * calls, and calls of the device. Counted and not timed, so that a busy machine changes nothing: a
 * child is led through it instruction by instruction. Instructions of the C library and of the
 * device do not count. */
#include "pair_rig.h"

#include "endpoint/endpoint_impl.h"
#include "process/process.h"
#include "progress/engine.h"
#include "sim/sim_impl.h"

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <sys/ptrace.h>
#include <sys/user.h>

#define TRIPS 32 /* a batch of receives */
/* Between two of these a thread is counted. */
#define MARK() __asm__ volatile("int3" ::: "memory")

#define BRIEF_PASSES 16 /* of engine_wait.c */
#define PASS_STEPS 400  /* of one that finds nothing */

enum what { STEPS, LOCKED, CALLS, POST_SEND, POST_RECV, POLL_CQ, ARM, COUNTS };
/* In the order in which a trip has them: a message that is there is taken, answered, the answer's
 * completion is waited for, and, in the first of
 * them, some passes find nothing. */
enum part { TAKE, WRITE, WAIT, SPIN, PARTS };

extern char __executable_start;
extern char etext;

struct counts {
    uint64_t of[PARTS][COUNTS];
};

/* ---- The child: one side of a ping-pong ----------------------------------------------------- */

static void
settle(uint64_t executed)
{
    const uint64_t deadline_ns = test_now_ns() + 10 * RIG_S;

    while (sim_executed() < executed) {
        CHECK(test_now_ns() < deadline_ns);
        test_sleep_ns(20000);
    }
    test_sleep_ns(200000); /* and its completions are there */
}

static bool
never(void *arg)
{
    (void)arg;
    return false;
}

static void
trip(struct pair *pair, const struct rdt_remote_region remote[2], bool is_counted, bool has_spin)
{
    struct rdt_error err = {0};
    rdt_transfer *there;
    rdt_transfer *back;
    uint32_t value = 0;
    uint64_t executed = sim_executed();

    check_ok(rdt_endpoint_write(pair->ep[0], "12345678", 8, &remote[1], 0, 5, &there, &err), &err,
             "write");
    settle(executed + 1);
    check_ok(rdt_transfer_wait(there, 10 * RIG_S, &err), &err, "wait");
    rdt_transfer_free(there);
    if (is_counted)
        MARK();
    rdt_status status = rdt_endpoint_wait_notify(pair->ep[1], 10 * RIG_S, &value, &err);
    if (is_counted)
        MARK();
    check_ok(status, &err, "wait_notify");
    CHECK_UINT_EQ(value, 5);
    executed = sim_executed();
    if (is_counted)
        MARK();
    status = rdt_endpoint_write(pair->ep[1], "12345678", 8, &remote[0], 0, 7, &back, &err);
    if (is_counted)
        MARK();
    check_ok(status, &err, "write");
    settle(executed + 1);
    if (is_counted)
        MARK();
    status = rdt_transfer_wait(back, 10 * RIG_S, &err);
    rdt_transfer_free(back);
    if (is_counted)
        MARK();
    check_ok(status, &err, "wait");
    if (is_counted)
        MARK();
    const bool is_soon = has_spin && rdti_engine_is_soon(pair->ctx[1]->engine, never, NULL, false);
    if (is_counted)
        MARK();
    CHECK(!is_soon);
    check_ok(rdt_endpoint_wait_notify(pair->ep[0], 10 * RIG_S, &value, &err), &err, "wait_notify");
    CHECK_UINT_EQ(value, 7);
}

static void
be_led(void)
{
    const struct sim_config config = sim_default();
    struct rdt_remote_region remote[2];
    struct rdt_error err = {0};
    rdt_region *regions[2];
    struct pair pair;

    sim_begin(&config);
    pair_open(&pair, RDT_TRANSPORT_VERBS);
    for (int i = 0; i < 2; i++) {
        check_ok(rdt_region_alloc(pair.ctx[i], 64, 0, &regions[i], &err), &err, "alloc");
        check_ok(rdt_region_export(regions[i], &remote[i], &err), &err, "export");
    }
    for (int i = 0; i < 3; i++) /* keys are asked for, the pool has its transfers */
        trip(&pair, remote, false, false);
    /* Nobody else takes what comes. */
    for (int i = 0; i < 2; i++) {
        rdti_engine_stop(pair.ctx[i]->engine);
        rdti_engine_set_local_ranks(pair.ctx[i]->engine, 1); /* on one core nobody spins else */
    }
    CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
    for (int i = 0; i < TRIPS; i++)
        trip(&pair, remote, true, i == 0);
    fflush(NULL);
    _exit(0); /* without a progress thread there is no close */
}

/* ---- The parent: counts --------------------------------------------------------------------- */

static uint64_t
wait_stop(pid_t child, struct user_regs_struct *regs)
{
    int status;

    CHECK(waitpid(child, &status, 0) == child);
    if (WIFEXITED(status)) {
        CHECK_INT_EQ(WEXITSTATUS(status), 0);
        return 0;
    }
    CHECK_MSG(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP, "status 0x%x", (unsigned)status);
    CHECK(ptrace(PTRACE_GETREGS, child, NULL, regs) == 0);
    return regs->rip;
}

static bool
is_own(uint64_t at)
{
    return at >= (uintptr_t)&__executable_start && at < (uintptr_t)&etext;
}

/* What the device's calls are called, if it is one of them. */
static enum what
call_at(uint64_t at)
{
    if (at == (uintptr_t)sim_table.post_send)
        return POST_SEND;
    if (at == (uintptr_t)sim_table.post_recv)
        return POST_RECV;
    if (at == (uintptr_t)sim_table.poll_cq)
        return POLL_CQ;
    return at == (uintptr_t)sim_table.req_notify_cq ? ARM : COUNTS;
}

/* The child has the same program and the same libraries at the same places. */
static const uint8_t *
code_at(uint64_t at)
{
    return (const uint8_t *)(uintptr_t)at;
}

static void
count_own(uint64_t at, uint64_t of[COUNTS])
{
    const uint8_t *code = code_at(at);

    of[STEPS]++;
    of[LOCKED] += code[0] == 0xf0 || code[0] == 0x87 || (code[0] == 0x48 && code[1] == 0x87);
}

/* From one mark to the next. */
static void
count_part(pid_t child, uint64_t of[COUNTS])
{
    struct user_regs_struct regs;
    uint64_t return_to = 0; /* of a call of the device; 0: in none */
    uint64_t return_sp = 0;
    uint64_t at;

    do {
        CHECK(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) == 0);
        at = wait_stop(child, &regs);
        CHECK(at != 0);
        if (return_to != 0 && (at != return_to || regs.rsp <= return_sp))
            continue;
        return_to = 0;
        const enum what call = call_at(at);
        if (call != COUNTS) {
            of[call]++;
            return_sp = regs.rsp;
            errno = 0;
            return_to = (uint64_t)ptrace(PTRACE_PEEKDATA, child, (void *)(uintptr_t)regs.rsp, NULL);
            CHECK_INT_EQ(errno, 0);
            continue;
        }
        of[CALLS] += code_at(at)[0] == 0x0f && code_at(at)[1] == 0x05;
        if (is_own(at) && code_at(at)[0] != 0xcc)
            count_own(at, of);
    } while (!is_own(at) || code_at(at)[0] != 0xcc || return_to != 0);
    /* The mark itself. */
    CHECK(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) == 0);
    (void)wait_stop(child, &regs);
}

static void
count_trips(struct counts *counts)
{
    struct user_regs_struct regs;

    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        be_led();
    for (int i = 0; i < TRIPS * PARTS; i++) {
        CHECK(i == 0 || ptrace(PTRACE_CONT, child, NULL, NULL) == 0);
        CHECK(wait_stop(child, &regs) != 0);
        count_part(child, counts->of[i % PARTS]);
    }
    CHECK(ptrace(PTRACE_CONT, child, NULL, NULL) == 0);
    CHECK(wait_stop(child, &regs) == 0);
}

static void
show(const char *name, const uint64_t of[COUNTS])
{
    printf(
        "  %-5s %.1f instructions, %.1f locked, %.2f system calls, %.2f post_send, %.2f post_recv,"
        " %.2f poll_cq, %.2f req_notify_cq\n",
        name, (double)of[STEPS] / TRIPS, (double)of[LOCKED] / TRIPS, (double)of[CALLS] / TRIPS,
        (double)of[POST_SEND] / TRIPS, (double)of[POST_RECV] / TRIPS, (double)of[POLL_CQ] / TRIPS,
        (double)of[ARM] / TRIPS);
}

TEST_TIMEOUT(a_small_message_costs_no_more_than_it_did, 120)
{
    static const char *const names[PARTS] = {"take", "write", "wait", "spin"};
    /* A tenth above what the presets count: compilers differ. */
    static const uint64_t most[PARTS] = {1020, 730, 950, 0};
    static const uint64_t locked[PARTS] = {4, 8, 9, 0};
    struct counts counts = {0};

    count_trips(&counts);
    for (int part = 0; part < PARTS; part++) {
        const uint64_t *of = counts.of[part];

        show(names[part], of);
        CHECK(of[STEPS] > 0);
        CHECK_UINT_LE(of[STEPS], part == SPIN ? BRIEF_PASSES * PASS_STEPS : TRIPS * most[part]);
        CHECK_UINT_LE(of[LOCKED], part == SPIN ? BRIEF_PASSES : TRIPS * locked[part]);
        CHECK_UINT_EQ(of[POST_SEND], part == WRITE ? TRIPS : 0);
        CHECK_UINT_EQ(of[ARM], 0);
    }
    /* Receives go in batches, and one pass finds what is there. */
    CHECK_UINT_LE(counts.of[TAKE][POST_RECV], 1 + TRIPS / 32);
    CHECK_UINT_EQ(counts.of[TAKE][POLL_CQ], TRIPS);
    CHECK_UINT_EQ(counts.of[WAIT][POLL_CQ], TRIPS);
    CHECK_UINT_EQ(counts.of[SPIN][POLL_CQ], BRIEF_PASSES);
    /* Sockets have no payload here, and are looked at once in 256 passes or more. */
    CHECK_UINT_LE(counts.of[TAKE][CALLS] + counts.of[WRITE][CALLS] + counts.of[WAIT][CALLS] +
                      counts.of[SPIN][CALLS],
                  3);
}

#else

TEST(a_small_message_costs_no_more_than_it_did)
{
    SKIP("needs x86-64 without a sanitizer");
}

#endif

TEST_MAIN()
