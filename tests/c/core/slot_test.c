/* SPDX-License-Identifier: Apache-2.0
 * Slots over every transport: kinds, disagreement, ends on either side, and what is in flight
 * then. */
#include <pthread.h>
#include <sys/mman.h>

#include "pair_rig.h"

static const uint32_t transports[] = {RDT_TRANSPORT_SHM, RDT_TRANSPORT_TCP, RDT_TRANSPORT_VERBS};

#define S RIG_S

static struct rdt_tensor_desc
desc_of(uint32_t kind, uint64_t rows, uint64_t columns)
{
    return (struct rdt_tensor_desc){.struct_size = sizeof(struct rdt_tensor_desc),
                                    .kind = kind,
                                    .dtype = RDT_F32,
                                    .ndim = 2,
                                    .dims = {rows, columns}};
}

static void
wait_free(rdt_transfer *t)
{
    struct rdt_error err = {0};

    check_ok(rdt_transfer_wait(t, 10 * S, &err), &err, "transfer_wait");
    rdt_transfer_free(t);
}

static void
open_slot(const struct pair *pair, const char *name, const struct rdt_tensor_desc *desc,
          rdt_slot **slot, rdt_slot_tx **tx)
{
    struct rdt_error err = {0};

    check_ok(rdt_slot_create(pair->ep[1], name, desc, slot, &err), &err, "slot_create");
    check_ok(rdt_slot_tx_open(pair->ep[0], name, desc, 5 * S, tx, &err), &err, "tx_open");
}

static void
fill(float *tensor, uint64_t elems, int step)
{
    for (uint64_t i = 0; i < elems; i++)
        tensor[i] = (float)step * 1000 + (float)i;
}

static void
check_next(rdt_slot *slot, const float *want, uint64_t rows, uint64_t columns, uint32_t epoch)
{
    struct rdt_error err = {0};
    struct rdt_slot_view view;

    check_ok(rdt_slot_get(slot, 5 * S, &view, &err), &err, "get");
    CHECK_UINT_EQ(view.len_bytes, rows * columns * sizeof(float));
    CHECK_UINT_EQ(view.dims[0], rows);
    CHECK_UINT_EQ(view.dims[1], columns);
    CHECK_UINT_EQ(view.epoch, epoch);
    CHECK_MEM_EQ(view.addr, want, view.len_bytes);
    check_ok(rdt_slot_release(slot, &err), &err, "release");
}

/* ---- Kinds --------------------------------------------------------------------------------- */

TEST(bounded_and_dynamic_tensors_arrive_in_their_shapes)
{
    static float tensor[64 * 32];

    for (int t = pair_first_transport(); t < 3; t++)
        for (uint32_t kind = RDT_SLOT_BOUNDED; kind <= RDT_SLOT_DYNAMIC; kind++) {
            const struct rdt_tensor_desc desc = desc_of(kind, 64, 32);
            struct rdt_error err = {0};
            struct pair pair;
            rdt_slot *slot;
            rdt_slot_tx *tx;
            pair_open(&pair, transports[t]);
            rdt_region *region;
            check_ok(rdt_region_alloc(pair.ctx[0], sizeof(tensor), 0, &region, &err), &err,
                     "alloc");
            open_slot(&pair, "acts", &desc, &slot, &tx);
            for (int step = 0; step < 60; step++) {
                const uint64_t dims[2] = {(uint64_t)step % 65, 1 + (uint64_t)step % 32};
                rdt_transfer *transfer;
                /* Every other time from private memory, which is registered for the send. */
                float *src = step % 2 == 0 ? rdt_region_addr(region) : tensor;
                fill(src, dims[0] * dims[1], step);
                check_ok(rdt_slot_tx_put(tx, src, dims, 5 * S, &transfer, &err), &err, "put");
                check_next(slot, src, dims[0], dims[1], (uint32_t)step);
                wait_free(transfer);
            }
            const uint64_t too_many[2] = {65, 32};
            rdt_transfer *none = NULL;
            if (kind == RDT_SLOT_BOUNDED)
                CHECK_STATUS(rdt_slot_tx_put(tx, tensor, too_many, S, &none, &err), RDT_EMISMATCH);
            else
                CHECK_STATUS(rdt_slot_tx_put(tx, tensor, NULL, S, &none, &err), RDT_EINVAL);
            rdt_slot_tx_destroy(tx);
            rdt_slot_destroy(slot);
            rdt_region_free(region, NULL, NULL);
            pair_close(&pair);
        }
}

TEST(two_buffers_and_no_third)
{
    const struct rdt_tensor_desc desc = desc_of(RDT_SLOT_STATIC, 4, 4);
    float tensor[16];

    for (int t = pair_first_transport(); t < 3; t++) {
        struct rdt_error err = {0};
        struct rdt_slot_view view;
        rdt_transfer *transfers[3] = {0};
        struct pair pair;
        rdt_slot *slot;
        rdt_slot_tx *tx;
        pair_open(&pair, transports[t]);
        open_slot(&pair, "acts", &desc, &slot, &tx);
        for (int i = 0; i < 2; i++) {
            fill(tensor, 16, i);
            check_ok(rdt_slot_tx_put(tx, tensor, NULL, S, &transfers[i], &err), &err, "put");
            wait_free(transfers[i]);
        }
        CHECK_STATUS(rdt_slot_tx_put(tx, tensor, NULL, 20000000, &transfers[2], &err),
                     RDT_ETIMEDOUT);
        CHECK_STR_CONTAINS(err.message, "released no buffer");
        for (int i = 0; i < 2; i++)
            check_ok(rdt_slot_get(slot, S, &view, &err), &err, "get");
        CHECK_STATUS(rdt_slot_get(slot, S, &view, &err), RDT_EBUSY);
        check_ok(rdt_slot_release(slot, &err), &err, "release");
        check_ok(rdt_slot_release(slot, &err), &err, "release");
        CHECK_STATUS(rdt_slot_release(slot, &err), RDT_EINVAL);
        rdt_slot_tx_destroy(tx);
        rdt_slot_destroy(slot);
        pair_close(&pair);
    }
}

/* Each send makes its own memory reachable for its own time, whatever else is sent from there. */
TEST(one_private_tensor_is_sent_twice)
{
    static float tensor[32 * 32];
    const struct rdt_tensor_desc desc = desc_of(RDT_SLOT_DYNAMIC, 32, 32);
    const uint64_t dims[2] = {32, 32};

    fill(tensor, 32 * 32, 3);
    for (int t = 0; t < 2; t++)
        for (uint32_t slots = 1; slots <= 2; slots++) {
            struct rdt_error err = {0};
            struct pair pair;
            rdt_slot *slot[2];
            rdt_slot_tx *tx[2];
            rdt_transfer *transfers[2];
            pair_open(&pair, transports[t]);
            open_slot(&pair, "a", &desc, &slot[0], &tx[0]);
            if (slots == 2)
                open_slot(&pair, "b", &desc, &slot[1], &tx[1]);
            for (uint32_t i = 0; i < 2; i++)
                check_ok(rdt_slot_tx_put(tx[i % slots], tensor, dims, 5 * S, &transfers[i], &err),
                         &err, "put");
            for (uint32_t i = 0; i < 2; i++) {
                check_next(slot[i % slots], tensor, 32, 32, i / slots);
                wait_free(transfers[i]); /* its memory is out of reach from now on */
            }
            for (uint32_t i = 0; i < slots; i++) {
                rdt_slot_tx_destroy(tx[i]);
                rdt_slot_destroy(slot[i]);
            }
            pair_close(&pair);
        }
}

/* The first write into a piece of the peer's arena waits for its descriptor; without a transfer the
 * source must be free all the same. */
TEST(a_put_without_a_transfer_has_taken_its_source)
{
    const struct rdt_tensor_desc desc = desc_of(RDT_SLOT_STATIC, 512, 512);
    float *tensor = malloc(512 * 512 * sizeof(float));
    float *want = malloc(512 * 512 * sizeof(float));

    for (int round = 0; round < 20; round++) {
        struct rdt_error err = {0};
        struct pair pair;
        rdt_slot *slot;
        rdt_slot_tx *tx;
        pair_open(&pair, RDT_TRANSPORT_SHM);
        open_slot(&pair, "acts", &desc, &slot, &tx);
        fill(tensor, 512 * 512, round);
        memcpy(want, tensor, 512 * 512 * sizeof(float));
        check_ok(rdt_slot_tx_put(tx, tensor, NULL, 5 * S, NULL, &err), &err, "put");
        memset(tensor, 0xff, 512 * 512 * sizeof(float));
        check_next(slot, want, 512, 512, 0);
        rdt_slot_tx_destroy(tx);
        rdt_slot_destroy(slot);
        pair_close(&pair);
    }
    free(tensor);
    free(want);
}

/* ---- Disagreement --------------------------------------------------------------------------- */

TEST(a_mismatch_is_an_error_on_both_sides)
{
    const struct rdt_tensor_desc mine = desc_of(RDT_SLOT_STATIC, 4, 4);
    const struct rdt_tensor_desc theirs = desc_of(RDT_SLOT_STATIC, 4, 5);

    for (int t = pair_first_transport(); t < 3; t++) {
        struct rdt_error err = {0};
        struct rdt_slot_view view;
        struct pair pair;
        rdt_slot *slot;
        rdt_slot_tx *tx;
        pair_open(&pair, transports[t]);
        check_ok(rdt_slot_create(pair.ep[1], "acts", &mine, &slot, &err), &err, "slot_create");
        CHECK_STATUS(rdt_slot_tx_open(pair.ep[0], "acts", &theirs, 5 * S, &tx, &err),
                     RDT_EMISMATCH);
        CHECK_STR_CONTAINS(err.message, "[4, 4]");
        CHECK_STR_CONTAINS(err.message, "[4, 5]");
        CHECK_STATUS(rdt_slot_get(slot, 5 * S, &view, &err), RDT_EMISMATCH);
        CHECK_STR_CONTAINS(err.message, "[4, 5]");
        CHECK_INT_EQ(err.peer_rank, 0);
        rdt_slot_destroy(slot);
        CHECK_STATUS(rdt_slot_tx_open(pair.ep[0], "none", &mine, 20000000, &tx, &err),
                     RDT_ETIMEDOUT);
        CHECK_STR_CONTAINS(err.message, "announced no slot 'none'");
        pair_close(&pair);
    }
}

/* ---- Ends ---------------------------------------------------------------------------------- */

TEST(a_name_stands_for_one_live_slot)
{
    const struct rdt_tensor_desc desc = desc_of(RDT_SLOT_STATIC, 4, 4);
    const struct rdt_tensor_desc other = desc_of(RDT_SLOT_BOUNDED, 4, 4);
    struct rdt_error err = {0};
    rdt_slot *slot;
    rdt_slot *second = NULL;
    struct pair pair;

    pair_open(&pair, RDT_TRANSPORT_SHM);
    check_ok(rdt_slot_create(pair.ep[1], "b", &desc, &slot, &err), &err, "slot_create");
    CHECK_STATUS(rdt_slot_create(pair.ep[1], "b", &other, &second, &err), RDT_EINVAL);
    CHECK_STR_CONTAINS(err.message, "'b' lives already");
    CHECK_NULL(second);
    rdt_slot_destroy(slot);
    check_ok(rdt_slot_create(pair.ep[1], "b", &other, &second, &err), &err, "slot_create");
    rdt_slot_destroy(second);
    pair_close(&pair);
}

TEST(a_slot_that_is_opened_again_goes_on)
{
    for (int t = pair_first_transport(); t < 3; t++)
        for (uint32_t kind = RDT_SLOT_STATIC; kind <= RDT_SLOT_BOUNDED; kind++) {
            const struct rdt_tensor_desc desc = desc_of(kind, 8, 8);
            struct rdt_error err = {0};
            struct pair pair;
            rdt_slot *slot;
            rdt_slot_tx *tx;
            rdt_transfer *transfer;
            float tensor[64];
            pair_open(&pair, transports[t]);
            check_ok(rdt_slot_create(pair.ep[1], "acts", &desc, &slot, &err), &err, "create");
            for (int step = 0; step < 7; step++) {
                check_ok(rdt_slot_tx_open(pair.ep[0], "acts", &desc, 5 * S, &tx, &err), &err,
                         "open again");
                fill(tensor, 64, step);
                check_ok(rdt_slot_tx_put(tx, tensor, NULL, 5 * S, &transfer, &err), &err, "put");
                wait_free(transfer);
                if (step % 2 == 0) /* its credit comes while the slot is open, or to nobody */
                    rdt_slot_tx_destroy(tx);
                check_next(slot, tensor, 8, 8, (uint32_t)step);
                if (step % 2 != 0)
                    rdt_slot_tx_destroy(tx);
            }
            rdt_slot_destroy(slot);
            pair_close(&pair);
        }
}

TEST(a_sender_that_goes_takes_nothing_with_it)
{
    const struct rdt_tensor_desc desc = desc_of(RDT_SLOT_BOUNDED, 1024, 1024);

    for (int t = pair_first_transport(); t < 3; t++) {
        struct rdt_error err = {0};
        struct rdt_slot_view view;
        struct pair pair;
        rdt_slot *slot;
        rdt_slot_tx *tx;
        void *buffer;
        pair_open(&pair, transports[t]);
        open_slot(&pair, "acts", &desc, &slot, &tx);
        check_ok(rdt_slot_tx_buffer(tx, 5 * S, &buffer, &err), &err, "buffer");
        fill(buffer, 1024 * 1024, 5);
        const uint64_t dims[2] = {1024, 1000};
        check_ok(rdt_slot_tx_post(tx, dims, NULL, &err), &err, "post");
        rdt_slot_tx_destroy(tx); /* header and staged bytes may still be on their way */
        check_ok(rdt_slot_get(slot, 5 * S, &view, &err), &err, "get");
        CHECK_UINT_EQ(view.dims[1], 1000);
        for (uint64_t i = 0; i < 1024 * 1000; i++)
            CHECK(((const float *)view.addr)[i] == 5000 + (float)i);
        rdt_slot_destroy(slot);
        pair_close(&pair);
    }
}

TEST(a_receiver_that_goes_ends_the_sender_by_name)
{
    for (int t = pair_first_transport(); t < 3; t++)
        for (uint32_t kind = RDT_SLOT_STATIC; kind <= RDT_SLOT_DYNAMIC; kind++) {
            const struct rdt_tensor_desc desc = desc_of(kind, 8, 8);
            const uint64_t dims[2] = {8, 8};
            struct rdt_error err = {0};
            rdt_transfer *late = NULL;
            struct pair pair;
            rdt_slot *slot;
            rdt_slot_tx *tx;
            float tensor[64] = {0};
            pair_open(&pair, transports[t]);
            open_slot(&pair, "acts", &desc, &slot, &tx);
            check_ok(rdt_slot_tx_put(tx, tensor, dims, 5 * S, &late, &err), &err, "put");
            rdt_slot_destroy(slot); /* with data that nobody took */
            const rdt_status first = rdt_transfer_wait(late, 5 * S, &err);
            CHECK(first == RDT_OK || first == RDT_ESTALE || first == RDT_ECLOSED);
            CHECK(kind != RDT_SLOT_DYNAMIC || first == RDT_ECLOSED);
            rdt_transfer_free(late);
            rdt_status status = RDT_OK;
            for (int i = 0; i < 1000 && status != RDT_ECLOSED; i++) {
                late = NULL;
                test_sleep_ns(100000);
                status = rdt_slot_tx_put(tx, tensor, dims, 5 * S, &late, &err);
                if (status != RDT_OK)
                    continue;
                CHECK(rdt_transfer_wait(late, 5 * S, NULL) != RDT_ETIMEDOUT);
                CHECK(rdt_transfer_test(late, NULL) != RDT_EAGAIN); /* every one of them ends */
                rdt_transfer_free(late);
            }
            CHECK_STATUS(status, RDT_ECLOSED);
            CHECK_STR_CONTAINS(err.message, "rank 1 destroyed slot 'acts'");
            rdt_slot_tx_destroy(tx);
            pair_close(&pair);
        }
}

/* As Python does: what a transfer that is over was made of is unmapped. */
TEST_TIMEOUT(a_dynamic_source_is_in_use_until_its_transfer_is_over, 60)
{
    enum { ROWS = 24576, COLUMNS = 1024 };
    const uint64_t len_bytes = (uint64_t)ROWS * COLUMNS * sizeof(float);
    const struct rdt_tensor_desc desc = desc_of(RDT_SLOT_DYNAMIC, ROWS, COLUMNS);
    const uint64_t dims[2] = {ROWS, COLUMNS};

    for (int t = 0; t < 2; t++)
        for (int goes = 0; goes < 2; goes++) { /* the sender's half, or the receiver's */
            struct rdt_error err = {0};
            struct rdt_slot_view view;
            struct pair pair;
            rdt_slot *slot;
            rdt_slot_tx *tx;
            rdt_transfer *transfer;
            float *source =
                mmap(NULL, len_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CHECK(source != MAP_FAILED);
            for (uint64_t i = 0; i < len_bytes / sizeof(float); i += 512)
                source[i] = (float)i;
            pair_open(&pair, transports[t]);
            open_slot(&pair, "acts", &desc, &slot, &tx);
            check_ok(rdt_slot_tx_put(tx, source, dims, 5 * S, &transfer, &err), &err, "put");
            rdt_status got = rdt_slot_get(slot, 2000000, &view, &err); /* begins to read */
            if (goes == 0)
                rdt_slot_tx_destroy(tx);
            else
                rdt_slot_destroy(slot);
            const rdt_status ended = rdt_transfer_wait(transfer, 30 * S, &err);
            CHECK(ended == RDT_ECLOSED);
            rdt_transfer_free(transfer);
            CHECK_INT_EQ(munmap(source, len_bytes), 0);
            if (goes == 0) {
                if (got == RDT_ETIMEDOUT)
                    got = rdt_slot_get(slot, 30 * S, &view, &err);
                CHECK(got == RDT_OK || got == RDT_ESTALE);
                for (uint64_t i = 0; got == RDT_OK && i < len_bytes / sizeof(float); i += 512)
                    CHECK(((const float *)view.addr)[i] == (float)i);
                rdt_slot_destroy(slot);
            } else {
                rdt_slot_tx_destroy(tx);
            }
            for (int i = 0; i < 2; i++) /* nobody died of it */
                check_ok(rdt_endpoint_wait_ready(pair.ep[i], S, &err), &err, "wait_ready");
            pair_close(&pair);
        }
}

TEST(a_receiver_that_goes_has_returned_what_it_read)
{
    const uint64_t dims[2] = {16, 16};
    const struct rdt_tensor_desc desc = desc_of(RDT_SLOT_DYNAMIC, 16, 16);
    float tensor[256];

    for (int t = 0; t < 2; t++) {
        struct pair pair;
        pair_open(&pair, transports[t]);
        for (int round = 0; round < 200; round++) {
            struct rdt_error err = {0};
            char name[24];
            rdt_slot *slot;
            rdt_slot_tx *tx;
            rdt_transfer *transfer;
            (void)snprintf(name, sizeof(name), "acts %d", round);
            open_slot(&pair, name, &desc, &slot, &tx);
            fill(tensor, 256, round);
            check_ok(rdt_slot_tx_put(tx, tensor, dims, 5 * S, &transfer, &err), &err, "put");
            check_next(slot, tensor, 16, 16, 0);
            rdt_slot_destroy(slot); /* its word of it may overtake the credit */
            wait_free(transfer);
            rdt_slot_tx_destroy(tx);
        }
        pair_close(&pair);
    }
}

TEST(a_closed_peer_ends_slots_with_what_has_arrived)
{
    const struct rdt_tensor_desc desc = desc_of(RDT_SLOT_STATIC, 8, 8);
    float tensor[64];

    for (int t = pair_first_transport(); t < 3; t++) {
        struct rdt_error err = {0};
        struct rdt_slot_view view;
        rdt_transfer *transfer;
        struct pair pair;
        rdt_slot *slot;
        rdt_slot_tx *tx;
        pair_open(&pair, transports[t]);
        open_slot(&pair, "acts", &desc, &slot, &tx);
        fill(tensor, 64, 1);
        check_ok(rdt_slot_tx_put(tx, tensor, NULL, 5 * S, &transfer, &err), &err, "put");
        wait_free(transfer);
        rdt_slot_tx_destroy(tx);
        rdt_endpoint_close(pair.ep[0]);
        check_ok(rdt_context_close(pair.ctx[0], &err), &err, "context_close");
        check_ok(rdt_slot_get(slot, 5 * S, &view, &err), &err, "get of what had arrived");
        CHECK_MEM_EQ(view.addr, tensor, sizeof(tensor));
        check_ok(rdt_slot_release(slot, &err), &err, "release");
        CHECK_STATUS(rdt_slot_get(slot, 5 * S, &view, &err), RDT_EPEER);
        CHECK_STR_CONTAINS(err.message, "slot 'acts': rank 0 left");
        rdt_slot_destroy(slot);
        rdt_endpoint_close(pair.ep[1]);
        check_ok(rdt_context_close(pair.ctx[1], &err), &err, "context_close");
    }
}

/* ---- Notifications -------------------------------------------------------------------------- */

TEST(a_program_that_never_looks_hears_of_it)
{
    for (int t = pair_first_transport(); t < 3; t++) {
        struct rdt_error err = {0};
        struct rdt_remote_region remote;
        struct pair pair;
        rdt_region *region;
        rdt_status status = RDT_OK;
        uint32_t value = 0;
        uint32_t sent = 0;
        pair_open(&pair, transports[t]);
        check_ok(rdt_region_alloc(pair.ctx[1], 64, 0, &region, &err), &err, "alloc");
        check_ok(rdt_region_export(region, &remote, &err), &err, "export");
        for (; sent < 70000 && status == RDT_OK; sent++) {
            rdt_transfer *transfer;
            status = rdt_endpoint_write(pair.ep[0], NULL, 0, &remote, 0, sent & RDT_NOTIFY_MAX,
                                        &transfer, &err);
            if (status != RDT_OK)
                break;
            if (sent % 256 == 255)
                status = rdt_transfer_wait(transfer, 10 * S, &err);
            rdt_transfer_free(transfer);
        }
        CHECK_EVENTUALLY(rdt_endpoint_transport(pair.ep[1]) == RDT_TRANSPORT_AUTO, 10);
        for (uint32_t i = 0; i < 65536; i++) { /* none of those that came before is lost */
            check_ok(rdt_endpoint_wait_notify(pair.ep[1], S, &value, &err), &err, "wait_notify");
            CHECK_UINT_EQ(value, i);
        }
        CHECK_STATUS(rdt_endpoint_wait_notify(pair.ep[1], S, &value, &err), RDT_ENOMEM);
        CHECK_STR_CONTAINS(err.message, "never taken");
        rdt_region_free(region, NULL, NULL);
        pair_close(&pair);
    }
}

struct waiter {
    rdt_endpoint *ep;
    rdt_slot *slot;
    uint32_t count;
};

static void *
take_notifications(void *arg)
{
    struct waiter *waiter = arg;
    struct rdt_error err = {0};

    for (uint32_t i = 0; i < waiter->count; i++) {
        uint32_t value = 0;
        check_ok(rdt_endpoint_wait_notify(waiter->ep, 10 * S, &value, &err), &err, "wait_notify");
        CHECK_UINT_EQ(value, i);
    }
    return NULL;
}

static void *
take_tensors(void *arg)
{
    struct waiter *waiter = arg;
    struct rdt_error err = {0};

    for (uint32_t i = 0; i < waiter->count; i++) {
        struct rdt_slot_view view;
        check_ok(rdt_slot_get(waiter->slot, 10 * S, &view, &err), &err, "get");
        CHECK(((const float *)view.addr)[0] == (float)i * 1000);
        check_ok(rdt_slot_release(waiter->slot, &err), &err, "release");
    }
    return NULL;
}

TEST_TIMEOUT(several_threads_wait_for_different_things, 60)
{
    enum { COUNT = 1500 / TEST_TSAN_SHARE };
    const struct rdt_tensor_desc desc = desc_of(RDT_SLOT_STATIC, 4, 4);

    for (int t = pair_first_transport(); t < 3; t++) {
        struct rdt_error err = {0};
        struct rdt_remote_region remote;
        struct waiter waiters[4];
        pthread_t threads[4];
        rdt_slot_tx *tx[3];
        struct pair pair;
        rdt_region *region;
        float tensor[16];
        pair_open(&pair, transports[t]);
        check_ok(rdt_region_alloc(pair.ctx[1], 64, 0, &region, &err), &err, "alloc");
        check_ok(rdt_region_export(region, &remote, &err), &err, "export");
        for (int i = 0; i < 4; i++) { /* one takes notifications, three a slot each */
            char name[8];
            (void)snprintf(name, sizeof(name), "s%d", i);
            waiters[i] = (struct waiter){.ep = pair.ep[1], .count = COUNT};
            if (i > 0)
                open_slot(&pair, name, &desc, &waiters[i].slot, &tx[i - 1]);
            CHECK(pthread_create(&threads[i], NULL, i == 0 ? take_notifications : take_tensors,
                                 &waiters[i]) == 0);
        }
        for (uint32_t step = 0; step < COUNT; step++) {
            rdt_transfer *transfer;
            fill(tensor, 16, (int)step);
            check_ok(rdt_endpoint_write(pair.ep[0], tensor, 64, &remote, 0, step, &transfer, &err),
                     &err, "write");
            wait_free(transfer);
            for (int i = 0; i < 3; i++) {
                check_ok(rdt_slot_tx_put(tx[i], tensor, NULL, 10 * S, &transfer, &err), &err,
                         "put");
                wait_free(transfer);
            }
        }
        for (int i = 0; i < 4; i++)
            (void)pthread_join(threads[i], NULL);
        for (int i = 1; i < 4; i++) {
            rdt_slot_tx_destroy(tx[i - 1]);
            rdt_slot_destroy(waiters[i].slot);
        }
        rdt_region_free(region, NULL, NULL);
        pair_close(&pair);
    }
}

TEST_MAIN()
