/* SPDX-License-Identifier: Apache-2.0
 * Every call of verbs fails in turn, from opening to closing. On the sim. */
#include "../harness.h"

#include "base/error.h"
#include "verbs_rig.h"

static bool
is_over(const struct verbs_pair *p, bool *is_broken)
{
    *is_broken = p->ab.error_count > 0 || p->ba.error_count > 0 ||
                 (p->ab.is_offered && p->ab.connect_status != RDT_OK) ||
                 (p->ba.is_offered && p->ba.connect_status != RDT_OK);
    return *is_broken || (p->ab.ready_count == 1 && p->ba.ready_count == 1);
}

static void
check_errno(const struct rdt_error *err, int want)
{
    CHECK_MSG(err->sys_errno == want, "%s failed, but the error has errno %d: %s",
              sim_failed_call(), err->sys_errno, err->message);
}

static void
check_errors(const struct verbs_pair *p, int want)
{
    if (p->ab.error_count > 0)
        check_errno(&p->ab.error, want);
    if (p->ab.is_offered && p->ab.connect_status != RDT_OK)
        check_errno(&p->ab.connect_error, want);
}

/* The op's own error has the errno of the call that failed; but where it was the peer's lane that
 * broke, and nothing failed here, the op has lost its peer. */
static void
check_op(const struct verbs_pair *p, const struct fake_op *op, int want)
{
    if (op->status == RDT_OK)
        return;
    CHECK_MSG(sim_failed_call() != NULL, "%s", op->error.message);
    if (op->status == RDT_EPEER && p->ba.error_count > 0 && p->ab.error.sys_errno == 0)
        check_errno(&p->ba.error, want);
    else
        check_errno(&op->error, want);
}

/* Any op may fail of the fault; none may hang or lie about its bytes. */
static void
move_with_fault(struct verbs_pair *p, uint8_t *local, struct fake_region *region, uint64_t len,
                bool is_read, int want)
{
    struct rdt_error err;
    struct fake_op op;

    verbs_pattern(is_read ? region->addr : local, len, 3);
    if (is_read)
        fake_read(&op, local, len, &region->remote, 0);
    else
        fake_write(&op, local, len, &region->remote, 0, 7);
    if (fake_start(&p->ab, &op, &err) != RDT_OK) {
        CHECK(sim_failed_call() != NULL);
        return;
    }
    VERBS_PUMP(p, fake_op_is_done(&op));
    check_op(p, &op, want);
    if (op.status == RDT_OK)
        CHECK_MEM_EQ(region->addr, local, len);
}

/* Writes and reads, of memory that is private, of the arena, and of a region over other memory,
 * which is freed again: keys, stage, registrations, posts, arming. */
static void
use_with_fault(struct verbs_pair *p, int want)
{
    enum { LEN = 300000 };
    static uint8_t private_bytes[LEN];
    static uint8_t exported_bytes[LEN];
    struct fake_region *arena = fake_region(&p->b, LEN);
    struct fake_region *outside = fake_region_private(&p->b, exported_bytes, LEN);
    uint8_t *own = fake_region(&p->a, LEN)->addr;

    sim_raise_event(0, IBV_EVENT_SM_CHANGE); /* which is read, and does nothing */
    for (int is_read = 0; is_read < 2; is_read++) {
        move_with_fault(p, private_bytes, arena, LEN, is_read == 1, want);
        move_with_fault(p, own, arena, LEN, is_read == 1, want);
        move_with_fault(p, own, outside, LEN, is_read == 1, want);
    }
    const uint32_t index = outside->remote.index;
    const uint32_t generation = outside->remote.generation;
    fake_region_revoke(&p->b, outside);
    CHECK(p->b.transport->forget_region(p->b.state, index, generation, NULL, NULL));
}

/* Host a and its lane, in which the n-th call fails; b's host is there. */
static void
connect_with_fault(struct verbs_pair *p, int sys_errno)
{
    const struct rdti_lane_args args[2] = {fake_lane_args(true), fake_lane_args(false)};
    struct rdt_error err;
    bool is_broken = false;
    int side[2];

    fake_side_channel(side);
    if (fake_link_try_open(&p->b, &p->ba, side[1], &args[1], &err) != RDT_OK) {
        check_errno(&err, sys_errno);
        CHECK_INT_EQ(close(side[0]), 0);
        return;
    }
    if (fake_link_try_open(&p->a, &p->ab, side[0], &args[0], &err) != RDT_OK) {
        check_errno(&err, sys_errno);
        fake_link_close(&p->ba, RDT_ECLOSED);
        return;
    }
    const uint64_t deadline_ns = fake_deadline_ns(10);
    while (!is_over(p, &is_broken)) {
        (void)fake_pump(&p->a);
        (void)fake_pump(&p->b);
        fake_check_deadline(deadline_ns, __FILE__, __LINE__, "set up, or failed");
    }
    CHECK_MSG(!is_broken || sim_failed_call() != NULL, "broken by nothing: %s",
              p->ab.error.message);
    if (is_broken)
        check_errors(p, sys_errno);
    else
        use_with_fault(p, sys_errno);
    fake_disconnect(&p->ab, &p->ba);
}

/* Opening, set-up over two links, use and closing, in which the n-th call of this name fails.
 * Returns false once n is past the last. */
static bool
run_with_fault(const char *call, uint32_t n, int sys_errno)
{
    struct sim_config config = sim_default();
    static struct verbs_pair p;
    struct rdt_error err;

    config.device_count = 2;
    memset(&p, 0, sizeof(p));
    sim_begin(&config);
    fake_host_open(&p.b, &rdti_transport_verbs);
    sim_forget_fork_init(); /* a is another process */
    sim_fail_named(call, n, 1, sys_errno);
    if (fake_host_try_open(&p.a, &rdti_transport_verbs, &err) == RDT_OK) {
        connect_with_fault(&p, sys_errno);
        fake_host_close(&p.a);
    } else {
        CHECK_INT_EQ(err.status, RDT_ENOTVIABLE);
        CHECK_STR_CONTAINS(err.message, strerror(sys_errno));
    }
    fake_host_close(&p.b);
    const bool is_hit = sim_failed_call() != NULL;
    sim_end();
    return is_hit;
}

/* How often a call is made is the set-up's, or timing's: then a bound keeps the sweep finite. */
struct swept {
    const char *call;
    bool is_timed;
};

static void
sweep(const struct swept *swept, int sys_errno)
{
    enum { MOST = 64 };
    uint32_t n = 0;

    while (n < MOST && run_with_fault(swept->call, n, sys_errno))
        n += TEST_TSAN_STRIDE;
    printf("  %s, %s: up to %u failed in turn%s\n", swept->call, strerror(sys_errno), n,
           n < MOST ? "" : ", and there are more");
    CHECK_MSG(n > 0, "%s was never made", swept->call);
    CHECK_MSG(n < MOST || swept->is_timed, "%s is made more than %d times: raise MOST", swept->call,
              MOST);
}

/* Whichever call fails, and why ever, the error has its errno, nothing hangs and nothing is left:
 * also where it is destroying that fails. */
TEST_TIMEOUT(every_call_may_fail, 300)
{
    static const struct swept calls[] = {
        {"get_device_list", false},
        {"open_device", false},
        {"close_device", false},
        {"query_device", false},
        {"query_port", false},
        {"query_gid_ex", false},
        {"query_pkey", false},
        {"alloc_pd", false},
        {"dealloc_pd", false},
        {"create_comp_channel", false},
        {"destroy_comp_channel", false},
        {"reg_mr", false},
        {"dereg_mr", false},
        {"create_cq", false},
        {"destroy_cq", false},
        {"create_qp", false},
        {"destroy_qp", false},
        {"modify_qp", false},
        {"modify_qp to ERR", false},
        {"post_send", true},
        {"post_recv", false},
        {"req_notify_cq", true},
        {"poll_cq", true},
        {"get_cq_event", true},
        {"get_async_event", false},
        {"fork_init", false},
    };
    const uint32_t fds = fake_count_fds();

    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_PKEY", "0xffff", 1), 0);
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        sweep(&calls[i], EMFILE);
        sweep(&calls[i], ENOMEM);
        CHECK_INT_EQ(fake_count_fds(), fds);
    }
}

TEST_MAIN()
