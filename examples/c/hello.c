/* SPDX-License-Identifier: Apache-2.0
 *
 * Rank 0 writes a text into memory of rank 1, which learns by a notification that it is there.
 */
#include <string.h>

#include "processes.h"

static const char text[] = "hello from rank 0";

static void
receive(struct board *board, rdt_context *ctx, rdt_endpoint *ep)
{
    struct notice *mine = &board->regions[1];
    struct rdt_remote_region remote;
    struct rdt_error err;
    rdt_region *region;
    uint32_t number;

    check(rdt_region_alloc(ctx, sizeof(text), RDT_REGION_ZERO, &region, &err), &err,
          "rdt_region_alloc");
    check(rdt_region_export(region, &remote, &err), &err, "rdt_region_export");
    rdt_remote_region_encode(&remote, mine->bytes);
    notice_post(mine, RDT_REMOTE_REGION_BYTES);

    check(rdt_endpoint_wait_notify(ep, RDT_TIMEOUT_DEFAULT, &number, &err), &err,
          "rdt_endpoint_wait_notify");
    printf("rank 1: \"%s\", notification %u\n", (const char *)rdt_region_addr(region), number);
    rdt_region_free(region, NULL, NULL);
}

static void
send(struct board *board, rdt_endpoint *ep)
{
    static const char *const names[] = {"none", "shm", "tcp", "verbs"};
    const uint8_t *encoded = notice_wait(&board->regions[1]);
    struct rdt_remote_region remote;
    rdt_transfer *transfer;
    struct rdt_error err;

    check(rdt_remote_region_decode(encoded, RDT_REMOTE_REGION_BYTES, &remote, &err), &err,
          "rdt_remote_region_decode");
    check(rdt_endpoint_write(ep, text, sizeof(text), &remote, 0, 7, &transfer, &err), &err,
          "rdt_endpoint_write");
    transfer_finish(transfer);
    printf("rank 0: wrote %zu bytes over %s\n", sizeof(text), names[rdt_endpoint_transport(ep)]);
}

static void
work(struct board *board, uint32_t rank, uint32_t ranks)
{
    rdt_context *ctx = context_open(board, rank);
    rdt_endpoint *ep = endpoint_open(ctx, board, 1 - rank);
    struct rdt_error err;

    (void)ranks;
    if (rank == 0)
        send(board, ep);
    else
        receive(board, ctx, ep);
    rdt_endpoint_close(ep);
    check(rdt_context_close(ctx, &err), &err, "rdt_context_close");
}

int
main(void)
{
    return processes_run(2, work);
}
