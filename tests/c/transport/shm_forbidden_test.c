/* SPDX-License-Identifier: Apache-2.0
 * A lane whose peer forbids access to its private memory after it had permitted it. */
#include "harness.h"

#include <errno.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "fake_host.h"

static struct fake_host a;
static struct fake_host b;
static struct fake_link ab;
static struct fake_link ba;

static void
finish(struct fake_op *op)
{
    fake_must_start(&ab, op);
    FAKE_PUMP_UNTIL(&a, &b, fake_op_is_done(op), 10);
    CHECK_OK(op->status, &op->error);
}

/* The library reaches private memory of peers through these two. */
static _Atomic int is_forbidden;
static _Atomic int forbidden_count;

static bool
refuses(void)
{
    if (is_forbidden == 0)
        return false;
    forbidden_count++;
    errno = EPERM;
    return true;
}

ssize_t
process_vm_readv(pid_t pid, const struct iovec *local, unsigned long local_count,
                 const struct iovec *remote, unsigned long remote_count, unsigned long flags)
{
    return refuses() ? -1
                     : syscall(SYS_process_vm_readv, pid, local, local_count, remote, remote_count,
                               flags);
}

ssize_t
process_vm_writev(pid_t pid, const struct iovec *local, unsigned long local_count,
                  const struct iovec *remote, unsigned long remote_count, unsigned long flags)
{
    return refuses() ? -1
                     : syscall(SYS_process_vm_writev, pid, local, local_count, remote, remote_count,
                               flags);
}

/* As where the owner has made itself undumpable: each operation is refused, and the lane lives. */
TEST(private_memory_that_is_forbidden_later_ends_no_lane)
{
    static uint8_t owned[4096];
    char text[256];
    struct rdt_error err;
    struct fake_op op;

    fake_host_open(&a, &rdti_transport_shm);
    fake_host_open(&b, &rdti_transport_shm);
    fake_connect(&a, &ab, &b, &ba, NULL);
    a.transport->explain(ab.lane, text, sizeof(text));
    if (strstr(text, "process_vm_writev") == NULL)
        SKIP("process_vm_readv is not permitted");
    struct fake_region *region = fake_region_private(&b, owned, sizeof(owned));
    fake_write(&op, "x", 1, &region->remote, 0, 9);
    finish(&op);
    is_forbidden = 1;
    for (int i = 0; i < 3; i++) {
        fake_write(&op, "y", 1, &region->remote, 0, 9);
        CHECK_STATUS(fake_start(&ab, &op, &err), RDT_ENOTSUP);
        CHECK_INT_EQ(err.sys_errno, EPERM);
        CHECK_STR_CONTAINS(err.message, "rdt_region_alloc");
    }
    CHECK_INT_EQ(forbidden_count, 1); /* the others did not ask */
    is_forbidden = 0;
    CHECK_INT_EQ(owned[0], 'x');
    fake_write(&op, NULL, 0, &region->remote, 0, 9);
    finish(&op);
    CHECK_UINT_EQ(ab.error_count, 0);
    fake_disconnect(&ab, &ba);
    fake_host_close(&a);
    fake_host_close(&b);
}

TEST_MAIN()
