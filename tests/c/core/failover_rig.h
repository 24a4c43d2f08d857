/* SPDX-License-Identifier: Apache-2.0
 * Two processes over the sim between which everything is in flight at once, both ways: writes with
 * and without notifications, reads, messages and tensors in slots. What comes is checked to the
 * byte, and that it comes once. */
#ifndef RDT_TESTS_FAILOVER_RIG_H
#define RDT_TESTS_FAILOVER_RIG_H

#include <stdlib.h>
#include <string.h>

#include "group_rig.h"
#include "process/process.h"

enum { STEPS = 24, GUARD = 16, TAKEN = 0xee, MESSAGE_MAX = 200000, ROWS = 300, TAG = 7 };

static const uint64_t sizes[] = {8, 0, 70000, 1, 3000, 64, 4096, 65, 100001, 100, 20000, 63};

/* What rank `from` sends to the other. */
struct stream {
    uint32_t from;
    rdt_endpoint *tx; /* at the sender */
    rdt_endpoint *rx;
    rdt_region *region; /* the receiver's: writes land there */
    rdt_region *source; /* the sender's, known to devices */
    rdt_region *shelf;  /* the receiver's: reads come from there */
    struct rdt_remote_region remote;
    struct rdt_remote_region shelf_remote;
    uint8_t *other; /* the sender's, that devices do not know */
    uint8_t *read_into;
    uint64_t off[STEPS];
    uint64_t len[STEPS];
    rdt_transfer *writes[STEPS];
    rdt_transfer *reads[STEPS];
    rdt_transfer *puts[STEPS];
    rdt_transfer *sends[STEPS];
    rdt_transfer *receives[STEPS];
    uint8_t *sent;     /* STEPS messages */
    uint8_t *received; /* and where they go */
    float *tensors;    /* STEPS of them */
    rdt_slot *slot;
    rdt_slot_tx *slot_tx;
    uint32_t next; /* the first write that was not seen */
    uint32_t got;  /* tensors */
};

static struct rig rig;
static struct stream streams[2] __attribute__((unused)); /* not every test has some */
static uint32_t verify = RDT_VERIFY_OFF;

static inline uint64_t
message_bytes(uint32_t step)
{
    return step % 5 == 4 ? MESSAGE_MAX : sizes[(step * 7) % 12] % 5000;
}

static inline bool
is_notified(uint32_t step)
{
    return step % 3 != 1 || step + 1 == STEPS;
}

static inline const uint8_t *
source_of(const struct stream *s, uint32_t step)
{
    return (step % 2 == 0 ? (uint8_t *)rdt_region_addr(s->source) : s->other) + s->off[step];
}

static inline rdt_region *
region_of(uint32_t rank, uint64_t len_bytes, struct rdt_remote_region *remote)
{
    struct rdt_error err = {0};
    rdt_region *region = NULL;

    CHECK_OK(rdt_region_alloc(rig.ctx[rank], len_bytes, RDT_REGION_ZERO, &region, &err), &err);
    CHECK_OK(rdt_region_export(region, remote, &err), &err);
    return region;
}

static inline void
open_stream(struct stream *s, uint32_t from, uint64_t seed)
{
    const struct rdt_tensor_desc desc = {.struct_size = sizeof(desc),
                                         .kind = RDT_SLOT_STATIC,
                                         .dtype = RDT_F32,
                                         .ndim = 1,
                                         .dims = {ROWS}};
    struct rdt_remote_region none;
    struct rdt_error err = {0};
    uint64_t total = GUARD;

    *s = (struct stream){.from = from};
    s->tx = rig_ready(rig.group[from], 1 - from);
    s->rx = rig_ready(rig.group[1 - from], from);
    for (uint32_t i = 0; i < STEPS; i++) {
        s->len[i] = sizes[(i * 5 + seed) % 12];
        s->off[i] = total;
        total += s->len[i] + GUARD;
    }
    s->region = region_of(1 - from, total, &s->remote);
    s->shelf = region_of(1 - from, total, &s->shelf_remote);
    s->source = region_of(from, total, &none);
    s->other = malloc(total);
    s->read_into = calloc(1, total);
    s->sent = malloc((size_t)STEPS * MESSAGE_MAX);
    s->received = calloc(STEPS, MESSAGE_MAX);
    s->tensors = malloc(sizeof(float) * STEPS * ROWS);
    CHECK(s->other != NULL && s->read_into != NULL && s->sent != NULL && s->received != NULL &&
          s->tensors != NULL);
    rig_fill(rdt_region_addr(s->source), total, 11 + from);
    rig_fill(rdt_region_addr(s->shelf), total, 17 + from);
    rig_fill(s->other, total, 23 + from);
    rig_fill(s->sent, (uint64_t)STEPS * MESSAGE_MAX, 31 + from);
    for (uint32_t i = 0; i < STEPS * ROWS; i++)
        s->tensors[i] = (float)(i + from);
    CHECK_OK(rdt_slot_create(s->rx, from == 0 ? "there" : "back", &desc, &s->slot, &err), &err);
    CHECK_OK(rdt_slot_tx_open(s->tx, from == 0 ? "there" : "back", &desc, rig_patience_ns(),
                              &s->slot_tx, &err),
             &err);
}

/* Every write is checked when its notification comes, with those before it; then its place is the
 * receiver's, and written to. */
static inline void
on_notification(struct stream *s, uint32_t value)
{
    CHECK(value < STEPS);
    for (; s->next <= value; s->next++) {
        uint8_t *at = (uint8_t *)rdt_region_addr(s->region) + s->off[s->next];

        CHECK(s->next == value || !is_notified(s->next));
        CHECK_MEM_EQ(at, source_of(s, s->next), s->len[s->next]);
        memset(at, TAKEN, s->len[s->next]);
    }
}

static inline void
take_notifications(struct stream *s)
{
    struct rdt_error err = {0};
    uint32_t value = 0;

    while (rdt_endpoint_wait_notify(s->rx, RDT_NO_WAIT, &value, &err) == RDT_OK)
        on_notification(s, value);
}

static inline void
take_tensor(struct stream *s)
{
    struct rdt_error err = {0};
    struct rdt_slot_view view;

    CHECK_OK(rdt_slot_get(s->slot, rig_patience_ns(), &view, &err), &err);
    CHECK_UINT_EQ(view.epoch, s->got);
    CHECK_MEM_EQ(view.addr, s->tensors + (size_t)s->got * ROWS, ROWS * sizeof(float));
    CHECK_OK(rdt_slot_release(s->slot, &err), &err);
    s->got++;
}

static inline void
begin_step(struct stream *s, uint32_t i)
{
    struct rdt_error err = {0};
    const uint8_t *src = source_of(s, i);
    const uint64_t bytes = message_bytes(i);

    CHECK_OK(rdt_endpoint_write(s->tx, src, s->len[i], &s->remote, s->off[i],
                                is_notified(i) ? i : RDT_NOTIFY_NONE, &s->writes[i], &err),
             &err);
    CHECK_OK(rdt_endpoint_read(s->tx, s->read_into + s->off[i], s->len[i], &s->shelf_remote,
                               s->off[i], &s->reads[i], &err),
             &err);
    s->receives[i] = rig_recv(&rig, 1 - s->from, s->from, TAG,
                              s->received + (size_t)i * MESSAGE_MAX, MESSAGE_MAX);
    s->sends[i] =
        rig_send(&rig, s->from, 1 - s->from, TAG, s->sent + (size_t)i * MESSAGE_MAX, bytes);
    if (i >= 2) /* it has two buffers */
        take_tensor(s);
    CHECK_OK(rdt_slot_tx_put(s->slot_tx, s->tensors + (size_t)i * ROWS, NULL, rig_patience_ns(),
                             &s->puts[i], &err),
             &err);
    take_notifications(s);
}

static inline void
end_op(rdt_transfer *t, const char *what, uint32_t step)
{
    struct rdt_error err = {0};
    const rdt_status status = rig_end(t, &err);

    CHECK_MSG(status == RDT_OK, "%s %u: %s", what, step, err.message);
}

/* All of it has come, once, and nothing has come to a place that was delivered, nor between two. */
static inline void
end_stream(struct stream *s)
{
    const uint8_t *region = rdt_region_addr(s->region);
    const uint64_t deadline_ns = test_now_ns() + rig_patience_ns();
    struct rdt_error err = {0};
    uint32_t value = 0;

    for (uint32_t i = 0; i < STEPS; i++) {
        end_op(s->writes[i], "write", i);
        end_op(s->reads[i], "read", i);
        end_op(s->sends[i], "send", i);
        end_op(s->receives[i], "receive", i);
    }
    while (s->got < STEPS)
        take_tensor(s);
    for (uint32_t i = 0; i < STEPS; i++)
        end_op(s->puts[i], "put", i);
    while (s->next < STEPS) {
        CHECK(test_now_ns() < deadline_ns);
        CHECK_OK(rdt_endpoint_wait_notify(s->rx, rig_patience_ns(), &value, &err), &err);
        on_notification(s, value);
    }
    /* A message more, behind all of it: what would come twice is here before it. */
    const uint8_t last = 99;
    uint8_t seen = 0;
    rdt_transfer *receive = rig_recv(&rig, 1 - s->from, s->from, TAG, &seen, 1);
    end_op(rig_send(&rig, s->from, 1 - s->from, TAG, &last, 1), "last send", 0);
    end_op(receive, "last receive", 0);
    CHECK_UINT_EQ(seen, last);
    CHECK_STATUS(rdt_endpoint_wait_notify(s->rx, RDT_NO_WAIT, &value, &err), RDT_EAGAIN);
    for (uint32_t i = 0; i < STEPS; i++) {
        const uint8_t *shelf = (const uint8_t *)rdt_region_addr(s->shelf) + s->off[i];

        for (uint64_t b = 0; b < s->len[i]; b++)
            CHECK_MSG(region[s->off[i] + b] == TAKEN, "write %u came twice, byte %" PRIu64, i, b);
        for (uint64_t b = 1; b <= GUARD; b++)
            CHECK(region[s->off[i] - b] == 0);
        CHECK_MEM_EQ(s->read_into + s->off[i], shelf, s->len[i]);
        CHECK_MEM_EQ(s->received + (size_t)i * MESSAGE_MAX, s->sent + (size_t)i * MESSAGE_MAX,
                     message_bytes(i));
    }
}

static inline void
close_stream(struct stream *s)
{
    rdt_slot_tx_destroy(s->slot_tx);
    rdt_slot_destroy(s->slot);
    rdt_region_free(s->region, NULL, NULL);
    rdt_region_free(s->shelf, NULL, NULL);
    rdt_region_free(s->source, NULL, NULL);
    free(s->other);
    free(s->read_into);
    free(s->sent);
    free(s->received);
    free(s->tensors);
}

static inline void
open_rig(const struct sim_config *config, uint32_t require_of_one)
{
    const struct rdt_context_opts opts = {.struct_size = sizeof(opts),
                                          .loopback_only = 1,
                                          .timeout_ns = rig_patience_ns(),
                                          .arena_chunk_bytes = 1 << 20,
                                          .verify = verify};

    sim_begin(config);
    rig = (struct rig){.size = 2};
    for (uint32_t i = 0; i < 2; i++) {
        struct rdt_error err = {0};

        CHECK_OK(rdt_context_open(&opts, &rig.ctx[i], &err), &err);
        CHECK_OK(rdt_context_add_job(rig.ctx[i], "job", (const uint8_t *)"secret", 6, 1, (int32_t)i,
                                     &err),
                 &err);
        rig.ctx[i]->found[RDT_TRANSPORT_SHM].is_viable = false; /* as between hosts */
    }
    rig.ctx[1]->opts.require_transport = require_of_one;
    for (uint32_t i = 0; i < 2; i++)
        rig.group[i] = rig_group(&rig, i, "world");
}

static inline void
close_rig(void)
{
    for (uint32_t i = 0; i < 2; i++)
        rig.ctx[i]->found[RDT_TRANSPORT_SHM].is_viable = true; /* it is open all the same */
    rig_close(&rig);
    sim_end();
}

static inline struct sim_config
config_of(uint32_t devices, uint64_t seed)
{
    struct sim_config config = sim_default();

    rdt_log_set_level(RDT_LOG_ERROR);
    config.device_count = devices;
    config.seed = seed;
    config.queue_depth = 40;
    config.delay_us = 10;
    config.duplicates = 10;
    config.is_scattering = true;
    config.retry_ns = 500000;
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_QPS", seed % 3 == 0 ? "1" : "2", 1), 0);
    return config;
}

static inline uint64_t
failovers_of(uint32_t rank)
{
    struct rdt_counters counters = {.struct_size = sizeof(counters)};

    rdt_context_counters(rig.ctx[rank], &counters);
    return counters.failovers;
}

#endif
