/* SPDX-License-Identifier: Apache-2.0
 * The kernel forbids access to a peer's private memory after it had permitted it: messages take the
 * next path, and nobody's path breaks. */
#include <errno.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "group/group_impl.h"
#include "verify_rig.h"

/* The library reads and writes private memory of peers through these. */
static _Atomic int32_t permitted; /* so many accesses more */
static _Atomic uint32_t denied;

static bool
is_denied(void)
{
    if (atomic_fetch_sub(&permitted, 1) > 0)
        return false;
    atomic_fetch_add(&denied, 1);
    errno = EPERM;
    return true;
}

ssize_t
process_vm_readv(pid_t pid, const struct iovec *local, unsigned long local_count,
                 const struct iovec *remote, unsigned long remote_count, unsigned long flags)
{
    return is_denied() ? -1
                       : syscall(SYS_process_vm_readv, pid, local, local_count, remote,
                                 remote_count, flags);
}

ssize_t
process_vm_writev(pid_t pid, const struct iovec *local, unsigned long local_count,
                  const struct iovec *remote, unsigned long remote_count, unsigned long flags)
{
    return is_denied() ? -1
                       : syscall(SYS_process_vm_writev, pid, local, local_count, remote,
                                 remote_count, flags);
}

static rdt_status
address_of(void *arg, uint32_t rank, uint64_t timeout_ns, uint8_t *buf, size_t cap, size_t *len_out,
           struct rdt_error *err)
{
    rdt_context **ctx = arg;

    (void)timeout_ns;
    return rdt_context_address(ctx[rank], buf, cap, len_out, err);
}

static void
open_members(rdt_context **ctx, rdt_group **group, uint32_t verify)
{
    struct rdt_error err = {0};

    for (uint32_t i = 0; i < 2; i++)
        ctx[i] = make(RDT_TRANSPORT_SHM, verify, (int32_t)i);
    for (uint32_t i = 0; i < 2; i++) {
        const struct rdt_group_opts opts = {.struct_size = sizeof(opts),
                                            .rank = i,
                                            .size = 2,
                                            .name = "world",
                                            .job_id = "job",
                                            .timeout_ns = 15 * S,
                                            .address = address_of,
                                            .address_arg = (void *)ctx};
        CHECK_OK(rdt_group_create(ctx[i], &opts, &group[i], &err), &err);
    }
}

static void
close_pair(rdt_context **ctx, rdt_group **group)
{
    struct rdt_error err = {0};

    for (int i = 0; i < 2; i++)
        rdt_group_destroy(group[i]);
    for (int i = 0; i < 2; i++) {
        rdt_status status;
        const uint64_t deadline_ns = test_now_ns() + 15 * S;
        while ((status = rdt_context_close(ctx[i], &err)) == RDT_EBUSY &&
               test_now_ns() < deadline_ns)
            test_sleep_ns(1000000);
        CHECK_OK(status, &err);
    }
}

/* Three messages at once; the kernel forbids from the `after`-th access on. */
static void
exchange(int32_t after, uint32_t verify)
{
    enum { COUNT = 3, BYTES = 5 << 20 };
    rdt_context *ctx[2];
    rdt_group *group[2];
    rdt_transfer *recv[COUNT];
    rdt_transfer *send[COUNT];
    uint8_t *dst[COUNT];
    uint8_t *src = noise(BYTES, 5);
    struct rdt_error err = {0};

    permitted = after;
    denied = 0;
    open_members(ctx, group, verify);
    for (int i = 0; i < COUNT; i++) {
        dst[i] = calloc(1, BYTES);
        CHECK_OK(rdt_group_recv(group[1], 0, 7, dst[i], BYTES, NULL, &recv[i], &err), &err);
    }
    for (int i = 0; i < COUNT; i++)
        CHECK_OK(rdt_group_send(group[0], 1, 7, src, BYTES, NULL, &send[i], &err), &err);
    for (int i = 0; i < COUNT; i++) {
        CHECK_OK(rdt_transfer_wait(recv[i], 15 * S, &err), &err);
        rdt_transfer_free(recv[i]);
        check_done(send[i]);
        CHECK_MEM_EQ(dst[i], src, BYTES);
        free(dst[i]);
    }
    CHECK(denied > 0);
    CHECK_UINT_EQ(counters_of(ctx[1]).mismatches, 0);
    close_pair(ctx, group);
    free(src);
}

TEST_TIMEOUT(messages_take_the_next_path, 60)
{
    for (int32_t after = 0; after < 9; after++)
        for (uint32_t verify = 0; verify < 2; verify++)
            exchange(after, verify == 0 ? RDT_VERIFY_OFF : RDT_VERIFY_CRC32C);
}

TEST_MAIN()
