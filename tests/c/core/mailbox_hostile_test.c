/* SPDX-License-Identifier: Apache-2.0
 * Bytes in our ring that no honest peer writes: each is refused with RDT_EPROTO or changes
 * nothing, and none is read or written outside of what it names. */
#include "core/prey_rig.h"
#include "message/persistent.h"
#include "message/request_impl.h"
#include "wire/notify.h"
#include "rdmatensor_ext.h"

TEST(lies_about_lengths_and_members)
{
    struct prey prey;
    struct rdti_message head;
    const uint64_t lengths[] = {RDTI_RING_SMALL_BYTES - RDTI_MESSAGE_HEAD_BYTES + 1,
                                RDTI_RING_SMALL_BYTES, UINT32_MAX, UINT64_MAX - 62, UINT64_MAX};

    prey_make(&prey);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        head = plain(&prey, RDTI_MESSAGE_EAGER);
        head.len_bytes = lengths[i];
        REFUSED(&head, NULL, 0, "leaves the ring");
    }
    head = plain(&prey, RDTI_MESSAGE_EAGER);
    head.source = 2;
    REFUSED(&head, NULL, 0, "cannot be it");
    head.source = 0;
    REFUSED(&head, NULL, 0, "cannot be it");
    head.source = UINT16_MAX;
    REFUSED(&head, NULL, 0, "cannot be it");
    head = plain(&prey, 0);
    REFUSED(&head, NULL, 0, "unknown kind");
    head = plain(&prey, RDTI_MESSAGE_POSTED + 1);
    REFUSED(&head, NULL, 0, "unknown kind");
    for (uint8_t kind = RDTI_MESSAGE_SUMS; kind <= RDTI_MESSAGE_SUMS_READ; kind++) {
        head = plain(&prey, kind);
        REFUSED(&head, NULL, 0, "sums that were not requested");
        head.count = UINT64_MAX / 4;
        REFUSED(&head, NULL, 0,
                kind == RDTI_MESSAGE_SUMS_GET ? "sums that were not requested" : "leaves the ring");
    }
    prey_free(&prey);
}

TEST(lies_about_credit)
{
    struct prey prey;
    struct rdti_message head;

    prey_make(&prey);
    head = plain(&prey, RDTI_MESSAGE_CREDIT);
    head.consumed = prey.m->tx_sent + 1;
    REFUSED(&head, NULL, 0, "took more out of its ring");
    head.consumed = prey.m->tx_consumed - 1;
    REFUSED(&head, NULL, 0, "took more out of its ring");
    head = plain(&prey, RDTI_MESSAGE_CREDIT);
    head.delivered = prey.m->eager_sent + 1;
    REFUSED(&head, NULL, 0, "received more than was sent");
    prey_free(&prey);
}

TEST(floods)
{
    struct prey prey;
    struct rdti_message head;
    struct rdt_error err;
    uint8_t body[2048] = {0};
    rdt_status status = RDT_OK;

    prey_make(&prey);
    head = plain(&prey, RDTI_MESSAGE_EAGER);
    head.len_bytes = sizeof(body);
    head.group_id = 4711; /* of a group that never comes */
    for (uint32_t i = 0; i < 2 * RDTI_UNEXPECTED_MAX_BYTES / sizeof(body) && status == RDT_OK; i++)
        status = feed(&prey, &head, body, sizeof(body), &err);
    CHECK_STATUS(status, RDT_EPROTO);
    CHECK_STR_CONTAINS(err.message, "are not received");
    prey.m->offer_count = RDTI_OFFERS_MAX;
    const struct rdti_rts rts = {0};
    rdti_rts_encode(&rts, body);
    head = plain(&prey, RDTI_MESSAGE_RTS);
    head.len_bytes = 1 << 20;
    REFUSED(&head, body, RDTI_RTS_BYTES, "more messages than can wait");
    prey.m->offer_count = 0;
    prey_free(&prey);
}

TEST(rings_that_nobody_asked_for)
{
    struct prey prey;
    struct rdti_message head;
    struct rdt_remote_region region = {.len_bytes = RDTI_RING_LARGE_BYTES,
                                       .segment = 0,
                                       .index = 1,
                                       .generation = 1};
    uint8_t body[RDT_REMOTE_REGION_BYTES];

    prey_make(&prey);
    head = plain(&prey, RDTI_MESSAGE_SWITCH);
    REFUSED(&head, NULL, 0, "was not given");
    head = plain(&prey, RDTI_MESSAGE_RING);
    memset(body, 0xff, sizeof(body));
    REFUSED(&head, body, sizeof(body), "in bytes that are none");
    memcpy(region.owner, rdti_endpoint_uuid(prey.m->ep), RDT_UUID_BYTES);
    rdt_remote_region_encode(&region, body);
    REFUSED(&head, body, sizeof(body), "was not requested");
    prey.m->has_asked_growth = true;
    region.len_bytes = RDTI_RING_LARGE_BYTES - 1;
    rdt_remote_region_encode(&region, body);
    REFUSED(&head, body, sizeof(body), "not its own or too small");
    region.len_bytes = RDTI_RING_LARGE_BYTES;
    region.owner[0] ^= 1;
    rdt_remote_region_encode(&region, body);
    REFUSED(&head, body, sizeof(body), "not its own or too small");
    head = plain(&prey, RDTI_MESSAGE_GROW);
    IGNORED(&head, NULL, 0);
    REFUSED(&head, NULL, 0, "a second large ring");
    head = plain(&prey, RDTI_MESSAGE_PAD);
    memset(prey.ring, 0, RDTI_RING_SMALL_BYTES);
    REFUSED(&head, NULL, 0, "padding");
    prey_free(&prey);
}

TEST(answers_to_nothing_and_places_that_are_none)
{
    struct prey prey;
    struct rdti_message head;
    struct rdti_place place = {
        .region = {.len_bytes = 4096, .segment = 0, .index = 3, .generation = 99}};
    uint8_t body[RDTI_NACK_BYTES] = {0};

    prey_make(&prey);
    const uint64_t id = RDTI_CONTAINER(prey.m->offered.next, struct rdti_request, link)->id;
    for (uint64_t tag = 0; tag < 3; tag++) {
        head = plain(&prey, RDTI_MESSAGE_FIN);
        head.tag = tag;
        head.id = id ^ (UINT64_C(1) << 32); /* another generation */
        IGNORED(&head, NULL, 0);
        head.id = UINT64_MAX;
        IGNORED(&head, NULL, 0);
        head = plain(&prey, RDTI_MESSAGE_NACK);
        head.tag = tag;
        head.id = UINT64_MAX;
        head.len_bytes = (uint64_t)(int64_t)RDT_EPEER;
        IGNORED(&head, body, sizeof(body));
    }
    const int64_t statuses[] = {0, 1, RDT_ECORRUPT - 1, INT64_MIN, INT64_MAX};
    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        head = plain(&prey, RDTI_MESSAGE_NACK);
        head.len_bytes = (uint64_t)statuses[i];
        REFUSED(&head, body, sizeof(body), "a status or a rank that is none");
    }
    head.len_bytes = (uint64_t)(int64_t)RDT_EPEER;
    body[0] = 0x1b;
    REFUSED(&head, body, sizeof(body), "not plain text");
    head = plain(&prey, RDTI_MESSAGE_CTS);
    head.id = id;
    rdti_place_encode(&place, body);
    REFUSED(&head, body, RDTI_PLACE_BYTES, "empty or not its own");
    memcpy(place.region.owner, rdti_endpoint_uuid(prey.m->ep), RDT_UUID_BYTES);
    place.off_bytes = 4096;
    rdti_place_encode(&place, body);
    REFUSED(&head, body, RDTI_PLACE_BYTES, "empty or not its own");
    memset(body, 0xff, sizeof(body));
    struct rdt_error err;
    CHECK_STATUS(feed(&prey, &head, body, RDTI_PLACE_BYTES, &err), RDT_EPROTO);
    CHECK_STATUS(rdt_transfer_test(prey.offered, NULL), RDT_EAGAIN); /* none of that touched it */
    /* A freed place: the send ends, and says why. */
    place.off_bytes = 0;
    rdti_place_encode(&place, body);
    IGNORED(&head, body, RDTI_PLACE_BYTES);
    CHECK(rdt_transfer_test(prey.offered, &err) < RDT_OK);
    prey_free(&prey);
}

/* What a peer may say of receives of its own that stand. */
TEST(places_and_receives_that_are_none)
{
    struct prey prey;
    struct rdti_message head;
    struct rdti_place place = {
        .region = {.len_bytes = LARGE_BYTES, .segment = 0, .index = 3, .generation = 99}};
    uint8_t body[RDTI_PLACE_BYTES];
    struct rdt_error err;

    prey_make(&prey);
    head = plain(&prey, RDTI_MESSAGE_STAND);
    head.id = 5;
    head.count = 1;
    IGNORED(&head, NULL, 0);
    REFUSED(&head, NULL, 0, "stand already");
    head.id = 6;
    REFUSED(&head, NULL, 0, "stand already");
    head.id = RDTI_STREAM_ID_MAX + 1;
    REFUSED(&head, NULL, 0, "in a way that is none");
    rdt_transfer *waiting = rig_send(&prey.rig, 0, 1, 77, prey.large, LARGE_BYTES);
    head = plain(&prey, RDTI_MESSAGE_PLACE);
    head.id = 5;
    head.len_bytes = LARGE_BYTES;
    rdti_place_encode(&place, body);
    REFUSED(&head, body, sizeof(body), "empty or not its own");
    memcpy(place.region.owner, rdti_endpoint_uuid(prey.m->ep), RDT_UUID_BYTES);
    rdti_place_encode(&place, body);
    const uint64_t lengths[] = {0, LARGE_BYTES + 1, UINT64_MAX};
    for (size_t i = 0; i < 3; i++) {
        head.len_bytes = lengths[i];
        REFUSED(&head, body, sizeof(body), "empty or not its own");
    }
    head.len_bytes = LARGE_BYTES;
    head.count = 1;
    REFUSED(&head, body, sizeof(body), "out of order");
    head.count = 0;
    IGNORED(&head, body, sizeof(body));
    REFUSED(&head, body, sizeof(body), "out of order");
    head.id = 4; /* nobody's: it may have ended here */
    IGNORED(&head, body, sizeof(body));
    head = plain(&prey, RDTI_MESSAGE_POSTED);
    head.id = 4;
    IGNORED(&head, NULL, 0);
    head.id = 5;
    head.len_bytes = 1;
    REFUSED(&head, NULL, 0, "did not tell");
    head.len_bytes = RDTI_PLACE_NONE - 1;
    REFUSED(&head, NULL, 0, "did not tell");
    head.count = UINT64_MAX;
    head.len_bytes = 0;
    REFUSED(&head, NULL, 0, "twice");
    CHECK_STATUS(rdt_transfer_test(waiting, NULL), RDT_EAGAIN); /* none of that touched it */
    head.count = 0; /* a place that was freed: the send ends, and says why */
    IGNORED(&head, NULL, 0);
    CHECK(rdt_transfer_test(waiting, &err) < RDT_OK);
    rdt_transfer_free(waiting);
    prey_free(&prey);
}

TEST(receives_without_end)
{
    struct prey prey;
    struct rdti_message head;

    prey_make(&prey);
    head = plain(&prey, RDTI_MESSAGE_STAND);
    head.count = 1;
    for (uint64_t i = 0; i < RDTI_STREAMS_MAX; i++) {
        head.id = head.tag = 100 + i;
        IGNORED(&head, NULL, 0);
    }
    head.id = head.tag = 99;
    REFUSED(&head, NULL, 0, "more receives stand than it may");
    head = plain(&prey, RDTI_MESSAGE_POSTED);
    head.id = 100;
    head.len_bytes = RDTI_PLACE_NONE;
    for (head.count = 0; head.count < RDTI_TOLD_MAX; head.count++)
        IGNORED(&head, NULL, 0);
    REFUSED(&head, NULL, 0, "more receives than can wait");
    head = plain(&prey, RDTI_MESSAGE_STAND); /* of 0: it makes room */
    head.id = 100;
    IGNORED(&head, NULL, 0);
    IGNORED(&head, NULL, 0);
    head.id = head.tag = 99;
    head.count = 1;
    IGNORED(&head, NULL, 0);
    prey_free(&prey);
}

/* Each is answered, and the peer takes none. */
TEST_TIMEOUT(receives_that_stand_no_more_without_end, 60)
{
    struct prey prey;
    struct rdt_error err;
    rdt_status status = RDT_OK;

    prey_make(&prey);
    struct rdti_message head = plain(&prey, RDTI_MESSAGE_STAND);
    for (head.id = 1; head.id < 2 * RDTI_ANSWERS_MAX && status == RDT_OK; head.id++)
        status = feed(&prey, &head, NULL, 0, &err);
    CHECK_STATUS(status, RDT_EPROTO);
    CHECK_STR_CONTAINS(err.message, "takes no answer");
    prey_free(&prey);
}

/* What a peer may say that it wrote. */
TEST(messages_that_landed_nowhere)
{
    struct prey prey;
    struct rdti_message head;
    struct rdt_error err = {0};
    rdt_region *region;
    rdt_transfer *recv[2];

    prey_make(&prey);
    CHECK_OK(rdt_region_alloc(prey.rig.ctx[0], LARGE_BYTES, 0, &region, &err), &err);
    for (int i = 0; i < 2; i++) /* the second one repeats, and asks */
        recv[i] = rig_recv(&prey.rig, 0, 1, 77, rdt_region_addr(region), LARGE_BYTES);
    LANDS(1, 0, RDT_EPROTO);
    head = plain(&prey, RDTI_MESSAGE_STOOD);
    head.count = 1;
    head.id = 9;
    IGNORED(&head, NULL, 0);
    head.id = 1;
    IGNORED(&head, NULL, 0);
    IGNORED(&head, NULL, 0);
    LANDS(1, 1, RDT_EPROTO);
    LANDS(2, 0, RDT_EPROTO);
    CHECK_STATUS(rdt_transfer_test(recv[0], NULL), RDT_EAGAIN);
    LANDS(1, 0, RDT_OK); /* both wait in it: the first has its message first */
    CHECK_OK(rdt_transfer_test(recv[0], &err), &err);
    CHECK_STATUS(rdt_transfer_test(recv[1], NULL), RDT_EAGAIN);
    head = plain(&prey, RDTI_MESSAGE_STOOD);
    head.id = 1;
    IGNORED(&head, NULL, 0);
    LANDS(1, 0, RDT_EPROTO);
    CHECK_STATUS(rdt_transfer_test(recv[1], NULL), RDT_EAGAIN);
    prey_free_and(&prey, recv, 2, region);
}

/* The same of receives under tags that are used once. */
TEST(receives_of_tags_that_are_none)
{
    struct prey prey;
    struct rdti_place place = {
        .region = {.len_bytes = LARGE_BYTES, .segment = 0, .index = 3, .generation = 99}};
    uint8_t body[RDTI_PLACE_BYTES];

    prey_make(&prey);
    struct rdti_message head = plain(&prey, RDTI_MESSAGE_STAND);
    head.id = 5;
    head.count = 3;
    head.tag = RDT_TAG_ONCE;
    head.len_bytes = RDTI_KEYED_MIN_BYTES;
    REFUSED(&head, NULL, 0, "in a way that is none");
    head.count = 2;
    head.len_bytes--; /* such are sent eagerly, and wait for nobody */
    REFUSED(&head, NULL, 0, "in a way that is none");
    head.len_bytes++;
    head.tag++;
    REFUSED(&head, NULL, 0, "in a way that is none");
    head.tag--;
    IGNORED(&head, NULL, 0);
    head.id = 6;
    REFUSED(&head, NULL, 0, "stand already");
    head = plain(&prey, RDTI_MESSAGE_PLACE);
    head.id = 5;
    head.len_bytes = LARGE_BYTES;
    memcpy(place.region.owner, rdti_endpoint_uuid(prey.m->ep), RDT_UUID_BYTES);
    rdti_place_encode(&place, body);
    IGNORED(&head, body, sizeof(body));
    IGNORED(&head, body, sizeof(body)); /* again: nothing waits for it */
    head.count = 2;
    REFUSED(&head, body, sizeof(body), "out of order");
    struct rdti_message posted = plain(&prey, RDTI_MESSAGE_POSTED);
    posted.id = 5;
    posted.count = 4711;
    REFUSED(&posted, NULL, 0, "a tag that is none");
    posted.count = RDT_TAG_ONCE | UINT64_C(1) << 62;
    REFUSED(&posted, NULL, 0, "a tag that is none");
    posted.count = RDT_TAG_ONCE | 1;
    posted.len_bytes = 1;
    REFUSED(&posted, NULL, 0, "did not tell");
    posted.len_bytes = 0;
    IGNORED(&posted, NULL, 0);
    REFUSED(&posted, NULL, 0, "twice");
    head.count = 0;
    REFUSED(&head, body, sizeof(body), "announces a place again");
    posted.len_bytes = RDTI_PLACE_NONE;
    for (uint32_t i = 1; i < RDTI_TOLD_MAX; i++) {
        posted.count++;
        IGNORED(&posted, NULL, 0);
    }
    posted.count++;
    REFUSED(&posted, NULL, 0, "more receives than can wait");
    prey_free(&prey);
}

TEST(messages_under_tags_that_landed_nowhere)
{
    const struct rdt_message_desc desc = {.op = RDT_COLL_ALLREDUCE,
                                          .dtype = RDT_U8,
                                          .count = LARGE_BYTES};
    struct prey prey;
    struct rdt_error err = {0};
    rdt_region *region;
    rdt_transfer *recv[2];

    prey_make_over(&prey, RDT_TRANSPORT_TCP);
    CHECK_OK(rdt_region_alloc(prey.rig.ctx[0], 2 * LARGE_BYTES, 0, &region, &err), &err);
    for (uint64_t i = 0; i < 2; i++)
        CHECK_OK(rdt_group_recv(prey.rig.group[0], 1, RDT_TAG_ONCE + i,
                                (uint8_t *)rdt_region_addr(region) + i * LARGE_BYTES, LARGE_BYTES,
                                &desc, &recv[i], &err),
                 &err);
    LANDS(1, 0, RDT_EPROTO);
    struct rdti_message stood = plain(&prey, RDTI_MESSAGE_STOOD);
    stood.count = 1;
    stood.id = 1;
    IGNORED(&stood, NULL, 0);
    LANDS(1, 2, RDT_EPROTO);
    LANDS(2, 0, RDT_EPROTO);
    LANDS(1, 1, RDT_OK);
    CHECK_OK(rdt_transfer_test(recv[1], &err), &err);
    LANDS(1, 1, RDT_EPROTO);
    CHECK_STATUS(rdt_transfer_test(recv[0], NULL), RDT_EAGAIN);
    prey_free_and(&prey, recv, 2, region);
}

TEST(a_refusal_that_tells_of_a_death_blames_the_dead)
{
    const char text[RDTI_NACK_BYTES] = "rank 7 died: its cable was cut";
    struct prey prey;
    struct rdt_error err = {0};

    prey_make(&prey);
    struct rdti_message head = plain(&prey, RDTI_MESSAGE_NACK);
    head.id = RDTI_CONTAINER(prey.m->offered.next, struct rdti_request, link)->id;
    head.tag = RDTI_ID_IS_YOURS;
    head.len_bytes = (uint64_t)(int64_t)RDT_EPEER;
    head.count = 7;
    IGNORED(&head, text, sizeof(text));
    CHECK_STATUS(rdt_transfer_test(prey.offered, &err), RDT_EPEER);
    rdt_group_abort(prey.rig.group[0], "it met a refusal");
    CHECK_STATUS(rdt_group_error(prey.rig.group[0], &err), RDT_EPEER);
    CHECK_STR_EQ(err.message, text);
    CHECK_INT_EQ(err.peer_rank, 7);
    prey_free(&prey);
}

TEST(offers_of_memory_that_is_not_theirs)
{
    struct prey prey;
    struct rdti_message head;
    struct rdti_rts rts = {
        .has_region = 1,
        .place = {.region = {.len_bytes = 4096, .segment = 0, .index = 1, .generation = 1}}};
    uint8_t body[RDTI_RTS_BYTES];

    prey_make(&prey);
    head = plain(&prey, RDTI_MESSAGE_RTS);
    head.len_bytes = 4096;
    memset(body, 0xff, sizeof(body));
    struct rdt_error err;
    CHECK_STATUS(feed(&prey, &head, body, sizeof(body), &err), RDT_EPROTO);
    rdti_rts_encode(&rts, body);
    REFUSED(&head, body, sizeof(body), "outside of its own memory"); /* another owner */
    memcpy(rts.place.region.owner, rdti_endpoint_uuid(prey.m->ep), RDT_UUID_BYTES);
    rts.place.off_bytes = 1;
    rdti_rts_encode(&rts, body);
    REFUSED(&head, body, sizeof(body), "outside of its own memory");
    head.len_bytes = UINT64_MAX;
    REFUSED(&head, body, sizeof(body), "outside of its own memory");
    /* A process that is not the peer: pid 1, or ours with a canary that is not there. The
     * receive is granted a place. */
    rts = (struct rdti_rts){.has_process = 1,
                            .pid = (uint32_t)getpid(),
                            .addr = 16,
                            .canary_addr = (uintptr_t)&prey,
                            .canary = 0x1234};
    rdti_rts_encode(&rts, body);
    head = plain(&prey, RDTI_MESSAGE_RTS);
    head.tag = 1;
    head.len_bytes = ROOM_BYTES;
    IGNORED(&head, body, sizeof(body));
    CHECK_STATUS(rdt_transfer_test(prey.posted, NULL), RDT_EAGAIN);
    CHECK_INT_EQ(prey.m->process_reach, RDTI_REACH_NO);
    prey_free(&prey);
}

static uint64_t
next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* Heads that are nearly right: each field is honest, on an edge, or random. */
static void
random_head(struct prey *prey, uint64_t *state, struct rdti_message *head)
{
    const uint64_t edges[] = {0, 1, 8, 9, 64, 4032, 4096, UINT32_MAX, UINT64_MAX};

    *head = plain(prey, (enum rdti_message_kind)(next_random(state) % (RDTI_MESSAGE_POSTED + 1)));
    if (next_random(state) % 4 == 0)
        head->source = (uint16_t)next_random(state);
    if (next_random(state) % 4 == 0)
        head->group_id = next_random(state) % 8;
    head->tag = next_random(state) % 4 | (next_random(state) % 2 == 0 ? RDT_TAG_ONCE : 0);
    head->len_bytes =
        next_random(state) % 2 == 0 ? next_random(state) % 5000 : edges[next_random(state) % 9];
    head->id = next_random(state) % 4 | (next_random(state) % 3) << 32;
    head->count = next_random(state) % 2 == 0 ? 0 : edges[next_random(state) % 9];
    if (next_random(state) % 4 == 0)
        head->count = RDT_TAG_ONCE | next_random(state) % 4;
    if (head->kind == RDTI_MESSAGE_STAND) {
        head->count = next_random(state) % 4;
        head->len_bytes = RDTI_KEYED_MIN_BYTES;
        head->tag = next_random(state) % 2 == 0 ? RDT_TAG_ONCE : head->tag;
    }
    head->op = (uint8_t)(next_random(state) % 20);
    if (next_random(state) % 8 == 0)
        head->consumed = (uint32_t)next_random(state);
    if (next_random(state) % 8 == 0)
        head->delivered = (uint32_t)next_random(state);
}

TEST_TIMEOUT(random_messages, 60)
{
    struct prey prey;
    struct rdt_error err;
    uint64_t state = 20240607;
    uint32_t refused = 0;
    const uint32_t rounds = 30000;

    prey_make(&prey);
    for (uint32_t i = 0; i < rounds; i++) {
        struct rdti_message head;
        random_head(&prey, &state, &head);
        for (uint32_t k = RDTI_MESSAGE_HEAD_BYTES; k < RDTI_RING_SMALL_BYTES; k += 8) {
            const uint64_t word = next_random(&state) % 3 == 0 ? next_random(&state) : 0;
            memcpy(prey.ring + k, &word, 8);
        }
        prey.m->rx = prey.ring; /* it may have switched to its large one */
        prey.m->rx_units = RDTI_RING_SMALL_UNITS;
        prey.m->is_large = false;
        prey.m->rx_pos = next_random(&state) % 2 == 0
                             ? 0
                             : (uint32_t)next_random(&state) % RDTI_RING_SMALL_UNITS;
        rdti_message_encode(&head, prey.ring + (size_t)prey.m->rx_pos * RDTI_MESSAGE_ALIGN);
        err = (struct rdt_error){0};
        const rdt_status status = rdti_mailbox_on_message(prey.m, &err);
        CHECK_MSG(status == RDT_OK || status == RDT_EPROTO, "round %u: %s: %s", i,
                  rdt_status_name(status), err.message);
        refused += status != RDT_OK ? 1 : 0;
        if (next_random(&state) % 4 == 0)
            (void)rdti_stand_on_landed(prey.m, (uint32_t)next_random(&state) % 4,
                                       (uint32_t)next_random(&state) % 4, &err);
        CHECK_UINT_LE(prey.m->rx_pos, prey.m->rx_units - 1);
    }
    CHECK_UINT_GE(refused, rounds / 10);
    CHECK_UINT_LE(refused, rounds - rounds / 10);
    prey_free(&prey);
}

/* The same through a real lane: the endpoint ends, and the group with it, naming the peer. */
TEST_TIMEOUT(garbage_through_a_lane, 60)
{
    uint64_t state = 7;

    for (int round = 0; round < 10; round++) {
        struct rig rig;
        struct rdt_error err = {0};
        rdt_endpoint *ep[2];
        uint8_t garbage[320];
        uint32_t got;
        rig_open(&rig, 2, round % 2 == 0 ? RDT_TRANSPORT_SHM : RDT_TRANSPORT_TCP);
        for (uint32_t i = 0; i < 2; i++) {
            CHECK_OK(rdt_group_endpoint(rig.group[i], 1 - i, &ep[i], &err), &err);
            CHECK_OK(rdt_endpoint_wait_ready(ep[i], rig_patience_ns(), &err), &err);
        }
        rdt_transfer *recv = rig_recv(&rig, 0, 1, 1, &got, 4);
        for (size_t i = 0; i < sizeof(garbage); i++)
            garbage[i] = (uint8_t)next_random(&state);
        garbage[0] = garbage[64] = 0xee;
        const struct rdt_block block = {garbage, sizeof(garbage), 0};
        for (int i = 0; i < 64; i++) /* wherever the ring stands, some of it is read as a head */
            if (rdti_endpoint_post_write(ep[1], &block, rdti_endpoint_peer_ring(ep[1]),
                                         RDTI_TRAFFIC_CONTROL, RDTI_NOTIFY_MESSAGE, true, NULL,
                                         NULL, &err) != RDT_OK)
                break;
        CHECK_STATUS(rig_end(recv, &err), RDT_EPEER);
        CHECK_INT_EQ(err.peer_rank, 1);
        CHECK_STR_CONTAINS(err.message, "rank 1 died: ");
        rig_close(&rig);
    }
}

TEST_MAIN()
