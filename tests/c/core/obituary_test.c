/* SPDX-License-Identifier: Apache-2.0
 * What a process remembers of others that died is bounded, whatever a peer tells. */
#include "endpoint/failures.h"
#include "harness.h"

#include "endpoint/endpoint_impl.h"
#include "group_rig.h"
#include "pair_rig.h"
#include "process/process.h"

enum { TOLD = 5000 };

static void
make_death(uint32_t number, struct rdti_death *out)
{
    *out = (struct rdti_death){.rank = (int32_t)number};
    memcpy(out->uuid, &number, sizeof(number));
    out->uuid[RDT_UUID_BYTES - 1] = 0xdd;
    (void)snprintf(out->reason, sizeof(out->reason), "rank %u died: so they say", number);
}

static void
tell_of(rdt_endpoint *ep, const struct rdti_death *death)
{
    uint8_t payload[RDTI_FRAME_PAYLOAD_MAX];

    rdti_engine_enter(ep->ctx->engine);
    rdti_channel_send(ep->channel, RDTI_FRAME_DEATH, payload, rdti_death_encode(death, payload),
                      NULL, 0);
    rdti_engine_leave(ep->ctx->engine);
}

static uint32_t
obituary_count(rdt_context *ctx)
{
    uint32_t count = 0;

    rdti_engine_enter(ctx->engine);
    for (const struct rdti_list *at = ctx->obituaries.next; at != &ctx->obituaries; at = at->next)
        count++;
    rdti_engine_leave(ctx->engine);
    return count;
}

static bool
knows(rdt_context *ctx, const uint8_t uuid[RDT_UUID_BYTES])
{
    rdti_engine_enter(ctx->engine);
    const bool is_known = rdti_context_find_obituary(ctx, uuid) != NULL;
    rdti_engine_leave(ctx->engine);
    return is_known;
}

static void
notify_and_wait(rdt_endpoint *from, rdt_endpoint *to)
{
    struct rdt_error err = {0};
    struct rdt_remote_region remote;
    rdt_transfer *t = NULL;
    rdt_region *region;
    uint32_t value = 0;

    CHECK_OK(rdt_region_alloc(to->ctx, 64, 0, &region, &err), &err);
    CHECK_OK(rdt_region_export(region, &remote, &err), &err);
    CHECK_OK(rdt_endpoint_write(from, "12345678", 8, &remote, 0, 5, &t, &err), &err);
    CHECK_OK(rdt_endpoint_wait_notify(to, 10 * RIG_S, &value, &err), &err);
    CHECK_OK(rdt_transfer_wait(t, 10 * RIG_S, &err), &err);
    rdt_transfer_free(t);
    rdt_region_free(region, NULL, NULL);
}

/* The frames are taken in order: once this one has arrived, all before it have. */
static void
tell_to_the_end(struct pair *pair)
{
    const uint64_t deadline_ns = test_now_ns() + 10 * RIG_S;
    struct rdti_death death;

    for (uint32_t i = 1; i <= TOLD; i++) {
        make_death(i, &death);
        tell_of(pair->ep[1], &death);
        while (i % 100 == 0 && obituary_count(pair->ctx[0]) < i && i <= 200) {
            CHECK(test_now_ns() < deadline_ns);
            test_sleep_ns(1000000);
        }
    }
    notify_and_wait(pair->ep[1], pair->ep[0]); /* over the lane, and the connection stands */
    test_sleep_ns(200000000);
}

TEST(news_of_the_dead_do_not_pile_up)
{
    struct pair pair;

    pair_open(&pair, RDT_TRANSPORT_TCP);
    tell_to_the_end(&pair);
    CHECK_UINT_GE(obituary_count(pair.ctx[0]),
                  200); /* processes that it never met may be told of */
    CHECK_UINT_LE(obituary_count(pair.ctx[0]), 256);
    notify_and_wait(pair.ep[0], pair.ep[1]);
    pair_close(&pair);
}

/* Nor do they crowd out what counts. */
TEST(a_peer_s_death_is_remembered_behind_any_number_of_others)
{
    struct rdt_error err = {0};
    struct pair pair;
    rdt_context *third;
    rdt_endpoint *to_third;
    rdt_endpoint *from_third;

    pair_open(&pair, RDT_TRANSPORT_TCP);
    context_make(&third, RDT_TRANSPORT_TCP, "secret", 2);
    endpoint_make(pair.ctx[0], third, 2, &to_third);
    endpoint_make(third, pair.ctx[0], 0, &from_third);
    CHECK_OK(rdt_endpoint_wait_ready(to_third, 10 * RIG_S, &err), &err);
    CHECK_OK(rdt_endpoint_wait_ready(from_third, 10 * RIG_S, &err), &err);
    tell_to_the_end(&pair);
    CHECK_UINT_LE(obituary_count(third), 256); /* nor are they passed on for ever */
    struct rdti_death death;
    make_death(2, &death);
    memcpy(death.uuid, third->uuid, sizeof(death.uuid));
    tell_of(pair.ep[1], &death);
    const uint64_t deadline_ns = test_now_ns() + 10 * RIG_S;
    while (!knows(pair.ctx[0], third->uuid)) {
        CHECK(test_now_ns() < deadline_ns);
        test_sleep_ns(1000000);
    }
    uint32_t value;
    CHECK_INT_EQ(rdt_endpoint_wait_notify(to_third, 10 * RIG_S, &value, &err), RDT_EPEER);
    rdt_endpoint_close(to_third);
    rdt_endpoint_close(from_third);
    CHECK_OK(rdt_context_close(third, &err), &err);
    pair_close(&pair);
}

static rdt_status
no_address(void *arg, uint32_t rank, uint64_t timeout_ns, uint8_t *buf, size_t cap, size_t *len_out,
           struct rdt_error *err)
{
    (void)arg;
    (void)rank;
    (void)timeout_ns;
    (void)buf;
    (void)cap;
    (void)len_out;
    (void)err;
    return RDT_ETIMEDOUT;
}

/* What was refused before does not count against them. */
TEST(ranks_that_come_later_make_room_for_more)
{
    const struct rdt_group_opts opts = {.struct_size = sizeof(opts),
                                        .size = 64,
                                        .name = "later",
                                        .job_id = "job",
                                        .address = no_address};
    struct rdt_error err = {0};
    struct rdti_death death;
    struct pair pair;
    rdt_group *group;

    pair_open(&pair, RDT_TRANSPORT_TCP);
    tell_to_the_end(&pair);
    const uint32_t before = obituary_count(pair.ctx[0]);
    CHECK_OK(rdt_group_create(pair.ctx[0], &opts, &group, &err), &err);
    for (uint32_t i = 0; i < 100; i++) {
        make_death(TOLD + 1 + i, &death);
        tell_of(pair.ep[1], &death);
    }
    const uint64_t deadline_ns = test_now_ns() + 10 * RIG_S;
    while (obituary_count(pair.ctx[0]) < before + opts.size) {
        CHECK(test_now_ns() < deadline_ns);
        test_sleep_ns(1000000);
    }
    notify_and_wait(pair.ep[1], pair.ep[0]); /* all have been heard */
    CHECK_UINT_EQ(obituary_count(pair.ctx[0]), before + opts.size);
    rdt_group_destroy(group);
    pair_close(&pair);
}

/* Whoever tells of a death may be faster than the last that the dead one sent, which has come. */
TEST(what_came_before_the_news_of_a_death_is_heard)
{
    static const uint32_t transports[] = {RDT_TRANSPORT_SHM, RDT_TRANSPORT_TCP};

    for (int i = 0; i < 2; i++) {
        struct rdti_obituary news = {.rank = 0};
        struct rdt_remote_region remote;
        struct rdt_error err = {0};
        struct pair pair;
        rdt_region *region;
        rdt_transfer *t;
        uint32_t value = 0;

        pair_open(&pair, transports[i]);
        CHECK_OK(rdt_region_alloc(pair.ctx[1], 64, RDT_REGION_ZERO, &region, &err), &err);
        CHECK_OK(rdt_region_export(region, &remote, &err), &err);
        memcpy(news.uuid, pair.ctx[0]->uuid, sizeof(news.uuid));
        (void)snprintf(news.reason, sizeof(news.reason), "rank 0 died: so rank 2 says");
        rdti_engine_enter(pair.ctx[1]->engine); /* deaf, until all of it is there */
        CHECK_OK(rdt_endpoint_write(pair.ep[0], "12345678", 8, &remote, 0, 5, &t, &err), &err);
        test_sleep_ns(50000000);
        rdti_context_announce_death(pair.ctx[1], &news, NULL);
        rdti_engine_leave(pair.ctx[1]->engine);
        CHECK_STATUS(rdt_endpoint_wait_notify(pair.ep[1], 10 * RIG_S, &value, &err), RDT_OK);
        CHECK_UINT_EQ(value, 5);
        CHECK_MEM_EQ(rdt_region_addr(region), "12345678", 8);
        CHECK_STATUS(rdt_endpoint_wait_notify(pair.ep[1], 10 * RIG_S, &value, &err), RDT_EPEER);
        CHECK_STR_CONTAINS(err.message, "rank 0 died: so rank 2 says");
        (void)rig_end(t, &err); /* its peer is gone, or has acknowledged it */
        rdt_region_free(region, NULL, NULL);
        pair_close(&pair);
    }
}

/* The same for a member of a group: its last message is received. */
TEST(a_message_that_came_before_the_news_of_a_death_is_received)
{
    static const uint32_t transports[] = {RDT_TRANSPORT_SHM, RDT_TRANSPORT_TCP};

    for (int i = 0; i < 2; i++) {
        struct rdti_obituary news = {.rank = 0};
        struct rdt_error err = {0};
        struct rig rig;
        const uint32_t value = 6;
        uint32_t got[2] = {0};

        rig_open(&rig, 2, transports[i]);
        (void)rig_ready(rig.group[1], 0);
        rdt_transfer *first = rig_recv(&rig, 1, 0, 1, &got[0], 4);
        rdt_transfer *second = rig_recv(&rig, 1, 0, 1, &got[1], 4);
        (void)rig_ready(rig.group[0], 1);
        memcpy(news.uuid, rig.ctx[0]->uuid, sizeof(news.uuid));
        (void)snprintf(news.reason, sizeof(news.reason), "rank 0 died: so rank 2 says");
        rdti_engine_enter(rig.ctx[1]->engine);
        rdt_transfer *sent = rig_send(&rig, 0, 1, 1, &value, 4);
        test_sleep_ns(50000000);
        rdti_context_announce_death(rig.ctx[1], &news, NULL);
        rdti_engine_leave(rig.ctx[1]->engine);
        CHECK_OK(rig_end(first, &err), &err);
        CHECK_UINT_EQ(got[0], 6);
        CHECK_STATUS(rig_end(second, &err), RDT_EPEER);
        CHECK_STR_CONTAINS(err.message, "rank 0 died: so rank 2 says");
        (void)rig_end(sent, &err);
        rig_close(&rig);
    }
}

TEST_MAIN()
