/* SPDX-License-Identifier: Apache-2.0
 *
 * Three ranks add up a vector: each of them gets the sum.
 */
#include <string.h>

#include "processes.h"

#define RANKS 3
#define COUNT 100000

/* The group asks for a member's address when it first needs the member. */
static rdt_status
address_of(void *arg, uint32_t rank, uint64_t timeout_ns, uint8_t *buf, size_t cap, size_t *len_out,
           struct rdt_error *err)
{
    struct notice *notice = &((struct board *)arg)->addresses[rank];
    const uint8_t *bytes = notice_wait(notice);

    (void)timeout_ns;
    (void)err;
    if (notice->len_bytes > cap)
        return RDT_EINVAL;
    memcpy(buf, bytes, notice->len_bytes);
    *len_out = notice->len_bytes;
    return RDT_OK;
}

static void
work(struct board *board, uint32_t rank, uint32_t ranks)
{
    rdt_context *ctx = context_open(board, rank);
    const struct rdt_group_opts opts = {
        .struct_size = sizeof(opts),
        .rank = rank,
        .size = ranks,
        .name = "all",
        .job_id = "example",
        .timeout_ns = TIMEOUT_NS,
        .address = address_of,
        .address_arg = board,
    };
    const double want = ranks * (ranks + 1) / 2.0;
    rdt_transfer *transfer;
    struct rdt_error err;
    rdt_region *region;
    rdt_group *group;

    check(rdt_group_create(ctx, &opts, &group, &err), &err, "rdt_group_create");
    check(rdt_region_alloc(ctx, COUNT * sizeof(double), 0, &region, &err), &err,
          "rdt_region_alloc");
    double *const values = rdt_region_addr(region);
    for (int i = 0; i < COUNT; i++)
        values[i] = rank + 1;

    const struct rdt_coll_args args = {
        .struct_size = sizeof(args),
        .op = RDT_COLL_ALLREDUCE,
        .dtype = RDT_F64,
        .reduce_op = RDT_SUM,
        .count = COUNT,
        .send = values,
        .recv = values,
    };
    check(rdt_coll_post(group, &args, &transfer, &err), &err, "rdt_coll_post");
    transfer_finish(transfer);
    for (int i = 0; i < COUNT; i++) {
        if (values[i] != want) {
            fprintf(stderr, "rank %u: element %d is %g, not %g\n", rank, i, values[i], want);
            exit(1);
        }
    }
    printf("rank %u: the sum of %d elements is %g in each\n", rank, COUNT, want);

    rdt_region_free(region, NULL, NULL);
    rdt_group_destroy(group);
    check(rdt_context_close(ctx, &err), &err, "rdt_context_close");
}

int
main(void)
{
    return processes_run(RANKS, work);
}
