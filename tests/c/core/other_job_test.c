/* SPDX-License-Identifier: Apache-2.0
 * A rank of one job has got hold of the address of another job's region, and tries each way to use
 * it: over its own paths, as it is and forged, and by connecting to its owner. All are refused, on
 * each transport, and no byte of it changes or is read. */
#include <string.h>

#include "pair_rig.h"
#include "rdmatensor_ext.h"

#define BYTES 4096
#define FILLER_BYTES (UINT64_C(1) << 20) /* more than the partner has in use of its arena */
#define OWN 0x5a                         /* what the region holds */
#define EVIL 0xee                        /* what is written to it */
#define UNREAD 0x11

static const uint32_t transports[] = {RDT_TRANSPORT_SHM, RDT_TRANSPORT_TCP, RDT_TRANSPORT_VERBS};

struct jobs {
    rdt_context *owner; /* of job "theirs" */
    rdt_region *filler;
    rdt_region *region;
    struct rdt_remote_region address;
    rdt_context *thief; /* of job "ours", as is its partner */
    rdt_context *partner;
    rdt_endpoint *to_partner;
    rdt_endpoint *to_thief;
    uint8_t evil[BYTES];
    uint8_t read[BYTES];
};

static rdt_context *
open_context(uint32_t transport, const char *job, const char *secret, int32_t rank)
{
    const struct rdt_context_opts opts = {
        .struct_size = sizeof(opts),
        .force_transport = transport,
        .loopback_only = 1,
        .timeout_ns = 20 * RIG_S,
        .arena_chunk_bytes = 1 << 20,
    };
    struct rdt_error err = {0};
    rdt_context *ctx = NULL;

    CHECK_OK(rdt_context_open(&opts, &ctx, &err), &err);
    CHECK_OK(rdt_context_add_job(ctx, job, (const uint8_t *)secret, (uint32_t)strlen(secret), 1,
                                 rank, &err),
             &err);
    return ctx;
}

static rdt_endpoint *
open_endpoint(rdt_context *from, rdt_context *to, const char *job, int32_t rank)
{
    const struct rdt_endpoint_opts opts = {.struct_size = sizeof(opts),
                                           .peer_rank = rank,
                                           .job_id = job};
    uint8_t address[RDT_ADDRESS_MAX_BYTES];
    struct rdt_error err = {0};
    rdt_endpoint *ep = NULL;
    size_t len_bytes = 0;

    CHECK_OK(rdt_context_address(to, address, sizeof(address), &len_bytes, &err), &err);
    CHECK_OK(rdt_endpoint_open(from, address, len_bytes, &opts, &ep, &err), &err);
    return ep;
}

static void
open_jobs(struct jobs *j, uint32_t transport)
{
    struct rdt_error err = {0};

    if (transport == RDT_TRANSPORT_VERBS)
        sim_use();
    memset(j->evil, EVIL, BYTES);
    memset(j->read, UNREAD, BYTES);
    j->owner = open_context(transport, "theirs", "their secret", 0);
    /* Where the partner has nothing, and of a generation that none of the partner's has come to. */
    CHECK_OK(rdt_region_alloc(j->owner, FILLER_BYTES, 0, &j->filler, &err), &err);
    for (int i = 0; i < 3; i++) {
        rdt_region_free(j->region, NULL, NULL);
        CHECK_OK(rdt_region_alloc(j->owner, BYTES, RDT_REGION_ZERO, &j->region, &err), &err);
        CHECK_OK(rdt_region_export(j->region, &j->address, &err), &err);
    }
    memset(rdt_region_addr(j->region), OWN, BYTES);
    j->thief = open_context(transport, "ours", "our secret", 0);
    j->partner = open_context(transport, "ours", "our secret", 1);
    j->to_partner = open_endpoint(j->thief, j->partner, "ours", 1);
    j->to_thief = open_endpoint(j->partner, j->thief, "ours", 0);
    CHECK_OK(rdt_endpoint_wait_ready(j->to_partner, 10 * RIG_S, &err), &err);
    CHECK_OK(rdt_endpoint_wait_ready(j->to_thief, 10 * RIG_S, &err), &err);
}

static void
check_untouched(const struct jobs *j)
{
    uint8_t own[BYTES];
    uint8_t unread[BYTES];

    memset(own, OWN, BYTES);
    memset(unread, UNREAD, BYTES);
    CHECK_MEM_EQ(rdt_region_addr(j->region), own, BYTES);
    CHECK_MEM_EQ(j->read, unread, BYTES);
}

static void
close_jobs(struct jobs *j)
{
    struct rdt_error err = {0};

    rdt_endpoint_close(j->to_partner);
    rdt_endpoint_close(j->to_thief);
    check_untouched(j);
    rdt_region_free(j->region, NULL, NULL);
    rdt_region_free(j->filler, NULL, NULL);
    CHECK_OK(rdt_context_close(j->thief, &err), &err);
    CHECK_OK(rdt_context_close(j->partner, &err), &err);
    CHECK_OK(rdt_context_close(j->owner, &err), &err);
}

static rdt_status
end(rdt_transfer *t, rdt_status status)
{
    struct rdt_error err = {0};

    if (status != RDT_OK)
        return status;
    status = rdt_transfer_wait(t, 10 * RIG_S, &err);
    CHECK_MSG(status == RDT_OK || err.message[0] != '\0', "an error without words");
    rdt_transfer_free(t);
    return status;
}

static rdt_status
try_to_write(struct jobs *j, rdt_endpoint *ep, const struct rdt_remote_region *address)
{
    rdt_transfer *t = NULL;
    const rdt_status status = rdt_endpoint_write(ep, j->evil, BYTES, address, 0, 0, &t, NULL);

    return end(t, status);
}

static rdt_status
try_to_read(struct jobs *j, rdt_endpoint *ep, const struct rdt_remote_region *address)
{
    rdt_transfer *t = NULL;
    const rdt_status status = rdt_endpoint_read(ep, j->read, BYTES, address, 0, &t, NULL);

    return end(t, status);
}

/* Once the path is ready, or has failed: RDT_EAGAIN is no refusal. */
static rdt_status
try_to_hold(rdt_endpoint *ep, const struct rdt_remote_region *address)
{
    const uint64_t deadline_ns = test_now_ns() + 10 * RIG_S;
    void *addr = NULL;
    rdt_status status;

    while ((status = rdt_endpoint_hold(ep, address, &addr, NULL)) == RDT_EAGAIN &&
           test_now_ns() < deadline_ns)
        test_sleep_ns(1000000);
    return status;
}

TEST_TIMEOUT(an_address_of_another_job_is_no_address_of_a_peer, 60)
{
    for (size_t i = 0; i < sizeof(transports) / sizeof(transports[0]); i++) {
        struct jobs j = {0};
        void *addr;
        open_jobs(&j, transports[i]);
        CHECK_STATUS(try_to_write(&j, j.to_partner, &j.address), RDT_EINVAL);
        CHECK_STATUS(try_to_read(&j, j.to_partner, &j.address), RDT_EINVAL);
        CHECK_STATUS(rdt_endpoint_map(j.to_partner, &j.address, &addr, NULL), RDT_EINVAL);
        CHECK_STATUS(try_to_hold(j.to_partner, &j.address), RDT_EINVAL);
        CHECK_STATUS(rdt_endpoint_error(j.to_partner, NULL), RDT_OK);
        close_jobs(&j);
    }
}

/* It says that it is the partner's: what its owner alone has is not found there. */
TEST_TIMEOUT(an_address_of_another_job_that_is_forged_leads_nowhere, 60)
{
    for (size_t i = 0; i < sizeof(transports) / sizeof(transports[0]); i++) {
        struct jobs j = {0};
        void *addr;
        open_jobs(&j, transports[i]);
        struct rdt_remote_region forged = j.address;
        rdt_context_uuid(j.partner, forged.owner);
        CHECK(try_to_hold(j.to_partner, &forged) != RDT_OK);
        CHECK(rdt_endpoint_map(j.to_partner, &forged, &addr, NULL) != RDT_OK);
        CHECK(try_to_read(&j, j.to_partner, &forged) != RDT_OK);
        /* A device knows pieces of an arena and no regions: who forges an address within a piece
         * that its own peer gave it the key of writes there, into its own job. */
        if (transports[i] != RDT_TRANSPORT_VERBS)
            CHECK(try_to_write(&j, j.to_partner, &forged) != RDT_OK);
        else
            (void)try_to_write(&j, j.to_partner, &forged);
        check_untouched(&j);
        close_jobs(&j);
    }
}

/* By its own job's name, and by the other's with a secret that is not the other's. */
TEST_TIMEOUT(the_owner_lets_no_rank_of_another_job_in, 60)
{
    static const char *const names[] = {"ours", "theirs"};

    for (size_t i = 0; i < sizeof(transports) / sizeof(transports[0]); i++)
        for (size_t n = 0; n < 2; n++) {
            struct jobs j = {0};
            struct rdt_error err = {0};
            rdt_transfer *early = NULL;
            open_jobs(&j, transports[i]);
            if (n == 1)
                CHECK_OK(rdt_context_add_job(j.thief, names[n], (const uint8_t *)"guessed", 7, 1, 1,
                                             &err),
                         &err);
            rdt_endpoint *ep = open_endpoint(j.thief, j.owner, names[n], 0);
            const rdt_status posted =
                rdt_endpoint_write(ep, j.evil, BYTES, &j.address, 0, 0, &early, &err);
            CHECK_STATUS(rdt_endpoint_wait_ready(ep, 10 * RIG_S, &err), RDT_EAUTH);
            CHECK(end(early, posted) != RDT_OK);
            CHECK(try_to_write(&j, ep, &j.address) != RDT_OK);
            CHECK(try_to_read(&j, ep, &j.address) != RDT_OK);
            CHECK(try_to_hold(ep, &j.address) != RDT_OK);
            rdt_endpoint_close(ep);
            close_jobs(&j);
        }
}

TEST_MAIN()
