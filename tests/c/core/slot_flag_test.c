/* SPDX-License-Identifier: Apache-2.0
 * Slots whose tensors are announced by flags: all kinds, receivers that sleep, halves that come and
 * go, next to other traffic of the same endpoint. */
#include <pthread.h>
#include <sched.h>

#include "base/clock.h"
#include "pair_rig.h"

#define S RIG_S

static struct pair pair;

static void
set(const char *name, const char *value)
{
    CHECK_INT_EQ(setenv(name, value, 1), 0);
}

static void
open_pair(void)
{
    struct sim_config config = sim_default();

    set("RDMATENSOR_VERBS_NOTIFY", "flag");
    config.in_order = SIM_WHOLE;
    config.delay_us = 20;
    sim_use();
    if (getenv("RDT_TEST_VERBS") == NULL)
        sim_begin(&config);
    pair_open(&pair, RDT_TRANSPORT_VERBS);
}

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
fill(float *tensor, uint64_t elems, uint32_t step)
{
    for (uint64_t i = 0; i < elems; i++)
        tensor[i] = (float)step * 1000 + (float)i;
}

static void
wait_free(rdt_transfer *t)
{
    struct rdt_error err = {0};

    check_ok(rdt_transfer_wait(t, 10 * S, &err), &err, "transfer_wait");
    rdt_transfer_free(t);
}

static bool
is_there(const float *tensor, uint64_t elems, uint32_t step)
{
    for (uint64_t i = 0; i < elems; i++)
        if (tensor[i] != (float)step * 1000 + (float)i)
            return false;
    return true;
}

/* Where flags are insisted upon on a device that does not promise order, the last bytes, which are
 * the flag, may be there before others, as rxe has shown under load. The others must follow, before
 * the receiver gives the slot back. */
static void
await_tensor(const float *tensor, uint64_t elems, uint32_t step)
{
    const bool may_be_early =
        getenv("RDT_TEST_VERBS") != NULL && getenv("RDMATENSOR_VERBS_FLAG_UNSAFE") != NULL;
    const uint64_t deadline = rdti_deadline_after(10 * S);

    if (is_there(tensor, elems, step))
        return;
    CHECK_MSG(may_be_early, "the tensor of step %u was announced before its bytes", step);
    (void)printf("the tensor of step %u was announced before its bytes, as it may be\n", step);
    while (!is_there(tensor, elems, step)) {
        CHECK_MSG(rdti_now_ns() < deadline, "the bytes of step %u never came", step);
        (void)sched_yield(); /* which the compiler does not read across */
    }
}

static void
take(rdt_slot *slot, const uint64_t dims[2], uint32_t step)
{
    struct rdt_error err = {0};
    struct rdt_slot_view view;

    check_ok(rdt_slot_get(slot, 10 * S, &view, &err), &err, "get");
    CHECK_UINT_EQ(view.epoch, step);
    CHECK_UINT_EQ(view.dims[0], dims[0]);
    CHECK_UINT_EQ(view.len_bytes, dims[0] * dims[1] * sizeof(float));
    await_tensor(view.addr, dims[0] * dims[1], step);
    check_ok(rdt_slot_release(slot, &err), &err, "release");
}

static void
check_described(void)
{
    static char text[65536];
    struct rdt_error err = {0};
    size_t needed = 0;

    check_ok(rdt_context_describe(pair.ctx[0], text, sizeof(text), &needed, &err), &err,
             "describe");
    /* rxe promises nothing: there it says so, unless it is insisted upon. */
    const bool is_right =
        getenv("RDT_TEST_VERBS") == NULL || getenv("RDMATENSOR_VERBS_FLAG_UNSAFE") != NULL;
    CHECK_STR_CONTAINS(text,
                       is_right
                           ? "notify flag"
                           : "notify imm (no flag: the device does not promise to write in order)");
}

/* ---- Kinds ---------------------------------------------------------------------------------- */

/* A slot of each kind, in turns with user notifications and messages to none of them. */
TEST_TIMEOUT(slots_of_every_kind_are_announced, 60)
{
    static float tensors[3][64 * 32];
    struct rdt_error err = {0};
    rdt_slot *slots[3];
    rdt_slot_tx *txs[3];
    rdt_region *region;
    struct rdt_remote_region remote;

    open_pair();
    check_ok(rdt_region_alloc(pair.ctx[1], 64, 0, &region, &err), &err, "alloc");
    check_ok(rdt_region_export(region, &remote, &err), &err, "export");
    for (uint32_t kind = RDT_SLOT_STATIC; kind <= RDT_SLOT_DYNAMIC; kind++) {
        const struct rdt_tensor_desc desc = desc_of(kind, 64, kind == RDT_SLOT_STATIC ? 1 : 32);
        const char name[] = {'s', (char)('0' + kind), '\0'};

        check_ok(rdt_slot_create(pair.ep[1], name, &desc, &slots[kind - 1], &err), &err, "create");
        check_ok(rdt_slot_tx_open(pair.ep[0], name, &desc, 5 * S, &txs[kind - 1], &err), &err,
                 "open");
    }
    for (uint32_t step = 0; step < 300; step++) {
        uint64_t dims[3][2];
        rdt_transfer *transfers[3];
        uint32_t value = 0;

        for (uint32_t i = 0; i < 3; i++) {
            dims[i][0] = i == 0 ? 64 : step % 65;
            dims[i][1] = i == 0 ? 1 : 32;
            fill(tensors[i], dims[i][0] * dims[i][1], step);
            check_ok(rdt_slot_tx_put(txs[i], tensors[i], dims[i], 5 * S, &transfers[i], &err), &err,
                     "put");
            if (i == step % 3)
                check_ok(rdt_endpoint_write(pair.ep[0], "x", step % 2, &remote, 0, step, NULL,
                                            &err),
                         &err, "write");
        }
        /* What went before the notification is there when it is. */
        check_ok(rdt_endpoint_wait_notify(pair.ep[1], 10 * S, &value, &err), &err, "wait_notify");
        CHECK_UINT_EQ(value, step);
        for (uint32_t i = 0; i < 3; i++) {
            take(slots[i], dims[i], step);
            wait_free(transfers[i]);
        }
    }
    check_described();
    for (uint32_t i = 0; i < 3; i++) {
        rdt_slot_tx_destroy(txs[i]);
        rdt_slot_destroy(slots[i]);
    }
    rdt_region_free(region, NULL, NULL);
    pair_close(&pair);
}

/* ---- Sleep ---------------------------------------------------------------------------------- */

#define STEPS 500
#define ROWS 25

static rdt_slot_tx *stream_tx;

static void *
send_stream(void *arg)
{
    const uint64_t dims[2] = {ROWS, 1};

    (void)arg;
    for (uint32_t step = 0; step < STEPS; step++) {
        struct rdt_error err = {0};
        float tensor[ROWS];
        rdt_transfer *t;

        if (step % 20 == 0)
            test_sleep_ns(3000000); /* until the receiver sleeps */
        fill(tensor, ROWS, step);
        check_ok(rdt_slot_tx_put(stream_tx, tensor, dims, 20 * S, &t, &err), &err, "put");
        wait_free(t);
    }
    return NULL;
}

TEST_TIMEOUT(receivers_that_sleep_miss_nothing, 60)
{
    const struct rdt_tensor_desc desc = desc_of(RDT_SLOT_STATIC, ROWS, 1);
    const uint64_t dims[2] = {ROWS, 1};
    struct rdt_error err = {0};
    pthread_t sender;
    rdt_slot *slot;

    open_pair();
    check_ok(rdt_slot_create(pair.ep[1], "stream", &desc, &slot, &err), &err, "create");
    check_ok(rdt_slot_tx_open(pair.ep[0], "stream", &desc, 5 * S, &stream_tx, &err), &err, "open");
    CHECK_INT_EQ(pthread_create(&sender, NULL, send_stream, NULL), 0);
    for (uint32_t step = 0; step < STEPS; step++)
        take(slot, dims, step);
    CHECK_INT_EQ(pthread_join(sender, NULL), 0);
    rdt_slot_tx_destroy(stream_tx);
    rdt_slot_destroy(slot);
    pair_close(&pair);
}

/* ---- Ends ----------------------------------------------------------------------------------- */

/* A place in the arena that is used again holds an old flag, and halves that are opened again go on
 * where the last ones ended. */
TEST_TIMEOUT(slots_come_and_go, 60)
{
    const struct rdt_tensor_desc desc = desc_of(RDT_SLOT_STATIC, ROWS, 1);
    const uint64_t dims[2] = {ROWS, 1};

    open_pair();
    for (int round = 0; round < 30; round++) {
        struct rdt_error err = {0};
        float tensor[ROWS];
        rdt_slot *slot;
        rdt_slot_tx *tx;
        rdt_transfer *t;
        char name[16]; /* each round another: that one is gone the sender hears later */

        (void)snprintf(name, sizeof(name), "acts%d", round);
        check_ok(rdt_slot_create(pair.ep[1], name, &desc, &slot, &err), &err, "create");
        for (uint32_t step = 0; step < 5; step++) {
            check_ok(rdt_slot_tx_open(pair.ep[0], name, &desc, 5 * S, &tx, &err), &err, "open");
            fill(tensor, ROWS, step);
            check_ok(rdt_slot_tx_put(tx, tensor, NULL, 5 * S, &t, &err), &err, "put");
            wait_free(t);
            rdt_slot_tx_destroy(tx);
            if (step < 3 || round % 2 == 0)
                take(slot, dims, step);
        }
        rdt_slot_destroy(slot); /* every other time with a tensor that nobody took */
        struct rdt_slot_view none;
        check_ok(rdt_slot_create(pair.ep[1], "other", &desc, &slot, &err), &err, "create");
        CHECK(rdt_slot_get(slot, 1000000, &none, &err) == RDT_ETIMEDOUT);
        rdt_slot_destroy(slot);
    }
    pair_close(&pair);
}

TEST_MAIN()
