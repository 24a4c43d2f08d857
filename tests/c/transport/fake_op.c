/* SPDX-License-Identifier: Apache-2.0
 * Operations of tests, and witnesses of leaks. */
#include <dirent.h>

#include "../harness.h"
#include "base/error.h"
#include "fake_host.h"

static void
complete(struct rdti_op *base, rdt_status status, const struct rdt_error *err)
{
    struct fake_op *op = RDTI_CONTAINER(base, struct fake_op, op);

    op->status = status;
    if (status != RDT_OK) {
        CHECK_NOT_NULL(err);
        CHECK_INT_EQ(err->status, status);
        op->error = *err;
    }
    /* release: pairs with fake_op_is_done(), which hands status and buffers to its thread. */
    const uint32_t before = atomic_fetch_add_explicit(&op->completions, 1, memory_order_release);
    CHECK_MSG(before == 0, "an op was completed %u times", before + 1);
}

static void
fill(struct fake_op *op, uint32_t kind, const struct rdt_remote_region *remote, uint32_t notify)
{
    memset(&op->op, 0, sizeof(op->op));
    memset(&op->error, 0, sizeof(op->error));
    op->status = RDT_EAGAIN;
    atomic_init(&op->completions, 0);
    rdti_list_init(&op->op.link);
    op->op.kind = kind;
    op->op.notify = notify;
    op->op.remote = *remote;
    op->op.complete = complete;
}

static void
fill_block(struct fake_op *op, const void *local, uint64_t len_bytes, uint64_t remote_off)
{
    op->op.block = (struct rdt_block){.src = local, .len_bytes = len_bytes, .dst_off = remote_off};
    op->op.blocks = &op->op.block;
    op->op.block_count = 1;
    op->op.len_bytes = len_bytes;
}

void
fake_write(struct fake_op *op, const void *src, uint64_t len_bytes,
           const struct rdt_remote_region *dst, uint64_t dst_off, uint32_t notify)
{
    fill(op, RDTI_OP_WRITE, dst, notify);
    fill_block(op, src, len_bytes, dst_off);
}

void
fake_write_many(struct fake_op *op, const struct rdt_block *blocks, uint32_t count,
                const struct rdt_remote_region *dst, uint32_t notify)
{
    fill(op, RDTI_OP_WRITE, dst, notify);
    op->op.blocks = blocks;
    op->op.block_count = count;
    for (uint32_t i = 0; i < count; i++)
        op->op.len_bytes += blocks[i].len_bytes;
}

void
fake_read(struct fake_op *op, void *dst, uint64_t len_bytes, const struct rdt_remote_region *src,
          uint64_t src_off)
{
    fill(op, RDTI_OP_READ, src, UINT32_MAX);
    fill_block(op, dst, len_bytes, src_off);
}

rdt_status
fake_start(struct fake_link *link, struct fake_op *op, struct rdt_error *err)
{
    const struct rdti_transport *transport = link->host->transport;

    if (op->op.kind == RDTI_OP_READ)
        return transport->read(link->lane, &op->op, err);
    return transport->write(link->lane, &op->op, err);
}

void
fake_must_start(struct fake_link *link, struct fake_op *op)
{
    struct rdt_error err;

    CHECK_OK(fake_start(link, op, &err), &err);
}

bool
fake_op_is_done(struct fake_op *op)
{
    /* acquire: pairs with complete(). */
    const uint32_t completions = atomic_load_explicit(&op->completions, memory_order_acquire);

    CHECK_UINT_LE(completions, 1);
    return completions == 1;
}

uint32_t
fake_count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    uint32_t count = 0;

    CHECK_NOT_NULL(dir);
    while (readdir(dir) != NULL)
        count++;
    CHECK_INT_EQ(closedir(dir), 0);
    return count - 3; /* ".", ".." and the directory's own */
}

uint32_t
fake_count_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    uint32_t count = 0;

    CHECK_NOT_NULL(maps);
    while (fgets(line, sizeof(line), maps) != NULL) {
        const char *permissions = strchr(line, ' ');
        count += permissions != NULL && strlen(permissions) > 4 && permissions[4] == 's';
    }
    CHECK_INT_EQ(fclose(maps), 0);
    return count;
}

uint64_t
fake_address_space_bytes(void)
{
    FILE *statm = fopen("/proc/self/statm", "re");
    uint64_t pages;

    CHECK_NOT_NULL(statm);
    CHECK_INT_EQ(fscanf(statm, "%" SCNu64, &pages), 1);
    CHECK_INT_EQ(fclose(statm), 0);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}
