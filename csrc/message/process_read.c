/* SPDX-License-Identifier: Apache-2.0
 * Reading a message from the memory of its sender's process. */
#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#include "base/error.h"
#include "message/mailbox_impl.h"
#include "message/request_impl.h"

ssize_t
rdti_process_read(struct rdti_request *receive, uint64_t len_bytes, bool *is_other_out)
{
    uint64_t seen = 0;
    const struct iovec local[2] = {{&seen, sizeof(seen)},
                                   {(char *)receive->buf + receive->done_bytes, len_bytes}};
    const struct iovec remote[2] = {{(void *)(uintptr_t)receive->rts.canary_addr, sizeof(seen)},
                                    {(void *)(uintptr_t)(receive->rts.addr + receive->done_bytes),
                                     len_bytes}};
    const ssize_t got = process_vm_readv((pid_t)receive->rts.pid, local, 2, remote, 2, 0);

    *is_other_out = got >= 0 && (got < (ssize_t)sizeof(seen) || seen != receive->rts.canary);
    return got < (ssize_t)sizeof(seen) ? got : got - (ssize_t)sizeof(seen);
}

void
rdti_process_fail(struct rdti_request *receive, ssize_t got, int sys_errno, bool is_other)
{
    rdt_endpoint *ep = receive->mailbox->ep;
    const bool is_gone = is_other || (got < 0 && sys_errno == ESRCH);
    receive->op_status = rdti_error_set_rank(&receive->error, is_gone ? RDT_EPEER : RDT_EDEVICE,
                                             rdti_endpoint_rank(ep),
                                             "reading the memory of rank %d (process %u): %s",
                                             (int)rdti_endpoint_rank(ep), receive->rts.pid,
                                             is_other   ? "another process has this number"
                                             : got >= 0 ? "nothing was read"
                                                        : strerror(sys_errno));
    receive->error.sys_errno = sys_errno;
    /* Its memory goes before its sockets close: an endpoint that ends for want of it names it. */
    if (is_gone)
        rdti_endpoint_on_lane_error(ep, &receive->error);
}
