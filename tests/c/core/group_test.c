/* SPDX-License-Identifier: Apache-2.0
 * How groups begin and end: early messages, deaths, destruction under load. */
#include "core/group_rig.h"
#include "endpoint/endpoint.h"
#include "message/mailbox_impl.h"
#include "rdmatensor_ext.h"

#define MEGABYTE (UINT64_C(1) << 20)

/* Whether the peer has said that a group of its own, which does not exist here, uses the path. */
static bool
knows_interest(rdt_endpoint *ep)
{
    rdt_context *ctx = rdti_endpoint_context(ep);

    rdti_engine_enter(ctx->engine);
    const bool is_known = rdti_mailbox_of(ep)->interest_count > 0;
    rdti_engine_leave(ctx->engine);
    return is_known;
}

/* ---- Arguments and lives ------------------------------------------------------------------- */

TEST(arguments_are_checked)
{
    struct rig rig = {.size = 2};
    struct rdt_error err = {0};
    rdt_group *group = NULL;
    rdt_endpoint *ep;
    uint8_t byte = 0;
    rdt_transfer *t;
    struct rdt_group_opts good = {.struct_size = sizeof(good),
                                  .size = 2,
                                  .name = "g",
                                  .job_id = "job",
                                  .address = rig_address,
                                  .address_arg = &rig};
    struct rdt_group_opts bad;

    rig.ctx[0] = rig_context(RDT_TRANSPORT_SHM, 0);
#define REFUSED(field, value, word)                                             \
    bad = good;                                                                 \
    bad.field = value;                                                          \
    CHECK_STATUS(rdt_group_create(rig.ctx[0], &bad, &group, &err), RDT_EINVAL); \
    CHECK_STR_CONTAINS(err.message, word)
    REFUSED(struct_size, 4, "struct_size");
    REFUSED(reserved, 1, "reserved");
    REFUSED(size, 0, "members");
    REFUSED(size, 65536, "members");
    REFUSED(rank, 2, "rank 2 of 2");
    REFUSED(name, NULL, "name");
    REFUSED(job_id, NULL, "job_id");
    REFUSED(address, NULL, "address");
    CHECK_NULL(group);
    CHECK_OK(rdt_group_create(rig.ctx[0], &good, &group, &err), &err);
    rdt_group *twin = NULL;
    CHECK_STATUS(rdt_group_create(rig.ctx[0], &good, &twin, &err), RDT_EINVAL);
    CHECK_STR_CONTAINS(err.message, "lives already");
    CHECK_STATUS(rdt_context_close(rig.ctx[0], &err), RDT_EBUSY);
    CHECK_STATUS(rdt_group_endpoint(group, 0, &ep, &err), RDT_EINVAL);
    CHECK_STATUS(rdt_group_endpoint(group, 2, &ep, &err), RDT_EINVAL);
    CHECK_STATUS(rdt_group_send(group, 2, 0, &byte, 1, NULL, &t, &err), RDT_EINVAL);
    CHECK_STATUS(rdt_group_send(group, RDT_SOURCE_ANY, 0, &byte, 1, NULL, &t, &err), RDT_EINVAL);
    CHECK_STATUS(rdt_group_send(group, 0, 0, NULL, 1, NULL, &t, &err), RDT_EINVAL);
    CHECK_STATUS(rdt_group_recv(group, 2, 0, &byte, 1, NULL, &t, &err), RDT_EINVAL);
    CHECK_STATUS(rdt_group_recv(group, 0, 0, &byte, 1, NULL, NULL, &err), RDT_EINVAL);
    CHECK_UINT_EQ(rdt_group_rank(group), 0);
    CHECK_UINT_EQ(rdt_group_size(group), 2);
    CHECK_PTR_EQ(rdt_group_context(group), rig.ctx[0]);
    CHECK_UINT_EQ(rdt_group_timeout(group), rig_patience_ns());
    rdt_group_set_timeout(group, 5);
    CHECK_UINT_EQ(rdt_group_timeout(group), 5);
    CHECK_UINT_EQ(rdt_group_next_sequence(group), 1);
    CHECK_UINT_EQ(rdt_group_next_sequence(group), 2);
    rdt_group_destroy(group);
    rdt_group_destroy(NULL);
    rig_close_context(rig.ctx[0]);
}

TEST(a_group_made_again_under_another_name)
{
    struct rig rig;
    struct rdt_error err = {0};

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    for (uint32_t round = 0; round < 20; round++) {
        char name[16];
        uint32_t got = 0;
        (void)snprintf(name, sizeof(name), "again %u", round);
        for (uint32_t i = 0; i < 2; i++) {
            rdt_group_destroy(rig.group[i]);
            rig.group[i] = rig_group(&rig, i, name);
        }
        rdt_transfer *recv = rig_recv(&rig, 1, 0, 1, &got, 4);
        rdt_transfer *send = rig_send(&rig, 0, 1, 1, &round, 4);
        CHECK_OK(rig_end(recv, &err), &err);
        CHECK_OK(rig_end(send, &err), &err);
        CHECK_UINT_EQ(got, round);
    }
    rig_close(&rig);
}

TEST(messages_wait_for_a_group_that_comes_later)
{
    struct rig rig;
    struct rdt_error err = {0};
    uint8_t *src = malloc(MEGABYTE);
    uint8_t *dst = malloc(MEGABYTE);
    const uint32_t small = 77;
    uint32_t got = 0;

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    rdt_group *early = rig_group(&rig, 0, "late");
    rdt_group *of_0 = rig.group[0];
    rig.group[0] = early;
    rig_fill(src, MEGABYTE, 3);
    rdt_transfer *eager = rig_send(&rig, 0, 1, 1, &small, 4);
    rdt_transfer *large = rig_send(&rig, 0, 1, 2, src, MEGABYTE);
    CHECK_OK(rig_end(eager, &err), &err);
    /* Rank 1's progress thread has taken both by now, or takes them later: the same to us. */
    test_sleep_ns(20000000);
    rdt_group *of_1 = rig.group[1];
    rig.group[1] = rig_group(&rig, 1, "late");
    rdt_transfer *recv_large = rig_recv(&rig, 1, 0, 2, dst, MEGABYTE);
    rdt_transfer *recv_small = rig_recv(&rig, 1, 0, 1, &got, 4);
    CHECK_OK(rig_end(recv_small, &err), &err);
    CHECK_OK(rig_end(recv_large, &err), &err);
    CHECK_OK(rig_end(large, &err), &err);
    CHECK_UINT_EQ(got, 77);
    CHECK_MEM_EQ(dst, src, MEGABYTE);
    rdt_group_destroy(of_0);
    rdt_group_destroy(of_1);
    rig_close(&rig);
    free(src);
    free(dst);
}

/* The path that one group opened outlives it where the other group's messages go over it. */
TEST(a_path_lives_as_long_as_any_group_that_uses_it)
{
    struct rig rig;
    struct rdt_error err = {0};
    uint32_t got = 0;
    const uint32_t value = 9;

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    rdt_group *sub[2];
    for (uint32_t i = 0; i < 2; i++) {
        sub[i] = rig_group(&rig, i, "sub");
        (void)rig_ready(sub[i], 1 - i);
    }
    rdt_transfer *recv = rig_recv(&rig, 0, 1, 1, &got, 4); /* rank 1 has not used "world" yet */
    CHECK_EVENTUALLY(rig_holds(rig.group[1], 0), 10);
    rdt_group_destroy(sub[0]);
    rdt_group_destroy(sub[1]);
    test_sleep_ns(50000000);
    CHECK_STATUS(rdt_transfer_test(recv, &err), RDT_EAGAIN);
    CHECK_OK(rig_end(rig_send(&rig, 1, 0, 1, &value, 4), &err), &err);
    CHECK_OK(rig_end(recv, &err), &err);
    CHECK_UINT_EQ(got, 9);
    rig_close(&rig);
}

TEST(interest_in_a_group_that_comes_later_keeps_the_path)
{
    struct rig rig;
    struct rdt_error err = {0};
    uint32_t got = 0;
    const uint32_t value = 9;
    rdt_group *late[2];

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    late[0] = rig_group(&rig, 0, "late");
    (void)rig_ready(late[0], 1);
    rdt_endpoint *ep = rig_ready(rig.group[1], 0);
    CHECK_EVENTUALLY(knows_interest(ep), 10);
    late[1] = rig_group(&rig, 1, "late");
    rdt_group_destroy(rig.group[1]); /* the last that opened the path at rank 1 */
    rdt_group_destroy(rig.group[0]);
    test_sleep_ns(50000000);
    rig.group[0] = late[0];
    rig.group[1] = late[1];
    rdt_transfer *recv = rig_recv(&rig, 0, 1, 1, &got, 4);
    CHECK_OK(rig_end(rig_send(&rig, 1, 0, 1, &value, 4), &err), &err);
    CHECK_OK(rig_end(recv, &err), &err);
    CHECK_UINT_EQ(got, 9);
    rig_close(&rig);
}

/* ---- Destroyed under load ------------------------------------------------------------------ */

/* Everything that can be in flight: each ends with RDT_ECANCELED here and with an error there,
 * and only after its buffers are let go of; the rig's close then finds nothing left. */
/* over budget: one scenario, told in its order. */
static void
destroy_under_load(uint32_t transport, bool is_bounced)
{
    struct rig rig;
    struct rdt_error err = {0};
    rdt_transfer *mine[6];
    rdt_transfer *theirs[2];
    uint8_t *buf = calloc(8, MEGABYTE);
    uint8_t *buf2 = calloc(8, MEGABYTE);

    rig_open(&rig, 2, transport);
    for (uint32_t i = 0; i < 2; i++) {
        rdt_endpoint *ep = rig_ready(rig.group[i], 1 - i);
        if (is_bounced)
            rdti_mailbox_of(ep)->process_reach = RDTI_REACH_NO;
    }
    theirs[0] = rig_send(&rig, 1, 0, 1, buf2, 8 * MEGABYTE); /* matched by mine[1] */
    theirs[1] = rig_recv(&rig, 1, 0, 5, buf2, MEGABYTE);     /* nothing comes */
    mine[0] = rig_recv(&rig, 0, 1, 7, buf, 10);              /* posted */
    mine[1] = rig_recv(&rig, 0, 1, 1, buf, 8 * MEGABYTE);    /* being read or granted */
    mine[2] = rig_send(&rig, 0, 1, 2, buf, 2 * MEGABYTE);    /* offered, nobody asks */
    mine[3] = rig_send(&rig, 0, 0, 3, buf, 10);              /* to ourselves */
    mine[4] = rig_recv(&rig, 0, RDT_SOURCE_ANY, 8, buf, 10);
    mine[5] = rig_recv(&rig, 0, 0, 9, buf, 10);
    rdt_group_destroy(rig.group[0]);
    rig.group[0] = NULL;
    for (int i = 0; i < 6; i++) {
        const rdt_status status = rig_end(mine[i], &err);
        if (i != 1 && i != 2) {
            CHECK_STATUS(status, RDT_ECANCELED);
            continue;
        }
        /* These two may have been over, or be ended by the path's own end. */
        CHECK_MSG(status == RDT_ECANCELED || status == RDT_ECLOSED || status == RDT_EPEER ||
                      status == RDT_OK,
                  "transfer %d: %s", i, rdt_status_name(status));
    }
    for (int i = 0; i < 2; i++) {
        const rdt_status status = rig_end(theirs[i], &err);
        CHECK_MSG(status == RDT_EPEER || status == RDT_ECANCELED || (i == 0 && status == RDT_OK),
                  "their %d: %s: %s", i, rdt_status_name(status), err.message);
    }
    rig_close(&rig);
    free(buf);
    free(buf2);
}

TEST(destroyed_under_load_over_shm)
{
    for (int i = 0; i < 5; i++)
        destroy_under_load(RDT_TRANSPORT_SHM, false);
}

TEST(destroyed_under_load_over_shm_with_the_bounce_buffer)
{
    for (int i = 0; i < 5; i++)
        destroy_under_load(RDT_TRANSPORT_SHM, true);
}

TEST(destroyed_under_load_over_tcp)
{
    for (int i = 0; i < 5; i++)
        destroy_under_load(RDT_TRANSPORT_TCP, false);
}

/* ---- Deaths: a member in a process of its own ----------------------------------------------- */

static void
put_address(int fd, const uint8_t *address, size_t len_bytes)
{
    CHECK(write(fd, &len_bytes, sizeof(len_bytes)) == (ssize_t)sizeof(len_bytes));
    CHECK(write(fd, address, len_bytes) == (ssize_t)len_bytes);
}

static size_t
get_address(int fd, uint8_t *address)
{
    size_t len_bytes;

    CHECK(read(fd, &len_bytes, sizeof(len_bytes)) == (ssize_t)sizeof(len_bytes));
    CHECK(len_bytes <= RDT_ADDRESS_MAX_BYTES);
    CHECK(read(fd, address, len_bytes) == (ssize_t)len_bytes);
    return len_bytes;
}

struct trio {
    uint8_t address[3][RDT_ADDRESS_MAX_BYTES];
    size_t address_bytes[3];
};

static rdt_status
trio_address(void *arg, uint32_t rank, uint64_t timeout_ns, uint8_t *buf, size_t cap,
             size_t *len_out, struct rdt_error *err)
{
    const struct trio *trio = arg;

    (void)timeout_ns;
    (void)err;
    CHECK(cap >= trio->address_bytes[rank]);
    memcpy(buf, trio->address[rank], trio->address_bytes[rank]);
    *len_out = trio->address_bytes[rank];
    return RDT_OK;
}

static const int32_t trio_global[3] = {10, 11, 12};

static rdt_group *
trio_group(rdt_context *ctx, uint32_t rank, struct trio *trio)
{
    struct rdt_error err = {0};
    rdt_group *group;
    const struct rdt_group_opts opts = {.struct_size = sizeof(opts),
                                        .rank = rank,
                                        .size = 3,
                                        .name = "trio",
                                        .job_id = "job",
                                        .global_ranks = trio_global,
                                        .address = trio_address,
                                        .address_arg = trio};

    CHECK_OK(rdt_group_create(ctx, &opts, &group, &err), &err);
    return group;
}

/* Rank 1 (global 11), in a process of its own. */
static rdt_group *
member_group(uint32_t transport, int from_parent, int to_parent)
{
    struct trio *trio = calloc(1, sizeof(*trio));
    struct rdt_error err = {0};
    rdt_context *ctx = rig_context(transport, 11);

    CHECK_OK(rdt_context_address(ctx, trio->address[1], RDT_ADDRESS_MAX_BYTES,
                                 &trio->address_bytes[1], &err),
             &err);
    put_address(to_parent, trio->address[1], trio->address_bytes[1]);
    trio->address_bytes[0] = get_address(from_parent, trio->address[0]);
    trio->address_bytes[2] = get_address(from_parent, trio->address[2]);
    return trio_group(ctx, 1, trio);
}

/* Lets rank 0 connect, offers it a message, and waits for its end. */
static void
run_victim(uint32_t transport, int from_parent, int to_parent)
{
    struct rdt_error err = {0};
    rdt_transfer *t;
    uint8_t *buf = malloc(8 * MEGABYTE);
    rdt_group *group = member_group(transport, from_parent, to_parent);

    CHECK_OK(rdt_group_send(group, 0, 1, buf, 8, NULL, &t, &err), &err);
    CHECK_OK(rdt_transfer_wait(t, rig_patience_ns(), &err), &err);
    CHECK_OK(rdt_group_send(group, 0, 2, buf, 8 * MEGABYTE, NULL, &t, &err), &err);
    for (;;) /* the message is never asked for */
        CHECK_STATUS(rdt_transfer_wait(t, rig_patience_ns(), &err), RDT_ETIMEDOUT);
}

static const uint64_t last_bytes[] = {8, 600, 1000};

/* Waits for a word, sends eager messages, and ends as soon as these are sent. */
static void
run_hasty(uint32_t transport, int from_parent, int to_parent)
{
    struct rdt_error err = {0};
    rdt_transfer *t;
    uint8_t *buf = malloc(MEGABYTE);
    rdt_group *group = member_group(transport, from_parent, to_parent);

    CHECK_OK(rdt_group_recv(group, 0, 9, buf, 8, NULL, &t, &err), &err);
    CHECK_OK(rdt_transfer_wait(t, rig_patience_ns(), &err), &err);
    for (uint64_t i = 0; i < 3; i++) {
        rig_fill(buf, last_bytes[i], i);
        CHECK_OK(rdt_group_send(group, 0, i, buf, last_bytes[i], NULL, &t, &err), &err);
        CHECK_OK(rdt_transfer_wait(t, rig_patience_ns(), &err), &err);
    }
}

/* Ranks 0 and 2 live here; rank 2 exchanges nothing with rank 1 at all. */
struct survivors {
    struct trio trio;
    pid_t victim;
    rdt_context *ctx[2];
    rdt_group *group[2];
    uint8_t *buf;
};

static void
survivors_make(struct survivors *here, uint32_t transport,
               void (*life)(uint32_t transport, int from_parent, int to_parent))
{
    struct rdt_error err = {0};
    struct trio *trio = &here->trio;
    int to[2];
    int from[2];

    memset(here, 0, sizeof(*here));
    CHECK(pipe(to) == 0 && pipe(from) == 0);
    here->victim = fork(); /* before any context of ours */
    CHECK(here->victim >= 0);
    if (here->victim == 0) {
        life(transport, to[0], from[1]);
        _exit(0);
    }
    here->buf = malloc(MEGABYTE);
    for (uint32_t i = 0; i < 2; i++) {
        here->ctx[i] = rig_context(transport, trio_global[2 * i]);
        CHECK_OK(rdt_context_address(here->ctx[i], trio->address[2 * i], RDT_ADDRESS_MAX_BYTES,
                                     &trio->address_bytes[2 * i], &err),
                 &err);
    }
    trio->address_bytes[1] = get_address(from[0], trio->address[1]);
    put_address(to[1], trio->address[0], trio->address_bytes[0]);
    put_address(to[1], trio->address[2], trio->address_bytes[2]);
    for (uint32_t i = 0; i < 2; i++)
        here->group[i] = trio_group(here->ctx[i], 2 * i, trio);
}

static void
check_named(rdt_status status, const struct rdt_error *err)
{
    CHECK_STATUS(status, RDT_EPEER);
    CHECK_STR_CONTAINS(err->message, "rank 1 (global rank 11) died: ");
    CHECK_INT_EQ(err->peer_rank, 11);
}

static void
kill_a_member(uint32_t transport)
{
    struct survivors *here = malloc(sizeof(*here));
    struct rdt_error err = {0};
    rdt_transfer *t[5];
    uint64_t word;

    survivors_make(here, transport, run_victim);
    rdt_group **group = here->group;
    uint8_t *buf = here->buf;
    CHECK_OK(rdt_group_recv(group[0], 1, 1, &word, 8, NULL, &t[0], &err), &err);
    CHECK_OK(rig_end(t[0], &err), &err);
    CHECK_OK(rdt_group_recv(group[0], 1, 9, buf, 8, NULL, &t[1], &err), &err);
    CHECK_OK(rdt_group_send(group[0], 1, 9, buf, MEGABYTE, NULL, &t[2], &err), &err);
    CHECK_OK(rdt_group_recv(group[0], 2, 9, buf, 8, NULL, &t[3], &err), &err);
    CHECK_OK(rdt_group_recv(group[1], 0, 9, buf, 8, NULL, &t[4], &err), &err);
    (void)rig_ready(group[0], 2); /* over it rank 2 learns */
    CHECK(kill(here->victim, SIGKILL) == 0);
    const uint64_t killed_ns = test_now_ns();
    for (int i = 1; i < 5; i++) { /* rank 2 has not even fetched rank 1's address */
        const rdt_status status = rig_end(t[i], &err);
        check_named(status, &err);
    }
    CHECK_MSG(test_now_ns() - killed_ns < rig_patience_ns() / 2, "it took %f s",
              (double)(test_now_ns() - killed_ns) * 1e-9);
    check_named(rdt_group_send(group[0], 2, 9, buf, 8, NULL, &t[0], &err), &err);
    rdt_group_abort(group[1], "a consequence"); /* does not hide the cause */
    for (int i = 0; i < 2; i++)
        check_named(rdt_group_error(group[i], &err), &err);
    for (int i = 0; i < 2; i++)
        rdt_group_destroy(group[i]);
    for (int i = 0; i < 2; i++)
        rig_close_context(here->ctx[i]);
    CHECK(waitpid(here->victim, NULL, 0) == here->victim);
    free(buf);
    free(here);
}

TEST(a_killed_member_is_named_to_everybody_over_shm)
{
    kill_a_member(RDT_TRANSPORT_SHM);
}

TEST(a_killed_member_is_named_to_everybody_over_tcp)
{
    kill_a_member(RDT_TRANSPORT_TCP);
}

static void
receives_last_words(uint32_t transport, bool is_late)
{
    struct survivors *here = malloc(sizeof(*here));
    struct rdt_error err = {0};
    uint8_t *expected = malloc(MEGABYTE);
    rdt_transfer *t[3];

    survivors_make(here, transport, run_hasty);
    for (uint64_t i = 0; i < 3 && !is_late; i++)
        CHECK_OK(rdt_group_recv(here->group[0], 1, i, here->buf + i * 65536, last_bytes[i], NULL,
                                &t[i], &err),
                 &err);
    CHECK_OK(rdt_group_send(here->group[0], 1, 9, here->buf, 8, NULL, NULL, &err), &err);
    CHECK(waitpid(here->victim, NULL, 0) == here->victim);
    CHECK_EVENTUALLY(rdt_group_error(here->group[0], NULL) != RDT_OK, 20);
    for (uint64_t i = 0; i < 3 && is_late; i++)
        CHECK_OK(rdt_group_recv(here->group[0], 1, i, here->buf + i * 65536, last_bytes[i], NULL,
                                &t[i], &err),
                 &err);
    for (uint64_t i = 0; i < 3; i++) {
        CHECK_OK(rig_end(t[i], &err), &err);
        rig_fill(expected, last_bytes[i], i);
        CHECK_MEM_EQ(here->buf + i * 65536, expected, last_bytes[i]);
    }
    check_named(rdt_group_recv(here->group[0], 1, 0, here->buf, 8, NULL, &t[0], &err), &err);
    for (int i = 0; i < 2; i++)
        rdt_group_destroy(here->group[i]);
    for (int i = 0; i < 2; i++)
        rig_close_context(here->ctx[i]);
    free(expected);
    free(here->buf);
    free(here);
}

TEST(what_a_dead_member_had_sent_is_received_over_shm)
{
    receives_last_words(RDT_TRANSPORT_SHM, false);
}

TEST(what_a_dead_member_had_sent_is_received_over_tcp)
{
    receives_last_words(RDT_TRANSPORT_TCP, false);
}

TEST(what_a_dead_member_had_sent_is_received_later_over_shm)
{
    receives_last_words(RDT_TRANSPORT_SHM, true);
}

TEST(what_a_dead_member_had_sent_is_received_later_over_tcp)
{
    receives_last_words(RDT_TRANSPORT_TCP, true);
}

TEST_MAIN()
