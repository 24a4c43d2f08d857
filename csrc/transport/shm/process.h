/* SPDX-License-Identifier: Apache-2.0
 * Registered private memory of a peer, reached through the kernel (process_vm_readv and _writev)
 * where it permits that. It depends on ptrace rights (yama, user and pid namespaces, seccomp), so
 * it is tried, once per lane. Rights may go later: a process makes itself undumpable, or yama is
 * raised. An access that is refused then is refused from there on.
 *
 * A process id alone names nobody: it may come from another pid namespace, the process may have
 * executed another program, or may be dead and its number given away. So the peer keeps random
 * bytes in private memory, and they are read again before each access: they vanish with the address
 * space. This guards against accidents; whether the peer may name this process at all is for the
 * side channel (SO_PEERCRED) to say.
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
    atomic_bool is_permitted; /* until an access shows otherwise; relaxed: a mere hint */
    atomic_int sys_errno;     /* why not; 0: another process answers to the number */
};

/* Sets is_permitted and sys_errno. */
void rdti_shm_process_probe(struct shm_process *process);

/* RDT_ENOTSUP unless permitted, with the reason and what to do instead. */
rdt_status rdti_shm_process_require(const struct shm_process *process, struct rdt_error *err);

/*
 * Move blocks between our memory (src) and the peer's (base_addr + dst_off).
 *   RDT_EPEER    the process is gone
 *   RDT_ENOTSUP  it permits no access any more, which ends this operation only
 *   RDT_EDEVICE  the kernel refused; some bytes may have moved
 */
rdt_status rdti_shm_process_write(struct shm_process *process, uint64_t base_addr,
                                  const struct rdt_block *blocks, uint32_t count,
                                  struct rdt_error *err);
rdt_status rdti_shm_process_read(struct shm_process *process, uint64_t base_addr,
                                 const struct rdt_block *blocks, uint32_t count,
                                 struct rdt_error *err);

#endif
