/* SPDX-License-Identifier: Apache-2.0
 * Moves all bytes by process_vm_readv() and process_vm_writev(), or fails. */
#include "transport/shm/process.h"

#include <errno.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/error.h"
#include "base/system/permit.h"

/* 0, an errno, or -1: the bytes there differ. */
static int
shm_process_read_nonce(const struct shm_process *process)
{
    uint8_t seen[SHM_NONCE_BYTES];
    struct iovec local = {.iov_base = seen, .iov_len = sizeof(seen)};
    struct iovec remote = {.iov_base = (void *)(uintptr_t)process->nonce_addr,
                           .iov_len = sizeof(seen)};

    const ssize_t got = process_vm_readv((pid_t)process->pid, &local, 1, &remote, 1, 0);
    if (got < 0)
        return errno;
    if ((size_t)got != sizeof(seen) || memcmp(seen, process->nonce, sizeof(seen)) != 0)
        return -1;
    return 0;
}

void
rdti_shm_process_probe(struct shm_process *process)
{
    const int outcome = shm_process_read_nonce(process);

    atomic_store_explicit(&process->sys_errno, outcome > 0 ? outcome : 0, memory_order_relaxed);
    atomic_store_explicit(&process->is_permitted, outcome == 0, memory_order_relaxed);
}

rdt_status
rdti_shm_process_require(const struct shm_process *process, struct rdt_error *err)
{
    if (atomic_load_explicit(&process->is_permitted, memory_order_relaxed))
        return RDT_OK;
    const int sys_errno = atomic_load_explicit(&process->sys_errno, memory_order_relaxed);
    return rdti_error_set(err, RDT_ENOTSUP, sys_errno,
                          "registered private memory of process %u cannot be reached from here%s; "
                          "allocate the tensor in the arena (rdt_region_alloc), or permit "
                          "process_vm_readv (kernel.yama.ptrace_scope=0 or CAP_SYS_PTRACE)",
                          process->pid,
                          sys_errno != 0 ? "" : " (another pid namespace has that number)");
}

static rdt_status
shm_process_forbid(struct shm_process *process, int sys_errno, struct rdt_error *err)
{
    atomic_store_explicit(&process->sys_errno, sys_errno, memory_order_relaxed);
    atomic_store_explicit(&process->is_permitted, false, memory_order_relaxed);
    return rdti_shm_process_require(process, err);
}

static rdt_status
shm_process_check_alive(struct shm_process *process, struct rdt_error *err)
{
    const int outcome = shm_process_read_nonce(process);

    if (outcome == 0)
        return RDT_OK;
    if (rdti_is_forbidden(outcome))
        return shm_process_forbid(process, outcome, err);
    return rdti_error_set(err, RDT_EPEER, outcome > 0 ? outcome : 0,
                          "process %u is gone or executes another program", process->pid);
}

/* A place in a list of blocks. */
struct block_cursor {
    uint32_t index;
    uint64_t done_bytes; /* of the block at index */
};

static unsigned long
shm_process_gather(uint64_t base_addr, const struct rdt_block *blocks, uint32_t count,
                   const struct block_cursor *at, struct iovec *local, struct iovec *remote)
{
    unsigned long used = 0;
    uint64_t skip = at->done_bytes;

    for (uint32_t i = at->index; i < count && used < SHM_PROCESS_BLOCKS; i++, skip = 0) {
        const uint64_t len = blocks[i].len_bytes - skip;

        if (len == 0)
            continue;
        const uint64_t to = base_addr + blocks[i].dst_off + skip;
        local[used].iov_base = (void *)((uintptr_t)blocks[i].src + skip);
        local[used].iov_len = len;
        remote[used].iov_base = (void *)(uintptr_t)to;
        remote[used].iov_len = len;
        used++;
    }
    return used;
}

static void
shm_process_advance(const struct rdt_block *blocks, uint32_t count, struct block_cursor *at,
                    uint64_t moved)
{
    while (at->index < count) {
        const uint64_t left = blocks[at->index].len_bytes - at->done_bytes;

        if (moved < left) {
            at->done_bytes += moved;
            return;
        }
        moved -= left;
        at->index++;
        at->done_bytes = 0;
    }
}

/* One system call. Checks that the pid is still the peer's: before it, and after a read, whose
 * bytes may be those of a later process with the same pid. Between a check and a write the kernel
 * would have to use up all pids. */
static rdt_status
shm_process_move_once(struct shm_process *process, const struct iovec *local,
                      const struct iovec *remote, unsigned long used, bool is_write,
                      uint64_t *moved_out, struct rdt_error *err)
{
    const pid_t pid = (pid_t)process->pid;
    const rdt_status status = shm_process_check_alive(process, err);

    if (status != RDT_OK)
        return status;
    const ssize_t moved = is_write ? process_vm_writev(pid, local, used, remote, used, 0)
                                   : process_vm_readv(pid, local, used, remote, used, 0);
    const int saved = errno;
    if (moved < 0 && saved == ESRCH)
        return rdti_error_set(err, RDT_EPEER, saved, "process %u is gone", process->pid);
    if (moved < 0 && rdti_is_forbidden(saved))
        return shm_process_forbid(process, saved, err);
    if (moved <= 0)
        return rdti_error_set(err, RDT_EDEVICE, moved < 0 ? saved : 0,
                              "process_vm_%s of process %u, %llu bytes at 0x%llx",
                              is_write ? "writev" : "readv", process->pid,
                              (unsigned long long)remote[0].iov_len,
                              (unsigned long long)(uintptr_t)remote[0].iov_base);
    *moved_out = (uint64_t)moved;
    return is_write ? RDT_OK : shm_process_check_alive(process, err);
}

static rdt_status
shm_process_move(struct shm_process *process, uint64_t base_addr, const struct rdt_block *blocks,
                 uint32_t count, bool is_write, struct rdt_error *err)
{
    struct iovec local[SHM_PROCESS_BLOCKS];
    struct iovec remote[SHM_PROCESS_BLOCKS];
    struct block_cursor at = {0, 0};

    for (;;) {
        const unsigned long used = shm_process_gather(base_addr, blocks, count, &at, local, remote);
        if (used == 0)
            return RDT_OK;
        uint64_t moved = 0;
        const rdt_status status =
            shm_process_move_once(process, local, remote, used, is_write, &moved, err);
        if (status != RDT_OK)
            return status;
        shm_process_advance(blocks, count, &at, moved);
    }
}

rdt_status
rdti_shm_process_write(struct shm_process *process, uint64_t base_addr,
                       const struct rdt_block *blocks, uint32_t count, struct rdt_error *err)
{
    return shm_process_move(process, base_addr, blocks, count, true, err);
}

rdt_status
rdti_shm_process_read(struct shm_process *process, uint64_t base_addr,
                      const struct rdt_block *blocks, uint32_t count, struct rdt_error *err)
{
    return shm_process_move(process, base_addr, blocks, count, false, err);
}
