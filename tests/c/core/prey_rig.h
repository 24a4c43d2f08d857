/* SPDX-License-Identifier: Apache-2.0
 * A mailbox whose ring the test fills itself, with what no honest peer writes. */
#ifndef RDTI_TESTS_PREY_RIG_H
#define RDTI_TESTS_PREY_RIG_H

#include "base/error.h"
#include "core/group_rig.h"
#include "message/mailbox_impl.h"
#include "message/persistent.h"
#include "rdmatensor_ext.h"

/* The ring under test, exactly as long as the mailbox believes, so that a read past it is found. */
struct prey {
    struct rig rig;
    struct rdti_engine *engine;
    struct rdti_mailbox *m; /* of rank 0, towards rank 1 */
    uint8_t *ring;
    rdt_transfer *posted;
    rdt_transfer *offered;
    uint8_t *room;
    uint8_t *large;
};

#define ROOM_BYTES 64
#define LARGE_BYTES (1 << 20)

static inline void
prey_make_of(struct prey *prey, uint32_t size, uint32_t transport)
{
    struct rdt_error err = {0};
    rdt_endpoint *ep;

    rig_open(&prey->rig, size, transport);
    CHECK_OK(rdt_group_endpoint(prey->rig.group[0], 1, &ep, &err), &err);
    CHECK_OK(rdt_endpoint_wait_ready(ep, rig_patience_ns(), &err), &err);
    prey->room = malloc(ROOM_BYTES);
    prey->large = calloc(1, LARGE_BYTES);
    prey->posted = rig_recv(&prey->rig, 0, 1, 1, prey->room, ROOM_BYTES);
    prey->offered = rig_send(&prey->rig, 0, 1, 2, prey->large, LARGE_BYTES);
    prey->engine = prey->rig.ctx[0]->engine;
    prey->m = rdti_mailbox_of(ep);
    CHECK(posix_memalign((void **)&prey->ring, 64, RDTI_RING_SMALL_BYTES) == 0);
    memset(prey->ring, 0, RDTI_RING_SMALL_BYTES);
    rdti_engine_enter(prey->engine);
    prey->m->rx = prey->ring;
    prey->m->rx_pos = 0;
}

static inline void
prey_make_over(struct prey *prey, uint32_t transport)
{
    prey_make_of(prey, 2, transport);
}

static inline void
prey_make(struct prey *prey)
{
    prey_make_over(prey, RDT_TRANSPORT_SHM);
}

static inline void
prey_free_and(struct prey *prey, rdt_transfer **transfers, uint32_t count, rdt_region *region)
{
    struct rdt_error err = {0};

    (void)rdti_error_set(&err, RDT_EPROTO, 0, "end of the test");
    rdti_endpoint_fail(prey->m->ep, &err, true); /* as its caller does */
    rdti_engine_leave(prey->engine);
    CHECK(rig_end(prey->posted, &err) != RDT_EAGAIN);
    CHECK(rig_end(prey->offered, &err) != RDT_EAGAIN);
    for (uint32_t i = 0; i < count; i++)
        CHECK(rig_end(transfers[i], &err) != RDT_EAGAIN);
    rdt_region_free(region, NULL, NULL);
    rig_close(&prey->rig);
    free(prey->ring);
    free(prey->room);
    free(prey->large);
}

static inline void
prey_free(struct prey *prey)
{
    prey_free_and(prey, NULL, 0, NULL);
}

static inline struct rdti_message
plain(struct prey *prey, enum rdti_message_kind kind)
{
    return (struct rdti_message){.kind = (uint8_t)kind,
                                 .source = 1,
                                 .group_id = prey->rig.group[0]->scope.id,
                                 .tag = 77,
                                 .consumed = prey->m->tx_consumed,
                                 .delivered = prey->m->eager_delivered};
}

/* A message at the start of the ring. */
static inline rdt_status
feed(struct prey *prey, const struct rdti_message *head, const void *body, size_t body_bytes,
     struct rdt_error *err)
{
    *err = (struct rdt_error){.peer_rank = RDT_RANK_UNKNOWN};
    prey->m->rx_pos = 0;
    rdti_message_encode(head, prey->ring);
    if (body_bytes > 0)
        memcpy(prey->ring + RDTI_MESSAGE_HEAD_BYTES, body, body_bytes);
    return rdti_mailbox_on_message(prey->m, err);
}

#define REFUSED(head, body, body_bytes, words)                                    \
    do {                                                                          \
        struct rdt_error refused_;                                                \
        CHECK_STATUS(feed(&prey, head, body, body_bytes, &refused_), RDT_EPROTO); \
        CHECK_STR_CONTAINS(refused_.message, words);                              \
    } while (0)

#define IGNORED(head, body, body_bytes)                                      \
    do {                                                                     \
        struct rdt_error ignored_;                                           \
        CHECK_OK(feed(&prey, head, body, body_bytes, &ignored_), &ignored_); \
    } while (0)

/* A write into a place of a stream, as its notification reports it. */
#define LANDS(id, place, status)                                                                \
    do {                                                                                        \
        struct rdt_error landed_ = {.peer_rank = RDT_RANK_UNKNOWN};                             \
        CHECK_STATUS(rdti_stand_on_landed(prey.m, id, place, &landed_), status);                \
        if ((status) != RDT_OK)                                                                 \
            CHECK_STR_CONTAINS(landed_.message, "rank 1 wrote where no receive was announced"); \
    } while (0)

#endif
