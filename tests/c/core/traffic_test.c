/* SPDX-License-Identifier: Apache-2.0
 * What is counted of bytes: by path, by class, and where they took a slower way than they should
 * have; and paths to a peer that another had reached before. */
#include <string.h>

#include "pair_rig.h"
#include "process/process.h"
#include "wire/address.h"
#include "rdmatensor_ext.h"

static const uint32_t transports[] = {RDT_TRANSPORT_SHM, RDT_TRANSPORT_TCP, RDT_TRANSPORT_VERBS};

enum { ELEMS = 3000, BYTES = ELEMS * 4, HEADER_MOST = 1024 };

static struct rdt_counters
counters_of(rdt_context *ctx)
{
    struct rdt_counters now = {.struct_size = sizeof(now)};

    rdt_context_counters(ctx, &now);
    /* Whatever path and class it is of, it is there once. */
    CHECK_UINT_EQ(now.shm_bytes + now.tcp_bytes + now.verbs_bytes, now.moved_bytes);
    CHECK_UINT_EQ(now.planned_bytes + now.dynamic_bytes + now.control_bytes, now.moved_bytes);
    CHECK_UINT_LE(now.planned_copied_bytes + now.dynamic_copied_bytes, now.copied_bytes);
    CHECK_UINT_LE(now.planned_control_messages + now.dynamic_control_messages,
                  now.control_messages);
    return now;
}

static uint64_t
bytes_over(const struct rdt_counters *counters, uint32_t transport)
{
    const uint64_t of[] = {0, counters->shm_bytes, counters->tcp_bytes, counters->verbs_bytes};

    return of[transport];
}

static void
end_transfer(rdt_transfer *t)
{
    struct rdt_error err = {0};

    check_ok(rdt_transfer_wait(t, 10 * RIG_S, &err), &err, "transfer_wait");
    rdt_transfer_free(t);
}

static void
write_once(struct pair *pair, const void *src, uint64_t len_bytes)
{
    struct rdt_remote_region remote;
    struct rdt_error err = {0};
    rdt_region *region;
    rdt_transfer *t;

    check_ok(rdt_region_alloc(pair->ctx[1], len_bytes, 0, &region, &err), &err, "alloc");
    check_ok(rdt_region_export(region, &remote, &err), &err, "export");
    check_ok(rdt_endpoint_write(pair->ep[0], src, len_bytes, &remote, 0, RDT_NOTIFY_NONE, &t, &err),
             &err, "write");
    end_transfer(t);
    rdt_region_free(region, NULL, NULL);
}

/* A tensor of BYTES goes from rank 0 to rank 1. */
static void
put_once(struct pair *pair, uint32_t kind, const void *src)
{
    const uint64_t dims[] = {ELEMS};
    const struct rdt_tensor_desc desc = {
        .struct_size = sizeof(desc), .kind = kind, .dtype = RDT_F32, .ndim = 1, .dims = {ELEMS}};
    struct rdt_error err = {0};
    struct rdt_slot_view view;
    rdt_slot_tx *tx;
    rdt_slot *slot;
    rdt_transfer *t;
    const char *name = kind == RDT_SLOT_STATIC    ? "static"
                       : kind == RDT_SLOT_BOUNDED ? "bounded"
                                                  : "dynamic";

    check_ok(rdt_slot_create(pair->ep[1], name, &desc, &slot, &err), &err, "slot_create");
    check_ok(rdt_slot_tx_open(pair->ep[0], name, &desc, 10 * RIG_S, &tx, &err), &err, "tx_open");
    check_ok(rdt_slot_tx_put(tx, src, kind == RDT_SLOT_STATIC ? NULL : dims, 10 * RIG_S, &t, &err),
             &err, "put");
    check_ok(rdt_slot_get(slot, 10 * RIG_S, &view, &err), &err, "get");
    CHECK_MEM_EQ(view.addr, src, BYTES);
    check_ok(rdt_slot_release(slot, &err), &err, "release");
    end_transfer(t);
    rdt_slot_tx_destroy(tx);
    rdt_slot_destroy(slot);
}

/* So many bytes of the class, over the path, since `before`; of others none, but for some heads. */
static void
check_grown(rdt_context *ctx, const struct rdt_counters *before, uint32_t transport,
            uint64_t planned, uint64_t dynamic)
{
    const struct rdt_counters now = counters_of(ctx);
    const uint64_t control = now.control_bytes - before->control_bytes;

    CHECK_UINT_GE(now.planned_bytes - before->planned_bytes, planned);
    CHECK_UINT_LE(now.planned_bytes - before->planned_bytes, planned + HEADER_MOST);
    CHECK_UINT_GE(now.dynamic_bytes - before->dynamic_bytes, dynamic);
    CHECK_UINT_LE(now.dynamic_bytes - before->dynamic_bytes, dynamic + HEADER_MOST);
    CHECK_UINT_LE(control, HEADER_MOST);
    CHECK_UINT_EQ(bytes_over(&now, transport) - bytes_over(before, transport),
                  now.moved_bytes - before->moved_bytes);
    CHECK_UINT_EQ(now.fallback_bytes, 0); /* the path was forced: nothing better was wanted */
}

TEST_TIMEOUT(bytes_are_counted_by_path_and_class, 60)
{
    static float tensor[ELEMS];

    for (int i = 0; i < ELEMS; i++)
        tensor[i] = (float)i;
    for (int t = pair_first_transport(); t < 3; t++) {
        struct pair pair;
        pair_open(&pair, transports[t]);
        for (uint32_t kind = 0; kind <= RDT_SLOT_DYNAMIC; kind++) {
            const bool is_pulled = kind == RDT_SLOT_DYNAMIC;
            const struct rdt_counters before[] = {counters_of(pair.ctx[0]),
                                                  counters_of(pair.ctx[1])};
            if (kind == 0)
                write_once(&pair, tensor, BYTES);
            else
                put_once(&pair, kind, tensor);
            check_grown(pair.ctx[0], &before[0], transports[t], is_pulled ? 0 : BYTES, 0);
            check_grown(pair.ctx[1], &before[1], transports[t], 0, is_pulled ? BYTES : 0);
        }
        pair_close(&pair);
    }
}

/* `copied_most`, `told`: of planned and of dynamic tensors. */
static void
check_classes(rdt_context *ctx, const struct rdt_counters *before, uint64_t copied_most[2],
              uint64_t told[2])
{
    const struct rdt_counters now = counters_of(ctx);

    CHECK_UINT_LE(now.planned_copied_bytes - before->planned_copied_bytes, copied_most[0]);
    CHECK_UINT_LE(now.dynamic_copied_bytes - before->dynamic_copied_bytes, copied_most[1]);
    CHECK_UINT_EQ(now.planned_control_messages - before->planned_control_messages, told[0]);
    CHECK_UINT_EQ(now.dynamic_control_messages - before->dynamic_control_messages, told[1]);
}

/* A slot is announced once; an address of a dynamic tensor travels with each. None is copied, but
 * that verbs sends a small tensor of private memory, with its header, over the stage: cheaper than
 * to register what may be sent once only. What is pulled is registered on both sides. */
TEST_TIMEOUT(control_messages_of_slots_are_of_their_class, 60)
{
    static float tensor[ELEMS];

    for (uint32_t t = (uint32_t)pair_first_transport(); t < 3; t++) {
        struct pair pair;
        pair_open(&pair, transports[t]);
        for (uint32_t kind = RDT_SLOT_STATIC; kind <= RDT_SLOT_DYNAMIC; kind++) {
            const uint64_t is_dynamic = kind == RDT_SLOT_DYNAMIC;
            const struct rdt_counters before[] = {counters_of(pair.ctx[0]),
                                                  counters_of(pair.ctx[1])};
            put_once(&pair, kind, tensor);
            const bool may_stage = transports[t] == RDT_TRANSPORT_VERBS && !is_dynamic;
            check_classes(pair.ctx[0], &before[0],
                          (uint64_t[]){may_stage ? BYTES + HEADER_MOST : 0, 0},
                          (uint64_t[]){0, is_dynamic});
            check_classes(pair.ctx[1], &before[1], (uint64_t[]){0, 0},
                          (uint64_t[]){1 - is_dynamic, is_dynamic});
        }
        pair_close(&pair);
    }
}

static rdt_status
address_of(void *arg, uint32_t rank, uint64_t timeout_ns, uint8_t *buf, size_t cap, size_t *len_out,
           struct rdt_error *err)
{
    const struct pair *pair = arg;

    (void)timeout_ns;
    return rdt_context_address(pair->ctx[rank], buf, cap, len_out, err);
}

/* A message of `len_bytes` came before its receive: `side` 0 sent it. A small one goes into the
 * ring, and out of it to be kept or to its place. A large one is offered; over shm its receiver
 * reads it, and copies it from a place that it grants only where the kernel refuses that. Over
 * verbs what goes into the ring, or lies in memory that is not registered, goes over the stage too.
 */
static void
check_message(const struct rdt_counters *before, const struct rdt_counters *now, uint32_t transport,
              int side, uint64_t len_bytes, bool is_offered)
{
    const uint64_t copied = now->dynamic_copied_bytes - before->dynamic_copied_bytes;
    const uint64_t told = now->dynamic_control_messages - before->dynamic_control_messages;
    const uint64_t in_ring = is_offered ? 0 : len_bytes;
    const bool is_reader = transport == RDT_TRANSPORT_SHM && is_offered && side == 1;
    uint64_t most = (side == 0 ? 1 : 2) * in_ring;

    if (transport == RDT_TRANSPORT_VERBS)
        most += len_bytes + HEADER_MOST;
    else if (is_reader && told > 0)
        most += len_bytes;
    CHECK_UINT_EQ(now->planned_copied_bytes, before->planned_copied_bytes);
    CHECK_UINT_EQ(now->planned_control_messages, before->planned_control_messages);
    CHECK_UINT_GE(copied, in_ring);
    CHECK_UINT_LE(copied, most);
    if (!is_offered)
        CHECK_UINT_EQ(told, 0);
    else if (!is_reader)
        CHECK_UINT_GE(told, 1);
}

TEST_TIMEOUT(copies_of_messages_are_dynamic, 60)
{
    static uint8_t from[1 << 20];
    static uint8_t to[1 << 20];
    static const uint64_t sizes[] = {100, sizeof(from)};

    for (uint32_t t = (uint32_t)pair_first_transport(); t < 3; t++) {
        struct rdt_error err = {0};
        struct pair pair;
        rdt_group *group[2];
        pair_open(&pair, transports[t]);
        for (uint32_t i = 0; i < 2; i++) {
            const struct rdt_group_opts opts = {.struct_size = sizeof(opts),
                                                .rank = i,
                                                .size = 2,
                                                .name = "world",
                                                .job_id = "job",
                                                .address = address_of,
                                                .address_arg = &pair};
            check_ok(rdt_group_create(pair.ctx[i], &opts, &group[i], &err), &err, "group_create");
        }
        for (size_t s = 0; s < 2; s++) {
            const struct rdt_counters before[] = {counters_of(pair.ctx[0]),
                                                  counters_of(pair.ctx[1])};
            rdt_transfer *sent;
            rdt_transfer *received;
            check_ok(rdt_group_send(group[0], 1, s, from, sizes[s], NULL, &sent, &err), &err,
                     "send");
            check_ok(rdt_group_recv(group[1], 0, s, to, sizes[s], NULL, &received, &err), &err,
                     "recv");
            end_transfer(received);
            end_transfer(sent);
            const struct rdt_counters now[] = {counters_of(pair.ctx[0]), counters_of(pair.ctx[1])};
            for (int i = 0; i < 2; i++)
                check_message(&before[i], &now[i], transports[t], i, sizes[s], s == 1);
        }
        for (int i = 0; i < 2; i++)
            rdt_group_destroy(group[i]);
        pair_close(&pair);
    }
}

/* What peers tell each other next to the data: no transport moves it, and it is counted. Over tcp a
 * target refuses by itself, so that the ends of regions are told to nobody. */
TEST_TIMEOUT(side_channels_are_counted_apart, 60)
{
    enum { REGIONS = 100 };
    static const uint8_t bytes[64];

    for (int t = pair_first_transport(); t < 3; t++) {
        const uint64_t told_bytes =
            transports[t] == RDT_TRANSPORT_TCP ? 0 : RDTI_REVOKE_BYTES * REGIONS;
        struct pair pair;
        pair_open(&pair, transports[t]);
        const uint64_t before[] = {counters_of(pair.ctx[0]).side_channel_bytes,
                                   counters_of(pair.ctx[1]).side_channel_bytes};
        CHECK_UINT_GE(before[1], 100); /* set-up */
        for (int i = 0; i < REGIONS; i++)
            write_once(&pair, bytes, sizeof(bytes));
        for (int i = 0; i < 2; i++) /* their ends are told, and answered */
            CHECK_EVENTUALLY(counters_of(pair.ctx[i]).side_channel_bytes >= before[i] + told_bytes,
                             10);
        CHECK_UINT_LE(counters_of(pair.ctx[0]).control_bytes, HEADER_MOST);
        pair_close(&pair);
    }
}

/* ---- Slower than it should be ---------------------------------------------------------------- */

/* As if rank 0 did not find the socket by which memory is handed over. */
static void
open_without_shm(rdt_context *from, rdt_context *to, int32_t to_rank, rdt_endpoint **out)
{
    const struct rdt_endpoint_opts opts = {.struct_size = sizeof(opts),
                                           .peer_rank = to_rank,
                                           .job_id = "job"};
    struct rdt_error err = {0};
    struct rdti_address address;
    uint8_t bytes[RDT_ADDRESS_MAX_BYTES];
    size_t len_bytes = 0;

    check_ok(rdt_context_address(to, bytes, sizeof(bytes), &len_bytes, &err), &err, "address");
    check_ok(rdti_address_decode(bytes, len_bytes, &address, &err), &err, "decode");
    memset(address.unix_name, 0, sizeof(address.unix_name));
    check_ok(rdti_address_encode(&address, bytes, sizeof(bytes), &len_bytes, &err), &err, "encode");
    check_ok(rdt_endpoint_open(from, bytes, len_bytes, &opts, out, &err), &err, "open");
}

TEST(a_pair_of_one_host_without_shared_memory_falls_back)
{
    static char text[65536];
    static uint8_t bytes[5000];
    struct rdt_error err = {0};
    struct pair pair;
    size_t needed = 0;

    for (int i = 0; i < 2; i++)
        context_make(&pair.ctx[i], RDT_TRANSPORT_AUTO, "secret", i);
    for (int i = 0; i < 2; i++)
        open_without_shm(pair.ctx[i], pair.ctx[1 - i], 1 - i, &pair.ep[i]);
    for (int i = 0; i < 2; i++)
        check_ok(rdt_endpoint_wait_ready(pair.ep[i], 10 * RIG_S, &err), &err, "wait_ready");
    CHECK_UINT_EQ(rdt_endpoint_transport(pair.ep[0]), RDT_TRANSPORT_TCP);
    write_once(&pair, bytes, sizeof(bytes));
    CHECK_UINT_EQ(counters_of(pair.ctx[0]).fallback_bytes, sizeof(bytes));
    CHECK_UINT_EQ(counters_of(pair.ctx[1]).fallback_bytes, 0); /* who moves it counts it */
    check_ok(rdt_context_describe(pair.ctx[0], text, sizeof(text), &needed, &err), &err,
             "describe");
    CHECK_STR_CONTAINS(text, "\"is_fallback\":true");
    CHECK_STR_CONTAINS(text, "\"fallback_bytes\":5000");
    CHECK_STR_CONTAINS(text, "\"tcp\":{\"planned_bytes\":5000,\"dynamic_bytes\":0,");
    pair_close(&pair);
}

TEST(shared_memory_is_no_fallback)
{
    static uint8_t bytes[5000];
    struct pair pair;

    pair_open(&pair, RDT_TRANSPORT_AUTO);
    CHECK_UINT_EQ(rdt_endpoint_transport(pair.ep[0]), RDT_TRANSPORT_SHM);
    write_once(&pair, bytes, sizeof(bytes));
    CHECK_UINT_EQ(counters_of(pair.ctx[0]).fallback_bytes, 0);
    pair_close(&pair);
}

/* ---- Again ----------------------------------------------------------------------------------- */

TEST_TIMEOUT(a_path_to_a_peer_that_was_met_is_a_reconnection, 60)
{
    for (int t = pair_first_transport(); t < 2; t++) {
        struct rdt_error err = {0};
        struct pair pair;
        pair_open(&pair, transports[t]);
        for (uint64_t again = 0; again < 3; again++) {
            for (int i = 0; i < 2; i++)
                CHECK_UINT_EQ(counters_of(pair.ctx[i]).reconnections, again);
            for (int i = 0; i < 2; i++)
                rdt_endpoint_close(pair.ep[i]);
            for (int i = 0; i < 2; i++)
                endpoint_make(pair.ctx[i], pair.ctx[1 - i], 1 - i, &pair.ep[i]);
            for (int i = 0; i < 2; i++)
                check_ok(rdt_endpoint_wait_ready(pair.ep[i], 10 * RIG_S, &err), &err, "again");
        }
        pair_close(&pair);
    }
}

/* A struct of an older header ends before what was added since. */
TEST(a_shorter_struct_is_filled_as_far_as_it_goes)
{
    struct pair pair;
    struct rdt_counters old = {.struct_size = offsetof(struct rdt_counters, shm_bytes),
                               .shm_bytes = 77};
    const struct rdt_counters more = {.struct_size = offsetof(struct rdt_counters, shm_bytes),
                                      .moved_bytes = 5,
                                      .planned_bytes = 4};

    pair_open(&pair, RDT_TRANSPORT_SHM);
    const struct rdt_counters before = counters_of(pair.ctx[0]);
    rdt_context_count(pair.ctx[0], &more);
    const struct rdt_counters after = counters_of(pair.ctx[0]);
    CHECK_UINT_EQ(after.dynamic_bytes - before.dynamic_bytes, 5);
    CHECK_UINT_EQ(after.planned_bytes, before.planned_bytes);
    rdt_context_counters(pair.ctx[0], &old);
    CHECK_UINT_EQ(old.moved_bytes, after.moved_bytes);
    CHECK_UINT_EQ(old.shm_bytes, 77);
    pair_close(&pair);
}

TEST_MAIN()
