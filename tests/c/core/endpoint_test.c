/* SPDX-License-Identifier: Apache-2.0
 * The whole core over every transport: set-up, writes, notifications, reads, refusals, ends. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory/copy.h"
#include "endpoint/endpoint_impl.h"
#include "pair_rig.h"

static const uint32_t transports[] = {RDT_TRANSPORT_SHM, RDT_TRANSPORT_TCP, RDT_TRANSPORT_VERBS};

static void
wait_free(rdt_transfer *t)
{
    struct rdt_error err = {0};

    check_ok(rdt_transfer_wait(t, 10 * RIG_S, &err), &err, "transfer_wait");
    rdt_transfer_free(t);
}

TEST(both_sides_open_at_once_and_get_one_endpoint)
{
    for (int round = 0; round < 20; round++)
        for (int i = pair_first_transport(); i < 3; i++) {
            struct pair pair;
            pair_open(&pair, transports[i]);
            CHECK(rdt_endpoint_transport(pair.ep[0]) == transports[i]);
            CHECK(rdt_endpoint_transport(pair.ep[1]) == transports[i]);
            pair_close(&pair);
        }
}

TEST(auto_takes_shared_memory_on_one_host)
{
    struct pair pair;

    pair_open(&pair, RDT_TRANSPORT_AUTO);
    CHECK(rdt_endpoint_transport(pair.ep[0]) == RDT_TRANSPORT_SHM);
    pair_close(&pair);
}

static void
write_and_read(struct pair *pair)
{
    enum { BYTES = 3 << 20 };
    struct rdt_error err = {0};
    struct rdt_remote_region remote;
    rdt_region *region;
    rdt_transfer *t = NULL;
    uint32_t notification = 0;
    uint8_t *src = malloc(BYTES);
    uint8_t *back = calloc(1, BYTES);

    for (size_t i = 0; i < BYTES; i++)
        src[i] = (uint8_t)(i * 31 + (i >> 9));
    check_ok(rdt_region_alloc(pair->ctx[1], BYTES, 0, &region, &err), &err, "alloc");
    check_ok(rdt_region_export(region, &remote, &err), &err, "export");
    check_ok(rdt_endpoint_write(pair->ep[0], src, BYTES, &remote, 0, 77, &t, &err), &err, "write");
    check_ok(rdt_endpoint_wait_notify(pair->ep[1], 10 * RIG_S, &notification, &err), &err,
             "wait_notify");
    CHECK(notification == 77);
    CHECK(memcmp(rdt_region_addr(region), src, BYTES) == 0);
    wait_free(t);
    check_ok(rdt_endpoint_read(pair->ep[0], back, BYTES - 5, &remote, 5, &t, &err), &err, "read");
    wait_free(t);
    CHECK(memcmp(back, src + 5, BYTES - 5) == 0);
    CHECK(rdt_endpoint_write(pair->ep[0], src, 2, &remote, BYTES - 1, 1, NULL, &err) == RDT_ERANGE);
    rdt_region_free(region, NULL, NULL);
    free(src);
    free(back);
}

TEST(write_lands_before_its_notification)
{
    for (int i = pair_first_transport(); i < 3; i++) {
        struct pair pair;
        pair_open(&pair, transports[i]);
        write_and_read(&pair);
        pair_close(&pair);
    }
}

struct taker {
    rdt_endpoint *ep;
    uint32_t count;
    uint64_t sum;
    pthread_t thread;
};

static void *
take_notifications(void *arg)
{
    struct taker *taker = arg;
    struct rdt_error err = {0};
    uint32_t value = 0;

    for (uint32_t i = 0; i < taker->count; i++) {
        check_ok(rdt_endpoint_wait_notify(taker->ep, 10 * RIG_S, &value, &err), &err,
                 "wait_notify");
        taker->sum += value;
    }
    return NULL;
}

/* Both see that there is one, and one of them takes it: the other waits on. */
TEST_TIMEOUT(two_threads_wait_for_notifications, 60)
{
    enum { EACH = 400 };
    for (int i = pair_first_transport(); i < 3; i++) {
        struct taker takers[2];
        struct rdt_error err = {0};
        struct rdt_remote_region remote;
        rdt_region *region;
        struct pair pair;
        uint64_t sum = 0;

        pair_open(&pair, transports[i]);
        check_ok(rdt_region_alloc(pair.ctx[1], 64, 0, &region, &err), &err, "alloc");
        check_ok(rdt_region_export(region, &remote, &err), &err, "export");
        for (int k = 0; k < 2; k++) {
            takers[k] = (struct taker){.ep = pair.ep[1], .count = EACH};
            CHECK(pthread_create(&takers[k].thread, NULL, take_notifications, &takers[k]) == 0);
        }
        for (uint32_t n = 1; n <= 2 * EACH; n++) {
            rdt_transfer *t = NULL;
            check_ok(rdt_endpoint_write(pair.ep[0], "12345678", 8, &remote, 0, n, &t, &err), &err,
                     "write");
            wait_free(t);
            sum += n;
        }
        for (int k = 0; k < 2; k++)
            CHECK(pthread_join(takers[k].thread, NULL) == 0);
        CHECK_UINT_EQ(takers[0].sum + takers[1].sum, sum);
        rdt_region_free(region, NULL, NULL);
        pair_close(&pair);
    }
}

TEST(a_stale_region_is_refused)
{
    for (int i = pair_first_transport(); i < 3; i++) {
        struct pair pair;
        struct rdt_error err = {0};
        struct rdt_remote_region remote;
        rdt_region *region;
        rdt_transfer *t = NULL;
        uint64_t word = 1;

        pair_open(&pair, transports[i]);
        check_ok(rdt_region_alloc(pair.ctx[1], 64, RDT_REGION_ZERO, &region, &err), &err, "alloc");
        check_ok(rdt_region_export(region, &remote, &err), &err, "export");
        check_ok(rdt_endpoint_write(pair.ep[0], &word, 8, &remote, 0, RDT_NOTIFY_NONE, &t, &err),
                 &err, "write");
        wait_free(t);
        rdt_region_free(region, NULL, NULL);
        /* Over verbs nothing but the owner's word ends a region: until it is here, writes land in
         * the quarantine, which waits for them. */
        const uint64_t deadline_ns = test_now_ns() + 10 * RIG_S;
        rdt_status status;
        do {
            status =
                rdt_endpoint_write(pair.ep[0], &word, 8, &remote, 0, RDT_NOTIFY_NONE, &t, &err);
            if (status == RDT_OK) {
                status = rdt_transfer_wait(t, 10 * RIG_S, &err);
                rdt_transfer_free(t);
            }
        } while (status == RDT_OK && transports[i] == RDT_TRANSPORT_VERBS &&
                 test_now_ns() < deadline_ns);
        CHECK(status == RDT_ESTALE);
        pair_close(&pair);
    }
}

TEST(the_end_of_a_region_that_cannot_be_is_refused)
{
    static const uint32_t indices[] = {0, RDTI_REGION_INDEX_MAX + 1, 0x7fffffff, 0x80000000,
                                       UINT32_MAX};

    for (int i = pair_first_transport(); i < 3; i++)
        for (size_t k = 0; k < sizeof(indices) / sizeof(indices[0]); k++) {
            const struct rdti_revoke revoke = {.index = indices[k], .generation = 1};
            uint8_t payload[RDTI_FRAME_PAYLOAD_MAX];
            struct rdt_error err = {0};
            struct pair pair;
            uint32_t none;
            pair_open(&pair, transports[i]);
            rdti_engine_enter(pair.ctx[0]->engine);
            rdti_endpoint_send_frame(pair.ep[0], RDTI_FRAME_REVOKE, payload,
                                     rdti_revoke_encode(&revoke, payload));
            rdti_engine_leave(pair.ctx[0]->engine);
            CHECK_STATUS(rdt_endpoint_wait_notify(pair.ep[1], 10 * RIG_S, &none, &err), RDT_EPROTO);
            CHECK_STR_CONTAINS(err.message, "no region can be");
            pair_close(&pair);
        }
}

TEST(a_wrong_secret_is_refused)
{
    for (int i = pair_first_transport(); i < 3; i++) {
        struct rdt_error err = {0};
        rdt_context *ctx[2];
        rdt_endpoint *ep;
        context_make(&ctx[0], transports[i], "right", 0);
        context_make(&ctx[1], transports[i], "wrong", 1);
        endpoint_make(ctx[0], ctx[1], 1, &ep);
        CHECK(rdt_endpoint_wait_ready(ep, 10 * RIG_S, &err) == RDT_EAUTH);
        rdt_endpoint_close(ep);
        for (int k = 0; k < 2; k++)
            check_ok(rdt_context_close(ctx[k], &err), &err, "context_close");
    }
}

TEST(a_static_slot_carries_tensors_in_order)
{
    for (int i = pair_first_transport(); i < 3; i++) {
        struct pair pair;
        struct rdt_error err = {0};
        const struct rdt_tensor_desc desc = {.struct_size = sizeof(desc),
                                             .kind = RDT_SLOT_STATIC,
                                             .dtype = RDT_F32,
                                             .ndim = 2,
                                             .dims = {16, 3}};
        rdt_slot *slot;
        rdt_slot_tx *tx;
        float tensor[48];

        pair_open(&pair, transports[i]);
        check_ok(rdt_slot_create(pair.ep[1], "acts", &desc, &slot, &err), &err, "slot_create");
        check_ok(rdt_slot_tx_open(pair.ep[0], "acts", &desc, 5 * RIG_S, &tx, &err), &err,
                 "tx_open");
        for (int step = 0; step < 5000; step++) {
            struct rdt_slot_view view;
            rdt_transfer *t = NULL;
            for (int k = 0; k < 48; k++)
                tensor[k] = (float)(step * 100 + k);
            if (step % 2 == 0) {
                check_ok(rdt_slot_tx_put(tx, tensor, NULL, 5 * RIG_S, &t, &err), &err, "put");
            } else {
                void *buffer;
                check_ok(rdt_slot_tx_buffer(tx, 5 * RIG_S, &buffer, &err), &err, "buffer");
                memcpy(buffer, tensor, sizeof(tensor));
                check_ok(rdt_slot_tx_post(tx, NULL, &t, &err), &err, "post");
            }
            check_ok(rdt_slot_get(slot, 5 * RIG_S, &view, &err), &err, "get");
            CHECK(view.len_bytes == sizeof(tensor) && view.epoch == (uint32_t)step);
            CHECK(memcmp(view.addr, tensor, sizeof(tensor)) == 0);
            check_ok(rdt_slot_release(slot, &err), &err, "release");
            wait_free(t);
        }
        CHECK(rdt_slot_get(slot, 1000000, &(struct rdt_slot_view){0}, &err) == RDT_ETIMEDOUT);
        rdt_slot_tx_destroy(tx);
        rdt_slot_destroy(slot);
        pair_close(&pair);
    }
}

TEST(describe_names_the_path)
{
    struct pair pair;
    struct rdt_error err = {0};
    char text[16384];
    char want[64];
    size_t needed = 0;

    pair_open(&pair, RDT_TRANSPORT_AUTO);
    check_ok(rdt_context_describe(pair.ctx[0], text, sizeof(text), &needed, &err), &err,
             "describe");
    CHECK(strlen(text) == needed);
    CHECK(strstr(text, "\"state\":\"ready\",\"path\":\"shm\"") != NULL);
    (void)snprintf(want, sizeof(want), "\"copies_tuned_for\":\"%s\"",
                   rdti_copy_table()->measured_on);
    CHECK_STR_CONTAINS(text, want);
    CHECK(rdt_context_describe(pair.ctx[0], text, 10, &needed, &err) == RDT_EINVAL);
    CHECK(needed > 10 && text[0] == '\0');
    CHECK(rdt_context_describe(pair.ctx[0], NULL, 0, &needed, &err) == RDT_EINVAL);
    CHECK(needed > 10);
    pair_close(&pair);
}

TEST_MAIN()
