/* SPDX-License-Identifier: Apache-2.0
 * Two hosts of one process over verbs: the sim's devices, or, where RDT_TEST_VERBS=device says so,
 * those of this machine. */
#ifndef RDT_TESTS_VERBS_RIG_H
#define RDT_TESTS_VERBS_RIG_H

#include "../harness.h"
#include "../memlock.h"
#include "fake_host.h"
#include "sim/sim.h"
#include "transport/verbs/lane.h"

struct verbs_pair {
    struct fake_host a;
    struct fake_host b;
    struct fake_link ab;
    struct fake_link ba;
};

#define VERBS_PUMP(p, condition) FAKE_PUMP_UNTIL(&(p)->a, &(p)->b, condition, 10)

static inline bool
verbs_is_real(void)
{
    return sim_is_off();
}

static inline void
verbs_begin(const struct sim_config *config)
{
    if (!verbs_is_real())
        sim_begin(config);
}

static inline void
verbs_end(void)
{
    if (!verbs_is_real())
        sim_end();
}

/* Over devices that are there already. */
static inline void
verbs_pair_open_on(struct verbs_pair *p)
{
    memset(p, 0, sizeof(*p));
    fake_host_open(&p->a, &rdti_transport_verbs);
    fake_host_open(&p->b, &rdti_transport_verbs);
    fake_connect(&p->a, &p->ab, &p->b, &p->ba, NULL);
}

static inline void
verbs_pair_open(struct verbs_pair *p, const struct sim_config *config)
{
    verbs_begin(config);
    verbs_pair_open_on(p);
}

/* Opens the transport and closes it again. */
static inline rdt_status
verbs_try_open(const struct sim_config *config, struct rdt_error *err)
{
    struct fake_host host;

    sim_begin(config);
    const rdt_status status = fake_host_try_open(&host, &rdti_transport_verbs, err);
    if (status == RDT_OK)
        fake_host_close(&host);
    sim_end();
    return status;
}

static inline void
verbs_pair_close(struct verbs_pair *p)
{
    fake_disconnect(&p->ab, &p->ba);
    fake_host_close(&p->a);
    fake_host_close(&p->b);
    verbs_end();
}

/* A lane broke, and its host knows no better why: what was in flight ends as the core ends it. */
static inline void
verbs_end_ops(struct fake_link *link)
{
    CHECK_UINT_EQ(link->error_count, 1);
    CHECK_INT_EQ(pthread_mutex_lock(&link->host->engine), 0);
    rdti_verbs_teardown((struct rdti_verbs_lane *)link->lane, &link->error);
    CHECK_INT_EQ(pthread_mutex_unlock(&link->host->engine), 0);
}

static inline void
verbs_pattern(uint8_t *at, uint64_t len_bytes, uint32_t seed)
{
    for (uint64_t i = 0; i < len_bytes; i++)
        at[i] = (uint8_t)(i * 31 + (i >> 8) * 7 + seed * 13 + 1);
}

/* A write from a to b with a notification; source in a's arena, or private. */
static inline void
verbs_write_and_check(struct verbs_pair *p, uint64_t len_bytes, bool is_private)
{
    const uint64_t guard = 64;
    struct fake_region *region = fake_region(&p->b, len_bytes + 2 * guard);
    uint8_t *private_src = malloc(len_bytes + 1);
    uint8_t *src = is_private ? private_src : fake_region(&p->a, len_bytes + 1)->addr;
    const uint32_t before = p->ba.notify_count;
    struct fake_op op;

    CHECK_NOT_NULL(private_src);
    verbs_pattern(src, len_bytes, (uint32_t)len_bytes);
    fake_write(&op, src, len_bytes, &region->remote, guard, 7);
    fake_must_start(&p->ab, &op);
    VERBS_PUMP(p, p->ba.notify_count == before + 1);
    CHECK_MEM_EQ(region->addr + guard, src, len_bytes);
    for (uint64_t i = 0; i < guard; i++)
        CHECK(region->addr[i] == 0 && region->addr[guard + len_bytes + i] == 0);
    VERBS_PUMP(p, fake_op_is_done(&op));
    CHECK_INT_EQ(op.status, RDT_OK);
    free(private_src);
}

#endif
