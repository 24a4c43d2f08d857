/* SPDX-License-Identifier: Apache-2.0
 * Contexts that verify, over every transport: writes, reads and slots that arrive whole pass; what
 * was changed on the way is found, named, and never given out. */
#include "verify_rig.h"
#include "rdmatensor_ext.h"

/* ---- Writes ------------------------------------------------------------------------------ */

static void
write_sizes(struct pair *pair)
{
    static const uint64_t sizes[] = {0, 1, 8, 16384, 16385, 100000, 4 << 20};
    struct rdt_error err = {0};
    struct rdt_remote_region remote;
    rdt_region *region;
    rdt_transfer *t = NULL;
    uint8_t *src = noise(4 << 20, 1);
    uint64_t total = 0;

    export(pair->ctx[1], 4 << 20, &region, &remote);
    for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        CHECK_OK(rdt_endpoint_write(pair->ep[0], src, sizes[i], &remote, 0, i, &t, &err), &err);
        CHECK_OK(take(pair->ep[1], i, &err), &err);
        CHECK_MEM_EQ(rdt_region_addr(region), src, sizes[i]);
        check_done(t);
        total += sizes[i];
    }
    CHECK_UINT_EQ(counters_of(pair->ctx[1]).verified_bytes, total);
    CHECK_UINT_EQ(counters_of(pair->ctx[1]).mismatches, 0);
    /* Many at once, so that the sums queue; order stays. */
    for (uint32_t i = 0; i < 500; i++)
        CHECK_OK(rdt_endpoint_write(pair->ep[0], src, 64 + i, &remote, i * 4096, i, NULL, &err),
                 &err);
    for (uint32_t i = 0; i < 500; i++)
        CHECK_OK(take(pair->ep[1], i, &err), &err);
    CHECK_UINT_EQ(counters_of(pair->ctx[1]).mismatches, 0);
    CHECK_OK(rdt_endpoint_write(pair->ep[0], src, 0, &remote, 0, 5, &t, &err), &err);
    check_done(t); /* the source is free */
    CHECK_OK(take(pair->ep[1], 5, &err), &err);
    rdt_region_free(region, NULL, NULL);
    free(src);
}

TEST_TIMEOUT(writes_that_arrive_whole_are_compared_and_told_in_order, 60)
{
    for (int i = pair_first_transport(); i < 3; i++) {
        struct pair pair;
        open_pair(&pair, transports[i]);
        write_sizes(&pair);
        pair_close(&pair);
    }
}

static void
corrupted_write(uint32_t transport, const char *name, uint64_t len_bytes, uint64_t off,
                uint32_t notify)
{
    struct pair pair;
    struct rdt_error err = {0};
    struct rdt_remote_region remote;
    rdt_region *region;
    uint8_t *src = noise(len_bytes, 2);
    char where[64];

    open_pair(&pair, transport);
    export(pair.ctx[1], len_bytes + 77, &region, &remote);
    corrupt_next(pair.ep[0], len_bytes, off);
    CHECK_OK(rdt_endpoint_write(pair.ep[0], src, len_bytes, &remote, 77, notify, NULL, &err), &err);
    if (notify == RDT_NOTIFY_NONE) { /* what follows must not pass either, if it is taken at all */
        const rdt_status status = rdt_endpoint_write(pair.ep[0], src, 0, &remote, 0, 9, NULL, &err);
        CHECK(status == RDT_OK || status == RDT_EPEER);
    }
    (void)snprintf(where, sizeof(where), "bytes %llu to ",
                   (unsigned long long)(77 + off / 16384 * 16384));
    CHECK_INT_EQ(take(pair.ep[1], UINT32_MAX, &err), RDT_ECORRUPT);
    check_names(&err, "region", name, where);
    CHECK_INT_EQ(err.peer_rank, 0);
    CHECK_UINT_EQ(counters_of(pair.ctx[1]).mismatches, 1);
    /* The sender learns why the connection ended. */
    CHECK_INT_EQ(take(pair.ep[0], UINT32_MAX, &err), RDT_EPEER);
    CHECK(strstr(err.message, "others than were sent") != NULL);
    rdt_region_free(region, NULL, NULL);
    pair_close(&pair);
    free(evil_bytes);
    free(src);
}

TEST_TIMEOUT(a_write_that_was_changed_is_found_and_not_told, 60)
{
    for (int i = pair_first_transport(); i < 3; i++) {
        corrupted_write(transports[i], names[i], 1, 0, 4);
        corrupted_write(transports[i], names[i], 100000, 99999, 4);
        corrupted_write(transports[i], names[i], 5 << 20, 4 << 20, 4);
        corrupted_write(transports[i], names[i], 5000, 17, RDT_NOTIFY_NONE);
    }
}

TEST(a_write_of_several_blocks_is_compared_block_by_block)
{
    for (int i = pair_first_transport(); i < 3; i++) {
        struct pair pair;
        struct rdt_error err = {0};
        struct rdt_remote_region remote;
        rdt_region *region;
        uint8_t *src = noise(9000, 3);
        const struct rdt_block blocks[2] = {{src, 4000, 100}, {src + 4000, 5000, 8200}};

        open_pair(&pair, transports[i]);
        export(pair.ctx[1], 20000, &region, &remote);
        CHECK_OK(rdt_endpoint_write_many(pair.ep[0], blocks, 2, &remote, 1, NULL, &err), &err);
        CHECK_OK(take(pair.ep[1], 1, &err), &err);
        CHECK_UINT_EQ(counters_of(pair.ctx[1]).verified_bytes, 9000);
        corrupt_next(pair.ep[0], 4000, 3999);
        CHECK_OK(rdt_endpoint_write_many(pair.ep[0], blocks, 2, &remote, 2, NULL, &err), &err);
        CHECK_INT_EQ(take(pair.ep[1], 2, &err), RDT_ECORRUPT);
        check_names(&err, "region", names[i], "bytes 8200 to 13199");
        rdt_region_free(region, NULL, NULL);
        pair_close(&pair);
        free(evil_bytes);
        free(src);
    }
}

TEST(a_region_freed_before_it_was_compared_is_stale)
{
    struct pair pair;
    struct rdt_error err = {0};
    struct rdt_remote_region remote;
    rdt_region *region;
    uint32_t got = 0;
    uint8_t *src = noise(5000, 3);

    open_pair(&pair, RDT_TRANSPORT_SHM);
    export(pair.ctx[1], 5000, &region, &remote);
    rdti_engine_enter(pair.ctx[1]->engine); /* nobody compares meanwhile */
    CHECK_OK(rdt_endpoint_write(pair.ep[0], src, 5000, &remote, 0, 3, NULL, &err), &err);
    rdt_region_free(region, NULL, NULL);
    rdti_engine_leave(pair.ctx[1]->engine);
    CHECK_INT_EQ(rdt_endpoint_wait_notify(pair.ep[1], 15 * S, &got, &err), RDT_ESTALE);
    export(pair.ctx[1], 5000, &region, &remote);
    CHECK_OK(rdt_endpoint_write(pair.ep[0], src, 5000, &remote, 0, 4, NULL, &err), &err);
    CHECK_OK(take(pair.ep[1], 4, &err), &err); /* it goes on */
    rdt_region_free(region, NULL, NULL);
    pair_close(&pair);
    free(src);
}

/* ---- Reads ------------------------------------------------------------------------------- */

TEST_TIMEOUT(reads_are_compared_with_what_their_owner_has, 60)
{
    enum { BYTES = 5 << 20 };

    for (int i = pair_first_transport(); i < 3; i++) {
        struct pair pair;
        struct rdt_error err = {0};
        struct rdt_remote_region remote;
        rdt_region *region;
        rdt_transfer *t = NULL;
        uint8_t *src = noise(BYTES, 5);
        uint8_t *dst = calloc(1, BYTES);

        open_pair(&pair, transports[i]);
        export(pair.ctx[1], BYTES, &region, &remote);
        memcpy(rdt_region_addr(region), src, BYTES);
        CHECK_OK(rdt_endpoint_read(pair.ep[0], dst, BYTES - 3, &remote, 3, &t, &err), &err);
        CHECK_OK(rdt_transfer_wait(t, 15 * S, &err), &err);
        CHECK_UINT_EQ(rdt_transfer_len_bytes(t), BYTES - 3);
        rdt_transfer_free(t);
        CHECK_MEM_EQ(dst, src + 3, BYTES - 3);
        CHECK_UINT_EQ(counters_of(pair.ctx[0]).verified_bytes, BYTES - 3);
        CHECK_OK(rdt_endpoint_read(pair.ep[0], dst, 0, &remote, 3, &t, &err), &err);
        check_done(t);
        corrupt_next(pair.ep[0], 70000, 69999);
        CHECK_OK(rdt_endpoint_read(pair.ep[0], dst, 70000, &remote, 0, &t, &err), &err);
        CHECK_INT_EQ(rdt_transfer_wait(t, 15 * S, &err), RDT_ECORRUPT);
        check_names(&err, "region", names[i], "bytes 65536 to 69999");
        CHECK_INT_EQ(err.peer_rank, 1);
        rdt_transfer_free(t);
        rdt_region_free(region, NULL, NULL);
        pair_close(&pair);
        free(src);
        free(dst);
    }
}

/* ---- Slots ------------------------------------------------------------------------------- */

static void
open_slot(const struct pair *pair, uint32_t kind, rdt_slot **slot, rdt_slot_tx **tx)
{
    struct rdt_error err = {0};
    const struct rdt_tensor_desc desc = {
        .struct_size = sizeof(desc), .kind = kind, .dtype = RDT_U8, .ndim = 1, .dims = {40000}};

    CHECK_OK(rdt_slot_create(pair->ep[1], "layer.0.weight", &desc, slot, &err), &err);
    CHECK_OK(rdt_slot_tx_open(pair->ep[0], "layer.0.weight", &desc, 10 * S, tx, &err), &err);
}

static void
slots_of_kind(uint32_t transport, const char *name, uint32_t kind)
{
    const uint64_t dims[1] = {40000};
    struct pair pair;
    struct rdt_error err = {0};
    struct rdt_slot_view view;
    rdt_slot *slot;
    rdt_slot_tx *tx;
    rdt_transfer *t = NULL;
    uint8_t *src = noise(40000, 6);

    open_pair(&pair, transport);
    open_slot(&pair, kind, &slot, &tx);
    for (uint32_t step = 0; step < 5; step++) {
        src[step] ^= 1;
        CHECK_OK(rdt_slot_tx_put(tx, src, dims, 15 * S, &t, &err), &err);
        CHECK_OK(rdt_slot_get(slot, 15 * S, &view, &err), &err);
        CHECK_UINT_EQ(view.len_bytes, 40000);
        CHECK_MEM_EQ(view.addr, src, 40000);
        CHECK_OK(rdt_slot_release(slot, &err), &err);
        check_done(t);
    }
    CHECK_UINT_LE(5 * 40000, counters_of(pair.ctx[1]).verified_bytes);
    /* A dynamic one is read by its receiver. */
    corrupt_next(pair.ep[kind == RDT_SLOT_DYNAMIC ? 1 : 0], 40000, 20000);
    CHECK_OK(rdt_slot_tx_put(tx, src, dims, 15 * S, &t, &err), &err);
    CHECK_INT_EQ(rdt_slot_get(slot, 15 * S, &view, &err), RDT_ECORRUPT);
    check_names(&err, "slot 'layer.0.weight'", name, "bytes 16384 to 32767");
    CHECK_INT_EQ(err.peer_rank, 0);
    rdt_transfer_free(t);
    rdt_slot_tx_destroy(tx);
    rdt_slot_destroy(slot);
    pair_close(&pair);
    if (kind != RDT_SLOT_DYNAMIC)
        free(evil_bytes);
    free(src);
}

TEST_TIMEOUT(slots_of_all_kinds_are_compared, 60)
{
    for (int i = pair_first_transport(); i < 3; i++)
        for (uint32_t kind = RDT_SLOT_STATIC; kind <= RDT_SLOT_DYNAMIC; kind++)
            slots_of_kind(transports[i], names[i], kind);
}

/* Born in the receiver's own memory where the path is shm: the sums are of what the sender left. */
TEST(tensors_born_in_a_slot_are_compared)
{
    for (int i = pair_first_transport(); i < 3; i++) {
        struct pair pair;
        struct rdt_error err = {0};
        struct rdt_slot_view view;
        rdt_slot *slot;
        rdt_slot_tx *tx;
        rdt_transfer *t = NULL;
        void *buffer = NULL;

        open_pair(&pair, transports[i]);
        open_slot(&pair, RDT_SLOT_STATIC, &slot, &tx);
        for (int step = 0; step < 4; step++) {
            CHECK_OK(rdt_slot_tx_buffer(tx, 15 * S, &buffer, &err), &err);
            memset(buffer, 'a' + step, 40000);
            CHECK_OK(rdt_slot_tx_post(tx, NULL, &t, &err), &err);
            CHECK_OK(rdt_slot_get(slot, 15 * S, &view, &err), &err);
            CHECK(((const char *)view.addr)[39999] == 'a' + step);
            CHECK_OK(rdt_slot_release(slot, &err), &err);
            check_done(t);
        }
        CHECK_UINT_EQ(counters_of(pair.ctx[1]).verified_bytes, 4 * 40000);
        if (transports[i] == RDT_TRANSPORT_SHM) { /* a stray write into what was posted */
            CHECK_OK(rdt_slot_tx_buffer(tx, 15 * S, &buffer, &err), &err);
            rdti_engine_enter(pair.ctx[1]->engine);
            CHECK_OK(rdt_slot_tx_post(tx, NULL, &t, &err), &err);
            ((uint8_t *)buffer)[39999] ^= 1;
            rdti_engine_leave(pair.ctx[1]->engine);
            CHECK_INT_EQ(rdt_slot_get(slot, 15 * S, &view, &err), RDT_ECORRUPT);
            check_names(&err, "slot 'layer.0.weight'", "shm", "bytes 32768 to 39999");
            rdt_transfer_free(t);
        }
        rdt_slot_tx_destroy(tx);
        rdt_slot_destroy(slot);
        pair_close(&pair);
    }
}

/* ---- Set-up ------------------------------------------------------------------------------ */

static rdt_status
open_at(rdt_context *from, const uint8_t *address, size_t address_bytes, int32_t rank,
        rdt_endpoint **out, struct rdt_error *err)
{
    const struct rdt_endpoint_opts opts = {.struct_size = sizeof(opts),
                                           .peer_rank = rank,
                                           .job_id = "job"};

    return rdt_endpoint_open(from, address, address_bytes, &opts, out, err);
}

static void
check_differs(const struct rdt_error *err)
{
    CHECK_INT_EQ(err->status, RDT_EMISMATCH);
    CHECK(strstr(err->message, "rank 0 sums its payload and rank 1 does not") != NULL);
    CHECK(strstr(err->message, "RDMATENSOR_VERIFY") != NULL);
}

/* By what they publish; and, should that have been changed, when they meet. */
TEST(a_rank_that_verifies_and_one_that_does_not_refuse_each_other)
{
    for (int i = pair_first_transport(); i < 3; i++) {
        uint8_t addresses[2][RDT_ADDRESS_MAX_BYTES];
        size_t bytes[2];
        struct pair pair;
        struct rdt_error err = {0};

        pair.ctx[0] = make(transports[i], RDT_VERIFY_CRC32C, 0);
        pair.ctx[1] = make(transports[i], RDT_VERIFY_OFF, 1);
        for (int k = 0; k < 2; k++) {
            CHECK_OK(rdt_context_address(pair.ctx[k], addresses[k], sizeof(addresses[k]), &bytes[k],
                                         &err),
                     &err);
            CHECK_UINT_EQ(addresses[k][126], k == 0 ? 1 : 0);
        }
        for (int k = 0; k < 2; k++) {
            CHECK_INT_EQ(open_at(pair.ctx[k], addresses[1 - k], bytes[1 - k], 1 - k, &pair.ep[k],
                                 &err),
                         RDT_EMISMATCH);
            check_differs(&err);
        }
        for (int k = 0; k < 2; k++) {
            addresses[1 - k][126] ^= 1;
            CHECK_OK(open_at(pair.ctx[k], addresses[1 - k], bytes[1 - k], 1 - k, &pair.ep[k], &err),
                     &err);
        }
        for (int k = 0; k < 2; k++) {
            (void)!rdt_endpoint_wait_ready(pair.ep[k], 10 * S, &err);
            check_differs(&err);
        }
        pair_close(&pair);
    }
}

TEST(describe_says_whether_and_how_much)
{
    char text[8192];
    size_t needed = 0;
    struct rdt_error err = {0};
    rdt_context *ctx[2] = {make(RDT_TRANSPORT_SHM, RDT_VERIFY_CRC32C, 0),
                           make(RDT_TRANSPORT_SHM, RDT_VERIFY_OFF, 0)};

    CHECK_OK(rdt_context_describe(ctx[0], text, sizeof(text), &needed, &err), &err);
    CHECK(strstr(text, "\"verify\":\"crc32c\"") != NULL);
    CHECK(strstr(text, "\"verified_bytes\":0") != NULL);
    CHECK_OK(rdt_context_describe(ctx[1], text, sizeof(text), &needed, &err), &err);
    CHECK(strstr(text, "\"verify\":\"off\"") != NULL);
    CHECK_UINT_EQ(rdt_context_verifies(ctx[0]), RDT_VERIFY_CRC32C);
    CHECK_UINT_EQ(rdt_context_verifies(ctx[1]), RDT_VERIFY_OFF);
    for (int i = 0; i < 2; i++)
        CHECK_OK(rdt_context_close(ctx[i], &err), &err);
}

TEST_MAIN()
