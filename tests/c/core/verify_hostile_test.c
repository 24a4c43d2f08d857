/* SPDX-License-Identifier: Apache-2.0
 * Sums that no honest peer sends: each is refused with RDT_EPROTO, and nothing outside of what was
 * exported is looked at. */
#include "base/crc32c.h"
#include "base/error.h"
#include "message/mailbox_impl.h"
#include "verify_rig.h"
#include "wire/notify.h"
#include "wire/endpoint/sums.h"

/* Rank 0's mailbox, with a ring of the test's own, as long as it believes, under the lock. */
struct prey {
    struct pair pair;
    struct rdti_engine *engine;
    struct rdti_mailbox *m;
    rdt_region *region;
    struct rdt_remote_region remote;
    uint8_t *ring;
};

#define REGION_BYTES 50000

static void
prey_make(struct prey *prey)
{
    open_pair(&prey->pair, RDT_TRANSPORT_SHM);
    export(prey->pair.ctx[0], REGION_BYTES, &prey->region, &prey->remote);
    prey->engine = prey->pair.ctx[0]->engine;
    prey->m = rdti_mailbox_of(prey->pair.ep[0]);
    CHECK(posix_memalign((void **)&prey->ring, 64, RDTI_RING_SMALL_BYTES) == 0);
    memset(prey->ring, 0, RDTI_RING_SMALL_BYTES);
    rdti_engine_enter(prey->engine);
    prey->m->rx = prey->ring;
}

static void
prey_free(struct prey *prey)
{
    struct rdt_error err = {0};

    (void)rdti_error_set(&err, RDT_EPROTO, 0, "end of the test");
    rdti_endpoint_fail(prey->m->ep, &err, true);
    rdti_engine_leave(prey->engine);
    rdt_region_free(prey->region, NULL, NULL);
    pair_close(&prey->pair);
    free(prey->ring);
}

/* A message at the start of the ring. */
static rdt_status
feed(struct prey *prey, enum rdti_message_kind kind, uint64_t id, uint64_t count, const void *body,
     size_t body_bytes, struct rdt_error *err)
{
    const struct rdti_message head = {.kind = (uint8_t)kind,
                                      .id = id,
                                      .count = count,
                                      .consumed = prey->m->tx_consumed,
                                      .delivered = prey->m->eager_delivered};

    *err = (struct rdt_error){.peer_rank = RDT_RANK_UNKNOWN};
    prey->m->rx_pos = 0;
    rdti_message_encode(&head, prey->ring);
    memcpy(prey->ring + RDTI_MESSAGE_HEAD_BYTES, body, body_bytes);
    return rdti_mailbox_on_message(prey->m, err);
}

static rdt_status
feed_sums(struct prey *prey, enum rdti_message_kind kind, uint64_t id, const struct rdti_sums *sums,
          struct rdt_error *err)
{
    uint8_t body[RDTI_SUMS_BYTES_MAX];
    const size_t body_bytes = rdti_sums_encode(sums, body);

    return feed(prey, kind, id, sums->count, body, body_bytes, err);
}

static struct rdti_sums
sums_of(const struct prey *prey, uint64_t off_bytes, uint64_t len_bytes)
{
    struct rdti_sums sums = {.off_bytes = off_bytes,
                             .len_bytes = len_bytes,
                             .index = prey->remote.index,
                             .generation = prey->remote.generation,
                             .notification = RDTI_NOTIFY_NONE,
                             .count = (uint32_t)rdti_sum_count(len_bytes)};

    rdti_crc32c_chunks((const uint8_t *)rdt_region_addr(prey->region),
                       len_bytes < REGION_BYTES ? len_bytes : REGION_BYTES, sums.sums);
    return sums;
}

static void
check_refused(rdt_status status, const struct rdt_error *err, const char *words)
{
    CHECK_INT_EQ(status, RDT_EPROTO);
    CHECK_STR_CONTAINS(err->message, words);
}

TEST(sums_of_what_was_not_exported_are_refused)
{
    struct prey prey;
    struct rdt_error err;
    struct rdti_sums sums;

    prey_make(&prey);
    sums = sums_of(&prey, 0, REGION_BYTES); /* what is right passes */
    CHECK_OK(feed_sums(&prey, RDTI_MESSAGE_WRITTEN, 0, &sums, &err), &err);
    sums = sums_of(&prey, 1, REGION_BYTES);
    check_refused(feed_sums(&prey, RDTI_MESSAGE_WRITTEN, 0, &sums, &err), &err, "outside of our");
    sums = sums_of(&prey, UINT64_MAX - 100, 100);
    check_refused(feed_sums(&prey, RDTI_MESSAGE_WRITTEN, 0, &sums, &err), &err, "outside of our");
    sums = sums_of(&prey, 0, 100);
    sums.index = 12345;
    check_refused(feed_sums(&prey, RDTI_MESSAGE_WRITTEN, 0, &sums, &err), &err, "outside of our");
    sums = sums_of(&prey, 0, 100);
    sums.sums[0] ^= 1;
    CHECK_INT_EQ(feed_sums(&prey, RDTI_MESSAGE_WRITTEN, 0, &sums, &err), RDT_ECORRUPT);
    sums = sums_of(&prey, 0, 100);
    sums.generation++; /* it may have been true a moment ago */
    CHECK_OK(feed_sums(&prey, RDTI_MESSAGE_WRITTEN, 0, &sums, &err), &err);
    prey_free(&prey);
}

TEST(notifications_that_sums_may_not_carry_are_refused)
{
    static const uint32_t words[] = {RDTI_NOTIFY_MESSAGE, RDTI_NOTIFY_PROBE, 0xfff80000,
                                     RDTI_NOTIFY_RESTOCKED | 1, 0xfff12345};
    struct prey prey;
    struct rdt_error err;

    prey_make(&prey);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        struct rdti_sums sums = sums_of(&prey, 0, 100);
        sums.notification = words[i];
        check_refused(feed_sums(&prey, RDTI_MESSAGE_WRITTEN, 0, &sums, &err), &err,
                      "sums with the notification");
        sums = sums_of(&prey, 0, 0);
        sums.notification = words[i];
        check_refused(feed_sums(&prey, RDTI_MESSAGE_WRITTEN, 0, &sums, &err), &err,
                      "sums with the notification");
    }
    /* A user's, and nothing that was summed: past the comparison. */
    rdti_endpoint_on_notify(prey.pair.ep[0], rdti_notify_user(5));
    CHECK_INT_EQ(rdti_endpoint_get_state(prey.pair.ep[0]), RDTI_EP_FAILED);
    prey_free(&prey);
}

TEST(questions_and_answers_that_nobody_may_give_are_refused)
{
    struct prey prey;
    struct rdt_error err;
    struct rdti_sums_get get;
    uint8_t body[RDTI_SUMS_GET_BYTES];

    prey_make(&prey);
    get = (struct rdti_sums_get){.off_bytes = REGION_BYTES - 1,
                                 .len_bytes = 2,
                                 .index = prey.remote.index,
                                 .generation = prey.remote.generation};
    rdti_sums_get_encode(&get, body);
    check_refused(feed(&prey, RDTI_MESSAGE_SUMS_GET, 1, 0, body, sizeof(body), &err), &err,
                  "asks for sums outside");
    get.off_bytes = 0;
    get.index = 4000;
    rdti_sums_get_encode(&get, body);
    check_refused(feed(&prey, RDTI_MESSAGE_SUMS_GET, 1, 0, body, sizeof(body), &err), &err,
                  "asks for sums outside");
    const struct rdti_sums sums = sums_of(&prey, 0, 100);
    check_refused(feed_sums(&prey, RDTI_MESSAGE_SUMS_READ, 77, &sums, &err), &err,
                  "were not requested");
    prey_free(&prey);
}

/* Our answers wait for room in its ring, which it never gives. */
TEST(a_peer_that_asks_and_never_takes_is_ended)
{
    struct prey prey;
    struct rdt_error err;
    uint8_t body[RDTI_SUMS_GET_BYTES];
    rdt_status status = RDT_OK;
    uint32_t asked = 0;

    prey_make(&prey);
    const struct rdti_sums_get get = {.len_bytes = 1,
                                      .index = prey.remote.index,
                                      .generation = prey.remote.generation};
    rdti_sums_get_encode(&get, body);
    while (status == RDT_OK && asked < 2 * RDTI_ANSWERS_MAX) {
        status = feed(&prey, RDTI_MESSAGE_SUMS_GET, asked, 0, body, sizeof(body), &err);
        asked++;
    }
    check_refused(status, &err, "asks for sums, and takes none of the 65536 answers");
    CHECK_UINT_GE(asked, RDTI_ANSWERS_MAX);
    prey_free(&prey);
}

/* However many, as long as it takes them. */
TEST(a_peer_that_takes_may_ask_for_ever)
{
    struct prey prey;
    struct rdt_error err;
    uint8_t body[RDTI_SUMS_GET_BYTES];

    prey_make(&prey);
    const struct rdti_sums_get get = {.len_bytes = 1,
                                      .index = prey.remote.index,
                                      .generation = prey.remote.generation};
    rdti_sums_get_encode(&get, body);
    for (uint32_t i = 0; i < 2 * RDTI_ANSWERS_MAX; i++) {
        prey.m->tx_consumed = prey.m->tx_sent;
        CHECK_OK(feed(&prey, RDTI_MESSAGE_SUMS_GET, i, 0, body, sizeof(body), &err), &err);
    }
    CHECK_UINT_EQ(prey.m->answer_count, 0);
    prey_free(&prey);
}

TEST(sums_of_messages_come_in_order_and_before_their_offer)
{
    struct prey prey;
    struct rdt_error err;
    const struct rdti_rts rts = {.has_process = 1, .pid = 1};
    uint8_t body[RDTI_RTS_BYTES];

    prey_make(&prey);
    struct rdti_sums sums = sums_of(&prey, RDT_SUM_CHUNK_BYTES, 100); /* not its beginning */
    check_refused(feed_sums(&prey, RDTI_MESSAGE_SUMS, 5, &sums, &err), &err, "out of order");
    sums.off_bytes = 0;
    sums.len_bytes = RDT_SUM_CHUNK_BYTES;
    CHECK_OK(feed_sums(&prey, RDTI_MESSAGE_SUMS, 5, &sums, &err), &err);
    sums.off_bytes = RDT_SUM_CHUNK_BYTES;
    check_refused(feed_sums(&prey, RDTI_MESSAGE_SUMS, 6, &sums, &err), &err, "out of order");
    sums.off_bytes = 2 * RDT_SUM_CHUNK_BYTES;
    check_refused(feed_sums(&prey, RDTI_MESSAGE_SUMS, 5, &sums, &err), &err, "out of order");
    /* An offer of another length than was summed, and one of another message. */
    for (uint64_t id = 5; id < 7; id++) {
        const struct rdti_message head = {.kind = RDTI_MESSAGE_RTS,
                                          .source = 1,
                                          .group_id = 9,
                                          .id = id,
                                          .len_bytes = RDT_SUM_CHUNK_BYTES + (id == 5 ? 1 : 0),
                                          .consumed = prey.m->tx_consumed,
                                          .delivered = prey.m->eager_delivered};
        rdti_rts_encode(&rts, body);
        prey.m->rx_pos = 0;
        rdti_message_encode(&head, prey.ring);
        memcpy(prey.ring + RDTI_MESSAGE_HEAD_BYTES, body, sizeof(body));
        check_refused(rdti_mailbox_on_message(prey.m, &err), &err, "without its sums");
    }
    prey_free(&prey);
}

TEST_MAIN()
