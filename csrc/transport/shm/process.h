/* SPDX-License-Identifier: Apache-2.0
 * Access to registered private memory of a peer through the kernel (process_vm_readv and _writev),
 * if it permits that. Permission depends on ptrace rights (yama, user and pid namespaces, seccomp),
 * so each lane tries it once. Rights may be withdrawn later: a process makes itself undumpable, or
 * yama is raised. After one refused access all later ones are refused.
 *
 * A process id alone does not identify a process: it may come from another pid namespace, the
 * process may have executed another program, or may be dead and its id reused. So the peer keeps
 * random bytes in private memory, which vanish with the address space, and each access reads them
 * again first. This guards against accidents; the side channel (SO_PEERCRED) decides whether the
 * peer may name this process at all.
 */
#ifndef RDTI_SHM_PROCESS_H
#define RDTI_SHM_PROCESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "rdmatensor.h"
#include "transport/shm/limits.h"

struct shm_process {
    uint32_t pid;
    uint64_t nonce_addr;
    uint8_t nonce[SHM_NONCE_BYTES];
    atomic_bool is_permitted; /* until an access fails; relaxed: only a hint */
    atomic_int sys_errno;     /* why not; 0: another process has this pid */
};

/* Sets is_permitted and sys_errno. */
void rdti_shm_process_probe(struct shm_process *process);

/* RDT_ENOTSUP unless permitted, with the reason and a remedy. */
rdt_status rdti_shm_process_require(const struct shm_process *process, struct rdt_error *err);

/*
 * Move blocks between this process's memory (src) and the peer's (base_addr + dst_off).
 *   RDT_EPEER    the process is gone
 *   RDT_ENOTSUP  the permission has been withdrawn, which ends only this operation
 *   RDT_EDEVICE  the kernel refused; some bytes may have moved
 */
rdt_status rdti_shm_process_write(struct shm_process *process, uint64_t base_addr,
                                  const struct rdt_block *blocks, uint32_t count,
                                  struct rdt_error *err);
rdt_status rdti_shm_process_read(struct shm_process *process, uint64_t base_addr,
                                 const struct rdt_block *blocks, uint32_t count,
                                 struct rdt_error *err);

#endif
