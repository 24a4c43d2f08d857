/* SPDX-License-Identifier: Apache-2.0
 * Messages of groups that verify: eager ones and those in place, wherever their memory lies. */
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "group/group_impl.h"
#include "message/checksum.h"
#include "message/mailbox_impl.h"
#include "message/persistent_impl.h"
#include "message/request_impl.h"
#include "verify_rig.h"
#include "rdmatensor_ext.h"
#include "wire/notify.h"

/* The library reads private memory of peers through this; the byte at evil_off of the message that
 * is as long is changed. */
static _Atomic uint32_t evil_process_reads;

ssize_t
process_vm_readv(pid_t pid, const struct iovec *local, unsigned long local_count,
                 const struct iovec *remote, unsigned long remote_count, unsigned long flags)
{
    const ssize_t got =
        syscall(SYS_process_vm_readv, pid, local, local_count, remote, remote_count, flags);

    /* Before the message comes the word by which the library knows the peer. */
    const struct iovec *message = &local[local_count - 1];
    if (evil_process_reads != 0 && got > (ssize_t)evil_off && message->iov_len > evil_off) {
        evil_process_reads = 0;
        ((uint8_t *)message->iov_base)[evil_off] ^= 0x10;
    }
    return got;
}

struct team {
    rdt_context *ctx[2];
    rdt_group *group[2];
};

static rdt_status
address_of(void *arg, uint32_t rank, uint64_t timeout_ns, uint8_t *buf, size_t cap, size_t *len_out,
           struct rdt_error *err)
{
    const struct team *team = arg;

    (void)timeout_ns;
    return rdt_context_address(team->ctx[rank], buf, cap, len_out, err);
}

static void
open_team(struct team *team, uint32_t transport)
{
    struct rdt_error err = {0};

    for (uint32_t i = 0; i < 2; i++)
        team->ctx[i] = make(transport, RDT_VERIFY_CRC32C, (int32_t)i);
    for (uint32_t i = 0; i < 2; i++) {
        const struct rdt_group_opts opts = {.struct_size = sizeof(opts),
                                            .rank = i,
                                            .size = 2,
                                            .name = "world",
                                            .job_id = "job",
                                            .timeout_ns = 15 * S,
                                            .address = address_of,
                                            .address_arg = team};
        CHECK_OK(rdt_group_create(team->ctx[i], &opts, &team->group[i], &err), &err);
    }
}

static void
close_team(struct team *team)
{
    struct rdt_error err = {0};

    for (int i = 0; i < 2; i++)
        rdt_group_destroy(team->group[i]);
    for (int i = 0; i < 2; i++) {
        rdt_status status;
        const uint64_t deadline_ns = test_now_ns() + 15 * S;
        while ((status = rdt_context_close(team->ctx[i], &err)) == RDT_EBUSY &&
               test_now_ns() < deadline_ns)
            test_sleep_ns(1000000);
        CHECK_OK(status, &err);
    }
}

static rdt_status
exchange(struct team *team, const void *src, void *dst, uint64_t len_bytes, bool is_late,
         struct rdt_error *err)
{
    rdt_transfer *send = NULL;
    rdt_transfer *recv = NULL;

    if (!is_late)
        CHECK_OK(rdt_group_recv(team->group[1], 0, 7, dst, len_bytes, NULL, &recv, err), err);
    CHECK_OK(rdt_group_send(team->group[0], 1, 7, src, len_bytes, NULL, &send, err), err);
    if (is_late) {
        test_sleep_ns(20000000);
        CHECK_OK(rdt_group_recv(team->group[1], 0, 7, dst, len_bytes, NULL, &recv, err), err);
    }
    const rdt_status status = rdt_transfer_wait(recv, 15 * S, err);
    rdt_transfer_free(recv);
    if (status == RDT_OK)
        check_done(send);
    else
        rdt_transfer_free(send);
    return status;
}

/* 0 private memory at both ends, 1 the source in the arena, 2 the destination, 3 both. */
static void
messages(uint32_t transport, uint32_t where)
{
    static const uint64_t sizes[] = {0, 1, 8, 9, 4000, 60000, 70000, 3000001, 9 << 20};
    struct team team;
    struct rdt_error err = {0};
    rdt_region *regions[2] = {NULL};
    uint8_t *src;
    uint8_t *dst;
    uint8_t *bytes = noise(9 << 20, 7);
    uint64_t total = 0;

    open_team(&team, transport);
    for (int i = 0; i < 2; i++)
        CHECK_OK(rdt_region_alloc(team.ctx[i], 9 << 20, 0, &regions[i], &err), &err);
    src = (where & 1) != 0 ? rdt_region_addr(regions[0]) : malloc(9 << 20);
    dst = (where & 2) != 0 ? rdt_region_addr(regions[1]) : malloc(9 << 20);
    memcpy(src, bytes, 9 << 20);
    for (uint32_t i = 0; i < 2 * sizeof(sizes) / sizeof(sizes[0]); i++) {
        const uint64_t size = sizes[i / 2];
        memset(dst, 0, size);
        CHECK_OK(exchange(&team, src, dst, size, i % 2 != 0, &err), &err);
        CHECK_MEM_EQ(dst, src, size);
        total += size;
    }
    CHECK_UINT_EQ(counters_of(team.ctx[1]).verified_bytes, total);
    CHECK_UINT_EQ(counters_of(team.ctx[1]).mismatches, 0);
    if ((where & 1) == 0)
        free(src);
    if ((where & 2) == 0)
        free(dst);
    for (int i = 0; i < 2; i++)
        rdt_region_free(regions[i], NULL, NULL);
    close_team(&team);
    free(bytes);
}

TEST_TIMEOUT(messages_of_all_sizes_and_places_are_compared, 90)
{
    for (int i = pair_first_transport(); i < 3; i++)
        for (uint32_t where = 0; where < 4; where++)
            messages(transports[i], where);
}

static void
corrupted_message(int transport, uint64_t len_bytes, uint64_t off, bool is_late, bool is_in_arena)
{
    struct team team;
    struct rdt_error err = {0};
    rdt_endpoint *ep[2];
    rdt_region *region = NULL;
    uint8_t *dst = calloc(1, len_bytes);
    const bool is_read = transports[transport] == RDT_TRANSPORT_SHM && len_bytes > 65536;
    char where[64];

    open_team(&team, transports[transport]);
    for (uint32_t i = 0; i < 2; i++)
        CHECK_OK(rdt_group_endpoint(team.group[i], 1 - i, &ep[i], &err), &err);
    for (uint32_t i = 0; i < 2; i++)
        CHECK_OK(rdt_endpoint_wait_ready(ep[i], 15 * S, &err), &err);
    CHECK_OK(rdt_region_alloc(team.ctx[0], len_bytes, 0, &region, &err), &err);
    uint8_t *src = is_in_arena ? rdt_region_addr(region) : malloc(len_bytes);
    memset(src, 'x', len_bytes);
    evil_bytes = NULL;
    evil_off = off;
    if (is_read && !is_in_arena)
        evil_process_reads = 1;
    else /* an eager message's head stands before it */
        corrupt_next(ep[is_read ? 1 : 0], len_bytes, off);
    CHECK_INT_EQ(exchange(&team, src, dst, len_bytes, is_late, &err), RDT_ECORRUPT);
    (void)snprintf(where, sizeof(where), "%llu ", (unsigned long long)(off / 16384 * 16384));
    check_names(&err, "message with tag 7 in group 'world'", names[transport],
                len_bytes > 65536 ? where : "bytes");
    CHECK_INT_EQ(err.peer_rank, 0);
    CHECK_UINT_EQ(counters_of(team.ctx[1]).mismatches, 1);
    if (!is_in_arena)
        free(src);
    rdt_region_free(region, NULL, NULL);
    close_team(&team);
    free(evil_bytes);
    free(dst);
}

TEST_TIMEOUT(a_message_in_place_that_was_changed_is_found, 60)
{
    for (int i = pair_first_transport(); i < 3; i++)
        for (int k = 0; k < 4; k++)
            corrupted_message(i, 3000000, 500000, k % 2 != 0, k / 2 != 0);
}

/* A persistent receive is written without an offer, and compared all the same. */
static void
compares_what_lands(uint64_t len_bytes)
{
    uint8_t *src = noise(len_bytes, 9);

    for (int i = pair_first_transport(); i < 3; i++) {
        struct team team;
        struct rdt_error err = {0};
        rdt_endpoint *ep;
        rdt_region *region = NULL;
        open_team(&team, transports[i]);
        CHECK_OK(rdt_region_alloc(team.ctx[1], len_bytes, 0, &region, &err), &err);
        uint8_t *dst = rdt_region_addr(region);
        for (int k = 0; k < 6; k++) {
            memset(dst, 0, len_bytes);
            CHECK_OK(exchange(&team, src, dst, len_bytes, k % 2 != 0, &err), &err);
            CHECK_MEM_EQ(dst, src, len_bytes);
        }
        const struct rdt_counters before = counters_of(team.ctx[0]);
        CHECK_OK(exchange(&team, src, dst, len_bytes, false, &err), &err);
        CHECK_UINT_EQ(counters_of(team.ctx[0]).mailbox_rendezvous, before.mailbox_rendezvous);
        CHECK_UINT_EQ(counters_of(team.ctx[1]).verified_bytes, 7 * len_bytes);
        CHECK_OK(rdt_group_endpoint(team.group[0], 1, &ep, &err), &err);
        evil_bytes = NULL;
        corrupt_next(ep, len_bytes, 200001);
        CHECK_INT_EQ(exchange(&team, src, dst, len_bytes, false, &err), RDT_ECORRUPT);
        check_names(&err, "message with tag 7 in group 'world'", names[i], "196608 ");
        CHECK_INT_EQ(err.peer_rank, 0);
        CHECK_UINT_EQ(counters_of(team.ctx[1]).mismatches, 1);
        rdt_region_free(region, NULL, NULL);
        close_team(&team);
        free(evil_bytes);
    }
    free(src);
}

TEST_TIMEOUT(a_message_that_lands_in_its_place_is_compared, 90)
{
    compares_what_lands(300000);
    compares_what_lands(RDTI_SUMS_PIECE_BYTES + 100000); /* the sums are two messages */
}

/* One bit of the payload in the ring, on its way: over shm it is a block of its own, elsewhere it
 * follows its head in one. */
TEST_TIMEOUT(an_eager_message_that_was_changed_is_found, 60)
{
    for (int i = pair_first_transport(); i < 3; i++)
        for (int k = 0; k < 2; k++)
            corrupted_message(i, 700, transports[i] == RDT_TRANSPORT_SHM ? 123 : 64 + 123, k != 0,
                              false);
}

static rdt_status
refuse_write(struct rdti_lane *lane, struct rdti_op *op, struct rdt_error *err)
{
    if (!is_chosen(op))
        return real.write(lane, op, err);
    op->complete(op, RDT_ESTALE, NULL);
    return RDT_OK;
}

/* Against the rules. The write is refused while the lane is called, and its sums have yet to be
 * sent: they come before the end of the stream, which voids the announcement of the receive. */
static void
is_freed_under_its_receive(uint32_t transport)
{
    const uint64_t len_bytes = 1 << 18;
    struct team team;
    struct rdt_error err = {0};
    rdt_region *regions[2];
    rdt_transfer *send = NULL;
    rdt_transfer *recv = NULL;
    uint8_t *src = noise(len_bytes, 11);

    open_team(&team, transport);
    for (int i = 0; i < 2; i++)
        CHECK_OK(rdt_region_alloc(team.ctx[1], len_bytes, 0, &regions[i], &err), &err);
    uint8_t *dst = rdt_region_addr(regions[0]);
    for (int i = 0; i < 4; i++)
        CHECK_OK(exchange(&team, src, dst, len_bytes, false, &err), &err);
    const uint64_t placed = counters_of(team.ctx[0]).mailbox_placed;
    CHECK(placed > 0);
    CHECK_OK(rdt_group_recv(team.group[1], 0, 7, dst, len_bytes, NULL, &recv, &err), &err);
    test_sleep_ns(50000000); /* the sender knows of it */
    rdt_region_free(regions[0], NULL, NULL);
    rdt_endpoint *ep = team.group[0]->scope.members[1].ep;
    corrupt_next(ep, len_bytes, 0);
    rdti_engine_enter(ep->ctx->engine);
    evil.write = refuse_write;
    rdti_engine_leave(ep->ctx->engine);
    CHECK_OK(rdt_group_send(team.group[0], 1, 7, src, len_bytes, NULL, &send, &err), &err);
    CHECK_STATUS(rdt_transfer_wait(recv, 15 * S, &err), RDT_ESTALE);
    rdt_transfer_free(recv);
    CHECK_STATUS(rdt_transfer_wait(send, 15 * S, &err), RDT_EPEER);
    CHECK_STR_CONTAINS(err.message, "gave up the receive");
    rdt_transfer_free(send);
    CHECK(evil_done > 0);
    dst = rdt_region_addr(regions[1]);
    for (int i = 0; i < 4; i++)
        CHECK_OK(exchange(&team, src, dst, len_bytes, false, &err), &err);
    CHECK(counters_of(team.ctx[0]).mailbox_placed > placed); /* and such receives stand again */
    rdt_region_free(regions[1], NULL, NULL);
    close_team(&team);
    free(src);
}

TEST_TIMEOUT(a_place_that_is_freed_under_its_receive_ends_both, 60)
{
    for (size_t i = 0; i < 3; i++)
        is_freed_under_its_receive(transports[i]);
}

/* The second message is written while the first has yet to be compared. */
TEST_TIMEOUT(two_receives_in_one_place_are_both_compared, 60)
{
    const uint64_t len_bytes = 1 << 18;
    struct team team;
    struct rdt_error err = {0};
    rdt_region *region;
    rdt_transfer *send[2];
    rdt_transfer *recv[2];
    uint8_t *src[2] = {noise(len_bytes, 11), noise(len_bytes, 12)};

    open_team(&team, RDT_TRANSPORT_SHM);
    CHECK_OK(rdt_region_alloc(team.ctx[1], len_bytes, 0, &region, &err), &err);
    uint8_t *dst = rdt_region_addr(region);
    for (int i = 0; i < 4; i++)
        CHECK_OK(exchange(&team, src[0], dst, len_bytes, false, &err), &err);
    for (int i = 0; i < 2; i++)
        CHECK_OK(rdt_group_recv(team.group[1], 0, 7, dst, len_bytes, NULL, &recv[i], &err), &err);
    test_sleep_ns(50000000); /* the sender knows of both */
    rdti_engine_enter(team.ctx[1]->engine);
    for (int i = 0; i < 2; i++)
        CHECK_OK(rdt_group_send(team.group[0], 1, 7, src[i], len_bytes, NULL, &send[i], &err),
                 &err);
    test_sleep_ns(20000000);
    rdti_engine_leave(team.ctx[1]->engine);
    for (int i = 0; i < 2; i++) {
        check_done(recv[i]);
        check_done(send[i]);
    }
    CHECK_MEM_EQ(dst, src[1], len_bytes);
    rdt_region_free(region, NULL, NULL);
    close_team(&team);
    free(src[0]);
    free(src[1]);
}

/* What the peer's WRITTEN says: so many bytes from there on, and perhaps the notification. */
static rdt_status
say_written(struct rdti_mailbox *m, struct rdti_sums sums, const uint8_t *place, uint64_t off,
            uint64_t len_bytes, uint32_t notification)
{
    struct rdt_error err = {0};
    uint8_t body[RDTI_SUMS_BYTES_MAX];

    sums.off_bytes = off;
    sums.len_bytes = len_bytes;
    sums.count = (uint32_t)rdti_sum_count(len_bytes);
    sums.notification = notification;
    rdti_crc32c_chunks(place + off, len_bytes, sums.sums);
    return rdti_sums_on_written(m, body, rdti_sums_encode(&sums, body), &err);
}

TEST_TIMEOUT(a_place_that_was_not_summed_whole_is_refused, 60)
{
    const uint64_t len_bytes = 1 << 18;
    const uint64_t half = len_bytes / 2;
    struct team team;
    struct rdt_error err = {0};
    rdt_region *region;
    rdt_transfer *recv = NULL;
    uint8_t *src = noise(len_bytes, 11);

    open_team(&team, RDT_TRANSPORT_SHM);
    CHECK_OK(rdt_region_alloc(team.ctx[1], len_bytes, 0, &region, &err), &err);
    uint8_t *dst = rdt_region_addr(region);
    for (int i = 0; i < 4; i++)
        CHECK_OK(exchange(&team, src, dst, len_bytes, false, &err), &err);
    CHECK_OK(rdt_group_recv(team.group[1], 0, 7, dst, len_bytes, NULL, &recv, &err), &err);
    const struct rdti_scope *scope = &team.group[1]->scope;
    rdti_engine_enter(team.ctx[1]->engine);
    struct rdti_mailbox *m = rdti_mailbox_of(scope->members[0].ep);
    const struct rdti_rx_stream *stream = rdti_rx_stream_find(m, scope->id, 7);
    CHECK(stream != NULL && stream->told_count == 1);
    const struct rdti_request *told =
        RDTI_CONTAINER(stream->told.next, const struct rdti_request, link);
    const uint32_t landed = rdti_notify_stream((uint32_t)stream->id, (uint32_t)told->place);
    const struct rdti_sums at = {.index = stream->places[told->place].index,
                                 .generation = stream->places[told->place].generation};
    const uint32_t none = RDTI_NOTIFY_NONE;
    CHECK_STATUS(say_written(m, at, dst, 0, half, landed), RDT_EPROTO);
    CHECK_STATUS(say_written(m, at, dst, half, half, landed), RDT_EPROTO);
    CHECK_STATUS(say_written(m, at, dst, 0, 0, landed), RDT_EPROTO);
    CHECK_STATUS(say_written(m, at, dst, 0, half, none), RDT_OK); /* twice the same half */
    CHECK_STATUS(say_written(m, at, dst, 0, half, landed), RDT_EPROTO);
    CHECK_STATUS(say_written(m, at, dst, 0, half, none), RDT_OK);
    CHECK_STATUS(say_written(m, at, dst, half, half, landed), RDT_OK);
    rdti_engine_leave(team.ctx[1]->engine);
    check_done(recv);
    rdt_region_free(region, NULL, NULL);
    close_team(&team);
    free(src);
}

TEST_MAIN()
