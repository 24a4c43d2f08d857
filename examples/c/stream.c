/* SPDX-License-Identifier: Apache-2.0
 *
 * A stream of tensors of one shape: rank 0 fills the slot's buffers in place, rank 1 reads them.
 * On one host no byte of a tensor is copied.
 */
#include "processes.h"

#define TENSORS 100
#define ROWS 64
#define COLUMNS 256

static const struct rdt_tensor_desc desc = {
    .struct_size = sizeof(desc),
    .kind = RDT_SLOT_STATIC,
    .dtype = RDT_F32,
    .ndim = 2,
    .dims = {ROWS, COLUMNS},
};

static void
send(rdt_endpoint *ep)
{
    struct rdt_error err;
    rdt_slot_tx *tx;

    check(rdt_slot_tx_open(ep, "activations", &desc, RDT_TIMEOUT_DEFAULT, &tx, &err), &err,
          "rdt_slot_tx_open");
    for (int number = 0; number < TENSORS; number++) {
        rdt_transfer *transfer;
        void *buffer;

        check(rdt_slot_tx_buffer(tx, RDT_TIMEOUT_DEFAULT, &buffer, &err), &err,
              "rdt_slot_tx_buffer");
        for (int i = 0; i < ROWS * COLUMNS; i++)
            ((float *)buffer)[i] = (float)number;
        check(rdt_slot_tx_post(tx, NULL, &transfer, &err), &err, "rdt_slot_tx_post");
        transfer_finish(transfer);
    }
    rdt_slot_tx_destroy(tx);
}

static void
receive(rdt_context *ctx, rdt_endpoint *ep)
{
    struct rdt_counters counters = {.struct_size = sizeof(counters)};
    struct rdt_error err;
    rdt_slot *slot;

    check(rdt_slot_create(ep, "activations", &desc, &slot, &err), &err, "rdt_slot_create");
    for (int number = 0; number < TENSORS; number++) {
        struct rdt_slot_view view;

        check(rdt_slot_get(slot, RDT_TIMEOUT_DEFAULT, &view, &err), &err, "rdt_slot_get");
        for (int i = 0; i < ROWS * COLUMNS; i++) {
            if (((const float *)view.addr)[i] != (float)number) {
                fprintf(stderr, "tensor %d is wrong at element %d\n", number, i);
                exit(1);
            }
        }
        check(rdt_slot_release(slot, &err), &err, "rdt_slot_release");
    }
    rdt_slot_destroy(slot);
    rdt_context_counters(ctx, &counters);
    printf("rank 1: %d tensors of %d x %d float32, %llu bytes copied\n", TENSORS, ROWS, COLUMNS,
           (unsigned long long)counters.copied_bytes);
}

static void
work(struct board *board, uint32_t rank, uint32_t ranks)
{
    rdt_context *ctx = context_open(board, rank);
    rdt_endpoint *ep = endpoint_open(ctx, board, 1 - rank);
    struct rdt_error err;

    (void)ranks;
    if (rank == 0)
        send(ep);
    else
        receive(ctx, ep);
    rdt_endpoint_close(ep);
    check(rdt_context_close(ctx, &err), &err, "rdt_context_close");
}

int
main(void)
{
    return processes_run(2, work);
}
