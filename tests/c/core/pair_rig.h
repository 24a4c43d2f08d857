/* SPDX-License-Identifier: Apache-2.0
 * Two contexts in one process and the endpoints between them, for tests of the whole core. */
#ifndef RDTI_TESTS_PAIR_RIG_H
#define RDTI_TESTS_PAIR_RIG_H

#include "harness.h"
#include "rdmatensor.h"
#include "sim/sim.h"

#define RIG_S UINT64_C(1000000000)

struct pair {
    rdt_context *ctx[2];
    rdt_endpoint *ep[2]; /* ep[i] belongs to ctx[i] and leads to the other */
};

static inline void
check_ok(rdt_status status, const struct rdt_error *err, const char *what)
{
    if (status != RDT_OK)
        fprintf(stderr, "%s: %s: %s\n", what, rdt_status_name(status), err->message);
    CHECK(status == RDT_OK);
}

/* Where tests over {shm, tcp, verbs} begin: where RDT_TEST_VERBS=device asks for a device, which is
 * slow in an emulated machine, shm and tcp have been tested elsewhere. */
static inline int
pair_first_transport(void)
{
    return sim_is_off() ? 2 : 0;
}

static inline void
context_make(rdt_context **out, uint32_t force, const char *secret, int32_t rank)
{
    struct rdt_error err = {0};
    const struct rdt_context_opts opts = {
        .struct_size = sizeof(opts),
        .force_transport = force,
        .loopback_only = 1,
        .timeout_ns = 20 * RIG_S,
        .arena_chunk_bytes = 1 << 20,
    };

    if (force == RDT_TRANSPORT_VERBS)
        sim_use();
    check_ok(rdt_context_open(&opts, out, &err), &err, "context_open");
    check_ok(rdt_context_add_job(*out, "job", (const uint8_t *)secret, (uint32_t)strlen(secret), 1,
                                 rank, &err),
             &err, "add_job");
}

static inline void
endpoint_make(rdt_context *from, rdt_context *to, int32_t to_rank, rdt_endpoint **out)
{
    struct rdt_error err = {0};
    const struct rdt_endpoint_opts opts = {.struct_size = sizeof(opts),
                                           .peer_rank = to_rank,
                                           .job_id = "job"};
    uint8_t address[RDT_ADDRESS_MAX_BYTES];
    size_t address_bytes = 0;

    check_ok(rdt_context_address(to, address, sizeof(address), &address_bytes, &err), &err,
             "address");
    check_ok(rdt_endpoint_open(from, address, address_bytes, &opts, out, &err), &err,
             "endpoint_open");
}

static inline void
pair_open(struct pair *pair, uint32_t force)
{
    struct rdt_error err = {0};

    for (int i = 0; i < 2; i++)
        context_make(&pair->ctx[i], force, "secret", i);
    for (int i = 0; i < 2; i++)
        endpoint_make(pair->ctx[i], pair->ctx[1 - i], 1 - i, &pair->ep[i]);
    for (int i = 0; i < 2; i++)
        check_ok(rdt_endpoint_wait_ready(pair->ep[i], 10 * RIG_S, &err), &err, "wait_ready");
}

static inline void
pair_close(struct pair *pair)
{
    struct rdt_error err = {0};

    for (int i = 0; i < 2; i++)
        rdt_endpoint_close(pair->ep[i]);
    for (int i = 0; i < 2; i++)
        check_ok(rdt_context_close(pair->ctx[i], &err), &err, "context_close");
}

#endif
